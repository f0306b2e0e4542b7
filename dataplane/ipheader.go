package dataplane

import (
	"encoding/binary"
	"net/netip"

	"culvert/sa"
)

// Protocol numbers that the packet path looks into, beside protoTCP.
const (
	protoHopByHop    = 0
	protoICMP        = 1
	protoUDP         = 17
	protoDCCP        = 33
	protoRouting     = 43
	protoFragment    = 44
	protoAH          = 51
	protoICMPv6      = 58
	protoDestOptions = 60
	protoSCTP        = 132
	protoUDPLite     = 136
)

const (
	ipv4HeaderLen = 20 // without options
	ipv6HeaderLen = 40
	tcpHeaderLen  = 20 // without options
	udpHeaderLen  = 8

	// maxExtensions bounds the walk through IPv6 extension headers. RFC 8200 4.1 names seven places for them, and the
	// kernel stops at eight options of a kind; a longer chain is an attack on somebody's parser.
	maxExtensions = 8
)

// malformed is what is wrong with a packet or with the offload header that came with it. It is the error type of the
// parsers, so that a precise answer costs no allocation; compare with errors.Is or ==.
type malformed uint8

const (
	errIPVersion malformed = iota
	errIPShort
	errIPHeaderLen
	errIPLength
	errIPExtension
	errIPExtensions
	errIPFragment
	errIPPorts

	errGSOKind
	errGSOProtocol
	errGSOFragment
	errGSORouting
	errGSOHeader
	errGSOSize
	errGSOLength
	errCsumStart
	errCsumOffset

	numMalformed int = iota
)

// malformedTexts is the one table of texts.
var malformedTexts = [numMalformed]string{
	errIPVersion:    "the version is neither 4 nor 6",
	errIPShort:      "shorter than an IP header",
	errIPHeaderLen:  "the IPv4 header length is below 20 or beyond the packet",
	errIPLength:     "the IP length is beyond the buffer, or ends before it where no padding belongs",
	errIPExtension:  "an IPv6 extension header is cut short or in a place where it may not be",
	errIPExtensions: "more than 8 IPv6 extension headers",
	errIPFragment:   "a fragment that ends beyond 65535 bytes",
	errIPPorts:      "cut short before the ports, or the type and code, of the transport header",

	errGSOKind:     "offload header: a GSO type that is not one of TCP4, TCP6 and UDP_L4",
	errGSOProtocol: "offload header: the GSO type does not fit the packet's IP version or protocol",
	errGSOFragment: "offload header: a super-packet that is a fragment",
	errGSORouting:  "offload header: a super-packet with an IPv6 routing header under way, whose checksum covers another destination",
	errGSOHeader:   "offload header: the headers of the super-packet are cut short or longer than 256 bytes",
	errGSOSize:     "offload header: a GSO size of zero, or one whose segments would exceed 65535 bytes",
	errGSOLength:   "offload header: the UDP length is not that of the super-packet",
	errCsumStart:   "offload header: the checksum starts inside the IP header, at another place than the transport header, or beyond the packet",
	errCsumOffset:  "offload header: the checksum field is odd, beyond the packet, or not that of the protocol",
}

func (m malformed) Error() string { return "malformed packet: " + malformedTexts[m] }

// ipHeader is what a walk over the headers of an IP packet finds. Offsets count from the start of the packet.
type ipHeader struct {
	total     int   // length of the packet by its own account, not above that of the buffer
	transport int   // where the upper-layer header begins
	version   uint8 // 4 or 6
	proto     uint8 // the upper layer; in a later IPv6 fragment what its fragment header says, be it an extension header
	fragment  bool  // one fragment of several
	later     bool  // one that is not the first: there is no upper-layer header in it
	routing   bool  // an IPv6 routing header with segments left: the destination address is not the final one
}

// parse walks the headers of p (RFC 791 3.1; RFC 8200 4). p may be longer than the packet in it, as TFC padding makes it
// (RFC 4303 2.7); whoever does not expect that compares total with len(p). IPv6 jumbograms (RFC 2675) are refused: their
// payload length of zero leaves no room for the option that says so.
func (h *ipHeader) parse(p []byte) error {
	if len(p) < ipv4HeaderLen {
		return errIPShort
	}
	switch p[0] >> 4 {
	case 4:
		total, length := int(binary.BigEndian.Uint16(p[2:])), int(p[0]&0x0f)*4
		if total > len(p) {
			return errIPLength
		}
		if length < ipv4HeaderLen || length > total {
			return errIPHeaderLen
		}
		frag := binary.BigEndian.Uint16(p[6:])
		offset := int(frag&0x1fff) * 8
		if offset+total-length > 0xffff {
			return errIPFragment
		}
		// Field by field: a literal would be put together elsewhere and then copied, which takes longer than all the rest.
		h.total, h.transport, h.version, h.proto = total, length, 4, p[9]
		h.fragment, h.later, h.routing = frag&0x3fff != 0, offset != 0, false
		return nil
	case 6:
		if len(p) < ipv6HeaderLen {
			return errIPShort
		}
		total := ipv6HeaderLen + int(binary.BigEndian.Uint16(p[4:]))
		if total > len(p) {
			return errIPLength
		}
		h.total, h.transport, h.version, h.proto = total, ipv6HeaderLen, 6, p[6]
		h.fragment, h.later, h.routing = false, false, false
		switch p[6] {
		case protoTCP, protoUDP, protoICMPv6:
			return nil
		}
		return h.walk(p[:total])
	}
	return errIPVersion
}

