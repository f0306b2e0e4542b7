package sa

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func drawAddr(t *rapid.T, four bool) netip.Addr {
	// Few bits differ, so that prefixes nest and flows hit them.
	a, b := byte(rapid.IntRange(0, 3).Draw(t, "a")), byte(rapid.IntRange(0, 255).Draw(t, "b"))
	if four {
		return netip.AddrFrom4([4]byte{10, a, b & 0x81, b})
	}
	return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, a, b & 0x81, 15: b})
}

func drawPrefix(t *rapid.T, four bool) netip.Prefix {
	a := drawAddr(t, four)
	bits := rapid.OneOf(rapid.SampledFrom([]int{0, 8, 16, 17, 24, 31, 32}), rapid.IntRange(0, 32)).Draw(t, "bits")
	if !four {
		bits = min(bits*3, 128)
	}
	return netip.PrefixFrom(a, bits).Masked()
}

func drawPorts(t *rapid.T) PortRange {
	p := uint16(rapid.IntRange(0, 5).Draw(t, "port"))
	switch rapid.IntRange(0, 5).Draw(t, "ports") {
	case 0:
		return OnePort(p)
	case 1:
		if p > 0 {
			return PortRange{p, p + 2}
		}
		return Opaque
	case 2:
		return PortRange{0, 65535}
	}
	return PortRange{}
}

var testProtos = []uint8{0, protoTCP, protoUDP, protoICMP, 47}

func drawSelector(t *rapid.T) Selector {
	four := rapid.Bool().Draw(t, "IPv4")
	var s Selector
	if rapid.IntRange(0, 4).Draw(t, "any src") > 0 {
		s.Src = drawPrefix(t, four)
	}
	if rapid.IntRange(0, 4).Draw(t, "any dst") > 0 {
		s.Dst = drawPrefix(t, four)
	}
	s.Proto = rapid.SampledFrom(testProtos).Draw(t, "proto")
	if protocols[s.Proto].ports || protocols[s.Proto].icmp {
		s.SrcPorts, s.DstPorts = drawPorts(t), drawPorts(t)
	}
	return s
}

func drawFlow(t *rapid.T) Flow {
	four := rapid.Bool().Draw(t, "IPv4")
	f := Flow{
		Src: drawAddr(t, four), Dst: drawAddr(t, four), Proto: rapid.SampledFrom(testProtos[1:]).Draw(t, "proto"),
		Frag: rapid.IntRange(0, 2).Draw(t, "fragment") == 0,
	}
	if f.Proto != 47 && !f.Frag {
		f.HasPorts = true
		f.SrcPort, f.DstPort = uint16(rapid.IntRange(0, 7).Draw(t, "sport")), uint16(rapid.IntRange(0, 7).Draw(t, "dport"))
	}
	return f
}

// linear is the SPD as a list, read from the top.
func linear(list []Policy, dir Dir, f *Flow) (best *Policy) {
	shadowed := false
	for i := range list {
		p := &list[i]
		if p.Dir != dir {
			continue
		}
		if p.Sel.Matches(f) {
			if p.Action == Bypass && shadowed {
				return nil
			}
			return p
		}
		anyPorts := p.Sel
		anyPorts.SrcPorts, anyPorts.DstPorts = PortRange{}, PortRange{}
		if p.Action != Bypass && !f.knowsPorts() && anyPorts.Matches(f) && p.Sel.SrcPorts != Opaque && p.Sel.DstPorts != Opaque {
			shadowed = true
		}
	}
	return nil
}

// sound says what is wrong with the SPD's own bookkeeping, which lookups do not show: it would only grow or get slow.
func sound(s spd) string {
	if s.gone > s.n {
		return fmt.Sprintf("%d rules are gone and %d there, but the reach was not made anew", s.gone, s.n)
	}
	if s.far == nil {
		return ""
	}
	for far, node := range s.far.All() {
		n := len(node.list)
		if node.near != nil {
			for near, leaf := range node.near.All() {
				if n += len(leaf.list); near.Addr().Is4() != far.Addr().Is4() {
					return fmt.Sprintf("%v is filed under %v", near, far)
				}
			}
		}
		if n != node.n || n == 0 || node.near == nil && n > maxList || node.near != nil && n <= maxList/2 {
			return fmt.Sprintf("%v has %d rules and says %d; by prefix: %v", far, n, node.n, node.near != nil)
		}
	}
	return ""
}

