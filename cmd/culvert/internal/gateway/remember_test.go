package gateway

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"culvert/sa"
)

// What a tunnel has received is refused after a restart, in order or not, and a reload does not give a key that is in use to another
// tunnel, whose window would begin empty.
func TestReceivedIsRemembered(t *testing.T) {
	host(t)
	text := document(t.TempDir(), true)
	start := func() *Gateway {
		g, err := Start(load(t, text), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := start()
	in := g.tunnels["branch"].in
	for seq := uint64(1); seq <= 100; seq++ { // the lane is idle
		in.Advance(seq)
	}
	in.Account(100, 100, time.Now())
	if err := g.Reload(load(t, strings.Replace(text, `"branch"`, `"office"`, 1))); err == nil || !strings.Contains(err.Error(), "tunnel.office.in") {
		t.Errorf("another tunnel with the key: %v", err)
	}
	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}
	g = start()
	defer g.Stop()
	in = g.tunnels["branch"].in
	for seq := uint64(1); seq <= 101; seq++ {
		if v := in.CheckSeq(seq); (v == sa.Fresh) != (seq > 100) {
			t.Errorf("after the restart %d is %v", seq, v)
		}
	}
}
