package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"culvert/dataplane/link"
)

// vnet is the offload header that the kernel gives w as a super-packet of segments of size bytes.
func (w *wirePacket) vnet(size int) link.VNet {
	h := link.VNet{
		NeedsCsum: true, GSO: link.GSOUDPL4, GSOSize: uint16(size), HdrLen: uint16(w.headerLen()),
		CsumStart: uint16(w.transportAt()), CsumOffset: uint16(w.checksumAt()),
	}
	switch {
	case w.udp:
	case w.v6:
		h.GSO = link.GSOTCP6
	default:
		h.GSO = link.GSOTCP4
	}
	return h
}

// split runs s to its end, checking on the way what Count, Size and Next promise.
func split(t failer, s *splitter) [][]byte {
	t.Helper()
	var all [][]byte
	size, largest := s.Size(), 0
	for n := s.Count(); ; n-- {
		if s.Count() != n {
			t.Fatalf("%d packets left, want %d", s.Count(), n)
		}
		if n == 0 {
			break
		}
		if m, more := s.Next(nil); m != 0 || !more || s.Count() != n {
			t.Fatalf("no room: %d, %v, %d left of %d", m, more, s.Count(), n)
		}
		dst := bytes.Repeat([]byte{0xa5}, size+8)
		m, more := s.Next(dst[:size]) // for the largest, just the room that it needs
		if m == 0 || m > size || more != (n > 1) {
			t.Fatalf("%d bytes (at most %d), more %v with %d left", m, size, more, n)
		}
		for _, b := range dst[m:] {
			if b != 0xa5 {
				t.Fatalf("wrote beyond the %d bytes of the packet", m)
			}
		}
		largest = max(largest, m)
		all = append(all, dst[:m])
	}
	if m, more := s.Next(make([]byte, 65536)); m != 0 || more {
		t.Fatalf("after the last: %d bytes, more %v", m, more)
	}
	if largest != size && len(all) > 0 {
		t.Fatalf("the largest was %d, Size said %d", largest, size)
	}
	return all
}

func samePackets(t failer, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d packets, want %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("packet %d of %d:\n% x\nwant\n% x", i, len(got), got[i][:min(len(got[i]), 120)], want[i][:min(len(want[i]), 120)])
		}
	}
}

// Every super-packet becomes just the packets that the reference builds from its fields, and leaves itself unchanged.
func TestSplitSuperPackets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawPacket(t)
		if w.v6 {
			w.destOptions = rapid.IntRange(0, 2).Draw(t, "destination options")
		} else {
			w.ipOptions = rapid.SampledFrom([][]byte{nil, nil, {1, 1, 1, 0}, make([]byte, 40)}).Draw(t, "IP options")
		}
		w.flags = rapid.Byte().Draw(t, "flags")
		w.reserved = rapid.ByteRange(0, 15).Draw(t, "reserved")
		w.urgent = rapid.Uint16().Draw(t, "urgent")
		room := 65535 - w.headerLen()
		size := rapid.OneOf(rapid.IntRange(1, 100), rapid.SampledFrom([]int{536, 1348, 1400, 1448, 8948, 65535})).Draw(t, "size")
		n := rapid.IntRange(0, min(room, 70*size)).Draw(t, "payload")
		w.payload = fill(n, rapid.Byte().Draw(t, "seed"))
		pkt := w.build(true)
		before := bytes.Clone(pkt)
		h := w.vnet(size)
		h.HdrLen = rapid.Uint16().Draw(t, "hdrLen") // may say what it likes
		if rapid.IntRange(0, 9).Draw(t, "no csum") == 0 {
			h.NeedsCsum, h.CsumStart, h.CsumOffset = false, 0, 0
		}
		var s splitter
		if err := s.Reset(pkt, h); err != nil {
			t.Fatal(err)
		}
		got := split(t, &s)
		samePackets(t, got, refSegments(w, size))
		for _, p := range got {
			if err := judge(p); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(pkt, before) {
			t.Fatal("the super-packet was changed")
		}
	})
}

