package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/sa"
	"culvert/test/judge"
)

// innerOf are packets from the peer's host of the n-th tunnel to ours, or the other way; both families, lengths with every remainder.
func innerOf(n int, outbound bool) (all [][]byte) {
	r := judge.Rand(fmt.Sprintf("inner packets of %d", n))
	for _, v6 := range []bool{false, true} {
		own, peer := addrs(n, v6)
		from, to := peer, own
		if outbound {
			from, to = own, peer
		}
		for _, size := range []int{r.IntN(16), 16 + r.IntN(16), 512 + r.IntN(16), 1200 + r.IntN(16)} {
			all = append(all, judge.UDP(netip.AddrPortFrom(from, 1000), netip.AddrPortFrom(to, 2000), judge.Bytes(r, size)))
		}
		all = append(all, judge.Ping(from, to, 1, 2, judge.Bytes(r, r.IntN(100))))
	}
	return all
}

// What scapy seals arrives at the host as it was, through the real lanes, in order: every transform over native ESP and UDP, both
// families outside and inside, with and without ESN, through every kind of engine.
func TestScapyToHost(t *testing.T) {
	for _, esn := range []bool{false, true} {
		const first = 5<<32 - 3 // with ESN the high half changes within the burst
		// The n-th tunnel has a transform and a row of wires of its own.
		layout := func(f func(n, wire int, tr *offload.Transform)) {
			for i, tr := range offload.Transforms() {
				for wire := range wires {
					f(i*len(wires)+wire, wire, tr)
				}
			}
		}
		var jobs []judge.SealJob
		layout(func(n, wire int, tr *offload.Transform) {
			seq := uint64(1)
			if esn {
				seq = first
			}
			in, _ := associations(tr, esn, wire, n)
			j := judge.SealJob{SA: in}
			for _, p := range innerOf(n, false) {
				j.Plain = append(j.Plain, judge.Plain{Inner: p, Seq: seq})
				seq++
			}
			jobs = append(jobs, j)
		})
		sealed := judge.ScapySeal(t, jobs...)
		for _, over := range lanesOver {
			t.Run(fmt.Sprintf("%s/ESN=%v", over.name, esn), func(t *testing.T) {
				g := newGateway(t, over.set)
				var tunnels []*tunnel
				layout(func(n, wire int, tr *offload.Transform) {
					tunnels = append(tunnels, g.add(tr, esn, wire, n, nil, func(in *sa.Inbound) {
						if esn {
							in.Resume(first - 1)
						}
					}))
				})
				g.start()
				for i, tn := range tunnels {
					var esp [][]byte
					for _, w := range sealed[i] {
						p, err := judge.ESP(w)
						if err != nil {
							t.Fatal(err)
						}
						esp = append(esp, bytes.Clone(p))
					}
					g.arrive(tn.wire, 0, esp...)
				}
				if c := causes(g.settle()); len(c) > 0 {
					t.Errorf("drops: %v", c)
				}
				got := map[int][][]byte{}
				for _, p := range g.delivered() {
					n := tunnelOf(p)
					got[n] = append(got[n], p)
				}
				for i, tn := range tunnels {
					want := jobs[i].Plain
					if len(got[tn.n]) != len(want) {
						t.Errorf("%s over %s: %d of %d packets arrived", tn.in.Transform, wires[tn.wire].name, len(got[tn.n]), len(want))
						continue
					}
					for k := range want {
						if !bytes.Equal(got[tn.n][k], want[k].Inner) {
							t.Errorf("%s over %s: packet %d arrived as\n%x, sent was\n%x", tn.in.Transform, wires[tn.wire].name, k, got[tn.n][k], want[k].Inner)
						}
					}
				}
			})
		}
	}
}

// tunnelOf reads a tunnel's number from an inner packet's destination.
func tunnelOf(p []byte) int {
	if p[0]>>4 == 6 {
		return int(binary.BigEndian.Uint16(p[28:]))
	}
	return int(p[18])
}

