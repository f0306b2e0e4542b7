package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"culvert/dataplane/link"
	"culvert/sa"
)

// sink is an inner link's writer that keeps what it is given. It reads the parts only when it is flushed, as a writer may.
type sink struct {
	noGSO   bool           // refuses super-packets
	cannot  []link.GSOType // says beforehand that it does not take these
	refuse  map[int]error  // by number of the call to Queue
	late    int            // how many it refuses when it is flushed
	calls   int
	pending []queued
	flushes int
	out     []queued
}

type queued struct {
	h     link.VNet
	parts [][]byte
	pkt   []byte
}

func (s *sink) CanGSO(t link.GSOType) bool { return !slices.Contains(s.cannot, t) }

func (s *sink) Queue(h link.VNet, parts [][]byte) error {
	s.calls++
	if err := s.refuse[s.calls-1]; err != nil {
		return err
	}
	if h.GSO != link.GSONone && s.noGSO {
		return link.ErrNoGSO
	}
	s.pending = append(s.pending, queued{h: h, parts: parts})
	return nil
}

func (s *sink) Flush() (int, error) {
	s.flushes++
	for _, q := range s.pending {
		q.pkt = bytes.Join(q.parts, nil)
		q.parts = nil
		s.out = append(s.out, q)
	}
	s.pending = nil
	if s.late > 0 {
		return s.late, link.ErrNoBuffers
	}
	return 0, nil
}

// segments gives what was written, with super-packets judged and cut up.
func (s *sink) segments(t failer) [][]byte {
	t.Helper()
	var all [][]byte
	for _, q := range s.out {
		if q.h.GSO == link.GSONone {
			if q.h != (link.VNet{}) {
				t.Fatalf("a single packet with %+v", q.h)
			}
			all = append(all, q.pkt)
			continue
		}
		judgeSuper(t, q.pkt, q.h)
		var sp splitter
		if err := sp.Reset(q.pkt, q.h); err != nil {
			t.Fatalf("%+v: %v", q.h, err)
		}
		if sp.Count() < 2 {
			t.Fatalf("a super-packet of %d", sp.Count())
		}
		all = append(all, split(t, &sp)...)
	}
	return all
}

// judgeSuper checks a super-packet's offload header and its partial checksum, which the splitter does not look at.
func judgeSuper(t failer, pkt []byte, h link.VNet) {
	t.Helper()
	if len(pkt) > 65535 {
		t.Fatalf("a super-packet of %d bytes", len(pkt))
	}
	src, dst, proto, at := pkt[12:16], pkt[16:20], pkt[9], 20
	if pkt[0]>>4 == 6 {
		src, dst, proto, at = pkt[8:24], pkt[24:40], pkt[6], 40
	} else if refSum(pkt[:20]) != 0xffff {
		t.Fatal("IPv4 header checksum of a super-packet")
	}
	want := link.VNet{NeedsCsum: true, GSO: link.GSOUDPL4, CsumStart: uint16(at), CsumOffset: 6, HdrLen: uint16(at + 8), GSOSize: h.GSOSize}
	if proto == 6 {
		want.GSO, want.CsumOffset, want.HdrLen = link.GSOTCP4, 16, uint16(at+int(pkt[at+12]>>4)*4)
		if at == 40 {
			want.GSO = link.GSOTCP6
		}
	}
	if h != want {
		t.Fatalf("offload header %+v, want %+v", h, want)
	}
	if n := (len(pkt) - int(h.HdrLen) + int(h.GSOSize) - 1) / int(h.GSOSize); h.GSO == link.GSOUDPL4 && n > 64 {
		t.Fatalf("%d UDP segments", n)
	}
	field := at + int(h.CsumOffset)
	if got, want := binary.BigEndian.Uint16(pkt[field:]), refSum(refPseudo(src, dst, proto, len(pkt)-at)); got != want {
		t.Fatalf("partial checksum %#04x, want %#04x", got, want)
	}
}

// coalesceAll runs packets through a coalescer into w, checking the books.
func coalesceAll(t failer, w *sink, pkts ...[]byte) {
	t.Helper()
	var c coalescer
	size := 0
	for i, p := range pkts {
		if !c.Add(p) {
			t.Fatalf("full with %d packets", i)
		}
		size += len(p)
	}
	delivered, failed, n := c.Flush(w)
	if delivered != len(pkts) || failed != 0 || n != size {
		t.Fatalf("%d packets and %d bytes delivered, %d failed, of %d and %d", delivered, n, failed, len(pkts), size)
	}
	if c.n != 0 || c.runs != 0 || c.flows != 0 || c.barrier != 0 || c.table != (coalescer{}).table {
		t.Fatal("the coalescer still knows something")
	}
	for i := range c.pkts {
		if c.pkts[i] != nil || c.parts[i] != nil {
			t.Fatal("the coalescer still holds a packet")
		}
	}
}

// segmentsOf are the packets of a flow that segmentation by size makes of w.
func segmentsOf(w wirePacket, size, n int) [][]byte {
	w.payload = fill(size*n, 7)
	return refSegments(w, size)
}

