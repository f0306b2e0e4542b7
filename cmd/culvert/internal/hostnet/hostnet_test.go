package hostnet

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// inNamespace gives the test a network namespace of its own, with a LAN side lan0 (10.1.0.1, fd01::1), an outside out0
// (192.0.2.1, 2001:db8::1, default routes) and an interface culvert0 that stands for the TUN.
func inNamespace(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, ends with the test's goroutine
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	for _, cmd := range []string{
		"link set lo up",
		"link add lan0 type veth peer name lan1", "link add out0 type veth peer name out1", "link add culvert0 type veth peer name culvert1",
		"addr add 10.1.0.1/24 dev lan0", "addr add fd01::1/64 dev lan0 nodad", "addr add 192.0.2.1/24 dev out0", "addr add 2001:db8::1/64 dev out0 nodad",
		"link set lan0 up", "link set lan1 up", "link set out0 up", "link set out1 up", "link set culvert1 up",
		"route add default via 192.0.2.254", "-6 route add default via 2001:db8::fe",
	} {
		ip(t, cmd)
	}
	for _, f := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+f, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

func ip(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
	return string(out)
}

// way asks the kernel where a packet would go: the interface's name, or the kernel's reason why it goes nowhere.
func way(query string) string {
	out, err := exec.Command("ip", append([]string{"route", "get"}, strings.Fields(query)...)...).CombinedOutput()
	f := strings.Fields(string(out))
	if err != nil {
		return "nowhere: " + strings.TrimSpace(string(out))
	}
	for i := range f {
		if f[i] == "dev" {
			return f[i+1]
		}
	}
	return string(out)
}

func wantWay(t *testing.T, query, want string) {
	t.Helper()
	got := way(query)
	if want == "nowhere" && strings.HasPrefix(got, "nowhere") {
		return
	}
	if got != want {
		t.Errorf("ip route get %s: %s, want %s", query, got, want)
	}
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func siteToSite() Plan {
	return Plan{
		TUN: "culvert0", Guard: true,
		Routes: []Route{
			{Remote: pfx("10.2.0.0/16"), MTU: 1422, Local: pfx("10.1.0.0/24")},
			{Remote: pfx("fd02::/48"), MTU: 1406, Local: pfx("fd01::/64")},
		},
		Protected: []Pair{{pfx("10.2.0.0/16"), pfx("10.1.0.0/24")}, {pfx("fd02::/48"), pfx("fd01::/64")}},
		Bypass:    []netip.Prefix{pfx("10.2.9.0/24")},
	}
}

// The kernel itself says where packets go: into the TUN while the gateway runs, nowhere when it is gone.
func TestRoutesAndGuard(t *testing.T) {
	inNamespace(t)
	p := siteToSite()
	if err := here(t).Guard(p); err != nil {
		t.Fatal(err)
	}
	protected := []string{"10.2.0.5", "10.2.0.5 from 10.1.0.7 iif lan0", "fd02::5", "fd02::5 from fd01::7 iif lan0"}
	for _, q := range protected {
		wantWay(t, q, "nowhere") // before the gateway starts
	}
	if err := here(t).Apply(p); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		for _, q := range protected {
			wantWay(t, q, "culvert0")
		}
		wantWay(t, "10.2.9.5", "out0")                            // bypassed
		wantWay(t, "10.1.0.7 from 10.2.9.5 iif out0", "lan0")     // and its answers
		wantWay(t, "10.2.0.5 mark 0x4303", "out0")                // our own ESP
		wantWay(t, "198.51.100.1 from 10.1.0.7 iif lan0", "out0") // not ours to protect
		wantWay(t, "10.1.0.7 from 10.2.0.5 iif out0", "nowhere")  // clear, should have come protected
		wantWay(t, "fd01::7 from fd02::5 iif out0", "nowhere")
		wantWay(t, "10.1.0.7 from 10.2.0.5 iif culvert0", "lan0") // decapsulated
		wantWay(t, "10.1.0.7 from 198.51.100.1 iif out0", "lan0") // somebody else
		wantWay(t, "fd01::7 from fd02::5 iif culvert0", "lan0")
		wantWay(t, "198.51.100.1 from 10.2.0.5 iif culvert0", "out0") // for no local subnet
	}
	check()
	if out := ip(t, "route show table 4303 10.2.0.0/16"); !strings.Contains(out, "mtu 1422") || !strings.Contains(out, "src 10.1.0.1") {
		t.Errorf("the route lacks the tunnel's MTU or source:\n%s", out)
	}
	if l, err := netlink.LinkByName("culvert0"); err != nil || l.Attrs().TxQLen != tunQueue {
		t.Errorf("the TUN's queue has %d places (%v), want %d", l.Attrs().TxQLen, err, tunQueue)
	}
	before := dump(t)
	if err := here(t).Apply(p); err != nil {
		t.Fatal("again:", err)
	}
	if after := dump(t); after != before {
		t.Errorf("applied twice, the host differs:\n%s\nthen\n%s", before, after)
	}
	check()

	ip(t, "link del culvert0") // as when the gateway is killed
	for _, q := range protected {
		wantWay(t, q, "nowhere")
	}
	wantWay(t, "10.1.0.7 from 10.2.0.5 iif out0", "nowhere")
	wantWay(t, "198.51.100.1", "out0")

	if err := here(t).Remove(); err != nil {
		t.Fatal(err)
	}
	if rules, routes, err := here(t).Leftovers(); err != nil || rules+routes != 0 {
		t.Errorf("left after Remove: rules %d, routes %d, %v\n%s", rules, routes, err, dump(t))
	}
	wantWay(t, "10.2.0.5", "out0")
}

func dump(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, q := range []string{"-4 rule", "-6 rule"} {
		fmt.Fprintln(&b, ip(t, q))
	}
	for _, fam := range []string{"-4", "-6"} {
		out, _ := exec.Command("ip", fam, "route", "show", "table", "4303").Output() // no table: empty
		b.Write(out)
	}
	return b.String()
}

// A tunnel for everything must leave the LAN, the gateway itself and the ESP packets on their ways.
func TestDefaultRoute(t *testing.T) {
	inNamespace(t)
	p := Plan{TUN: "culvert0", Guard: true,
		Routes:    []Route{{Remote: pfx("0.0.0.0/0"), MTU: 1422}, {Remote: pfx("::/0"), MTU: 1406}},
		Protected: []Pair{{pfx("0.0.0.0/0"), pfx("10.1.0.0/24")}, {pfx("::/0"), pfx("fd01::/64")}},
	}
	if err := here(t).Apply(p); err != nil {
		t.Fatal(err)
	}
	wantWay(t, "198.51.100.1 from 10.1.0.7 iif lan0", "culvert0")
	wantWay(t, "2001:db8:5::1 from fd01::7 iif lan0", "culvert0")
	wantWay(t, "198.51.100.1 mark 0x4303", "out0")
	wantWay(t, "10.1.0.7", "lan0")
	wantWay(t, "10.1.0.7 from 198.51.100.1 iif culvert0", "lan0")
	wantWay(t, "10.1.0.7 from 198.51.100.1 iif out0", "nowhere")
	wantWay(t, "fd01::7 from 2001:db8:5::1 iif out0", "nowhere")
	ip(t, "link del culvert0")
	wantWay(t, "198.51.100.1 from 10.1.0.7 iif lan0", "nowhere")
}

// What a reload takes away is gone, what it keeps is not touched, and nobody else's rules are.
func TestReload(t *testing.T) {
	inNamespace(t)
	ip(t, "rule add pref 150 from 203.0.113.0/24 lookup main")
	ip(t, "route add 203.0.113.0/24 dev out0 table 4303")
	p := siteToSite()
	if err := here(t).Apply(p); err != nil {
		t.Fatal(err)
	}
	next := p
	next.Routes, next.Protected, next.Bypass = p.Routes[:1], p.Protected[:1], nil
	next.Routes = []Route{{Remote: pfx("10.2.0.0/16"), MTU: 1300}}
	if err := here(t).Apply(next); err != nil {
		t.Fatal(err)
	}
	wantWay(t, "10.2.0.5", "culvert0")
	wantWay(t, "10.2.9.5", "culvert0")
	wantWay(t, "fd02::5", "out0")
	if out := ip(t, "route show table 4303 10.2.0.0/16"); !strings.Contains(out, "mtu 1300") {
		t.Errorf("the MTU did not change:\n%s", out)
	}
	if err := here(t).Remove(); err != nil {
		t.Fatal(err)
	}
	if out := ip(t, "rule"); !strings.Contains(out, "203.0.113.0/24") {
		t.Errorf("somebody else's rule is gone:\n%s", out)
	}
	if out := ip(t, "route show table 4303"); !strings.Contains(out, "203.0.113.0/24") {
		t.Errorf("somebody else's route is gone:\n%s", out)
	}
}

func TestInterfaceMTU(t *testing.T) {
	inNamespace(t)
	ip(t, "link set out0 mtu 1400")
	if mtu, err := here(t).InterfaceMTU(netip.MustParseAddr("192.0.2.1")); err != nil || mtu != 1400 {
		t.Errorf("MTU %d, %v, want 1400", mtu, err)
	}
	if _, err := here(t).InterfaceMTU(netip.MustParseAddr("192.0.2.9")); err == nil {
		t.Error("an address that no interface has gave an MTU")
	}
	if a := here(t).addressIn(pfx("10.1.0.0/16")); a != netip.MustParseAddr("10.1.0.1") {
		t.Errorf("address in the LAN: %v", a)
	}
	if l, err := netlink.LinkByName("out0"); err != nil || l.Attrs().MTU != 1400 {
		t.Error(err)
	}
}

// here is the test's namespace.
func here(t *testing.T) *Host {
	t.Helper()
	h, err := Here()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// What was decapsulated for a local subnet, but for no host that a route leads to, does not leave by the default route, where it would be
// in clear: its sender learns that it is unreachable.
func TestDecapsulatedStrays(t *testing.T) {
	inNamespace(t)
	local := func(byDefault bool) Plan {
		p := planOf(Pair{pfx("10.2.0.0/16"), pfx("10.1.0.0/16")}, Pair{pfx("10.3.0.0/16"), pfx("10.0.0.0/8")}, Pair{pfx("fd02::/48"), pfx("fd01::/48")})
		p.LocalByDefault = byDefault
		return p
	}
	ip(t, "route add 10.1.9.0/24 via 10.1.0.9")
	for _, p := range []Plan{local(false), local(true), local(false)} {
		if err := here(t).Apply(p); err != nil {
			t.Fatal(err)
		}
		stray := "nowhere"
		if p.LocalByDefault {
			stray = "out0"
		}
		wantWay(t, "10.1.0.7 from 10.2.0.5 iif culvert0", "lan0")
		wantWay(t, "10.1.9.7 from 10.2.0.5 iif culvert0", "lan0")
		wantWay(t, "10.1.77.7 from 10.2.0.5 iif culvert0", stray)
		wantWay(t, "fd01:0:0:7::7 from fd02::5 iif culvert0", stray)
		wantWay(t, "10.77.0.7 from 10.3.0.5 iif culvert0", stray)
		wantWay(t, "10.2.0.7 from 10.3.0.5 iif culvert0", "culvert0") // from one tunnel into another
		wantWay(t, "10.1.77.7", "out0")                               // the host's own are not from a tunnel
		if missing, err := here(t).Missing(p); err != nil || len(missing) > 0 {
			t.Errorf("missing %v, %v", missing, err)
		}
	}
	for _, c := range []struct {
		p    string
		want bool
	}{{"10.1.0.0/16", true}, {"10.1.9.128/25", true}, {"172.16.0.0/12", false}, {"fd01::/48", true}, {"fd09::/48", false}} {
		if got, err := here(t).Routed(pfx(c.p)); err != nil || got != c.want {
			t.Errorf("Routed(%s) = %v, %v", c.p, got, err)
		}
	}
}

// The guard does not stand before the kernel delivers to the gateway's own addresses; what the README says to do about it for IPv4 holds,
// while the gateway runs and when it is gone.
func TestOwnAddressesWithReversePathFilter(t *testing.T) {
	inNamespace(t)
	if err := here(t).Apply(siteToSite()); err != nil {
		t.Fatal(err)
	}
	const inClear = "10.1.0.1 from 10.2.0.5 iif out0"
	wantWay(t, inClear, "lo")
	for _, f := range []string{"all", "out0"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+f+"/rp_filter", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	wantWay(t, inClear, "nowhere")
	wantWay(t, "192.0.2.1 from 192.0.2.9 iif out0", "lo") // the peer's ESP
	wantWay(t, "10.1.0.1 from 10.2.0.5 iif culvert0", "lo")
	ip(t, "link del culvert0")
	wantWay(t, inClear, "nowhere")
}
