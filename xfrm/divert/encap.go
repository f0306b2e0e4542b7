package divert

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// The encapsulations that a UDP socket can have, of linux/udp.h, as far as they are ESP.
const (
	encapNone   = 0
	encapNonIKE = 1 // UDP_ENCAP_ESPINUDP_NON_IKE, of drafts before RFC 3948
	encapESP    = 2 // UDP_ENCAP_ESPINUDP
)

// Port is a UDP port that a program and the gateway share: what RFC 3948 section 2.2 calls IKE, behind a non-ESP marker of four
// zero bytes, and what is shorter than four bytes, goes to the program; ESP goes to Conn.
type Port struct {
	// Conn sends from the same address and port, and receives the ESP. It is not connected and does not block. Around the
	// moments when sockets come and go it may receive IKE too, which is to be dropped and counted: IKE sends again. It must not
	// have UDP_GRO: the kernel merges datagrams before it runs the demultiplexing program, and IKE among ESP would be lost.
	Conn *net.UDPConn
	// Addr is where it is bound, with an unspecified address if it is for all, and Only6 says that "::" is not IPv4's too.
	Addr  netip.AddrPort
	Only6 bool
	// Peer is the program that has the other socket.
	Peer Peer

	filter *filterOf
	cookie uint64 // of the program's socket
	netns  uint64 // the cookie of its namespace
	kept   string
	exit   *os.File // the program's pidfd, while the port is shared
}

// shared demultiplexes: the number of the socket in the reuseport group, the program's being 0 and ours 1. A load beyond the end
// of a datagram gives 0.
var shared = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jt: 0, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 1},
}

// encap answers setsockopt(fd, SOL_UDP, UDP_ENCAP). The kernel never does it: a socket that has it would take the ESP for an SA
// that the kernel does not have.
func (s *Supervisor) encap(r *request, fd int, cookie uint64) verdict {
	if int32(r.args[4]) < 4 {
		return fails(unix.EINVAL)
	}
	b, err := r.read(r.args[3], 4)
	if err != nil {
		return fails(unix.EFAULT)
	}
	kind := int32(r.a.order.Uint32(b))
	if kind != encapNone && kind != encapNonIKE && kind != encapESP {
		return goesOn // L2TP, GTP and others are the kernel's
	}
	if proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || proto != unix.IPPROTO_UDP {
		return goesOn
	}
	if kind == encapNonIKE {
		return fails(unix.ENOPROTOOPT) // as kernels since 6.x have it; nobody speaks the drafts any more
	}
	s.portMu.Lock()
	defer s.portMu.Unlock()
	if kind == encapNone {
		s.mu.Lock()
		delete(s.early, cookie)
		s.mu.Unlock()
		for p := range s.ports {
			if p.cookie == cookie {
				s.yield(p)
			}
		}
		return done
	}
	for p := range s.ports {
		if p.cookie == cookie {
			return done
		}
	}
	addr, err := boundTo(fd)
	if err != nil {
		return s.refuse(r, err)
	}
	if addr.Port() == 0 {
		s.mu.Lock()
		s.early[cookie] = r.f
		s.mu.Unlock()
		return done
	}
	if err := s.share(r, fd, cookie, addr); err != nil {
		return s.refuse(r, err)
	}
	return done
}

