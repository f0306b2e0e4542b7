package arm64

import (
	"fmt"
	"math"
)

// md5 has a lane in each word of a register: four a set, and the steps of two sets interleaved for eight lanes. The message
// is turned into rows in the frame first: sixteen rows a set, of which one is read per step.
func md5(w *writer, lanes int) {
	const (
		ones = 31 // all bits; in use after the rows are made
		k    = 30
	)
	sets := lanes / 4
	value := func(set, i int) int { return 4*set + i } // a, b, c, d
	f := func(set int) int { return 16 + 4*set }       // the step's function
	part := func(set int) int { return 17 + 4*set }    // what of it does not need b, or the rotation
	each := func(do func(set int)) {
		for set := range sets {
			do(set)
		}
	}
	w.function(fmt.Sprintf("md5x%d", lanes), fmt.Sprintf("Compresses blocks of %d messages.", lanes), hashArguments32, 256*sets)
	w.ins("MOVD", fmt.Sprintf("$rows-%d(SP)", 256*sets), r(5))
	w.loadPointers(1, lanes)
	for i := range 4 {
		each(func(set int) { w.ins("FMOVQ", at(0, 16*(sets*i+set)), q(value(set, i))) })
	}
	w.label("block")
	w.ins("MOVD", "$md5K<>(SB)", r(4))
	each(func(set int) {
		for lane := range 4 {
			w.ins("VLD1.P", at(pointers+4*set+lane, 64), list(16+4*lane, 4, b))
		}
		for quarter := range 4 {
			w.transpose([4]int{16 + quarter, 20 + quarter, 24 + quarter, 28 + quarter}, row(12), 8)
			for i := range 4 {
				w.ins("FMOVQ", q(12+i), at(5, 256*set+16*(4*quarter+i)))
			}
		}
	})
	w.ins("VCMEQ", s(ones), s(ones), s(ones))
	shifts := [4][4]int{{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}}
	step := [4][2]int{{1, 0}, {5, 1}, {3, 5}, {7, 0}} // which word: so much times the step plus so much
	for i := range 64 {
		kind := i / 16
		w.comment("Step %d", i)
		a := func(set int) int { return value(set, (64-i)%4) }
		b_ := func(set int) int { return value(set, (65-i)%4) }
		c := func(set int) int { return value(set, (66-i)%4) }
		d_ := func(set int) int { return value(set, (67-i)%4) }
		word := (step[kind][0]*i + step[kind][1]) % 16
		each(func(set int) { w.ins("FMOVQ", at(5, 256*set+16*word), q(part(set))) })
		w.ins("VLD1.P", at(4, 16), list(k, 1, s))
		each(func(set int) { w.ins("VADD", s(part(set)), s(a(set)), s(a(set))) })
		switch kind {
		case 0: // b ? c : d
			each(func(set int) { w.ins("VMOV", b(b_(set)), b(f(set))) })
			each(func(set int) { w.ins("VADD", s(k), s(a(set)), s(a(set))) })
			each(func(set int) { w.ins("VBSL", b(d_(set)), b(c(set)), b(f(set))) })
		case 1: // d ? b : c
			each(func(set int) { w.ins("VMOV", b(d_(set)), b(f(set))) })
			each(func(set int) { w.ins("VADD", s(k), s(a(set)), s(a(set))) })
			each(func(set int) { w.ins("VBSL", b(c(set)), b(b_(set)), b(f(set))) })
		case 2: // b ^ c ^ d
			each(func(set int) { w.ins("VEOR", b(c(set)), b(d_(set)), b(f(set))) })
			each(func(set int) { w.ins("VADD", s(k), s(a(set)), s(a(set))) })
			each(func(set int) { w.ins("VEOR", b(b_(set)), b(f(set)), b(f(set))) })
		case 3: // c ^ (b | ^d)
			each(func(set int) { w.ins("VEOR", b(ones), b(d_(set)), b(f(set))) })
			each(func(set int) { w.ins("VADD", s(k), s(a(set)), s(a(set))) })
			each(func(set int) { w.ins("VORR", b(b_(set)), b(f(set)), b(f(set))) })
			each(func(set int) { w.ins("VEOR", b(c(set)), b(f(set)), b(f(set))) })
		}
		each(func(set int) { w.ins("VADD", s(f(set)), s(a(set)), s(a(set))) })
		if n := shifts[kind][i%4]; n == 16 {
			each(func(set int) { w.ins("VREV32", v(a(set))+".H8", v(part(set))+".H8") })
		} else {
			each(func(set int) { w.ins("VSHL", imm(n), s(a(set)), s(part(set))) })
			each(func(set int) { w.ins("VSRI", imm(32-n), s(a(set)), s(part(set))) })
		}
		each(func(set int) { w.ins("VADD", s(b_(set)), s(part(set)), s(a(set))) })
	}
	for i := range 4 {
		each(func(set int) { w.ins("FMOVQ", at(0, 16*(sets*i+set)), q(part(set))) })
		each(func(set int) { w.ins("VADD", s(part(set)), s(value(set, i)), s(value(set, i))) })
		each(func(set int) { w.ins("FMOVQ", q(value(set, i)), at(0, 16*(sets*i+set))) })
	}
	w.ins("SUBS", imm(1), r(2), r(2))
	w.ins("BNE", "block")
	w.storePointers(1, lanes)
	w.end()
	if lanes == 4 {
		var table []uint64
		for i := range 64 {
			c := uint64(math.Floor(math.Abs(math.Sin(float64(i+1))) * (1 << 32))) // RFC 1321 section 3.4
			table = append(table, c<<32|c, c<<32|c)
		}
		w.table("md5K", 8, table)
	}
}
