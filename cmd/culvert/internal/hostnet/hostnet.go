package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// Table is the routing table: the number of ESP's RFC.
	Table = 4303
	// Mark is the fwmark of the gateway's own ESP packets.
	Mark = 0x4303

	// tunQueue is the TUN's queue in packets or super-packets: what arrives while a lane is away from its processor for a
	// few milliseconds. The usual 500 overflow at a few hundred thousand packets a second.
	tunQueue = 2000

	protocol = 143 // of our routes and rules (rtnetlink(7) rtm_protocol), so that nobody else's are touched

	prefMark    = 200
	prefHost    = 201
	prefTUN     = 202
	prefLocal   = 203
	prefGuard   = 204
	prefLookup  = 212
	prefRouted  = 217
	prefStray   = 218
	metricTUN   = 1
	metricGuard = 1<<31 - 2 // the worst that fits an int on 32-bit machines too
)

// Host is one network namespace, seen through sockets that stay in it whichever thread uses them. Its methods may be called
// from any goroutine.
type Host struct {
	nl   *netlink.Handle
	dump *netlink.Handle // the kernel sends it the table that is asked for, and not all that there are

	mu      sync.Mutex // one changes something at a time
	planned map[key]bool
	sel     *selection // nil without an IKE daemon

	addrMu sync.Mutex
	addrs  []address
	addrAt time.Time
}

// Here is the calling thread's network namespace.
func Here() (*Host, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("ask the kernel about routes: %w", err)
	}
	dump, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("ask the kernel about routes: %w", err)
	}
	_ = dump.SetStrictCheck(true) // Linux before 4.20 sends everything, and the library picks
	return &Host{nl: h, dump: dump}, nil
}

// Close ends the use of h.
func (h *Host) Close() {
	h.nl.Close()
	h.dump.Close()
}

// Route is one remote subnet and the tunnel's inner MTU towards it, in bytes.
type Route struct {
	Remote netip.Prefix
	MTU    int
	// Local is the subnet of this side in which the host's own address towards it is looked for. Invalid, or without an
	// address of this host: the kernel chooses one.
	Local netip.Prefix
}

// Pair is a remote and a local subnet between which traffic must be protected.
type Pair struct{ Remote, Local netip.Prefix }

// Plan is everything that the host is to have.
type Plan struct {
	TUN       string         // name
	Addresses []netip.Prefix // of the TUN
	Routes    []Route
	Protected []Pair
	Bypass    []netip.Prefix
	Guard     bool
	// LocalByDefault lets what the gateway decapsulated for a local subnet leave by a default route, which usually leads outside.
	LocalByDefault bool
}

// key identifies a route or rule of ours for comparison; what is equal in it need not be replaced.
type key string

// Apply makes the host as p says, and removes what an earlier plan left and p does not have. The new stands before the old
// is removed, so no protected packet finds a gap. The TUN must exist and is set up. One thing that cannot be laid does not keep
// the others from being laid, but nothing is removed then; the error is of all of them.
func (h *Host) Apply(p Plan) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.layPlan(&p); err != nil {
		return err
	}
	l, err := h.tun(&p)
	if err != nil {
		return err
	}
	wantRoutes, wantRules := map[key]bool{}, map[key]bool{}
	for _, r := range p.routes(l.Attrs().Index, h.sources()) {
		wantRoutes[routeKey(&r)] = true
	}
	for k := range h.planned {
		wantRules[k] = true
	}
	h.keepSelected(wantRoutes, wantRules)
	return h.remove(wantRoutes, wantRules)
}

// Lay is Apply without removing anything: what p protects and an earlier plan protected goes on into the TUN. Without the TUN it lays the guard.
func (h *Host) Lay(p Plan) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.layPlan(&p)
}

