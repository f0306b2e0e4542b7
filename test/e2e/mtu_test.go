package e2e

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"testing"

	"culvert/offload"
	"culvert/test/judge"
	"culvert/test/lab"
)

// sizes is the largest inner packet at an outer MTU of 1500, for native and UDP-encapsulated ESP over IPv4, and the same over IPv6:
//
//	IP (20 or 40) + UDP (0 or 8) + 8 + IV + ⌈(inner + 2) / block⌉ · block + ICV ≤ 1500
//
// The figures were computed apart from the program.
var sizes = []struct {
	transform *offload.Transform
	inner     map[string]int
}{
	{mustTransform("authenc(hmac(sha1),cbc(aes))", 128, 96), map[string]int{"esp4": 1438, "udp4": 1422, "esp6": 1422, "udp6": 1406}},
	{mustTransform("authenc(hmac(sha256),cbc(aes))", 256, 128), map[string]int{"esp4": 1438, "udp4": 1422, "esp6": 1406, "udp6": 1406}},
	{mustTransform("authenc(hmac(sha384),cbc(aes))", 192, 192), map[string]int{"esp4": 1422, "udp4": 1422, "esp6": 1406, "udp6": 1390}},
	{mustTransform("authenc(hmac(sha512),cbc(aes))", 128, 256), map[string]int{"esp4": 1422, "udp4": 1406, "esp6": 1390, "udp6": 1390}},
	{mustTransform("authenc(hmac(md5),cbc(des3_ede))", 192, 96), map[string]int{"esp4": 1446, "udp4": 1438, "esp6": 1430, "udp6": 1422}},
	{mustTransform("authenc(hmac(sha256),cbc(des3_ede))", 192, 128), map[string]int{"esp4": 1446, "udp4": 1438, "esp6": 1422, "udp6": 1414}},
	{mustTransform("rfc4106(gcm(aes))", 256, 128), map[string]int{"esp4": 1446, "udp4": 1438, "esp6": 1426, "udp6": 1418}},
	{mustTransform("rfc7539esp(chacha20,poly1305)", 256, 128), map[string]int{"esp4": 1446, "udp4": 1438, "esp6": 1426, "udp6": 1418}},
}

// tellsMTU is how ping shows a router's answer, per family.
var tellsMTU = map[bool]*regexp.Regexp{
	false: regexp.MustCompile(`Frag needed and DF set \(mtu = (\d+)\)`),
	true:  regexp.MustCompile(`Packet too big: mtu=(\d+)`),
}

// pingSize sends one echo request from the left host as an IP packet of exactly that length that must not be fragmented, and that the host
// knows nothing against. It gives 0 if it was answered, and the MTU that a router told if not.
func (w *row) pingSize(t *testing.T, from, to netip.Addr, length int) int {
	t.Helper()
	judge.Need(t, "ping")
	if err := w.HostA.ForgetPaths(); err != nil {
		t.Fatal(err)
	}
	head := 20 + 8
	if to.Is6() {
		head = 40 + 8
	}
	out, err := output(t, w.HostA, "ping", "-n", "-c", "1", "-W", "5", "-M", "do", "-I", from.String(), "-s", strconv.Itoa(length-head), "-p", fmt.Sprintf("%x", mark), to.String())
	if m := tellsMTU[to.Is6()].FindStringSubmatch(out); m != nil {
		mtu, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return mtu
	}
	if err != nil {
		t.Errorf("a packet of %d bytes to %s was neither answered nor refused: %s", length, to, out)
		return -1
	}
	return 0
}

// A packet as long as the tunnel carries passes, unfragmented; one a byte longer is answered with exactly that length: for every
// combination of transform, encapsulation and families.
func TestExactSizes(t *testing.T) {
	for _, link := range []string{"esp", "udp"} {
		for _, outerV6 := range []bool{false, true} {
			column := fmt.Sprintf("%s%d", link, version(outerV6))
			t.Run(column, func(t *testing.T) {
				families := lab.V4
				if outerV6 {
					families = lab.V6
				}
				w := newRow(t, lab.RowOptions{Outer: families, Wire: true})
				// One tunnel per transform, between addresses of its own.
				var tunnels []tunnel
				for i, s := range sizes {
					tn := tunnel{name: fmt.Sprintf("size%d", i), link: link, v6: outerV6, transform: s.transform, spi: 0xc0002000 + uint32(2*i)}
					for _, p := range [][2]string{{"10.1.0.%d/32", "10.2.0.%d/32"}, {"fd00:1::%d/128", "fd00:2::%d/128"}} {
						left, right := netip.MustParsePrefix(fmt.Sprintf(p[0], 10+i)), netip.MustParsePrefix(fmt.Sprintf(p[1], 10+i))
						tn.left, tn.right = append(tn.left, left), append(tn.right, right)
						addAddress(t, w.EthA, w.LanA, left)
						addAddress(t, w.EthB, w.LanB, right)
					}
					tunnels = append(tunnels, tn)
				}
				w.configure("", tunnels...)
				w.start()
				c := startCapture(t, w.GatewayB, lab.WANDevice)
				for i, s := range sizes {
					want := s.inner[column]
					if got := w.a.association(tunnels[i].name, "out").MaxInner; got != want {
						t.Errorf("%s: the gateway says that %d bytes fit, want %d", s.transform, got, want)
					}
					for k, to := range tunnels[i].right {
						from := tunnels[i].left[k].Addr()
						if got := w.pingSize(t, from, to.Addr(), want); got != 0 {
							t.Errorf("%s to %s: %d bytes are refused: mtu %d", s.transform, to, want, got)
						}
						for _, length := range []int{want + 1, 1500} {
							if got := w.pingSize(t, from, to.Addr(), length); got != want {
								t.Errorf("%s to %s: %d bytes are answered with mtu %d, want %d", s.transform, to, length, got, want)
							}
						}
					}
				}
				packets := c.stop()
				onlyESP(t, packets, mark)
				longest := 0
				for _, p := range packets {
					longest = max(longest, len(p))
					if p[0]>>4 == 4 && (p[6]&0x3f != 0 || p[7] != 0) || p[0]>>4 == 6 && p[6] == 44 {
						t.Errorf("a fragment on the outer wire: %x", p[:28])
					}
				}
				if longest > 1500 || longest < 1490 {
					t.Errorf("the longest outer packet has %d bytes; the longest inner ones should nearly fill the MTU of 1500", longest)
				}
				w.balance()
			})
		}
	}
}

