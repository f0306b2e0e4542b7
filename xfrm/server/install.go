package server

import (
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"culvert/xfrm"
)

// Thresholds of notifications that a real SA begins with: after so many packets, or tenths of a second.
const (
	replayThresh = 2
	timerThresh  = 10
)

// keep is the attributes that an SA has, without those that a message has for other reasons and those that say nothing.
func keep(a *xfrm.Attrs) xfrm.Attrs {
	set := func(v xfrm.Opt[uint32]) xfrm.Opt[uint32] {
		if v.V == 0 {
			return xfrm.Opt[uint32]{}
		}
		return v
	}
	k := xfrm.Attrs{
		Auth: a.Auth, AuthTrunc: a.AuthTrunc, Crypt: a.Crypt, AEAD: a.AEAD, Comp: a.Comp,
		Encap: a.Encap, CoAddr: a.CoAddr, TFCPad: set(a.TFCPad), ExtraFlags: set(a.ExtraFlags), IfID: set(a.IfID),
		MTimerThresh: set(a.MTimerThresh), NATKeepalive: set(a.NATKeepalive), SADir: a.SADir, PCPU: a.PCPU, IPTFS: a.IPTFS,
	}
	if m := a.Mark.V; m != (xfrm.Mark{}) {
		k.Mark = xfrm.Some(m)
	}
	if a.SetMark.Set {
		mask := ^uint32(0)
		if a.SetMarkMask.Set {
			mask = a.SetMarkMask.V
		}
		if a.SetMark.V != 0 || mask != 0 {
			k.SetMark, k.SetMarkMask = xfrm.Some(a.SetMark.V), xfrm.Some(mask)
		}
	}
	if r := a.ReplayESN; r != nil {
		k.ReplayESN = &xfrm.ReplayESN{Words: r.Words, Window: r.Window, Bitmap: make([]uint32, min(r.Words, maxWords))}
	}
	return k
}

// newSA is NEWSA and UPDSA.
func (s *Server) newSA(h xfrm.Header, m *xfrm.SA) (err error) {
	defer func() {
		if err != nil {
			m.Attrs.Wipe()
		}
	}()
	if e := checkSA(m); e != nil {
		return e
	}
	if err := m.Attrs.ResolveAlgos(); err != nil {
		return err
	}
	if e := s.checkSupport(m); e != nil {
		return e
	}
	m.Window = min(m.Window, 32)
	st := &state{info: m.SAInfo, attrs: keep(&m.Attrs), replayThresh: replayThresh, timerThresh: timerThresh, added: s.cfg.now()}
	st.info.Cur, st.info.Stats = xfrm.Lifetime{}, xfrm.Stats{}
	if st.info.Sel.Family == xfrm.FamilyUnspec && st.info.Flags&xfrm.StateAFUnspec == 0 {
		st.info.Sel.Family = st.info.Family // what is inside is of the outer family, unless the SA says that it may be of either
	}
	if m.Attrs.ReplayThresh.Set {
		st.replayThresh = m.Attrs.ReplayThresh.V
	}
	if m.Attrs.ETimerThresh.Set {
		st.timerThresh = m.Attrs.ETimerThresh.V
	}
	mark := st.mark()
	have := s.sad.find(st.key(), mark.Value&mark.Mask)
	switch {
	case h.Type == xfrm.MsgNewSA && have != nil:
		return &xfrm.Error{Errno: unix.EEXIST}
	case h.Type == xfrm.MsgUpdSA && have == nil:
		return errNoSA
	case have != nil && have.attrs.SADir != st.attrs.SADir && !(have.larval && !have.attrs.SADir.Set):
		return invalid("an SA does not change its direction; make a new one")
	case have != nil && !have.larval:
		return s.changeSA(h, have, st)
	}
	switch st.attrs.SADir.V {
	case xfrm.SADirIn:
		st.inbound = true
	case xfrm.SADirOut:
	default:
		st.inbound = have != nil || s.backend.Inbound(&st.info)
	}
	carry := carryOf(&m.Attrs, st.inbound)
	if carry != nil && carry.Cur != nil && carry.Cur.AddTime != 0 {
		if at := time.Unix(int64(min(carry.Cur.AddTime, 1<<40)), 0); at.Before(st.added) {
			st.added = at
		}
	}
	if err := s.install(st, have, carry); err != nil {
		return err
	}
	if s.listened(xfrm.GroupSA) {
		shown := st.show()
		s.multicast(xfrm.GroupSA, shown.Append(nil, h.Type, 0, h.Seq, h.PID))
	}
	return nil
}

