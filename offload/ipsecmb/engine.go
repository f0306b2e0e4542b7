//go:build ipsecmb && cgo && amd64

package ipsecmb

// #cgo LDFLAGS: -lIPSec_MB
// #include "run.h"
import "C"

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"culvert/offload"
)

// Errors of Probe and WithLevel.
var (
	ErrLevel   = errors.New("ipsecmb: no such level")
	ErrMachine = errors.New("ipsecmb: this machine does not run the library")
)

// depth is how many bursts a lane holds. They are all finished: more only wait to be reaped.
const depth = 64

// levels are the library's implementations, the best first.
var levels = []struct {
	name string
	code C.enum_culvert_level
}{
	{"avx512", C.CULVERT_AVX512},
	{"avx2", C.CULVERT_AVX2},
	{"avx", C.CULVERT_AVX},
	{"sse-sha", C.CULVERT_SSE_SHA}, // SSE with the SHA extensions
	{"sse", C.CULVERT_SSE},         // without: what an Atom C2000 runs
}

// runnable is the levels that the machine and its kernel have.
var runnable = sync.OnceValue(func() (names []string) {
	for _, l := range levels {
		if m := C.culvert_manager(l.code); m != nil {
			C.free_mb_mgr(m)
			names = append(names, l.name)
		}
	}
	return names
})

// Engine runs intel-ipsec-mb at one level.
type Engine struct {
	o Options

	mu   sync.Mutex
	core *core // made at the first need
}

// core is what sessions and lanes of one engine share: the level, and a manager to expand keys with.
type core struct {
	level   string
	code    C.enum_culvert_level
	mu      sync.Mutex // of manager
	manager *C.IMB_MGR
}

// New makes the engine. That the level is not to be had is for Probe to say.
func New(o Options) *Engine { return &Engine{o: o} }

// Name is "ipsecmb", and with a forced level "ipsecmb(sse)".
func (e *Engine) Name() string {
	if e.o.Level == "" {
		return "ipsecmb"
	}
	return "ipsecmb(" + e.o.Level + ")"
}

// Levels lists the levels that this machine runs, the best first.
func (e *Engine) Levels() []string { return slices.Clone(runnable()) }

// Level is the one this engine runs at; "" if it does not run.
func (e *Engine) Level() string {
	c, err := e.open()
	if err != nil {
		return ""
	}
	return c.level
}

// WithLevel is the same engine at another level. The error is ErrLevel.
func (e *Engine) WithLevel(level string) (offload.Engine, error) {
	o := e.o
	o.Level = level
	other := New(o)
	if _, err := other.open(); err != nil {
		return nil, err
	}
	return other, nil
}

// open makes the core.
func (e *Engine) open() (*core, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.core != nil {
		return e.core, nil
	}
	names := runnable()
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: it needs SSE4.2, AES-NI and PCLMULQDQ", ErrMachine)
	}
	want := e.o.Level
	if want == "" {
		want = names[0]
	}
	for _, l := range levels {
		if l.name != want || !slices.Contains(names, want) {
			continue
		}
		m := C.culvert_manager(l.code)
		if m == nil {
			return nil, fmt.Errorf("%w: no memory", ErrMachine)
		}
		e.core = &core{level: l.name, code: l.code, manager: m}
		return e.core, nil
	}
	return nil, fmt.Errorf("%w: %q; this machine runs %s", ErrLevel, want, strings.Join(names, ", "))
}

// transforms is the table but for what is refused.
func (e *Engine) transforms() []*offload.Transform {
	return slices.DeleteFunc(offload.Transforms(), func(t *offload.Transform) bool { return !e.supports(t) })
}

func (e *Engine) supports(t *offload.Transform) bool {
	return e.o.TripleDES || t.Cipher != offload.TripleDESCBC
}

// Probe says whether this machine runs the level.
func (e *Engine) Probe() (offload.Caps, error) {
	c, err := e.open()
	if err != nil {
		return offload.Caps{}, err
	}
	return offload.Caps{
		Transforms: e.transforms(),
		Shared:     true,
		Depth:      depth,
		Detail:     "intel-ipsec-mb " + C.GoString(C.imb_get_version_str()) + ", " + c.level,
	}, nil
}

