package gateway

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"culvert/cmd/culvert/internal/control"
	"culvert/cmd/culvert/internal/hostnet"
	"culvert/cmd/culvert/internal/ike"
	"culvert/configs"
	"culvert/offload"
	"culvert/sa"
)

// tunnel is a configured tunnel as it runs.
type tunnel struct {
	cfg *configs.Tunnel
	out *sa.Outbound
	in  *sa.Inbound
	mtu int // of the outer path as configured, or of the interface
}

// innerMTUs finds each tunnel's largest inner packet, by name: from its outer MTU, or that of the interface it leaves by.
func innerMTUs(h *hostnet.Host, cfg *configs.Config) (map[string]int, error) {
	mtus := map[string]int{}
	interfaces := h.InterfaceMTUs()
	for _, t := range cfg.Tunnels {
		outer, err := outerMTU(interfaces, cfg, t)
		if err != nil {
			return nil, err
		}
		mtus[t.Name] = t.InnerMTU(outer)
	}
	return mtus, nil
}

func outerMTU(interfaces func(netip.Addr) (int, error), cfg *configs.Config, t *configs.Tunnel) (int, error) {
	mtu, err := interfaces(t.Local)
	switch {
	case err != nil && !errors.Is(err, hostnet.ErrNotOurs):
		return 0, err
	case err != nil:
		return 0, cfg.Refuse(fmt.Sprintf("tunnel.%s.local", t.Name), fmt.Sprintf("no interface of this host has the address %v", t.Local),
			"give this host the address, or write one that it has", err)
	case t.OuterMTU != 0:
		return t.OuterMTU, nil
	}
	return min(mtu, maxIPPacket), nil // lo's is larger
}

// maxIPPacket is what the length field of an IP header can say (RFC 791 3.1, RFC 8200 3).
const maxIPPacket = 65535

// linkMTU is what the usual links carry. It is the least that the TUN is given for tunnels that are not known yet.
const linkMTU = 1500

// minIPv6MTU is what an interface must carry to have IPv6 at all (RFC 8200 5).
const minIPv6MTU = 1280

// tunMTU is the TUN's: what the configuration says, or the largest that any tunnel carries; the routes have the rest.
func tunMTU(cfg *configs.Config, mtus map[string]int) int {
	if cfg.Tun.MTU != 0 {
		return cfg.Tun.MTU
	}
	largest := 0
	for _, p := range cfg.Policies {
		if p.Action == sa.Protect && p.Sel.Dst.Addr().Is6() {
			largest = minIPv6MTU // or the kernel takes IPv6 off the interface
		}
	}
	for _, m := range mtus {
		largest = max(largest, m)
	}
	if cfg.IKE.Enabled {
		largest = max(largest, linkMTU) // the routes have what an IKE daemon's tunnels carry
	}
	return largest
}

// plan is what the configuration means for the host's routes.
func plan(cfg *configs.Config, mtus map[string]int) hostnet.Plan {
	p := hostnet.Plan{TUN: cfg.Tun.Name, Addresses: cfg.Tun.Addresses, Guard: cfg.Guard.Enabled, LocalByDefault: cfg.Guard.LocalByDefault}
	for _, pol := range cfg.Policies {
		if pol.Action == sa.Bypass && pol.Dir == sa.Out {
			p.Bypass = append(p.Bypass, pol.Sel.Dst)
		}
		if pol.Action != sa.Protect || pol.Dir != sa.Out {
			continue
		}
		t := cfg.Tunnel(pol.Tunnel)
		mtu := mtus[t.Name]
		if cfg.Tun.MTU != 0 {
			mtu = min(mtu, cfg.Tun.MTU)
		}
		p.Routes = append(p.Routes, hostnet.Route{Remote: pol.Sel.Dst, MTU: mtu, Local: pol.Sel.Src})
		p.Protected = append(p.Protected, hostnet.Pair{Remote: pol.Sel.Dst, Local: pol.Sel.Src})
	}
	return p
}

// loadTunnels makes every SA and policy of the first configuration.
func (g *Gateway) loadTunnels(cfg *configs.Config, mtus map[string]int) error {
	made, err := g.makeTunnels(cfg, cfg.Tunnels)
	if err != nil {
		return err
	}
	if err := g.publish(cfg, made); err != nil {
		closeAll(made)
		return err
	}
	g.tunnels = made
	return nil
}

// numbers are what the SAs of one tunnel have of the store. Without a store nothing is received with them.
type numbers struct {
	out *sa.Sequence
	in  *sa.Received // nil without a replay check
}

func (n *numbers) close() {
	n.out.Close()
	n.in.Close()
}

