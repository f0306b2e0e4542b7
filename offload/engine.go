package offload

import (
	"errors"
	"fmt"
)

// Errors of engines, lanes and sessions.
var (
	ErrFull        = errors.New("offload: the lane is full")
	ErrClosed      = errors.New("offload: closed")
	ErrUnsupported = errors.New("offload: the engine does not support this transform")
	ErrDirection   = errors.New("offload: no such direction")
)

// Session is one SA's transform, direction and keys, ready for use by the engine that made it.
type Session interface {
	Transform() *Transform
	Direction() Direction
	// Close wipes the keys. Jobs with a closed session end with EngineError; one that is being worked on at the moment may
	// still end otherwise. Closing again does nothing.
	Close() error
}

// Caps is what an engine can do on this machine.
type Caps struct {
	Transforms []*Transform
	Async      bool   // bursts finish after Submit has returned
	Shared     bool   // a session may be used by several lanes at the same time
	Depth      int    // bursts that a lane holds, unreaped ones included, before ErrFull
	Detail     string // what it runs on, for people: "aes, sha: AES-NI"
}

// Supports reports whether t is among the transforms.
func (c Caps) Supports(t *Transform) bool {
	for _, have := range c.Transforms {
		if have == t {
			return true
		}
	}
	return false
}

// Engine is one way to run transforms. Its methods may be called from any goroutine.
type Engine interface {
	// Name is short and unique: "soft".
	Name() string
	// Probe finds out what this machine can do. The error says why it can do nothing, and how to mend that.
	Probe() (Caps, error)
	// NewSession takes the keys for one direction of one SA; it keeps no reference to their memory. Errors wrap
	// ErrUnsupported, ErrKey or ErrDirection, or are the device's.
	NewSession(t *Transform, dir Direction, k Keys) (Session, error)
	// NewLane opens the engine for one goroutine. The id tells lanes apart where hardware has several queues.
	NewLane(id int) (Lane, error)
}

// Lane is an engine as one goroutine uses it: the same one calls all its methods.
type Lane interface {
	// Submit takes the whole burst or, with ErrFull, none of it: then nothing of it has changed. After Close it is
	// ErrClosed. A synchronous engine finishes inside Submit; the burst still comes back through Reap.
	Submit(b *Burst) error
	// Reap puts finished bursts into dst, in any order, and returns how many. Every job of them has a final status,
	// whatever went wrong. With wait it blocks until there is at least one, if any is in flight; with none in flight, or
	// an empty dst, it returns 0 at once.
	Reap(dst []*Burst, wait bool) int
	// Close ends the lane. Bursts in flight are finished, or failed, and can still be reaped. Closing again does nothing.
	Close() error
}

// Do passes one burst through a lane that holds no other, and waits for it.
func Do(l Lane, b *Burst) error {
	if err := l.Submit(b); err != nil {
		return err
	}
	var done [1]*Burst
	if n := l.Reap(done[:], true); n != 1 || done[0] != b {
		return errors.New("offload: the lane did not give back the burst it took")
	}
	return nil
}

// CheckSession checks what every engine checks before it makes a session.
func CheckSession(t *Transform, dir Direction, k Keys) error {
	if t == nil {
		return fmt.Errorf("%w: nil", ErrUnsupported)
	}
	if int(dir) >= len(directions) {
		return fmt.Errorf("%w: %v", ErrDirection, dir)
	}
	return t.CheckKeys(k)
}
