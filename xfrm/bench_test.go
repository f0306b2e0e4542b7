package xfrm

import (
	"testing"

	"golang.org/x/sys/unix"
)

// recorded is the first recorded message of the type, from the kernel or from a client.
func recorded(b *testing.B, typ uint16, fromKernel bool, minLen int) Message {
	for _, g := range goldens(b) {
		if g.fromKernel == fromKernel {
			for m := range Messages(g.b) {
				if m.Type == typ && len(m.Body) >= minLen {
					return m
				}
			}
		}
	}
	b.Fatalf("no %s was recorded", TypeName(typ))
	panic("unreachable")
}

func BenchmarkDecodeNewSA(b *testing.B) {
	m := recorded(b, MsgNewSA, false, 400)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode[SA](Align8, m.Body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeNewPolicy(b *testing.B) {
	m := recorded(b, MsgNewPolicy, false, 230)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode[Policy](Align8, m.Body); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendDumpEntry encodes one SA of a dump into a buffer that is used again.
func BenchmarkAppendDumpEntry(b *testing.B) {
	m := recorded(b, MsgNewSA, true, 400)
	s, err := Decode[SA](Align8, m.Body)
	if err != nil {
		b.Fatal(err)
	}
	s.Attrs.Canonical()
	buf := make([]byte, 0, 32<<10)
	b.ReportAllocs()
	for b.Loop() {
		buf = s.Append(buf[:0], MsgNewSA, unix.NLM_F_MULTI, 1, 2)
	}
}

func BenchmarkAppendDumpPolicy(b *testing.B) {
	m := recorded(b, MsgNewPolicy, true, 230)
	p, err := Decode[Policy](Align8, m.Body)
	if err != nil {
		b.Fatal(err)
	}
	p.Attrs.Canonical()
	buf := make([]byte, 0, 32<<10)
	b.ReportAllocs()
	for b.Loop() {
		buf = p.Append(buf[:0], MsgNewPolicy, unix.NLM_F_MULTI, 1, 2)
	}
}
