package lab

import (
	"errors"
	"fmt"
	"net/netip"
)

// Families says which IP versions an address set has.
type Families uint8

// The families, to be combined.
const (
	V4 Families = 1 << iota
	V6
)

func (f Families) has(a netip.Addr) bool {
	return a.Is4() && f&V4 != 0 || a.Is6() && f&V6 != 0
}

// The networks of a row. Each has room for both families; a row uses those that its options name.
var (
	LANA = [...]netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}
	LANB = [...]netip.Prefix{netip.MustParsePrefix("10.2.0.0/24"), netip.MustParsePrefix("fd00:2::/64")}
	WAN  = [...]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}
)

// Interface names in a row.
const (
	HostDevice = "eth0" // of a host
	LANDevice  = "lan0" // of a gateway, towards its host
	WANDevice  = "wan0" // of a gateway, towards the other gateway
)

// RowOptions choose the addresses and the outer link of a row.
type RowOptions struct {
	Inner Families // of hosts and LANs; 0 is both
	Outer Families // between the gateways; 0 is both
	MTU   int      // of every link; 0 is 1500
	// Wire switches WireFeatures off on both ends of the outer link, so that it carries frames as a cable does. Without
	// it a veth passes super-packets of up to 64 KB whole.
	Wire bool
}

// Row is host A – gateway A – gateway B – host B, with forwarding on in the gateways. The hosts route to each other's
// network through their gateway; between the gateways there is no route to the LANs: that is the tunnel's to make, or
// RoutePlainly's.
type Row struct {
	*Lab
	HostA, GatewayA, GatewayB, HostB *Namespace
	// The six ends, in the order of the row.
	EthA, LanA, WanA, WanB, LanB, EthB *End
	Options                            RowOptions
}

// NewRow makes a row in a lab of its own. If that fails nothing of it is left.
func NewRow(o RowOptions) (*Row, error) {
	if o.Inner == 0 {
		o.Inner = V4 | V6
	}
	if o.Outer == 0 {
		o.Outer = V4 | V6
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	l, err := New()
	if err != nil {
		return nil, err
	}
	r := &Row{Lab: l, Options: o}
	if err := r.build(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return r, nil
}

func (r *Row) build() (err error) {
	for _, s := range [...]struct {
		ns   **Namespace
		role string
	}{{&r.HostA, "hostA"}, {&r.GatewayA, "gatewayA"}, {&r.GatewayB, "gatewayB"}, {&r.HostB, "hostB"}} {
		if *s.ns, err = r.Namespace(s.role); err != nil {
			return err
		}
	}
	for _, gw := range [...]*Namespace{r.GatewayA, r.GatewayB} {
		if r.usesV4() {
			if err := gw.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
				return err
			}
		}
		if r.usesV6() {
			if err := gw.SetSysctl("net/ipv6/conf/all/forwarding", "1"); err != nil {
				return err
			}
		}
	}
	r.EthA = r.end(r.HostA, HostDevice, LANA[:], 2, r.Options.Inner)
	r.LanA = r.end(r.GatewayA, LANDevice, LANA[:], 1, r.Options.Inner)
	r.WanA = r.end(r.GatewayA, WANDevice, WAN[:], 1, r.Options.Outer)
	r.WanB = r.end(r.GatewayB, WANDevice, WAN[:], 2, r.Options.Outer)
	r.LanB = r.end(r.GatewayB, LANDevice, LANB[:], 1, r.Options.Inner)
	r.EthB = r.end(r.HostB, HostDevice, LANB[:], 2, r.Options.Inner)
	for _, pair := range [...][2]*End{{r.EthA, r.LanA}, {r.WanA, r.WanB}, {r.LanB, r.EthB}} {
		if err := Connect(pair[0], pair[1], r.Options.MTU); err != nil {
			return err
		}
	}
	if r.Options.Wire {
		for _, e := range [...]*End{r.WanA, r.WanB} {
			if err := e.NS.SetFeatures(e.Name, false, WireFeatures...); err != nil {
				return fmt.Errorf("making the outer link a wire: %w", err)
			}
		}
	}
	for _, route := range [...]struct {
		ns   *Namespace
		nets []netip.Prefix
		via  *End
	}{{r.HostA, LANB[:], r.LanA}, {r.HostB, LANA[:], r.LanB}} {
		for _, dst := range route.nets {
			if !r.Options.Inner.has(dst.Addr()) {
				continue
			}
			if err := route.ns.AddRoute(dst, route.via.Addr(dst.Addr().Is6())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Row) usesV4() bool { return (r.Options.Inner|r.Options.Outer)&V4 != 0 }
func (r *Row) usesV6() bool { return (r.Options.Inner|r.Options.Outer)&V6 != 0 }

// end describes an interface with the host-th address of every network that the families have.
func (r *Row) end(ns *Namespace, name string, nets []netip.Prefix, host byte, families Families) *End {
	e := &End{NS: ns, Name: name}
	for _, p := range nets {
		if families.has(p.Addr()) {
			b := p.Addr().AsSlice()
			b[len(b)-1] = host
			a, _ := netip.AddrFromSlice(b)
			e.Addrs = append(e.Addrs, netip.PrefixFrom(a, p.Bits()))
		}
	}
	return e
}

// Addr is the end's address of a family; the zero Addr if it has none.
func (e *End) Addr(v6 bool) netip.Addr {
	for _, p := range e.Addrs {
		if p.Addr().Is6() == v6 {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// RoutePlainly makes the gateways forward between the LANs without a tunnel: the baseline. The inner families that the outer link
// has not cannot be routed, which is an error. UnroutePlainly undoes it.
func (r *Row) RoutePlainly() error {
	return r.plain(func(ns *Namespace, dst netip.Prefix, via netip.Addr) error {
		if !via.IsValid() {
			return fmt.Errorf("no plain route to %v: the outer link has no address of that family", dst)
		}
		return ns.AddRoute(dst, via)
	})
}

// UnroutePlainly removes what RoutePlainly added.
func (r *Row) UnroutePlainly() error {
	return r.plain(func(ns *Namespace, dst netip.Prefix, _ netip.Addr) error { return ns.DelRoute(dst) })
}

func (r *Row) plain(do func(ns *Namespace, dst netip.Prefix, via netip.Addr) error) error {
	for i := range LANA {
		if !r.Options.Inner.has(LANA[i].Addr()) {
			continue
		}
		v6 := LANA[i].Addr().Is6()
		if err := errors.Join(do(r.GatewayA, LANB[i], r.WanB.Addr(v6)), do(r.GatewayB, LANA[i], r.WanA.Addr(v6))); err != nil {
			return err
		}
	}
	return nil
}

// ForgetPaths drops what all four have learnt about paths.
func (r *Row) ForgetPaths() error {
	return errors.Join(r.HostA.ForgetPaths(), r.GatewayA.ForgetPaths(), r.GatewayB.ForgetPaths(), r.HostB.ForgetPaths())
}
