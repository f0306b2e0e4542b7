package link

import (
	"encoding/binary"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	sendBatch     = 64 // kernel messages per sendmmsg
	pendingTries  = 4  // sends of one message that errors of earlier ones may spoil
	gsoRefusalMax = 3  // refusals after which UDP_SEGMENT is given up
)

// piece is what one kernel message carries: bytes off to off+n of msgs[msg], cut by the kernel into seg bytes each if
// that is not 0.
type piece struct{ msg, off, n, seg int }

func (p *piece) datagrams() int { return datagrams(p.n, p.seg) }

type sockWriter struct {
	s      *socket
	hdrs   [sendBatch]unix.Mmsghdr
	iovs   [sendBatch]unix.Iovec
	names  [sendBatch]unix.RawSockaddrInet6 // holds IPv4's too
	ctl    [sendBatch]control
	pieces [sendBatch]piece

	lo, hi  int // kernel messages to send now
	n       int
	errno   unix.Errno
	heard   tidings
	once    func(uintptr)
	until   func(uintptr) bool
	look    func(uintptr)
	msg     int   // where to go on: the message,
	off     int   // and how much of it is done
	single  piece // part of a message that GSO was refused for, to be sent singly
	settled bool  // whether that was GSO's fault is known
	zones   map[string]uint32
	poll    [1]unix.PollFd

	fragment bool // as this writer has set the socket; it begins without
	turn     func(uintptr)
}

func (s *socket) NewWriter() OuterWriter {
	w := &sockWriter{s: s, zones: make(map[string]uint32), settled: true}
	for i := range w.hdrs {
		h := &w.hdrs[i].Hdr
		h.Name = (*byte)(unsafe.Pointer(&w.names[i]))
		h.Iov = &w.iovs[i]
		h.SetIovlen(1)
	}
	w.once = func(fd uintptr) { w.n, w.errno = sendmmsg(fd, w.hdrs[w.lo:w.hi]) }
	w.until = func(fd uintptr) bool { w.once(fd); return !w.full(fd) }
	w.look = func(fd uintptr) { w.heard = s.drain(fd) }
	// IPv4 fragments are as long as the interface carries, for routers may cut them again, whatever ICMP messages say; of IPv6 the
	// kernel must believe them, down to 1280 bytes.
	level, name, cut := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT
	if s.v6 {
		level, name, cut = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT
	}
	w.turn = func(fd uintptr) {
		discover := unix.IP_PMTUDISC_PROBE // the same numbers in IPv6
		if w.fragment {
			discover = cut
		}
		_ = unix.SetsockoptInt(int(fd), level, name, discover) // has worked when the socket was opened
	}
	return w
}

// Send goes through the messages in order: describe as many as fit to the kernel, send them, and where it stops short find out
// why.
func (w *sockWriter) Send(msgs []TxMsg) error {
	for i := range msgs {
		msgs[i].Err, msgs[i].Failed = nil, 0
	}
	w.msg, w.off, w.single = 0, 0, piece{}
	for w.msg < len(msgs) {
		n := w.describe(msgs)
		if err := w.flush(msgs, n); err != nil {
			w.abandon(msgs)
			return err
		}
	}
	return nil
}

// describe fills kernel messages from where the last left off, and moves on past them.
func (w *sockWriter) describe(msgs []TxMsg) (n int) {
	for n < sendBatch && w.msg < len(msgs) {
		m := &msgs[w.msg]
		if m.Fragment != w.fragment {
			if n > 0 {
				break
			}
			w.fragment = m.Fragment
			_ = w.s.rc.Control(w.turn)
		}
		if !w.address(n, m) {
			m.Err, m.Failed = ErrInvalid, m.Datagrams()
			w.msg++
			continue
		}
		p := w.cut(m)
		w.pieces[n] = p
		setIovec(&w.iovs[n], m.Buf[p.off:p.off+p.n])
		w.annotate(n, m, p.seg)
		n++
		if w.off += p.n; w.off == len(m.Buf) {
			w.msg, w.off = w.msg+1, 0
		}
	}
	return n
}

