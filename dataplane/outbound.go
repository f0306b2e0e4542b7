package dataplane

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/sa"
)

// A packet's way out:
//
//	1 read         a packet or super-packet from the TUN             begin
//	2 classify     its flow against the SPD, once for all segments   classify
//	3 sequence     each segment takes the SA's next number           encapsulate
//	4 encapsulate  header, IV, inner packet, padding, trailer        encapsulate
//	5 [seal]       the engine encrypts and writes the ICV            ring.submit
//	6 send         runs of equal size become one GSO message         complete
//
// Step 5 is the only one that may leave the lane; the ring restores the order behind it.
type outbound struct {
	id    int
	inner link.InnerReader
	back  link.InnerWriter // packet-too-big messages go back where the packet came from
	outer links            // by sa.Params.Link
	there []*outerTx       // those of the burst being filled
	db    *sa.DB
	ring  *ring
	burst []outBurst // by ring slot
	iv    ivSource
	books books

	// The (super-)packet in hand. It may go on into the next burst.
	split   splitter
	flow    sa.Flow
	pending bool
	packet  []byte

	// What the present snapshot says of it.
	state    *sa.Outbound // nil: it has not been asked
	clamp    bool         // may be a SYN whose MSS is to fit the tunnel
	next     byte         // ESP next header
	tos      uint8        // of the outer header
	fragment bool         // the outer packet may be fragmented
	base     int          // bytes of the IP header that stay outside ESP: transport mode; 0: none

	// Packets that wait for an SA; nil where nobody can be asked for one.
	hold    *hold
	resumed bool       // the packet in hand has waited
	acquire *sa.Policy // the packet in hand is to wait for an SA of it: classify says so

	ptb   ptbLimiter
	ptbuf []byte
	part  [1][]byte
}

// outBurst is the memory of one ring slot: jobs' packets lie back to back in arena, so that a run of them is one GSO send.
type outBurst struct {
	arena []byte
	used  int
	jobs  []outJob
	snap  *sa.Snapshot
}

// outJob is what the lane must remember of a packet while the engine has it.
type outJob struct {
	state    *sa.Outbound
	off      int32 // in the arena
	tos      uint8
	fragment bool
}

// maxReads bounds what is read for one burst, so that a flood of packets that are all dropped does not keep the lane from
// its books, nor the burst's snapshot from being released.
const maxReads = 4 * burstJobs

func newOutbound(cfg *Config, id int, direct, spill offload.Lane) (*outbound, error) {
	iv, err := newIVSource()
	if err != nil {
		return nil, err
	}
	l := &outbound{
		id: id, db: cfg.DB, iv: iv,
		inner: cfg.Inner.NewReader(), back: cfg.Inner.NewWriter(),
		ring:  newRing(offload.Seal, direct, spill, ringDepth(spill != nil || cfg.Async)),
		ptbuf: make([]byte, maxPTBIPv6),
	}
	l.books.lane = id
	if cfg.Acquire != nil {
		l.hold = newHold(cfg.HoldFor)
	}
	l.burst = make([]outBurst, len(l.ring.slots))
	for i := range l.burst {
		l.burst[i] = outBurst{arena: make([]byte, arenaLen+readAhead)[:arenaLen], jobs: make([]outJob, 0, burstJobs)}
	}
	return l, nil
}

