package dataplane

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/offload/soft"
	"culvert/sa"
)

// benchEngines are what the lanes are measured with: the lanes alone, and a software engine.
var benchEngines = []struct {
	name string
	e    offload.Engine
	trs  []*offload.Transform
}{
	{"null", nullEngine{}, []*offload.Transform{gcm}},
	{"soft", soft.New(), []*offload.Transform{cbcSHA1, gcm}},
}

// benchLoads are what the host sends: single packets of an inner length, and super-packets of full segments.
var benchLoads = []struct {
	name  string
	size  int // of a packet of the wire
	super bool
}{
	{"64", 64, false},
	{"1400", 1400, false},
	{"super", 1400, true},
}

// cpuTime is the processor time of the process so far, in ns.
func cpuTime() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// report gives the figures of n packets of size bytes.
func report(b *testing.B, n uint64, size int, cpu int64) {
	ns := float64(b.Elapsed().Nanoseconds()) / float64(n)
	b.ReportMetric(ns, "ns/packet")
	b.ReportMetric(float64(size*8)/ns, "Gbit/s")
	b.ReportMetric(float64(cpu)/float64(n), "cpu-ns/packet")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkOutbound is the outbound lane between links that cost nothing: classify, number, encapsulate, seal, group.
func BenchmarkOutbound(b *testing.B) {
	for _, e := range benchEngines {
		for _, tr := range e.trs {
			for _, load := range benchLoads {
				for _, tunnels := range []int{1, 200} {
					b.Run(fmt.Sprintf("%s/%s/%s/%dSA", e.name, tr.Name, load.name, tunnels), func(b *testing.B) {
						w := newBench(b, func(c *Config) { c.Engine = e.e })
						packets, h := benchPackets(load.size, load.super, tunnels)
						for n := range tunnels {
							w.tunnel(n, udp4, tr, nil)
						}
						i, left := 0, 0
						w.inner.next = func() ([]byte, link.VNet, error) {
							if left == 0 {
								return nil, link.VNet{}, link.ErrAgain
							}
							left--
							if i++; i >= len(packets) {
								i = 0
							}
							return packets[i], h, nil
						}
						books := &w.plane.out.books.now
						b.ReportAllocs()
						cpu := cpuTime()
						for b.Loop() {
							if left = burstJobs; load.super {
								left = 1
							}
							for left > 0 || w.plane.out.pending {
								w.plane.out.ring.step(w.plane.out, &w.plane.out.books, false)
							}
						}
						if books.Dropped() > 0 || books.InFlight > 0 {
							b.Fatal(books.summary())
						}
						report(b, books.PacketsOut, load.size, cpuTime()-cpu)
					})
				}
			}
		}
	}
}

// benchPackets are those of one flow in each tunnel. Neighbours are of different tunnels.
func benchPackets(size int, super bool, tunnels int) (packets [][]byte, h link.VNet) {
	for n := range tunnels {
		p := wirePacket{host: byte(n), ttl: 64, df: true, flags: tcpACK, sport: 1, dport: 2}
		if size < 100 {
			p.udp = true
		}
		p.payload = fill(size-p.headerLen(), 1)
		if super {
			p.payload = fill(44*(size-p.headerLen()), 1)
			h = link.VNet{NeedsCsum: true, GSO: link.GSOTCP4, GSOSize: uint16(size - p.headerLen()), CsumStart: 20, CsumOffset: 16}
		}
		packets = append(packets, p.build(super))
	}
	return packets, h
}

// BenchmarkInbound is the inbound lane between links that cost nothing: look up, check, open, check again, decapsulate, merge. The
// datagrams are copied in, which is part of the figure. "super" are merged by the kernel, as UDP GRO does, and of one TCP flow.
func BenchmarkInbound(b *testing.B) {
	for _, e := range benchEngines {
		for _, tr := range e.trs {
			for _, load := range benchLoads {
				for _, tunnels := range []int{1, 200} {
					b.Run(fmt.Sprintf("%s/%s/%s/%dSA", e.name, tr.Name, load.name, tunnels), func(b *testing.B) {
						w := newBench(b, func(c *Config) { c.Engine = e.e })
						feed := newInboundFeed(w, tr, load.size, load.super, tunnels, e.name != "null")
						books := &w.plane.in[0].books.now
						b.ReportAllocs()
						cpu := cpuTime()
						for b.Loop() {
							for feed.left = 1; feed.left > 0 || w.plane.in[0].rx != nil; {
								w.plane.in[0].ring.step(w.plane.in[0], &w.plane.in[0].books, false)
							}
						}
						if books.Dropped() > 0 || books.InFlight > 0 {
							b.Fatal(books.summary())
						}
						report(b, books.PacketsOut, load.size, cpuTime()-cpu)
					})
				}
			}
		}
	}
}

// inboundFeed is what arrives: with real ICVs, the same packets again and again, for SAs that do not mind; else numbered anew.
type inboundFeed struct {
	left int // batches
	msgs [][]byte
	seg  []int // SegSize of each
	real bool
	seq  uint32
	at   int
	tr   *offload.Transform
}

func newInboundFeed(w *bench, tr *offload.Transform, size int, super bool, tunnels int, real bool) *inboundFeed {
	f := &inboundFeed{real: real, tr: tr}
	for n := range tunnels {
		tn := w.tunnel(n, udp4, tr, func(from int, out, in *sa.Params) {
			if from == siteB && real {
				in.NoReplayCheck, in.ReplayWindow = true, 0
			}
		})
		s := w.sealer(tn, siteB)
		p := wirePacket{host: byte(n), ttl: 64, df: true, flags: tcpACK, sport: 1, dport: 2}
		if size < 100 {
			p.udp = true
		}
		p.payload = fill(size-p.headerLen(), 1)
		count := 1
		if super {
			count = 44
		}
		var msg []byte
		for range count {
			inner := from(siteB, p.build(false))
			if real {
				msg = append(msg, s.seal(1, nextHeaderIPv4, inner)...)
			} else { // the null engine leaves it clear
				pad := tr.PadLen(len(inner))
				esp := make([]byte, tr.SealedLen(len(inner)))
				binary.BigEndian.PutUint32(esp, tn.spi[siteB])
				copy(esp[tr.HeaderLen():], append(append(inner, padding[:pad]...), byte(pad), nextHeaderIPv4))
				msg = append(msg, esp...)
			}
			p.seq += uint32(len(p.payload))
			p.id++
		}
		f.msgs = append(f.msgs, msg)
		f.seg = append(f.seg, tr.SealedLen(size))
	}
	w.wire.receive = func(b *link.RxBatch) error {
		if f.left == 0 {
			return link.ErrAgain
		}
		f.left--
		for _, buf := range b.State.([][]byte) {
			if f.at++; f.at >= len(f.msgs) {
				f.at = 0
			}
			d, seg := buf[:copy(buf, f.msgs[f.at])], f.seg[f.at]
			m := link.RxMsg{Buf: d, From: wires[udp4].end[siteB], SegSize: seg}
			if len(d) == seg {
				m.SegSize = 0
			}
			if !f.real {
				for at := 0; at < len(d); at += seg {
					f.seq++
					binary.BigEndian.PutUint32(d[at+4:], f.seq)
				}
			}
			b.Msgs = append(b.Msgs, m)
		}
		return nil
	}
	return f
}

// Neither lane allocates in steady state: with one SA or many, single packets or super-packets, both directions, nor when packets are
// dropped.
func TestNoAllocation(t *testing.T) {
	for _, load := range benchLoads {
		for _, tunnels := range []int{1, 200} {
			t.Run(fmt.Sprintf("%s/%dSA", load.name, tunnels), func(t *testing.T) {
				w := newBench(t, nil)
				packets, h := benchPackets(load.size, load.super, tunnels)
				feed := newInboundFeed(w, gcm, load.size, load.super, tunnels, true)
				i, left := 0, 0
				stray := probe(250)
				packets = append(packets, stray.build(false), []byte{1})
				w.inner.next = func() ([]byte, link.VNet, error) {
					if left == 0 {
						return nil, link.VNet{}, link.ErrAgain
					}
					left--
					i = (i + 1) % len(packets)
					if len(packets[i]) < 100 && load.super {
						return packets[i], link.VNet{}, nil
					}
					return packets[i], h, nil
				}
				out, in := w.plane.out, w.plane.in[0]
				turn := func() {
					for left = burstJobs; left > 0 || out.pending; {
						w.out()
					}
					for feed.left = 1; feed.left > 0 || in.rx != nil; {
						w.in()
					}
				}
				for range 40 {
					turn() // sessions, in their first use
				}
				// AllocsPerRun rounds down: with many turns in one run a packet in thousands that allocates is found too. The runtime
				// allocates now and then as well, which is in one run and not in each.
				const turns, runs = 50, 5
				least := math.Inf(1)
				for range runs {
					least = min(least, testing.AllocsPerRun(1, func() {
						for range turns {
							turn()
						}
					}))
				}
				if least > 0 {
					t.Errorf("%v allocations in %d turns", least, turns)
				}
				if o, i := out.books.now, in.books.now; o.PacketsOut == 0 || o.Dropped() == 0 || i.PacketsOut == 0 {
					t.Errorf("nothing was measured:\n%s\n%s", o.summary(), i.summary())
				}
			})
		}
	}
}
