package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is one network namespace of a lab.
type Namespace struct {
	lab    *Lab
	role   string
	name   string
	handle netns.NsHandle
	route  *netlink.Handle
}

// Name is what "ip netns" shows.
func (n *Namespace) Name() string { return n.name }

// Role is the name without the lab: "hostA".
func (n *Namespace) Role() string { return n.role }

// Netlink is a route netlink handle whose socket lives in the namespace.
func (n *Namespace) Netlink() *netlink.Handle { return n.route }

// prepare opens the netlink socket, quiets IPv6 and brings the loopback up.
func (n *Namespace) prepare() error {
	err := n.Do(func() (err error) {
		n.route, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return err
	}
	for _, s := range [...]struct{ key, value string }{
		// "default" is what links made later start from, the gateways' TUN devices as well.
		{"net/ipv4/conf/all/rp_filter", "0"},
		{"net/ipv4/conf/default/rp_filter", "0"},
		// A test that provokes ICMP errors is to see every one of them.
		{"net/ipv4/icmp_ratelimit", "0"},
		{"net/ipv6/icmp/ratelimit", "0"},
		{"net/ipv6/conf/default/accept_dad", "0"},
		{"net/ipv6/conf/default/dad_transmits", "0"},
		{"net/ipv6/conf/default/router_solicitations", "0"},
		{"net/ipv6/conf/default/accept_ra", "0"},
		{"net/ipv6/conf/default/addr_gen_mode", "1"}, // none: no link-local address, hence no multicast listener reports
	} {
		if err := n.SetSysctl(s.key, s.value); err != nil && !(errors.Is(err, os.ErrNotExist) && strings.HasPrefix(s.key, "net/ipv6/")) {
			return err
		}
	}
	lo, err := n.route.LinkByName("lo")
	if err != nil {
		return err
	}
	return n.route.LinkSetUp(lo)
}

// Do runs fn on a thread inside the namespace and waits for it. Sockets, files below /proc/sys/net and processes that fn makes on
// its own goroutine belong to the namespace, goroutines that it starts do not. fn must not call FailNow of a test.
func (n *Namespace) Do(fn func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return fmt.Errorf("entering namespace %s: %w", n.name, err)
		}
		return fn()
	})
}

// SetSysctl writes a sysctl of the namespace. The key has slashes: "net/ipv4/ip_forward".
func (n *Namespace) SetSysctl(key, value string) error {
	return n.Do(func() error {
		// Without O_CREATE: a misspelt key must say ENOENT.
		f, err := os.OpenFile(filepath.Join("/proc/sys", key), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(value)
		return errors.Join(err, f.Close())
	})
}

// Sysctl reads a sysctl of the namespace.
func (n *Namespace) Sysctl(key string) (value string, err error) {
	err = n.Do(func() error {
		b, err := os.ReadFile(filepath.Join("/proc/sys", key))
		value = strings.TrimSpace(string(b))
		return err
	})
	return value, err
}

// Socket makes a socket in the namespace, close-on-exec.
func (n *Namespace) Socket(domain, typ, proto int) (fd int, err error) {
	err = n.Do(func() (err error) {
		fd, err = unix.Socket(domain, typ|unix.SOCK_CLOEXEC, proto)
		return os.NewSyscallError("socket", err)
	})
	return fd, err
}

// Listen is net.Listen in the namespace. Plain TCP: multipath TCP, Go's default for listeners, is off.
func (n *Namespace) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	err = n.Do(func() (err error) {
		l, err = c.Listen(ctx, network, address)
		return err
	})
	return l, err
}

// ListenPacket is net.ListenPacket in the namespace.
func (n *Namespace) ListenPacket(ctx context.Context, network, address string) (c net.PacketConn, err error) {
	err = n.Do(func() (err error) {
		c, err = new(net.ListenConfig).ListenPacket(ctx, network, address)
		return err
	})
	return c, err
}

// Dial is net.Dialer.DialContext in the namespace. The address is numeric: a resolver would run on another thread, outside.
func (n *Namespace) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = n.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// remove deletes the links, which waits for the kernel, and the name.
func (n *Namespace) remove() error {
	var errs []error
	if n.route != nil {
		links, err := n.route.LinkList()
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			errs = append(errs, fmt.Errorf("namespace %s: listing links: %w", n.name, err))
		}
		for _, link := range links {
			// One end takes the other with it, which another namespace may already have done.
			if link.Type() != "veth" {
				continue
			}
			if err := n.route.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("namespace %s: removing %s: %w", n.name, link.Attrs().Name, err))
			}
		}
		n.route.Close()
	}
	errs = append(errs, removeNamed(n.name), n.handle.Close())
	return errors.Join(errs...)
}