// However policies come, change and go, each lookup gives what reading the list from the top gives, in the present snapshot
// and in every older one.
func TestSPDAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := NewDB()
		defer d.Close()
		var list []Policy // in the order in which they decide
		sort := func() {
			slices.SortStableFunc(list, func(a, b Policy) int { return a.Priority - b.Priority })
		}
		type past struct {
			s    *Snapshot
			list []Policy
		}
		var pasts []past
		next := 0
		drawPolicy := func(t *rapid.T) Policy {
			p := Policy{
				Dir: Dir(rapid.IntRange(0, 1).Draw(t, "dir")), Sel: drawSelector(t), Priority: rapid.IntRange(0, 3).Draw(t, "priority"),
				Action: Action(rapid.IntRange(0, 2).Draw(t, "action")), Reqid: uint32(rapid.IntRange(1, 3).Draw(t, "reqid")),
			}
			if rapid.IntRange(0, 2).Draw(t, "crowd") > 0 { // many under one far prefix
				p.Dir, p.Sel.Dst = Out, prefix(rapid.SampledFrom([]string{"10.0.0.0/8", ""}).Draw(t, "of"))
				if p.Sel.Src.IsValid() && !p.Sel.Src.Addr().Is4() {
					p.Sel.Src = drawPrefix(t, true)
				}
			}
			return p
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				if err := d.Update(func(tx *Tx) error {
					for range rapid.IntRange(1, 6).Draw(t, "n") {
						next++
						p := drawPolicy(t)
						p.Name = fmt.Sprint(next)
						if err := tx.AddPolicy(p); err != nil {
							return err
						}
						list = append(list, p)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				sort()
			},
			"remove": func(t *rapid.T) {
				if len(list) == 0 {
					t.Skip()
				}
				for range rapid.IntRange(1, len(list)).Draw(t, "n") {
					i := rapid.IntRange(0, len(list)-1).Draw(t, "which")
					if err := d.Update(func(tx *Tx) error { return tx.RemovePolicy(list[i].Dir, list[i].Name) }); err != nil {
						t.Fatal(err)
					}
					list = slices.Delete(list, i, i+1)
				}
			},
			"replace": func(t *rapid.T) {
				if len(list) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(list)-1).Draw(t, "which")
				p := drawPolicy(t)
				p.Dir, p.Name, p.Priority = list[i].Dir, list[i].Name, list[i].Priority
				if err := d.Update(func(tx *Tx) error { return tx.ReplacePolicy(p) }); err != nil {
					t.Fatal(err)
				}
				list[i] = p
			},
			"fail": func(t *rapid.T) {
				if err := d.Update(func(tx *Tx) error {
					p := drawPolicy(t)
					p.Name = "not to stay"
					if err := tx.AddPolicy(p); err != nil {
						t.Fatal(err)
					}
					for i := range list {
						if err := tx.RemovePolicy(list[i].Dir, list[i].Name); err != nil {
							t.Fatal(err)
						}
					}
					return errDisk
				}); err != errDisk {
					t.Fatal(err)
				}
			},
			"keep": func(t *rapid.T) { pasts = append(pasts, past{d.Acquire(), slices.Clone(list)}) },
			"": func(t *rapid.T) {
				now := past{d.Acquire(), list}
				defer now.s.Release()
				for _, p := range append(pasts, now) {
					if wrong := sound(p.s.lookup[Out]) + sound(p.s.lookup[In]); wrong != "" {
						t.Fatal(wrong)
					}
					var flows []Flow
					for range 8 {
						flows = append(flows, drawFlow(t))
					}
					for _, f := range flows {
						for _, dir := range []Dir{Out, In} {
							got, ok := p.s.Lookup(dir, &f)
							want := linear(p.list, dir, &f)
							if ok != (want != nil) || ok && got.Name != want.Name {
								t.Fatalf("%v %+v gives %v, not %v", dir, f, got, want)
							}
						}
					}
					var names, want []string
					for _, q := range p.s.Policies() {
						names = append(names, q.Dir.String()+q.Name)
					}
					for _, dir := range []Dir{Out, In} {
						for _, q := range p.list {
							if q.Dir == dir {
								want = append(want, dir.String()+q.Name)
							}
						}
					}
					if !slices.Equal(names, want) {
						t.Fatalf("listed as %v, not %v", names, want)
					}
				}
			},
		})
		for _, p := range pasts {
			p.s.Release()
		}
	})
}

