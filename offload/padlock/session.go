package padlock

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"unsafe"

	"culvert/offload"
)

// session is what one SA's keys become in one direction. Once made it is only read, so that any number of lanes may use it.
type session struct {
	t   *offload.Transform
	dir offload.Direction
	esn bool

	hard         *hardKeys
	way          hashWay
	inner, outer half

	users atomic.Int64 // lanes at work with it, and closedBit
}

// closedBit is set in session.users when the session is closed.
const closedBit = 1 << 32

// newSession makes a session of keys that have been checked.
func newSession(t *offload.Transform, dir offload.Direction, k offload.Keys, way hashWay) (*session, error) {
	s := &session{t: t, dir: dir, esn: k.ESN, way: way}
	s.hard = (*hardKeys)(aligned(int(unsafe.Sizeof(hardKeys{})), 16))
	s.hard.set(k.Enc, dir == offload.Open)
	for h, pad := range map[*half]byte{&s.inner: 0x36, &s.outer: 0x5c} {
		if err := h.set(t.Auth, k.Auth, pad); err != nil {
			s.wipe()
			return nil, fmt.Errorf("padlock: %w: %s: %w", offload.ErrUnsupported, t, err)
		}
		if way != whole {
			clear(h.block[:]) // nobody needs it any more
		}
	}
	return s, nil
}

// Transform is the session's transform.
func (s *session) Transform() *offload.Transform { return s.t }

// Direction is the session's direction.
func (s *session) Direction() offload.Direction { return s.dir }

// acquire lets a lane work with the session, unless it is closed.
func (s *session) acquire() bool {
	for {
		n := s.users.Load()
		if n&closedBit != 0 {
			return false
		}
		if s.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release ends what acquire began. The last lane to leave a closed session wipes it.
func (s *session) release() {
	if s.users.Add(-1) == closedBit {
		s.wipe()
	}
}

// closed reports whether Close has been called.
func (s *session) closed() bool { return s.users.Load()&closedBit != 0 }

// Close wipes the keys, at once or when the last lane that is at work with them leaves.
func (s *session) Close() error {
	if s.users.Or(closedBit) == 0 {
		s.wipe()
	}
	return nil
}

func (s *session) wipe() {
	s.hard.wipe()
	s.inner.wipe()
	s.outer.wipe()
}

// Format prints what the session is for, whatever the verb, and none of its key material.
func (s *session) Format(f fmt.State, _ rune) {
	io.WriteString(f, "padlock session to "+s.dir.String()+" "+s.t.String())
}

// LogValue is what Format prints.
func (s *session) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(s)) }
