package dataplane

import (
	"bytes"
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"culvert/dataplane/link"
	"culvert/offload/offloadtest"
	"culvert/offload/soft"
	"culvert/sa"
)

// provocation is one way to a cause.
type provocation struct {
	cause Cause
	how   string
	// do provokes it in a world of its own, and tells in whose books, and how many packets are dropped.
	do func(t *testing.T) (books func() Counters, n int)
}

// probe is one packet of the host of tunnel n at site A.
func probe(n int) wirePacket {
	return wirePacket{host: byte(n), ttl: 64, udp: true, df: true, payload: fill(50, 1)}
}

// outwards provokes at site A by what its host sends.
func outwards(change shape, prepare func(w *world, tn *tunnel), packets ...[]byte) func(*testing.T) (func() Counters, int) {
	return func(t *testing.T) (func() Counters, int) {
		w := newWorld(t, plan{})
		tn := w.tunnel(1, udp4, cbcSHA1, change)
		if prepare != nil {
			prepare(w, tn)
		}
		w.start()
		w.site[siteA].send(packets...)
		return w.site[siteA].out, len(packets)
	}
}

// refused provokes by what the outer link says of a message of three datagrams, of which it has sent one.
func refused(err error) func(*testing.T) (func() Counters, int) {
	return func(t *testing.T) (func() Counters, int) {
		w := newWorld(t, plan{outer: func(wire, s int, o link.Outer) link.Outer {
			return &recorder{Outer: o, fail: func(m *link.TxMsg) { m.Err, m.Failed = err, m.Datagrams()-1 }}
		}})
		w.tunnel(1, udp4, cbcSHA1, nil)
		p := probe(1)
		w.site[siteA].send(p.build(false), p.build(false), p.build(false))
		w.start()
		return w.site[siteA].out, 2
	}
}

// policy provokes by a policy that comes before the tunnel's.
func policy(p sa.Policy) func(*testing.T) (func() Counters, int) {
	p.Name, p.Dir, p.Priority = "first", sa.Out, -1
	probe := probe(1)
	return outwards(nil, func(w *world, _ *tunnel) {
		if err := w.site[siteA].cfg.DB.Update(func(tx *sa.Tx) error { return tx.AddPolicy(p) }); err != nil {
			w.Fatal(err)
		}
	}, probe.build(false))
}

// replaced puts an outbound SA with the given sequence in the place of the tunnel's, with one number left to use.
func replaced(sequence func(w *world, p *sa.Params) *sa.Sequence) func(*testing.T) (func() Counters, int) {
	return func(t *testing.T) (func() Counters, int) {
		w := newWorld(t, plan{})
		tn := w.draft(1, udp4, cbcSHA1, nil)
		var err error
		p := tn.out[siteA].Params()
		if tn.out[siteA], err = sa.NewOutbound(*p, tn.out[siteA].Session(), sequence(w, p)); err != nil {
			t.Fatal(err)
		}
		tn.in[siteB].Resume(tn.in[siteB].Top())
		w.add(tn)
		w.start()
		probe := probe(1)
		w.site[siteA].send(probe.build(false), probe.build(false)) // a third would find the SA expired
		w.site[siteB].receive(1)
		return w.site[siteA].out, 1
	}
}

// inwards provokes at site B by datagrams on a wire.
func inwards(wire int, tos uint8, change shape, datagrams func(w *world, tn *tunnel, s *sealer) [][]byte) func(*testing.T) (func() Counters, int) {
	return func(t *testing.T) (func() Counters, int) {
		w := newWorld(t, plan{})
		tn := w.tunnel(1, wire, cbcSHA1, change)
		w.start()
		ds := datagrams(w, tn, w.sealer(tn, siteA))
		w.inject(wire, siteB, wires[wire].end[siteA], tos, ds...)
		return func() Counters { return w.site[siteB].in(wire) }, len(ds)
	}
}

// raw are datagrams as they are.
func raw(datagrams ...[]byte) func(*world, *tunnel, *sealer) [][]byte {
	return func(*world, *tunnel, *sealer) [][]byte { return datagrams }
}

