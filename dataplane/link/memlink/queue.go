package memlink

import (
	"net"
	"sync"

	"culvert/dataplane/link"
)

// queue is a bounded FIFO of packets with one reading and one writing end of a pair. Its slots keep their memory, so a
// queue that has warmed up does not allocate.
type queue[M any] struct {
	mu       sync.Mutex
	notEmpty sync.Cond
	notFull  sync.Cond
	slots    []slot[M]
	head, n  int
	readEnd  bool // closed: nobody will read any more
	writeEnd bool // closed: nothing more will come
	woken    bool // whoever waits next to take is not to
	deaf     bool // the reading end has stopped reading: what does not fit is dropped
	drop     bool // when full: drop instead of waiting
	drops    uint64
}

type slot[M any] struct {
	buf  []byte
	meta M
}

func newQueue[M any](depth int, drop bool) *queue[M] {
	q := &queue[M]{slots: make([]slot[M], depth), drop: drop}
	q.notEmpty.L, q.notFull.L = &q.mu, &q.mu
	return q
}

// put copies one packet in; q.mu is held. It waits for room, or drops. It fails when the reading end is closed.
func (q *queue[M]) put(meta M, parts ...[]byte) error {
	for q.n == len(q.slots) && !q.readEnd && !q.writeEnd {
		if q.drop || q.deaf {
			q.drops++
			return nil
		}
		q.notFull.Wait()
	}
	if q.readEnd || q.writeEnd {
		return net.ErrClosed
	}
	s := &q.slots[(q.head+q.n)%len(q.slots)]
	s.buf = s.buf[:0]
	for _, p := range parts {
		s.buf = append(s.buf, p...)
	}
	s.meta = meta
	q.n++
	q.notEmpty.Signal()
	return nil
}

// ready waits until there is something to take; q.mu is held.
func (q *queue[M]) ready(wait bool) error {
	for {
		switch {
		case q.readEnd, q.deaf:
			return net.ErrClosed
		case q.n > 0:
			return nil
		case q.writeEnd:
			return net.ErrClosed
		case !wait:
			return link.ErrAgain
		case q.woken:
			q.woken = false
			return link.ErrAgain
		}
		q.notEmpty.Wait()
	}
}

// take swaps the oldest packet's buffer for buf; q.mu is held and ready has said yes.
func (q *queue[M]) take(buf []byte) ([]byte, M) {
	s := &q.slots[q.head]
	out := s.buf
	s.buf = buf
	q.head = (q.head + 1) % len(q.slots)
	q.n--
	q.notFull.Signal()
	return out, s.meta
}

func (q *queue[M]) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.woken = true
	q.notEmpty.Broadcast()
}

func (q *queue[M]) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.deaf = true
	q.notEmpty.Broadcast()
	q.notFull.Broadcast()
}

func (q *queue[M]) close(readEnd, writeEnd bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.readEnd = q.readEnd || readEnd
	q.writeEnd = q.writeEnd || writeEnd
	q.notEmpty.Broadcast()
	q.notFull.Broadcast()
}

func (q *queue[M]) dropped() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.drops
}

func (q *queue[M]) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}
