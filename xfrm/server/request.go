package server

import (
	"golang.org/x/sys/unix"

	"culvert/xfrm"
)

// request carries one message out. answer is false for what is answered otherwise than by an acknowledgement.
func (s *Server) request(c *Client, m xfrm.Message) (answer bool, e *xfrm.Error) {
	switch {
	case !m.Has(unix.NLM_F_REQUEST) || m.Type < xfrm.MsgMin:
		return true, nil // acknowledged if that was asked for, as the kernel does
	case m.Type > xfrm.MsgMax:
		return true, invalid("%s is no XFRM message", xfrm.TypeName(m.Type))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true, xfrm.Errorf(unix.ESHUTDOWN, "the gateway is stopping")
	}
	if (m.Type == xfrm.MsgGetSA || m.Type == xfrm.MsgGetPolicy) && m.Flags&unix.NLM_F_DUMP != 0 {
		e = s.startDump(c, m)
		return false, e
	}
	var err error
	switch m.Type {
	case xfrm.MsgNewSA, xfrm.MsgUpdSA:
		err = handle(m, xfrm.DecodeSA, s.newSA)
	case xfrm.MsgDelSA:
		err = handle(m, xfrm.DecodeSAID, s.delSA)
	case xfrm.MsgGetSA:
		err = handle(m, xfrm.DecodeSAID, c.getSA)
	case xfrm.MsgAllocSPI:
		err = handle(m, xfrm.DecodeAllocSPI, c.allocSPI)
	case xfrm.MsgFlushSA:
		err = handle(m, xfrm.DecodeFlush, s.flushSA)
	case xfrm.MsgNewPolicy, xfrm.MsgUpdPolicy:
		err = handle(m, xfrm.DecodePolicy, s.newPolicy)
	case xfrm.MsgDelPolicy:
		err = handle(m, xfrm.DecodePolicyID, s.delPolicy)
	case xfrm.MsgGetPolicy:
		err = handle(m, xfrm.DecodePolicyID, c.getPolicy)
	case xfrm.MsgFlushPolicy:
		err = handle(m, xfrm.DecodeFlushPolicy, s.flushPolicy)
	case xfrm.MsgNewAE:
		err = handle(m, xfrm.DecodeAE, s.newAE)
	case xfrm.MsgGetAE:
		err = handle(m, xfrm.DecodeAE, c.getAE)
	case xfrm.MsgExpire:
		err = handle(m, xfrm.DecodeExpire, s.injectExpire)
	case xfrm.MsgPolExpire:
		err = handle(m, xfrm.DecodePolicyExpire, s.injectPolicyExpire)
	case xfrm.MsgAcquire:
		err = handle(m, xfrm.DecodeAcquire, s.injectAcquire)
	case xfrm.MsgMigrate:
		err = handle(m, xfrm.DecodeMigrate, s.migrate)
	case xfrm.MsgGetSADInfo:
		err = handle(m, xfrm.DecodeSADInfo, c.getSADInfo)
	case xfrm.MsgNewSPDInfo:
		err = handle(m, xfrm.DecodeSPDInfo, s.newSPDInfo)
	case xfrm.MsgGetSPDInfo:
		err = handle(m, xfrm.DecodeSPDInfo, c.getSPDInfo)
	case xfrm.MsgSetDefault:
		err = handle(m, xfrm.DecodeDefault, s.setDefault)
	case xfrm.MsgGetDefault:
		err = handle(m, xfrm.DecodeDefault, c.getDefault)
	default:
		err = invalid("%s goes from the gateway to clients, not the other way", xfrm.TypeName(m.Type))
	}
	return true, refusal(err)
}

// handle decodes a request and passes it on.
func handle[T any](m xfrm.Message, decode func([]byte) (T, error), f func(xfrm.Header, *T) error) error {
	req, err := decode(m.Body)
	if err != nil {
		return err
	}
	return f(m.Header, &req)
}

var (
	errNoSA     = &xfrm.Error{Errno: unix.ESRCH}
	errNoPolicy = &xfrm.Error{Errno: unix.ENOENT}
)