// What the host sends arrives at the peer as ESP that scapy opens to what was sent, and that tshark finds authentic: sequence numbers
// from 1 on, IVs never the same twice, padding 1, 2, 3 …
func TestHostToScapy(t *testing.T) {
	// All that was sent is given to scapy at once, since it takes its time to start.
	type sending struct {
		over string
		tn   *tunnel
		want [][]byte
	}
	var all []sending
	var jobs []judge.OpenJob
	for _, esn := range []bool{false, true} {
		for k, over := range lanesOver {
			t.Run(fmt.Sprintf("%s/ESN=%v", over.name, esn), func(t *testing.T) {
				g := newGateway(t, over.set)
				var tunnels []*tunnel
				for n, tr := range offload.Transforms() {
					// With another row of wires for each kind of engine, every transform meets all of them.
					tunnels = append(tunnels, g.add(tr, esn, (n+k)%len(wires), n, nil, nil))
				}
				g.start()
				for _, tn := range tunnels {
					for _, p := range innerOf(tn.n, true) {
						g.leave(link.VNet{}, p, 1)
					}
				}
				if c := causes(g.settle()); len(c) > 0 {
					t.Errorf("drops: %v", c)
				}
				bySPI := map[uint32][][]byte{}
				for w := range wires {
					for _, e := range g.sent(w) {
						spi := binary.BigEndian.Uint32(e.esp)
						bySPI[spi] = append(bySPI[spi], e.esp)
					}
				}
				var capture [][]byte
				var known []judge.SA
				var dissected []*tunnel
				ivs := map[string]bool{}
				for _, tn := range tunnels {
					j := judge.OpenJob{SA: tn.out}
					for i, esp := range bySPI[tn.out.SPI] {
						tr := tn.out.Transform
						if seq := binary.BigEndian.Uint32(esp[4:]); seq != uint32(i+1) {
							t.Errorf("%s: packet %d has sequence number %d", tr, i, seq)
						}
						if iv := string(esp[8:tr.HeaderLen()]); !tr.AEAD && tr.IVLen > 0 {
							if ivs[iv] {
								t.Errorf("%s: the IV %x was used before", tr, iv)
							}
							ivs[iv] = true
						}
						wire := tn.out.Encapsulate(esp)
						j.Wire = append(j.Wire, judge.Wire{Packet: wire})
						if judge.TsharkKnows(tr, esn) == nil {
							capture, dissected = append(capture, wire), append(dissected, tn)
						}
					}
					if judge.TsharkKnows(tn.out.Transform, esn) == nil {
						known = append(known, tn.out)
					}
					jobs = append(jobs, j)
					all = append(all, sending{over.name, tn, innerOf(tn.n, true)})
				}
				if len(capture) == 0 {
					return
				}
				for i, d := range judge.Tshark(t, judge.WritePcap(t, capture), known...) {
					if !d.ICVGood || d.BadChecksum {
						t.Errorf("%s: tshark says %+v", dissected[i].out.Transform, d)
					}
					for k, b := range d.Pad {
						if int(b) != k+1 {
							t.Errorf("%s: padding %x", dissected[i].out.Transform, d.Pad)
							break
						}
					}
				}
			})
		}
	}
	for i, opened := range judge.ScapyOpen(t, jobs...) {
		s := all[i]
		what := fmt.Sprintf("%s, %s over %s, ESN %v", s.over, s.tn.out.Transform, wires[s.tn.wire].name, s.tn.out.Keys.ESN)
		if len(opened) != len(s.want) {
			t.Errorf("%s: %d of %d packets were sent", what, len(opened), len(s.want))
			continue
		}
		for k, o := range opened {
			if o.Err != "" || !bytes.Equal(o.Inner, s.want[k]) {
				t.Errorf("%s: scapy opens packet %d to\n%x (%s), sent was\n%x", what, k, o.Inner, o.Err, s.want[k])
			}
		}
	}
}

