package dataplane

import (
	"encoding/binary"
	"math/bits"
)

// The Internet checksum (RFC 1071). A running sum is a uint64 of little-endian words: the ones-complement sum does not care
// for byte order as long as the result is stored the way the words were loaded, so every load and store here is
// little-endian, whatever the machine, and nothing is swapped on the common ones. Numbers that do not come from a packet
// (lengths, protocols) enter through checksumWord, which puts them into that order.

// checksumAdd adds b to a running sum. b is taken to begin at an even offset of what is summed; an odd last byte is padded
// with a zero, so only the last piece may have an odd length. The result depends on b and sum modulo 65535 only, and is
// zero only if sum and all of b are zero.
func checksumAdd(sum uint64, b []byte) uint64 {
	if bits.UintSize == 32 {
		return checksumAdd32(sum, b)
	}
	var carry, carry2, sum2 uint64
	// Two chains of carries, since one alone is bound by its own latency; each is closed before the other begins, since
	// there is one carry flag.
	for len(b) >= 64 {
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[0:8]), 0)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[8:16]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[16:24]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[24:32]), carry)
		sum += carry // cannot wrap: a chain that begins without a carry ends in one only below 2^64-1
		sum2, carry2 = bits.Add64(sum2, binary.LittleEndian.Uint64(b[32:40]), 0)
		sum2, carry2 = bits.Add64(sum2, binary.LittleEndian.Uint64(b[40:48]), carry2)
		sum2, carry2 = bits.Add64(sum2, binary.LittleEndian.Uint64(b[48:56]), carry2)
		sum2, carry2 = bits.Add64(sum2, binary.LittleEndian.Uint64(b[56:64]), carry2)
		sum2 += carry2
		b = b[64:]
	}
	sum, carry = bits.Add64(sum, sum2, 0)
	sum += carry
	if len(b) >= 32 {
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[0:8]), 0)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[8:16]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[16:24]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[24:32]), carry)
		sum += carry
		b = b[32:]
	}
	for len(b) >= 8 {
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b), 0)
		sum += carry
		b = b[8:]
	}
	// What is left, up to seven bytes, is one more word. It is put together without a loop.
	var last uint64
	if len(b) >= 4 {
		last = uint64(binary.LittleEndian.Uint32(b))
		b = b[4:]
		switch len(b) {
		case 3:
			last |= uint64(binary.LittleEndian.Uint16(b))<<32 | uint64(b[2])<<48
		case 2:
			last |= uint64(binary.LittleEndian.Uint16(b)) << 32
		case 1:
			last |= uint64(b[0]) << 32
		}
	} else {
		switch len(b) {
		case 3:
			last = uint64(binary.LittleEndian.Uint16(b)) | uint64(b[2])<<16
		case 2:
			last = uint64(binary.LittleEndian.Uint16(b))
		case 1:
			last = uint64(b[0])
		}
	}
	sum, carry = bits.Add64(sum, last, 0)
	return sum + carry
}

