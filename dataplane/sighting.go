package dataplane

import (
	"encoding/binary"
	"net/netip"

	"culvert/dataplane/link"
	"culvert/sa"
)

// Sighting is what a lane remembers of packets that it refused: those of one cause from or to one address, or of one SA, and the last
// of them as an example. It is for people who look for the reason. Nothing in it is authenticated, unless the ICV was right.
type Sighting struct {
	Lane  string
	Cause Cause
	Count uint64 // since the lane remembers it; a newer one may take its place

	SPI      uint32         // of the ESP packet; 0 where there is none
	Peer     netip.AddrPort // the outer source of what was received, the outer destination of what was not sent
	Src, Dst netip.Addr     // of the inner packet, where it matters: no-policy, should-be-protected, policy-mismatch
	Err      error          // of what was not sent: link's
}

const (
	sightsLen   = 32
	sightsShift = 64 - 5
)

// sights are a lane's: now is the lane's alone, published is read under the books' lock. Where two would lie in one place the newer
// stays, so that a flood from many addresses costs no memory and not more than the last of them.
type sights struct {
	now       [sightsLen]Sighting
	changed   uint32 // bits: places of now that differ from published
	published [sightsLen]Sighting
}

// place gives the place for a cause and what tells its sightings apart. What is there may be another's.
func (s *sights) place(c Cause, key uint64) *Sighting {
	const golden = 0x9e3779b97f4a7c15
	i := ((key^uint64(c))*golden ^ key>>32) * golden >> sightsShift
	s.changed |= 1 << i
	return &s.now[i]
}

// addrKey makes a number of an address. Two addresses with one are told apart by comparing them.
func addrKey(a netip.Addr) uint64 {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:]) ^ binary.BigEndian.Uint64(b[8:])
}

// refused remembers a datagram that was not taken in, if that says something about the peer.
func (s *sights) refused(c Cause, p []byte, from netip.AddrPort) {
	switch c {
	case CauseNoState, CauseEncapMismatch, CauseBadLength, CauseRunt, CauseIKE:
	default:
		return
	}
	if len(p) < 8 {
		return
	}
	w := s.place(c, addrKey(from.Addr()))
	if w.Cause != c || w.Peer.Addr() != from.Addr() {
		*w = Sighting{Cause: c}
	}
	w.Count++
	w.SPI, w.Peer = binary.BigEndian.Uint32(p), from
}

// opened remembers a packet of an SA that was refused with its ICV or after it.
func (s *sights) opened(c Cause, m *inJob, f *sa.Flow) {
	switch c {
	case CauseIntegrityFailed, CauseBadPad, CauseBadNextHeader, CauseDecapMalformed, CausePolicyMismatch:
	default:
		return
	}
	spi := m.state.Params().SPI
	w := s.place(c, uint64(spi))
	if w.Cause != c || w.SPI != spi {
		*w = Sighting{Cause: c}
	}
	w.Count++
	w.SPI, w.Peer = spi, m.msg.From
	if c == CausePolicyMismatch {
		w.Src, w.Dst = f.Src, f.Dst
	}
}

// unclassified remembers a packet from the TUN for which there is no SA.
func (s *sights) unclassified(c Cause, f *sa.Flow, n int) {
	if c != CauseNoPolicy && c != CauseShouldBeProtected {
		return
	}
	w := s.place(c, addrKey(f.Dst))
	if w.Cause != c || w.Dst != f.Dst {
		*w = Sighting{Cause: c}
	}
	w.Count += uint64(n)
	w.Src, w.Dst = f.Src, f.Dst
}

// unsent remembers ESP packets that the kernel did not send.
func (s *sights) unsent(c Cause, m *link.TxMsg) {
	if c != CauseUnreachable && c != CauseSendFailed || len(m.Buf) < 8 {
		return
	}
	spi := binary.BigEndian.Uint32(m.Buf)
	w := s.place(c, uint64(spi)<<32^addrKey(m.To.Addr()))
	if w.Cause != c || w.SPI != spi || w.Peer != m.To {
		*w = Sighting{Cause: c}
	}
	w.Count += uint64(m.Failed)
	w.SPI, w.Peer, w.Err = spi, m.To, m.Err
}

// publish is called by the lane with the books' lock held. It copies only what has changed.
func (s *sights) publish() {
	for i := 0; s.changed != 0; i++ {
		if s.changed&(1<<i) != 0 {
			s.published[i] = s.now[i]
			s.changed &^= 1 << i
		}
	}
}

// readSights appends what is published.
func (b *books) readSights(all []Sighting, lane string) []Sighting {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.sights.published {
		if w.Count > 0 {
			w.Lane = lane
			all = append(all, w)
		}
	}
	return all
}