// fill reads and encapsulates until the burst is full or nothing more is there.
func (l *outbound) fill(i int, wait bool) (full bool, err error) {
	b, jobs := &l.burst[i], &l.ring.slots[i].burst
	b.used, b.jobs, jobs.Jobs = 0, b.jobs[:0], jobs.Jobs[:0]
	l.state = nil
	held := l.hold != nil && l.hold.count > 0
	if held && l.tend() {
		wait = false // who looks then is to see it
	}
	for reads := 0; ; reads++ {
		if l.pending {
			if b.snap == nil {
				b.snap, l.there = l.db.Acquire(), l.outer.all()
			}
			if held && l.queueUp(b.snap) {
				continue
			}
			if full = !l.take(b, jobs); full {
				break
			}
		}
		if full = len(b.jobs) == burstJobs || reads >= maxReads; full {
			break
		}
		if held = l.hold != nil && l.hold.count > 0; held {
			was := l.hold.count
			if l.review(b) {
				continue
			}
			wait = wait && l.hold.count == was
		}
		// A snapshot is never held while waiting: SAs that have been removed could not end.
		p, h, rerr := l.inner.Next(wait && reads == 0 && b.snap == nil)
		if rerr == nil {
			l.begin(p, h)
			continue
		}
		if errors.Is(rerr, link.ErrUnknownGSO) || errors.Is(rerr, link.ErrInvalid) {
			l.books.now.PacketsIn++
			l.books.drop(CauseInnerMalformed, 1)
			continue
		}
		if !errors.Is(rerr, link.ErrAgain) {
			if err = rerr; l.hold != nil {
				l.dismiss()
			}
		}
		break
	}
	if len(b.jobs) == 0 && b.snap != nil {
		l.release(b)
	}
	return full, err
}

// begin takes up one packet or super-packet: it counts it in and validates it.
func (l *outbound) begin(p []byte, h link.VNet) {
	l.books.now.BytesIn += uint64(len(p))
	_, err := parseFlow(p, &l.flow)
	if err == nil {
		err = l.split.Reset(p, h)
	}
	if err != nil {
		l.books.now.PacketsIn++
		l.books.drop(CauseInnerMalformed, 1)
		return
	}
	n := l.split.Count()
	l.books.now.PacketsIn += uint64(n)
	l.books.now.InFlight += uint64(n)
	l.pending, l.packet, l.resumed = true, p, false
}

// take moves the packet in hand into the burst, as much of it as there is room for, or drops it. It reports false when the
// burst is full. The segments of a super-packet stay together where they can, as they are one GSO message then.
func (l *outbound) take(b *outBurst, jobs *offload.Burst) bool {
	if len(b.jobs)+min(l.split.Count(), burstJobs) > burstJobs {
		return false
	}
	if l.state == nil {
		if cause, ok := l.classify(b.snap); !ok {
			if cause == CauseNoOutboundSA && l.hold != nil && l.acquire != nil {
				l.park(b.snap, l.acquire)
				return true
			}
			l.books.sights.unclassified(cause, &l.flow, l.split.Count())
			l.lose(cause)
			return true
		}
	}
	return l.encapsulate(b, jobs)
}

// lose drops what is left of the packet in hand.
func (l *outbound) lose(c Cause) {
	n := l.split.Count()
	l.books.drop(c, n)
	l.books.now.InFlight -= uint64(n)
	l.pending, l.packet, l.state = false, nil, nil
}

// classify finds the SA for the packet in hand (RFC 4301 5.1), or the cause to drop it for.
func (l *outbound) classify(snap *sa.Snapshot) (Cause, bool) {
	pol, found := snap.Outbound(&l.flow)
	switch {
	case !found && linkLocal(&l.flow):
		return CauseLinkLocal, false
	case !found && snap.Protected(&l.flow):
		return CauseShouldBeProtected, false
	case !found:
		return CauseNoPolicy, false
	case pol.Action == sa.Bypass:
		return CauseBypass, false
	case pol.Action != sa.Protect:
		return CausePolicyDiscard, false
	case pol.Out == nil, pol.Acquire && pol.Out.Expired():
		if l.acquire = nil; pol.Acquire {
			l.acquire = pol
		}
		return CauseNoOutboundSA, false
	case !pol.Out.Claim(l.id):
		return CauseLaneBusy, false
	}
	p := pol.Out.Params()
	if p.Link >= len(l.there) || l.there[p.Link] == nil {
		return CauseNoLink, false
	}
	v4 := l.packet[0]>>4 == 4
	inner := trafficClass(l.packet)
	df := !v4 || l.packet[6]&0x40 != 0 // IPv6 routers never fragment
	l.tos = outerTOS(p, inner)
	l.next = nextHeaderIPv6
	if v4 {
		l.next = nextHeaderIPv4
	}
	l.fragment = p.DF == sa.DFClear || p.DF == sa.DFCopy && !df
	l.base = 0
	if p.Mode == sa.Transport {
		next, cause, ok := transportable(p, l.packet, &l.flow)
		if !ok {
			return cause, false
		}
		l.base, l.next, l.tos, l.fragment = ipHeaderLenOf(l.packet[0]>>4), next, inner, !df
	}
	l.clamp = p.ClampMSS && l.flow.Proto == protoTCP && l.split.Count() == 1
	if size, fits := l.split.Size(), pol.Out.MaxInner(); size > fits {
		// The ESP packet may be fragmented outside (RFC 4303 3.3.4) where DF is clear on both, and for IPv6 must be up to the
		// 1280 bytes that it is promised (RFC 8200 5). For all else the sender is told the size.
		switch {
		case v4 && !df && l.fragment:
		case !v4 && size <= minIPv6MTU:
			l.fragment = true
		default:
			if df {
				l.tooBig(fits)
			}
			return CauseTooBig, false
		}
	}
	l.state = pol.Out
	return 0, true
}

