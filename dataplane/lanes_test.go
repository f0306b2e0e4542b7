package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"culvert/dataplane/link"
	"culvert/dataplane/link/memlink"
	"culvert/offload"
	"culvert/sa"
)

// Every transform, over each kind of outer link, with and without ESN, carries packets of both families both ways. They arrive
// byte for byte and each flow in order: the shortest, some of every remainder of a block, and the longest that fits.
func TestEveryTransform(t *testing.T) {
	for _, esn := range []bool{false, true} {
		t.Run(fmt.Sprintf("esn=%v", esn), func(t *testing.T) {
			w := newWorld(t, plan{})
			var all []*tunnel
			for i, tr := range offload.Transforms() {
				for wire := range wires {
					all = append(all, w.tunnel(len(wires)*i+wire, wire, tr, func(_ int, out, in *sa.Params) { out.Keys.ESN = esn }))
				}
			}
			w.start()
			var want [2][][]byte // by the site that sends
			for _, tn := range all {
				for s := range w.site {
					packets := samples(tn.n, tn.out[s].MaxInner())
					for i := range packets {
						packets[i] = from(s, packets[i])
					}
					want[s] = append(want[s], packets...)
				}
			}
			for s, st := range w.site {
				go st.send(want[s]...)
			}
			for s, st := range w.site {
				sameFlows(t, st.receive(len(want[1-s])), want[1-s])
				st.silent()
			}
			for s, st := range w.site {
				// What was received shows in the sender's books when its lane has finished the burst.
				eventually(t, "all is in the books", func() bool { return st.out().PacketsOut == uint64(len(want[s])) })
				if b := st.out(); b.Dropped() != 0 {
					t.Errorf("outbound: %s", b.summary())
				}
			}
			for _, tn := range all {
				for s := range w.site {
					n := uint64(len(samples(tn.n, 1000)))
					eventually(t, "accounts", func() bool {
						o, i := tn.out[s].Stats(), tn.in[1-s].Stats()
						return o.Packets == n && i.Packets == n && o.Bytes == i.Bytes && o.Seq == n && i.Seq == n
					})
				}
			}
		})
	}
}

// samples are packets of tunnel n up to a length of most.
func samples(n, most int) (all [][]byte) {
	for _, v6 := range []bool{false, true} {
		p := wirePacket{v6: v6, host: byte(n), ttl: 64, udp: true, sport: 1000, dport: 2000, df: true}
		for i, size := range []int{0, 1, 2 + n%16, 7 + n%16, 64, 500 + n%16, 1000} {
			p.id, p.payload = uint16(i), fill(size, byte(n+i))
			all = append(all, p.build(false))
		}
		p.payload = nil
		p.payload = fill(most-len(p.build(false)), 9)
		p.sport++
		all = append(all, p.build(false))
		p.udp, p.flags, p.payload = false, tcpACK, fill(100+n, 3)
		all = append(all, p.build(false))
	}
	return all
}

// A super-packet leaves as the packets of the wire that it stands for, and is whole again on the other side, bit by bit.
func TestSuperPackets(t *testing.T) {
	for _, tr := range []*offload.Transform{cbcSHA1, gcm} {
		for _, wire := range []int{udp4, esp6} {
			for _, c := range []struct {
				name string
				v6   bool
				udp  bool
				gso  link.GSOType
			}{{"tso4", false, false, link.GSOTCP4}, {"tso6", true, false, link.GSOTCP6}, {"uso4", false, true, link.GSOUDPL4}, {"uso6", true, true, link.GSOUDPL4}} {
				for _, size := range []int{60000, 100, 3} { // of the payload, and of a segment below
					t.Run(fmt.Sprintf("%s/%s/%s/%d", tr.Name, wires[wire].name, c.name, size), func(t *testing.T) {
						w := newWorld(t, plan{super: true})
						tn := w.tunnel(1, wire, tr, nil)
						segment := max(2, size/45)
						p := bulk(c.v6, c.udp)
						p.payload = fill(size, 7)
						p.flags |= tcpPSH & -b2b(!c.udp)
						segments := refSegments(p, segment)
						super := p.build(true)
						h := link.VNet{NeedsCsum: true, GSO: c.gso, GSOSize: uint16(segment), HdrLen: uint16(p.headerLen()),
							CsumStart: uint16(p.transportAt()), CsumOffset: uint16(p.checksumAt())}
						// One gateway after the other, so that all of it is there when the second begins.
						w.site[siteA].start()
						w.site[siteA].sendSuper(h, super)
						eventually(t, "sent", func() bool { return w.site[siteA].out().PacketsOut == uint64(len(segments)) })
						w.site[siteB].start()
						got, gh := w.site[siteB].receiveSuper()
						if gh != h || !bytes.Equal(got, super) {
							t.Fatalf("came as %+v, % x\nsent as %+v, % x", gh, got[:60], h, super[:60])
						}
						w.site[siteB].silent()
						// The SA shows them when the lane has finished the burst that was received, at the latest.
						eventually(t, "one ESP packet for each segment", func() bool { return int(tn.in[siteB].Stats().Packets) == len(segments) })
						if b := w.site[siteA].out(); b.BytesIn != uint64(len(super)) || b.Bursts != 1 {
							t.Errorf("outbound: %d bytes in; %s", b.BytesIn, b.summary())
						}
					})
				}
			}
		}
	}
}

