package configs

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/gaissmai/bart"

	"culvert/sa"
)

// Policy is one entry of the SPD: one direction and one selector. A [[policy]] of direction "both" makes two, without
// addresses one per family, and the subnets of a tunnel one per pair and direction.
type Policy struct {
	Name     string // of the [[policy]], or of the tunnel
	Pos      Pos    // of what it was made from: the [[policy]], or the remote subnet
	Action   sa.Action
	Tunnel   string // of sa.Protect
	Dir      sa.Dir
	Sel      sa.Selector // source and destination as in the packet of that direction
	Priority int         // lower first
}

// rule is what one place of the file asks for, before it is turned into policies by direction.
type rule struct {
	name          string
	pos           Pos
	action        sa.Action
	tunnel        string
	local, remote netip.Prefix
	proto         uint8
	localPorts    sa.PortRange // ICMP: the type
	remotePorts   sa.PortRange // ICMP: the code
	priority      int
	out, in       bool
}

// policies collects the rules of a configuration.
type policies struct {
	l     *loader
	c     *Config
	rules []rule
	used  map[string]bool // tunnels that carry something
	asked []tunnelRef
}

// tunnelRef is a [[policy]]'s mention of a tunnel, checked when all tunnels are known.
type tunnelRef struct {
	r    *reader
	name string
}

// subnets makes the rules of a tunnel: one per pair of a local and a remote subnet of one family.
func (p *policies) subnets(r *reader, t *Tunnel, locals, remotes []placed[netip.Prefix], broken bool) {
	for _, side := range []struct {
		name, other string
		list, peers []placed[netip.Prefix]
	}{{"local_subnets", "remote_subnets", locals, remotes}, {"remote_subnets", "local_subnets", remotes, locals}} {
		if len(side.list) > 0 && len(side.peers) == 0 && !r.has(side.other) {
			r.require(side.other, "write the subnets of the other side of the tunnel: the policies are the pairs of both")
			continue
		}
		for _, a := range side.list {
			if len(side.peers) > 0 && !slices.ContainsFunc(side.peers, func(b placed[netip.Prefix]) bool { return b.v.Addr().Is4() == a.v.Addr().Is4() }) {
				p.l.fail(a.off, join(r.path, side.name), &problem{
					fmt.Sprintf("%v is %s, and no prefix in %s is", a.v, family(a.v.Addr()), side.other),
					"give both sides subnets of the same families", ErrConflict,
				})
			}
		}
	}
	for _, a := range locals {
		for _, b := range remotes {
			if a.v.Addr().Is4() == b.v.Addr().Is4() {
				p.rules = append(p.rules, rule{
					name: t.Name, pos: p.l.doc.pos(b.off), action: sa.Protect, tunnel: t.Name,
					local: a.v, remote: b.v, priority: t.Priority, out: true, in: true,
				})
			}
		}
	}
	if p.used == nil {
		p.used = make(map[string]bool)
	}
	if len(locals) > 0 || broken {
		p.used[t.Name] = true
	}
}

// protocol is an IP protocol that has a name in selectors.
type protocol struct {
	name   string
	number uint8
	ports  bool // has them
	icmp   bool // has type and code
}

// protocols are the names of the protocols that selectors use, with their numbers (IANA).
var protocols = []protocol{
	{"icmp", 1, false, true}, {"igmp", 2, false, false}, {"ipip", 4, false, false}, {"tcp", 6, true, false},
	{"udp", 17, true, false}, {"dccp", 33, true, false}, {"ipv6", 41, false, false}, {"gre", 47, false, false},
	{"esp", 50, false, false}, {"ah", 51, false, false}, {"icmpv6", 58, false, true}, {"ospf", 89, false, false},
	{"vrrp", 112, false, false}, {"l2tp", 115, false, false}, {"sctp", 132, true, false}, {"udplite", 136, true, false},
}

const (
	protoICMP   = 1
	protoICMPv6 = 58
)

var actionWords = []string{sa.Discard: "discard", sa.Protect: "protect", sa.Bypass: "bypass"}

var directionWords = []string{"both", "out", "in"}

