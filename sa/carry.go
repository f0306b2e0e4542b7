package sa

import (
	"fmt"
	"time"
)

// Use is what an SA has done before: under the same key, as another SA, in another program or in a kernel.
type Use struct {
	Packets, Bytes    uint64
	Age               time.Duration // since the key was first installed
	FirstUse, LastUse time.Duration // how long ago; 0: never
}

// Replay is a replay window's content.
type Replay struct {
	Top uint64 // the highest number accepted; 0: none
	// Seen has a bit per number: bit n%64 of word n/64 says that Top-n has been received. Numbers beyond its end count as seen.
	Seen []uint64
}

func (l *life) begin(limits Lifetime) {
	l.limits.Store(&limits)
	l.added = time.Now()
}

// carry makes a life and its counters go on from u.
func (c *counters) carry(l *life, u Use) {
	l.added = l.added.Add(-max(0, u.Age))
	age := time.Since(l.added)
	ago := func(d time.Duration) time.Duration {
		if d == 0 {
			return 0
		}
		return max(1, age-d)
	}
	c.use.packets, c.use.bytes = u.Packets, u.Bytes
	c.use.firstUse, c.use.lastUse = ago(u.FirstUse), ago(u.LastUse)
	c.publish()
}

// Carry makes the lifetime and the counters go on from what the key has been used for already. Call it before the SA is in a
// DB. Numbers go on by Sequence.SkipPast.
func (o *Outbound) Carry(u Use) { o.counters.carry(&o.life, u) }

// Carry makes the lifetime and the counters go on from what the key has been used for already. Call it before the SA is in a
// DB. The window goes on by ResumeReplay.
func (i *Inbound) Carry(u Use) { i.counters.carry(&i.life, u) }

// SetLifetime gives the SA other limits, from any goroutine: its age and counters stay, and a soft limit that has been passed
// may be passed again. A hard limit that has been passed stays so. Errors wrap ErrParams.
func (o *Outbound) SetLifetime(l Lifetime) error { return o.life.set(o.Params(), l) }

// SetLifetime gives the SA other limits, as for an Outbound.
func (i *Inbound) SetLifetime(l Lifetime) error { return i.life.set(i.Params(), l) }

func (l *life) set(p *Params, limits Lifetime) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("sa: %s: %w: %s", p.label(), ErrParams, fmt.Sprintf(format, args...))
	}
	if err := limits.validate(refuse); err != nil {
		return err
	}
	l.limits.Store(&limits)
	l.state.And(^uint32(softPassed | softTold | 0xff<<softCause))
	return nil
}

// Lifetime is the limits that hold now.
func (o *Outbound) Lifetime() Lifetime { return *o.life.limits.Load() }

// Lifetime is the limits that hold now.
func (i *Inbound) Lifetime() Lifetime { return *i.life.limits.Load() }

// Wiped reports whether the SA was removed and nobody can use it any more, so that its counters, its last number and its
// window are final: an SA that takes over its key waits for that.
func (o *Outbound) Wiped() bool { return o.life.wiped.Load() }

// Wiped reports whether the SA was removed and nobody can use it any more, as for an Outbound.
func (i *Inbound) Wiped() bool { return i.life.wiped.Load() }

// seen is a window's ring as readers have it, under the counters' lock. What has changed since the last time is a few words.
type seen struct {
	words []uint64
	top   uint64
}

// publish copies what has changed.
func (s *seen) publish(w *Window) {
	if w.top == s.top && w.late == 0 {
		return
	}
	from := s.top
	if w.late != 0 && w.late < from {
		from = w.late
	}
	ring := w.words()
	if first, last := from>>6, w.top>>6; last-first >= uint64(len(ring)) {
		copy(s.words, ring)
	} else {
		for n := first; n != last+1; n++ {
			at := int(n) & (len(ring) - 1)
			s.words[at] = ring[at]
		}
	}
	s.top, w.late = w.top, 0
}

// publishAll makes the whole window visible, when it has been set from outside.
func (i *Inbound) publishAll() {
	i.counters.mu.Lock()
	copy(i.seen.words, i.window.words())
	i.seen.top, i.window.late = i.window.top, 0
	i.counters.mu.Unlock()
	i.counters.use.seq = i.window.top
	i.counters.publish()
}

// Replay is the window as of the last Publish, all of one moment. It may be called from any goroutine. An SA that has no window
// gives the highest number alone.
func (i *Inbound) Replay() Replay {
	if !i.filter {
		return Replay{Top: i.Stats().Seq}
	}
	copied := Window{size: i.window.size, ring: make([]uint64, len(i.seen.words))}
	i.counters.mu.Lock()
	copied.top = i.seen.top
	copy(copied.ring, i.seen.words)
	i.counters.mu.Unlock()
	r := Replay{Top: copied.top, Seen: make([]uint64, (copied.size+63)/64)}
	for n := range copied.size {
		if n >= r.Top {
			break
		}
		if copied.Check(r.Top-n) == Duplicate {
			r.Seen[n/64] |= 1 << (n % 64)
		}
	}
	return r
}

// ResumeReplay sets the window to what another one had. Call it before the SA is in a DB.
func (i *Inbound) ResumeReplay(r Replay) {
	i.window.Resume(r.Top)
	if i.filter {
		ring := i.window.words()
		for n := range min(uint64(64*len(r.Seen)), i.window.width(), r.Top) {
			if r.Seen[n/64]&(1<<(n%64)) == 0 {
				seq := r.Top - n
				ring[int(seq>>6)&(len(ring)-1)] &^= 1 << (seq & 63)
			}
		}
	}
	i.publishAll()
}
