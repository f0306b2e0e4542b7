package sa

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"culvert/offload"
)

// ErrExpired says that an SA has passed a hard limit: the packet must not be sent with it.
var ErrExpired = errors.New("sa: the SA has passed its hard lifetime")

// MTUAge is how long a path MTU that was learned is believed (RFC 1191 section 6.3, RFC 8201 section 4).
const MTUAge = 10 * time.Minute

// minLearnedMTU4 is the least that is believed of what an ICMP message says of an IPv4 path: what every host can receive
// (RFC 791 section 3.1). No link of today carries less, so less is an attack.
const minLearnedMTU4 = 576

// RecentlySent is how long ago a packet can have been sent that an ICMP message quotes, a second more or less: routers answer at
// once, so the answer is a round trip away, and no path takes seconds. Who replays what he once saw of the SA comes too late.
const RecentlySent = 4 * time.Second

// maxUnshown is how many numbers a lane can use between two calls of Publish: twice what it could send in 10 ms.
const maxUnshown = 1 << 17

// Outbound is one SA that seals. Which goroutine may call what is said in the package's documentation; NextSeq, Account, Publish
// and nothing else belong to the lane that has claimed it.
type Outbound struct {
	params  atomic.Pointer[Params]
	session offload.Session
	peer    atomic.Pointer[netip.AddrPort]

	mtuMu   sync.Mutex    // of those who change the three
	mtu     atomic.Int32  // bytes of the largest outer packet
	inner   atomic.Int32  // bytes of the largest inner packet at that
	learned time.Duration // the SA's age when mtu was learned, at least 1; 0: it was not

	mtuIgnored atomic.Uint64 // messages that were not believed

	seq     *Sequence
	softSeq uint64 // the number from which on the SA should be replaced

	owner    owner
	adopted  atomic.Bool // by a DB, for good
	life     life
	counters counters
}

// NewOutbound makes an SA from parameters, a session made with their transform and keys, and a sequence that no other SA uses.
// The keys are copied: what the caller holds is the caller's to wipe. Once the SA is in a DB, the DB closes the session and
// the sequence and wipes the keys when it is removed; until then the caller does.
func NewOutbound(p Params, s offload.Session, seq *Sequence) (*Outbound, error) {
	if err := p.ValidateFor(Out); err != nil {
		return nil, err
	}
	if err := checkSession(&p, s, offload.Seal); err != nil {
		return nil, err
	}
	if seq == nil {
		return nil, fmt.Errorf("sa: %s: %w: the sequence is missing", p.label(), ErrParams)
	}
	if err := seq.bind(p.Keys.ESN); err != nil {
		return nil, fmt.Errorf("sa: %s: %w: %w", p.label(), ErrParams, err)
	}
	o := &Outbound{session: s, seq: seq, softSeq: lastSeq(p.Keys.ESN) / 4 * 3}
	o.counters.use.seq = seq.last
	o.counters.publish()
	o.life.begin(p.Lifetime)
	for i := range o.counters.past {
		o.counters.past[i].seq = seq.at - 1 // what an earlier process may have sent is not this SA's to answer for
	}
	if p.PathMTU == 0 {
		p.PathMTU = DefaultMTU
	}
	o.place(p.clone())
	return o, nil
}

func checkSession(p *Params, s offload.Session, dir offload.Direction) error {
	switch {
	case s == nil:
		return fmt.Errorf("sa: %s: %w: the session is missing", p.label(), ErrParams)
	case s.Transform() != p.Transform:
		return fmt.Errorf("sa: %s: %w: the session is for %v, the SA for %v", p.label(), ErrParams, s.Transform(), p.Transform)
	case s.Direction() != dir:
		return fmt.Errorf("sa: %s: %w: the session is to %v, not to %v", p.label(), ErrParams, s.Direction(), dir)
	}
	return nil
}

// place puts the SA at its parameters' endpoint, of whose path nothing has been learned yet.
func (o *Outbound) place(p *Params) {
	o.mtuMu.Lock()
	defer o.mtuMu.Unlock()
	o.params.Store(p)
	o.SetPeer(netip.AddrPortFrom(p.Dst, p.DstPort))
	o.setMTU(p.PathMTU, 0)
}