// walk follows the IPv6 extension headers of p to the upper-layer header. Encrypted payload (50) is one: nothing can be
// read behind it. So are mobility (135), HIP (139) and Shim6 (140), which no header follows in practice.
func (h *ipHeader) walk(p []byte) error {
	for n := 0; ; n++ {
		var length int
		at := h.transport
		switch h.proto {
		case protoHopByHop, protoDestOptions, protoRouting, protoAH, protoFragment:
		default:
			return nil
		}
		if n == maxExtensions {
			return errIPExtensions
		}
		if len(p)-at < 8 {
			return errIPExtension
		}
		switch h.proto {
		case protoHopByHop:
			if n != 0 { // RFC 8200 4.1: only right behind the IPv6 header
				return errIPExtension
			}
			length = (int(p[at+1]) + 1) * 8
		case protoDestOptions:
			length = (int(p[at+1]) + 1) * 8
		case protoRouting:
			length = (int(p[at+1]) + 1) * 8
			h.routing = h.routing || p[at+3] != 0
		case protoAH:
			length = (int(p[at+1]) + 2) * 4 // RFC 4302 2.2
		case protoFragment:
			length = 8
			if h.fragment { // a fragment of a fragment is none of RFC 8200's
				return errIPExtension
			}
			frag := binary.BigEndian.Uint16(p[at+2:])
			offset := int(frag &^ 7)
			if offset+len(p)-at-length > 0xffff {
				return errIPFragment
			}
			// Offset zero without more to come is an atomic fragment, whole in itself (RFC 6946).
			h.fragment, h.later = frag&^6 != 0, offset != 0
		}
		if length > len(p)-at {
			return errIPExtension
		}
		h.proto, h.transport = p[at], at+length
		if h.later {
			return nil // what follows is the middle of something
		}
	}
}

// parseFlow reads what the SPD selects by from the IP packet at the start of p, and gives the packet's own length, which
// is at most len(p): behind it there may be TFC padding (RFC 4303 2.7), and a caller for whom that cannot be compares the
// two. Errors are of type malformed.
//
// Ports are those of TCP, UDP, UDP-Lite, SCTP and DCCP; ICMP and ICMPv6 have their type as SrcPort and their code as
// DstPort. The first fragment has ports like a whole packet, a later one has Frag set and none (RFC 4301 4.4.1.2, 7).
func parseFlow(p []byte, f *sa.Flow) (n int, err error) {
	var h ipHeader
	if err := h.parse(p); err != nil {
		return 0, err
	}
	if h.version == 4 {
		f.Src = netip.AddrFrom4([4]byte(p[12:16]))
		f.Dst = netip.AddrFrom4([4]byte(p[16:20]))
	} else {
		f.Src = netip.AddrFrom16([16]byte(p[8:24]))
		f.Dst = netip.AddrFrom16([16]byte(p[24:40]))
	}
	f.Proto, f.Frag = h.proto, h.later
	f.SrcPort, f.DstPort, f.HasPorts = 0, 0, false
	if h.later {
		return h.total, nil
	}
	switch h.proto {
	case protoTCP, protoUDP, protoUDPLite, protoSCTP, protoDCCP:
		if h.total-h.transport < 4 {
			return 0, errIPPorts
		}
		ports := binary.BigEndian.Uint32(p[h.transport:])
		f.SrcPort, f.DstPort, f.HasPorts = uint16(ports>>16), uint16(ports), true
	case protoICMP, protoICMPv6:
		// The other family's ICMP is an unknown protocol like any other.
		if (h.proto == protoICMP) != (h.version == 4) {
			break
		}
		if h.total-h.transport < 4 {
			return 0, errIPPorts
		}
		f.SrcPort, f.DstPort, f.HasPorts = uint16(p[h.transport]), uint16(p[h.transport+1]), true
	}
	return h.total, nil
}

// destination is where the IP packet p goes; p is at least as long as its fixed header.
func destination(p []byte) netip.Addr {
	if p[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(p[16:20]))
	}
	return netip.AddrFrom16([16]byte(p[24:40]))
}
