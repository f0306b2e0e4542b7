package sa

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"culvert/offload"
)

// ErrParams is wrapped by every refusal of parameters or a policy.
var ErrParams = errors.New("not valid")

// Mode is how ESP wraps a packet (RFC 4303 section 3.1).
type Mode uint8

// The modes.
const (
	Tunnel    Mode = iota // a whole IP packet inside
	Transport             // only what follows the IP header inside
)

var modes = [...]string{Tunnel: "tunnel", Transport: "transport"}

// String is "tunnel" or "transport".
func (m Mode) String() string { return name(modes[:], "mode", uint8(m)) }

// Encap is what stands between the outer IP header and ESP.
type Encap uint8

// The encapsulations.
const (
	EncapNone Encap = iota // ESP is IP protocol 50
	EncapUDP               // RFC 3948
)

var encaps = [...]string{EncapNone: "none", EncapUDP: "udp"}

// String is "none" or "udp".
func (e Encap) String() string { return name(encaps[:], "encap", uint8(e)) }

// Dir is the side of a policy, or of an SA, that is meant.
type Dir uint8

// The directions.
const (
	Out Dir = iota // from the protected networks to the peer
	In             // from the peer
)

var dirs = [...]string{Out: "out", In: "in"}

// String is "out" or "in".
func (d Dir) String() string { return name(dirs[:], "dir", uint8(d)) }

func name(names []string, kind string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}

// DSCPMode says what happens to the differentiated services code point at the tunnel's ends (RFC 2983, RFC 4301
// section 5.1.2). Use Encap or Decap to apply it.
type DSCPMode uint8

// The modes; SetDSCP makes the others.
const (
	// KeepDSCP is the default of RFC 4301: out, the outer header gets the inner one's; in, the inner header keeps its own.
	KeepDSCP DSCPMode = iota
	// CopyDSCP makes the tunnel uniform: out as KeepDSCP; in, the inner header gets the outer one's.
	CopyDSCP

	setDSCP DSCPMode = 0x40
)

// SetDSCP gives every outer header the value v, 0 to 63. It is for outbound SAs only.
func SetDSCP(v uint8) DSCPMode { return setDSCP | DSCPMode(v&0x3f) }

// String is "keep", "copy" or "set 46".
func (m DSCPMode) String() string {
	switch {
	case m == KeepDSCP:
		return "keep"
	case m == CopyDSCP:
		return "copy"
	case m&^0x3f == setDSCP:
		return fmt.Sprintf("set %d", uint8(m)&0x3f)
	}
	return fmt.Sprintf("dscp(%d)", uint8(m))
}

func (m DSCPMode) valid() bool { return m <= CopyDSCP || m&^0x3f == setDSCP }

// Encap is the outer header's DSCP for an inner packet with this one.
func (m DSCPMode) Encap(inner uint8) uint8 {
	if m&setDSCP != 0 {
		return uint8(m) & 0x3f
	}
	return inner
}

// Decap is the DSCP that the inner packet leaves the tunnel with.
func (m DSCPMode) Decap(outer, inner uint8) uint8 {
	if m == CopyDSCP {
		return outer
	}
	return inner
}

// DF is how an outbound SA sets the don't-fragment bit of the outer IPv4 header (RFC 4301 section 8.1).
type DF uint8

// The ways.
const (
	DFSet   DF = iota // path MTU discovery: nothing is fragmented on its way
	DFClear           // routers on the way may fragment
	DFCopy            // as in the inner header; set for inner IPv6
)

var dfs = [...]string{DFSet: "set", DFClear: "clear", DFCopy: "copy"}

// String is "set", "clear" or "copy".
func (d DF) String() string { return name(dfs[:], "df", uint8(d)) }

// Limits bound the life of an SA (RFC 4301 section 4.4.2.1). 0 is no limit.
type Limits struct {
	Bytes   uint64        // of ESP packets, as counted by Account
	Packets uint64        // ESP packets
	Add     time.Duration // since the SA was made
	Use     time.Duration // since the first packet
}

// Lifetime is a soft limit, at which the SA should be replaced, and a hard one, at which it must not be used any more.
type Lifetime struct {
	Soft, Hard Limits
}