func clonePackets(pkts [][]byte) [][]byte {
	all := make([][]byte, len(pkts))
	for i := range pkts {
		all[i] = bytes.Clone(pkts[i])
	}
	return all
}

func bulk(v6, udp bool) wirePacket {
	w := wirePacket{v6: v6, udp: udp, host: 1, tos: 2, ttl: 63, label: 0x12345, id: 0xfff0, df: true, sport: 1, dport: 2, seq: 0xfffff000, ack: 5, window: 6}
	if !udp {
		w.flags, w.options = tcpACK, []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}
	}
	return w
}

// Bulk traffic of every kind becomes as few super-packets as the limits allow, and segmenting them gives it back.
func TestCoalesceBulk(t *testing.T) {
	for _, c := range []struct {
		name         string
		w            wirePacket
		size, n      int
		superPackets int
	}{
		{"tcp4", bulk(false, false), 1348, 48, 1},
		{"tcp6", bulk(true, false), 1328, 48, 1},
		{"udp4", bulk(false, true), 1372, 46, 1},
		{"udp6", bulk(true, true), 1352, 46, 1},
		{"tcp4, more than 64 KB", bulk(false, false), 1348, 64, 2},
		{"tcp6, more than 64 KB", bulk(true, false), 1348, 97, 3},
		{"tcp4, small", bulk(false, false), 10, 128, 1},
		{"udp4, more than 64 segments", bulk(false, true), 100, 70, 2},
		{"udp6, more than 64 segments", bulk(true, true), 100, 128, 2},
		{"tcp4, two that just fit", bulk(false, false), (65535 - 52) / 2, 2, 1},
		{"tcp4, two that just do not", bulk(false, false), (65535-52)/2 + 1, 2, 2},
		{"udp6, two that just fit", bulk(true, true), (65535 - 48) / 2, 2, 1},
		{"udp6, two that just do not", bulk(true, true), (65535-48)/2 + 1, 2, 2},
	} {
		pkts := segmentsOf(c.w, c.size, c.n)
		want := clonePackets(pkts)
		var w sink
		coalesceAll(t, &w, pkts...)
		if len(w.out) != c.superPackets {
			t.Errorf("%s: %d packets written, want %d", c.name, len(w.out), c.superPackets)
		}
		samePackets(t, w.segments(t), want)
		for i, p := range pkts {
			// A super-packet is made by changing the first packet's headers; all other packets are only read.
			if changed := !bytes.Equal(p, want[i]); changed && i > 0 && c.superPackets == 1 {
				t.Errorf("%s: packet %d was changed", c.name, i)
			}
		}
	}
}

