package interop

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/offload/soft"
	"culvert/test/judge"
)

// hostile calls f for every kind of engine, with the packets that go into each entry: a million for the first.
func hostile(t *testing.T, f func(t *testing.T, g *gateway, packets int)) {
	for i, over := range lanesOver {
		packets := 1_000_000
		if i > 0 || testing.Short() {
			packets = 50_000
		}
		t.Run(over.name, func(t *testing.T) { f(t, newGateway(t, over.set), packets) })
	}
}

// drain reads the far ends of the gateway all the time, so that nothing stands in the way of the lanes. The returned function ends it.
func (g *gateway) drain() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	poll := func(read func() error) {
		defer wg.Done()
		for {
			if read() == nil {
				continue
			}
			select {
			case <-done:
				return
			default:
				runtime.Gosched()
			}
		}
	}
	wg.Add(1 + len(g.recv))
	go poll(func() error { _, _, err := g.read.Next(false); return err })
	for i := range g.recv {
		go poll(func() error { return g.recv[i].Recv(g.batch[i], false) })
	}
	return func() { close(done); wg.Wait() }
}

// mutate changes a packet in one of the ways that break parsers: bits, lengths, ends, parts.
func mutate(r *rand.Rand, p []byte) []byte {
	for range 1 + r.IntN(3) {
		if len(p) == 0 {
			return p
		}
		switch r.IntN(6) {
		case 0:
			p[r.IntN(len(p))] ^= 1 << r.IntN(8)
		case 1:
			p[r.IntN(len(p))] = byte(r.Uint32())
		case 2:
			p = p[:r.IntN(len(p)+1)]
		case 3:
			for range 1 + r.IntN(40) {
				p = append(p, byte(r.Uint32()))
			}
		case 4: // in the headers, where lengths and types are
			p[r.IntN(min(len(p), 64))] = []byte{0, 1, 4, 6, 0x3a, 0x7f, 0x80, 0xff}[r.IntN(8)]
		case 5:
			i := r.IntN(len(p))
			copy(p[i:], p[r.IntN(len(p)):])
		}
	}
	return p
}

// A million packets from the wire, random and mutated from good ones and half of them with a right ICV, so that what is inside is
// garbage too: no lane dies, and the books balance.
func TestHostileWire(t *testing.T) { hostile(t, hostileWire) }

func hostileWire(t *testing.T, g *gateway, packets int) {
	var tunnels []*tunnel
	for n, tr := range []*offload.Transform{
		mustTransform(t, "authenc(hmac(sha1),cbc(aes))", 128, 96), mustTransform(t, "rfc4106(gcm(aes))", 128, 128),
		mustTransform(t, "authenc(hmac(sha1),cipher_null)", 0, 96),
	} {
		tunnels = append(tunnels, g.add(tr, n == 1, n, n, nil, nil))
	}
	g.start()
	defer g.drain()()
	r := judge.Rand("hostile wire")
	engine := soft.New()
	lane, err := engine.NewLane(0)
	if err != nil {
		t.Fatal(err)
	}
	defer lane.Close()
	var seal []offload.Session
	for _, tn := range tunnels {
		s, err := engine.NewSession(tn.in.Transform, offload.Seal, tn.in.Keys)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		seal = append(seal, s)
	}
	var seeds [3][][]byte
	for i := range seeds {
		seeds[i] = innerOf(i, false)
	}
	const burst = 64
	begin := time.Now()
	var seq [3]uint32
	for n := 0; n < packets; n += burst {
		wire := r.IntN(len(tunnels))
		tn, tr := tunnels[wire], tunnels[wire].in.Transform
		var sealed [][]byte
		b := offload.Burst{Dir: offload.Seal}
		for range burst {
			inner := mutate(r, append(make([]byte, 0, 2048), seeds[wire][r.IntN(len(seeds[wire]))]...))
			inner = inner[:min(len(inner), 2000)]
			seq[wire] += uint32(r.IntN(3))
			next := []byte{4, 4, 4, 41, 41, 59, byte(r.Uint32())}[r.IntN(7)]
			p := unsealed(tr, tn.in.SPI, seq[wire], judge.Bytes(r, tr.IVLen), inner, nil, next)
			if r.IntN(8) == 0 {
				p[len(p)-tr.ICVLen-2] = byte(r.Uint32()) // the pad length
			}
			sealed = append(sealed, p)
			b.Jobs = append(b.Jobs, offload.Job{Session: seal[wire], ESP: p})
		}
		if err := offload.Do(lane, &b); err != nil {
			t.Fatal(err)
		}
		for i := range sealed {
			switch r.IntN(4) {
			case 0:
				sealed[i] = mutate(r, sealed[i])
			case 1:
				if r.IntN(2) == 0 {
					sealed[i] = judge.Bytes(r, r.IntN(200))
				}
			}
			if len(sealed[i]) == 0 {
				sealed[i] = []byte{0} // links in memory carry no empty datagram
			}
		}
		g.arrive(wire, byte(r.Uint32()), sealed...)
	}
	b := g.settle()
	t.Logf("%d packets in %v: %d delivered, drops %v", b.PacketsIn, time.Since(begin).Round(time.Millisecond), b.PacketsOut, causes(b))
	// The test reaches every stage: what arrives is delivered, or refused before, at and after the engine.
	for _, cause := range []string{"runt", "no-state", "duplicate", "too-old", "bad-length", "integrity-failed", "bad-pad", "dummy", "bad-next-header",
		"decap-malformed", "policy-mismatch", "ecn-dropped"} {
		if causes(b)[cause] == 0 {
			t.Errorf("no packet was dropped as %s: the test does not reach it", cause)
		}
	}
	if b.PacketsOut == 0 {
		t.Error("no packet was delivered")
	}
}