// selector parses what a test writes.
func selector(tb testing.TB, s string) Selector {
	tb.Helper()
	sel, err := ParseSelector(s)
	if err != nil {
		tb.Fatal(err)
	}
	return sel
}

func flow(src, dst string, proto uint8, ports ...uint16) *Flow {
	f := &Flow{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Proto: proto}
	if len(ports) == 2 {
		f.HasPorts, f.SrcPort, f.DstPort = true, ports[0], ports[1]
	}
	return f
}

func later(f *Flow) *Flow {
	f.Frag = true
	return f
}

// What RFC 4301 says of selectors, one line each.
func TestSelectorMatches(t *testing.T) {
	for _, c := range []struct {
		sel   string
		f     *Flow
		match bool
	}{
		{"any", flow("10.0.0.1", "10.0.0.2", 47), true},
		{"any", later(flow("2001:db8::1", "2001:db8::2", 6)), true},
		{"src 10.0.0.0/8", flow("10.9.9.9", "192.0.2.1", 6, 1, 2), true},
		{"src 10.0.0.0/8", flow("11.9.9.9", "192.0.2.1", 6, 1, 2), false},
		{"src 0.0.0.0/0", flow("2001:db8::1", "2001:db8::2", 6, 1, 2), false},
		{"dst ::/0", flow("10.0.0.1", "10.0.0.2", 6, 1, 2), false},
		{"proto tcp", later(flow("10.0.0.1", "10.0.0.2", 6)), true},
		{"proto tcp", flow("10.0.0.1", "10.0.0.2", 17, 1, 2), false},
		{"proto 47", flow("10.0.0.1", "10.0.0.2", 47), true},
		{"proto tcp dport 443", flow("10.0.0.1", "10.0.0.2", 6, 9, 443), true},
		{"proto tcp dport 443", flow("10.0.0.1", "10.0.0.2", 6, 443, 9), false},
		{"proto tcp dport 443", later(flow("10.0.0.1", "10.0.0.2", 6, 0, 443)), false},
		{"proto tcp dport 443", flow("10.0.0.1", "10.0.0.2", 6), false},
		{"proto tcp dport any", later(flow("10.0.0.1", "10.0.0.2", 6)), true},
		{"proto tcp dport opaque", later(flow("10.0.0.1", "10.0.0.2", 6)), true},
		{"proto tcp dport opaque", flow("10.0.0.1", "10.0.0.2", 6, 1, 65535), false},
		{"proto tcp sport 1024-65535 dport 1-1023", flow("10.0.0.1", "10.0.0.2", 6, 1024, 1023), true},
		{"proto tcp sport 1024-65535 dport 1-1023", flow("10.0.0.1", "10.0.0.2", 6, 1023, 1023), false},
		{"proto tcp dport 0", flow("10.0.0.1", "10.0.0.2", 6, 9, 0), true},
		{"proto tcp dport 0", flow("10.0.0.1", "10.0.0.2", 6, 9, 1), false},
		{"proto icmp type 8 code 0", flow("10.0.0.1", "10.0.0.2", 1, 8, 0), true},
		{"proto icmp type 8 code 0", flow("10.0.0.1", "10.0.0.2", 1, 8, 1), false},
		{"proto icmp type 0", flow("10.0.0.1", "10.0.0.2", 1, 0, 0), true},
		{"proto icmp type 0", flow("10.0.0.1", "10.0.0.2", 1, 8, 0), false},
		{"proto icmpv6 type 128-129", flow("2001:db8::1", "2001:db8::2", 58, 129, 0), true},
	} {
		sel := selector(t, c.sel)
		if got := sel.Matches(c.f); got != c.match {
			t.Errorf("%q and %+v: %v", c.sel, *c.f, got)
		}
	}
}

