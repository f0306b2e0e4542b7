package multibuf

import "encoding/binary"

// The 3DES kernels below AVX-512 hold a bit of each lane's block, or key, in a row: as many bits as a register has. Row r of
// a table is the 64-bit words r·w to r·w+w-1 if a register has w of them; lane l is bit l/w of word l%w of each row.
//
// A key's rows are what the key schedule rotates (FIPS 46-3, permuted choice 1), each half twice, one after the other: so a
// rotated half is as many rows further on.
const desKeyRows = 4 * 28

// desHalves says which bits of a key, as a big-endian word, the halves have.
var desHalves = [56]uint8{
	7, 15, 23, 31, 39, 47, 55, 63, 6, 14, 22, 30, 38, 46, 54, 62, 5, 13, 21, 29, 37, 45, 53, 61, 4, 12, 20, 28,
	1, 9, 17, 25, 33, 41, 49, 57, 2, 10, 18, 26, 34, 42, 50, 58, 3, 11, 19, 27, 35, 43, 51, 59, 36, 44, 52, 60,
}

var (
	desSSE2 = desSliced(2, 10600, des3EncryptSSE2, des3DecryptSSE2)
	desAVX2 = desSliced(4, 10600, des3EncryptAVX2, des3DecryptAVX2)
)

// desSliced makes the kernel for registers of that many words.
func desSliced(words, cost int, encrypt, decrypt func(*byte, *uint64, *uintptr, int)) desKernel {
	size := 3 * desKeyRows * 8 * words
	return desKernel{
		lanes: 64 * words, size: size, table: size, cost: cost, single: 780,
		expand: func(schedule, key []byte, decrypt bool) {
			for pass := range 3 {
				part := pass
				if decrypt {
					part = 2 - pass
				}
				bits := binary.BigEndian.Uint64(key[8*part:])
				for i, bit := range desHalves {
					all := -(bits >> bit & 1) // in every lane
					row := pass*desKeyRows + i/28*56 + i%28
					for word := range words {
						binary.LittleEndian.PutUint64(schedule[8*(row*words+word):], all)
						binary.LittleEndian.PutUint64(schedule[8*((row+28)*words+word):], all)
					}
				}
			}
		},
		put: func(table []byte, lanes []uint8, schedule []byte) {
			var masks [4]uint64
			for _, lane := range lanes {
				masks[int(lane)%words] |= 1 << (int(lane) / words)
			}
			for word, mask := range masks[:words] {
				if mask == 0 {
					continue
				}
				for at := 8 * word; at < size; at += 8 * words {
					others := binary.LittleEndian.Uint64(table[at:]) &^ mask
					binary.LittleEndian.PutUint64(table[at:], others|binary.LittleEndian.Uint64(schedule[at:])&mask)
				}
			}
		},
		encShared: encrypt, decShared: decrypt, encMixed: encrypt, decMixed: decrypt,
	}
}