// What two packets in a row must have in common to be merged, and what they need not: one difference at a time.
func TestCoalescePairs(t *testing.T) {
	type pair struct{ a, b wirePacket }
	const merged, alone = 1, 2
	for _, c := range []struct {
		name   string
		change func(p *pair)
		want   int
		kinds  string // of t4, t6, u4, u6; empty: all
	}{
		{"nothing", func(p *pair) {}, merged, ""},
		{"shorter last", func(p *pair) { p.b.payload = p.b.payload[:1] }, merged, ""},
		{"longer last", func(p *pair) { p.b.payload = fill(201, 1) }, alone, ""},
		{"empty last", func(p *pair) { p.b.payload = nil }, alone, ""},
		{"empty first", func(p *pair) { p.a.payload = nil; p.b.seq = p.a.seq }, alone, ""},
		{"both empty", func(p *pair) { p.a.payload, p.b.payload = nil, nil; p.b.seq = p.a.seq }, alone, ""},
		{"TOS or traffic class", func(p *pair) { p.b.tos ^= 4 }, alone, ""},
		{"congestion experienced", func(p *pair) { p.b.tos ^= 1 }, alone, ""},
		{"TTL or hop limit", func(p *pair) { p.b.ttl-- }, alone, ""},
		{"flow label", func(p *pair) { p.b.label++ }, alone, "t6 u6"},
		{"DF on the first only", func(p *pair) { p.b.df = false }, alone, "t4 u4"},
		{"DF on the last only", func(p *pair) { p.a.df = false }, alone, "t4 u4"},
		{"DF and the same ID", func(p *pair) { p.b.id = p.a.id }, merged, "t4 u4"},
		{"DF and an ID that jumps", func(p *pair) { p.b.id = p.a.id + 2 }, alone, "t4 u4"},
		{"no DF", func(p *pair) { p.a.df, p.b.df = false, false }, merged, "t4 u4"},
		{"no DF and the same ID", func(p *pair) { p.a.df, p.b.df, p.b.id = false, false, p.a.id }, alone, "t4 u4"},
		{"ID that wraps", func(p *pair) { p.a.id, p.b.id = 0xffff, 0 }, merged, "t4 u4"},
		{"ID that counts down", func(p *pair) { p.b.id = p.a.id - 1 }, alone, "t4 u4"},
		{"IP options", func(p *pair) { p.a.ipOptions = make([]byte, 4); p.b.ipOptions = p.a.ipOptions }, alone, "t4 u4"},
		{"IP options on the last", func(p *pair) { p.b.ipOptions = make([]byte, 4) }, alone, "t4 u4"},
		{"extension headers", func(p *pair) { p.a.destOptions, p.b.destOptions = 1, 1 }, alone, "t6 u6"},
		{"extension header on the last", func(p *pair) { p.b.destOptions = 1 }, alone, "t6 u6"},
		{"host", func(p *pair) { p.b.host++ }, alone, ""},
		{"source port", func(p *pair) { p.b.sport++ }, alone, ""},
		{"destination port", func(p *pair) { p.b.dport++ }, alone, ""},
		{"no UDP checksum", func(p *pair) { p.a.noChecksum, p.b.noChecksum = true, true }, alone, "u4 u6"},
		{"no UDP checksum in the first", func(p *pair) { p.a.noChecksum = true }, alone, "u4 u6"},
		{"no UDP checksum in the last", func(p *pair) { p.b.noChecksum = true }, alone, "u4 u6"},
		{"sequence gap", func(p *pair) { p.b.seq++ }, alone, "t4 t6"},
		{"sequence overlap", func(p *pair) { p.b.seq-- }, alone, "t4 t6"},
		{"retransmission", func(p *pair) { p.b.seq = p.a.seq }, alone, "t4 t6"},
		{"sequence that wraps", func(p *pair) { p.a.seq = 0xffffffff; p.b.seq = 199 }, merged, "t4 t6"},
		{"acknowledgement", func(p *pair) { p.b.ack++ }, alone, "t4 t6"},
		{"window", func(p *pair) { p.b.window++ }, alone, "t4 t6"},
		{"urgent pointer", func(p *pair) { p.b.urgent++ }, alone, "t4 t6"},
		{"reserved bits", func(p *pair) { p.b.reserved = 1 }, alone, "t4 t6"},
		{"the same reserved bits", func(p *pair) { p.a.reserved, p.b.reserved = 1, 1 }, merged, "t4 t6"},
		{"option value", func(p *pair) { p.b.options = slices.Clone(p.b.options); p.b.options[11]++ }, alone, "t4 t6"},
		{"option bytes, the first four", func(p *pair) { p.b.options = slices.Clone(p.b.options); p.b.options[0] = 0 }, alone, "t4 t6"},
		{"option length", func(p *pair) { p.b.options = nil }, alone, "t4 t6"},
		{"no options", func(p *pair) { p.a.options, p.b.options = nil, nil }, merged, "t4 t6"},
		{"PSH on the last", func(p *pair) { p.b.flags |= tcpPSH }, merged, "t4 t6"},
		{"PSH on the first", func(p *pair) { p.a.flags |= tcpPSH }, alone, "t4 t6"},
		{"PSH on both", func(p *pair) { p.a.flags |= tcpPSH; p.b.flags |= tcpPSH }, alone, "t4 t6"},
		{"ECE on both", func(p *pair) { p.a.flags |= tcpECE; p.b.flags |= tcpECE }, merged, "t4 t6"},
		{"ECE on the last", func(p *pair) { p.b.flags |= tcpECE }, alone, "t4 t6"},
		{"ECE on the first", func(p *pair) { p.a.flags |= tcpECE }, alone, "t4 t6"},
		{"CWR on the first", func(p *pair) { p.a.flags |= tcpCWR }, alone, "t4 t6"},
		{"CWR on the last", func(p *pair) { p.b.flags |= tcpCWR }, alone, "t4 t6"},
		{"CWR on both", func(p *pair) { p.a.flags |= tcpCWR; p.b.flags |= tcpCWR }, alone, "t4 t6"},
		{"FIN on the last", func(p *pair) { p.b.flags |= tcpFIN }, alone, "t4 t6"},
		{"FIN on the first", func(p *pair) { p.a.flags |= tcpFIN }, alone, "t4 t6"},
		{"SYN on both", func(p *pair) { p.a.flags |= 2; p.b.flags |= 2 }, alone, "t4 t6"},
		{"RST on both", func(p *pair) { p.a.flags |= 4; p.b.flags |= 4 }, alone, "t4 t6"},
		{"URG on both", func(p *pair) { p.a.flags |= 0x20; p.b.flags |= 0x20 }, alone, "t4 t6"},
		{"no ACK", func(p *pair) { p.a.flags, p.b.flags = 0, 0 }, alone, "t4 t6"},
	} {
		for _, kind := range []string{"t4", "t6", "u4", "u6"} {
			if c.kinds != "" && !bytes.Contains([]byte(c.kinds), []byte(kind)) {
				continue
			}
			w := bulk(kind[1] == '6', kind[0] == 'u')
			p := pair{w, w}
			p.a.payload, p.b.payload = fill(200, 1), fill(200, 2)
			p.b.id++
			p.b.seq += 200
			c.change(&p)
			var s sink
			a, b := p.a.build(false), p.b.build(false)
			coalesceAll(t, &s, bytes.Clone(a), bytes.Clone(b))
			if len(s.out) != c.want {
				t.Errorf("%s, %s: %d packets written, want %d", c.name, kind, len(s.out), c.want)
			}
			got := s.segments(t)
			if p.b.id == p.a.id && p.a.df && c.want == merged {
				// IDs that were the same count up now.
				p.b.id++
				b = p.b.build(false)
			}
			samePackets(t, got, [][]byte{a, b})
		}
	}
}