// retireLimit is how long a reload waits for SAs of the one before to end.
const retireLimit = 5 * time.Second

// makeTunnels makes the SAs of tunnels, all or none, by name. Nothing sees them yet. However many they are, the disk is waited for
// twice.
func (g *Gateway) makeTunnels(cfg *configs.Config, ts []*configs.Tunnel) (map[string]*tunnel, error) {
	made := make(map[string]*tunnel, len(ts))
	interfaces := g.net.InterfaceMTUs()
	all, err := g.numbers(ts)
	// A tunnel that was taken away a moment ago, and comes back, has its numbers until its last burst is done.
	for end := time.Now().Add(retireLimit); errors.Is(err, sa.ErrStoreBusy) && time.Now().Before(end); {
		retiring := g.db.Retiring()
		time.Sleep(time.Millisecond)
		if all, err = g.numbers(ts); retiring == 0 {
			break // and it is not of those
		}
	}
	if err != nil { // of one of many: which, is found out one by one
		all = nil
	}
	for i, t := range ts {
		var n *numbers
		if all != nil {
			n = &all[i]
		} else if one, err := g.numbers(ts[i : i+1]); err == nil {
			n = &one[0]
		} else {
			closeAll(made)
			var in inboundError
			if errors.As(err, &in) {
				return nil, cfg.Refuse(fmt.Sprintf("tunnel.%s.in", t.Name), Plain(in.error), storeMend(err), in.error)
			}
			return nil, cfg.Refuse(fmt.Sprintf("tunnel.%s.out", t.Name), Plain(err), "see `culvert example` for one that works", err)
		}
		if made[t.Name], err = g.makeTunnel(interfaces, cfg, t, n); err != nil {
			delete(made, t.Name)
			closeAll(made)
			for k := i; all != nil && k < len(all); k++ {
				all[k].close()
			}
			if all == nil {
				n.close()
			}
			return nil, err
		}
	}
	return made, nil
}

// numbers gives tunnels their numbers: outbound ones from the store, which never gives one twice, and inbound ones behind what earlier
// processes have received with the key. Without a store (the configuration says so, and there is no AEAD) they begin at 1.
func (g *Gateway) numbers(ts []*configs.Tunnel) ([]numbers, error) {
	all := make([]numbers, len(ts))
	if g.store == nil {
		for i := range all {
			all[i].out = sa.NewVolatileSequence()
		}
		return all, nil
	}
	var outs []sa.SequenceID
	var ins []sa.ReceivedID
	unused := make([]bool, len(ts))
	for i, t := range ts {
		p := t.OutParams()
		id := sa.KeyID(p.Keys)
		unused[i] = !g.store.Has(id)
		outs = append(outs, sa.SequenceID{SPI: p.SPI, Dst: p.Dst, KeyID: id, ESN: p.Keys.ESN})
		if p := t.InParams(); !p.NoReplayCheck {
			ins = append(ins, sa.ReceivedID{SPI: p.SPI, Dst: p.Dst, Keys: p.Keys})
		}
	}
	seqs, err := g.store.Sequences(outs)
	if err != nil {
		return nil, err
	}
	marks, err := g.store.Receiveds(ins)
	if err != nil {
		for _, q := range seqs {
			q.Close()
		}
		return nil, inboundError{err}
	}
	for i, t := range ts {
		if unused[i] {
			g.log.Info("a key that was never used with this state directory: its sequence numbers begin at 1", "tunnel", t.Name, "spi", spiString(t.Out.SPI))
		}
		all[i].out = seqs[i]
		if p := t.InParams(); !p.NoReplayCheck {
			all[i].in, marks = marks[0], marks[1:]
		}
	}
	return all, nil
}

// inboundError is an error of an inbound SA's numbers.
type inboundError struct{ error }

func (e inboundError) Unwrap() error { return e.error }

