package link

import "net/netip"

// OpenESP opens a raw socket for ESP directly in IP (RFC 4303). 0.0.0.0 or :: stands for all addresses of that family.
//
// The kernel neither merges nor cuts protocol 50: each datagram is a message of its own, though one system call carries 64.
// The IPv4 header is taken off. A kernel that does ESP itself sees the packets too, and ignores those whose SPI it does
// not know.
func OpenESP(local netip.Addr, opts OuterOptions) (Outer, error) {
	s, err := openSocket(false, netip.AddrPortFrom(local, 0), opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}
