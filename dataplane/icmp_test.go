package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

var (
	ptbSource4 = netip.MustParseAddr("192.0.2.254")
	ptbSource6 = netip.MustParseAddr("2001:db8::fe")
)

// judgePTB checks a message about pkt, from ptbSource4 or ptbSource6, by the reference and by gopacket.
func judgePTB(t testing.TB, msg, pkt []byte, mtu int) {
	t.Helper()
	src := ptbSource6
	if msg[0]>>4 == 4 {
		src = ptbSource4
	}
	judgePTBFrom(t, msg, pkt, mtu, src)
}

func judgePTBFrom(t testing.TB, msg, pkt []byte, mtu int, src netip.Addr) {
	t.Helper()
	if msg[0]>>4 == 4 {
		p := gopacket.NewPacket(msg, layers.LayerTypeIPv4, gopacket.Default)
		ip, _ := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		icmp, _ := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
		if ip == nil || icmp == nil || p.ErrorLayer() != nil {
			t.Fatalf("gopacket: %v", p)
		}
		if int(ip.Length) != len(msg) || refSum(msg[:20]) != 0xffff || refSum(msg[20:]) != 0xffff {
			t.Fatalf("lengths or checksums of %d bytes: %v", len(msg), p)
		}
		if ip.SrcIP.String() != src.String() || !bytes.Equal(ip.DstIP, pkt[12:16]) || ip.TTL == 0 || ip.FragOffset != 0 {
			t.Fatalf("IPv4 header: %v", p)
		}
		if icmp.TypeCode != layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4CodeFragmentationNeeded) ||
			icmp.Id != 0 || int(icmp.Seq) != mtu {
			t.Fatalf("ICMP header, for an MTU of %d: %v", mtu, p)
		}
		if want := pkt[:min(len(pkt), 576-28)]; !bytes.Equal(msg[28:], want) {
			t.Fatalf("%d bytes quoted, want %d", len(msg)-28, len(want))
		}
		return
	}
	p := gopacket.NewPacket(msg, layers.LayerTypeIPv6, gopacket.Default)
	ip, _ := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
	icmp, _ := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
	if ip == nil || icmp == nil || p.ErrorLayer() != nil {
		t.Fatalf("gopacket: %v", p)
	}
	if int(ip.Length) != len(msg)-40 || refSum(refPseudo(msg[8:24], msg[24:40], 58, len(msg)-40), msg[40:]) != 0xffff {
		t.Fatalf("lengths or checksums of %d bytes: %v", len(msg), p)
	}
	if ip.SrcIP.String() != src.String() || !bytes.Equal(ip.DstIP, pkt[8:24]) || ip.HopLimit == 0 {
		t.Fatalf("IPv6 header: %v", p)
	}
	if icmp.TypeCode != layers.CreateICMPv6TypeCode(layers.ICMPv6TypePacketTooBig, 0) || int(binary.BigEndian.Uint32(msg[44:])) != mtu {
		t.Fatalf("ICMP header, for an MTU of %d: %v", mtu, p)
	}
	if want := pkt[:min(len(pkt), 1280-48)]; !bytes.Equal(msg[48:], want) {
		t.Fatalf("%d bytes quoted, want %d", len(msg)-48, len(want))
	}
}

// Messages about packets of all sizes, up to super-packets, quote what they may and no more.
func TestPTB(t *testing.T) {
	dst := make([]byte, 1280)
	for _, n := range []int{8, 100, 527, 528, 529, 1191, 1192, 1193, 1480, 65515} {
		p4, p6 := ipv4(17, 0x4000, nil, append(bytes.Clone(portsBody), fill(n-8, 1)...)), ipv6(17, fill(n, 1))
		if m := ptb(dst, p4, 1400, ptbSource4); m == 0 {
			t.Errorf("none about %d bytes of IPv4", len(p4))
		} else {
			judgePTB(t, dst[:m], p4, 1400)
		}
		if m := ptb(dst, p6, 1400, ptbSource6); m == 0 {
			t.Errorf("none about %d bytes of IPv6", len(p6))
		} else {
			judgePTB(t, dst[:m], p6, 1400)
		}
	}
	// An odd length, an MTU below the minimum of the family, one beyond 16 bits.
	for _, c := range []struct{ mtu, v4, v6 int }{{0, 68, 1280}, {-1, 68, 1280}, {67, 68, 1280}, {576, 576, 1280}, {9000, 9000, 9000}, {70000, 65535, 70000}} {
		p4, p6 := ipv4(6, 0x4000, make([]byte, 4), fill(101, 2)), ipv6(6, fill(101, 2), hopByHop, fragment(0, true))
		judgePTB(t, dst[:ptb(dst, p4, c.mtu, ptbSource4)], p4, c.v4)
		judgePTB(t, dst[:ptb(dst, p6, c.mtu, ptbSource6)], p6, c.v6)
	}
}