// cut takes the next piece off m: all that one GSO send can carry, or one datagram.
func (w *sockWriter) cut(m *TxMsg) piece {
	p := piece{msg: w.msg, off: w.off, n: len(m.Buf) - w.off}
	if m.SegSize == 0 || p.n <= m.SegSize {
		return p
	}
	refused := w.single.n > 0 && w.msg == w.single.msg && w.off >= w.single.off && w.off < w.single.off+w.single.n
	if w.s.gso.off.Load() || !w.s.udp || refused {
		p.n = m.SegSize
		return p
	}
	p.seg = m.SegSize
	p.n = min(p.n, maxSegs*p.seg, w.s.MaxBytes()/p.seg*p.seg)
	if p.n <= p.seg { // a segment that is larger than half of all that fits
		p.n, p.seg = m.SegSize, 0
	}
	return p
}

// address writes the destination of kernel message i. It reports false for a message that cannot be sent.
func (w *sockWriter) address(i int, m *TxMsg) bool {
	addr := m.To.Addr().Unmap()
	if len(m.Buf) == 0 || m.SegSize < 0 || !addr.IsValid() || addr.Is6() != w.s.v6 {
		return false
	}
	port := m.To.Port()
	if !w.s.udp {
		port = 0
	}
	name := &w.names[i]
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&name.Port))[:], port)
	h := &w.hdrs[i].Hdr
	if !w.s.v6 {
		name.Family = unix.AF_INET
		(*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr = addr.As4()
		h.Namelen = unix.SizeofSockaddrInet4
		return true
	}
	name.Family = unix.AF_INET6
	name.Addr = addr.As16()
	h.Namelen = unix.SizeofSockaddrInet6
	var ok bool
	name.Scope_id, ok = w.zone(addr)
	return ok
}

// zone is the number of an address's interface; 0 unless it is link-local and says one.
func (w *sockWriter) zone(a netip.Addr) (uint32, bool) {
	name := a.Zone()
	if name == "" {
		return 0, true
	}
	id, ok := w.zones[name]
	if !ok {
		var err error
		if id, err = zoneID(name); err != nil {
			return 0, false
		}
		w.zones[name] = id
	}
	return id, true
}

// annotate writes the control messages of kernel message i: those that differ from what the socket does anyhow.
func (w *sockWriter) annotate(i int, m *TxMsg, seg int) {
	c := &w.ctl[i]
	c.n = 0
	if seg > 0 {
		add(c, unix.IPPROTO_UDP, unix.UDP_SEGMENT, uint16(seg))
	}
	from := m.From.Unmap()
	own := from.IsValid() && from != w.s.local.Addr() && from.Is6() == w.s.v6 && !from.IsUnspecified()
	if w.s.v6 {
		if m.TOS != 0 {
			add(c, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int32(m.TOS))
		}
		if own {
			add(c, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.Inet6Pktinfo{Addr: from.As16()})
		}
	} else {
		if m.TOS != 0 {
			add(c, unix.IPPROTO_IP, unix.IP_TOS, int32(m.TOS))
		}
		if own {
			add(c, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.Inet4Pktinfo{Spec_dst: from.As4()})
		}
	}
	c.install(&w.hdrs[i].Hdr)
}

// flush sends n kernel messages. It returns early, with the place to go on set back, when a piece must be cut otherwise.
func (w *sockWriter) flush(msgs []TxMsg, n int) error {
	short, tries := false, 0
	for w.lo, w.hi = 0, n; w.lo < n; {
		if err := w.s.rc.Control(w.once); err != nil {
			return net.ErrClosed
		}
		if w.errno == unix.EAGAIN || w.errno == unix.ENOBUFS {
			if err := w.s.rc.Write(w.until); err != nil {
				return net.ErrClosed
			}
		}
		if w.errno == 0 {
			w.sent(w.lo, w.lo+w.n)
			w.lo += w.n
			// Stopping short means an error at the next one, which the kernel does not tell and may have forgotten.
			if short && w.lo == n {
				w.listen()
			}
			short, tries = w.lo < n, 0
			continue
		}
		if w.errno == unix.EINTR || w.errno == unix.EAGAIN {
			continue
		}
		short = false
		p := &w.pieces[w.lo]
		if w.spoilt(tries) {
			tries++
			continue
		}
		tries = 0
		if p.seg > 0 && w.unsegmented(p) {
			return nil
		}
		m := &msgs[p.msg]
		if m.Err == nil {
			if m.Err = sentinel(w.errno); m.Err == ErrTooBig {
				w.s.tellTooBig(m)
			}
		}
		m.Failed += p.datagrams()
		clear(w.zones) // an interface that was made anew has another number
		if !w.settled && p.msg == w.single.msg && p.off >= w.single.off && p.off < w.single.off+w.single.n {
			w.settled = true // its segments fail too: GSO is not to blame
			w.s.gso.refused.Add(^uint32(0))
		}
		w.lo++
	}
	return nil
}