// A single packet with a partial checksum is finished, one without passes as it is.
func TestSplitSingle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawPacket(t)
		w.flags = rapid.Byte().Draw(t, "flags")
		w.payload = fill(rapid.IntRange(0, 3000).Draw(t, "payload"), rapid.Byte().Draw(t, "seed"))
		h := w.vnet(0)
		h.GSO = link.GSONone
		var s splitter
		if err := s.Reset(w.build(true), h); err != nil {
			t.Fatal(err)
		}
		samePackets(t, split(t, &s), [][]byte{w.build(false)})

		odd := w.build(false)
		odd[len(odd)-1] ^= 1 // the checksum is wrong now, which is none of the splitter's business
		if err := s.Reset(odd, link.VNet{DataValid: true}); err != nil {
			t.Fatal(err)
		}
		samePackets(t, split(t, &s), [][]byte{odd})
	})
}

// A checksum may be asked for in a header that the splitter knows nothing of, such as one inside a tunnel packet.
func TestSplitSingleInnerChecksum(t *testing.T) {
	inner := wirePacket{payload: fill(99, 1), udp: true, sport: 1, dport: 2, ttl: 9}
	gre := append([]byte{0, 0, 8, 0}, inner.build(true)...)
	pkt := ipv4(47, 0, nil, gre)
	var s splitter
	if err := s.Reset(pkt, link.VNet{NeedsCsum: true, CsumStart: 20 + 4 + 20, CsumOffset: 6}); err != nil {
		t.Fatal(err)
	}
	samePackets(t, split(t, &s), [][]byte{ipv4(47, 0, nil, append([]byte{0, 0, 8, 0}, inner.build(false)...))})
}

// UDP checksums that come out as zero are sent as ones: in a single packet and in a segment.
func TestSplitUDPZeroChecksum(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		w := wirePacket{v6: v6, udp: true, ttl: 64, sport: 7, dport: 9, payload: make([]byte, 10)}
		zero := w.build(false)
		at := w.transportAt() + 6
		// What makes the sum complete is the checksum itself, as payload.
		copy(w.payload, zero[at:at+2])
		want := w.build(false)
		if want[at] != 0xff || want[at+1] != 0xff {
			t.Fatalf("the packet was meant to have a checksum of zero, has % x", want[at:at+2])
		}
		var s splitter
		h := w.vnet(0)
		h.GSO = link.GSONone
		if err := s.Reset(w.build(true), h); err != nil {
			t.Fatal(err)
		}
		samePackets(t, split(t, &s), [][]byte{want})

		super := w
		super.payload = append(bytes.Clone(w.payload), w.payload...)
		if err := s.Reset(super.build(true), super.vnet(len(w.payload))); err != nil {
			t.Fatal(err)
		}
		if got := split(t, &s); !bytes.Equal(got[0], want) {
			t.Errorf("% x, want % x", got[0], want)
		}
	}
}

// The IPv4 ID and the sequence number wrap around.
func TestSplitWraps(t *testing.T) {
	w := wirePacket{id: 0xfffe, seq: 0xffffff00, ttl: 1, flags: tcpACK | tcpPSH | tcpFIN | tcpCWR, payload: fill(1000, 4)}
	var s splitter
	if err := s.Reset(w.build(true), w.vnet(100)); err != nil {
		t.Fatal(err)
	}
	got := split(t, &s)
	samePackets(t, got, refSegments(w, 100))
	for i, p := range got {
		flags := byte(tcpACK)
		if i == 0 {
			flags |= tcpCWR
		}
		if i == len(got)-1 {
			flags |= tcpPSH | tcpFIN
		}
		if p[33] != flags || binary.BigEndian.Uint16(p[4:]) != 0xfffe+uint16(i) || binary.BigEndian.Uint32(p[24:]) != 0xffffff00+uint32(100*i) {
			t.Errorf("segment %d: flags %#02x, ID %d, seq %d", i, p[33], binary.BigEndian.Uint16(p[4:]), binary.BigEndian.Uint32(p[24:]))
		}
	}
}

