package arm64

import (
	"fmt"
	"math/big"
)

// The SHA kernels have one message per lane, interleaved: while one lane's instruction is under way, the next lane's begins.
// In the loop, the chaining values are in the state's memory lane by lane: the instructions want four words (SHA-512: two)
// of one message side by side. For the caller they are put back into rows.

// Registers of SHA-1 and SHA-256, the same for two lanes as for four; a lane's are lane up from these.
const (
	low     = 0  // a, b, c, d
	high    = 4  // SHA-1: e; SHA-256: e, f, g, h
	spare   = 8  // SHA-1: the next e; SHA-256: a, b, c, d before the rounds
	message = 12 // four a lane
	k       = 28
	sum     = 29 // words plus constants: three, used in turn
)

func message4(lane, i int) int { return message + 4*lane + i%4 }

// gather turns four words' rows, offset bytes into the state, into a register a lane from to on, and puts it there.
func (w *writer) gather(offset, to, lanes int) {
	if lanes == 2 {
		w.ins("FMOVQ", at(0, offset), q(message))
		w.ins("FMOVQ", at(0, offset+16), q(message+1))
		w.ins("VUZP1", s(message+1), s(message), s(to))
		w.ins("VUZP2", s(message+1), s(message), s(to+1))
	} else {
		for i := range 4 {
			w.ins("FMOVQ", at(0, offset+16*i), q(message+i))
		}
		w.transpose(row(message), row(to), message+4)
	}
	for lane := range lanes {
		w.ins("FMOVQ", q(to+lane), at(0, offset+16*lane))
	}
}

// scatter undoes gather.
func (w *writer) scatter(offset, from, lanes int) {
	if lanes == 2 {
		w.ins("VZIP1", s(from+1), s(from), s(message))
		w.ins("VZIP2", s(from+1), s(from), s(message+1))
	} else {
		w.transpose(row(from), row(message), message+4)
	}
	for i := range lanes {
		w.ins("FMOVQ", q(message+i), at(0, offset+16*i))
	}
}

// addState adds the block's chaining values to what the rounds made of them.
func (w *writer) addState(offset, to, lanes int) {
	for lane := range lanes {
		w.ins("FMOVQ", at(0, offset+16*lane), q(message4(lane, 0)))
	}
	for lane := range lanes {
		w.ins("VADD", s(message4(lane, 0)), s(to+lane), s(to+lane))
	}
	for lane := range lanes {
		w.ins("FMOVQ", q(to+lane), at(0, offset+16*lane))
	}
}

// words loads a block of every lane.
func (w *writer) words(lanes int) {
	for lane := range lanes {
		w.ins("VLD1.P", at(pointers+lane, 64), list(message4(lane, 0), 4, b))
	}
	for i := range 4 {
		for lane := range lanes {
			w.ins("VREV32", b(message4(lane, i)), b(message4(lane, i)))
		}
	}
}

// The kernels take messages from packets only, not as words.
const hashArguments32 = "state *uint32, ptrs *uintptr, blocks int, _ *uint32"

func sha1(w *writer, lanes int) {
	name := fmt.Sprintf("sha1x%d", lanes)
	w.function(name, fmt.Sprintf("Compresses blocks of %d messages.", lanes), hashArguments32, 0)
	w.loadPointers(1, lanes)
	w.gather(0, low, lanes)
	rowE := 16 * lanes // as the caller has it
	for lane := range lanes {
		w.ins("FMOVS", at(0, rowE+4*lane), q(high+lane))
	}
	w.label("block")
	w.ins("MOVD", "$sha1K<>(SB)", r(4))
	w.words(lanes)
	rounds := [...]string{"SHA1C", "SHA1P", "SHA1M", "SHA1P"}
	now, next := high, spare
	for g := range 20 { // of four rounds
		w.comment("Rounds %d to %d", 4*g, 4*g+3)
		if g%5 == 0 {
			w.ins("VLD1R.P", at(4, 4), list(k, 1, s))
		}
		// Two lanes at a time, as there are no more registers for sums.
		for pair := 0; pair < lanes; pair += 2 {
			both := func(f func(lane, sum int)) {
				for lane := pair; lane < pair+2; lane++ {
					f(lane, sum+(2*g+lane)%3)
				}
			}
			both(func(lane, sum int) { w.ins("VADD", s(k), s(message4(lane, g)), s(sum)) })
			both(func(lane, _ int) { w.ins("SHA1H", v(low+lane), v(next+lane)) })
			both(func(lane, sum int) { w.ins(rounds[g/5], s(sum), v(now+lane), v(low+lane)) })
			if g >= 16 {
				continue
			}
			both(func(lane, _ int) {
				w.ins("SHA1SU0", s(message4(lane, g+2)), s(message4(lane, g+1)), s(message4(lane, g)))
			})
			both(func(lane, _ int) { w.ins("SHA1SU1", s(message4(lane, g+3)), s(message4(lane, g))) })
		}
		now, next = next, now
	}
	w.addState(0, low, lanes)
	for lane := range lanes {
		w.ins("FMOVS", at(0, rowE+4*lane), q(message4(lane, 1)))
	}
	for lane := range lanes {
		w.ins("VADD", s(message4(lane, 1)), s(now+lane), s(now+lane))
	}
	for lane := range lanes {
		w.ins("FMOVS", q(now+lane), at(0, rowE+4*lane))
	}
	w.ins("SUBS", imm(1), r(2), r(2))
	w.ins("BNE", "block")
	w.scatter(0, low, lanes)
	w.storePointers(1, lanes)
	w.end()
	if lanes == 2 {
		w.table("sha1K", 4, []uint64{0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6}) // FIPS 180-4 section 4.2.1
	}
}