// addAddress gives a host another address, and its gateway the neighbour that belongs to it.
func addAddress(t *testing.T, host, gateway *lab.End, p netip.Prefix) {
	t.Helper()
	must(t, host.NS, "ip", "addr", "add", p.String(), "dev", host.Name, "nodad")
	must(t, gateway.NS, "ip", "neigh", "replace", p.Addr().String(), "lladdr", host.MAC.String(), "dev", gateway.Name, "nud", "permanent")
}

// A router between the gateways carries less than they know of. Its ICMP answer to an ESP packet is believed, as it quotes a known SPI,
// and from then on the sender inside is told the exact size that fits; what fits passes.
func TestPathMTUIsLearnt(t *testing.T) {
	for _, link := range []string{"esp", "udp"} {
		for _, outerV6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s%d", link, version(outerV6)), func(t *testing.T) {
				// 1400 on the right half of the path; see sizes for the formula. AES-CBC with HMAC-SHA-256-128.
				want := map[string]int{"esp4": 1326, "udp4": 1326, "esp6": 1310, "udp6": 1310}[fmt.Sprintf("%s%d", link, version(outerV6))]
				w := newRow(t, lab.RowOptions{Wire: true})
				a, b := w.throughRouter(t, outerV6, 1400)
				tn := ordinary("office", link, outerV6, cbcSHA256)
				w.WanA.Addrs, w.WanB.Addrs = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, []netip.Prefix{netip.PrefixFrom(b, b.BitLen())}
				w.configure("", tn)
				w.start()
				if before := w.a.association("office", "out").MaxInner; before <= want {
					t.Fatalf("%d bytes are said to fit before the path was tried", before)
				}
				for _, innerV6 := range []bool{false, true} {
					from, to := w.EthA.Addr(innerV6), w.EthB.Addr(innerV6)
					// The first packet may be lost to the router; then the sender is told.
					until(t, "the path MTU is learnt", func() bool {
						out, _ := output(t, w.HostA, "ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-I", from.String(), "-s", "1372", to.String())
						return tellsMTU[innerV6].MatchString(out) || w.a.association("office", "out").MaxInner == want
					})
					if got := w.a.association("office", "out").MaxInner; got != want {
						t.Errorf("the gateway says that %d bytes fit, want %d", got, want)
					}
					if got := w.pingSize(t, from, to, want+1); got != want {
						t.Errorf("%d bytes to %s are answered with mtu %d, want %d", want+1, to, got, want)
					}
					if got := w.pingSize(t, from, to, want); got != 0 {
						t.Errorf("%d bytes to %s are refused: mtu %d", want, to, got)
					}
				}
				w.balance()
			})
		}
	}
}