// makeTunnel makes the two SAs of a tunnel with these numbers, which after an error are still the caller's. Nothing sees the SAs yet.
func (g *Gateway) makeTunnel(interfaces func(netip.Addr) (int, error), cfg *configs.Config, t *configs.Tunnel, n *numbers) (*tunnel, error) {
	mtu, err := outerMTU(interfaces, cfg, t)
	if err != nil {
		return nil, err
	}
	refuse := func(side string, err error) error {
		return cfg.Refuse(fmt.Sprintf("tunnel.%s.%s", t.Name, side), Plain(err), "see `culvert example` for one that works", err)
	}
	outP, inP := t.OutParams(), t.InParams()
	outP.PathMTU = mtu
	outS, err := g.engine.NewSession(t.Transform, offload.Seal, outP.Keys)
	if err != nil {
		return nil, refuse("out", err)
	}
	out, err := sa.NewOutbound(outP, outS, n.out)
	if err != nil {
		outS.Close()
		return nil, refuse("out", err)
	}
	inS, err := g.engine.NewSession(t.Transform, offload.Open, inP.Keys)
	if err != nil {
		outS.Close()
		return nil, refuse("in", err)
	}
	in, err := sa.NewInbound(inP, inS, out)
	if err == nil && n.in != nil {
		err = in.Persist(n.in)
	}
	if err != nil {
		outS.Close()
		inS.Close()
		return nil, refuse("in", err)
	}
	return &tunnel{cfg: t, out: out, in: in, mtu: mtu}, nil
}

func closeAll(ts map[string]*tunnel) {
	for _, t := range ts {
		t.out.Session().Close()
		t.out.Sequence().Close()
		t.in.Session().Close()
		t.in.Received().Close()
	}
}

