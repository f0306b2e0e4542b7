package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The kernels here use the SHA instructions, which do four (SHA-1) or two rounds of one message. The next must wait for the
// one before for much longer than another message's, so several messages are interleaved. The message words are kept in
// memory: a message then needs three or four registers.

// stream is the registers and memory of one message.
type stream struct {
	p    GPPhysical
	r    []VecPhysical
	w    func(i int) Mem // 16 bytes of message words
	save func(i int) Mem
}

// shaKernel emits a function around block. Messages' chaining values are [word][lane]: words is how many there are.
func shaKernel(hash string, lanes, words, regs int, load, block, store func(s []stream, state func(word, lane int) Mem)) {
	TEXT(fmt.Sprintf("%sx%dSHANI", hash, lanes), 0, "func(state *uint32, ptrs *uintptr, blocks int, words *uint32)")
	Doc(fmt.Sprintf("Compresses blocks of %d messages.", lanes))
	state := Load(Param("state"), RAX)
	ptrs := Load(Param("ptrs"), RBX)
	blocks := Load(Param("blocks"), RCX)
	memory := RDI
	alignedLocal(lanes*(64+32), memory)
	s := make([]stream, lanes)
	for l := range s {
		s[l].p = []GPPhysical{RSI, R9, R10, R11}[l]
		s[l].w = func(i int) Mem { return at(memory, lanes*16*(i%4)+16*l) }
		s[l].save = func(i int) Mem { return at(memory, lanes*16*(4+i)+16*l) }
		for i := range regs {
			s[l].r = append(s[l].r, xmm[16-lanes*regs+l*regs+i])
		}
		MOVQ(at(ptrs, 8*l), s[l].p)
	}
	where := func(word, lane int) Mem { return at(state, 4*(word*lanes+lane)) }
	load(s, where)
	Label("block")
	block(s, where)
	for l := range s {
		ADDQ(I8(64), s[l].p)
	}
	DECQ(blocks)
	JNZ(LabelRef("block"))
	store(s, where)
	for l := range s {
		MOVQ(s[l].p, at(ptrs, 8*l))
	}
	RET()
}

// gather collects four words into a register, the highest part first.
func gather(to VecPhysical, words ...Mem) {
	PXOR(to, to)
	for i, m := range words {
		PINSRD(U8(3-i), m, to)
	}
}

func scatter(from VecPhysical, words ...Mem) {
	for i, m := range words {
		PEXTRD(U8(3-i), from, m)
	}
}

// sha1NI is SHA-1. A register holds a, b, c, d, another e.
func sha1NI(lanes int) {
	const abcd, e, e1, tmp = 0, 1, 2, 3
	turn := isaSSE2.bytes("turn128", func(i int) int { return 15 - i })
	shaKernel("sha1", lanes, 5, 4,
		func(s []stream, state func(word, lane int) Mem) {
			for l, m := range s {
				gather(m.r[abcd], state(0, l), state(1, l), state(2, l), state(3, l))
				PXOR(m.r[e], m.r[e])
				PINSRD(U8(3), state(4, l), m.r[e])
			}
		},
		func(s []stream, state func(word, lane int) Mem) {
			e, next := e, e1
			for g := range 20 {
				if g < 4 {
					for _, m := range s {
						MOVOU(at(m.p, 16*g), m.r[tmp])
						PSHUFB(turn, m.r[tmp])
						MOVO(m.r[tmp], m.w(g))
					}
				} else {
					for _, m := range s {
						MOVO(m.w(g), m.r[tmp])
						SHA1MSG1(m.w(g+1), m.r[tmp])
						PXOR(m.w(g+2), m.r[tmp])
						SHA1MSG2(m.w(g+3), m.r[tmp])
						if g < 19 {
							MOVO(m.r[tmp], m.w(g))
						}
					}
				}
				for _, m := range s {
					if g == 0 {
						MOVO(m.r[abcd], m.save(0))
						MOVO(m.r[e], m.save(1))
						PADDL(m.r[tmp], m.r[e])
					} else {
						SHA1NEXTE(m.r[tmp], m.r[e])
					}
				}
				for _, m := range s {
					MOVO(m.r[abcd], m.r[next])
					SHA1RNDS4(U8(g/5), m.r[e], m.r[abcd])
				}
				e, next = next, e
			}
			for _, m := range s {
				SHA1NEXTE(m.save(1), m.r[e])
				PADDL(m.save(0), m.r[abcd])
			}
			if e != 1 {
				panic("gen: e is in the wrong register")
			}
		},
		func(s []stream, state func(word, lane int) Mem) {
			for l, m := range s {
				scatter(m.r[abcd], state(0, l), state(1, l), state(2, l), state(3, l))
				PEXTRD(U8(3), m.r[e], state(4, l))
			}
		})
}

// sha256NI is SHA-256. Of the two registers of chaining values, one holds a, b, e, f, the other c, d, g, h.
func sha256NI(lanes int) {
	const abef, cdgh, tmp, tmp2 = 0, 1, 2, 3
	regs := 4
	if lanes == 4 {
		regs = 3
	}
	turn := isaSSE2.bytes("turn32", func(i int) int { return i/4*4 + 3 - i%4 })
	k := sha256.constants()
	constants := table("sha256k", 32, k)
	shaKernel("sha256", lanes, 8, regs,
		func(s []stream, state func(word, lane int) Mem) {
			for l, m := range s {
				gather(m.r[abef], state(0, l), state(1, l), state(4, l), state(5, l))
				gather(m.r[cdgh], state(2, l), state(3, l), state(6, l), state(7, l))
			}
			LEAQ(constants, R8)
		},
		func(s []stream, state func(word, lane int) Mem) {
			abef, cdgh := abef, cdgh
			for g := range 16 {
				for _, m := range s {
					if g < 4 {
						MOVOU(at(m.p, 16*g), m.r[tmp])
						PSHUFB(turn, m.r[tmp])
						MOVO(m.r[tmp], m.w(g))
					} else {
						// xmm0 is free until the constants are added.
						MOVO(m.w(g+3), m.r[tmp])
						PALIGNR(U8(4), m.w(g+2), m.r[tmp])
						MOVO(m.w(g), X0)
						SHA256MSG1(m.w(g+1), X0)
						PADDL(X0, m.r[tmp])
						SHA256MSG2(m.w(g+3), m.r[tmp])
						if g < 15 {
							MOVO(m.r[tmp], m.w(g))
						}
					}
					if g == 0 {
						MOVO(m.r[abef], m.save(0))
						MOVO(m.r[cdgh], m.save(1))
					}
				}
				for _, m := range s {
					MOVO(at(R8, 16*g), X0)
					PADDL(m.r[tmp], X0)
					SHA256RNDS2(X0, m.r[abef], m.r[cdgh])
					PSHUFD(U8(0x0e), X0, X0)
					SHA256RNDS2(X0, m.r[cdgh], m.r[abef])
				}
			}
			for _, m := range s {
				PADDL(m.save(0), m.r[abef])
				PADDL(m.save(1), m.r[cdgh])
			}
		},
		func(s []stream, state func(word, lane int) Mem) {
			for l, m := range s {
				scatter(m.r[abef], state(0, l), state(1, l), state(4, l), state(5, l))
				scatter(m.r[cdgh], state(2, l), state(3, l), state(6, l), state(7, l))
			}
		})
}