func b2b(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// recorder is an outer link that notes the messages sent, and fails some.
type recorder struct {
	link.Outer
	mu   sync.Mutex
	msgs []link.TxMsg
	fail func(m *link.TxMsg)
}

func (r *recorder) NewWriter() link.OuterWriter { return &recordingWriter{r, r.Outer.NewWriter()} }

type recordingWriter struct {
	r *recorder
	w link.OuterWriter
}

func (w *recordingWriter) Send(msgs []link.TxMsg) error {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	for i := range msgs {
		m := msgs[i]
		m.Buf = bytes.Clone(m.Buf)
		w.r.msgs = append(w.r.msgs, m)
	}
	err := w.w.Send(msgs)
	if w.r.fail != nil {
		for i := range msgs {
			w.r.fail(&msgs[i])
		}
	}
	return err
}

func (r *recorder) sent() []link.TxMsg {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.msgs)
}

// What can be one GSO message is one: packets back to back, to one peer, of one TOS and one DF, of equal sizes but for a shorter
// last one, within what the link takes. What cannot, is not.
func TestMessages(t *testing.T) {
	udp := func(n int, tos byte, df bool, size int) []byte {
		p := wirePacket{host: byte(n), ttl: 64, udp: true, tos: tos, df: df, payload: fill(size, 1)}
		return p.build(false)
	}
	for _, c := range []struct {
		name    string
		packets [][]byte
		want    []int // datagrams in each message
	}{
		{"equal", [][]byte{udp(1, 0, true, 100), udp(1, 0, true, 100), udp(1, 0, true, 100)}, []int{3}},
		{"shorter last", [][]byte{udp(1, 0, true, 100), udp(1, 0, true, 100), udp(1, 0, true, 20), udp(1, 0, true, 20)}, []int{3, 1}},
		{"longer", [][]byte{udp(1, 0, true, 100), udp(1, 0, true, 200)}, []int{1, 1}},
		{"two SAs to one peer", [][]byte{udp(1, 0, true, 100), udp(2, 0, true, 100)}, []int{2}},
		{"two peers", [][]byte{udp(1, 0, true, 100), udp(3, 0, true, 100), udp(1, 0, true, 100)}, []int{1, 1, 1}},
		{"two TOS", [][]byte{udp(1, 0, true, 100), udp(1, 4, true, 100), udp(1, 4, true, 100)}, []int{1, 2}},
		{"two DF", [][]byte{udp(1, 0, true, 100), udp(1, 0, false, 100), udp(1, 0, false, 100), udp(1, 0, true, 100)}, []int{1, 2, 1}},
		{"many", slices.Repeat([][]byte{udp(1, 0, true, 10)}, burstJobs+1), []int{burstJobs, 1}},
		{"long", slices.Repeat([][]byte{udp(1, 0, true, 1394)}, 46), []int{44, 2}}, // 44 × 1480 bytes is the most below 64 KB
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := &recorder{}
			w := newWorld(t, plan{outer: func(wire, s int, o link.Outer) link.Outer {
				if wire == udp4 && s == siteA {
					rec.Outer = o
					return rec
				}
				return o
			}})
			copyDF := func(_ int, out, in *sa.Params) { out.DF = sa.DFCopy }
			w.tunnel(1, udp4, cbcSHA1, copyDF)
			w.tunnel(2, udp4, cbcSHA1, copyDF)
			other := w.tunnel(3, udp4, cbcSHA1, copyDF)
			other.out[siteA].SetPeer(netip.MustParseAddrPort("192.0.2.77:4501"))
			w.site[siteA].send(c.packets...) // all are there when it begins
			w.start()
			w.site[siteB].receive(len(c.packets))
			var got []int
			for _, m := range rec.sent() {
				got = append(got, m.Datagrams())
				if len(m.Buf) > rec.MaxBytes() {
					t.Errorf("a message of %d bytes", len(m.Buf))
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("messages of %v datagrams, want %v", got, c.want)
			}
		})
	}
}

