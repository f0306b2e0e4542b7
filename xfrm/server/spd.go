package server

import (
	"time"

	"culvert/xfrm"
)

// policy is a policy as the server keeps it.
type policy struct {
	info  xfrm.PolicyInfo
	attrs xfrm.Attrs
	added time.Time
	used  time.Time // the last use by SAs that are gone
	dead  bool
	timer timer
	node  node[policy]

	tmpl *xfrm.Tmpl // the ESP template that counts; nil: the policy protects nothing
	pin  saKey      // the SA that the template names, if it names one
	pool *pool      // otherwise those that it chooses among
	out  *state     // what it chose, of an outbound policy
}

// polKey is what may be there once. Selectors are compared as they stand, unused bits of addresses included.
type polKey struct {
	sel  xfrm.Selector
	mark xfrm.Mark
	ifID uint32
	dir  uint8
}

func (p *policy) key() polKey {
	return polKey{p.info.Sel, p.attrs.Mark.V, p.attrs.IfID.V, p.info.Dir}
}

// normalMark is a policy's mark as the kernel keeps it: without value bits that the mask leaves out.
func normalMark(m xfrm.Mark) xfrm.Mark { return xfrm.Mark{Value: m.Value & m.Mask, Mask: m.Mask} }

// spd is the policies.
type spd struct {
	all     list[policy]
	byKey   map[polKey]*policy
	byIndex map[uint32]*policy
	pins    map[saKey]map[*policy]struct{} // by the SA that their template names
	counts  [3]uint32                      // by direction
	index   uint32                         // what the next index is made from
	thresh4 xfrm.Thresh
	thresh6 xfrm.Thresh
	def     xfrm.Default
}

func (d *spd) init() {
	d.all.init()
	d.byKey, d.byIndex, d.pins = map[polKey]*policy{}, map[uint32]*policy{}, map[saKey]map[*policy]struct{}{}
	d.thresh4, d.thresh6 = xfrm.Thresh{Local: 32, Remote: 32}, xfrm.Thresh{Local: 128, Remote: 128}
	d.def = xfrm.Default{In: xfrm.DefaultAccept, Fwd: xfrm.DefaultAccept, Out: xfrm.DefaultAccept}
}

// newIndex is an index for a policy of a direction: the wanted one if it is free. Its lowest three bits are the direction.
func (d *spd) newIndex(dir uint8, wanted uint32) uint32 {
	if wanted != 0 && d.byIndex[wanted] == nil {
		return wanted
	}
	for {
		i := d.index | uint32(dir)
		d.index += 8
		if i == 0 {
			i = 8
		}
		if d.byIndex[i] == nil {
			return i
		}
	}
}

func (d *spd) insert(p *policy) {
	p.node.entry = p
	d.all.push(&p.node)
	d.byKey[p.key()], d.byIndex[p.info.Index] = p, p
	d.counts[p.info.Dir]++
}

func (d *spd) remove(p *policy) {
	d.all.remove(&p.node)
	delete(d.byKey, p.key())
	delete(d.byIndex, p.info.Index)
	d.counts[p.info.Dir]--
	p.dead = true
}

// template is the one template of a policy that the data plane carries out, and the addresses of the SAs that it asks for.
//
// Compression that is optional is left out, since optional means that packets may come and go without. An optional ESP template
// is not taken so: it counts as required, in both directions, because what a policy means to protect does not leave in clear.
// More than one template, AH, and compression that is required are refused.
func template(i *xfrm.PolicyInfo, a *xfrm.Attrs) (*xfrm.Tmpl, *xfrm.Error) {
	var esp *xfrm.Tmpl
	for n := range a.Tmpls {
		t := &a.Tmpls[n]
		switch {
		case t.Proto == xfrm.ProtoComp && t.Optional != 0:
		case t.Proto != xfrm.ProtoESP:
			return nil, unsupported("template %d asks for protocol %d; the gateway does ESP alone, and leaves out compression that is optional", n+1, t.Proto)
		case esp != nil:
			return nil, unsupported("template %d asks for ESP a second time; the gateway protects a packet once", n+1)
		default:
			esp = t
		}
	}
	if esp == nil && len(a.Tmpls) > 0 {
		return nil, unsupported("there is a template, and none for ESP")
	}
	return esp, nil
}