// A later fragment does not slip past a policy with ports that might be meant for it into the clear; to be protected or
// discarded further down is no harm, and an opaque policy catches it.
func TestFragmentsDoNotBypass(t *testing.T) {
	for _, c := range []struct {
		policies  []string // action and selector, from the top
		frag      string   // the policy that a later TCP fragment gets, "" for none
		protected bool     // as inbound clear traffic
	}{
		{[]string{"protect proto tcp dport 443", "bypass any"}, "", true},
		{[]string{"discard proto tcp dport 443", "bypass any"}, "", false},
		{[]string{"protect proto tcp dport 443", "protect any"}, "1", true},
		{[]string{"protect proto tcp dport 443", "discard any"}, "1", false},
		{[]string{"bypass proto tcp dport 443", "bypass any"}, "1", false},
		{[]string{"protect proto udp dport 443", "bypass any"}, "1", false},
		{[]string{"bypass proto tcp", "protect proto tcp dport 443"}, "0", false},
		{[]string{"bypass any", "protect dst 10.0.0.0/24 proto tcp dport 443"}, "0", false},
		{[]string{"bypass any", "protect src 10.0.0.0/24 dst 10.0.0.0/24 proto tcp dport 443"}, "0", false},
		{[]string{"protect proto tcp dport 443", "protect proto tcp dport opaque", "bypass any"}, "1", true},
		{[]string{"protect dst 192.0.2.0/24 proto tcp dport 443", "bypass any"}, "1", false},
	} {
		d := NewDB()
		update(t, d, func(tx *Tx) error {
			for i, text := range c.policies {
				action, sel, _ := strings.Cut(text, " ")
				for _, dir := range []Dir{Out, In} {
					p := Policy{Name: fmt.Sprint(i), Dir: dir, Sel: selector(t, sel), Priority: i, Reqid: 7}
					p.Action = map[string]Action{"protect": Protect, "discard": Discard, "bypass": Bypass}[action]
					if err := tx.AddPolicy(p); err != nil {
						return err
					}
				}
			}
			return nil
		})
		s := d.Acquire()
		f := later(flow("10.0.0.1", "10.0.0.2", protoTCP))
		got := ""
		if p, ok := s.Outbound(f); ok {
			got = p.Name
		}
		if got != c.frag {
			t.Errorf("%v: a fragment gets policy %q, not %q", c.policies, got, c.frag)
		}
		if s.Protected(f) != c.protected {
			t.Errorf("%v: a fragment in clear: protected is %v", c.policies, !c.protected)
		}
		s.Release()
	}
}

// A decapsulated packet passes only through its own SA's policies, in the order of the SPD.
func TestAllowedIn(t *testing.T) {
	d := NewDB()
	update(t, d, func(tx *Tx) error {
		for _, p := range []Policy{
			{Name: "telnet", Priority: 1, Action: Discard, Sel: selector(t, "proto tcp dport 23")},
			{Name: "a", Priority: 5, Action: Protect, Sel: selector(t, "src 10.1.0.0/16"), Reqid: 1},
			{Name: "a and b", Priority: 6, Action: Protect, Sel: selector(t, "src 10.0.0.0/8"), Reqid: 1},
			{Name: "b and a", Priority: 6, Action: Protect, Sel: selector(t, "src 10.0.0.0/8"), Reqid: 2},
			{Name: "by name", Priority: 7, Action: Protect, Sel: selector(t, "src 172.16.0.0/12"), Tunnel: "office"},
			{Name: "clear", Priority: 8, Action: Bypass, Sel: selector(t, "src 192.168.0.0/16")},
		} {
			p.Dir = In
			if err := tx.AddPolicy(p); err != nil {
				return err
			}
		}
		return nil
	})
	sa := func(reqid uint32, name string) *Inbound {
		p := params(t, 256)
		p.Reqid, p.Name = reqid, name
		return inbound(t, p)
	}
	a, b, c := sa(1, "a"), sa(2, "b"), sa(0, "office")
	s := d.Acquire()
	defer s.Release()
	for _, c := range []struct {
		i         *Inbound
		f         *Flow
		allowed   bool
		protected bool
	}{
		{a, flow("10.1.0.1", "10.9.0.1", 6, 1, 80), true, true},
		{b, flow("10.1.0.1", "10.9.0.1", 6, 1, 80), false, true}, // a's comes first
		{a, flow("10.2.0.1", "10.9.0.1", 6, 1, 80), true, true},
		{b, flow("10.2.0.1", "10.9.0.1", 6, 1, 80), true, true}, // equal priority, later
		{c, flow("10.2.0.1", "10.9.0.1", 6, 1, 80), false, true},
		{a, flow("10.1.0.1", "10.9.0.1", 6, 1, 23), false, false}, // discarded before
		{c, flow("172.16.0.1", "10.9.0.1", 6, 1, 80), true, true},
		{a, flow("172.16.0.1", "10.9.0.1", 6, 1, 80), false, true},
		{a, flow("192.168.0.1", "10.9.0.1", 6, 1, 80), false, false}, // through an SA, but may come in clear
		{a, flow("198.51.100.1", "10.9.0.1", 6, 1, 80), false, false},
	} {
		if got := s.AllowedIn(c.i, c.f); got != c.allowed {
			t.Errorf("%s through %v: allowed %v", c.f.Src, c.i, got)
		}
		if got := s.Protected(c.f); got != c.protected {
			t.Errorf("%s in clear: protected %v", c.f.Src, got)
		}
	}
}