// read reads one [[policy]].
func (p *policies) read(r *reader, names map[string]int) {
	before := len(p.l.errs)
	x := rule{priority: policyPriority, pos: p.l.doc.pos(r.t.off)}
	r.name(&x.name, names)
	if x.name == "" {
		x.name = strings.NewReplacer("[", "-", "]", "").Replace(r.path)
	}
	word(r, "action", &x.action, actionWords)
	r.require("action", `write "protect", "discard" or "bypass"`)
	r.str("tunnel", &x.tunnel, nil)
	direction := uint8(0)
	word(r, "direction", &direction, directionWords)
	x.out, x.in = directionWords[direction] != "in", directionWords[direction] != "out"
	get(r, "local", &x.local, kindString, network)
	get(r, "remote", &x.remote, kindString, network)
	p.ports(r, &x, p.protocol(r, &x))
	integer(r, "priority", &x.priority, 0, maxPriority, "")
	r.done()

	if x.local.IsValid() && x.remote.IsValid() && x.local.Addr().Is4() != x.remote.Addr().Is4() {
		r.fail("remote", &problem{fmt.Sprintf("%v is %s, and local %v is %s", x.remote, family(x.remote.Addr()), x.local, family(x.local.Addr())), "write two policies, one per family", ErrConflict})
	}
	switch {
	case x.action == sa.Protect:
		r.require("tunnel", "write the name of the tunnel that protects this traffic")
		if x.tunnel != "" {
			p.asked = append(p.asked, tunnelRef{r, x.tunnel})
		}
	case r.has("tunnel") && r.has("action"):
		r.fail("tunnel", &problem{fmt.Sprintf("what is to be %sed goes through no tunnel", strings.TrimSuffix(actionWords[x.action], "e")), `remove it, or write action = "protect"`, ErrConflict})
	}
	if x.action == sa.Bypass {
		for _, k := range []string{"protocol", "local_ports", "remote_ports", "icmp_type", "icmp_code"} {
			if r.has(k) {
				r.fail(k, &problem{"a bypass can select by addresses only, because it is a route that keeps the traffic out of the TUN", "remove it, or select by local and remote alone", ErrConflict})
			}
		}
		if directionWords[direction] != "both" {
			r.fail("direction", &problem{"a bypass is a route, for both directions", "remove it", ErrConflict})
		}
		if !x.local.IsValid() && !x.remote.IsValid() && !r.has("local") && !r.has("remote") {
			r.fail("action", &problem{"this bypass has no addresses: all traffic would go in clear", "write local or remote, or both", ErrConflict})
		}
	}
	if len(p.l.errs) == before {
		p.rules = append(p.rules, x)
	}
}

// protocol reads the protocol, by name or number, into the rule. The result is its row in protocols, nil if it has none.
func (p *policies) protocol(r *reader, x *rule) *protocol {
	v := r.take("protocol", kindString, kindInteger)
	if v == nil {
		return nil
	}
	if v.kind == kindString {
		names := []string{"any"}
		for i := range protocols {
			if protocols[i].name == string(v.text) {
				x.proto = protocols[i].number
			}
			names = append(names, protocols[i].name)
		}
		if x.proto == 0 && string(v.text) != "any" {
			n, err := strconv.ParseUint(string(v.text), 10, 8)
			if err != nil || n == 0 {
				pr := notOneOf(string(v.text), names)
				pr.mend = strings.Replace(pr.mend, " or ", ", ", 1) + ", or a number from 1 to 255"
				r.fail("protocol", pr)
				return nil
			}
			x.proto = uint8(n)
		}
	} else {
		n, pr := number(v, 1, 255, "")
		if pr != nil {
			pr.mend += `, or "any"`
			r.fail("protocol", pr)
			return nil
		}
		x.proto = uint8(n)
	}
	for _, f := range []struct {
		proto uint8
		is4   bool
		other string
	}{{protoICMP, true, "icmpv6"}, {protoICMPv6, false, "icmp"}} {
		for _, a := range []netip.Prefix{x.local, x.remote} {
			if x.proto == f.proto && a.IsValid() && a.Addr().Is4() != f.is4 {
				r.fail("protocol", &problem{fmt.Sprintf("%v is %s", a, family(a.Addr())), fmt.Sprintf("write %q", f.other), ErrConflict})
				return nil
			}
		}
	}
	for i := range protocols {
		if protocols[i].number == x.proto {
			return &protocols[i]
		}
	}
	return nil
}

