package gateway

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"culvert/sa"
)

// What a tunnel has received is refused after a restart, in order or not, and after a reload that renames the tunnel, which keeps its
// SAs; a reload does not give a key that is in use to a tunnel that is otherwise new, whose window would begin empty.
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
	office := strings.Replace(text, `"branch"`, `"office"`, 1)
	shared := strings.Replace(office, "spi = 0x", "spi = 0x1", 1) // of one direction
	if err := g.Reload(load(t, shared)); err == nil || !strings.Contains(err.Error(), "tunnel.office.") || !strings.Contains(err.Error(), "restart culvert, or give") {
		t.Errorf("another tunnel with the key: %v", err)
	}
	out := g.tunnels["branch"].out
	for _, name := range []string{"office", "branch", "office"} {
		if err := g.Reload(load(t, strings.Replace(text, `"branch"`, `"`+name+`"`, 1))); err != nil {
			t.Fatalf("renamed: %v", err)
		}
		n := g.tunnels[name]
		if len(g.tunnels) != 1 || n == nil || n.in != in || n.out != out || in.Params().Name != name || out.Params().Name != name {
			t.Fatalf("%s: %v", name, g.tunnels)
		}
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
