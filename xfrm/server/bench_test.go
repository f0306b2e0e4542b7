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
