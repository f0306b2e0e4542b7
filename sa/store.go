package sa

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"culvert/offload"
)

// Errors of a Store.
var (
	ErrStoreBusy    = errors.New("the sequence store is in use")
	ErrStoreCorrupt = errors.New("the sequence store is damaged")
	ErrStoreClosed  = errors.New("the sequence store is closed")
)

// How far reservations go.
const (
	// The least, however slow an SA is: it may become fast at any time, and half of this lasts 32 ms at a million packets a
	// second, enough for a disk. A power failure loses at most this much of an idle SA's 2^32 numbers.
	minChunk   = 1 << 16
	firstChunk = 1 << 17 // until a rate is known
	maxChunk   = 1 << 28
	ahead      = 4 * time.Second // what a reservation lasts; at least half of it is left when the next one is asked for
	retry      = time.Second     // after the disk has refused

	// By how much the memory that outlives the process is ahead, so that a lane writes to it now and then and not with each packet.
	// It is less than any peer's mark is ahead of what that has accepted.
	memoryStep = 64
)

// KeyID names a key without telling anything about it: HMAC-SHA256 with the key over a fixed text, cut to 16 bytes.
func KeyID(k offload.Keys) [16]byte {
	secret := make([]byte, 0, 8+len(k.Enc)+len(k.Auth))
	for _, part := range []offload.Key{k.Enc, k.Auth} {
		secret = binary.BigEndian.AppendUint32(secret, uint32(len(part)))
		secret = append(secret, part...)
	}
	defer clear(secret)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("culvert: name of a key in the sequence store, version 1"))
	return [16]byte(mac.Sum(nil))
}

// SequenceID says whose numbers are meant. KeyID alone decides: a number is never used twice with a key, whatever the SPI or
// the peer; these are recorded for people.
type SequenceID struct {
	SPI   uint32
	Dst   netip.Addr
	KeyID [16]byte
	ESN   bool
}

// Store keeps on disk, for every key, a mark ahead of all numbers that have been used with it. A mark is durable before a
// number below it is handed out, so whenever the process ends, however it ends, going on at the mark repeats nothing. A key that
// comes back goes on
//
//	after Sequence.Close    at the number behind the last one used: the mark was moved back there
//	after a kill            at most 64 numbers later, which memory that outlives the process tells (Store.Memory)
//	after a power failure,  at the mark on disk: what lies between the last number used and the mark is lost, a few seconds' worth,
//	or a kill without it    and at most 131,072 numbers of an SA that has been slow
//
// Two sequences of one key at a time are possible, as when an SA is replaced by itself at another address: their reservations are
// disjoint. Then the memory tells nothing of the key.
//
// Its directory and files are root's or the user's who runs the process, and nobody else can write them: ErrStoreExposed.
//
// The directory must last as long as the keys do, and never go back in time: an old copy of it, from a backup or with the
// snapshot of a virtual machine, has marks that lie behind numbers in use.
//
// The store keeps such a mark for inbound SAs too: see Received.
//
// All methods may be called from any goroutine.
type Store struct {
	now func() time.Time // tests have their own

	wake chan struct{} // capacity 1
	stop chan struct{}
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	disk    disk
	marks   []mark // one per slot of the file
	byKey   map[[16]byte]int
	free    []int // slots without a key
	open    map[*Sequence]struct{}
	users   map[int]int // how many of open have a slot
	batch   []*Sequence // scratch of extend
	suspect bool        // the last sync failed: what the file holds is unknown until it is replaced
	err     error
	mended  Mended
	closed  bool
	created bool // there was no file of marks

	received  map[int]*Received // open ones, by slot
	final     map[int]uint64    // by slot: exact marks of closed ones that are not on disk yet
	returned  map[int]struct{}  // slots whose marks have moved back, which the disk does not know yet
	memory    *tops             // nil: there is none
	memoryErr error             // why not
}

// OpenStore opens the store in a directory, which it makes if need be, and locks it. Errors wrap ErrStoreBusy if another process
// has it, ErrStoreCorrupt if the file cannot be trusted, ErrStoreExposed if others than root and this user own the directory or a file in it or can
// write there, or are the system's.
func OpenStore(dir string) (*Store, error) {
	d, content, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	s, err := loadStore(d, content)
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	s.memory, s.memoryErr = openTops(d.dir, len(s.marks))
	go s.run()
	return s, nil
}

// Memory is nil if the numbers in use outlive the process in memory, and else why not: then a kill costs SAs what a power failure
// costs them.
func (s *Store) Memory() error { return s.memoryErr }

