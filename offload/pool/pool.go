package pool

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"culvert/offload"
)

// ErrNotShared is Probe's and NewLane's error where the inner engine's sessions cannot be used by several lanes at a time, or
// where it is asynchronous and needs no pool.
var ErrNotShared = errors.New("pool: the inner engine cannot be pooled")

// queueLanes is how many full lanes the queue to the workers has room for.
const queueLanes = 16

// defaultDepth is how many bursts a lane holds unless Options say otherwise: a few per worker, so that none waits for work
// while the lane is busy with packets.
const defaultDepth = 64

// Options shape a pool. The zero value is good.
type Options struct {
	Workers int    // goroutines; 0: one per processor that Go may use
	Depth   int    // bursts that a lane holds before ErrFull; 0: 64
	Name    string // "": "pool(" + the inner engine's name + ")"
}

// Engine is the pool. Sessions are the inner engine's own.
type Engine struct {
	inner   offload.Engine
	name    string
	workers int
	depth   int

	mu    sync.Mutex // lanes coming and going
	lanes int
	crew  *crew
}

// crew is the running workers. The queue is never closed while a lane may send: the last lane's Close stops the crew.
type crew struct {
	queue chan work
	done  sync.WaitGroup
}

// work is a burst on its way through a worker.
type work struct {
	burst *offload.Burst
	lane  *lane
}

// New makes a pool over a synchronous engine whose Caps say Shared.
func New(inner offload.Engine, o Options) *Engine {
	e := &Engine{inner: inner, name: o.Name, workers: o.Workers, depth: o.Depth}
	if e.name == "" {
		e.name = "pool(" + inner.Name() + ")"
	}
	if e.workers <= 0 {
		e.workers = runtime.GOMAXPROCS(0)
	}
	if e.depth <= 0 {
		e.depth = defaultDepth
	}
	return e
}

// Name is the one of Options, or "pool(soft)".
func (e *Engine) Name() string { return e.name }

// Probe is the inner engine's, made asynchronous.
func (e *Engine) Probe() (offload.Caps, error) {
	caps, err := e.inner.Probe()
	if err != nil {
		return offload.Caps{}, err
	}
	if caps.Async || !caps.Shared {
		return offload.Caps{}, fmt.Errorf("%w: %s (asynchronous: %t, sessions shared: %t); use it directly",
			ErrNotShared, e.inner.Name(), caps.Async, caps.Shared)
	}
	caps.Async = true
	caps.Depth = e.depth
	caps.Detail = fmt.Sprintf("%d workers; %s", e.workers, caps.Detail)
	return caps, nil
}

// NewSession is the inner engine's.
func (e *Engine) NewSession(t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error) {
	return e.inner.NewSession(t, dir, k)
}

// NewLane opens a lane, and with the first one starts the workers.
func (e *Engine) NewLane(int) (offload.Lane, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lanes == 0 {
		c, err := e.start()
		if err != nil {
			return nil, err
		}
		e.crew = c
	}
	e.lanes++
	return &lane{
		engine:   e,
		queue:    e.crew.queue,
		finished: make(chan *offload.Burst, e.depth),
	}, nil
}

// start opens a lane of the inner engine for each worker, then lets them all go.
func (e *Engine) start() (*crew, error) {
	if _, err := e.Probe(); err != nil {
		return nil, err
	}
	inner := make([]offload.Lane, 0, e.workers)
	for i := range e.workers {
		l, err := e.inner.NewLane(i)
		if err != nil {
			for _, l := range inner {
				l.Close()
			}
			return nil, fmt.Errorf("pool: lane %d of %s: %w", i, e.inner.Name(), err)
		}
		inner = append(inner, l)
	}
	c := &crew{queue: make(chan work, queueLanes*e.depth)}
	for _, l := range inner {
		c.done.Go(func() { c.worker(l) })
	}
	return c, nil
}

// leave is a lane's end; the last one waits until the workers have stopped.
func (e *Engine) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lanes--; e.lanes > 0 {
		return
	}
	close(e.crew.queue)
	e.crew.done.Wait()
	e.crew = nil
}

// worker runs bursts until the queue is closed.
func (c *crew) worker(inner offload.Lane) {
	defer inner.Close()
	var done [1]*offload.Burst
	for w := range c.queue {
		if inner.Submit(w.burst) != nil || inner.Reap(done[:], true) != 1 {
			w.burst.Fail() // it must come back with final statuses, whatever happened
		}
		w.lane.finished <- w.burst // has room for all that is in flight
	}
}

// lane counts its own bursts. Apart from finished, workers touch nothing of it.
type lane struct {
	engine   *Engine
	queue    chan<- work
	finished chan *offload.Burst
	inFlight int // submitted and not reaped
	closed   bool
}

// Submit queues the burst. It is ErrFull when the lane holds Depth bursts, and in a pool of more than sixteen lanes also
// when the others have filled the queue to the workers.
func (l *lane) Submit(b *offload.Burst) error {
	if l.closed {
		return offload.ErrClosed
	}
	if l.inFlight == cap(l.finished) {
		return offload.ErrFull
	}
	select {
	case l.queue <- work{b, l}:
		l.inFlight++
		return nil
	default:
		return offload.ErrFull
	}
}

// Reap takes finished bursts from the lane's queue; it sleeps on it only with wait, and only for the first.
func (l *lane) Reap(dst []*offload.Burst, wait bool) int {
	n := 0
	if wait && n < len(dst) && l.inFlight > 0 {
		dst[n] = <-l.finished
		l.inFlight--
		n++
	}
	for n < len(dst) && l.inFlight > 0 {
		select {
		case dst[n] = <-l.finished:
			l.inFlight--
			n++
		default:
			return n
		}
	}
	return n
}

// Close takes no more bursts. Those in flight are finished by the workers and can still be reaped.
func (l *lane) Close() error {
	if !l.closed {
		l.closed = true
		l.engine.leave()
	}
	return nil
}
