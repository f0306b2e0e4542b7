package configs

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"slices"

	"culvert/offload"
)

// Changes are what a running gateway takes up at a reload. They are to be applied as one: a policy that is added may name a
// tunnel that is added.
type Changes struct {
	Settings        []string // keys of single settings that changed: see settings
	Added, Removed  []*Tunnel
	Changed         []TunnelChange
	PoliciesAdded   []*Policy
	PoliciesRemoved []*Policy
}

// TunnelChange is a tunnel that stays and is not what it was.
//
// Without NewOut (NewIn) the outbound (inbound) SA has SPI, transform and keys as before: whatever else changed, its sequence
// numbers go on (its replay window is kept), or numbers would be used twice with a key (packets be accepted twice).
//
// A tunnel is what it was by the SPIs, transform and keys of both directions, or else by its name: "name" is among Keys if the first
// hold under another one.
type TunnelChange struct {
	Old, New      *Tunnel
	Keys          []string // of the tunnel's settings that changed: "remote", "out.spi", "in.keys"
	NewOut, NewIn bool
}

// Empty says that there is nothing to do.
func (c *Changes) Empty() bool {
	return len(c.Settings)+len(c.Added)+len(c.Removed)+len(c.Changed)+len(c.PoliciesAdded)+len(c.PoliciesRemoved) == 0
}

// settings is the table of what is not part of a tunnel or a policy, with the reason why a change needs a restart; "" if a
// running gateway can take it up.
var settings = []struct {
	key     string
	changed func(old, new *Config) bool
	restart string
}{
	{"state_dir", func(a, b *Config) bool { return a.StateDir != b.StateDir }, "the sequence numbers in use are reserved in the directory of the start"},
	{"state_dir_volatile", func(a, b *Config) bool { return a.StateDirVolatile != b.StateDirVolatile }, ""},
	{"control", func(a, b *Config) bool { return a.Control != b.Control }, "the control socket is opened at the start"},
	{"engine", func(a, b *Config) bool { return a.Engine != b.Engine }, "the lanes are made for the engine of the start"},
	{"workers", func(a, b *Config) bool { return a.Workers != b.Workers }, "the workers are started with the lanes"},
	{"tun.name", func(a, b *Config) bool { return a.Tun.Name != b.Tun.Name }, "the interface is made at the start"},
	{"tun.mtu", func(a, b *Config) bool { return a.Tun.MTU != b.Tun.MTU }, "the interface is made at the start"},
	{"tun.addresses", func(a, b *Config) bool { return !slices.Equal(a.Tun.Addresses, b.Tun.Addresses) }, "the interface is made at the start"},
	{"tun.gso", func(a, b *Config) bool { return a.Tun.GSO != b.Tun.GSO }, "the interface is made at the start"},
	{"log.level", func(a, b *Config) bool { return a.Log.Level != b.Log.Level }, ""},
	{"log.format", func(a, b *Config) bool { return a.Log.Format != b.Log.Format }, "the log is opened at the start"},
	{"metrics.listen", func(a, b *Config) bool { return a.Metrics.Listen != b.Metrics.Listen }, "the socket is opened at the start"},
	{"ike.enabled", func(a, b *Config) bool { return a.IKE.Enabled != b.IKE.Enabled }, "the daemon's sockets are taken over at the start"},
	{"ike.socket", func(a, b *Config) bool { return a.IKE.Socket != b.IKE.Socket }, "the socket is opened at the start"},
	{"ike.state_dir", func(a, b *Config) bool { return a.IKE.StateDir != b.IKE.StateDir }, "the sequence numbers in use are reserved in the directory of the start"},
	{"ike.hold_for", func(a, b *Config) bool { return a.IKE.HoldFor != b.IKE.HoldFor }, "the lanes are made for that of the start"},
	{"ike.port", func(a, b *Config) bool { return a.IKE.Port != b.IKE.Port }, "the rules that keep IKE out of tunnels are laid at the start"},
	{"ike.port_nat_t", func(a, b *Config) bool { return a.IKE.PortNATT != b.IKE.PortNATT }, "the rules that keep IKE out of tunnels are laid at the start"},
	{"ike.after_delete", func(a, b *Config) bool { return a.IKE.AfterDelete != b.IKE.AfterDelete }, ""},
	{"ike.local_subnets", func(a, b *Config) bool { return !slices.Equal(a.IKE.LocalSubnets, b.IKE.LocalSubnets) }, ""},
	{"ike.remote_subnets", func(a, b *Config) bool { return !slices.Equal(a.IKE.RemoteSubnets, b.IKE.RemoteSubnets) }, ""},
	{"guard.local_by_default_route", func(a, b *Config) bool { return a.Guard.LocalByDefault != b.Guard.LocalByDefault && a.IKE.Enabled },
		"the rules for an IKE daemon's policies are laid as the start wants them"},
	{"guard.local_by_default_route", func(a, b *Config) bool { return a.Guard.LocalByDefault != b.Guard.LocalByDefault && !a.IKE.Enabled }, ""},
	{"guard.enabled", func(a, b *Config) bool { return a.Guard.Enabled != b.Guard.Enabled }, "the guard stands before the first packet"},
}

