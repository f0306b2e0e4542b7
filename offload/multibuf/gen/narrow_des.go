package main

import (
	"fmt"
	"math/rand/v2"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The kernels here hold a bit of as many blocks as a register has bits in a row of memory, and compute the S-boxes as
// circuits. Permutations cost nothing: they say which row is meant. A key is rows too, so each lane may have its own, and
// one kernel serves for one key and for many.

// boxSeeds are the best that searches of a few hundred seeds have found: 53 operations on the average, up to 24 of which
// wait for each other.
var boxSeeds = [8]uint64{3093, 814, 1415, 3262, 1267, 3175, 1057, 1109}

// boxOrder is the order of S-boxes within a round: of all orders, one that leaves most time between an S-box and the first of
// the next round that waits for it.
var boxOrder = [8]int{0, 1, 3, 4, 5, 6, 7, 2}

// keyRows is the rows of one DES key: both halves of what the key schedule rotates, twice, so that a rotation is an offset.
const keyRows = 4 * 28

// ipBit is which bit of a block, as a little-endian word, the initial permutation puts to place o from the left.
func ipBit(o int) int {
	n := []int{58, 60, 62, 64, 57, 59, 61, 63}[o/8] - 8*(o%8) - 1
	return n/8*8 + 7 - n%8
}

// slicer writes a kernel.
type slicer struct {
	*isa
	ptrs, chain, off Register
	rows             Register // both halves
	blocks           Register // rows of blocks
	saved            Register // to decrypt: the blocks that come in
	spill            Register
}

const spills = 12

func (s *slicer) lanes() int { return 8 * s.width() }

func (s *slicer) row(base Register, i int) Mem { return at(base, s.width()*i) }

// des3 is 3DES-CBC, in place.
func (v *isa) des3(encrypt bool) {
	s := &slicer{isa: v}
	name, doc := "Decrypt", "Decrypts"
	if encrypt {
		name, doc = "Encrypt", "Encrypts"
	}
	TEXT("des3"+name+v.name, 0, "func(keys *byte, chain *uint64, ptrs *uintptr, blocks int)")
	Doc(fmt.Sprintf("%s %d packets or pieces of them.", doc, s.lanes()))
	keys := Load(Param("keys"), RAX)
	s.chain = Load(Param("chain"), RBX)
	s.ptrs = Load(Param("ptrs"), RCX)
	left := Load(Param("blocks"), RDX)
	s.off, s.rows = R8, R9
	XORL(R8L, R8L)
	n := s.width() * 64
	saved := AllocLocal(8)
	alignedLocal(3*n+spills*s.width(), s.rows)
	s.blocks, s.saved, s.spill = R10, R11, R12
	LEAQ(at(s.rows, n), s.blocks)
	LEAQ(at(s.rows, 2*n), s.saved)
	LEAQ(at(s.rows, 3*n), s.spill)

	Label("block")
	s.gather(encrypt)
	for group := range 8 { // bits 4, 2, 1 of a row's number
		s.transpose(4, func(i int) Mem { return s.row(s.blocks, 8*group+i) }, nil, nil)
		for i := range 8 {
			for o := range 64 {
				if ipBit(o) == 8*group+i {
					s.store(reg(i), s.row(s.rows, o))
				}
			}
		}
	}
	// The halves change places after each DES, and R13 and R14 with them.
	l, r, key, offsets, round, pass := R13, R14, R15, RSI, RDI, left
	MOVQ(s.rows, l)
	LEAQ(at(s.rows, n/2), r)
	LEAQ(s.offsets(encrypt), offsets)
	MOVQ(left, saved)
	MOVL(U32(3), EDX)
	Label("des")
	MOVL(U32(8), EDI)
	Label("rounds")
	for i := range 2 {
		MOVL(at(offsets, 4*i), R15L)
		ADDQ(keys, key)
		s.round(l, r, key)
		l, r = r, l
	}
	ADDQ(I8(8), offsets)
	DECQ(round)
	JNZ(LabelRef("rounds"))
	XCHGQ(l, r)
	DECQ(pass)
	JNZ(LabelRef("des"))
	MOVQ(saved, left)
	for group := range 8 {
		s.transpose(4, func(i int) Mem {
			for o := range 64 {
				if ipBit(o) == 8*group+i {
					if o < 32 {
						return s.row(l, o)
					}
					return s.row(r, o-32)
				}
			}
			panic("gen: a bit is missing")
		}, nil, func(i int) Mem { return s.row(s.blocks, 8*group+i) })
	}
	s.scatter(encrypt)
	ADDQ(I8(8), s.off)
	DECQ(left)
	JNZ(LabelRef("block"))
	s.advance(s.ptrs, s.off, s.lanes())
	s.end()
}

// offsets makes the table of where in the keys' rows each of the 48 rounds' key begins. A key's rotation does not depend
// on it: rounds of a decryption go through the rotations backwards.
func (s *slicer) offsets(encrypt bool) Mem {
	var offsets [48]uint64
	for pass := range 3 {
		turned := 0
		for i := range 16 {
			turned += keyRotations[i]
			round := i
			if (pass == 1) == encrypt {
				round = 15 - i
			}
			offsets[16*pass+round] = uint64(s.width() * (keyRows*pass + turned))
		}
	}
	if encrypt {
		return table("encryptRounds"+s.name, 32, offsets[:])
	}
	return table("decryptRounds"+s.name, 32, offsets[:])
}

// gather collects a block of each lane. Row i has the blocks of as many lanes as there are 64-bit words in a register, in
// order; transposed, bit i of these words is these lanes'.
func (s *slicer) gather(encrypt bool) {
	per := s.width() / 8
	for group := range 8 {
		s.transpose(32, func(int) Mem { panic("gen: no memory") }, func(i int) {
			n := 8*i + group
			load := func(lane, to int) {
				MOVQ(at(s.ptrs, 8*lane), RDI)
				MOVQ(at(s.ptrs, 8*lane+8), RSI)
				if s.vex {
					VMOVQ(indexed(RDI, s.off, 0), xmm[to])
					VMOVHPS(indexed(RSI, s.off, 0), xmm[to], xmm[to])
				} else {
					MOVQ(indexed(RDI, s.off, 0), xmm[to])
					MOVHPS(indexed(RSI, s.off, 0), xmm[to])
				}
			}
			load(per*n, i)
			if s.vex {
				load(per*n+2, 8)
				VINSERTI128(U8(1), xmm[8], ymm[i], ymm[i])
			}
			if encrypt {
				s.xor(s.row(s.chain, n), reg(i), reg(i))
			} else {
				s.store(reg(i), s.row(s.saved, n))
			}
		}, func(i int) Mem { return s.row(s.blocks, 8*i+group) })
	}
}

// scatter is what follows the other way.
func (s *slicer) scatter(encrypt bool) {
	per := s.width() / 8
	for group := range 8 {
		s.transpose(32, func(i int) Mem { return s.row(s.blocks, 8*i+group) }, nil, nil)
		for i := range 8 {
			n := 8*i + group
			if encrypt {
				s.store(reg(i), s.row(s.chain, n))
			} else {
				s.xor(s.row(s.chain, n), reg(i), reg(i))
				s.load(s.row(s.saved, n), 8)
				s.store(8, s.row(s.chain, n))
			}
			put := func(lane, from int) {
				MOVQ(at(s.ptrs, 8*lane), RDI)
				MOVQ(at(s.ptrs, 8*lane+8), RSI)
				if s.vex {
					VMOVQ(xmm[from], indexed(RDI, s.off, 0))
					VMOVHPS(xmm[from], indexed(RSI, s.off, 0))
				} else {
					MOVQ(xmm[from], indexed(RDI, s.off, 0))
					MOVHPS(xmm[from], indexed(RSI, s.off, 0))
				}
			}
			put(per*n, i)
			if s.vex {
				VEXTRACTI128(U8(1), ymm[i], xmm[8])
				put(per*n+2, 8)
			}
		}
	}
}

// transpose does three of the six steps that transpose 64 words of 64 bits, on eight rows: those that exchange the bits of
// top, top/2 and top/4 of a row's number with those of a bit's. It leaves the rows in registers 0 to 7, or stores them.
func (s *slicer) transpose(top int, from func(i int) Mem, get func(i int), to func(i int) Mem) {
	for i := range 8 {
		if get != nil {
			get(i)
		} else {
			s.load(from(i), reg(i))
		}
	}
	const tmp = reg(9)
	for step, j := 4, top; step > 0; step, j = step/2, j/2 {
		var mask uint64
		for bit := range 64 {
			if bit&j == 0 {
				mask |= 1 << bit
			}
		}
		s.load(s.constant(fmt.Sprintf("low%d", j), 64, mask), 8)
		for i := range reg(8) {
			if int(i)&step != 0 {
				continue
			}
			a, b := i, i+reg(step)
			s.shift(64, -j, a, tmp)
			s.xor(b, tmp, tmp)
			s.and(reg(8), tmp, tmp)
			s.xor(tmp, b, b)
			s.shift(64, j, tmp, tmp)
			s.xor(tmp, a, a)
		}
	}
	if to != nil {
		for i := range 8 {
			s.store(reg(i), to(i))
		}
	}
}

// round adds what the S-boxes make of r to l.
func (s *slicer) round(l, r, key Register) {
	for _, box := range boxOrder {
		c := boxCircuit(box)
		inputs := func(i int) (half, k Mem) {
			w := wiring[box][5-i]
			n := permutedChoice2[6*box+5-i] - 1
			return s.row(r, w.half), s.row(key, n/28*56+n%28)
		}
		outputs := func(bit int) Mem {
			for half, from := range permutationP {
				if from-1 == 4*box+3-bit {
					return s.row(l, half)
				}
			}
			panic("gen: an output is missing")
		}
		s.emit(c, inputs, outputs)
	}
}

var boxCircuits [8]*circuit

// boxCircuit finds an S-box's circuit again.
func boxCircuit(box int) *circuit {
	if boxCircuits[box] == nil {
		var table [64]uint8
		for x := range table {
			table[x] = sBoxes[box][x>>5<<1|x&1][x>>1&15]
		}
		c := searchBox(&table, boxSeeds[box])
		for x := range table {
			var y uint8
			for bit, g := range c.out {
				y |= uint8(c.value[g]>>x&1) << bit
			}
			if y != table[x] {
				panic("gen: the circuit is not the S-box's")
			}
		}
		boxCircuits[box] = &c
	}
	return boxCircuits[box]
}

// emit writes a circuit's operations. A value that is not needed for longest leaves its register for the stack when one is
// needed; an input comes from its rows again instead. Many orders are tried.
func (s *slicer) emit(c *circuit, input func(i int) (half, k Mem), output func(bit int) Mem) {
	best := &allocation{cost: 1 << 30}
	for seed := range uint64(400) {
		a := s.allocate(c, c.order(seed))
		if a.cost < best.cost {
			best = a
		}
	}
	for _, do := range best.ops {
		do(input, output)
	}
}

// order is an order in which the gates can be computed: depth first, from the outputs.
func (c *circuit) order(seed uint64) (order []int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	done := map[int]bool{}
	var visit func(g int)
	visit = func(g int) {
		if done[g] || g < 6 {
			return
		}
		done[g] = true
		a, b := c.gates[g].a, c.gates[g].b
		if rnd.IntN(2) == 0 {
			a, b = b, a
		}
		visit(a)
		visit(b)
		order = append(order, g)
	}
	for _, o := range rnd.Perm(4) {
		visit(c.out[o])
	}
	return order
}

// allocation is operations with their registers.
type allocation struct {
	cost int
	ops  []func(input func(i int) (half, k Mem), output func(bit int) Mem)
}

// allocate assigns registers to values.
func (s *slicer) allocate(c *circuit, order []int) *allocation {
	a := &allocation{}
	emit := func(cost int, op func(input func(i int) (half, k Mem), output func(bit int) Mem)) {
		a.cost += cost
		a.ops = append(a.ops, op)
	}
	type In = func(i int) (half, k Mem)
	type Out = func(bit int) Mem
	uses := map[int][]int{} // of each value, when; outputs are used once more, right after they are there
	for t, g := range order {
		uses[c.gates[g].a] = append(uses[c.gates[g].a], t)
		if c.gates[g].op != gateNot {
			uses[c.gates[g].b] = append(uses[c.gates[g].b], t)
		}
	}
	next := func(v, now int) int {
		for _, t := range uses[v] {
			if t > now {
				return t
			}
		}
		return 1 << 20
	}
	where := map[int]reg{}
	var held [16]int
	for i := range held {
		held[i] = -1
	}
	slot := map[int]int{}
	free := func(v int) {
		if r, ok := where[v]; ok {
			held[r] = -1
			delete(where, v)
		}
	}
	take := func(now int, keep ...int) reg {
		worst, far := -1, -1
		for r, v := range held {
			if v < 0 {
				return reg(r)
			}
			kept := false
			for _, k := range keep {
				kept = kept || v == k
			}
			if n := next(v, now-1); !kept && n > far {
				worst, far = r, n
			}
		}
		v := held[worst]
		if _, saved := slot[v]; v >= 6 && !saved && far < 1<<20 {
			n := len(slot)
			slot[v] = n
			if n >= spills {
				a.cost += 1000
			}
			emit(2, func(In, Out) { s.store(reg(worst), s.row(s.spill, n)) })
		}
		free(v)
		return reg(worst)
	}
	put := func(v int, r reg) { where[v], held[r] = r, v }
	// get makes sure that a value is in a register.
	get := func(v, now int, keep ...int) reg {
		if r, ok := where[v]; ok {
			return r
		}
		r := take(now, keep...)
		if n, ok := slot[v]; ok {
			emit(2, func(In, Out) { s.load(s.row(s.spill, n), r) })
		} else {
			emit(2, func(in In, _ Out) {
				half, k := in(v)
				s.load(half, r)
				s.xor(k, r, r)
			})
		}
		put(v, r)
		return r
	}
	for t, g := range order {
		op, x, y := c.gates[g].op, c.gates[g].a, c.gates[g].b
		rx := get(x, t, x, y)
		ry := rx
		if op != gateNot {
			ry = get(y, t, x, y)
		}
		xDies, yDies := next(x, t) == 1<<20, next(y, t) == 1<<20
		// The destination: an operand that dies, if the operation can be done in place, or another register.
		var to reg
		switch {
		case xDies: // also what andn destroys
			to = rx
			free(x)
			if yDies && y != x {
				free(y)
			}
		case yDies && op != gateAndn && op != gateNot:
			to = ry
			free(y)
		default:
			if yDies && op != gateNot && s.vex {
				to = ry
				free(y)
				break
			}
			to = take(t+1, x, y)
			if !s.vex {
				a.cost++
			}
			if yDies && op != gateNot {
				free(y)
			}
		}
		put(g, to)
		emit(1, func(In, Out) {
			switch op {
			case gateAnd:
				s.and(ry, rx, to)
			case gateOr:
				s.or(ry, rx, to)
			case gateXor:
				s.xor(ry, rx, to)
			case gateAndn:
				s.andn(ry, rx, to)
			case gateNot:
				s.xor(s.constant("ones", 64, 1<<64-1), rx, to)
			}
		})
		for bit, o := range c.out {
			if o != g {
				continue
			}
			r := to
			if next(g, t) < 1<<20 {
				r = take(t+1, g)
				a.cost++
			} else {
				free(g)
			}
			emit(2, func(_ In, out Out) {
				s.xor(out(bit), to, r)
				s.store(r, out(bit))
			})
		}
	}
	return a
}
