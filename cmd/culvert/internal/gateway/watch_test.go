package gateway

import (
	"log/slog"
	"net/netip"
	"testing"

	"culvert/dataplane/link"
)

// ICMP messages that quote a known SPI, but no packet that was sent just now, change no path MTU and are counted; the own host is
// believed, and a reload forgets what was learned.
func TestForgedNotices(t *testing.T) {
	host(t)
	text := document(t.TempDir(), false)
	g, err := Start(load(t, text), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop()
	out := g.tunnels["branch"].out
	full := out.MTU()
	n := link.Notice{Kind: link.NoticeTooBig, MTU: 600, Peer: out.Peer(), SPI: out.Params().SPI, From: netip.MustParseAddr("192.0.2.254")}
	for _, seq := range []uint32{0, 1, 2, 1 << 17, 1<<32 - 1} { // nothing was sent at all
		n.Seq = seq
		g.notice(0, n)
	}
	if out.MTU() != full {
		t.Errorf("a forged message has lowered the path MTU to %d", out.MTU())
	}
	for _, s := range g.SAs() {
		if s.Direction == "out" && s.MTUIgnored != 5 {
			t.Errorf("%d ignored messages are counted, 5 were", s.MTUIgnored)
		}
	}
	n.Local = true
	if g.notice(0, n); out.MTU() != 600 {
		t.Errorf("the own host is not believed: %d", out.MTU())
	}
	if err := g.Reload(load(t, text)); err != nil {
		t.Fatal(err)
	}
	if out.MTU() != full {
		t.Errorf("after a reload the path MTU is %d, want %d", out.MTU(), full)
	}
}
