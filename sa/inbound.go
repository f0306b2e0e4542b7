package sa

import (
	"fmt"
	"sync/atomic"
	"time"

	"culvert/offload"
)

// Inbound is one SA that opens. Which goroutine may call what is said in the package's documentation; the replay window and
// the accounting belong to the lane that has claimed it.
type Inbound struct {
	params  atomic.Pointer[Params]
	session offload.Session
	paired  *Outbound

	window Window
	filter bool // the window is used
	seen   seen // what is published of the window

	received *Received // nil: what was accepted is forgotten with the process
	esn      bool

	owner    owner
	roamed   time.Time   // the owner's: see Roams
	moves    uint64      // how often it was placed; under counters.mu
	adopted  atomic.Bool // by a DB, for good
	life     life
	counters counters
}

// NewInbound makes an SA from parameters, a session made with their transform and keys, and the SA of the other direction, which
// may be nil unless FollowPeer is set. The keys are copied: what the caller holds is the caller's to wipe. Once the SA is in
// a DB, the DB closes the session and wipes the keys when it is removed; until then the caller does.
func NewInbound(p Params, s offload.Session, paired *Outbound) (*Inbound, error) {
	if err := p.ValidateFor(In); err != nil {
		return nil, err
	}
	if err := checkSession(&p, s, offload.Open); err != nil {
		return nil, err
	}
	if p.FollowPeer && paired == nil {
		return nil, fmt.Errorf("sa: %s: %w: following the peer needs the outbound SA of the pair", p.label(), ErrParams)
	}
	i := &Inbound{session: s, paired: paired, filter: !p.NoReplayCheck, esn: p.Keys.ESN}
	if i.filter {
		if err := i.window.init(p.ReplayWindow); err != nil {
			return nil, err
		}
		i.seen.words = make([]uint64, len(i.window.words()))
	}
	i.life.begin(p.Lifetime)
	i.params.Store(p.clone())
	return i, nil
}

// Params are the SA's present parameters; they are not to be changed. When the SA moves, later calls give others.
func (i *Inbound) Params() *Params { return i.params.Load() }

// Session is the key in its engine.
func (i *Inbound) Session() offload.Session { return i.session }

// Paired is the outbound SA of the same tunnel, or nil.
func (i *Inbound) Paired() *Outbound { return i.paired }

// Seq is the whole sequence number of a packet that carries lo: with ESN inferred (RFC 4303 appendix A2.2), else lo itself.
// It is what the packet's ICV is checked with, and what CheckSeq and Advance take afterwards. For the owning lane.
func (i *Inbound) Seq(lo uint32) uint64 {
	if !i.esn {
		return uint64(lo)
	}
	return i.window.Infer(lo)
}

// SeqHi is the high half of Seq: what a Job takes. For the owning lane.
func (i *Inbound) SeqHi(lo uint32) uint32 { return uint32(i.Seq(lo) >> 32) }

// Check judges a packet before its ICV has been checked, and changes nothing. For the owning lane.
func (i *Inbound) Check(lo uint32) Verdict { return i.CheckSeq(i.Seq(lo)) }

// CheckSeq is Check for a whole sequence number. For the owning lane.
func (i *Inbound) CheckSeq(seq uint64) Verdict {
	if !i.filter {
		return Fresh
	}
	return i.window.Check(seq)
}

// Advance judges a packet again, now that its ICV has been found right, and records it if it is Fresh. seq is what the ICV was
// checked with: inferring again could give another number, for the window may have moved. It is NotMarked if the SA has a mark
// and the number lies beyond it. For the owning lane.
func (i *Inbound) Advance(seq uint64) Verdict {
	if !i.filter {
		i.window.top = max(i.window.top, seq)
		return Fresh
	}
	if i.received != nil && seq > i.window.top && !i.received.admits(seq) {
		return NotMarked
	}
	return i.window.Advance(seq)
}

// Top is the highest number accepted so far, 0 if there is none. For the owning lane.
func (i *Inbound) Top() uint64 { return i.window.top }

