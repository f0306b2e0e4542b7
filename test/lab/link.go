package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// End is one end of a link.
type End struct {
	NS    *Namespace
	Name  string         // interface name
	Addrs []netip.Prefix // address and prefix length on the link
	MAC   net.HardwareAddr
	Index int
}

// Connect makes a veth pair between a and b with the names and addresses given, brings it up, and enters each end's
// addresses as permanent neighbours of the other, so that no ARP and no neighbour discovery is ever on the link.
// It fills in MAC and Index.
func Connect(a, b *End, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.Name, mtu
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerNamespace: netlink.NsFd(b.NS.handle), PeerMTU: uint32(mtu)}
	err := a.NS.route.LinkAdd(veth)
	if err != nil {
		return fmt.Errorf("link %s: %w", linkName(a, b), err)
	}
	for _, e := range [...]*End{a, b} {
		if err := e.up(); err != nil {
			return fmt.Errorf("link %s: %s in %s: %w", linkName(a, b), e.Name, e.NS.name, err)
		}
	}
	if err := errors.Join(a.learn(b), b.learn(a)); err != nil {
		return err
	}
	for _, e := range [...]*End{a, b} {
		if err := e.waitUp(); err != nil {
			return fmt.Errorf("link %s: %w", linkName(a, b), err)
		}
	}
	return nil
}

// waitUp waits until the kernel has noticed the carrier, which it does on a thread of its own: until then it drops every packet.
func (e *End) waitUp() error {
	const limit = 10 * time.Second
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		link, err := e.NS.route.LinkByIndex(e.Index)
		if err != nil {
			return err
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s in %s is %v, not up, after %v", e.Name, e.NS.name, link.Attrs().OperState, limit)
		}
	}
}

func linkName(a, b *End) string { return a.NS.role + "-" + b.NS.role }

func (e *End) up() error {
	link, err := e.NS.route.LinkByName(e.Name)
	if err != nil {
		return err
	}
	e.MAC, e.Index = link.Attrs().HardwareAddr, link.Attrs().Index
	for _, p := range e.Addrs {
		addr := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := e.NS.route.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %v: %w", p, err)
		}
	}
	return e.NS.route.LinkSetUp(link)
}

// learn enters the addresses of the other end as neighbours.
func (e *End) learn(other *End) error {
	for _, p := range other.Addrs {
		n := &netlink.Neigh{LinkIndex: e.Index, State: netlink.NUD_PERMANENT, IP: p.Addr().AsSlice(), HardwareAddr: other.MAC, Family: family(p.Addr())}
		if err := e.NS.route.NeighSet(n); err != nil {
			return fmt.Errorf("neighbour %v of %s: %w", p.Addr(), e.NS.name, err)
		}
	}
	return nil
}

// AddRoute sends dst through the gateway via.
func (n *Namespace) AddRoute(dst netip.Prefix, via netip.Addr) error {
	if err := n.route.RouteReplace(&netlink.Route{Dst: ipNet(dst.Masked()), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("%s: route to %v via %v: %w", n.name, dst, via, err)
	}
	return nil
}

// AddDeviceRoute sends dst into an interface, such as a TUN device.
func (n *Namespace) AddDeviceRoute(dst netip.Prefix, device string) error {
	link, err := n.route.LinkByName(device)
	if err == nil {
		err = n.route.RouteReplace(&netlink.Route{Dst: ipNet(dst.Masked()), LinkIndex: link.Attrs().Index})
	}
	if err != nil {
		return fmt.Errorf("%s: route to %v through %s: %w", n.name, dst, device, err)
	}
	return nil
}

// DelRoute removes the route to dst.
func (n *Namespace) DelRoute(dst netip.Prefix) error {
	if err := n.route.RouteDel(&netlink.Route{Dst: ipNet(dst.Masked())}); err != nil {
		return fmt.Errorf("%s: removing the route to %v: %w", n.name, dst, err)
	}
	return nil
}

// ForgetPaths drops what the namespace has learnt about paths, the path MTU foremost, so that one measurement does not colour the
// next.
func (n *Namespace) ForgetPaths() error {
	return errors.Join(n.SetSysctl("net/ipv4/route/flush", "1"), n.SetSysctl("net/ipv6/route/flush", "1"))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
