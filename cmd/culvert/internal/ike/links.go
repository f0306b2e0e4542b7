package ike

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"culvert/cmd/culvert/internal/hostnet"
	"culvert/dataplane/link"
	"culvert/sa"
	"culvert/xfrm"
	"culvert/xfrm/divert"
	"culvert/xfrm/server"
)

// nowhere is the link of an SA whose port is not shared any more: no data plane has as many.
const nowhere = 1 << 30

// linger is how long a raw socket stays when its last SA has gone. A daemon that moves an SA removes it for a moment.
const linger = 5 * time.Second

// outer is a link of the data plane that is the daemon's.
type outer struct {
	link  link.Outer
	index int
	sas   int       // that use it, of raw ones; those of static tunnels and ports are not counted
	idle  time.Time // since when there is none
}

// links is the state behind the choice of a link. It is guarded by Daemon.mu.
type links struct {
	ports  map[*divert.Port]*outer
	esp    map[netip.Addr]*outer
	byID   map[int]*outer
	placed *outer // the raw link of the last SA that was placed
	// on is the raw link that an SA is counted on. The server's lock guards it, under which the backend runs.
	on map[server.SAHandle]*outer
}

func (l *links) init() {
	l.ports, l.esp, l.byID = map[*divert.Port]*outer{}, map[netip.Addr]*outer{}, map[int]*outer{}
	l.on = map[server.SAHandle]*outer{}
}

// ours reports whether a link is the daemon's, or none at all.
func (d *Daemon) ours(index int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byID[index] != nil || index == nowhere
}

// Link is the link of an index, nil if it is not the daemon's.
func (d *Daemon) Link(index int) link.Outer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o := d.byID[index]; o != nil {
		return o.link
	}
	return nil
}

// add makes a link the data plane's.
func (d *Daemon) add(l link.Outer) (*outer, error) {
	if d.plane == nil {
		return nil, xfrm.Errorf(unix.EAGAIN, "the gateway has not started yet")
	}
	i, err := d.plane.AddOuter(l)
	if err != nil {
		return nil, err
	}
	o := &outer{link: l, index: i}
	d.byID[i] = o
	d.readers.Add(1)
	go func() {
		defer d.readers.Done()
		for n := range l.Notices() {
			d.notice(i, n)
		}
	}()
	return o, nil
}

// share takes a port over that the supervisor shares with a program.
func (d *Daemon) share(p *divert.Port) error {
	rc, err := p.Conn.SyscallConn()
	if err != nil {
		return err
	}
	var netns uint64
	if e := rc.Control(func(fd uintptr) { netns, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE) }); e != nil || err != nil {
		return fmt.Errorf("the network namespace of a port: %w", err)
	}
	if netns != d.netns {
		return fmt.Errorf("%s is in another network namespace than the gateway, which carries the ESP of its own: start both in the same: %w",
			p.Peer, unix.EOPNOTSUPP)
	}
	l, err := link.NewUDP(p.Conn, link.OuterOptions{Mark: hostnet.Mark})
	if err != nil {
		return err
	}
	d.mu.Lock()
	o, err := d.add(l)
	if err != nil {
		d.mu.Unlock()
		l.Close()
		return err
	}
	d.ports[p] = o
	d.mu.Unlock()
	d.move(p, nowhere, o.index)
	return nil
}

// unshare leaves a port. Its SAs wait for another program that shares it.
func (d *Daemon) unshare(p *divert.Port) {
	d.mu.Lock()
	o := d.ports[p]
	delete(d.ports, p)
	d.mu.Unlock()
	if o == nil {
		return
	}
	d.move(p, o.index, nowhere)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(o)
}

// remove takes a link from the data plane.
func (d *Daemon) remove(o *outer) {
	if err := d.plane.RemoveOuter(o.index); err != nil {
		d.log.Error("a link was not removed cleanly", "link", o.link.Name(), "local", o.link.Local(), "reason", err)
	}
	delete(d.byID, o.index)
}

