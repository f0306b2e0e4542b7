package dataplane

import (
	"encoding/binary"

	"culvert/sa"
)

// Transport mode (RFC 4303 3.1.1): only what follows the IP header is inside ESP, and the header is the packet's own.
//
//	out  IP | upper layer              →  IP | ESP header | upper layer | ESP trailer
//	in   IP | ESP header | upper … |   →  IP | upper layer
//
// The header on the wire is made by the host, as a socket's is. Of the packet's own it keeps the addresses, which must be the SA's
// endpoints, the whole TOS byte or traffic class, and DF; not the TTL, the ID, nor the flow label, which are the host's there and
// as below here. What would have to stand between the IP header and ESP, an IPv4 option or an IPv6 hop-by-hop, routing or fragment
// header, cannot be sent so; destination options go behind ESP, where they are for the destination alone (3.1.1).
const rebuiltTTL = 64 // RFC 1700, and what hosts send with

// ipHeaderLenOf is the length of the IP header of a packet that transport mode carries.
func ipHeaderLenOf(version byte) int {
	if version == 4 {
		return ipv4HeaderLen
	}
	return ipv6HeaderLen
}

// transportable judges whether transport mode can carry packet p, of flow f, with an SA, and gives the number of the protocol behind
// the IP header. p has been parsed.
func transportable(params *sa.Params, p []byte, f *sa.Flow) (next byte, cause Cause, ok bool) {
	if f.Src != params.Src.WithZone("") || f.Dst != params.Dst.WithZone("") {
		return 0, CauseTransportAddress, false
	}
	if p[0]>>4 == 4 {
		switch {
		case binary.BigEndian.Uint16(p[6:])&0x3fff != 0:
			return 0, CauseTransportFragment, false // RFC 4303 3.1.1: whole datagrams only
		case p[0]&0x0f != ipv4HeaderLen/4:
			return 0, CauseTransportHeader, false
		}
		return p[9], 0, true
	}
	next = p[6]
	for at, proto := ipv6HeaderLen, next; ; {
		switch proto {
		case protoFragment:
			return 0, CauseTransportFragment, false
		case protoHopByHop, protoRouting:
			return 0, CauseTransportHeader, false
		case protoDestOptions:
			proto, at = p[at], at+(int(p[at+1])+1)*8 // whole, or it would not have been parsed
			continue
		}
		return next, 0, true
	}
}

// rebuiltLen is the memory for the packets of a burst whose IP header has to be put before them again: a burst of the usual size, or
// any single packet.
const rebuiltLen = arenaLen

// rebuild makes the packet of an opened transport-mode ESP packet in the lane's memory, which has room.
func (l *inbound) rebuild(m *inJob, p *sa.Params, esp []byte) (packet []byte, cause Cause, ok bool) {
	data, next, cause, ok := unpad(esp, p.Transform)
	if !ok {
		return nil, cause, false
	}
	base := ipHeaderLenOf(4)
	if v6 := !p.Src.Is4(); v6 {
		base = ipHeaderLenOf(6)
		switch next {
		case protoHopByHop, protoRouting, protoFragment: // these stand before ESP
			return nil, CauseBadNextHeader, false
		}
	}
	if next == nextHeaderDummy {
		return nil, CauseDummy, false
	}
	n := base + len(data)
	if n > maxHeld {
		return nil, CauseDecapMalformed, false
	}
	packet = l.rebuilt[l.used : l.used+n : l.used+n]
	copy(packet[base:], data)
	if base == ipv4HeaderLen {
		h := packet[:ipv4HeaderLen]
		clear(h)
		h[0], h[1], h[6], h[8], h[9] = 0x45, m.msg.TOS, 0x40, rebuiltTTL, next
		binary.BigEndian.PutUint16(h[2:], uint16(n))
		src, dst := p.Src.As4(), p.Dst.As4()
		copy(h[12:], src[:])
		copy(h[16:], dst[:])
		checksumStore(h[10:12], checksumAdd(0, h))
	} else {
		h := packet[:ipv6HeaderLen]
		clear(h[:4])
		h[0] = 0x60
		setTrafficClass(h, m.msg.TOS)
		binary.BigEndian.PutUint16(h[4:], uint16(len(data)))
		h[6], h[7] = next, rebuiltTTL
		src, dst := p.Src.As16(), p.Dst.As16()
		copy(h[8:], src[:])
		copy(h[24:], dst[:])
	}
	// A NAT on the way has changed an address that the checksum covers, which it could not see (RFC 3948 3.1.2). The ICV has
	// vouched for what is summed anew.
	if p.Encap == sa.EncapUDP && !renewChecksum(packet) {
		return nil, CauseDecapMalformed, false
	}
	l.used += n
	return packet, 0, true
}

// renewChecksum makes the checksum right that covers the IP addresses, if the packet has one. It reports false for a packet that is
// too short for it, or otherwise malformed.
func renewChecksum(packet []byte) bool {
	var h ipHeader
	if h.parse(packet) != nil || h.total != len(packet) {
		return false
	}
	tr := packet[h.transport:]
	var field int
	switch {
	case h.proto == protoTCP:
		field = 16
	case h.proto == protoUDP:
		field = 6
	case h.proto == protoICMPv6 && h.version == 6:
		field = 2
	default:
		return true
	}
	if len(tr) < field+2 || h.proto == protoTCP && len(tr) < tcpHeaderLen || h.proto == protoUDP && len(tr) < udpHeaderLen {
		return false
	}
	f := tr[field : field+2]
	if h.proto == protoUDP && h.version == 4 && f[0] == 0 && f[1] == 0 {
		return true // it has none (RFC 768)
	}
	clear(f)
	checksumStoreNonZero(f, checksumAdd(checksumPseudo(packet, h.proto, len(tr)), tr))
	return true
}