// plain are datagrams sealed around what is encrypted: payload, padding, pad length, next header.
func plain(all ...[]byte) func(*world, *tunnel, *sealer) [][]byte {
	return func(_ *world, _ *tunnel, s *sealer) (ds [][]byte) {
		for i, p := range all {
			ds = append(ds, s.sealRaw(uint64(i+1), p))
		}
		return ds
	}
}

// inner are datagrams sealed around inner packets that are padded as they should be.
func inner(all ...[]byte) func(*world, *tunnel, *sealer) [][]byte {
	return func(_ *world, _ *tunnel, s *sealer) (ds [][]byte) {
		for i, p := range all {
			next := byte(nextHeaderIPv4)
			if len(p) > 0 && p[0]>>4 == 6 {
				next = nextHeaderIPv6
			}
			ds = append(ds, s.seal(uint64(i+1), next, p))
		}
		return ds
	}
}

// edited is a packet with one byte changed.
func edited(p []byte, at int, to byte) []byte {
	p = bytes.Clone(p)
	p[at] = to
	return p
}

func provocations() []provocation {
	w4 := probe(1)
	p4 := w4.build(false)
	w6 := w4
	w6.v6 = true
	p6 := w6.build(false)
	ce := w4
	ce.tos = 0 // Not-ECT
	big := w4
	big.payload = fill(3000, 1)
	foreign := probe(2)
	packet := foreign.build(false)
	chaotic := func(at int) func(*testing.T) (func() Counters, int) {
		return func(t *testing.T) (func() Counters, int) {
			c := offloadtest.NewChaos(soft.New(), offloadtest.ChaosOptions{})
			var p plan
			p.config[at] = func(cfg *Config) { cfg.Engine, cfg.Async = c, true }
			w := newWorld(t, p)
			w.tunnel(1, udp4, cbcSHA1, nil)
			w.start()
			c.FailNext(2)
			w.site[siteA].send(p4, p4, p4)
			w.site[siteB].receive(1)
			if at == siteA {
				return w.site[siteA].out, 2
			}
			return func() Counters { return w.site[siteB].in(udp4) }, 2
		}
	}
	return []provocation{
		{CauseInnerMalformed, "no IP packets", outwards(nil, nil, []byte{0x45}, edited(p4, 0, 0x75), edited(p4, 3, 200), p6[:60])},
		{CauseInnerMalformed, "offload headers that are wrong", func(t *testing.T) (func() Counters, int) {
			w := newWorld(t, plan{super: true})
			w.tunnel(1, udp4, cbcSHA1, nil)
			w.start()
			w.site[siteA].sendSuper(link.VNet{NeedsCsum: true, GSO: link.GSOTCP4, GSOSize: 10}, p4)
			w.site[siteA].sendSuper(link.VNet{NeedsCsum: true, CsumStart: 2, CsumOffset: 6}, p4)
			return w.site[siteA].out, 2
		}},
		{CauseInnerMalformed, "offload headers of another kind", func(t *testing.T) (func() Counters, int) {
			w := newWorld(t, plan{config: [2]func(*Config){func(c *Config) { c.Inner = oddInner{c.Inner} }, nil}})
			w.tunnel(1, udp4, cbcSHA1, nil)
			w.start()
			w.site[siteA].send(p4, p4)
			return w.site[siteA].out, 2
		}},
		{CauseLinkLocal, "to and from neighbours and groups", outwards(nil, nil, withAddresses(p6, "::", "ff02::16"),
			withAddresses(p6, "fe80::1", "2001:db8::1"), withAddresses(p4, "192.0.2.1", "224.0.0.22"))},
		{CauseNoPolicy, "nobody's", outwards(nil, nil, packet)},
		{CausePolicyDiscard, "discard", policy(sa.Policy{Action: sa.Discard})},
		{CauseBypass, "bypass", policy(sa.Policy{Action: sa.Bypass})},
		{CauseNoOutboundSA, "protect, but with what", policy(sa.Policy{Action: sa.Protect, Tunnel: "none yet"})},
		{CauseShouldBeProtected, "from the other side's network", outwards(nil, nil, from(siteB, p4))},
		{CauseLaneBusy, "outbound SA of another lane", outwards(nil, func(_ *world, tn *tunnel) { tn.out[siteA].Claim(99) }, p4)},
		{CauseLaneBusy, "inbound SA of another lane", inwards(udp4, 0, nil, func(_ *world, tn *tunnel, s *sealer) [][]byte {
			tn.in[siteB].Claim(99, udp4)
			return [][]byte{s.seal(1, nextHeaderIPv4, p4)}
		})},
		{CauseExpired, "outbound SA", func(t *testing.T) (func() Counters, int) {
			w := newWorld(t, plan{})
			w.tunnel(1, udp4, cbcSHA1, func(_ int, out, in *sa.Params) { out.Lifetime.Hard.Packets = 1 })
			w.start()
			w.site[siteA].send(p4)
			w.site[siteB].receive(1)
			w.site[siteA].send(p4)
			return w.site[siteA].out, 1
		}},
		{CauseExpired, "inbound SA", func(t *testing.T) (func() Counters, int) {
			w := newWorld(t, plan{})
			w.tunnel(1, udp4, cbcSHA1, func(_ int, out, in *sa.Params) { in.Lifetime.Hard.Packets = 1 })
			w.start()
			w.site[siteA].send(p4)
			w.site[siteB].receive(1)
			w.site[siteA].send(p4)
			return func() Counters { return w.site[siteB].in(udp4) }, 1
		}},
		{CauseTransportAddress, "of a network behind the gateway", outwards(func(_ int, out, in *sa.Params) { out.Mode, in.Mode = sa.Transport, sa.Transport }, nil, p4, p6)},
		{CauseTransportFragment, "first, later and IPv6's atomic one", transported(false, edited(p4, 6, 0x20), edited(p4, 7, 1))},
		{CauseTransportFragment, "IPv6", transported(true, insert(p6, protoFragment), insert(insert(p6, protoFragment), protoDestOptions))},
		{CauseTransportHeader, "IPv4 options", transported(false, func() []byte { o := w4; o.ipOptions = []byte{1, 1, 1, 0}; return o.build(false) }())},
		{CauseTransportHeader, "IPv6 hop-by-hop and routing", transported(true, insert(p6, protoHopByHop), insert(p6, protoRouting))},
		{CauseBadNextHeader, "transport mode: what stands before ESP", func(t *testing.T) (func() Counters, int) {
			return inwards(udp4, 0, hosts(1, true), func(_ *world, _ *tunnel, s *sealer) [][]byte {
				return [][]byte{s.seal(1, protoHopByHop, make([]byte, 40)), s.seal(2, protoRouting, make([]byte, 40)), s.seal(3, protoFragment, make([]byte, 40))}
			})(t)
		}},
		{CauseDummy, "transport mode", inwards(udp4, 0, hosts(1, false), plain(append(fill(14, 1), 0, nextHeaderDummy)))},
		{CauseBadPad, "transport mode", inwards(udp4, 0, hosts(1, false), plain(append(fill(14, 9), 14, protoUDP)))},
		{CauseDecapMalformed, "transport mode: cut short before a checksum", inwards(udp4, 0, hosts(1, false), func(_ *world, _ *tunnel, s *sealer) [][]byte {
			return [][]byte{s.seal(1, protoUDP, make([]byte, 7)), s.seal(2, protoTCP, make([]byte, 19)), s.seal(3, protoUDP, nil)}
		})},
		{CauseTooBig, "known", outwards(nil, nil, big.build(false))},
		{CauseTooBig, "never", outwards(func(_ int, out, in *sa.Params) { out.PathMTU = 65535 }, nil, func() []byte {
			huge := w4
			huge.payload = fill(65507, 1)
			return huge.build(false)
		}())},
		{CauseTooBig, "as the link finds", refused(link.ErrTooBig)},
		{CauseSeqExhausted, "the last number is used", replaced(func(w *world, _ *sa.Params) *sa.Sequence {
			s := sa.NewVolatileSequence()
			if err := s.SkipPast(math.MaxUint32 - 1); err != nil {
				w.Fatal(err)
			}
			return s
		})},
		{CauseSeqNotReserved, "the store is gone", replaced(func(w *world, p *sa.Params) *sa.Sequence {
			store, err := sa.OpenStore(w.TempDir())
			if err != nil {
				w.Fatal(err)
			}
			s, err := store.Sequence(p.SPI, p.Dst, sa.KeyID(p.Keys), false)
			if err != nil {
				w.Fatal(err)
			}
			store.Close()
			for n := uint64(1); ; n *= 2 { // to the last of those that are reserved
				for s.SkipPast(n) == nil {
					n++
				}
				if n < 1<<16 {
					continue
				}
				return s
			}
		})},
		{CauseEngineError, "outbound", chaotic(siteA)},
		{CauseEngineError, "inbound", chaotic(siteB)},
		{CauseUnreachable, "no route", refused(link.ErrUnreachable)},
		{CauseUnreachable, "nobody there", refused(link.ErrRefused)},
		{CauseHoldFull, "more than may wait for a policy", func(t *testing.T) (func() Counters, int) {
			p, _ := trapping(nil)
			w := newWorld(t, p)
			tn := w.trap(1, gcm, nil)
			w.start()
			for i := range holdPolicyPackets + 5 {
				w.site[siteA].send(numbered(1, i, 60))
			}
			eventually(t, "dropped", func() bool { b := w.site[siteA].out(); return b.PacketsIn == holdPolicyPackets+5 })
			w.arm(tn)
			w.site[siteB].receive(holdPolicyPackets)
			return w.site[siteA].out, 5
		}},
		{CauseHoldTimedOut, "nobody makes an SA", func(t *testing.T) (func() Counters, int) {
			p, _ := trapping(func(c *Config) { c.HoldFor = time.Millisecond })
			w := newWorld(t, p)
			w.trap(1, gcm, nil)
			w.start()
			w.site[siteA].send(p4, p6)
			return w.site[siteA].out, 2
		}},
		{CauseHoldPolicyGone, "while it waits", func(t *testing.T) (func() Counters, int) {
			p, _ := trapping(nil)
			w := newWorld(t, p)
			w.trap(1, gcm, nil)
			w.start()
			w.site[siteA].send(p4)
			w.site[siteA].held(1)
			w.update(siteA, func(tx *sa.Tx) error { return tx.RemovePolicy(sa.Out, "tunnel 1false") })
			return w.site[siteA].out, 1
		}},
		{CauseNoLink, "never there", outwards(func(_ int, out, in *sa.Params) { out.Link = 1 << 30 }, nil, p4, p6)},
		{CauseNoLink, "taken away", outwards(nil, func(w *world, _ *tunnel) {
			if err := w.site[siteA].plane.RemoveOuter(udp4); err != nil {
				w.Fatal(err)
			}
		}, p4, p4)},
		{CauseEncapMismatch, "an SA that is on no link", inwards(udp4, 0, func(_ int, out, in *sa.Params) { in.Link = 1 << 30 },
			func(_ *world, _ *tunnel, s *sealer) [][]byte { return [][]byte{s.seal(1, nextHeaderIPv4, p4)} })},
		{CauseQueueFull, "no buffers", refused(link.ErrNoBuffers)},
		{CauseSendFailed, "forbidden", refused(link.ErrForbidden)},
		{CauseSendFailed, "for another reason", refused(link.ErrOther)},
		{CauseClosing, "the link is closed", refused(net.ErrClosed)},

		{CauseKeepalive, "udp4", inwards(udp4, 0, nil, raw([]byte{0xff}))},
		{CauseKeepalive, "udp6", inwards(udp6, 0, nil, raw([]byte{0xff}, []byte{0xff}))},
		{CauseIKE, "non-ESP marker", inwards(udp4, 0, nil, raw([]byte{0, 0, 0, 0}, make([]byte, 200)))},
		{CauseRunt, "no header", inwards(udp4, 0, nil, raw([]byte{0xfe}, []byte{0xff, 0xff}, []byte{1, 2, 3, 4, 5, 6, 7}))},
		{CauseRunt, "on a raw socket there are no keepalives", inwards(esp4, 0, nil, raw([]byte{0xff}))},
		{CauseRunt, "no room for an ICV", inwards(udp4, 0, nil, func(_ *world, tn *tunnel, s *sealer) [][]byte {
			p := s.seal(1, nextHeaderIPv4, nil)
			return [][]byte{p[:8], p[:len(p)-1]}
		})},
		{CauseReservedSPI, "from 0 to 255", inwards(esp4, 0, nil, raw(make([]byte, 100), edited(make([]byte, 100), 3, 255)))},
		{CauseReservedSPI, "on UDP", inwards(udp6, 0, nil, raw(edited(make([]byte, 100), 3, 1)))},
		{CauseNoState, "unknown SPI", inwards(udp4, 0, nil, raw(edited(make([]byte, 100), 0, 7)))},
		{CauseEncapMismatch, "on another wire", func(t *testing.T) (func() Counters, int) {
			w := newWorld(t, plan{})
			tn := w.tunnel(1, udp4, cbcSHA1, nil)
			w.start()
			w.inject(esp4, siteB, wires[esp4].end[siteA], 0, w.sealer(tn, siteA).seal(1, nextHeaderIPv4, p4))
			return func() Counters { return w.site[siteB].in(esp4) }, 1
		}},
		{CauseDuplicate, "before it is opened", func(t *testing.T) (func() Counters, int) {
			w := newWorld(t, plan{})
			tn := w.tunnel(1, udp4, cbcSHA1, nil)
			w.start()
			d := w.sealer(tn, siteA).seal(1, nextHeaderIPv4, p4)
			w.inject(udp4, siteB, wires[udp4].end[siteA], 0, d)
			w.site[siteB].receive(1)
			w.inject(udp4, siteB, wires[udp4].end[siteA], 0, d, d)
			return func() Counters { return w.site[siteB].in(udp4) }, 2
		}},
		{CauseDuplicate, "opened in the same burst", func(t *testing.T) (func() Counters, int) {
			w := newWorld(t, plan{})
			tn := w.tunnel(1, udp4, cbcSHA1, nil)
			d := w.sealer(tn, siteA).seal(1, nextHeaderIPv4, p4)
			w.inject(udp4, siteB, wires[udp4].end[siteA], 0, d, d, d)
			w.start()
			w.site[siteB].receive(1)
			return func() Counters { return w.site[siteB].in(udp4) }, 2
		}},
		{CauseNotMarked, "the store is gone", inwards(udp4, 0, nil, func(w *world, tn *tunnel, s *sealer) [][]byte {
			store, err := sa.OpenStore(w.TempDir())
			if err != nil {
				w.Fatal(err)
			}
			p := tn.in[siteB].Params()
			mark, err := store.Received(p.SPI, p.Dst, p.Keys)
			if err == nil {
				err = tn.in[siteB].Persist(mark)
			}
			if err != nil {
				w.Fatal(err)
			}
			mark.Close()
			store.Close()
			return [][]byte{s.seal(1<<20, nextHeaderIPv4, p4), s.seal(1<<20, nextHeaderIPv4, p4)}
		})},
		{CauseTooOld, "left of the window", func(t *testing.T) (func() Counters, int) {
			w := newWorld(t, plan{})
			tn := w.tunnel(1, udp4, cbcSHA1, func(_ int, out, in *sa.Params) { in.ReplayWindow = 32 })
			s := w.sealer(tn, siteA)
			// All in one burst: the second is found too old only after it has been opened; the third before.
			w.inject(udp4, siteB, wires[udp4].end[siteA], 0, s.seal(100, nextHeaderIPv4, p4), s.seal(68, nextHeaderIPv4, p4))
			w.start()
			w.site[siteB].receive(1)
			w.inject(udp4, siteB, wires[udp4].end[siteA], 0, s.seal(67, nextHeaderIPv4, p4), s.seal(0, nextHeaderIPv4, p4))
			return func() Counters { return w.site[siteB].in(udp4) }, 3
		}},
		{CauseBadLength, "half a block", inwards(udp4, 0, nil, func(_ *world, tn *tunnel, s *sealer) [][]byte {
			p := s.seal(1, nextHeaderIPv4, p4)
			return [][]byte{p[:len(p)-1], p[:len(p)-8]}
		})},
		{CauseIntegrityFailed, "a bit is wrong", inwards(udp4, 0, nil, func(_ *world, tn *tunnel, s *sealer) [][]byte {
			p := s.seal(1, nextHeaderIPv4, p4)
			return [][]byte{edited(p, 7, 2), edited(p, 30, ^p[30]), edited(p, len(p)-1, ^p[len(p)-1]), p[:len(p)-16]}
		})},
		{CauseBadPad, "not 1, 2, 3", inwards(udp4, 0, nil, plain(
			[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0, 14, 4},
			[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 4}, // longer than all there is
			[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255, 4},
			[]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, nextHeaderDummy}))},
		{CauseDummy, "next header 59", inwards(udp4, 0, nil, plain(append(fill(14, 1), 0, nextHeaderDummy), append(fill(30, 1), 0, nextHeaderDummy)))},
		{CauseBadNextHeader, "TCP, and nothing", inwards(udp4, 0, nil, plain(append(fill(14, 1), 0, 6), append(fill(14, 1), 0, 0)))},
		{CauseDecapMalformed, "no IP packet", inwards(udp4, 0, nil, inner(nil, []byte{0x45}, edited(p4, 0, 0x44), edited(p4, 3, 250), p6[:39], edited(p6, 5, 250)))},
		{CauseDecapMalformed, "of the other version", inwards(udp4, 0, nil, func(_ *world, tn *tunnel, s *sealer) [][]byte {
			return [][]byte{s.seal(1, nextHeaderIPv6, p4), s.seal(2, nextHeaderIPv4, p6)}
		})},
		{CausePolicyMismatch, "another tunnel's source", inwards(udp4, 0, nil, inner(packet, from(siteB, p4)))},
		{CauseECNDropped, "congestion on Not-ECT", inwards(udp4, 3, func(_ int, out, in *sa.Params) { in.ECN = true }, inner(ce.build(false)))},
		{CauseDeliverFailed, "the host is gone", inwards(udp4, 0, nil, func(w *world, tn *tunnel, s *sealer) [][]byte {
			w.site[siteB].host.Close()
			return [][]byte{s.seal(1, nextHeaderIPv4, p4)}
		})},
		{CauseDeliverFailed, "the host takes no super-packet that it has asked for", func(t *testing.T) (func() Counters, int) {
			w := newWorld(t, plan{config: [2]func(*Config){nil, func(c *Config) { c.Inner = fullInner{c.Inner} }}})
			w.tunnel(1, udp4, cbcSHA1, nil)
			bulk := bulk(false, true)
			bulk.payload = fill(100, 1)
			for i := range 5 {
				bulk.id = uint16(i)
				w.site[siteA].send(bulk.build(false))
			}
			w.site[siteA].start()
			eventually(t, "sent", func() bool { return w.site[siteA].out().PacketsOut == 5 })
			w.site[siteB].start()
			return func() Counters { return w.site[siteB].in(udp4) }, 5
		}},
	}
}