// With ESN the numbers go on across 2^32, within one burst and whichever packets get lost or overtake others around it.
func TestESNWrap(t *testing.T) {
	const first = 1<<32 - 100
	for _, tr := range offload.Transforms() {
		w := newWorld(t, plan{hook: func(wire, s int) func(memlink.Datagram, func(memlink.Datagram)) {
			var held []memlink.Datagram
			n := 0
			return func(d memlink.Datagram, emit func(memlink.Datagram)) {
				if n++; n%7 == 0 { // overtaken by five others
					d.Buf = bytes.Clone(d.Buf)
					held = append(held, d)
					return
				}
				emit(d)
				if n%7 == 5 && len(held) > 0 {
					emit(held[0])
					held = held[1:]
				}
			}
		}})
		tn := w.esnTunnel(1, udp4, tr, first)
		w.start()
		p := wirePacket{host: 1, ttl: 64, udp: true, payload: fill(100, 1)}
		var want [][]byte
		for i := range 203 {
			p.sport = uint16(i) // each a flow of its own: they come out of order
			want = append(want, p.build(false))
		}
		w.site[siteA].send(want...)
		got := w.site[siteB].receive(202) // of 29 held packets the last is never let go
		for _, p := range got {
			if !slices.ContainsFunc(want, func(q []byte) bool { return bytes.Equal(p, q) }) {
				t.Fatalf("%s: a packet that was not sent", tr)
			}
		}
		eventually(t, "the last number is shown", func() bool { return tn.out[siteA].Stats().Seq == first+203-1 })
		w.end()
	}
}

// esnTunnel is a tunnel whose numbers from A to B begin at first.
func (w *world) esnTunnel(n, wire int, tr *offload.Transform, first uint64) *tunnel {
	w.Helper()
	tn := w.draft(n, wire, tr, func(_ int, out, in *sa.Params) { out.Keys.ESN = true })
	seq := sa.NewVolatileSequence()
	if err := seq.SkipPast(first - 1); err != nil {
		w.Fatal(err)
	}
	var err error
	if tn.out[siteA], err = sa.NewOutbound(*tn.out[siteA].Params(), tn.out[siteA].Session(), seq); err != nil {
		w.Fatal(err)
	}
	tn.in[siteB].Resume(first - 1)
	w.add(tn)
	return tn
}

// Inner packets are padded to one length, and come out of the padding as they were; those that are longer stay as they are.
func TestTFCPadding(t *testing.T) {
	for _, c := range []struct{ pad, want int }{{1000, 1000}, {9000, 1406}} { // never beyond what the path takes
		var mu sync.Mutex
		sizes := map[int]int{}
		w := newWorld(t, plan{hook: func(wire, s int) func(memlink.Datagram, func(memlink.Datagram)) {
			return func(d memlink.Datagram, emit func(memlink.Datagram)) {
				mu.Lock()
				sizes[len(d.Buf)]++
				mu.Unlock()
				emit(d)
			}
		}})
		tr := gcm
		w.tunnel(1, udp4, tr, func(_ int, out, in *sa.Params) { out.TFCPad, out.PathMTU = c.pad, 28+tr.SealedLen(1406) })
		w.start()
		var want [][]byte
		var long int
		for _, p := range samples(1, 1406) {
			want = append(want, p)
			if len(p) > c.want {
				long++
			}
		}
		w.site[siteA].send(want...)
		sameFlows(t, w.site[siteB].receive(len(want)), want)
		mu.Lock()
		if n := sizes[tr.SealedLen(c.want)]; n < len(want)-long {
			t.Errorf("padded to %d: %d of %d are, by length: %v", c.pad, n, len(want)-long, sizes)
		}
		mu.Unlock()
		w.end()
	}
}

