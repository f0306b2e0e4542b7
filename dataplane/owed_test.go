package dataplane

import (
	"testing"
	"time"

	"culvert/dataplane/link"
	"culvert/sa"
)

// A lane under load shows its SAs' counters every 10 ms and not with every burst; one that has nothing to do has shown all, before
// it waits. Limits hold exactly all the while.
func TestLanesOweCounters(t *testing.T) {
	const limit, tunnels = 1000, 3
	w := newBench(t, func(c *Config) { c.Engine = nullEngine{} })
	var tns []*tunnel
	for n := range tunnels {
		tns = append(tns, w.tunnel(n, udp4, cbcSHA1, func(from int, out, _ *sa.Params) {
			if from == siteA && n == 0 {
				out.Lifetime.Hard.Packets = limit
			}
		}))
	}
	packets, h := benchPackets(64, false, tunnels)
	i, left := 0, 0
	waited := false
	lane := w.plane.out
	shown := func(n int) uint64 { return tns[n].out[siteA].Stats().Packets }
	w.inner.next = func() ([]byte, link.VNet, error) {
		if left == 0 {
			if waited = w.inner.waits; waited && w.plane.out.books.owes > 0 {
				t.Error("it waits, and owes counters")
			}
			return nil, link.VNet{}, link.ErrAgain
		}
		left--
		i++
		return packets[i%tunnels], h, nil
	}
	w.turn(lane, lane.ring, &lane.books) // nothing
	lane.books.settled = time.Now().Add(time.Hour)
	left = 1 << 30
	for range 5 {
		w.out()
	}
	if n := shown(1); n != 0 {
		t.Errorf("a lane under load has shown %d packets at once", n)
	}
	lane.books.settled = time.Now().Add(-publishEvery)
	w.out()
	if n := shown(1); n != 6*burstJobs/tunnels {
		t.Errorf("after 10 ms it shows %d packets", n)
	}
	lane.books.settled = time.Now().Add(time.Hour) // the 10 ms may end with the very burst after which it is asked
	for c := &lane.books.now; c.Drops[CauseExpired] < 100; {
		w.out()
	}
	if left, waited = 0, false; lane.books.owes == 0 {
		t.Fatal("nothing is owed")
	}
	for !waited || lane.ring.used > 0 || lane.pending {
		lane.ring.step(lane, &lane.books, true)
	}
	var sum uint64
	for n := range tunnels {
		sum += shown(n)
	}
	if out := lane.books.now.PacketsOut; sum != out {
		t.Errorf("the SAs show %d packets, the lane sent %d", sum, out)
	}
	// Those of the burst in which the limit was reached may go.
	if n := shown(0); n < limit || n >= limit+burstJobs {
		t.Errorf("%d packets went with a limit of %d", n, limit)
	}
}