// transported provokes with an SA in transport mode between the host itself and its peer.
func transported(v6 bool, packets ...[]byte) func(*testing.T) (func() Counters, int) {
	return outwards(hosts(1, v6), nil, packets...)
}

// insert puts an extension header of 8 bytes of zeros right behind an IPv6 header.
func insert(p []byte, proto byte) []byte {
	p = append(append(bytes.Clone(p[:40]), p[6], 0, 0, 0, 0, 0, 0, 0), p[40:]...)
	p[6] = proto
	p[5] += 8 // of a short packet
	return p
}

// oddInner is an inner link that knows no offload header.
type oddInner struct{ link.Inner }

func (o oddInner) NewReader() link.InnerReader { return oddReader{o.Inner.NewReader()} }

type oddReader struct{ link.InnerReader }

func (r oddReader) Next(wait bool) ([]byte, link.VNet, error) {
	_, _, err := r.InnerReader.Next(wait)
	if err == nil {
		err = link.ErrUnknownGSO
	}
	return nil, link.VNet{}, err
}

// fullInner is an inner link without buffers.
type fullInner struct{ link.Inner }

func (f fullInner) NewWriter() link.InnerWriter { return fullWriter{f.Inner.NewWriter()} }

type fullWriter struct{ link.InnerWriter }