// ECN and DSCP, through both gateways and a router between them that marks congestion: RFC 6040 figures 3 and 4, RFC 2983.
func TestTrafficClass(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   shape
		outer    func(inner byte) byte                // what leaves A
		delivers func(outer, inner byte) (byte, bool) // what leaves B
	}{
		{"ecn", func(_ int, out, in *sa.Params) { out.ECN, in.ECN = true, true },
			func(inner byte) byte { return inner },
			func(outer, inner byte) (byte, bool) {
				if outer&3 == 3 {
					return inner | 3, inner&3 != 0
				}
				if outer&3 == 1 && inner&3 == 2 {
					return inner&^3 | 1, true
				}
				return inner, true
			}},
		{"no ecn", nil,
			func(inner byte) byte { return inner &^ 3 },
			func(_, inner byte) (byte, bool) { return inner, true }},
		{"dscp set", func(_ int, out, in *sa.Params) { out.DSCP = sa.SetDSCP(46) },
			func(byte) byte { return 46 << 2 },
			func(_, inner byte) (byte, bool) { return inner, true }},
		{"dscp uniform", func(_ int, out, in *sa.Params) { out.DSCP, in.DSCP = sa.CopyDSCP, sa.CopyDSCP },
			func(inner byte) byte { return inner &^ 3 },
			func(outer, inner byte) (byte, bool) { return outer&^3 | inner&3, true }},
	} {
		for _, v6 := range []bool{false, true} {
			for _, mark := range []int{-1, 0, 1, 2, 3} { // the router sets the ECN field to; -1: it does not
				t.Run(fmt.Sprint(c.name, " ", v6, " ", mark), func(t *testing.T) {
					var left []byte
					w := newWorld(t, plan{hook: func(wire, s int) func(memlink.Datagram, func(memlink.Datagram)) {
						return func(d memlink.Datagram, emit func(memlink.Datagram)) {
							left = append(left, d.TOS)
							if mark >= 0 {
								d.TOS = d.TOS&^3 | byte(mark)
							}
							if c.name == "dscp uniform" {
								d.TOS ^= 0x80 // re-marked on the way
							}
							emit(d)
						}
					}})
					w.tunnel(1, esp4, nullSHA1, c.change)
					w.start()
					p := wirePacket{v6: v6, host: 1, ttl: 64, udp: true, payload: fill(20, 1)}
					var want [][]byte
					for tos := range 256 {
						p.tos, p.sport = byte(tos), uint16(tos)
						w.site[siteA].send(p.build(false))
						outer := c.outer(p.tos)
						if mark >= 0 {
							outer = outer&^3 | byte(mark)
						}
						if c.name == "dscp uniform" {
							outer ^= 0x80
						}
						came := p
						var ok bool
						if came.tos, ok = c.delivers(outer, p.tos); ok {
							want = append(want, came.build(false))
						}
					}
					sameFlows(t, w.site[siteB].receive(len(want)), want)
					eventually(t, "the rest is dropped", func() bool {
						b := w.site[siteB].in(esp4)
						return b.drops(CauseECNDropped) == 256-len(want) && b.Dropped() == uint64(256-len(want))
					})
					for tos := range 256 {
						if got, want := left[tos], c.outer(byte(tos)); got != want {
							t.Fatalf("%#02x left as %#02x, want %#02x", tos, got, want)
						}
					}
				})
			}
		}
	}
}