// ports reads ports, or type and code of ICMP, into the rule.
func (p *policies) ports(r *reader, x *rule, proto *protocol) {
	for _, k := range []struct {
		name string
		dst  *sa.PortRange
	}{{"local_ports", &x.localPorts}, {"remote_ports", &x.remotePorts}} {
		v := r.take(k.name, kindString, kindInteger)
		if v == nil {
			continue
		}
		if proto == nil || !proto.ports {
			r.fail(k.name, &problem{"only tcp, udp, sctp, dccp and udplite have ports", `write protocol = "tcp", for example, or remove it`, ErrConflict})
			continue
		}
		lo, hi, isRange := strings.Cut(string(v.text), "-")
		if !isRange {
			hi = lo
		}
		a, errA := strconv.ParseUint(strings.TrimSpace(lo), 10, 16)
		b, errB := strconv.ParseUint(strings.TrimSpace(hi), 10, 16)
		switch {
		case errA != nil || errB != nil || a == 0 && b == 0:
			r.fail(k.name, bad(show(string(v.text))+" is not a port or a range of ports", `write one such as "443" or "1000-2000", from 1 to 65535; for any port leave it out`))
		case a > b:
			r.fail(k.name, bad(fmt.Sprintf("the range %d-%d ends before it begins", a, b), fmt.Sprintf(`write "%d-%d"`, b, a)))
		default:
			*k.dst = sa.PortRange{Lo: uint16(a), Hi: uint16(b)}
		}
	}
	for _, k := range []struct {
		name string
		dst  *sa.PortRange
	}{{"icmp_type", &x.localPorts}, {"icmp_code", &x.remotePorts}} {
		var n uint8
		if !integer(r, k.name, &n, 0, math.MaxUint8, "") {
			continue
		}
		if proto == nil || !proto.icmp {
			r.fail(k.name, &problem{"only icmp and icmpv6 have it", `write protocol = "icmp", or remove it`, ErrConflict})
			continue
		}
		*k.dst = sa.PortRange{Lo: uint16(n), Hi: uint16(n)}
	}
	if r.has("icmp_code") && !r.has("icmp_type") {
		r.fail("icmp_code", &problem{"a code means something only with its type", "write icmp_type as well", ErrConflict})
	}
}

// finish checks the rules against the tunnels and each other, and makes the policies of them.
func (p *policies) finish() {
	for _, ref := range p.asked {
		if p.c.Tunnel(ref.name) != nil {
			p.used[ref.name] = true
			continue
		}
		var names []string
		for _, t := range p.c.Tunnels {
			names = append(names, t.Name)
		}
		mend := "write [[tunnel]] with this name"
		if near := nearest(ref.name, names); near != "" {
			mend = fmt.Sprintf("perhaps %q is meant", near)
		}
		ref.r.fail("tunnel", &problem{"there is no tunnel " + show(ref.name), mend, ErrConflict})
	}
	for _, t := range p.c.Tunnels {
		if !p.used[t.Name] && t.Name != "" {
			p.l.warnings = append(p.l.warnings, Warning{t.Pos, "tunnel." + t.Name, "no subnets and no policy lead traffic through it"})
		}
	}
	for _, x := range p.rules {
		for _, y := range x.families() {
			p.c.Policies = append(p.c.Policies, y.policies()...)
		}
	}
	p.overlaps()
	p.loops()
}

// families fills in the addresses that a rule leaves open: of the family of the other side, or of both.
func (x rule) families() []rule {
	any4, any6 := netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	var out []rule
	for _, anything := range []netip.Prefix{any4, any6} {
		is4 := anything.Addr().Is4()
		if x.proto == protoICMP && !is4 || x.proto == protoICMPv6 && is4 {
			continue
		}
		y := x
		for _, side := range []*netip.Prefix{&y.local, &y.remote} {
			if !side.IsValid() {
				*side = anything
			}
		}
		if y.local.Addr().Is4() == is4 && y.remote.Addr().Is4() == is4 {
			out = append(out, y)
		}
	}
	return out
}

