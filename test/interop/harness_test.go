package interop

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"culvert/dataplane"
	"culvert/dataplane/link"
	"culvert/dataplane/link/memlink"
	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/pool"
	"culvert/offload/soft"
	"culvert/sa"
	"culvert/test/judge"
)

// patience bounds every wait; nothing is slept for.
const patience = 20 * time.Second

// lanesOver are the ways in which a lane can be connected to an engine.
var lanesOver = []struct {
	name string
	set  func(*dataplane.Config)
}{
	{"soft", func(c *dataplane.Config) { c.Engine = soft.New() }},
	{"pool", func(c *dataplane.Config) {
		c.Engine = pool.New(soft.New(), pool.Options{Workers: 2})
		c.Async = true
	}},
	{"spill", func(c *dataplane.Config) {
		c.Engine = soft.New()
		c.Pool = pool.New(soft.New(), pool.Options{Workers: 2})
	}},
	{"chaos", func(c *dataplane.Config) {
		c.Engine = offloadtest.NewChaos(soft.New(), offloadtest.ChaosOptions{Seed: 1, Full: 20})
		c.Async = true
	}},
}

// gateway is a data plane between links in memory: the test is the host behind it, and the peer before it.
type gateway struct {
	t     *testing.T
	cfg   dataplane.Config
	db    *sa.DB
	plane *dataplane.Plane
	host  *memlink.Inner   // the test's end of the TUN
	wire  []*memlink.Outer // the test's ends of the outer links, one per row of wires
	read  link.InnerReader
	write link.InnerWriter
	recv  []link.OuterReader
	batch []*link.RxBatch
	send  []link.OuterWriter
	given uint64 // packets given to the lanes so far
}

// newGateway makes a data plane with one outer link for each row of wires.
func newGateway(t *testing.T, set func(*dataplane.Config)) *gateway {
	t.Helper()
	g := &gateway{t: t, db: sa.NewDB()}
	inner, host := memlink.NewInnerPair(memlink.InnerOptions{Name: "tun", MTU: 1500, Depth: 4096, Segment: true}, memlink.InnerOptions{Name: "host", Depth: 4096})
	g.host, g.read, g.write = host, host.NewReader(), host.NewWriter()
	g.cfg = dataplane.Config{DB: g.db, Inner: inner}
	for _, w := range wires {
		near := memlink.OuterOptions{Name: w.name, Local: netip.AddrPortFrom(w.dst, w.port), Depth: 4096}
		far := memlink.OuterOptions{Name: "peer " + w.name, Local: netip.AddrPortFrom(w.src, w.port), Depth: 4096}
		a, b := memlink.NewOuterPair(near, far)
		g.cfg.Outers = append(g.cfg.Outers, a)
		g.wire, g.recv, g.send = append(g.wire, b), append(g.recv, b.NewReader()), append(g.send, b.NewWriter())
		g.batch = append(g.batch, g.recv[len(g.recv)-1].NewBatch())
	}
	set(&g.cfg)
	return g
}

