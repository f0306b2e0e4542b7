package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"
)

// overlaps are pairs of subnets of which the kernel's own comparison of rules takes one for the other.
var overlaps = []Pair{
	{pfx("10.2.0.0/16"), pfx("10.1.0.0/24")},
	{pfx("0.0.0.0/0"), pfx("10.1.0.0/24")},
	{pfx("10.2.0.0/16"), pfx("0.0.0.0/0")},
	{pfx("fd02::/48"), pfx("fd01::/64")},
	{pfx("::/0"), pfx("fd01::/64")},
	{pfx("fd02::/48"), pfx("::/0")},
}

func planOf(pairs ...Pair) Plan {
	p := Plan{TUN: "culvert0", Guard: true, Protected: pairs}
	for _, pr := range pairs {
		p.Routes = append(p.Routes, Route{Remote: pr.Remote, MTU: 1400, Local: pr.Local})
	}
	return p
}

// Whatever plan stood before, the host has the whole of the new one and nothing else; also when it goes back.
func TestOverlapsInAnyOrder(t *testing.T) {
	inNamespace(t)
	h := here(t)
	for i, a := range overlaps {
		for _, b := range overlaps[i+1:] {
			if a.Local.Addr().Is4() != b.Local.Addr().Is4() {
				continue // the kernel keeps the rules of IPv4 and IPv6 apart
			}
			plans := []Plan{planOf(a), planOf(a, b), planOf(b, a), planOf(b)}
			for _, p := range plans {
				if err := h.Apply(p); err != nil {
					t.Fatalf("%v: %v", p.Protected, err)
				}
				s, err := h.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				exact(t, h, p)
				for _, q := range plans {
					if err := h.Apply(q); err != nil {
						t.Fatalf("%v after %v: %v", q.Protected, p.Protected, err)
					}
					exact(t, h, q)
					if err := h.Revert(s); err != nil {
						t.Fatalf("from %v back to %v: %v", q.Protected, p.Protected, err)
					}
					exact(t, h, p)
				}
			}
		}
	}
}

// exact wants p and nothing else, by what ip lists.
func exact(t *testing.T, h *Host, p Plan) {
	t.Helper()
	if missing, err := h.Missing(p); err != nil || len(missing) > 0 {
		t.Fatalf("%v: missing %v, %v\n%s", p.Protected, missing, err, dump(t))
	}
	var want, got []string
	for _, r := range p.rules() {
		if r.Priority == prefGuard {
			want = append(want, fmt.Sprintf("from %v to %v blackhole", r.Src, r.Dst))
		}
	}
	for _, fam := range []string{"-4", "-6"} {
		for line := range strings.Lines(ip(t, fam+" rule show pref 204")) {
			f := strings.Fields(line)
			got = append(got, strings.Join(f[1:6], " "))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Fatalf("%v: guard rules\n%s\nwant\n%s", p.Protected, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// While plans of overlapping subnets replace each other, no clear packet from outside that any of them forbids reaches the LAN. What
// the kernel forwards is read from the wire.
func TestNoGapBetweenPlans(t *testing.T) {
	inNamespace(t)
	h := here(t)
	ip(t, "neigh add 10.1.0.7 lladdr "+mac(t, "lan1").String()+" dev lan0 nud permanent")
	frame := clearFrame(t, "10.2.0.5", "10.1.0.7")
	out, lan := packetSocket(t, "out1"), packetSocket(t, "lan1")
	if err := unix.SetsockoptTimeval(lan, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}); err != nil {
		t.Fatal(err)
	}
	var delivered, sent atomic.Uint64
	var done atomic.Bool
	ended := make(chan struct{}, 2)
	go func() {
		defer func() { ended <- struct{}{} }()
		buf := make([]byte, 2048)
		for !done.Load() {
			n, err := unix.Read(lan, buf)
			if err == nil && n > 34 && netip.AddrFrom4([4]byte(buf[26:30])) == netip.MustParseAddr("10.2.0.5") {
				delivered.Add(1)
			}
		}
	}()
	go func() {
		defer func() { ended <- struct{}{} }()
		for !done.Load() {
			if _, err := unix.Write(out, frame); err == nil {
				sent.Add(1)
			}
		}
	}()
	t.Cleanup(func() { done.Store(true); <-ended; <-ended })
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: sent %d, delivered %d", what, sent.Load(), delivered.Load())
			}
		}
	}
	await("without a guard the kernel forwards it", func() bool { return delivered.Load() > 0 })

	narrow, wide := overlaps[0], overlaps[1]
	plans := []Plan{planOf(narrow), planOf(wide), planOf(narrow, wide), planOf(wide), planOf(wide, narrow), planOf(narrow)}
	if err := h.Apply(plans[0]); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // for what the reader has not read yet
	was := delivered.Load()
	first, _ := h.Snapshot()
	for range 30 {
		for _, p := range plans {
			if err := h.Apply(p); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.Apply(planOf(wide)); err != nil {
			t.Fatal(err)
		}
		if err := h.Revert(first); err != nil {
			t.Fatal(err)
		}
	}
	before := sent.Load()
	await("it is still sent", func() bool { return sent.Load() > before+100 })
	time.Sleep(200 * time.Millisecond)
	if n := delivered.Load() - was; n != 0 {
		t.Errorf("%d clear packets were delivered while plans replaced each other", n)
	}
	if err := h.Remove(); err != nil {
		t.Fatal(err)
	}
	was = delivered.Load()
	await("after the guard is removed the kernel forwards it again", func() bool { return delivered.Load() > was })
}

func mac(t *testing.T, name string) net.HardwareAddr {
	t.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return i.HardwareAddr
}

// clearFrame is an Ethernet frame that arrives at out0.
func clearFrame(t *testing.T, from, to string) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	ip4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.ParseIP(from), DstIP: net.ParseIP(to)}
	udp := &layers.UDP{SrcPort: 1, DstPort: 2}
	if err := udp.SetNetworkLayerForChecksum(ip4); err != nil {
		t.Fatal(err)
	}
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: mac(t, "out1"), DstMAC: mac(t, "out0"), EthernetType: layers.EthernetTypeIPv4}, ip4, udp, gopacket.Payload("clear")); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func packetSocket(t *testing.T, name string) int {
	t.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}); err != nil {
		t.Fatal(err)
	}
	return fd
}