// policies turns a rule into one policy per direction.
func (x rule) policies() []*Policy {
	base := Policy{Name: x.name, Pos: x.pos, Action: x.action, Tunnel: x.tunnel, Priority: x.priority}
	var ps []*Policy
	if x.out {
		out := base
		out.Dir = sa.Out
		out.Sel = sa.Selector{Src: x.local, Dst: x.remote, Proto: x.proto, SrcPorts: x.localPorts, DstPorts: x.remotePorts}
		ps = append(ps, &out)
	}
	if x.in {
		in := base
		in.Dir = sa.In
		in.Sel = sa.Selector{Src: x.remote, Dst: x.local, Proto: x.proto, SrcPorts: x.remotePorts, DstPorts: x.localPorts}
		if x.proto == protoICMP || x.proto == protoICMPv6 {
			in.Sel.SrcPorts, in.Sel.DstPorts = x.localPorts, x.remotePorts // type and code have no sides
		}
		ps = append(ps, &in)
	}
	return ps
}

// overlaps finds policies between which nothing decides: selectors that share traffic, at the same priority. With different
// effects that is a mistake, and with the same one too if the one lies wholly within the other and so does nothing. Every
// policy is reported once.
//
// Candidates come from a table of prefixes, of the side of the selectors that has more different ones: ten thousand policies
// are checked in the time of a few hundred thousand comparisons and not of a hundred million.
func (p *policies) overlaps() {
	type group struct {
		dir      sa.Dir
		priority int
	}
	groups := make(map[group][]*Policy)
	for _, q := range p.c.Policies {
		g := group{q.Dir, q.Priority}
		groups[g] = append(groups[g], q)
	}
	reported := make(map[Pos]bool)
	for _, dir := range []sa.Dir{sa.Out, sa.In} {
		for g, ps := range groups {
			if g.dir == dir {
				p.overlapsIn(ps, reported)
			}
		}
	}
}

func (p *policies) overlapsIn(ps []*Policy, reported map[Pos]bool) {
	srcs, dsts := make(map[netip.Prefix]bool), make(map[netip.Prefix]bool)
	for _, q := range ps {
		srcs[q.Sel.Src], dsts[q.Sel.Dst] = true, true
	}
	side := func(q *Policy) netip.Prefix { return q.Sel.Dst }
	if len(srcs) > len(dsts) {
		side = func(q *Policy) netip.Prefix { return q.Sel.Src }
	}
	var table bart.Table[[]*Policy]
	for _, q := range ps {
		if first := p.clash(&table, side(q), q); first != nil && !reported[q.Pos] {
			reported[q.Pos] = true
			p.reportOverlap(q, first)
		}
		before, _ := table.Get(side(q))
		table.Insert(side(q), append(before, q))
	}
}

// clash returns an earlier policy of the table that clashes with q.
func (p *policies) clash(table *bart.Table[[]*Policy], prefix netip.Prefix, q *Policy) *Policy {
	for _, near := range []func(netip.Prefix) func(func(netip.Prefix, []*Policy) bool){
		func(pfx netip.Prefix) func(func(netip.Prefix, []*Policy) bool) { return table.Supernets(pfx) },
		func(pfx netip.Prefix) func(func(netip.Prefix, []*Policy) bool) { return table.Subnets(pfx) },
	} {
		for _, others := range near(prefix) {
			for _, o := range others {
				if o.Pos == q.Pos || !overlap(&o.Sel, &q.Sel) {
					continue
				}
				if !sameEffect(o, q) || within(&o.Sel, &q.Sel) || within(&q.Sel, &o.Sel) {
					return o
				}
			}
		}
	}
	return nil
}

// sameEffect says whether it makes no difference which of two policies decides. Inbound it is the SA of the packet that says
// which tunnel it came from, not the policy.
func sameEffect(a, b *Policy) bool {
	return a.Action == b.Action && (a.Tunnel == b.Tunnel || a.Dir == sa.In)
}

