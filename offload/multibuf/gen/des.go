package main

import (
	"fmt"
	"go/format"
	"os"
)

// DES (FIPS 46-3) as the kernels have it. A round's S-boxes are byte tables: index in, and out come all the bits that the
// S-box gives to the next round's indices, which the wiring (permutation P, then expansion E) spreads over six others. If
// each of a table's six output bits has a bit position of its own, and each of an index's six input bits too, then an index
// is six masked tables, or-ed together: nothing is shifted. Such positions are an edge colouring of the wiring, which is a
// six-regular bipartite graph of S-boxes and S-boxes, and always exist (Kőnig).

// sBoxes are by row and column, as in the standard.
var sBoxes = [8][4][16]uint8{
	{
		{14, 4, 13, 1, 2, 15, 11, 8, 3, 10, 6, 12, 5, 9, 0, 7},
		{0, 15, 7, 4, 14, 2, 13, 1, 10, 6, 12, 11, 9, 5, 3, 8},
		{4, 1, 14, 8, 13, 6, 2, 11, 15, 12, 9, 7, 3, 10, 5, 0},
		{15, 12, 8, 2, 4, 9, 1, 7, 5, 11, 3, 14, 10, 0, 6, 13},
	},
	{
		{15, 1, 8, 14, 6, 11, 3, 4, 9, 7, 2, 13, 12, 0, 5, 10},
		{3, 13, 4, 7, 15, 2, 8, 14, 12, 0, 1, 10, 6, 9, 11, 5},
		{0, 14, 7, 11, 10, 4, 13, 1, 5, 8, 12, 6, 9, 3, 2, 15},
		{13, 8, 10, 1, 3, 15, 4, 2, 11, 6, 7, 12, 0, 5, 14, 9},
	},
	{
		{10, 0, 9, 14, 6, 3, 15, 5, 1, 13, 12, 7, 11, 4, 2, 8},
		{13, 7, 0, 9, 3, 4, 6, 10, 2, 8, 5, 14, 12, 11, 15, 1},
		{13, 6, 4, 9, 8, 15, 3, 0, 11, 1, 2, 12, 5, 10, 14, 7},
		{1, 10, 13, 0, 6, 9, 8, 7, 4, 15, 14, 3, 11, 5, 2, 12},
	},
	{
		{7, 13, 14, 3, 0, 6, 9, 10, 1, 2, 8, 5, 11, 12, 4, 15},
		{13, 8, 11, 5, 6, 15, 0, 3, 4, 7, 2, 12, 1, 10, 14, 9},
		{10, 6, 9, 0, 12, 11, 7, 13, 15, 1, 3, 14, 5, 2, 8, 4},
		{3, 15, 0, 6, 10, 1, 13, 8, 9, 4, 5, 11, 12, 7, 2, 14},
	},
	{
		{2, 12, 4, 1, 7, 10, 11, 6, 8, 5, 3, 15, 13, 0, 14, 9},
		{14, 11, 2, 12, 4, 7, 13, 1, 5, 0, 15, 10, 3, 9, 8, 6},
		{4, 2, 1, 11, 10, 13, 7, 8, 15, 9, 12, 5, 6, 3, 0, 14},
		{11, 8, 12, 7, 1, 14, 2, 13, 6, 15, 0, 9, 10, 4, 5, 3},
	},
	{
		{12, 1, 10, 15, 9, 2, 6, 8, 0, 13, 3, 4, 14, 7, 5, 11},
		{10, 15, 4, 2, 7, 12, 9, 5, 6, 1, 13, 14, 0, 11, 3, 8},
		{9, 14, 15, 5, 2, 8, 12, 3, 7, 0, 4, 10, 1, 13, 11, 6},
		{4, 3, 2, 12, 9, 5, 15, 10, 11, 14, 1, 7, 6, 0, 8, 13},
	},
	{
		{4, 11, 2, 14, 15, 0, 8, 13, 3, 12, 9, 7, 5, 10, 6, 1},
		{13, 0, 11, 7, 4, 9, 1, 10, 14, 3, 5, 12, 2, 15, 8, 6},
		{1, 4, 11, 13, 12, 3, 7, 14, 10, 15, 6, 8, 0, 5, 9, 2},
		{6, 11, 13, 8, 1, 4, 10, 7, 9, 5, 0, 15, 14, 2, 3, 12},
	},
	{
		{13, 2, 8, 4, 6, 15, 11, 1, 10, 9, 3, 14, 5, 0, 12, 7},
		{1, 15, 13, 8, 10, 3, 7, 4, 12, 5, 6, 11, 0, 14, 9, 2},
		{7, 11, 4, 1, 9, 12, 14, 2, 0, 6, 10, 13, 15, 3, 5, 8},
		{2, 1, 14, 7, 4, 10, 8, 13, 15, 12, 9, 0, 3, 5, 6, 11},
	},
}

// The standard's permutations, which number bits from 1, the leftmost.
var (
	permutationP = [32]int{
		16, 7, 20, 21, 29, 12, 28, 17, 1, 15, 23, 26, 5, 18, 31, 10,
		2, 8, 24, 14, 32, 27, 3, 9, 19, 13, 30, 6, 22, 11, 4, 25,
	}
	permutedChoice1 = [56]int{
		57, 49, 41, 33, 25, 17, 9, 1, 58, 50, 42, 34, 26, 18, 10, 2, 59, 51, 43, 35, 27, 19, 11, 3, 60, 52, 44, 36,
		63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6, 61, 53, 45, 37, 29, 21, 13, 5, 28, 20, 12, 4,
	}
	permutedChoice2 = [48]int{
		14, 17, 11, 24, 1, 5, 3, 28, 15, 6, 21, 10, 23, 19, 12, 4, 26, 8, 16, 7, 27, 20, 13, 2,
		41, 52, 31, 37, 47, 55, 30, 40, 51, 45, 33, 48, 44, 49, 39, 56, 34, 53, 46, 42, 50, 36, 29, 32,
	}
	keyRotations = [16]int{1, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 1}
)