func (h *Host) layPlan(p *Plan) error {
	h.planned = p.ruleKeys()
	l, err := h.tun(p)
	if err != nil {
		return errors.Join(err, h.guard(p))
	}
	var errs []error
	failed := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	for _, a := range p.Addresses {
		failed(fmt.Sprintf("give %s the address %s", p.TUN, a), h.nl.AddrReplace(l, &netlink.Addr{IPNet: ipnet(a, true), Flags: unix.IFA_F_NODAD}))
	}
	if l.Attrs().TxQLen < tunQueue {
		failed("lengthen the queue of "+p.TUN, h.nl.LinkSetTxQLen(l, tunQueue))
	}
	failed(fmt.Sprintf("set %s up", p.TUN), h.nl.LinkSetUp(l))
	return errors.Join(append(errs, h.lay(p, l.Attrs().Index))...)
}

// keepSelected adds what is the IKE daemon's to what is to be kept.
func (h *Host) keepSelected(routes, rules map[key]bool) {
	if h.sel == nil {
		return
	}
	for k := range h.sel.routes {
		routes[k] = true
	}
	for k := range h.sel.rules {
		rules[k] = true
	}
}

func (p *Plan) ruleKeys() map[key]bool {
	keys := map[key]bool{}
	for _, r := range p.rules() {
		keys[ruleKey(r)] = true
	}
	return keys
}

// Guard lays only what must stand before the first packet and after the last: the guard. It needs no TUN, and removes nothing.
func (h *Host) Guard(p Plan) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.planned == nil {
		h.planned = p.ruleKeys()
	}
	return h.guard(&p)
}

func (h *Host) guard(p *Plan) error {
	if !p.Guard {
		return nil
	}
	return h.lay(p, 0)
}

// lay lays rules and routes; tun 0 leaves the routes into the TUN out.
func (h *Host) lay(p *Plan, tun int) error {
	var errs []error
	if h.sel != nil {
		for f := range 2 {
			errs = append(errs, h.unboundNow(f))
		}
	}
	routes, rules := h.selected(tun)
	for _, r := range append(p.routes(tun, h.sources()), routes...) {
		if err := h.nl.RouteReplace(&r); err != nil {
			errs = append(errs, fmt.Errorf("lay the route to %s in table %d: %w", r.Dst, r.Table, err))
		}
	}
	have, err := h.ourRules()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, h.addRules(append(p.rules(), rules...), have))
	return errors.Join(errs...)
}

// addRules adds those of rules that are not among have.
func (h *Host) addRules(rules []*netlink.Rule, have []netlink.Rule) error {
	haveKeys := ruleKeys(have)
	var errs []error
	for _, r := range rules {
		k := ruleKey(r)
		if haveKeys[k] {
			continue
		}
		haveKeys[k] = true
		err := h.nl.RuleAdd(r)
		if errors.Is(err, unix.EEXIST) {
			// Someone may have added it meanwhile. But the kernel says so too where another rule seems the same to it.
			now, lerr := h.ourRules()
			if lerr == nil && ruleKeys(now)[k] {
				continue
			}
			err = errors.Join(err, lerr)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("add the %s: %w", ruleText(r), err))
		}
	}
	return errors.Join(errs...)
}

// Snapshot is what of ours a host had at some moment.
type Snapshot struct {
	rules  []netlink.Rule
	routes []netlink.Route
}

// Snapshot remembers our rules and routes as they are.
func (h *Host) Snapshot() (*Snapshot, error) {
	rules, err := h.ourRules()
	if err != nil {
		return nil, err
	}
	routes, err := h.ourRoutes()
	return &Snapshot{rules, routes}, err
}

// Revert brings our rules and routes back to a snapshot. What it had stands before what came later is removed.
func (h *Host) Revert(s *Snapshot) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	keepRoutes, keepRules := map[key]bool{}, map[key]bool{}
	var errs []error
	for i := range s.routes {
		r := &s.routes[i]
		keepRoutes[routeKey(r)] = true
		if err := h.nl.RouteReplace(r); err != nil {
			errs = append(errs, fmt.Errorf("lay the route to %s again: %w", r.Dst, err))
		}
	}
	have, err := h.ourRules()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	var rules []*netlink.Rule
	for i := range s.rules {
		rules = append(rules, &s.rules[i])
		keepRules[ruleKey(&s.rules[i])] = true
	}
	errs = append(errs, h.addRules(rules, have))
	h.planned = keepRules
	h.keepSelected(keepRoutes, keepRules)
	return errors.Join(append(errs, h.remove(keepRoutes, keepRules))...)
}