// withAddresses gives the packet with other addresses.
func withAddresses(p []byte, src, dst string) []byte {
	p = bytes.Clone(p)
	s, d := netip.MustParseAddr(src).AsSlice(), netip.MustParseAddr(dst).AsSlice()
	if p[0]>>4 == 4 {
		copy(p[12:], s)
		copy(p[16:], d)
	} else {
		copy(p[8:], s)
		copy(p[24:], d)
	}
	return p
}

// RFC 1122 3.2.2, RFC 1812 4.3.2.7, RFC 4443 2.4 e: what is never answered, and what lies close to it and is.
func TestPTBNever(t *testing.T) {
	v4, v6 := ipv4(17, 0x4000, nil, fill(2000, 1)), ipv6(17, fill(2000, 1))
	icmp4 := func(kind byte) []byte { return ipv4(1, 0x4000, nil, append([]byte{kind}, make([]byte, 1999)...)) }
	icmp6 := func(kind byte, exts ...ext) []byte {
		return ipv6(58, append([]byte{kind}, make([]byte, 1999)...), exts...)
	}
	type testCase struct {
		name   string
		pkt    []byte
		src    netip.Addr
		answer bool
	}
	cases := []testCase{
		{"v4", v4, ptbSource4, true},
		{"v4, first fragment", ipv4(17, 0x2000, nil, fill(2000, 1)), ptbSource4, true},
		{"v4, later fragment", ipv4(17, 0x2001, nil, fill(2000, 1)), ptbSource4, false},
		{"v4, last fragment", ipv4(17, 0x0001, nil, fill(2000, 1)), ptbSource4, false},
		{"v4, to multicast", withAddresses(v4, "192.0.2.1", "224.0.0.5"), ptbSource4, false},
		{"v4, to multicast, the last", withAddresses(v4, "192.0.2.1", "239.255.255.255"), ptbSource4, false},
		{"v4, to broadcast", withAddresses(v4, "192.0.2.1", "255.255.255.255"), ptbSource4, false},
		{"v4, to class E", withAddresses(v4, "192.0.2.1", "240.0.0.1"), ptbSource4, false},
		{"v4, below multicast", withAddresses(v4, "223.255.255.255", "192.0.2.1"), ptbSource4, true},
		{"v4, from multicast", withAddresses(v4, "224.0.0.1", "192.0.2.1"), ptbSource4, false},
		{"v4, from broadcast", withAddresses(v4, "255.255.255.255", "192.0.2.1"), ptbSource4, false},
		{"v4, from nobody", withAddresses(v4, "0.0.0.0", "192.0.2.1"), ptbSource4, false},
		{"v4, from loopback", withAddresses(v4, "127.0.0.1", "192.0.2.1"), ptbSource4, false},
		{"v4, about a cut ICMP", ipv4(1, 0x4000, nil, nil), ptbSource4, false},
		{"v4, malformed", v4[:100], ptbSource4, false},
		{"v4, ICMPv6 in it is an unknown protocol", ipv4(58, 0x4000, nil, fill(2000, 1)), ptbSource4, true},
		{"v4, UDP that begins like an ICMP error", ipv4(17, 0x4000, nil, append([]byte{3, 4, 0, 0}, make([]byte, 1996)...)), ptbSource4, true},
		{"v6, UDP that begins like an ICMP error", ipv6(17, append([]byte{1, 0, 0, 0}, make([]byte, 1996)...)), ptbSource6, true},
		{"v6, ICMPv4 in it is an unknown protocol", ipv6(1, append([]byte{3, 4, 0, 0}, make([]byte, 1996)...)), ptbSource6, true},
		{"v4, source of the other family", v4, ptbSource6, false},
		{"v4, no source", v4, netip.Addr{}, false},
		{"v6", v6, ptbSource6, true},
		{"v6, first fragment", ipv6(17, fill(2000, 1), fragment(0, true)), ptbSource6, true},
		{"v6, later fragment", ipv6(17, fill(2000, 1), fragment(8, true)), ptbSource6, false},
		{"v6, to multicast", withAddresses(v6, "2001:db8::1", "ff02::1"), ptbSource6, false},
		{"v6, to nobody", withAddresses(v6, "2001:db8::1", "::"), ptbSource6, false},
		{"v6, from multicast", withAddresses(v6, "ff05::1", "2001:db8::1"), ptbSource6, false},
		{"v6, from nobody", withAddresses(v6, "::", "2001:db8::1"), ptbSource6, false},
		{"v6, from loopback", withAddresses(v6, "::1", "2001:db8::1"), ptbSource6, false},
		{"v6, from a link-local address", withAddresses(v6, "fe80::1", "2001:db8::1"), ptbSource6, true},
		{"v6, about a cut ICMP", ipv6(58, nil), ptbSource6, false},
		{"v6, error behind options", icmp6(1, hopByHop, destOptions), ptbSource6, false},
		{"v6, echo behind options", icmp6(128, hopByHop, destOptions), ptbSource6, true},
		{"v6, source of the other family", v6, ptbSource4, false},
		{"v6, mapped source", v6, netip.AddrFrom16(ptbSource4.As16()), false},
		{"nothing", nil, ptbSource4, false},
	}
	for kind := range 256 {
		k := byte(kind)
		error4 := k == 3 || k == 4 || k == 5 || k == 11 || k == 12
		cases = append(cases,
			testCase{fmt.Sprintf("v4, ICMP type %d", k), icmp4(k), ptbSource4, !error4},
			testCase{fmt.Sprintf("v6, ICMP type %d", k), icmp6(k), ptbSource6, k >= 128 && k != 137})
	}
	dst := make([]byte, 1280)
	for _, c := range cases {
		n := ptb(dst, c.pkt, 1400, c.src)
		if (n != 0) != c.answer {
			t.Errorf("%s: %d bytes, want an answer: %v", c.name, n, c.answer)
		} else if n != 0 {
			judgePTB(t, dst[:n], c.pkt, 1400)
		}
	}
	for _, room := range []int{0, 27, 575} {
		if n := ptb(dst[:room], v4, 1400, ptbSource4); n != 0 {
			t.Errorf("%d bytes into room for %d", n, room)
		}
	}
	if n := ptb(dst[:1279], v6, 1400, ptbSource6); n != 0 {
		t.Errorf("%d bytes into room for 1279", n)
	}
}

