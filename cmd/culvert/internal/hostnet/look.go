package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// OtherInterface says of which kind ("veth", "device", "tap") the interface of a name is if it is no TUN; "" if it is one,
// or there is none of this name.
func (h *Host) OtherInterface(name string) (string, error) {
	l, err := h.nl.LinkByName(name)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("find the interface %s: %w", name, err)
	}
	if t, ok := l.(*netlink.Tuntap); ok {
		if t.Mode == netlink.TUNTAP_MODE_TUN {
			return "", nil
		}
		return "tap", nil
	}
	return l.Type(), nil
}

// HeldTUN reports whether a process has the TUN of a name: one that is not persistent exists no longer than that.
func (h *Host) HeldTUN(name string) (bool, error) {
	l, err := h.nl.LinkByName(name)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("find the interface %s: %w", name, err)
	}
	t, ok := l.(*netlink.Tuntap)
	return ok && t.Mode == netlink.TUNTAP_MODE_TUN && t.NonPersist, nil
}

// IndexOf is the index of the interface that has a name; 0 if there is none.
func (h *Host) IndexOf(name string) int {
	if l, err := h.nl.LinkByName(name); err == nil {
		return l.Attrs().Index
	}
	return 0
}

// NameOf is the name that the interface of an index has now; "" if there is none any more.
func (h *Host) NameOf(index int) string {
	if l, err := h.nl.LinkByIndex(index); err == nil {
		return l.Attrs().Name
	}
	return ""
}

// Routed reports whether the main table has a route, other than a default one, to any part of p.
func (h *Host) Routed(p netip.Prefix) (bool, error) {
	routes, err := whole(func() ([]netlink.Route, error) {
		return h.dump.RouteListFiltered(family(p.Addr()), &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return false, fmt.Errorf("list the routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		a, _ := netip.AddrFromSlice(r.Dst.IP)
		if bits, _ := r.Dst.Mask.Size(); bits > 0 && netip.PrefixFrom(a, bits).Overlaps(p) {
			return true, nil
		}
	}
	return false, nil
}

// Has reports whether an address of this host is in p.
func (h *Host) Has(p netip.Prefix) bool { return h.addressIn(p).IsValid() }
