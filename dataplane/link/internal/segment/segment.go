package segment

import (
	"encoding/binary"

	"culvert/dataplane/link"
)

// Segmenter cuts one super-packet after another into packets of the wire: lengths, IP ID, sequence, flags and checksums are
// those of each (as Linux does it: ID counted up, FIN and PSH on the last only, CWR on the first only).
type Segmenter struct {
	pkt     []byte
	h       link.VNet
	v6      bool
	l4      int // offset of the transport header
	hdr     int // length of all headers
	seg     int // payload per segment
	off     int // payload handed out
	index   int
	started bool
}

// Reset takes a packet, which must stay as it is. One that is not a super-packet only gets its checksum finished. It fails with
// link.ErrInvalid when h does not fit the packet.
func (s *Segmenter) Reset(pkt []byte, h link.VNet) error {
	*s = Segmenter{pkt: pkt, h: h, l4: int(h.CsumStart)}
	if h.NeedsCsum && int(h.CsumStart)+int(h.CsumOffset)+2 > len(pkt) {
		return link.ErrInvalid
	}
	if h.GSO == link.GSONone {
		return nil
	}
	if len(pkt) < 20 {
		return link.ErrInvalid
	}
	s.v6 = pkt[0]>>4 == 6
	l4min := 8
	if h.GSO != link.GSOUDPL4 {
		l4min = 20
	}
	if !h.NeedsCsum || h.GSOSize == 0 || s.v6 && s.l4 < 40 || !s.v6 && (s.l4 < 20 || s.ihl() != s.l4) || s.l4+l4min > len(pkt) {
		return link.ErrInvalid
	}
	s.hdr = s.l4 + 8
	if h.GSO != link.GSOUDPL4 {
		s.hdr = s.l4 + int(pkt[s.l4+12]>>4)*4
	}
	if s.hdr < s.l4+l4min || s.hdr >= len(pkt) {
		return link.ErrInvalid
	}
	s.seg = int(h.GSOSize)
	return nil
}

// More says whether there is another packet.
func (s *Segmenter) More() bool {
	if s.seg == 0 {
		return !s.started
	}
	return s.hdr+s.off < len(s.pkt)
}

// Next appends the next packet to dst.
func (s *Segmenter) Next(dst []byte) []byte {
	s.started = true
	if s.seg == 0 {
		dst = append(dst, s.pkt...)
		if s.h.NeedsCsum {
			finishChecksum(dst, s.l4, int(s.h.CsumOffset))
		}
		return dst
	}
	payload := s.pkt[s.hdr+s.off:]
	last := len(payload) <= s.seg
	payload = payload[:min(s.seg, len(payload))]
	dst = append(append(dst, s.pkt[:s.hdr]...), payload...)
	be := binary.BigEndian
	if s.v6 {
		be.PutUint16(dst[4:], uint16(len(dst)-40))
	} else {
		be.PutUint16(dst[2:], uint16(len(dst)))
		be.PutUint16(dst[4:], be.Uint16(dst[4:])+uint16(s.index))
		dst[10], dst[11] = 0, 0
		be.PutUint16(dst[10:], ^fold(sum(0, dst[:s.ihl()])))
	}
	proto := uint32(6)
	csum := s.l4 + 16
	if s.h.GSO == link.GSOUDPL4 {
		proto, csum = 17, s.l4+6
		be.PutUint16(dst[s.l4+4:], uint16(8+len(payload)))
	} else {
		be.PutUint32(dst[s.l4+4:], be.Uint32(s.pkt[s.l4+4:])+uint32(s.off))
		if !last {
			dst[s.l4+13] &^= 0x09 // FIN, PSH
		}
		if s.index > 0 {
			dst[s.l4+13] &^= 0x80 // CWR
		}
	}
	addrs := dst[12:20]
	if s.v6 {
		addrs = dst[8:40]
	}
	be.PutUint16(dst[csum:], 0)
	c := ^fold(sum(sum(proto+uint32(len(dst)-s.l4), addrs), dst[s.l4:]))
	if c == 0 && proto == 17 {
		c = 0xffff
	}
	be.PutUint16(dst[csum:], c)
	s.off += len(payload)
	s.index++
	return dst
}

func (s *Segmenter) ihl() int { return int(s.pkt[0]&15) * 4 }

func finishChecksum(p []byte, start, offset int) {
	c := ^fold(sum(0, p[start:]))
	if c == 0 && offset == 6 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(p[start+offset:], c)
}

func sum(acc uint32, b []byte) uint32 {
	for len(b) >= 2 {
		acc += uint32(b[0])<<8 | uint32(b[1])
		b = b[2:]
	}
	if len(b) == 1 {
		acc += uint32(b[0]) << 8
	}
	return acc
}

func fold(acc uint32) uint16 {
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}