func sha256(w *writer, lanes int) {
	name := fmt.Sprintf("sha256x%d", lanes)
	w.function(name, fmt.Sprintf("Compresses blocks of %d messages.", lanes), hashArguments32, 0)
	w.loadPointers(1, lanes)
	w.gather(0, low, lanes)
	w.gather(16*lanes, high, lanes)
	w.label("block")
	w.ins("MOVD", "$sha256K<>(SB)", r(4))
	w.words(lanes)
	for g := range 16 { // of four rounds
		w.comment("Rounds %d to %d", 4*g, 4*g+3)
		w.ins("VLD1.P", at(4, 16), list(k, 1, s))
		for pair := 0; pair < lanes; pair += 2 {
			both := func(f func(lane, sum int)) {
				for lane := pair; lane < pair+2; lane++ {
					f(lane, sum+(2*g+lane)%3)
				}
			}
			both(func(lane, sum int) { w.ins("VADD", s(k), s(message4(lane, g)), s(sum)) })
			both(func(lane, _ int) { w.ins("VMOV", b(low+lane), b(spare+lane)) })
			both(func(lane, sum int) { w.ins("SHA256H", s(sum), v(high+lane), v(low+lane)) })
			both(func(lane, sum int) { w.ins("SHA256H2", s(sum), v(spare+lane), v(high+lane)) })
			if g >= 12 {
				continue
			}
			both(func(lane, _ int) { w.ins("SHA256SU0", s(message4(lane, g+1)), s(message4(lane, g))) })
			both(func(lane, _ int) {
				w.ins("SHA256SU1", s(message4(lane, g+3)), s(message4(lane, g+2)), s(message4(lane, g)))
			})
		}
	}
	w.addState(0, low, lanes)
	w.addState(16*lanes, high, lanes)
	w.ins("SUBS", imm(1), r(2), r(2))
	w.ins("BNE", "block")
	w.scatter(0, low, lanes)
	w.scatter(16*lanes, high, lanes)
	w.storePointers(1, lanes)
	w.end()
	if lanes == 2 {
		var upper []uint64
		for _, c := range cubeRoots(64) {
			upper = append(upper, c>>32)
		}
		w.table("sha256K", 4, upper)
	}
}

