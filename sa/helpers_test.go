package sa

import (
	"bytes"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"culvert/offload"
)

// session stands for an engine's: it remembers that it was closed.
type session struct {
	t      *offload.Transform
	dir    offload.Direction
	closed atomic.Bool
}

func (s *session) Transform() *offload.Transform { return s.t }
func (s *session) Direction() offload.Direction  { return s.dir }
func (s *session) Close() error                  { s.closed.Store(true); return nil }

func transform(tb testing.TB, name string) *offload.Transform {
	tb.Helper()
	t, err := offload.Lookup(name, 0, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

const gcm = "rfc4106(gcm(aes))"

// keysFor are keys with a pattern that tests can search for.
func keysFor(t *offload.Transform, fill byte) offload.Keys {
	return offload.Keys{Enc: bytes.Repeat([]byte{fill}, t.EncKeyLen()), Auth: bytes.Repeat([]byte{fill}, t.AuthKeyLen)}
}

func params(tb testing.TB, spi uint32) Params {
	t := transform(tb, gcm)
	return Params{
		Name: "office", SPI: spi, Src: netip.MustParseAddr("203.0.113.1"), Dst: netip.MustParseAddr("198.51.100.2"),
		Transform: t, Keys: keysFor(t, 0xA7), Reqid: 7,
	}
}

func outbound(tb testing.TB, p Params) *Outbound {
	tb.Helper()
	o, err := NewOutbound(p, &session{t: p.Transform}, NewVolatileSequence())
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

func inbound(tb testing.TB, p Params) *Inbound {
	tb.Helper()
	if p.ReplayWindow == 0 && !p.NoReplayCheck {
		p.ReplayWindow = DefaultWindow
	}
	i, err := NewInbound(p, &session{t: p.Transform, dir: offload.Open}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return i
}

func update(tb testing.TB, d *DB, f func(tx *Tx) error) {
	tb.Helper()
	if err := d.Update(f); err != nil {
		tb.Fatal(err)
	}
}

func prefix(s string) netip.Prefix {
	if s == "" {
		return netip.Prefix{}
	}
	return netip.MustParsePrefix(s)
}

// noAllocs fails if f allocates.
func noAllocs(t *testing.T, what string, f func()) {
	t.Helper()
	if n := testing.AllocsPerRun(100, f); n != 0 {
		t.Errorf("%s allocates %v times a call", what, n)
	}
}

// perPacket starts to measure; the function that it returns reports the time of the wall's clock and of the processor, which
// differ where others use the machine too.
func perPacket(b *testing.B) (report func()) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.ReportAllocs()
	before := used()
	return func() {
		cpu := used() - before
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/packet")
		b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/packet")
	}
}
