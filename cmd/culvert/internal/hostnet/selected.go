package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PolicyTable is the routing table of what an IKE daemon's policies select. It is apart from Table because it is for packets from
// the policies' local subnets alone: a daemon may well select everything as remote, and the host's other traffic goes on.
const PolicyTable = 4304

// The preferences of the rules for an IKE daemon, beside those of a Plan.
const (
	prefIKE      = 199
	prefNear     = 203 // shared with prefLocal
	prefRefuse   = 205
	prefPolicies = 213
	prefOwn      = 214
	prefUnbound  = 215
	prefPast     = 216

	actionNop = 3 // FR_ACT_NOP of linux/fib_rules.h
)

// Selected is what a policy of an IKE daemon protects.
type Selected struct {
	Pair
	// MTU is the inner MTU in bytes of the route into the TUN. 0: there is no route, and what is selected is refused. Bypass: it goes
	// past the TUN.
	MTU int
}

// Bypass is Selected.MTU of what goes past the TUN, whatever else selects it.
const Bypass = -1

// Daemon is what the host has for an IKE daemon's policies, as Serve sets it.
type Daemon struct {
	TUN   string   // name
	Guard bool     // refuse what is selected where there is no TUN, and what comes in clear
	Ports []uint16 // UDP ports that the daemon sends IKE from
	// LocalByDefault is as Plan's.
	LocalByDefault bool
}

// selection is the state behind Serve, Select and Deselect. It is guarded by Host.mu.
type selection struct {
	Daemon
	tun      int // interface index
	have     map[Pair]int
	byRemote map[netip.Prefix]map[Pair]struct{}
	byLocal  map[netip.Prefix]int
	refs     map[key]int
	routes   map[key]netlink.Route
	rules    map[key]*netlink.Rule
}

// Serve prepares h for an IKE daemon's policies. What earlier processes had guarded for one is taken over, as guarded and no more: it
// is given back by Deselect, or by Remove.
func (h *Host) Serve(d Daemon) ([]Pair, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l, err := h.tun(&Plan{TUN: d.TUN})
	if err != nil {
		return nil, err
	}
	h.sel = &selection{
		Daemon: d, tun: l.Attrs().Index, have: map[Pair]int{}, byRemote: map[netip.Prefix]map[Pair]struct{}{}, byLocal: map[netip.Prefix]int{},
		refs: map[key]int{}, routes: map[key]netlink.Route{}, rules: map[key]*netlink.Rule{},
	}
	kept, err := h.kept()
	if err != nil || !d.Guard {
		return nil, err
	}
	var errs []error
	for _, p := range kept {
		errs = append(errs, h.change(p, 0, true))
	}
	return kept, errors.Join(errs...)
}

// kept are the pairs that the host's rules refuse.
func (h *Host) kept() ([]Pair, error) {
	rules, err := h.ourRules()
	if err != nil {
		return nil, err
	}
	have := map[Pair]bool{}
	for i := range rules {
		if r := &rules[i]; r.Priority == prefRefuse {
			have[Pair{Remote: prefixOf(r.Src), Local: prefixOf(r.Dst)}] = true
		}
	}
	// Halves are one again, first of the one side, then of the other.
	for _, side := range []func(*Pair) *netip.Prefix{func(p *Pair) *netip.Prefix { return &p.Remote }, func(p *Pair) *netip.Prefix { return &p.Local }} {
		for p := range have {
			low := p
			if b := side(&low); b.Bits() != 1 || b.Addr().AsSlice()[0] != 0 {
				continue
			}
			high, whole := low, low
			*side(&high) = prefixOf(sides(netip.PrefixFrom(side(&low).Addr(), 0))[1])
			*side(&whole) = netip.PrefixFrom(side(&low).Addr(), 0)
			if have[high] {
				delete(have, low)
				delete(have, high)
				have[whole] = true
			}
		}
	}
	var all []Pair
	for p := range have {
		all = append(all, p)
	}
	return all, nil
}

// Select has the host send what is selected into the TUN, or refuse it. What is new stands before what it replaces goes. With an error
// part of it may not stand, and is tried again by Apply.
func (h *Host) Select(s Selected) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.change(s.Pair, s.MTU, true)
}

// Deselect gives a pair up: its traffic takes any way there is.
func (h *Host) Deselect(p Pair) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.change(p, 0, false)
}

