package sa

import (
	"sync"
	"sync/atomic"
	"time"
)

// Cause is which limit of a Lifetime was reached.
type Cause uint8

// The causes.
const (
	CauseBytes    Cause = iota // Limits.Bytes
	CausePackets               // Limits.Packets
	CauseAdd                   // Limits.Add
	CauseUse                   // Limits.Use
	CauseSequence              // the sequence numbers: hard when there are none left, soft when three quarters are used
)

var causes = [...]string{
	CauseBytes: "bytes", CausePackets: "packets", CauseAdd: "add-time", CauseUse: "use-time", CauseSequence: "sequence",
}

// String is "bytes", "packets", "add-time", "use-time" or "sequence".
func (c Cause) String() string { return name(causes[:], "cause", uint8(c)) }

// Expiry is one SA's passing of a limit, told once. One of Outbound and Inbound is set.
type Expiry struct {
	Outbound *Outbound
	Inbound  *Inbound
	Hard     bool // the SA is not used any more: remove it
	Cause    Cause
}

// life is an SA's lifetime: which limits it has passed and which of that has been told.
type life struct {
	limits atomic.Pointer[Lifetime]
	added  time.Time     // carries the monotonic clock, so a step of the wall clock ages no SA
	wake   chan struct{} // the DB's; set before the SA can be seen through it
	state  atomic.Uint32
	wiped  atomic.Bool
}

// Bits of life.state. A cause is stored with its bit, and told bits are set by the DB alone.
const (
	softPassed = 1 << iota
	hardPassed
	softTold
	hardTold

	softCause = 8  // shift
	hardCause = 16 // shift
)

// over reports whether a value has reached a limit, if there is one.
func over[T uint64 | time.Duration](v, limit T) bool { return limit != 0 && v >= limit }

// check passes the limits that the use so far has reached. It is called by the owning lane with every burst, and by the DB.
func (l *life) check(u *usage, age time.Duration) {
	limits := l.limits.Load()
	if *limits == (Lifetime{}) {
		return
	}
	if c, ok := limits.Hard.reached(u, age); ok {
		l.pass(true, c)
	}
	if c, ok := limits.Soft.reached(u, age); ok {
		l.pass(false, c)
	}
}

func (l *Limits) reached(u *usage, age time.Duration) (Cause, bool) {
	switch {
	case over(u.bytes, l.Bytes):
		return CauseBytes, true
	case over(u.packets, l.Packets):
		return CausePackets, true
	case over(age, l.Add):
		return CauseAdd, true
	case u.firstUse != 0 && over(age-u.firstUse, l.Use):
		return CauseUse, true
	}
	return 0, false
}

// pass notes a limit as passed, the first time with its cause, and wakes who reads Expiries. A hard limit passes the soft
// one too.
func (l *life) pass(hard bool, c Cause) {
	bits := uint32(softPassed | uint32(c)<<softCause)
	passed := uint32(softPassed)
	if hard {
		bits, passed = softPassed|hardPassed|uint32(c)<<hardCause, hardPassed
	}
	for {
		old := l.state.Load()
		if old&passed != 0 {
			return
		}
		if l.state.CompareAndSwap(old, old|bits) {
			break
		}
	}
	select {
	case l.wake <- struct{}{}:
	default: // nobody reads, or the reader has been woken already
	}
}

// expired reports whether the hard limit has been passed.
func (l *life) expired() bool { return l.state.Load()&hardPassed != 0 }

// refusal is why nothing more may be sent, nil while something may.
func (l *life) refusal() error {
	s := l.state.Load()
	if s&hardPassed == 0 {
		return nil
	}
	if Cause(s>>hardCause) == CauseSequence {
		return ErrSeqExhausted
	}
	return ErrExpired
}

// tell gives what has been passed and not told yet, and counts it as told. With the hard limit the soft one is old news.
func (l *life) tell() (e Expiry, ok bool) {
	s := l.state.Load()
	switch {
	case s&hardPassed != 0 && s&hardTold == 0:
		l.state.Or(softTold | hardTold)
		return Expiry{Hard: true, Cause: Cause(s >> hardCause)}, true
	case s&softPassed != 0 && s&softTold == 0:
		l.state.Or(softTold)
		return Expiry{Cause: Cause(s >> softCause)}, true
	}
	return Expiry{}, false
}

