package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"culvert/dataplane/link"
	"culvert/dataplane/link/memlink"
	"culvert/offload"
	"culvert/offload/soft"
	"culvert/sa"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wires are the kinds of outer link between two sites, in the order of their indexes.
var wires = []struct {
	name string
	end  [2]netip.AddrPort
}{
	{"udp4", [2]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4500"), netip.MustParseAddrPort("192.0.2.2:4500")}},
	{"udp6", [2]netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:4500"), netip.MustParseAddrPort("[2001:db8::2]:4500")}},
	{"esp4", [2]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:0"), netip.MustParseAddrPort("192.0.2.2:0")}},
	{"esp6", [2]netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:0"), netip.MustParseAddrPort("[2001:db8::2]:0")}},
}

const (
	udp4 = iota
	udp6
	esp4
	esp6
)

// world is two gateways, a host behind each, and the wires between them:
//
//	host ⇄ a ⇄ wires ⇄ b ⇄ host
type world struct {
	testing.TB
	site  [2]*site
	pair  [][2]*memlink.Outer // by wire
	rnd   *rand.Rand
	ended bool
}

const (
	siteA = iota
	siteB
)

// site is a gateway and the host behind it.
type site struct {
	testing.TB
	cfg     Config
	plane   *Plane
	started bool
	host    *memlink.Inner
	read    link.InnerReader
	write   link.InnerWriter
}

// plan is what a world is made with. Index 0 is site A.
type plan struct {
	config [2]func(*Config) // engines
	hook   func(wire, from int) func(memlink.Datagram, func(memlink.Datagram))
	super  bool                                          // hosts get super-packets as they are, not cut into wire packets
	outer  func(wire, site int, o link.Outer) link.Outer // wraps a site's end of a wire
	depth  int
}

func newWorld(t testing.TB, p plan) *world {
	w := &world{TB: t, rnd: rand.New(rand.NewPCG(1, 2))}
	if p.depth == 0 {
		p.depth = 4096
	}
	for i, wire := range wires {
		o := [2]memlink.OuterOptions{}
		for s := range o {
			o[s] = memlink.OuterOptions{Name: wire.name, Local: wire.end[s], Depth: p.depth}
			if p.hook != nil {
				o[s].Hook = p.hook(i, s)
			}
		}
		a, b := memlink.NewOuterPair(o[0], o[1])
		w.pair = append(w.pair, [2]*memlink.Outer{a, b})
	}
	for s := range w.site {
		gate, host := memlink.NewInnerPair(
			memlink.InnerOptions{Name: "tun", Depth: p.depth, Segment: !p.super}, memlink.InnerOptions{Name: "host", Depth: p.depth})
		st := &site{TB: t, host: host, read: host.NewReader(), write: host.NewWriter()}
		st.cfg = Config{DB: sa.NewDB(), Inner: gate, Engine: soft.New()}
		for i := range wires {
			o := link.Outer(w.pair[i][s])
			if p.outer != nil {
				o = p.outer(i, s, o)
			}
			st.cfg.Outers = append(st.cfg.Outers, o)
		}
		if p.config[s] != nil {
			p.config[s](&st.cfg)
		}
		var err error
		if st.plane, err = New(st.cfg); err != nil {
			t.Fatal(err)
		}
		w.site[s] = st
	}
	t.Cleanup(w.end)
	return w
}

// start lets both gateways run.
func (w *world) start() *world {
	for _, s := range w.site {
		s.start()
	}
	return w
}

func (s *site) start() {
	if !s.started {
		s.started = true
		s.plane.Start()
	}
}

// end stops both gateways. Whatever a test did, at the end the books balance with nothing in flight, and no SA outlives the DB.
func (w *world) end() {
	if w.ended {
		return
	}
	w.ended = true
	for i, s := range w.site {
		if err := s.plane.Stop(); err != nil {
			w.Errorf("site %c: stop: %v", 'A'+i, err)
		}
		s.balanced()
		s.host.Close()
		s.cfg.DB.Close()
		if err := s.cfg.DB.Wait(); err != nil {
			w.Error(err)
		}
	}
}

func (s *site) balanced() {
	s.Helper()
	for _, l := range s.plane.Stats() {
		if !l.Balanced() || l.InFlight != 0 {
			s.Errorf("%s: the books do not balance: %s", l.Name, l.summary())
		}
	}
}

// summary is the books in a line.
func (c *Counters) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "in %d, out %d, in flight %d, bursts %d (%d spilled), too-big messages %d", c.PacketsIn, c.PacketsOut, c.InFlight, c.Bursts, c.Spilled, c.PTBSent)
	for c, n := range c.Drops {
		if n > 0 {
			fmt.Fprintf(&b, ", %v %d", Cause(c), n)
		}
	}
	return b.String()
}

// out are the outbound lane's books, in those of the inbound lane of a wire.
func (s *site) out() Counters         { return s.plane.Stats()[0].Counters }
func (s *site) in(wire int) Counters  { return s.plane.Stats()[1+wire].Counters }
func (c *Counters) drops(k Cause) int { return int(c.Drops[k]) }

// eventually waits for a condition; what is not true after a long time, even on a machine that is busy, will never be.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for give := time.Now().Add(time.Minute); !ok(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(give) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// send gives wire packets to the gateway.
func (s *site) send(packets ...[]byte) {
	s.Helper()
	for _, p := range packets {
		s.sendSuper(link.VNet{}, p)
	}
}

func (s *site) sendSuper(h link.VNet, p []byte) {
	s.Helper()
	if err := s.write.Queue(h, [][]byte{p}); err != nil {
		s.Fatal(err)
	}
}

// receive takes n packets, or super-packets, from the gateway.
func (s *site) receive(n int) (got [][]byte) {
	s.Helper()
	for range n {
		p, _ := s.receiveSuper()
		got = append(got, p)
	}
	return got
}

func (s *site) receiveSuper() ([]byte, link.VNet) {
	s.Helper()
	var p []byte
	var h link.VNet
	eventually(s, "a packet for the host", func() bool {
		got, v, err := s.read.Next(false)
		if err == nil {
			p, h = bytes.Clone(got), v
		} else if err != link.ErrAgain {
			s.Fatal(err)
		}
		return err == nil
	})
	return p, h
}

// silent checks that nothing more comes, once every lane of the gateway is idle.
func (s *site) silent() {
	s.Helper()
	if got, _, err := s.read.Next(false); err == nil {
		s.Fatalf("a packet too many: % x", got[:min(len(got), 80)])
	}
}

// tunnel is a pair of SAs at each of two sites.
type tunnel struct {
	n, wire int
	tr      *offload.Transform
	spi     [2]uint32 // by the site that sends
	keys    [2]offload.Keys
	out     [2]*sa.Outbound // by site
	in      [2]*sa.Inbound
}

// keys draws keys for a transform.
func drawKeys(r *rand.Rand, tr *offload.Transform, esn bool) offload.Keys {
	k := offload.Keys{ESN: esn}
	draw := func(n int) offload.Key {
		b := make(offload.Key, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	if n := tr.EncKeyLen(); n > 0 {
		k.Enc = draw(n)
	}
	if tr.AuthKeyLen > 0 {
		k.Auth = draw(tr.AuthKeyLen)
	}
	return k
}

// shape changes the parameters of the SA that site from sends with: out at that site, in at the other.
type shape func(from int, out, in *sa.Params)

// transform finds one by the kernel's name.
func transform(name string) *offload.Transform {
	t, err := offload.Lookup(name, 0, 0)
	if err != nil {
		panic(err)
	}
	return t
}

var (
	cbcSHA1  = transform("authenc(hmac(sha1),cbc(aes))")
	nullSHA1 = transform("authenc(hmac(sha1),cipher_null)")
	gcm      = transform("rfc4106(gcm(aes))")
)

// tunnel lays tunnel n, 0 to 255, whose hosts are those of wirePacket with that host number.
func (w *world) tunnel(n, wire int, tr *offload.Transform, change shape) *tunnel {
	w.Helper()
	tn := w.draft(n, wire, tr, change)
	w.add(tn)
	return tn
}

// add puts a tunnel's SAs and policies into the databases.
func (w *world) add(tn *tunnel) {
	w.Helper()
	for s, st := range w.site {
		err := st.cfg.DB.Update(func(tx *sa.Tx) error {
			if err := tx.AddOutbound(tn.out[s]); err != nil {
				return err
			}
			if err := tx.AddInbound(tn.in[s]); err != nil {
				return err
			}
			for _, p := range policies(tn.n, s, tn.out[s]) {
				if err := tx.AddPolicy(p); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			w.Fatal(err)
		}
	}
}

// draft makes a tunnel's SAs without putting them into the databases.
func (w *world) draft(n, wire int, tr *offload.Transform, change shape) *tunnel {
	w.Helper()
	tn := &tunnel{n: n, wire: wire, tr: tr}
	var in [2]sa.Params
	for s, st := range w.site {
		from, to := wires[wire].end[s], wires[wire].end[1-s]
		tn.spi[s] = uint32(0x1000 + 2*n + s)
		out := sa.Params{
			Name: fmt.Sprintf("tunnel %d", n), SPI: tn.spi[s], Src: from.Addr(), Dst: to.Addr(), SrcPort: from.Port(), DstPort: to.Port(),
			Transform: tr, Link: wire,
		}
		if from.Port() != 0 {
			out.Encap = sa.EncapUDP
		}
		in[1-s] = out
		in[1-s].ReplayWindow = 1024
		if change != nil {
			change(s, &out, &in[1-s])
		}
		if out.Keys.Enc == nil && out.Keys.Auth == nil {
			out.Keys = drawKeys(w.rnd, tr, out.Keys.ESN)
			in[1-s].Keys = out.Keys
		}
		tn.keys[s] = out.Keys
		ses, err := st.cfg.Engine.NewSession(tr, offload.Seal, out.Keys)
		if err != nil {
			w.Fatal(err)
		}
		if tn.out[s], err = sa.NewOutbound(out, ses, sa.NewVolatileSequence()); err != nil {
			w.Fatal(err)
		}
	}
	for s, st := range w.site {
		ses, err := st.cfg.Engine.NewSession(tr, offload.Open, in[s].Keys)
		if err != nil {
			w.Fatal(err)
		}
		if tn.in[s], err = sa.NewInbound(in[s], ses, tn.out[s]); err != nil {
			w.Fatal(err)
		}
	}
	return tn
}

// policies are those of site s for tunnel n: both families, both directions.
func policies(n, s int, out *sa.Outbound) (all []sa.Policy) {
	for _, v6 := range []bool{false, true} {
		here, there := networks(n, v6)
		if s == siteB {
			here, there = there, here
		}
		name := fmt.Sprintf("tunnel %d", n)
		all = append(all,
			sa.Policy{Name: fmt.Sprint(name, v6), Dir: sa.Out, Sel: sa.Selector{Src: here, Dst: there}, Action: sa.Protect, Tunnel: name, Out: out},
			sa.Policy{Name: fmt.Sprint(name, v6), Dir: sa.In, Sel: sa.Selector{Src: there, Dst: here}, Action: sa.Protect, Tunnel: name})
	}
	return all
}

// networks are those of wirePacket's hosts, at site A and at site B.
func networks(n int, v6 bool) (a, b netip.Prefix) {
	w := wirePacket{v6: v6, host: byte(n)}
	prefix := func(addr []byte) netip.Prefix {
		x, _ := netip.AddrFromSlice(addr)
		p, _ := x.Prefix(x.BitLen() - 8)
		return p
	}
	return prefix(w.src()), prefix(w.dst())
}

// from turns a packet of site A's host into one that the host of site s would send.
func from(s int, p []byte) []byte {
	if s == siteA {
		return p
	}
	p = bytes.Clone(p)
	at, n := 12, 4
	if p[0]>>4 == 6 {
		at, n = 8, 16
	}
	for i := range n { // no checksum notices
		p[at+i], p[at+n+i] = p[at+n+i], p[at+i]
	}
	return p
}

// flowOf names a packet's flow.
func flowOf(p []byte) string {
	if p[0]>>4 == 6 {
		return string(p[8:44]) + string(p[6])
	}
	return string(p[12:24]) + string(p[9])
}

// sameFlows checks that every packet came as it was sent, and each flow's in order.
func sameFlows(t testing.TB, got, want [][]byte) {
	t.Helper()
	next := map[string][][]byte{}
	for _, p := range want {
		next[flowOf(p)] = append(next[flowOf(p)], p)
	}
	for i, p := range got {
		q := next[flowOf(p)]
		if len(q) == 0 {
			t.Fatalf("packet %d, of %d bytes, was not sent: % x", i, len(p), p[:min(len(p), 60)])
		}
		if !bytes.Equal(p, q[0]) {
			t.Fatalf("packet %d changed or is out of order, %d bytes:\n% x\nsent, %d bytes:\n% x", i, len(p), p[:min(len(p), 80)], len(q[0]), q[0][:min(len(q[0]), 80)])
		}
		next[flowOf(p)] = q[1:]
	}
	if len(got) != len(want) {
		t.Fatalf("%d of %d packets came", len(got), len(want))
	}
}

// sealer makes ESP packets as an engine with an SA's key would, of anything.
type sealer struct {
	tb    testing.TB
	tr    *offload.Transform
	spi   uint32
	lane  offload.Lane
	ses   offload.Session
	burst offload.Burst
	job   [1]offload.Job
}

// sealer makes one that speaks for the site that sends.
func (w *world) sealer(tn *tunnel, from int) *sealer {
	e := soft.New()
	ses, err := e.NewSession(tn.tr, offload.Seal, tn.keys[from])
	if err != nil {
		w.Fatal(err)
	}
	l, _ := e.NewLane(0)
	return &sealer{tb: w, tr: tn.tr, spi: tn.spi[from], lane: l, ses: ses}
}

// seal makes an ESP packet with number seq around a payload, which is padded as it should be.
func (s *sealer) seal(seq uint64, next byte, payload []byte) []byte {
	pad := s.tr.PadLen(len(payload))
	plain := append(bytes.Clone(payload), padding[:pad]...)
	return s.sealRaw(seq, append(plain, byte(pad), next))
}

// sealRaw makes one of all that is encrypted: payload, padding, pad length, next header.
func (s *sealer) sealRaw(seq uint64, plain []byte) []byte {
	return s.sealInto(make([]byte, s.tr.HeaderLen()+len(plain)+s.tr.ICVLen), seq, plain)
}

// sealInto is sealRaw into memory that is there.
func (s *sealer) sealInto(buf []byte, seq uint64, plain []byte) []byte {
	esp := buf[:s.tr.HeaderLen()+len(plain)+s.tr.ICVLen]
	binary.BigEndian.PutUint32(esp, s.spi)
	binary.BigEndian.PutUint32(esp[4:], uint32(seq))
	if s.tr.IVLen > 0 {
		binary.BigEndian.PutUint64(esp[s.tr.HeaderLen()-8:], seq)
	}
	copy(esp[s.tr.HeaderLen():], plain)
	s.job[0] = offload.Job{Session: s.ses, ESP: esp, SeqHi: uint32(seq >> 32)}
	s.burst = offload.Burst{Dir: offload.Seal, Jobs: s.job[:]}
	if err := offload.Do(s.lane, &s.burst); err != nil || s.job[0].Status != offload.OK {
		s.tb.Fatal(err, s.job[0].Status)
	}
	return esp
}

// inject puts datagrams on a wire towards site to, as if its peer, or whoever has the address, had sent them.
func (w *world) inject(wire, to int, src netip.AddrPort, tos uint8, datagrams ...[]byte) {
	w.Helper()
	end := w.pair[wire][1-to].NewWriter()
	for _, d := range datagrams {
		m := []link.TxMsg{{To: wires[wire].end[to], From: src.Addr(), Buf: d, TOS: tos}}
		if err := end.Send(m); err != nil || m[0].Err != nil {
			w.Fatal(err, m[0].Err)
		}
	}
}