// bindInet answers bind(fd, address of IPv4 or IPv6): a socket of ours that has the port gives way.
func (s *Supervisor) bindInet(r *request, fd int, cookie uint64) verdict {
	n := min(uint32(r.args[2]), lenInet6)
	if n < lenInet4 {
		return goesOn
	}
	s.portMu.Lock()
	defer s.portMu.Unlock()
	s.mu.Lock()
	_, early := s.early[cookie]
	s.mu.Unlock()
	if len(s.ports) == 0 && !early {
		return goesOn
	}
	if proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || proto != unix.IPPROTO_UDP {
		return goesOn
	}
	b, err := r.read(r.args[1], int(n))
	if err != nil {
		return goesOn // EFAULT
	}
	addr, ok := parseInet(r.a.order, b)
	if !ok {
		return goesOn
	}
	netns, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return goesOn
	}
	only6, _ := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	gone := map[*Port]traits{}
	for p := range s.ports {
		if p.netns == netns && overlap(p.Addr, p.Only6, addr, only6 == 1) {
			t, err := p.traits()
			if err != nil {
				for _, t := range gone {
					unix.Close(t.netns)
				}
				return s.refuse(r, err)
			}
			gone[p] = t
		}
	}
	if len(gone) == 0 && !early {
		return goesOn
	}
	ended := map[*Port]bool{}
	for p := range gone {
		ended[p] = p.ended()
		s.log.Debug("a UDP port is given up for a program", "port", p.Addr, "was", p.Peer, "pid", r.tid)
		s.yield(p)
		s.stats.Yields.Add(1)
	}
	// A program that still has the port gets its partner back, and keeps the port: with SO_REUSEADDR on both sockets the kernel
	// would let the new one have it too, and whose ESP is whose could not be told.
	taken := false
	for p, t := range gone {
		taken = !ended[p] && s.reclaim(p, t) || taken
		unix.Close(t.netns)
	}
	if taken {
		return fails(unix.EADDRINUSE)
	}
	if addr.Port() < 1024 && !early {
		return goesOn // who may have such a port is for the kernel to say, of the program itself
	}
	// The bind is made here, on the program's socket, so that the port can be shared before the program goes on.
	if err := bindRaw(fd, b); err != nil {
		if now, e := boundTo(fd); err == unix.EINVAL && e == nil && now == addr {
			return done // it was made before, for this call, which a signal interrupted
		}
		return fails(errnoOf(err))
	}
	if early {
		s.mu.Lock()
		delete(s.early, cookie)
		s.mu.Unlock()
		bound, err := boundTo(fd)
		if err == nil {
			err = s.share(r, fd, cookie, bound)
		}
		if err != nil {
			return s.refuse(r, err)
		}
	}
	return done
}

// parseInet decodes an address of IPv4 or IPv6 that a program gave.
func parseInet(order binary.ByteOrder, b []byte) (netip.AddrPort, bool) {
	if len(b) < lenInet4 {
		return netip.AddrPort{}, false
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch order.Uint16(b) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), true
	case unix.AF_INET6:
		if len(b) < 24 {
			return netip.AddrPort{}, false
		}
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port), true
	}
	return netip.AddrPort{}, false
}

// overlap reports whether two UDP sockets with these addresses can be in each other's way.
func overlap(a netip.AddrPort, aOnly6 bool, b netip.AddrPort, bOnly6 bool) bool {
	if a.Port() != b.Port() || a.Port() == 0 {
		return false
	}
	x, y := a.Addr().Unmap(), b.Addr().Unmap()
	any6 := func(p netip.AddrPort, only bool) bool { return p.Addr() == netip.IPv6Unspecified() && !only }
	if x.Is4() != y.Is4() {
		return any6(a, aOnly6) && y.Is4() || any6(b, bOnly6) && x.Is4()
	}
	return x == y || x.IsUnspecified() || y.IsUnspecified()
}

// boundTo is a UDP socket's address; port 0: it is not bound.
func boundTo(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), nil
	}
	return netip.AddrPort{}, unix.EAFNOSUPPORT
}