// Params is what a security association is made of: cold, and not changed once an SA is made from it. Printed, logged or
// encoded it shows everything but the keys.
//
// Addresses and ports are those of the outer header of packets in this direction: Src is ours for an outbound SA and the
// peer's for an inbound one.
type Params struct {
	Name string // the tunnel's name, for people and for policies that name their tunnel
	SPI  uint32 // 256 and up; those below are reserved (RFC 4303 section 2.1)

	Src, Dst         netip.Addr
	Encap            Encap
	SrcPort, DstPort uint16 // with EncapUDP
	// Mode: with Transport the packets are those from Src to Dst, and the header outside is their own, so DSCP, ECN and DF have no
	// effect.
	Mode Mode

	Transform *offload.Transform
	Keys      offload.Keys // Keys.ESN: 64-bit sequence numbers (RFC 4303 section 2.2.1)

	ReplayWindow  int  // packets, inbound: MinWindow to MaxWindow
	NoReplayCheck bool // inbound: accept repeated packets; then ReplayWindow is 0
	Lifetime      Lifetime

	TFCPad int      // outbound: inner packets are padded to this many bytes (RFC 4303 section 2.7); 0: as they are
	DSCP   DSCPMode // the zero value is the default of RFC 4301
	ECN    bool     // RFC 6040 normal mode; false: outer headers are Not-ECT
	DF     DF       // outbound

	// ClampMSS lowers the MSS option of TCP SYNs to what the tunnel carries: for an inbound SA, what the paired outbound one does.
	ClampMSS bool

	// FollowPeer, inbound: an authentic, fresh packet from another address makes the paired outbound SA send there
	// (RFC 7296 section 2.23). A side that is behind a NAT itself must not set it.
	FollowPeer bool

	Link    int    // index of the data plane's outer link
	PathMTU int    // outbound: bytes of the largest outer packet, outer IP header included; 0: DefaultMTU
	Reqid   uint32 // ties the SA to policies; 0: the name does

	// was is the name before the last Tx.Rename, and since the version of the snapshot from which on that holds: a lane that still has the
	// policies of before asks them by the name of before.
	was   string
	since uint64
}

// Sizes of outer packets, in bytes.
const (
	DefaultMTU = 1500
	MaxMTU     = 65535
	minMTU4    = 128  // room for the longest ESP overhead and a little more
	minMTU6    = 1280 // RFC 8200 section 5
)

func minMTU(a netip.Addr) int {
	if a.Is4() {
		return minMTU4
	}
	return minMTU6
}

// Validate checks what does not depend on the direction. ValidateFor checks everything.
func (p *Params) Validate() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("sa: %s: %w: %s", p.label(), ErrParams, fmt.Sprintf(format, args...))
	}
	switch {
	case p.SPI == 0:
		return refuse("the SPI is missing")
	case p.SPI < 256:
		return refuse("SPI %d is reserved (RFC 4303 section 2.1); use 256 or more", p.SPI)
	case int(p.Mode) >= len(modes):
		return refuse("there is no %v", p.Mode)
	}
	for _, a := range []struct {
		what string
		addr netip.Addr
	}{{"source", p.Src}, {"destination", p.Dst}} {
		switch {
		case !a.addr.IsValid():
			return refuse("the outer %s address is missing", a.what)
		case a.addr.Is4In6():
			return refuse("the outer %s address %v is IPv4 written as IPv6; write %v", a.what, a.addr, a.addr.Unmap())
		case a.addr.IsUnspecified() || a.addr.IsMulticast():
			return refuse("the outer %s address %v is not a host's", a.what, a.addr)
		}
	}
	if p.Src.Is4() != p.Dst.Is4() {
		return refuse("the outer addresses %v and %v are not of one family", p.Src, p.Dst)
	}
	switch p.Encap {
	case EncapNone:
		if p.SrcPort != 0 || p.DstPort != 0 {
			return refuse("UDP ports %d and %d without UDP encapsulation", p.SrcPort, p.DstPort)
		}
	case EncapUDP:
		if p.SrcPort == 0 || p.DstPort == 0 {
			return refuse("UDP encapsulation needs both ports, has %d and %d; RFC 3948 uses 4500", p.SrcPort, p.DstPort)
		}
	default:
		return refuse("there is no %v", p.Encap)
	}
	if p.Transform == nil {
		return refuse("the transform is missing")
	}
	if err := p.Transform.CheckKeys(p.Keys); err != nil {
		return fmt.Errorf("sa: %s: %w: %w", p.label(), ErrParams, err)
	}
	if !p.DSCP.valid() {
		return refuse("there is no %v", p.DSCP)
	}
	if int(p.DF) >= len(dfs) {
		return refuse("there is no %v", p.DF)
	}
	if p.Link < 0 {
		return refuse("link %d; links count from 0", p.Link)
	}
	return p.Lifetime.validate(refuse)
}