// What a message quotes is the packet and nothing behind it.
func TestPTBTrailing(t *testing.T) {
	p := ipv4(17, 0x4000, nil, portsBody)
	dst := make([]byte, 1280)
	n := ptb(dst, append(bytes.Clone(p), "secret"...), 1400, ptbSource4)
	judgePTB(t, dst[:n], p, 1400)
}

// Any packet gets a right message or none.
func FuzzPTB(f *testing.F) {
	f.Add(ipv4(17, 0x4000, nil, fill(600, 1)), 1400)
	f.Add(ipv4(1, 0, make([]byte, 8), portsBody), 0)
	f.Add(ipv6(58, fill(1300, 1), hopByHop, destOptions), 1280)
	f.Add(ipv6(6, portsBody, fragment(0, true)), 1<<20)
	f.Fuzz(func(t *testing.T, pkt []byte, mtu int) {
		src, least, most := ptbSource4, 68, 65535
		if len(pkt) > 0 && pkt[0]>>4 == 6 {
			src, least, most = ptbSource6, 1280, math.MaxInt32
		}
		dst := bytes.Repeat([]byte{0xa5}, 1288)
		n := ptb(dst[:1280:1280], pkt, mtu, src)
		if n == 0 {
			return
		}
		for _, b := range dst[n:] {
			if b != 0xa5 {
				t.Fatal("wrote beyond the message")
			}
		}
		var h ipHeader
		if h.parse(pkt) != nil || h.later {
			t.Fatal("about a packet that is not to be answered")
		}
		if mtu > math.MaxInt32 {
			return
		}
		judgePTB(t, dst[:n], pkt[:h.total], min(max(mtu, least), most))
	})
}

func TestPTBAllocs(t *testing.T) {
	p4, p6, dst := ipv4(17, 0x4000, nil, fill(2000, 1)), ipv6(17, fill(2000, 1)), make([]byte, 1280)
	if n := testing.AllocsPerRun(100, func() {
		ptb(dst, p4, 1400, ptbSource4)
		ptb(dst, p6, 1400, ptbSource6)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPTB(b *testing.B) {
	dst := make([]byte, 1280)
	for _, c := range []struct {
		name string
		pkt  []byte
		src  netip.Addr
	}{{"v4", ipv4(17, 0x4000, nil, fill(1480, 1)), ptbSource4}, {"v6", ipv6(17, fill(1460, 1)), ptbSource6}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				ptb(dst, c.pkt, 1400, c.src)
			}
			reportPackets(b, 1, len(c.pkt))
		})
	}
}