func (fullWriter) Queue(link.VNet, [][]byte) error { return link.ErrNoBuffers }

// Every cause of the table can be provoked; each provocation counts under its cause alone, once for each packet, and the books
// balance.
func TestEveryCause(t *testing.T) {
	provoked := map[Cause]bool{}
	for _, p := range provocations() {
		provoked[p.cause] = true
		t.Run(p.cause.String()+"/"+p.how, func(t *testing.T) {
			books, n := p.do(t)
			eventually(t, p.cause.String(), func() bool { b := books(); return int(b.Dropped()) >= n && b.InFlight == 0 })
			if b := books(); b.drops(p.cause) != n || int(b.Dropped()) != n || !b.Balanced() {
				t.Errorf("want %d %v: %s", n, p.cause, b.summary())
			}
		})
	}
	for _, c := range Causes() {
		if !provoked[c] {
			t.Errorf("nothing provokes %v", c)
		}
	}
}

// The table is whole: every cause has a name of its own, fit for a metric's label, and a text.
func TestCauseTable(t *testing.T) {
	names := map[string]bool{}
	for _, c := range Causes() {
		if c.String() == "" || c.Text() == "" || names[c.String()] {
			t.Errorf("cause %d: %q, %q", c, c, c.Text())
		}
		names[c.String()] = true
		for _, r := range c.String() {
			if r != '-' && (r < 'a' || r > 'z') {
				t.Errorf("cause %q", c)
			}
		}
	}
	if c := Cause(NumCauses); c.String() != "unknown" || c.Text() != "unknown" {
		t.Errorf("beyond the table: %q, %q", c, c.Text())
	}
}