// A super-packet from the host, as a kernel with segmentation offload hands it over, is on the wire as packets whose headers and
// checksums tshark finds right, and whose payloads are what was sent.
func TestSuperPackets(t *testing.T) {
	for _, over := range lanesOver {
		t.Run(over.name, func(t *testing.T) {
			g := newGateway(t, over.set)
			tr := offload.Transforms()[0]
			tn := g.add(tr, false, 0, 0, nil, nil)
			g.start()
			r := judge.Rand("super-packets")
			var streams [][]byte
			var kinds []link.GSOType
			count := 0
			for i, c := range []struct {
				gso  link.GSOType
				v6   bool
				size int
				len  int
			}{
				{link.GSOTCP4, false, 1360, 64000}, {link.GSOTCP6, true, 1340, 64000}, {link.GSOTCP4, false, 536, 537}, {link.GSOTCP4, false, 1360, 2720},
				{link.GSOUDPL4, false, 1200, 60000}, {link.GSOUDPL4, true, 1000, 10001},
			} {
				own, peer := addrs(0, c.v6)
				payload := judge.Bytes(r, c.len)
				from, to := netip.AddrPortFrom(own, uint16(33000+i)), netip.AddrPortFrom(peer, 9)
				var p []byte
				ip := 20
				if c.v6 {
					ip = 40
				}
				h := link.VNet{NeedsCsum: true, GSO: c.gso, GSOSize: uint16(c.size), CsumStart: uint16(ip)}
				if c.gso == link.GSOUDPL4 {
					p = judge.UDP(from, to, payload)
					h.HdrLen, h.CsumOffset = uint16(ip+8), 6
				} else {
					p = judge.TCP(from, to, 100, payload)
					h.HdrLen, h.CsumOffset = uint16(ip+20), 16
				}
				// The kernel leaves the pseudo-header's sum where the checksum will be; a whole one there must not matter.
				n := (c.len + c.size - 1) / c.size
				g.leave(h, p, n)
				count += n
				streams, kinds = append(streams, payload), append(kinds, c.gso)
			}
			if c := causes(g.settle()); len(c) > 0 {
				t.Errorf("drops: %v", c)
			}
			var capture [][]byte
			for _, e := range g.sent(0) {
				capture = append(capture, tn.out.Encapsulate(e.esp))
			}
			if len(capture) != count {
				t.Fatalf("%d packets were sent, want %d", len(capture), count)
			}
			got := make([][]byte, len(streams))
			for k, d := range judge.Tshark(t, judge.WritePcap(t, capture), tn.out) {
				if !d.ICVGood || d.BadChecksum {
					t.Errorf("packet %d: tshark says: ICV good %v, bad checksum %v, %s", k, d.ICVGood, d.BadChecksum, d.Protocols)
				}
				ip := 20
				if d.Inner[0]>>4 == 6 {
					ip = 40
				}
				i := int(binary.BigEndian.Uint16(d.Inner[ip:])) - 33000
				head := ip + 8
				if kinds[i] != link.GSOUDPL4 {
					head = ip + int(d.Inner[ip+12]>>4)*4
					if seq := binary.BigEndian.Uint32(d.Inner[ip+4:]); int(seq) != 100+len(got[i]) {
						t.Errorf("stream %d: a segment has sequence number %d, want %d", i, seq, 100+len(got[i]))
					}
				}
				got[i] = append(got[i], d.Inner[head:]...)
			}
			for i := range streams {
				if !bytes.Equal(got[i], streams[i]) {
					t.Errorf("stream %d: %d bytes came out, or others than the %d that went in", i, len(got[i]), len(streams[i]))
				}
			}
		})
	}
}

// Every packet that scapy or a forger gets wrong is dropped under its own cause, moves no window, and leaves the books balanced; what
// is only unusual is delivered.
func TestAlteredPackets(t *testing.T) {
	type at struct {
		tr     *offload.Transform
		wire   int
		trials []trial
	}
	ats := []at{
		{tr: mustTransform(t, "authenc(hmac(sha256),cbc(aes))", 128, 128), wire: 1},
		{tr: mustTransform(t, "authenc(hmac(sha1),cbc(des3_ede))", 192, 96), wire: 0},
		{tr: mustTransform(t, "rfc4106(gcm(aes))", 256, 128), wire: 3},
		{tr: mustTransform(t, "rfc7539esp(chacha20,poly1305)", 256, 128), wire: 2},
		{tr: mustTransform(t, "authenc(hmac(sha512),cipher_null)", 0, 256), wire: 1},
	}
	var jobs []judge.SealJob
	for i := range ats {
		a := &ats[i]
		a.trials = trials(a.tr, a.wire)
		in, _ := associations(a.tr, false, a.wire, 1)
		j := judge.SealJob{SA: in}
		for _, c := range a.trials {
			j.Plain = append(j.Plain, c.plain)
		}
		jobs = append(jobs, j)
	}
	sealed := judge.ScapySeal(t, jobs...)
	for _, over := range lanesOver {
		t.Run(over.name, func(t *testing.T) {
			for i, a := range ats {
				t.Run(a.tr.ID(), func(t *testing.T) { altered(t, newGateway(t, over.set), a.tr, a.wire, a.trials, sealed[i]) })
			}
		})
	}
}

