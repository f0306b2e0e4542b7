package configs

import (
	"fmt"
	"iter"
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
	Name     string // unique in its direction: "web", "web(ipv6)", or of a tunnel's subnets "branch(10.1.0.0/16,10.2.0.0/16)"
	Pos      Pos    // of what it was made from: the [[policy]], or the remote subnet
	Action   sa.Action
	Tunnel   string // of sa.Protect
	Dir      sa.Dir
	Sel      sa.Selector // source and destination as in the packet of that direction
	Priority int         // lower first
	key      string      // what it was made from, for Config.Pos
}

// rule is what one place of the file asks for, before it is turned into policies by direction.
type rule struct {
	name          string
	key           string
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
					name: fmt.Sprintf("%s(%v,%v)", t.Name, a.v, b.v), key: join(r.path, "remote_subnets"), pos: p.l.doc.pos(b.off),
					action: sa.Protect, tunnel: t.Name, local: a.v, remote: b.v, priority: t.Priority, out: true, in: true,
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

const (
	protoICMP   = 1
	protoICMPv6 = 58
)

// protocols are the protocols that have a name, or ports: as package sa writes and takes them, so that there is one table.
var protocols = func() []protocol {
	var ps []protocol
	for n := 1; n <= 255; n++ {
		p := protocol{number: uint8(n), icmp: n == protoICMP || n == protoICMPv6}
		s := sa.Selector{Proto: p.number}
		p.name = strings.TrimPrefix(s.String(), "proto ")
		s.DstPorts = sa.OnePort(1)
		p.ports = s.Validate() == nil && !p.icmp
		if p.ports || p.name != strconv.Itoa(n) {
			ps = append(ps, p)
		}
	}
	return ps
}()

var actionWords = []string{sa.Discard: sa.Discard.String(), sa.Protect: sa.Protect.String(), sa.Bypass: sa.Bypass.String()}

var directionWords = []string{"both", "out", "in"}

// read reads one [[policy]].
func (p *policies) read(r *reader, names map[string]int) {
	before := len(p.l.errs)
	x := rule{key: r.path, priority: policyPriority, pos: p.l.doc.pos(r.t.off)}
	r.name(&x.name, names)
	if x.name == "" {
		x.name = strings.NewReplacer("[", "-", "]", "").Replace(r.path)
	}
	word(r, "action", &x.action, actionWords)
	r.require("action", `write "protect", "discard" or "bypass"`)
	named := r.str("tunnel", &x.tunnel, "write the name of a tunnel in quotes", nil)
	direction := uint8(0)
	word(r, "direction", &direction, directionWords)
	x.out, x.in = directionWords[direction] != "in", directionWords[direction] != "out"
	prefix := network
	if x.action == sa.Protect {
		prefix = subnet
	}
	get(r, "local", &x.local, networkMend, kindString, prefix)
	get(r, "remote", &x.remote, networkMend, kindString, prefix)
	p.ports(r, &x, p.protocol(r, &x))
	integer(r, "priority", &x.priority, 0, maxPriority, "")
	r.done()

	if x.local.IsValid() && x.remote.IsValid() && x.local.Addr().Is4() != x.remote.Addr().Is4() {
		r.fail("remote", &problem{fmt.Sprintf("%v is %s, and local %v is %s", x.remote, family(x.remote.Addr()), x.local, family(x.local.Addr())), "write two policies, one per family, or both of one family", ErrConflict})
	}
	switch {
	case x.action == sa.Protect:
		r.require("tunnel", "write the name of the tunnel that protects this traffic")
		if named {
			p.asked = append(p.asked, tunnelRef{r, x.tunnel})
		}
	case r.has("tunnel") && r.has("action"):
		r.fail("tunnel", &problem{fmt.Sprintf("what is to be %sed goes through no tunnel", strings.TrimSuffix(actionWords[x.action], "e")), `remove it, or write action = "protect"`, ErrConflict})
	}
	if x.action == sa.Bypass {
		for _, k := range []string{"local", "protocol", "local_ports", "remote_ports", "icmp_type", "icmp_code"} {
			if r.has(k) {
				r.fail(k, &problem{"a bypass selects by remote addresses only, because it is a route that keeps traffic to them out of the TUN", "remove it, and let remote be what is to be reached in clear", ErrConflict})
			}
		}
		if directionWords[direction] != "both" {
			r.fail("direction", &problem{"a bypass is a route, for both directions", "remove it", ErrConflict})
		}
		r.require("remote", "write the prefix that is to be reached in clear")
	}
	if len(p.l.errs) == before {
		p.rules = append(p.rules, x)
	}
}

// protocol reads the protocol, by name or number, into the rule. The result has ports or ICMP types if that protocol does, and
// is nil if there is a mistake.
func (p *policies) protocol(r *reader, x *rule) *protocol {
	names := []string{"any"}
	for _, q := range protocols {
		names = append(names, q.name)
	}
	mend := "write " + orList(names) + ", or a number from 1 to 255 without quotes"
	v := r.take("protocol", mend, kindString, kindInteger)
	if v == nil {
		if r.has("protocol") {
			return nil
		}
		return &protocol{}
	}
	if text := string(v.text); v.kind == kindInteger {
		n, pr := number(v, 1, 255, mend)
		if pr != nil {
			r.fail("protocol", pr)
			return nil
		}
		x.proto = uint8(n)
	} else if text != "any" {
		s, err := sa.ParseSelector("proto " + text)
		if err != nil || strings.ContainsAny(text, " \t\n") {
			pr := bad(show(text)+" is no protocol", mend)
			if near := nearest(text, names); near != "" {
				pr.mend = fmt.Sprintf("perhaps %q is meant; %s", near, pr.mend)
			}
			r.fail("protocol", pr)
			return nil
		}
		x.proto = s.Proto
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
	return &protocol{}
}

// ports reads ports, or type and code of ICMP, into the rule. proto is nil if it is not known because of a mistake.
func (p *policies) ports(r *reader, x *rule, proto *protocol) {
	for _, k := range []struct {
		name string
		dst  *sa.PortRange
	}{{"local_ports", &x.localPorts}, {"remote_ports", &x.remotePorts}} {
		const mend = `write one such as "443" or "1000-2000", from 1 to 65535, or "opaque" for later fragments; for any port leave it out`
		v := r.take(k.name, mend, kindString, kindInteger)
		if v == nil {
			continue
		}
		if proto != nil && !proto.ports {
			var with []string
			for _, q := range protocols {
				if q.ports {
					with = append(with, q.name)
				}
			}
			r.fail(k.name, &problem{"ports need a protocol that has them", "write protocol = " + orList(with) + ", or remove it", ErrConflict})
			continue
		}
		lo, hi, isRange := strings.Cut(string(v.text), "-")
		if !isRange {
			hi = lo
		}
		a, errA := strconv.ParseUint(strings.TrimSpace(lo), 10, 16)
		b, errB := strconv.ParseUint(strings.TrimSpace(hi), 10, 16)
		switch {
		case string(v.text) == "opaque":
			*k.dst = sa.Opaque
		case a == 0 && b == math.MaxUint16:
			// Any port, as it is written elsewhere.
		case errA != nil || errB != nil || a == 0 || b == 0:
			r.fail(k.name, bad(show(string(v.text))+" is not a port or a range of ports", mend))
		case a > b:
			r.fail(k.name, bad(fmt.Sprintf("the range %d-%d ends before it begins", a, b), fmt.Sprintf(`write "%d-%d"`, b, a)))
		case a == 1 && b == math.MaxUint16:
			// Any port: later fragments, whose ports nobody knows, are meant too then.
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
		switch {
		case proto != nil && !proto.icmp:
			r.fail(k.name, &problem{"only icmp and icmpv6 have it", `write protocol = "icmp", or remove it`, ErrConflict})
		case k.name == "icmp_code" && !r.has("icmp_type"):
			r.fail(k.name, &problem{"a code means something only with its type", "write icmp_type as well", ErrConflict})
		}
		*k.dst = sa.OnePort(uint16(n))
	}
}

// finish checks the rules against the tunnels and each other, and makes the policies of them.
func (p *policies) finish() {
	p.c.index()
	for _, ref := range p.asked {
		if p.c.Tunnel(ref.name) != nil {
			p.used[ref.name] = true
			continue
		}
		var names []string
		for _, t := range p.c.Tunnels {
			names = append(names, t.Name)
		}
		mend := "write the name of a [[tunnel]], or a [[tunnel]] with this name"
		if identifier(ref.name) != "" {
			mend = "write the name of a [[tunnel]]"
		}
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
	p.bypasses()
	p.peersInside()
}

// peersInside warns of a peer whose outer address is among those that its own tunnel protects. The gateway's ESP goes past the
// tunnel all the same, which is what makes 0.0.0.0/0 possible; but nothing else that is sent to the peer does, such as IKE or
// a login to mend things. Whoever protects everything, or the peer's address alone, means that.
func (p *policies) peersInside() {
	var bypassed bart.Lite
	for _, b := range p.c.Policies {
		if b.Action == sa.Bypass && b.Dir == sa.Out {
			bypassed.Insert(b.Sel.Dst)
		}
	}
	for _, q := range p.c.Policies {
		if q.Action != sa.Protect || q.Dir != sa.Out {
			continue
		}
		t := p.c.Tunnel(q.Tunnel)
		if t == nil {
			continue // a mistake that is told elsewhere
		}
		peer := t.Remote
		if !peer.IsValid() || !q.Sel.Dst.Contains(peer) || q.Sel.Dst.Bits() == 0 || q.Sel.Dst.IsSingleIP() {
			continue
		}
		if bypassed.Contains(peer) {
			continue
		}
		p.l.warnings = append(p.l.warnings, Warning{q.Pos, q.key, fmt.Sprintf(
			"the peer's own address %v is in %v: what this host sends to it, such as a ping, a login or IKE, goes into its tunnel, all but ESP; a [[policy]] with action = \"bypass\" and remote = \"%v/%d\" keeps it outside",
			peer, q.Sel.Dst, peer, peer.BitLen())})
	}
}

// families fills in the addresses that a rule leaves open: of the family of the other side, or of both.
func (x rule) families() []rule {
	var out []rule
	for _, f := range []struct {
		name string
		any  netip.Prefix
		icmp uint8 // the ICMP of the other family
	}{
		{"ipv4", netip.PrefixFrom(netip.IPv4Unspecified(), 0), protoICMPv6},
		{"ipv6", netip.PrefixFrom(netip.IPv6Unspecified(), 0), protoICMP},
	} {
		if x.proto == f.icmp {
			continue
		}
		y := x
		for _, side := range []*netip.Prefix{&y.local, &y.remote} {
			if !side.IsValid() {
				*side = f.any
			}
		}
		if is4 := f.any.Addr().Is4(); y.local.Addr().Is4() != is4 || y.remote.Addr().Is4() != is4 {
			continue
		}
		if !x.local.IsValid() && !x.remote.IsValid() {
			y.name = fmt.Sprintf("%s(%s)", x.name, f.name)
		}
		out = append(out, y)
	}
	return out
}

// policies turns a rule into one policy per direction.
func (x rule) policies() []*Policy {
	base := Policy{Name: x.name, Pos: x.pos, key: x.key, Action: x.action, Tunnel: x.tunnel, Priority: x.priority}
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
	for o := range sharing(table, prefix) {
		if o.Pos == q.Pos || !o.Sel.Overlaps(&q.Sel) {
			continue
		}
		if !sameEffect(o, q) || within(&o.Sel, &q.Sel) || within(&q.Sel, &o.Sel) {
			return o
		}
	}
	return nil
}

// sharing gives the policies of a table whose prefix shares addresses with the given one. One may come twice.
func sharing(table *bart.Table[[]*Policy], prefix netip.Prefix) iter.Seq[*Policy] {
	return func(yield func(*Policy) bool) {
		for _, near := range []iter.Seq2[netip.Prefix, []*Policy]{table.Supernets(prefix), table.Subnets(prefix)} {
			for _, others := range near {
				for _, o := range others {
					if !yield(o) {
						return
					}
				}
			}
		}
	}
}

// sameEffect says whether it makes no difference which of two policies decides. Inbound it is the SA of the packet that says
// which tunnel it came from, not the policy.
func sameEffect(a, b *Policy) bool {
	return a.Action == b.Action && (a.Tunnel == b.Tunnel || a.Dir == sa.In)
}

func (p *policies) reportOverlap(q, first *Policy) {
	what := fmt.Sprintf("%v (%s) shares traffic with %v (%s) at %v, and both have priority %d", q.Sel, effect(q), first.Sel, effect(first), first.Pos, q.Priority)
	mend := "write a priority for the one that is to decide: the lower goes first"
	if sameEffect(q, first) {
		what = fmt.Sprintf("%v (%s) and %v at %v do the same, and the one contains the other", q.Sel, effect(q), first.Sel, first.Pos)
		mend = "remove the smaller"
	}
	p.l.errs = append(p.l.errs, &Error{Pos: q.Pos, Key: q.key, What: what, Mend: mend, Class: ErrConflict})
}

func effect(q *Policy) string {
	if q.Action == sa.Protect {
		return "tunnel " + q.Tunnel
	}
	return q.Action.String()
}

// within says whether everything that a selects, b selects too.
func within(a, b *sa.Selector) bool {
	covers := func(x, y netip.Prefix) bool { return x.Bits() <= y.Bits() && x.Contains(y.Addr()) }
	return covers(b.Src, a.Src) && covers(b.Dst, a.Dst) &&
		(b.Proto == 0 || b.Proto == a.Proto && portsWithin(a.SrcPorts, b.SrcPorts) && portsWithin(a.DstPorts, b.DstPorts))
}

func portsWithin(a, b sa.PortRange) bool {
	switch everything, zero := (sa.PortRange{}), sa.OnePort(0); {
	case b == everything || a == b:
		return true
	case a == everything || a == sa.Opaque || b == sa.Opaque || b == zero:
		return false
	case a == zero:
		return b.Lo == 0
	}
	return b.Lo <= a.Lo && a.Hi <= b.Hi
}

// bypasses checks that the routes, of which the most specific goes first, decide as the priorities say. A bypass is a route
// past the TUN, the policies that protect are routes into it, and only what is in the TUN is discarded.
func (p *policies) bypasses() {
	reported := make(map[Pos]bool)
	var table bart.Table[[]*Policy]
	for _, q := range p.c.Policies {
		if q.Dir == sa.Out && q.Action != sa.Bypass {
			before, _ := table.Get(q.Sel.Dst)
			table.Insert(q.Sel.Dst, append(before, q))
		}
	}
	for _, b := range p.c.Policies {
		if b.Action != sa.Bypass || b.Dir != sa.Out {
			continue
		}
		for q := range sharing(&table, b.Sel.Dst) {
			if reported[b.Pos] {
				break
			}
			if q.Priority == b.Priority {
				continue
			}
			past := q.Action == sa.Discard || q.Sel.Dst.Bits() < b.Sel.Dst.Bits()
			switch bypassFirst := b.Priority < q.Priority; {
			case past && !bypassFirst:
				reported[b.Pos] = true
				mend := fmt.Sprintf("write priority = %d or less if the traffic is to go in clear, or remove the bypass", q.Priority-1)
				if q.Priority == 0 {
					mend = fmt.Sprintf("give the other a priority above %d if the traffic is to go in clear, or remove the bypass", b.Priority)
				}
				p.l.errs = append(p.l.errs, &Error{
					Pos: b.Pos, Key: b.key, Class: ErrConflict,
					What: fmt.Sprintf("its route to %v leads past the policy %v (%s) at %v, whose priority %d is before its %d", b.Sel.Dst, q.Sel, effect(q), q.Pos, q.Priority, b.Priority),
					Mend: mend,
				})
			case !past && bypassFirst:
				reported[b.Pos] = true
				mend := "write a more specific remote"
				if q.Priority < maxPriority {
					mend += fmt.Sprintf(", or priority = %d or more", q.Priority+1)
				}
				p.l.errs = append(p.l.errs, &Error{
					Pos: b.Pos, Key: b.key, Class: ErrConflict,
					What: fmt.Sprintf("its priority %d is before the %d of the policy %v (%s) at %v, but its route to %v is not more specific", b.Priority, q.Priority, q.Sel, effect(q), q.Pos, b.Sel.Dst),
					Mend: mend,
				})
			}
		}
	}
}
