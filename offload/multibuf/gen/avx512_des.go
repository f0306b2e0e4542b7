package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// bytesTable makes a table of bytes.
func bytesTable(name string, values []byte) Mem {
	if g, ok := globals[name]; ok {
		return g
	}
	g := GLOBL(name, RODATA|NOPTR)
	for i, v := range values {
		DATA(i, U8(v))
	}
	globals[name] = g
	return g
}

// each64 is 64 bytes by a function of their number.
func each64(value func(i int) byte) []byte {
	b := make([]byte, 64)
	for i := range b {
		b[i] = value(i)
	}
	return b
}

// DES's initial permutation takes the block as a matrix of 8 by 8 bits, transposes it and changes the order of its columns.
// ipColumn is which column of the block row i of the result is, from 1.
var ipColumn = [8]int{2, 4, 6, 8, 1, 3, 5, 7}

// desRows is the rows of keys per DES: to the right half before the first round, in each of the sixteen rounds, and to the
// left half after the last. In between the keys stay in the halves: what a round adds is its own key and the one of two
// rounds before, which takes that off again.
const desRows = 18

// desTables are the tables of the kernels.
type desTables struct {
	sBox                                  [8]Mem
	ipMatrix, byBytes, fpMatrix, byBlocks Mem
	expand                                Mem // matrices for each S-box: from the byte near it, and from the one that is far
	compress                              Mem // matrices for each byte of a half block: from its first S-box, and its second
}

// neighbours are the bytes of the half block that an index is made of: most bits come from one, and one or two of them from
// the one beside it.
func neighbours(box int) (near, far int) {
	if box%2 == 0 {
		return box / 2, (box/2 + 3) % 4
	}
	return box / 2, (box/2 + 1) % 4
}

func newDESTables() (t desTables) {
	for box := range t.sBox {
		t.sBox[box] = bytesTable(fmt.Sprintf("desSBox%d", box+1), sBoxTable(box))
	}
	t.ipMatrix = bytesTable("desIP", each64(func(i int) byte { return 1 << (8 - ipColumn[i%8]) }))
	t.byBytes = bytesTable("desByBytes", each64(func(i int) byte { return byte(8*(i%8) + i/8) }))
	t.fpMatrix = bytesTable("desFP", each64(func(i int) byte { return 1 << (7 - i%8) }))
	t.byBlocks = bytesTable("desByBlocks", each64(func(i int) byte {
		for row, column := range ipColumn {
			if column == i%8+1 {
				return byte(8*row + i/8)
			}
		}
		panic("unreachable")
	}))
	expand := make([]byte, 8*16)
	for box := range wiring {
		near, _ := neighbours(box)
		for _, w := range wiring[box] {
			at := 16*box + 7 - w.colour
			if w.half/8 != near {
				at += 8
			}
			expand[at] = 1 << (w.half % 8)
		}
	}
	t.expand = bytesTable("desExpand", expand)
	// And back: each bit of the half block is the middle of one index.
	compress := make([]byte, 4*16)
	for n := range 32 {
		box := n / 4
		compress[16*(n/8)+8*(box%2)+7-n%8] = 1 << wiring[box][1+n%4].colour
	}
	t.compress = bytesTable("desCompress", compress)
	return t
}

// alignedSBoxes copies the S-boxes to memory of which the address is a multiple of 64, as the linker's is not: a table across
// two cache lines is read in twice the time.
func (t *desTables) alignedSBoxes(base Register, disp int) (copies [8]Mem) {
	for box, table := range t.sBox {
		copies[box] = at(base, disp+64*box)
		VMOVDQU64(table, Z0)
		VMOVDQU64(Z0, copies[box])
	}
	return copies
}

