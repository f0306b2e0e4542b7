package dataplane

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/soft"
	"culvert/sa"
)

// floods are how many packets are thrown at a lane with which engine.
var floods = []flood{
	{"soft", 1_000_000, nil},
	{"chaos", 100_000, func(c *Config) {
		c.Engine, c.Async = offloadtest.NewChaos(soft.New(), offloadtest.ChaosOptions{Seed: 9, Full: 20, Errors: 1}), true
	}},
}

type flood struct {
	name string
	n    int
	set  func(c *Config)
}

func (f *flood) packets() int {
	if testing.Short() {
		return f.n / 20
	}
	return f.n
}

// floodTunnels are tunnels with everything that can be set.
func floodTunnels(b *bench) (all []*tunnel) {
	for n, tr := range []*offload.Transform{nullSHA1, gcm, cbcSHA1, transform("rfc7539esp(chacha20,poly1305)")} {
		all = append(all, b.tunnel(n, udp4, tr, func(_ int, out, in *sa.Params) {
			out.ClampMSS, in.ClampMSS = n%2 == 0, true
			out.ECN, in.ECN = true, n != 1
			out.DF = []sa.DF{sa.DFCopy, sa.DFSet, sa.DFClear, sa.DFCopy}[n]
			out.Keys.ESN = n == 1
			if n == 2 {
				out.TFCPad = 700
			}
			if n == 3 {
				out.DSCP, in.DSCP = sa.SetDSCP(5), sa.CopyDSCP
				out.PathMTU = 700
			}
		}))
	}
	return all
}

// mutate changes some bytes of a packet, mostly of its headers, or cuts it.
func mutate(r *rand.Rand, p []byte) []byte {
	for range r.IntN(4) {
		if len(p) == 0 {
			break
		}
		at := r.IntN(len(p))
		if r.IntN(3) > 0 {
			at = r.IntN(min(len(p), 64))
		}
		switch r.IntN(3) {
		case 0:
			p[at] ^= 1 << r.IntN(8)
		case 1:
			p[at] = byte(r.Uint32())
		case 2:
			p[at] = []byte{0, 1, 4, 6, 17, 41, 43, 44, 58, 59, 60, 127, 128, 255}[r.IntN(14)]
		}
	}
	if r.IntN(8) == 0 {
		p = p[:r.IntN(len(p)+1)]
	}
	return p
}

// seeds are packets to mutate; hosts those of the tunnels.
func seeds(tunnels int) (all [][]byte, headers []link.VNet) {
	for n := range tunnels {
		for _, v6 := range []bool{false, true} {
			for _, udp := range []bool{false, true} {
				p := bulk(v6, udp)
				p.host = byte(n)
				h := link.VNet{NeedsCsum: true, CsumStart: uint16(p.transportAt()), CsumOffset: uint16(p.checksumAt()), HdrLen: uint16(p.headerLen())}
				for _, size := range []int{0, 10, 100, 600, 1400} {
					p.payload = fill(size, byte(size))
					all, headers = append(all, p.build(false)), append(headers, link.VNet{})
					all, headers = append(all, p.build(true)), append(headers, h)
				}
				p.flags, p.options = 2, mssOption(1460)
				all, headers = append(all, p.build(false)), append(headers, link.VNet{})
				h.GSO, h.GSOSize = link.GSOUDPL4, 1000
				p.flags, p.options = tcpACK|tcpPSH|tcpCWR, nil
				if !udp {
					h.GSO = link.GSOTCP4
					if v6 {
						h.GSO = link.GSOTCP6
					}
				}
				p.payload = fill(2500, 9)
				all, headers = append(all, p.build(true)), append(headers, h)
				if udp {
					p.destOptions, p.ipOptions = 2, []byte{1, 1, 1, 0}
					all, headers = append(all, p.build(false)), append(headers, link.VNet{})
					all, headers = append(all, ipv4(1, 0, nil, fill(40, 1))), append(headers, link.VNet{})
					all, headers = append(all, ipv4(17, 0x2000, nil, fill(40, 1)), ipv4(17, 0x2005, nil, fill(40, 1))), append(headers, link.VNet{}, link.VNet{})
				}
			}
		}
	}
	return all, headers
}

