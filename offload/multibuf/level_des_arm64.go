package multibuf

import "encoding/binary"

// desRows is the rows of keys per DES, as the kernels take them: to one half before the first round, in each of the sixteen
// rounds, and to the other half after the last. A row is eight bytes, one for each S-box's index; in a table, each is a
// column of a lane each.
const desRows = 18

const desLanesNEON = 16

// desNEON is 3DES with the S-boxes in registers. Its costs are estimates, as the others are.
var desNEON = desKernel{
	lanes:     desLanesNEON,
	size:      3 * desRows * 8,
	table:     3 * desRows * 8 * desLanesNEON,
	cost:      2700,
	single:    900,
	expand:    expandDESNEON,
	put:       putDESNEON,
	encShared: des3EncryptShared,
	decShared: des3DecryptShared,
	encMixed:  des3EncryptMixed,
	decMixed:  des3DecryptMixed,
}

// expandDESNEON makes the schedule of a 3DES key, which is three DES keys used in turn to encrypt, decrypt and encrypt
// (RFC 2451 section 2.3), or the other way round. The keys stay in the halves: what a round adds to one is the key for its
// next use as indices, and the one that it was last used with, which that takes off again.
func expandDESNEON(schedule, key []byte, decrypt bool) {
	var use [desRows][8]byte // the rounds' keys, after two rows of nothing
	for pass := range 3 {
		part := pass
		if decrypt {
			part = 2 - pass
		}
		bits := binary.BigEndian.Uint64(key[8*part:])
		for round := range 16 {
			from := &desKeyBits[round]
			if (pass == 1) != decrypt {
				from = &desKeyBits[15-round]
			}
			for box := range from {
				k := byte(0)
				for i, bit := range from[box] {
					k |= byte(bits>>bit&1) << i
				}
				use[2+round][box] = k
			}
		}
		for row := range desRows {
			for box := range 8 {
				k := use[row][box]
				if row+2 < desRows {
					k ^= use[row+2][box]
				}
				schedule[(pass*desRows+row)*8+box] = k
			}
		}
	}
	clear(use[:])
}

// putDESNEON writes a schedule into lanes' columns: the kernels have the lanes with even numbers first.
func putDESNEON(table []byte, lanes []uint8, schedule []byte) {
	for _, lane := range lanes {
		column := int(lane/2 + lane%2*(desLanesNEON/2))
		for i, k := range schedule[:3*desRows*8] {
			table[desLanesNEON*i+column] = k
		}
	}
}