// Remove takes away everything that any plan laid.
func (h *Host) Remove() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.remove(nil, nil)
}

// Leftovers says how many rules and routes of ours there are.
func (h *Host) Leftovers() (rules, routes int, err error) {
	rs, err := h.ourRules()
	if err != nil {
		return 0, 0, err
	}
	rt, err := h.ourRoutes()
	return len(rs), len(rt), err
}

func (h *Host) remove(keepRoutes, keepRules map[key]bool) error {
	rules, err := h.ourRules()
	if err != nil {
		return err
	}
	// The guard's rules go last and from the front: while any stand, goto targets must.
	sort.Slice(rules, func(i, j int) bool { return rules[i].Priority < rules[j].Priority })
	for i := range rules {
		if r := &rules[i]; !keepRules[ruleKey(r)] {
			if err := h.nl.RuleDel(r); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("delete the %s: %w", ruleText(r), err)
			}
		}
	}
	routes, err := h.ourRoutes()
	if err != nil {
		return err
	}
	// An unreachable route never stands alone where the TUN still is, and a throw route as long as what it is an exception from.
	turn := map[int]int{unix.RTN_UNREACHABLE: 0, unix.RTN_UNICAST: 1, unix.RTN_THROW: 2}
	sort.SliceStable(routes, func(i, j int) bool { return turn[routes[i].Type] < turn[routes[j].Type] })
	for i := range routes {
		if r := &routes[i]; !keepRoutes[routeKey(r)] {
			if err := h.nl.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("delete the route to %s: %w", r.Dst, err)
			}
		}
	}
	return nil
}

// routes are those of the table, with tun 0 without those into the TUN. source finds the host's address within a subnet.
func (p *Plan) routes(tun int, source func(netip.Prefix) netip.Addr) []netlink.Route {
	var all []netlink.Route
	add := func(dst netip.Prefix, r netlink.Route) {
		r.Dst, r.Table, r.Protocol = ipnet(dst, false), Table, protocol
		r.Family = family(dst.Addr())
		all = append(all, r)
	}
	// A subnet of several tunnels has one route, with the smallest MTU.
	mtu, src := map[netip.Prefix]int{}, map[netip.Prefix]netip.Addr{}
	var order []netip.Prefix
	for _, r := range p.Routes {
		if have, ok := mtu[r.Remote]; !ok {
			order = append(order, r.Remote)
			mtu[r.Remote] = r.MTU
			if tun != 0 && r.Local.IsValid() {
				src[r.Remote] = source(r.Local)
			}
		} else {
			mtu[r.Remote] = min(have, r.MTU)
		}
	}
	// Within a remote subnet that contains them, local subnets and bypassed prefixes are not to be tunnelled. These routes come first, so that what
	// stays outside is outside at every moment.
	thrown := map[netip.Prefix]bool{}
	throw := func(d netip.Prefix) {
		if !thrown[d] {
			thrown[d] = true
			add(d, netlink.Route{Type: unix.RTN_THROW, Priority: metricTUN + 1})
		}
	}
	for _, d := range p.Bypass {
		throw(d)
	}
	for _, pr := range p.Protected {
		for _, dst := range order {
			if contains(dst, pr.Local) && mtu[pr.Local] == 0 {
				throw(pr.Local)
			}
		}
	}
	for _, dst := range order {
		if tun != 0 {
			r := netlink.Route{LinkIndex: tun, MTU: routeMTU(dst, mtu[dst]), Priority: metricTUN, Scope: netlink.SCOPE_UNIVERSE}
			// Linux tells senders of IPv6 packets the route's MTU only if it is locked, else the interface's.
			r.MTULock = dst.Addr().Is6()
			if s := src[dst]; s.IsValid() {
				r.Src = s.AsSlice()
			}
			add(dst, r)
		}
		if p.Guard { // after it, so that a narrower subnet than before is reachable all the while
			add(dst, netlink.Route{Type: unix.RTN_UNREACHABLE, Priority: metricGuard})
		}
	}
	return all
}

