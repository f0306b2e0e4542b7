package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// des512x32 encrypts with 3DES-CBC on 32 lanes, which takes little more than half as long a step as on 64: a register holds
// the indices of two S-boxes, see pairs, in the form of double words with two lanes' for the first and two lanes' for the
// second. Bit 6 of each index says which of the two, so that vpermt2b looks both up at once, and a rotation of double words
// by 16 bits exchanges them.
//
// CBC adds the next plaintext to a result; as the permutations at the ends are linear, the result need not pass through
// them for that, and nobody waits for them.
func des512x32(shared bool) {
	keying := "Mixed"
	if shared {
		keying = "Shared"
	}
	t := newDESTables()
	name := func(what string, n int) string { return fmt.Sprintf("desPair%s%d", what, n) }
	// perQword makes a table of two matrices in turn.
	perQword := func(name string, first, second uint64) Mem {
		return bytesTable(name, each64(func(i int) byte {
			if i/8%2 == 0 {
				return byte(first >> (8 * (i % 8)))
			}
			return byte(second >> (8 * (i % 8)))
		}))
	}
	// Indices are expanded, and joined again, in the form of quad words: eight lanes' of the first, eight lanes' of the second.
	var near, far, join [4]Mem
	for p, boxes := range pairs {
		var m [2][2]uint64
		for side, box := range boxes {
			from, _ := neighbours(box)
			for _, w := range wiring[box] {
				distant := 0
				if w.half/8 != from {
					distant = 1
				}
				m[distant][side] |= 1 << (w.half % 8) << (8 * (7 - w.colour))
			}
		}
		near[p] = perQword(name("Near", p), m[0][0], m[0][1])
		far[p] = perQword(name("Far", p), m[1][0], m[1][1])
	}
	for n := range join { // bytes 0 and 1, or 2 and 3, of a half block; from their first boxes, or their second
		var m [2]uint64
		for i := range m {
			box := n/2*4 + i*2 + n%2
			for bit := range 4 {
				m[i] |= 1 << wiring[box][1+bit].colour << (8 * (7 - (box%2*4 + bit)))
			}
		}
		join[n] = perQword(name("Join", n), m[0], m[1])
	}
	toDwords := bytesTable("desToDwords", each64(func(i int) byte { return byte(i/2%2*8 + i%16/4*2 + i%2) }))
	toQwords := bytesTable("desToQwords", each64(func(i int) byte { return byte(i%8/2*4 + i%16/8*2 + i%2) }))
	second := bytesTable("desSecond", each64(func(i int) byte { return byte(i / 2 % 2 << 6) }))

	left, right := []int{0, 1, 2, 3}, []int{4, 5, 6, 7}
	const firstMask, looked, exchanged, sums = 8, 18, 22, 26
	var masks []Mem
	mask := map[[2]byte]int{} // its register
	for p := range pairs {
		for _, g := range pairMasks(p) {
			if _, ok := mask[g.mask]; !ok {
				mask[g.mask] = firstMask + len(masks)
				masks = append(masks, bytesTable(name("Mask", len(masks)), each64(func(i int) byte { return g.mask[i/2%2] })))
			}
		}
	}
	if firstMask+len(masks) > looked {
		panic("gen: too many masks")
	}

	TEXT(fmt.Sprintf("des3Encrypt%s32AVX512", keying), 0, "func(keys *byte, chain *uint64, ptrs *uintptr, blocks int)")
	Doc(fmt.Sprintf("Encrypts 32 lanes; keys: %s.", keying))
	chain := Load(Param("chain"), RBX)
	ptrs := Load(Param("ptrs"), RCX)
	blocks := Load(Param("blocks"), RDX)
	keysNow, lanesDone, passes := RAX, R15, RDI
	in, to, off := RSI, R8, R9 // off: of the block whose results are being stored
	const buffer = 256
	alignedLocal(2*buffer+64+8*64, in)
	sBox := t.alignedSBoxes(in, 2*buffer+64)
	// Before the first block there are no results: what is stored goes nowhere.
	LEAQ(at(in, buffer), to)
	LEAQ(at(in, 2*buffer), R10)
	VPBROADCASTQ(R10, Z18)
	for i := range 4 {
		VMOVDQU64(Z18, at(to, 64*i))
	}
	XORL(R9L, R9L)
	fetch := func(lane int, offset Register) {
		MOVQ(indexed(ptrs, lanesDone, 8*lane), R10)
		MOVQ(indexed(R10, offset, 0), R10)
		MOVQ(R10, indexed(in, lanesDone, 8*lane))
	}
	put := func(lane int) {
		MOVQ(indexed(to, lanesDone, 8*lane), R11)
		MOVQ(indexed(chain, lanesDone, 8*lane), R12)
		MOVQ(R12, indexed(R11, off, 0))
	}
	next := R13 // the offset of the block to fetch
	XORL(R13L, R13L)
	XORL(lanesDone.As32(), lanesDone.As32())
	for lane := range 32 {
		MOVQ(at(ptrs, 8*lane), R10)
		MOVQ(at(R10, 0), R10)
		XORQ(at(chain, 8*lane), R10)
		MOVQ(R10, at(in, 8*lane))
	}
	for i, m := range masks {
		VMOVDQU64(m, zmm[firstMask+i])
	}
	VMOVDQU64(second, Z0)
	for z := 1; z < 8; z++ {
		VMOVDQA64(Z0, zmm[z])
	}

	Label("block")
	ADDQ(U8(8), next)
	CMPQ(blocks, U8(1))
	JNE(LabelRef("more"))
	SUBQ(U8(8), next) // there is no next one: fetch this one again
	Label("more")

	VMOVDQU64(t.ipMatrix, Z30)
	VMOVDQU64(t.byBytes, Z31)
	for i := range 4 {
		VMOVDQU64(at(in, 64*i), zmm[18+i])
		VGF2P8AFFINEQB(U8(0), zmm[18+i], Z30, zmm[18+i])
		VPERMB(zmm[18+i], Z31, zmm[18+i])
	}
	bytes2 := [4]int{22, 23, 24, 25} // two of the block's bytes each, of eight lanes in turn
	lanes4([4]int{18, 19, 20, 21}, bytes2, 26)
	// choose makes a register of one quad word each of two registers.
	choose := func(first, firstSide, second, secondSide, result int) {
		VSHUFPD(U8(firstSide*0x55|secondSide*0xaa), zmm[second], zmm[first], zmm[result])
	}
	VMOVDQU64(toDwords, Z30)
	for half, set := range [][]int{left, right} {
		for p, z := range set {
			nearA, farA := neighbours(pairs[p][0])
			nearB, farB := neighbours(pairs[p][1])
			tmp := 18 + 2*(p%2)
			choose(bytes2[2*half+nearA/2], nearA%2, bytes2[2*half+nearB/2], nearB%2, tmp)
			choose(bytes2[2*half+farA/2], farA%2, bytes2[2*half+farB/2], farB%2, tmp+1)
			VGF2P8AFFINEQB(U8(0), near[p], zmm[tmp], zmm[tmp])
			VGF2P8AFFINEQB(U8(0), far[p], zmm[tmp+1], zmm[tmp+1])
			VPXORQ(zmm[tmp], zmm[tmp+1], zmm[tmp])
			VPSHUFB(Z30, zmm[tmp], zmm[tmp])
			VPXORQ(zmm[tmp], zmm[z], zmm[z])
		}
	}

	// The three passes serve ten or eleven lanes each.
	const served, lastServed = 11, 32 - 11
	rowBytes, pairBytes := 4*64, 64
	Load(Param("keys"), keysNow)
	if shared {
		rowBytes, pairBytes = 4*4, 4
		ADDQ(U32(3*desRows*8*4), keysNow) // after what the kernel of 64 lanes has
	}
	XORL(lanesDone.As32(), lanesDone.As32())
	MOVL(U32(3), passes.As32())
	Label("des")
	addKey := func(row, p, z int) {
		if k := at(keysNow, row*rowBytes+p*pairBytes); shared {
			VPXORD_BCST(k, zmm[z], zmm[z])
		} else {
			VPXORD(k, zmm[z], zmm[z])
		}
	}
	for p, z := range right {
		addKey(0, p, z)
	}
	index, target := right, left
	moves := 0
	for round := range 16 {
		for p, z := range index {
			VMOVDQU64(sBox[pairs[p][0]], zmm[looked+p])
			VPERMT2B(sBox[pairs[p][1]], zmm[z], zmm[looked+p])
			VPRORD(U8(16), zmm[looked+p], zmm[exchanged+p])
		}
		for p, z := range target {
			addKey(1+round, p, z)
		}
		for p, z := range target {
			// Three sums, of which z is one, so that each waits for few: what comes exchanged comes last.
			const andThenXor, andThenOr = 0x78, 0xf8
			others := [2]int{sums + 2*(p%3), sums + 2*(p%3) + 1}
			begun := [2]bool{}
			for i, g := range pairMasks(p) {
				from, m := looked+g.pair, zmm[mask[g.mask]]
				if g.exchanged {
					from = exchanged + g.pair
				}
				switch o := i % 3; {
				case o == 0:
					VPTERNLOGD(U8(andThenXor), m, zmm[from], zmm[z])
				case !begun[o-1]:
					begun[o-1] = true
					VPANDD(zmm[from], m, zmm[others[o-1]])
				default:
					VPTERNLOGD(U8(andThenOr), m, zmm[from], zmm[others[o-1]])
				}
			}
			VPTERNLOGD(U8(parity), zmm[others[0]], zmm[others[1]], zmm[z])
			if (round*4+p)%5 == 0 && moves < served {
				put(moves)
				fetch(moves, next)
				moves++
			}
		}
		index, target = target, index
	}
	if moves != served {
		panic("gen: lanes without service")
	}
	for p, z := range target {
		addKey(desRows-1, p, z)
	}
	for p := range pairs { // the last round does not exchange the halves, so they are exchanged now
		VMOVDQA64(zmm[left[p]], zmm[looked+p])
		VMOVDQA64(zmm[right[p]], zmm[left[p]])
		VMOVDQA64(zmm[looked+p], zmm[right[p]])
	}
	ADDQ(U32(desRows*rowBytes), keysNow)
	ADDQ(U32(8*served), lanesDone)
	MOVL(U32(8*lastServed), R10L)
	CMPQ(lanesDone, U32(8*lastServed))
	CMOVQHI(R10, lanesDone)
	DECL(passes.As32())
	JNZ(LabelRef("des"))
	MOVQ(ptrs, to)
	MOVQ(next, off)
	CMPQ(blocks, U8(1))
	JEQ(LabelRef("last"))
	SUBQ(U8(8), off)
	Label("last")

	VMOVDQU64(toQwords, Z30)
	for half, set := range [][]int{left, right} {
		for p, z := range set {
			VPSHUFB(Z30, zmm[z], zmm[18+p])
		}
		for n := range 2 {
			tmp := 26 + 2*n
			for nth := range 2 {
				p, side := pairOf(4*n + nth)
				q, otherSide := pairOf(4*n + 2 + nth)
				choose(18+p, side, 18+q, otherSide, tmp+nth)
				VGF2P8AFFINEQB(U8(0), join[2*n+nth], zmm[tmp+nth], zmm[tmp+nth])
			}
			VPXORQ(zmm[tmp], zmm[tmp+1], zmm[bytes2[2*half+n]])
		}
	}
	lanes4(bytes2, [4]int{18, 19, 20, 21}, 26)
	VMOVDQU64(t.byBlocks, Z31)
	VMOVDQU64(t.fpMatrix, Z30)
	for i := range 4 {
		VPERMB(zmm[18+i], Z31, zmm[18+i])
		VGF2P8AFFINEQB(U8(0), zmm[18+i], Z30, zmm[18+i])
		VMOVDQU64(zmm[18+i], at(chain, 64*i))
	}
	DECQ(blocks)
	JNZ(LabelRef("block"))
	for lane := range 32 {
		MOVQ(at(to, 8*lane), R11)
		MOVQ(at(chain, 8*lane), R12)
		MOVQ(R12, indexed(R11, off, 0))
	}
	ADDQ(U8(8), off)
	advance512(ptrs, off, 32, 18)
	VZEROUPPER()
	RET()
}
