package main

import (
	"math/bits"
	"math/rand/v2"
)

// Circuits of DES's S-boxes, for kernels that hold a bit of many blocks in a register. No circuit is written down here: one
// is searched for, by a random search that the same seed repeats. The method is Kwan's (Reducing the Gate Count of Bitslice
// DES, 1998): a wanted function is a gate that there is, or one or two more gates over those that there are; else it is put
// together, by one input bit, of two functions of which only half the values matter, which are easier to find.

// gate is an operation on two earlier values.
type gate struct {
	op   gateOp
	a, b int
}

type gateOp int

const (
	gateIn   gateOp = iota // an input: no operation
	gateAnd                // a & b
	gateOr                 // a | b
	gateXor                // a ^ b
	gateAndn               // ^a & b
	gateNot                // ^a
)

// circuit is gates in the order in which they can be computed; the first six are the inputs. Each gate's value is its truth
// table, with the inputs counting.
type circuit struct {
	gates []gate
	value []uint64
	out   [4]int
}

func (c *circuit) add(op gateOp, a, b int) int {
	x, y := c.value[a], c.value[b]
	v := [...]uint64{gateAnd: x & y, gateOr: x | y, gateXor: x ^ y, gateAndn: ^x & y, gateNot: ^x}[op]
	c.gates, c.value = append(c.gates, gate{op, a, b}), append(c.value, v)
	return len(c.gates) - 1
}

func (c *circuit) cut(n int) { c.gates, c.value = c.gates[:n], c.value[:n] }

// boxSearch looks for a circuit.
type boxSearch struct {
	circuit
	rnd *rand.Rand
}

// searchBox finds a circuit of an S-box: input 0 is bit 0 of the table's index, output 0 bit 0 of its value.
func searchBox(box *[64]uint8, seed uint64) circuit {
	s := &boxSearch{rnd: rand.New(rand.NewPCG(seed, 0))}
	for i := range 6 {
		var v uint64
		for x := range 64 {
			v |= uint64(x>>i&1) << x
		}
		s.gates, s.value = append(s.gates, gate{gateIn, i, i}), append(s.value, v)
	}
	for _, o := range s.rnd.Perm(4) {
		var want uint64
		for x := range 64 {
			want |= uint64(box[x]>>o&1) << x
		}
		s.out[o], _ = s.find(want, ^uint64(0), 0, 1000)
	}
	return s.circuit
}

// find makes a gate that is want where mask is set, with fewer than limit new ones. used are the input bits that mask has
// been split by.
func (s *boxSearch) find(want, mask uint64, used uint, limit int) (int, bool) {
	for i, v := range s.value {
		if (v^want)&mask == 0 {
			return i, true
		}
	}
	if limit <= 1 {
		return 0, false
	}
	for i, v := range s.value {
		if (^v^want)&mask == 0 {
			return s.add(gateNot, i, i), true
		}
	}
	order := s.rnd.Perm(len(s.value))
	if op, a, b, ok := s.pair(want, mask, order); ok {
		return s.add(op, a, b), true
	}
	if limit <= 2 {
		return 0, false
	}
	for _, c := range order {
		v := s.value[c]
		// Of op(x, c) == want: what x has to be, and where it matters.
		for _, form := range [...]struct {
			possible bool
			want     uint64
			mask     uint64
			finish   func(x int) int
		}{
			{true, want ^ v, mask, func(x int) int { return s.add(gateXor, x, c) }},
			{want&^v&mask == 0, want, mask & v, func(x int) int { return s.add(gateAnd, x, c) }},
			{v&^want&mask == 0, want, mask &^ v, func(x int) int { return s.add(gateOr, x, c) }},
			{want&v&mask == 0, want, mask &^ v, func(x int) int { return s.add(gateAndn, c, x) }},
			{want&^v&mask == 0, ^want, mask & v, func(x int) int { return s.add(gateAndn, x, c) }},
		} {
			if !form.possible {
				continue
			}
			if op, a, b, ok := s.pair(form.want, form.mask, order); ok {
				return form.finish(s.add(op, a, b)), true
			}
		}
	}
	if limit <= 4 {
		return 0, false
	}
	// Two halves by one bit: the first function is right where the bit is clear (or set), the second says where, in the
	// other half, it is not.
	start := len(s.gates)
	var best []gate
	var bestValue []uint64
	for _, choice := range s.rnd.Perm(12) {
		bit, set := choice/2, choice%2 == 1
		if used>>bit&1 == 1 {
			continue
		}
		first, second, op := mask&^s.value[bit], mask&s.value[bit], gateAnd
		if set {
			first, second, op = second, first, gateAndn
		}
		if bits.OnesCount64(second) == 0 {
			continue
		}
		if f, ok := s.find(want, first, used|1<<bit, limit-2); ok {
			if g, ok := s.find(want^s.value[f], second, used|1<<bit, limit-2-(len(s.gates)-start)); ok {
				s.add(gateXor, f, s.add(op, bit, g))
				if n := len(s.gates) - start; n < limit {
					limit = n
					best = append(best[:0], s.gates[start:]...)
					bestValue = append(bestValue[:0], s.value[start:]...)
				}
			}
		}
		s.cut(start)
	}
	if best == nil {
		return 0, false
	}
	s.gates, s.value = append(s.gates, best...), append(s.value, bestValue...)
	return len(s.gates) - 1, true
}

// pair finds an operation on two gates that is want where mask is set.
func (s *boxSearch) pair(want, mask uint64, order []int) (op gateOp, a, b int, ok bool) {
	want &= mask
	for i, a := range order {
		x := s.value[a] & mask
		for _, b := range order[:i] {
			y := s.value[b] & mask
			switch want {
			case x & y:
				return gateAnd, a, b, true
			case x | y:
				return gateOr, a, b, true
			case x ^ y:
				return gateXor, a, b, true
			case y &^ x:
				return gateAndn, a, b, true
			case x &^ y:
				return gateAndn, b, a, true
			}
		}
	}
	return 0, 0, 0, false
}