func TestPolicyRefusals(t *testing.T) {
	o := outbound(t, params(t, 256))
	good := Policy{Name: "p", Action: Protect, Sel: selector(t, "src 10.0.0.0/8 dst 10.0.0.0/8")}
	for _, c := range []struct {
		want   string
		change func(p *Policy)
	}{
		{"name is missing", func(p *Policy) { p.Name = "" }},
		{"no dir(7)", func(p *Policy) { p.Dir = 7 }},
		{"no action(7)", func(p *Policy) { p.Action = 7 }},
		{"only an outbound policy to protect", func(p *Policy) { p.Action, p.Out = Bypass, o }},
		{"only an outbound policy to protect", func(p *Policy) { p.Dir, p.Reqid, p.Out = In, 1, o }},
		{"give a reqid", func(p *Policy) { p.Dir = In }},
		{"not of one family", func(p *Policy) { p.Sel.Src = prefix("2001:db8::/32") }},
		{"IPv4 written as IPv6", func(p *Policy) { p.Sel.Src = netip.MustParsePrefix("::ffff:10.0.0.0/104") }},
		{"no prefix length", func(p *Policy) { p.Sel.Src = netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 99) }},
		{"ports need a protocol", func(p *Policy) { p.Sel.DstPorts = OnePort(80) }},
		{"ports need a protocol", func(p *Policy) { p.Sel.Proto, p.Sel.DstPorts = 47, OnePort(80) }},
		{"backwards", func(p *Policy) { p.Sel.Proto, p.Sel.DstPorts = 6, PortRange{5, 4} }},
		{"end at 255", func(p *Policy) { p.Sel.Proto, p.Sel.SrcPorts = 1, OnePort(256) }},
	} {
		p := good
		c.change(&p)
		err := NewDB().Update(func(tx *Tx) error { return tx.AddPolicy(p) })
		if !errors.Is(err, ErrParams) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, got: %v", c.want, err)
		}
	}
	if err := NewDB().Update(func(tx *Tx) error { return tx.AddPolicy(good) }); err != nil {
		t.Error(err)
	}
}

