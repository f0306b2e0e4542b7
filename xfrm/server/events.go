package server

import (
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"culvert/sa"
	"culvert/xfrm"
)

// tellExpired notifies of an SA's limit.
func (s *Server) tellExpired(st *state, hard bool, pid uint32) {
	m := st.show()
	x := xfrm.Expire{SAInfo: m.SAInfo, Attrs: xfrm.Attrs{Mark: m.Attrs.Mark, IfID: m.Attrs.IfID, PCPU: m.Attrs.PCPU, SADir: m.Attrs.SADir}}
	if hard {
		x.Hard = 1
	}
	s.multicast(xfrm.GroupExpire, x.Append(nil, xfrm.MsgExpire, 0, 0, pid))
}

// schedule sets an SA's timer to its next limit in time. Limits in bytes and packets are the data plane's to watch.
func (s *Server) schedule(st *state) {
	if st.timer.fire == nil {
		st.timer.index = -1
		st.timer.fire = func(now time.Time) { s.stateDue(st, now) }
	}
	d := st.due(s.cfg.now())
	if d.hard || d.soft {
		d.next = d.now
	}
	s.arm(&st.timer, d.next)
}

func (st *state) due(now time.Time) due {
	l, d := &st.info.Limits, due{now: now}
	var first time.Time
	if st.handle != nil && (l.HardUse != 0 || l.SoftUse != 0) {
		first = st.handle.Usage().FirstUse
	}
	d.limit(l.HardAdd, st.added, true)
	d.limit(l.HardUse, first, true)
	if !st.dying {
		d.limit(l.SoftAdd, st.added, false)
		d.limit(l.SoftUse, first, false)
	}
	return d
}

func (s *Server) stateDue(st *state, now time.Time) {
	if st.dead {
		return
	}
	d := st.due(now)
	switch {
	case d.hard:
		s.expired(st, true)
	case d.soft:
		s.expired(st, false)
		d = st.due(now)
		fallthrough
	default:
		s.arm(&st.timer, d.next)
	}
}

// expired ends an SA that has reached its hard limit, or has the IKE daemon replace it at the soft one.
func (s *Server) expired(st *state, hard bool) {
	if !hard {
		if st.dying {
			return
		}
		st.dying = true
		if err := s.rechoose(st); err != nil {
			s.cfg.Log.Error("policies cannot choose another SA", "sa", &st.info, "error", err)
		}
		s.tellExpired(st, false, 0)
		return
	}
	if err := s.removeSAs([]*state{st}); err != nil {
		s.cfg.Log.Error("an SA that has expired cannot be removed", "sa", &st.info, "error", err)
		s.arm(&st.timer, s.cfg.now().Add(time.Second))
		return
	}
	s.tellExpired(st, true, 0)
	st.attrs.Wipe()
}

// expire takes in the limits that the data plane has seen reached.
func (s *Server) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.backend.Expiries() {
		if st := s.byHandle[x.SA]; st != nil {
			s.expired(st, x.Hard)
		}
	}
}

// later has the server do something for the data plane, which does not wait. It reports whether there was room.
func (s *Server) later(f func()) bool {
	select {
	case s.events <- f:
		return true
	default:
		return false
	}
}

// Acquire says that a packet of this flow meets the policy of this index, which has no SA for it. The server asks the IKE daemons
// for one, once while that is under way. It may be called from the packet path: it does not wait, but allocates.
func (s *Server) Acquire(index uint32, f sa.Flow) {
	if !s.later(func() { s.acquire(index, &f) }) {
		s.stats.AcquiresLost.Add(1)
	}
}