// minIPv6MTU is what senders of IPv6 may count on everywhere (RFC 8200 5).
const minIPv6MTU = 1280

// routeMTU is the MTU of a route into the TUN where mtu bytes fit into the tunnel. With less than IPv6's least the kernel would refuse
// packets of up to that, and its senders do not go below it; the data plane lets their outer packets be fragmented.
func routeMTU(dst netip.Prefix, mtu int) int {
	if dst.Addr().Is6() {
		return max(mtu, minIPv6MTU)
	}
	return mtu
}

func (p *Plan) rules() []*netlink.Rule {
	var all []*netlink.Rule
	add := func(fam, pref int, f func(*netlink.Rule)) {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Protocol = fam, pref, protocol
		f(r)
		all = append(all, r)
	}
	for _, fam := range p.families() {
		all = append(all, baseRules(fam, p.TUN)...)
		if !p.Guard {
			continue
		}
		local := map[netip.Prefix]bool{}
		for _, pr := range p.Protected {
			if contains(pr.Remote, pr.Local) && family(pr.Local.Addr()) == fam && !local[pr.Local] {
				local[pr.Local] = true
				for _, src := range sides(pr.Local) {
					add(fam, prefLocal, func(r *netlink.Rule) { r.Src, r.Goto = src, prefLookup })
				}
			}
		}
		for _, b := range p.Bypass {
			if family(b.Addr()) == fam && !local[b] {
				local[b] = true
				for _, src := range sides(b) {
					add(fam, prefLocal, func(r *netlink.Rule) { r.Src, r.Goto = src, prefLookup })
				}
			}
		}
		inside := map[netip.Prefix]bool{}
		for _, pr := range p.Protected {
			if l := pr.Local.Masked(); !p.LocalByDefault && family(l.Addr()) == fam && !inside[l] {
				inside[l] = true
				all = append(all, strayRules(p.TUN, l)...)
			}
		}
		seen := map[Pair]bool{}
		for _, pr := range p.Protected {
			if family(pr.Local.Addr()) == fam && !seen[pr] {
				seen[pr] = true
				for _, src := range sides(pr.Remote) {
					for _, dst := range sides(pr.Local) {
						add(fam, prefGuard, func(r *netlink.Rule) { r.Src, r.Dst, r.Type = src, dst, unix.RTN_BLACKHOLE })
					}
				}
			}
		}
	}
	return all
}

// strayRules keep what was decapsulated for a local subnet from leaving by a default route. For everything there are none.
func strayRules(tun string, local netip.Prefix) []*netlink.Rule {
	if local.Bits() == 0 {
		return nil
	}
	routed, stray := netlink.NewRule(), netlink.NewRule()
	for _, r := range []*netlink.Rule{routed, stray} {
		r.Family, r.Protocol, r.IifName, r.Dst = family(local.Addr()), protocol, tun, ipnet(local, false)
	}
	routed.Priority, routed.Table, routed.SuppressPrefixlen = prefRouted, unix.RT_TABLE_MAIN, 0
	stray.Priority, stray.Type = prefStray, unix.RTN_UNREACHABLE
	return []*netlink.Rule{routed, stray}
}

// baseRules are those that a family needs with any tunnel.
func baseRules(fam int, tun string) []*netlink.Rule {
	var all []*netlink.Rule
	add := func(pref int, f func(*netlink.Rule)) {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Protocol = fam, pref, protocol
		f(r)
		all = append(all, r)
	}
	// The target of the gotos first: a goto without one does nothing.
	add(prefLookup, func(r *netlink.Rule) { r.Table = Table })
	add(prefMark, func(r *netlink.Rule) { r.Mark, r.Table = Mark, unix.RT_TABLE_MAIN })
	add(prefHost, func(r *netlink.Rule) { r.IifName, r.Goto = "lo", prefLookup })
	add(prefTUN, func(r *netlink.Rule) { r.IifName, r.Goto = tun, prefLookup })
	return all
}

