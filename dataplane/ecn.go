package dataplane

import (
	"encoding/binary"

	"culvert/sa"
)

// The ECN field: the low two bits of the TOS byte or traffic class (RFC 3168 5).
const (
	notECT  = 0
	ect1    = 1
	ect0    = 2
	ce      = 3
	ecnMask = 3
)

// ecnOnExit is RFC 6040 figure 4: by the inner and the outer field as they arrive, the field with which the packet goes on.
var ecnOnExit = [4][4]uint8{
	notECT: {notECT: notECT, ect0: notECT, ect1: notECT, ce: ecnDrop},
	ect0:   {notECT: ect0, ect0: ect0, ect1: ect1, ce: ce},
	ect1:   {notECT: ect1, ect0: ect1, ect1: ect1, ce: ce},
	ce:     {notECT: ce, ect0: ce, ect1: ce, ce: ce},
}

// ecnDrop in ecnOnExit: the sender could not understand that it is to slow down, so the packet is lost instead.
const ecnDrop = 0xff

// ecnDecap gives the inner TOS byte or traffic class with which a decapsulated packet goes on, from the outer and the
// inner one as they arrived (RFC 6040 4.2, figure 4). drop says that congestion was marked on a packet that cannot carry
// the mark. The DSCP stays the inner one.
func ecnDecap(outer, inner uint8) (newInner uint8, drop bool) {
	field := ecnOnExit[inner&ecnMask][outer&ecnMask]
	if field == ecnDrop {
		return inner, true
	}
	return inner&^ecnMask | field, false
}

// outerTOS gives the TOS byte or traffic class of the outer header for an inner packet that has inner: the DSCP copied or
// set as the SA says (RFC 4301 5.1.2, RFC 2983), the ECN field copied in RFC 6040's normal mode, or zero in its
// compatibility mode where the SA has no ECN (4.1, 4.3), since the far end might not look at it.
func outerTOS(p *sa.Params, inner uint8) uint8 {
	tos := p.DSCP.Encap(inner>>2) << 2
	if p.ECN {
		tos |= inner & ecnMask
	}
	return tos
}

// innerTOS gives the TOS byte or traffic class with which a decapsulated packet goes on, by the rules of its SA: the DSCP
// kept, or taken from the outer header where the tunnel is uniform (RFC 2983 3.2), and the ECN field of ecnDecap. Where the
// SA has no ECN its outer headers carry none, so a mark on one is not from this tunnel's path and is ignored.
func innerTOS(p *sa.Params, outer, inner uint8) (tos uint8, drop bool) {
	if p.ECN {
		if inner, drop = ecnDecap(outer, inner); drop {
			return inner, true
		}
	}
	return p.DSCP.Decap(outer>>2, inner>>2)<<2 | inner&ecnMask, false
}

// trafficClass gives the TOS byte or traffic class of the IP packet p, which is at least as long as its fixed header.
func trafficClass(p []byte) uint8 {
	if p[0]>>4 == 4 {
		return p[1]
	}
	return p[0]<<4 | p[1]>>4
}

// setTrafficClass sets the TOS byte or traffic class of the IP packet p and, in IPv4, keeps the header checksum right. A
// checksum that was wrong stays wrong.
func setTrafficClass(p []byte, tos uint8) {
	if p[0]>>4 == 4 {
		old := binary.BigEndian.Uint16(p)
		p[1] = tos
		checksumUpdate(p[10:12], old, binary.BigEndian.Uint16(p))
		return
	}
	p[0] = p[0]&0xf0 | tos>>4
	p[1] = p[1]&0x0f | tos<<4
}