// checkSupport refuses what is right and what the gateway cannot do.
func (s *Server) checkSupport(m *xfrm.SA) *xfrm.Error {
	if !s.strict {
		return nil
	}
	refuse := func(format string, args ...any) *xfrm.Error {
		return xfrm.Errorf(unix.EPROTONOSUPPORT, format, args...)
	}
	e := m.Attrs.Encap
	switch {
	case m.Proto != xfrm.ProtoESP:
		return refuse("the gateway does ESP, not protocol %d", m.Proto)
	case m.Mode != xfrm.ModeTunnel && m.Mode != xfrm.ModeTransport:
		return refuse("the gateway does modes tunnel and transport, not %s", xfrm.ModeName(m.Mode))
	case e != nil && e.Type != xfrm.EncapUDP:
		return refuse("the gateway puts ESP in UDP as encapsulation 2 has it (RFC 3948), not as %d", e.Type)
	case m.Attrs.SetMark.Set:
		return unsupported("what the gateway sends has no firewall mark; leave SET_MARK out")
	case m.Attrs.NATKeepalive.V != 0:
		return unsupported("keepalives are the IKE daemon's to send; leave NAT_KEEPALIVE_INTERVAL out")
	}
	return nil
}

// change is a policy that is to use another SA, or none.
type change struct {
	p  *policy
	to *state
}

// changes are the policies whose choice has become another one. Each comes once.
func (s *Server) changes(about []*state) []change {
	var list []change
	var seen map[*policy]struct{}
	if len(about) > 1 {
		seen = map[*policy]struct{}{}
	}
	for _, st := range about {
		s.choosers(st, func(p *policy) {
			if seen != nil {
				if _, ok := seen[p]; ok {
					return
				}
				seen[p] = struct{}{}
			}
			if to := s.pick(p); to != p.out {
				list = append(list, change{p, to})
			}
		})
	}
	return list
}

// point passes changes on to the data plane.
func point(tx Tx, list []change) error {
	for _, c := range list {
		if err := tx.SetPolicy(c.p.spec(c.to)); err != nil {
			return err
		}
	}
	return nil
}

func settle(list []change) {
	for _, c := range list {
		if old := c.p.out; old != nil && old.handle != nil {
			if u := old.handle.Usage().LastUse; u.After(c.p.used) {
				c.p.used = u
			}
		}
		c.p.out = c.to
	}
}

func (p *policy) spec(out *state) *PolicySpec {
	q := &PolicySpec{Info: &p.info, Attrs: &p.attrs}
	if out != nil {
		q.Out = out.handle
	}
	return q
}

// install puts an SA into the SAD and the data plane. It takes the place of a larval one, if there is one.
func (s *Server) install(st, larval *state, carry *Carry) error {
	s.sad.insert(st)
	list := s.changes([]*state{st})
	err := s.backend.Update(func(tx Tx) (err error) {
		if st.handle, err = tx.AddSA(&SASpec{&st.info, &st.attrs, st.inbound, carry}); err != nil {
			return err
		}
		return point(tx, list)
	})
	if err != nil {
		s.sad.remove(st)
		return err
	}
	settle(list)
	s.byHandle[st.handle] = st
	if larval == nil {
		larval = s.answered(st)
	}
	if larval != nil {
		s.arm(&larval.timer, time.Time{})
		s.sad.remove(larval)
	}
	s.schedule(st)
	return nil
}

// answered is the larval SA without SPI that stands for the acquire that a new SA answers.
func (s *Server) answered(st *state) *state {
	if seq := st.info.Seq; seq != 0 {
		for a := range s.sad.unborn {
			if a.info.Seq == seq && a.info.Proto == st.info.Proto && a.info.Family == st.info.Family && a.info.Dst == st.info.Dst {
				return a
			}
		}
	}
	return s.sad.findLarval(&st.info, st.mark())
}

// changeSA is UPDSA of a real SA: addresses of the encapsulation, selector, limits, if_id and marks change; keys, numbers,
// window and counters do not.
func (s *Server) changeSA(h xfrm.Header, have, want *state) error {
	a, b := have.attrs.Encap, want.attrs.Encap
	if (a == nil) != (b == nil) || a != nil && a.Type != b.Type {
		return invalid("an SA does not change its encapsulation; make a new one")
	}
	next := *have
	next.attrs.Encap = b
	if want.attrs.CoAddr.Set {
		next.attrs.CoAddr = want.attrs.CoAddr
	}
	next.info.Sel, next.info.Limits = want.info.Sel, want.info.Limits
	if want.attrs.SetMark.Set || want.attrs.IfID.Set {
		next.attrs.SetMark, next.attrs.SetMarkMask = want.attrs.SetMark, want.attrs.SetMarkMask
		if want.attrs.IfID.Set {
			next.attrs.IfID = want.attrs.IfID
		}
	}
	oldInfo, oldAttrs, wasDying := have.info, have.attrs, have.dying
	have.info, have.attrs, have.dying = next.info, next.attrs, false
	list := s.changes([]*state{have})
	err := s.backend.Update(func(tx Tx) error {
		if err := tx.ChangeSA(have.handle, &SASpec{&have.info, &have.attrs, have.inbound, nil}); err != nil {
			return err
		}
		return point(tx, list)
	})
	if err != nil {
		have.info, have.attrs, have.dying = oldInfo, oldAttrs, wasDying
		return err
	}
	settle(list)
	s.schedule(have)
	if s.listened(xfrm.GroupSA) {
		m := have.show()
		s.multicast(xfrm.GroupSA, m.Append(nil, h.Type, 0, h.Seq, h.PID))
	}
	wipeOther(&want.attrs)
	return nil
}

