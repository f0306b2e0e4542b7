package gateway

import (
	"net/netip"
	"time"

	"culvert/dataplane/link"
	"culvert/sa"
)

// watch starts what looks after the tunnels beside the packet path.
func (g *Gateway) watch() {
	for i, o := range g.outers {
		g.wg.Add(1)
		go func() {
			defer g.wg.Done()
			for n := range o.Notices() {
				g.notice(i, n)
			}
		}()
	}
	g.wg.Add(3)
	go g.diagnose()
	go g.tick()
	go g.expiries()
}

// notice believes what the network says of a path only where it quotes a packet that was just sent there (RFC 4301 8.2).
func (g *Gateway) notice(linkIndex int, n link.Notice) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, t := range g.tunnels {
		p := t.out.Params()
		if p.Link != linkIndex || t.out.Peer().Addr() != n.Peer.Addr() {
			continue
		}
		if n.Kind != link.NoticeTooBig && (p.SPI == n.SPI || n.SPI == 0) { // it may quote a keepalive, or too little
			g.noticeHint(name, t, n)
		}
		if n.Kind != link.NoticeTooBig || n.MTU == 0 || p.SPI != n.SPI && !n.Local {
			continue
		}
		var learned bool
		if n.Local {
			learned = t.out.LearnMTU(n.MTU, time.Now())
		} else {
			learned = t.out.LearnQuotedMTU(n.MTU, n.Seq, time.Now())
		}
		if learned {
			g.log.Info("the path takes less", "tunnel", name, "outer_mtu", t.out.MTU(), "max_inner", t.out.MaxInner())
			g.layRoutes()
		}
	}
}

// layRoutes brings the routes' MTUs to what the paths take now. The caller holds g.mu.
func (g *Gateway) layRoutes() {
	if err := g.net.Apply(plan(g.cfg, g.innerNow())); err != nil {
		g.log.Error("could not change the routes' MTU", "reason", err)
	}
}

// tick does what is due every second: keepalives, learned MTUs that are too old, lifetimes of SAs that are idle.
func (g *Gateway) tick() {
	defer g.wg.Done()
	t := time.NewTicker(time.Second)
	defer t.Stop()
	writers := make([]link.OuterWriter, len(g.outers))
	for i, o := range g.outers {
		writers[i] = o.NewWriter()
	}
	sent := map[*sa.Outbound]idle{}
	for {
		select {
		case <-g.stop:
			return
		case now := <-t.C:
			g.mu.Lock()
			g.keepalives(now, writers, sent)
			aged := false
			for name, t := range g.tunnels {
				if t.out.AgeMTU(now) {
					aged = true
					g.log.Info("the path is tried at its full size again", "tunnel", name, "outer_mtu", t.out.MTU())
				}
			}
			if aged {
				g.layRoutes()
			}
			g.mu.Unlock()
			if g.ike != nil {
				g.ike.Tick(now)
			}
		}
	}
}

// idle is when an outbound SA was last seen to send, and at which number.
type idle struct {
	since time.Time
	seq   uint64
}

// keepalives sends the one byte of RFC 3948 2.3 where an SA has sent nothing for its interval, so that a NAT on the way
// keeps its mapping. The caller holds g.mu.
func (g *Gateway) keepalives(now time.Time, writers []link.OuterWriter, sent map[*sa.Outbound]idle) {
	for _, t := range g.tunnels {
		if t.cfg.Keepalive == 0 {
			continue
		}
		was, seen := sent[t.out]
		if seq := t.out.Stats().Seq; !seen || seq != was.seq {
			sent[t.out] = idle{now, seq}
			continue
		}
		if now.Sub(was.since) >= t.cfg.Keepalive {
			g.keepalive(writers[t.out.Params().Link], t.out.Peer())
			sent[t.out] = idle{now, was.seq}
		}
	}
	for o := range sent {
		if !g.runs(o) {
			delete(sent, o)
		}
	}
}

func (g *Gateway) runs(o *sa.Outbound) bool {
	for _, t := range g.tunnels {
		if t.out == o {
			return true
		}
	}
	return false
}

func (g *Gateway) keepalive(w link.OuterWriter, to netip.AddrPort) {
	m := [1]link.TxMsg{{To: to, Buf: []byte{0xff}}}
	if err := w.Send(m[:]); err == nil && m[0].Err != nil {
		g.log.Debug("a keepalive was not sent", "to", to, "reason", m[0].Err)
	}
}

// static reports whether an SA is a configured tunnel's.
func (g *Gateway) static(e sa.Expiry) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.tunnels {
		if t.out == e.Outbound && e.Outbound != nil || t.in == e.Inbound && e.Inbound != nil {
			return true
		}
	}
	return false
}

// expiries logs what the SAs' lifetimes bring. A static SA cannot be replaced by itself, so this is for whoever can.
func (g *Gateway) expiries() {
	defer g.wg.Done()
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-t.C:
		case <-g.db.Wake():
		}
		for _, e := range g.db.Expiries(time.Now()) {
			if g.ike != nil && !g.static(e) {
				g.ike.Expired(e)
				continue
			}
			p := (*sa.Params)(nil)
			if e.Outbound != nil {
				p = e.Outbound.Params()
			} else {
				p = e.Inbound.Params()
			}
			if e.Hard {
				g.log.Error("an SA has passed its hard lifetime and carries nothing any more; give the tunnel new keys and reload",
					"tunnel", p.Name, "spi", spiString(p.SPI), "cause", e.Cause.String())
			} else {
				g.log.Warn("an SA has passed its soft lifetime; give the tunnel new keys and reload before the hard one",
					"tunnel", p.Name, "spi", spiString(p.SPI), "cause", e.Cause.String())
			}
		}
	}
}
