package dataplane

import (
	"errors"
	"fmt"
	"sync/atomic"

	"culvert/dataplane/link"
)

// ErrStopped says that a plane has stopped, for good.
var ErrStopped = errors.New("the data plane has stopped")

// outerTx is a link with the messages of the burst being sent.
type outerTx struct {
	link   link.Outer
	writer link.OuterWriter
	msgs   []link.TxMsg
}

// links are what the outbound lane sends on, by sa.Params.Link; nil where there is none. The set is read without a lock and
// replaced as a whole. A link that is taken out may still be sent on until that burst is done: closing it is what ends that.
type links struct {
	set atomic.Pointer[[]*outerTx]
}

// all is the present set. A burst is sent with one set from its first packet to its last.
func (l *links) all() []*outerTx {
	if s := l.set.Load(); s != nil {
		return *s
	}
	return nil
}

// put replaces the link of an index; tx may be nil. Its caller excludes others.
func (l *links) put(i int, tx *outerTx) {
	now := l.all()
	all := make([]*outerTx, max(len(now), i+1))
	copy(all, now)
	all[i] = tx
	l.set.Store(&all)
}

// inLane is an inbound lane with what belongs to it.
type inLane struct {
	*inbound
	name    string
	link    link.Outer
	pair    enginePair
	done    chan struct{} // closed when the lane has ended; nil before it is started
	leaving bool          // RemoveOuter is on it
}

// AddOuter adds an outer link to a plane, running or not, and makes an inbound lane for it. index is the lowest one that is free: what
// sa.Params.Link is to say. The link is the plane's from then on, and after an error still the caller's.
func (p *Plane) AddOuter(o link.Outer) (index int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return 0, fmt.Errorf("dataplane: %w", ErrStopped)
	}
	for index < len(p.in) && p.in[index] != nil {
		index++
	}
	id := laneID(index)
	pair, err := p.newPair(id)
	if err != nil {
		return 0, err
	}
	l := &inLane{
		inbound: newInbound(&p.cfg, id, index, o, pair.direct, pair.spill),
		name:    p.laneName(o, index), link: o, pair: pair,
	}
	if index == len(p.in) {
		p.in = append(p.in, nil)
	}
	p.in[index] = l
	p.out.outer.put(index, &outerTx{link: o, writer: o.NewWriter(), msgs: make([]link.TxMsg, 0, burstJobs)})
	if p.running {
		p.start(l)
	}
	return index, nil
}

// laneName is the link's, made different from those of other lanes.
func (p *Plane) laneName(o link.Outer, index int) string {
	name := "inbound " + o.Name()
	for _, l := range p.in {
		if l != nil && l.name == name {
			return fmt.Sprintf("%s (link %d)", name, index)
		}
	}
	return name
}

// start lets an inbound lane run; p.mu is held.
func (p *Plane) start(l *inLane) {
	l.done = make(chan struct{})
	p.wg.Add(1)
	go func() {
		defer close(l.done)
		p.run(l.name, func() error { return l.ring.run(l.inbound, &l.books) })
	}()
}

// RemoveOuter takes a link from the plane: nothing more is read from it, its lane finishes what is in flight, and it is closed. What
// the lane has counted stays in Stats. Packets of SAs that still name the link are dropped as CauseNoLink, or CauseClosing if
// they are being sent just then. Its index is free afterwards, and a lane that gets it goes on with the SAs that name it.
//
// It waits for the lane, but for no SA, and needs nothing of the DB. An error is of closing the link, which is removed all the same,
// or says that there is no such link.
func (p *Plane) RemoveOuter(index int) error {
	p.mu.Lock()
	if index < 0 || index >= len(p.in) || p.in[index] == nil || p.in[index].leaving {
		p.mu.Unlock()
		return fmt.Errorf("dataplane: there is no link %d", index)
	}
	l := p.in[index]
	l.leaving = true
	done := l.done
	p.out.outer.put(index, nil)
	p.mu.Unlock()

	l.link.StopReading()
	if done != nil {
		<-done
	}
	err := l.link.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	l.pair.close()
	counted := l.books.read()
	p.gone.add(&counted)
	p.in[index] = nil
	return err
}
