package dataplane

import (
	"encoding/binary"
	"errors"
	"time"

	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/sa"
)

// A packet's way in:
//
//	1 receive        a batch of datagrams, merged ones taken apart      fill
//	2 find SA        by SPI; keepalives and foreign packets sorted out  admit
//	3 check window   a replay costs no cryptography                     admit
//	4 [open]         the engine checks the ICV and decrypts             ring.submit
//	5 check again    and advance: the ICV is right only now             authentic
//	6 decapsulate    padding, next header, inner header                 accept
//	7 match policy   the SA's own selectors; then ECN, DSCP, MSS        accept
//	8 deliver        merged into super-packets, written to the TUN      complete
//
// Step 4 is the only one that may leave the lane; the ring restores the order behind it. Step 3 reads the window and only
// step 5 moves it: a forged packet can neither advance it nor use up a number (RFC 4303 3.4.3).
type inbound struct {
	id     int
	linkID int
	udp    bool
	reader link.OuterReader
	inner  link.InnerWriter
	db     *sa.DB
	ring   *ring
	burst  []inBurst // by ring slot
	batch  []rxBatch
	rx     *rxBatch // being taken apart, or nil
	msg    int      // the message of rx in hand
	off    int      // the offset in it
	more   bool     // rx came full: more was waiting
	merge  coalescer
	flow   sa.Flow
	books  books

	rebuilt []byte // packets of transport mode, which lie elsewhere than they came
	used    int    // of it, by packets that the coalescer has

	refused refusals
	roams   chan<- roam // nil: nobody is told
}

// inBurst is what the lane must remember of the packets of one ring slot.
type inBurst struct {
	jobs []inJob
	rx   *rxBatch // whose memory the packets lie in
	snap *sa.Snapshot
}

type inJob struct {
	state *sa.Inbound
	seq   uint64
	msg   *link.RxMsg // that it came in
}

// rxBatch is a link's receive memory with the number of bursts that still use it.
type rxBatch struct {
	*link.RxBatch
	users int
}

// maxBatches bounds an asynchronous lane's receive memory: a batch is up to a megabyte.
const maxBatches = 4

// A burst must fit into the coalescer, which then never has to refuse a packet.
const _ = uint(coalescerPackets - burstJobs)

func newInbound(cfg *Config, id, linkID int, o link.Outer, direct, spill offload.Lane) *inbound {
	depth := ringDepth(spill != nil || cfg.Async)
	l := &inbound{
		id: id, linkID: linkID, db: cfg.DB, udp: o.Local().Port() != 0,
		reader: o.NewReader(), inner: cfg.Inner.NewWriter(),
		ring:  newRing(offload.Open, direct, spill, depth),
		burst: make([]inBurst, depth),
		batch: make([]rxBatch, min(depth, maxBatches)),

		rebuilt: make([]byte, rebuiltLen),
	}
	l.books.lane = id
	if cfg.Mapping != nil {
		l.roams = cfg.roams
	}
	for i := range l.burst {
		l.burst[i].jobs = make([]inJob, 0, burstJobs)
	}
	for i := range l.batch {
		l.batch[i].RxBatch = l.reader.NewBatch()
	}
	return l
}

// fill makes a burst of the datagrams at hand; when none is left it receives. A burst never spans two batches: what was
// received together is written together. Nor does it end within a message that the kernel has merged, if it can be helped:
// such a message becomes one super-packet.
func (l *inbound) fill(i int, wait bool) (full bool, err error) {
	b, jobs := &l.burst[i], &l.ring.slots[i].burst
	b.jobs, jobs.Jobs = b.jobs[:0], jobs.Jobs[:0]
	if l.rx == nil {
		rx := l.freeBatch()
		if rx == nil {
			return true, nil // all in flight: the oldest is waited for
		}
		if err := l.reader.Recv(rx.RxBatch, wait); err != nil {
			if errors.Is(err, link.ErrAgain) {
				err = nil
			}
			return false, err
		}
		l.rx, l.msg, l.off = rx, 0, 0
		l.more = len(rx.Msgs) == cap(rx.Msgs)
	}
	b.rx, b.snap = l.rx, l.db.Acquire()
	l.rx.users++
	for l.msg < len(l.rx.Msgs) && !full {
		full = l.take(&l.rx.Msgs[l.msg], b, jobs)
	}
	if l.msg == len(l.rx.Msgs) {
		l.rx, full = nil, full || l.more
	}
	l.refused.flush(&l.books)
	if len(b.jobs) == 0 {
		l.release(b)
	}
	return full, nil
}