// SYNs in both directions get an MSS that fits the tunnel, whichever gateway clamps; their checksums stay right. One that is
// small enough, and whatever is no SYN, stays as it is.
func TestMSSClamp(t *testing.T) {
	for _, side := range []string{"outbound", "inbound"} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprint(side, v6), func(t *testing.T) {
				w := newWorld(t, plan{})
				tn := w.tunnel(1, udp4, cbcSHA1, func(_ int, out, in *sa.Params) {
					out.PathMTU = 1400
					out.ClampMSS, in.ClampMSS = side == "outbound", side == "inbound"
				})
				w.start()
				fits := tn.out[siteA].MaxInner() - 40
				p := wirePacket{v6: v6, host: 1, ttl: 64, sport: 5, dport: 6, window: 1000}
				if v6 {
					fits -= 20
				}
				for _, c := range []struct {
					flags     byte
					mss, want int
				}{{0x02, 1460, fits}, {0x12, 9000, fits}, {0x02, fits + 1, fits}, {0x02, fits, fits}, {0x02, 536, 536}, {0x10, 1460, 1460}} {
					p.flags, p.options = c.flags, mssOption(uint16(c.mss))
					want := p
					want.options = mssOption(uint16(c.want))
					for s, st := range w.site {
						st.send(from(s, p.build(false)))
						h := link.VNet{NeedsCsum: true, CsumStart: uint16(p.transportAt()), CsumOffset: 16}
						st.sendSuper(h, from(s, p.build(true)))
						for range 2 {
							if got := w.site[1-s].receive(1)[0]; !bytes.Equal(got, from(s, want.build(false))) {
								t.Errorf("MSS %d with flags %#x, from site %d: came as % x", c.mss, c.flags, s, got)
							}
						}
					}
				}
			})
		}
	}
}

// A packet that is too big for the path is answered with the exact size that is not, and that size goes through. The sizes are
// those of a table that was worked out by hand.
func TestPacketTooBig(t *testing.T) {
	for _, c := range []struct {
		tr   *offload.Transform
		mtu  int
		fits [4]int // by wire
	}{
		{cbcSHA1, 1500, [4]int{udp4: 1422, udp6: 1406, esp4: 1438, esp6: 1422}},
		{cbcSHA1, 1400, [4]int{udp4: 1326, udp6: 1310, esp4: 1342, esp6: 1310}},
		{transform("authenc(hmac(sha512),cbc(aes))"), 1492, [4]int{udp4: 1406, udp6: 1374, esp4: 1406, esp6: 1390}},
	} {
		for wire := range wires {
			for _, v6 := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%s/v6=%v", c.tr.Name, c.mtu, wires[wire].name, v6), func(t *testing.T) {
					w := newWorld(t, plan{})
					w.tunnel(1, wire, c.tr, func(_ int, out, in *sa.Params) { out.PathMTU = c.mtu })
					w.start()
					a, b := w.site[siteA], w.site[siteB]
					p := wirePacket{v6: v6, host: 1, ttl: 64, udp: true, df: true}
					size := func(n int) []byte {
						p.payload = fill(n-p.headerLen(), 1)
						return p.build(false)
					}
					a.send(size(c.fits[wire]))
					b.receive(1)
					a.send(size(c.fits[wire] + 1))
					judgePTBFrom(t, a.receive(1)[0], size(c.fits[wire]+1), c.fits[wire], destination(p.build(false)))
					// The sender of a super-packet is told the same.
					super := p
					super.payload = fill(30000, 1)
					h := link.VNet{NeedsCsum: true, GSO: link.GSOUDPL4, GSOSize: uint16(c.fits[wire] + 1 - p.headerLen()),
						CsumStart: uint16(p.transportAt()), CsumOffset: 6}
					a.sendSuper(h, super.build(true))
					judgePTBFrom(t, a.receive(1)[0], super.build(true), c.fits[wire], destination(super.build(true)))
					n := len(refSegments(super, int(h.GSOSize)))
					eventually(t, "the books", func() bool {
						o := a.out()
						return o.PTBSent == 2 && o.drops(CauseTooBig) == 1+n && o.PacketsOut == 1 && o.InFlight == 0
					})
					// A packet that may be fragmented is dropped without an answer.
					if p.df = false; !v6 {
						a.send(size(c.fits[wire] + 1))
						eventually(t, "dropped", func() bool { o := a.out(); return o.drops(CauseTooBig) == 2+n })
					}
					a.silent()
					b.silent()
				})
			}
		}
	}
}

// The messages are as many as routers may send.
func TestPacketTooBigLimits(t *testing.T) {
	w := newWorld(t, plan{})
	w.tunnel(1, udp4, gcm, nil)
	a := w.site[siteA]
	p := wirePacket{host: 1, ttl: 64, udp: true, df: true, payload: fill(1500, 1)}
	for range 150 {
		a.send(p.build(false))
	}
	w.start()
	eventually(t, "dropped", func() bool { o := a.out(); return o.drops(CauseTooBig) == 150 })
	n := int(a.out().PTBSent)
	if n < 100 || n > 149 { // 100 at once, then 100 a second
		t.Errorf("%d messages", n)
	}
	a.receive(n)
}