// A splitter taken up again half-way forgets the rest.
func TestSplitReset(t *testing.T) {
	a := wirePacket{ttl: 1, payload: fill(5000, 4)}
	b := wirePacket{v6: true, udp: true, ttl: 1, payload: fill(3000, 5)}
	var s splitter
	dst := make([]byte, 2000)
	if err := s.Reset(a.build(true), a.vnet(1000)); err != nil {
		t.Fatal(err)
	}
	s.Next(dst)
	s.Next(dst)
	if err := s.Reset(b.build(true), b.vnet(700)); err != nil {
		t.Fatal(err)
	}
	samePackets(t, split(t, &s), refSegments(b, 700))
	if err := s.Reset(a.build(true), a.vnet(0)); err == nil {
		t.Fatal("a GSO size of 0 was taken")
	}
	if n, more := s.Next(dst); n != 0 || more || s.Count() != 0 {
		t.Errorf("after an error: %d bytes, more %v, %d left", n, more, s.Count())
	}
}

// Every way in which an offload header can contradict itself or its packet has its answer.
func TestSplitMalformed(t *testing.T) {
	tcp4 := wirePacket{ttl: 64, payload: fill(3000, 1), options: []byte{1, 1, 1, 0}}
	tcp6 := wirePacket{v6: true, ttl: 64, payload: fill(3000, 2), destOptions: 1}
	udp4 := wirePacket{udp: true, ttl: 64, payload: fill(3000, 3)}
	udp6 := wirePacket{v6: true, udp: true, ttl: 64, payload: fill(3000, 4)}
	single := func(w *wirePacket) link.VNet {
		h := w.vnet(0)
		h.GSO, h.GSOSize = link.GSONone, 0
		return h
	}
	with := func(h link.VNet, change func(*link.VNet)) link.VNet {
		change(&h)
		return h
	}
	edit := func(p []byte, change func([]byte)) []byte {
		change(p)
		return p
	}
	long := append(repeat(destOptions, 7), ext{60, append([]byte{31, 1, 250}, make([]byte, 252)...)})
	for _, c := range []struct {
		name string
		pkt  []byte
		h    link.VNet
		want malformed
	}{
		// A packet that is wrong in itself.
		{"single, empty", nil, link.VNet{}, errIPShort},
		{"single, 39 bytes of IPv6", udp6.build(true)[:39], link.VNet{}, errIPShort},
		{"single, version 5", edit(udp4.build(true), func(p []byte) { p[0] = 0x55 }), link.VNet{}, errIPVersion},
		{"single, header of 16 bytes", edit(udp4.build(true), func(p []byte) { p[0] = 0x44 }), link.VNet{}, errIPHeaderLen},
		{"single, header beyond the packet", edit(ipv4(6, 0, nil, portsBody), func(p []byte) { p[0] = 0x4f }), link.VNet{}, errIPHeaderLen},
		{"single, cut short", udp4.build(true)[:3000], link.VNet{}, errIPLength},
		{"single, something behind it", append(udp6.build(true), 0), link.VNet{}, errIPLength},
		{"super, cut short", tcp4.build(true)[:3000], tcp4.vnet(1000), errIPLength},
		{"super, something behind it", append(tcp6.build(true), 0), tcp6.vnet(1000), errIPLength},
		{"super, BIG TCP", edit(tcp4.build(true), func(p []byte) { p[2], p[3] = 0, 0 }), tcp4.vnet(1000), errIPHeaderLen},
		{"super, bad extension header", edit(tcp6.build(true), func(p []byte) { p[40] = 0 }), tcp6.vnet(1000), errIPExtension},

		// A checksum that cannot be where it is said to be.
		{"single, checksum in the IPv4 header", udp4.build(true), with(single(&udp4), func(h *link.VNet) { h.CsumStart = 19 }), errCsumStart},
		{"single, checksum in IPv4 options", ipv4(17, 0, make([]byte, 8), portsBody), with(single(&udp4), func(h *link.VNet) { h.CsumStart = 20 }), errCsumStart},
		{"single, checksum in the IPv6 header", udp6.build(true), with(single(&udp6), func(h *link.VNet) { h.CsumStart = 39 }), errCsumStart},
		{"single, checksum at 0", udp4.build(true), with(single(&udp4), func(h *link.VNet) { h.CsumStart = 0 }), errCsumStart},
		{"single, checksum from the end", udp4.build(true), with(single(&udp4), func(h *link.VNet) { h.CsumStart = 3028 }), errCsumStart},
		{"single, checksum from beyond", udp4.build(true), with(single(&udp4), func(h *link.VNet) { h.CsumStart = 65535 }), errCsumStart},
		{"single, field beyond", udp4.build(true), with(single(&udp4), func(h *link.VNet) { h.CsumOffset = 3008 }), errCsumOffset},
		{"single, field half beyond", ipv4(17, 0, nil, portsBody[:7]), with(single(&udp4), func(h *link.VNet) { h.CsumOffset = 6 }), errCsumOffset},
		{"single, field far beyond", udp4.build(true), with(single(&udp4), func(h *link.VNet) { h.CsumOffset = 65534 }), errCsumOffset},
		{"single, field odd", udp4.build(true), with(single(&udp4), func(h *link.VNet) { h.CsumOffset = 5 }), errCsumOffset},
		{"super, checksum before TCP", tcp4.build(true), with(tcp4.vnet(1000), func(h *link.VNet) { h.CsumStart = 16 }), errCsumStart},
		{"super, checksum at the extension header", tcp6.build(true), with(tcp6.vnet(1000), func(h *link.VNet) { h.CsumStart = 40 }), errCsumStart},
		{"super, checksum behind UDP", udp4.build(true), with(udp4.vnet(1000), func(h *link.VNet) { h.CsumStart = 28 }), errCsumStart},
		{"super, UDP field in TCP", tcp4.build(true), with(tcp4.vnet(1000), func(h *link.VNet) { h.CsumOffset = 6 }), errCsumOffset},
		{"super, TCP field in UDP", udp6.build(true), with(udp6.vnet(1000), func(h *link.VNet) { h.CsumOffset = 16 }), errCsumOffset},

		// A GSO type or size that does not fit.
		{"size 0", tcp4.build(true), tcp4.vnet(0), errGSOSize},
		{"UDP size 0", udp6.build(true), udp6.vnet(0), errGSOSize},
		{"unknown type", tcp4.build(true), with(tcp4.vnet(1000), func(h *link.VNet) { h.GSO = 77 }), errGSOKind},
		{"TCP4 over IPv6", tcp6.build(true), with(tcp6.vnet(1000), func(h *link.VNet) { h.GSO = link.GSOTCP4 }), errGSOProtocol},
		{"TCP6 over IPv4", tcp4.build(true), with(tcp4.vnet(1000), func(h *link.VNet) { h.GSO = link.GSOTCP6 }), errGSOProtocol},
		{"TCP type, UDP packet", udp4.build(true), with(udp4.vnet(1000), func(h *link.VNet) { h.GSO = link.GSOTCP4 }), errGSOProtocol},
		{"TCP6 type, UDP packet", udp6.build(true), with(udp6.vnet(1000), func(h *link.VNet) { h.GSO = link.GSOTCP6 }), errGSOProtocol},
		{"UDP type, TCP packet", tcp6.build(true), with(tcp6.vnet(1000), func(h *link.VNet) { h.GSO = link.GSOUDPL4 }), errGSOProtocol},
		{"UDP type, SCTP packet", ipv4(132, 0, nil, make([]byte, 100)), udp4.vnet(10), errGSOProtocol},

		// Headers that are not there, or not all.
		{"TCP header cut short", ipv4(6, 0, nil, make([]byte, 19)), tcp4.vnet(1000), errGSOHeader},
		{"UDP header cut short", ipv4(17, 0, nil, make([]byte, 7)), udp4.vnet(1000), errGSOHeader},
		{"no TCP header", ipv6(6, nil), tcp6.vnet(1000), errGSOHeader},
		{"TCP data offset 16", edit(tcp4.build(true), func(p []byte) { p[32] = 0x40 }), tcp4.vnet(1000), errGSOHeader},
		{"TCP data offset beyond the packet", ipv4(6, 0, nil, append(append(make([]byte, 12), 0xf0), make([]byte, 20)...)), with(tcp4.vnet(1000), func(h *link.VNet) { h.CsumStart = 20 }), errGSOHeader},
		{"headers of more than 256 bytes", ipv6(17, append([]byte{0, 1, 0, 2, 0, 108, 0, 0}, make([]byte, 100)...), long...), link.VNet{GSO: link.GSOUDPL4, GSOSize: 10}, errGSOHeader},
		{"UDP length of one segment", edit(udp4.build(true), func(p []byte) { p[24], p[25] = 3, 0xf0 }), udp4.vnet(1000), errGSOLength},
		{"first fragment", edit(tcp4.build(true), func(p []byte) { p[6] = 0x20 }), tcp4.vnet(1000), errGSOFragment},
		{"later fragment", edit(udp4.build(true), func(p []byte) { p[7] = 1 }), udp4.vnet(1000), errGSOFragment},
		{"IPv6 fragment", ipv6(17, udp6.transportBytes(), fragment(0, true)), udp6.vnet(1000), errGSOFragment},
		{"IPv6 routing under way", ipv6(6, tcp6.transportBytes(), routingMore), tcp6.vnet(1000), errGSORouting},
	} {
		s := splitter{}
		err := s.Reset(c.pkt, c.h)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if s.Count() != 0 {
			t.Errorf("%s: %d packets to take", c.name, s.Count())
		}
	}
}

