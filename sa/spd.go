package sa

import (
	"math"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// rule is a policy in the SPD.
type rule struct {
	Policy
	rank rank
	near netip.Prefix // of Sel
}

// rank is a rule's place in the order of the SPD.
type rank struct {
	priority int
	ord      uint64 // of adding
}

var lastRank = rank{math.MaxInt, math.MaxUint64}

// before reports whether a rule of rank a decides rather than one of rank b where both match.
func (a rank) before(b rank) bool {
	return a.priority < b.priority || a.priority == b.priority && a.ord < b.ord
}

// maxList is how many rules of one far prefix are kept as a list rather than by their near prefix.
const maxList = 8

// spd is the ordered policies of one direction. It finds the first that matches without looking at the others: the peer's side
// of the flow has few covering prefixes among the policies, and the near side of each again, so the cost depends on how deep
// policies are nested and not on how many there are. Only policies with the same pair of prefixes are compared one by one.
//
// Most flows are settled by their longest prefix, since what covers it, say a policy for the rest, comes later in the order.
// The reach tells, without looking.
//
// A copy of the struct is a version; with and without make others and leave it as it is.
type spd struct {
	far   *bart.Fast[*farNode] // nil: empty
	reach *reach
	n     int // rules
	gone  int // rules removed since reach was made; more than n, and it is made anew
}

// reach is a lower bound, per family and length of a far prefix, of the ranks of all rules whose far prefix is shorter.
type reach [2][129]rank

func (b *reach) add(far netip.Prefix, r rank) {
	for bits := far.Bits() + 1; bits <= far.Addr().BitLen(); bits++ {
		if at := b.of(far.Addr(), bits); r.before(*at) {
			*at = r
		}
	}
}

func (b *reach) of(a netip.Addr, bits int) *rank {
	if a.Is4() {
		return &b[0][bits]
	}
	return &b[1][bits]
}

// farNode is the rules of one prefix on the peer's side, either as a list or by their prefix on our side. It does not change.
type farNode struct {
	bits int
	n    int
	list rules
	near *bart.Fast[*nearNode] // nil: list
}

// nearNode is the rules of one pair of prefixes. It does not change.
type nearNode struct {
	bits int
	list rules
}

// rules are in the order in which they decide. The slice does not change.
type rules []*rule

func (rs rules) with(r *rule) rules {
	i, _ := slices.BinarySearchFunc(rs, r, func(a, b *rule) int {
		if a.rank.before(b.rank) {
			return -1
		}
		return 1
	})
	return slices.Insert(slices.Clip(slices.Clone(rs)), i, r)
}

func (rs rules) without(r *rule) rules {
	return slices.DeleteFunc(slices.Clone(rs), func(o *rule) bool { return o == r })
}

var allAddrs = [...]netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// keys are where a rule is filed: under each pair of prefixes, one per family that it is for.
func (r *rule) keys() (far, near []netip.Prefix) {
	f, n := r.Sel.sides(r.Dir)
	switch {
	case f.IsValid() && n.IsValid():
		return []netip.Prefix{f}, []netip.Prefix{n}
	case f.IsValid():
		return []netip.Prefix{f}, []netip.Prefix{allOf(f)}
	case n.IsValid():
		return []netip.Prefix{allOf(n)}, []netip.Prefix{n}
	}
	return allAddrs[:], allAddrs[:]
}

// allOf is the prefix of all addresses of p's family.
func allOf(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4() {
		return allAddrs[0]
	}
	return allAddrs[1]
}

func (s spd) with(r *rule) spd {
	if s.far == nil {
		s.far, s.reach = new(bart.Fast[*farNode]), newReach()
	}
	bounds := *s.reach
	s.reach = &bounds
	s.n++
	far, near := r.keys()
	for i := range far {
		node, ok := s.far.Get(far[i])
		if !ok {
			node = &farNode{bits: far[i].Bits()}
		}
		s.far = s.far.InsertPersist(far[i], node.with(r, near[i]))
		s.reach.add(far[i], r.rank)
	}
	return s
}

func (s spd) without(r *rule) spd {
	s.n--
	s.gone++
	far, near := r.keys()
	for i := range far {
		node, _ := s.far.Get(far[i])
		if node.n == 1 {
			s.far = s.far.DeletePersist(far[i])
		} else {
			s.far = s.far.InsertPersist(far[i], node.without(r, near[i]))
		}
	}
	if s.gone > s.n { // until then the bounds are lower than they need be, which costs time and nothing else
		s.gone, s.reach = 0, newReach()
		for far, node := range s.far.All() {
			s.reach.add(far, node.first())
		}
	}
	return s
}

func newReach() *reach {
	b := new(reach)
	for family := range b {
		for bits := range b[family] {
			b[family][bits] = lastRank
		}
	}
	return b
}

// first is the rank of the node's first rule.
func (n *farNode) first() rank {
	if n.near == nil {
		return n.list[0].rank
	}
	first := lastRank
	for _, leaf := range n.near.All() {
		if r := leaf.list[0].rank; r.before(first) {
			first = r
		}
	}
	return first
}

func (n *farNode) with(r *rule, near netip.Prefix) *farNode {
	m := &farNode{bits: n.bits, n: n.n + 1}
	switch {
	case n.near != nil:
		m.near = withNear(n.near, r, near)
	case m.n <= maxList:
		m.list = n.list.with(r)
	default:
		t := withNear(new(bart.Fast[*nearNode]), r, near)
		for _, o := range n.list {
			_, nears := o.keys()
			for _, p := range nears {
				if p.Addr().Is4() == near.Addr().Is4() {
					t = withNear(t, o, p)
				}
			}
		}
		m.near = t
	}
	return m
}

func (n *farNode) without(r *rule, near netip.Prefix) *farNode {
	m := &farNode{bits: n.bits, n: n.n - 1}
	if n.near == nil {
		m.list = n.list.without(r)
		return m
	}
	leaf, _ := n.near.Get(near)
	if len(leaf.list) == 1 {
		m.near = n.near.DeletePersist(near)
	} else {
		m.near = n.near.InsertPersist(near, &nearNode{leaf.bits, leaf.list.without(r)})
	}
	if m.n <= maxList/2 { // well below where the list ended, or one policy coming and going would rebuild it each time
		for _, leaf := range m.near.All() {
			for _, o := range leaf.list {
				m.list = m.list.with(o)
			}
		}
		m.near = nil
	}
	return m
}

func withNear(t *bart.Fast[*nearNode], r *rule, near netip.Prefix) *bart.Fast[*nearNode] {
	leaf := &nearNode{bits: near.Bits()}
	if old, ok := t.Get(near); ok {
		leaf.list = old.list
	}
	leaf.list = leaf.list.with(r)
	return t.InsertPersist(near, leaf)
}

// search is one lookup under way.
type search struct {
	flow  *Flow
	owner *Params // only policies of this inbound SA; nil: all
	at    uint64  // with an owner: the snapshot's version
	best  *rule
	// shadow is the first rule that might have matched, had the flow's ports been known, and that does not let it pass in clear.
	shadow *rule
}

// find looks for the first rule that matches the flow. It does not allocate, but for 32-bit ARM and MIPS, where package bart
// does: netip.Addr.AsSlice is too complex for these to be inlined, and its bytes escape.
func (s spd) find(dir Dir, q *search) {
	if s.far == nil {
		return
	}
	far, near := q.flow.sides(dir)
	node, ok := s.far.Lookup(far)
	for ok {
		if node.near == nil {
			q.scan(node.list, near)
		} else {
			node.find(q, near)
		}
		if node.bits == 0 || q.best != nil && q.best.rank.before(*s.reach.of(far, node.bits)) {
			return
		}
		node, ok = s.far.LookupPrefix(netip.PrefixFrom(far, node.bits-1))
	}
}

func (n *farNode) find(q *search, near netip.Addr) {
	leaf, ok := n.near.Lookup(near)
	for ok {
		q.scan(leaf.list, near)
		if leaf.bits == 0 {
			return
		}
		leaf, ok = n.near.LookupPrefix(netip.PrefixFrom(near, leaf.bits-1))
	}
}

// scan looks for the first rule of a list that matches, as long as it can be before the best so far.
func (q *search) scan(list rules, near netip.Addr) {
	for _, r := range list {
		if q.best != nil && q.best.rank.before(r.rank) {
			return
		}
		if q.owner != nil && !r.owns(q.owner, q.at) || !matchAddr(r.near, near) {
			continue
		}
		if r.Sel.matchRest(q.flow) {
			q.best = r
			return
		}
		if r.Action != Bypass && r.Sel.mightMatch(q.flow) && (q.shadow == nil || r.rank.before(q.shadow.rank)) {
			q.shadow = r
		}
	}
}

// decide is what holds for the flow, nil if no policy does. A flow without ports does not pass in clear if a policy before
// the one to bypass, which asks for ports, could have been meant for it: otherwise the later fragments of a packet would
// leave in clear while its head is protected (RFC 4301 section 7.4). refused is that policy.
func (q *search) decide() (r, refused *rule) {
	if q.best != nil && q.best.Action == Bypass && q.shadow != nil && q.shadow.rank.before(q.best.rank) {
		return nil, q.shadow
	}
	return q.best, nil
}
