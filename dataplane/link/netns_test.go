//go:build linux

package link

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space is a network namespace without a name: it goes with the last handle on it, however the test ends.
type space struct {
	t  testing.TB
	ns netns.NsHandle
	nl *netlink.Handle
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces and TUN devices")
	}
}

func newSpace(t testing.TB) *space {
	t.Helper()
	needRoot(t)
	s := &space{t: t}
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine and its namespace
		s.ns, err = netns.New()
	}()
	<-done
	if err != nil {
		t.Skipf("cannot make a network namespace: %v", err)
	}
	t.Cleanup(func() { s.ns.Close() })
	s.nl, err = netlink.NewHandleAt(s.ns, unix.NETLINK_ROUTE)
	must(t, err)
	t.Cleanup(s.nl.Close)
	lo, err := s.nl.LinkByName("lo")
	must(t, err)
	must(t, s.nl.LinkSetUp(lo))
	// A router whose link-local address is still being checked for duplicates cannot ask for a neighbour (RFC 4862, 5.4). That
	// takes a second or two, on a busy machine longer, and after three it gives the neighbour up and drops what waits for it.
	for _, of := range []string{"all", "default"} {
		s.sysctl("net/ipv6/conf/"+of+"/accept_dad", "0")
	}
	return s
}

// do runs f on a thread of the namespace.
func (s *space) do(f func()) {
	s.t.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = netns.Set(s.ns); err == nil {
			f()
		}
	}()
	<-done
	must(s.t, err)
}

func (s *space) sysctl(path, value string) {
	s.t.Helper()
	var err error
	s.do(func() { err = os.WriteFile("/proc/sys/"+path, []byte(value), 0) })
	must(s.t, err)
}

// veth joins two namespaces by devices of the given name, which carry packets when it returns.
func veth(a, b *space, nameA, nameB string) {
	a.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = nameA
	must(a.t, a.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(b.ns)}))
	for _, end := range []struct {
		s    *space
		name string
	}{{a, nameA}, {b, nameB}} {
		l, err := end.s.nl.LinkByName(end.name)
		must(a.t, err)
		must(a.t, end.s.nl.LinkSetUp(l))
	}
	a.running(nameA)
	b.running(nameB)
}

// running waits until a device has its queue: the kernel gives it one some time after the carrier has come, and until then it
// drops what is sent.
func (s *space) running(dev string) {
	s.t.Helper()
	for give := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		l, err := s.nl.LinkByName(dev)
		must(s.t, err)
		if l.Attrs().OperState == netlink.OperUp {
			return
		}
		if time.Now().After(give) {
			s.t.Fatalf("%s is %v", dev, l.Attrs().OperState)
		}
	}
}

// addr gives a device addresses, usable at once.
func (s *space) addr(dev string, prefixes ...string) {
	s.t.Helper()
	l, err := s.nl.LinkByName(dev)
	must(s.t, err)
	for _, p := range prefixes {
		a, err := netlink.ParseAddr(p)
		must(s.t, err)
		if a.IP.To4() == nil {
			a.Flags |= unix.IFA_F_NODAD
		}
		must(s.t, s.nl.AddrAdd(l, a))
	}
}

func (s *space) route(dst, via string) {
	s.t.Helper()
	_, n, err := net.ParseCIDR(dst)
	must(s.t, err)
	must(s.t, s.nl.RouteAdd(&netlink.Route{Dst: n, Gw: net.ParseIP(via)}))
}

func (s *space) mtu(dev string, n int) {
	s.t.Helper()
	l, err := s.nl.LinkByName(dev)
	must(s.t, err)
	must(s.t, s.nl.LinkSetMTU(l, n))
}

// slow lets a device send no faster than rate bytes per second, after a first burst of as many bytes.
func (s *space) slow(dev string, rate, burst uint64) {
	s.t.Helper()
	l, err := s.nl.LinkByName(dev)
	must(s.t, err)
	must(s.t, s.nl.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate,
		Buffer:     uint32(burst * 1e9 / 64 / rate), // the time that it takes, in ticks of 64 ns
		Limit:      1 << 30,
	}))
}

func (s *space) udp(local string, opts OuterOptions) Outer {
	s.t.Helper()
	var o Outer
	var err error
	s.do(func() { o, err = OpenUDP(netip.MustParseAddrPort(local), opts) })
	must(s.t, err)
	s.t.Cleanup(func() { o.Close() })
	return o
}

func (s *space) esp(local string, opts OuterOptions) Outer {
	s.t.Helper()
	var o Outer
	var err error
	s.do(func() { o, err = OpenESP(netip.MustParseAddr(local), opts) })
	must(s.t, err)
	s.t.Cleanup(func() { o.Close() })
	return o
}

func (s *space) tun(name string, mtu int, opts TUNOptions) Inner {
	s.t.Helper()
	var in Inner
	var err error
	s.do(func() { in, err = OpenTUN(name, mtu, opts) })
	must(s.t, err)
	s.t.Cleanup(func() { in.Close() })
	return in
}

func (s *space) up(dev string) {
	s.t.Helper()
	l, err := s.nl.LinkByName(dev)
	must(s.t, err)
	must(s.t, s.nl.LinkSetUp(l))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
