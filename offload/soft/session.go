package soft

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"culvert/offload"
)

// session is the keys of one SA in one direction, and the states made from them that are not in use.
type session struct {
	t   *offload.Transform
	dir offload.Direction

	closed atomic.Bool
	free   []atomic.Pointer[state]

	mu   sync.Mutex // growing and closing
	keys offload.Keys
}

func newSession(t *offload.Transform, dir offload.Direction, k offload.Keys) (*session, error) {
	if err := offload.CheckSession(t, dir, k); err != nil {
		return nil, err
	}
	s := &session{t: t, dir: dir, keys: k.Clone()}
	// As many lanes as there are processors, and as many again that are preempted, find a state waiting.
	s.free = make([]atomic.Pointer[state], 2*runtime.GOMAXPROCS(0))
	st := s.grow()
	if st == nil {
		err := fmt.Errorf("soft: %w: %s: %w", offload.ErrUnsupported, t, s.why())
		s.Close()
		return nil, err
	}
	s.release(st)
	return s, nil
}

// Transform is the session's transform.
func (s *session) Transform() *offload.Transform { return s.t }

// Direction is the session's direction.
func (s *session) Direction() offload.Direction { return s.dir }

// acquire takes a state that nobody else uses, or nil if the session is closed.
func (s *session) acquire() *state {
	if s.closed.Load() {
		return nil
	}
	for i := range s.free {
		if st := s.free[i].Swap(nil); st != nil {
			return st
		}
	}
	return s.grow()
}

// grow makes one more state; nil if the session is closed.
func (s *session) grow() *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil
	}
	st, err := newState(s.t, s.dir, s.keys)
	if err != nil {
		return nil
	}
	return st
}

// why says why grow fails in an open session: the toolchain refuses an algorithm, as in FIPS 140-only mode.
func (s *session) why() error {
	_, err := newState(s.t, s.dir, s.keys)
	return err
}

// release puts a state back, for the next one or, once the session is closed, to be wiped.
func (s *session) release(st *state) {
	for i := range s.free {
		if s.free[i].CompareAndSwap(nil, st) {
			// Close sets closed before it looks through the list, and here closed is read after the state is on it: one of
			// the two sees the other.
			if s.closed.Load() {
				s.wipeFree()
			}
			return
		}
	}
	st.wipe()
}

// wipeFree empties the free list.
func (s *session) wipeFree() {
	for i := range s.free {
		if st := s.free[i].Swap(nil); st != nil {
			st.wipe()
		}
	}
}

// Close wipes the keys and every state that is not in use; one that is follows when it is put back.
func (s *session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed.Store(true)
	s.keys.Zero()
	s.wipeFree()
	return nil
}

// Format prints what the session is for, whatever the verb, and none of its key material.
func (s *session) Format(f fmt.State, _ rune) {
	io.WriteString(f, "soft session to "+s.dir.String()+" "+s.t.String())
}

// LogValue is what Format prints.
func (s *session) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(s)) }
