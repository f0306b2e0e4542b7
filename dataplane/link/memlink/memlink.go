package memlink

import (
	"cmp"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"

	"culvert/dataplane/link"
	"culvert/dataplane/link/internal/segment"
)

// DefaultDepth is how many packets a direction holds unless told otherwise.
const DefaultDepth = 256

// InnerOptions describe one end of an inner pair, and the direction from it to the other end.
type InnerOptions struct {
	Name         string // "mem0" and "mem1" unless given
	MTU          int    // 1500 unless given
	Depth        int    // packets on their way; DefaultDepth unless given
	DropWhenFull bool   // drop instead of waiting, as a TUN device does; counted in Drops
	NoGSO        bool   // refuse super-packets with link.ErrNoGSO, as some kernels do
	Segment      bool   // cut super-packets into packets of the wire, as a kernel without TSO would
	// Hook, if set, decides about every packet on its way: emit it not at all, once, twice, changed, or later in the
	// place of another. It runs in the writer's goroutine, never twice at a time. The packet is valid until it returns.
	Hook func(p InnerPacket, emit func(InnerPacket))
}

// InnerPacket is a packet as a Hook sees it.
type InnerPacket struct {
	Buf  []byte
	VNet link.VNet
}

// Inner is one end of an inner pair.
type Inner struct {
	opts   InnerOptions
	rx, tx *queue[link.VNet]
	hookMu sync.Mutex
	emit   func(InnerPacket)
	err    error // of emit; under hookMu
}

// NewInnerPair makes two ends. In a test, one is the gateway's TUN device, the other plays the host behind it.
func NewInnerPair(a, b InnerOptions) (*Inner, *Inner) {
	a.Name, b.Name = cmp.Or(a.Name, "mem0"), cmp.Or(b.Name, "mem1")
	ab := newQueue[link.VNet](cmp.Or(a.Depth, DefaultDepth), a.DropWhenFull)
	ba := newQueue[link.VNet](cmp.Or(b.Depth, DefaultDepth), b.DropWhenFull)
	return newInner(a, ba, ab), newInner(b, ab, ba)
}

func newInner(o InnerOptions, rx, tx *queue[link.VNet]) *Inner {
	l := &Inner{opts: o, rx: rx, tx: tx}
	l.emit = func(p InnerPacket) {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		if err := tx.put(p.VNet, p.Buf); err != nil {
			l.err = err
		}
	}
	return l
}

func (l *Inner) Name() string  { return l.opts.Name }
func (l *Inner) MTU() int      { return cmp.Or(l.opts.MTU, 1500) }
func (l *Inner) Drops() uint64 { return l.tx.dropped() } // packets to the other end dropped because it was full
func (l *Inner) Pending() int  { return l.rx.length() }  // packets that can be read now

func (l *Inner) Offloads() string {
	switch {
	case l.opts.NoGSO:
		return "none (switched off)"
	case l.opts.Segment:
		return "csum tso uso, cut on the way"
	}
	return "csum tso uso"
}

func (l *Inner) Wake()        { l.rx.wake() }
func (l *Inner) StopReading() { l.rx.stop() }

func (l *Inner) Close() error {
	l.rx.close(true, false)
	l.tx.close(false, true)
	return nil
}

func (l *Inner) NewReader() link.InnerReader { return &innerReader{l: l} }
func (l *Inner) NewWriter() link.InnerWriter { return &innerWriter{l: l} }

type innerReader struct {
	l   *Inner
	buf []byte
}

func (r *innerReader) Next(wait bool) ([]byte, link.VNet, error) {
	q := r.l.rx
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(wait); err != nil {
		return nil, link.VNet{}, err
	}
	var h link.VNet
	r.buf, h = q.take(r.buf)
	return r.buf, h, nil
}

type innerWriter struct {
	l    *Inner
	buf  []byte // a packet gathered
	cut  []byte // a segment
	segs segment.Segmenter
}

func (w *innerWriter) CanGSO(link.GSOType) bool { return !w.l.opts.NoGSO }

func (w *innerWriter) Queue(h link.VNet, parts [][]byte) error {
	l := w.l
	if h.GSO != link.GSONone && l.opts.NoGSO {
		return link.ErrNoGSO
	}
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n == 0 || n > 65535 || len(parts) > link.MaxParts {
		return link.ErrInvalid
	}
	if !l.opts.Segment && l.opts.Hook == nil {
		l.tx.mu.Lock()
		defer l.tx.mu.Unlock()
		return l.tx.put(h, parts...)
	}
	w.buf = w.buf[:0]
	for _, p := range parts {
		w.buf = append(w.buf, p...)
	}
	if !l.opts.Segment {
		return l.pass(InnerPacket{w.buf, h})
	}
	if err := w.segs.Reset(w.buf, h); err != nil {
		return err
	}
	for w.segs.More() {
		w.cut = w.segs.Next(w.cut[:0])
		if err := l.pass(InnerPacket{w.cut, link.VNet{}}); err != nil {
			return err
		}
	}
	return nil
}