func (s *Server) acquire(index uint32, f *sa.Flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.spd.byIndex[index]
	if p == nil || p.pool == nil || p.info.Dir != xfrm.DirOut || p.out != nil {
		return // the policy or its SA has come or gone meanwhile
	}
	if !s.listened(xfrm.GroupAcquire) {
		s.stats.AcquiresLost.Add(1)
		return
	}
	t := p.tmpl
	if t.Mode == xfrm.ModeTransport && significant(t.Dst, t.Family).IsZero() {
		named := *t
		named.Dst, named.Family = xfrm.AddressOf(f.Dst)
		named.Src, _ = xfrm.AddressOf(f.Src)
		t = &named
	}
	i := xfrm.SAInfo{Dst: t.Dst, Src: t.Src, Proto: t.Proto, Family: t.Family, Reqid: t.Reqid, Mode: t.Mode}
	if s.sad.findLarval(&i, xfrm.Mark{}) != nil {
		s.stats.AcquiresUnder.Add(1)
		return
	}
	st := s.newLarval(&i, &xfrm.Attrs{IfID: p.attrs.IfID})
	st.info.Sel = flowSelector(f, p.info.Sel.IfIndex)
	s.sad.seq++
	if s.sad.seq == 0 {
		s.sad.seq = 1
	}
	st.info.Seq = s.sad.seq
	m := xfrm.Acquire{
		Dst: t.Dst, Proto: t.Proto, Src: t.Src, Sel: st.info.Sel, Policy: p.show().PolicyInfo,
		AAlgos: t.AAlgos, EAlgos: t.EAlgos, CAlgos: t.CAlgos, Seq: st.info.Seq, Attrs: p.attrs,
	}
	s.multicast(xfrm.GroupAcquire, m.Append(nil, xfrm.MsgAcquire, 0, 0, 0))
	s.stats.Acquires.Add(1)
}

// flowSelector selects the packets that are like one.
func flowSelector(f *sa.Flow, ifindex int32) xfrm.Selector {
	sel := xfrm.SelectorOf(netip.PrefixFrom(f.Src, f.Src.BitLen()), netip.PrefixFrom(f.Dst, f.Dst.BitLen()))
	sel.Proto, sel.IfIndex = f.Proto, ifindex
	if f.HasPorts && !f.Frag {
		sel.SrcPort, sel.SrcMask, sel.DstPort, sel.DstMask = f.SrcPort, 0xffff, f.DstPort, 0xffff
	}
	return sel
}

// mappingAgain is how long the server waits before it tells a mapping of the same SA again, unless MTIMER_THRESH says longer.
const mappingAgain = time.Second

// Mapping says that an authentic, fresh packet of an inbound SA in UDP came from another address or port than the SA has. It may be
// called from the packet path: it does not wait, but allocates.
func (s *Server) Mapping(h SAHandle, from netip.AddrPort) {
	if !s.later(func() { s.mapping(h, from) }) {
		s.stats.MappingsLost.Add(1)
	}
}

func (s *Server) mapping(h SAHandle, from netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.byHandle[h]
	if st == nil || !st.inbound || st.attrs.Encap == nil {
		return
	}
	addr, family := xfrm.AddressOf(from.Addr().Unmap())
	e := st.attrs.Encap
	if family != st.info.Family || addr == significant(st.info.Src, family) && from.Port() == e.SrcPort {
		return
	}
	now := s.cfg.now()
	wait := max(mappingAgain, time.Duration(st.attrs.MTimerThresh.V)*time.Second)
	if !st.mapped.IsZero() && now.Sub(st.mapped) < wait {
		s.stats.MappingsLost.Add(1)
		return
	}
	st.mapped = now
	m := xfrm.Mapping{
		Dst: st.info.Dst, SPI: st.info.SPI, Family: st.info.Family, Proto: st.info.Proto, Reqid: st.info.Reqid,
		OldSrc: st.info.Src, NewSrc: addr, OldPort: e.SrcPort, NewPort: from.Port(),
	}
	s.multicast(xfrm.GroupMapping, m.Append(nil, xfrm.MsgMapping, 0, 0, 0))
	s.stats.Mappings.Add(1)
}

// injectAcquire has a client's acquire told to all who listen, once per template.
func (s *Server) injectAcquire(_ xfrm.Header, q *xfrm.Acquire) error {
	if e := checkPolicy(&q.Policy, &q.Attrs); e != nil {
		return e
	}
	for n, t := range q.Attrs.Tmpls {
		s.sad.seq++
		m := *q
		m.Policy.Dir, m.Policy.Share, m.Policy.Cur = xfrm.DirOut, xfrm.ShareAny, xfrm.Lifetime{}
		m.Dst, m.SPI, m.Proto, m.Seq = t.Dst, t.SPI, t.Proto, s.sad.seq
		m.Attrs = xfrm.Attrs{Tmpls: slices.Clone(q.Attrs.Tmpls), PolicyType: xfrm.Some(xfrm.PolicyType{})}
		if q.Attrs.IfID.V != 0 {
			m.Attrs.IfID = q.Attrs.IfID
		}
		if q.Attrs.Mark.V != (xfrm.Mark{}) {
			m.Attrs.Mark = q.Attrs.Mark
		}
		for i := range n + 1 { // those that have been told of so far
			x := &m.Attrs.Tmpls[i]
			x.AAlgos, x.EAlgos, x.CAlgos = q.AAlgos, q.EAlgos, q.CAlgos
		}
		s.multicast(xfrm.GroupAcquire, m.Append(nil, xfrm.MsgAcquire, 0, 0, 0))
	}
	return nil
}

