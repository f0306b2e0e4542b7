package arm64

// DES is what kernels with lookups have to know of DES: the S-boxes as byte tables whose values are already where the next
// round's indices want them, in positions that are called colours.
type DES struct {
	SBoxes  [8][64]byte
	Sources [8][6]int // for each S-box, by colour, the S-box of the round before that gives this bit of its index
	Colours [8][6]int // the colour of each of its inputs, in the standard's order
}

// Registers of 3DES, each a byte of sixteen blocks.
const (
	looked = 0  // eight: what the S-boxes gave
	left   = 8  // eight: the left half, expanded to indices
	right  = 16 // eight: the right half
	loaded = 24 // four: an S-box; then two sums, a key, and the last mask
	masks  = 28 // four: those of colours 1 to 4
)

// bytesOf packs a table of bytes into words for DATA.
func bytesOf(table []byte) []uint64 {
	var words []uint64
	for i := 0; i < len(table); i += 8 {
		var word uint64
		for k, v := range table[i : i+8] {
			word |= uint64(v) << (8 * k)
		}
		words = append(words, word)
	}
	return words
}

// tripleDES writes four kernels of sixteen lanes. An S-box is four registers, and looked up in by one instruction, in sixteen
// blocks at once.
func tripleDES(w *writer, t DES) {
	var boxes, expand, compress []byte
	for box := range 8 {
		boxes = append(boxes, t.SBoxes[box][:]...)
		// An index has the four bits of one nibble of the half block, the last of the nibble before, and the first of the next.
		var own, before, after [16]byte
		for v := range 16 {
			for i := 1; i <= 4; i++ {
				own[v] |= byte(v>>(4-i)&1) << t.Colours[box][i]
			}
			before[v] = byte(v&1) << t.Colours[box][0]
			after[v] = byte(v>>3) << t.Colours[box][5]
		}
		expand = append(append(append(expand, own[:]...), before[:]...), after[:]...)
		// And back; the nibbles with even numbers are the high ones of their bytes.
		for index := range 64 {
			var nibble byte
			for i := 1; i <= 4; i++ {
				nibble |= byte(index>>t.Colours[box][i]&1) << (4 - i)
			}
			if box%2 == 0 {
				nibble <<= 4
			}
			compress = append(compress, nibble)
		}
	}
	for _, encrypt := range []bool{true, false} {
		for _, shared := range []bool{true, false} {
			des3(w, t, encrypt, shared)
		}
	}
	w.table("desSBoxes", 8, bytesOf(boxes))
	w.table("desExpand", 8, bytesOf(expand))
	w.table("desCompress", 8, bytesOf(compress))
}

// transposeBytes turns eight registers of two blocks each into registers of one byte of all sixteen, in the order 0, 2 and so
// on to 14, 1, 3 and so on to 15; or back. Each of the three steps is from one set of registers to the next.
func (w *writer) transposeBytes(sets [4][8]int) {
	for step, arrangement := range []string{".B16", ".H8", ".S4"} {
		from, to, distance := sets[step], sets[step+1], 1<<step
		for i := range 8 {
			if i&distance == 0 {
				a, b := v(from[i])+arrangement, v(from[i+distance])+arrangement
				w.ins("VTRN1", b, a, v(to[i])+arrangement)
				w.ins("VTRN2", b, a, v(to[i+distance])+arrangement)
			}
		}
	}
}

// transposeBits exchanges bit i of byte k of every block, the bytes being in registers, with bit k of byte i. With the order
// of desRow it is the permutation IP (FIPS 46-3), or from there its inverse.
func (w *writer) transposeBits(x [8]int) {
	const tmp, mask = loaded, loaded + 2
	w.ins("VMOVI", imm(0xcc), b(mask))
	w.ins("VMOVI", imm(0xaa), b(mask+1))
	for _, distance := range []int{4, 2, 1} {
		for i := range 8 {
			if i&distance != 0 {
				continue
			}
			low, high := x[i], x[i+distance]
			if distance == 4 {
				w.ins("VMOV", b(low), b(tmp))
				w.ins("VSLI", imm(4), b(high), b(low))
				w.ins("VSRI", imm(4), b(tmp), b(high))
				continue
			}
			m := mask + 2 - distance
			w.ins("VSHL", imm(distance), b(high), b(tmp))
			w.ins("VUSHR", imm(distance), b(low), b(tmp+1))
			w.ins("VBIT", b(m), b(tmp), b(low))
			w.ins("VBIF", b(m), b(tmp+1), b(high))
		}
	}
}

// desRow is which of the transposed bytes is row i after IP; the first four are the left half.
var desRow = [8]int{6, 4, 2, 0, 7, 5, 3, 1}

func in8(first int) (x [8]int) {
	for i := range x {
		x[i] = first + i
	}
	return x
}