// A million packets from the TUN, most of them damaged: headers, lengths, offload headers that say what is not so. None makes
// the lane fail, each is counted once, and what is sent are packets that open, with well-formed packets inside.
func TestFloodOutbound(t *testing.T) {
	for _, flood := range floods {
		t.Run(flood.name, func(t *testing.T) {
			b := newBench(t, flood.set)
			tunnels := floodTunnels(b)
			packets, headers := seeds(len(tunnels))
			r := rand.New(rand.NewPCG(3, 4))
			left := flood.packets()
			buf := make([]byte, 1<<16)
			b.inner.next = func() ([]byte, link.VNet, error) {
				if left == 0 {
					return nil, link.VNet{}, link.ErrAgain
				}
				left--
				i := r.IntN(len(packets))
				p, h := append(buf[:0], packets[i]...), headers[i]
				if r.IntN(20) == 0 {
					p = p[:r.IntN(200)]
					for i := range p {
						p[i] = byte(r.Uint32())
					}
				}
				p = mutate(r, p)
				if r.IntN(4) == 0 {
					word := func(f *uint16) {
						if r.IntN(4) == 0 {
							*f = uint16(r.Uint32()) >> r.IntN(16)
						}
					}
					word(&h.CsumStart)
					word(&h.CsumOffset)
					word(&h.GSOSize)
					word(&h.HdrLen)
					if r.IntN(4) == 0 {
						h.GSO, h.NeedsCsum = link.GSOType(r.IntN(5)), r.IntN(2) == 0
					}
				}
				return p, h, nil
			}
			opener := newOpener(b, tunnels)
			sent := 0
			b.wire.deliver = func(m *link.TxMsg) {
				for rest := m.Buf; len(rest) > 0; {
					d := rest[:min(m.SegSize, len(rest))]
					rest = rest[len(d):]
					if sent++; sent%64 == 0 { // opening all would take longer than sealing
						opener.open(d)
					}
				}
			}
			for left > 0 || b.out() {
				b.out()
			}
			c := b.plane.out.books.now
			t.Log(c.summary())
			if int(c.PacketsIn) < flood.packets() || c.PacketsOut < c.PacketsIn/10 || c.drops(CauseInnerMalformed) < flood.packets()/10 {
				t.Error("a flood that tests nothing")
			}
		})
	}
}

// opener opens what site A sends. It panics where that cannot be opened, as a fuzz target may not fail by another's T.
type opener struct {
	tunnel map[uint32]*tunnel // by SPI
	ses    map[uint32]offload.Session
	lane   offload.Lane
}

func newOpener(b *bench, tunnels []*tunnel) *opener {
	o := &opener{tunnel: map[uint32]*tunnel{}, ses: map[uint32]offload.Session{}}
	e := soft.New()
	o.lane, _ = e.NewLane(0)
	for _, tn := range tunnels {
		ses, err := e.NewSession(tn.tr, offload.Open, tn.keys[siteA])
		if err != nil {
			b.Fatal(err)
		}
		o.tunnel[tn.spi[siteA]], o.ses[tn.spi[siteA]] = tn, ses
	}
	return o
}

func (o *opener) open(d []byte) {
	d = slices.Clone(d)
	spi := binary.BigEndian.Uint32(d)
	burst := offload.Burst{Dir: offload.Open, Jobs: []offload.Job{{Session: o.ses[spi], ESP: d}}}
	if err := offload.Do(o.lane, &burst); err != nil || burst.Jobs[0].Status != offload.OK {
		panic(fmt.Sprintf("what was sent with SPI %#x does not open: %v, %v", spi, err, burst.Jobs[0].Status))
	}
	inner, cause, ok := decapsulate(d, o.tunnel[spi].tr)
	if !ok {
		panic(fmt.Sprintf("what was sent with SPI %#x is refused: %v", spi, cause))
	}
	var f sa.Flow
	n, err := parseFlow(inner, &f)
	if padded := o.tunnel[spi].out[siteA].Params().TFCPad > 0; err != nil || n < len(inner) && !padded {
		panic(fmt.Sprintf("what was sent with SPI %#x: %v, %d of %d bytes", spi, err, n, len(inner)))
	}
}

