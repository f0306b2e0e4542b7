package dataplane

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"

	"culvert/dataplane/link"
	"culvert/sa"
)

// Packets that wait for an SA (RFC 4301 4.4.1). What an outbound policy with Acquire is to protect, while it has no SA to do it with, is
// copied here, and whoever makes SAs is asked for one; when the DB says that something has changed, the packets are classified
// anew, oldest first, and go on, or wait on, as if they had just come from the TUN. Nothing that comes later is sent before them.
//
// They wait as packets of the wire: a super-packet has been split. All memory is made at start; it belongs to the outbound lane.
const (
	holdPackets       = 1024      // in all
	holdPolicyPackets = 64        // of a policy
	holdPolicyBytes   = 128 << 10 // of a policy
	holdFor           = 165 * time.Second

	// Most packets are one chunk; a larger one is a chain of them.
	holdChunk = 2112

	askEvery = 100 * time.Millisecond
	askSets  = 256
	askWays  = 4
	askDepth = 256 // waiting to be told

	none = -1 // instead of an index
)

// hold is the packets that wait, and whom for.
type hold struct {
	wait    time.Duration
	version uint64 // of the snapshot with which they have been, or are being, looked through
	cursor  int16  // the next one to look at; none: all have been
	any     atomic.Bool
	begun   chan struct{} // receives when the first packet has come; capacity 1

	count      int
	unasked    int // of those
	head, tail int16
	packet     [holdPackets]heldPacket // by the index of its first chunk
	chain      [holdPackets]int16      // the next chunk of a packet, or of the free ones
	free       int16
	room       int // free chunks
	chunks     []byte
	whole      []byte // the packet that goes on

	policy  [holdPackets]heldPolicy
	unused  int16 // the first of those
	buckets [holdPackets / 4]int16
	seed    maphash.Seed

	asks   chan ask
	tended time.Time // when those were last tried that could not be asked for
	asked  [askSets][askWays]askedFor
}

type heldPacket struct {
	flow       sa.Flow
	since      time.Time
	size       int32
	policy     int16
	prev, next int16 // by age
	asked      bool
}

// heldPolicy is a policy for which packets wait. It is known by its name, as it may be replaced while they do.
type heldPolicy struct {
	name           string
	packets, bytes int
	next           int16 // of its bucket, or of the unused ones
}

// ask is what Config.Acquire is told.
type ask struct {
	policy string
	flow   sa.Flow
}

// askedFor is an ask that is not to be repeated for a while.
type askedFor struct {
	key askKey
	at  time.Time
}

type askKey struct {
	policy   string
	src, dst netip.Addr
}

func newHold(wait time.Duration) *hold {
	if wait <= 0 {
		wait = holdFor
	}
	h := &hold{
		wait: wait, cursor: none, head: none, tail: none, room: holdPackets, seed: maphash.MakeSeed(),
		begun: make(chan struct{}, 1), asks: make(chan ask, askDepth),
		chunks: make([]byte, holdPackets*holdChunk), whole: make([]byte, maxHeld+readAhead)[:maxHeld],
	}
	for i := range h.chain {
		h.chain[i] = int16(i + 1)
		h.policy[i].next = int16(i + 1)
	}
	h.chain[holdPackets-1], h.policy[holdPackets-1].next = none, none
	for i := range h.buckets {
		h.buckets[i] = none
	}
	return h
}

// maxHeld is the length of the largest IP packet.
const maxHeld = 65535

// put adds a packet that waits for a policy's SA. It reports false if there is no room.
func (h *hold) put(policy string, p []byte, f *sa.Flow, now time.Time, asked bool) bool {
	n := (len(p) + holdChunk - 1) / holdChunk
	if n > h.room {
		return false
	}
	pol, ok := h.join(policy, len(p))
	if !ok {
		return false
	}
	h.room -= n
	i := h.free
	last := i
	for at := 0; ; last = h.chain[last] {
		at += copy(h.chunks[int(last)*holdChunk:][:holdChunk], p[at:])
		if at == len(p) {
			break
		}
	}
	h.free, h.chain[last] = h.chain[last], none
	h.packet[i] = heldPacket{flow: *f, since: now, size: int32(len(p)), policy: pol, prev: h.tail, next: none, asked: asked}
	if !asked {
		h.unasked++
	}
	if h.tail == none {
		h.head = i
	} else {
		h.packet[h.tail].next = i
	}
	h.tail = i
	if h.count++; h.count == 1 {
		h.any.Store(true)
		select {
		case h.begun <- struct{}{}:
		default:
		}
	}
	return true
}

