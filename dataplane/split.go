package dataplane

import (
	"encoding/binary"

	"culvert/dataplane/link"
)

// maxSplitHeader is the longest IP and TCP header that a super-packet may have: 120 bytes in IPv4, and room for IPv6
// extension headers.
const maxSplitHeader = 256

// The TCP flags that segmentation and merging look at (RFC 9293 3.1, RFC 3168 6.1.2).
const (
	tcpFIN = 0x01
	tcpPSH = 0x08
	tcpACK = 0x10
	tcpECE = 0x40
	tcpCWR = 0x80
)

// splitter turns what an inner link hands out, a packet or a super-packet, into the packets that go on the wire, one at a
// time: it may stop after any of them and go on in a later burst. The zero value is empty. It allocates nothing.
//
// All that is the same for every segment, the header with the fields that change set to zero and its share of both
// checksums, is prepared once; a segment then costs one copy and one pass of the checksum over its payload.
type splitter struct {
	pkt  []byte
	off  int // in pkt, where the payload of the next packet begins
	left int

	header  int // bytes of IP and transport header; 0: pkt is one packet and goes as it is, but for its checksum
	segment int // payload bytes of each packet, but the last
	size    int
	version uint8
	udp     bool

	// Of a single packet with a partial checksum: where it starts and where its field is. The field is 0 if there is none.
	csumStart, csumField int

	// Of a super-packet. The sums are folded, so that a few words more cannot overflow.
	transport int
	ipSum     uint64 // IPv4 header without length, ID and checksum
	sum       uint64 // pseudo header and transport header without lengths, sequence number, flags and checksum
	id        uint16
	seq       uint32
	flags     uint8
	first     bool
	tmpl      [maxSplitHeader]byte
}

// Reset takes up pkt with the offload header h that came with it. pkt stays in use, unchanged, until the last packet was
// taken or Reset is called again. An error, of type malformed, says in what way packet and header contradict themselves or
// each other; the splitter is empty then.
//
// h.HdrLen is not looked at: the kernel gives wrong ones, and the headers say it themselves. A super-packet without
// NeedsCsum gets checksums all the same.
func (s *splitter) Reset(pkt []byte, h link.VNet) error {
	s.pkt, s.left = nil, 0
	if h.GSO == link.GSONone {
		return s.resetSingle(pkt, h)
	}
	return s.resetSuper(pkt, h)
}

func (s *splitter) resetSingle(pkt []byte, h link.VNet) error {
	// The headers behind the first are none of the splitter's business here.
	if len(pkt) < ipv4HeaderLen {
		return errIPShort
	}
	var total, header int
	switch pkt[0] >> 4 {
	case 4:
		total, header = int(binary.BigEndian.Uint16(pkt[2:])), int(pkt[0]&0x0f)*4
		if header < ipv4HeaderLen || header > total {
			return errIPHeaderLen
		}
	case 6:
		if len(pkt) < ipv6HeaderLen {
			return errIPShort
		}
		total, header = ipv6HeaderLen+int(binary.BigEndian.Uint16(pkt[4:])), ipv6HeaderLen
	default:
		return errIPVersion
	}
	if total != len(pkt) {
		return errIPLength
	}
	s.csumStart, s.csumField = 0, 0
	if h.NeedsCsum {
		start, field := int(h.CsumStart), int(h.CsumStart)+int(h.CsumOffset)
		if start < header || start >= len(pkt) {
			return errCsumStart
		}
		if h.CsumOffset&1 != 0 || field+2 > len(pkt) {
			return errCsumOffset
		}
		s.csumStart, s.csumField = start, field
	}
	s.pkt, s.left, s.header, s.size = pkt, 1, 0, len(pkt)
	return nil
}

