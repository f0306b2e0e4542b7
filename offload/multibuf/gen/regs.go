package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The vector registers by number.
var (
	xmm = [...]VecPhysical{
		X0, X1, X2, X3, X4, X5, X6, X7, X8, X9, X10, X11, X12, X13, X14, X15,
		X16, X17, X18, X19, X20, X21, X22, X23, X24, X25, X26, X27, X28, X29, X30, X31,
	}
	ymm = [...]VecPhysical{
		Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11, Y12, Y13, Y14, Y15,
		Y16, Y17, Y18, Y19, Y20, Y21, Y22, Y23, Y24, Y25, Y26, Y27, Y28, Y29, Y30, Y31,
	}
	zmm = [...]VecPhysical{
		Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15,
		Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31,
	}
)

// at is the memory disp bytes after where r points.
func at(r Register, disp int) Mem { return Mem{Base: r, Disp: disp} }

// indexed is the memory disp bytes after where r and off together point.
func indexed(r, off Register, disp int) Mem {
	return Mem{Base: r, Index: off, Scale: 1, Disp: disp}
}

// alignedLocal reserves n bytes of stack and makes r point to them, at a multiple of 64.
func alignedLocal(n int, r Register) {
	LEAQ(AllocLocal(n+64), r)
	ADDQ(U8(63), r)
	ANDQ(I8(-64), r)
}

// advance adds off to n addresses.
func advance512(ptrs, off Register, n, tmp int) {
	VPBROADCASTQ(off, zmm[tmp])
	for i := 0; i < n; i += 8 {
		VPADDQ(at(ptrs, 8*i), zmm[tmp], zmm[tmp+1])
		VMOVDQU64(zmm[tmp+1], at(ptrs, 8*i))
	}
}

// forget512 clears the vector registers.
func forget512() {
	TEXT("forgetAVX512", NOSPLIT, "func()")
	Doc("Clears the vector registers.")
	VZEROALL() // the lower sixteen
	for _, z := range zmm[16:] {
		VPXORQ(z, z, z)
	}
	RET()
}
