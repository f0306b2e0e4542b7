package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// aesRounds512 does all rounds but the first key's addition: round(r) is an ordinary one, last(r) the last, which is the
// 10th, 12th or 14th. What is after the rounds follows at the end that this returns.
func aesRounds512(rounds Register, end string, round, last func(r int)) {
	for _, n := range []int{10, 12, 14} {
		from := n - 2
		if n == 10 {
			from = 1
		}
		for r := from; r < n; r++ {
			round(r)
		}
		if n < 14 {
			more := fmt.Sprintf("%s_more%d", end, n)
			CMPQ(rounds, U8(n))
			JNE(LabelRef(more))
			last(n)
			JMP(LabelRef(end))
			Label(more)
		} else {
			last(n)
		}
	}
	Label(end)
}

// cbcEncrypt512 encrypts four packets per register: a packet's chain is one 128-bit part of it.
func cbcEncrypt512(zmms int, shared bool) {
	lanes := 4 * zmms
	name, doc := "Mixed", "a key each"
	if shared {
		name, doc = "Shared", "one key"
	}
	TEXT(fmt.Sprintf("cbcEncrypt%s%dAVX512", name, lanes), NOSPLIT, "func(keys *byte, rounds int, ptrs *uintptr, blocks int)")
	Doc(fmt.Sprintf("Encrypts %d packets with %s.", lanes, doc))
	keys := Load(Param("keys"), RAX)
	rounds := Load(Param("rounds"), R10)
	ptrs := Load(Param("ptrs"), RBX)
	blocks := Load(Param("blocks"), RCX)
	off := RDX
	XORL(EDX, EDX)
	p := [4]GPPhysical{RSI, RDI, R8, R9}

	const firstKey = 16
	key := func(r, z int) Op {
		if shared {
			return zmm[firstKey+r]
		}
		return at(keys, 16*lanes*r+64*z)
	}
	if shared {
		for r := 0; r <= 14; r++ {
			VBROADCASTI32X4(at(keys, 16*r), zmm[firstKey+r])
		}
	}
	each := func(do func(z int)) {
		for z := 0; z < zmms; z++ {
			do(z)
		}
	}
	address := func(z int) {
		for l, r := range p {
			MOVQ(at(ptrs, 8*(4*z+l)), r)
		}
	}
	gather := func(z, disp, to int) {
		address(z)
		VMOVDQU32(indexed(p[0], off, disp), xmm[to])
		for l := 1; l < 4; l++ {
			VINSERTI32X4(U8(l), indexed(p[l], off, disp), zmm[to], zmm[to])
		}
	}
	each(func(z int) { gather(z, -16, z) })
	Label("block")
	each(func(z int) {
		gather(z, 0, 8+z)
		VPTERNLOGD(U8(0x96), key(0, z), zmm[8+z], zmm[z])
	})
	aesRounds512(rounds, "encrypted",
		func(r int) { each(func(z int) { VAESENC(key(r, z), zmm[z], zmm[z]) }) },
		func(r int) { each(func(z int) { VAESENCLAST(key(r, z), zmm[z], zmm[z]) }) })
	each(func(z int) {
		address(z)
		VMOVDQU32(xmm[z], indexed(p[0], off, 0))
		for l := 1; l < 4; l++ {
			VEXTRACTI32X4(U8(l), zmm[z], indexed(p[l], off, 0))
		}
	})
	ADDQ(U8(16), off)
	DECQ(blocks)
	JNZ(LabelRef("block"))
	if lanes >= 8 {
		advance512(ptrs, off, lanes, 8)
	} else {
		VPBROADCASTQ(off, Y8)
		VPADDQ(at(ptrs, 0), Y8, Y8)
		VMOVDQU64(Y8, at(ptrs, 0))
	}
	VZEROUPPER()
	RET()
}

// cbcDecrypt512 decrypts one packet from its end: the block before, which the plaintext is xored with, is still there.
func cbcDecrypt512() {
	TEXT("cbcDecryptAVX512", NOSPLIT, "func(schedule *byte, rounds int, p *byte, blocks int)")
	Doc("Decrypts one packet.")
	keys := Load(Param("schedule"), RAX)
	rounds := Load(Param("rounds"), R10)
	p := Load(Param("p"), RBX)
	blocks := Load(Param("blocks"), RCX)
	const firstKey = 16
	for r := 0; r <= 14; r++ {
		VBROADCASTI32X4(at(keys, 16*r), zmm[firstKey+r])
	}
	end := RDX
	MOVQ(blocks, end)
	SHLQ(U8(4), end)
	ADDQ(p, end)

	// step decrypts n registers' worth before end; with a mask, the blocks that it has.
	step := func(name string, n int, mask Register) {
		each := func(do func(i int)) {
			for i := 0; i < n; i++ {
				do(i)
			}
		}
		each(func(i int) {
			if mask != nil {
				VMOVDQU64_Z(at(end, 64*i), mask, zmm[i])
			} else {
				VMOVDQU64(at(end, 64*i), zmm[i])
			}
		})
		each(func(i int) {
			if mask != nil {
				VMOVDQU64_Z(at(end, 64*i-16), mask, zmm[8+i])
			} else {
				VMOVDQU64(at(end, 64*i-16), zmm[8+i])
			}
		})
		each(func(i int) { VPXORQ(zmm[firstKey], zmm[i], zmm[i]) })
		aesRounds512(rounds, "decrypted"+name,
			func(r int) { each(func(i int) { VAESDEC(zmm[firstKey+r], zmm[i], zmm[i]) }) },
			func(r int) { each(func(i int) { VAESDECLAST(zmm[firstKey+r], zmm[i], zmm[i]) }) })
		each(func(i int) {
			VPXORQ(zmm[8+i], zmm[i], zmm[i])
			if mask != nil {
				VMOVDQU64(zmm[i], mask, at(end, 64*i))
			} else {
				VMOVDQU64(zmm[i], at(end, 64*i))
			}
		})
	}
	Label("wide")
	CMPQ(blocks, U8(32))
	JB(LabelRef("half"))
	SUBQ(U32(512), end)
	step("32", 8, nil)
	SUBQ(U8(32), blocks)
	JMP(LabelRef("wide"))
	for _, n := range []struct {
		name, next string
		blocks     int
	}{{"half", "quarter", 16}, {"quarter", "eighth", 8}, {"eighth", "few", 4}} {
		Label(n.name)
		TESTQ(U32(n.blocks), blocks)
		JZ(LabelRef(n.next))
		SUBQ(U32(16*n.blocks), end)
		step(fmt.Sprint(n.blocks), n.blocks/4, nil)
	}
	Label("few")
	ANDQ(U8(3), blocks)
	JZ(LabelRef("done"))
	ADDQ(blocks, blocks) // in halves of blocks, the mask's unit
	MOVL(U32(0xff), ESI)
	BZHIL(ECX, ESI, ESI)
	KMOVB(ESI, K1)
	SHLQ(U8(3), blocks)
	SUBQ(blocks, end)
	step("Few", 1, K1)
	Label("done")
	VZEROUPPER()
	RET()
}
