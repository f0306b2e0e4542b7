package multibuf

import "encoding/binary"

// desRows is the rows of keys per DES, as the AVX-512 kernel takes them: to one half before the first round, in each of the
// sixteen rounds, and to the other half after the last. A row is eight bytes, one for each S-box's index; in a schedule
// each is repeated to four, in a table to a column of a lane each.
const desRows = 18

// des512Size is the bytes of a schedule, for 64 lanes and after that for 32.
const des512Size = 3*desRows*8*4 + 3*desRows*4*4

var des512 = desKernel{
	lanes:     64,
	size:      des512Size,
	table:     3 * desRows * 8 * 64,
	cost:      1280,
	single:    780,
	expand:    expandDES512,
	put:       putDES512,
	encShared: des3EncryptSharedAVX512,
	decShared: des3DecryptSharedAVX512,
	encMixed:  des3EncryptMixedAVX512,
	decMixed:  des3DecryptMixedAVX512,
	fewer:     &des512x32,
}

// des512x32 has two S-boxes' indices in a register, and so in each of a row's four double words: two bytes for the one, two
// for the other, in a table for one lane each.
var des512x32 = desKernel{
	lanes:     32,
	size:      des512Size,
	table:     3 * desRows * 4 * 64,
	cost:      940,
	single:    780,
	expand:    expandDES512,
	put:       putDES512x32,
	encShared: des3EncryptShared32AVX512,
	encMixed:  des3EncryptMixed32AVX512,
}

// expandDES512 makes the schedule of a 3DES key, which is three DES keys used in turn to encrypt, decrypt and encrypt
// (RFC 2451 section 2.3), or the other way round.
func expandDES512(schedule, key []byte, decrypt bool) {
	var round [16][8]byte
	for pass := range 3 {
		part := pass
		if decrypt {
			part = 2 - pass
		}
		bits := binary.BigEndian.Uint64(key[8*part:])
		for r := range round {
			from := &desKeyBits[r]
			if (pass == 1) != decrypt {
				from = &desKeyBits[15-r]
			}
			for box := range round[r] {
				round[r][box] = 0
				for i, bit := range from[box] {
					round[r][box] |= byte(bits>>bit&1) << i
				}
			}
		}
		for row := range desRows {
			for box := range 8 {
				var k byte
				switch {
				case row == 0:
					k = round[0][box]
				case row == desRows-1:
					k = round[15][box]
				default: // this half's next round's key; and off comes the one that it was used with
					if row > 1 {
						k = round[row-2][box]
					}
					if row < 16 {
						k ^= round[row][box]
					}
				}
				binary.LittleEndian.PutUint32(schedule[4*((pass*desRows+row)*8+box):], uint32(k)*0x01010101)
			}
		}
	}
	clear(round[:])
	pairs := schedule[3*desRows*8*4:]
	for row := range 3 * desRows {
		for i, boxes := range desPairs {
			for side, box := range boxes {
				k := schedule[4*(8*row+int(box))]
				to := pairs[4*(4*row+i)+2*side:]
				to[0], to[1] = k, k
			}
		}
	}
}

// putDES512 writes a schedule into lanes' columns.
func putDES512(table []byte, lanes []uint8, schedule []byte) {
	mask := uint64(0)
	for _, lane := range lanes {
		mask |= 1 << lane
	}
	des3PutAVX512(&table[0], &schedule[0], mask, 3*desRows*8)
}

// putDES512x32 writes a schedule into lanes' columns.
func putDES512x32(table []byte, lanes []uint8, schedule []byte) {
	mask := uint64(0)
	for _, lane := range lanes {
		mask |= 0b101 << (lane/2*4 + lane%2)
	}
	des3PutAVX512(&table[0], &schedule[3*desRows*8*4], mask, 3*desRows*4)
}
