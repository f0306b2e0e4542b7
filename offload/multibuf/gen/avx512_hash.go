package main

import (
	"fmt"
	"math"
	"math/big"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The kernels here compress one block of 16 messages (8, where words have 64 bits) per set: each register holds the same
// word of all of them. A chain of operations takes longer than a processor needs to start them, so two sets are interleaved
// where there are messages enough. The blocks' words are transposed into memory on the stack first: registers would do for
// one set only.

// many is the scaffold of such a kernel.
type many struct {
	sets  int
	bits  int // of a word
	state Register
	w     Register // [16][set] of 64 bytes: the words
	ptrs  Register
	off   Register
}

// lanes is the number of messages.
func (m *many) lanes() int { return m.sets * 512 / m.bits }

// word is where word t of a set's block is.
func (m *many) word(t, set int) Mem { return at(m.w, 64*(t%16*m.sets+set)) }

// chaining is where a chaining value of a set is.
func (m *many) chaining(i, set int) Mem { return at(m.state, 64*(i*m.sets+set)) }

// eachSet emits something once for each set.
func (m *many) eachSet(do func(set int)) {
	for set := 0; set < m.sets; set++ {
		do(set)
	}
}

// kernel emits the whole function around block. Blocks given as words go through the same code: a second copy would drive
// the first out of the instruction cache.
func (m *many) kernel(hash string, swap bool, block func()) {
	typ := fmt.Sprintf("uint%d", m.bits)
	TEXT(fmt.Sprintf("%sx%dAVX512", hash, m.lanes()), 0, fmt.Sprintf("func(state *%s, ptrs *uintptr, blocks int, words *%s)", typ, typ))
	Doc(fmt.Sprintf("Compresses blocks of %d messages.", m.lanes()))
	m.state = Load(Param("state"), RAX)
	m.ptrs = Load(Param("ptrs"), RBX)
	blocks := Load(Param("blocks"), RCX)
	m.off, m.w = RDX, RDI
	XORL(EDX, EDX)
	words := Load(Param("words"), RSI)
	TESTQ(words, words)
	JNZ(LabelRef("words"))
	alignedLocal(64*16*m.sets, m.w)
	Label("block")
	m.eachSet(func(set int) {
		if m.bits == 32 {
			m.transpose32(set, swap)
		} else {
			m.transpose64(set)
		}
	})
	Label("compress")
	block()
	ADDQ(U32(16*m.bits/8), m.off)
	DECQ(blocks)
	JNZ(LabelRef("block"))
	Load(Param("words"), RSI)
	TESTQ(RSI, RSI)
	JNE(LabelRef("done"))
	advance512(m.ptrs, m.off, m.lanes(), 0)
	Label("done")
	VZEROUPPER()
	RET()
	Label("words")
	MOVQ(words, m.w)
	MOVQ(U32(1), blocks)
	JMP(LabelRef("compress"))
}

// byteOrder is a table for vpshufb that turns words of that many bytes around.
func byteOrder(bytes int) Mem {
	name := fmt.Sprintf("turn%d", 8*bytes)
	if turn, ok := globals[name]; ok {
		return turn
	}
	g := GLOBL(name, RODATA|NOPTR)
	for i := 0; i < 64; i++ {
		DATA(i, U8(i%16/bytes*bytes+bytes-1-i%bytes))
	}
	globals[name] = g
	return g
}

var globals = map[string]Mem{}

// table makes a table of constants.
func table(name string, bits int, values []uint64) Mem {
	if g, ok := globals[name]; ok {
		return g
	}
	g := GLOBL(name, RODATA|NOPTR)
	for i, v := range values {
		if bits == 32 {
			DATA(4*i, U32(v))
		} else {
			DATA(8*i, U64(v))
		}
	}
	globals[name] = g
	return g
}

// transpose32 puts the words of a set's 16 blocks into memory, word by word.
func (m *many) transpose32(set int, swap bool) {
	// r is which register holds what; exchanges cost no instruction, with one spare.
	r := make([]int, 16)
	for i := range r {
		r[i] = i
		MOVQ(at(m.ptrs, 8*(16*set+i)), RSI)
		VMOVDQU32(indexed(RSI, m.off, 0), zmm[i])
	}
	spare := 16
	pair := func(i, j int, low, high func(a, b, to int)) {
		high(r[i], r[j], spare)
		low(r[i], r[j], r[i])
		r[j], spare = spare, r[j]
	}
	shuffle := func(imm int) func(a, b, to int) {
		return func(a, b, to int) { VSHUFI32X4(U8(imm), zmm[b], zmm[a], zmm[to]) }
	}
	for i := 0; i < 16; i += 2 { // pairs of words
		pair(i, i+1,
			func(a, b, to int) { VPUNPCKLDQ(zmm[b], zmm[a], zmm[to]) },
			func(a, b, to int) { VPUNPCKHDQ(zmm[b], zmm[a], zmm[to]) })
	}
	for i := 0; i < 16; i += 4 { // words of four blocks
		for j := i; j < i+2; j++ {
			pair(j, j+2,
				func(a, b, to int) { VPUNPCKLQDQ(zmm[b], zmm[a], zmm[to]) },
				func(a, b, to int) { VPUNPCKHQDQ(zmm[b], zmm[a], zmm[to]) })
		}
	}
	// Register 4i+j now holds words j', j'+4, j'+8, j'+12 of blocks 4i to 4i+3, in 128-bit parts.
	for j := 0; j < 4; j++ {
		pair(j, 4+j, shuffle(0x44), shuffle(0xee))
		pair(8+j, 12+j, shuffle(0x44), shuffle(0xee))
		pair(j, 8+j, shuffle(0x88), shuffle(0xdd))
		pair(4+j, 12+j, shuffle(0x88), shuffle(0xdd))
	}
	// Where the network leaves word t: the pair steps have exchanged the middle ones.
	column := [4]int{0, 2, 1, 3}
	row := [4]int{0, 8, 4, 12}
	turn := 31
	if swap {
		VMOVDQU64(byteOrder(4), zmm[turn])
	}
	for t := 0; t < 16; t++ {
		from := r[row[t/4]+column[t%4]]
		if swap {
			VPSHUFB(zmm[turn], zmm[from], zmm[from])
		}
		VMOVDQA64(zmm[from], m.word(t, set))
	}
}

// transpose64 does the same for a set's 8 blocks of 64-bit words, half by half.
func (m *many) transpose64(set int) {
	turn := 31
	VMOVDQU64(byteOrder(8), zmm[turn])
	for half := 0; half < 2; half++ {
		r := make([]int, 8)
		for i := range r {
			r[i] = i
			MOVQ(at(m.ptrs, 8*(8*set+i)), RSI)
			VMOVDQU64(indexed(RSI, m.off, 64*half), zmm[i])
		}
		spare := 8
		pair := func(i, j int, low, high func(a, b, to int)) {
			high(r[i], r[j], spare)
			low(r[i], r[j], r[i])
			r[j], spare = spare, r[j]
		}
		shuffle := func(imm int) func(a, b, to int) {
			return func(a, b, to int) { VSHUFI64X2(U8(imm), zmm[b], zmm[a], zmm[to]) }
		}
		for i := 0; i < 8; i += 2 {
			pair(i, i+1,
				func(a, b, to int) { VPUNPCKLQDQ(zmm[b], zmm[a], zmm[to]) },
				func(a, b, to int) { VPUNPCKHQDQ(zmm[b], zmm[a], zmm[to]) })
		}
		for j := 0; j < 2; j++ {
			pair(j, 2+j, shuffle(0x44), shuffle(0xee))
			pair(4+j, 6+j, shuffle(0x44), shuffle(0xee))
			pair(j, 4+j, shuffle(0x88), shuffle(0xdd))
			pair(2+j, 6+j, shuffle(0x88), shuffle(0xdd))
		}
		row := [4]int{0, 4, 2, 6}
		for t := 0; t < 8; t++ {
			from := r[row[t/2]+t%2]
			VPSHUFB(zmm[turn], zmm[from], zmm[from])
			VMOVDQA64(zmm[from], m.word(8*half+t, set))
		}
	}
}

// Truth tables of vpternlog, whose operands are the destination's old value, the middle and the first one.
const (
	choose   = 0xca // a ? b : c
	majority = 0xe8
	parity   = 0x96
	md5I     = 0x39 // b ^ (a | ^c)
)

// bank hands the registers out: each set's state, then each set's temporaries.
type bank struct{ next int }

func (b *bank) take(n int) []int {
	r := make([]int, n)
	for i := range r {
		r[i] = b.next
		b.next++
	}
	return r
}

// md5x16 is MD5 (RFC 1321).
func md5x16(sets int) {
	m := &many{sets: sets, bits: 32}
	turns := [4][4]int{{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}}
	k := make([]uint64, 64)
	for i := range k {
		k[i] = uint64(math.Abs(math.Sin(float64(i+1))) * (1 << 32))
	}
	m.kernel("md5", false, func() {
		constants := table("md5k", 32, k)
		LEAQ(constants, R8)
		var b bank
		s, f := make([][]int, sets), make([]int, sets)
		m.eachSet(func(set int) { s[set], f[set] = b.take(4), b.take(1)[0] })
		m.eachSet(func(set int) {
			for i, r := range s[set] {
				VMOVDQU32(m.chaining(i, set), zmm[r])
			}
		})
		for t := 0; t < 64; t++ {
			word := [4]int{t, 5*t + 1, 3*t + 5, 7 * t}[t/16] % 16
			step := func(do func(set, a, b, c, d, f int)) {
				m.eachSet(func(set int) { r := s[set]; do(set, r[0], r[1], r[2], r[3], f[set]) })
			}
			step(func(set, a, b, c, d, f int) { VPADDD(m.word(word, set), zmm[a], zmm[a]) })
			step(func(set, a, b, c, d, f int) {
				if t/16 == 1 {
					VMOVDQA32(zmm[d], zmm[f])
				} else {
					VMOVDQA32(zmm[b], zmm[f])
				}
			})
			step(func(set, a, b, c, d, f int) { VPADDD_BCST(at(R8, 4*t), zmm[a], zmm[a]) })
			step(func(set, a, b, c, d, f int) {
				switch t / 16 {
				case 0:
					VPTERNLOGD(U8(choose), zmm[d], zmm[c], zmm[f])
				case 1:
					VPTERNLOGD(U8(choose), zmm[c], zmm[b], zmm[f])
				case 2:
					VPTERNLOGD(U8(parity), zmm[d], zmm[c], zmm[f])
				case 3:
					VPTERNLOGD(U8(md5I), zmm[d], zmm[c], zmm[f])
				}
			})
			step(func(set, a, b, c, d, f int) { VPADDD(zmm[f], zmm[a], zmm[a]) })
			step(func(set, a, b, c, d, f int) { VPROLD(U8(turns[t/16][t%4]), zmm[a], zmm[a]) })
			step(func(set, a, b, c, d, f int) { VPADDD(zmm[b], zmm[a], zmm[a]) })
			m.eachSet(func(set int) { r := s[set]; s[set] = []int{r[3], r[0], r[1], r[2]} })
		}
		m.fold32(s)
	})
}

// fold32 adds the chaining values that the block began with, and stores the sums.
func (m *many) fold32(s [][]int) {
	m.eachSet(func(set int) {
		for i, r := range s[set] {
			VPADDD(m.chaining(i, set), zmm[r], zmm[r])
			VMOVDQU32(zmm[r], m.chaining(i, set))
		}
	})
}

// sha1x16 is SHA-1 (FIPS 180-4 section 6.1).
func sha1x16(sets int) {
	m := &many{sets: sets, bits: 32}
	m.kernel("sha1", true, func() {
		constants := table("sha1k", 32, []uint64{0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6})
		var bk bank
		s, tmp := make([][]int, sets), make([][]int, sets)
		m.eachSet(func(set int) { s[set], tmp[set] = bk.take(5), bk.take(3) })
		k := bk.take(1)[0]
		m.eachSet(func(set int) {
			for i, r := range s[set] {
				VMOVDQU32(m.chaining(i, set), zmm[r])
			}
		})
		functions := []int{choose, parity, majority, parity}
		for t := 0; t < 80; t++ {
			if t%20 == 0 {
				VPBROADCASTD(constants.Offset(4*(t/20)), zmm[k])
			}
			step := func(do func(set, a, b, c, d, e, w, x, f int)) {
				m.eachSet(func(set int) {
					r, u := s[set], tmp[set]
					do(set, r[0], r[1], r[2], r[3], r[4], u[0], u[1], u[2])
				})
			}
			if t >= 16 {
				step(func(set, a, b, c, d, e, w, x, f int) {
					VMOVDQA32(m.word(t, set), zmm[w])
					VMOVDQA32(m.word(t+2, set), zmm[x])
				})
				step(func(set, a, b, c, d, e, w, x, f int) {
					VPXORD(m.word(t+13, set), zmm[w], zmm[w])
					VPTERNLOGD(U8(parity), m.word(t+8, set), zmm[x], zmm[w])
				})
				step(func(set, a, b, c, d, e, w, x, f int) {
					VPROLD(U8(1), zmm[w], zmm[w])
					if t < 77 {
						VMOVDQA32(zmm[w], m.word(t, set))
					}
				})
			}
			step(func(set, a, b, c, d, e, w, x, f int) {
				VPADDD(zmm[k], zmm[e], zmm[e])
				VMOVDQA32(zmm[b], zmm[f])
			})
			step(func(set, a, b, c, d, e, w, x, f int) {
				VPTERNLOGD(U8(functions[t/20]), zmm[d], zmm[c], zmm[f])
				VPROLD(U8(5), zmm[a], zmm[x])
			})
			step(func(set, a, b, c, d, e, w, x, f int) {
				if t >= 16 {
					VPADDD(zmm[w], zmm[e], zmm[e])
				} else {
					VPADDD(m.word(t, set), zmm[e], zmm[e])
				}
				VPROLD(U8(30), zmm[b], zmm[b])
			})
			step(func(set, a, b, c, d, e, w, x, f int) { VPADDD(zmm[f], zmm[e], zmm[e]) })
			step(func(set, a, b, c, d, e, w, x, f int) { VPADDD(zmm[x], zmm[e], zmm[e]) })
			m.eachSet(func(set int) { r := s[set]; s[set] = []int{r[4], r[0], r[1], r[2], r[3]} })
		}
		m.fold32(s)
	})
}

// sha2 is what SHA-256 and SHA-512 differ in (FIPS 180-4 sections 4.1.2, 4.1.3, 6.2, 6.4).
type sha2 struct {
	name           string
	bits, rounds   int
	big0, big1     [3]int // rotations
	small0, small1 [3]int // two rotations, and a shift
}

var (
	sha256 = sha2{"sha256", 32, 64, [3]int{2, 13, 22}, [3]int{6, 11, 25}, [3]int{7, 18, 3}, [3]int{17, 19, 10}}
	sha512 = sha2{"sha512", 64, 80, [3]int{28, 34, 39}, [3]int{14, 18, 41}, [3]int{1, 8, 7}, [3]int{19, 61, 6}}
)

// constants are the first bits of the fractions of the cube roots of the first primes.
func (h *sha2) constants() []uint64 {
	var k []uint64
	for n := int64(2); len(k) < h.rounds; n++ {
		if !big.NewInt(n).ProbablyPrime(0) {
			continue
		}
		// The root, times 2^64: the integer whose cube is just below n·2^192.
		target := new(big.Int).Lsh(big.NewInt(n), 192)
		low, high := new(big.Int), new(big.Int).Lsh(big.NewInt(n), 64)
		for new(big.Int).Sub(high, low).Cmp(big.NewInt(1)) > 0 {
			middle := new(big.Int).Rsh(new(big.Int).Add(low, high), 1)
			if new(big.Int).Exp(middle, big.NewInt(3), nil).Cmp(target) <= 0 {
				low = middle
			} else {
				high = middle
			}
		}
		fraction := new(big.Int).And(low, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
		k = append(k, fraction>>(64-h.bits))
	}
	return k
}

// sha2x16 is SHA-256 on 16 messages a set, or SHA-512 on 8.
func sha2x16(h sha2, sets int) {
	m := &many{sets: sets, bits: h.bits}
	wide := h.bits == 64
	add := func(a, b Op, to int) {
		if wide {
			VPADDQ(a, b, zmm[to])
		} else {
			VPADDD(a, b, zmm[to])
		}
	}
	rotate := func(n, from, to int) {
		if wide {
			VPRORQ(U8(n), zmm[from], zmm[to])
		} else {
			VPRORD(U8(n), zmm[from], zmm[to])
		}
	}
	shift := func(n, from, to int) {
		if wide {
			VPSRLQ(U8(n), zmm[from], zmm[to])
		} else {
			VPSRLD(U8(n), zmm[from], zmm[to])
		}
	}
	logic := func(f, a, b, to int) {
		if wide {
			VPTERNLOGQ(U8(f), zmm[a], zmm[b], zmm[to])
		} else {
			VPTERNLOGD(U8(f), zmm[a], zmm[b], zmm[to])
		}
	}
	m.kernel(h.name, true, func() {
		constants := table(h.name+"k", h.bits, h.constants())
		LEAQ(constants, R8)
		var bk bank
		s, tmp := make([][]int, sets), make([][]int, sets)
		m.eachSet(func(set int) { s[set], tmp[set] = bk.take(8), bk.take(7) })
		m.eachSet(func(set int) {
			for i, r := range s[set] {
				VMOVDQU64(m.chaining(i, set), zmm[r])
			}
		})
		// The first sixteen rounds take the block's words. The others, which make their own from them, are a loop of sixteen:
		// all rounds in a row would be more than the instruction cache holds.
		for t := range 32 {
			if t == 16 {
				MOVQ(U32(h.rounds/16-1), R9)
				Label("rounds")
			}
			step := func(do func(set int, r, u []int)) {
				m.eachSet(func(set int) { do(set, s[set], tmp[set]) })
			}
			const a, b, c, d, e, f, g, hh = 0, 1, 2, 3, 4, 5, 6, 7
			if t >= 16 {
				step(func(set int, r, u []int) {
					VMOVDQA64(m.word(t+14, set), zmm[u[0]])
					VMOVDQA64(m.word(t+1, set), zmm[u[1]])
					VMOVDQA64(m.word(t, set), zmm[u[2]])
				})
				step(func(set int, r, u []int) {
					rotate(h.small1[0], u[0], u[3])
					rotate(h.small1[1], u[0], u[4])
					shift(h.small1[2], u[0], u[0])
					add(m.word(t+9, set), zmm[u[2]], u[2])
				})
				step(func(set int, r, u []int) {
					logic(parity, u[3], u[4], u[0])
					rotate(h.small0[0], u[1], u[3])
					rotate(h.small0[1], u[1], u[4])
					shift(h.small0[2], u[1], u[1])
				})
				step(func(set int, r, u []int) {
					add(zmm[u[0]], zmm[u[2]], u[2])
					logic(parity, u[3], u[4], u[1])
				})
				step(func(set int, r, u []int) {
					add(zmm[u[1]], zmm[u[2]], u[2])
					VMOVDQA64(zmm[u[2]], m.word(t, set))
				})
			}
			step(func(set int, r, u []int) {
				if wide {
					VPADDQ_BCST(at(R8, 8*(t%16)), zmm[r[hh]], zmm[r[hh]])
				} else {
					VPADDD_BCST(at(R8, 4*(t%16)), zmm[r[hh]], zmm[r[hh]])
				}
				rotate(h.big1[0], r[e], u[3])
				rotate(h.big1[1], r[e], u[4])
				VMOVDQA64(zmm[r[e]], zmm[u[0]])
			})
			step(func(set int, r, u []int) {
				rotate(h.big1[2], r[e], u[5])
				logic(choose, r[g], r[f], u[0])
				if t >= 16 {
					add(zmm[u[2]], zmm[r[hh]], r[hh])
				} else {
					add(m.word(t, set), zmm[r[hh]], r[hh])
				}
			})
			step(func(set int, r, u []int) {
				logic(parity, u[3], u[4], u[5])
				add(zmm[u[0]], zmm[r[hh]], r[hh])
				VMOVDQA64(zmm[r[a]], zmm[u[1]])
			})
			step(func(set int, r, u []int) {
				add(zmm[u[5]], zmm[r[hh]], r[hh])
				rotate(h.big0[0], r[a], u[3])
				rotate(h.big0[1], r[a], u[4])
			})
			step(func(set int, r, u []int) {
				rotate(h.big0[2], r[a], u[6])
				logic(majority, r[c], r[b], u[1])
				add(zmm[r[hh]], zmm[r[d]], r[d])
			})
			step(func(set int, r, u []int) {
				logic(parity, u[3], u[4], u[6])
				add(zmm[u[1]], zmm[r[hh]], r[hh])
			})
			step(func(set int, r, u []int) { add(zmm[u[6]], zmm[r[hh]], r[hh]) })
			m.eachSet(func(set int) { r := s[set]; s[set] = append([]int{r[7]}, r[:7]...) })
			if t == 15 || t == 31 {
				ADDQ(U32(16*h.bits/8), R8)
			}
		}
		DECQ(R9)
		JNZ(LabelRef("rounds"))
		m.eachSet(func(set int) {
			for i, r := range s[set] {
				add(m.chaining(i, set), zmm[r], r)
				VMOVDQU64(zmm[r], m.chaining(i, set))
			}
		})
	})
}
