package dataplane

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"culvert/sa"
)

// RFC 6040 figure 4, as it is printed: rows are the arriving inner field, columns the arriving outer one.
func TestECNDecap(t *testing.T) {
	field := map[string]uint8{"Not-ECT": 0, "ECT(1)": 1, "ECT(0)": 2, "CE": 3}
	columns := []string{"Not-ECT", "ECT(0)", "ECT(1)", "CE"}
	for _, row := range []struct {
		inner string
		out   [4]string
	}{
		{"Not-ECT", [4]string{"Not-ECT", "Not-ECT", "Not-ECT", "drop"}},
		{"ECT(0)", [4]string{"ECT(0)", "ECT(0)", "ECT(1)", "CE"}},
		{"ECT(1)", [4]string{"ECT(1)", "ECT(1)", "ECT(1)", "CE"}},
		{"CE", [4]string{"CE", "CE", "CE", "CE"}},
	} {
		for i, want := range row.out {
			// The DSCPs of the two headers take no part: the inner one stays.
			for _, dscp := range []uint8{0, 0x14, 0xb8, 0xfc} {
				inner, outer := dscp|field[row.inner], ^dscp&0xfc|field[columns[i]]
				got, drop := ecnDecap(outer, inner)
				if drop != (want == "drop") {
					t.Errorf("inner %s, outer %s: drop is %v", row.inner, columns[i], drop)
				} else if !drop && got != dscp|field[want] {
					t.Errorf("inner %s, outer %s: %#02x, want %s with DSCP %#02x", row.inner, columns[i], got, want, dscp)
				}
			}
		}
	}
}

// Out: the DSCP as the SA says; the ECN field copied in normal mode, zero in compatibility mode (RFC 6040 4.1).
func TestOuterTOS(t *testing.T) {
	const ef = 46
	for inner := range 256 {
		dscp, ecn := uint8(inner)&0xfc, uint8(inner)&3
		for _, c := range []struct {
			name string
			p    sa.Params
			want uint8
		}{
			{"keep", sa.Params{}, dscp},
			{"keep, ECN", sa.Params{ECN: true}, dscp | ecn},
			{"copy, ECN", sa.Params{DSCP: sa.CopyDSCP, ECN: true}, dscp | ecn},
			{"set", sa.Params{DSCP: sa.SetDSCP(ef)}, ef << 2},
			{"set, ECN", sa.Params{DSCP: sa.SetDSCP(ef), ECN: true}, ef<<2 | ecn},
			{"set 0, ECN", sa.Params{DSCP: sa.SetDSCP(0), ECN: true}, ecn},
		} {
			if got := outerTOS(&c.p, uint8(inner)); got != c.want {
				t.Errorf("%s: %#02x out of %#02x, want %#02x", c.name, got, inner, c.want)
			}
		}
	}
}

// In: the DSCP kept or taken from the outer header; ECN as in figure 4, or without the SA's ECN the inner field.
func TestInnerTOS(t *testing.T) {
	for outer := range 256 {
		for inner := range 256 {
			o, i := uint8(outer), uint8(inner)
			ecn, drop := ecnDecap(o, i)
			for _, c := range []struct {
				name string
				p    sa.Params
				want uint8
				drop bool
			}{
				{"keep", sa.Params{}, i, false},
				{"copy", sa.Params{DSCP: sa.CopyDSCP}, o&0xfc | i&3, false},
				{"keep, ECN", sa.Params{ECN: true}, ecn, drop},
				{"copy, ECN", sa.Params{DSCP: sa.CopyDSCP, ECN: true}, o&0xfc | ecn&3, drop},
			} {
				got, dropped := innerTOS(&c.p, o, i)
				if dropped != c.drop || !dropped && got != c.want {
					t.Fatalf("%s: outer %#02x, inner %#02x: %#02x, drop %v; want %#02x, %v", c.name, o, i, got, dropped, c.want, c.drop)
				}
			}
		}
	}
}

// Setting the field changes nothing but the field and, in IPv4, the checksum, which stays right.
func TestSetTrafficClass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawPacket(t)
		p := w.build(false)
		if got := trafficClass(p); got != w.tos {
			t.Fatalf("%#02x, want %#02x", got, w.tos)
		}
		w.tos = rapid.Byte().Draw(t, "new")
		setTrafficClass(p, w.tos)
		if want := w.build(false); !bytes.Equal(p, want) {
			t.Fatalf("% x, want % x", p[:20], want[:20])
		}
	})
	// A checksum that was wrong is not made right: the packet is still damaged.
	p := ipv4(6, 0, nil, portsBody)
	p[10] ^= 1
	setTrafficClass(p, 0xff)
	if refSum(p[:20]) == 0xffff {
		t.Error("a damaged header came out with a right checksum")
	}
}

func TestECNAllocs(t *testing.T) {
	p, params := ipv4(6, 0, nil, portsBody), &sa.Params{ECN: true, DSCP: sa.CopyDSCP}
	if n := testing.AllocsPerRun(100, func() {
		tos, _ := innerTOS(params, 3, trafficClass(p))
		setTrafficClass(p, outerTOS(params, tos))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSetTrafficClass(b *testing.B) {
	p, tos := ipv4(6, 0, nil, make([]byte, 1380)), uint8(0)
	for b.Loop() {
		tos, _ = ecnDecap(3, tos|2)
		setTrafficClass(p, tos)
	}
	reportPackets(b, 1, len(p))
}
