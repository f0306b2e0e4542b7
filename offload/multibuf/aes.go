package multibuf

import (
	"encoding/binary"
	"math/bits"
)

// aesScheduleLen is the room for the round keys of the longest key.
const aesScheduleLen = 15 * 16

// aesRounds is the number of rounds for a key of n bytes (FIPS 197 section 5).
func aesRounds(n int) int { return n/4 + 6 }

// expandAES writes the round keys of a key to enc, in the order and byte order of the AES instructions (FIPS 197 section
// 5.2). It uses no tables: time and addresses do not depend on the key.
func expandAES(enc, key []byte) {
	nk, total := len(key)/4, 4*(aesRounds(len(key))+1)
	copy(enc, key)
	rcon := uint32(1)
	for i := nk; i < total; i++ {
		w := binary.LittleEndian.Uint32(enc[4*i-4:])
		switch {
		case i%nk == 0:
			w = subBytes(bits.RotateLeft32(w, -8)) ^ rcon
			rcon = double(rcon)
		case nk > 6 && i%nk == 4:
			w = subBytes(w)
		}
		binary.LittleEndian.PutUint32(enc[4*i:], w^binary.LittleEndian.Uint32(enc[4*(i-nk):]))
	}
}

// invertAES writes the round keys for the equivalent inverse cipher (FIPS 197 section 5.3.5): in reverse, all but the
// outermost through InvMixColumns.
func invertAES(dec, enc []byte, rounds int) {
	for r := range rounds + 1 {
		to, from := dec[16*r:16*r+16], enc[16*(rounds-r):]
		copy(to, from)
		if r == 0 || r == rounds {
			continue
		}
		for c := 0; c < 16; c += 4 {
			w := binary.LittleEndian.Uint32(to[c:])
			w2 := double(w)
			w4 := double(w2)
			w8 := double(w4)
			w9, w11, w13, w14 := w8^w, w8^w2^w, w8^w4^w, w8^w4^w2
			w = w14 ^ bits.RotateLeft32(w11, -8) ^ bits.RotateLeft32(w13, -16) ^ bits.RotateLeft32(w9, -24)
			binary.LittleEndian.PutUint32(to[c:], w)
		}
	}
}

// double multiplies each of four bytes by x in AES's field.
func double(w uint32) uint32 {
	high := w >> 7 & 0x01010101
	return w<<1&0xfefefefe ^ high*0x1b
}

// multiply multiplies byte by byte in AES's field.
func multiply(a, b uint32) uint32 {
	var product uint32
	for bit := 7; bit >= 0; bit-- {
		product = double(product) ^ a&(b>>bit&0x01010101*0xff)
	}
	return product
}

// subBytes is AES's S-box on four bytes: the inverse, which is the 254th power, then the affine map.
func subBytes(w uint32) uint32 {
	power := func(w uint32, squarings int) uint32 {
		for range squarings {
			w = multiply(w, w)
		}
		return w
	}
	w2 := multiply(w, w)
	w3 := multiply(w2, w)
	w15 := multiply(power(w3, 2), w3)
	w14 := multiply(power(w3, 2), w2)
	inverse := multiply(power(w15, 4), w14) // 15·16 + 14 = 254
	turn := func(w uint32, n int) uint32 {  // each byte to the left
		low := uint32(0xff>>n) * 0x01010101
		return w&low<<n | w>>(8-n)&(0xff>>(8-n)*0x01010101)
	}
	return inverse ^ turn(inverse, 1) ^ turn(inverse, 2) ^ turn(inverse, 3) ^ turn(inverse, 4) ^ 0x63636363
}