// share puts a socket of ours beside a program's, and gives it to the sink. portMu is held.
func (s *Supervisor) share(r *request, theirs int, cookie uint64, addr netip.AddrPort) error {
	who, _, err := r.who()
	if err != nil {
		return err
	}
	p := &Port{Addr: addr, Peer: who, filter: r.f, cookie: cookie}
	if p.netns, err = unix.GetsockoptUint64(theirs, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return err
	}
	if set, err := unix.GetsockoptInt(theirs, unix.SOL_SOCKET, unix.SO_REUSEPORT); err != nil {
		return err
	} else if set != 0 {
		// Its group may have more members, and the numbers in it are not known.
		return fmt.Errorf("%s has set SO_REUSEPORT on its own socket at UDP port %d, which cannot be shared then: %w", who, addr.Port(), unix.EADDRINUSE)
	}
	t, err := traitsOf(theirs)
	if err != nil {
		return err
	}
	defer unix.Close(t.netns)
	p.Only6 = t.only6
	if err := unix.SetsockoptInt(theirs, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	ours, err := t.socket(addr)
	if err == nil {
		err = s.give(p, ours)
	}
	if err != nil {
		_ = unix.SetsockoptInt(theirs, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0)
		return err
	}
	s.stats.Encaps.Add(1)
	s.log.Info("ESP in UDP is diverted", "port", addr, "client", who)
	return nil
}

// give hands our socket of a port to the sink. It takes ours over.
func (s *Supervisor) give(p *Port, ours int) error {
	f := os.NewFile(uintptr(ours), "encap")
	defer f.Close()
	c, err := net.FilePacketConn(f)
	if err != nil {
		return err
	}
	conn, ok := c.(*net.UDPConn)
	if !ok {
		c.Close()
		return unix.EPROTONOSUPPORT
	}
	p.Conn = conn
	p.kept = s.keep(p)
	if err := s.cfg.Sink.Encap(p); err != nil {
		conn.Close()
		s.forget(p.kept)
		return err
	}
	s.ports[p] = struct{}{}
	s.watchExit(p)
	return nil
}

// watchExit frees a port when its program ends.
func (s *Supervisor) watchExit(p *Port) {
	p.exit = nil
	pidfd, err := unix.PidfdOpen(int(p.Peer.PID), unix.PIDFD_NONBLOCK)
	if err != nil {
		return // the program has forked and ended; its filter's end is seen too
	}
	p.exit = os.NewFile(uintptr(pidfd), "program")
	rc, err := p.exit.SyscallConn()
	if err != nil {
		return
	}
	go func() {
		if rc.Read(readable) == nil {
			s.exited(p)
		}
	}()
}

func readable(fd uintptr) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p[:], 0)
	return err == nil && n == 1
}

// ended reports whether the port's program is known to have ended.
func (p *Port) ended() (yes bool) {
	if p.exit == nil {
		return false
	}
	rc, err := p.exit.SyscallConn()
	if err != nil {
		return false
	}
	_ = rc.Control(func(fd uintptr) { yes = readable(fd) })
	return yes
}

// yield has the sink leave a port, and frees it. portMu is held.
func (s *Supervisor) yield(p *Port) {
	if _, ok := s.ports[p]; !ok {
		return
	}
	delete(s.ports, p)
	if p.exit != nil {
		p.exit.Close()
	}
	s.cfg.Sink.Yield(p)
	s.forget(p.kept)
	p.Conn.Close()
}

// reclaim shares a port again that was given up, if a program still has it, and reports whether one has. portMu is held.
func (s *Supervisor) reclaim(p *Port, t traits) bool {
	err := s.restore(p, t)
	if err == nil || errors.Is(err, errFree) {
		return err == nil
	}
	s.stats.Failures.Add(1)
	s.log.Error("ESP of a UDP port goes to the IKE daemon and is lost", "port", p.Addr, "client", p.Peer, "error", err,
		"remedy", "restart the IKE daemon")
	return false
}

// errFree says that nobody has a port any more.
var errFree = errors.New("the port is free")