// DF of the outer header: as the SA says, and as the inner one has it where that is to be copied. IPv6's 1280 bytes get
// through a path that takes less, in fragments.
func TestDF(t *testing.T) {
	for _, c := range []struct {
		df                         sa.DF
		inner4, inner4NoDF, inner6 bool // whether it may be fragmented outside
	}{
		{sa.DFSet, false, false, false},
		{sa.DFClear, true, true, true},
		{sa.DFCopy, false, true, false},
	} {
		t.Run(c.df.String(), func(t *testing.T) {
			type seen struct {
				size     int
				fragment bool
			}
			var left []seen
			w := newWorld(t, plan{hook: func(wire, s int) func(memlink.Datagram, func(memlink.Datagram)) {
				return func(d memlink.Datagram, emit func(memlink.Datagram)) {
					left = append(left, seen{len(d.Buf), d.Fragment})
					emit(d)
				}
			}})
			w.tunnel(1, udp4, gcm, func(_ int, out, in *sa.Params) { out.DF, out.PathMTU = c.df, 600 })
			w.start()
			a, b := w.site[siteA], w.site[siteB]
			pass := func(p wirePacket, fragment bool) {
				t.Helper()
				a.send(p.build(false))
				if got := b.receive(1)[0]; !bytes.Equal(got, p.build(false)) {
					t.Error("came changed")
				}
				want := seen{gcm.SealedLen(len(p.build(false))), fragment}
				if got := left[len(left)-1]; got != want {
					t.Errorf("left as %v, want %v", got, want)
				}
			}
			p := wirePacket{host: 1, ttl: 64, udp: true, df: true, payload: fill(100, 1)}
			pass(p, c.inner4)
			noDF, six := p, p
			noDF.df, six.v6 = false, true
			pass(noDF, c.inner4NoDF)
			pass(six, c.inner6)
			six.payload = fill(1280-six.headerLen(), 1)
			pass(six, true)
			noDF.payload = fill(1000, 1)
			if c.inner4NoDF {
				pass(noDF, true)
			}
			// With DF inside, or more than IPv6 promises, it stays the sender's to send less.
			p.payload = fill(1000, 1)
			a.send(p.build(false))
			judgePTBFrom(t, a.receive(1)[0], p.build(false), gcm.MaxPayload(600-28), destination(p.build(false)))
			six.payload = fill(1281-six.headerLen(), 1)
			a.send(six.build(false))
			judgePTBFrom(t, a.receive(1)[0], six.build(false), 1280, destination(six.build(false)))
			b.silent()
		})
	}
}

// The peer is followed on an authentic, fresh packet that is newer than all before it, and on nothing else; never without
// leave.
func TestFollowPeer(t *testing.T) {
	home, away := wires[udp4].end[siteA], netip.MustParseAddrPort("198.51.100.9:4500")
	for _, follow := range []bool{true, false} {
		t.Run(fmt.Sprint(follow), func(t *testing.T) {
			w := newWorld(t, plan{})
			tn := w.tunnel(1, udp4, gcm, func(from int, out, in *sa.Params) { in.FollowPeer = follow && from == siteA })
			w.start()
			b := w.site[siteB]
			seal := w.sealer(tn, siteA)
			p := wirePacket{host: 1, ttl: 64, udp: true, payload: fill(100, 1)}
			inner := p.build(false)
			arrive := func(from netip.AddrPort, cause Cause, d []byte) {
				t.Helper()
				before := b.in(udp4)
				w.inject(udp4, siteB, from, 0, d)
				if cause == 0 {
					b.receive(1)
				}
				eventually(t, cause.String(), func() bool {
					now := b.in(udp4)
					return now.PacketsIn == before.PacketsIn+1 && now.InFlight == 0 && (cause == 0) == (now.Drops == before.Drops) &&
						(cause == 0 || now.drops(cause) == before.drops(cause)+1)
				})
			}
			peer := func(want netip.AddrPort) {
				t.Helper()
				if got := tn.out[siteB].Peer(); got != want {
					t.Fatalf("the peer is %v, want %v", got, want)
				}
			}
			arrive(home, 0, seal.seal(5, nextHeaderIPv4, inner))
			peer(home)
			forged := seal.seal(6, nextHeaderIPv4, inner)
			forged[len(forged)-1] ^= 1
			arrive(away, CauseIntegrityFailed, forged)
			arrive(away, CauseDuplicate, seal.seal(5, nextHeaderIPv4, inner))
			arrive(away, 0, seal.seal(4, nextHeaderIPv4, inner)) // delayed, or held back by someone
			peer(home)
			arrive(away, CauseDummy, seal.seal(7, nextHeaderDummy, nil)) // authentic all the same
			want := away
			if !follow {
				want = home
			}
			peer(want)
			arrive(home, 0, seal.seal(6, nextHeaderIPv4, inner)) // from before the move
			peer(want)
			arrive(away, 0, seal.seal(8, nextHeaderIPv4, inner))
			peer(want)
			b.send(from(siteB, inner))
			w.site[siteA].receive(1)
			arrive(home, 0, seal.seal(9, nextHeaderIPv4, inner)) // back again
			peer(home)
		})
	}
}

