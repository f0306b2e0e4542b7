package server

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/xfrm"
)

// loaded is a server with n pairs of SAs and policies.
func loaded(tb testing.TB, n int) (*plane, *tester) {
	tb.Helper()
	p := newPlane(tb, Config{}, nil)
	c := connect(tb, p.Server)
	for i := range n {
		loadOne(c, i)
	}
	return p, c
}

func loadOne(c *tester, i int) {
	reqid := uint32(i + 1)
	c.must(newSA(there, here, uint32(0x10000+i), reqid, 1), xfrm.MsgNewSA)
	c.must(newSA(here, there, uint32(0x1000000+i), reqid, 2), xfrm.MsgNewSA)
	for dir := range uint8(3) {
		c.must(newPolicy(dir, i, reqid, 0), xfrm.MsgNewPolicy)
	}
}

// One pair of SAs and its three policies, each with an acknowledgement, beside 10 and 10,000 others.
func BenchmarkInstall(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, c := loaded(b, n)
			m := newSA(here, there, 0x2000000, 1<<20, 3)
			b.ResetTimer()
			for range b.N {
				c.must(m, xfrm.MsgNewSA)
				b.StopTimer()
				c.must(said(m), xfrm.MsgDelSA)
				b.StartTimer()
			}
		})
	}
}

// GETSA beside 10 and 10,000 others.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, c := loaded(b, n)
			id := said(newSA(there, here, 0x10005, 1, 0))
			b.ResetTimer()
			for range b.N {
				c.must(id, xfrm.MsgGetSA)
			}
		})
	}
}

// 10,000 SAs and 15,000 policies over one socket, one at a time.
func BenchmarkLoad10000(b *testing.B) {
	for range b.N {
		loaded(b, 5000)
	}
}

// The lists of 100,000 SAs.
func BenchmarkList100000(b *testing.B) {
	s := newServer(b, Config{})
	c := connect(b, s)
	for i := range 100_000 {
		m := newSA(here, there, uint32(0x1000+i), uint32(i), 1)
		s.mu.Lock()
		st := &state{info: m.SAInfo, attrs: keep(&m.Attrs), added: time.Now()}
		if err := s.install(st, nil, nil); err != nil {
			b.Fatal(err)
		}
		s.mu.Unlock()
	}
	b.ResetTimer()
	for range b.N {
		if _, err := c.do(&xfrm.Dump{}, xfrm.MsgGetSA, unix.NLM_F_REQUEST|unix.NLM_F_DUMP); err != nil {
			b.Fatal(err)
		}
	}
}

// 10,000 SAs and as many policies are loaded in less than 5 s; a look-up then takes no longer than with ten. The bounds leave room for
// a machine that is busy with other things.
func TestScale(t *testing.T) {
	if raceDetector {
		t.Log("not measured with the race detector")
		return
	}
	begin := time.Now()
	_, many := loaded(t, 5000)
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("10,000 SAs and 15,000 policies took %v", d)
	} else {
		t.Logf("10,000 SAs and 15,000 policies took %v", d)
	}
	_, few := loaded(t, 5)
	id := said(newSA(there, here, 0x10003, 1, 0))
	look := func(c *tester) time.Duration {
		best := time.Hour
		for range 20 {
			begin := time.Now()
			for range 50 {
				c.must(id, xfrm.MsgGetSA)
			}
			best = min(best, time.Since(begin)/50)
		}
		return best
	}
	a, b := look(few), look(many)
	t.Logf("a look-up takes %v with 10 SAs, %v with 10,000", a, b)
	if b > 2*a+20*time.Microsecond {
		t.Errorf("a look-up takes %v with 10 SAs, %v with 10,000", a, b)
	}
	m, best := newSA(here, there, 0x2000000, 1<<20, 3), time.Hour
	for range 50 {
		begin := time.Now()
		many.must(m, xfrm.MsgNewSA)
		best = min(best, time.Since(begin))
		many.must(said(m), xfrm.MsgDelSA)
	}
	t.Logf("an SA is installed in %v beside 10,000 others", best)
	if best > 300*time.Microsecond {
		t.Errorf("an SA is installed in %v beside 10,000 others", best)
	}
}