// pass sends p on its way through the hook.
func (l *Inner) pass(p InnerPacket) error {
	l.hookMu.Lock()
	defer l.hookMu.Unlock()
	l.err = nil
	if l.opts.Hook != nil {
		l.opts.Hook(p, l.emit)
	} else {
		l.emit(p)
	}
	return l.err
}

func (w *innerWriter) Flush() (int, error) { return 0, nil }

// OuterOptions describe one end of an outer pair, and the direction from it to the other end.
type OuterOptions struct {
	Name         string         // "mem0" and "mem1" unless given
	Local        netip.AddrPort // where what it sends comes from
	MTU          int            // largest outer IP packet; larger ones that must not be fragmented fail with ErrTooBig and give a Notice; 0 = any
	Depth        int            // messages on their way; DefaultDepth unless given
	DropWhenFull bool           // drop instead of waiting, as a socket's receive buffer does; counted in Drops
	NoGRO        bool           // deliver messages of several datagrams one by one, as a raw socket does
	Batch        int            // messages per RxBatch; 16 unless given
	// Hook, if set, decides about every datagram on its way: emit it not at all, once, twice, changed, or later in the
	// place of another. It runs in the sender's goroutine, never twice at a time. The datagram is valid until it returns.
	Hook func(d Datagram, emit func(Datagram))
}

// Datagram is a datagram as a Hook sees it.
type Datagram struct {
	Buf      []byte
	From, To netip.AddrPort
	TOS      uint8
	Fragment bool // see link.TxMsg
}

type outerMeta struct {
	from, to netip.AddrPort
	seg      int
	tos      uint8
}

// Outer is one end of an outer pair. Whatever it sends reaches the other end, whatever address it is for, so that a test
// may let a peer move; RxMsg.To says which it was.
type Outer struct {
	opts     OuterOptions
	rx, tx   *queue[outerMeta]
	hookMu   sync.Mutex
	emit     func(Datagram)
	err      error // of emit; under hookMu
	noticeMu sync.Mutex
	notices  chan link.Notice
	closed   bool // under noticeMu
}

// NewOuterPair makes two ends.
func NewOuterPair(a, b OuterOptions) (*Outer, *Outer) {
	a.Name, b.Name = cmp.Or(a.Name, "mem0"), cmp.Or(b.Name, "mem1")
	ab := newQueue[outerMeta](cmp.Or(a.Depth, DefaultDepth), a.DropWhenFull)
	ba := newQueue[outerMeta](cmp.Or(b.Depth, DefaultDepth), b.DropWhenFull)
	return newOuter(a, ba, ab), newOuter(b, ab, ba)
}

func newOuter(o OuterOptions, rx, tx *queue[outerMeta]) *Outer {
	l := &Outer{opts: o, rx: rx, tx: tx, notices: make(chan link.Notice, 64)}
	l.emit = func(d Datagram) {
		tx.mu.Lock()
		defer tx.mu.Unlock()
		if err := tx.put(outerMeta{from: d.From, to: d.To, tos: d.TOS}, d.Buf); err != nil {
			l.err = err
		}
	}
	return l
}

func (l *Outer) Notices() <-chan link.Notice { return l.notices }
func (l *Outer) Name() string                { return l.opts.Name }
func (l *Outer) Local() netip.AddrPort       { return l.opts.Local }
func (l *Outer) MaxSegs() int                { return 64 }
func (l *Outer) MaxBytes() int               { return 65507 }
func (l *Outer) Drops() uint64               { return l.tx.dropped() } // messages to the other end dropped because it was full
func (l *Outer) Pending() int                { return l.rx.length() }  // messages that can be received now

func (l *Outer) Offloads() string {
	if l.opts.NoGRO {
		return "gso"
	}
	return "gso gro"
}

// Notify puts a notice in, as a router's ICMP message would. It is dropped when nobody listens, as a real one.
func (l *Outer) Notify(n link.Notice) {
	l.noticeMu.Lock()
	defer l.noticeMu.Unlock()
	if l.closed {
		return
	}
	select {
	case l.notices <- n:
	default:
	}
}