// change makes a pair selected or not.
func (h *Host) change(p Pair, mtu int, want bool) error {
	s := h.sel
	p = Pair{Remote: p.Remote.Masked(), Local: p.Local.Masked()}
	was, had := s.have[p]
	if had == want && was == mtu {
		return nil
	}
	var oldRoutes []netlink.Route
	var oldRules []*netlink.Rule
	if had {
		oldRoutes, oldRules = s.routesOf(p, was), s.rulesOf(p, was)
	}
	f := famIndex(p.Local.Addr())
	takes, took := want && mtu != Bypass, had && was != Bypass
	locals := len(s.byLocal)
	switch {
	case takes && !took:
		s.byLocal[p.Local]++
	case took && !takes:
		if s.byLocal[p.Local]--; s.byLocal[p.Local] == 0 {
			delete(s.byLocal, p.Local)
		}
	}
	switch {
	case want && !had:
		if s.byRemote[p.Remote] == nil {
			s.byRemote[p.Remote] = map[Pair]struct{}{}
		}
		s.byRemote[p.Remote][p] = struct{}{}
	case had && !want:
		if delete(s.byRemote[p.Remote], p); len(s.byRemote[p.Remote]) == 0 {
			delete(s.byRemote, p.Remote)
		}
	}
	delete(s.have, p)
	var errs []error
	if want {
		s.have[p] = mtu
		for _, r := range s.routesOf(p, mtu) {
			errs = append(errs, h.addRoute(r))
		}
		for _, r := range s.rulesOf(p, mtu) {
			errs = append(errs, h.addRule(r))
		}
	}
	// From the front: while rules of the guard stand, the targets of those that jump over it must.
	for _, r := range slices.Backward(oldRules) {
		errs = append(errs, h.dropRule(r))
	}
	for _, r := range slices.Backward(oldRoutes) {
		errs = append(errs, h.dropRoute(r))
	}
	if len(s.byLocal) != locals {
		errs = append(errs, h.unboundNow(f))
	}
	return errors.Join(errs...)
}

func famIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// addRoute lays a route, or counts one more pair that needs it.
func (h *Host) addRoute(r netlink.Route) error {
	s, k := h.sel, routeKey(&r)
	s.refs[k]++
	if r.LinkIndex != 0 {
		h.complete(&r)
	}
	if have, ok := s.routes[k]; ok && sameRoute(&have, &r) {
		return nil
	}
	s.routes[k] = r
	if err := h.nl.RouteReplace(&r); err != nil {
		return fmt.Errorf("lay the route to %s in table %d: %w", r.Dst, PolicyTable, err)
	}
	return nil
}

// complete gives the route to a remote subnet what follows from all pairs that it is of: the smallest MTU, and a source.
func (h *Host) complete(r *netlink.Route) {
	remote := prefixOf(r.Dst)
	r.MTU = 0
	var from []netip.Addr
	for p := range h.sel.byRemote[remote] {
		mtu := h.sel.have[p]
		if mtu <= 0 {
			continue
		}
		if r.MTU == 0 || mtu < r.MTU {
			r.MTU = mtu
		}
		if a := h.own(p.Local); a.IsValid() {
			from = append(from, a)
		}
	}
	if r.MTU > 0 {
		r.MTU = routeMTU(remote, r.MTU)
	}
	r.Src = nil
	if len(from) > 0 {
		r.Src = slices.MinFunc(from, netip.Addr.Compare).AsSlice()
	}
}

func (h *Host) dropRoute(r netlink.Route) error {
	s, k := h.sel, routeKey(&r)
	if s.refs[k]--; s.refs[k] > 0 {
		if r.LinkIndex == 0 {
			return nil
		}
		h.complete(&r) // for those that are left
		if have := s.routes[k]; sameRoute(&have, &r) {
			return nil
		}
		s.routes[k] = r
		return h.nl.RouteReplace(&r)
	}
	delete(s.refs, k)
	delete(s.routes, k)
	if err := h.nl.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete the route to %s: %w", r.Dst, err)
	}
	return nil
}

func (h *Host) addRule(r *netlink.Rule) error {
	s, k := h.sel, ruleKey(r)
	if s.refs[k]++; s.refs[k] > 1 {
		return nil
	}
	s.rules[k] = r
	return h.layRule(r)
}

// layRule adds one rule. That it is there already is right if it is this one.
func (h *Host) layRule(r *netlink.Rule) error {
	err := h.nl.RuleAdd(r)
	if errors.Is(err, unix.EEXIST) {
		return h.addRules([]*netlink.Rule{r}, nil)
	}
	if err != nil {
		return fmt.Errorf("add the %s: %w", ruleText(r), err)
	}
	return nil
}

func (h *Host) dropRule(r *netlink.Rule) error {
	s, k := h.sel, ruleKey(r)
	if s.refs[k]--; s.refs[k] > 0 {
		return nil
	}
	delete(s.refs, k)
	delete(s.rules, k)
	if h.planned[k] {
		return nil // the static tunnels have it too
	}
	if err := h.nl.RuleDel(r); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete the %s: %w", ruleText(r), err)
	}
	return nil
}