// des3 is 3DES-CBC. A DES takes 18 rows of keys: to the right half before the first round, in each of the sixteen rounds,
// and to the left half after the last. R0 has the keys' address, R1 the chaining values', R2 the addresses', R3 the number
// of blocks.
func des3(w *writer, t DES, encrypt, shared bool) {
	name, comment, frame := "des3Decrypt", "Decrypts", 128
	if encrypt {
		name, comment, frame = "des3Encrypt", "Encrypts", 0
	}
	if shared {
		name, comment = name+"Shared", comment+" 16 lanes with one key."
	} else {
		name, comment = name+"Mixed", comment+" 16 lanes with a key each."
	}
	w.function(name, comment, "keys *byte, chain *uint64, ptrs *uintptr, blocks int", frame)
	const table, keys, offset, passes, input, even, odd = 4, 6, 7, 8, 9, 10, 11 // scalar registers
	if !encrypt {
		w.ins("MOVD", "$input-128(SP)", r(input))
	}
	addresses := func(p int) {
		w.ins("LDP", at(2, 16*p), "("+r(even)+", "+r(odd)+")")
		w.ins("ADD", r(offset), r(even), r(even))
		w.ins("ADD", r(offset), r(odd), r(odd))
	}
	w.ins("MOVD", imm(0), r(offset))
	w.label("block")
	for p := range 8 {
		addresses(p)
		w.ins("FMOVD", "("+r(even)+")", q(p))
		w.ins("VLD1", "("+r(odd)+")", v(p)+".D[1]")
		if encrypt {
			w.ins("FMOVQ", at(1, 16*p), q(8+p))
			w.ins("VEOR", b(8+p), b(p), b(p))
		} else {
			w.ins("FMOVQ", q(p), at(input, 16*p)) // the next chaining value
		}
	}
	w.transposeBytes([4][8]int{in8(0), in8(8), in8(16), in8(0)})
	w.transposeBits(in8(0))
	const nibbles, fifteen = 24, 16
	w.ins("VMOVI", imm(15), b(fifteen))
	for half, to := range []int{left, right} {
		for i := range 4 {
			row := desRow[4*half+i]
			w.ins("VUSHR", imm(4), b(row), b(nibbles+2*i))
			w.ins("VAND", b(fifteen), b(row), b(nibbles+2*i+1))
		}
		parts := 17 // for the left half; for the right one, nothing of looked is needed any more
		if half == 1 {
			parts = looked
		}
		w.ins("MOVD", "$desExpand<>(SB)", r(table))
		for box := range 8 {
			w.ins("VLD1.P", at(table, 48), list(parts, 3, b))
			for i, from := range []int{box, (box + 7) % 8, (box + 1) % 8} {
				w.ins("VTBL", b(nibbles+from), list(parts+i, 1, b), b(parts+i))
			}
			w.ins("VEOR", b(parts), b(parts+1), b(parts+1))
			w.ins("VEOR", b(parts+1), b(parts+2), b(to+box))
		}
	}
	for colour := 1; colour <= 4; colour++ {
		w.ins("VMOVI", imm(1<<colour), b(masks+colour-1))
	}
	const sum, key, lastMask = loaded, loaded + 2, loaded + 3
	loadKey := func() {
		if shared {
			w.ins("VLD1R.P", at(keys, 1), list(key, 1, b))
		} else {
			w.ins("VLD1.P", at(keys, 16), list(key, 1, b))
		}
	}
	w.ins("MOVD", r(0), r(keys))
	w.ins("MOVD", imm(3), r(passes))
	w.label("des")
	for box := range 8 {
		loadKey()
		w.ins("VEOR", b(key), b(right+box), b(right+box))
	}
	index, target := right, left
	for round := range 16 {
		w.comment("Round %d", round+1)
		w.ins("MOVD", "$desSBoxes<>(SB)", r(table))
		for box := range 8 {
			w.ins("VLD1.P", at(table, 64), list(loaded, 4, b))
			w.ins("VTBL", b(index+box), list(loaded, 4, b), b(looked+box))
		}
		w.ins("VMOVI", imm(1<<5), b(lastMask))
		for box := range 8 {
			to := sum + box%2
			loadKey()
			w.ins("VMOV", b(looked+t.Sources[box][0]), b(to))
			w.ins("VEOR", b(key), b(target+box), b(target+box))
			for colour := 1; colour <= 5; colour++ {
				mask := masks + colour - 1
				if colour == 5 {
					mask = lastMask
				}
				w.ins("VBIT", b(mask), b(looked+t.Sources[box][colour]), b(to))
			}
			w.ins("VEOR", b(to), b(target+box), b(target+box))
		}
		index, target = target, index
	}
	w.comment("The last round does not exchange the halves")
	for box := range 8 {
		loadKey()
		w.ins("VEOR", b(key), b(left+box), b(looked+box))
	}
	for box := range 8 {
		w.ins("VMOV", b(right+box), b(left+box))
	}
	for box := range 8 {
		w.ins("VMOV", b(looked+box), b(right+box))
	}
	w.ins("SUBS", imm(1), r(passes), r(passes))
	w.ins("BNE", "des")
	var rows [8]int // by what they are before IP is undone
	for half, from := range []int{left, right} {
		w.ins("MOVD", "$desCompress<>(SB)", r(table))
		for box := range 8 {
			w.ins("VLD1.P", at(table, 64), list(loaded, 4, b))
			w.ins("VTBL", b(from+box), list(loaded, 4, b), b(looked+box))
		}
		for i := range 4 {
			to := left + 4*half + i
			w.ins("VORR", b(looked+2*i), b(looked+2*i+1), b(to))
			rows[desRow[4*half+i]] = to
		}
	}
	w.transposeBits(rows)
	w.transposeBytes([4][8]int{rows, in8(16), in8(0), in8(16)})
	for p := range 8 {
		addresses(p)
		result := 16 + p
		if encrypt {
			w.ins("FMOVQ", q(result), at(1, 16*p))
		} else {
			w.ins("FMOVQ", at(1, 16*p), q(p))
			w.ins("VEOR", b(p), b(result), b(result))
			w.ins("FMOVQ", at(input, 16*p), q(p))
			w.ins("FMOVQ", q(p), at(1, 16*p))
		}
		w.ins("FMOVD", q(result), "("+r(even)+")")
		w.ins("VST1", v(result)+".D[1]", "("+r(odd)+")")
	}
	w.ins("ADD", imm(8), r(offset), r(offset))
	w.ins("SUBS", imm(1), r(3), r(3))
	w.ins("BNE", "block")
	for p := range 8 {
		addresses(p)
		w.ins("STP", "("+r(even)+", "+r(odd)+")", at(2, 16*p))
	}
	w.end()
}
