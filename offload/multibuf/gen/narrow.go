package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// isa is an instruction set with sixteen registers. The kernels below avx512 are written once, in operations of three
// operands, for 256-bit registers in AVX2's encoding and 128-bit ones in that of SSE2, where the destination is an operand
// and one more instruction may have to copy it. What SSSE3 has for hashes would gain a fiftieth, and be slow on Silvermont. Code of one kind never has an instruction of the other.
type isa struct {
	name string
	vex  bool // AVX2
}

var (
	isaAVX2 = &isa{name: "AVX2", vex: true}
	isaSSE2 = &isa{name: "SSE2"}
)

// width is the bytes of a register.
func (v *isa) width() int {
	if v.vex {
		return 32
	}
	return 16
}

func (v *isa) r(n int) VecPhysical {
	if v.vex {
		return ymm[n]
	}
	return xmm[n]
}

// reg is a register by number; an operand may be a memory operand instead, at an address aligned to the width.
type reg int

func (v *isa) op(o any) Op {
	if n, ok := o.(reg); ok {
		return v.r(int(n))
	}
	return o.(Mem)
}

// binary emits to = b op a; a may be in memory.
func (v *isa) binary(wide func(a, b, to Op), narrow func(a, to Op), commutes bool, a any, b, to reg) {
	if v.vex {
		wide(v.op(a), v.r(int(b)), v.r(int(to)))
		return
	}
	if a == any(to) && b != to {
		if !commutes {
			panic("gen: the destination is the wrong operand")
		}
		a, b = b, to
	}
	v.move(b, to)
	narrow(v.op(a), v.r(int(to)))
}

// three is an instruction that may have a mask, without one.
func three(f func(...Op)) func(a, b, to Op) { return func(a, b, to Op) { f(a, b, to) } }

func (v *isa) xor(a any, b, to reg) { v.binary(VPXOR, PXOR, true, a, b, to) }
func (v *isa) and(a any, b, to reg) { v.binary(VPAND, PAND, true, a, b, to) }
func (v *isa) or(a any, b, to reg)  { v.binary(VPOR, POR, true, a, b, to) }

// andn emits to = ^b & a.
func (v *isa) andn(a any, b, to reg) { v.binary(VPANDN, PANDN, false, a, b, to) }

// add adds words of that many bits.
func (v *isa) add(bits int, a any, b, to reg) {
	if bits == 32 {
		v.binary(three(VPADDD), PADDL, true, a, b, to)
	} else {
		v.binary(three(VPADDQ), PADDQ, true, a, b, to)
	}
}

// shift shifts words of that many bits: to the left, or with n < 0 to the right.
func (v *isa) shift(bits, n int, a, to reg) {
	var wide func(n, a, to Op)
	var narrow func(n, to Op)
	switch {
	case bits == 16 && n > 0:
		wide, narrow = three(VPSLLW), PSLLW
	case bits == 16:
		wide, narrow = three(VPSRLW), PSRLW
	case bits == 32 && n > 0:
		wide, narrow = three(VPSLLD), PSLLL
	case bits == 32:
		wide, narrow = three(VPSRLD), PSRLL
	case n > 0:
		wide, narrow = three(VPSLLQ), PSLLQ
	default:
		wide, narrow = three(VPSRLQ), PSRLQ
	}
	by := U8(max(n, -n))
	if v.vex {
		wide(by, v.r(int(a)), v.r(int(to)))
		return
	}
	v.move(a, to)
	narrow(by, v.r(int(to)))
}

// unpack interleaves the low or high halves' parts of that many bits: first a's.
func (v *isa) unpack(bits int, high bool, a, b, to reg) {
	switch {
	case bits == 32 && high:
		v.binary(three(VPUNPCKHDQ), PUNPCKHLQ, false, b, a, to)
	case bits == 32:
		v.binary(three(VPUNPCKLDQ), PUNPCKLLQ, false, b, a, to)
	case high:
		v.binary(three(VPUNPCKHQDQ), PUNPCKHQDQ, false, b, a, to)
	default:
		v.binary(three(VPUNPCKLQDQ), PUNPCKLQDQ, false, b, a, to)
	}
}

