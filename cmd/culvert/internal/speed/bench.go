package speed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"culvert/offload"
)

// shape is how a row is measured.
type shape struct {
	batch, threads int
	time           time.Duration // of all repetitions
	repeat         int
}

// machine is what has been found out about this one.
type machine struct {
	counter counter
	most    float64 // bytes/s that a thread can read and write at best
}

// flight is how many bursts an asynchronous engine has at once, if it takes as many.
const flight = 8

// chunk is how long a thread works between looks at the clock.
const chunk = 100 * time.Microsecond

// span is what one thread, or all together, did in one repetition.
type span struct {
	bursts      int64
	start, end  int64 // ns, CLOCK_MONOTONIC_RAW
	cpu, waited int64 // ns; waited -1: not known
	cycles      uint64
}

// worker is one thread of a row.
type worker struct {
	p       *packets
	lane    offload.Lane
	session offload.Session
	async   bool
	bursts  []*offload.Burst
	free    []*offload.Burst
	last    *offload.Burst // reaped last
	dst     []*offload.Burst
	each    int64 // bursts between looks at the clock
	err     error // the first bad status
}

// newWorker opens the engine for a thread, and lays out its packets.
func newWorker(c *candidate, p *packets, dir offload.Direction, id, batch int) (w *worker, err error) {
	w = &worker{p: p, async: c.caps.Async, each: 1}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.session, err = c.engine.NewSession(p.t, dir, p.keys); err != nil {
		return w, err
	}
	if w.lane, err = c.engine.NewLane(id); err != nil {
		return w, err
	}
	n := 1
	if c.caps.Async {
		n = max(1, min(flight, c.caps.Depth))
	}
	esp := len(p.sealed[0])
	for range n {
		memory := make([]byte, batch*slot(esp))
		b := &offload.Burst{Dir: dir, Jobs: make([]offload.Job, batch)}
		for k := range b.Jobs {
			b.Jobs[k] = offload.Job{Session: w.session, ESP: memory[k*slot(esp):][:esp:esp]}
		}
		p.lay(b)
		w.bursts = append(w.bursts, b)
	}
	w.free = slices.Clone(w.bursts)
	w.dst = make([]*offload.Burst, n)
	return w, nil
}

func (w *worker) close() {
	if w.lane != nil {
		w.lane.Close()
	}
	if w.session != nil {
		w.session.Close()
	}
}

// once passes each burst through the engine, freshly laid, and compares all of it.
func (w *worker) once() error {
	for _, b := range w.bursts {
		w.p.lay(b)
		if err := offload.Do(w.lane, b); err != nil {
			return err
		}
		if err := w.p.verify(b); err != nil {
			return err
		}
	}
	return nil
}

// step submits one burst, after as many have come back as it needs.
func (w *worker) step() {
	for {
		for len(w.free) == 0 {
			w.reap()
		}
		b := w.free[len(w.free)-1]
		if b.Dir == offload.Open {
			w.p.lay(b)
		}
		err := w.lane.Submit(b)
		if err == nil {
			w.free = w.free[:len(w.free)-1]
			if !w.async {
				w.reap()
			}
			return
		}
		if !errors.Is(err, offload.ErrFull) || len(w.free) == len(w.bursts) {
			w.fail(err)
			return
		}
		w.reap()
	}
}

// reap takes finished bursts back, and looks at every status as a gateway would.
func (w *worker) reap() {
	n := w.lane.Reap(w.dst, true)
	if n == 0 {
		w.fail(fmt.Errorf("%w: the lane lost a burst", errWrong))
		w.free = append(w.free[:0], w.bursts...)
	}
	for _, b := range w.dst[:n] {
		for k := range b.Jobs {
			if st := b.Jobs[k].Status; st != offload.OK {
				w.fail(fmt.Errorf("%w: packet %d of a burst: %s", errWrong, k, st.Text()))
			}
		}
		w.last = b
		w.free = append(w.free, b)
	}
}

func (w *worker) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// loop steps until the time is over and nothing is in flight.
func (w *worker) loop(d time.Duration, step func()) (bursts int64) {
	for start := time.Now(); w.err == nil; {
		for range w.each {
			step()
		}
		bursts += w.each
		if time.Since(start) >= d {
			break
		}
	}
	for w.err == nil && len(w.free) < len(w.bursts) {
		w.reap()
	}
	return bursts
}

// tune finds how many bursts fill a chunk, and warms everything up.
func (w *worker) tune() {
	for start := time.Now(); time.Since(start) < 20*chunk; {
		before := time.Now()
		for range w.each {
			w.step()
		}
		if time.Since(before) >= chunk || w.err != nil {
			break
		}
		w.each *= 2
	}
	w.loop(20*chunk, w.step)
}

// timed runs the loop between two looks at all clocks.
func (w *worker) timed(d time.Duration, step func()) (s span) {
	waited, known := threadWaited()
	s.start = rawTime()
	cpu, cycles := threadCPU(), readCounter()
	s.bursts = w.loop(d, step)
	s.cycles, s.cpu = readCounter()-cycles, threadCPU()-cpu
	s.end = rawTime()
	s.waited = -1
	if after, ok := threadWaited(); ok && known {
		s.waited = after - waited
	}
	return s
}

