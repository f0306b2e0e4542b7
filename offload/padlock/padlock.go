package padlock

import (
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"

	"culvert/offload"
)

// depth is how many bursts a lane holds. They are all finished: more only wait to be reaped.
const depth = 64

// Engine runs the PadLock of one processor.
type Engine struct {
	id   CPUID
	once sync.Once
	unit unit
	err  error
}

// New gives the engine of the processor that runs the program. To find out what that is costs nothing until it is asked for.
func New() *Engine { return NewOn(hostCPUID) }

// NewOn gives the engine of a processor that answers CPUID so. The instructions are executed all the same: it is meant for
// a program that somebody emulates them for.
func NewOn(id CPUID) *Engine { return &Engine{id: id} }

// Name is "padlock".
func (e *Engine) Name() string { return "padlock" }

// find looks for the unit, once.
func (e *Engine) find() (*unit, error) {
	e.once.Do(func() {
		f, err := detect(e.id)
		if err != nil {
			e.err = fmt.Errorf("padlock: %w", err)
			return
		}
		e.unit = prove(f)
	})
	return &e.unit, e.err
}

// Probe says what the processor has. The error wraps ErrAbsent or ErrDisabled.
func (e *Engine) Probe() (offload.Caps, error) {
	u, err := e.find()
	if err != nil {
		return offload.Caps{}, err
	}
	c := offload.Caps{Shared: true, Depth: depth, Detail: u.String()}
	for _, t := range offload.Transforms() {
		if t.Cipher == offload.AESCBC {
			c.Transforms = append(c.Transforms, t)
		}
	}
	return c, nil
}

// NewSession checks the keys and makes a session of what becomes of them.
func (e *Engine) NewSession(t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error) {
	u, err := e.find()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", offload.ErrUnsupported, err)
	}
	if t != nil && t.Cipher != offload.AESCBC {
		return nil, fmt.Errorf("padlock: %w: %s: the unit has AES in CBC mode only", offload.ErrUnsupported, t)
	}
	if err := offload.CheckSession(t, dir, k); err != nil {
		return nil, err
	}
	s, err := newSession(t, dir, k, u.ways[t.Auth])
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewLane gives a lane; the id does not matter, as every processor has its own unit.
func (e *Engine) NewLane(int) (offload.Lane, error) {
	u, err := e.find()
	if err != nil {
		return nil, err
	}
	return newLane(u), nil
}

// lane is the memory that one goroutine works in, and the finished bursts that were not reaped yet.
type lane struct {
	unit  *unit
	sc    *scratch
	std   [len(hashes)]resumable
	whole []byte
	sum   [64]byte
	icv   [32]byte

	done   []*offload.Burst
	closed bool
}

func newLane(u *unit) *lane {
	l := &lane{unit: u, sc: newScratch(), done: make([]*offload.Burst, 0, depth)}
	for a, h := range hashes {
		switch {
		case h.new == nil:
		case u.ways[a] == inSoftware:
			l.std[a] = h.new().(resumable)
		case u.ways[a] == whole && l.whole == nil:
			l.whole = make([]byte, 0, blockLen+1<<16) // the largest packet, and the HMAC's first block
		}
	}
	return l
}

// Submit finishes the burst.
func (l *lane) Submit(b *offload.Burst) error {
	if l.closed {
		return offload.ErrClosed
	}
	if len(l.done) == cap(l.done) {
		return offload.ErrFull
	}
	l.run(b)
	l.done = append(l.done, b)
	return nil
}

// run works through the jobs. Jobs of one session usually follow each other, so it is acquired once for all of them.
func (l *lane) run(b *offload.Burst) {
	var held *session
	open := false
	for i := range b.Jobs {
		j := &b.Jobs[i]
		s, ok := j.Session.(*session)
		if !ok || s == nil || s.dir != b.Dir {
			j.Status = offload.EngineError
			continue
		}
		if s != held {
			if open {
				held.release()
			}
			held, open = s, s.acquire()
		}
		switch {
		case !open || s.closed():
			j.Status = offload.EngineError
		case !s.t.ValidLen(len(j.ESP)):
			j.Status = offload.BadLength
		case b.Dir == offload.Seal:
			j.Status = l.seal(s, j.ESP, j.SeqHi)
		default:
			j.Status = l.open(s, j.ESP, j.SeqHi)
		}
	}
	if open {
		held.release()
	}
}

// seal works on a packet whose length is valid.
func (l *lane) seal(s *session, esp []byte, seqHi uint32) offload.Status {
	header, end := s.t.HeaderLen(), len(esp)-s.t.ICVLen
	l.crypt(s, esp[8:header], esp[header:end])
	copy(esp[end:], l.authenticate(s, esp, end, seqHi)[:s.t.ICVLen])
	return offload.OK
}

// open works on a packet whose length is valid. Nothing is decrypted before the ICV has proved right.
func (l *lane) open(s *session, esp []byte, seqHi uint32) offload.Status {
	header, end := s.t.HeaderLen(), len(esp)-s.t.ICVLen
	icv := l.icv[:copy(l.icv[:], esp[end:])]
	sum := l.authenticate(s, esp, end, seqHi)
	copy(esp[end:], icv)
	if subtle.ConstantTimeCompare(sum[:len(icv)], icv) != 1 {
		return offload.BadICV
	}
	l.crypt(s, esp[8:header], esp[header:end])
	return offload.OK
}

// authenticate gives the HMAC of a packet up to its ICV. With ESN the high half of the sequence number follows there (RFC 4303
// section 2.2.1): it takes the ICV's place for the moment, so that the unit gets one piece.
func (l *lane) authenticate(s *session, esp []byte, end int, seqHi uint32) []byte {
	if s.esn {
		binary.BigEndian.PutUint32(esp[end:], seqHi)
		end += 4
	}
	return l.mac(s, esp[:end])
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
	*l.sc = scratch{}
	clear(l.whole[:cap(l.whole)])
	return nil
}

// String says what runs where, for people.
func (u *unit) String() string {
	parts := []string{u.name + ": AES-CBC in the cipher unit"}
	if !u.unaligned {
		parts[0] += " (aligned data)"
	}
	for a, h := range hashes {
		if h.new != nil {
			parts = append(parts, h.name+" "+u.ways[a].String())
		}
	}
	return strings.Join(parts, ", ")
}