// sha512 has two lanes, which is all that the registers hold: five of two chaining values, eight of message words, and
// three more for each.
func sha512(w *writer) {
	const lanes = 2
	values := func(lane, i int) int { return 5*lane + i }
	words := func(lane, i int) int { return 10 + 8*lane + i%8 }
	temporary := func(lane, i int) int { return 26 + 3*lane + i }
	each := func(f func(lane int)) {
		for lane := range lanes {
			f(lane)
		}
	}
	w.function("sha512x2", "Compresses blocks of 2 messages.", "state *uint64, ptrs *uintptr, blocks int, _ *uint64", 0)
	w.loadPointers(1, lanes)
	// turn gives each lane's pair for two rows, or the rows for the pairs.
	turn := func(i int) {
		w.ins("FMOVQ", at(0, 32*i), q(words(0, 0)))
		w.ins("FMOVQ", at(0, 32*i+16), q(words(0, 1)))
		w.ins("VZIP1", d(words(0, 1)), d(words(0, 0)), d(values(0, i)))
		w.ins("VZIP2", d(words(0, 1)), d(words(0, 0)), d(values(1, i)))
		each(func(lane int) { w.ins("FMOVQ", q(values(lane, i)), at(0, 32*i+16*lane)) })
	}
	for i := range 4 {
		turn(i)
	}
	w.label("block")
	w.ins("MOVD", "$sha512K<>(SB)", r(4))
	for i := 0; i < 8; i += 4 {
		each(func(lane int) { w.ins("VLD1.P", at(pointers+lane, 64), list(words(lane, i), 4, b)) })
	}
	for i := range 8 {
		each(func(lane int) { w.ins("VREV64", b(words(lane, i)), b(words(lane, i))) })
	}
	place := [5]int{0, 1, 2, 3, 4} // which of the five has ab, cd, ef, gh, and nothing
	for g := range 40 {            // of two rounds
		w.comment("Rounds %d and %d", 2*g, 2*g+1)
		ab := func(lane int) int { return values(lane, place[0]) }
		cd := func(lane int) int { return values(lane, place[1]) }
		ef := func(lane int) int { return values(lane, place[2]) }
		gh := func(lane int) int { return values(lane, place[3]) }
		free := func(lane int) int { return values(lane, place[4]) }
		sum := func(lane int) int { return temporary(lane, 0) }
		fg := func(lane int) int { return temporary(lane, 1) }
		de := func(lane int) int { return temporary(lane, 2) }
		ext := func(high, low, to int) { w.ins("VEXT", imm(8), b(high), b(low), b(to)) }
		w.ins("VLD1", "(R4)", list(sum(0), 1, d))
		w.ins("VLD1.P", at(4, 16), list(sum(1), 1, d))
		each(func(lane int) { w.ins("VADD", d(words(lane, g)), d(sum(lane)), d(sum(lane))) })
		each(func(lane int) { ext(gh(lane), ef(lane), fg(lane)) })
		each(func(lane int) { ext(sum(lane), sum(lane), sum(lane)) })
		each(func(lane int) { ext(ef(lane), cd(lane), de(lane)) })
		each(func(lane int) { w.ins("VADD", d(sum(lane)), d(gh(lane)), d(gh(lane))) })
		if g < 32 {
			each(func(lane int) { ext(words(lane, g+5), words(lane, g+4), sum(lane)) })
			each(func(lane int) { w.ins("SHA512SU0", d(words(lane, g+1)), d(words(lane, g))) })
		}
		each(func(lane int) { w.ins("SHA512H", d(de(lane)), v(fg(lane)), v(gh(lane))) })
		if g < 32 {
			each(func(lane int) { w.ins("SHA512SU1", d(sum(lane)), d(words(lane, g+7)), d(words(lane, g))) })
		}
		each(func(lane int) { w.ins("VADD", d(gh(lane)), d(cd(lane)), d(free(lane))) })
		each(func(lane int) { w.ins("SHA512H2", d(ab(lane)), v(cd(lane)), v(gh(lane))) })
		place = [5]int{place[3], place[0], place[4], place[2], place[1]}
	}
	// Forty steps, and the places come round every five.
	for i := range 4 {
		each(func(lane int) { w.ins("FMOVQ", at(0, 32*i+16*lane), q(words(lane, i))) })
	}
	for i := range 4 {
		each(func(lane int) { w.ins("VADD", d(words(lane, i)), d(values(lane, i)), d(values(lane, i))) })
	}
	for i := range 4 {
		each(func(lane int) { w.ins("FMOVQ", q(values(lane, i)), at(0, 32*i+16*lane)) })
	}
	w.ins("SUBS", imm(1), r(2), r(2))
	w.ins("BNE", "block")
	for i := range 4 {
		turn(i)
	}
	w.storePointers(1, lanes)
	w.end()
	w.table("sha512K", 8, cubeRoots(80))
}

// cubeRoots gives the first 64 bits of the fractions of the cube roots of the first n primes (FIPS 180-4 section 4.2.3).
func cubeRoots(n int) []uint64 {
	var roots []uint64
	for p := int64(2); len(roots) < n; p++ {
		prime := big.NewInt(p)
		if !prime.ProbablyPrime(0) { // exact below 2^64
			continue
		}
		// The largest root of 67 bits whose cube is not above p·2^192.
		limit := new(big.Int).Lsh(prime, 192)
		root := new(big.Int)
		for bit := 67; bit >= 0; bit-- {
			root.SetBit(root, bit, 1)
			if cube := new(big.Int).Exp(root, big.NewInt(3), nil); cube.Cmp(limit) > 0 {
				root.SetBit(root, bit, 0)
			}
		}
		fraction := new(big.Int).SetBit(new(big.Int), 64, 1)
		roots = append(roots, fraction.Mod(root, fraction).Uint64())
	}
	return roots
}
