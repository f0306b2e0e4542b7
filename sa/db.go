package sa

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of a DB and its transactions.
var (
	ErrExists   = errors.New("it is there already")
	ErrNotFound = errors.New("it is not there")
	ErrRetired  = errors.New("it has been removed and its keys are wiped; make a new one")
	ErrClosed   = errors.New("the SA database is closed")
	ErrTxDone   = errors.New("the transaction has ended")
)

// DB is the SAD and the SPD (RFC 4301 sections 4.4.1 and 4.4.2). Changes are made one after another by Update; packets are served
// from snapshots, which never change. All methods may be called from any goroutine.
type DB struct {
	cur  atomic.Pointer[Snapshot]
	wake chan struct{} // capacity 1; SAs signal here that they have passed a limit

	mu       sync.Mutex // of writers, and of the told bits of lives
	closed   bool
	watchers []chan struct{} // see Watch

	retire struct {
		sync.Mutex
		idle sync.Cond
		n    int // removed and not wiped yet
		err  error
	}
}

// NewDB makes an empty database.
func NewDB() *DB {
	d := &DB{wake: make(chan struct{}, 1)}
	d.retire.idle.L = &d.retire
	s := &Snapshot{db: d}
	s.refs.Store(1)
	d.cur.Store(s)
	return d
}

// Snapshot is the database at one moment. Its SAs are usable until Release; afterwards it must not be used any more.
type Snapshot struct {
	db      *DB
	version uint64
	lookup  [2]spd // by Dir

	inbounds  table[uint32, *Inbound]
	outbounds table[outKey, outEntry]
	policies  table[polKey, *rule]
	ord       uint64 // of the next policy

	// refs counts who holds the snapshot: those who acquired it, the DB while it is the present one, and the one before it as
	// long as that is held. So a snapshot is finished only after all earlier ones, and nobody sees what was removed after it.
	refs  atomic.Int64
	next  *Snapshot // set before the DB lets go of this one
	gone  []retiree // what next does not have any more
	moved []moved   // what next has on another link
}

// finished is what refs is set to at the end, far below anything that increments can bring back to life.
const finished = math.MinInt64 / 2

// retiree is an SA of either direction.
type retiree interface {
	Params() *Params
	place(p *Params)  // at another endpoint
	rename(p *Params) // at the same one
	wipe() error
}

type outKey struct {
	dst netip.Addr
	spi uint32
}

type outEntry struct {
	o    *Outbound
	uses int // policies that point to it
}

type polKey struct {
	dir  Dir
	name string
}

var seed = maphash.MakeSeed()

func hashSPI(spi uint32) uint32 {
	h := spi * 0x9e3779b1
	return h ^ h>>16
}
func (k outKey) hash() uint32 { return uint32(maphash.Comparable(seed, k)) }
func (k polKey) hash() uint32 { return uint32(maphash.Comparable(seed, k)) }

// Acquire gives the present snapshot, which the caller must Release. It takes no lock and does not allocate. Hold one for a
// burst, not while waiting for the next: as long as it is held, no SA that it shows can be wiped.
func (d *DB) Acquire() *Snapshot {
	for {
		if s := d.cur.Load(); s.refs.Add(1) > 0 {
			return s
		}
		// It was replaced and finished in between, so the present one is another.
	}
}

// Release lets go of the snapshot. SAs that nobody can see any more are wiped, on another goroutine.
func (s *Snapshot) Release() {
	var gone []retiree
	var away []moved
	db := s.db
	for s != nil {
		n := s.refs.Add(-1)
		if n < 0 {
			panic("sa: a snapshot was released more often than acquired")
		}
		if n > 0 || !s.refs.CompareAndSwap(0, finished) {
			break
		}
		gone = append(gone, s.gone...)
		away = append(away, s.moved...)
		s = s.next
	}
	if len(gone) > 0 || len(away) > 0 {
		go db.settle(gone, away)
	}
}

// settle does what had to wait until nobody sees the SAs any more as they were.
func (d *DB) settle(gone []retiree, away []moved) {
	for _, m := range away {
		m.handOver()
	}
	d.wipe(gone)
}

// wipe ends SAs.
func (d *DB) wipe(gone []retiree) {
	for _, g := range gone {
		err := g.wipe()
		d.retire.Lock()
		d.retire.n--
		if err != nil {
			d.retire.err = err
		}
		if d.retire.n == 0 {
			d.retire.idle.Broadcast()
		}
		d.retire.Unlock()
	}
}

