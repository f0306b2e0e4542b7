package ike

import (
	"errors"
	"net/netip"

	"culvert/cmd/culvert/internal/hostnet"
	"culvert/configs"
	"culvert/sa"
	"culvert/xfrm"
	"culvert/xfrm/server"
)

// worstOverhead is the most that an outer header, UDP, ESP's own parts and its padding take, in bytes: what the route of a policy
// leaves for them while there is no SA that says how much it is.
const worstOverhead = 40 + 8 + 8 + 16 + 16 + 2 + 32

// minInner4 and minInner6 are the least MTU of a route, as the kernel takes it.
const (
	minInner4 = 576
	minInner6 = 1280
)

// policy is an outbound policy as the host's routes see it.
type policy struct {
	pair   hostnet.Pair
	bypass bool
	local  netip.Addr   // of the SA that it asks for, invalid if it asks for none
	out    *sa.Outbound // that it uses, nil while there is none
}

// pair is what is selected by one or more policies, or was.
type pair struct {
	policies   map[uint32]*policy
	configured bool // by the configuration, to be guarded
	kept       bool // guarded since a policy was deleted, or since before the gateway's start
	mtu        int  // as laid; meaningless if !laid
	laid       bool
}

// pairs is the state behind the host's selections. It is guarded by Daemon.mu.
type pairs struct {
	byPair  map[hostnet.Pair]*pair
	byIndex map[uint32]*policy
}

func (p *pairs) init() {
	p.byPair, p.byIndex = map[hostnet.Pair]*pair{}, map[uint32]*policy{}
}

func (p *pairs) at(k hostnet.Pair) *pair {
	if p.byPair[k] == nil {
		p.byPair[k] = &pair{policies: map[uint32]*policy{}}
	}
	return p.byPair[k]
}

// Configure takes up what a reload may change.
func (d *Daemon) Configure(c configs.IKE) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.after = c.AfterDelete
	want := map[hostnet.Pair]bool{}
	for _, l := range c.LocalSubnets {
		for _, r := range c.RemoteSubnets {
			if l.Addr().Is4() == r.Addr().Is4() {
				want[hostnet.Pair{Remote: r, Local: l}] = true
			}
		}
	}
	var errs []error
	for k := range want {
		d.at(k).configured = true
	}
	for k, p := range d.byPair {
		p.configured = want[k]
		errs = append(errs, d.lay(k, p))
	}
	return errors.Join(errs...)
}

// policyOf is what the host needs to know of an outbound policy.
func (d *Daemon) policyOf(q *server.PolicySpec, out *sa.Outbound) *policy {
	i := q.Info
	p := &policy{pair: hostnet.Pair{Remote: i.Sel.DstPrefix().Masked(), Local: i.Sel.SrcPrefix().Masked()}, out: out}
	if i.Action == xfrm.ActionBlock {
		return p
	}
	for n := range q.Attrs.Tmpls {
		if t := &q.Attrs.Tmpls[n]; t.Proto == xfrm.ProtoESP {
			p.local = t.Src.Addr(t.Family)
			return p
		}
	}
	p.bypass = true
	if i.Sel.Proto != 0 {
		return nil // routes cannot tell protocols apart: what it lets past the tunnel is taken by the policies around it, and refused
	}
	return p
}

// before is how a pair's policies were.
type before struct {
	index uint32
	p     *policy
}

// prepare has the host select what new policies do, before they take effect.
func (d *Daemon) prepare(t *change) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range t.policies {
		if c.p == nil {
			continue
		}
		was := d.byIndex[c.index]
		t.before = append(t.before, before{c.index, was})
		// The selector of a policy that is replaced stays.
		d.byIndex[c.index] = c.p
		x := d.at(c.p.pair)
		x.policies[c.index] = c.p
		if err := d.lay(c.p.pair, x); err != nil {
			return err
		}
	}
	return nil
}

// cancel takes back what prepare did.
func (d *Daemon) cancel(t *change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := len(t.before) - 1; n >= 0; n-- {
		b := t.before[n]
		k := d.byIndex[b.index].pair
		x := d.at(k)
		if b.p == nil {
			delete(d.byIndex, b.index)
			delete(x.policies, b.index)
		} else {
			d.byIndex[b.index] = b.p
			x.policies[b.index] = b.p
		}
		if err := d.lay(k, x); err != nil {
			d.log.Error("routes for a policy that was refused cannot be taken back", "reason", err)
		}
	}
}

// finish has the host do what the end of policies asks for, after they have ended.
func (d *Daemon) finish(t *change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range t.policies {
		if c.p != nil {
			continue
		}
		was := d.byIndex[c.index]
		if was == nil {
			continue
		}
		delete(d.byIndex, c.index)
		x := d.at(was.pair)
		delete(x.policies, c.index)
		if len(x.policies) == 0 {
			x.kept = !was.bypass && d.cfg.Guard && d.after == configs.DeleteGuard
		}
		if err := d.lay(was.pair, x); err != nil {
			d.log.Error("routes of a policy that was deleted cannot be changed", "reason", err)
		}
	}
}

// lay brings the host to what a pair asks for.
func (d *Daemon) lay(k hostnet.Pair, x *pair) error {
	mtu, want := d.want(k, x)
	if want == x.laid && (!want || mtu == x.mtu) {
		if !want {
			delete(d.byPair, k)
		}
		return nil
	}
	var err error
	if want {
		err = d.cfg.Host.Select(hostnet.Selected{Pair: k, MTU: mtu})
	} else {
		err = d.cfg.Host.Deselect(k)
		delete(d.byPair, k)
	}
	x.mtu, x.laid = mtu, want
	return err
}

// want is what a pair asks for: the MTU of its route, hostnet.Bypass, or 0 for the guard alone; false for nothing.
func (d *Daemon) want(k hostnet.Pair, x *pair) (mtu int, want bool) {
	if len(x.policies) == 0 {
		return 0, d.cfg.Guard && (x.configured || x.kept)
	}
	bypass := true
	for _, p := range x.policies {
		if p.bypass {
			continue
		}
		bypass = false
		m := x.mtu
		switch {
		case p.out != nil:
			m = p.out.MaxInner()
		case m <= 0:
			m = 1500
			if l, ok := d.cfg.Host.LocalMTU(p.local); ok {
				m = min(l, sa.MaxMTU)
			}
			m -= worstOverhead
		}
		if mtu == 0 || m < mtu {
			mtu = m
		}
	}
	if bypass {
		return hostnet.Bypass, true
	}
	least := minInner4
	if k.Remote.Addr().Is6() {
		least = minInner6
	}
	return max(mtu, least), true
}

// resize brings the routes to what the SAs carry now.
func (d *Daemon) resize() {
	for k, x := range d.byPair {
		if err := d.lay(k, x); err != nil {
			d.log.Error("a route's MTU cannot be changed", "reason", err)
		}
	}
}