// Whatever comes with a packet, the splitter neither panics nor makes a packet that is not right.
func FuzzSplit(f *testing.F) {
	add := func(w wirePacket, size int) {
		h := w.vnet(size)
		f.Add(w.build(true), true, uint8(h.GSO), h.GSOSize, h.CsumStart, h.CsumOffset)
		f.Add(w.build(true), true, uint8(link.GSONone), uint16(0), h.CsumStart, h.CsumOffset)
		f.Add(w.build(false), false, uint8(h.GSO), h.GSOSize, uint16(0), uint16(0))
	}
	add(wirePacket{ttl: 64, payload: fill(300, 1), options: []byte{1, 1, 1, 0}, flags: 0xff}, 100)
	add(wirePacket{v6: true, ttl: 64, payload: fill(300, 2), destOptions: 1, flags: tcpACK}, 77)
	add(wirePacket{udp: true, ttl: 64, payload: fill(300, 3), ipOptions: make([]byte, 8)}, 300)
	add(wirePacket{v6: true, udp: true, ttl: 64, payload: fill(300, 4)}, 1)
	f.Fuzz(func(t *testing.T, pkt []byte, needs bool, gso uint8, size, start, offset uint16) {
		h := link.VNet{NeedsCsum: needs, GSO: link.GSOType(gso), GSOSize: size, CsumStart: start, CsumOffset: offset}
		var s splitter
		if err := s.Reset(pkt, h); err != nil {
			if _, ok := err.(malformed); !ok || s.Count() != 0 {
				t.Fatalf("%v, with %d packets left", err, s.Count())
			}
			return
		}
		before := bytes.Clone(pkt)
		got := split(t, &s)
		if !bytes.Equal(pkt, before) {
			t.Fatal("the packet was changed")
		}
		if h.GSO == link.GSONone {
			p := bytes.Clone(got[0])
			if needs {
				at := int(start) + int(offset)
				sum := refSum(pkt[start:])
				if sum = ^sum; sum == 0 {
					sum = 0xffff
				}
				if binary.BigEndian.Uint16(p[at:]) != sum {
					t.Fatalf("checksum %#x, want %#x", p[at:at+2], sum)
				}
				copy(p[at:], pkt[at:at+2])
			}
			if !bytes.Equal(p, pkt) {
				t.Fatal("more than the checksum was changed")
			}
			return
		}
		// Segments: every byte of the payload is there once and in its place, and every length and checksum is right.
		var ip ipHeader
		if err := ip.parse(pkt); err != nil {
			t.Fatal(err)
		}
		header := ip.transport + 8
		if h.GSO != link.GSOUDPL4 {
			header = ip.transport + int(pkt[ip.transport+12]>>4)*4
		}
		var payload []byte
		for i, p := range got {
			if i < len(got)-1 && len(p) != header+int(size) {
				t.Fatalf("segment %d of %d has %d bytes", i, len(got), len(p))
			}
			payload = append(payload, p[header:]...)
			var q ipHeader
			if err := q.parse(p); err != nil || q.total != len(p) || q.transport != ip.transport {
				t.Fatalf("segment %d: %+v, %v", i, q, err)
			}
			src, dst := p[8:24], p[24:40]
			if ip.version == 4 {
				src, dst = p[12:16], p[16:20]
				if refSum(p[:ip.transport]) != 0xffff {
					t.Fatalf("segment %d: wrong IPv4 header checksum", i)
				}
			}
			if refSum(refPseudo(src, dst, ip.proto, len(p)-ip.transport), p[ip.transport:]) != 0xffff {
				t.Fatalf("segment %d: wrong checksum", i)
			}
		}
		if !bytes.Equal(payload, pkt[header:]) {
			t.Fatal("the payload is not that of the super-packet")
		}
	})
}

