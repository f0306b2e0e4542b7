package divert

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"culvert/xfrm/server"
)

// A client that nobody here wrote the socket calls of makes each of them in random orders, in threads, children, duplicates and
// passed descriptors, and sees what netlink would show it.
func TestPython(t *testing.T) {
	for _, mode := range []string{"plain", "compat"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, server.Config{})
			seed := rand.Uint32()
			if out := r.run(mode, python(), "testdata/client.py", mode, strconv.Itoa(int(seed))); out != "ok\n" {
				t.Fatalf("seed %d:\n%s", seed, out)
			}
			eventually(t, "no client is left", func() bool { return len(r.sink.Clients()) == 0 && r.sup.quiet() })
			if n := r.sup.Stats().Sockets.Load(); n < 24 {
				t.Errorf("%d sockets were diverted", n)
			}
			if n := r.sup.Stats().Failures.Load(); n != 0 {
				t.Errorf("%d failures of the supervisor's own", n)
			}
		})
	}
}

// quiet reports whether nothing is left of any program.
func (s *Supervisor) quiet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.filters)+len(s.clients)+len(s.early) == 0
}