func (l *inbound) freeBatch() *rxBatch {
	for i := range l.batch {
		if l.batch[i].users == 0 {
			return &l.batch[i]
		}
	}
	return nil
}

func (l *inbound) release(b *inBurst) {
	b.snap.Release()
	b.rx.users--
	b.snap, b.rx = nil, nil
}

// take moves what is left of message m into the burst, as much of it as there is room for, and reports whether the burst is
// full.
func (l *inbound) take(m *link.RxMsg, b *inBurst, jobs *offload.Burst) (full bool) {
	if m.SegSize > 0 && len(b.jobs) > 0 && len(b.jobs)+(len(m.Buf)-l.off+m.SegSize-1)/m.SegSize > burstJobs {
		return true
	}
	for {
		if len(b.jobs) == burstJobs {
			return true
		}
		end := len(m.Buf)
		if m.SegSize > 0 {
			end = min(end, l.off+m.SegSize)
		}
		p := m.Buf[l.off:end:end]
		l.books.now.PacketsIn++
		l.books.now.BytesIn += uint64(len(p))
		if cause, ok := l.admit(p, m, b, jobs); ok {
			l.books.now.InFlight++
		} else {
			l.books.drop(cause, 1)
			l.books.sights.refused(cause, p, m.From)
		}
		if l.off = end; end == len(m.Buf) {
			l.msg, l.off = l.msg+1, 0
			return false
		}
	}
}

// admit takes datagram p of message m into the burst, or gives the cause to drop it for.
func (l *inbound) admit(p []byte, m *link.RxMsg, b *inBurst, jobs *offload.Burst) (Cause, bool) {
	if l.udp {
		// RFC 3948 2.3 and 2.2: judged by the length that UDP gives, as Ethernet pads.
		if len(p) == 1 && p[0] == 0xff {
			return CauseKeepalive, false
		}
		if len(p) >= 4 && binary.BigEndian.Uint32(p) == 0 {
			return CauseIKE, false
		}
	}
	if len(p) < 8 {
		return CauseRunt, false
	}
	spi, lo := binary.BigEndian.Uint32(p), binary.BigEndian.Uint32(p[4:])
	if spi < 256 {
		return CauseReservedSPI, false
	}
	state := b.snap.Inbound(spi)
	if state == nil {
		return CauseNoState, false
	}
	params := state.Params()
	t := params.Transform
	switch {
	case params.Link != l.linkID:
		return CauseEncapMismatch, false
	case len(p) < t.MinLen():
		return CauseRunt, false
	case !t.ValidLen(len(p)):
		return CauseBadLength, false
	case !state.Claim(l.id, l.linkID):
		return CauseLaneBusy, false
	case state.Expired():
		return CauseExpired, false
	}
	seq := state.Seq(lo)
	if v := state.CheckSeq(seq); v != sa.Fresh {
		c := replayCause(v)
		l.refused.add(&l.books, state, c)
		return c, false
	}
	jobs.Jobs = append(jobs.Jobs, offload.Job{Session: state.Session(), ESP: p, SeqHi: uint32(seq >> 32)})
	b.jobs = append(b.jobs, inJob{state: state, seq: seq, msg: m})
	return 0, true
}