// start lets the lanes run, and stops them when the test ends.
func (g *gateway) start() {
	g.t.Helper()
	p, err := dataplane.New(g.cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	g.plane = p
	p.Start()
	g.t.Cleanup(func() {
		stopped := make(chan error, 1)
		go func() { stopped <- p.Stop() }()
		select {
		case err := <-stopped:
			if err != nil {
				g.t.Errorf("stopping the data plane: %v", err)
			}
		case <-time.After(patience):
			g.t.Errorf("the data plane does not stop")
		}
		g.db.Close()
	})
}

// tunnel is one pair of SAs of the gateway.
type tunnel struct {
	wire    int // row of wires
	n       int // its number, from which its networks are
	in, out judge.SA
	inbound *sa.Inbound
}

// networks of the n-th tunnel: the gateway's own side, then the peer's.
func networks(n int) (own, peer [2]netip.Prefix) {
	p := netip.MustParsePrefix
	return [2]netip.Prefix{p(fmt.Sprintf("10.1.%d.0/24", n)), p(fmt.Sprintf("fd00:1:%x::/48", n))},
		[2]netip.Prefix{p(fmt.Sprintf("10.2.%d.0/24", n)), p(fmt.Sprintf("fd00:2:%x::/48", n))}
}

// addrs are a host's address of the n-th tunnel on each side.
func addrs(n int, v6 bool) (own, peer netip.Addr) {
	a := netip.MustParseAddr
	if v6 {
		return a(fmt.Sprintf("fd00:1:%x::1", n)), a(fmt.Sprintf("fd00:2:%x::1", n))
	}
	return a(fmt.Sprintf("10.1.%d.1", n)), a(fmt.Sprintf("10.2.%d.1", n))
}

// associations are the SAs of the n-th tunnel, as a judge takes them. Both directions have the same SPI and keys of their own.
func associations(tr *offload.Transform, esn bool, wire, n int) (in, out judge.SA) {
	w := wires[wire]
	in = judge.SA{Transform: tr, Keys: judge.ExampleKeys(tr, esn), SPI: uint32(0x30000 + n), Src: w.src, Dst: w.dst, SrcPort: w.port, DstPort: w.port}
	out = judge.SA{Transform: tr, Keys: judge.ExampleKeys(tr, esn), SPI: in.SPI, Src: w.dst, Dst: w.src, SrcPort: w.port, DstPort: w.port}
	for _, k := range []offload.Key{out.Keys.Enc, out.Keys.Auth} {
		for i := range k {
			k[i] ^= 0x6c
		}
	}
	return in, out
}

// add puts a tunnel into the gateway's databases. shape may change the parameters of the two SAs, prepare the inbound one.
func (g *gateway) add(tr *offload.Transform, esn bool, wire, n int, shape func(out, in *sa.Params), prepare func(*sa.Inbound)) *tunnel {
	g.t.Helper()
	tn := &tunnel{wire: wire, n: n}
	tn.in, tn.out = associations(tr, esn, wire, n)
	params := func(s judge.SA) sa.Params {
		p := sa.Params{Name: fmt.Sprintf("t%d", n), SPI: s.SPI, Src: s.Src, Dst: s.Dst, SrcPort: s.SrcPort, DstPort: s.DstPort, Transform: tr, Keys: s.Keys, Link: wire, ECN: true}
		if s.UDP() {
			p.Encap = sa.EncapUDP
		}
		return p
	}
	outP, inP := params(tn.out), params(tn.in)
	inP.ReplayWindow = 64
	if shape != nil {
		shape(&outP, &inP)
	}
	engine := g.cfg.Engine
	outS, err := engine.NewSession(tr, offload.Seal, outP.Keys)
	if err != nil {
		g.t.Fatal(err)
	}
	out, err := sa.NewOutbound(outP, outS, sa.NewVolatileSequence())
	if err != nil {
		g.t.Fatal(err)
	}
	inS, err := engine.NewSession(tr, offload.Open, inP.Keys)
	if err != nil {
		g.t.Fatal(err)
	}
	tn.inbound, err = sa.NewInbound(inP, inS, out)
	if err != nil {
		g.t.Fatal(err)
	}
	if prepare != nil {
		prepare(tn.inbound)
	}
	own, peer := networks(n)
	err = g.db.Update(func(tx *sa.Tx) error {
		if err := errors.Join(tx.AddOutbound(out), tx.AddInbound(tn.inbound)); err != nil {
			return err
		}
		for i := range own {
			o := sa.Policy{Name: fmt.Sprintf("%s/%d", outP.Name, i), Dir: sa.Out, Sel: sa.Selector{Src: own[i], Dst: peer[i]}, Action: sa.Protect, Tunnel: outP.Name, Out: out}
			p := sa.Policy{Name: o.Name, Dir: sa.In, Sel: sa.Selector{Src: peer[i], Dst: own[i]}, Action: sa.Protect, Tunnel: outP.Name}
			if err := errors.Join(tx.AddPolicy(o), tx.AddPolicy(p)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return tn
}

// arrive has the peer send ESP packets on a row of wires, each a datagram of its own, with an outer TOS.
func (g *gateway) arrive(wire int, tos uint8, esp ...[]byte) {
	g.t.Helper()
	var msgs []link.TxMsg
	for _, p := range esp {
		msgs = append(msgs, link.TxMsg{To: netip.AddrPortFrom(wires[wire].dst, wires[wire].port), Buf: p, TOS: tos})
	}
	if err := g.send[wire].Send(msgs); err != nil {
		g.t.Fatal(err)
	}
	for _, m := range msgs {
		if m.Err != nil {
			g.t.Fatal(m.Err)
		}
	}
	g.given += uint64(len(esp))
}

// leave has the host send a packet or super-packet that the lanes split into n.
func (g *gateway) leave(h link.VNet, packet []byte, n int) {
	g.t.Helper()
	if err := g.write.Queue(h, [][]byte{packet}); err != nil {
		g.t.Fatal(err)
	}
	if failed, err := g.write.Flush(); failed > 0 || err != nil {
		g.t.Fatalf("%d packets to the TUN failed: %v", failed, err)
	}
	g.given += uint64(n)
}

// books adds up the lanes' books.
func (g *gateway) books() (sum dataplane.Counters) {
	for _, l := range g.plane.Stats() {
		sum.PacketsIn += l.PacketsIn
		sum.PacketsOut += l.PacketsOut
		sum.InFlight += l.InFlight
		for c, n := range l.Drops {
			sum.Drops[c] += n
		}
	}
	return sum
}

// settle waits until the lanes have taken in all that they were given and have nothing in flight, then checks every lane's books.
func (g *gateway) settle() dataplane.Counters {
	g.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		b := g.books()
		if b.PacketsIn == g.given && b.InFlight == 0 {
			break
		}
		select {
		case <-g.plane.Died():
			g.t.Fatalf("a lane died: %v", g.plane.Stop())
		default:
		}
		if b.PacketsIn > g.given || time.Now().After(deadline) {
			g.t.Fatalf("of %d packets given, the lanes took in %d and have %d in flight", g.given, b.PacketsIn, b.InFlight)
		}
		time.Sleep(time.Millisecond) // between two looks
	}
	for _, l := range g.plane.Stats() {
		if !l.Balanced() {
			g.t.Errorf("lane %s: %d in, %d out, %d dropped, %d in flight", l.Name, l.PacketsIn, l.PacketsOut, l.Dropped(), l.InFlight)
		}
	}
	return g.books()
}

// delivered gives the packets that lie at the host by now, in order.
func (g *gateway) delivered() (all [][]byte) {
	g.t.Helper()
	for {
		p, _, err := g.read.Next(false)
		if errors.Is(err, link.ErrAgain) {
			return all
		}
		if err != nil {
			g.t.Fatal(err)
		}
		all = append(all, slices.Clone(p))
	}
}

// emitted is one ESP packet that the gateway sent.
type emitted struct {
	esp []byte
	tos uint8
}

// sent gives the ESP packets that lie at the peer by now, on a row of wires and in order; merged ones taken apart.
func (g *gateway) sent(wire int) (all []emitted) {
	g.t.Helper()
	for {
		err := g.recv[wire].Recv(g.batch[wire], false)
		if errors.Is(err, link.ErrAgain) {
			return all
		}
		if err != nil {
			g.t.Fatal(err)
		}
		for _, m := range g.batch[wire].Msgs {
			size := m.SegSize
			if size == 0 {
				size = len(m.Buf)
			}
			for p := range slices.Chunk(m.Buf, size) {
				all = append(all, emitted{esp: slices.Clone(p), tos: m.TOS})
			}
		}
	}
}

// causes gives the drops by name, without those that did not happen.
func causes(b dataplane.Counters) map[string]uint64 {
	out := map[string]uint64{}
	for c, n := range b.Drops {
		if n > 0 {
			out[dataplane.Cause(c).String()] = n
		}
	}
	return out
}