// loadStore makes a store of what a disk holds, nil if nothing. It does not work ahead yet.
func loadStore(d disk, content []byte) (*Store, error) {
	s := &Store{
		now: time.Now, disk: d, byKey: map[[16]byte]int{}, open: map[*Sequence]struct{}{}, users: map[int]int{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		received: map[int]*Received{}, final: map[int]uint64{}, returned: map[int]struct{}{},
	}
	if content == nil {
		s.created = true
		s.marks = make([]mark, slotsPerPage)
		if err := d.replace(encodeMarks(s.marks)); err != nil {
			return nil, fmt.Errorf("sa: sequence store: create %s: %w", d, err)
		}
	} else {
		var err error
		if s.marks, err = decodeMarks(content); err != nil {
			return nil, corrupt(d.String(), err)
		}
	}
	for i := len(s.marks) - 1; i >= 0; i-- {
		if !s.marks[i].used {
			s.free = append(s.free, i)
		} else if _, twice := s.byKey[s.marks[i].id.KeyID]; twice {
			return nil, corrupt(d.String(), fmt.Errorf("slot %d repeats a key", i))
		} else {
			s.byKey[s.marks[i].id.KeyID] = i
		}
	}
	return s, nil
}

func corrupt(name string, why error) error {
	return fmt.Errorf("sa: sequence store: %s: %w: %w. Going on could repeat sequence numbers: "+
		"give every SA with a static key a new one, then remove the file", name, ErrStoreCorrupt, why)
}

// CheckStore gives the error that OpenStore would give for a directory and the files in it, if there are any. It changes nothing and
// takes no lock: while another process writes, it may find the file damaged that is not.
func CheckStore(dir string) error {
	d := &dirDisk{}
	var err error
	if d.dir, err = os.Open(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return unusable(err)
	}
	defer d.close()
	if err := ownDir(d.dir); err != nil {
		return unusable(err)
	}
	if d.lock, err = openOwn(filepath.Join(dir, lockName), os.O_RDONLY); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unusable(err)
	}
	content := []byte(nil)
	if d.file, content, err = openMarks(d.String()); err != nil {
		return unusable(err)
	}
	if content != nil {
		_, err = loadStore(d, content)
	}
	return err
}

// Created says whether there was no file of marks when the store was opened, so that every key begins at 1.
func (s *Store) Created() bool { return s.created }

// Has says whether a key has been used with this store before, so that its numbers go on and do not begin at 1.
func (s *Store) Has(keyID [16]byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.byKey[keyID]
	return ok
}

// Sequence starts or resumes the numbers of a key, with the first of them reserved. keyID comes from KeyID. It waits for the
// disk; use Sequences for many. ErrSeqExhausted: all numbers of the key have been used or reserved.
func (s *Store) Sequence(spi uint32, dst netip.Addr, keyID [16]byte, esn bool) (*Sequence, error) {
	all, err := s.Sequences([]SequenceID{{SPI: spi, Dst: dst, KeyID: keyID, ESN: esn}})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// Sequences is Sequence for many keys with one wait for the disk. It gives all of them or, with an error, none.
func (s *Store) Sequences(ids []SequenceID) ([]*Sequence, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Sequence, len(ids))
	if !s.closed {
		if err := s.settle(); err != nil { // which may change marks that an error below brings back
			return nil, fmt.Errorf("sa: sequence store: %s: %w", s.disk, err)
		}
	}
	for _, id := range ids {
		if err := s.add(id); err != nil {
			return nil, err
		}
	}
	before, users := map[int]mark{}, map[int]int{} // the latter of these ids, by slot
	for i, id := range ids {
		slot := s.byKey[id.KeyID]
		before[slot] = s.marks[slot]
		users[slot]++
		all[i] = &Sequence{store: s, slot: slot, limit: lastSeq(id.ESN) + 1, chunk: firstChunk}
	}
	for slot := range before {
		m := &s.marks[slot]
		exact, ok := s.memory.recall(slot, m.id.KeyID, m.gen)
		switch {
		case s.users[slot]+users[slot] > 1:
			m.gen = 0 // there is one record for all of them, and a lane writes to it already
			continue
		case ok && 0 < exact && exact < m.next:
			m.next = exact
		}
		m.gen = newGen() // durable with the reservation, so that the record of before is never believed again
	}
	if err := s.reserve(all, nil); err != nil {
		for slot, m := range before {
			s.marks[slot] = m
		}
		return nil, fmt.Errorf("sa: sequence store: %s: %w", s.disk, err)
	}
	for i, q := range all {
		if q.spent.Load() {
			for _, q := range all {
				s.takeBack(q)
			}
			return nil, fmt.Errorf("sa: spi 0x%08x to %v: %w", ids[i].SPI, ids[i].Dst, ErrSeqExhausted)
		}
	}
	for _, q := range all {
		q.take()
		if m := &s.marks[q.slot]; m.gen != 0 {
			q.memory = s.memory.keep(q.slot, m.id.KeyID, m.gen, q.at)
			q.remember(q.at)
		}
		s.open[q] = struct{}{}
		s.users[q.slot]++
	}
	return all, nil
}