// routesOf are a pair's routes, in the order in which they are laid. Several pairs may have the same.
func (s *selection) routesOf(p Pair, mtu int) []netlink.Route {
	var all []netlink.Route
	add := func(dst netip.Prefix, r netlink.Route) {
		r.Dst, r.Table, r.Protocol, r.Family = ipnet(dst, false), PolicyTable, protocol, family(dst.Addr())
		all = append(all, r)
	}
	throw := netlink.Route{Type: unix.RTN_THROW, Priority: metricTUN + 1}
	if mtu == Bypass {
		add(p.Remote, throw)
		return all
	}
	if contains(p.Remote, p.Local) && p.Remote != p.Local {
		add(p.Local, throw)
	}
	if p.Remote.Bits() == 0 && p.Remote.Addr().Is6() {
		add(linkLocal, throw)
	}
	if s.Guard {
		add(p.Remote, netlink.Route{Type: unix.RTN_UNREACHABLE, Priority: metricGuard})
	}
	if mtu > 0 {
		add(p.Remote, netlink.Route{LinkIndex: s.tun, MTU: routeMTU(p.Remote, mtu), MTULock: p.Remote.Addr().Is6(), Priority: metricTUN, Scope: netlink.SCOPE_UNIVERSE})
	}
	return all
}

var linkLocal = netip.MustParsePrefix("fe80::/10")

// rulesOf are a pair's rules, in the order in which they are added: what others jump to first.
func (s *selection) rulesOf(p Pair, mtu int) []*netlink.Rule {
	var all []*netlink.Rule
	fam := family(p.Local.Addr())
	add := func(pref int, f func(*netlink.Rule)) {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Protocol = fam, pref, protocol
		f(r)
		all = append(all, r)
	}
	add(prefPast, func(r *netlink.Rule) { r.Type = actionNop })
	all = append(all, baseRules(fam, s.TUN)...)
	for _, port := range s.Ports {
		add(prefIKE, func(r *netlink.Rule) {
			r.IifName, r.IPProto, r.Sport, r.Goto = "lo", unix.IPPROTO_UDP, netlink.NewRulePortRange(port, port), prefPast
		})
	}
	// The way back of ESP that arrives is looked up too, where rp_filter is on.
	add(prefIKE, func(r *netlink.Rule) { r.IifName, r.IPProto, r.Goto = "lo", unix.IPPROTO_ESP, prefPast })
	if mtu == Bypass {
		for _, src := range sides(p.Remote) {
			add(prefNear, func(r *netlink.Rule) { r.Src, r.Goto = src, prefLookup })
		}
		return all
	}
	for _, src := range sides(p.Local) {
		add(prefNear, func(r *netlink.Rule) { r.Src, r.Goto = src, prefLookup })
		add(prefPolicies, func(r *netlink.Rule) { r.Src, r.Table = src, PolicyTable })
	}
	if s.Guard {
		if !s.LocalByDefault {
			all = append(all, strayRules(s.TUN, p.Local)...)
		}
		for _, src := range sides(p.Remote) {
			for _, dst := range sides(p.Local) {
				add(prefRefuse, func(r *netlink.Rule) { r.Src, r.Dst, r.Type = src, dst, unix.RTN_BLACKHOLE })
			}
		}
	}
	return all
}