// migrate moves a policy's templates and the SAs that fit to other addresses (RFC 4555 section 3.5). Numbers, window and counters go on.
func (s *Server) migrate(h xfrm.Header, q *xfrm.Migrate) error {
	a := &q.Attrs
	if a.Migrates == nil {
		return invalid("MIGRATE needs to know what moves where, in MIGRATE")
	}
	if e := checkPolicyType(a); e != nil {
		return e
	}
	if e := checkPolicyDir(q.Dir); e != nil {
		return e
	}
	if e := checkMoves(a.Migrates); e != nil {
		return e
	}
	p := s.spd.decides(&q.Sel, q.Dir, a.IfID.V)
	switch {
	case p == nil && xfrm.Bits(q.Sel.Family) == 0:
		return xfrm.Errorf(unix.EAFNOSUPPORT, "the selector's family is %d; it can be 2, IPv4, or 10, IPv6", q.Sel.Family)
	case p == nil:
		return xfrm.Errorf(unix.ENOENT, "there is no policy %s %v", xfrm.DirName(q.Dir), &q.Sel)
	}
	tmpls := slices.Clone(p.attrs.Tmpls)
	n := 0
	for i := range tmpls {
		for j := range a.Migrates {
			if m := &a.Migrates[j]; moves(m, tmpls[i].Dst, tmpls[i].Src, tmpls[i].Family, tmpls[i].Proto, tmpls[i].Mode, tmpls[i].Reqid) {
				t := &tmpls[i]
				t.Dst, t.Src, t.Family = m.NewDst, m.NewSrc, m.NewFamily
				n++
				break
			}
		}
	}
	if n == 0 {
		return &xfrm.Error{Errno: unix.ENODATA}
	}
	if err := s.moveAll(p, tmpls, a); err != nil {
		return err
	}
	m := xfrm.Migrate{Sel: q.Sel, Dir: q.Dir, Attrs: xfrm.Attrs{
		PolicyType: xfrm.Some(xfrm.PolicyType{}), KMAddress: a.KMAddress, Migrates: a.Migrates,
	}}
	s.multicast(xfrm.GroupMigrate, m.Append(nil, xfrm.MsgMigrate, 0, 0, 0))
	return nil
}

// decides is the policy for packets with the selector's own addresses, protocol and ports: the kernel looks up so what to migrate.
func (d *spd) decides(sel *xfrm.Selector, dir uint8, ifID uint32) *policy {
	var best *policy
	for p := range d.all.all {
		x, m := &p.info.Sel, p.attrs.Mark.V
		if p.info.Dir == dir && p.attrs.IfID.V == ifID && m.Value == 0 && x.Family == sel.Family &&
			prefixMatches(x.Src, sel.Src, x.SrcLen) && prefixMatches(x.Dst, sel.Dst, x.DstLen) && (x.Proto == 0 || x.Proto == sel.Proto) &&
			(x.SrcPort^sel.SrcPort)&x.SrcMask == 0 && (x.DstPort^sel.DstPort)&x.DstMask == 0 &&
			(best == nil || p.info.Priority <= best.info.Priority) { // of equals the oldest, which the list has last
			best = p
		}
	}
	return best
}

func checkMoves(ms []xfrm.Move) *xfrm.Error {
	if len(ms) == 0 || len(ms) > maxTmpls {
		return invalid("there are %d moves; there can be 1 to %d", len(ms), maxTmpls)
	}
	for i := range ms {
		m := &ms[i]
		if xfrm.Bits(m.OldFamily) == 0 || xfrm.Bits(m.NewFamily) == 0 || m.NewDst.IsZero() || m.NewSrc.IsZero() {
			return invalid("move %d lacks an address or its family", i+1)
		}
		for j := range ms[:i] {
			if o := &ms[j]; o.OldDst == m.OldDst && o.OldSrc == m.OldSrc && o.Proto == m.Proto && o.Mode == m.Mode &&
				o.Reqid == m.Reqid && o.OldFamily == m.OldFamily {
				return invalid("moves %d and %d are of the same SAs", j+1, i+1)
			}
		}
	}
	return nil
}