// families are those of the protected subnets.
func (p *Plan) families() []int {
	var v4, v6 bool
	for _, r := range p.Routes {
		v4, v6 = v4 || r.Remote.Addr().Is4(), v6 || r.Remote.Addr().Is6()
	}
	var fams []int
	if v4 {
		fams = append(fams, unix.AF_INET)
	}
	if v6 {
		fams = append(fams, unix.AF_INET6)
	}
	return fams
}

func (h *Host) ourRules() ([]netlink.Rule, error) {
	var ours []netlink.Rule
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := whole(func() ([]netlink.Rule, error) { return h.nl.RuleList(fam) })
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // a host without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list the rules: %w", err)
		}
		for _, r := range rules {
			if r.Protocol != protocol {
				continue
			}
			r.Family = fam
			switch r.Priority { // the library does not read the action; each of our preferences has one
			case prefGuard, prefRefuse:
				r.Type = unix.RTN_BLACKHOLE
			case prefStray:
				r.Type = unix.RTN_UNREACHABLE
			case prefPast:
				r.Type = actionNop
			}
			ours = append(ours, r)
		}
	}
	return ours, nil
}

func (h *Host) ourRoutes() ([]netlink.Route, error) {
	var ours []netlink.Route
	for _, table := range []int{Table, PolicyTable} {
		for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
			rs, err := whole(func() ([]netlink.Route, error) {
				return h.dump.RouteListFiltered(fam, &netlink.Route{Table: table, Protocol: protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
			})
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
				continue // no such table yet, or a host without IPv6
			}
			if err != nil {
				return nil, fmt.Errorf("list table %d: %w", table, err)
			}
			for i := range rs {
				rs[i].Family = fam
			}
			ours = append(ours, rs...)
		}
	}
	return ours, nil
}

// whole asks again for a list that was changed while it was sent. One that changes all the time is taken as it comes: what it
// lacks is laid a second time, which does no harm.
func whole[T any](list func() ([]T, error)) ([]T, error) {
	for try := 0; ; try++ {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
		if try == 10 {
			return all, nil
		}
	}
}

// sameRoute compares what is not part of a route's key, and matters only where packets leave by it.
func sameRoute(a, b *netlink.Route) bool {
	if a.LinkIndex == 0 || b.LinkIndex == 0 {
		return true // throw and unreachable
	}
	return a.MTU == b.MTU && a.MTULock == b.MTULock && a.Src.Equal(b.Src)
}

func routeKey(r *netlink.Route) key {
	typ := r.Type
	if typ == 0 {
		typ = unix.RTN_UNICAST
	}
	link := r.LinkIndex
	if typ != unix.RTN_UNICAST {
		link = 0 // IPv6 shows lo there
	}
	return key(fmt.Sprint(r.Table, r.Family, r.Dst, typ, r.Priority, link))
}

// ruleKey leaves the action out: the library does not read it back, and each of our preferences has one.
func ruleKey(r *netlink.Rule) key {
	table := r.Table
	switch r.Priority {
	case prefLookup, prefMark, prefPolicies, prefUnbound, prefRouted:
	default:
		table = 0 // where there is none, it is listed as one or another
	}
	var port uint16
	if r.Sport != nil {
		port = r.Sport.Start
	}
	return key(fmt.Sprint(r.Family, r.Priority, r.Mark, r.IifName, max(r.Goto, 0), r.Src, r.Dst, table, r.IPProto, port))
}