// full says whether the last send failed because the socket's buffer is full, so that waiting helps. A raw socket calls that
// ENOBUFS, as either calls a device's queue that is full while the socket's buffer is not.
func (w *sockWriter) full(fd uintptr) bool {
	if w.errno == unix.ENOBUFS {
		w.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
		_, err := unix.Poll(w.poll[:], 0)
		return err == nil && w.poll[0].Revents&unix.POLLOUT == 0
	}
	return w.errno == unix.EAGAIN
}

// spoilt says whether an error may be about an earlier packet, so that this one must be sent again. The kernel reports what
// ICMP messages say at the next call, whatever that is for, and then does not do it.
func (w *sockWriter) spoilt(tries int) bool {
	errno := w.errno
	switch errno {
	case unix.EINVAL, unix.EIO, unix.EPERM, unix.ENOBUFS, unix.ENOMEM:
		return false // never from ICMP
	}
	w.listen()
	switch {
	case w.heard.icmp > 0:
		return tries < pendingTries
	case w.heard.tooBig > 0 && errno == unix.EMSGSIZE:
		return false // the kernel has just said that it means this one
	}
	return tries == 0 // a reader may have emptied the queue
}

// listen empties the error queue.
func (w *sockWriter) listen() {
	w.heard = tidings{}
	_ = w.s.rc.Control(w.look)
}

// sent notes what the success of kernel messages lo to hi says about GSO.
func (w *sockWriter) sent(lo, hi int) {
	if w.s.gso.worked.Load() {
		return
	}
	for i := lo; i < hi; i++ {
		if w.pieces[i].seg > 0 {
			w.s.gso.worked.Store(true)
			return
		}
	}
}

// unsegmented sets back to p, to be sent in single datagrams, when GSO may be at fault. It is given up for good when it has
// been refused several times and the single datagrams went well. EINVAL after it has worked is about this message: kernels
// before 6.13 say so when a segment exceeds the MTU.
func (w *sockWriter) unsegmented(p *piece) bool {
	gso := &w.s.gso
	switch w.errno {
	case unix.EINVAL, unix.EIO, unix.EOPNOTSUPP, unix.EMSGSIZE:
	default:
		return false
	}
	w.settled = w.errno == unix.EMSGSIZE || w.errno == unix.EINVAL && gso.worked.Load()
	if !w.settled && gso.refused.Add(1) > gsoRefusalMax {
		gso.why.Store(uint32(w.errno))
		gso.off.Store(true)
	}
	w.single = *p
	w.msg, w.off = p.msg, p.off
	return true
}

// abandon marks what was not sent because the socket is closed.
func (w *sockWriter) abandon(msgs []TxMsg) {
	// The pieces described last have not all gone: go back to the first that has not.
	at := piece{msg: w.msg, off: w.off}
	if w.lo < w.hi {
		at = w.pieces[w.lo]
	}
	for i := at.msg; i < len(msgs); i++ {
		m := &msgs[i]
		if m.Err == nil {
			m.Err = net.ErrClosed
		}
		if i == at.msg && at.off > 0 {
			m.Failed += datagrams(len(m.Buf)-at.off, m.SegSize)
		} else {
			m.Failed = m.Datagrams()
		}
	}
}