// add finds or makes the mark of a key. A new one is not on disk before its first reservation.
func (s *Store) add(id SequenceID) error {
	if s.closed {
		return fmt.Errorf("sa: sequence store: %s: %w", s.disk, ErrStoreClosed)
	}
	if slot, ok := s.byKey[id.KeyID]; ok {
		s.marks[slot].id = id
		return nil
	}
	if len(s.free) == 0 {
		if err := s.grow(); err != nil {
			return fmt.Errorf("sa: sequence store: enlarge %s: %w", s.disk, err)
		}
	}
	slot := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.marks[slot] = mark{used: true, id: id, next: 1}
	s.byKey[id.KeyID] = slot
	return nil
}

// grow doubles the file. It is replaced as a whole, so a crash leaves the old one or the new one.
func (s *Store) grow() error {
	if s.disk.intact() != nil {
		s.suspect = true
	}
	if err := s.settle(); err != nil {
		return err
	}
	n := len(s.marks) // settle may have made more
	grown := append(s.marks[:n:n], make([]mark, n)...)
	if err := s.disk.replace(encodeMarks(grown)); err != nil {
		return err
	}
	s.marks, s.suspect = grown, false
	_ = s.memory.grow(len(grown)) // slots without a record are as if there were no memory
	for i := len(grown) - 1; i >= n; i-- {
		s.free = append(s.free, i)
	}
	return nil
}

// reserve makes a reservation of its chunk for each sequence and hands it over as the spare, or marks it as spent, and moves the
// marks of inbound SAs. It writes all marks and waits for the disk once. On an error nobody has got anything.
func (s *Store) reserve(seqs []*Sequence, ins []*Received) error {
	if s.closed {
		return ErrStoreClosed
	}
	if err := s.settle(); err != nil {
		return err
	}
	now := s.now()
	first := make(map[int]uint64, len(seqs)) // by slot: where the mark was
	spans := make([]span, len(seqs))
	for i, q := range seqs {
		m := &s.marks[q.slot]
		if _, ok := first[q.slot]; !ok {
			first[q.slot] = m.next
		}
		if m.next >= q.limit {
			continue
		}
		spans[i] = span{m.next, m.next + min(q.chunk, q.limit-m.next)}
		m.next, m.written = spans[i].hi, now
	}
	move := func(slot int, next uint64) {
		m := &s.marks[slot]
		first[slot] = m.next
		m.next, m.written = next, now
	}
	for _, r := range ins {
		move(r.slot, r.wanted)
	}
	for slot, next := range s.final {
		move(slot, next)
	}
	for slot := range s.returned {
		if _, ok := first[slot]; !ok {
			move(slot, s.marks[slot].next)
		}
	}
	if err := s.commit(first); err != nil {
		for slot, next := range first {
			s.marks[slot].next = next // nothing beyond it was handed out
		}
		return err
	}
	clear(s.final)
	clear(s.returned)
	for _, r := range ins {
		r.turn.Store(filled)
	}
	for i, q := range seqs {
		if spans[i].hi == 0 {
			q.spent.Store(true) // the turn stays the store's, which has nothing more to say
			continue
		}
		q.size, q.granted, q.grantAt = q.chunk, now, q.asked
		q.spare = spans[i]
		if q.asked == 0 {
			q.grantAt = q.spare.lo // its first one
		}
		q.turn.Store(filled)
	}
	return nil
}

// commit makes the marks in these slots durable.
func (s *Store) commit(slots map[int]uint64) error {
	if s.suspect {
		// After a failed sync the kernel may count pages as clean that never reached the disk; only new ones can be trusted.
		if err := s.disk.replace(encodeMarks(s.marks)); err != nil {
			return err
		}
		s.suspect = false
		return nil
	}
	for slot := range slots {
		rec := s.marks[slot].encode(slot)
		if err := s.disk.writeAt(rec[:], offset(slot)); err != nil {
			s.suspect = true
			return err
		}
	}
	if err := s.disk.sync(); err != nil {
		s.suspect = true
		return err
	}
	return nil
}

// skip makes a sequence that no SA has yet go on at n.
func (s *Store) skip(q *Sequence, n uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n == 0 || n >= q.limit {
		return ErrSeqExhausted
	}
	m := &s.marks[q.slot]
	m.next = max(m.next, n) // durable with the reservation; without, it is only higher than it need be
	if err := s.reserve([]*Sequence{q}, nil); err != nil {
		return fmt.Errorf("sa: sequence store: %s: %w", s.disk, err)
	}
	if q.spent.Load() {
		return ErrSeqExhausted
	}
	q.take()
	return nil
}

// poke wakes the goroutine.
func (s *Store) poke() {
	select {
	case s.wake <- struct{}{}:
	default: // it has not looked yet since the last time
	}
}