// unboundNow brings the rules for packets of the host's own that have no source yet to what the pairs and the addresses of now ask for:
// such a packet belongs to the policies if its source may become one of theirs. IPv4 can select those packets; for IPv6 it takes
// all of the host's own, but from addresses that are no policy's.
func (h *Host) unboundNow(f int) error {
	s := h.sel
	fam := []int{unix.AF_INET, unix.AF_INET6}[f]
	want := map[key]*netlink.Rule{}
	add := func(pref int, set func(*netlink.Rule)) {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Protocol, r.IifName = fam, pref, protocol, "lo"
		set(r)
		want[ruleKey(r)] = r
	}
	inside := false
	for l := range s.byLocal {
		inside = inside || family(l.Addr()) == fam && (l.Bits() == 0 || h.own(l).IsValid())
	}
	switch {
	case !inside:
	case fam == unix.AF_INET:
		add(prefUnbound, func(r *netlink.Rule) {
			r.Src, r.Table = ipnet(netip.PrefixFrom(netip.IPv4Unspecified(), 32), true), PolicyTable
		})
	default:
		add(prefUnbound, func(r *netlink.Rule) { r.Table = PolicyTable })
		for _, a := range h.addresses(false) {
			if a.addr.Is6() && !s.selects(a.addr) {
				add(prefOwn, func(r *netlink.Rule) { r.Src, r.Goto = ipnet(netip.PrefixFrom(a.addr, 128), true), prefPast })
			}
		}
	}
	var errs []error
	for k, r := range want {
		if s.rules[k] == nil {
			s.rules[k] = r
			errs = append(errs, h.layRule(r))
		}
	}
	for k, r := range s.rules {
		if (r.Priority == prefOwn || r.Priority == prefUnbound) && r.Family == fam && want[k] == nil {
			delete(s.rules, k)
			if err := h.nl.RuleDel(r); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("delete the %s: %w", ruleText(r), err))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *selection) selects(a netip.Addr) bool {
	for l := range s.byLocal {
		if l.Contains(a) {
			return true
		}
	}
	return false
}

// selected are the routes and rules for the daemon's policies, with the addresses that the host has now; with tun 0 without the
// routes into the TUN.
func (h *Host) selected(tun int) (routes []netlink.Route, rules []*netlink.Rule) {
	s := h.sel
	if s == nil {
		return nil, nil
	}
	for k, r := range s.routes {
		if r.LinkIndex != 0 {
			if tun == 0 {
				continue
			}
			h.complete(&r)
			s.routes[k] = r
		}
		routes = append(routes, r)
	}
	// A throw stands before what it is an exception from.
	slices.SortStableFunc(routes, func(a, b netlink.Route) int {
		rank := func(r *netlink.Route) int {
			switch r.Type {
			case unix.RTN_THROW:
				return 0
			case unix.RTN_UNREACHABLE:
				return 1
			}
			return 2
		}
		return rank(&a) - rank(&b)
	})
	for _, r := range s.rules {
		rules = append(rules, r)
	}
	slices.SortFunc(rules, func(a, b *netlink.Rule) int { return b.Priority - a.Priority })
	return routes, rules
}

// RouteOfStrongSwan gives a route that strongSwan has laid itself, in its own table, as ip would show it; "" if there is none. It is harmless,
// as our rules come before that table's, but what the routes send past the TUN is refused there and not protected.
func (h *Host) RouteOfStrongSwan() string {
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		rs, err := whole(func() ([]netlink.Route, error) {
			return h.dump.RouteListFiltered(fam, &netlink.Route{Table: strongswanTable}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			continue // no such table, or no such family
		}
		for i := range rs {
			if rs[i].Type != unix.RTN_THROW && rs[i].Dst != nil {
				return fmt.Sprintf("%s table %d", rs[i].Dst, strongswanTable)
			}
		}
	}
	return ""
}

// address is one of the host's own, and the MTU of its interface.
type address struct {
	addr netip.Addr
	mtu  int
}

// How old what is known of the host's addresses may be: if it says yes, and if it says no.
const (
	knownFor   = time.Second
	unknownFor = 10 * time.Millisecond
)

// addresses are the host's own, as of a moment ago.
func (h *Host) addresses(fresh bool) []address {
	h.addrMu.Lock()
	defer h.addrMu.Unlock()
	age := time.Since(h.addrAt)
	if h.addrs != nil && age < unknownFor || h.addrs != nil && !fresh && age < knownFor {
		return h.addrs
	}
	links, err := whole(h.nl.LinkList)
	if err != nil {
		return h.addrs
	}
	mtu := map[int]int{}
	for _, l := range links {
		mtu[l.Attrs().Index] = l.Attrs().MTU
	}
	list, err := whole(func() ([]netlink.Addr, error) { return h.nl.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return h.addrs
	}
	all := make([]address, 0, len(list))
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			all = append(all, address{ip.Unmap(), mtu[a.LinkIndex]})
		}
	}
	h.addrs, h.addrAt = all, time.Now()
	return all
}

// LocalMTU is the MTU in bytes of the interface that has the address a, and whether one has it. It is for callers that ask often.
func (h *Host) LocalMTU(a netip.Addr) (mtu int, ok bool) {
	for _, fresh := range []bool{false, true} {
		for _, have := range h.addresses(fresh) {
			if have.addr == a {
				return have.mtu, true
			}
		}
	}
	return 0, false
}

// own finds an address of this host within p; invalid if there is none, or p is everything.
func (h *Host) own(p netip.Prefix) netip.Addr {
	if p.Bits() == 0 {
		return netip.Addr{}
	}
	for _, a := range h.addresses(false) {
		if p.Contains(a.addr) && !a.addr.IsLinkLocalUnicast() {
			return a.addr
		}
	}
	return netip.Addr{}
}

// Selections says how many pairs have a way into the TUN, and which are refused.
func (h *Host) Selections() (routed int, refused []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sel == nil {
		return 0, nil
	}
	for p, mtu := range h.sel.have {
		switch {
		case mtu > 0:
			routed++
		case mtu == 0:
			refused = append(refused, fmt.Sprintf("%s to %s", p.Local, p.Remote))
		}
	}
	slices.SortFunc(refused, strings.Compare)
	return routed, refused
}
