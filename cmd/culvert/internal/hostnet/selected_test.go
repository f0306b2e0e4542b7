package hostnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

var daemon = Daemon{TUN: "culvert0", Guard: true, Ports: []uint16{500, 4500}}

func serve(t *testing.T) *Host {
	t.Helper()
	inNamespace(t)
	h, err := Here()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	if kept, err := h.Serve(daemon); err != nil || len(kept) != 0 {
		t.Fatalf("Serve on a fresh host: %v %v", kept, err)
	}
	if err := h.Apply(Plan{TUN: "culvert0", Guard: true}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *Host) mustSelect(t *testing.T, remote, local string, mtu int) {
	t.Helper()
	if err := h.Select(Selected{Pair: Pair{Remote: pfx(remote), Local: pfx(local)}, MTU: mtu}); err != nil {
		t.Fatal(err)
	}
}

func (h *Host) mustDeselect(t *testing.T, remote, local string) {
	t.Helper()
	if err := h.Deselect(Pair{Remote: pfx(remote), Local: pfx(local)}); err != nil {
		t.Fatal(err)
	}
}

// What a policy selects goes into the TUN, from its local subnet and from the host's own sockets without a source; what else the host
// sends goes on its way, and so does IKE. Without the policy's route it is refused, and given up it takes any way.
func TestSelect(t *testing.T) {
	h := serve(t)
	before := []string{ip(t, "rule"), ip(t, "-6 rule")}
	for _, remote := range []string{"10.2.0.0/16", "0.0.0.0/0"} {
		h.mustSelect(t, remote, "10.1.0.0/24", 1400)
		wantWay(t, "10.2.0.9 from 10.1.0.9 iif lan0", "culvert0")
		wantWay(t, "10.2.0.9 from 10.1.0.1", "culvert0")
		wantWay(t, "10.2.0.9", "culvert0") // with the source 10.1.0.1
		wantWay(t, "10.2.0.9 from 192.0.2.1", "out0")
		wantWay(t, "10.2.0.9 from 10.1.0.1 ipproto udp sport 500 dport 500", "out0")
		wantWay(t, "10.2.0.9 from 10.1.0.1 ipproto udp sport 4500 dport 33333", "out0")
		wantWay(t, "10.2.0.9 from 10.1.0.1 ipproto udp sport 501 dport 500", "culvert0")
		wantWay(t, "10.1.0.77 from 10.1.0.9 iif lan0", "lan0")
		wantWay(t, "10.1.0.9 from 10.2.0.9 iif out0", "nowhere") // in clear, where it should be protected
		if route := ip(t, "route get 10.2.0.9"); !strings.Contains(route, "src 10.1.0.1") || !strings.Contains(route, "mtu 1400") {
			t.Errorf("the route is %s", route)
		}
		h.mustSelect(t, remote, "10.1.0.0/24", 0)
		wantWay(t, "10.2.0.9 from 10.1.0.9 iif lan0", "nowhere")
		wantWay(t, "10.2.0.9", "nowhere")
		wantWay(t, "10.2.0.9 from 192.0.2.1", "out0")
		wantWay(t, "10.1.0.9 from 10.2.0.9 iif out0", "nowhere")
		h.mustDeselect(t, remote, "10.1.0.0/24")
		wantWay(t, "10.2.0.9 from 10.1.0.9 iif lan0", "out0")
	}
	for _, remote := range []string{"fd02::/48", "::/0"} {
		h.mustSelect(t, remote, "fd01::/64", 1380)
		wantWay(t, "fd02::9 from fd01::9 iif lan0", "culvert0")
		wantWay(t, "fd02::9 from fd01::1", "culvert0")
		wantWay(t, "fd02::9", "culvert0")
		wantWay(t, "fd02::9 from 2001:db8::1", "out0")
		wantWay(t, "fd02::9 from fd01::1 ipproto udp sport 4500 dport 4500", "out0")
		wantWay(t, "fd01::77 from fd01::9 iif lan0", "lan0")
		wantWay(t, "fd01::9 from fd02::9 iif out0", "nowhere")
		h.mustSelect(t, remote, "fd01::/64", 0)
		wantWay(t, "fd02::9 from fd01::9 iif lan0", "nowhere")
		h.mustDeselect(t, remote, "fd01::/64")
		wantWay(t, "fd02::9 from fd01::9 iif lan0", "out0")
	}
	if after := []string{ip(t, "rule"), ip(t, "-6 rule")}; !slices.Equal(before, after) {
		t.Errorf("when all is given up the rules are\n%s\nand were\n%s", after, before)
	}
	if _, routes, err := h.Leftovers(); err != nil || routes != 0 {
		t.Errorf("%d routes are left (%v)", routes, err)
	}
}

// Several pairs may share a remote subnet, its route and its source: what one leaves the others keep. A bypass takes a part out.
func TestSelectShared(t *testing.T) {
	h := serve(t)
	h.mustSelect(t, "10.2.0.0/16", "10.1.0.0/24", 1400)
	h.mustSelect(t, "10.2.0.0/16", "10.7.0.0/24", 1300)
	if route := ip(t, "route get 10.2.0.9"); !strings.Contains(route, "mtu 1300") {
		t.Errorf("the route has not the smaller MTU: %s", route)
	}
	h.mustDeselect(t, "10.2.0.0/16", "10.7.0.0/24")
	if route := ip(t, "route get 10.2.0.9"); !strings.Contains(route, "mtu 1400") {
		t.Errorf("the route has not the MTU of the pair that is left: %s", route)
	}
	wantWay(t, "10.2.0.9 from 10.7.0.9 iif lan0", "out0")
	wantWay(t, "10.2.0.9 from 10.1.0.9 iif lan0", "culvert0")
	h.mustSelect(t, "10.2.3.0/24", "10.1.0.0/24", Bypass)
	wantWay(t, "10.2.3.9 from 10.1.0.9 iif lan0", "out0")
	wantWay(t, "10.1.0.9 from 10.2.3.9 iif out0", "lan0")
	wantWay(t, "10.2.4.9 from 10.1.0.9 iif lan0", "culvert0")
	h.mustDeselect(t, "10.2.3.0/24", "10.1.0.0/24")
	wantWay(t, "10.2.3.9 from 10.1.0.9 iif lan0", "culvert0")
}

// What others remove is missed, and laid again by Apply, which leaves what is selected in place; so does Revert.
func TestSelectedIsRestored(t *testing.T) {
	h := serve(t)
	p := Plan{TUN: "culvert0", Guard: true}
	h.mustSelect(t, "10.2.0.0/16", "10.1.0.0/24", 1400)
	h.mustSelect(t, "::/0", "fd01::/64", 1400)
	snap, err := h.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Apply(p); err != nil {
		t.Fatal(err)
	}
	if missing, err := h.Missing(p); err != nil || len(missing) != 0 {
		t.Errorf("missing right after Apply: %v %v", missing, err)
	}
	ip(t, "route flush table 4304")
	ip(t, "-6 route flush table 4304")
	ip(t, "rule del pref 213")
	ip(t, "rule del pref 205")
	ip(t, "-6 rule del pref 215")
	missing, err := h.Missing(p)
	if err != nil || len(missing) < 6 {
		t.Errorf("missing: %v %v", missing, err)
	}
	if err := h.Apply(p); err != nil {
		t.Fatal(err)
	}
	if missing, err := h.Missing(p); err != nil || len(missing) != 0 {
		t.Errorf("missing after Apply: %v %v", missing, err)
	}
	wantWay(t, "10.2.0.9 from 10.1.0.9 iif lan0", "culvert0")
	wantWay(t, "2001:db8:9::9 from fd01::9 iif lan0", "culvert0")
	h.mustSelect(t, "10.9.0.0/16", "10.1.0.0/24", 1400)
	if err := h.Revert(snap); err != nil {
		t.Fatal(err)
	}
	wantWay(t, "10.9.0.9 from 10.1.0.9 iif lan0", "culvert0")
	// An address of its own that comes later keeps its way too.
	ip(t, "addr add 2001:db8::7/64 dev out0 nodad")
	h.addrAt = h.addrAt.Add(-knownFor)
	if err := h.Apply(p); err != nil {
		t.Fatal(err)
	}
	wantWay(t, "2001:db8:9::9 from 2001:db8::7", "out0")
	if err := h.Remove(); err != nil {
		t.Fatal(err)
	}
	if rules, routes, err := h.Leftovers(); err != nil || rules+routes != 0 {
		t.Errorf("after Remove there are %d rules and %d routes (%v)", rules, routes, err)
	}
}

// Another process takes over what the one before has guarded, and refuses it.
func TestKept(t *testing.T) {
	h := serve(t)
	var want []string
	for _, p := range overlaps {
		h.mustSelect(t, p.Remote.String(), p.Local.String(), 1400)
		want = append(want, fmt.Sprint(p))
	}
	ip(t, "link del culvert0") // with it go the routes into it, as at a crash
	ip(t, "link add culvert0 type veth peer name culvert1")
	ip(t, "link set culvert1 up")
	next, err := Here()
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	kept, err := next.Serve(daemon)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range kept {
		got = append(got, fmt.Sprint(p))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("kept are %v, want %v", got, want)
	}
	if err := next.Apply(Plan{TUN: "culvert0", Guard: true}); err != nil {
		t.Fatal(err)
	}
	wantWay(t, "10.2.0.9 from 10.1.0.9 iif lan0", "nowhere")
	wantWay(t, "fd02::9 from fd01::9 iif lan0", "nowhere")
	for _, p := range kept {
		if err := next.Deselect(p); err != nil {
			t.Fatal(err)
		}
	}
	wantWay(t, "10.2.0.9 from 10.1.0.9 iif lan0", "out0")
	if rules, routes, err := next.Leftovers(); err != nil || rules+routes != 0 {
		all, _ := next.List()
		t.Errorf("%d rules and %d routes are left (%v): %v", rules, routes, err, all)
	}
}

func TestPrefixOf(t *testing.T) {
	for _, s := range []string{"10.1.0.0/16", "0.0.0.0/1", "128.0.0.0/1", "fd01::/64", "8000::/1", "::/1"} {
		if p := netip.MustParsePrefix(s); prefixOf(ipnet(p, false)) != p {
			t.Errorf("%v became %v", p, prefixOf(ipnet(p, false)))
		}
	}
	if prefixOf(nil).IsValid() {
		t.Error("nothing became a prefix")
	}
}

// What came out of an IKE daemon's tunnel for nobody here leaves by no default route either, as long as a policy has that local subnet, or
// the guard holds it; the pairs of one local subnet share the rules.
func TestSelectedStrays(t *testing.T) {
	h := serve(t)
	const stray = "10.1.77.7 from 10.2.0.5 iif culvert0"
	wantWay(t, stray, "out0")
	h.mustSelect(t, "10.2.0.0/16", "10.1.0.0/16", 1400)
	h.mustSelect(t, "10.3.0.0/16", "10.1.0.0/16", 1400)
	wantWay(t, stray, "nowhere")
	wantWay(t, "10.1.0.7 from 10.2.0.5 iif culvert0", "lan0")
	h.mustDeselect(t, "10.2.0.0/16", "10.1.0.0/16")
	wantWay(t, stray, "nowhere")
	h.mustDeselect(t, "10.3.0.0/16", "10.1.0.0/16")
	wantWay(t, stray, "out0")
}
