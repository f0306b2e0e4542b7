package server

import (
	"time"

	"golang.org/x/sys/unix"

	"culvert/xfrm"
)

// newPolicy is NEWPOLICY, which refuses what is there already, and UPDPOLICY, which replaces it.
func (s *Server) newPolicy(h xfrm.Header, m *xfrm.Policy) error {
	if e := checkPolicy(&m.PolicyInfo, &m.Attrs); e != nil {
		return e
	}
	p, err := s.makePolicy(&m.PolicyInfo, &m.Attrs)
	if err != nil {
		return err
	}
	old := s.spd.byKey[p.key()]
	if old != nil && h.Type == xfrm.MsgNewPolicy {
		return &xfrm.Error{Errno: unix.EEXIST}
	}
	if err := s.installPolicy(p, old, m.Index); err != nil {
		return err
	}
	if s.listened(xfrm.GroupPolicy) {
		shown := p.show()
		s.multicast(xfrm.GroupPolicy, shown.Append(nil, h.Type, 0, h.Seq, h.PID))
	}
	return nil
}

// makePolicy is a policy as the server keeps it, of one that has been checked.
func (s *Server) makePolicy(i *xfrm.PolicyInfo, a *xfrm.Attrs) (*policy, error) {
	p := &policy{info: *i, added: s.cfg.now(), attrs: xfrm.Attrs{
		Tmpls: a.Tmpls, PolicyType: xfrm.Some(xfrm.PolicyType{Type: a.PolicyType.V.Type}),
	}}
	if n := normalMark(a.Mark.V); n != (xfrm.Mark{}) {
		p.attrs.Mark = xfrm.Some(n)
	}
	if a.IfID.V != 0 {
		p.attrs.IfID = xfrm.Some(a.IfID.V)
	}
	p.info.Cur = xfrm.Lifetime{}
	p.info.Share = xfrm.ShareAny // the kernel checks it and forgets it
	t, e := template(&p.info, &p.attrs)
	if e != nil && s.strict {
		return nil, e
	}
	if e == nil {
		p.tmpl = t
	}
	return p, nil
}

// installPolicy puts a policy into the SPD and the data plane, in place of an old one if there is one.
func (s *Server) installPolicy(p, old *policy, wanted uint32) error {
	if old != nil {
		p.info.Index = old.info.Index
		p.used = time.Time{}
	} else {
		before := s.spd.index
		p.info.Index = s.spd.newIndex(p.info.Dir, wanted)
		defer func() {
			if p.node.entry == nil { // refused
				s.spd.index = before
			}
		}()
	}
	s.bind(p)
	to := s.pick(p)
	if err := s.backend.Update(func(tx Tx) error { return tx.SetPolicy(p.spec(to)) }); err != nil {
		s.unbind(p)
		return err
	}
	p.out = to
	if old != nil {
		s.forget(old)
	}
	s.spd.insert(p)
	s.schedulePolicy(p)
	return nil
}

// forget takes a policy out of everything but the data plane.
func (s *Server) forget(p *policy) {
	s.arm(&p.timer, time.Time{})
	s.unbind(p)
	s.spd.remove(p)
}