// move copies a register.
func (v *isa) move(a, to reg) {
	switch {
	case a == to:
	case v.vex:
		VMOVDQA(v.r(int(a)), v.r(int(to)))
	default:
		MOVO(v.r(int(a)), v.r(int(to)))
	}
}

// load and store need an aligned address.
func (v *isa) load(m Mem, to reg) {
	if v.vex {
		VMOVDQA(m, v.r(int(to)))
	} else {
		MOVO(m, v.r(int(to)))
	}
}

func (v *isa) store(a reg, m Mem) {
	if v.vex {
		VMOVDQA(v.r(int(a)), m)
	} else {
		MOVO(v.r(int(a)), m)
	}
}

// end returns from a kernel.
func (v *isa) end() {
	if v.vex {
		VZEROUPPER()
	}
	RET()
}

// advance adds off to n addresses, two registers' worth at least.
func (v *isa) advance(ptrs, off Register, n int) {
	if v.vex {
		MOVQ(off, X0)
		VPBROADCASTQ(X0, Y0)
	} else {
		MOVQ(off, X0)
		PUNPCKLQDQ(X0, X0)
	}
	for i := 0; i < n; i += v.width() / 8 {
		v.load(at(ptrs, 8*i), 1)
		v.add(64, reg(0), 1, 1)
		v.store(1, at(ptrs, 8*i))
	}
}

// constant makes a table with each value in all words of a register.
func (v *isa) constant(name string, bits int, values ...uint64) Mem {
	name += v.name
	if g, ok := globals[name]; ok {
		return g
	}
	g := GLOBL(name, RODATA|NOPTR)
	for i, value := range values {
		for at := 0; at < v.width(); at += bits / 8 {
			if bits == 32 {
				DATA(i*v.width()+at, U32(value))
			} else {
				DATA(i*v.width()+at, U64(value))
			}
		}
	}
	if len(values) == 1 && !v.vex { // the linker aligns what has 32 bytes to 32
		DATA(16, U64(0))
		DATA(24, U64(0))
	}
	globals[name] = g
	return g
}

// bytes makes a table for pshufb from what one 128-bit part of it is.
func (v *isa) bytes(name string, index func(i int) int) Mem {
	name += v.name
	if g, ok := globals[name]; ok {
		return g
	}
	g := GLOBL(name, RODATA|NOPTR)
	for i := range 32 {
		DATA(i, U8(index(i%16)))
	}
	globals[name] = g
	return g
}

// shuffle is vpshufb, in place.
func (v *isa) shuffle(m Mem, r reg) { VPSHUFB(m, v.r(int(r)), v.r(int(r))) }

// swap turns the bytes of words of that many bits around.
func (v *isa) swap(bits int, r, tmp reg) {
	if v.vex {
		n := bits / 8
		v.shuffle(v.bytes(fmt.Sprintf("turn%d", bits), func(i int) int { return i/n*n + n - 1 - i%n }), r)
		return
	}
	order := U8(0b10_11_00_01)
	if bits == 64 {
		order = U8(0b00_01_10_11)
	}
	PSHUFLW(order, xmm[r], xmm[r])
	PSHUFHW(order, xmm[r], xmm[r])
	v.shift(16, 8, r, tmp)
	v.shift(16, -8, r, r)
	v.or(tmp, r, r)
}

// rotate turns words of that many bits to the left, in place.
func (v *isa) rotate(bits, n int, r, tmp reg) {
	if v.vex && n%8 == 0 {
		w := bits / 8
		v.shuffle(v.bytes(fmt.Sprintf("rotate%dby%d", bits, n), func(i int) int { return i/w*w + (i%w+w-n/8)%w }), r)
		return
	}
	v.shift(bits, n, r, tmp)
	v.shift(bits, n-bits, r, r)
	v.or(tmp, r, r)
}

// forget clears the vector registers.
func (v *isa) forget() {
	TEXT("forget"+v.name, NOSPLIT, "func()")
	Doc("Clears the vector registers.")
	if v.vex {
		VZEROALL()
	} else {
		for _, x := range xmm[:16] {
			PXOR(x, x)
		}
	}
	RET()
}
