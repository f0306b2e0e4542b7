package hostnet

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Addresses are all addresses of this host's interfaces.
func (h *Host) Addresses() (map[netip.Addr]bool, error) {
	list, err := whole(func() ([]netlink.Addr, error) { return h.nl.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list this host's addresses: %w", err)
	}
	have := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			have[ip.Unmap()] = true
		}
	}
	return have, nil
}