// checksumAdd32 is checksumAdd for machines whose registers have 32 bits, where a 64-bit carry chain costs more than
// letting the carries of 32-bit words pile up in the upper half.
func checksumAdd32(sum uint64, b []byte) uint64 {
	acc := sum&0xffffffff + sum>>32
	// A packet has at most 65535 bytes, and 2^14 words of 32 bits on top of 33 bits stay far below 2^64; longer input
	// would too, up to 2^32 words.
	for len(b) >= 16 {
		acc += uint64(binary.LittleEndian.Uint32(b[0:4]))
		acc += uint64(binary.LittleEndian.Uint32(b[4:8]))
		acc += uint64(binary.LittleEndian.Uint32(b[8:12]))
		acc += uint64(binary.LittleEndian.Uint32(b[12:16]))
		b = b[16:]
	}
	for len(b) >= 4 {
		acc += uint64(binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	switch len(b) {
	case 3:
		acc += uint64(binary.LittleEndian.Uint16(b)) | uint64(b[2])<<16
	case 2:
		acc += uint64(binary.LittleEndian.Uint16(b))
	case 1:
		acc += uint64(b[0])
	}
	return acc
}

// checksumWord adds a 16-bit number in host order to a running sum, as it would stand in a packet.
func checksumWord(sum uint64, v uint16) uint64 {
	sum, carry := bits.Add64(sum, uint64(bits.ReverseBytes16(v)), 0)
	return sum + carry
}

// checksumLong adds a 32-bit number in host order to a running sum, as it would stand in a packet at an even offset.
func checksumLong(sum uint64, v uint32) uint64 {
	sum, carry := bits.Add64(sum, uint64(bits.ReverseBytes32(v)), 0)
	return sum + carry
}

// checksumJoin adds two running sums, each taken from an even offset.
func checksumJoin(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	return sum + carry
}

// checksumFold folds a running sum into 16 bits. It is zero only if the sum is.
func checksumFold(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff // 33 bits
	sum = sum>>32 + sum&0xffffffff // 32 bits
	sum = sum>>16 + sum&0xffff     // 17 bits
	sum = sum>>16 + sum&0xffff     // 16 bits
	return uint16(sum)
}

// checksumStore writes the checksum that makes up for sum into field, which was zero in the sum.
func checksumStore(field []byte, sum uint64) {
	binary.LittleEndian.PutUint16(field, ^checksumFold(sum))
}

// checksumStoreNonZero is checksumStore for UDP, where a checksum that comes out as zero is sent as its other
// representation, since zero says that there is none (RFC 768; RFC 8200 8.1). It suits TCP just as well.
func checksumStoreNonZero(field []byte, sum uint64) {
	c := ^checksumFold(sum)
	if c == 0 {
		c = 0xffff
	}
	binary.LittleEndian.PutUint16(field, c)
}

// checksumAddressesIPv4 and checksumAddressesIPv6 give the sum of the two addresses of an IP header: the part of the
// pseudo header (RFC 9293 3.1, RFC 8200 8.1) that is the same for all segments of a flow. ip is at least as long as the
// fixed header.
func checksumAddressesIPv4(ip []byte) uint64 {
	_ = ip[19]
	return uint64(binary.LittleEndian.Uint32(ip[12:])) + uint64(binary.LittleEndian.Uint32(ip[16:]))
}

func checksumAddressesIPv6(ip []byte) uint64 {
	_ = ip[39]
	sum, carry := bits.Add64(binary.LittleEndian.Uint64(ip[8:]), binary.LittleEndian.Uint64(ip[16:]), 0)
	sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(ip[24:]), carry)
	sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(ip[32:]), carry)
	return sum + carry
}

// checksumPseudo gives the sum of a whole pseudo header for n bytes of protocol proto inside an IP packet of either
// version. With an IPv6 routing header that still has a way to go it is not the right one (RFC 8200 8.1: the final
// destination counts); callers leave such packets alone.
func checksumPseudo(ip []byte, proto uint8, n int) uint64 {
	var sum uint64
	if ip[0]>>4 == 4 {
		sum = checksumAddressesIPv4(ip)
	} else {
		sum = checksumAddressesIPv6(ip)
	}
	// Protocol and length are 32-bit fields in the one and 8 and 16 bits in the other, which is the same sum.
	return checksumLong(checksumWord(sum, uint16(proto)), uint32(n))
}

// checksumUpdate changes the checksum in field for a 16-bit word of what it covers that went from old to new, both in host
// order, without another pass over the data: equation 3 of RFC 1624, which unlike RFC 1141 never yields the wrong zero.
func checksumUpdate(field []byte, old, new uint16) {
	c := binary.LittleEndian.Uint16(field)
	sum := uint64(^c) + uint64(^bits.ReverseBytes16(old)) + uint64(bits.ReverseBytes16(new))
	binary.LittleEndian.PutUint16(field, ^checksumFold(sum))
}