// wire is one input bit of an S-box.
type wire struct {
	half   int // which bit of the half block it is, from 0, the leftmost
	box    int // the S-box of the round before that gives it
	output int // which of that one's four bits
	colour int // its position in the index
}

// wiring is the input bits of each S-box, in the standard's order.
var wiring = colour()

// sources are, for each S-box, which S-box gives its input of each colour.
var sources = func() (s [8][6]int) {
	for box := range wiring {
		for _, w := range wiring[box] {
			s[box][w.colour] = w.box
		}
	}
	return s
}()

// colouring says for each colour and S-box which S-box of the round before gives it its input of that colour. It was searched
// for, together with pairs: of some hundred thousand that can these have the fewest different masks, see pairMasks.
var colouring = [6][8]int{
	{6, 4, 1, 7, 2, 3, 5, 0},
	{3, 0, 6, 1, 7, 2, 4, 5},
	{4, 6, 5, 2, 3, 0, 7, 1},
	{7, 5, 4, 0, 1, 6, 2, 3},
	{5, 7, 3, 6, 0, 4, 1, 2},
	{1, 2, 0, 4, 5, 7, 3, 6},
}

// colour gives every wire its colour, and makes sure that no S-box has two of the same, in or out.
func colour() (all [8][6]wire) {
	for box := range all {
		for i := range all[box] {
			half := (4*box + i + 31) % 32
			from := permutationP[half] - 1
			all[box][i] = wire{half: half, box: from / 4, output: from % 4, colour: -1}
			for c := range colouring {
				if colouring[c][box] == from/4 {
					all[box][i].colour = c
				}
			}
		}
	}
	for c := range colouring {
		var in, out uint
		for box := range all {
			for _, w := range all[box] {
				if w.colour == c {
					in, out = in|1<<box, out|1<<w.box
				}
			}
		}
		if in != 0xff || out != 0xff {
			panic("gen: the colouring of DES's wiring is none")
		}
	}
	return all
}

// pairs are the S-boxes that share a register where there are lanes to spare: the first has one half of the bytes, the other
// one the other. Two that are next to each other in the standard need not be a pair.
var pairs = [4][2]int{{0, 1}, {2, 3}, {4, 7}, {5, 6}}

// pairOf is which pair an S-box belongs to, and which half of the register it has.
func pairOf(box int) (pair, side int) {
	for pair, boxes := range pairs {
		for side, b := range boxes {
			if b == box {
				return pair, side
			}
		}
	}
	panic("gen: an S-box without a pair")
}

// given is what a pair's next indices take from a pair's tables, or from these with their halves exchanged: of each half the
// bits in mask.
type given struct {
	pair      int
	exchanged bool
	mask      [2]byte
}

// pairMasks is all that a pair's next indices are made of, what comes exchanged last.
func pairMasks(to int) (all []given) {
	for _, exchanged := range []bool{false, true} {
		for pair := range pairs {
			g := given{pair: pair, exchanged: exchanged}
			for side, box := range pairs[to] {
				for c := range colouring {
					p, s := pairOf(colouring[c][box])
					if p == pair && (s != side) == exchanged {
						g.mask[side] |= 1 << c
					}
				}
			}
			if g.mask != [2]byte{} {
				all = append(all, g)
			}
		}
	}
	return all
}

// sBoxTable is an S-box as the kernels have it.
func sBoxTable(box int) []byte {
	table := make([]byte, 64)
	for index := range table {
		bit := func(i int) int { return index >> wiring[box][i].colour & 1 }
		out := sBoxes[box][bit(0)*2+bit(5)][bit(1)*8+bit(2)*4+bit(3)*2+bit(4)]
		for to := range wiring {
			for _, w := range wiring[to] {
				if w.box == box {
					table[index] |= out >> (3 - w.output) & 1 << w.colour
				}
			}
		}
	}
	return table
}

// desKeys writes the Go table that says which bit of the key is where in the indices of each round.
func desKeys(name string) error {
	text := "// Code generated by gen -level deskeys. DO NOT EDIT.\n\npackage multibuf\n\n" +
		"// desKeyBits says for each round, S-box and bit of its index which bit of the 64-bit key, from 0, the rightmost, is\n" +
		"// added to it. The order of an index's bits is the kernels' own.\n" +
		"var desKeyBits = [16][8][6]uint8{\n"
	turned := 0
	for round := range 16 {
		turned += keyRotations[round]
		text += "{\n"
		for box := range 8 {
			var bits [6]int
			for i, w := range wiring[box] {
				n := permutedChoice2[6*box+i] - 1
				half := n / 28 * 28
				bits[w.colour] = 64 - permutedChoice1[half+(n-half+turned)%28]
			}
			text += fmt.Sprintf("{%d, %d, %d, %d, %d, %d},\n", bits[0], bits[1], bits[2], bits[3], bits[4], bits[5])
		}
		text += "},\n"
	}
	text += "}\n\n// desPairs are the S-boxes that share a register in the kernel of 32 lanes, from 0.\nvar desPairs = [4][2]uint8{\n"
	for _, boxes := range pairs {
		text += fmt.Sprintf("{%d, %d},\n", boxes[0], boxes[1])
	}
	source, err := format.Source([]byte(text + "}\n"))
	if err != nil {
		return err
	}
	return os.WriteFile(name, source, 0o644)
}
