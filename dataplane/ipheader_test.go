package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"culvert/sa"
)

// ipv4 makes an IPv4 packet with the given fragment word.
func ipv4(proto byte, frag uint16, options, body []byte) []byte {
	p := make([]byte, 20, 20+len(options)+len(body))
	p[0], p[8], p[9] = 0x40|byte(5+len(options)/4), 64, proto
	binary.BigEndian.PutUint16(p[2:], uint16(20+len(options)+len(body)))
	binary.BigEndian.PutUint16(p[6:], frag)
	copy(p[12:], []byte{192, 0, 2, 1, 198, 51, 100, 2})
	p = append(p, options...)
	binary.BigEndian.PutUint16(p[10:], ^refSum(p))
	return append(p, body...)
}

// ext is an IPv6 extension header without its next-header byte, which ipv6 fills in.
type ext struct {
	proto byte
	body  []byte // from the second byte on
}

var (
	hopByHop      = ext{0, []byte{0, 1, 4, 0, 0, 0, 0}}
	destOptions   = ext{60, []byte{0, 1, 4, 0, 0, 0, 0}}
	destOptions16 = ext{60, []byte{1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}
	routingDone   = ext{43, []byte{0, 4, 0, 0, 0, 0, 0}}
	routingMore   = ext{43, []byte{0, 4, 1, 0, 0, 0, 0}}
	ah            = ext{51, append([]byte{4, 0, 0}, make([]byte, 20)...)} // (4+2)*4 bytes
)

func fragment(offset uint16, more bool) ext {
	w := offset &^ 7
	if more {
		w |= 1
	}
	return ext{44, []byte{0, byte(w >> 8), byte(w), 0, 0, 0, 1}}
}

func ipv6(proto byte, body []byte, exts ...ext) []byte {
	p := make([]byte, 40)
	p[0], p[7] = 0x60, 64
	src, dst := netip.MustParseAddr("2001:db8::1").As16(), netip.MustParseAddr("2001:db8:1::2").As16()
	copy(p[8:], src[:])
	copy(p[24:], dst[:])
	at := 6
	for _, e := range exts {
		p[at] = e.proto
		at = len(p)
		p = append(append(p, 0), e.body...)
	}
	p[at] = proto
	p = append(p, body...)
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
	return p
}

func repeat(e ext, n int) []ext {
	all := make([]ext, n)
	for i := range all {
		all[i] = e
	}
	return all
}

var portsBody = []byte{0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0}

// What the SPD gets to see of every kind of packet.
func TestParseFlow(t *testing.T) {
	type want struct {
		proto      byte
		sport      uint16
		dport      uint16
		has, later bool
	}
	ports := func(proto byte) want { return want{proto: proto, sport: 0x1234, dport: 0x5678, has: true} }
	for _, c := range []struct {
		name string
		pkt  []byte
		want want
	}{
		{"v4 TCP", ipv4(6, 0, nil, portsBody), ports(6)},
		{"v4 UDP", ipv4(17, 0x4000, nil, portsBody), ports(17)},
		{"v4 SCTP", ipv4(132, 0, nil, portsBody), ports(132)},
		{"v4 DCCP", ipv4(33, 0, nil, portsBody), ports(33)},
		{"v4 UDP-Lite", ipv4(136, 0, nil, portsBody), ports(136)},
		{"v4 options", ipv4(6, 0, make([]byte, 40), portsBody), ports(6)},
		{"v4 ICMP", ipv4(1, 0, nil, []byte{8, 1, 0, 0}), want{1, 8, 1, true, false}},
		{"v4 ICMPv6 is not ICMP", ipv4(58, 0, nil, []byte{8, 1, 0, 0}), want{proto: 58}},
		{"v4 GRE", ipv4(47, 0, nil, portsBody), want{proto: 47}},
		{"v4 ESP, empty", ipv4(50, 0, nil, nil), want{proto: 50}},
		{"v4 AH is an upper layer", ipv4(51, 0, nil, make([]byte, 24)), want{proto: 51}},
		{"v4 first fragment", ipv4(17, 0x2000, nil, portsBody), ports(17)},
		{"v4 middle fragment", ipv4(17, 0x2001, nil, portsBody), want{proto: 17, later: true}},
		{"v4 last fragment", ipv4(17, 0x00b9, nil, portsBody), want{proto: 17, later: true}},
		{"v4 last fragment of one byte", ipv4(17, 0x00b9, nil, []byte{1}), want{proto: 17, later: true}},
		{"v4 last fragment that just fits", ipv4(17, 0x1fff, nil, make([]byte, 7)), want{proto: 17, later: true}},
		{"v6 TCP", ipv6(6, portsBody), ports(6)},
		{"v6 UDP", ipv6(17, portsBody), ports(17)},
		{"v6 ICMPv6", ipv6(58, []byte{128, 2, 0, 0}), want{58, 128, 2, true, false}},
		{"v6 ICMP is not ICMPv6", ipv6(1, []byte{128, 2, 0, 0}), want{proto: 1}},
		{"v6 no next header", ipv6(59, nil), want{proto: 59}},
		{"v6 hop-by-hop", ipv6(6, portsBody, hopByHop), ports(6)},
		{"v6 hop-by-hop, no next header", ipv6(59, nil, hopByHop), want{proto: 59}},
		{"v6 destination options of 16 bytes", ipv6(6, portsBody, destOptions16), ports(6)},
		{"v6 all of them", ipv6(132, portsBody, hopByHop, destOptions, routingDone, fragment(0, false), ah, destOptions16), ports(132)},
		{"v6 eight of them", ipv6(17, portsBody, repeat(destOptions, 8)...), ports(17)},
		{"v6 routing under way", ipv6(17, portsBody, routingMore), ports(17)},
		{"v6 AH", ipv6(58, []byte{135, 0, 0, 0}, ah), want{58, 135, 0, true, false}},
		{"v6 ESP behind options", ipv6(50, portsBody, destOptions), want{proto: 50}},
		{"v6 atomic fragment", ipv6(17, portsBody, fragment(0, false)), ports(17)},
		{"v6 first fragment", ipv6(17, portsBody, fragment(0, true)), ports(17)},
		{"v6 first fragment, more headers", ipv6(17, portsBody, fragment(0, true), destOptions), ports(17)},
		{"v6 middle fragment", ipv6(17, portsBody, fragment(8, true)), want{proto: 17, later: true}},
		{"v6 last fragment", ipv6(6, []byte{1}, fragment(1480, false)), want{proto: 6, later: true}},
		{"v6 last fragment that just fits", ipv6(17, make([]byte, 7), fragment(0xfff8, false)), want{proto: 17, later: true}},
		{"v6 later fragment of options", ipv6(60, portsBody, fragment(1480, true)), want{proto: 60, later: true}},
		{"v6 later fragment behind options", ipv6(17, portsBody, hopByHop, fragment(1480, true)), want{proto: 17, later: true}},
	} {
		// Whatever the flow held before must not shine through.
		f := sa.Flow{Proto: 99, SrcPort: 9, DstPort: 9, Frag: !c.want.later, HasPorts: !c.want.has}
		n, err := parseFlow(c.pkt, &f)
		if err != nil || n != len(c.pkt) {
			t.Errorf("%s: %d of %d bytes, error %v", c.name, n, len(c.pkt), err)
			continue
		}
		got := want{f.Proto, f.SrcPort, f.DstPort, f.HasPorts, f.Frag}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		src, dst := "192.0.2.1", "198.51.100.2"
		if c.pkt[0]>>4 == 6 {
			src, dst = "2001:db8::1", "2001:db8:1::2"
		}
		if f.Src.String() != src || f.Dst.String() != dst {
			t.Errorf("%s: from %v to %v", c.name, f.Src, f.Dst)
		}
		// TFC padding behind the packet changes nothing.
		var padded sa.Flow
		n, err = parseFlow(append(bytes.Clone(c.pkt), make([]byte, 100)...), &padded)
		if err != nil || n != len(c.pkt) || padded != f {
			t.Errorf("%s, padded: %d of %d bytes, %+v, error %v", c.name, n, len(c.pkt), padded, err)
		}
	}
}

func edit(p []byte, at int, v byte) []byte {
	p = bytes.Clone(p)
	p[at] = v
	return p
}

// Every way to be malformed has its own answer.
func TestParseFlowMalformed(t *testing.T) {
	v4, v6 := ipv4(6, 0, nil, portsBody), ipv6(6, portsBody)
	for _, c := range []struct {
		name string
		pkt  []byte
		want error
	}{
		{"empty", nil, errIPShort},
		{"v4 of 19 bytes", v4[:19], errIPShort},
		{"v6 of 39 bytes", v6[:39], errIPShort},
		{"version 0", edit(v4, 0, 0x05), errIPVersion},
		{"version 5", edit(v4, 0, 0x55), errIPVersion},
		{"v4 header of 16 bytes", edit(v4, 0, 0x44), errIPHeaderLen},
		{"v4 header beyond the packet", edit(v4, 0, 0x4f), errIPHeaderLen},
		{"v4 total length 0 (BIG TCP)", edit(v4, 3, 0), errIPHeaderLen},
		{"v4 total length below the header", edit(v4, 3, 19), errIPHeaderLen},
		{"v4 cut short", v4[:len(v4)-1], errIPLength},
		{"v6 cut short", v6[:len(v6)-1], errIPLength},
		{"v4 ping of death", ipv4(1, 0x1fff, nil, make([]byte, 8)), errIPFragment},
		{"v6 ping of death", ipv6(58, make([]byte, 8), fragment(0xfff8, false)), errIPFragment},
		{"v6 options cut short", ipv6(60, []byte{6, 0, 1, 4}), errIPExtension},
		{"v6 options longer than the packet", ipv6(60, []byte{6, 1, 1, 4, 0, 0, 0, 0}), errIPExtension},
		{"v6 no room for options", ipv6(60, nil), errIPExtension},
		{"v6 fragment header cut short", ipv6(44, make([]byte, 7)), errIPExtension},
		{"v6 AH longer than the packet", ipv6(51, []byte{6, 4, 0, 0, 0, 0, 0, 0}), errIPExtension},
		{"v6 hop-by-hop behind another", ipv6(6, portsBody, destOptions, hopByHop), errIPExtension},
		{"v6 hop-by-hop twice", ipv6(6, portsBody, hopByHop, hopByHop), errIPExtension},
		{"v6 jumbogram", edit(ipv6(6, portsBody, ext{0, []byte{0, 0xc2, 4, 0, 1, 0, 0}}), 5, 0), errIPExtension},
		{"v6 fragment of a fragment", ipv6(6, portsBody, fragment(0, true), fragment(0, true)), errIPExtension},
		{"v6 nine extension headers", ipv6(6, portsBody, repeat(destOptions, 9)...), errIPExtensions},
		{"v4 no ports", ipv4(6, 0, nil, portsBody[:3]), errIPPorts},
		{"v4 no ports in the first fragment", ipv4(17, 0x2000, nil, nil), errIPPorts},
		{"v6 no ports", ipv6(17, portsBody[:3]), errIPPorts},
		{"v4 no ICMP type", ipv4(1, 0, nil, nil), errIPPorts},
		{"v6 no ICMP type", ipv6(58, []byte{128, 0, 0}, destOptions), errIPPorts},
	} {
		var f sa.Flow
		// What lies behind the packet in its buffer is not its.
		n, err := parseFlow(append(bytes.Clone(c.pkt), portsBody...)[:len(c.pkt)], &f)
		if !errors.Is(err, c.want) || n != 0 {
			t.Errorf("%s: %v (%d bytes), want %v", c.name, err, n, c.want)
		}
	}
}

func TestMalformedTexts(t *testing.T) {
	seen := map[string]malformed{}
	for m := range malformed(numMalformed) {
		if prev, ok := seen[m.Error()]; ok || malformedTexts[m] == "" {
			t.Errorf("%d and %d both say %q", prev, m, m.Error())
		}
		seen[m.Error()] = m
	}
}

// Nothing that the parser accepts can be read otherwise by a stranger, and nothing makes it read beyond the packet.
func FuzzParseFlow(f *testing.F) {
	f.Add(ipv4(6, 0, nil, portsBody), uint8(0))
	f.Add(ipv4(17, 0x2001, make([]byte, 8), portsBody), uint8(7))
	f.Add(ipv6(6, portsBody), uint8(0))
	f.Add(ipv6(132, portsBody, hopByHop, destOptions, routingDone, fragment(0, true), ah, destOptions16), uint8(3))
	f.Add(ipv6(58, portsBody, fragment(1480, false)), uint8(0))
	f.Fuzz(func(t *testing.T, pkt []byte, pad uint8) {
		var flow, again sa.Flow
		pkt = pkt[:len(pkt):len(pkt)]
		n, err := parseFlow(pkt, &flow)
		if err != nil {
			if _, ok := err.(malformed); !ok || n != 0 {
				t.Fatalf("%d bytes, error %v", n, err)
			}
			return
		}
		if n < 20 || n > len(pkt) {
			t.Fatalf("%d bytes of %d", n, len(pkt))
		}
		if m, err := parseFlow(pkt[:n:n], &again); m != n || err != nil || again != flow {
			t.Fatalf("without what follows it: %d instead of %d bytes, %+v instead of %+v, error %v", m, n, again, flow, err)
		}
		var h ipHeader
		if err := h.parse(pkt); err != nil || h.total != n || h.transport > n || h.later != flow.Frag || h.later && flow.HasPorts {
			t.Fatalf("%+v for %+v, error %v", h, flow, err)
		}
		if pkt[0]>>4 == 4 {
			p := gopacket.NewPacket(pkt[:n], layers.LayerTypeIPv4, gopacket.DecodeOptions{Lazy: true})
			ip, ok := p.NetworkLayer().(*layers.IPv4)
			if !ok {
				return // options that gopacket does not like
			}
			src, _ := netip.AddrFromSlice(ip.SrcIP)
			dst, _ := netip.AddrFromSlice(ip.DstIP)
			if src != flow.Src || dst != flow.Dst || byte(ip.Protocol) != flow.Proto || ip.FragOffset != 0 != flow.Frag {
				t.Fatalf("%+v, but gopacket says %v > %v protocol %v offset %d", flow, src, dst, ip.Protocol, ip.FragOffset)
			}
			return
		}
		p := gopacket.NewPacket(pkt[:n], layers.LayerTypeIPv6, gopacket.DecodeOptions{Lazy: true})
		if ip, ok := p.NetworkLayer().(*layers.IPv6); ok {
			src, _ := netip.AddrFromSlice(ip.SrcIP)
			dst, _ := netip.AddrFromSlice(ip.DstIP)
			if src != flow.Src || dst != flow.Dst {
				t.Fatalf("%+v, but gopacket says %v > %v", flow, src, dst)
			}
		}
	})
}

func TestParseFlowAllocs(t *testing.T) {
	good, bad := ipv6(17, portsBody, hopByHop, destOptions), ipv4(6, 0, nil, nil)
	var f sa.Flow
	if n := testing.AllocsPerRun(100, func() {
		parseFlow(good, &f)
		parseFlow(bad, &f)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkParseFlow(b *testing.B) {
	body := make([]byte, 1380)
	for _, c := range []struct {
		name string
		pkt  []byte
	}{
		{"v4", ipv4(6, 0, nil, body)},
		{"v6", ipv6(6, body)},
		{"v6-extensions", ipv6(6, body, hopByHop, destOptions)},
	} {
		b.Run(c.name, func(b *testing.B) {
			var f sa.Flow
			for b.Loop() {
				parseFlow(c.pkt, &f)
			}
			reportPackets(b, 1, len(c.pkt))
		})
	}
}