// IPv6 inside may count on 1280 bytes (RFC 8200 5) also where the path leaves less: the outer packets are then fragmented, as RFC 4301 8.2
// wants, and nobody is told a smaller size, which a host would ignore. IPv4 inside is told the exact size as ever.
func TestIPv6OnNarrowPath(t *testing.T) {
	for _, link := range []string{"esp", "udp"} {
		for _, outer := range []struct {
			v6  bool
			mtu int
		}{{false, 1280}, {false, 1000}, {true, 1280}} {
			t.Run(fmt.Sprintf("%s%d/%d", link, version(outer.v6), outer.mtu), func(t *testing.T) {
				w := newRow(t, lab.RowOptions{Wire: true})
				a, b := w.throughRouter(t, outer.v6, outer.mtu)
				w.WanA.Addrs, w.WanB.Addrs = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, []netip.Prefix{netip.PrefixFrom(b, b.BitLen())}
				// The right gateway sees it at its own interface, the left one learns it.
				must(t, w.GatewayB, "ip", "link", "set", "path0", "mtu", strconv.Itoa(outer.mtu))
				w.configure("", ordinary("office", link, outer.v6, gcm))
				w.start()
				from, to := w.EthA.Addr(true), w.EthB.Addr(true)
				// The first packets find out how narrow the path is.
				until(t, "the path MTU is learnt", func() bool {
					output(t, w.HostA, "ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-I", w.EthA.Addr(false).String(), "-s", "1372", w.EthB.Addr(false).String())
					return w.a.association("office", "out").MaxInner < minIPv6 // and B learns from its answers
				})
				until(t, "1280 bytes pass", func() bool {
					_, err := output(t, w.HostA, "ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-I", from.String(), "-s", "1232", to.String())
					return err == nil
				})
				fits := w.a.association("office", "out").MaxInner
				if got := w.pingSize(t, from, to, minIPv6); got != 0 {
					t.Errorf("1280 bytes of IPv6 are refused: mtu %d", got)
				}
				if got := w.pingSize(t, from, to, minIPv6+1); got != minIPv6 {
					t.Errorf("1281 bytes of IPv6 are answered with mtu %d, want 1280", got)
				}
				if got := w.pingSize(t, w.EthA.Addr(false), w.EthB.Addr(false), fits+1); got != fits {
					t.Errorf("%d bytes of IPv4 are answered with mtu %d, want %d", fits+1, got, fits)
				}
				if got := w.pingSize(t, w.EthA.Addr(false), w.EthB.Addr(false), fits); got != 0 {
					t.Errorf("%d bytes of IPv4 are refused: mtu %d", fits, got)
				}
				sendFile(t, w.HostA, w.HostB, to, 200_000)
				sendFile(t, w.HostB, w.HostA, from, 200_000)
				w.balance()
				// Fragments were sent for that, and only for that.
				before := fragments(t, w.GatewayB, outer.v6)
				if before == 0 {
					t.Error("no outer packet came in fragments")
				}
				w.pingSize(t, w.EthA.Addr(false), w.EthB.Addr(false), fits)
				w.pingSize(t, from, to, fits)
				if now := fragments(t, w.GatewayB, outer.v6); now != before {
					t.Errorf("%d fragments came of packets that fit", now-before)
				}
			})
		}
	}
}

// fragments is how many fragments of a family a namespace's kernel has received.
func fragments(t *testing.T, ns *lab.Namespace, v6 bool) int {
	t.Helper()
	name := map[bool]string{false: "IpReasmReqds", true: "Ip6ReasmReqds"}[v6]
	all := decode[map[string]map[string]int](t, must(t, ns, "nstat", "-a", "-s", "-z", "-j", name))
	n, ok := all["kernel"][name]
	if !ok {
		t.Fatalf("nstat does not know %s: %v", name, all)
	}
	return n
}

// minIPv6 is what every link carries of IPv6 (RFC 8200 5).
const minIPv6 = 1280

// throughRouter puts a router between the gateways, whose link to the right one has that MTU, and gives the gateways' new addresses.
func (w *row) throughRouter(t *testing.T, v6 bool, mtu int) (a, b netip.Addr) {
	t.Helper()
	router, err := w.Namespace("router")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := router.SetSysctl(key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	prefix := func(s string) netip.Prefix { return netip.MustParsePrefix(s) }
	left := []netip.Prefix{prefix("198.51.100.1/24"), prefix("198.51.100.2/24")}
	right := []netip.Prefix{prefix("203.0.113.1/24"), prefix("203.0.113.2/24")}
	if v6 {
		left = []netip.Prefix{prefix("2001:db8:a::1/64"), prefix("2001:db8:a::2/64")}
		right = []netip.Prefix{prefix("2001:db8:b::1/64"), prefix("2001:db8:b::2/64")}
	}
	end := func(ns *lab.Namespace, name string, p netip.Prefix) *lab.End {
		return &lab.End{NS: ns, Name: name, Addrs: []netip.Prefix{p}}
	}
	ra, rb := end(router, "left", left[1]), end(router, "right", right[1])
	ga, gb := end(w.GatewayA, "path0", left[0]), end(w.GatewayB, "path0", right[0])
	for _, pair := range [][2]*lab.End{{ga, ra}, {rb, gb}} {
		if err := lab.Connect(pair[0], pair[1], 1500); err != nil {
			t.Fatal(err)
		}
	}
	// Only the router knows of the narrow place: the right gateway could still receive more.
	narrow, err := router.Netlink().LinkByName("right")
	if err != nil {
		t.Fatal(err)
	}
	if err := router.Netlink().LinkSetMTU(narrow, mtu); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*lab.End{ga, gb, ra, rb} {
		if err := e.NS.SetFeatures(e.Name, false, lab.WireFeatures...); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []struct {
		ns  *lab.Namespace
		dst netip.Prefix
		via netip.Addr
	}{{w.GatewayA, right[0].Masked(), left[1].Addr()}, {w.GatewayB, left[0].Masked(), right[1].Addr()}} {
		if err := r.ns.AddRoute(r.dst, r.via); err != nil {
			t.Fatal(err)
		}
	}
	return left[0].Addr(), right[0].Addr()
}
