package link

import "net/netip"

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
