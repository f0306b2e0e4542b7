package ike

import (
	"net/netip"
	"testing"

	"culvert/cmd/culvert/internal/hostnet"
	"culvert/configs"
	"culvert/xfrm"
	"culvert/xfrm/server"
)

func spec(src, dst string, action uint8, proto uint8, tmpls ...xfrm.Tmpl) *server.PolicySpec {
	sel := xfrm.SelectorOf(netip.MustParsePrefix(src), netip.MustParsePrefix(dst))
	sel.Proto = proto
	return &server.PolicySpec{Info: &xfrm.PolicyInfo{Sel: sel, Dir: xfrm.DirOut, Action: action}, Attrs: &xfrm.Attrs{Tmpls: tmpls}}
}

// What an outbound policy means for the host: a way into the TUN if it has a template for ESP or refuses, past the TUN if it has none, and
// nothing where a route could not tell what is meant.
func TestPolicyOf(t *testing.T) {
	local, _ := xfrm.AddressOf(netip.MustParseAddr("192.0.2.1"))
	esp := xfrm.Tmpl{Src: local, Proto: xfrm.ProtoESP, Family: xfrm.FamilyIPv4, Mode: xfrm.ModeTunnel}
	want := hostnet.Pair{Local: netip.MustParsePrefix("10.1.0.0/16"), Remote: netip.MustParsePrefix("10.2.0.0/16")}
	for _, c := range []struct {
		name   string
		spec   *server.PolicySpec
		none   bool
		bypass bool
		local  bool
	}{
		{name: "to protect", spec: spec("10.1.0.0/16", "10.2.0.0/16", xfrm.ActionAllow, 0, esp), local: true},
		{name: "to protect, one protocol", spec: spec("10.1.0.0/16", "10.2.0.0/16", xfrm.ActionAllow, 6, esp), local: true},
		{name: "to refuse", spec: spec("10.1.0.0/16", "10.2.0.0/16", xfrm.ActionBlock, 0, esp)},
		{name: "to let past", spec: spec("10.1.0.0/16", "10.2.0.0/16", xfrm.ActionAllow, 0), bypass: true},
		{name: "to let one protocol past", spec: spec("10.1.0.0/16", "10.2.0.0/16", xfrm.ActionAllow, 17), none: true},
		{name: "host bits", spec: spec("10.1.7.7/16", "10.2.9.9/16", xfrm.ActionAllow, 0, esp), local: true},
	} {
		p := new(Daemon).policyOf(c.spec, nil)
		if c.none {
			if p != nil {
				t.Errorf("%s: %+v", c.name, p)
			}
			continue
		}
		if p == nil || p.pair != want || p.bypass != c.bypass || p.local.IsValid() != c.local {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
}

// What becomes of a pair: the guard alone while no policy has it and somebody wants it guarded, the way past the TUN only if all policies let
// it past, and else the smallest MTU, never less than the family needs.
func TestWant(t *testing.T) {
	v4 := hostnet.Pair{Local: netip.MustParsePrefix("10.1.0.0/16"), Remote: netip.MustParsePrefix("10.2.0.0/16")}
	v6 := hostnet.Pair{Local: netip.MustParsePrefix("fd01::/48"), Remote: netip.MustParsePrefix("fd02::/48")}
	protect, past := &policy{}, &policy{bypass: true}
	of := func(ps ...*policy) map[uint32]*policy {
		m := map[uint32]*policy{}
		for i, p := range ps {
			m[uint32(i)] = p
		}
		return m
	}
	for _, c := range []struct {
		name  string
		guard bool
		k     hostnet.Pair
		x     pair
		mtu   int
		want  bool
	}{
		{"nobody has it", true, v4, pair{}, 0, false},
		{"configured", true, v4, pair{configured: true}, 0, true},
		{"its policy was deleted", true, v4, pair{kept: true}, 0, true},
		{"without a guard", false, v4, pair{configured: true, kept: true}, 0, false},
		{"let past", true, v4, pair{policies: of(past)}, hostnet.Bypass, true},
		{"let past and protected", true, v4, pair{policies: of(past, protect), mtu: 1300}, 1300, true},
		{"protected on a narrow path", true, v4, pair{policies: of(protect), mtu: 300}, minInner4, true},
		{"IPv6 on a narrow path", true, v6, pair{policies: of(protect), mtu: 1100}, minInner6, true},
	} {
		d := &Daemon{cfg: Config{Guard: c.guard}, after: configs.DeleteGuard}
		if mtu, want := d.want(c.k, &c.x); want != c.want || want && mtu != c.mtu {
			t.Errorf("%s: %d, %v; should be %d, %v", c.name, mtu, want, c.mtu, c.want)
		}
	}
}
