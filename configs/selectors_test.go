package configs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"culvert/sa"
)

// spd writes the policies as lines, and checks that package sa would take them: valid, with unique names.
func spd(t *testing.T, c *Config) string {
	t.Helper()
	var b strings.Builder
	names := make(map[string]bool)
	for _, p := range c.Policies {
		pol := p.SA()
		if err := pol.Validate(); err != nil {
			t.Error(err)
		}
		if id := fmt.Sprint(pol.Dir, pol.Name); names[id] {
			t.Errorf("two policies %s are named %s", pol.Dir, pol.Name)
		} else {
			names[id] = true
		}
		fmt.Fprintf(&b, "%v %d %v %s: %v\n", pol.Dir, pol.Priority, pol.Action, strings.TrimSpace(pol.Tunnel+" "+pol.Name), pol.Sel)
	}
	return b.String()
}

// TestPolicies: what is written becomes these policies, as seen from the packets of each direction: addresses and ports
// change sides inbound, an ICMP type does not, what is left open is both families.
func TestPolicies(t *testing.T) {
	text := fmt.Sprintf(strings.NewReplacer(`["10.1.0.0/16"]`, `["10.1.0.0/16", "fd01::/48"]`, `["10.2.0.0/16"]`, `["10.2.0.0/16", "fd02::/48", "10.3.0.0/16"]`).Replace(minimal), "priority = 7") + `
[[policy]]
name = "web"
action = "protect"
tunnel = "branch"
remote = "10.4.0.0/16"
protocol = 6
local_ports = "1024-65535"
remote_ports = 443
[[policy]]
action = "discard"
direction = "out"
protocol = "udp"
remote_ports = "opaque"
[[policy]]
name = "pong"
action = "discard"
direction = "in"
protocol = "icmp"
icmp_type = 0
icmp_code = 1
[[policy]]
name = "clear"
action = "bypass"
remote = "fd02:0:0:1::/64"
priority = 1
[[policy]]
name = "all"
action = "discard"
priority = 2147483647
protocol = "any"
`
	c, err := LoadBytes("p.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := `
out 7 protect branch branch(10.1.0.0/16,10.2.0.0/16): src 10.1.0.0/16 dst 10.2.0.0/16
in 7 protect branch branch(10.1.0.0/16,10.2.0.0/16): src 10.2.0.0/16 dst 10.1.0.0/16
out 7 protect branch branch(10.1.0.0/16,10.3.0.0/16): src 10.1.0.0/16 dst 10.3.0.0/16
in 7 protect branch branch(10.1.0.0/16,10.3.0.0/16): src 10.3.0.0/16 dst 10.1.0.0/16
out 7 protect branch branch(fd01::/48,fd02::/48): src fd01::/48 dst fd02::/48
in 7 protect branch branch(fd01::/48,fd02::/48): src fd02::/48 dst fd01::/48
out 100 protect branch web: src 0.0.0.0/0 dst 10.4.0.0/16 proto tcp sport 1024-65535 dport 443
in 100 protect branch web: src 10.4.0.0/16 dst 0.0.0.0/0 proto tcp sport 443 dport 1024-65535
out 100 discard policy-2(ipv4): src 0.0.0.0/0 dst 0.0.0.0/0 proto udp dport opaque
out 100 discard policy-2(ipv6): src ::/0 dst ::/0 proto udp dport opaque
in 100 discard pong(ipv4): src 0.0.0.0/0 dst 0.0.0.0/0 proto icmp type 0 code 1
out 1 bypass clear: src ::/0 dst fd02:0:0:1::/64
in 1 bypass clear: src fd02:0:0:1::/64 dst ::/0
out 2147483647 discard all(ipv4): src 0.0.0.0/0 dst 0.0.0.0/0
in 2147483647 discard all(ipv4): src 0.0.0.0/0 dst 0.0.0.0/0
out 2147483647 discard all(ipv6): src ::/0 dst ::/0
in 2147483647 discard all(ipv6): src ::/0 dst ::/0
`
	if d := cmp.Diff(want[1:], spd(t, c)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestOverlapsAreAllFound compares the search through prefix tables with comparing every pair, on selectors small enough
// that many overlap. The search must report exactly the policies that clash with an earlier one.
func TestOverlapsAreAllFound(t *testing.T) {
	prefixes := []string{"10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.2.0.0/16", "11.0.0.0/8", "0.0.0.0/0"}
	for _, seed := range []int{1, 2, 3, 5, 7, 11, 13} {
		var text strings.Builder
		for i := range 40 {
			n := (i*i*seed + i*31 + seed) % 9973
			action := []string{"discard", "protect", "bypass"}[n%2]
			fmt.Fprintf(&text, "[[policy]]\naction = %q\nlocal = %q\nremote = %q\ndirection = \"out\"\npriority = %d\n",
				action, prefixes[n/3%6], prefixes[n/7%6], n/11%3)
			if action == "protect" {
				text.WriteString("tunnel = \"branch\"\n")
			}
			if n/5%3 == 0 {
				fmt.Fprintf(&text, "protocol = \"tcp\"\nremote_ports = \"%d-%d\"\n", 1+n%50, 60+n%7)
			}
		}
		head := strings.NewReplacer(`local_subnets = ["10.1.0.0/16"]`, "", `remote_subnets = ["10.2.0.0/16"]`, "").Replace(fmt.Sprintf(minimal, ""))
		l := &loader{file: "o.toml"}
		c := l.run([]byte(head + text.String()))
		got := make(map[Pos]bool)
		for _, e := range l.errs {
			if e.Class != ErrConflict {
				t.Fatal(e)
			}
			got[e.Pos] = true
		}
		clashes := 0
		for i, q := range c.Policies {
			want := false
			for _, o := range c.Policies[:i] {
				both := o.Priority == q.Priority && o.Sel.Overlaps(&q.Sel)
				inside := within(&o.Sel, &q.Sel) || within(&q.Sel, &o.Sel)
				want = want || both && (o.Action != q.Action || o.Tunnel != q.Tunnel || inside)
			}
			if want != got[q.Pos] {
				t.Errorf("seed %d: policy %d %v: reported %v, want %v", seed, i, q.Sel, got[q.Pos], want)
			}
			if want {
				clashes++
			}
		}
		if clashes == 0 || clashes == len(c.Policies) {
			t.Errorf("seed %d: %d of %d clash, which compares nothing", seed, clashes, len(c.Policies))
		}
	}
}

// TestWithin: containment is what it means for packets: every flow that the one selects, the other selects too.
func TestWithin(t *testing.T) {
	texts := []string{
		"any", "proto tcp", "proto udp", "proto tcp dport 80", "proto tcp dport 80-90", "proto tcp dport 0-80", "proto tcp dport 0",
		"proto tcp dport opaque", "proto tcp sport 5", "proto tcp sport 5 dport 80", "proto icmp", "proto icmp type 0", "proto icmp type 8 code 0",
		"proto icmp type 8",
	}
	var flows []sa.Flow
	for _, proto := range []uint8{1, 6, 17} {
		for _, src := range []uint16{0, 5, 8, 65535} {
			for _, dst := range []uint16{0, 1, 79, 80, 85, 90, 91, 65535} {
				flows = append(flows, sa.Flow{Proto: proto, SrcPort: src, DstPort: dst, HasPorts: true})
			}
		}
		flows = append(flows, sa.Flow{Proto: proto, Frag: true})
	}
	for _, at := range texts {
		for _, bt := range texts {
			a, err := sa.ParseSelector(at)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := sa.ParseSelector(bt)
			want := true
			for i := range flows {
				want = want && (!a.Matches(&flows[i]) || b.Matches(&flows[i]))
			}
			all := mustNetwork("0.0.0.0/0")
			a.Src, a.Dst, b.Src, b.Dst = all, all, all, all
			if got := within(&a, &b); got != want {
				t.Errorf("%s within %s: %v, want %v", at, bt, got, want)
			}
		}
	}
}

// TestManyPolicies: ten thousand policies load, each of them; BenchmarkLoad says how fast.
func TestManyPolicies(t *testing.T) {
	c, err := LoadBytes("many.toml", []byte(manyPolicies(10_000)))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Policies) != 20_002 {
		t.Errorf("%d policies", len(c.Policies))
	}
}

func manyPolicies(n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, minimal, "")
	for i := range n {
		fmt.Fprintf(&b, "[[policy]]\nname = \"p%d\"\naction = \"protect\"\ntunnel = \"branch\"\nlocal = \"10.1.0.0/16\"\nremote = \"10.%d.%d.%d/32\"\n", i, 3+i>>16, i>>8&255, i&255)
	}
	return b.String()
}

// BenchmarkLoad reads a configuration of ten thousand policies.
func BenchmarkLoad(b *testing.B) {
	text := []byte(manyPolicies(10_000))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := LoadBytes("many.toml", text); err != nil {
			b.Fatal(err)
		}
	}
}
