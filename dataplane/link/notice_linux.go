package link

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tidings count what the error queue held.
type tidings struct {
	icmp   int // from the network; each may have spoilt a call
	tooBig int // from the own host: a message exceeds the MTU of its path
}

const drainMax = 256 // entries per visit: a flood must not hold up the caller

// drain empties the error queue into notices. That a message exceeds the MTU is only noted: the own host quotes nothing, but
// the writer whose message it is knows the SPI, and tells with tellTooBig.
func (s *socket) drain(fd uintptr) (t tidings) {
	s.noticeMu.Lock()
	defer s.noticeMu.Unlock()
	var iov unix.Iovec
	setIovec(&iov, s.errBuf[:])
	var h unix.Msghdr
	for range drainMax {
		h = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&s.errName)), Namelen: unix.SizeofSockaddrInet6, Iov: &iov}
		h.SetIovlen(1)
		h.Control = (*byte)(unsafe.Pointer(&s.errCtl.buf))
		h.SetControllen(controlLen)
		n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&h)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if e != 0 {
			break
		}
		ctl := unsafe.Slice((*byte)(unsafe.Pointer(&s.errCtl.buf)), int(h.Controllen))
		notice, ok := parseNotice(ctl, s.errBuf[:n])
		if !ok {
			continue
		}
		if h.Namelen > 0 {
			notice.Peer = sockaddrAddrPort(&s.errName)
		}
		if !s.udp {
			notice.Peer = netip.AddrPortFrom(notice.Peer.Addr(), 0)
		}
		switch {
		case !notice.Local:
			t.icmp++
		case notice.Kind == NoticeTooBig:
			t.tooBig++
			s.tooBigTo, s.tooBigMTU = notice.Peer.Addr(), notice.MTU
			continue
		}
		s.push(notice)
	}
	return t
}

// tellTooBig gives notice of a message that exceeds the MTU of its path as the own host knows it.
func (s *socket) tellTooBig(m *TxMsg) {
	s.noticeMu.Lock()
	defer s.noticeMu.Unlock()
	n := Notice{Kind: NoticeTooBig, Peer: netip.AddrPortFrom(m.To.Addr().Unmap(), m.To.Port()), Local: true}
	n.SPI, n.Seq = espHeader(m.Buf)
	if s.tooBigTo == n.Peer.Addr().WithZone("") {
		n.MTU = s.tooBigMTU
	}
	s.push(n)
}

// push adds a notice if there is room; noticeMu is held.
func (s *socket) push(n Notice) {
	if s.closed.Load() {
		return
	}
	select {
	case s.notices <- n:
	default:
	}
}

// espHeader reads the two fields that come first (RFC 4303, 2). A quotation over UDP may end before them.
func espHeader(b []byte) (spi, seq uint32) {
	if len(b) < 8 {
		return 0, 0
	}
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
}

// parseNotice reads one entry: its control messages, and what is quoted of the packet from the ESP header on.
func parseNotice(ctl, quoted []byte) (Notice, bool) {
	for {
		level, kind, data, rest, ok := nextControl(ctl)
		if !ok {
			return Notice{}, false
		}
		ctl = rest
		v4 := level == unix.IPPROTO_IP && kind == unix.IP_RECVERR
		v6 := level == unix.IPPROTO_IPV6 && kind == unix.IPV6_RECVERR
		if !v4 && !v6 || len(data) < int(unsafe.Sizeof(unix.SockExtendedErr{})) {
			continue
		}
		e := (*unix.SockExtendedErr)(unsafe.Pointer(unsafe.SliceData(data)))
		var n Notice
		n.SPI, n.Seq = espHeader(quoted)
		switch e.Origin {
		case unix.SO_EE_ORIGIN_LOCAL:
			n.Local = true
			n.Kind = localKind(unix.Errno(e.Errno))
		case unix.SO_EE_ORIGIN_ICMP:
			n.Kind = icmpKind(e.Type, e.Code)
		case unix.SO_EE_ORIGIN_ICMP6:
			n.Kind = icmp6Kind(e.Type, e.Code)
		default:
			return Notice{}, false // a time stamp or the like
		}
		if n.Kind == NoticeTooBig {
			n.MTU = int(e.Info)
		}
		if offender := data[unsafe.Sizeof(*e):]; len(offender) >= unix.SizeofSockaddrInet4 && !n.Local {
			var name unix.RawSockaddrInet6
			copy(unsafe.Slice((*byte)(unsafe.Pointer(&name)), unsafe.Sizeof(name)), offender)
			n.From = sockaddrAddrPort(&name).Addr()
		}
		return n, true
	}
}

func localKind(e unix.Errno) NoticeKind {
	switch sentinel(e) {
	case ErrTooBig:
		return NoticeTooBig
	case ErrUnreachable:
		return NoticeUnreachable
	case ErrForbidden:
		return NoticeForbidden
	}
	return NoticeOther
}

// icmpKind reads RFC 792 with the codes of RFC 1122, 3.2.2.1 and RFC 1812, 5.2.7.1.
func icmpKind(typ, code uint8) NoticeKind {
	switch typ {
	case 3: // destination unreachable
		switch code {
		case 2, 3: // protocol, port
			return NoticeRefused
		case 4:
			return NoticeTooBig
		case 9, 10, 13, 14, 15: // administratively prohibited
			return NoticeForbidden
		}
		return NoticeUnreachable
	case 11:
		return NoticeExpired
	}
	return NoticeOther
}

// icmp6Kind reads RFC 4443.
func icmp6Kind(typ, code uint8) NoticeKind {
	switch typ {
	case 1: // destination unreachable
		switch code {
		case 1, 5, 6: // prohibited, source address failed a policy, reject route
			return NoticeForbidden
		case 4:
			return NoticeRefused
		}
		return NoticeUnreachable
	case 2:
		return NoticeTooBig
	case 3:
		return NoticeExpired
	case 4: // parameter problem
		if code == 1 { // next header not recognized: no ESP there
			return NoticeRefused
		}
	}
	return NoticeOther
}