// Packets go to where the peer is, from the address that the SA has.
func TestAddresses(t *testing.T) {
	var mu sync.Mutex
	var got []memlink.Datagram
	w := newWorld(t, plan{hook: func(wire, s int) func(memlink.Datagram, func(memlink.Datagram)) {
		return func(d memlink.Datagram, emit func(memlink.Datagram)) {
			mu.Lock()
			got = append(got, d)
			mu.Unlock()
			emit(d)
		}
	}})
	own := netip.MustParseAddr("192.0.2.50") // one of several on this wire
	tn := w.tunnel(1, udp4, gcm, func(s int, out, in *sa.Params) {
		if s == siteA {
			out.Src = own
		}
	})
	w.start()
	p := wirePacket{host: 1, ttl: 64, udp: true, payload: fill(100, 1)}
	moved := netip.MustParseAddrPort("203.0.113.5:1024")
	for i, to := range []netip.AddrPort{wires[udp4].end[siteB], moved} {
		tn.out[siteA].SetPeer(to)
		w.site[siteA].send(p.build(false))
		w.site[siteB].receive(1)
		mu.Lock()
		if d := got[i]; d.To != to || d.From != netip.AddrPortFrom(own, 4500) {
			t.Errorf("from %v to %v", d.From, d.To)
		}
		mu.Unlock()
	}
}

// What a wire packet consists of: SPI, number and IV are in it as the RFCs have it, and no two IVs of CBC are alike.
func TestESPHeader(t *testing.T) {
	var mu sync.Mutex
	var got [][]byte
	w := newWorld(t, plan{hook: func(wire, s int) func(memlink.Datagram, func(memlink.Datagram)) {
		return func(d memlink.Datagram, emit func(memlink.Datagram)) {
			mu.Lock()
			got = append(got, bytes.Clone(d.Buf))
			mu.Unlock()
			emit(d)
		}
	}})
	trs := offload.Transforms()
	for n, tr := range trs {
		w.tunnel(n, udp4, tr, nil)
	}
	w.start()
	for n := range trs {
		for range 100 {
			p := wirePacket{host: byte(n), ttl: 64, udp: true, payload: fill(10, 1)}
			w.site[siteA].send(p.build(false))
		}
	}
	w.site[siteB].receive(100 * len(trs))
	ivs := map[string]bool{}
	for i, p := range got {
		tr, seq := trs[i/100], uint32(i%100+1)
		if spi := binary.BigEndian.Uint32(p); spi != uint32(0x1000+2*(i/100)) {
			t.Fatalf("SPI %#x", spi)
		}
		if s := binary.BigEndian.Uint32(p[4:]); s != seq {
			t.Fatalf("number %d, want %d", s, seq)
		}
		iv := string(p[8:tr.HeaderLen()])
		if tr.AEAD && binary.BigEndian.Uint64([]byte(iv)) != uint64(seq) {
			t.Fatalf("IV % x of packet %d", iv, seq)
		}
		if !tr.AEAD && iv != "" && ivs[iv] {
			t.Fatalf("IV % x twice", iv)
		}
		ivs[iv] = true
	}
}
