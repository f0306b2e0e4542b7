package link

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// slotLen is the distance of receive slots. It holds an Ethernet frame; at 2048 all slots would fall into the same few
	// sets of the first-level cache.
	slotLen = 2112
	// wholeLen holds the largest datagram, and is an odd number of cache lines for the same reason.
	wholeLen = 65536 + 64
	// guard is what every block of packet memory has at its end, for engines that read ahead.
	guard = 256

	batchGRO   = 16
	batchPlain = 64

	quietCalls = 256 // so many Recv calls after one another without a look at the error queue
)

// rxState is the memory of one RxBatch. Where the kernel merges, each message has a whole slot of 64 KB. Where it does not,
// it has a short slot, close to its neighbours, and an overflow that is touched (and so becomes real memory) only by the rare
// large datagram, which is then made contiguous.
type rxState struct {
	hdrs  []unix.Mmsghdr
	iovs  []unix.Iovec
	names []unix.RawSockaddrInet6 // holds IPv4's too
	ctl   []control
	slots []byte
	over  []byte // empty: slots are whole ones
	msgs  []RxMsg
	dirty int // headers that the last call has changed
}

type sockReader struct {
	s      *socket
	st     *rxState
	n      int
	errno  unix.Errno
	calls  int
	woken  bool
	once   func(uintptr)
	until  func(uintptr) bool
	look   func(uintptr)
	scopes map[uint32]string // zones by number
}

func (s *socket) NewReader() OuterReader {
	r := &sockReader{s: s, scopes: make(map[uint32]string)}
	r.look = func(fd uintptr) { s.drain(fd) }
	r.once = func(fd uintptr) { r.n, r.errno = recvmmsg(fd, r.st.hdrs) }
	r.until = func(fd uintptr) bool {
		r.once(fd)
		if r.errno == unix.EAGAIN {
			if r.woken { // by an error that a sender has already taken
				s.drain(fd)
			}
			r.woken = true
			return false
		}
		return true
	}
	return r
}

func (r *sockReader) NewBatch() *RxBatch {
	def, per := batchPlain, 2
	if r.s.gro {
		def, per = batchGRO, 1
	}
	n := cmp.Or(max(r.s.opts.Batch, 0), def)
	st := &rxState{
		hdrs:  make([]unix.Mmsghdr, n),
		iovs:  make([]unix.Iovec, n*per),
		names: make([]unix.RawSockaddrInet6, n),
		ctl:   make([]control, n),
		msgs:  make([]RxMsg, n),
		dirty: n,
	}
	if r.s.gro {
		st.slots = make([]byte, n*wholeLen+guard)
	} else {
		st.slots = make([]byte, n*slotLen+guard)
		st.over = make([]byte, n*wholeLen+guard)
	}
	for i := range n {
		v := st.iovs[i*per : (i+1)*per]
		if r.s.gro {
			setIovec(&v[0], st.slots[i*wholeLen:][:65536])
		} else {
			setIovec(&v[0], st.slots[i*slotLen:][:slotLen])
			setIovec(&v[1], st.over[i*wholeLen+slotLen:][:65536-slotLen])
		}
		h := &st.hdrs[i].Hdr
		h.Name = (*byte)(unsafe.Pointer(&st.names[i]))
		h.Iov = &v[0]
		h.SetIovlen(per)
	}
	return &RxBatch{State: st}
}

// aboutAnother says whether an error of receiving is one that ICMP messages leave at a socket (ip(7), IP_RECVERR).
func aboutAnother(e unix.Errno) bool {
	switch sentinel(e) {
	case ErrTooBig, ErrUnreachable, ErrRefused, ErrForbidden:
		return true
	}
	return e == unix.EPROTO || e == unix.EOPNOTSUPP
}

func (r *sockReader) Recv(b *RxBatch, wait bool) error {
	s, st := r.s, b.State.(*rxState)
	r.st = st
	b.Msgs = nil
	for i := range st.hdrs[:st.dirty] {
		h := &st.hdrs[i].Hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.Control = (*byte)(unsafe.Pointer(&st.ctl[i].buf))
		h.SetControllen(controlLen)
	}
	st.dirty = 0
	r.calls++
	if r.calls%quietCalls == 0 {
		// A sender that was told of an error in mid-batch does not learn which; only someone who waits does. Who never
		// waits looks now and then.
		_ = s.rc.Control(r.look)
	}
	for tries := 0; ; tries++ {
		if s.deaf.Load() {
			return net.ErrClosed
		}
		if err := s.rc.Control(r.once); err != nil {
			return s.fail("receive", err)
		}
		if r.errno == unix.EAGAIN {
			if !wait {
				return ErrAgain
			}
			r.woken = false
			if err := s.rc.Read(r.until); err != nil {
				if err := r.waitOtherwise(err); err != nil {
					return err
				}
				continue
			}
		}
		switch {
		case r.errno == 0:
			r.finish(b)
			return nil
		case r.errno == unix.EINTR || r.errno == unix.EAGAIN:
		case aboutAnother(r.errno) || tries < 64:
			// What somebody says about a packet sent earlier; the socket forgets it by saying so. While the peer is away and
			// much is sent to it, there may be any number of these.
			_ = s.rc.Control(r.look)
			if !wait && tries >= 64 {
				return ErrAgain
			}
		default:
			return s.fail("receive", r.errno)
		}
	}
}