// Conflicts finds exactly the pairs that comparing all with all finds, and overlap means that some flow is in both.
func TestConflictsAgainstPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policies := make([]Policy, rapid.IntRange(0, 25).Draw(t, "n"))
		for i := range policies {
			policies[i] = Policy{
				Dir: Dir(rapid.IntRange(0, 1).Draw(t, "dir")), Sel: drawSelector(t), Priority: rapid.IntRange(0, 2).Draw(t, "priority"),
				Action: Action(rapid.IntRange(0, 2).Draw(t, "action")), Reqid: uint32(rapid.IntRange(1, 2).Draw(t, "reqid")),
			}
		}
		var want []Conflict
		for i := range policies {
			for j := i + 1; j < len(policies); j++ {
				p, q := &policies[i], &policies[j]
				overlap := p.Sel.Overlaps(&q.Sel)
				if overlap != q.Sel.Overlaps(&p.Sel) {
					t.Fatalf("%v and %v overlap one way only", p, q)
				}
				f := drawFlow(t)
				if p.Sel.Matches(&f) && q.Sel.Matches(&f) && !overlap {
					t.Fatalf("%v and %v both match %+v", p, q, f)
				}
				if p.Dir == q.Dir && p.Priority == q.Priority && overlap && (p.Action != q.Action || p.Reqid != q.Reqid) {
					want = append(want, Conflict{i, j})
				}
			}
		}
		if got := Conflicts(policies); !slices.Equal(got, want) {
			t.Fatalf("%v, not %v", got, want)
		}
	})
}

// What is read, and how it is written again; and what is refused, and why.
func TestParseSelector(t *testing.T) {
	for in, out := range map[string]string{
		"any":                                    "any",
		" dst 10.2.0.0/16  src\t10.1.0.0/16 ":    "src 10.1.0.0/16 dst 10.2.0.0/16",
		"src 10.1.0.1":                           "src 10.1.0.1/32",
		"proto 6 dport 0-65535":                  "proto tcp",
		"proto tcp sport any dport 80-80":        "proto tcp dport 80",
		"proto 200":                              "proto 200",
		"proto icmp code 0 type 0":               "proto icmp type 0 code 0",
		"dst 2001:db8::/32 proto icmpv6 type 1":  "dst 2001:db8::/32 proto icmpv6 type 1",
		"proto sctp sport opaque dport 0-0":      "proto sctp sport opaque dport 0",
		"dst 0.0.0.0/0 proto udp sport 500-4500": "dst 0.0.0.0/0 proto udp sport 500-4500",
	} {
		s, err := ParseSelector(in)
		if err != nil || s.String() != out {
			t.Errorf("%q is %v, %v; want %q", in, s, err, out)
		}
	}
	for in, want := range map[string]string{
		"":                           "pairs of words",
		"src":                        "pairs of words",
		"src 10.0.0.0/8 any":         "pairs of words",
		"src 10.0.0.1/8":             "write 10.0.0.0/8",
		"src 10.0.0.0/33":            "not a prefix",
		"src fe80::1%eth0":           "not a prefix",
		"src ::ffff:10.0.0.0/104":    "IPv4 written as IPv6",
		"from 10.0.0.0/8":            `unknown word "from"`,
		"src 10.0.0.0/8 src any":     "given twice",
		"proto 0":                    "protocol",
		"proto 256":                  "protocol",
		"proto http":                 "protocol",
		"dport 80":                   "ports need a protocol",
		"proto tcp dport 65536":      "not a port",
		"proto tcp dport 9-1":        "not a port",
		"proto tcp dport -1":         "not a port",
		"proto tcp type 8":           "for icmp",
		"proto icmp dport 8":         "type and code, not ports",
		"proto icmp type 256":        "255",
		"src 10.0.0.0/8 dst fe80::1": "not of one family",
	} {
		if s, err := ParseSelector(in); !errors.Is(err, ErrParams) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %v, %v; want %q", in, s, err, want)
		}
	}
}

// FuzzParseSelector checks that whatever is accepted is valid, and that writing it and reading it again gives the same.
func FuzzParseSelector(f *testing.F) {
	for _, s := range []string{
		"any", "src 10.1.0.0/16 dst 10.2.0.0/16 proto tcp sport 1024-65535 dport 443", "proto icmp type 0 code 0", "dst ::/0 proto 99",
		"proto udp sport opaque", "proto udp dport 0", "src 192.0.2.1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSelector(text)
		if err != nil {
			if !errors.Is(err, ErrParams) {
				t.Fatal(err)
			}
			return
		}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		var again Selector
		written, _ := s.MarshalText()
		if err := again.UnmarshalText(written); err != nil || again != s {
			t.Fatalf("%q is written %q, which is %v, %v", text, written, again, err)
		}
	})
}

