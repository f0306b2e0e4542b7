package pcaplink

import (
	"cmp"
	"io"
	"net"
	"sync"

	"culvert/dataplane/link"
	"culvert/dataplane/link/internal/segment"
)

type endError struct{}

func (endError) Error() string        { return "pcaplink: the capture has been replayed" }
func (endError) Is(target error) bool { return target == io.EOF || target == net.ErrClosed }

// ErrEnd is the end of a replay.
var ErrEnd error = endError{}

// replay hands out the numbers 0 to n-1, as often as asked for.
type replay struct {
	mu     sync.Mutex
	wake   sync.Cond
	n      int
	next   int
	rounds int  // still to begin, after this one
	idle   bool // there is no capture: wait until closed
	woken  bool // whoever waits next is not to
	closed bool
}

func newReplay(n, rounds int, idle bool) *replay {
	r := &replay{n: n, rounds: max(rounds, 1) - 1, idle: idle}
	r.wake.L = &r.mu
	return r
}

// take returns the next number, and how many up to most follow it.
func (r *replay) take(wait bool, most int) (first, n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.idle && wait && !r.closed && !r.woken {
		r.wake.Wait()
	}
	if r.idle && wait {
		r.woken = false
	}
	switch {
	case r.closed:
		return 0, 0, net.ErrClosed
	case r.idle:
		return 0, 0, link.ErrAgain
	case r.next == r.n && (r.rounds == 0 || r.n == 0):
		return 0, 0, ErrEnd
	case r.next == r.n:
		r.next = 0
		r.rounds--
	}
	first, n = r.next, min(most, r.n-r.next)
	r.next += n
	return first, n, nil
}

func (r *replay) rouse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.woken = true
	r.wake.Broadcast()
}

func (r *replay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.wake.Broadcast()
}

// InnerOptions describe an Inner.
type InnerOptions struct {
	Name   string // "pcap" unless given
	MTU    int    // 1500 unless given
	Rounds int    // how often the capture is replayed; once unless given
}

// Inner is the side of clear packets.
type Inner struct {
	opts   InnerOptions
	in     *Capture
	out    *Writer
	replay *replay
}

// NewInner replays in, and writes into out. Without a capture readers wait until Close; without a Writer what is written is lost.
// The Writer is not closed with the Inner.
func NewInner(in *Capture, out *Writer, opts InnerOptions) *Inner {
	l := &Inner{opts: opts, in: in, out: out}
	if in == nil {
		l.in = new(Capture)
	}
	l.replay = newReplay(l.in.Len(), opts.Rounds, in == nil)
	return l
}

func (l *Inner) Name() string                { return cmp.Or(l.opts.Name, "pcap") }
func (l *Inner) MTU() int                    { return cmp.Or(l.opts.MTU, 1500) }
func (l *Inner) Offloads() string            { return "csum tso uso, cut for the capture" }
func (l *Inner) Wake()                       { l.replay.rouse() }
func (l *Inner) StopReading()                { l.replay.close() }
func (l *Inner) Close() error                { l.replay.close(); return nil }
func (l *Inner) NewReader() link.InnerReader { return &innerReader{l: l} }
func (l *Inner) NewWriter() link.InnerWriter { return &innerWriter{l: l} }

type innerReader struct {
	l   *Inner
	buf []byte
}

func (r *innerReader) Next(wait bool) ([]byte, link.VNet, error) {
	i, _, err := r.l.replay.take(wait, 1)
	if err != nil {
		return nil, link.VNet{}, err
	}
	r.buf = append(r.buf[:0], r.l.in.Packet(i)...) // the caller may change it
	return r.buf, link.VNet{}, nil
}

type innerWriter struct {
	l      *Inner
	whole  []byte
	wire   []byte
	cutter segment.Segmenter
}

func (w *innerWriter) Queue(h link.VNet, parts [][]byte) error {
	if len(parts) > link.MaxParts {
		return link.ErrInvalid
	}
	w.whole = w.whole[:0]
	for _, p := range parts {
		w.whole = append(w.whole, p...)
	}
	if len(w.whole) == 0 || len(w.whole) > 65535 {
		return link.ErrInvalid
	}
	if err := w.cutter.Reset(w.whole, h); err != nil {
		return err
	}
	for w.cutter.More() {
		w.wire = w.cutter.Next(w.wire[:0])
		if w.l.out.Write(w.wire) != nil {
			return link.ErrOther
		}
	}
	return nil
}

func (w *innerWriter) Flush() (int, error) { return 0, nil }

var (
	_ link.Inner = (*Inner)(nil)
	_ link.Outer = (*Outer)(nil)
)