// lookup finds the SA of an ID.
func (s *Server) lookup(dst xfrm.Address, spi uint32, family uint16, proto uint8, a *xfrm.Attrs) (*state, *xfrm.Error) {
	k := saKey{significant(dst, family), spi, family, proto}
	m := a.Mark.V
	mark := m.Value & m.Mask
	var st *state
	switch proto {
	case xfrm.ProtoESP, xfrm.ProtoAH, xfrm.ProtoComp:
		st = s.sad.find(k, mark)
	default:
		if !a.SrcAddr.Set {
			return nil, invalid("SAs of protocol %d have no SPI: say which one by SRCADDR", proto)
		}
		st = s.sad.findByAddr(k, a.SrcAddr.V, mark)
	}
	if st == nil {
		return nil, errNoSA
	}
	return st, nil
}

func (s *Server) delSA(h xfrm.Header, q *xfrm.SAID) error {
	st, e := s.lookup(q.Dst, q.SPI, q.Family, q.Proto, &q.Attrs)
	if e != nil {
		return e
	}
	if err := s.removeSAs([]*state{st}); err != nil {
		return err
	}
	s.tellGone(st, h)
	return nil
}

// tellGone notifies of an SA's end, with all that it was.
func (s *Server) tellGone(st *state, h xfrm.Header) {
	if s.listened(xfrm.GroupSA) {
		m := st.show()
		gone := xfrm.SAID{Dst: m.Dst, SPI: m.SPI, Family: m.Family, Proto: m.Proto, Attrs: m.Attrs}
		gone.Attrs.SAInfo = &m.SAInfo
		s.multicast(xfrm.GroupSA, gone.Append(nil, xfrm.MsgDelSA, 0, h.Seq, h.PID))
	}
	st.attrs.Wipe()
}

func (c *Client) getSA(h xfrm.Header, q *xfrm.SAID) error {
	st, e := c.s.lookup(q.Dst, q.SPI, q.Family, q.Proto, &q.Attrs)
	if e != nil {
		return e
	}
	m := st.show()
	c.send(m.Append(nil, xfrm.MsgNewSA, 0, h.Seq, c.Port()))
	return nil
}

func (s *Server) flushSA(h xfrm.Header, q *xfrm.Flush) error {
	var gone []*state
	for st := range s.sad.all.all {
		if protoMatches(q.Proto, st.info.Proto) {
			gone = append(gone, st)
		}
	}
	if len(gone) == 0 {
		return nil // and nobody is told
	}
	if err := s.removeSAs(gone); err != nil {
		return err
	}
	for _, st := range gone {
		st.attrs.Wipe()
	}
	f := xfrm.Flush{Proto: q.Proto}
	s.multicast(xfrm.GroupSA, f.Append(nil, xfrm.MsgFlushSA, 0, h.Seq, h.PID))
	return nil
}

func (c *Client) getAE(h xfrm.Header, q *xfrm.AE) error {
	st, e := c.s.lookupSPI(q)
	if e != nil {
		return e
	}
	m := st.ae(q.Flags)
	c.send(m.Append(nil, xfrm.MsgNewAE, 0, h.Seq, h.PID))
	return nil
}

// lookupSPI finds the SA that an AE is about, which always has an SPI.
func (s *Server) lookupSPI(q *xfrm.AE) (*state, *xfrm.Error) {
	m := q.Attrs.Mark.V
	if st := s.sad.find(saKey{significant(q.Dst, q.Family), q.SPI, q.Family, q.Proto}, m.Value&m.Mask); st != nil {
		return st, nil
	}
	return nil, errNoSA
}

// ae is an SA's replay state and lifetime.
func (st *state) ae(flags uint32) xfrm.AE {
	full := st.show()
	m := xfrm.AE{Dst: full.Dst, SPI: full.SPI, Family: full.Family, Proto: full.Proto, Src: full.Src, Flags: flags, Reqid: full.Reqid}
	a := &full.Attrs
	m.Attrs = xfrm.Attrs{
		Replay: a.Replay, ReplayESN: a.ReplayESN, LTime: &full.Cur, Mark: a.Mark, IfID: a.IfID, PCPU: a.PCPU, SADir: a.SADir,
	}
	if flags&xfrm.AEReplayThresh != 0 {
		m.Attrs.ReplayThresh = xfrm.Some(st.replayThresh)
	}
	if flags&xfrm.AETimerThresh != 0 {
		m.Attrs.ETimerThresh = xfrm.Some(st.timerThresh)
	}
	return m
}

