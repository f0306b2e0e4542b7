package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// AES-GCM (NIST SP 800-38D). GHASH is computed as POLYVAL (RFC 8452 appendix A): blocks byte by byte reversed, the hash key
// multiplied by x. A sum of products of blocks with powers of the key is reduced only once, at the end of a segment.

// Layout of a key: the AES schedule, then the powers of the hash key, the highest first, then readable bytes.
const (
	gcmPowers     = 96
	gcmPowersAt   = 256
	gcmSegment    = 92 // blocks: with the additional data before and the lengths after them no more than there are powers
	gcmKeySize    = gcmPowersAt + 16*gcmPowers + 64
	polyvalModulo = 0xc200000000000000
)

// gcmPolynomial is the constant of the reduction.
func gcmPolynomial() Mem {
	return table("polyval", 64, []uint64{1, polyvalModulo})
}

// gcmReduce reduces the 256-bit product high, low to result, all of 128 bits (RFC 8452 appendix A: Montgomery's way).
func gcmReduce(high, low, polynomial, tmp, result VecPhysical) {
	for range 2 {
		VPCLMULQDQ(U8(0x10), polynomial, low, tmp)
		VPSHUFD(U8(0x4e), low, low)
		VPXOR(tmp, low, low)
	}
	VPXOR(high, low, result)
}

// gcmProducts starts, or with add continues, the sums low, middle and high with the products of a and the powers at b.
func gcmProducts(a VecPhysical, b Op, sums [3]VecPhysical, tmp [4]VecPhysical, add bool) {
	VPCLMULQDQ(U8(0x00), b, a, tmp[0])
	VPCLMULQDQ(U8(0x11), b, a, tmp[1])
	VPCLMULQDQ(U8(0x01), b, a, tmp[2])
	VPCLMULQDQ(U8(0x10), b, a, tmp[3])
	if !add {
		VMOVDQA64(tmp[0], sums[0])
		VPXORQ(tmp[2], tmp[3], sums[1])
		VMOVDQA64(tmp[1], sums[2])
		return
	}
	VPXORQ(tmp[0], sums[0], sums[0])
	VPTERNLOGQ(U8(parity), tmp[2], tmp[3], sums[1])
	VPXORQ(tmp[1], sums[2], sums[2])
}

// gcmExpand512 computes the powers.
func gcmExpand512() {
	TEXT("gcmExpandAVX512", NOSPLIT, "func(key *byte, rounds int)")
	Doc("Computes the powers of the hash key.")
	key := Load(Param("key"), RAX)
	rounds := Load(Param("rounds"), RBX)
	hash, power := X1, X2
	VMOVDQU(at(key, 0), X0) // the zero block, encrypted, is the hash key
	aesRounds512(rounds, "hashkey",
		func(r int) { VAESENC(at(key, 16*r), X0, X0) },
		func(r int) { VAESENCLAST(at(key, 16*r), X0, X0) })
	VPSHUFB(byteOrder(16), X0, X0)
	// Multiply by x: shift to the left, and add the polynomial if a bit was lost.
	VMOVDQU(gcmPolynomial(), X7)
	VPSRAD(U8(31), X0, X3)
	VPSHUFD(U8(0xff), X3, X3)
	VPAND(X7, X3, X3)
	VPSRLQ(U8(63), X0, X4)
	VPSLLDQ(U8(8), X4, X4)
	VPSLLQ(U8(1), X0, hash)
	VPOR(X4, hash, hash)
	VPXOR(X3, hash, hash)
	VMOVDQU(hash, at(key, gcmPowersAt+16*(gcmPowers-1)))
	VMOVDQA(hash, power)
	MOVQ(U32(gcmPowers-1), RCX)
	LEAQ(at(key, gcmPowersAt+16*(gcmPowers-2)), RDX)
	Label("power")
	VPCLMULQDQ(U8(0x00), hash, power, X3)
	VPCLMULQDQ(U8(0x11), hash, power, X4)
	VPCLMULQDQ(U8(0x01), hash, power, X5)
	VPCLMULQDQ(U8(0x10), hash, power, X6)
	VPXOR(X6, X5, X5)
	VPSLLDQ(U8(8), X5, X6)
	VPSRLDQ(U8(8), X5, X5)
	VPXOR(X6, X3, X3)
	VPXOR(X5, X4, X4)
	gcmReduce(X4, X3, X7, X5, power)
	VMOVDQU(power, at(RDX, 0))
	SUBQ(U8(16), RDX)
	DECQ(RCX)
	JNZ(LabelRef("power"))
	// Registers that held the key.
	for _, x := range []VecPhysical{X0, hash, power, X3, X4, X5, X6} {
		VPXOR(x, x, x)
	}
	VZEROUPPER()
	RET()
}