// complete takes an opened burst to the TUN.
func (l *inbound) complete(i int) {
	b, jobs := &l.burst[i], l.ring.slots[i].burst.Jobs
	now := time.Now()
	var run saRun
	for k := range jobs {
		m := &b.jobs[k]
		if m.state != run.in {
			run.flushIn(&l.books, now)
			run.in = m.state
		}
		cause, ok := l.authentic(m, jobs[k].Status, now)
		if ok {
			run.packets++
			run.bytes += uint64(len(jobs[k].ESP))
			if l.used+ipv6HeaderLen+len(jobs[k].ESP) > len(l.rebuilt) {
				run.flushIn(&l.books, now)
				l.deliver()
			}
			var inner []byte
			if inner, cause, ok = l.accept(m, jobs[k].ESP, b.snap); ok {
				l.merge.Add(inner)
				continue
			}
		}
		l.books.drop(cause, 1)
		l.books.now.InFlight--
		l.refused.add(&l.books, m.state, cause)
		l.books.sights.opened(cause, m, &l.flow)
	}
	run.flushIn(&l.books, now)
	l.refused.flush(&l.books)
	l.deliver()
	l.release(b)
}

// deliver writes what has been opened and accounted to the TUN.
func (l *inbound) deliver() {
	delivered, failed, bytes := l.merge.Flush(l.inner)
	l.books.now.PacketsOut += uint64(delivered)
	l.books.now.BytesOut += uint64(bytes)
	l.books.drop(CauseDeliverFailed, failed)
	l.books.now.InFlight -= uint64(delivered + failed)
	l.used = 0
}

// authentic judges what the engine says of a packet, and records its number if it is new: another packet with this number
// may have been opened since the first check, in this very burst even.
func (l *inbound) authentic(m *inJob, s offload.Status, now time.Time) (Cause, bool) {
	switch s {
	case offload.OK:
	case offload.BadICV:
		return CauseIntegrityFailed, false
	case offload.BadLength:
		return CauseBadLength, false
	default:
		return CauseEngineError, false
	}
	newest := m.seq > m.state.Top()
	if v := m.state.Advance(m.seq); v != sa.Fresh {
		return replayCause(v), false
	}
	if newest {
		if m.state.Params().FollowPeer {
			l.follow(m)
		}
		if l.roams != nil {
			l.tellRoam(m, now)
		}
	}
	return 0, true
}

// follow moves the paired outbound SA's peer to where an authentic packet, newer than all before it, came from
// (RFC 7296 2.23). An old packet, replayed through another path, cannot do that.
func (l *inbound) follow(m *inJob) {
	if o := m.state.Paired(); o != nil && o.Peer() != m.msg.From {
		o.SetPeer(m.msg.From)
	}
}

// accept takes the inner packet out of an opened ESP packet, and makes it ready to deliver.
func (l *inbound) accept(m *inJob, esp []byte, snap *sa.Snapshot) ([]byte, Cause, bool) {
	p := m.state.Params()
	tunnel := p.Mode == sa.Tunnel
	var inner []byte
	var cause Cause
	var ok bool
	if tunnel {
		inner, cause, ok = decapsulate(esp, p.Transform)
	} else {
		inner, cause, ok = l.rebuild(m, p, esp)
	}
	if !ok {
		return nil, cause, false
	}
	n, err := parseFlow(inner, &l.flow)
	if err != nil {
		return nil, CauseDecapMalformed, false
	}
	inner = inner[:n:n] // behind it there may be TFC padding (RFC 4303 2.7)
	if !snap.AllowedIn(m.state, &l.flow) {
		return nil, CausePolicyMismatch, false
	}
	if tunnel { // else the header that came is the packet's own
		tos := trafficClass(inner)
		out, drop := innerTOS(p, m.msg.TOS, tos)
		if drop {
			return nil, CauseECNDropped, false
		}
		if out != tos {
			setTrafficClass(inner, out)
		}
	}
	if p.ClampMSS && l.flow.Proto == protoTCP {
		if o := m.state.Paired(); o != nil {
			clampMSS(inner, mssFor(inner, o.MaxInner()))
		}
	}
	return inner, 0, true
}
