package sa

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"culvert/offload"
)

// How far the mark of an inbound SA lies before the highest number accepted.
const (
	// The least, for an SA that has been slow: a quarter of it goes by before more is asked for, and what is left must last until
	// the disk has written. At 100,000 packets a second that is 7 ms.
	minHead = 1 << 10
	// Until a rate is known, and after a leap of the numbers. A quarter goes by before more is asked for, and a disk that is written
	// to by others may need 100 ms: 49,152 packets last that long at 490,000 a second.
	firstHead = 1 << 16
	maxHead   = 1 << 26          // 64 million packets
	headTime  = 4 * time.Second  // what it lasts at the rate of the SA
	headGrows = 16               // times, at most, from one mark to the next: a rate of a few milliseconds says little
	headShort = 10 * time.Second // in which an SA shows that it is slow
	headLong  = 10 * time.Minute // in which it shows nothing
)

// Received is the mark of one inbound SA: a number on disk that lies beyond every number that has been accepted. A packet beyond
// it is not accepted; the store's goroutine moves it on ahead of need. So what was accepted before the machine failed is not
// accepted again, but what lay between the highest number and the mark is refused too.
//
// The exact highest number is kept as well, in memory that the process shares with the next one, where there is such memory:
// after the process was killed, nothing is refused that was not received.
type Received struct {
	store *Store
	slot  int
	end   uint64 // the first number that does not exist

	// The lane's.
	top      uint64 // the highest number accepted
	limit    uint64 // numbers below may be accepted
	warn     uint64 // the top from which on more is asked for
	askedTop uint64
	askedAge time.Duration // of the SA
	head     uint64        // what was asked for
	top0     uint64        // what Resume is to be told
	memory   *topRecord    // nil: there is none

	bound  atomic.Bool   // by an SA
	turn   atomic.Uint32 // as of a Sequence: whose wanted is
	wanted uint64        // the limit that the lane asks for
}

// ReceivedID names an inbound SA whose numbers are remembered.
type ReceivedID struct {
	SPI  uint32
	Dst  netip.Addr
	Keys offload.Keys
}

// Received makes or finds the mark of an inbound SA, and waits for the disk; use Receiveds for many. One key and SPI can be open once
// at a time: two windows would each accept what the other has accepted. Errors wrap ErrStoreBusy for that, or are the disk's.
func (s *Store) Received(spi uint32, dst netip.Addr, k offload.Keys) (*Received, error) {
	all, err := s.Receiveds([]ReceivedID{{spi, dst, k}})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// Receiveds is Received for many SAs with one wait for the disk. It gives all of them or, with an error, none.
func (s *Store) Receiveds(ids []ReceivedID) ([]*Received, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]SequenceID, len(ids))
	twice := make(map[[16]byte]bool, len(ids))
	for i, id := range ids {
		names[i] = SequenceID{SPI: id.SPI, Dst: id.Dst, KeyID: receivedID(KeyID(id.Keys), id.SPI), ESN: id.Keys.ESN}
		slot, known := s.byKey[names[i].KeyID]
		if known && s.received[slot] != nil || twice[names[i].KeyID] {
			return nil, fmt.Errorf("sa: sequence store: %w: inbound spi 0x%08x has this key already; give the new SA new keys, or wait until the old one is gone", ErrStoreBusy, id.SPI)
		}
		twice[names[i].KeyID] = true
	}
	if err := s.settle(); err != nil {
		return nil, fmt.Errorf("sa: sequence store: %s: %w", s.disk, err)
	}
	known := make([]bool, len(ids))
	for i, name := range names {
		_, known[i] = s.byKey[name.KeyID]
		if err := s.add(name); err != nil {
			return nil, err
		}
	}
	all := make([]*Received, len(ids))
	before, slots := make(map[int]mark, len(ids)), make(map[int]uint64, len(ids))
	for i, name := range names {
		slot := s.byKey[name.KeyID]
		m := &s.marks[slot]
		if n, ok := s.final[slot]; ok {
			m.next = n // the disk has a higher one, which is replaced below
		}
		before[slot], slots[slot] = *m, 0
		r := &Received{store: s, slot: slot, end: lastSeq(name.ESN) + 1, top: m.next - 1, head: firstHead}
		if exact, ok := s.memory.recall(slot, name.KeyID, m.gen); known[i] && ok && exact < m.next {
			r.top = exact
		}
		r.limit = r.beyond(r.top, r.head)
		m.in, m.gen, m.next, m.written = true, newGen(), r.limit, s.now()
		all[i] = r
	}
	if err := s.commit(slots); err != nil {
		for slot, m := range before {
			s.marks[slot] = m
		}
		return nil, fmt.Errorf("sa: sequence store: %s: %w", s.disk, err)
	}
	for i, r := range all {
		delete(s.final, r.slot)
		r.top0, r.askedTop, r.warn = r.top, r.top, r.warnAt()
		r.memory = s.memory.keep(r.slot, names[i].KeyID, s.marks[r.slot].gen, r.top)
		s.received[r.slot] = r
	}
	return all, nil
}