// Retiring is the number of SAs that have been removed and are not wiped yet, because snapshots are held or it is being done.
func (d *DB) Retiring() int {
	d.retire.Lock()
	defer d.retire.Unlock()
	return d.retire.n
}

// Wait returns when every SA that has been removed is wiped. The error is the last that an engine gave on closing a session.
func (d *DB) Wait() error {
	d.retire.Lock()
	defer d.retire.Unlock()
	for d.retire.n > 0 {
		d.retire.idle.Wait()
	}
	return d.retire.err
}

// Close removes everything and refuses updates from then on. Wait tells when the last key is wiped.
func (d *DB) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		_ = d.update(func(tx *Tx) error { return tx.Replace(nil, nil, nil) }) // adds nothing, so nothing can be wrong
		d.closed = true
	}
}

// Wake receives when an SA has passed a limit; then, and about every second for the limits in time, call Expiries.
func (d *DB) Wake() <-chan struct{} { return d.wake }

// Expiries gives the limits that SAs have passed by now, each once. The SAs stay; removing those whose hard limit it was is the
// caller's. It must not be called inside Update.
func (d *DB) Expiries(now time.Time) []Expiry {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Expiry
	s := d.cur.Load()
	for _, e := range s.outbounds.values() {
		if x, ok := e.o.life.due(&e.o.counters, now); ok {
			x.Outbound = e.o
			all = append(all, x)
		}
	}
	for _, i := range s.inbounds.values() {
		if x, ok := i.life.due(&i.counters, now); ok {
			x.Inbound = i
			all = append(all, x)
		}
	}
	return all
}

// due checks the limits and tells one.
func (l *life) due(c *counters, now time.Time) (Expiry, bool) {
	u := c.read()
	l.check(&u, l.age(now))
	return l.tell()
}

// Tx is a set of changes that take effect together or not at all. It is valid inside the function given to Update only.
type Tx struct {
	db      *DB
	draft   *Snapshot
	added   map[retiree]func()   // in the draft and never before; the function makes it the DB's
	removed map[retiree]struct{} // in the present snapshot and not in the draft
	moved   map[retiree]*Params  // what an SA's parameters will be
	renamed map[retiree]*Params  // the same, of those that stay where they are
	dirty   bool
	done    bool
}

// Update calls f with a transaction. If f returns nil, its changes take effect at once; with an error, which Update returns, or
// a panic, nothing has changed. SAs that were added belong to the DB then, and otherwise to the caller still. f must not call
// Update or Expiries.
func (d *DB) Update(f func(tx *Tx) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.update(f)
}

func (d *DB) update(f func(tx *Tx) error) error {
	if d.closed {
		return fmt.Errorf("sa: %w", ErrClosed)
	}
	old := d.cur.Load()
	tx := &Tx{
		db: d,
		draft: &Snapshot{
			db: d, version: old.version + 1, lookup: old.lookup, ord: old.ord,
			inbounds: old.inbounds, outbounds: old.outbounds, policies: old.policies,
		},
		added: map[retiree]func(){}, removed: map[retiree]struct{}{}, moved: map[retiree]*Params{}, renamed: map[retiree]*Params{},
	}
	tx.draft.inbounds.owned, tx.draft.outbounds.owned, tx.draft.policies.owned = false, false, false
	defer func() { tx.done = true }()
	if err := f(tx); err != nil {
		return err
	}
	if tx.dirty {
		tx.commit(old)
	}
	return nil
}

func (tx *Tx) commit(old *Snapshot) {
	d := tx.db
	for _, adopt := range tx.added {
		adopt()
	}
	for r, p := range tx.moved {
		was := r.Params().Link
		r.place(p)
		if i, ok := r.(*Inbound); ok && p.Link != was {
			old.moved = append(old.moved, moved{i, i.moves}) // only a transaction moves SAs, and there is but one
		}
	}
	for r, p := range tx.renamed {
		r.rename(p)
	}
	old.next = tx.draft
	for r := range tx.removed {
		old.gone = append(old.gone, r)
	}
	d.retire.Lock()
	d.retire.n += len(old.gone)
	d.retire.Unlock()
	tx.draft.refs.Store(2) // the DB's and old's
	d.cur.Store(tx.draft)
	old.Release()
	for _, c := range d.watchers {
		select {
		case c <- struct{}{}:
		default: // it has not looked since the last one
		}
	}
}