// Roams reports whether a packet from another address is news: the last such was a second ago. For the owning lane.
func (i *Inbound) Roams(now time.Time) bool {
	if now.Sub(i.roamed) < time.Second {
		return false
	}
	i.roamed = now
	return true
}

// Resume sets the highest number received, as when an SA is taken over from a kernel or comes back: everything up to it counts
// as seen. Call it before the SA is in a DB.
func (i *Inbound) Resume(top uint64) {
	i.window.Resume(top)
	i.publishAll()
}

// Account counts a burst of packets that were accepted, in bytes of ESP, and passes the limits that are reached. For the
// owning lane, which does not accept packets once Expired says so, and delivers none before they are accounted. It reports whether this is the first change since Publish,
// which the lane then owes.
func (i *Inbound) Account(packets, bytes uint64, now time.Time) bool {
	if i.received != nil {
		i.received.tend(i.window.top, i.life.age(now))
	}
	return i.counters.account(&i.life, packets, bytes, i.window.top, now)
}

// AccountDrops counts packets of a burst that were refused, and reports the same as Account. For the owning lane.
func (i *Inbound) AccountDrops(d Drops) bool {
	u := &i.counters.use.drops
	u.Duplicate += d.Duplicate
	u.TooOld += d.TooOld
	u.BadICV += d.BadICV
	return i.counters.touch()
}

// Publish shows what was accounted to readers of Stats, and the window to those of Replay. It is for the owning lane: before it
// waits, and every some milliseconds while it does not.
func (i *Inbound) Publish() {
	i.counters.mu.Lock()
	i.show()
	i.counters.mu.Unlock()
}

// PublishFor is Publish for a lane that may have lost the SA to another since it accounted, which has shown everything then.
func (i *Inbound) PublishFor(lane int) {
	i.counters.mu.Lock()
	if i.owner.has(lane) {
		i.show()
	}
	i.counters.mu.Unlock()
}

// show is Publish for who holds the lock.
func (i *Inbound) show() {
	if i.filter {
		i.seen.publish(&i.window)
	}
	i.counters.show()
}

// Claim makes a lane, counted from 0, the SA's owner if it has none, and reports whether it is the owner now. link is the one that
// the lane serves, and that it has found in Params since it acquired the snapshot with which it looked the SA up: when the SA is
// moved to another, the lane loses it.
func (i *Inbound) Claim(lane, link int) bool { return i.owner.claim(lane, link) }

// Owner is the lane that has claimed the SA, if one has.
func (i *Inbound) Owner() (lane int, ok bool) { return i.owner.lane() }

// Expired reports whether the SA has passed a hard limit.
func (i *Inbound) Expired() bool { return i.life.expired() }

// Stats is a consistent copy of the counters as of the last Publish.
func (i *Inbound) Stats() Stats { return i.counters.stats(&i.life) }

// place puts the SA at its parameters' endpoint.
func (i *Inbound) place(p *Params) {
	i.counters.mu.Lock()
	defer i.counters.mu.Unlock()
	i.params.Store(p)
	i.moves++
}

// moved is an SA that has been put on another link, as of one of its moves.
type moved struct {
	i     *Inbound
	moves uint64
}

// handOver takes the SA from a lane of another link than its own, once nobody has a snapshot from before the move: the last packets
// that such a lane had admitted have come back from the engine, and it admits no more. If the SA has been moved again that is for
// the later move to do, for lanes may have used it in between.
func (m moved) handOver() {
	m.i.counters.mu.Lock()
	defer m.i.counters.mu.Unlock()
	if _, owned := m.i.owner.lane(); owned && m.i.moves == m.moves && m.i.owner.link() != m.i.Params().Link {
		m.i.show()
		m.i.owner.id.Store(0)
	}
}

func (i *Inbound) rename(p *Params) { i.params.Store(p) }

// wipe ends the SA: nothing can be opened with it any more.
func (i *Inbound) wipe() error {
	defer i.life.wiped.Store(true)
	i.Publish() // no lane has the SA any more, but one may still owe this
	i.received.Close()
	err := i.session.Close()
	i.Params().Keys.Zero()
	return err
}
