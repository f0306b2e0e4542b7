package padlock

// hardKeys is what the unit reads for a session: both control words and the key, each at a multiple of 16.
type hardKeys struct {
	word      [16]byte // for data at multiples of 16
	wordAlign [16]byte // for any other address, where the unit takes it
	key       [256]byte
}

// Fields of the control word, of which all but the first 12 bits are 0.
const (
	wordAlign   = 1 << 5  // the data may lie at any address
	wordKeygen  = 1 << 7  // the key is a whole schedule
	wordDecrypt = 1 << 9  // the other way round
	wordSize    = 1 << 10 // times 0, 1, 2: a key of 128, 192, 256 bits
)

// set fills in everything for a key of 16, 24 or 32 bytes.
func (h *hardKeys) set(key []byte, decrypt bool) {
	rounds := len(key)/4 + 6
	word := uint16(rounds) | uint16(len(key)-16)/8*wordSize
	if decrypt {
		word |= wordDecrypt
	}
	if len(key) == 16 {
		copy(h.key[:], key)
	} else {
		word |= wordKeygen
		expand(&h.key, key, rounds)
		if decrypt {
			invert(&h.key, rounds)
		}
	}
	h.word[0], h.word[1] = byte(word), byte(word>>8)
	word |= wordAlign
	h.wordAlign[0], h.wordAlign[1] = byte(word), byte(word>>8)
}

// expand is the key expansion of FIPS 197 section 5.2. It looks nothing up by secret bytes: it is run once per session, and
// the processors at hand have no other use of a table.
func expand(w *[256]byte, key []byte, rounds int) {
	copy(w[:], key)
	nk := len(key)
	rcon := byte(1)
	for i := nk; i < 16*(rounds+1); i += 4 {
		t := [4]byte(w[i-4 : i])
		switch {
		case i%nk == 0:
			t = [4]byte{sub(t[1]) ^ rcon, sub(t[2]), sub(t[3]), sub(t[0])}
			rcon = double(rcon)
		case nk == 32 && i%nk == 16:
			t = [4]byte{sub(t[0]), sub(t[1]), sub(t[2]), sub(t[3])}
		}
		for k := range t {
			w[i+k] = w[i-nk+k] ^ t[k]
		}
	}
}

// invert turns a schedule into that of the equivalent inverse cipher (FIPS 197 section 5.3.5): the round keys the other way
// round, all but the outermost through InvMixColumns.
func invert(w *[256]byte, rounds int) {
	for i, j := 0, 16*rounds; i < j; i, j = i+16, j-16 {
		for k := range 16 {
			w[i+k], w[j+k] = w[j+k], w[i+k]
		}
	}
	for i := 16; i < 16*rounds; i += 4 {
		a := [4]byte(w[i : i+4])
		for k := range a {
			w[i+k] = times(a[k], 14) ^ times(a[(k+1)%4], 11) ^ times(a[(k+2)%4], 13) ^ times(a[(k+3)%4], 9)
		}
	}
}

// double multiplies by x in AES's field (FIPS 197 section 4.2.1).
func double(a byte) byte { return a<<1 ^ 0x1b&-(a>>7) }

// times multiplies in AES's field.
func times(a, b byte) byte {
	var p byte
	for range 8 {
		p ^= a & -(b & 1)
		a, b = double(a), b>>1
	}
	return p
}

// sub is the S-box (FIPS 197 section 5.1.1): the inverse, which is the 254th power, and an affine map.
func sub(a byte) byte {
	inv := byte(1)
	for range 7 { // 254 = 2 + 4 + ... + 128
		a = times(a, a)
		inv = times(inv, a)
	}
	rot := func(n uint) byte { return inv<<n | inv>>(8-n) }
	return inv ^ rot(1) ^ rot(2) ^ rot(3) ^ rot(4) ^ 0x63
}

// wipe clears all of it.
func (h *hardKeys) wipe() { *h = hardKeys{} }