// age is how long the SA has lived at a time; never negative.
func (l *life) age(now time.Time) time.Duration { return max(0, now.Sub(l.added)) }

// usage is what the counters of an SA hold.
type usage struct {
	packets, bytes    uint64
	firstUse, lastUse time.Duration // age of the SA, at least 1; 0: never
	seq               uint64
	drops             Drops
}

// Drops are packets that an inbound SA refused.
type Drops struct {
	Duplicate, TooOld uint64 // by the replay window, before or after the ICV
	BadICV            uint64
}

// counters has one writer, the owning lane, which keeps the truth in use, exact at every moment, and shows it to readers now and
// then: an atomic store for each figure and burst was a fifth of the lane's time where packets of many SAs alternate.
type counters struct {
	use     usage       // the writer's
	changed bool        // the writer's: use is not shown yet
	behind  atomic.Bool // the same for readers

	mu    sync.Mutex // of what follows; held for a copy
	shown usage
	past  [pastLen]moment // a ring: what was shown when, pastEvery apart at least
	at    int             // the newest
}

// moment says that every number up to seq had been used when the SA had that age.
type moment struct {
	age time.Duration
	seq uint64
}

// The past reaches back further than RecentlySent.
const (
	pastEvery = time.Second
	pastLen   = 8
)

// touch notes that use has changed, and reports whether it is the first change since publish.
func (c *counters) touch() bool {
	if c.changed {
		return false
	}
	c.changed = true
	c.behind.Store(true)
	return true
}

// publish makes use visible to readers.
func (c *counters) publish() {
	c.mu.Lock()
	c.show()
	c.mu.Unlock()
}

// show is publish for who holds the lock.
func (c *counters) show() {
	if was := (moment{c.shown.lastUse, c.shown.seq}); was.seq != 0 && c.use.lastUse-c.past[c.at].age >= pastEvery {
		c.at = (c.at + 1) % pastLen
		c.past[c.at] = was
	}
	c.shown = c.use
	c.changed = false
	c.behind.Store(false)
}

// read is what was published last, all of one moment.
func (c *counters) read() usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown
}

// sent reports whether a number was handed out and sent not longer ago than RecentlySent, at an age of the SA.
func (c *counters) sent(lo uint32, age time.Duration) bool {
	behind := c.behind.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.shown.seq
	if d := lo - uint32(last); d != 0 && d <= maxUnshown {
		// Numbers that the lane uses just now are shown in some milliseconds.
		return behind
	}
	back := uint64(uint32(last) - lo)
	if back >= last || age-c.shown.lastUse > RecentlySent {
		return false // it was never used, or nothing was since long
	}
	// The newest moment that is too long ago; what was sent up to it is too old. Without one it is the oldest that is known.
	floor := c.past[(c.at+1)%pastLen].seq
	for i := range c.past {
		if m := c.past[(c.at+1+i)%pastLen]; m.age <= age-RecentlySent {
			floor = max(floor, m.seq)
		}
	}
	return last-back > floor
}

// account counts a burst. The caller is the owning lane.
func (c *counters) account(l *life, packets, bytes, seq uint64, now time.Time) bool {
	u, age := &c.use, l.age(now)
	u.packets += packets
	u.bytes += bytes
	u.seq = seq
	if packets != 0 {
		u.lastUse = max(age, 1)
		if u.firstUse == 0 {
			u.firstUse = u.lastUse
		}
	}
	l.check(u, age)
	return c.touch()
}

// Stats is a consistent copy of an SA's counters, as of the last Publish.
type Stats struct {
	Packets, Bytes uint64
	Added          time.Time
	FirstUse       time.Time // zero: never
	LastUse        time.Time // zero: never
	Seq            uint64    // the last number sent, or the highest received
	Drops          Drops     // inbound
	SoftExpired    bool
	HardExpired    bool
	MTUIgnored     uint64 // outbound: messages of a smaller path MTU that were not believed
}

func (c *counters) stats(l *life) Stats {
	u, state := c.read(), l.state.Load()
	s := Stats{
		Packets: u.packets, Bytes: u.bytes, Added: l.added, Seq: u.seq, Drops: u.drops,
		SoftExpired: state&softPassed != 0, HardExpired: state&hardPassed != 0,
	}
	if u.firstUse != 0 {
		s.FirstUse, s.LastUse = l.added.Add(u.firstUse), l.added.Add(u.lastUse)
	}
	return s
}