func (l *Outer) StopReading() { l.rx.stop() }

func (l *Outer) Close() error {
	l.rx.close(true, false)
	l.tx.close(false, true)
	l.noticeMu.Lock()
	defer l.noticeMu.Unlock()
	if !l.closed {
		l.closed = true
		close(l.notices)
	}
	return nil
}

func (l *Outer) NewReader() link.OuterReader { return &outerReader{l} }
func (l *Outer) NewWriter() link.OuterWriter { return &outerWriter{l} }

type outerReader struct{ l *Outer }

// batch is the state of an RxBatch: the buffers to swap for those of the queue.
type batch struct {
	bufs [][]byte
	msgs []link.RxMsg
}

func (r *outerReader) NewBatch() *link.RxBatch {
	n := cmp.Or(r.l.opts.Batch, 16)
	return &link.RxBatch{State: &batch{make([][]byte, n), make([]link.RxMsg, n)}}
}

func (r *outerReader) Recv(b *link.RxBatch, wait bool) error {
	s := b.State.(*batch)
	b.Msgs = nil
	q := r.l.rx
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(wait); err != nil {
		return err
	}
	n := min(q.n, len(s.msgs))
	for i := range n {
		var m outerMeta
		s.bufs[i], m = q.take(s.bufs[i])
		s.msgs[i] = link.RxMsg{Buf: s.bufs[i], SegSize: m.seg, From: m.from, To: m.to.Addr(), TOS: m.tos}
	}
	b.Msgs = s.msgs[:n]
	return nil
}

type outerWriter struct{ l *Outer }

func (w *outerWriter) Send(msgs []link.TxMsg) error {
	for i := range msgs {
		m := &msgs[i]
		m.Err, m.Failed = nil, 0
		if len(m.Buf) == 0 || len(m.Buf) > 65527 || !m.To.IsValid() || m.SegSize < 0 {
			m.Err, m.Failed = link.ErrInvalid, m.Datagrams()
			continue
		}
		if err := w.send(m); err != nil {
			for ; i < len(msgs); i++ {
				msgs[i].Err, msgs[i].Failed = net.ErrClosed, msgs[i].Datagrams()
			}
			return net.ErrClosed
		}
	}
	return nil
}

func (w *outerWriter) send(m *link.TxMsg) error {
	l := w.l
	from := l.opts.Local
	if m.From.IsValid() {
		from = netip.AddrPortFrom(m.From, from.Port())
	}
	seg := m.SegSize
	if m.Datagrams() == 1 {
		seg = 0
	}
	if l.opts.Hook == nil && !l.opts.NoGRO && l.opts.MTU == 0 {
		l.tx.mu.Lock()
		defer l.tx.mu.Unlock()
		return l.tx.put(outerMeta{from, m.To, seg, m.TOS}, m.Buf)
	}
	for rest := m.Buf; len(rest) > 0; {
		d := rest
		if seg > 0 {
			d = rest[:min(seg, len(rest))]
		}
		rest = rest[len(d):]
		if l.tooBig(m, d) {
			continue
		}
		if err := l.pass(Datagram{d, from, m.To, m.TOS, m.Fragment}); err != nil {
			return err
		}
	}
	return nil
}

// tooBig counts and reports a datagram that exceeds the MTU with its outer headers on.
func (l *Outer) tooBig(m *link.TxMsg, d []byte) bool {
	size := len(d) + 20
	if m.To.Addr().Is6() {
		size = len(d) + 40
	}
	if l.opts.Local.Port() != 0 {
		size += 8
	}
	if l.opts.MTU == 0 || size <= l.opts.MTU || m.Fragment {
		return false
	}
	m.Err = link.ErrTooBig
	m.Failed++
	n := link.Notice{Kind: link.NoticeTooBig, MTU: l.opts.MTU, Peer: m.To, Local: true}
	if len(d) >= 8 {
		n.SPI, n.Seq = binary.BigEndian.Uint32(d), binary.BigEndian.Uint32(d[4:])
	}
	l.Notify(n)
	return true
}

// pass sends d on its way through the hook.
func (l *Outer) pass(d Datagram) error {
	l.hookMu.Lock()
	defer l.hookMu.Unlock()
	l.err = nil
	if l.opts.Hook != nil {
		l.opts.Hook(d, l.emit)
	} else {
		l.emit(d)
	}
	return l.err
}

var (
	_ link.Inner = (*Inner)(nil)
	_ link.Outer = (*Outer)(nil)
)