func (s *Server) injectExpire(h xfrm.Header, q *xfrm.Expire) error {
	m := q.Attrs.Mark.V
	st := s.sad.find(saKey{significant(q.Dst, q.Family), q.SPI, q.Family, q.Proto}, m.Value&m.Mask)
	switch {
	case st == nil:
		return &xfrm.Error{Errno: unix.ENOENT}
	case st.larval:
		return invalid("the SA is larval: it has no keys yet, and its own end")
	}
	if q.Hard == 0 {
		st.dying = true
		s.tellExpired(st, false, h.PID)
		return s.rechoose(st)
	}
	s.tellExpired(st, true, h.PID)
	if err := s.removeSAs([]*state{st}); err != nil {
		return err
	}
	st.attrs.Wipe()
	return nil
}

func (c *Client) getSADInfo(h xfrm.Header, q *xfrm.SADInfo) error {
	n := uint32(c.s.sad.all.n)
	m := xfrm.SADInfo{Flags: q.Flags, Count: xfrm.Some(n), Hash: xfrm.Some(xfrm.HashInfo{Rows: rows(n), MaxRows: 1 << 20})}
	c.send(m.Append(nil, xfrm.MsgNewSADInfo, 0, h.Seq, c.Port()))
	return nil
}

// rows is how many rows the kernel's hash table would have for as many entries.
func rows(n uint32) uint32 {
	r := uint32(8)
	for r < n && r < 1<<20 {
		r *= 2
	}
	return r
}

func (s *Server) newSPDInfo(_ xfrm.Header, q *xfrm.SPDInfo) error {
	if t := q.Thresh4; t.Set && (t.V.Local > 32 || t.V.Remote > 32) {
		return invalid("thresholds of %d and %d bits for IPv4; there are at most 32", t.V.Local, t.V.Remote)
	}
	if t := q.Thresh6; t.Set && (t.V.Local > 128 || t.V.Remote > 128) {
		return invalid("thresholds of %d and %d bits for IPv6; there are at most 128", t.V.Local, t.V.Remote)
	}
	if q.Thresh4.Set {
		s.spd.thresh4 = q.Thresh4.V
	}
	if q.Thresh6.Set {
		s.spd.thresh6 = q.Thresh6.V
	}
	return nil
}

func (c *Client) getSPDInfo(h xfrm.Header, q *xfrm.SPDInfo) error {
	d := &c.s.spd
	m := xfrm.SPDInfo{
		Flags:   q.Flags,
		Counts:  xfrm.Some(xfrm.PolicyCounts{In: d.counts[xfrm.DirIn], Out: d.counts[xfrm.DirOut], Fwd: d.counts[xfrm.DirFwd]}),
		Hash:    xfrm.Some(xfrm.HashInfo{Rows: rows(uint32(d.all.n))*2 - 1, MaxRows: 1 << 20}),
		Thresh4: xfrm.Some(d.thresh4), Thresh6: xfrm.Some(d.thresh6),
	}
	c.send(m.Append(nil, xfrm.MsgNewSPDInfo, 0, h.Seq, c.Port()))
	return nil
}

func (s *Server) setDefault(_ xfrm.Header, q *xfrm.Default) error {
	d := &s.spd.def
	for _, x := range []struct {
		have *uint8
		want uint8
	}{{&d.In, q.In}, {&d.Fwd, q.Fwd}, {&d.Out, q.Out}} {
		if x.want == xfrm.DefaultBlock || x.want == xfrm.DefaultAccept {
			*x.have = x.want
		}
	}
	s.multicast(xfrm.GroupPolicy, d.Append(nil, xfrm.MsgGetDefault, 0, 0, 0))
	return nil
}

func (c *Client) getDefault(h xfrm.Header, _ *xfrm.Default) error {
	c.send(c.s.spd.def.Append(nil, xfrm.MsgGetDefault, 0, h.Seq, c.Port()))
	return nil
}