// Watch gives a channel that receives after an update has taken effect: once for several if nobody has looked meanwhile. stop
// ends that. It must not be called inside Update, nor stop.
func (d *DB) Watch() (updated <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watchers = append(d.watchers, c)
	return c, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.watchers = slices.DeleteFunc(d.watchers, func(w chan struct{}) bool { return w == c })
	}
}

func (tx *Tx) begin() error {
	if tx.done {
		return fmt.Errorf("sa: %w", ErrTxDone)
	}
	tx.dirty = true
	return nil
}

// params are an SA's parameters as the transaction has them.
func (tx *Tx) params(r retiree) *Params {
	if p := tx.moved[r]; p != nil {
		return p
	}
	if p := tx.renamed[r]; p != nil {
		return p
	}
	return r.Params()
}

// add notes an SA as added: it is new, or has been removed in this very transaction.
func (tx *Tx) add(r retiree, adopted *atomic.Bool, l *life) error {
	if _, back := tx.removed[r]; back {
		delete(tx.removed, r)
		return nil
	}
	if adopted.Load() {
		return fmt.Errorf("sa: %s: %w", r.Params().label(), ErrRetired)
	}
	tx.added[r] = func() {
		adopted.Store(true)
		l.wake = tx.db.wake
	}
	return nil
}

// remove notes an SA as removed.
func (tx *Tx) remove(r retiree) {
	if _, ok := tx.added[r]; ok {
		delete(tx.added, r) // it was never the DB's
	} else {
		tx.removed[r] = struct{}{}
	}
}

// AddOutbound adds an SA. Its pair of SPI and destination must be new. ErrExists, ErrRetired.
func (tx *Tx) AddOutbound(o *Outbound) error {
	if err := tx.begin(); err != nil {
		return err
	}
	p := tx.params(o)
	k := outKey{p.Dst, p.SPI}
	if _, ok := tx.draft.outbounds.get(k.hash(), k); ok {
		return fmt.Errorf("sa: outbound %s to %v: %w", p.label(), p.Dst, ErrExists)
	}
	if err := tx.add(o, &o.adopted, &o.life); err != nil {
		return err
	}
	tx.draft.outbounds.set(k.hash(), k, outEntry{o: o})
	return nil
}

// AddInbound adds an SA. Its SPI must be new. ErrExists, ErrRetired.
func (tx *Tx) AddInbound(i *Inbound) error {
	if err := tx.begin(); err != nil {
		return err
	}
	p := tx.params(i)
	if _, ok := tx.draft.inbounds.get(hashSPI(p.SPI), p.SPI); ok {
		return fmt.Errorf("sa: inbound %s: %w", p.label(), ErrExists)
	}
	if err := tx.add(i, &i.adopted, &i.life); err != nil {
		return err
	}
	tx.draft.inbounds.set(hashSPI(p.SPI), p.SPI, i)
	return nil
}

// Outbound finds an SA as the transaction has it.
func (tx *Tx) Outbound(spi uint32, dst netip.Addr) (*Outbound, bool) {
	k := outKey{dst, spi}
	e, ok := tx.draft.outbounds.get(k.hash(), k)
	return e.o, ok
}

// Inbound finds an SA as the transaction has it.
func (tx *Tx) Inbound(spi uint32) (*Inbound, bool) {
	return tx.draft.inbounds.get(hashSPI(spi), spi)
}

// Policy finds a policy as the transaction has it.
func (tx *Tx) Policy(dir Dir, name string) (Policy, bool) {
	k := polKey{dir, name}
	if r, ok := tx.draft.policies.get(k.hash(), k); ok {
		return r.Policy, true
	}
	return Policy{}, false
}

// entry finds an outbound SA's own entry.
func (tx *Tx) entry(o *Outbound) (outKey, outEntry, error) {
	p := tx.params(o)
	k := outKey{p.Dst, p.SPI}
	if e, ok := tx.draft.outbounds.get(k.hash(), k); ok && e.o == o {
		return k, e, nil
	}
	return k, outEntry{}, fmt.Errorf("sa: outbound %s to %v: %w", p.label(), p.Dst, ErrNotFound)
}

func (tx *Tx) hasInbound(i *Inbound) error {
	p := tx.params(i)
	if have, _ := tx.Inbound(p.SPI); have != i {
		return fmt.Errorf("sa: inbound %s: %w", p.label(), ErrNotFound)
	}
	return nil
}