// gcm512 seals or opens one packet.
func gcm512(seal bool) {
	name := "gcmOpenAVX512"
	if seal {
		name = "gcmSealAVX512"
	}
	TEXT(name, NOSPLIT, "func(key *byte, rounds int, p *byte, n int, iv0, iv1, aad0, aad1 uint64, aadLen int, tag *byte)")
	Doc("Works on one packet.")
	key := Load(Param("key"), RAX)
	rounds := Load(Param("rounds"), RBX)
	p := Load(Param("p"), RSI)
	n := Load(Param("n"), RCX)
	const firstKey = 16
	for r := range 15 {
		VBROADCASTI32X4(at(key, 16*r), zmm[firstKey+r])
	}
	const turn = 31
	VMOVDQU64(byteOrder(16), zmm[turn])
	counter, four := 4, 5
	sums := [3]VecPhysical{Z6, Z7, Z8}
	sumsX := [3]VecPhysical{X6, X7, X8}
	tmp := [4]VecPhysical{Z9, Z10, Z11, Z12}
	tmpX := [4]VecPhysical{X9, X10, X11, X12}
	pending, first := X13, X14 // the block that a segment begins with; the first counter block, encrypted

	pair := func(x VecPhysical, param string) {
		Load(Param(param+"0"), RDX)
		VMOVQ(RDX, x)
		Load(Param(param+"1"), RDX)
		VPINSRQ(U8(1), RDX, x, x)
	}
	// Counters, turned around: the number is the lowest word. The first one is for the tag (SP 800-38D section 7.1).
	pair(xmm[counter], "iv")
	VSHUFI64X2(U8(0), zmm[counter], zmm[counter], zmm[counter])
	VPSHUFB(zmm[turn], zmm[counter], zmm[counter])
	VPADDD(table("gcmFirst", 32, []uint64{2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0}), zmm[counter], zmm[counter])
	VMOVDQU64(table("gcmFour", 32, []uint64{4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0}), zmm[four])
	VPSUBD(table("gcmOne", 32, []uint64{1, 0, 0, 0}), xmm[counter], first)
	VPSHUFB(xmm[turn], first, first)
	VPXORQ(xmm[firstKey], first, first)
	aesRounds512(rounds, "first",
		func(r int) { VAESENC(xmm[firstKey+r], first, first) },
		func(r int) { VAESENCLAST(xmm[firstKey+r], first, first) })

	// The additional data are the block before the first, so their power is one higher.
	pair(pending, "aad")
	VPSHUFB(xmm[turn], pending, pending)
	before, power, segment := RDX, RDI, R8
	MOVQ(I32(-16), before)

	Label("segment")
	MOVQ(U32(16*gcmSegment), segment)
	LEAQ(at(key, gcmPowersAt+16*(gcmPowers-gcmSegment)), power)
	CMPQ(n, segment)
	JA(LabelRef("sized"))
	MOVQ(n, segment)
	// The last: its last block is not the last of all, the lengths follow.
	LEAQ(at(n, 15), R9)
	ANDQ(I8(-16), R9)
	LEAQ(at(key, gcmPowersAt+16*(gcmPowers-1)), power)
	SUBQ(R9, power)
	Label("sized")
	SUBQ(segment, n)
	VPXORQ(sums[0], sums[0], sums[0])
	VPXORQ(sums[1], sums[1], sums[1])
	VPXORQ(sums[2], sums[2], sums[2])
	gcmProducts(pending, indexed(power, before, 0), sumsX, tmpX, false)
	XORL(EDX, EDX)

	// step works on so many registers' worth.
	step := func(count int, mask Register) {
		each := func(do func(i int)) {
			for i := range count {
				do(i)
			}
		}
		each(func(i int) {
			VPSHUFB(zmm[turn], zmm[counter], zmm[i])
			VPADDD(zmm[four], zmm[counter], zmm[counter])
			VPXORQ(zmm[firstKey], zmm[i], zmm[i])
		})
		load := func(i, to int) {
			if mask != nil {
				VMOVDQU8_Z(at(p, 64*i), mask, zmm[to])
			} else {
				VMOVDQU64(at(p, 64*i), zmm[to])
			}
		}
		hash := func(i, from int) {
			VPSHUFB(zmm[turn], zmm[from], Z15)
			gcmProducts(Z15, at(power, 64*i), sums, tmp, true)
		}
		if !seal {
			each(func(i int) {
				load(i, 15)
				hash(i, 15)
			})
		}
		aesRounds512(rounds, fmt.Sprintf("crypted%d%t", count, mask != nil),
			func(r int) { each(func(i int) { VAESENC(zmm[firstKey+r], zmm[i], zmm[i]) }) },
			func(r int) { each(func(i int) { VAESENCLAST(zmm[firstKey+r], zmm[i], zmm[i]) }) })
		each(func(i int) {
			load(i, 15)
			VPXORQ(Z15, zmm[i], zmm[i])
			if mask != nil {
				VMOVDQU8_Z(zmm[i], mask, zmm[i])
				VMOVDQU8(zmm[i], mask, at(p, 64*i))
			} else {
				VMOVDQU64(zmm[i], at(p, 64*i))
			}
		})
		if seal {
			each(func(i int) { hash(i, i) })
		}
		if mask == nil {
			ADDQ(U32(64*count), p)
			ADDQ(U32(64*count), power)
			SUBQ(U32(64*count), segment)
		}
	}
	Label("wide")
	CMPQ(segment, U32(256))
	JB(LabelRef("narrow"))
	step(4, nil)
	JMP(LabelRef("wide"))
	Label("narrow")
	CMPQ(segment, U8(64))
	JB(LabelRef("tail"))
	step(1, nil)
	JMP(LabelRef("narrow"))
	Label("tail")
	TESTQ(segment, segment)
	JZ(LabelRef("hashed"))
	MOVQ(I32(-1), R9)
	BZHIQ(segment, R9, R9)
	KMOVQ(R9, K1)
	step(1, K1)
	Label("hashed")

	// The last segment ends with the lengths in bits.
	TESTQ(n, n)
	JNZ(LabelRef("reduce"))
	total := Load(Param("n"), R9)
	SHLQ(U8(3), total)
	VMOVQ(total, X15)
	aadLen := Load(Param("aadLen"), R9)
	SHLQ(U8(3), aadLen)
	VPINSRQ(U8(1), aadLen, X15, X15)
	VPXORQ(X0, X0, X0)
	for i := range tmp {
		VPXORQ(tmp[i], tmp[i], tmp[i])
	}
	lengthPower := at(key, gcmPowersAt+16*(gcmPowers-1))
	VPCLMULQDQ(U8(0x00), lengthPower, X15, X9)
	VPCLMULQDQ(U8(0x11), lengthPower, X15, X10)
	VPCLMULQDQ(U8(0x01), lengthPower, X15, X11)
	VPCLMULQDQ(U8(0x10), lengthPower, X15, X12)
	VPXORQ(Z9, sums[0], sums[0])
	VPTERNLOGQ(U8(parity), Z11, Z12, sums[1])
	VPXORQ(Z10, sums[2], sums[2])

	Label("reduce")
	VPSLLDQ(U8(8), sums[1], Z9)
	VPSRLDQ(U8(8), sums[1], Z10)
	VPXORQ(Z9, sums[0], sums[0])
	VPXORQ(Z10, sums[2], sums[2])
	for _, sum := range []int{6, 8} {
		VEXTRACTI64X4(U8(1), zmm[sum], Y9)
		VPXORQ(Y9, ymm[sum], ymm[sum])
		VEXTRACTI32X4(U8(1), ymm[sum], X9)
		VPXORQ(X9, xmm[sum], xmm[sum])
	}
	VMOVDQU(gcmPolynomial(), X10)
	gcmReduce(X8, X6, X10, X9, pending)
	TESTQ(n, n)
	JNZ(LabelRef("segment"))
	VPSHUFB(X31, pending, pending)
	VPXORQ(first, pending, pending)
	Load(Param("tag"), RDX)
	VMOVDQU(pending, at(RDX, 0))
	VZEROUPPER()
	RET()
}
