package link

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OuterOptions describe an outer socket. The zero value is the fastest that the kernel offers.
type OuterOptions struct {
	Batch   int    // messages per Recv; 16 where GRO merges (64 KB each), else 64
	RecvBuf int    // bytes; 4 MiB unless given. Beyond net.core.rmem_max with CAP_NET_ADMIN only
	SendBuf int    // bytes; 4 MiB unless given. Beyond net.core.wmem_max with CAP_NET_ADMIN only
	NoGSO   bool   // do not send with UDP_SEGMENT
	NoGRO   bool   // do not receive with UDP_GRO
	Device  string // send and receive through this interface only
	Mark    uint32 // firewall mark of what is sent, for policy routing; 0 = none
}

const (
	defaultBuf   = 4 << 20
	maxSegs      = 64    // UDP_MAX_SEGMENTS of the kernels before 6.9
	maxDatagram4 = 65507 // 65535 less the IP and UDP headers
	maxDatagram6 = 65527
	maxESP4      = 65515
	maxESP6      = 65535
	noticeDepth  = 256
)

// socket is what UDP and raw ESP sockets have in common. Only the network reads and writes are on the packet path.
type socket struct {
	f      *os.File
	rc     syscall.RawConn
	name   string
	v6     bool
	udp    bool
	local  netip.AddrPort
	wild   bool // bound to no address: each message says which one it came to
	opts   OuterOptions
	gro    bool
	noGRO  string // why not
	closed atomic.Bool
	deaf   atomic.Bool // StopReading
	gso    gsoState

	notices   chan Notice
	noticeMu  sync.Mutex // of what follows, and of sending on notices
	tooBigTo  netip.Addr // what the own host has last said to be too big, and for which MTU
	tooBigMTU int
	errName   unix.RawSockaddrInet6 // scratch of the error queue
	errCtl    control
	errBuf    [512]byte
}

// gsoState is what is known of UDP_SEGMENT on a socket.
type gsoState struct {
	off     atomic.Bool
	worked  atomic.Bool   // at least once
	refused atomic.Uint32 // refusals whose segments went well when sent singly
	why     atomic.Uint32 // errno that ended it; 0 = see opts, or not offered
}

// open makes and binds a socket.
func openSocket(udp bool, local netip.AddrPort, opts OuterOptions) (s *socket, err error) {
	addr := local.Addr().Unmap()
	local = netip.AddrPortFrom(addr, local.Port())
	s = &socket{udp: udp, v6: addr.Is6(), local: local, wild: addr.IsUnspecified(), opts: opts, notices: make(chan Notice, noticeDepth)}
	domain, kind, proto, family := unix.AF_INET, unix.SOCK_DGRAM, 0, "4"
	if s.v6 {
		domain, family = unix.AF_INET6, "6"
	}
	s.name = "udp" + family
	if !udp {
		s.name, kind, proto = "esp"+family, unix.SOCK_RAW, unix.IPPROTO_ESP
	}
	if !addr.IsValid() {
		return nil, s.where("bind", errors.New("an address is needed; 0.0.0.0 or :: for all"))
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return nil, s.where("socket", err)
	}
	defer func() {
		if s == nil {
			unix.Close(fd)
		}
	}()
	if err := s.configure(fd, s.options()); err != nil {
		return nil, err
	}
	sa, err := s.sockaddr()
	if err != nil {
		return nil, s.where("bind", err)
	}
	if err := unix.Bind(fd, sa); err != nil {
		return nil, s.where("bind", err)
	}
	if s.udp && local.Port() == 0 { // the kernel has chosen one
		got, err := unix.Getsockname(fd)
		if err != nil {
			return nil, s.where("address", err)
		}
		switch sa := got.(type) {
		case *unix.SockaddrInet4:
			s.local = netip.AddrPortFrom(addr, uint16(sa.Port))
		case *unix.SockaddrInet6:
			s.local = netip.AddrPortFrom(addr, uint16(sa.Port))
		}
	}
	if !s.udp {
		s.local = netip.AddrPortFrom(addr, 0)
	}
	if err := s.poll(fd); err != nil {
		fd = -1
		return nil, err
	}
	return s, nil
}