// RemoveOutbound removes an SA. Policies that point to it stay without one: what they protect is not sent, rather than in
// clear, until Repoint or ReplacePolicy gives them another. ErrNotFound.
func (tx *Tx) RemoveOutbound(o *Outbound) error {
	if err := tx.begin(); err != nil {
		return err
	}
	k, e, err := tx.entry(o)
	if err != nil {
		return err
	}
	if e.uses > 0 {
		tx.point(func(r *rule) bool { return r.Out == o }, nil)
	}
	tx.draft.outbounds.delete(k.hash(), k)
	tx.remove(o)
	return nil
}

// RemoveInbound removes an SA. ErrNotFound.
func (tx *Tx) RemoveInbound(i *Inbound) error {
	if err := tx.begin(); err != nil {
		return err
	}
	if err := tx.hasInbound(i); err != nil {
		return err
	}
	spi := i.Params().SPI
	tx.draft.inbounds.delete(hashSPI(spi), spi)
	tx.remove(i)
	return nil
}

// MoveOutbound gives an SA other outer addresses (RFC 4555 section 3.5). Its numbers, lifetime and counters go on, its peer is
// the new destination, and the path MTU begins anew.
func (tx *Tx) MoveOutbound(o *Outbound, to Endpoint) error {
	if err := tx.begin(); err != nil {
		return err
	}
	k, e, err := tx.entry(o)
	if err != nil {
		return err
	}
	p := tx.params(o).at(to)
	if err := p.ValidateFor(Out); err != nil {
		return err
	}
	moved := outKey{p.Dst, p.SPI}
	if have, ok := tx.draft.outbounds.get(moved.hash(), moved); ok && have.o != o {
		return fmt.Errorf("sa: outbound %s to %v: %w", p.label(), p.Dst, ErrExists)
	}
	tx.draft.outbounds.delete(k.hash(), k)
	tx.draft.outbounds.set(moved.hash(), moved, e)
	tx.moved[o] = p
	delete(tx.renamed, o) // p has the name
	return nil
}

// MoveInbound gives an SA other outer addresses. Its window, lifetime and counters go on. If its Link is another one, the lane of
// the former link loses it once the packets that it has in hand are done; until then the new one's cannot claim it.
func (tx *Tx) MoveInbound(i *Inbound, to Endpoint) error {
	if err := tx.begin(); err != nil {
		return err
	}
	if err := tx.hasInbound(i); err != nil {
		return err
	}
	p := tx.params(i).at(to)
	if err := p.ValidateFor(In); err != nil {
		return err
	}
	tx.moved[i] = p
	delete(tx.renamed, i)
	return nil
}

// RenameOutbound gives an SA the name of another tunnel. Everything else goes on as it is. ErrNotFound.
func (tx *Tx) RenameOutbound(o *Outbound, name string) error {
	if err := tx.begin(); err != nil {
		return err
	}
	if _, _, err := tx.entry(o); err != nil {
		return err
	}
	tx.rename(o, name)
	return nil
}

// RenameInbound gives an SA the name of another tunnel, whose policies then say what may come through it. To snapshots from before it
// has its old name, so that a packet is judged by policies and names of one time. ErrNotFound.
func (tx *Tx) RenameInbound(i *Inbound, name string) error {
	if err := tx.begin(); err != nil {
		return err
	}
	if err := tx.hasInbound(i); err != nil {
		return err
	}
	tx.rename(i, name)
	return nil
}

func (tx *Tx) rename(r retiree, name string) {
	c := *tx.params(r) // shares the keys' memory: there is one key to wipe
	if c.since != tx.draft.version {
		c.was, c.since = c.Name, tx.draft.version
	}
	c.Name = name
	if tx.moved[r] != nil {
		tx.moved[r] = &c
	} else {
		tx.renamed[r] = &c
	}
}

// AddPolicy adds a policy behind those of its priority. Its name must be new in its direction, and its outbound SA must have
// been added. ErrParams, ErrExists, ErrNotFound.
func (tx *Tx) AddPolicy(p Policy) error {
	if err := tx.begin(); err != nil {
		return err
	}
	k := polKey{p.Dir, p.Name}
	if _, ok := tx.draft.policies.get(k.hash(), k); ok {
		return fmt.Errorf("sa: policy %q %v: %w", p.Name, p.Dir, ErrExists)
	}
	if err := tx.check(&p); err != nil {
		return err
	}
	tx.draft.ord++
	tx.file(p, tx.draft.ord)
	return nil
}

