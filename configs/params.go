package configs

import "culvert/sa"

// outerOverhead is what the outer headers take of a packet, ESP itself aside: IP, and UDP with LinkUDP (RFC 3948).
func (t *Tunnel) outerOverhead() int {
	n := 20
	if !t.Local.Is4() {
		n = 40
	}
	if t.Link == LinkUDP {
		n += 8
	}
	return n
}

// InnerMTU is the length of the longest inner packet, IP header included, that one outer packet can carry. The outer MTU is
// that of the tunnel; interfaceMTU, in bytes, is taken if the tunnel leaves it to the interface. The result is negative if
// not even an empty packet fits.
func (t *Tunnel) InnerMTU(interfaceMTU int) int {
	outer := t.OuterMTU
	if outer == 0 {
		outer = interfaceMTU
	}
	return t.Transform.MaxPayload(outer - t.outerOverhead())
}

// OutParams are the parameters of the outbound SA. PathMTU is OuterMTU: 0 leaves the interface's to be filled in. The keys
// share memory with the Config: they are good until Config.Wipe.
func (t *Tunnel) OutParams() sa.Params {
	p := t.params(&t.Out)
	p.Src, p.Dst, p.SrcPort, p.DstPort = t.Local, t.Remote, t.LocalPort, t.RemotePort
	p.TFCPad, p.DSCP, p.DF, p.PathMTU = t.TFCPad, t.DSCP, t.DF, t.OuterMTU
	return p
}

// InParams are the parameters of the inbound SA. The keys share memory with the Config, as in OutParams.
func (t *Tunnel) InParams() sa.Params {
	p := t.params(&t.In)
	p.Src, p.Dst, p.SrcPort, p.DstPort = t.Remote, t.Local, t.RemotePort, t.LocalPort
	p.ReplayWindow, p.NoReplayCheck = t.ReplayWindow, !t.ReplayCheck
	p.DSCP, p.FollowPeer = t.DSCPIn, t.FollowPeer
	return p
}

// params are what both directions have in common.
func (t *Tunnel) params(s *SA) sa.Params {
	p := sa.Params{
		Name: t.Name, SPI: s.SPI, Mode: sa.Tunnel, Transform: t.Transform, Keys: s.Keys, Lifetime: t.Lifetime,
		ECN: t.ECN, ClampMSS: t.MSSClamp, Link: t.LinkIndex,
	}
	if t.Link == LinkUDP {
		p.Encap = sa.EncapUDP
	}
	return p
}

// SA returns the policy as package sa takes it. Out is left nil: the gateway sets it, for sa.Protect and sa.Out, to the
// outbound SA of the tunnel that Tunnel names.
func (p *Policy) SA() sa.Policy {
	return sa.Policy{Name: p.Name, Dir: p.Dir, Sel: p.Sel, Priority: p.Priority, Action: p.Action, Tunnel: p.Tunnel}
}
