package sa

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// Errors of a Sequence.
var (
	// ErrSeqExhausted says that every number has been used: the SA needs a new key (RFC 4303 section 3.3.3).
	ErrSeqExhausted = errors.New("sa: the sequence numbers are used up; the SA needs a new key")
	// ErrSeqNotReserved says that the next numbers are not on disk yet: the disk is slow or refuses, Store.Err says why.
	ErrSeqNotReserved = errors.New("sa: no sequence number is reserved on disk")
)

// lastSeq is the last number of a sequence that is ever used. With ESN one is given up, so that the end is a number too.
func lastSeq(esn bool) uint64 {
	if esn {
		return math.MaxUint64 - 1
	}
	return math.MaxUint32
}

// Sequence hands out an outbound SA's sequence numbers: strictly rising, each once, from 1.
//
// Those of a Store have been reserved on disk before, by a goroutine that works ahead of need. Close gives back what was not used,
// so after a stop in order the numbers go on where they were; how far they leap otherwise is said at Store. Those of
// NewVolatileSequence live in memory only.
type Sequence struct {
	// The lane's.
	at, end uint64 // at to end-1 may be handed out
	warn    uint64 // the number at which the next reservation is asked for
	last    uint64 // the one handed out last
	shown   uint64 // the memory says that all numbers below may have been used
	memory  *topRecord

	// Between the lane and the store's goroutine, which take turns. The turn says whose the fields beside it are.
	turn  atomic.Uint32
	asked uint64 // the number at which the lane asked
	spare span   // the answer

	spent atomic.Bool // there is nothing left to reserve
	bound atomic.Bool // by an SA

	// The store's, under its mutex.
	store   *Store // nil: volatile
	slot    int
	limit   uint64    // the first number that must not be used
	chunk   uint64    // how much to reserve next
	size    uint64    // how much was reserved last,
	granted time.Time // when,
	grantAt uint64    // and at which number it was asked for
}

// Values of Sequence.turn, each followed by the next.
const (
	idle   = iota // the lane's: it needs nothing
	wanted        // the store's: it reads asked and fills spare
	filled        // the lane's: it may take spare
)

// span is a range of numbers, without hi.
type span struct{ lo, hi uint64 }

// NewVolatileSequence makes a sequence that starts at 1 and is forgotten with the process.
//
// With an AEAD it is safe only if the key cannot outlive the process, for a number used twice with one key gives the key's
// protection away (RFC 4106 section 2, RFC 7634 section 2); static keys need a Store. With CBC and HMAC nothing is given
// away, because IVs are random, but a peer that has kept the SA has kept its window too: it drops all packets as replays
// until their numbers pass the highest it has seen.
func NewVolatileSequence() *Sequence {
	return &Sequence{at: 1, end: lastSeq(true) + 1, shown: math.MaxUint64}
}

// Volatile reports whether the numbers are kept in memory only.
func (s *Sequence) Volatile() bool { return s.store == nil }

// bind ties the sequence to one SA, and a volatile one to the SA's number of bits.
func (s *Sequence) bind(esn bool) error {
	if s.store != nil && s.limit != lastSeq(esn)+1 {
		return errors.New("the sequence was made for the other setting of ESN")
	}
	if !s.bound.CompareAndSwap(false, true) {
		return errors.New("the sequence is another SA's already; two SAs with one sequence would share numbers unordered")
	}
	if s.store == nil {
		s.end = lastSeq(esn) + 1
	}
	s.last = s.at - 1
	return nil
}

// SkipPast makes the numbers go on behind n, if they are not beyond it already: for an SA that is taken over from a kernel or
// another program, which has used the numbers up to n. Call it before the sequence is given to an SA.
func (s *Sequence) SkipPast(n uint64) error {
	if s.bound.Load() {
		return fmt.Errorf("sa: %w: the sequence is an SA's already", ErrParams)
	}
	if n < s.at {
		return nil
	}
	if n+1 < s.end {
		s.at = n + 1
		s.warn = max(s.warn, s.at)
		s.remember(s.at)
		return nil
	}
	if s.store == nil {
		return ErrSeqExhausted
	}
	return s.store.skip(s, n+1)
}

// next hands out a number. It is called by one goroutine at a time.
func (s *Sequence) next() (uint64, error) {
	if s.at >= s.end {
		if err := s.refill(); err != nil {
			return 0, err
		}
	}
	n := s.at
	if n >= s.shown {
		s.remember(n + min(s.end-n, memoryStep))
	}
	s.at++
	s.last = n
	if n == s.warn {
		s.ask()
	}
	return n, nil
}

// refill takes the reservation that was made ahead.
func (s *Sequence) refill() error {
	if s.turn.Load() == filled {
		s.take()
		return nil
	}
	if s.store == nil || s.spent.Load() {
		return ErrSeqExhausted
	}
	s.ask()
	return ErrSeqNotReserved
}

// take starts on the spare reservation; half of it is the reserve while the next is made.
func (s *Sequence) take() {
	s.at, s.end = s.spare.lo, s.spare.hi
	s.warn = s.at + (s.end-s.at)/2
	s.remember(s.at)
	s.turn.Store(idle)
}

// remember makes the memory say, before the first of them is used, that all numbers below n may have been.
func (s *Sequence) remember(n uint64) {
	s.shown = math.MaxUint64
	if s.memory != nil {
		s.shown = n
		s.memory.set(n)
	}
}

// ask wakes the store's goroutine, once until it has answered.
func (s *Sequence) ask() {
	if s.store != nil && s.turn.Load() == idle {
		s.asked = s.at
		s.turn.Store(wanted)
		s.store.poke()
	}
}

// Close ends the sequence, when no lane can take a number from it any more, and gives back what was reserved and not used, unless
// another sequence of the key has got numbers beyond. The disk learns of it soon, and at the latest when the store closes; until
// then its mark is only higher than it need be. A closed sequence hands out nothing: ErrSeqNotReserved.
func (s *Sequence) Close() error {
	if s.store != nil {
		s.store.drop(s)
	}
	return nil
}