// Three in a row: whether the run goes on depends on how it began.
func TestCoalesceFixedID(t *testing.T) {
	for _, c := range []struct {
		ids  [3]uint16
		want int
	}{
		{[3]uint16{7, 7, 7}, 1},
		{[3]uint16{7, 8, 9}, 1},
		{[3]uint16{7, 7, 8}, 2},
		{[3]uint16{7, 7, 9}, 2},
		{[3]uint16{7, 8, 8}, 2},
		{[3]uint16{7, 8, 7}, 2},
		{[3]uint16{7, 8, 10}, 2},
	} {
		w := bulk(false, false)
		var pkts [][]byte
		for _, id := range c.ids {
			w.id, w.payload = id, fill(100, byte(id))
			pkts = append(pkts, w.build(false))
			w.seq += 100
		}
		var s sink
		coalesceAll(t, &s, pkts...)
		if len(s.out) != c.want {
			t.Errorf("IDs %v: %d packets written, want %d", c.ids, len(s.out), c.want)
		}
		s.segments(t)
	}
}

// A packet with a wrong checksum goes on alone and unchanged, wherever it stands, and its flow keeps its order.
func TestCoalesceBadChecksums(t *testing.T) {
	for _, w := range []wirePacket{bulk(false, false), bulk(true, false), bulk(false, true), bulk(true, true)} {
		good := segmentsOf(w, 500, 5)
		for bad := range good {
			// A bit of the payload, of the checksum itself, and, in IPv4, of the header checksum.
			places := []int{len(good[bad]) - 1, w.transportAt() + w.checksumAt()}
			if !w.v6 {
				places = append(places, 11)
			}
			for _, at := range places {
				pkts := clonePackets(good)
				pkts[bad][at] ^= 0x10
				want := clonePackets(pkts)
				var s sink
				coalesceAll(t, &s, pkts...)
				samePackets(t, s.segments(t), want)
				for _, q := range s.out {
					if q.h.GSO == link.GSONone != (bytes.Equal(q.pkt, want[bad]) || len(q.pkt) == len(want[bad])) {
						t.Fatalf("packet %d of 5 bad at %d: %+v with %d bytes", bad, at, q.h, len(q.pkt))
					}
				}
				if len(s.out) > 3 {
					t.Errorf("packet %d of 5 bad at %d: %d packets written", bad, at, len(s.out))
				}
			}
		}
	}
}

// What is never merged does not let anything of its flow pass.
func TestCoalesceOrder(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		w := bulk(v6, false)
		seg := segmentsOf(w, 100, 6)
		ack := w
		ack.payload = nil
		pure := ack.build(false)
		var frag []byte
		if v6 {
			frag = ipv6(6, fill(64, 1), fragment(64, true))
		} else {
			frag = ipv4(6, 0x2008, nil, fill(64, 1))
		}
		other := w
		other.host = 77
		alien := segmentsOf(other, 100, 3)
		in := [][]byte{seg[0], seg[1], pure, seg[2], alien[0], seg[3], frag, seg[4], alien[1], seg[5], alien[2]}
		want := clonePackets([][]byte{seg[0], seg[1], pure, seg[2], seg[3], alien[0], frag, seg[4], seg[5], alien[1], alien[2]})
		var s sink
		coalesceAll(t, &s, in...)
		samePackets(t, s.segments(t), want)
		if len(s.out) != 7 {
			t.Errorf("%d packets written, want 7", len(s.out))
		}
	}
}

// Flows do not disturb each other, up to as many as the table holds; those beyond pass, one by one and in order.
func TestCoalesceFlows(t *testing.T) {
	for _, flows := range []int{1, 2, 63, 64, 65, 100} {
		var in [][]byte
		per := coalescerPackets / flows
		if per > 20 {
			per = 20
		}
		var byFlow [][][]byte
		for f := range flows {
			w := bulk(f%2 == 1, f%3 == 0)
			w.host, w.sport = byte(f), uint16(f)
			byFlow = append(byFlow, segmentsOf(w, 100, per))
		}
		for i := range per {
			for f := range flows {
				in = append(in, byFlow[f][i])
			}
		}
		want := map[byte][][]byte{}
		for f := range flows {
			want[byte(f)] = clonePackets(byFlow[f])
		}
		var s sink
		coalesceAll(t, &s, in...)
		if per > 1 {
			n := min(flows, coalescerFlows) + max(0, flows-coalescerFlows)*per
			if len(s.out) != n {
				t.Errorf("%d flows: %d packets written, want %d", flows, len(s.out), n)
			}
		}
		got := map[byte][][]byte{}
		for _, p := range s.segments(t) {
			host := p[14]
			if p[0]>>4 == 6 {
				host = p[22]
			}
			got[host] = append(got[host], p)
		}
		for f := range flows {
			samePackets(t, got[byte(f)], want[byte(f)])
		}
	}
}