func (o *Outbound) rename(p *Params) { o.params.Store(p) }

// Params are the SA's present parameters; they are not to be changed. When the SA moves, later calls give others.
func (o *Outbound) Params() *Params { return o.params.Load() }

// Session is the key in its engine.
func (o *Outbound) Session() offload.Session { return o.session }

// NextSeq gives the next packet's sequence number; of a number without ESN the high half is 0. With ErrExpired,
// ErrSeqExhausted or ErrSeqNotReserved the packet is not sent. For the owning lane; it does not allocate and makes no system
// call, but for waking the store's goroutine at most once per reservation.
func (o *Outbound) NextSeq() (uint64, error) {
	if err := o.life.refusal(); err != nil {
		return 0, err
	}
	n, err := o.seq.next()
	if err == ErrSeqExhausted {
		o.life.pass(true, CauseSequence)
	}
	return n, err
}

// Sequence is where the numbers come from.
func (o *Outbound) Sequence() *Sequence { return o.seq }

// Account counts a burst of packets that were sealed, in bytes of ESP, and passes the limits that are reached: a hard limit
// is enforced from the next NextSeq on, so it is exceeded by at most the bursts in flight. It reports whether this is the first
// change since Publish, which the lane then owes. For the owning lane.
func (o *Outbound) Account(packets, bytes uint64, now time.Time) bool {
	if o.seq.last >= o.softSeq {
		o.life.pass(false, CauseSequence)
	}
	return o.counters.account(&o.life, packets, bytes, o.seq.last, now)
}

// Publish shows what was accounted to readers of Stats. It is for the owning lane: before it waits, and every some milliseconds
// while it does not.
func (o *Outbound) Publish() { o.counters.publish() }

// PublishFor is Publish for a lane that may not own the SA any more.
func (o *Outbound) PublishFor(lane int) {
	if o.owner.has(lane) {
		o.Publish()
	}
}

// Claim makes the lane, counted from 0, the SA's owner if it has none, and reports whether it is the owner now.
func (o *Outbound) Claim(lane int) bool { return o.owner.claim(lane, 0) }

// Owner is the lane that has claimed the SA, if one has.
func (o *Outbound) Owner() (lane int, ok bool) { return o.owner.lane() }

// Expired reports whether the SA has passed a hard limit.
func (o *Outbound) Expired() bool { return o.life.expired() }

// Stats is a consistent copy of the counters as of the last Publish.
func (o *Outbound) Stats() Stats {
	s := o.counters.stats(&o.life)
	s.MTUIgnored = o.mtuIgnored.Load()
	return s
}

// Peer is where packets are sent: at first Params.Dst and DstPort (0 without UDP).
func (o *Outbound) Peer() netip.AddrPort { return *o.peer.Load() }

// SetPeer changes where packets are sent, as when a NAT has given the peer another mapping.
func (o *Outbound) SetPeer(a netip.AddrPort) {
	if p := o.peer.Load(); p == nil || *p != a {
		moved := a // so that only a change allocates
		o.peer.Store(&moved)
	}
}

// MTU is the size in bytes of the largest outer packet that the path takes.
func (o *Outbound) MTU() int { return int(o.mtu.Load()) }

// MaxInner is the size in bytes of the largest inner packet that fits the MTU once it is sealed and encapsulated.
func (o *Outbound) MaxInner() int { return int(o.inner.Load()) }

// SetMTU sets the path MTU until another is learned; it is kept inside what the outer family allows.
func (o *Outbound) SetMTU(mtu int) {
	o.mtuMu.Lock()
	defer o.mtuMu.Unlock()
	o.setMTU(min(max(mtu, minMTU(o.Params().Dst)), MaxMTU), 0)
}