// join counts a packet of n bytes to a policy. It reports false if that has as many as it may have.
func (h *hold) join(policy string, n int) (int16, bool) {
	b := &h.buckets[maphash.String(h.seed, policy)%uint64(len(h.buckets))]
	i := *b
	for i != none && h.policy[i].name != policy {
		i = h.policy[i].next
	}
	if i == none { // there are as many as packets, so one is unused
		i = h.unused
		p := &h.policy[i]
		h.unused = p.next
		*p = heldPolicy{name: policy, next: *b}
		*b = i
	}
	p := &h.policy[i]
	if p.packets == holdPolicyPackets || p.packets > 0 && p.bytes+n > holdPolicyBytes {
		return none, false
	}
	p.packets++
	p.bytes += n
	return i, true
}

// leave takes back what join has counted.
func (h *hold) leave(i int16, n int) {
	p := &h.policy[i]
	p.bytes -= n
	if p.packets--; p.packets > 0 {
		return
	}
	at := &h.buckets[maphash.String(h.seed, p.name)%uint64(len(h.buckets))]
	for *at != i {
		at = &h.policy[*at].next
	}
	*at = p.next
	*p = heldPolicy{next: h.unused}
	h.unused = i
}

// rejoin has a packet wait for another policy. It reports false if that has no room; the packet is nobody's then, to be removed.
func (h *hold) rejoin(i int16, policy string) bool {
	p := &h.packet[i]
	h.leave(p.policy, int(p.size))
	var ok bool
	p.policy, ok = h.join(policy, int(p.size))
	return ok
}

// remove takes a packet out. The cursor moves on if it was there.
func (h *hold) remove(i int16) {
	p := &h.packet[i]
	if p.policy != none {
		h.leave(p.policy, int(p.size))
	}
	if h.cursor == i {
		h.cursor = p.next
	}
	if p.prev == none {
		h.head = p.next
	} else {
		h.packet[p.prev].next = p.next
	}
	if p.next == none {
		h.tail = p.prev
	} else {
		h.packet[p.next].prev = p.prev
	}
	last := i
	h.room++
	for h.chain[last] != none {
		last = h.chain[last]
		h.room++
	}
	h.chain[last], h.free = h.free, i
	if !p.asked {
		h.unasked--
	}
	*p = heldPacket{}
	if h.count--; h.count == 0 {
		h.any.Store(false)
	}
}

// take is remove for a packet that goes on; it is valid until the next take.
func (h *hold) take(i int16) []byte {
	p := h.whole[:h.packet[i].size]
	for at, c := 0, i; at < len(p); c = h.chain[c] {
		at += copy(p[at:], h.chunks[int(c)*holdChunk:][:holdChunk])
	}
	h.remove(i)
	return p
}

// ask asks for an SA for a flow, unless that was asked just now. It reports false if it could not be asked, nor was.
func (h *hold) ask(policy string, f *sa.Flow, now time.Time) bool {
	k := askKey{policy, f.Src, f.Dst}
	set := &h.asked[maphash.Comparable(h.seed, k)%askSets]
	old := &set[0]
	for i := range set {
		e := &set[i]
		if e.key == k && now.Sub(e.at) < askEvery {
			return true
		}
		if e.at.Before(old.at) {
			old = e
		}
	}
	if now.Sub(old.at) < askEvery {
		return false // to forget it could mean to ask for it again too early
	}
	select {
	case h.asks <- ask{policy, *f}:
		*old = askedFor{k, now}
		return true
	default:
		return false
	}
}

// askFor asks for an SA for a packet that waits.
func (h *hold) askFor(p *heldPacket, now time.Time) {
	was := p.asked
	if p.asked = h.ask(h.policy[p.policy].name, &p.flow, now); p.asked != was {
		if was {
			h.unasked++
		} else {
			h.unasked--
		}
	}
}

// waits reports whether what a policy is to protect waits for an SA.
func waits(p *sa.Policy) bool {
	return p.Acquire && p.Action == sa.Protect && (p.Out == nil || p.Out.Expired())
}

