package server

import (
	"container/heap"
	"time"
)

// timer is a moment at which something is to be looked at. Its fields are the server's, under its lock.
type timer struct {
	at    time.Time
	fire  func(now time.Time)
	index int // in the heap; -1: not in it
}

// timers is a heap, the next one first.
type timers []*timer

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}
func (t *timers) Push(x any) {
	e := x.(*timer)
	e.index = len(*t)
	*t = append(*t, e)
}
func (t *timers) Pop() any {
	old := *t
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	e.index = -1
	return e
}

// arm sets a timer to a moment, or with the zero time stops it.
func (s *Server) arm(t *timer, at time.Time) {
	switch {
	case at.IsZero():
		if t.index >= 0 {
			heap.Remove(&s.timers, t.index)
		}
		return
	case t.index >= 0:
		t.at = at
		heap.Fix(&s.timers, t.index)
	default:
		t.at = at
		heap.Push(&s.timers, t)
	}
	if s.timers[0] == t {
		select {
		case s.rearm <- struct{}{}:
		default:
		}
	}
}

// ring fires what is due, and says when the next timer is; false if there is none.
func (s *Server) ring(now time.Time) (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.timers) > 0 && !s.timers[0].at.After(now) {
		t := heap.Pop(&s.timers).(*timer)
		t.fire(now)
	}
	if len(s.timers) == 0 {
		return 0, false
	}
	return s.timers[0].at.Sub(now), true
}

// due is the next moment of a set of limits in seconds after a beginning; hard and soft say whether one is reached by now. A
// limit in use counts from the first use, and is looked at again while there has been none.
type due struct {
	now        time.Time
	hard, soft bool
	next       time.Time
}

const forever = 1 << 34 // seconds: more is no limit, as the kernel's own arithmetic has it

func (d *due) limit(seconds uint64, from time.Time, hard bool) {
	if seconds == 0 || seconds >= forever {
		return
	}
	if from.IsZero() {
		from = d.now
	}
	at := from.Add(time.Duration(min(seconds, 1<<33)) * time.Second)
	switch {
	case at.After(d.now):
		if d.next.IsZero() || at.Before(d.next) {
			d.next = at
		}
	case hard:
		d.hard = true
	default:
		d.soft = true
	}
}
