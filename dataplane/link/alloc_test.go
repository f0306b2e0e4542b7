//go:build linux

package link

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Nothing on the packet path allocates: with and without offloads, TOS and a source address, waiting or not, nor when a
// message fails.
func TestNoAllocation(t *testing.T) {
	for _, kind := range kinds {
		for _, opts := range []OuterOptions{{}, {NoGRO: true, NoGSO: true}} {
			t.Run(fmt.Sprint(kind, opts.NoGRO), func(t *testing.T) {
				p := newOuterPair(t, kind, opts, opts)
				w, r := p.a.NewWriter(), p.b.NewReader()
				b := r.NewBatch()
				nowhere := "203.0.113.1:1"
				if strings.HasSuffix(kind, "6") {
					nowhere = "[2001:db8:ffff::1]:1"
				}
				msgs := []TxMsg{
					{To: p.addrB, Buf: make([]byte, 46*1400), SegSize: 1400, TOS: 7, From: p.addrA.Addr()},
					{To: p.addrB, Buf: make([]byte, 100)},
					{To: netip.MustParseAddrPort(nowhere), Buf: make([]byte, 100)},
				}
				wait := false
				n := testing.AllocsPerRun(1000, func() {
					if err := w.Send(msgs); err != nil {
						t.Fatal(err)
					}
					for got := 0; got < 47; wait = !wait {
						if r.Recv(b, wait || got == 0) == nil {
							for i := range b.Msgs {
								got += b.Msgs[i].Datagrams()
							}
						}
					}
				})
				if n != 0 {
					t.Errorf("%v allocations per call", n)
				}
				if msgs[0].Err != nil || msgs[2].Err != ErrUnreachable {
					t.Error(msgs[0].Err, msgs[2].Err)
				}
			})
		}
	}
	t.Run("tun", func(t *testing.T) {
		s := newSpace(t)
		in := s.tun("tun0", 1400, TUNOptions{})
		s.up("tun0")
		s.addr("tun0", "192.0.2.1/24")
		send := s.udp("192.0.2.1:4500", OuterOptions{}).NewWriter()
		msgs := []TxMsg{{To: netip.MustParseAddrPort("192.0.2.2:4500"), Buf: make([]byte, 10000), SegSize: 1000}}
		r, w := in.NewReader(), in.NewWriter()
		p, h := tcp4()
		parts := [][]byte{p[:40], p[40:]}
		bad := h
		bad.GSOSize = 0
		n := testing.AllocsPerRun(1000, func() {
			send.Send(msgs)
			if _, _, err := r.Next(true); err != nil {
				t.Fatal(err)
			}
			for {
				if _, _, err := r.Next(false); err != nil {
					break
				}
			}
			w.Queue(bad, parts)
			if err := w.Queue(h, parts); err != nil {
				t.Fatal(err)
			}
			w.Flush()
		})
		if n != 0 {
			t.Errorf("%v allocations per call", n)
		}
	})
}
