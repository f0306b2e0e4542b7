package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// OpenUDP binds a UDP socket for ESP in UDP (RFC 3948). A zero port lets the kernel choose; 0.0.0.0 or :: stands for all
// addresses of that family, and only that one.
//
// Datagrams are sent with a checksum, against the custom of RFC 3948: the kernel cuts super-packets (UDP_SEGMENT) and
// merges on the other side (UDP_GRO) only then. Ones without a checksum are received all the same.
func OpenUDP(local netip.AddrPort, opts OuterOptions) (Outer, error) {
	s, err := openSocket(true, local, opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewUDP makes a link of a UDP socket that somebody else has made and bound, such as one that shares its port with an IKE daemon by
// SO_REUSEPORT: the kernel gives it what a demultiplexing program says is ESP. Options that the link needs are set on the socket.
// It does not merge (UDP_GRO): the kernel does that before it asks the program, which would then judge several datagrams by
// the first. What is no ESP all the same, IKE and keepalives, the link gives like ESP, for its reader to drop and count.
//
// The socket must not be connected, and an IPv6 one must be for IPv6 alone (IPV6_V6ONLY). conn stays the caller's, who must not
// read from it: Close does not close it, and once Close has returned nothing is read or written any more.
func NewUDP(conn *net.UDPConn, opts OuterOptions) (Outer, error) {
	opts.NoGRO = true
	s := &socket{name: "udp4", udp: true, opts: opts, notices: make(chan Notice, noticeDepth)}
	if a, ok := conn.LocalAddr().(*net.UDPAddr); ok {
		s.local = a.AddrPort()
	}
	if conn.RemoteAddr() != nil {
		return nil, s.where("socket", fmt.Errorf("it is connected to %v; use one that is not", conn.RemoteAddr()))
	}
	rc, err := conn.SyscallConn()
	if err != nil {
		return nil, s.where("socket", err)
	}
	fd := -1
	if cerr := rc.Control(func(theirs uintptr) { fd, err = s.adopt(int(theirs)) }); cerr != nil {
		return nil, s.where("socket", cerr)
	}
	if err != nil {
		return nil, err
	}
	if err := s.poll(fd); err != nil {
		return nil, err
	}
	return s, nil
}

// adopt learns what a socket is, sets it up and gives a descriptor of our own for it.
func (s *socket) adopt(fd int) (int, error) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return -1, s.where("address family", err)
	}
	addr := s.local.Addr().Unmap()
	if s.v6 = domain == unix.AF_INET6; s.v6 {
		s.name = "udp6"
		only, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		if err != nil {
			return -1, s.where("option IPV6_V6ONLY", err)
		}
		if only == 0 {
			return -1, s.where("socket", errors.New("it is for IPv4 too; set IPV6_V6ONLY on it before it is bound, and use another one for IPv4"))
		}
		if !addr.IsValid() {
			addr = netip.IPv6Unspecified()
		}
	} else if !addr.IsValid() {
		addr = netip.IPv4Unspecified()
	}
	s.local = netip.AddrPortFrom(addr, s.local.Port())
	if s.local.Port() == 0 {
		return -1, s.where("socket", errors.New("it is not bound to a port"))
	}
	s.wild = addr.IsUnspecified()
	options := slices.DeleteFunc(s.options(), func(o sockopt) bool { return o.level == unix.IPPROTO_IPV6 && o.name == unix.IPV6_V6ONLY })
	if err := s.configure(fd, append(options, sockopt{"UDP_GRO", unix.IPPROTO_UDP, unix.UDP_GRO, 0, true})); err != nil {
		return -1, err
	}
	ours, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, s.where("descriptor", err)
	}
	if err := unix.SetNonblock(ours, true); err != nil { // it has the file's flags in common with theirs
		unix.Close(ours)
		return -1, s.where("descriptor", err)
	}
	return ours, nil
}