// A million packets from the host, random and mutated from good ones, ordinary and super-packets with random offload headers: no lane
// dies, and the books balance.
func TestHostileHost(t *testing.T) { hostile(t, hostileHost) }

func hostileHost(t *testing.T, g *gateway, packets int) {
	for n := range 3 {
		g.add(mustTransform(t, "authenc(hmac(sha1),cipher_null)", 0, 96), false, n, n, nil, nil)
	}
	g.start()
	defer g.drain()()
	r := judge.Rand("hostile host")
	var seeds [][]byte
	for i := range 3 {
		seeds = append(seeds, innerOf(i, true)...)
		for _, v6 := range []bool{false, true} {
			own, peer := addrs(i, v6)
			seeds = append(seeds, judge.TCP(netip.AddrPortFrom(own, 1), netip.AddrPortFrom(peer, 2), 3, judge.Bytes(r, 9000)))
		}
	}
	begin := time.Now()
	buf := make([]byte, 0, 16384)
	for n := range packets {
		p := append(buf, seeds[r.IntN(len(seeds))]...)
		switch r.IntN(8) {
		case 0: // as it is
		case 1:
			p = judge.Bytes(r, r.IntN(200))
		default:
			p = mutate(r, p)
		}
		var h link.VNet
		if r.IntN(2) == 0 {
			ip := 20
			if len(p) > 0 && p[0]>>4 == 6 {
				ip = 40
			}
			h = link.VNet{NeedsCsum: true, GSO: link.GSOType(r.IntN(4)), HdrLen: uint16(ip + 20), GSOSize: uint16(100 + r.IntN(1400)), CsumStart: uint16(ip), CsumOffset: 16}
			if h.GSO == link.GSOUDPL4 {
				h.HdrLen, h.CsumOffset = uint16(ip+8), 6
			}
			if r.IntN(3) == 0 {
				h.HdrLen, h.GSOSize = uint16(r.Uint32()), uint16(r.Uint32())>>r.IntN(16)
				h.CsumStart, h.CsumOffset = uint16(r.Uint32())>>r.IntN(16), uint16(r.Uint32())>>r.IntN(16)
			}
		}
		if len(p) == 0 {
			p = []byte{0} // nor does a TUN device give an empty packet
		}
		if err := g.write.Queue(h, [][]byte{p}); err != nil {
			t.Fatal(err)
		}
		if n%64 == 63 || n == packets-1 {
			if failed, err := g.write.Flush(); failed > 0 || err != nil {
				t.Fatal(failed, err)
			}
		}
	}
	// How many wire packets a super-packet is only the lane can tell: wait until all are taken in and nothing is in flight.
	last := g.books()
	deadline := time.Now().Add(patience)
	for g.cfg.Inner.(interface{ Pending() int }).Pending() > 0 || last.InFlight > 0 {
		if time.Now().After(deadline) {
			t.Fatal("the lane does not come to rest")
		}
		time.Sleep(time.Millisecond) // between two looks
		last = g.books()
	}
	g.given = last.PacketsIn
	g.leave(link.VNet{}, innerOf(0, true)[0], 1)
	b := g.settle()
	t.Logf("%d packets in %v: %d sent, drops %v", b.PacketsIn, time.Since(begin).Round(time.Millisecond), b.PacketsOut, causes(b))
	for _, cause := range []string{"inner-malformed", "no-policy", "too-big"} {
		if causes(b)[cause] == 0 {
			t.Errorf("no packet was dropped as %s: the test does not reach it", cause)
		}
	}
	if b.PacketsOut == 0 {
		t.Error("no packet was sent")
	}
}
