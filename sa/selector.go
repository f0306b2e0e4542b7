package sa

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// IP protocols that a selector can look into.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoDCCP   = 33
	protoICMPv6 = 58
	protoSCTP   = 132
	protoLite   = 136
)

// protocols is the table of the names that selectors know; a protocol without a name is written as its number.
var protocols = [256]struct {
	name  string
	ports bool // has source and destination ports
	icmp  bool // has type and code instead
}{
	protoICMP:   {name: "icmp", icmp: true},
	4:           {name: "ipip"},
	protoTCP:    {name: "tcp", ports: true},
	protoUDP:    {name: "udp", ports: true},
	protoDCCP:   {name: "dccp", ports: true},
	41:          {name: "ipv6"},
	47:          {name: "gre"},
	50:          {name: "esp"},
	51:          {name: "ah"},
	protoICMPv6: {name: "icmpv6", icmp: true},
	89:          {name: "ospf"},
	112:         {name: "vrrp"},
	115:         {name: "l2tp"},
	protoSCTP:   {name: "sctp", ports: true},
	protoLite:   {name: "udplite", ports: true},
}

// PortRange is the ports Lo to Hi, both included. The zero value is any port, known or not, and so is 0 to 65535. Two values
// that are no ranges have a meaning of their own: see OnePort and Opaque.
type PortRange struct{ Lo, Hi uint16 }

// Opaque matches only packets whose ports are not known: later fragments (RFC 4301 section 4.4.1.1). IKE writes it the same way.
var Opaque = PortRange{65535, 0}

// onlyZero is the range 0 to 0, which the zero value cannot be.
var onlyZero = PortRange{1, 0}

// OnePort is the range of one port, ICMP type or ICMP code. It is needed for 0, as in an ICMP echo reply's type, where the
// zero PortRange would mean any.
func OnePort(p uint16) PortRange {
	if p == 0 {
		return onlyZero
	}
	return PortRange{p, p}
}

func (r PortRange) any() bool { return r == PortRange{} || r == PortRange{0, 65535} }

// bounds are the first and last port of a range that is not opaque.
func (r PortRange) bounds() (lo, hi uint16) {
	switch {
	case r.any():
		return 0, 65535
	case r == onlyZero:
		return 0, 0
	}
	return r.Lo, r.Hi
}

func (r PortRange) valid() bool { return r.Lo <= r.Hi || r == Opaque || r == onlyZero }

// contains reports whether the range matches a port, which may be unknown.
func (r PortRange) contains(port uint16, known bool) bool {
	if r.any() {
		return true
	}
	if !known || r == Opaque {
		return !known && r == Opaque
	}
	lo, hi := r.bounds()
	return lo <= port && port <= hi
}

// overlaps reports whether some port, or the lack of one, is matched by both.
func (r PortRange) overlaps(o PortRange) bool {
	if r.any() || o.any() {
		return true
	}
	if r == Opaque || o == Opaque {
		return r == o
	}
	rl, rh := r.bounds()
	ol, oh := o.bounds()
	return rl <= oh && ol <= rh
}

// String is "any", "opaque", "443" or "1024-65535".
func (r PortRange) String() string {
	switch {
	case r.any():
		return "any"
	case r == Opaque:
		return "opaque"
	}
	lo, hi := r.bounds()
	if lo == hi {
		return strconv.Itoa(int(lo))
	}
	return fmt.Sprintf("%d-%d", lo, hi)
}

func parsePorts(s string) (PortRange, error) {
	switch s {
	case "any":
		return PortRange{}, nil
	case "opaque":
		return Opaque, nil
	}
	lo, hi, isRange := strings.Cut(s, "-")
	if !isRange {
		hi = lo
	}
	l, err1 := strconv.ParseUint(lo, 10, 16)
	h, err2 := strconv.ParseUint(hi, 10, 16)
	if err1 != nil || err2 != nil || l > h {
		return PortRange{}, fmt.Errorf("%q is not a port, a range like 1024-65535, any or opaque", s)
	}
	if h == 0 {
		return onlyZero, nil
	}
	return PortRange{uint16(l), uint16(h)}, nil
}

