package dataplane

import (
	"encoding/binary"

	"culvert/offload"
)

// The IP protocol numbers that a tunnel-mode ESP trailer can name (RFC 4303 2.6).
const (
	nextHeaderIPv4  = 4
	nextHeaderIPv6  = 41
	nextHeaderDummy = 59
)

// padding is what RFC 4303 2.4 fills a packet up with: 1, 2, 3, …
var padding = func() (p [256]byte) {
	for i := range p {
		p[i] = byte(i + 1)
	}
	return
}()

// encapsulate finishes one ESP packet around an inner packet that already lies at its place: esp begins at the SPI and is
// exactly as long as the sealed packet will be; the inner packet's payload bytes (with any TFC padding, RFC 4303 2.7) lie
// behind the header. The header, the IV, the padding and the trailer are written; the engine writes the rest.
func encapsulate(esp []byte, t *offload.Transform, spi uint32, seq uint64, payload int, nextHeader byte, iv *ivSource) {
	binary.BigEndian.PutUint32(esp, spi)
	binary.BigEndian.PutUint32(esp[4:], uint32(seq))
	switch {
	case t.IVLen == 0:
	case t.AEAD:
		// A counter is the IV that RFC 4106 3.1 and RFC 7634 2 ask for: unique with the key. The sequence number is that.
		binary.BigEndian.PutUint64(esp[8:], seq)
	default:
		// RFC 3602 3: unpredictable for every packet.
		iv.read(esp[8 : 8+t.IVLen])
	}
	end := len(esp) - t.ICVLen
	pad := end - 2 - (t.HeaderLen() + payload)
	copy(esp[end-2-pad:end-2], padding[:pad])
	esp[end-2] = byte(pad)
	esp[end-1] = nextHeader
}

// unpad finds what is inside an opened ESP packet: it checks the padding, and gives the next header. ok is false when the packet
// must be dropped for cause.
func unpad(esp []byte, t *offload.Transform) (inner []byte, next byte, cause Cause, ok bool) {
	plain := esp[t.HeaderLen() : len(esp)-t.ICVLen]
	n := len(plain)
	if n < 2 {
		return nil, 0, CauseBadPad, false
	}
	pad := int(plain[n-2])
	if pad+2 > n {
		return nil, 0, CauseBadPad, false
	}
	if string(plain[n-2-pad:n-2]) != string(padding[:pad]) {
		return nil, 0, CauseBadPad, false
	}
	return plain[:n-2-pad], plain[n-1], 0, true
}

// decapsulate finds the inner packet in an opened ESP packet: it checks the padding and the next header. The result still
// holds any TFC padding behind the inner packet's own length. ok is false when the packet must be dropped for cause.
func decapsulate(esp []byte, t *offload.Transform) (inner []byte, cause Cause, ok bool) {
	inner, next, cause, ok := unpad(esp, t)
	if !ok {
		return nil, cause, false
	}
	var version byte
	switch next {
	case nextHeaderIPv4:
		version = 4
	case nextHeaderIPv6:
		version = 6
	case nextHeaderDummy:
		return nil, CauseDummy, false
	default:
		return nil, CauseBadNextHeader, false
	}
	if len(inner) == 0 || inner[0]>>4 != version {
		return nil, CauseDecapMalformed, false
	}
	return inner, 0, true
}
