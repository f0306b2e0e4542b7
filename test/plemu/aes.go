package plemu

// AES with tables, a column at a time, over a schedule of round keys in the byte order of FIPS 197; the decrypting one is that
// of the equivalent inverse cipher. Nothing here is secret.

var sbox, inverse = makeBoxes()

// makeBoxes walks through the field with a generator and its inverse side by side.
func makeBoxes() (s, inv [256]byte) {
	p, q := byte(1), byte(1)
	for {
		p ^= p<<1 ^ p>>7*0x1b // times 3
		q ^= q << 1           // divided by 3
		q ^= q << 2
		q ^= q << 4
		q ^= q >> 7 * 0x09
		x := q ^ (q<<1 | q>>7) ^ (q<<2 | q>>6) ^ (q<<3 | q>>5) ^ (q<<4 | q>>4)
		s[p] = x ^ 0x63
		if p == 1 {
			break
		}
	}
	s[0] = 0x63
	for i, x := range s {
		inv[x] = byte(i)
	}
	return s, inv
}

// product multiplies in the field, by the small numbers of the MixColumns matrices.
func product(a, by byte) byte {
	var sum byte
	for ; by != 0; by >>= 1 {
		if by&1 != 0 {
			sum ^= a
		}
		a = a<<1 ^ a>>7*0x1b
	}
	return sum
}

var products = func() (t [16][256]byte) {
	for by := range t {
		for a := range t[by] {
			t[by][a] = product(byte(a), byte(by))
		}
	}
	return t
}()

// cipherBlock passes one block through all rounds. The schedule has one round key more than there are rounds.
func cipherBlock(block *[16]byte, schedule []byte, rounds int, decrypt bool) {
	box, shift, mix := &sbox, 1, [4]int{2, 3, 1, 1}
	if decrypt {
		box, shift, mix = &inverse, 3, [4]int{14, 11, 13, 9}
	}
	for i := range block {
		block[i] ^= schedule[i]
	}
	for r := 1; r <= rounds; r++ {
		var t [16]byte
		for col := range 4 {
			for row := range 4 {
				t[4*col+row] = box[block[4*((col+shift*row)%4)+row]]
			}
		}
		key := schedule[16*r:]
		for i := range t {
			v := t[i]
			if r < rounds {
				col, row := i&^3, i&3
				v = 0
				for k := range 4 {
					v ^= products[mix[k]][t[col+(row+k)%4]]
				}
			}
			block[i] = v ^ key[i]
		}
	}
}
