//go:build linux

package link

import (
	"fmt"
	"net/netip"
	"testing"
)

func report(b *testing.B, packets, size int) {
	ns, total := float64(b.Elapsed().Nanoseconds()), float64(b.N)*float64(packets)
	b.ReportMetric(ns/total, "ns/packet")
	b.ReportMetric(total*float64(size)*8/ns, "Gbit/s")
}

// One thread sends a burst of 64 KB or 64 packets over the loopback device and receives it: what both directions cost together,
// kernel included.
func BenchmarkSocket(b *testing.B) {
	for _, c := range []struct {
		name, kind string
		opts       OuterOptions
	}{
		{"udp4/gso", "udp4", OuterOptions{}},
		{"udp4/plain", "udp4", OuterOptions{NoGSO: true, NoGRO: true}},
		{"udp6/gso", "udp6", OuterOptions{}},
		{"esp4", "esp4", OuterOptions{}},
		{"esp6", "esp6", OuterOptions{}},
	} {
		for _, size := range []int{100, 1400} {
			b.Run(fmt.Sprintf("%s/%d", c.name, size), func(b *testing.B) {
				s := newSpace(b)
				var from, to Outer
				var dst netip.AddrPort
				switch c.kind {
				case "udp4":
					from, to = s.udp("127.0.0.1:4500", c.opts), s.udp("127.0.0.1:4501", c.opts)
					dst = to.Local()
				case "udp6":
					from, to = s.udp("[::1]:4500", c.opts), s.udp("[::1]:4501", c.opts)
					dst = to.Local()
				case "esp4":
					from, to = s.esp("127.0.0.1", c.opts), s.esp("127.0.0.2", c.opts)
					dst = to.Local()
				default:
					s.addr("lo", "2001:db8::1/128", "2001:db8::2/128")
					from, to = s.esp("2001:db8::1", c.opts), s.esp("2001:db8::2", c.opts)
					dst = to.Local()
				}
				n := min(64, 65000/size)
				w, r := from.NewWriter(), to.NewReader()
				batch := r.NewBatch()
				msgs := []TxMsg{{To: dst, Buf: make([]byte, n*size), SegSize: size}}
				b.ReportAllocs()
				for b.Loop() {
					if w.Send(msgs) != nil || msgs[0].Err != nil {
						b.Fatal(msgs[0].Err)
					}
					for got := 0; got < n; {
						if err := r.Recv(batch, true); err != nil {
							b.Fatal(err)
						}
						for i := range batch.Msgs {
							got += batch.Msgs[i].Datagrams()
						}
					}
				}
				report(b, n, size)
			})
		}
	}
}

// Reading from and writing to a TUN device, by super-packets and by packets. What is read was sent just before, which is measured
// too; nobody takes what is written.
func BenchmarkTUN(b *testing.B) {
	open := func(b *testing.B) (Inner, OuterWriter) {
		s := newSpace(b)
		in := s.tun("tun0", 1500, TUNOptions{})
		s.up("tun0")
		s.addr("tun0", "192.0.2.1/24")
		return in, s.udp("192.0.2.1:4500", OuterOptions{}).NewWriter()
	}
	for _, c := range []struct{ n, size int }{{1, 100}, {46, 1400}} {
		b.Run(fmt.Sprintf("read/%dx%d", c.n, c.size), func(b *testing.B) {
			in, w := open(b)
			r := in.NewReader()
			msgs := []TxMsg{{To: netip.MustParseAddrPort("192.0.2.2:4500"), Buf: make([]byte, c.n*c.size), SegSize: c.size}}
			b.ReportAllocs()
			for b.Loop() {
				if w.Send(msgs) != nil || msgs[0].Err != nil {
					b.Fatal(msgs[0].Err)
				}
				for got := 0; got < len(msgs[0].Buf); {
					p, _, err := r.Next(true)
					if err != nil {
						b.Fatal(err)
					}
					if p[0] == 0x45 {
						got += len(p) - 28
					}
				}
			}
			report(b, c.n, c.size)
		})
		b.Run(fmt.Sprintf("write/%dx%d", c.n, c.size), func(b *testing.B) {
			in, _ := open(b)
			w := in.NewWriter()
			p, h := tcp4()
			p = append(p[:40], make([]byte, c.n*c.size)...)
			p[2], p[3] = byte(len(p)>>8), byte(len(p))
			p[10], p[11] = 0, 0
			h.GSOSize = uint16(c.size)
			if c.n == 1 {
				h = VNet{}
			}
			parts := [][]byte{p[:40]}
			for i := range c.n {
				parts = append(parts, p[40+i*c.size:][:c.size])
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := w.Queue(h, parts); err != nil {
					b.Fatal(err)
				}
			}
			report(b, c.n, c.size)
		})
	}
}
