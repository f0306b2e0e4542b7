package dataplane

import (
	"errors"
	"net"

	"culvert/offload"
)

// ring holds a lane's bursts and gives them back in the order in which they were submitted, whatever order the engine
// finishes them in. It is the one place where order is restored: the oldest burst is waited for.
//
// Everything in it is made at start. It belongs to one lane, so it has no locks.
type ring struct {
	direct offload.Lane // the engine, run by this lane's own goroutine
	spill  offload.Lane // the worker pool, or nil
	slots  []slot
	head   int // the oldest burst that was submitted and not completed
	used   int // submitted and not completed
	reaped []*offload.Burst
	rule   spillRule
}

// slot is one burst on its way.
type slot struct {
	burst offload.Burst // its Tag is the slot's index
	on    offload.Lane  // where it was submitted; nil when it is not on its way
	done  bool
}

// stages are a lane's two ends, before and behind the engine.
type stages interface {
	// fill makes burst i of what is there; with wait it blocks until something is. It may come back with no job at all. full
	// says that it stopped because the burst was, not because nothing more was there. With an error nothing more will come;
	// the burst may have jobs all the same.
	fill(i int, wait bool) (full bool, err error)
	// complete takes finished burst i on, and lets go of all that it held.
	complete(i int)
}

func newRing(dir offload.Direction, direct, spill offload.Lane, depth int) *ring {
	r := &ring{direct: direct, spill: spill, slots: make([]slot, depth), reaped: make([]*offload.Burst, depth)}
	for i := range r.slots {
		r.slots[i].burst = offload.Burst{Dir: dir, Jobs: make([]offload.Job, 0, burstJobs), Tag: i}
	}
	return r
}

// run serves a lane until its source ends, then finishes what is in flight. That the source was closed is no error.
func (r *ring) run(s stages, b *books) error {
	for {
		err := r.step(s, b, true)
		if err == nil {
			continue
		}
		for r.used > 0 {
			r.finish(s, true)
		}
		b.settle()
		b.publish()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		return err
	}
}

// step fills one burst if one is free, submits it, and completes what is finished. With wait it blocks when there is nothing
// to do: for the source while nothing is in flight, else for the oldest burst. The error is the source's.
func (r *ring) step(s stages, b *books, wait bool) error {
	defer b.publish()
	i := r.free()
	if i < 0 {
		r.finish(s, wait)
		b.settleLate()
		return nil
	}
	// A lane that waits owes nothing, so that whoever looks then sees all.
	full, err := s.fill(i, wait && r.used == 0 && b.owes == 0)
	r.rule.filled(full)
	filled := len(r.slots[i].burst.Jobs) > 0
	if filled {
		b.now.Bursts++
		if r.submit(i) {
			b.now.Spilled++
		}
	}
	r.finish(s, wait && !filled)
	if full {
		b.settleLate()
	} else {
		b.settle()
	}
	return err
}

// free gives the index of the burst to fill next, or -1 when all are in flight.
func (r *ring) free() int {
	if r.used == len(r.slots) {
		return -1
	}
	return (r.head + r.used) % len(r.slots)
}

// submit hands burst i, which free has named, to the worker pool if the lane does not keep up, and else to the lane's own
// engine. spilled says which. The burst is in flight then, whatever the engine says.
func (r *ring) submit(i int) (spilled bool) {
	s := &r.slots[i]
	s.done = false
	r.used++
	if r.spill != nil && r.rule.spills() {
		if s.on = r.spill; r.spill.Submit(&s.burst) == nil {
			return true
		}
		// No room in the pool means that every worker is busy: the lane is the one that is not.
	}
	s.on = r.direct
	for {
		err := r.direct.Submit(&s.burst)
		if err == nil {
			return false
		}
		if err != offload.ErrFull || !r.await(r.direct, s) {
			s.burst.Fail()
			s.done = true
			return false
		}
	}
}

// finish completes the finished bursts from the oldest on; with wait it blocks until the oldest is finished.
func (r *ring) finish(s stages, wait bool) {
	for wait && r.used > 0 && !r.slots[r.head].done {
		r.await(r.slots[r.head].on, nil)
	}
	if r.used == 0 {
		return
	}
	r.mark(r.direct, r.direct.Reap(r.reaped, false))
	if r.spill != nil {
		r.mark(r.spill, r.spill.Reap(r.reaped, false))
	}
	for r.used > 0 && r.slots[r.head].done {
		s.complete(r.head)
		r.slots[r.head].on = nil
		r.head = (r.head + 1) % len(r.slots)
		if r.used--; r.used == 0 {
			r.head = 0 // a lane that keeps up stays with one burst, whose memory stays in the cache
		}
	}
}

// await blocks until l finishes a burst, and reports false when it says that it has none. Those that it never gave back are
// lost then: they count as failed, and the lane goes on. But for tried, which it has not taken yet.
func (r *ring) await(l offload.Lane, tried *slot) bool {
	n := l.Reap(r.reaped, true)
	r.mark(l, n)
	if n > 0 {
		return true
	}
	for i := range r.slots {
		if s := &r.slots[i]; s.on == l && !s.done && s != tried {
			s.burst.Fail()
			s.done = true
		}
	}
	return false
}

// mark notes that l has finished the first n bursts of reaped. One that is not on its way there is no news.
func (r *ring) mark(l offload.Lane, n int) {
	for i, b := range r.reaped[:n] {
		r.reaped[i] = nil
		if uint(b.Tag) < uint(len(r.slots)) {
			if s := &r.slots[b.Tag]; &s.burst == b && s.on == l {
				s.done = true
			}
		}
	}
}

// spillRule decides when a lane's bursts go to the worker pool: a burst that was filled to the brim means that more was
// waiting, and two in a row that the lane does not keep up. Handing a burst over costs two wake-ups, so a lane that keeps
// up does not.
type spillRule struct{ brimful int }

func (s *spillRule) filled(full bool) {
	if full {
		s.brimful++
	} else {
		s.brimful = 0
	}
}

func (s *spillRule) spills() bool { return s.brimful >= 2 }