func (p *policies) reportOverlap(q, first *Policy) {
	key := "policy." + q.Name
	if q.Tunnel == q.Name && p.c.Tunnel(q.Name) != nil && p.l.places[key] == (Pos{}) {
		key = "tunnel." + q.Name + ".remote_subnets"
	}
	what := fmt.Sprintf("%s shares traffic with %s (%s) at %v, and both have priority %d", describe(&q.Sel), describe(&first.Sel), effect(first), first.Pos, q.Priority)
	mend := "write a priority for the one that is to decide: the lower goes first"
	if sameEffect(q, first) {
		what = fmt.Sprintf("%s and %s at %v do the same, and the one contains the other", describe(&q.Sel), describe(&first.Sel), first.Pos)
		mend = "remove the smaller"
	}
	p.l.errs = append(p.l.errs, &Error{Pos: q.Pos, Key: key, What: what, Mend: mend, Class: ErrConflict})
}

func effect(q *Policy) string {
	if q.Action == sa.Protect {
		return "tunnel " + q.Tunnel
	}
	return actionWords[q.Action]
}

// describe writes a selector for people.
func describe(s *sa.Selector) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v > %v", s.Src, s.Dst)
	if s.Proto == 0 {
		return b.String()
	}
	name := strconv.Itoa(int(s.Proto))
	icmp := false
	for i := range protocols {
		if protocols[i].number == s.Proto {
			name, icmp = protocols[i].name, protocols[i].icmp
		}
	}
	b.WriteString(" " + name)
	labels := [2]string{" from port ", " to port "}
	if icmp {
		labels = [2]string{" type ", " code "}
	}
	for i, r := range [2]sa.PortRange{s.SrcPorts, s.DstPorts} {
		switch {
		case r == (sa.PortRange{}):
		case r.Lo == r.Hi:
			fmt.Fprintf(&b, "%s%d", labels[i], r.Lo)
		default:
			fmt.Fprintf(&b, "%s%d-%d", labels[i], r.Lo, r.Hi)
		}
	}
	return b.String()
}

func overlap(a, b *sa.Selector) bool {
	return a.Src.Overlaps(b.Src) && a.Dst.Overlaps(b.Dst) &&
		(a.Proto == 0 || b.Proto == 0 || a.Proto == b.Proto && portsOverlap(a.SrcPorts, b.SrcPorts) && portsOverlap(a.DstPorts, b.DstPorts))
}

func portsOverlap(a, b sa.PortRange) bool {
	none := sa.PortRange{}
	return a == none || b == none || a.Lo <= b.Hi && b.Lo <= a.Hi
}

// within says whether everything that a selects, b selects too.
func within(a, b *sa.Selector) bool {
	covers := func(x, y netip.Prefix) bool { return x.Bits() <= y.Bits() && x.Contains(y.Addr()) }
	holds := func(x, y sa.PortRange) bool {
		none := sa.PortRange{}
		return x == none || y != none && x.Lo <= y.Lo && y.Hi <= x.Hi
	}
	return covers(b.Src, a.Src) && covers(b.Dst, a.Dst) &&
		(b.Proto == 0 || b.Proto == a.Proto && holds(b.SrcPorts, a.SrcPorts) && holds(b.DstPorts, a.DstPorts))
}

// loops warns of a peer that lies in a subnet behind the tunnel: what is sent to it sealed would be routed into the TUN again,
// unless a bypass takes it out.
func (p *policies) loops() {
	for _, t := range p.c.Tunnels {
		if !t.Remote.IsValid() {
			continue
		}
		bypassed := func(q *Policy) bool {
			return q.Dir == sa.Out && q.Action == sa.Bypass && q.Sel.Dst.Contains(t.Remote) && q.Sel.Src.Contains(t.Local)
		}
		for _, q := range p.c.Policies {
			if q.Dir == sa.Out && q.Action == sa.Protect && q.Sel.Dst.Contains(t.Remote) && !slices.ContainsFunc(p.c.Policies, bypassed) {
				key := "tunnel." + t.Name + ".remote"
				p.l.warnings = append(p.l.warnings, Warning{p.c.Pos(key), key, fmt.Sprintf(
					"%v lies in %v of the policy at %v: add a [[policy]] with action = \"bypass\" and remote = \"%v/%d\" so that sealed packets stay out of the TUN",
					t.Remote, q.Sel.Dst, q.Pos, t.Remote, t.Remote.BitLen())})
				break
			}
		}
	}
}
