package dataplane

import (
	"net/netip"
	"time"

	"culvert/sa"
)

// roamDepth is how many changes of address can wait to be told. One that finds no room is told with a later packet.
const roamDepth = 256

// roam is what Config.Mapping is told.
type roam struct {
	state *sa.Inbound
	from  netip.AddrPort
}

// tellRoam tells of a packet that came from another place than its SA's. It is authentic, and newer than all before it: an old one,
// replayed through another path, moves nobody.
func (l *inbound) tellRoam(m *inJob, now time.Time) {
	p, from := m.state.Params(), m.msg.From
	if p.Encap != sa.EncapUDP || from.Port() == p.SrcPort && from.Addr() == p.Src {
		return
	}
	// Whoever configures a link-local address may leave its interface to the link.
	if from.Port() == p.SrcPort && from.Addr().WithZone("") == p.Src || !m.state.Roams(now) {
		return
	}
	select {
	case l.roams <- roam{m.state, from}:
	default:
	}
}

// tell calls those who are to be told, one at a time and off the packet path.
func (p *Plane) tell(asks <-chan ask) {
	for {
		select {
		case <-p.quit:
			return
		case a := <-asks:
			p.cfg.Acquire(a.policy, a.flow)
		case r := <-p.cfg.roams:
			to := r.state.Params().Endpoint()
			to.Src, to.SrcPort = r.from.Addr(), r.from.Port()
			p.cfg.Mapping(r.state, to)
		}
	}
}