// newGen tells what is written to memory from now on from all that was written there before. It is never 0.
func newGen() uint32 {
	var gen [4]byte
	rand.Read(gen[:]) // never fails
	return binary.BigEndian.Uint32(gen[:]) | 1
}

// receivedID names the numbers of an inbound SA: an outbound one may have the same key.
func receivedID(key [16]byte, spi uint32) [16]byte {
	h := sha256.New()
	h.Write([]byte("culvert: numbers received"))
	h.Write(key[:])
	h.Write(binary.BigEndian.AppendUint32(nil, spi))
	return [16]byte(h.Sum(nil))
}

// beyond is a limit with n numbers between it and top.
func (r *Received) beyond(top, n uint64) uint64 {
	if n >= r.end || top >= r.end-n-1 {
		return r.end
	}
	return top + 1 + n
}

func (r *Received) warnAt() uint64 {
	if r.limit == r.end {
		return math.MaxUint64
	}
	return r.limit - min(r.head, r.limit)/4*3
}

// admits reports whether a number that has been authenticated may be accepted: it lies below the mark on disk. If not, a mark
// beyond it is asked for. Only an authentic packet can do that.
func (r *Received) admits(seq uint64) bool {
	if seq < r.limit {
		return true
	}
	if r.take(); seq < r.limit {
		return true
	}
	r.ask(seq, max(r.head, firstHead))
	return false
}

// tend keeps the mark ahead of top, at an age of the SA, and the exact number where the next process finds it. It is called before
// the packets that were accepted go on to where somebody could see that they were.
func (r *Received) tend(top uint64, age time.Duration) {
	r.top = top
	if r.memory != nil {
		r.memory.set(top)
	}
	if top < r.warn && age-r.askedAge < headShort {
		return
	}
	r.take()
	rate := func() uint64 {
		took := max(age-r.askedAge, time.Millisecond)
		n := float64(top-min(r.askedTop, top)) / took.Seconds() * headTime.Seconds()
		return max(minHead, uint64(min(n, maxHead)))
	}
	took := age - r.askedAge
	switch {
	case r.turn.Load() != idle:
		return
	case top >= r.warn:
		// Of an SA that has become slow less will do than there is.
		if n := min(rate(), headGrows*r.head); r.beyond(top, n) > r.limit {
			r.ask(top, n)
		} else {
			r.head = n
			r.warn = r.warnAt()
		}
	case took >= headLong: // it was not used at all, which says nothing of what comes now
	default:
		// A mark that lies far ahead of a slow SA would cost it hours after a power failure. What is given up here is not accepted from
		// now on, so it does not matter when the disk learns of it.
		n := rate()
		if l := r.beyond(top, n); l < r.limit && r.limit-l > n {
			r.limit = l
			r.ask(top, n)
			r.warn = r.warnAt()
		}
	}
	r.askedAge, r.askedTop = age, top
}

// take goes on to the mark that is on disk now.
func (r *Received) take() {
	if r.turn.Load() == filled {
		r.limit = r.wanted
		r.warn = r.warnAt()
		r.turn.Store(idle)
	}
}

// ask wakes the store's goroutine, once until it has answered.
func (r *Received) ask(top, head uint64) {
	if r.turn.Load() != idle {
		return
	}
	r.head, r.askedTop, r.wanted = head, top, r.beyond(top, head)
	r.turn.Store(wanted)
	r.store.poke()
}

// Close ends the SA's use of the mark, when no lane uses the SA any more, and leaves the exact number on disk: at once, or when the
// store closes. It may be nil.
func (r *Received) Close() {
	if r != nil {
		r.store.finish(r)
	}
}

// finish notes the exact number of a mark that is not used any more. Until it is on disk the mark there is only too high.
func (s *Store) finish(r *Received) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.received[r.slot] != r {
		return
	}
	delete(s.received, r.slot)
	s.final[r.slot] = r.top + 1
	s.poke()
}

// Persist gives the SA a mark: it goes on behind what was received under this key before, whatever process that was. Call it before
// the SA is in a DB, which then closes the mark with the SA. An SA without a replay check can have none. Errors wrap ErrParams.
func (i *Inbound) Persist(r *Received) error {
	p := i.Params()
	switch {
	case !i.filter:
		return fmt.Errorf("sa: %s: %w: an SA without a replay check has no use for a mark", p.label(), ErrParams)
	case r.end != lastSeq(i.esn)+1:
		return fmt.Errorf("sa: %s: %w: the mark was made for the other setting of ESN", p.label(), ErrParams)
	case !r.bound.CompareAndSwap(false, true):
		return fmt.Errorf("sa: %s: %w: the mark is another SA's already", p.label(), ErrParams)
	}
	i.received = r
	if r.top0 > 0 {
		i.Resume(r.top0)
	}
	return nil
}

// Received is the SA's mark, nil if it has none.
func (i *Inbound) Received() *Received { return i.received }