func (l *Lifetime) validate(refuse func(string, ...any) error) error {
	s, h := l.Soft, l.Hard
	switch {
	case s.Bytes != 0 && h.Bytes != 0 && s.Bytes > h.Bytes:
		return refuse("the soft limit of %d bytes is beyond the hard one of %d", s.Bytes, h.Bytes)
	case s.Packets != 0 && h.Packets != 0 && s.Packets > h.Packets:
		return refuse("the soft limit of %d packets is beyond the hard one of %d", s.Packets, h.Packets)
	case s.Add < 0 || s.Use < 0 || h.Add < 0 || h.Use < 0:
		return refuse("a lifetime is negative")
	case s.Add != 0 && h.Add != 0 && s.Add > h.Add:
		return refuse("the soft limit of %v is beyond the hard one of %v", s.Add, h.Add)
	case s.Use != 0 && h.Use != 0 && s.Use > h.Use:
		return refuse("the soft limit of %v of use is beyond the hard one of %v", s.Use, h.Use)
	}
	return nil
}

// ValidateFor checks the parameters for use in one direction. The error wraps ErrParams and says how to mend it.
func (p *Params) ValidateFor(dir Dir) error {
	if err := p.Validate(); err != nil {
		return err
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("sa: %s: %w: %s", p.label(), ErrParams, fmt.Sprintf(format, args...))
	}
	if dir == Out {
		switch {
		case p.TFCPad != 0 && p.Mode == Transport:
			return refuse("TFC padding in transport mode, where the receiver cannot tell it from the packet (RFC 4303 section 2.7); use tunnel mode")
		case p.PathMTU != 0 && (p.PathMTU < minMTU(p.Dst) || p.PathMTU > MaxMTU):
			return refuse("a path MTU of %d; it can be %d to %d", p.PathMTU, minMTU(p.Dst), MaxMTU)
		case p.TFCPad < 0 || p.TFCPad > MaxMTU:
			return refuse("TFC padding to %d bytes; it can be 0 to %d", p.TFCPad, MaxMTU)
		case p.FollowPeer:
			return refuse("following the peer is asked of the outbound SA; it is the inbound one's to do")
		}
		return nil
	}
	switch {
	case p.NoReplayCheck && p.ReplayWindow != 0:
		return refuse("a replay window of %d packets and no replay check; choose one", p.ReplayWindow)
	case p.NoReplayCheck && p.Keys.ESN:
		return refuse("ESN needs the replay window to infer the high half (RFC 4303 section 2.2.1); keep the replay check")
	case !p.NoReplayCheck && p.ReplayWindow == 0:
		return refuse("the replay window is missing; give %d to %d packets, or say that there is no replay check", MinWindow, MaxWindow)
	case !p.NoReplayCheck && (p.ReplayWindow < MinWindow || p.ReplayWindow > MaxWindow):
		return refuse("a replay window of %d packets; it can have %d to %d", p.ReplayWindow, MinWindow, MaxWindow)
	case p.DSCP&setDSCP != 0:
		return refuse("DSCP %v is for outbound SAs; inbound ones keep or copy", p.DSCP)
	}
	return nil
}

// label names the SA in errors: `"office" spi 0xc1234567`.
func (p *Params) label() string {
	return fmt.Sprintf("%q spi 0x%08x", p.Name, p.SPI)
}

// nameAt is the name as the policies of a snapshot know it.
func (p *Params) nameAt(version uint64) string {
	if version < p.since {
		return p.was
	}
	return p.Name
}

// clone is a copy whose keys have memory of their own.
func (p *Params) clone() *Params {
	c := *p
	c.Keys = p.Keys.Clone()
	return &c
}

// Endpoint is where an SA's packets go from and to: what can change while an SA lives (RFC 4555 section 3.5).
type Endpoint struct {
	Src, Dst         netip.Addr
	Encap            Encap
	SrcPort, DstPort uint16
	Link             int
}

// Endpoint is the part of the parameters that can move.
func (p *Params) Endpoint() Endpoint {
	return Endpoint{Src: p.Src, Dst: p.Dst, Encap: p.Encap, SrcPort: p.SrcPort, DstPort: p.DstPort, Link: p.Link}
}

// at is a copy of p at another endpoint. It shares the keys' memory: there is one key to wipe.
func (p *Params) at(e Endpoint) *Params {
	c := *p
	c.Src, c.Dst, c.Encap, c.SrcPort, c.DstPort, c.Link = e.Src, e.Dst, e.Encap, e.SrcPort, e.DstPort, e.Link
	return &c
}
