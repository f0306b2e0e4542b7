package sa

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strconv"
)

// Everything here that could reach a key prints itself, for every verb: left to package fmt, %v would descend into unexported
// fields, where the methods of offload.Key are not called.

// String names the SA and how it protects, without its keys.
func (p Params) String() string {
	s := fmt.Sprintf("%s %v>%v", p.label(), endpoint(p.Src, p.SrcPort), endpoint(p.Dst, p.DstPort))
	if p.Transform != nil {
		s += " " + p.Transform.String()
	}
	if p.Keys.ESN {
		s += " esn"
	}
	return s
}

func endpoint(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}

// Format writes String for every verb, quoted for %q.
func (p Params) Format(f fmt.State, verb rune) { format(f, verb, p.String()) }

// LogValue is the parameters as a group, without the keys.
func (p Params) LogValue() slog.Value {
	var transform string
	if p.Transform != nil {
		transform = p.Transform.ID()
	}
	return slog.GroupValue(
		slog.String("name", p.Name),
		slog.String("spi", hexSPI(p.SPI)),
		slog.String("src", endpoint(p.Src, p.SrcPort)),
		slog.String("dst", endpoint(p.Dst, p.DstPort)),
		slog.String("transform", transform),
	)
}

func hexSPI(spi uint32) string { return fmt.Sprintf("0x%08x", spi) }

// paramsJSON is what of the parameters is written: all but the keys.
type paramsJSON struct {
	Name          string      `json:"name"`
	SPI           string      `json:"spi"`
	Src           string      `json:"src"`
	Dst           string      `json:"dst"`
	Encap         string      `json:"encap"`
	Mode          string      `json:"mode"`
	Transform     string      `json:"transform"`
	ESN           bool        `json:"esn"`
	ReplayWindow  int         `json:"replay_window,omitempty"`
	NoReplayCheck bool        `json:"no_replay_check,omitempty"`
	Soft          *limitsJSON `json:"soft,omitempty"`
	Hard          *limitsJSON `json:"hard,omitempty"`
	TFCPad        int         `json:"tfc_pad,omitempty"`
	DSCP          string      `json:"dscp"`
	ECN           bool        `json:"ecn"`
	DF            string      `json:"df"`
	ClampMSS      bool        `json:"clamp_mss,omitempty"`
	FollowPeer    bool        `json:"follow_peer,omitempty"`
	Link          int         `json:"link"`
	PathMTU       int         `json:"path_mtu,omitempty"`
	Reqid         uint32      `json:"reqid,omitempty"`
}

type limitsJSON struct {
	Bytes   uint64  `json:"bytes,omitempty"`
	Packets uint64  `json:"packets,omitempty"`
	Add     float64 `json:"add_seconds,omitempty"`
	Use     float64 `json:"use_seconds,omitempty"`
}

func (l Limits) json() *limitsJSON {
	if l == (Limits{}) {
		return nil
	}
	return &limitsJSON{l.Bytes, l.Packets, l.Add.Seconds(), l.Use.Seconds()}
}

// MarshalJSON writes the parameters without the keys.
func (p Params) MarshalJSON() ([]byte, error) {
	j := paramsJSON{
		Name: p.Name, SPI: hexSPI(p.SPI), Src: endpoint(p.Src, p.SrcPort), Dst: endpoint(p.Dst, p.DstPort),
		Encap: p.Encap.String(), Mode: p.Mode.String(), ESN: p.Keys.ESN,
		ReplayWindow: p.ReplayWindow, NoReplayCheck: p.NoReplayCheck, Soft: p.Lifetime.Soft.json(), Hard: p.Lifetime.Hard.json(),
		TFCPad: p.TFCPad, DSCP: p.DSCP.String(), ECN: p.ECN, DF: p.DF.String(), ClampMSS: p.ClampMSS,
		FollowPeer: p.FollowPeer, Link: p.Link, PathMTU: p.PathMTU, Reqid: p.Reqid,
	}
	if p.Transform != nil {
		j.Transform = p.Transform.ID()
	}
	return json.Marshal(j)
}

// String is "outbound" and the parameters, without the keys.
func (o *Outbound) String() string { return "outbound " + o.Params().String() }

// Format writes String for every verb, quoted for %q.
func (o *Outbound) Format(f fmt.State, verb rune) { format(f, verb, o.String()) }

// LogValue is the parameters as a group, without the keys.
func (o *Outbound) LogValue() slog.Value { return o.Params().LogValue() }

// MarshalJSON writes parameters, peer, path MTU and counters, without the keys.
func (o *Outbound) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Params   *Params `json:"params"`
		Peer     string  `json:"peer"`
		MTU      int     `json:"mtu"`
		MaxInner int     `json:"max_inner"`
		Stats    Stats   `json:"stats"`
	}{o.Params(), endpoint(o.Peer().Addr(), o.Peer().Port()), o.MTU(), o.MaxInner(), o.Stats()})
}

// String is "inbound" and the parameters, without the keys.
func (i *Inbound) String() string { return "inbound " + i.Params().String() }

// Format writes String for every verb, quoted for %q.
func (i *Inbound) Format(f fmt.State, verb rune) { format(f, verb, i.String()) }

// LogValue is the parameters as a group, without the keys.
func (i *Inbound) LogValue() slog.Value { return i.Params().LogValue() }

// MarshalJSON writes parameters and counters, without the keys.
func (i *Inbound) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Params *Params `json:"params"`
		Stats  Stats   `json:"stats"`
	}{i.Params(), i.Stats()})
}

// String is the policy on one line: `out "office" priority 100 protect src 10.1.0.0/16 dst 10.2.0.0/16`.
func (p Policy) String() string {
	s := fmt.Sprintf("%v %q priority %d %v %v", p.Dir, p.Name, p.Priority, p.Action, p.Sel)
	if p.Out != nil {
		s += " with spi " + hexSPI(p.Out.Params().SPI)
	}
	return s
}

// Format writes String for every verb, quoted for %q.
func (p Policy) Format(f fmt.State, verb rune) { format(f, verb, p.String()) }

// LogValue is String.
func (p Policy) LogValue() slog.Value { return slog.StringValue(p.String()) }

// MarshalJSON writes the policy, with its SA's SPI in place of the SA.
func (p Policy) MarshalJSON() ([]byte, error) {
	var spi string
	if p.Out != nil {
		spi = hexSPI(p.Out.Params().SPI)
	}
	return json.Marshal(struct {
		Name     string   `json:"name"`
		Dir      string   `json:"dir"`
		Selector Selector `json:"selector"`
		Priority int      `json:"priority"`
		Action   string   `json:"action"`
		SPI      string   `json:"spi,omitempty"`
		Reqid    uint32   `json:"reqid,omitempty"`
		Tunnel   string   `json:"tunnel,omitempty"`
	}{p.Name, p.Dir.String(), p.Sel, p.Priority, p.Action.String(), spi, p.Reqid, p.Tunnel})
}

func format(f fmt.State, verb rune, s string) {
	if verb == 'q' {
		s = strconv.Quote(s)
	}
	io.WriteString(f, s)
}