// Selector says which packets are meant (RFC 4301 section 4.4.1.1). The zero value means all of them.
//
// A prefix that is the zero netip.Prefix means any address: of the other prefix's family, or of both if that one is zero too.
//
// Ports need a protocol that has them. For ICMP and ICMPv6, SrcPorts is the type and DstPorts the code, as in the kernel.
// A packet whose ports are not known (a later fragment, a truncated header) is matched by selectors without ports and by
// Opaque, never by one that asks for certain ports (RFC 4301 section 7).
type Selector struct {
	Src, Dst           netip.Prefix
	Proto              uint8 // 0: any
	SrcPorts, DstPorts PortRange
}

// Flow is what a packet shows to the SPD. For ICMP, SrcPort is the type and DstPort the code.
type Flow struct {
	Src, Dst         netip.Addr
	Proto            uint8 // the transport protocol; with IPv6 that after the extension headers
	SrcPort, DstPort uint16
	Frag             bool // a later fragment: its ports are unknown, whatever HasPorts says
	HasPorts         bool // SrcPort and DstPort are from the packet
}

// knowsPorts reports whether the ports mean something.
func (f *Flow) knowsPorts() bool { return f.HasPorts && !f.Frag }

// Matches reports whether the selector means a flow.
func (s *Selector) Matches(f *Flow) bool {
	return matchAddr(s.Src, f.Src) && matchAddr(s.Dst, f.Dst) && s.matchRest(f)
}

func matchAddr(p netip.Prefix, a netip.Addr) bool { return !p.IsValid() || p.Contains(a) }

// matchRest compares all but the addresses.
func (s *Selector) matchRest(f *Flow) bool {
	if s.Proto == 0 {
		return true
	}
	if s.Proto != f.Proto {
		return false
	}
	known := f.knowsPorts()
	return s.SrcPorts.contains(f.SrcPort, known) && s.DstPorts.contains(f.DstPort, known)
}

// mightMatch reports whether the flow, but for ports that are not known, is one that the selector means.
func (s *Selector) mightMatch(f *Flow) bool {
	return s.Proto == f.Proto && !f.knowsPorts() && !s.matchRest(f) && s.SrcPorts != Opaque && s.DstPorts != Opaque
}

// Overlaps reports whether some packet is meant by both selectors.
func (s *Selector) Overlaps(o *Selector) bool {
	if f, of := s.family(), o.family(); f != 0 && of != 0 && f != of {
		return false
	}
	prefixes := func(a, b netip.Prefix) bool { return !a.IsValid() || !b.IsValid() || a.Overlaps(b) }
	if !prefixes(s.Src, o.Src) || !prefixes(s.Dst, o.Dst) {
		return false
	}
	if s.Proto == 0 || o.Proto == 0 {
		return true
	}
	return s.Proto == o.Proto && s.SrcPorts.overlaps(o.SrcPorts) && s.DstPorts.overlaps(o.DstPorts)
}

// family is 4, 6, or 0 for both.
func (s *Selector) family() int {
	for _, p := range []netip.Prefix{s.Src, s.Dst} {
		if p.IsValid() {
			if p.Addr().Is4() {
				return 4
			}
			return 6
		}
	}
	return 0
}

// normal is the one way to write a selector's meaning.
func (s Selector) normal() Selector {
	if s.Src.IsValid() {
		s.Src = s.Src.Masked()
	}
	if s.Dst.IsValid() {
		s.Dst = s.Dst.Masked()
	}
	for _, r := range []*PortRange{&s.SrcPorts, &s.DstPorts} {
		if r.any() {
			*r = PortRange{}
		}
	}
	return s
}

// Validate says what is wrong with a selector; the error wraps ErrParams.
func (s *Selector) Validate() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("sa: selector %v: %w: %s", s, ErrParams, fmt.Sprintf(format, args...))
	}
	for _, p := range []netip.Prefix{s.Src, s.Dst} {
		if p.IsValid() && p.Addr().Is4In6() {
			return refuse("%v is IPv4 written as IPv6; write it as IPv4", p)
		}
		if p.Addr().IsValid() && !p.IsValid() {
			return refuse("%v has no prefix length", p.Addr())
		}
	}
	if s.Src.IsValid() && s.Dst.IsValid() && s.Src.Addr().Is4() != s.Dst.Addr().Is4() {
		return refuse("the prefixes are not of one family")
	}
	if s.SrcPorts.any() && s.DstPorts.any() {
		return nil
	}
	p := protocols[s.Proto]
	if !p.ports && !p.icmp {
		return refuse("ports need a protocol that has them: tcp, udp, sctp, dccp or udplite, or icmp and icmpv6 for type and code")
	}
	for _, r := range []PortRange{s.SrcPorts, s.DstPorts} {
		if !r.valid() {
			return refuse("the range of ports %d-%d is backwards", r.Lo, r.Hi)
		}
		if p.icmp && !r.any() && r != Opaque {
			if _, hi := r.bounds(); hi > 255 {
				return refuse("an ICMP type or code of %d; they end at 255", hi)
			}
		}
	}
	return nil
}