// moves reports whether a move is about an SA or template. A reqid of 0 means any.
func moves(m *xfrm.Move, dst, src xfrm.Address, family uint16, proto, mode uint8, reqid uint32) bool {
	if m.Mode != mode || m.Proto != proto || m.Reqid != 0 && m.Reqid != reqid {
		return false
	}
	if mode != xfrm.ModeTunnel && mode != xfrm.ModeBEET && mode != xfrm.ModeIPTFS {
		return true // a template in transport mode need not say addresses
	}
	return family == m.OldFamily && significant(dst, family) == significant(m.OldDst, family) && significant(src, family) == significant(m.OldSrc, family)
}

// moveAll moves a policy and its SAs at once.
func (s *Server) moveAll(p *policy, tmpls []xfrm.Tmpl, a *xfrm.Attrs) error {
	type moved struct {
		st   *state
		info xfrm.SAInfo
		attr xfrm.Attrs
	}
	var all []moved
	seen := map[*state]bool{}
	for i := range a.Migrates {
		m := &a.Migrates[i]
		k := poolKey{significant(m.OldDst, m.OldFamily), significant(m.OldSrc, m.OldFamily), m.Reqid, m.OldFamily, m.Proto, m.Mode}
		found := func(st *state) {
			i := &st.info
			if st.larval || seen[st] || i.Family != m.OldFamily || significant(i.Dst, i.Family) != k.dst ||
				significant(i.Src, i.Family) != k.src || i.Mode != m.Mode || i.Proto != m.Proto || m.Reqid != 0 && i.Reqid != m.Reqid {
				return
			}
			seen[st] = true
			next := moved{st, st.info, st.attrs}
			next.info.Dst, next.info.Src, next.info.Family = m.NewDst, m.NewSrc, m.NewFamily
			if a.Encap != nil {
				next.attr.Encap = a.Encap
			}
			all = append(all, next)
		}
		if m.Reqid != 0 {
			if pl := s.sad.pools[k]; pl != nil {
				for _, st := range pl.states {
					found(st)
				}
			}
			continue
		}
		for st := range s.sad.all.all {
			found(st)
		}
	}
	var touched []*state
	swap := func() { // the moved ones and what they were
		for i := range all {
			x := &all[i]
			s.sad.unindex(x.st)
			x.st.info, x.info = x.info, x.st.info
			x.st.attrs, x.attr = x.attr, x.st.attrs
			s.sad.index(x.st)
		}
	}
	for _, x := range all {
		touched = append(touched, x.st)
		next := saKey{significant(x.info.Dst, x.info.Family), x.info.SPI, x.info.Family, x.info.Proto}
		mark := x.st.mark()
		if other := s.sad.find(next, mark.Value&mark.Mask); other != nil && other != x.st {
			return xfrm.Errorf(unix.EEXIST, "there is an SA %v already", &other.info)
		}
	}
	np := *p
	np.attrs.Tmpls = tmpls
	np.node, np.timer, np.pool, np.pin, np.out = node[policy]{}, timer{index: -1}, nil, saKey{}, nil
	t, e := template(&np.info, &np.attrs)
	if e != nil && s.strict {
		return e
	}
	np.tmpl = t
	before := s.changesBefore(touched)
	oldOut := p.out
	s.unbind(p)
	p.out = oldOut
	swap()
	p.attrs.Tmpls, tmpls = tmpls, p.attrs.Tmpls
	oldTmpl := p.tmpl
	p.tmpl = np.tmpl
	s.bind(p)
	list := append(before, s.changes(touched)...)
	list = s.settleable(append(list, change{p: p}))
	err := s.backend.Update(func(tx Tx) error {
		for _, x := range all {
			if err := tx.ChangeSA(x.st.handle, &SASpec{&x.st.info, &x.st.attrs, x.st.inbound, nil}); err != nil {
				return err
			}
		}
		return point(tx, list)
	})
	if err != nil {
		s.unbind(p)
		p.attrs.Tmpls, p.tmpl = tmpls, oldTmpl
		swap()
		s.bind(p)
		p.out = oldOut
		return err
	}
	settle(list)
	return nil
}

// changesBefore are the policies that SAs are a choice of, before these move.
func (s *Server) changesBefore(about []*state) []change {
	var list []change
	for _, st := range about {
		s.choosers(st, func(p *policy) { list = append(list, change{p: p}) })
	}
	return list
}

// settleable chooses anew for each policy of a list, once.
func (s *Server) settleable(list []change) []change {
	seen := map[*policy]bool{}
	out := list[:0:0]
	for _, c := range list {
		if !seen[c.p] {
			seen[c.p] = true
			out = append(out, change{c.p, s.pick(c.p)})
		}
	}
	return out
}