// ReplacePolicy changes the policy of that direction and name. It keeps its place among those of its priority.
func (tx *Tx) ReplacePolicy(p Policy) error {
	if err := tx.begin(); err != nil {
		return err
	}
	k := polKey{p.Dir, p.Name}
	r, ok := tx.draft.policies.get(k.hash(), k)
	if !ok {
		return fmt.Errorf("sa: policy %q %v: %w", p.Name, p.Dir, ErrNotFound)
	}
	if err := tx.check(&p); err != nil {
		return err
	}
	tx.unfile(r)
	tx.file(p, r.rank.ord)
	return nil
}

// RemovePolicy removes a policy. ErrNotFound.
func (tx *Tx) RemovePolicy(dir Dir, name string) error {
	if err := tx.begin(); err != nil {
		return err
	}
	k := polKey{dir, name}
	r, ok := tx.draft.policies.get(k.hash(), k)
	if !ok {
		return fmt.Errorf("sa: policy %q %v: %w", name, dir, ErrNotFound)
	}
	tx.unfile(r)
	return nil
}

// Attach makes all outbound policies that are the SA's by reqid or name point to it, and says how many those are. A rekey is to
// add the new pair, attach its outbound SA, and remove the old pair once the peer has had time to follow (RFC 7296 section 2.8).
func (tx *Tx) Attach(o *Outbound) (int, error) {
	if err := tx.begin(); err != nil {
		return 0, err
	}
	if _, _, err := tx.entry(o); err != nil {
		return 0, err
	}
	p := tx.params(o)
	return tx.point(func(r *rule) bool { return r.owns(p, tx.draft.version) }, o), nil
}

// Repoint makes all policies that point to one outbound SA point to another, or with nil to none, and says how many those are.
func (tx *Tx) Repoint(from, to *Outbound) (int, error) {
	if err := tx.begin(); err != nil {
		return 0, err
	}
	if _, _, err := tx.entry(from); err != nil {
		return 0, err
	}
	if to != nil {
		if _, _, err := tx.entry(to); err != nil {
			return 0, err
		}
	}
	return tx.point(func(r *rule) bool { return r.Out == from }, to), nil
}

// point makes the outbound policies that match point to an SA.
func (tx *Tx) point(match func(*rule) bool, to *Outbound) int {
	n := 0
	for _, r := range tx.draft.policies.values() {
		if r.Dir != Out || r.Action != Protect || !match(r) {
			continue
		}
		n++
		if r.Out != to {
			p := r.Policy
			p.Out = to
			tx.unfile(r)
			tx.file(p, r.rank.ord)
		}
	}
	return n
}

// Replace makes the database hold these and nothing else. What it holds already and is given again goes on as it is.
func (tx *Tx) Replace(outs []*Outbound, ins []*Inbound, policies []Policy) error {
	if err := tx.begin(); err != nil {
		return err
	}
	for _, e := range tx.draft.outbounds.values() {
		tx.remove(e.o)
	}
	for _, i := range tx.draft.inbounds.values() {
		tx.remove(i)
	}
	tx.draft.lookup = [2]spd{}
	tx.draft.outbounds = table[outKey, outEntry]{}
	tx.draft.inbounds = table[uint32, *Inbound]{}
	tx.draft.policies = table[polKey, *rule]{}
	for _, o := range outs {
		if err := tx.AddOutbound(o); err != nil {
			return err
		}
	}
	for _, i := range ins {
		if err := tx.AddInbound(i); err != nil {
			return err
		}
	}
	for _, p := range policies {
		if err := tx.AddPolicy(p); err != nil {
			return err
		}
	}
	return nil
}

func (tx *Tx) check(p *Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if p.Out != nil {
		if _, _, err := tx.entry(p.Out); err != nil {
			return fmt.Errorf("sa: policy %q %v: its SA must be added first: %w", p.Name, p.Dir, err)
		}
	}
	return nil
}

// file puts a policy that has been checked into the draft.
func (tx *Tx) file(p Policy, ord uint64) {
	p.Sel = p.Sel.normal()
	r := &rule{Policy: p, rank: rank{p.Priority, ord}}
	_, r.near = p.Sel.sides(p.Dir)
	k := polKey{p.Dir, p.Name}
	tx.draft.policies.set(k.hash(), k, r)
	tx.draft.lookup[p.Dir] = tx.draft.lookup[p.Dir].with(r)
	tx.use(p.Out, +1)
}