// 128 packets fit, of 128 flows even, and the next is not taken.
func TestCoalesceFull(t *testing.T) {
	var c coalescer
	size := 0
	for i := range coalescerPackets {
		w := bulk(false, true)
		w.host, w.payload = byte(i), fill(i+1, 1)
		p := w.build(false)
		size += len(p)
		if !c.Add(p) {
			t.Fatalf("full with %d packets", i)
		}
	}
	if c.Add(ipv4(17, 0, nil, portsBody)) {
		t.Fatal("took one more than there is room for")
	}
	var s sink
	if d, f, n := c.Flush(&s); d != coalescerPackets || f != 0 || n != size || s.flushes != 1 {
		t.Errorf("%d delivered, %d failed, %d of %d bytes, %d flushes", d, f, n, size, s.flushes)
	}
	if d, f, n := c.Flush(&s); d != 0 || f != 0 || n != 0 || s.flushes != 1 {
		t.Errorf("when empty: %d delivered, %d failed, %d bytes, %d flushes", d, f, n, s.flushes)
	}
}

// The two packets of a flow have all of this in common; packets of two flows need differ in one byte of it only. The flow
// table could not show that, since the hash sees it first.
func TestSameFlow(t *testing.T) {
	for _, w := range []wirePacket{bulk(false, false), bulk(true, false), bulk(false, true), bulk(true, true)} {
		a := w.build(false)
		key := map[int]bool{0: true}
		from, to, proto := 12, 24, 9
		if w.v6 {
			from, to, proto = 8, 44, 6
		}
		key[proto] = true
		for i := from; i < to; i++ {
			key[i] = true
		}
		for i := range a {
			b := bytes.Clone(a)
			b[i] ^= 0x80
			if got := sameFlow(a, b, w.transportAt()); got == key[i] {
				t.Errorf("IPv6 %v: with byte %d changed: %v", w.v6, i, got)
			}
		}
	}
}

// Packets that no lane would let through pass as they are; what is read of them is there.
func TestCoalesceJunk(t *testing.T) {
	tcp4, udp6 := segmentsOf(bulk(false, false), 100, 1)[0], segmentsOf(bulk(true, true), 100, 1)[0]
	junk := [][]byte{
		{}, {0x45}, {0x60}, tcp4[:19], udp6[:39], edit(tcp4, 0, 0x55), edit(udp6, 0, 0x50),
		ipv4(6, 0, nil, portsBody), ipv4(6, 0, nil, make([]byte, 19)), ipv4(17, 0, nil, portsBody[:7]), ipv4(17, 0, nil, portsBody[:3]), ipv4(6, 0, nil, nil),
		ipv6(6, portsBody), ipv6(17, portsBody[:7]), ipv6(17, nil), ipv6(60, nil),
		edit(tcp4, 32, 0x40), edit(tcp4, 32, 0xf0), edit(udp6, 45, 0), edit(udp6, 44, 0xff),
	}
	for i := range junk {
		junk[i] = junk[i][:len(junk[i]):len(junk[i])]
	}
	in := slices.Concat(junk, junk)
	want := clonePackets(in)
	var s sink
	coalesceAll(t, &s, in...)
	if len(s.out) != len(in) {
		t.Fatalf("%d packets written, want %d", len(s.out), len(in))
	}
	for i, q := range s.out {
		if !bytes.Equal(q.pkt, want[i]) || q.h != (link.VNet{}) {
			t.Errorf("packet %d: % x with %+v, want % x", i, q.pkt, q.h, want[i])
		}
	}
}

// Two coalescers hash differently, so that nobody outside can make flows collide.
func TestCoalesceSeed(t *testing.T) {
	var a, b coalescer
	p := segmentsOf(bulk(false, true), 100, 1)[0]
	a.Add(p)
	b.Add(p)
	if a.seed == 0 || b.seed == 0 || a.seed == b.seed {
		t.Errorf("seeds %#x and %#x", a.seed, b.seed)
	}
}

// A writer that does not take super-packets gets the packets as they came, whether it says so before or when it is asked.
func TestCoalesceFallback(t *testing.T) {
	for _, w := range []wirePacket{bulk(false, false), bulk(true, false), bulk(false, true), bulk(true, true)} {
		pkts := segmentsOf(w, 300, 5)
		if !w.udp {
			w.flags |= tcpPSH
			w.payload = fill(1500, 7)
			pkts = refSegments(w, 300) // the last with PSH
		}
		want := clonePackets(pkts)
		for _, s := range []sink{{noGSO: true}, {cannot: []link.GSOType{link.GSOTCP4, link.GSOTCP6, link.GSOUDPL4}}} {
			coalesceAll(t, &s, pkts...)
			var got [][]byte
			for _, q := range s.out {
				if q.h != (link.VNet{}) {
					t.Errorf("%+v", q.h)
				}
				got = append(got, q.pkt)
			}
			samePackets(t, got, want)
			// Who says so before is not asked.
			if want := map[bool]int{true: 6, false: 5}[s.noGSO]; s.calls != want {
				t.Errorf("%d calls of Queue, want %d", s.calls, want)
			}
			samePackets(t, pkts, want) // restored
		}
		// One kind off leaves the others on.
		s := sink{cannot: []link.GSOType{link.GSOUDPL4}}
		coalesceAll(t, &s, pkts...)
		if n := len(s.out); w.udp && n != 5 || !w.udp && n != 1 {
			t.Errorf("without UDP: %d packets written", n)
		}
	}
}