// linkLocal says whether a flow stays on its link: a kernel with IPv6 reports its groups on every interface, the TUN too.
func linkLocal(f *sa.Flow) bool {
	return f.Dst.IsLinkLocalMulticast() || f.Dst.IsLinkLocalUnicast() || f.Src.IsLinkLocalUnicast()
}

// tooBig tells the sender of the packet in hand the largest size that fits (RFC 4301 8.2). The message says that it is from
// where the packet was to go: one from the gateway's own address would be dropped as a martian when it comes out of the
// TUN, and one from anywhere else by a strict reverse path filter.
func (l *outbound) tooBig(mtu int) {
	if !l.ptb.allow() {
		return
	}
	n := ptb(l.ptbuf, l.packet, mtu, destination(l.packet))
	if n == 0 {
		return
	}
	l.part[0] = l.ptbuf[:n]
	if l.back.Queue(link.VNet{}, l.part[:]) != nil {
		return
	}
	if failed, err := l.back.Flush(); failed == 0 && err == nil {
		l.books.now.PTBSent++
	}
}

// encapsulate moves the segments of the packet in hand into the burst. It reports false when the burst is full.
func (l *outbound) encapsulate(b *outBurst, jobs *offload.Burst) bool {
	state, sess := l.state, l.state.Session()
	p := state.Params()
	t := p.Transform
	head := t.HeaderLen()
	size := l.split.Size() - l.base
	if p.TFCPad > size {
		size = min(p.TFCPad, max(state.MaxInner(), size))
	}
	room := t.SealedLen(size)
	if room > maxESP {
		l.lose(CauseTooBig)
		return true
	}
	if n := min(l.split.Count(), burstJobs); len(b.jobs) > 0 && b.used+n*room+l.base > len(b.arena) {
		return false
	}
	for more := true; more; {
		if len(b.jobs) == burstJobs || b.used+room+l.base > len(b.arena) {
			return false
		}
		seq, err := state.NextSeq()
		if err != nil {
			l.lose(seqCause(err))
			return true
		}
		at := b.arena[b.used:]
		var n int
		n, more = l.split.Next(at[head:])
		if l.clamp {
			clampMSS(at[head:head+n], mssFor(l.packet, state.MaxInner()))
		}
		if l.base > 0 {
			n = copy(at[head:], at[head+l.base:head+n])
		}
		payload := n
		if p.TFCPad > n {
			payload = min(p.TFCPad, size)
			clear(at[head+n : head+payload])
		}
		esp := at[:t.SealedLen(payload)]
		encapsulate(esp, t, p.SPI, seq, payload, l.next, &l.iv)
		jobs.Jobs = append(jobs.Jobs, offload.Job{Session: sess, ESP: esp, SeqHi: uint32(seq >> 32)})
		b.jobs = append(b.jobs, outJob{state: state, off: int32(b.used), tos: l.tos, fragment: l.fragment})
		b.used += len(esp)
	}
	l.pending, l.packet, l.state = false, nil, nil
	return true
}

func seqCause(err error) Cause {
	switch {
	case errors.Is(err, sa.ErrExpired):
		return CauseExpired
	case errors.Is(err, sa.ErrSeqNotReserved):
		return CauseSeqNotReserved
	}
	return CauseSeqExhausted
}