// copying is the step of a loop that only lays packets, as opening does before every burst.
func (w *worker) copying() func() {
	i := 0
	return func() {
		w.p.lay(w.bursts[i])
		if i++; i == len(w.bursts) {
			i = 0
		}
	}
}

// together adds up the spans of threads that ran at the same time. process is the time of the whole process, taken instead
// of the threads' where an engine has its own.
func together(spans []span, process int64) (all span) {
	all.start, all.end = math.MaxInt64, math.MinInt64
	for i, s := range spans {
		all.bursts += s.bursts
		all.start, all.end = min(all.start, s.start), max(all.end, s.end)
		all.cpu += s.cpu
		if s.waited < 0 || all.waited < 0 {
			all.waited = -1
		} else {
			all.waited += s.waited
		}
		if i == 0 {
			all.cycles = s.cycles
		}
	}
	if process >= 0 {
		all.cpu = process
	}
	return all
}

// crew is the threads of a row, that work at the same time.
type crew struct {
	workers []*worker
	async   bool
}

// do has every thread do the same, from a common start, and waits for all.
func (c *crew) do(work func(w *worker) span) span {
	spans := make([]span, len(c.workers))
	gate := make(chan struct{})
	var ready, done sync.WaitGroup
	ready.Add(len(c.workers))
	for i, w := range c.workers {
		done.Go(func() {
			runtime.LockOSThread() // the clocks are the thread's
			defer runtime.UnlockOSThread()
			ready.Done()
			<-gate
			spans[i] = work(w)
		})
	}
	ready.Wait()
	process := int64(-1)
	if c.async {
		process = processCPU()
	}
	close(gate)
	done.Wait()
	if c.async {
		process = processCPU() - process
	}
	return together(spans, process)
}

func (c *crew) err() error {
	for i, w := range c.workers {
		if w.err != nil {
			return fmt.Errorf("thread %d: %w", i, w.err)
		}
	}
	return nil
}

func (c *crew) close() {
	for _, w := range c.workers {
		w.close()
	}
}

// measure makes one row. The error is why there is none: the engine was wrong, or is not for this transform.
func measure(ctx context.Context, m *machine, c *candidate, g target, s shape) (*row, error) {
	if !c.caps.Supports(g.t) {
		return nil, fmt.Errorf("%w: %s", offload.ErrUnsupported, g.t)
	}
	if _, err := offload.Admit(c.engine, g.t); err != nil {
		return nil, err
	}
	p, err := newPackets(g.t, g.size)
	if err != nil {
		return nil, err
	}
	crew := &crew{async: c.caps.Async}
	defer crew.close()
	for id := range s.threads {
		w, err := newWorker(c, p, g.dir, id, s.batch)
		if err != nil {
			return nil, err
		}
		crew.workers = append(crew.workers, w)
	}
	for _, w := range crew.workers {
		if err := w.once(); err != nil {
			return nil, err
		}
	}
	runtime.GC() // not while the clock runs
	crew.do(func(w *worker) span { w.tune(); return span{} })

	var runs []*row
	for range s.repeat {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		each := s.time / time.Duration(s.repeat)
		whole := crew.do(func(w *worker) span { return w.timed(each, w.step) })
		if err := crew.err(); err != nil {
			return nil, err
		}
		for _, w := range crew.workers {
			if err := p.verifyLast(w.last); err != nil {
				return nil, err
			}
		}
		var copying span
		if g.dir == offload.Open {
			copying = crew.do(func(w *worker) span { return w.timed(each/5, w.copying()) })
		}
		runs = append(runs, newRow(m, c, g, s, whole, copying))
	}
	for _, w := range crew.workers {
		if err := w.once(); err != nil {
			return nil, err
		}
	}
	return best(runs), nil
}

// best is the run with the highest throughput by wall time of those that had the machine to themselves; if none had, that by
// processor time; of those that cannot be, only if there is no other. With it goes the median of all of them by wall time.
func best(runs []*row) *row {
	sorted := slices.Clone(runs)
	slices.SortStableFunc(sorted, func(a, b *row) int {
		if c := cmp.Compare(a.rank(), b.rank()); c != 0 {
			return c
		}
		if a.rank() == rankShared {
			return cmp.Compare(b.GbpsPerCPUS, a.GbpsPerCPUS)
		}
		return cmp.Compare(b.Gbps, a.Gbps)
	})
	r := sorted[0]
	all := make([]float64, len(runs))
	for i := range runs {
		all[i] = runs[i].Gbps
	}
	slices.Sort(all)
	r.median = (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	return r
}

// Ranks of runs.
const (
	rankGood = iota
	rankShared
	rankImpossible
)

func (r *row) rank() int {
	switch {
	case anyImpossible(r.flags):
		return rankImpossible
	case slices.ContainsFunc(r.flags, func(f flag) bool { return f.code == sharedMachine }):
		return rankShared
	default:
		return rankGood
	}
}