// A million datagrams from the wire: of any length and content, damaged ESP, and authentic ESP around what no peer should send. None
// makes the lane fail, each is counted once, and what is delivered are well-formed packets that the policies allow.
func TestFloodInbound(t *testing.T) {
	for _, flood := range floods {
		t.Run(flood.name, func(t *testing.T) {
			b := newBench(t, flood.set)
			tunnels := floodTunnels(b)
			var sealers []*sealer
			for _, tn := range tunnels {
				sealers = append(sealers, b.sealer(tn, siteB))
			}
			packets, _ := seeds(len(tunnels))
			for i := range packets {
				packets[i] = from(siteB, packets[i])
			}
			r := rand.New(rand.NewPCG(5, 6))
			seqs := make([]uint64, len(tunnels))
			scratch := make([]byte, 1<<16)
			// datagram makes one into buf.
			datagram := func(buf []byte) []byte {
				switch kind := r.IntN(16); {
				case kind == 0: // anything
					buf = buf[:r.IntN(200)]
					for i := range buf {
						buf[i] = byte(r.Uint32())
					}
					return buf
				case kind == 1: // what belongs on the port beside ESP, or nearly
					return append(buf[:0], []byte{0xff, 0, 0, 0, 0, 1, 2, 3, 4}[r.IntN(2):r.IntN(8)+1]...)
				}
				n := r.IntN(len(tunnels))
				p := append(scratch[:0], packets[r.IntN(len(packets)/len(tunnels))+n*len(packets)/len(tunnels)]...)
				if r.IntN(2) == 0 {
					p = mutate(r, p)
				}
				next := byte(nextHeaderIPv4)
				if len(p) > 0 && p[0]>>4 == 6 {
					next = nextHeaderIPv6
				}
				seqs[n]++
				seq := seqs[n]
				if r.IntN(16) == 0 {
					seq = max(1, seq-min(seq-1, uint64(r.IntN(2000)))) // late, or again
				}
				s := sealers[n]
				pad := s.tr.PadLen(len(p))
				p = append(append(p, padding[:pad]...), byte(pad), next)
				if r.IntN(8) == 0 { // authentic, but odd
					p[len(p)-1-r.IntN(min(len(p), 8))] = byte(r.Uint32())
				}
				d := s.sealInto(buf, seq, p)
				if r.IntN(4) == 0 {
					d = mutate(r, d)
				}
				return d
			}
			left := flood.packets()
			b.wire.receive = func(batch *link.RxBatch) error {
				if left == 0 {
					return link.ErrAgain
				}
				bufs := batch.State.([][]byte)
				for i := range 1 + r.IntN(len(bufs)) {
					if left == 0 {
						break
					}
					m := link.RxMsg{Buf: datagram(bufs[i]), From: wires[udp4].end[siteB], TOS: byte(r.Uint32())}
					n := 1
					if r.IntN(4) == 0 && len(m.Buf) > 0 { // merged, or so it is said
						m.SegSize = 1 + len(m.Buf)/(1+r.IntN(4))
						n = m.Datagrams()
					}
					left -= min(left, n)
					batch.Msgs = append(batch.Msgs, m)
				}
				return nil
			}
			lane := b.plane.in[0]
			b.inner.deliver = func(h link.VNet, parts [][]byte) {
				var f sa.Flow
				p := parts[0]
				if len(parts) > 1 { // lengths are of the whole
					p = slices.Concat(parts...)
				}
				if n, err := parseFlow(p, &f); err != nil || n != len(p) {
					t.Fatalf("delivered: %v, %d of %d bytes", err, n, len(p))
				}
				if n := byte(f.Src.As16()[14]); f.Src.Is6() && int(n) >= len(tunnels) {
					t.Fatalf("delivered from %v", f.Src)
				}
			}
			for left > 0 || b.in() {
				b.in()
			}
			c := lane.books.now
			t.Log(c.summary())
			if int(c.PacketsIn) < flood.packets() || c.PacketsOut < c.PacketsIn/10 {
				t.Error("a flood that tests nothing")
			}
			for _, k := range []Cause{CauseKeepalive, CauseIKE, CauseRunt, CauseNoState, CauseDuplicate, CauseTooOld, CauseBadLength, CauseIntegrityFailed,
				CauseBadPad, CauseBadNextHeader, CauseDecapMalformed, CausePolicyMismatch, CauseECNDropped} {
				if c.drops(k) == 0 && !testing.Short() {
					t.Errorf("a flood without %v", k)
				}
			}
		})
	}
}