func TestSplitAllocs(t *testing.T) {
	tcp := wirePacket{ttl: 64, payload: fill(60000, 1), options: make([]byte, 12)}
	udp := wirePacket{v6: true, udp: true, ttl: 64, payload: fill(1000, 1)}
	pkt, h := tcp.build(true), tcp.vnet(1348)
	one, single := udp.build(true), udp.vnet(0)
	single.GSO = link.GSONone
	var s splitter
	dst := make([]byte, 2048)
	if n := testing.AllocsPerRun(100, func() {
		s.Reset(pkt, h)
		for s.Count() > 0 {
			s.Next(dst)
		}
		s.Reset(one, single)
		s.Next(dst)
		s.Reset(one, link.VNet{GSO: link.GSOTCP4})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSplit(b *testing.B) {
	stamp := []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}
	for _, c := range []struct {
		name string
		w    wirePacket
		size int
		n    int // segments
	}{
		{"tcp4", wirePacket{ttl: 64, options: stamp, flags: tcpACK}, 1348, 48},
		{"tcp6", wirePacket{v6: true, ttl: 64, options: stamp, flags: tcpACK}, 1328, 48},
		{"udp4", wirePacket{udp: true, ttl: 64}, 1372, 46},
		{"udp6", wirePacket{v6: true, udp: true, ttl: 64}, 1352, 46},
		{"udp4-small", wirePacket{udp: true, ttl: 64}, 64, 64},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.w.payload = fill(c.n*c.size, 1)
			pkt, h := c.w.build(true), c.w.vnet(c.size)
			arena := make([]byte, c.n*(c.size+200))
			var s splitter
			total := 0
			for b.Loop() {
				if err := s.Reset(pkt, h); err != nil {
					b.Fatal(err)
				}
				total = 0
				for s.Count() > 0 {
					n, _ := s.Next(arena[total+16:])
					total += n + 40 // as ESP makes room between them
				}
			}
			reportPackets(b, c.n, total-40*c.n)
		})
	}
	for _, n := range []int{64, 1400} {
		b.Run("single-"+sizeName(n), func(b *testing.B) {
			w := wirePacket{udp: true, ttl: 64, payload: fill(n-28, 1)}
			pkt, h := w.build(true), w.vnet(0)
			h.GSO = link.GSONone
			dst := make([]byte, 2048)
			var s splitter
			for b.Loop() {
				s.Reset(pkt, h)
				s.Next(dst)
			}
			reportPackets(b, 1, n)
		})
	}
}
