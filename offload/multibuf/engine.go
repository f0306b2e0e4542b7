package multibuf

import (
	"fmt"
	"runtime"

	"culvert/offload"
)

// depth is how many bursts a lane holds. They are all finished: more only wait to be reaped.
const depth = 64

// Options shape the engine. The zero value is good.
type Options struct {
	// Level forces a level; "": the best that this machine runs.
	Level Level
	// Rest is a synchronous engine, with shared sessions, for the transforms that the level has no kernels for, and for one
	// or two packets at a time to encrypt with 3DES. nil: the transforms are not offered, and the packets take longer.
	Rest offload.Engine
}

// Engine runs transforms on many packets at once.
type Engine struct {
	k    *kernels
	err  error // why there is no such level
	rest offload.Engine
}

// New makes the engine. That the level is not to be had is for Probe to say.
func New(o Options) *Engine {
	k, err := choose(o.Level)
	return &Engine{k: k, err: err, rest: o.Rest}
}

// Name is "multibuf", and "multibuf(sse)" with a forced level's name for all but the best.
func (e *Engine) Name() string {
	if e.err != nil || e.k.name == Levels()[0] {
		return "multibuf"
	}
	return "multibuf(" + string(e.k.name) + ")"
}

// Probe finds the transforms that the level, the standard library's hashes and the rest can do together.
func (e *Engine) Probe() (offload.Caps, error) {
	if e.err != nil {
		return offload.Caps{}, e.err
	}
	rest, err := e.probeRest()
	if err != nil {
		return offload.Caps{}, err
	}
	caps := offload.Caps{Shared: true, Depth: depth, Detail: string(e.k.name)}
	if e.k.detail != "" {
		caps.Detail += ": " + e.k.detail
	}
	elsewhere := 0
	for _, t := range offload.Transforms() {
		switch {
		case e.k.runs(t):
			caps.Transforms = append(caps.Transforms, t)
		case rest.Supports(t):
			caps.Transforms = append(caps.Transforms, t)
			elsewhere++
		}
	}
	if elsewhere > 0 {
		caps.Detail += fmt.Sprintf("; %d of %d transforms by %s", elsewhere, len(caps.Transforms), e.rest.Name())
	}
	return caps, nil
}

func (e *Engine) probeRest() (offload.Caps, error) {
	if e.rest == nil {
		return offload.Caps{}, nil
	}
	caps, err := e.rest.Probe()
	if err == nil && (caps.Async || !caps.Shared) {
		err = fmt.Errorf("multibuf: Options.Rest: %s is asynchronous, or its sessions are not shared; use one like soft", e.rest.Name())
	}
	return caps, err
}

// NewSession expands the keys.
func (e *Engine) NewSession(t *offload.Transform, dir offload.Direction, keys offload.Keys) (offload.Session, error) {
	if e.err != nil {
		return nil, e.err
	}
	if err := offload.CheckSession(t, dir, keys); err != nil {
		return nil, err
	}
	if e.k.runs(t) {
		s, err := newSession(e.k, t, dir, keys)
		if err != nil {
			return nil, err
		}
		single := t.Cipher == offload.CipherNull && !e.k.hashesOne(t.Auth)
		if e.rest != nil && (single || t.Cipher == offload.TripleDESCBC && dir == offload.Seal) {
			s.single = single
			if s.few, err = e.rest.NewSession(t, dir, keys); err != nil {
				s.Close()
				return nil, err
			}
		}
		return s, nil
	}
	if e.rest == nil {
		return nil, fmt.Errorf("multibuf: %w: level %s on %s has no kernels for %s", offload.ErrUnsupported, e.k.name, runtime.GOARCH, t)
	}
	rest, err := e.rest.NewSession(t, dir, keys)
	if err != nil {
		return nil, err
	}
	return &session{t: t, dir: dir, k: e.k, rest: rest, single: true}, nil
}

// NewLane makes the lane's scratch; the id does not matter.
func (e *Engine) NewLane(id int) (offload.Lane, error) {
	if e.err != nil {
		return nil, e.err
	}
	l := &lane{done: make([]*offload.Burst, 0, depth), w: newWorkshop(e.k)}
	if e.rest != nil {
		rest, err := e.rest.NewLane(id)
		if err != nil {
			return nil, fmt.Errorf("multibuf: lane %d of %s: %w", id, e.rest.Name(), err)
		}
		l.w.rest.lane = rest
	}
	return l, nil
}

// lane holds the finished bursts that were not reaped yet, and the scratch to work in.
type lane struct {
	done   []*offload.Burst
	w      *workshop
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
	if len(b.Jobs) == 1 && l.single(b) {
		l.done = append(l.done, b)
		return nil
	}
	// Windows of about the same size: a last one of a few jobs would be slow.
	jobs := b.Jobs
	for windows := (len(jobs) + window - 1) / window; windows > 0; windows-- {
		n := (len(jobs) + windows - 1) / windows
		l.w.run(b.Dir, jobs[:n])
		jobs = jobs[n:]
	}
	runtime.KeepAlive(b)
	l.done = append(l.done, b)
	return nil
}

// single has the other engine finish a burst of one job, if it is one that would be done no better here: sorting out what
// there is to do takes as long as a twentieth of a packet.
func (l *lane) single(b *offload.Burst) bool {
	j := &b.Jobs[0]
	s, ok := j.Session.(*session)
	if !ok || s == nil || !s.single || s.k != l.w.k || s.dir != b.Dir || l.w.rest.lane == nil {
		return false
	}
	if j.Session = s.few; s.rest != nil {
		j.Session = s.rest
	}
	l.w.rest.finish(b)
	j.Session = s
	return true
}

// Reap hands finished bursts back, the oldest first. There is never anything to wait for.
func (l *lane) Reap(dst []*offload.Burst, _ bool) int {
	n := copy(dst, l.done)
	rest := copy(l.done, l.done[n:])
	clear(l.done[rest:])
	l.done = l.done[:rest]
	return n
}

// Close ends the lane; what was submitted can still be reaped. What is left of keys in the scratch is wiped.
func (l *lane) Close() error {
	if l.closed {
		return nil
	}
	l.closed = true
	return l.w.close()
}