func (tx *Tx) unfile(r *rule) {
	k := polKey{r.Dir, r.Name}
	tx.draft.policies.delete(k.hash(), k)
	tx.draft.lookup[r.Dir] = tx.draft.lookup[r.Dir].without(r)
	tx.use(r.Out, -1)
}

// use counts the policies that point to an SA.
func (tx *Tx) use(o *Outbound, n int) {
	if o == nil {
		return
	}
	if k, e, err := tx.entry(o); err == nil {
		e.uses += n
		tx.draft.outbounds.set(k.hash(), k, e)
	}
}

// Version counts the updates that led to the snapshot.
func (s *Snapshot) Version() uint64 { return s.version }

// Inbound finds the SA of an SPI, or nil. It does not allocate.
func (s *Snapshot) Inbound(spi uint32) *Inbound {
	i, _ := s.inbounds.get(hashSPI(spi), spi)
	return i
}

// Outbound is the policy that decides on a packet to be sent; false if there is none, which means to discard it (RFC 4301
// section 5.1). The policy is not to be changed. It does not allocate, but on 32-bit MIPS and ARM, where Go does not inline
// what the prefix table does with an address.
//
// A later fragment, or any flow without ports, that a policy with ports to protect or discard might be meant for does not
// get past it to one that bypasses: then too there is none.
func (s *Snapshot) Outbound(f *Flow) (*Policy, bool) { return s.Lookup(Out, f) }

// Lookup is Outbound for either direction. The flow is as the packet has it: its source is the peer's side for In.
func (s *Snapshot) Lookup(dir Dir, f *Flow) (*Policy, bool) {
	q := search{flow: f}
	s.lookup[dir].find(dir, &q)
	if r, _ := q.decide(); r != nil {
		return &r.Policy, true
	}
	return nil, false
}

// AllowedIn reports whether an SA may have carried a packet that was found in it: the policy that decides on the packet must
// protect, and be that SA's own, or equal in priority to one of its own that matches too (RFC 4301 section 5.2).
func (s *Snapshot) AllowedIn(i *Inbound, f *Flow) bool {
	q := search{flow: f}
	s.lookup[In].find(In, &q)
	r, _ := q.decide()
	if r == nil || r.Action != Protect {
		return false
	}
	p := i.Params()
	if r.owns(p, s.version) {
		return true
	}
	own := search{flow: f, owner: p, at: s.version}
	s.lookup[In].find(In, &own)
	return own.best != nil && own.best.Action == Protect && own.best.Priority == r.Priority
}

// Protected reports whether a packet that came in clear should have come through an SA, so that it is dropped (RFC 4301
// section 5.2). If it is false, Lookup says whether the packet may pass.
func (s *Snapshot) Protected(f *Flow) bool {
	q := search{flow: f}
	s.lookup[In].find(In, &q)
	r, refused := q.decide()
	if refused != nil {
		r = refused
	}
	return r != nil && r.Action == Protect
}

// Outbounds are the SAs that seal, by name, SPI and destination.
func (s *Snapshot) Outbounds() []*Outbound {
	list := make([]*Outbound, 0, s.outbounds.n)
	for _, e := range s.outbounds.values() {
		list = append(list, e.o)
	}
	slices.SortFunc(list, func(a, b *Outbound) int { return compareParams(a.Params(), b.Params()) })
	return list
}

// Inbounds are the SAs that open, by name, SPI and destination.
func (s *Snapshot) Inbounds() []*Inbound {
	list := s.inbounds.values()
	slices.SortFunc(list, func(a, b *Inbound) int { return compareParams(a.Params(), b.Params()) })
	return list
}

func compareParams(p, q *Params) int {
	return cmp.Or(cmp.Compare(p.Name, q.Name), cmp.Compare(p.SPI, q.SPI), p.Dst.Compare(q.Dst))
}

// Policies are the outbound and then the inbound policies, each in the order in which they decide. They are not to be changed.
func (s *Snapshot) Policies() []*Policy {
	all := s.policies.values()
	slices.SortFunc(all, func(a, b *rule) int {
		if a.Dir == b.Dir && a.rank.before(b.rank) || a.Dir < b.Dir {
			return -1
		}
		return 1
	})
	list := make([]*Policy, len(all))
	for i, r := range all {
		list[i] = &r.Policy
	}
	return list
}