// Whatever the writer refuses is in the books, in packets as they were added.
func TestCoalesceRefusals(t *testing.T) {
	tcp, udp := segmentsOf(bulk(false, false), 100, 4), segmentsOf(bulk(true, true), 50, 3)
	ack := bulk(false, false)
	ack.host = 9
	pure := ack.build(false)
	const tcpLen, udpLen = 100 + 52, 50 + 48
	for _, c := range []struct {
		name                     string
		s                        sink
		delivered, failed, bytes int
	}{
		{"nothing", sink{}, 8, 0, 4*tcpLen + 3*udpLen + len(pure)},
		{"a super-packet", sink{refuse: map[int]error{0: link.ErrNoBuffers}}, 4, 4, 3*udpLen + len(pure)},
		{"the other", sink{refuse: map[int]error{1: link.ErrDown}}, 5, 3, 4*tcpLen + len(pure)},
		{"a single packet", sink{refuse: map[int]error{2: link.ErrInvalid}}, 7, 1, 4*tcpLen + 3*udpLen},
		{"a super-packet, then one of its segments", sink{refuse: map[int]error{0: link.ErrNoGSO, 2: link.ErrNoBuffers}}, 7, 1, 3*tcpLen + 3*udpLen + len(pure)},
		{"wrapped", sink{refuse: map[int]error{0: fmt.Errorf("tun0: %w", link.ErrNoGSO)}}, 8, 0, 4*tcpLen + 3*udpLen + len(pure)},
		{"all", sink{refuse: map[int]error{0: net.ErrClosed, 1: net.ErrClosed, 2: net.ErrClosed}}, 0, 8, 0},
		{"all, when flushed", sink{late: 3}, 0, 8, 0},
	} {
		var co coalescer
		for _, p := range clonePackets(slices.Concat(tcp, udp, [][]byte{pure})) {
			co.Add(p)
		}
		d, f, n := co.Flush(&c.s)
		if d != c.delivered || f != c.failed || n != c.bytes {
			t.Errorf("%s: %d delivered, %d failed, %d bytes; want %d, %d, %d", c.name, d, f, n, c.delivered, c.failed, c.bytes)
		}
	}
	// When only some fail on Flush the sum is still right.
	var co coalescer
	for _, p := range clonePackets(tcp) {
		co.Add(p)
	}
	co.Add(bytes.Clone(pure))
	if d, f, _ := co.Flush(&sink{late: 1}); d+f != 5 || f == 0 {
		t.Errorf("%d delivered, %d failed", d, f)
	}
}

// addresses are the source and destination in an IP header.
func addresses(p []byte) (src, dst []byte) {
	if p[0]>>4 == 4 {
		return p[12:16], p[16:20]
	}
	return p[8:24], p[24:40]
}

// canonical gives a packet with IDs that mean nothing zeroed and checksums that are right in their usual representation, so
// that packets can be compared that differ only in those.
func canonical(p []byte) []byte {
	p = bytes.Clone(p)
	var h ipHeader
	if h.parse(p) != nil || h.fragment {
		return p
	}
	src, dst := addresses(p)
	if h.version == 4 {
		if p[6]&0x40 != 0 && refSum(p[:h.transport]) == 0xffff {
			p[4], p[5], p[10], p[11] = 0, 0, 0, 0
			binary.BigEndian.PutUint16(p[10:], ^refSum(p[:h.transport]))
		}
	}
	t := p[h.transport:]
	if h.proto == protoTCP && len(t) >= 20 && refSum(refPseudo(src, dst, 6, len(t)), t) == 0xffff && t[16] == 0xff && t[17] == 0xff {
		t[16], t[17] = 0, 0
	}
	return p
}

// checkCoalesce runs a burst through a coalescer and compares what comes out, segmented again, with what went in: per flow
// the same packets in the same order, fragments before and behind the same packets.
func checkCoalesce(t failer, burst [][]byte) (written int) {
	t.Helper()
	key := func(p []byte) string {
		var f sa.Flow
		if _, err := parseFlow(p, &f); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%+v", f)
	}
	want := map[string][][]byte{}
	for _, p := range burst {
		k := key(p)
		want[k] = append(want[k], canonical(p))
	}
	var s sink
	coalesceAll(t, &s, burst...)
	got := map[string][][]byte{}
	for _, p := range s.segments(t) {
		k := key(p)
		got[k] = append(got[k], canonical(p))
	}
	if len(got) != len(want) {
		t.Fatalf("%d flows, want %d", len(got), len(want))
	}
	for k := range want {
		samePackets(t, got[k], want[k])
	}
	return len(s.out)
}