// tmplKey is the pool that a template chooses from. In transport mode a template may leave its addresses out: then they are those
// of the packet, which a selector for two hosts tells.
func tmplKey(t *xfrm.Tmpl, sel *xfrm.Selector) poolKey {
	k := poolKey{significant(t.Dst, t.Family), significant(t.Src, t.Family), t.Reqid, t.Family, t.Proto, t.Mode}
	if bits := xfrm.Bits(t.Family); t.Mode == xfrm.ModeTransport && k.dst.IsZero() && k.src.IsZero() && t.Family == sel.Family &&
		int(sel.DstLen) == bits && int(sel.SrcLen) == bits {
		k.dst, k.src = significant(sel.Dst, t.Family), significant(sel.Src, t.Family)
	}
	return k
}

// bind makes a policy that is in the SPD choose its SA.
func (s *Server) bind(p *policy) {
	if p.tmpl == nil || p.info.Action != xfrm.ActionAllow {
		return
	}
	k := tmplKey(p.tmpl, &p.info.Sel)
	if p.info.Dir != xfrm.DirOut || p.tmpl.SPI == 0 {
		p.pool = s.sad.pool(k)
		p.pool.policies[p] = struct{}{}
	} else {
		p.pool = &pool{key: k} // of its own: the SA is found by its SPI
		p.pin = saKey{k.dst, p.tmpl.SPI, k.family, k.proto}
		if s.spd.pins[p.pin] == nil {
			s.spd.pins[p.pin] = map[*policy]struct{}{}
		}
		s.spd.pins[p.pin][p] = struct{}{}
	}
}

func (s *Server) unbind(p *policy) {
	if p.pool == nil {
		return
	}
	delete(p.pool.policies, p)
	s.sad.drop(p.pool)
	p.pool = nil
	if p.pin != (saKey{}) {
		delete(s.spd.pins[p.pin], p)
		if len(s.spd.pins[p.pin]) == 0 {
			delete(s.spd.pins, p.pin)
		}
		p.pin = saKey{}
	}
	p.out = nil
}

// pick is the SA that an outbound policy uses now, nil if there is none.
func (s *Server) pick(p *policy) *state {
	if p.info.Dir != xfrm.DirOut || p.pool == nil {
		return nil
	}
	ifID, mark := p.attrs.IfID.V, p.attrs.Mark.V
	fits := func(st *state) bool {
		m := st.mark()
		return !st.dead && st.attrs.IfID.V == ifID && mark.Value&m.Mask == m.Value
	}
	if p.pin == (saKey{}) {
		return p.pool.choose(fits)
	}
	k := p.pool.key
	for _, st := range s.sad.byID[p.pin] {
		if have := st.poolKey(); !st.larval && !st.inbound && have.reqid == k.reqid && have.mode == k.mode &&
			(have.src == k.src || k.src.IsZero()) && fits(st) {
			return st
		}
	}
	return nil
}

// choosers are the outbound policies whose choice an SA may be.
func (s *Server) choosers(st *state, yield func(*policy)) {
	for p := range s.spd.pins[st.key()] {
		yield(p)
	}
	for _, k := range st.keys() {
		if pl := s.sad.pools[k]; pl != nil {
			for p := range pl.policies {
				if p.info.Dir == xfrm.DirOut {
					yield(p)
				}
			}
		}
	}
}

// show completes a policy with when it was used, as a client gets to see it.
func (p *policy) show() xfrm.Policy {
	m := xfrm.Policy{PolicyInfo: p.info, Attrs: p.attrs}
	m.Cur = xfrm.Lifetime{AddTime: uint64(p.added.Unix()), UseTime: seconds(p.lastUse())}
	return m
}

// lastUse is when a packet passed the policy last, as its SAs tell: IKE reads it to know that the peer lives.
func (p *policy) lastUse() time.Time {
	last := p.used
	if p.out != nil && p.out.handle != nil {
		if u := p.out.handle.Usage(); u.LastUse.After(last) {
			last = u.LastUse
		}
	} else if p.pool != nil {
		if u := p.pool.lastUse(); u.After(last) {
			last = u
		}
	}
	return last
}
