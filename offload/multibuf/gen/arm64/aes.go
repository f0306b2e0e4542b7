package arm64

import "fmt"

// An AES round is two instructions, which most processors execute as one if they stand side by side: AESE adds the round
// key first, then substitutes and shifts; AESMC mixes. So the last round is an AESE and an addition of the last key.

func (w *writer) round(key, state int, last bool) {
	w.ins("AESE", b(key), b(state))
	if !last {
		w.ins("AESMC", b(state), b(state))
	}
}

func (w *writer) inverseRound(key, state int, last bool) {
	w.ins("AESD", b(key), b(state))
	if !last {
		w.ins("AESIMC", b(state), b(state))
	}
}

// keysAfterFirst loads a schedule's keys but the first: the four that only longer keys have to extra and on, so that the
// nine that all have come after them, then the last. The schedule is in R0, rounds in R1.
func (w *writer) keysAfterFirst(extra int) {
	w.ins("ADD", "R1<<4", r(0), r(4))
	w.ins("VLD1", "(R4)", list(extra+13, 1, b))
	w.ins("SUB", imm(9*16), r(4), r(5))
	w.ins("VLD1.P", at(5, 64), list(extra+4, 4, b))
	w.ins("VLD1.P", at(5, 64), list(extra+8, 4, b))
	w.ins("VLD1", "(R5)", list(extra+12, 1, b))
	w.ins("CMP", imm(12), r(1))
	w.ins("BLT", "loaded")
	w.ins("SUB", imm(11*16), r(4), r(5))
	w.ins("VLD1", "(R5)", list(extra+2, 2, b))
	w.ins("BEQ", "loaded")
	w.ins("SUB", imm(13*16), r(4), r(5))
	w.ins("VLD1", "(R5)", list(extra, 2, b))
	w.label("loaded")
}

// middle is the rounds after the first, with the keys as keysAfterFirst left them.
func (w *writer) middle(label string, extra, lanes int, round func(key, state int, last bool)) {
	all := func(from, to int) {
		for key := from; key < to; key++ {
			for lane := range lanes {
				round(extra+key, lane, key == 12)
			}
		}
	}
	w.ins("CMP", imm(12), r(1))
	w.ins("BLT", label+"10")
	w.ins("BEQ", label+"12")
	all(0, 2)
	w.label(label + "12")
	all(2, 4)
	w.label(label + "10")
	all(4, 13)
}

// cbcEncryptShared keeps each lane's last block less the last round key, and adds that to the first round key instead: the
// next block, plus both keys, is then the key of its first AESE, and no addition is in the chain.
func cbcEncryptShared(w *writer, lanes int) {
	const in, extra, last, both = 8, 16, 29, 30 // registers
	w.function(fmt.Sprintf("cbcEncryptShared%d", lanes), fmt.Sprintf("Encrypts %d packets with one key.", lanes),
		"schedule *byte, rounds int, ptrs *uintptr, blocks int", 0)
	w.keysAfterFirst(extra)
	w.ins("VLD1", "(R0)", list(both, 1, b))
	w.ins("VEOR", b(last), b(both), b(both))
	w.loadPointers(2, lanes)
	for lane := range lanes {
		w.ins("SUB", imm(16), r(pointers+lane), r(5))
		w.ins("VLD1", "(R5)", list(lane, 1, b))
		w.ins("VEOR", b(last), b(lane), b(lane))
	}
	w.label("block")
	for lane := range lanes {
		w.ins("VLD1", "("+r(pointers+lane)+")", list(in+lane, 1, b))
	}
	for lane := range lanes {
		w.ins("VEOR", b(both), b(in+lane), b(in+lane))
	}
	for lane := range lanes {
		w.round(in+lane, lane, false)
	}
	w.middle("rounds", extra, lanes, w.round)
	for lane := range lanes {
		w.ins("VEOR", b(last), b(lane), b(in+lane))
	}
	for lane := range lanes {
		w.ins("VST1.P", list(in+lane, 1, b), at(pointers+lane, 16))
	}
	w.ins("SUBS", imm(1), r(3), r(3))
	w.ins("BNE", "block")
	w.storePointers(2, lanes)
	w.end()
}

