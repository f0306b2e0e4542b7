package soft

import (
	"runtime"

	"culvert/offload"
)

// depth is how many bursts a lane holds. They are all finished: more only wait to be reaped.
const depth = 64

// Engine runs every transform in software. The zero value is ready.
type Engine struct{}

// New gives the engine.
func New() Engine { return Engine{} }

// Name is "soft".
func (Engine) Name() string { return "soft" }

// Probe never fails.
func (Engine) Probe() (offload.Caps, error) {
	return offload.Caps{
		Transforms: offload.Transforms(),
		Shared:     true,
		Depth:      depth,
		Detail:     "Go " + runtime.GOARCH + ", standard library and x/crypto",
	}, nil
}

// NewSession checks the keys and makes a session of its own copy of them.
func (Engine) NewSession(t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error) {
	s, err := newSession(t, dir, k)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewLane never fails; the id does not matter.
func (Engine) NewLane(int) (offload.Lane, error) {
	return &lane{done: make([]*offload.Burst, 0, depth)}, nil
}

// lane holds the finished bursts that were not reaped yet.
type lane struct {
	done   []*offload.Burst
	closed bool
}

// Submit finishes the burst.
func (l *lane) Submit(b *offload.Burst) error {
	if l.closed {
		return offload.ErrClosed
	}
	if len(l.done) == cap(l.done) {
		return offload.ErrFull
	}
	run(b)
	l.done = append(l.done, b)
	return nil
}

// run works through the jobs. Jobs of one session usually follow each other, so its state is taken once for all of them.
func run(b *offload.Burst) {
	var held *session
	var st *state
	for i := range b.Jobs {
		j := &b.Jobs[i]
		s, ok := j.Session.(*session)
		if !ok || s == nil || s.dir != b.Dir {
			j.Status = offload.EngineError
			continue
		}
		if s != held {
			if st != nil {
				held.release(st)
			}
			held, st = s, s.acquire()
		}
		switch {
		case st == nil || s.closed.Load():
			j.Status = offload.EngineError
		case !s.t.ValidLen(len(j.ESP)):
			j.Status = offload.BadLength
		case b.Dir == offload.Seal:
			j.Status = st.seal(j.ESP, j.SeqHi)
		default:
			j.Status = st.open(j.ESP, j.SeqHi)
		}
	}
	if st != nil {
		held.release(st)
	}
}

// Reap hands finished bursts back, the oldest first. There is never anything to wait for.
func (l *lane) Reap(dst []*offload.Burst, _ bool) int {
	n := copy(dst, l.done)
	rest := copy(l.done, l.done[n:])
	clear(l.done[rest:])
	l.done = l.done[:rest]
	return n
}

// Close ends the lane; what was submitted can still be reaped.
func (l *lane) Close() error {
	l.closed = true
	return nil
}
