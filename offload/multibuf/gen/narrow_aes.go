package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// aesRound is one round of AES, or the last one, in either direction and any of the encodings.
type aesRound struct {
	legacy func(key, x Op)
	vex    func(key, x, to Op) // with registers below 16 the assembler takes VEX's encoding
}

var (
	aesEnc     = aesRound{AESENC, VAESENC}
	aesEncLast = aesRound{AESENCLAST, VAESENCLAST}
	aesDec     = aesRound{AESDEC, VAESDEC}
	aesDecLast = aesRound{AESDECLAST, VAESDECLAST}
)

// aes writes AES-CBC for 128-bit registers (AES-NI), or 256-bit ones (VAES).
type aes struct {
	name string
	vex  bool // VEX encodings
	wide bool // 256-bit registers, two packets or blocks each
}

var (
	aesSSE  = &aes{name: "SSE"}
	aesAVX2 = &aes{name: "AVX2", vex: true}
	aesVAES = &aes{name: "VAES", vex: true, wide: true}
)

func (v *aes) r(n int) VecPhysical {
	if v.wide {
		return ymm[n]
	}
	return xmm[n]
}

// per is how many blocks a register has.
func (v *aes) per() int {
	if v.wide {
		return 2
	}
	return 1
}

func (v *aes) round(r aesRound, key Op, x int) {
	if v.vex {
		r.vex(key, v.r(x), v.r(x))
	} else {
		r.legacy(key, v.r(x))
	}
}

func (v *aes) xor(a Op, x int) {
	if v.vex {
		VPXOR(a, v.r(x), v.r(x))
	} else {
		PXOR(a, v.r(x))
	}
}

// loadKey loads a round key for one packet, or the same for both.
func (v *aes) loadKey(m Mem, x int) {
	switch {
	case v.wide:
		VBROADCASTI128(m, ymm[x])
	case v.vex:
		VMOVDQA(m, xmm[x])
	default:
		MOVO(m, xmm[x])
	}
}

// load loads from any address; store stores to any.
func (v *aes) load(m Mem, x int) {
	if v.vex {
		VMOVDQU(m, v.r(x))
	} else {
		MOVOU(m, v.r(x))
	}
}

func (v *aes) store(x int, m Mem) {
	if v.vex {
		VMOVDQU(v.r(x), m)
	} else {
		MOVOU(v.r(x), m)
	}
}

// cbcEncrypt encrypts as many packets as fit into regs registers, of which two more are used.
func (v *aes) cbcEncrypt(regs int, shared bool) {
	lanes := regs * v.per()
	name, doc := "Mixed", "a key each"
	if shared {
		name, doc = "Shared", "one key"
	}
	TEXT(fmt.Sprintf("cbcEncrypt%s%d%s", name, lanes, v.name), NOSPLIT, "func(keys *byte, rounds int, ptrs *uintptr, blocks int)")
	Doc(fmt.Sprintf("Encrypts %d packets with %s.", lanes, doc))
	keys := Load(Param("keys"), RAX)
	rounds := Load(Param("rounds"), R10)
	ptrs := Load(Param("ptrs"), RBX)
	blocks := Load(Param("blocks"), RCX)
	off := RDX
	XORL(EDX, EDX)
	const tmp, key = 14, 15
	// Eight addresses stay in registers.
	held := []GPPhysical{RSI, RDI, R8, R9, R11, R12, R13, R14}
	base := func(lane int) GPPhysical {
		if lane < len(held) {
			return held[lane]
		}
		MOVQ(at(ptrs, 8*lane), R15)
		return R15
	}
	for lane := range min(lanes, len(held)) {
		MOVQ(at(ptrs, 8*lane), held[lane])
	}
	each := func(do func(i int)) {
		for i := range regs {
			do(i)
		}
	}
	gather := func(i, disp, to int) {
		if !v.wide {
			v.load(indexed(base(i), off, disp), to)
			return
		}
		VMOVDQU(indexed(base(2*i), off, disp), xmm[to])
		VINSERTI128(U8(1), indexed(base(2*i+1), off, disp), ymm[to], ymm[to])
	}
	// with runs do with the key of a round for each register. A key of its own is an operand in memory.
	with := func(r int, do func(k Op, i int)) {
		if shared {
			v.loadKey(at(keys, 16*r), key)
			each(func(i int) { do(v.r(key), i) })
		} else {
			each(func(i int) { do(at(keys, 16*lanes*r+16*v.per()*i), i) })
		}
	}
	each(func(i int) { gather(i, -16, i) })
	Label("block")
	each(func(i int) {
		gather(i, 0, tmp)
		v.xor(v.r(tmp), i)
	})
	with(0, func(k Op, i int) { v.xor(k, i) })
	aesRounds512(rounds, "encrypted",
		func(r int) { with(r, func(k Op, i int) { v.round(aesEnc, k, i) }) },
		func(r int) { with(r, func(k Op, i int) { v.round(aesEncLast, k, i) }) })
	each(func(i int) {
		if !v.wide {
			v.store(i, indexed(base(i), off, 0))
			return
		}
		VMOVDQU(xmm[i], indexed(base(2*i), off, 0))
		VEXTRACTI128(U8(1), ymm[i], indexed(base(2*i+1), off, 0))
	})
	ADDQ(U8(16), off)
	DECQ(blocks)
	JNZ(LabelRef("block"))
	for lane := range lanes {
		ADDQ(off, at(ptrs, 8*lane))
	}
	if v.vex {
		VZEROUPPER()
	}
	RET()
}