// NewSession expands the keys.
func (e *Engine) NewSession(t *offload.Transform, dir offload.Direction, k offload.Keys) (offload.Session, error) {
	c, err := e.open()
	if err != nil {
		return nil, err
	}
	if err := offload.CheckSession(t, dir, k); err != nil {
		return nil, err
	}
	if !e.supports(t) {
		return nil, fmt.Errorf("ipsecmb: %w: %s: the library's 3DES is too slow to use; Options.TripleDES allows it for measuring", offload.ErrUnsupported, t)
	}
	s, err := c.newSession(t, dir, k)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewLane makes a manager of the lane's own; the id does not matter.
func (e *Engine) NewLane(int) (offload.Lane, error) {
	c, err := e.open()
	if err != nil {
		return nil, err
	}
	m := C.culvert_manager(c.code)
	if m == nil {
		return nil, errNoMemory
	}
	return &lane{core: c, manager: m, done: make([]*offload.Burst, 0, depth)}, nil
}

// lane holds the finished bursts that were not reaped yet, and what a burst needs while it is worked on.
type lane struct {
	core    *core
	manager *C.IMB_MGR
	done    []*offload.Burst
	closed  bool

	ops  []C.culvert_op // grows to the longest burst
	held []*session     // acquired, one entry per run of jobs
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

// run gives the good jobs to the library, and the others their status.
func (l *lane) run(b *offload.Burst) {
	if cap(l.ops) < len(b.Jobs) {
		l.ops = make([]C.culvert_op, len(b.Jobs))
	}
	ops := l.ops[:cap(l.ops)]
	n := 0
	var last *session
	live := false
	for i := range b.Jobs {
		j := &b.Jobs[i]
		s, ok := j.Session.(*session)
		if !ok || s == nil || s.dir != b.Dir || s.core != l.core {
			j.Status = offload.EngineError
			continue
		}
		if s != last {
			last, live = s, s.acquire()
			if live {
				l.held = append(l.held, s)
			}
		}
		switch {
		case !live:
			j.Status = offload.EngineError
		case !s.t.ValidLen(len(j.ESP)):
			j.Status = offload.BadLength
		default:
			s.prepare(&ops[n], j, i)
			n++
		}
	}
	if n > 0 {
		encrypt := C.int(0)
		if b.Dir == offload.Seal {
			encrypt = 1
		}
		// The operations hold addresses of packets, which C may not keep: the library is done with all of them when the call
		// returns. Until then b keeps them alive, and the heap, where all that a burst refers to lies, does not move.
		C.culvert_run(l.manager, &ops[0], C.int(n), encrypt)
		runtime.KeepAlive(b)
		for k := range ops[:n] {
			j := &b.Jobs[ops[k].index]
			j.Status = j.Session.(*session).conclude(&ops[k], j)
		}
	}
	for i, s := range l.held {
		s.release()
		l.held[i] = nil
	}
	l.held = l.held[:0]
}

// prepare describes a packet to the library.
func (s *session) prepare(op *C.culvert_op, j *offload.Job, index int) {
	t, esp := s.t, j.ESP
	end := len(esp) - t.ICVLen
	op.esp = C.uintptr_t(uintptr(unsafe.Pointer(&esp[0])))
	op.session = C.uintptr_t(uintptr(unsafe.Pointer(s.keys)))
	op.index, op.done = C.uint32_t(index), 0
	op.cipher_off, op.cipher_len, op.hash_len = C.uint32_t(t.HeaderLen()), C.uint32_t(end-t.HeaderLen()), C.uint32_t(end)
	if t.Cipher == offload.CipherNull {
		op.cipher_len = 0
	}
	if !t.AEAD {
		if s.esn {
			// RFC 4303 section 3.3.2.1: the high half is hashed behind the packet, which is where the ICV is. The library
			// writes the computed one elsewhere, so that those four bytes can be lent.
			copy(tag(&op.saved), esp[end:])
			binary.BigEndian.PutUint32(esp[end:], j.SeqHi)
			op.hash_len += 4
		}
		return
	}
	aad := tag(&op.aad)
	if s.esn { // RFC 4106 section 5: SPI, then all 64 bits of the sequence number
		copy(aad, esp[:4])
		binary.BigEndian.PutUint32(aad[4:], j.SeqHi)
		copy(aad[8:], esp[4:8])
		op.aad_len = 12
	} else {
		copy(aad, esp[:8])
		op.aad_len = 8
	}
	nonce := tag(&op.nonce)
	copy(nonce, s.salt[:])
	copy(nonce[4:], esp[8:16])
}

// tag is an array of the operation as bytes.
func tag[A [4]C.uint8_t | [16]C.uint8_t | [64]C.uint8_t](a *A) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(a)), unsafe.Sizeof(*a))
}

// conclude writes or compares the ICV.
func (s *session) conclude(op *C.culvert_op, j *offload.Job) offload.Status {
	end := len(j.ESP) - s.t.ICVLen
	icv := j.ESP[end:]
	if s.esn && !s.t.AEAD && s.dir == offload.Open {
		copy(icv, tag(&op.saved))
	}
	computed := tag(&op.tag)[:s.t.ICVLen]
	switch {
	case op.done == 0:
		return offload.EngineError
	case s.dir == offload.Seal:
		copy(icv, computed)
	case subtle.ConstantTimeCompare(icv, computed) != 1:
		return offload.BadICV
	}
	return offload.OK
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
	if !l.closed {
		l.closed = true
		clear(l.ops)
		C.free_mb_mgr(l.manager)
		l.manager = nil
	}
	return nil
}