// Diff compares the running configuration with a new one. If something changed that needs a restart the error is an [Errors]
// of class ErrRestart, with the places in the new file, and nothing is to be applied.
//
// Otherwise the links of new are numbered as those of old, so that sa.Params.Link of its tunnels counts in the sockets that
// are open: links that no tunnel needs any more stay in [Config.Links], and new ones there are none.
func Diff(old, new *Config) (*Changes, error) {
	var errs Errors
	ch := &Changes{}
	for _, s := range settings {
		switch {
		case !s.changed(old, new):
		case s.restart == "":
			ch.Settings = append(ch.Settings, s.key)
		default:
			errs = append(errs, restart(new, s.key, s.restart))
		}
	}
	index := make([]int, len(new.Tunnels))
	for i, t := range new.Tunnels {
		index[i] = slices.Index(old.links, t.link())
		if index[i] < 0 {
			key := "tunnel." + t.Name + ".local"
			e := restart(new, key, "the sockets are opened at the start, and there is none for "+t.link().String())
			errs = append(errs, e)
		}
	}
	if err := errs.err(); err != nil {
		return nil, err
	}
	for i, t := range new.Tunnels {
		t.LinkIndex = index[i]
	}
	new.links = old.links

	was := predecessors(old.Tunnels, new.Tunnels)
	stays := make(map[*Tunnel]bool)
	for _, o := range was {
		stays[o] = true
	}
	for _, t := range old.Tunnels {
		if !stays[t] {
			ch.Removed = append(ch.Removed, t)
		}
	}
	for _, t := range new.Tunnels {
		o := was[t]
		if o == nil {
			ch.Added = append(ch.Added, t)
			continue
		}
		if c := compareTunnels(o, t); len(c.Keys) > 0 {
			ch.Changed = append(ch.Changed, c)
		}
	}
	ch.PoliciesRemoved = missing(old.Policies, new.Policies)
	ch.PoliciesAdded = missing(new.Policies, old.Policies)
	return ch, nil
}

// predecessors finds what each new tunnel was: the tunnel with its SAs, whatever its name, or one of its name whose SAs no other has now.
func predecessors(old, new []*Tunnel) map[*Tunnel]*Tunnel {
	was := make(map[*Tunnel]*Tunnel)
	bySA, byName := make(map[sameSAs]*Tunnel), make(map[string]*Tunnel)
	for _, o := range old {
		bySA[o.sas()] = o
		byName[o.Name] = o
	}
	taken := make(map[*Tunnel]bool)
	for _, t := range new {
		if o := bySA[t.sas()]; o != nil {
			was[t], taken[o] = o, true
		}
	}
	for _, t := range new {
		if o := byName[t.Name]; was[t] == nil && o != nil && !taken[o] {
			was[t] = o
		}
	}
	return was
}

// sameSAs is what makes the SAs of a tunnel what they are.
type sameSAs struct {
	transform *offload.Transform
	esn       bool
	outSPI    uint32
	inSPI     uint32
	out, in   keyID
}

func (t *Tunnel) sas() sameSAs {
	return sameSAs{t.Transform, t.ESN, t.Out.SPI, t.In.SPI, t.Out.id, t.In.id}
}

// Was is the name under which a tunnel of the new configuration runs, its own if it has not changed.
func (c *TunnelChange) Was(t *Tunnel) string {
	if c.Old != nil {
		return c.Old.Name
	}
	return t.Name
}

// SharesSA says whether two tunnels have an SA in common, by SPI and key: "out", "in", or "" for none.
func (t *Tunnel) SharesSA(o *Tunnel) string {
	switch {
	case t.In.SPI == o.In.SPI && t.In.id == o.In.id:
		return "in"
	case t.Out.SPI == o.Out.SPI && t.Out.id == o.Out.id:
		return "out"
	}
	return ""
}