// where says which step failed, and what to do about it.
func (s *socket) where(step string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		hint = " (run as root or with CAP_NET_RAW and CAP_NET_ADMIN)"
	case errors.Is(err, unix.EADDRINUSE):
		hint = " (another process, perhaps an IKE daemon, has this port)"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		hint = " (no interface has this address)"
	case errors.Is(err, unix.EAFNOSUPPORT):
		hint = " (this kernel lacks the address family)"
	case errors.Is(err, unix.ENODEV):
		hint = " (there is no such interface)"
	}
	return fmt.Errorf("link: %s %v: %s: %w%s", s.name, s.local, step, err, hint)
}

// configure sets all that is asked of a socket.
func (s *socket) configure(fd int, options []sockopt) error {
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil && !o.optional {
			return s.where("option "+o.text, err)
		}
	}
	if s.opts.Device != "" {
		if err := unix.BindToDevice(fd, s.opts.Device); err != nil {
			return s.where("device "+strconv.Quote(s.opts.Device), err)
		}
	}
	bufferSize(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, cmp.Or(s.opts.RecvBuf, defaultBuf))
	bufferSize(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, cmp.Or(s.opts.SendBuf, defaultBuf))
	if s.udp {
		s.setUpOffloads(fd)
	}
	return nil
}

// poll gives the descriptor to the runtime's poller; it is the socket's to close then, also after an error.
func (s *socket) poll(fd int) error {
	f := os.NewFile(uintptr(fd), s.name)
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return s.where("poller", err)
	}
	s.f, s.rc = f, rc
	return nil
}

type sockopt struct {
	text               string
	level, name, value int
	optional           bool
}

// options is the table of socket options that do not depend on one another.
func (s *socket) options() []sockopt {
	num := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	// Never fragmented, and whatever the interface carries is sent. The kernel would also go by ICMP messages, which anybody can
	// forge; whether one is to be believed only the SA can tell, so here they become notices and nothing more.
	const discover = unix.IP_PMTUDISC_PROBE // the same number in IPv6
	var o []sockopt
	if s.v6 {
		o = []sockopt{
			{"IPV6_MTU_DISCOVER", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, discover, false},
			{"IPV6_RECVERR", unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1, false},
			{"IPV6_RECVTCLASS", unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1, false},
			{"IPV6_RECVPKTINFO", unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, num(s.wild), false},
		}
		if s.udp {
			o = append(o, sockopt{"IPV6_V6ONLY", unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, false})
			// A peer may leave the checksum out (RFC 6935): ESP authenticates more than it would.
			o = append(o, sockopt{"UDP_NO_CHECK6_RX", unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1, true})
		}
	} else {
		o = []sockopt{
			{"IP_MTU_DISCOVER", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discover, false},
			{"IP_RECVERR", unix.IPPROTO_IP, unix.IP_RECVERR, 1, false},
		}
		if s.udp { // a raw socket hands up the IP header, which says both
			o = append(o,
				sockopt{"IP_RECVTOS", unix.IPPROTO_IP, unix.IP_RECVTOS, 1, false},
				sockopt{"IP_PKTINFO", unix.IPPROTO_IP, unix.IP_PKTINFO, num(s.wild), false})
		}
	}
	if s.opts.Mark != 0 {
		o = append(o, sockopt{"SO_MARK", unix.SOL_SOCKET, unix.SO_MARK, int(s.opts.Mark), false})
	}
	return o
}

// bufferSize sets a buffer beyond the system's limit where that is allowed, and up to it otherwise.
func bufferSize(fd, force, plain, n int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, n) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, n) // smaller is no reason not to run
	}
}

