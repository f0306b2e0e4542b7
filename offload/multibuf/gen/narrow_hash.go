package main

import (
	"fmt"
	"math"
	"slices"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The kernels here are those of avx512_hash.go for sixteen registers and no vpternlog or rotation.

// some is the scaffold of a kernel that compresses blocks of a few messages: a set is as many as a register has words.
type some struct {
	*isa
	sets  int
	bits  int // of a word
	state Register
	w     Register // [16][set] registers' worth: the words
	ptrs  Register
	off   Register
	table Register // of constants
}

// perSet is the messages of a set.
func (m *some) perSet() int { return 8 * m.width() / m.bits }

func (m *some) lanes() int { return m.sets * m.perSet() }

// word is where word t of a set's block is.
func (m *some) word(t, set int) Mem { return at(m.w, m.width()*(t%16*m.sets+set)) }

// chaining is where a chaining value of a set is.
func (m *some) chaining(i, set int) Mem { return at(m.state, m.width()*(i*m.sets+set)) }

// k is where the round's constant is.
func (m *some) k(t int) Mem { return at(m.table, m.width()*t) }

func (m *some) eachSet(do func(set int)) {
	for set := range m.sets {
		do(set)
	}
}

// kernel emits the whole function around block, which is given the state's registers, words of them each, and may use
// those from 16-free on as it likes.
func (m *some) kernel(hash string, swap bool, words int, constants []uint64, block func(s [][]reg)) {
	typ := fmt.Sprintf("uint%d", m.bits)
	TEXT(fmt.Sprintf("%sx%d%s", hash, m.lanes(), m.name), 0, fmt.Sprintf("func(state *%s, ptrs *uintptr, blocks int, words *%s)", typ, typ))
	Doc(fmt.Sprintf("Compresses blocks of %d messages.", m.lanes()))
	m.state = Load(Param("state"), RAX)
	m.ptrs = Load(Param("ptrs"), RBX)
	blocks := Load(Param("blocks"), RCX)
	m.off, m.w, m.table = RDX, RDI, R8
	XORL(EDX, EDX)
	alignedLocal(m.width()*16*m.sets, m.w)
	LEAQ(m.constant(hash+"k", m.bits, constants...), m.table)
	Label("block")
	m.eachSet(func(set int) { m.transpose(set, swap) })
	s := make([][]reg, m.sets)
	m.eachSet(func(set int) {
		for i := range words {
			s[set] = append(s[set], reg(set*words+i))
			m.load(m.chaining(i, set), s[set][i])
		}
	})
	block(s)
	m.eachSet(func(set int) {
		for i, r := range s[set] {
			m.add(m.bits, m.chaining(i, set), r, r)
			m.store(r, m.chaining(i, set))
		}
	})
	ADDQ(I32(16*m.bits/8), m.off)
	DECQ(blocks)
	JNZ(LabelRef("block"))
	m.advance(m.ptrs, m.off, m.lanes())
	m.end()
}

// transpose puts the words of a set's blocks into memory, word by word: 16 bytes of each block at a time. In a 256-bit
// register, the second half of the messages has the upper half.
func (m *some) transpose(set int, swap bool) {
	p := []GPPhysical{RSI, R9, R10, R11, R12, R13, R14, R15}
	for l := range m.perSet() {
		MOVQ(at(m.ptrs, 8*(m.perSet()*set+l)), p[l])
	}
	n := 128 / m.bits // words in 16 bytes, and messages in half a register
	for part := range 16 / n {
		// Two parts can be worked on side by side.
		base, tmp := reg(part%2*6), reg(part%2*6+5)
		for i := range n {
			from := func(l int) Mem { return indexed(p[l], m.off, 16*part) }
			if m.vex {
				VMOVDQU(from(i), xmm[base+reg(i)])
				VINSERTI128(U8(1), from(i+n), ymm[base+reg(i)], ymm[base+reg(i)])
			} else {
				MOVOU(from(i), xmm[base+reg(i)])
			}
		}
		r := []reg{base, base + 1, base + 2, base + 3}[:n]
		spare := base + 4
		pair := func(bits, i, j int) {
			m.unpack(bits, true, r[i], r[j], spare)
			m.unpack(bits, false, r[i], r[j], r[i])
			r[j], spare = spare, r[j]
		}
		if n == 2 {
			pair(64, 0, 1)
		} else {
			pair(32, 0, 1)
			pair(32, 2, 3)
			pair(64, 0, 2)
			pair(64, 1, 3)
			r[1], r[2] = r[2], r[1]
		}
		for i, r := range r {
			if swap {
				m.swap(m.bits, r, tmp)
			}
			m.store(r, m.word(n*part+i, set))
		}
	}
}

// md5 is MD5 (RFC 1321).
func (v *isa) md5(sets int) {
	m := &some{isa: v, sets: sets, bits: 32}
	turns := [4][4]int{{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}}
	k := make([]uint64, 64)
	for i := range k {
		k[i] = uint64(math.Abs(math.Sin(float64(i+1))) * (1 << 32))
	}
	m.kernel("md5", false, 4, k, func(s [][]reg) {
		f := func(set int) reg { return reg(4*sets + set) }
		ones := reg(15)
		if m.vex {
			VPCMPEQD(ymm[ones], ymm[ones], ymm[ones])
		} else {
			PCMPEQL(xmm[ones], xmm[ones])
		}
		for t := range 64 {
			word := [4]int{t, 5*t + 1, 3*t + 5, 7 * t}[t/16] % 16
			step := func(do func(set int, a, b, c, d, f reg)) {
				m.eachSet(func(set int) { r := s[set]; do(set, r[0], r[1], r[2], r[3], f(set)) })
			}
			step(func(set int, a, b, c, d, f reg) { m.add(32, m.word(word, set), a, a) })
			step(func(set int, a, b, c, d, f reg) { m.add(32, m.k(t), a, a) })
			switch t / 16 {
			case 0:
				step(func(set int, a, b, c, d, f reg) { m.xor(d, c, f) })
				step(func(set int, a, b, c, d, f reg) { m.and(b, f, f) })
				step(func(set int, a, b, c, d, f reg) { m.xor(d, f, f) })
			case 1: // the two terms have no bit in common, so a sum does, and the first need not wait for b
				step(func(set int, a, b, c, d, f reg) { m.andn(c, d, f) })
				step(func(set int, a, b, c, d, f reg) { m.add(32, f, a, a) })
				step(func(set int, a, b, c, d, f reg) { m.and(b, d, f) })
			case 2:
				step(func(set int, a, b, c, d, f reg) { m.xor(d, c, f) })
				step(func(set int, a, b, c, d, f reg) { m.xor(b, f, f) })
			case 3:
				step(func(set int, a, b, c, d, f reg) { m.xor(ones, d, f) })
				step(func(set int, a, b, c, d, f reg) { m.or(b, f, f) })
				step(func(set int, a, b, c, d, f reg) { m.xor(c, f, f) })
			}
			step(func(set int, a, b, c, d, f reg) { m.add(32, f, a, a) })
			step(func(set int, a, b, c, d, f reg) { m.rotate(32, turns[t/16][t%4], a, f) })
			step(func(set int, a, b, c, d, f reg) { m.add(32, b, a, a) })
			m.eachSet(func(set int) { r := s[set]; s[set] = []reg{r[3], r[0], r[1], r[2]} })
		}
	})
}

// sha1 is SHA-1 (FIPS 180-4 section 6.1).
func (v *isa) sha1(sets int) {
	m := &some{isa: v, sets: sets, bits: 32}
	m.kernel("sha1", true, 5, []uint64{0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6}, func(s [][]reg) {
		for t := range 80 {
			step := func(do func(set int, a, b, c, d, e, w, x, f reg)) {
				m.eachSet(func(set int) {
					r, u := s[set], reg(5*sets+3*set)
					do(set, r[0], r[1], r[2], r[3], r[4], u, u+1, u+2)
				})
			}
			if t < 16 {
				step(func(set int, a, b, c, d, e, w, x, f reg) { m.add(32, m.word(t, set), e, e) })
			} else {
				step(func(set int, a, b, c, d, e, w, x, f reg) {
					m.load(m.word(t, set), w)
					m.xor(m.word(t+2, set), w, w)
					m.xor(m.word(t+8, set), w, w)
					m.xor(m.word(t+13, set), w, w)
				})
				step(func(set int, a, b, c, d, e, w, x, f reg) {
					m.add(32, w, w, x)
					m.shift(32, -31, w, w)
				})
				step(func(set int, a, b, c, d, e, w, x, f reg) {
					m.or(x, w, w)
					if t < 77 {
						m.store(w, m.word(t, set))
					}
					m.add(32, w, e, e)
				})
			}
			step(func(set int, a, b, c, d, e, w, x, f reg) { m.add(32, m.k(t/20), e, e) })
			switch t / 20 {
			case 0:
				step(func(set int, a, b, c, d, e, w, x, f reg) { m.xor(d, c, f) })
				step(func(set int, a, b, c, d, e, w, x, f reg) { m.and(b, f, f) })
				step(func(set int, a, b, c, d, e, w, x, f reg) { m.xor(d, f, f) })
			case 2: // two terms that have no bit in common
				step(func(set int, a, b, c, d, e, w, x, f reg) { m.xor(d, c, f); m.and(d, c, x) })
				step(func(set int, a, b, c, d, e, w, x, f reg) { m.and(b, f, f); m.add(32, x, e, e) })
			default:
				step(func(set int, a, b, c, d, e, w, x, f reg) { m.xor(d, c, f) })
				step(func(set int, a, b, c, d, e, w, x, f reg) { m.xor(b, f, f) })
			}
			step(func(set int, a, b, c, d, e, w, x, f reg) { m.shift(32, 5, a, x); m.shift(32, -27, a, w) })
			step(func(set int, a, b, c, d, e, w, x, f reg) { m.add(32, f, e, e); m.or(x, w, w) })
			step(func(set int, a, b, c, d, e, w, x, f reg) { m.add(32, w, e, e); m.rotate(32, 30, b, x) })
			m.eachSet(func(set int) { r := s[set]; s[set] = []reg{r[4], r[0], r[1], r[2], r[3]} })
		}
	})
}

// sigma xors three of a word's rotations, or two and a shift, into to. Where copies are free all shifts are of the word
// itself; else each is of the one before, in two chains, to the right and to the left.
func (m *some) sigma(rotations []int, shift int, from, to reg, u [3]reg) {
	right := slices.Clone(rotations)
	var left []int
	for _, n := range rotations {
		left = append(left, m.bits-n)
	}
	if shift > 0 {
		right = append(right, shift)
	}
	slices.Sort(right)
	slices.Sort(left)
	last := from
	chain := func(all []int, sign, i int, to reg) {
		if m.vex || i == 0 || shift == 0 {
			m.shift(m.bits, sign*all[i], from, to)
		} else {
			m.shift(m.bits, sign*(all[i]-all[i-1]), last, to)
		}
	}
	chain(right, -1, 0, to)
	chain(left, 1, 0, u[0])
	last = to
	chain(right, -1, 1, u[1])
	last = u[0]
	chain(left, 1, 1, u[2])
	m.xor(u[1], to, to)
	m.xor(u[2], u[0], u[0])
	last = u[1]
	chain(right, -1, 2, u[1])
	if len(left) == 3 {
		last = u[2]
		chain(left, 1, 2, u[2])
		m.xor(u[2], u[0], u[0])
	}
	m.xor(u[1], to, to)
	m.xor(u[0], to, to)
}

// sha2 is SHA-256 or SHA-512, one set: there is enough to do side by side within a round.
func (v *isa) sha2(h sha2) {
	m := &some{isa: v, sets: 1, bits: h.bits}
	m.kernel(h.name, true, 8, h.constants(), func(states [][]reg) {
		s := states[0]
		both, before, acc, u, w := reg(8), reg(9), reg(10), [3]reg{11, 12, 13}, reg(14)
		const a, b, c, d, e, f, g, hh = 0, 1, 2, 3, 4, 5, 6, 7
		m.xor(s[c], s[b], before)
		// The rounds after the first sixteen are a loop, of sixteen as well: all together would not stay in the processor's
		// cache of decoded instructions.
		end := RSI
		for t := range 32 {
			if t == 16 {
				LEAQ(at(m.table, m.width()*h.rounds), end)
				Label("rounds")
			}
			if t%16 == 0 && t > 0 {
				ADDQ(I32(16*m.width()), m.table)
			}
			if t < 16 {
				m.add(m.bits, m.word(t, 0), s[hh], s[hh])
			} else {
				m.load(m.word(t+1, 0), w)
				m.sigma(h.small0[:2], h.small0[2], w, acc, u)
				m.add(m.bits, m.word(t, 0), acc, acc)
				m.load(m.word(t+14, 0), w)
				m.add(m.bits, m.word(t+9, 0), acc, acc)
				m.sigma(h.small1[:2], h.small1[2], w, both, u)
				m.add(m.bits, both, acc, acc)
				m.store(acc, m.word(t, 0))
				m.add(m.bits, acc, s[hh], s[hh])
			}
			m.add(m.bits, m.k(t%16), s[hh], s[hh])
			m.xor(s[g], s[f], w)
			m.and(s[e], w, w)
			m.xor(s[g], w, w)
			m.sigma(h.big1[:], 0, s[e], acc, u)
			m.add(m.bits, w, s[hh], s[hh])
			m.add(m.bits, acc, s[hh], s[hh])
			m.add(m.bits, s[hh], s[d], s[d])
			// The majority is b where a and b agree, else c; where b and c agree was found out in the round before.
			m.xor(s[b], s[a], both)
			m.and(both, before, before)
			m.xor(s[b], before, before)
			m.sigma(h.big0[:], 0, s[a], acc, u)
			m.add(m.bits, before, s[hh], s[hh])
			m.add(m.bits, acc, s[hh], s[hh])
			both, before = before, both
			s = append([]reg{s[7]}, s[:7]...)
		}
		LEAQ(at(m.table, 16*m.width()), R9)
		CMPQ(R9, end)
		JNE(LabelRef("rounds"))
		SUBQ(I32((h.rounds-16)*m.width()), m.table)
	})
}