// String writes the selector as ParseSelector reads it: "src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp dport 443", and "any" for
// the zero value.
func (s Selector) String() string { return string(s.append(nil)) }

func (s *Selector) append(b []byte) []byte {
	word := func(key, value string) {
		if len(b) > 0 {
			b = append(b, ' ')
		}
		b = append(b, key...)
		b = append(b, ' ')
		b = append(b, value...)
	}
	if s.Src != (netip.Prefix{}) {
		word("src", s.Src.String())
	}
	if s.Dst != (netip.Prefix{}) {
		word("dst", s.Dst.String())
	}
	if s.Proto != 0 {
		word("proto", protoName(s.Proto))
	}
	src, dst := "sport", "dport"
	if protocols[s.Proto].icmp {
		src, dst = "type", "code"
	}
	if !s.SrcPorts.any() {
		word(src, s.SrcPorts.String())
	}
	if !s.DstPorts.any() {
		word(dst, s.DstPorts.String())
	}
	if len(b) == 0 {
		return append(b, "any"...)
	}
	return b
}

func protoName(p uint8) string {
	if n := protocols[p].name; n != "" {
		return n
	}
	return strconv.Itoa(int(p))
}

func parseProto(s string) (uint8, error) {
	for i := range protocols {
		if protocols[i].name == s && s != "" {
			return uint8(i), nil
		}
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a protocol's name or number", s)
	}
	return uint8(n), nil
}

// ParseSelector reads pairs of words, each at most once and in any order: src and dst with a prefix or an address, proto
// with a name or number, sport and dport with a port, a range, any or opaque, and for ICMP type and code in their place.
// "any" alone means everything. The error wraps ErrParams.
func ParseSelector(text string) (Selector, error) {
	fail := func(err error) (Selector, error) {
		return Selector{}, fmt.Errorf("sa: selector %q: %w: %w", text, ErrParams, err)
	}
	words := strings.Fields(text)
	if len(words) == 1 && words[0] == "any" {
		return Selector{}, nil
	}
	if len(words) == 0 || len(words)%2 != 0 {
		return fail(fmt.Errorf("it must be pairs of words, like: src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp dport 443"))
	}
	var s Selector
	seen := map[string]bool{}
	for i := 0; i < len(words); i += 2 {
		key, value := words[i], words[i+1]
		if seen[key] {
			return fail(fmt.Errorf("%s is given twice", key))
		}
		seen[key] = true
		var err error
		switch key {
		case "src":
			s.Src, err = parsePrefix(value)
		case "dst":
			s.Dst, err = parsePrefix(value)
		case "proto":
			s.Proto, err = parseProto(value)
		case "sport", "type":
			s.SrcPorts, err = parsePorts(value)
		case "dport", "code":
			s.DstPorts, err = parsePorts(value)
		default:
			err = fmt.Errorf("unknown word %q; there are src, dst, proto, sport, dport, type and code", key)
		}
		if err != nil {
			return fail(err)
		}
	}
	if icmp := protocols[s.Proto].icmp; icmp && (seen["sport"] || seen["dport"]) {
		return fail(fmt.Errorf("%s has type and code, not ports", protoName(s.Proto)))
	} else if !icmp && (seen["type"] || seen["code"]) {
		return fail(fmt.Errorf("type and code are for icmp and icmpv6"))
	}
	if err := s.Validate(); err != nil {
		return Selector{}, err
	}
	return s.normal(), nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q is not a prefix or an address", s)
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a prefix or an address", s)
	}
	if p.Masked() != p {
		return netip.Prefix{}, fmt.Errorf("%v has bits set beyond its length; write %v", p, p.Masked())
	}
	return p, nil
}

// MarshalText is String.
func (s Selector) MarshalText() ([]byte, error) { return s.append(nil), nil }

// UnmarshalText is ParseSelector.
func (s *Selector) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSelector(string(text))
	return err
}