// setUpOffloads finds out what the kernel has. Whether it works shows with the first packets only.
func (s *socket) setUpOffloads(fd int) {
	if s.opts.NoGSO || unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) != nil {
		s.gso.off.Store(true)
	}
	switch {
	case s.opts.NoGRO:
		s.noGRO = "switched off"
	case unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) != nil:
		s.noGRO = "needs Linux 5.0"
	default:
		s.gro = true
	}
}

func (s *socket) sockaddr() (unix.Sockaddr, error) {
	port := int(s.local.Port())
	if !s.udp {
		port = 0
	}
	if !s.v6 {
		return &unix.SockaddrInet4{Port: port, Addr: s.local.Addr().As4()}, nil
	}
	id, err := zoneID(s.local.Addr().Zone())
	return &unix.SockaddrInet6{Port: port, Addr: s.local.Addr().As16(), ZoneId: id}, err
}

func zoneID(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index), nil
	}
	n, err := strconv.ParseUint(zone, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("there is no interface %q", zone)
	}
	return uint32(n), nil
}

func (s *socket) Name() string           { return s.name }
func (s *socket) Local() netip.AddrPort  { return s.local }
func (s *socket) Notices() <-chan Notice { return s.notices }
func (s *socket) MaxSegs() int           { return maxSegs }

func (s *socket) MaxBytes() int {
	switch {
	case s.udp && !s.v6:
		return maxDatagram4
	case s.udp:
		return maxDatagram6
	case !s.v6:
		return maxESP4
	}
	return maxESP6
}

func (s *socket) Offloads() string {
	if !s.udp {
		return "none (there are none for protocol 50)"
	}
	gso, gro := "gso", "gro"
	switch e := s.gso.why.Load(); {
	case s.opts.NoGSO:
		gso = "no gso (switched off)"
	case e != 0:
		gso = fmt.Sprintf("no gso (the kernel refuses it: %v)", unix.Errno(e))
	case s.gso.off.Load():
		gso = "no gso (needs Linux 4.18)"
	}
	if !s.gro {
		gro = "no gro (" + s.noGRO + ")"
	}
	return gso + ", " + gro
}

// KernelDrops is how many messages the kernel has dropped because the receive buffer was full.
func (s *socket) KernelDrops() (n uint64) {
	_ = s.rc.Control(func(fd uintptr) {
		var info [unix.SK_MEMINFO_VARS]uint32
		size := uint32(unsafe.Sizeof(info))
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if e == 0 {
			n = uint64(info[unix.SK_MEMINFO_DROPS])
		}
	})
	return n
}

func (s *socket) StopReading() {
	s.deaf.Store(true)
	_ = s.f.SetReadDeadline(longAgo) // wakes who waits in the poller
}

func (s *socket) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	err := s.f.Close() // wakes who waits in the poller
	s.noticeMu.Lock()
	defer s.noticeMu.Unlock()
	close(s.notices)
	return err
}

// fail makes an error of one that the poller or the kernel gave.
func (s *socket) fail(step string, err error) error {
	if s.closed.Load() {
		return net.ErrClosed
	}
	return fmt.Errorf("link: %s %v: %s: %w", s.name, s.local, step, err)
}

// sentinel is the error of a message that the kernel did not send.
func sentinel(e unix.Errno) error {
	switch e {
	case unix.EMSGSIZE:
		return ErrTooBig
	case unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENETDOWN, unix.EADDRNOTAVAIL, unix.ENODEV, unix.ENXIO:
		return ErrUnreachable
	case unix.ECONNREFUSED, unix.ENOPROTOOPT:
		return ErrRefused
	case unix.EPERM, unix.EACCES:
		return ErrForbidden
	case unix.ENOBUFS, unix.ENOMEM:
		return ErrNoBuffers
	case unix.EINVAL, unix.EAFNOSUPPORT, unix.EDESTADDRREQ:
		return ErrInvalid
	}
	return ErrOther
}