// restore puts a socket of ours beside the program's again, which has been in a group with ours before.
func (s *Supervisor) restore(was *Port, t traits) error {
	alone := t
	alone.alone = true
	fd, err := alone.socket(was.Addr)
	if err == nil {
		unix.Close(fd)
		return errFree
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	ours, err := t.socket(was.Addr)
	if err != nil {
		return err
	}
	p := *was // the sink has left the old one
	return s.give(&p, ours)
}

// exited frees a port whose program has ended, though others under its filter live; unless one of those has the socket.
func (s *Supervisor) exited(p *Port) {
	s.portMu.Lock()
	defer s.portMu.Unlock()
	if _, ok := s.ports[p]; !ok {
		return
	}
	t, err := p.traits()
	s.yield(p)
	if err == nil {
		s.reclaim(p, t)
		unix.Close(t.netns)
	}
}

// traits are what our socket has in common with the program's.
type traits struct {
	netns  int // a descriptor, for the caller to close
	domain int
	only6  bool
	device string
	mark   int
	uid    int
	alone  bool // without SO_REUSEPORT: to see whether anybody has the port
}

// siocGetNetns is SIOCGSKNS, of linux/sockios.h.
const siocGetNetns = 0x894c

func traitsOf(fd int) (t traits, err error) {
	if t.domain, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
		return t, err
	}
	if t.domain == unix.AF_INET6 {
		only, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
		if err != nil {
			return t, err
		}
		t.only6 = only != 0
	}
	if t.device, err = unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE); err != nil {
		return t, err
	}
	if t.mark, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK); err != nil {
		return t, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return t, err
	}
	t.uid = int(st.Uid)
	ns, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), siocGetNetns, 0)
	if e != 0 {
		return t, fmt.Errorf("the network namespace of a program's socket: %w", e)
	}
	unix.CloseOnExec(int(ns))
	t.netns = int(ns)
	return t, nil
}

// traits are those of our socket, which are the program's.
func (p *Port) traits() (t traits, err error) {
	rc, err := p.Conn.SyscallConn()
	if err != nil {
		return t, err
	}
	if e := rc.Control(func(fd uintptr) { t, err = traitsOf(int(fd)) }); e != nil {
		return t, e
	}
	return t, err
}

// socket makes our socket at the same address, in the same namespace, and puts the demultiplexing program into the group.
func (t traits) socket(addr netip.AddrPort) (int, error) {
	type result struct {
		fd  int
		err error
	}
	made := make(chan result)
	onThreadOfItsOwn(func() {
		if err := unix.Setns(t.netns, unix.CLONE_NEWNET); err != nil {
			made <- result{-1, fmt.Errorf("into the program's network namespace: %w", err)}
			return
		}
		fd, err := unix.Socket(t.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
		made <- result{fd, err}
	})
	r := <-made
	if r.err != nil {
		return -1, r.err
	}
	if err := t.apply(r.fd, addr); err != nil {
		unix.Close(r.fd)
		return -1, err
	}
	return r.fd, nil
}

func (t traits) apply(fd int, addr netip.AddrPort) error {
	step := func(what string, err error) error {
		if err != nil {
			return fmt.Errorf("a socket beside the program's at %s: %s: %w", addr, what, err)
		}
		return nil
	}
	// A group's members belong to one user.
	if t.uid != os.Geteuid() {
		if err := step("its owner", unix.Fchown(fd, t.uid, -1)); err != nil {
			return err
		}
	}
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
	if t.domain == unix.AF_INET6 {
		only := 0
		if t.only6 {
			only = 1
		}
		if err := step("IPV6_V6ONLY", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only)); err != nil {
			return err
		}
	} else {
		sa = &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	if t.device != "" {
		if err := step("SO_BINDTODEVICE", unix.BindToDevice(fd, t.device)); err != nil {
			return err
		}
	}
	if t.mark != 0 {
		if err := step("SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, t.mark)); err != nil {
			return err
		}
	}
	if t.alone {
		return step("bind", unix.Bind(fd, sa))
	}
	if err := step("SO_REUSEPORT", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)); err != nil {
		return err
	}
	if err := step("bind", unix.Bind(fd, sa)); err != nil {
		return err
	}
	return step("the demultiplexing program", attach(fd))
}

// attach puts the demultiplexing program into a socket's reuseport group.
func attach(fd int) error {
	prog := unix.SockFprog{Len: uint16(len(shared)), Filter: &shared[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &prog)
}