// Bursts as a tunnel brings them: several flows mixed, with losses, duplicates, reordering, damage, fragments and all flags.
func TestCoalesceProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var streams [][][]byte
		for i := range rapid.IntRange(1, 6).Draw(t, "flows") {
			w := drawPacket(t)
			w.host = byte(i)
			w.flags = rapid.SampledFrom([]byte{tcpACK, tcpACK, tcpACK | tcpPSH, tcpACK | tcpFIN, tcpACK | tcpCWR, tcpACK | tcpECE, 2}).Draw(t, "flags")
			w.reserved = rapid.SampledFrom([]byte{0, 0, 0, 1, 15}).Draw(t, "reserved")
			size := rapid.SampledFrom([]int{1, 8, 99, 512, 1348, 9000}).Draw(t, "size")
			n := rapid.IntRange(0, 20*size).Draw(t, "payload")
			w.payload = fill(min(n, 60000), rapid.Byte().Draw(t, "seed"))
			stream := refSegments(w, size)
			for range rapid.IntRange(0, 3).Draw(t, "accidents") {
				k := rapid.IntRange(0, len(stream)-1).Draw(t, "where")
				switch rapid.IntRange(0, 5).Draw(t, "accident") {
				case 0:
					stream[k] = bytes.Clone(stream[k])
					p := stream[k]
					p[len(p)-1-rapid.IntRange(0, len(p)-w.transportAt()-5).Draw(t, "bit")] ^= 1
				case 1:
					stream = slices.Insert(stream, k, bytes.Clone(stream[k]))
				case 2:
					if len(stream) > 1 {
						stream = slices.Delete(stream, k, k+1)
					}
				case 3:
					j := rapid.IntRange(0, len(stream)-1).Draw(t, "swap")
					stream[k], stream[j] = stream[j], stream[k]
				case 4:
					x := w
					x.payload, x.tos = fill(size, 1), x.tos^8
					stream = slices.Insert(stream, k, x.build(false))
				case 5:
					// A fragment belongs to the flow, though its ports do not say so; what checkCoalesce compares here is
					// only that it comes out as it went in.
					f := ipv4(w.proto(), 0x2004, nil, fill(32, 1))
					if w.v6 {
						f = ipv6(w.proto(), fill(32, 1), fragment(32, true))
					}
					stream = slices.Insert(stream, k, f)
				}
			}
			streams = append(streams, stream)
		}
		var burst [][]byte
		for len(streams) > 0 && len(burst) < coalescerPackets {
			k := rapid.IntRange(0, len(streams)-1).Draw(t, "next")
			n := rapid.IntRange(1, 8).Draw(t, "run")
			for ; n > 0 && len(streams[k]) > 0 && len(burst) < coalescerPackets; n-- {
				burst = append(burst, streams[k][0])
				streams[k] = streams[k][1:]
			}
			if len(streams[k]) == 0 {
				streams = slices.Delete(streams, k, k+1)
			}
		}
		checkCoalesce(t, burst)
	})
}

// split → coalesce → split is the identity on the packets of the wire; and what was split from one super-packet becomes
// one again, where nothing speaks against it.
func TestSplitCoalesceSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawPacket(t)
		w.flags = tcpACK | rapid.SampledFrom([]byte{0, tcpPSH, tcpECE}).Draw(t, "flags")
		size := rapid.IntRange(1, 2000).Draw(t, "size")
		n := rapid.IntRange(1, min(64, (65535-w.headerLen())/size)).Draw(t, "segments")
		w.payload = fill(n*size-rapid.IntRange(0, size-1).Draw(t, "short"), 1)
		var s splitter
		if err := s.Reset(w.build(true), w.vnet(size)); err != nil {
			t.Fatal(err)
		}
		wire := split(t, &s)
		want := clonePackets(wire)
		var out sink
		coalesceAll(t, &out, wire...)
		if len(out.out) != 1 {
			t.Fatalf("%d packets of one super-packet", len(out.out))
		}
		samePackets(t, out.segments(t), want)
	})
}

// takePackets reads a burst out of fuzz data: lengths and packets, of which those stay that the lane would let through.
func takePackets(data []byte) [][]byte {
	var all [][]byte
	for len(data) >= 2 && len(all) < coalescerPackets {
		n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
		p := bytes.Clone(data[2 : 2+n])
		data = data[2+n:]
		var f sa.Flow
		if m, err := parseFlow(p, &f); err == nil && m == len(p) {
			all = append(all, p)
		}
	}
	return all
}