// publish makes the DB hold these tunnels and the configuration's policies, and nothing else, at once. SAs that it held
// before go on as they are, but for the name of their tunnel.
func (g *Gateway) publish(cfg *configs.Config, next map[string]*tunnel) error {
	var outs []*sa.Outbound
	var ins []*sa.Inbound
	for _, t := range cfg.Tunnels {
		outs, ins = append(outs, next[t.Name].out), append(ins, next[t.Name].in)
	}
	var policies []sa.Policy
	for _, p := range cfg.Policies {
		pol := p.SA()
		if p.Action == sa.Protect && p.Dir == sa.Out {
			pol.Out = next[p.Tunnel].out
		}
		policies = append(policies, pol)
	}
	return g.db.Update(func(tx *sa.Tx) error {
		o, i, p := g.others()
		if err := tx.Replace(append(outs, o...), append(ins, i...), append(policies, p...)); err != nil {
			return err
		}
		for _, t := range cfg.Tunnels {
			if n := next[t.Name]; n.out.Params().Name != t.Name {
				if err := errors.Join(tx.RenameOutbound(n.out, t.Name), tx.RenameInbound(n.in, t.Name)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// others are the SAs and policies that are not the configuration's: an IKE daemon's. No one changes the DB meanwhile.
func (g *Gateway) others() (outs []*sa.Outbound, ins []*sa.Inbound, policies []sa.Policy) {
	if g.ike == nil {
		return nil, nil, nil
	}
	snap := g.db.Acquire()
	defer snap.Release()
	static := map[*sa.Outbound]bool{}
	staticIn := map[*sa.Inbound]bool{}
	for _, t := range g.tunnels {
		static[t.out], staticIn[t.in] = true, true
	}
	for _, o := range snap.Outbounds() {
		if !static[o] {
			outs = append(outs, o)
		}
	}
	for _, i := range snap.Inbounds() {
		if !staticIn[i] {
			ins = append(ins, i)
		}
	}
	for _, p := range snap.Policies() {
		if ike.IsPolicy(p.Name) {
			policies = append(policies, *p)
		}
	}
	return outs, ins, policies
}

// Refused notes that a reload failed, for the status.
func (g *Gateway) Refused(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused = &control.Refused{At: time.Now(), Reason: why.Error()}
}

// Reload brings a running gateway to cfg: all of it or, with an error that says why, nothing. A tunnel that is the same
// keeps its SAs, with sequence, window and counters, also under another name. The gateway owns cfg from here on.
func (g *Gateway) Reload(cfg *configs.Config) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	made := map[string]*tunnel{}
	defer func() {
		if err != nil {
			closeAll(made)
			cfg.Wipe()
		}
	}()
	// What a restart would refuse as well comes first, so that nobody is told to restart for it.
	f := findings{net: g.net, reload: true}
	f.program(cfg)
	f.host(cfg)
	if len(f.errs) == 0 {
		if _, err := selectEngine(g.registry, cfg); err != nil {
			f.add(err)
		}
	}
	if err := f.err(); err != nil {
		return err
	}
	diff, err := configs.Diff(g.cfg, cfg)
	if err != nil {
		return err
	}
	mtus, err := innerMTUs(g.net, cfg)
	if err != nil {
		return err
	}
	changed := map[string]configs.TunnelChange{}
	for _, c := range diff.Changed {
		changed[c.New.Name] = c
	}
	next := map[string]*tunnel{}
	var fresh []*configs.Tunnel
	for _, t := range cfg.Tunnels {
		c, differs := changed[t.Name]
		old := g.tunnels[c.Was(t)]
		if slices.Contains(diff.Added, t) {
			old = nil // one that has another name now
		}
		if old != nil && (!differs || onlyOutside(c.Keys)) {
			next[t.Name] = &tunnel{cfg: t, out: old.out, in: old.in, mtu: old.mtu}
			continue
		}
		if differs && !(c.NewOut && c.NewIn) {
			return keepsKeys(cfg, t, c)
		}
		if _, err := g.registry.Select(t.Transform, g.engine.Name()); err != nil {
			e := cfg.Refuse(fmt.Sprintf("tunnel.%s.transform", t.Name),
				fmt.Sprintf("the lanes are made for the engine of the start, %s, which does not have %v", g.engine.Name(), t.Transform),
				"restart culvert, which then chooses another engine, or undo the change", err)
			e.Class = configs.ErrRestart
			return e
		}
		if err := g.usedKeys(cfg, t); err != nil {
			return err
		}
		fresh = append(fresh, t)
	}
	if made, err = g.makeTunnels(cfg, fresh); err != nil {
		return err
	}
	maps.Copy(next, made)
	// The routes and the guard for what is new stand before its policies do; what is gone is unguarded only after them.
	before, err := g.net.Snapshot()
	if err != nil {
		return err
	}
	err = g.net.Lay(plan(cfg, mtus))
	if err == nil {
		if err = g.publish(cfg, next); errors.Is(err, sa.ErrExists) { // package configs has found none among the static ones
			err = cfg.Refuse("tunnel", Plain(err)+", made by the IKE daemon", "give the tunnel another SPI, or load the configuration again when that SA has been replaced", err)
		}
	}
	if err != nil {
		return errors.Join(err, g.net.Revert(before))
	}
	g.cfg.Wipe()
	g.cfg, g.tunnels, g.loaded, g.refused = cfg, next, time.Now(), nil
	for _, t := range next {
		t.out.ResetMTU() // the routes are laid for the full size below, and the path is tried anew
	}
	SetLevel(g.level, cfg.Log.Level)
	cfg.Warnings = append(cfg.Warnings, f.warnings...)
	cfg.EachWarning(func(w string) { g.log.Warn("configuration", "warning", w) })
	g.log.Info("configuration loaded", "config", cfg.File, "tunnels", len(next), "new", len(made), "removed", len(diff.Removed),
		"policies_added", len(diff.PoliciesAdded), "policies_removed", len(diff.PoliciesRemoved))
	if g.ike != nil {
		if err := g.ike.Configure(cfg.IKE); err != nil {
			g.log.Error("the guard of ike.local_subnets and ike.remote_subnets could not be laid", "reason", err)
		}
	}
	if err := g.net.Apply(plan(cfg, mtus)); err != nil {
		// The data plane has the new SAs and policies already, and those are right.
		g.log.Error("the SAs and policies are the new ones, but not all routes could be laid", "reason", err)
	}
	return nil
}

// onlyOutside says whether all keys are of settings that are no part of an SA.
func onlyOutside(keys []string) bool {
	for _, k := range keys {
		if k != "keepalive" && k != "name" {
			return false
		}
	}
	return true
}

// usedKeys refuses a new tunnel one of whose SAs is, by SPI and key, an SA that runs: it would begin with an empty window, or use
// numbers again where there is no store, before the old one has ended. A restart ends that first.
func (g *Gateway) usedKeys(cfg *configs.Config, t *configs.Tunnel) error {
	for _, old := range g.cfg.Tunnels {
		side := old.SharesSA(t)
		if side == "" {
			continue
		}
		e := cfg.Refuse(fmt.Sprintf("tunnel.%s.%s", t.Name, side), fmt.Sprintf("it has the SPI and keys of tunnel %q as it runs", old.Name),
			"restart culvert, or give the tunnel new SPIs and keys in both directions", nil)
		e.Class = configs.ErrRestart
		return e
	}
	return nil
}

// keepsKeys refuses a change to an SA whose key stays: a new SA with the old key would begin with an empty replay window, and
// take again what was received before. A restart is no way out: it begins with an empty window too.
func keepsKeys(cfg *configs.Config, t *configs.Tunnel, c configs.TunnelChange) error {
	key := fmt.Sprintf("tunnel.%s.%s", t.Name, c.Keys[0])
	what := fmt.Sprintf("%s changed, but not the SPIs and keys of both directions: the new SAs would take again what was received before", strings.Join(c.Keys, ", "))
	e := cfg.Refuse(key, what, "give the tunnel new SPIs and keys in both directions, or undo the change", nil)
	e.Class = configs.ErrRestart
	return e
}