// waitOtherwise waits for the socket after the poller has refused to. It does so when an error arrives while the send buffer is
// full, until that has room again.
func (r *sockReader) waitOtherwise(err error) error {
	s := r.s
	if s.closed.Load() || s.deaf.Load() || errors.Is(err, os.ErrClosed) {
		return net.ErrClosed
	}
	_ = s.rc.Control(r.look)
	const milliseconds = 10 // Close cannot interrupt this
	if cerr := s.rc.Control(func(fd uintptr) {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, milliseconds)
	}); cerr != nil {
		return s.fail("wait", cerr)
	}
	return nil
}

// finish makes RxMsgs of what the kernel has filled in.
func (r *sockReader) finish(b *RxBatch) {
	s, st := r.s, r.st
	st.dirty = r.n
	for i := range r.n {
		h, m := &st.hdrs[i], &st.msgs[i]
		n := int(h.Len)
		var buf []byte
		switch {
		case s.gro:
			buf = st.slots[i*wholeLen:][:n:n]
		case n <= slotLen:
			buf = st.slots[i*slotLen:][:n:n]
		default:
			buf = st.over[i*wholeLen:][:n:n]
			copy(buf, st.slots[i*slotLen:][:slotLen])
		}
		*m = RxMsg{Buf: buf, From: r.from(&st.names[i]), To: s.local.Addr()}
		if !s.udp && !s.v6 {
			stripIPv4(m)
		} else {
			m.parseControl(unsafe.Slice((*byte)(unsafe.Pointer(&st.ctl[i].buf)), int(h.Hdr.Controllen)))
		}
		if m.SegSize >= n {
			m.SegSize = 0
		}
	}
	b.Msgs = st.msgs[:r.n]
}

// from decodes the source address.
func (r *sockReader) from(name *unix.RawSockaddrInet6) netip.AddrPort {
	a := sockaddrAddrPort(name)
	if name.Family == unix.AF_INET6 && name.Scope_id != 0 {
		zone, ok := r.scopes[name.Scope_id]
		if !ok {
			zone = strconv.FormatUint(uint64(name.Scope_id), 10)
			if i, err := net.InterfaceByIndex(int(name.Scope_id)); err == nil {
				zone = i.Name
			}
			r.scopes[name.Scope_id] = zone
		}
		a = netip.AddrPortFrom(a.Addr().WithZone(zone), a.Port())
	}
	if !r.s.udp {
		a = netip.AddrPortFrom(a.Addr(), 0) // the protocol's number is not a port
	}
	return a
}

// sockaddrAddrPort decodes a socket address of either family, without the zone; the zero AddrPort for any other.
func sockaddrAddrPort(name *unix.RawSockaddrInet6) netip.AddrPort {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&name.Port))[:])
	switch name.Family {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(name.Addr).Unmap(), port)
	}
	return netip.AddrPort{}
}

// stripIPv4 takes off the header that a raw IPv4 socket hands up, and reads it.
func stripIPv4(m *RxMsg) {
	b := m.Buf
	if len(b) < 20 || int(b[0]&15) < 5 || int(b[0]&15)*4 > len(b) {
		m.Buf = b[:0]
		return
	}
	m.TOS = b[1]
	m.To = netip.AddrFrom4([4]byte(b[16:20]))
	m.Buf = b[int(b[0]&15)*4:]
}

// parseControl reads what the kernel says beside the datagram.
func (m *RxMsg) parseControl(b []byte) {
	for {
		level, kind, data, rest, ok := nextControl(b)
		if !ok {
			return
		}
		b = rest
		switch {
		case level == unix.IPPROTO_UDP && kind == unix.UDP_GRO && len(data) >= 4:
			m.SegSize = int(int32(binary.NativeEndian.Uint32(data)))
		case level == unix.IPPROTO_IP && kind == unix.IP_TOS && len(data) >= 1:
			m.TOS = data[0]
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_TCLASS && len(data) >= 4:
			m.TOS = uint8(binary.NativeEndian.Uint32(data))
		case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			m.To = netip.AddrFrom4([4]byte(data[8:12]))
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			m.To = netip.AddrFrom16([16]byte(data))
		}
	}
}