func FuzzCoalesce(f *testing.F) {
	join := func(pkts ...[]byte) (data []byte) {
		for _, p := range pkts {
			data = append(binary.BigEndian.AppendUint16(data, uint16(len(p))), p...)
		}
		return data
	}
	for _, w := range []wirePacket{bulk(false, false), bulk(true, false), bulk(false, true), bulk(true, true)} {
		f.Add(join(segmentsOf(w, 10, 4)...), uint8(0), uint16(0), byte(0), false)
		f.Add(join(segmentsOf(w, 7, 3)...), uint8(1), uint16(9), byte(1), true)
	}
	f.Add(join(ipv4(6, 0x2001, nil, portsBody), ipv6(17, portsBody, hopByHop), ipv4(17, 0, nil, portsBody)), uint8(0), uint16(0), byte(0), true)
	// A change to one byte of one packet, with the checksum mended or not, finds more than changes to all of the data do.
	f.Fuzz(func(t *testing.T, data []byte, which uint8, at uint16, flip byte, mend bool) {
		burst := takePackets(data)
		if len(burst) == 0 {
			return
		}
		if p := burst[int(which)%len(burst)]; len(p) > 0 {
			p[int(at)%len(p)] ^= flip
		}
		if mend {
			for _, p := range burst {
				mendChecksums(p)
			}
		}
		burst = slices.DeleteFunc(burst, func(p []byte) bool {
			var fl sa.Flow
			n, err := parseFlow(p, &fl)
			return err != nil || n != len(p)
		})
		checkCoalesce(t, burst)
	})
}

// mendChecksums makes the checksums of a packet right, as far as there are any.
func mendChecksums(p []byte) {
	var h ipHeader
	if h.parse(p) != nil || h.fragment {
		return
	}
	src, dst := addresses(p)
	if h.version == 4 {
		p[10], p[11] = 0, 0
		binary.BigEndian.PutUint16(p[10:], ^refSum(p[:h.transport]))
	}
	t := p[h.transport:h.total]
	at := 16
	if h.proto == protoUDP {
		at = 6
	} else if h.proto != protoTCP {
		return
	}
	if len(t) < at+2 {
		return
	}
	t[at], t[at+1] = 0, 0
	sum := ^refSum(refPseudo(src, dst, h.proto, len(t)), t)
	if sum == 0 && h.proto == protoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(t[at:], sum)
}

// drain is a writer that costs nothing.
type drain struct{ err error }

func (d *drain) Queue(h link.VNet, parts [][]byte) error {
	if h.GSO != link.GSONone {
		return d.err
	}
	return nil
}
func (d *drain) Flush() (int, error) { return 0, nil }

func TestCoalesceAllocs(t *testing.T) {
	pkts := slices.Concat(segmentsOf(bulk(false, false), 1000, 40), segmentsOf(bulk(true, true), 1000, 40), [][]byte{ipv4(1, 0, nil, portsBody)})
	c := new(coalescer)
	for _, w := range []*drain{{}, {link.ErrNoGSO}, {errors.New("no")}} {
		if n := testing.AllocsPerRun(50, func() {
			for _, p := range pkts {
				c.Add(p)
			}
			c.Flush(w)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

func BenchmarkCoalesce(b *testing.B) {
	flows := func(n, per, size int, udp bool) (all [][]byte) {
		var streams [][][]byte
		for i := range n {
			w := bulk(false, udp)
			w.host, w.sport = byte(i), uint16(1000+i)
			streams = append(streams, segmentsOf(w, size, per))
		}
		for k := range per {
			for i := range n {
				all = append(all, streams[i][k])
			}
		}
		return all
	}
	acks := make([][]byte, 64)
	for i := range acks {
		w := bulk(false, false)
		w.ack += uint32(i) * 2896
		acks[i] = w.build(false)
	}
	for _, c := range []struct {
		name string
		pkts [][]byte
	}{
		{"tcp4", segmentsOf(bulk(false, false), 1348, 48)},
		{"tcp6", segmentsOf(bulk(true, false), 1328, 48)},
		{"udp4", segmentsOf(bulk(false, true), 1372, 46)},
		{"udp6", segmentsOf(bulk(true, true), 1352, 46)},
		{"udp4-small", segmentsOf(bulk(false, true), 64, 64)},
		{"tcp4-8flows", flows(8, 8, 1348, false)},
		{"udp4-64flows", flows(64, 1, 64, true)},
		{"tcp4-acks", acks},
	} {
		b.Run(c.name, func(b *testing.B) {
			// In memory as they come: opened where they were received, 2 KB apart.
			arena := make([]byte, 2112*len(c.pkts))
			before, size := clonePackets(c.pkts), 0
			for i, p := range c.pkts {
				c.pkts[i] = arena[2112*i : 2112*i+copy(arena[2112*i:], p)]
				size += len(p)
			}
			var co coalescer
			w := new(drain)
			round := func() {
				for _, p := range c.pkts {
					co.Add(p)
				}
				co.Flush(w)
			}
			round()
			var changed []int // the first of each run, to be put right for the next round
			for i, p := range c.pkts {
				if !bytes.Equal(p, before[i]) {
					changed = append(changed, i)
				}
			}
			for b.Loop() {
				for _, i := range changed {
					copy(c.pkts[i], before[i][:72])
				}
				round()
			}
			reportPackets(b, len(c.pkts), size)
		})
	}
}