// run reserves ahead until the store is closed.
func (s *Store) run() {
	defer close(s.done)
	again := time.NewTimer(retry)
	again.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.wake:
		case <-again.C:
		case <-look.C:
			if !s.look() {
				continue
			}
		}
		if s.extend() != nil {
			again.Reset(retry)
		}
	}
}

// extend answers every sequence that has asked.
func (s *Store) extend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := s.batch[:0]
	now := s.now()
	for q := range s.open {
		if q.turn.Load() == wanted && !q.spent.Load() {
			q.chunk = q.need(now)
			batch = append(batch, q)
		}
	}
	s.batch = batch
	var ins []*Received
	for _, r := range s.received {
		if r.turn.Load() == wanted {
			ins = append(ins, r)
		}
	}
	if len(batch)+len(ins)+len(s.final)+len(s.returned) == 0 || s.closed {
		return nil
	}
	s.err = s.reserve(batch, ins)
	if s.err != nil {
		s.err = fmt.Errorf("sa: sequence store: %s: %w", s.disk, s.err)
		return s.err
	}
	clear(batch)
	return nil
}

// need is the size of the next reservation, by the rate since the last one was asked for. It follows a rising rate at once
// and a falling one slowly: numbers are cheap, and a lane without them drops packets.
func (q *Sequence) need(now time.Time) uint64 {
	took := max(now.Sub(q.granted), time.Microsecond)
	used := float64(q.asked - min(q.grantAt, q.asked))
	n := uint64(min(used/took.Seconds()*ahead.Seconds(), maxChunk))
	return max(n, q.size/2, minChunk)
}

// drop forgets an open sequence.
func (s *Store) drop(q *Sequence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.open[q]; ok {
		delete(s.open, q)
		if s.users[q.slot]--; s.users[q.slot] == 0 {
			delete(s.users, q.slot)
		}
		s.takeBack(q)
	}
}

// takeBack moves the mark of a key back to where a sequence that has ended stands, over numbers that nobody has used and nobody else
// has got. What the disk holds is not lower at any moment, and either is right.
func (s *Store) takeBack(q *Sequence) {
	m := &s.marks[q.slot]
	was := m.next
	if q.turn.Load() == filled && q.spare.hi == m.next {
		m.next = q.spare.lo
	}
	if q.end == m.next {
		m.next = q.at
	}
	q.at, q.end, q.memory = 0, 0, nil
	q.turn.Store(wanted) // for good: the store does not know it any more
	if m.next != was {
		s.returned[q.slot] = struct{}{}
		s.poke()
	}
}

// Forget removes the mark of a key that will never be used again, because it was negotiated and its SA is gone. It refuses
// while a sequence of the key is open. Numbers would start at 1 if the key did come back.
func (s *Store) Forget(keyID [16]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot, ok := s.byKey[keyID]
	if !ok {
		return nil
	}
	if s.users[slot] > 0 {
		return fmt.Errorf("sa: sequence store: %w: spi 0x%08x still uses the key; close its sequence first", ErrStoreBusy, s.marks[slot].id.SPI)
	}
	if s.closed {
		return fmt.Errorf("sa: sequence store: %s: %w", s.disk, ErrStoreClosed)
	}
	if err := s.settle(); err != nil {
		return fmt.Errorf("sa: sequence store: %s: %w", s.disk, err)
	}
	was := s.marks[slot]
	s.marks[slot] = mark{}
	if err := s.commit(map[int]uint64{slot: 0}); err != nil {
		s.marks[slot] = was
		return fmt.Errorf("sa: sequence store: %s: %w", s.disk, err)
	}
	delete(s.byKey, keyID)
	delete(s.returned, slot)
	s.free = append(s.free, slot)
	return nil
}

// Err is why the last attempt to reserve ahead, or to mend what somebody has done to the directory, failed, nil if it did not. While it
// fails, the store tries again every second, and sequences run on until their reservation ends.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends all reservations and unlocks the directory. Sequences that are still open end with the numbers they have, which are lost:
// close them before.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	var err error
	if len(s.final)+len(s.returned) > 0 {
		if err = s.reserve(nil, nil); err != nil {
			err = fmt.Errorf("sa: sequence store: %s: %w", s.disk, err)
		}
	}
	exact := err == nil && len(s.received) == 0 // on disk, so that nobody needs the memory
	for q := range s.open {
		// It may go on below the mark, and write to its record, which nobody may believe any more: others get another file.
		s.memory.forget(q.slot)
		exact = true
	}
	s.closed = true
	clear(s.open)
	clear(s.users)
	clear(s.received)
	s.mu.Unlock()
	close(s.stop)
	<-s.done
	return errors.Join(err, s.memory.close(exact), s.disk.close())
}
