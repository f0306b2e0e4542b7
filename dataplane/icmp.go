package dataplane

import (
	"encoding/binary"
	"net/netip"
)

const (
	icmpHeaderLen = 8

	// A message quotes as much of the packet as fits into what every host takes: 576 bytes (RFC 1812 4.3.2.3), and the
	// minimum MTU for IPv6 (RFC 4443 3.2).
	maxPTBIPv4 = 576
	maxPTBIPv6 = minIPv6MTU

	minMTUIPv4 = 68 // RFC 791 3.2

	ptbHopLimit = 64
	// ptbTOS is precedence 6, internetwork control (RFC 1812 4.3.2.5).
	ptbTOS = 0xc0
)

// ptb builds the message that tells the sender of pkt, an IP packet or super-packet, that mtu bytes is what fits: ICMPv4
// destination unreachable, fragmentation needed (RFC 1191 4), or ICMPv6 packet too big (RFC 4443 3.2). src is the
// message's source address, of pkt's family. The message goes into dst, which takes 576 or 1280 bytes, and its length is
// returned; 0 says that there must be none (RFC 1122 3.2.2, RFC 1812 4.3.2.7, RFC 4443 2.4 e): about an ICMP error, a
// later fragment, or a packet whose source or destination is not one host. Whether DF is set, and how often messages may
// be sent, is for the caller to judge.
func ptb(dst, pkt []byte, mtu int, src netip.Addr) int {
	var h ipHeader
	if h.parse(pkt) != nil || h.later || isICMPError(pkt, &h) {
		return 0
	}
	if h.version == 4 {
		return ptbIPv4(dst, pkt[:h.total], mtu, src)
	}
	return ptbIPv6(dst, pkt[:h.total], mtu, src)
}

func ptbIPv4(dst, pkt []byte, mtu int, src netip.Addr) int {
	if !src.Is4() || !isHostIPv4([4]byte(pkt[12:16])) || !isHostIPv4([4]byte(pkt[16:20])) {
		return 0
	}
	const headers = ipv4HeaderLen + icmpHeaderLen
	n := min(headers+len(pkt), maxPTBIPv4)
	if len(dst) < n {
		return 0
	}
	dst = dst[:n]
	ip, icmp := dst[:ipv4HeaderLen], dst[ipv4HeaderLen:]
	clear(dst[:headers])
	copy(dst[headers:], pkt)

	ip[0], ip[1] = 0x45, ptbTOS
	binary.BigEndian.PutUint16(ip[2:], uint16(n))
	ip[8], ip[9] = ptbHopLimit, protoICMP
	from := src.As4()
	copy(ip[12:16], from[:])
	copy(ip[16:20], pkt[12:16])
	checksumStore(ip[10:12], checksumAdd(0, ip))

	icmp[0], icmp[1] = 3, 4
	binary.BigEndian.PutUint16(icmp[6:], uint16(min(max(mtu, minMTUIPv4), 0xffff)))
	checksumStore(icmp[2:4], checksumAdd(0, icmp))
	return n
}

func ptbIPv6(dst, pkt []byte, mtu int, src netip.Addr) int {
	if !src.Is6() || src.Is4In6() || !isHostIPv6([16]byte(pkt[8:24])) || !isHostIPv6([16]byte(pkt[24:40])) {
		return 0
	}
	const headers = ipv6HeaderLen + icmpHeaderLen
	n := min(headers+len(pkt), maxPTBIPv6)
	if len(dst) < n {
		return 0
	}
	dst = dst[:n]
	ip, icmp := dst[:ipv6HeaderLen], dst[ipv6HeaderLen:]
	clear(dst[:headers])
	copy(dst[headers:], pkt)

	ip[0] = 0x60
	binary.BigEndian.PutUint16(ip[4:], uint16(len(icmp)))
	ip[6], ip[7] = protoICMPv6, ptbHopLimit
	from := src.As16()
	copy(ip[8:24], from[:])
	copy(ip[24:40], pkt[8:24])

	icmp[0] = 2
	// Nobody need go below the minimum MTU (RFC 8201 4); a smaller figure would be ignored.
	binary.BigEndian.PutUint32(icmp[4:], uint32(max(mtu, minIPv6MTU)))
	checksumStore(icmp[2:4], checksumAdd(checksumPseudo(ip, protoICMPv6, len(icmp)), icmp))
	return n
}

// isICMPError says whether the packet is an ICMP error message or a redirect, or an ICMP message too short to tell.
func isICMPError(pkt []byte, h *ipHeader) bool {
	switch {
	case h.version == 4 && h.proto == protoICMP:
		if h.transport >= h.total {
			return true
		}
		switch pkt[h.transport] {
		case 3, 4, 5, 11, 12: // unreachable, source quench, redirect, time exceeded, parameter problem
			return true
		}
	case h.version == 6 && h.proto == protoICMPv6:
		if h.transport >= h.total {
			return true
		}
		const redirect = 137
		return pkt[h.transport] < 128 || pkt[h.transport] == redirect // RFC 4443 2.1
	}
	return false
}

// isHostIPv4 says whether a can be the address of one host: not this network, loopback, multicast, class E or broadcast.
func isHostIPv4(a [4]byte) bool { return a[0] != 0 && a[0] != 127 && a[0] < 224 }

// isHostIPv6 says whether a can be the address of one host: not unspecified, loopback or multicast.
func isHostIPv6(a [16]byte) bool {
	addr := netip.AddrFrom16(a)
	return !addr.IsUnspecified() && !addr.IsLoopback() && !addr.IsMulticast()
}
