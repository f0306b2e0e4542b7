package offloadtest

import (
	"hash/maphash"
	"math/rand/v2"
	"sync/atomic"

	"culvert/offload"
)

// ChaosOptions say how awkward a Chaos is. The zero value finishes out of order and late, and does nothing worse.
type ChaosOptions struct {
	Seed   uint64 // the same seed and the same calls give the same behaviour
	Depth  int    // bursts a lane holds; 0: 8
	Full   int    // percent of Submits that say ErrFull though there is room; only while the lane holds a burst
	Errors int    // percent of jobs that end with EngineError
}

// Chaos is an asynchronous engine around a synchronous one, for tests of whoever uses engines. It keeps every burst back
// until a Reap, finishes some of them, in no order, and does the work only then: who touches a buffer that it has handed
// over, or closes a session too early, gets to feel it. It has no goroutines and no clock. What a lane does depends on the
// seed, the lane's id and the calls only.
type Chaos struct {
	inner offload.Engine
	o     ChaosOptions
	fail  atomic.Int64

	submitted, full, failed, overtaken, touched atomic.Int64
}

// ChaosStats is what a Chaos has done so far.
type ChaosStats struct {
	Submitted int // bursts taken
	Full      int // Submits refused with ErrFull
	Failed    int // jobs made to end with EngineError
	Overtaken int // bursts given back while an earlier one was still held
	Touched   int // bursts whose packets changed while the lane owned them: the caller's mistake
}

// NewChaos makes one around a synchronous engine.
func NewChaos(inner offload.Engine, o ChaosOptions) *Chaos {
	if o.Depth <= 0 {
		o.Depth = 8
	}
	return &Chaos{inner: inner, o: o}
}

// FailNext makes the next n jobs, of whatever lane, end with EngineError.
func (c *Chaos) FailNext(n int) { c.fail.Store(int64(n)) }

// Stats may be called at any time, from any goroutine.
func (c *Chaos) Stats() ChaosStats {
	return ChaosStats{
		Submitted: int(c.submitted.Load()), Full: int(c.full.Load()), Failed: int(c.failed.Load()),
		Overtaken: int(c.overtaken.Load()), Touched: int(c.touched.Load()),
	}
}

// Name is "chaos(soft)" for one around soft.
func (c *Chaos) Name() string { return "chaos(" + c.inner.Name() + ")" }

// Probe is the inner engine's, made asynchronous.
func (c *Chaos) Probe() (offload.Caps, error) {
	caps, err := c.inner.Probe()
	caps.Async, caps.Depth = true, c.o.Depth
	return caps, err
}

// NewSession is the inner engine's.
func (c *Chaos) NewSession(t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error) {
	return c.inner.NewSession(t, dir, k)
}

// NewLane seeds the lane's own source of chance with the id.
func (c *Chaos) NewLane(id int) (offload.Lane, error) {
	inner, err := c.inner.NewLane(id)
	if err != nil {
		return nil, err
	}
	return &chaosLane{
		c: c, inner: inner,
		rnd:  rand.New(rand.NewPCG(c.o.Seed, uint64(id))),
		hash: maphash.MakeSeed(),
		held: make([]heldBurst, 0, c.o.Depth),
	}, nil
}

// heldBurst is a burst in flight, in order of submission.
type heldBurst struct {
	burst *offload.Burst
	sum   uint64 // of its packets, when it was handed over
}

type chaosLane struct {
	c      *Chaos
	inner  offload.Lane
	rnd    *rand.Rand
	hash   maphash.Seed
	held   []heldBurst
	done   [1]*offload.Burst
	one    [1]offload.Job
	single offload.Burst
	closed bool
}

func (l *chaosLane) Submit(b *offload.Burst) error {
	if l.closed {
		return offload.ErrClosed
	}
	if len(l.held) == cap(l.held) || len(l.held) > 0 && l.chance(l.c.o.Full) {
		l.c.full.Add(1)
		return offload.ErrFull
	}
	l.held = append(l.held, heldBurst{b, l.sum(b)})
	l.c.submitted.Add(1)
	return nil
}

func (l *chaosLane) Reap(dst []*offload.Burst, wait bool) int {
	most := min(len(dst), len(l.held))
	if most == 0 {
		return 0
	}
	n := l.rnd.IntN(most + 1)
	if wait && n == 0 {
		n = 1
	}
	for i := range n {
		at := l.rnd.IntN(len(l.held))
		if at != 0 {
			l.c.overtaken.Add(1)
		}
		dst[i] = l.finish(l.held[at])
		copy(l.held[at:], l.held[at+1:])
		l.held[len(l.held)-1] = heldBurst{}
		l.held = l.held[:len(l.held)-1]
	}
	return n
}

// Close takes no more bursts; those held are finished when they are reaped.
func (l *chaosLane) Close() error {
	l.closed = true
	return nil
}

// finish does the work.
func (l *chaosLane) finish(h heldBurst) *offload.Burst {
	if l.sum(h.burst) != h.sum {
		l.c.touched.Add(1)
	}
	for i := range h.burst.Jobs {
		j := &h.burst.Jobs[i]
		if l.fails() {
			l.spoil(j)
			continue
		}
		// Job by job: a failed one leaves the others alone.
		l.one[0] = *j
		l.single = offload.Burst{Dir: h.burst.Dir, Jobs: l.one[:]}
		if l.inner.Submit(&l.single) != nil || l.inner.Reap(l.done[:], true) != 1 {
			l.single.Fail()
		}
		j.Status = l.one[0].Status
		l.one[0] = offload.Job{}
	}
	return h.burst
}

// fails says whether the next job is to fail.
func (l *chaosLane) fails() bool {
	for {
		n := l.c.fail.Load()
		if n <= 0 {
			return l.chance(l.c.o.Errors)
		}
		if l.c.fail.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// spoil fails a job, and leaves it the way a failing device does: with something in it that must not be used.
func (l *chaosLane) spoil(j *offload.Job) {
	l.c.failed.Add(1)
	j.Status = offload.EngineError
	if j.Session == nil {
		return
	}
	for i := j.Session.Transform().HeaderLen(); i < len(j.ESP); i++ {
		j.ESP[i] = 0xdb
	}
}

func (l *chaosLane) chance(percent int) bool { return percent > 0 && l.rnd.IntN(100) < percent }

// sum is a hash of all packets of a burst.
func (l *chaosLane) sum(b *offload.Burst) uint64 {
	var sum uint64
	for i := range b.Jobs {
		sum = sum*31 + maphash.Bytes(l.hash, b.Jobs[i].ESP)
	}
	return sum
}