// FuzzInbound opens whatever lies in an authentic ESP packet: the fuzzer gets past the ICV.
func FuzzInbound(f *testing.F) {
	p4, p6 := probe(0), probe(0)
	p6.v6 = true
	for _, p := range [][]byte{from(siteB, p4.build(false)), from(siteB, p6.build(false)), from(siteB, p6.build(false))[:41], {1, 2, 2, nextHeaderDummy}, {}} {
		pad := nullSHA1.PadLen(len(p))
		f.Add(append(append(slices.Clone(p), padding[:pad]...), byte(pad), nextHeaderIPv4), byte(3))
		f.Add(append(append(slices.Clone(p), padding[:pad]...), byte(pad), nextHeaderIPv6), byte(0))
	}
	b := newBench(f, nil)
	tn := b.tunnel(0, udp4, nullSHA1, func(_ int, out, in *sa.Params) { out.ECN, in.ECN, in.ClampMSS, in.DSCP = true, true, true, sa.CopyDSCP })
	s := b.sealer(tn, siteB)
	seq := uint64(0)
	here, there := networks(0, false)
	here6, there6 := networks(0, true)
	b.inner.deliver = func(_ link.VNet, parts [][]byte) {
		var flow sa.Flow
		if n, err := parseFlow(parts[0], &flow); err != nil || n != len(parts[0]) || len(parts) != 1 {
			panic("delivered what is no IP packet")
		}
		if !(there.Contains(flow.Src) && here.Contains(flow.Dst)) && !(there6.Contains(flow.Src) && here6.Contains(flow.Dst)) {
			panic("delivered what no policy allows")
		}
	}
	f.Fuzz(func(t *testing.T, plain []byte, tos byte) {
		plain = plain[:min(len(plain), 60000)&^3]
		if len(plain) == 0 {
			return
		}
		seq++
		b.wire.receive = func(batch *link.RxBatch) error {
			d := s.sealInto(batch.State.([][]byte)[0], seq, plain)
			batch.Msgs = append(batch.Msgs, link.RxMsg{Buf: d, From: wires[udp4].end[siteB], TOS: tos})
			b.wire.receive = nil
			return nil
		}
		before := b.plane.in[0].books.now
		b.in()
		now := b.plane.in[0].books.now
		if now.PacketsIn != before.PacketsIn+1 || now.InFlight != 0 || now.drops(CauseIntegrityFailed) != 0 {
			t.Fatalf("the books: %s", now.summary())
		}
	})
}

// FuzzOutbound takes whatever comes from the TUN with whatever offload header, and opens what is sent.
func FuzzOutbound(f *testing.F) {
	packets, headers := seeds(1)
	for i, p := range packets {
		h := headers[i]
		f.Add(p, byte(h.GSO), h.NeedsCsum, h.GSOSize, h.CsumStart, h.CsumOffset)
	}
	b := newBench(f, nil)
	tn := b.tunnel(0, udp4, nullSHA1, func(_ int, out, in *sa.Params) { out.ClampMSS, out.DF, out.TFCPad = true, sa.DFCopy, 200 })
	o := newOpener(b, []*tunnel{tn})
	b.wire.deliver = func(m *link.TxMsg) {
		for rest := m.Buf; len(rest) > 0; {
			d := rest[:min(m.SegSize, len(rest))]
			rest = rest[len(d):]
			o.open(d)
		}
	}
	f.Fuzz(func(t *testing.T, p []byte, gso byte, needs bool, size, start, offset uint16) {
		if len(p) > 65535 {
			return
		}
		b.inner.next = func() ([]byte, link.VNet, error) {
			b.inner.next = nil
			return p, link.VNet{NeedsCsum: needs, GSO: link.GSOType(gso), GSOSize: size, CsumStart: start, CsumOffset: offset}, nil
		}
		before := b.plane.out.books.now
		for b.out(); b.plane.out.pending; {
			b.out()
		}
		now := b.plane.out.books.now
		if now.PacketsIn == before.PacketsIn || now.InFlight != 0 {
			t.Fatalf("the books: %s", now.summary())
		}
	})
}