// complete puts a sealed burst on the wire. A run of packets to one peer that lie back to back, all of one size but a
// shorter last one, is one message, which the kernel or the card segments (UDP_SEGMENT).
func (l *outbound) complete(i int) {
	b, jobs := &l.burst[i], l.ring.slots[i].burst.Jobs
	now := time.Now()
	var run saRun
	var to route
	var cur *link.TxMsg // the message in the making
	end, segs := 0, 0   // where its bytes end in the arena, and its datagrams
	outer := l.outer.all()
	for k := range jobs {
		m := &b.jobs[k]
		if jobs[k].Status != offload.OK {
			l.books.drop(CauseEngineError, 1)
			l.books.now.InFlight--
			continue
		}
		if m.state != run.out {
			run.flushOut(&l.books, now)
			run.out = m.state
			was := to
			if to = routeOf(m.state, outer); to != was {
				cur = nil
			}
		}
		run.packets++
		size := len(jobs[k].ESP)
		run.bytes += uint64(size)
		if to.tx == nil {
			l.books.drop(CauseNoLink, 1)
			l.books.now.InFlight--
			continue
		}
		off := int(m.off)
		if cur != nil && off == end && cur.TOS == m.tos && cur.Fragment == m.fragment && size <= cur.SegSize &&
			len(cur.Buf) == segs*cur.SegSize && segs < to.segs && len(cur.Buf)+size <= to.bytes {
			cur.Buf = cur.Buf[:len(cur.Buf)+size]
			segs++
		} else {
			to.tx.msgs = append(to.tx.msgs, link.TxMsg{
				To: to.peer, From: to.from, Buf: b.arena[off : off+size], SegSize: size, TOS: m.tos, Fragment: m.fragment,
			})
			cur, segs = &to.tx.msgs[len(to.tx.msgs)-1], 1
		}
		end = off + size
	}
	run.flushOut(&l.books, now)
	for _, tx := range outer {
		if tx != nil {
			l.transmit(tx)
		}
	}
	l.release(b)
}

// route is how an SA's packets leave just now.
type route struct {
	tx          *outerTx // nil: the link has gone
	peer        netip.AddrPort
	from        netip.Addr
	segs, bytes int // of a message
}

func routeOf(state *sa.Outbound, outer []*outerTx) route {
	p := state.Params()
	if p.Link >= len(outer) || outer[p.Link] == nil {
		return route{}
	}
	tx := outer[p.Link]
	return route{tx: tx, peer: state.Peer(), from: p.Src, segs: tx.link.MaxSegs(), bytes: tx.link.MaxBytes()}
}

func (l *outbound) release(b *outBurst) {
	b.snap.Release()
	b.snap = nil
}

// transmit sends a link's messages. Send's error is in every message that it is about.
func (l *outbound) transmit(tx *outerTx) {
	if len(tx.msgs) == 0 {
		return
	}
	tx.writer.Send(tx.msgs)
	for k := range tx.msgs {
		m := &tx.msgs[k]
		n := m.Datagrams()
		l.books.now.InFlight -= uint64(n)
		l.books.now.PacketsOut += uint64(n - m.Failed)
		l.books.now.BytesOut += uint64(len(m.Buf))
		if m.Failed > 0 {
			l.books.now.BytesOut -= uint64(min(m.Failed*m.SegSize, len(m.Buf)))
			cause := sendCause(m.Err)
			l.books.drop(cause, m.Failed)
			l.books.sights.unsent(cause, m)
		}
	}
	clear(tx.msgs)
	tx.msgs = tx.msgs[:0]
}

func sendCause(err error) Cause {
	switch {
	case errors.Is(err, net.ErrClosed):
		return CauseClosing
	case errors.Is(err, link.ErrTooBig):
		return CauseTooBig
	case errors.Is(err, link.ErrUnreachable), errors.Is(err, link.ErrRefused):
		return CauseUnreachable
	case errors.Is(err, link.ErrNoBuffers):
		return CauseQueueFull
	}
	return CauseSendFailed
}