// What a replayed or forged packet costs an SA is counted with the SA too (RFC 4303 3.4.3, 3.4.4).
func TestRefusalsOfSA(t *testing.T) {
	w := newWorld(t, plan{})
	tn := w.tunnel(1, udp4, cbcSHA1, func(_ int, out, in *sa.Params) { in.ReplayWindow = 32 })
	other := w.tunnel(2, udp4, cbcSHA1, nil)
	s, so := w.sealer(tn, siteA), w.sealer(other, siteA)
	p1, p2 := probe(1), probe(2)
	bad := edited(s.seal(101, nextHeaderIPv4, p1.build(false)), 20, 0xff)
	w.inject(udp4, siteB, wires[udp4].end[siteA], 0,
		s.seal(100, nextHeaderIPv4, p1.build(false)), so.seal(1, nextHeaderIPv4, p2.build(false)), bad, so.seal(1, nextHeaderIPv4, p2.build(false)),
		s.seal(100, nextHeaderIPv4, p1.build(false)), bad, s.seal(3, nextHeaderIPv4, p1.build(false)))
	w.start()
	eventually(t, "opened", func() bool { b := w.site[siteB].in(udp4); return b.PacketsIn == 7 && b.InFlight == 0 })
	for _, c := range []struct {
		in   *sa.Inbound
		want sa.Drops
	}{{tn.in[siteB], sa.Drops{Duplicate: 1, TooOld: 1, BadICV: 2}}, {other.in[siteB], sa.Drops{Duplicate: 1}}} {
		eventually(t, fmt.Sprintf("%+v", c.want), func() bool { return c.in.Stats().Drops == c.want })
	}
}