// cbcEncryptMixed reads each round's keys from the table as it goes, two rounds' at a time.
func cbcEncryptMixed(w *writer, lanes int) {
	const even, odd, in = 8, 16, 24 // registers
	w.function(fmt.Sprintf("cbcEncryptMixed%d", lanes), fmt.Sprintf("Encrypts %d packets with a key each.", lanes),
		"table *byte, rounds int, ptrs *uintptr, blocks int", 0)
	keys := func(to int) {
		for lane := 0; lane < lanes; lane += 4 {
			w.ins("VLD1.P", at(4, 64), list(to+lane, 4, b))
		}
	}
	rounds := func(keys int, last bool) {
		for lane := range lanes {
			w.round(keys+lane, lane, last)
		}
	}
	w.ins("SUB", imm(2), r(1), r(6))
	w.ins("LSR", imm(1), r(6), r(6))
	w.loadPointers(2, lanes)
	for lane := range lanes {
		w.ins("SUB", imm(16), r(pointers+lane), r(5))
		w.ins("VLD1", "(R5)", list(lane, 1, b))
	}
	w.label("block")
	w.ins("MOVD", r(0), r(4))
	w.ins("MOVD", r(6), r(5))
	for lane := range lanes {
		w.ins("VLD1", "("+r(pointers+lane)+")", list(in+lane, 1, b))
	}
	keys(even)
	for lane := range lanes {
		w.ins("VEOR", b(in+lane), b(lane), b(lane))
	}
	rounds(even, false)
	w.label("rounds")
	keys(even)
	keys(odd)
	rounds(even, false)
	rounds(odd, false)
	w.ins("SUBS", imm(1), r(5), r(5))
	w.ins("BNE", "rounds")
	keys(even)
	keys(odd)
	rounds(even, true)
	for lane := range lanes {
		w.ins("VEOR", b(odd+lane), b(lane), b(lane))
	}
	for lane := range lanes {
		w.ins("VST1.P", list(lane, 1, b), at(pointers+lane, 16))
	}
	w.ins("SUBS", imm(1), r(3), r(3))
	w.ins("BNE", "block")
	w.storePointers(2, lanes)
	w.end()
}

// cbcDecrypt works on eight blocks at a time, then on what is left by four, two and one. It loads the blocks twice: they are
// decrypted, and what the block after each is added to.
func cbcDecrypt(w *writer) {
	const before, first, extra, last, chain = 8, 16, 17, 30, 31 // registers
	w.function("cbcDecrypt", "Decrypts one packet.", "schedule *byte, rounds int, p *byte, blocks int", 0)
	w.keysAfterFirst(extra)
	w.ins("VLD1", "(R0)", list(first, 1, b))
	w.ins("SUB", imm(16), r(2), r(5))
	w.ins("VLD1", "(R5)", list(chain, 1, b))
	for _, width := range []int{8, 4, 2, 1} {
		some := fmt.Sprintf("by%d", width)
		below := fmt.Sprintf("below%d", width)
		w.label(some)
		w.ins("CMP", imm(width), r(3))
		w.ins("BLT", below)
		w.ins("ADD", imm(64), r(2), r(5))
		for _, to := range []int{0, before} {
			w.ins("VLD1", "(R2)", list(to, min(width, 4), b))
			if width == 8 {
				w.ins("VLD1", "(R5)", list(to+4, 4, b))
			}
		}
		for i := range width {
			w.inverseRound(first, i, false)
		}
		w.middle(some+"rounds", extra, width, w.inverseRound)
		for i := range width {
			w.ins("VEOR", b(last), b(i), b(i))
		}
		w.ins("VEOR", b(chain), b(0), b(0))
		for i := 1; i < width; i++ {
			w.ins("VEOR", b(before+i-1), b(i), b(i))
		}
		w.ins("VMOV", b(before+width-1), b(chain))
		for i := 0; i < width; i += 4 {
			n := min(width, 4)
			w.ins("VST1.P", list(i, n, b), at(2, 16*n))
		}
		w.ins("SUB", imm(width), r(3), r(3))
		if width == 8 {
			w.ins("B", some)
		}
		w.label(below)
	}
	w.end()
}