// cbcDecrypt decrypts one packet from its end, eight registers at a time: the block before, which the plaintext is xored
// with, is still there.
func (v *aes) cbcDecrypt() {
	TEXT("cbcDecrypt"+v.name, NOSPLIT, "func(schedule *byte, rounds int, p *byte, blocks int)")
	Doc("Decrypts one packet.")
	keys := Load(Param("schedule"), RAX)
	rounds := Load(Param("rounds"), R10)
	p := Load(Param("p"), RBX)
	blocks := Load(Param("blocks"), RCX)
	end := RDX
	MOVQ(blocks, end)
	SHLQ(U8(4), end)
	ADDQ(p, end)
	const tmp, key = 14, 15
	step := func(v *aes, n int) {
		each := func(do func(i int)) {
			for i := range n {
				do(i)
			}
		}
		size := 16 * v.per()
		SUBQ(I32(n*size), end)
		v.loadKey(at(keys, 0), key)
		each(func(i int) {
			v.load(at(end, size*i), i)
			v.xor(v.r(key), i)
		})
		with := func(r int, round aesRound) {
			v.loadKey(at(keys, 16*r), key)
			each(func(i int) { v.round(round, v.r(key), i) })
		}
		aesRounds512(rounds, fmt.Sprintf("decrypted%d", n*v.per()),
			func(r int) { with(r, aesDec) }, func(r int) { with(r, aesDecLast) })
		// All of the blocks before are read before anything is stored over one of them.
		each(func(i int) {
			if v.vex {
				VPXOR(at(end, size*i-16), v.r(i), v.r(i))
			} else {
				MOVOU(at(end, size*i-16), xmm[tmp])
				PXOR(xmm[tmp], xmm[i])
			}
		})
		each(func(i int) { v.store(i, at(end, size*i)) })
	}
	most := 8 * v.per()
	Label("wide")
	CMPQ(blocks, U8(most))
	JB(LabelRef(fmt.Sprintf("below%d", most)))
	step(v, 8)
	SUBQ(U8(most), blocks)
	JMP(LabelRef("wide"))
	for n := most; n > 1; n /= 2 {
		Label(fmt.Sprintf("below%d", n))
		TESTQ(I32(n/2), blocks)
		JZ(LabelRef(fmt.Sprintf("below%d", n/2)))
		if n/2 >= v.per() {
			step(v, n/2/v.per())
		} else {
			step(&aes{name: v.name, vex: v.vex}, 1)
		}
	}
	Label("below1")
	if v.vex {
		VZEROUPPER()
	}
	RET()
}
