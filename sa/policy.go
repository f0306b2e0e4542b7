package sa

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// Action is what a policy does with the packets it selects (RFC 4301 section 4.4.1).
type Action uint8

// The actions; Discard is the zero value.
const (
	Discard Action = iota // drop
	Protect               // ESP
	Bypass                // in clear
)

var actions = [...]string{Discard: "discard", Protect: "protect", Bypass: "bypass"}

// String is "discard", "protect" or "bypass".
func (a Action) String() string { return name(actions[:], "action", uint8(a)) }

// Policy is one entry of the SPD. Of the policies of one direction that select a packet, the one with the lowest Priority
// decides, and among equals the one that was added first.
type Policy struct {
	Name     string // unique in its direction
	Dir      Dir
	Sel      Selector
	Priority int // lower first
	Action   Action

	// Out is the SA that protects, for Dir Out; nil while there is none, and packets wait or are dropped.
	Out *Outbound
	// Acquire says that packets are held while there is no SA, and somebody is asked for one (RFC 4301 section 4.4.1): for an
	// outbound policy to protect. Otherwise they are dropped.
	Acquire bool
	// Reqid and Tunnel say whose policy it is, for Protect: that of the SAs with this Reqid, or if it is 0 with this name. An
	// inbound Protect policy needs one of them.
	Reqid  uint32
	Tunnel string
}

// Validate says what is wrong with a policy; the error wraps ErrParams.
func (p *Policy) Validate() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("sa: policy %q %v: %w: %s", p.Name, p.Dir, ErrParams, fmt.Sprintf(format, args...))
	}
	switch {
	case p.Name == "":
		return refuse("the name is missing")
	case int(p.Dir) >= len(dirs):
		return refuse("there is no %v", p.Dir)
	case int(p.Action) >= len(actions):
		return refuse("there is no %v", p.Action)
	case p.Out != nil && (p.Action != Protect || p.Dir != Out):
		return refuse("it has an outbound SA, which only an outbound policy to protect can use")
	case p.Acquire && (p.Action != Protect || p.Dir != Out):
		return refuse("it asks for an SA, which only an outbound policy to protect can use")
	case p.Action == Protect && p.Dir == In && p.Reqid == 0 && p.Tunnel == "":
		return refuse("it does not say which SAs its packets may come through; give a reqid or the tunnel's name")
	}
	if err := p.Sel.Validate(); err != nil {
		return fmt.Errorf("sa: policy %q %v: %w", p.Name, p.Dir, err)
	}
	return nil
}

// owns reports whether packets that an inbound SA carried are the policy's, which is of the snapshot of that version.
func (p *Policy) owns(i *Params, version uint64) bool {
	if p.Reqid != 0 {
		return p.Reqid == i.Reqid
	}
	return p.Tunnel != "" && p.Tunnel == i.nameAt(version)
}

// sameEffect reports whether it makes no difference which of the two decides.
func (p *Policy) sameEffect(o *Policy) bool {
	return p.Action == o.Action && p.Out == o.Out && p.Acquire == o.Acquire && p.Reqid == o.Reqid && p.Tunnel == o.Tunnel
}

// Conflict is two policies of one direction and priority that select common packets and do different things with them. I and
// J are their indexes in what was given, I the lower.
type Conflict struct{ I, J int }

// Conflicts finds the pairs of policies between which nothing but the order of adding decides. They come in order of I, then J.
func Conflicts(policies []Policy) []Conflict {
	type group struct {
		dir      Dir
		priority int
	}
	type index struct {
		far  bart.Table[[]int] // by the prefix of the peer's side, which tells most policies apart
		wide []int             // those without one
	}
	groups := map[group]*index{}
	var found []Conflict
	for j := range policies {
		p := &policies[j]
		g := groups[group{p.Dir, p.Priority}]
		if g == nil {
			g = new(index)
			groups[group{p.Dir, p.Priority}] = g
		}
		compare := func(earlier []int) {
			for _, i := range earlier {
				if o := &policies[i]; p.Sel.Overlaps(&o.Sel) && !p.sameEffect(o) {
					found = append(found, Conflict{i, j})
				}
			}
		}
		compare(g.wide)
		key, _ := p.Sel.sides(p.Dir)
		if !key.IsValid() {
			for _, earlier := range g.far.All() {
				compare(earlier)
			}
			g.wide = append(g.wide, j)
			continue
		}
		key = key.Masked()
		for _, earlier := range g.far.Supernets(key) {
			compare(earlier)
		}
		for sub, earlier := range g.far.Subnets(key) {
			if sub != key { // Supernets has shown that one
				compare(earlier)
			}
		}
		g.far.Modify(key, func(same []int, _ bool) ([]int, bool) { return append(same, j), false })
	}
	slices.SortFunc(found, func(a, b Conflict) int {
		if a.I != b.I {
			return a.I - b.I
		}
		return a.J - b.J
	})
	return found
}

// sides are the prefix on the peer's side and the one on ours.
func (s *Selector) sides(d Dir) (far, near netip.Prefix) {
	if d == Out {
		return s.Dst, s.Src
	}
	return s.Src, s.Dst
}

// sides are the address on the peer's side and the one on ours.
func (f *Flow) sides(d Dir) (far, near netip.Addr) {
	if d == Out {
		return f.Dst, f.Src
	}
	return f.Src, f.Dst
}