func TestLookupAllocatesNothing(t *testing.T) {
	switch runtime.GOARCH {
	case "arm", "mips", "mipsle":
		t.Skip("bart's lookups allocate here: netip.Addr.AsSlice is too complex to be inlined, so the 4 or 16 bytes escape")
	}
	d := NewDB()
	defer d.Close()
	load(t, d, shapes[0].nth, 100)
	i := inbound(t, params(t, 256))
	out, in := shapes[0].nth(42)
	noAllocs(t, "a lookup", func() {
		s := d.Acquire()
		s.Outbound(out.probe)
		s.AllowedIn(i, in.probe)
		s.Protected(in.probe)
		s.Inbound(256)
		s.Release()
	})
}

// policyAndFlow is a policy of a benchmark and a flow that it is for.
type policyAndFlow struct {
	Policy
	probe *Flow
}

// shapes are ways in which many policies lie together; each gives the nth outbound and inbound one.
var shapes = []struct {
	name string
	nth  func(n int) (out, in policyAndFlow)
}{
	// One network here, one at each of many sites.
	{"sites", func(n int) (out, in policyAndFlow) {
		there := netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0})
		return shape(n, netip.MustParsePrefix("192.168.0.0/16"), netip.PrefixFrom(there, 24))
	}},
	// Many networks here, each with a tunnel to the same one there.
	{"hub", func(n int) (out, in policyAndFlow) {
		here := netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 0})
		return shape(n, netip.PrefixFrom(here, 24), netip.MustParsePrefix("192.168.0.0/16"))
	}},
	// Single hosts, in IPv6.
	{"hosts", func(n int) (out, in policyAndFlow) {
		there := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
		return shape(n, netip.MustParsePrefix("2001:db8:1::/48"), netip.PrefixFrom(there, 128))
	}},
}

func shape(n int, here, there netip.Prefix) (out, in policyAndFlow) {
	name := fmt.Sprint(n)
	out.Policy = Policy{Name: name, Priority: n, Sel: Selector{Src: here, Dst: there}, Action: Protect, Reqid: uint32(n + 1)}
	out.probe = &Flow{Src: here.Addr(), Dst: there.Addr(), Proto: 6, HasPorts: true, SrcPort: 1, DstPort: 2}
	in.Policy = out.Policy
	in.Dir, in.Sel.Src, in.Sel.Dst = In, there, here
	in.probe = &Flow{Src: there.Addr(), Dst: here.Addr(), Proto: 6, HasPorts: true, SrcPort: 1, DstPort: 2}
	return out, in
}

// load adds policies, each with an update of its own, above a last one that lets everything pass.
func load(tb testing.TB, d *DB, shape func(int) (out, in policyAndFlow), n int) {
	add := func(p Policy) {
		if err := d.Update(func(tx *Tx) error { return tx.AddPolicy(p) }); err != nil {
			tb.Fatal(err)
		}
	}
	for _, dir := range []Dir{Out, In} {
		add(Policy{Name: "rest", Dir: dir, Priority: 1 << 20, Action: Bypass})
	}
	for i := range n {
		out, in := shape(i)
		add(out.Policy)
		add(in.Policy)
	}
}

func BenchmarkLoadPolicies(b *testing.B) {
	for _, shape := range shapes {
		b.Run(shape.name+"/10000 one by one, both directions", func(b *testing.B) {
			for b.Loop() {
				d := NewDB()
				load(b, d, shape.nth, 10_000)
				d.Close()
			}
		})
	}
}

func BenchmarkSnapshotOutbound(b *testing.B) {
	for _, shape := range shapes {
		for _, n := range []int{10, 10_000} {
			b.Run(fmt.Sprintf("%s/%d policies", shape.name, n), func(b *testing.B) {
				d := NewDB()
				defer d.Close()
				load(b, d, shape.nth, n)
				flows := make([]*Flow, 10) // a few busy ones, wherever they are
				for i := range flows {
					out, _ := shape.nth(i * (n / 10))
					flows[i] = out.probe
				}
				s := d.Acquire()
				defer s.Release()
				defer perPacket(b)()
				for i := 0; b.Loop(); i++ {
					if p, ok := s.Outbound(flows[i%len(flows)]); !ok || p.Action != Protect {
						b.Fatal(p)
					}
				}
			})
		}
	}
}
