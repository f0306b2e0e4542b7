package xfrm

import (
	"fmt"
	"net/netip"
	"strings"
)

// Address is an address as the messages have it, 16 bytes of which IPv4 fills the first 4. A family field elsewhere says what it
// is: without that 2001:db8:: is 32.1.13.184.
type Address [16]byte

// AddressOf is the message's form of an address and its family. The zero Addr gives zeros and FamilyUnspec.
func AddressOf(a netip.Addr) (Address, uint16) {
	var x Address
	switch {
	case a.Is4():
		v := a.As4()
		copy(x[:], v[:])
		return x, FamilyIPv4
	case a.Is6():
		return a.As16(), FamilyIPv6
	}
	return x, FamilyUnspec
}

// Addr is the address as one of the family. For neither IPv4 nor IPv6 it is the zero Addr.
func (a Address) Addr(family uint16) netip.Addr {
	switch family {
	case FamilyIPv4:
		return netip.AddrFrom4([4]byte(a[:4]))
	case FamilyIPv6:
		return netip.AddrFrom16(a)
	}
	return netip.Addr{}
}

// IsZero reports whether all 16 bytes are zero: no address.
func (a Address) IsZero() bool { return a == Address{} }

// Bits is the length of an address of the family in bits, and 0 for what is no family.
func Bits(family uint16) int {
	switch family {
	case FamilyIPv4:
		return 32
	case FamilyIPv6:
		return 128
	}
	return 0
}

// Selector says which packets are meant (RFC 4301 section 4.4.1.1). The zero value is everything.
//
// Family may be FamilyUnspec in an SA's selector; then the addresses say nothing, and the SA's own family holds.
type Selector struct {
	Dst, Src         Address
	DstPort, DstMask uint16 // a port p is meant if p&DstMask == DstPort; also the ICMP code
	SrcPort, SrcMask uint16 // also the ICMP type
	Family           uint16
	DstLen, SrcLen   uint8 // prefix lengths in bits
	Proto            uint8 // 0: any
	IfIndex          int32 // 0: any
	User             uint32
}

// SelectorOf selects what goes from src to dst, both of one family, whatever its protocol.
func SelectorOf(src, dst netip.Prefix) Selector {
	var s Selector
	s.Src, s.Family = AddressOf(src.Addr())
	s.Dst, _ = AddressOf(dst.Addr())
	s.SrcLen, s.DstLen = uint8(src.Bits()), uint8(dst.Bits())
	return s
}

// SrcPrefix is the source network; the zero Prefix where there is no family, or the length is more than an address has.
func (s *Selector) SrcPrefix() netip.Prefix { return prefix(s.Src, s.SrcLen, s.Family) }

// DstPrefix is the destination network; as SrcPrefix.
func (s *Selector) DstPrefix() netip.Prefix { return prefix(s.Dst, s.DstLen, s.Family) }

func prefix(a Address, bits uint8, family uint16) netip.Prefix {
	return netip.PrefixFrom(a.Addr(family), int(bits)).Masked()
}

// IsZero reports whether the selector is all zeros, which matches everything.
func (s *Selector) IsZero() bool { return *s == Selector{} }

// String is "src 10.1.0.0/24 dst 10.2.0.0/24 proto 6 dport 80".
func (s *Selector) String() string {
	if s.Family == FamilyUnspec {
		return "any"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "src %v dst %v", s.SrcPrefix(), s.DstPrefix())
	if s.Proto != 0 {
		fmt.Fprintf(&b, " proto %d", s.Proto)
	}
	if s.SrcMask != 0 {
		fmt.Fprintf(&b, " sport %d", s.SrcPort)
	}
	if s.DstMask != 0 {
		fmt.Fprintf(&b, " dport %d", s.DstPort)
	}
	if s.IfIndex != 0 {
		fmt.Fprintf(&b, " ifindex %d", s.IfIndex)
	}
	return b.String()
}

func (s *Selector) get(b []byte) {
	s.Dst, s.Src = Address(b), Address(b[16:])
	s.DstPort, s.DstMask = net.Uint16(b[32:]), net.Uint16(b[34:])
	s.SrcPort, s.SrcMask = net.Uint16(b[36:]), net.Uint16(b[38:])
	s.Family = host.Uint16(b[40:])
	s.DstLen, s.SrcLen, s.Proto = b[42], b[43], b[44]
	s.IfIndex, s.User = int32(host.Uint32(b[48:])), host.Uint32(b[52:])
}

func (s *Selector) put(b []byte) {
	copy(b, s.Dst[:])
	copy(b[16:], s.Src[:])
	net.PutUint16(b[32:], s.DstPort)
	net.PutUint16(b[34:], s.DstMask)
	net.PutUint16(b[36:], s.SrcPort)
	net.PutUint16(b[38:], s.SrcMask)
	host.PutUint16(b[40:], s.Family)
	b[42], b[43], b[44] = s.DstLen, s.SrcLen, s.Proto
	host.PutUint32(b[48:], uint32(s.IfIndex))
	host.PutUint32(b[52:], s.User)
}