// move has the SAs of a port use another link.
func (d *Daemon) move(p *divert.Port, from, to int) {
	err := d.cfg.DB.Update(func(tx *sa.Tx) error {
		snap := d.cfg.DB.Acquire()
		defer snap.Release()
		for _, o := range snap.Outbounds() {
			x := o.Params()
			if x.Link != from || x.Encap != sa.EncapUDP || !serves(p, x.Src, x.SrcPort) {
				continue
			}
			e := x.Endpoint()
			e.Link = to
			if err := tx.MoveOutbound(o, e); err != nil {
				return err
			}
		}
		for _, i := range snap.Inbounds() {
			x := i.Params()
			if x.Link != from || x.Encap != sa.EncapUDP || !serves(p, x.Dst, x.DstPort) {
				continue
			}
			e := x.Endpoint()
			e.Link = to
			if err := tx.MoveInbound(i, e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		d.log.Error("SAs of a UDP port cannot follow it", "port", p.Addr, "reason", err)
	}
}

// serves reports whether a port is that of an SA's own address.
func serves(p *divert.Port, a netip.Addr, port uint16) bool {
	at := p.Addr.Addr().Unmap()
	return p.Addr.Port() == port && at.Is4() == a.Is4() && (at == a || at.IsUnspecified())
}

// place completes an SA's parameters: the link, and the path MTU.
func (d *Daemon) place(p *sa.Params, dir sa.Dir) error {
	addr, port := p.Src, p.SrcPort
	if dir == sa.In {
		addr, port = p.Dst, p.DstPort
	}
	mtu, ok := d.cfg.Host.LocalMTU(addr)
	if ok && dir == sa.Out {
		p.PathMTU = min(mtu, sa.MaxMTU)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.placed = nil
	if p.Encap == sa.EncapUDP {
		for q, o := range d.ports {
			if serves(q, addr, port) {
				p.Link = o.index
				return nil
			}
		}
		if d.restoring { // its port comes after it
			p.Link = nowhere
			return nil
		}
		return xfrm.Errorf(unix.EADDRNOTAVAIL, "no IKE daemon under culvert exec has UDP port %d of %s with UDP_ENCAP; start it through culvert exec", port, addr)
	}
	if i, static := d.cfg.ESP[addr]; static {
		p.Link = i
		return nil
	}
	o := d.esp[addr]
	if o == nil {
		if !ok {
			return xfrm.Errorf(unix.EADDRNOTAVAIL, "this host has no address %s", addr)
		}
		l, err := link.OpenESP(addr, link.OuterOptions{Mark: hostnet.Mark})
		if err != nil {
			return xfrm.Errorf(unix.EADDRNOTAVAIL, "the socket for ESP at %s: %v", addr, err)
		}
		if o, err = d.add(l); err != nil {
			l.Close()
			return err
		}
		d.esp[addr] = o
		d.log.Info("ESP is carried as protocol 50", "local", addr)
	}
	o.sas++
	d.placed, p.Link = o, o.index
	return nil
}

func (d *Daemon) setPlaced(o *outer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.placed = o
}

func (d *Daemon) takePlaced() *outer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.placed
}

// leave counts an SA less on a raw link.
func (d *Daemon) leave(o *outer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o.sas--; o.sas == 0 {
		o.idle = time.Now()
	}
}

// sweep closes the raw sockets that no SA uses any more.
func (d *Daemon) sweep(now time.Time) {
	for addr, o := range d.esp {
		if o.sas == 0 && now.Sub(o.idle) > linger {
			d.drop(addr, o)
		}
	}
}

func (d *Daemon) drop(addr netip.Addr, o *outer) {
	d.remove(o)
	delete(d.esp, addr)
}

// notice believes what the network says of a path only where it quotes a packet that was just sent there (RFC 4301 8.2).
func (d *Daemon) notice(index int, n link.Notice) {
	if n.Kind != link.NoticeTooBig || n.MTU == 0 {
		return
	}
	snap := d.cfg.DB.Acquire()
	defer snap.Release()
	now, learned := time.Now(), false
	for _, o := range snap.Outbounds() {
		p := o.Params()
		if p.Link != index || o.Peer().Addr() != n.Peer.Addr() || p.SPI != n.SPI && !n.Local {
			continue
		}
		took := false
		if n.Local {
			took = o.LearnMTU(n.MTU, now)
		} else {
			took = o.LearnQuotedMTU(n.MTU, n.Seq, now)
		}
		if took {
			learned = true
			d.log.Info("the path takes less", "sa", p.Name, "outer_mtu", o.MTU(), "max_inner", o.MaxInner())
		}
	}
	if learned {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.resize()
	}
}