// lanes4 transposes four registers of four times 128 bits.
func lanes4(from, result [4]int, tmp int) {
	shuffle := func(imm, a, b, r int) { VSHUFI64X2(U8(imm), zmm[b], zmm[a], zmm[r]) }
	shuffle(0x44, from[0], from[1], tmp)
	shuffle(0xee, from[0], from[1], tmp+1)
	shuffle(0x44, from[2], from[3], tmp+2)
	shuffle(0xee, from[2], from[3], tmp+3)
	shuffle(0x88, tmp, tmp+2, result[0])
	shuffle(0xdd, tmp, tmp+2, result[1])
	shuffle(0x88, tmp+1, tmp+3, result[2])
	shuffle(0xdd, tmp+1, tmp+3, result[3])
}

// des512 is 3DES-CBC on 64 lanes. All S-boxes of a round are lookups by vpermb, in 64 blocks at once; the permutations at
// the ends are matrix multiplications over GF(2).
//
// Vector instructions keep the processor busy but leave room to decode others: while a step's rounds run, scalar ones put
// its predecessor's results into the packets, and fetch its successor's input.
func des512(encrypt, shared bool) {
	direction, keying := "Decrypt", "Mixed"
	if encrypt {
		direction = "Encrypt"
	}
	if shared {
		keying = "Shared"
	}
	tables := newDESTables()
	var masks [6]Mem
	for c := range masks {
		masks[c] = bytesTable(fmt.Sprintf("desMask%d", c), each64(func(int) byte { return 1 << c }))
	}
	TEXT(fmt.Sprintf("des3%s%sAVX512", direction, keying), 0, "func(keys *byte, chain *uint64, ptrs *uintptr, blocks int)")
	Doc(fmt.Sprintf("%ss 64 lanes; keys: %s.", direction, keying))
	chain := Load(Param("chain"), RBX)
	ptrs := Load(Param("ptrs"), RCX)
	blocks := Load(Param("blocks"), RDX)
	keysNow, lanesDone := RAX, R15
	in, out, to, off := RSI, RDI, R8, R9 // off: of the block whose results are being stored
	const buffer = 512
	alignedLocal(4*buffer+64+8*64, in)
	sBox := tables.alignedSBoxes(in, 4*buffer+64)
	current := func(i int) Mem { return at(in, buffer+64*i) } // to decrypt: the ciphertext, which is the next chaining value
	LEAQ(at(in, 2*buffer), out)
	if encrypt {
		MOVQ(chain, out) // to encrypt: the results are the next chaining values
	}
	// Before the first block there are no results: what is stored goes nowhere.
	LEAQ(at(in, 3*buffer), to)
	LEAQ(at(in, 4*buffer), R10)
	VPBROADCASTQ(R10, Z0)
	for i := range 8 {
		VMOVDQU64(Z0, at(to, 64*i))
	}
	XORL(R9L, R9L)

	key := func(row, box int) (Mem, bool) { // of the DES that keysNow points to
		n := row*8 + box
		if shared {
			return at(keysNow, 4*n), true
		}
		return at(keysNow, 64*n), false
	}
	addKey := func(row, box, z int) {
		if k, broadcast := key(row, box); broadcast {
			VPXORD_BCST(k, zmm[z], zmm[z])
		} else {
			VPXORD(k, zmm[z], zmm[z])
		}
	}
	// fetch and put serve the lane that is so many after the one that lanesDone has the offset of, in the arrays of qwords.
	fetch := func(lane int, lanesDone, offset Register) {
		MOVQ(indexed(ptrs, lanesDone, 8*lane), R10)
		MOVQ(indexed(R10, offset, 0), R10)
		MOVQ(R10, indexed(in, lanesDone, 8*lane))
	}
	put := func(lane int, lanesDone Register) {
		MOVQ(indexed(to, lanesDone, 8*lane), R11)
		MOVQ(indexed(out, lanesDone, 8*lane), R12)
		MOVQ(R12, indexed(R11, off, 0))
	}
	// next is the offset of the block to fetch.
	next := R13
	XORL(R13L, R13L)
	XORL(lanesDone.As32(), lanesDone.As32())
	for lane := range 64 {
		fetch(lane, lanesDone, next)
	}

	Label("block")
	ADDQ(U8(8), next)
	CMPQ(blocks, U8(1))
	JNE(LabelRef("more"))
	SUBQ(U8(8), next) // there is no next one: fetch this one again
	Label("more")

	VMOVDQU64(tables.ipMatrix, Z30)
	VMOVDQU64(tables.byBytes, Z31)
	for i := range 8 {
		VMOVDQU64(at(in, 64*i), zmm[i])
		if encrypt {
			VPXORQ(at(chain, 64*i), zmm[i], zmm[i])
		} else {
			VMOVDQU64(zmm[i], current(i))
		}
		VGF2P8AFFINEQB(U8(0), zmm[i], Z30, zmm[i])
		VPERMB(zmm[i], Z31, zmm[i])
	}
	// Registers of eight blocks become registers of one byte of all blocks.
	for p := range 4 {
		VPUNPCKLQDQ(zmm[2*p+1], zmm[2*p], zmm[8+p])
		VPUNPCKHQDQ(zmm[2*p+1], zmm[2*p], zmm[12+p])
	}
	lanes4([4]int{8, 9, 10, 11}, [4]int{0, 2, 4, 6}, 16)
	lanes4([4]int{12, 13, 14, 15}, [4]int{1, 3, 5, 7}, 20)

	// The halves, expanded: each is eight registers of indices.
	left, right := []int{8, 9, 10, 11, 12, 13, 14, 15}, []int{16, 17, 18, 19, 20, 21, 22, 23}
	for half, set := range [][]int{left, right} {
		for box, z := range set {
			near, far := neighbours(box)
			tmp := 24 + box%4
			VGF2P8AFFINEQB_BCST(U8(0), tables.expand.Offset(16*box), zmm[4*half+near], zmm[z])
			VGF2P8AFFINEQB_BCST(U8(0), tables.expand.Offset(16*box+8), zmm[4*half+far], zmm[tmp])
			VPXORQ(zmm[tmp], zmm[z], zmm[z])
		}
	}
	for c, mask := range masks {
		VMOVDQU64(mask, zmm[24+c])
	}
	// One DES after the other, in a loop: three in a row would fill the instruction cache. Each serves a third of the lanes.
	const served = 21
	Load(Param("keys"), keysNow)
	XORL(lanesDone.As32(), lanesDone.As32())
	Label("des")
	for box, z := range right {
		addKey(0, box, z)
	}
	index, target := right, left
	moves := 0
	for round := range 16 {
		for box := range 8 {
			VPERMB(sBox[box], zmm[index[box]], zmm[box])
		}
		for box, z := range target {
			sum := 30 + box%2
			looked := func(c int) VecPhysical { return zmm[sources[box][c]] }
			const andThenXor, andThenOr = 0x78, 0xf8
			VPANDD(looked(0), zmm[24], zmm[sum])
			VPTERNLOGD(U8(andThenXor), zmm[27], looked(3), zmm[z])
			VPTERNLOGD(U8(andThenOr), zmm[25], looked(1), zmm[sum])
			VPTERNLOGD(U8(andThenXor), zmm[28], looked(4), zmm[z])
			VPTERNLOGD(U8(andThenOr), zmm[26], looked(2), zmm[sum])
			VPTERNLOGD(U8(andThenXor), zmm[29], looked(5), zmm[z])
			if k, broadcast := key(1+round, box); broadcast {
				VPTERNLOGD_BCST(U8(parity), k, zmm[sum], zmm[z])
			} else {
				VPTERNLOGD(U8(parity), k, zmm[sum], zmm[z])
			}
			if (round*8+box)%6 == 0 && moves < served {
				put(moves, lanesDone)
				fetch(moves, lanesDone, next)
				moves++
			}
		}
		index, target = target, index
	}
	for box, z := range target {
		addKey(desRows-1, box, z)
	}
	for box := range 8 { // the last round does not exchange the halves, so they are exchanged now
		VMOVDQA64(zmm[left[box]], zmm[box])
	}
	for box := range 8 {
		VMOVDQA64(zmm[right[box]], zmm[left[box]])
		VMOVDQA64(zmm[box], zmm[right[box]])
	}
	rowBytes := 8 * 64
	if shared {
		rowBytes = 8 * 4
	}
	ADDQ(U32(desRows*rowBytes), keysNow)
	ADDQ(U32(8*served), lanesDone)
	CMPQ(lanesDone, U32(3*8*served))
	JNE(LabelRef("des"))
	put(0, lanesDone)
	fetch(0, lanesDone, next)
	MOVQ(ptrs, to)
	MOVQ(next, off)
	CMPQ(blocks, U8(1))
	JEQ(LabelRef("last"))
	SUBQ(U8(8), off)
	Label("last")

	for half, set := range [][]int{left, right} {
		for r := range 4 {
			VGF2P8AFFINEQB_BCST(U8(0), tables.compress.Offset(16*r), zmm[set[2*r]], zmm[4*half+r])
			VGF2P8AFFINEQB_BCST(U8(0), tables.compress.Offset(16*r+8), zmm[set[2*r+1]], zmm[24+r])
			VPXORQ(zmm[24+r], zmm[4*half+r], zmm[4*half+r])
		}
	}
	lanes4([4]int{0, 2, 4, 6}, [4]int{8, 9, 10, 11}, 16)
	lanes4([4]int{1, 3, 5, 7}, [4]int{12, 13, 14, 15}, 20)
	VMOVDQU64(tables.byBlocks, Z31)
	VMOVDQU64(tables.fpMatrix, Z30)
	for p := range 4 {
		VPUNPCKLQDQ(zmm[12+p], zmm[8+p], zmm[2*p])
		VPUNPCKHQDQ(zmm[12+p], zmm[8+p], zmm[2*p+1])
	}
	for i := range 8 {
		VPERMB(zmm[i], Z31, zmm[i])
		VGF2P8AFFINEQB(U8(0), zmm[i], Z30, zmm[i])
		if !encrypt {
			VPXORQ(at(chain, 64*i), zmm[i], zmm[i])
			VMOVDQU64(current(i), zmm[8+i])
			VMOVDQU64(zmm[8+i], at(chain, 64*i))
		}
		VMOVDQU64(zmm[i], at(out, 64*i))
	}
	DECQ(blocks)
	JNZ(LabelRef("block"))
	XORL(lanesDone.As32(), lanesDone.As32())
	for lane := range 64 {
		put(lane, lanesDone)
	}
	ADDQ(U8(8), off)
	advance512(ptrs, off, 64, 0)
	VZEROUPPER()
	RET()
}

// desPut512 writes a key into some lanes' columns of a table.
func desPut512() {
	TEXT("des3PutAVX512", NOSPLIT, "func(table, schedule *byte, lanes uint64, rows int)")
	Doc("Writes double word i of the schedule to those bytes of row i of the table that lanes has a bit for.")
	table := Load(Param("table"), RAX)
	schedule := Load(Param("schedule"), RBX)
	lanes := Load(Param("lanes"), RCX)
	rows := Load(Param("rows"), RDX)
	KMOVQ(lanes, K1)
	Label("row")
	const unrolled = 8 // the number of rows is a multiple of it
	for i := range unrolled {
		VPBROADCASTD(at(schedule, 4*i), zmm[i])
		VMOVDQU64(at(table, 64*i), zmm[8+i])
		VMOVDQU8(zmm[i], K1, zmm[8+i])
		VMOVDQU64(zmm[8+i], at(table, 64*i))
	}
	ADDQ(U8(4*unrolled), schedule)
	ADDQ(U32(64*unrolled), table)
	SUBQ(U8(unrolled), rows)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}