func mustTransform(t *testing.T, name string, keyBits, icvBits int) *offload.Transform {
	t.Helper()
	tr, err := offload.Lookup(name, keyBits, icvBits)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// trial is one packet, and what must become of it.
type trial struct {
	name  string
	plain judge.Plain
	edit  func(esp []byte) []byte // after sealing
	wire  int
	tos   uint8
	cause string // "" : delivered
	again bool   // send it twice: the second is the trial
}

// trials are the packets of the peer to a tunnel on a row of wires, in the order in which they are sent.
func trials(tr *offload.Transform, wire int) []trial {
	other, _ := associations(tr, false, (wire+1)%len(wires), 2)
	own, peer := addrs(1, false)
	r := judge.Rand("altered packets")
	udp := func(size int) []byte {
		return judge.UDP(netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(own, 2), judge.Bytes(r, size))
	}
	// A packet that needs two bytes of padding at least, whatever the transform.
	padded := udp(64)
	for tr.PadLen(len(padded)) < 2 {
		padded = udp(len(padded) - 28 + 1)
	}
	natural := tr.PadLen(len(padded))
	monotonic := func(n int) (b []byte) {
		for i := range n {
			b = append(b, byte(i+1))
		}
		return b
	}
	number := func(n int) *int { return &n }
	wrongLast := monotonic(natural)
	wrongLast[natural-1]++
	stranger := judge.UDP(netip.AddrPortFrom(netip.MustParseAddr("10.2.2.1"), 1), netip.AddrPortFrom(own, 2), []byte("of the other tunnel"))
	elsewhere := judge.UDP(netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(netip.MustParseAddr("192.0.2.99"), 2), []byte("to nobody here"))
	longer := udp(40)
	binary.BigEndian.PutUint16(longer[2:], uint16(len(longer)+40))
	notECT := udp(50)
	last := func(esp []byte) []byte { esp[len(esp)-1] ^= 1; return esp }
	all := []trial{
		{name: "good", plain: judge.Plain{Inner: udp(100), Seq: 1000}},
		{name: "wrong ICV", plain: judge.Plain{Inner: udp(100), Seq: 1001}, edit: last, cause: "integrity-failed"},
		{name: "wrong ICV far ahead", plain: judge.Plain{Inner: udp(100), Seq: 900000}, edit: last, cause: "integrity-failed"},
		{name: "changed SPI of another SA", plain: judge.Plain{Inner: udp(100), Seq: 1002}, edit: func(p []byte) []byte {
			binary.BigEndian.PutUint32(p, other.SPI)
			return p
		}, cause: "encap-mismatch"},
		{name: "changed sequence number", plain: judge.Plain{Inner: udp(100), Seq: 1003}, edit: func(p []byte) []byte { p[7]++; return p }, cause: "integrity-failed"},
		{name: "changed payload", plain: judge.Plain{Inner: udp(100), Seq: 1005}, edit: func(p []byte) []byte { p[tr.HeaderLen()+30] ^= 0x80; return p }, cause: "integrity-failed"},
		{name: "the genuine one after the forged", plain: judge.Plain{Inner: udp(100), Seq: 1005}},
		{name: "replayed", plain: judge.Plain{Inner: udp(101), Seq: 1006}, again: true, cause: "duplicate"},
		{name: "late within the window", plain: judge.Plain{Inner: udp(102), Seq: 990}},
		{name: "too old", plain: judge.Plain{Inner: udp(103), Seq: 1006 - 64}, cause: "too-old"},
		{name: "sequence number 0", plain: judge.Plain{Inner: udp(104), Seq: 0}, cause: "too-old"},
		{name: "unknown SPI", plain: judge.Plain{Inner: udp(100), Seq: 1007}, edit: func(p []byte) []byte { p[0] = 0xee; return p }, cause: "no-state"},
		{name: "reserved SPI", plain: judge.Plain{Inner: udp(100), Seq: 1007}, edit: func(p []byte) []byte {
			binary.BigEndian.PutUint32(p, 255)
			return p
		}, cause: "reserved-spi"},
		{name: "cut to the header", plain: judge.Plain{Inner: udp(100), Seq: 1008}, edit: func(p []byte) []byte { return p[:tr.HeaderLen()] }, cause: "runt"},
		{name: "cut to five bytes", plain: judge.Plain{Inner: udp(100), Seq: 1008}, edit: func(p []byte) []byte { return p[:5] }, cause: "runt"},
		{name: "one byte short", plain: judge.Plain{Inner: udp(100), Seq: 1009}, edit: func(p []byte) []byte { return p[:len(p)-1] }, cause: "bad-length"},
		{name: "one block short", plain: judge.Plain{Inner: udp(100), Seq: 1009}, edit: func(p []byte) []byte { return p[:len(p)-tr.BlockLen] }, cause: "integrity-failed"},
		{name: "one block long", plain: judge.Plain{Inner: udp(100), Seq: 1009}, edit: func(p []byte) []byte { return append(p, make([]byte, tr.BlockLen)...) }, cause: "integrity-failed"},
		{name: "on another wire", plain: judge.Plain{Inner: udp(100), Seq: 1010}, wire: 1, cause: "encap-mismatch"},
		{name: "padding of zeros", plain: judge.Plain{Inner: padded, Seq: 1011, Pad: make([]byte, natural)}, cause: "bad-pad"},
		{name: "last byte of the padding wrong", plain: judge.Plain{Inner: padded, Seq: 1012, Pad: wrongLast}, cause: "bad-pad"},
		{name: "pad length beyond the packet", plain: judge.Plain{Inner: padded, Seq: 1013, Pad: monotonic(natural), PadLen: number(255)}, cause: "bad-pad"},
		{name: "padding of another length", plain: judge.Plain{Inner: padded, Seq: 1014, Pad: monotonic(natural + 2*tr.BlockLen)}},
		{name: "dummy", plain: judge.Plain{Inner: udp(60), Seq: 1015, NextHeader: number(59)}, cause: "dummy"},
		{name: "a dummy advances the window", plain: judge.Plain{Inner: udp(60), Seq: 1015}, cause: "duplicate"},
		{name: "next header UDP", plain: judge.Plain{Inner: udp(60), Seq: 1016, NextHeader: number(17)}, cause: "bad-next-header"},
		{name: "IPv4 said to be IPv6", plain: judge.Plain{Inner: udp(60), Seq: 1017, NextHeader: number(41)}, cause: "decap-malformed"},
		{name: "inner length beyond the packet", plain: judge.Plain{Inner: longer, Seq: 1018}, cause: "decap-malformed"},
		{name: "source of another tunnel", plain: judge.Plain{Inner: stranger, Seq: 1019}, cause: "policy-mismatch"},
		{name: "destination outside", plain: judge.Plain{Inner: elsewhere, Seq: 1020}, cause: "policy-mismatch"},
		{name: "padded against traffic analysis", plain: judge.Plain{Inner: udp(61), Seq: 1021, TFC: make([]byte, 777)}},
		{name: "congestion marked where it cannot be told", plain: judge.Plain{Inner: notECT, Seq: 1022}, tos: 3, cause: "ecn-dropped"},
		{name: "good at last", plain: judge.Plain{Inner: udp(100), Seq: 1023}},
	}
	if wires[wire].port != 0 {
		all = append(all,
			trial{name: "NAT keepalive", plain: judge.Plain{Inner: udp(1), Seq: 1}, edit: func([]byte) []byte { return []byte{0xff} }, cause: "keepalive"},
			trial{name: "IKE", plain: judge.Plain{Inner: udp(1), Seq: 1}, edit: func(p []byte) []byte { return append(make([]byte, 4), p...) }, cause: "ike"},
		)
	}
	return all
}

func altered(t *testing.T, g *gateway, tr *offload.Transform, wire int, trials []trial, sealed [][]byte) {
	tn := g.add(tr, false, wire, 1, nil, nil)
	g.add(tr, false, (wire+1)%len(wires), 2, nil, nil) // another tunnel on another wire
	g.start()
	before := g.settle()
	for i, w := range sealed {
		c := trials[i]
		p, err := judge.ESP(w)
		if err != nil {
			t.Fatal(err)
		}
		esp := bytes.Clone(p)
		if c.edit != nil {
			esp = c.edit(esp)
		}
		if c.again {
			g.arrive(wire, c.tos, bytes.Clone(esp))
			before = g.settle()
			if got := g.delivered(); len(got) != 1 {
				t.Errorf("%s: the first of the two was delivered %d times", c.name, len(got))
			}
		}
		g.arrive((wire+c.wire)%len(wires), c.tos, esp)
		after := g.settle()
		got := map[string]uint64{}
		for cause, n := range causes(after) {
			if was := causes(before)[cause]; n > was {
				got[cause] = n - was
			}
		}
		want := map[string]uint64{}
		if c.cause != "" {
			want[c.cause] = 1
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: dropped as %v, want %v", c.name, got, want)
		}
		out := g.delivered()
		switch {
		case c.cause != "" && len(out) > 0:
			t.Errorf("%s: %x was delivered", c.name, out)
		case c.cause == "" && (len(out) != 1 || !bytes.Equal(out[0], c.plain.Inner)):
			t.Errorf("%s: delivered was\n%x, want\n%x", c.name, out, c.plain.Inner)
		}
		before = after
	}
	if top := tn.inbound.Stats().Seq; top != 1023 {
		t.Errorf("the highest sequence number received is %d, want 1023: forged packets must not move it", top)
	}
	if d := tn.inbound.Stats().Drops; d.Duplicate != 2 || d.TooOld != 2 || d.BadICV != 6 {
		t.Errorf("the SA's own counts: %+v, want 2 duplicates, 2 too old, 6 with a bad ICV", d)
	}
}
