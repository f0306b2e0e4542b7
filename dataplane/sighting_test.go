package dataplane

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"culvert/dataplane/link"
	"culvert/sa"
)

// sighted waits for the sighting of a cause and gives it.
func sighted(t *testing.T, s *site, c Cause, count uint64) (found Sighting) {
	t.Helper()
	eventually(t, "a sighting of "+c.String(), func() bool {
		for _, w := range s.plane.Sightings() {
			if w.Cause == c && w.Count == count {
				found = w
				return true
			}
		}
		return false
	})
	return found
}

// Of each refusal that says something about the peer the lane remembers whose packet it was.
func TestSightings(t *testing.T) {
	w := newWorld(t, plan{outer: func(wire, s int, o link.Outer) link.Outer {
		return &recorder{Outer: o, fail: func(m *link.TxMsg) { m.Err, m.Failed = link.ErrUnreachable, m.Datagrams() }}
	}})
	tn := w.tunnel(1, udp4, cbcSHA1, nil)
	w.start()
	b, peer := w.site[siteB], wires[udp4].end[siteA]
	spi := tn.in[siteB].Params().SPI
	s := w.sealer(tn, siteA)

	stranger := netip.MustParseAddrPort("203.0.113.9:4500")
	unknown := func(spi uint32) []byte { return binary.BigEndian.AppendUint32(nil, spi) }
	w.inject(udp4, siteB, stranger, 0, append(unknown(0xdead0001), 1, 2, 3, 4), append(unknown(0xdead0002), 1, 2, 3, 4))
	if g := sighted(t, b, CauseNoState, 2); g.SPI != 0xdead0002 || g.Peer != stranger || g.Lane != "inbound udp4" {
		t.Errorf("unknown SPI: %+v", g)
	}
	p := probe(1)
	bad := edited(s.seal(1, nextHeaderIPv4, p.build(false)), 30, 0xaa)
	foreign := wirePacket{host: 99, ttl: 64, udp: true, payload: fill(50, 1)}
	other := foreign.build(false)
	copy(other[12:16], []byte{172, 16, 0, 1})
	clear(other[10:12])
	checksumStore(other[10:12], checksumAdd(0, other[:20]))
	w.inject(udp4, siteB, peer, 0, bad, s.seal(2, nextHeaderIPv4, other))
	if g := sighted(t, b, CauseIntegrityFailed, 1); g.SPI != spi || g.Peer != peer {
		t.Errorf("wrong ICV: %+v", g)
	}
	if g := sighted(t, b, CausePolicyMismatch, 1); g.SPI != spi || g.Peer != peer || g.Src != netip.MustParseAddr("172.16.0.1") {
		t.Errorf("policy mismatch: %+v", g)
	}
	w.site[siteA].send(p.build(false), other)
	if g := sighted(t, w.site[siteA], CauseUnreachable, 1); g.SPI != tn.out[siteA].Params().SPI || g.Peer != tn.out[siteA].Peer() || !errors.Is(g.Err, link.ErrUnreachable) {
		t.Errorf("not sent: %+v", g)
	}
	if g := sighted(t, w.site[siteA], CauseNoPolicy, 1); g.Src != netip.MustParseAddr("172.16.0.1") || !g.Dst.IsValid() || g.Lane != "outbound" {
		t.Errorf("no policy: %+v", g)
	}
}

// Whatever comes, from however many addresses, what a lane remembers stays within its table, it counts under the last that came, and
// nothing is allocated.
func TestSightingsAreBounded(t *testing.T) {
	var b books
	p := []byte{0xde, 0xad, 0, 0, 0, 0, 0, 0}
	i := 0
	turn := func() {
		i++
		binary.BigEndian.PutUint32(p[4:], uint32(i))
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 4500)
		b.sights.refused(CauseNoState, p, from)
		b.sights.unclassified(CauseNoPolicy, &sa.Flow{Src: from.Addr(), Dst: from.Addr()}, 3)
		b.publish()
	}
	if n := testing.AllocsPerRun(10000, turn); n > 0 {
		t.Errorf("%v allocations per packet", n)
	}
	all := b.readSights(nil, "lane")
	if len(all) == 0 || len(all) > sightsLen {
		t.Fatalf("%d sightings", len(all))
	}
	last, places := false, 0
	for _, w := range all {
		last = last || w.Cause == CauseNoState && w.Peer.Addr() == netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}) && w.Count == 1
		places++
	}
	if !last || places < sightsLen*3/4 {
		t.Errorf("of %d places used the last packet is in one: %v", places, last)
	}
}

func BenchmarkSightingsFlood(b *testing.B) {
	var k books
	p := []byte{0xde, 0xad, 0, 0, 0, 0, 0, 0}
	for i := range b.N {
		k.sights.refused(CauseNoState, p, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 4500))
		if i%64 == 0 {
			k.publish()
		}
	}
}