func (s *splitter) resetSuper(pkt []byte, h link.VNet) error {
	var ip ipHeader
	if err := ip.parse(pkt); err != nil {
		return err
	}
	if ip.total != len(pkt) {
		return errIPLength
	}
	if ip.fragment {
		return errGSOFragment
	}
	if ip.routing {
		return errGSORouting
	}
	udp := false
	switch h.GSO {
	case link.GSOTCP4:
		if ip.version != 4 || ip.proto != protoTCP {
			return errGSOProtocol
		}
	case link.GSOTCP6:
		if ip.version != 6 || ip.proto != protoTCP {
			return errGSOProtocol
		}
	case link.GSOUDPL4:
		if ip.proto != protoUDP {
			return errGSOProtocol
		}
		udp = true
	default:
		return errGSOKind
	}
	fixed, field := tcpHeaderLen, 16
	if udp {
		fixed, field = udpHeaderLen, 6
	}
	if len(pkt)-ip.transport < fixed {
		return errGSOHeader
	}
	tr := pkt[ip.transport:]
	header := ip.transport + udpHeaderLen
	if !udp {
		length := int(tr[12]>>4) * 4
		if length < tcpHeaderLen || length > len(tr) {
			return errGSOHeader
		}
		header = ip.transport + length
	} else if int(binary.BigEndian.Uint16(tr[4:])) != len(tr) {
		return errGSOLength
	}
	if header > maxSplitHeader {
		return errGSOHeader
	}
	if h.NeedsCsum {
		if int(h.CsumStart) != ip.transport {
			return errCsumStart
		}
		if int(h.CsumOffset) != field {
			return errCsumOffset
		}
	}
	if h.GSOSize == 0 {
		return errGSOSize
	}

	payload := len(pkt) - header
	s.pkt, s.off = pkt, header
	s.header, s.segment, s.transport = header, int(h.GSOSize), ip.transport
	s.left = max(1, (payload+s.segment-1)/s.segment)
	s.size = header + min(payload, s.segment)
	s.version, s.udp, s.first = ip.version, udp, true

	t := s.tmpl[:header]
	copy(t, pkt)
	if s.version == 4 {
		s.id = binary.BigEndian.Uint16(t[4:])
		clear(t[2:6])
		clear(t[10:12])
		s.ipSum = uint64(checksumFold(checksumAdd(0, t[:ip.transport])))
		s.sum = checksumAddressesIPv4(t)
	} else {
		s.sum = checksumAddressesIPv6(t)
	}
	s.sum = checksumWord(s.sum, uint16(ip.proto))
	tr = t[ip.transport:]
	clear(tr[field : field+2])
	if udp {
		clear(tr[4:6])
	} else {
		s.seq, s.flags = binary.BigEndian.Uint32(tr[4:]), tr[13]
		clear(tr[4:8])
		tr[13] = 0
	}
	s.sum = uint64(checksumFold(checksumAdd(s.sum, tr)))
	return nil
}

// Count is how many packets are left.
func (s *splitter) Count() int { return s.left }

// Size is the length of the largest of the packets, in bytes. It stays the same until Reset.
func (s *splitter) Size() int { return s.size }

// Next writes the next packet to the start of dst, complete with its checksums, and gives its length; more says whether
// there are others. With dst too small (it never is with Size bytes), or nothing left, n is 0 and nothing changes.
func (s *splitter) Next(dst []byte) (n int, more bool) {
	if s.left == 0 {
		return 0, false
	}
	if s.header == 0 {
		n = s.nextSingle(dst)
	} else {
		n = s.nextSegment(dst)
	}
	if n == 0 {
		return 0, true
	}
	if s.left--; s.left == 0 {
		s.pkt = nil
	}
	return n, s.left > 0
}

func (s *splitter) nextSingle(dst []byte) int {
	n := len(s.pkt)
	if len(dst) < n {
		return 0
	}
	dst = dst[:n]
	copy(dst, s.pkt)
	if s.csumField != 0 {
		// The field already holds the pseudo header's sum, which so goes into the total.
		checksumStoreNonZero(dst[s.csumField:], checksumAdd(0, s.pkt[s.csumStart:]))
	}
	return n
}

func (s *splitter) nextSegment(dst []byte) int {
	payload := min(s.segment, len(s.pkt)-s.off)
	n := s.header + payload
	if len(dst) < n {
		return 0
	}
	dst = dst[:n]
	// Summed where it comes from: to read what was just written, across the bounds of the writes, would wait for them.
	data := s.pkt[s.off : s.off+payload]
	sum := checksumAdd(0, data)
	copy(dst, s.tmpl[:s.header])
	copy(dst[s.header:], data)

	if s.version == 4 {
		binary.BigEndian.PutUint16(dst[2:], uint16(n))
		binary.BigEndian.PutUint16(dst[4:], s.id)
		ipSum := checksumWord(checksumWord(s.ipSum, uint16(n)), s.id)
		checksumStore(dst[10:12], ipSum)
		s.id++
	} else {
		binary.BigEndian.PutUint16(dst[4:], uint16(n-ipv6HeaderLen))
	}

	tr := dst[s.transport:]
	length := uint16(n - s.transport)
	rest := checksumWord(s.sum, length) // in the pseudo header
	if s.udp {
		binary.BigEndian.PutUint16(tr[4:], length)
		checksumStoreNonZero(tr[6:8], checksumJoin(sum, checksumWord(rest, length)))
	} else {
		// FIN and PSH belong to the end of the data, and CWR must be seen but once (RFC 3168 6.1.2).
		flags := s.flags
		if s.left > 1 {
			flags &^= tcpFIN | tcpPSH
		}
		if !s.first {
			flags &^= tcpCWR
		}
		binary.BigEndian.PutUint32(tr[4:], s.seq)
		tr[13] = flags
		rest = checksumWord(checksumLong(rest, s.seq), uint16(flags))
		checksumStore(tr[16:18], checksumJoin(sum, rest))
		s.seq += uint32(payload)
	}
	s.off += payload
	s.first = false
	return n
}