// ruleText names a rule as ip would.
func ruleText(r *netlink.Rule) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s rule %d", familyName(r.Family), r.Priority)
	if r.IifName != "" {
		fmt.Fprintf(&s, " iif %s", r.IifName)
	}
	if r.Src != nil {
		fmt.Fprintf(&s, " from %v", r.Src)
	}
	if r.Dst != nil {
		fmt.Fprintf(&s, " to %v", r.Dst)
	}
	switch r.IPProto {
	case unix.IPPROTO_UDP:
		s.WriteString(" ipproto udp")
	case unix.IPPROTO_ESP:
		s.WriteString(" ipproto esp")
	}
	if r.Sport != nil {
		fmt.Fprintf(&s, " sport %d", r.Sport.Start)
	}
	return s.String()
}

func ruleKeys(rules []netlink.Rule) map[key]bool {
	keys := map[key]bool{}
	for i := range rules {
		keys[ruleKey(&rules[i])] = true
	}
	return keys
}

// sides are the selectors of a rule for p. A prefix of everything is two halves: the kernel takes a rule without a source (or
// destination) for a duplicate of any other of its preference that has one, refuses to add it, and deletes the other in its stead.
func sides(p netip.Prefix) []*net.IPNet {
	if p.Bits() > 0 {
		return []*net.IPNet{ipnet(p, false)}
	}
	low := netip.PrefixFrom(p.Addr(), 1)
	high := p.Addr().AsSlice()
	high[0] = 0x80
	return []*net.IPNet{ipnet(low, false), {IP: high, Mask: net.CIDRMask(1, 8*len(high))}}
}

// prefixOf is a prefix as the library has it; nil is invalid.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	if v4 := n.IP.To4(); v4 != nil && len(n.Mask) == net.IPv4len {
		a, _ = netip.AddrFromSlice(v4)
	}
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a, ones)
}

func ipnet(p netip.Prefix, host bool) *net.IPNet {
	a := p.Addr()
	if !host {
		a = p.Masked().Addr()
	}
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(p.Bits(), a.BitLen())}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// addressIn finds an address of this host within p; invalid if there is none, or p is everything.
func (h *Host) addressIn(p netip.Prefix) netip.Addr {
	if p.Bits() == 0 {
		return netip.Addr{}
	}
	addrs, err := whole(func() ([]netlink.Addr, error) { return h.nl.AddrList(nil, family(p.Addr())) })
	if err != nil {
		return netip.Addr{}
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && p.Contains(ip.Unmap()) && !ip.IsLinkLocalUnicast() {
			return ip.Unmap()
		}
	}
	return netip.Addr{}
}

// sources is addressIn for many prefixes, of which each is looked for once.
func (h *Host) sources() func(netip.Prefix) netip.Addr {
	found := map[netip.Prefix]netip.Addr{}
	return func(p netip.Prefix) netip.Addr {
		a, ok := found[p]
		if !ok {
			a = h.addressIn(p)
			found[p] = a
		}
		return a
	}
}

// ErrNotOurs says that no interface of this host has an address.
var ErrNotOurs = errors.New("no interface of this host has this address")

// InterfaceMTUs is InterfaceMTU for many addresses, of which each is looked for once.
func (h *Host) InterfaceMTUs() func(netip.Addr) (int, error) {
	found := map[netip.Addr]int{}
	return func(a netip.Addr) (int, error) {
		if mtu, ok := found[a]; ok {
			return mtu, nil
		}
		mtu, err := h.InterfaceMTU(a)
		if err == nil {
			found[a] = mtu
		}
		return mtu, err
	}
}

// InterfaceMTU is the MTU in bytes of the interface that has the address a.
func (h *Host) InterfaceMTU(a netip.Addr) (int, error) {
	links, err := whole(h.nl.LinkList)
	if err != nil {
		return 0, fmt.Errorf("list the interfaces: %w", err)
	}
	for _, l := range links {
		addrs, err := whole(func() ([]netlink.Addr, error) { return h.nl.AddrList(l, family(a)) })
		if err != nil {
			return 0, fmt.Errorf("list the addresses of %s: %w", l.Attrs().Name, err)
		}
		for _, have := range addrs {
			if ip, ok := netip.AddrFromSlice(have.IP); ok && ip.Unmap() == a {
				return l.Attrs().MTU, nil
			}
		}
	}
	return 0, ErrNotOurs
}
