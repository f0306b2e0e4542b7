package dataplane

import (
	"sync"
	"time"

	"culvert/sa"
)

// Counters are one lane's books. Packets are wire packets: a super-packet from the TUN counts as the packets it is split
// into, a merged receive as the datagrams in it. Bytes on the TUN side are those read or
// written there (a super-packet has one header), on the outer side those of the ESP packets.
type Counters struct {
	PacketsIn, PacketsOut uint64
	BytesIn, BytesOut     uint64
	Drops                 [NumCauses]uint64
	InFlight              uint64 // taken in, and neither sent nor dropped yet
	Held                  uint64 // taken in, and waiting for an SA
	Bursts                uint64 // bursts given to the engine
	Spilled               uint64 // of those, to the worker pool
	PTBSent               uint64 // packet-too-big messages written into the TUN
}

// Dropped is the sum over all causes.
func (c *Counters) Dropped() uint64 {
	var n uint64
	for _, d := range c.Drops {
		n += d
	}
	return n
}

// add adds another lane's books.
func (c *Counters) add(o *Counters) {
	c.PacketsIn += o.PacketsIn
	c.PacketsOut += o.PacketsOut
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	for i, n := range o.Drops {
		c.Drops[i] += n
	}
	c.InFlight += o.InFlight
	c.Held += o.Held
	c.Bursts += o.Bursts
	c.Spilled += o.Spilled
	c.PTBSent += o.PTBSent
}

// Balanced says whether packets in = packets out + drops + in flight + held. It holds at every moment at which a lane publishes.
func (c *Counters) Balanced() bool {
	return c.PacketsIn == c.PacketsOut+c.Dropped()+c.InFlight+c.Held
}

// LaneStats is one lane's name and books.
type LaneStats struct {
	Name string // "outbound", "inbound udp4"
	Counters
}

// books are a lane's counters: now is written by the lane alone, without atomics; published is a consistent copy for
// readers, made once for each burst.
//
// The counters of SAs are published seldom: where packets of many SAs alternate, each burst would else publish as many as it has
// packets. So the lane owes them, for publishEvery at most, and nothing when it is idle.
type books struct {
	now       Counters
	mu        sync.Mutex
	published Counters
	sights    sights

	lane    int             // whose they are, as SAs' owners are called
	owed    [maxOwed]debtor // SAs that have counted what they have not shown
	owes    int
	settled time.Time // when nothing was owed last
}

const (
	publishEvery = 10 * time.Millisecond
	maxOwed      = 1024
)

// debtor is an SA of either direction. A lane may have lost an inbound one to another lane meanwhile, which is not to be disturbed.
type debtor interface{ PublishFor(lane int) }

// owe notes that an SA is to be published; once until it is.
func (b *books) owe(s debtor) {
	if b.owes == maxOwed {
		b.settle()
	}
	b.owed[b.owes] = s
	b.owes++
}

// settle publishes every SA that is to be.
func (b *books) settle() {
	for i := range b.owed[:b.owes] {
		b.owed[i].PublishFor(b.lane)
		b.owed[i] = nil // it may have been removed meanwhile
	}
	b.owes = 0
}

// settleLate settles what has been owed for long.
func (b *books) settleLate() {
	if b.owes == 0 {
		return
	}
	if now := time.Now(); now.Sub(b.settled) >= publishEvery {
		b.settle()
		b.settled = now
	}
}

func (b *books) drop(c Cause, n int) { b.now.Drops[c] += uint64(n) }

// publish makes the lane's counters visible. The lock is held for one copy and never contended by more than a status query.
func (b *books) publish() {
	b.mu.Lock()
	b.published = b.now
	b.sights.publish()
	b.mu.Unlock()
}

func (b *books) read() Counters {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.published
}

// replayCause maps a replay verdict that is not fresh to its drop cause.
func replayCause(v sa.Verdict) Cause {
	switch v {
	case sa.TooOld:
		return CauseTooOld
	case sa.NotMarked:
		return CauseNotMarked
	}
	return CauseDuplicate
}

// refusals sums up what a run of packets of one SA was refused for, as RFC 4303 3.4.3 and 3.4.4 want it counted by SA.
type refusals struct {
	state *sa.Inbound
	drops sa.Drops
}

func (r *refusals) add(b *books, state *sa.Inbound, c Cause) {
	if r.state != state {
		r.flush(b)
		r.state = state
	}
	switch c {
	case CauseDuplicate:
		r.drops.Duplicate++
	case CauseTooOld:
		r.drops.TooOld++
	case CauseIntegrityFailed:
		r.drops.BadICV++
	}
}

func (r *refusals) flush(b *books) {
	if r.state != nil && r.drops != (sa.Drops{}) && r.state.AccountDrops(r.drops) {
		b.owe(r.state)
	}
	*r = refusals{}
}