// park has the packet in hand, or what is left of it, wait for an SA of a policy.
func (l *outbound) park(snap *sa.Snapshot, pol *sa.Policy) {
	h, now := l.hold, time.Now()
	if h.count == 0 {
		h.version = snap.Version()
	}
	asked := !waits(pol) || h.ask(pol.Name, &l.flow, now)
	for more := true; more; {
		var n int
		n, more = l.split.Next(h.whole[:])
		l.books.now.InFlight--
		if h.put(pol.Name, h.whole[:n], &l.flow, now, asked) {
			l.books.now.Held++
			continue
		}
		l.books.drop(CauseHoldFull, 1)
		if more {
			l.lose(CauseHoldFull)
		}
		break
	}
	l.pending, l.packet, l.state, l.acquire = false, nil, nil, nil
}

// queueUp has the packet in hand wait behind older ones, if such are to be looked through before it and may be of its policy.
func (l *outbound) queueUp(snap *sa.Snapshot) bool {
	if h := l.hold; l.resumed || h.cursor == none && h.version == snap.Version() {
		return false
	}
	pol, found := snap.Outbound(&l.flow)
	if !found || pol.Action != sa.Protect || !pol.Acquire {
		return false
	}
	l.park(snap, pol)
	return true
}

// review looks through the packets that wait, if the DB has changed since it did so last, and takes up the first that need not wait
// any more. It reports whether there is one: it is the packet in hand then.
func (l *outbound) review(b *outBurst) bool {
	h := l.hold
	snap := b.snap
	if snap == nil {
		snap = l.db.Acquire()
	}
	if v := snap.Version(); v != h.version {
		h.version, h.cursor = v, h.head
	}
	taken := false
	for h.cursor != none && !taken {
		i := h.cursor
		p := &h.packet[i]
		pol, found := snap.Outbound(&p.flow)
		switch {
		case !found:
			l.forget(i, CauseHoldPolicyGone)
		case !waits(pol):
			taken = true
		case pol.Name == h.policy[p.policy].name:
			h.cursor = p.next
		case h.rejoin(i, pol.Name):
			h.askFor(p, time.Now())
			h.cursor = p.next
		default:
			l.forget(i, CauseHoldFull)
		}
	}
	if taken {
		packet := h.take(h.cursor)
		l.books.now.Held--
		// It was well-formed when it came, and has not changed.
		if _, err := parseFlow(packet, &l.flow); err != nil || l.split.Reset(packet, link.VNet{}) != nil {
			l.books.drop(CauseInnerMalformed, 1)
		} else {
			l.books.now.InFlight++
			l.pending, l.packet, l.resumed = true, packet, true
		}
	}
	if b.snap == nil {
		if taken {
			b.snap, l.there = snap, l.outer.all()
		} else {
			snap.Release()
		}
	}
	return taken
}

// forget drops a packet that waits.
func (l *outbound) forget(i int16, c Cause) {
	l.hold.remove(i)
	l.books.now.Held--
	l.books.drop(c, 1)
}

// tend drops what has waited too long, and asks again where it could not be asked. It reports whether anything was dropped.
func (l *outbound) tend() (dropped bool) {
	h, now := l.hold, time.Now()
	for h.head != none && now.Sub(h.packet[h.head].since) >= h.wait {
		l.forget(h.head, CauseHoldTimedOut)
		dropped = true
	}
	if h.unasked > 0 && now.Sub(h.tended) >= askEvery/10 {
		h.tended = now
		for i := h.head; i != none; i = h.packet[i].next {
			if p := &h.packet[i]; !p.asked {
				h.askFor(p, now)
			}
		}
	}
	return dropped
}

// dismiss drops all that waits, as the lane ends.
func (l *outbound) dismiss() {
	for l.hold.head != none {
		l.forget(l.hold.head, CauseClosing)
	}
}

// watch wakes the outbound lane when packets wait and something has changed, or may have waited long enough.
func (h *hold) watch(updated <-chan struct{}, inner link.Inner, quit <-chan struct{}) {
	every := min(max(h.wait/8, time.Millisecond), time.Second)
	tick := time.NewTimer(every)
	tick.Stop()
	defer tick.Stop()
	for {
		select {
		case <-quit:
			return
		case <-h.begun:
			tick.Reset(every)
			continue
		case <-updated:
		case <-tick.C:
			if h.any.Load() {
				tick.Reset(every)
			}
		}
		if h.any.Load() {
			inner.Wake()
		}
	}
}