// LearnMTU takes a smaller MTU of the path from who is to be believed, the own host, and reports whether that changed it. A path
// never gets larger so, and never smaller than 576 bytes, or 1280 with IPv6. It lasts for MTUAge.
func (o *Outbound) LearnMTU(mtu int, now time.Time) bool {
	o.mtuMu.Lock()
	defer o.mtuMu.Unlock()
	floor := minMTU6
	if o.Params().Dst.Is4() {
		floor = minLearnedMTU4
	}
	mtu = max(mtu, floor)
	if mtu >= o.MTU() {
		return false
	}
	o.setMTU(mtu, max(o.life.age(now), 1))
	return true
}

// LearnQuotedMTU is LearnMTU for an ICMP message, which anybody can forge. It quoted a packet with this SA's SPI and with lo as
// the low half of its number (RFC 4301 section 8.2). It is believed only if the SA sent that number, and within RecentlySent;
// Stats counts those that are not.
func (o *Outbound) LearnQuotedMTU(mtu int, lo uint32, now time.Time) bool {
	if !o.counters.sent(lo, o.life.age(now)) {
		o.mtuIgnored.Add(1)
		return false
	}
	return o.LearnMTU(mtu, now)
}

// ResetMTU forgets what was learned of the path, for an administrator who knows better, and reports whether that changed
// anything.
func (o *Outbound) ResetMTU() bool {
	o.mtuMu.Lock()
	defer o.mtuMu.Unlock()
	if o.learned == 0 {
		return false
	}
	o.setMTU(o.Params().PathMTU, 0)
	return true
}

// AgeMTU returns to Params.PathMTU once a learned MTU is older than MTUAge, and reports whether it did. Call it now and then.
func (o *Outbound) AgeMTU(now time.Time) bool {
	o.mtuMu.Lock()
	defer o.mtuMu.Unlock()
	at := o.learned
	if at == 0 || o.life.age(now)-at < MTUAge {
		return false
	}
	o.setMTU(o.Params().PathMTU, 0)
	return true
}

func (o *Outbound) setMTU(mtu int, learned time.Duration) {
	o.mtu.Store(int32(mtu))
	o.inner.Store(int32(o.Params().MaxInner(mtu)))
	o.learned = learned
}

// MaxInner is the size in bytes of the largest inner packet whose outer packet has at most mtu bytes:
// IP (20 or 40) + UDP (0 or 8) + the sealed packet. In transport mode the inner packet counts with its IP header, which is the outer
// one. It is negative if there is none.
func (p *Params) MaxInner(mtu int) int {
	n := p.Transform.MaxPayload(mtu - p.OuterLen())
	if p.Mode == Transport && n >= 0 {
		if n += 40; p.Dst.Is4() {
			n -= 20
		}
	}
	return n
}

// OuterLen is the length in bytes of the headers before ESP: IP without options, and UDP if it is used.
func (p *Params) OuterLen() int {
	n := 40
	if p.Dst.Is4() {
		n = 20
	}
	if p.Encap == EncapUDP {
		n += 8
	}
	return n
}

// owner is the lane that an SA belongs to, counted from 1, with 0 for nobody, and above that, from bit 32 on, the link that it was
// claimed on.
type owner struct{ id atomic.Int64 }

func (o *owner) claim(lane, link int) bool {
	id := int64(link)<<32 | int64(lane+1)
	return o.id.Load() == id || o.id.CompareAndSwap(0, id)
}

func (o *owner) has(lane int) bool { return int32(o.id.Load()) == int32(lane)+1 }

func (o *owner) lane() (int, bool) {
	id := int32(o.id.Load())
	return int(id) - 1, id != 0
}

// link is meaningful if there is an owner.
func (o *owner) link() int { return int(o.id.Load() >> 32) }

// wipe ends the SA: nothing can be sent with it any more.
func (o *Outbound) wipe() error {
	defer o.life.wiped.Store(true)
	o.counters.mu.Lock() // no lane has the SA any more, but one may still owe a Publish
	o.counters.use.seq = o.seq.last
	o.counters.show()
	o.counters.mu.Unlock()
	err := o.session.Close()
	o.Params().Keys.Zero()
	return errors.Join(err, o.seq.Close())
}