func restart(c *Config, key, why string) *Error {
	return &Error{Pos: c.Pos(key), Key: key, What: "it changed, and " + why, Mend: "restart culvert, or undo the change", Class: ErrRestart}
}

// missing returns the policies of a that are not in b. Where they are written does not matter.
func missing(a, b []*Policy) []*Policy {
	there := make(map[Policy]bool, len(b))
	for _, p := range b {
		there[p.bare()] = true
	}
	var out []*Policy
	for _, p := range a {
		if !there[p.bare()] {
			out = append(out, p)
		}
	}
	return out
}

func (p *Policy) bare() Policy {
	b := *p
	b.Pos, b.key = Pos{}, ""
	return b
}

// tunnelSettings is the table of what is compared between two tunnels of a name. The subnets are not here: what they make is
// policies.
var tunnelSettings = []struct {
	key  string
	same func(a, b *Tunnel) bool
}{
	{"name", func(a, b *Tunnel) bool { return a.Name == b.Name }},
	{"local", func(a, b *Tunnel) bool { return a.Local == b.Local }},
	{"remote", func(a, b *Tunnel) bool { return a.Remote == b.Remote }},
	{"link", func(a, b *Tunnel) bool { return a.Link == b.Link }},
	{"local_port", func(a, b *Tunnel) bool { return a.LocalPort == b.LocalPort }},
	{"remote_port", func(a, b *Tunnel) bool { return a.RemotePort == b.RemotePort }},
	{"transform", func(a, b *Tunnel) bool { return a.Transform == b.Transform }},
	{"esn", func(a, b *Tunnel) bool { return a.ESN == b.ESN }},
	{"replay_check", func(a, b *Tunnel) bool { return a.ReplayCheck == b.ReplayCheck }},
	{"replay_window", func(a, b *Tunnel) bool { return a.ReplayWindow == b.ReplayWindow }},
	{"outer_mtu", func(a, b *Tunnel) bool { return a.OuterMTU == b.OuterMTU }},
	{"df", func(a, b *Tunnel) bool { return a.DF == b.DF }},
	{"dscp", func(a, b *Tunnel) bool { return a.DSCP == b.DSCP }},
	{"dscp_in", func(a, b *Tunnel) bool { return a.DSCPIn == b.DSCPIn }},
	{"ecn", func(a, b *Tunnel) bool { return a.ECN == b.ECN }},
	{"tfc_pad", func(a, b *Tunnel) bool { return a.TFCPad == b.TFCPad }},
	{"mss_clamp", func(a, b *Tunnel) bool { return a.MSSClamp == b.MSSClamp }},
	{"follow_peer", func(a, b *Tunnel) bool { return a.FollowPeer == b.FollowPeer }},
	{"keepalive", func(a, b *Tunnel) bool { return a.Keepalive == b.Keepalive }},
	{"lifetime", func(a, b *Tunnel) bool { return a.Lifetime == b.Lifetime }},
	{"out.spi", func(a, b *Tunnel) bool { return a.Out.SPI == b.Out.SPI }},
	{"out.keys", func(a, b *Tunnel) bool { return a.Out.id == b.Out.id }},
	{"in.spi", func(a, b *Tunnel) bool { return a.In.SPI == b.In.SPI }},
	{"in.keys", func(a, b *Tunnel) bool { return a.In.id == b.In.id }},
}

func compareTunnels(old, new *Tunnel) TunnelChange {
	c := TunnelChange{Old: old, New: new}
	for _, s := range tunnelSettings {
		if s.same(old, new) {
			continue
		}
		c.Keys = append(c.Keys, s.key)
		switch s.key {
		case "transform", "esn":
			c.NewOut, c.NewIn = true, true
		case "out.spi", "out.keys":
			c.NewOut = true
		case "in.spi", "in.keys":
			c.NewIn = true
		}
	}
	return c
}

// keyID tells keys apart after they are wiped. It is keyed with a secret of this process, so that it says nothing of them to
// whoever sees it.
type keyID [16]byte

var keyIDSecret = func() (s [32]byte) {
	rand.Read(s[:])
	return s
}()

func identify(k offload.Keys) keyID {
	h := hmac.New(sha256.New, keyIDSecret[:])
	h.Write([]byte{byte(len(k.Enc))})
	h.Write(k.Enc)
	h.Write(k.Auth)
	var id keyID
	copy(id[:], h.Sum(nil))
	return id
}