// removePolicies ends policies. Nobody is told.
func (s *Server) removePolicies(gone []*policy) error {
	err := s.backend.Update(func(tx Tx) error {
		for _, p := range gone {
			if err := tx.RemovePolicy(p.info.Index); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range gone {
		s.forget(p)
	}
	return nil
}

// findPolicy finds the policy that a message names, by index or by selector.
func (s *Server) findPolicy(sel xfrm.Selector, index uint32, dir uint8, a *xfrm.Attrs) (*policy, *xfrm.Error) {
	if e := checkAttrs(a); e != nil {
		return nil, e
	}
	if e := checkPolicyType(a); e != nil {
		return nil, e
	}
	if e := checkPolicyDir(dir); e != nil {
		return nil, e
	}
	mark := a.Mark.V // as it stands: the kernel normalizes it in policies only
	if index == 0 {
		if p := s.spd.byKey[polKey{sel, mark, a.IfID.V, dir}]; p != nil {
			return p, nil
		}
		return nil, errNoPolicy
	}
	if p := s.spd.byIndex[index]; p != nil && p.info.Dir == dir && p.attrs.IfID.V == a.IfID.V && p.attrs.Mark.V == mark {
		return p, nil
	}
	return nil, errNoPolicy
}

func (s *Server) delPolicy(h xfrm.Header, q *xfrm.PolicyID) error {
	p, e := s.findPolicy(q.Sel, q.Index, q.Dir, &q.Attrs)
	if e != nil {
		return e
	}
	m := p.show()
	if err := s.removePolicies([]*policy{p}); err != nil {
		return err
	}
	if s.listened(xfrm.GroupPolicy) {
		gone := xfrm.PolicyID{Dir: p.info.Dir, Attrs: m.Attrs}
		if q.Index != 0 {
			gone.Index = p.info.Index
		} else {
			gone.Sel = p.info.Sel
		}
		gone.Attrs.Policy = &m.PolicyInfo
		s.multicast(xfrm.GroupPolicy, gone.Append(nil, xfrm.MsgDelPolicy, 0, h.Seq, h.PID))
	}
	return nil
}

func (c *Client) getPolicy(h xfrm.Header, q *xfrm.PolicyID) error {
	p, e := c.s.findPolicy(q.Sel, q.Index, q.Dir, &q.Attrs)
	if e != nil {
		return e
	}
	m := p.show()
	c.send(m.Append(nil, xfrm.MsgNewPolicy, 0, h.Seq, c.Port()))
	return nil
}

func (s *Server) flushPolicy(h xfrm.Header, q *xfrm.FlushPolicy) error {
	if e := checkPolicyType(&q.Attrs); e != nil {
		return e
	}
	var gone []*policy
	for p := range s.spd.all.all {
		gone = append(gone, p)
	}
	if len(gone) == 0 {
		return nil // and nobody is told
	}
	if err := s.removePolicies(gone); err != nil {
		return err
	}
	f := xfrm.FlushPolicy{Attrs: xfrm.Attrs{PolicyType: xfrm.Some(xfrm.PolicyType{})}}
	s.multicast(xfrm.GroupPolicy, f.Append(nil, xfrm.MsgFlushPolicy, 0, h.Seq, h.PID))
	return nil
}

func (s *Server) injectPolicyExpire(h xfrm.Header, q *xfrm.PolicyExpire) error {
	p, e := s.findPolicy(q.Sel, q.Index, q.Dir, &q.Attrs)
	if e != nil {
		return e
	}
	m := p.show()
	if q.Hard != 0 {
		if err := s.removePolicies([]*policy{p}); err != nil {
			return err
		}
	}
	s.tellPolicyExpired(&m, q.Hard != 0, h.PID)
	return nil
}

func (s *Server) tellPolicyExpired(m *xfrm.Policy, hard bool, pid uint32) {
	x := xfrm.PolicyExpire{PolicyInfo: m.PolicyInfo, Attrs: m.Attrs}
	if hard {
		x.Hard = 1
	}
	s.multicast(xfrm.GroupExpire, x.Append(nil, xfrm.MsgPolExpire, 0, 0, pid))
}

// policyAgain is how long after a policy's soft limit it is told again.
const policyAgain = 30 * time.Second

// schedulePolicy sets a policy's timer to its next limit.
func (s *Server) schedulePolicy(p *policy) {
	p.timer.index = -1
	p.timer.fire = func(now time.Time) { s.policyDue(p, now) }
	d := p.due(s.cfg.now())
	if d.hard || d.soft {
		d.next = d.now
	}
	s.arm(&p.timer, d.next)
}

func (p *policy) due(now time.Time) due {
	l, d := &p.info.Limits, due{now: now}
	used := p.lastUse()
	if used.IsZero() {
		used = p.added // the kernel counts so while a policy is unused
	}
	d.limit(l.HardAdd, p.added, true)
	d.limit(l.HardUse, used, true)
	d.limit(l.SoftAdd, p.added, false)
	d.limit(l.SoftUse, used, false)
	return d
}

func (s *Server) policyDue(p *policy, now time.Time) {
	if p.dead {
		return
	}
	d := p.due(now)
	m := p.show()
	switch {
	case d.hard:
		if err := s.removePolicies([]*policy{p}); err != nil {
			s.cfg.Log.Error("a policy that has expired cannot be removed", "policy", &p.info, "error", err)
			s.arm(&p.timer, now.Add(policyAgain))
			return
		}
		s.tellPolicyExpired(&m, true, 0)
		return
	case d.soft:
		s.tellPolicyExpired(&m, false, 0)
		if again := now.Add(policyAgain); d.next.IsZero() || again.Before(d.next) {
			d.next = again
		}
	}
	s.arm(&p.timer, d.next)
}