// wipeOther zeroes the keys that came with a change and that nobody needs.
func wipeOther(a *xfrm.Attrs) {
	k := xfrm.Attrs{Auth: a.Auth, AuthTrunc: a.AuthTrunc, Crypt: a.Crypt, AEAD: a.AEAD, Comp: a.Comp}
	k.Wipe()
}

// removeSAs ends SAs, and gives the policies that used them others. Nobody is told.
func (s *Server) removeSAs(gone []*state) error {
	for _, st := range gone {
		st.dead = true
	}
	list := s.changes(gone)
	err := s.backend.Update(func(tx Tx) error {
		if err := point(tx, list); err != nil {
			return err
		}
		for _, st := range gone {
			if st.handle != nil {
				if err := tx.RemoveSA(st.handle); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		for _, st := range gone {
			st.dead = false
		}
		return err
	}
	settle(list)
	for _, st := range gone {
		s.arm(&st.timer, time.Time{})
		if st.handle != nil {
			s.rememberUse(st)
			delete(s.byHandle, st.handle)
		}
		s.sad.remove(st)
	}
	return nil
}

// rememberUse keeps the last use of an SA with the policies that its packets passed.
func (s *Server) rememberUse(st *state) {
	last := st.handle.Usage().LastUse
	if last.IsZero() {
		return
	}
	for _, p := range st.pools {
		for pol := range p.policies {
			if pol.info.Dir != xfrm.DirOut && last.After(pol.used) {
				pol.used = last
			}
		}
	}
}

// rechoose lets policies choose anew, after an SA has become better or worse.
func (s *Server) rechoose(st *state) error {
	list := s.changes([]*state{st})
	if len(list) == 0 {
		return nil
	}
	if err := s.backend.Update(func(tx Tx) error { return point(tx, list) }); err != nil {
		return err
	}
	settle(list)
	return nil
}

// newLarval makes a larval SA, for an SPI or an acquire.
func (s *Server) newLarval(i *xfrm.SAInfo, a *xfrm.Attrs) *state {
	st := &state{
		larval: true, added: s.cfg.now(),
		info: xfrm.SAInfo{
			Dst: i.Dst, Src: i.Src, Proto: i.Proto, Reqid: i.Reqid, Family: i.Family, Mode: i.Mode,
			Limits: xfrm.Limits{
				SoftBytes: xfrm.Inf, HardBytes: xfrm.Inf, SoftPackets: xfrm.Inf, HardPackets: xfrm.Inf,
				HardAdd: uint64(s.cfg.AcquireExpires / time.Second),
			},
		},
		attrs: keep(&xfrm.Attrs{Mark: a.Mark, IfID: a.IfID, PCPU: a.PCPU}),
	}
	if bits := xfrm.Bits(i.Family); bits != 0 {
		// The kernel leaves the selector's family out here, and in an acquire's selector says it.
		st.info.Sel = xfrm.Selector{Dst: i.Dst, Src: i.Src, DstLen: uint8(bits), SrcLen: uint8(bits)}
	} else {
		st.info.Dst, st.info.Src = xfrm.Address{}, xfrm.Address{}
	}
	s.sad.insert(st)
	s.schedule(st)
	return st
}

func (c *Client) allocSPI(h xfrm.Header, q *xfrm.AllocSPI) error {
	s := c.s
	if e := checkRange(q); e != nil {
		return e
	}
	var st *state
	if q.Seq != 0 {
		for a := range s.sad.unborn {
			if a.info.Seq == q.Seq && a.info.Family == q.Family && a.info.Dst == q.Dst {
				st = a
				break
			}
		}
	}
	if st == nil {
		st = s.sad.findLarval(&q.SAInfo, q.Attrs.Mark.V)
	}
	if st == nil {
		st = s.newLarval(&q.SAInfo, &q.Attrs)
	}
	if st.info.SPI == 0 {
		spi, ok := s.sad.freeSPI(st.info.Proto, q.Min, q.Max)
		if !ok {
			return xfrm.Errorf(unix.ENOENT, "no SPI from %#x to %#x is free", q.Min, q.Max)
		}
		s.sad.unindex(st)
		st.info.SPI = spi
		s.sad.index(st)
	}
	if q.Attrs.SADir.Set {
		st.attrs.SADir = q.Attrs.SADir
	}
	m := st.show()
	c.send(m.Append(nil, xfrm.MsgNewSA, 0, h.Seq, c.Port()))
	return nil
}

// freeSPI is an SPI that no SA of the protocol has, whatever its destination, for a packet's SPI alone finds its SA.
func (d *sad) freeSPI(proto uint8, lo, hi uint32) (uint32, bool) {
	free := func(spi uint32) bool { return spi != 0 && d.spis[spiKey{spi, proto}] == 0 }
	n := uint64(hi) - uint64(lo) + 1
	for range 64 {
		if spi := lo + uint32(rand.Uint64N(n)); free(spi) {
			return spi, true
		}
	}
	first := rand.Uint64N(n)
	for i := range min(n, 1<<17) {
		if spi := lo + uint32((first+i)%n); free(spi) {
			return spi, true
		}
	}
	return 0, false
}

// newAE sets an SA's numbers, window and counters from outside. They go forward only: what has been sent is not sent again, and what
// has been received is not taken again, whatever the message says. In the data plane the SA is replaced by itself.
func (s *Server) newAE(h xfrm.Header, q *xfrm.AE) error {
	a := &q.Attrs
	if !h.Has(unix.NLM_F_REPLACE) {
		return invalid("NEWAE changes an SA: set NLM_F_REPLACE")
	}
	if a.LTime == nil && !a.Replay.Set && a.ReplayESN == nil && !a.ETimerThresh.Set && !a.ReplayThresh.Set {
		return invalid("NEWAE needs one of LTIME_VAL, REPLAY_VAL, REPLAY_ESN_VAL, ETIMER_THRESH and REPLAY_THRESH")
	}
	st, e := s.lookupSPI(q)
	if e != nil {
		return e
	}
	if st.larval {
		return invalid("the SA is larval: it has no keys yet, and no numbers")
	}
	if r, have := a.ReplayESN, st.attrs.ReplayESN; r != nil {
		if have == nil || r.Words != have.Words || len(r.Bitmap) != 0 && len(r.Bitmap) != len(have.Bitmap) {
			return invalid("the SA has no window with a bitmap of %d words", r.Words)
		}
		if uint64(r.Window) > 32*uint64(r.Words) {
			return invalid("the replay window is %d packets wide and its bitmap has %d bits", r.Window, 32*r.Words)
		}
	}
	if a.LTime != nil || a.Replay.Set || a.ReplayESN != nil {
		if st.attrs.ReplayESN != nil {
			a.Replay = xfrm.Opt[xfrm.Replay]{} // the other form counts for such an SA
		} else {
			a.ReplayESN = nil
		}
		if err := s.replaceSA(st, carryOf(a, st.inbound)); err != nil {
			return err
		}
		if a.LTime != nil && a.LTime.AddTime != 0 {
			if at := time.Unix(int64(min(a.LTime.AddTime, 1<<40)), 0); at.Before(s.cfg.now()) {
				st.added = at
			}
		}
		s.schedule(st)
	}
	if a.ReplayThresh.Set {
		st.replayThresh = a.ReplayThresh.V
	}
	if a.ETimerThresh.Set {
		st.timerThresh = a.ETimerThresh.V
	}
	if s.listened(xfrm.GroupAEvents) {
		m := st.ae(xfrm.AECauseUpdate)
		s.multicast(xfrm.GroupAEvents, m.Append(nil, xfrm.MsgNewAE, 0, h.Seq, h.PID))
	}
	return nil
}

// replaceSA gives an SA other counters and later numbers. With nothing to carry it stays.
func (s *Server) replaceSA(st *state, carry *Carry) error {
	if carry == nil {
		return nil
	}
	u := st.handle.Usage()
	if carry.Cur == nil { // the counters stay
		carry.Cur = &xfrm.Lifetime{Packets: u.Packets, Bytes: u.Bytes, AddTime: uint64(st.added.Unix()), UseTime: seconds(u.FirstUse)}
	}
	old := st.handle
	var users []change
	s.choosers(st, func(p *policy) {
		if p.out == st {
			users = append(users, change{p, st})
		}
	})
	for i := range users {
		users[i].to = nil
	}
	err := s.backend.Update(func(tx Tx) (err error) {
		if err := point(tx, users); err != nil {
			return err
		}
		if err := tx.RemoveSA(old); err != nil {
			return err
		}
		carry.Replaced = old
		if st.handle, err = tx.AddSA(&SASpec{&st.info, &st.attrs, st.inbound, carry}); err != nil {
			return err
		}
		for i := range users {
			users[i].to = st
		}
		return point(tx, users)
	})
	if err != nil {
		st.handle = old
		return err
	}
	delete(s.byHandle, old)
	s.byHandle[st.handle] = st
	return nil
}
