package xfrm

import (
	"bytes"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// maxDepth is the most templates of a policy and the most moves of a Migrate.
	maxDepth = 6
	// maxCPU is one more than the highest processor that any kernel is built for.
	maxCPU = 8192
)

// DecodeRequest decodes and validates what a client asks, and refuses what the kernel refuses, with its errno: types that are no
// requests, bodies that are too short, attributes of a wrong length, and values that cannot be. What it passes may still be refused
// for what there is or is not: an SA (ESRCH), a policy (ENOENT), either one already (EEXIST). The body is a pointer: *SA for
// MsgNewSA and so on.
func DecodeRequest(abi ABI, m Message) (Body, error) {
	body := requestBody(m.Header)
	if body == nil {
		return nil, Errorf(unix.EINVAL, "%s is no request", TypeName(m.Type))
	}
	if e := body.decode(abi, m.Body); e != nil {
		return nil, e
	}
	var e *Error
	switch b := body.(type) {
	case *AE:
		if m.Type == MsgNewAE {
			e = b.validateNew(m.Header)
		}
	case validator:
		e = b.validate()
	}
	if e != nil {
		return nil, e
	}
	return body, nil
}

type validator interface{ validate() *Error }

// requestBody is an empty body for a request, nil for what is none.
func requestBody(h Header) Body {
	switch h.Type {
	case MsgNewSA, MsgUpdSA:
		return new(SA)
	case MsgDelSA:
		return new(SAID)
	case MsgGetSA:
		if h.IsDump() {
			return new(Dump)
		}
		return new(SAID)
	case MsgNewPolicy, MsgUpdPolicy:
		return new(Policy)
	case MsgDelPolicy:
		return new(PolicyID)
	case MsgGetPolicy:
		if h.IsDump() {
			return new(Dump)
		}
		return new(PolicyID)
	case MsgAllocSPI:
		return new(AllocSPI)
	case MsgAcquire:
		return new(Acquire)
	case MsgExpire:
		return new(Expire)
	case MsgPolExpire:
		return new(PolicyExpire)
	case MsgFlushSA:
		return new(Flush)
	case MsgFlushPolicy:
		return new(FlushPolicy)
	case MsgNewAE, MsgGetAE:
		return new(AE)
	case MsgMigrate:
		return new(Migrate)
	case MsgGetSADInfo:
		return new(SADInfo)
	case MsgNewSPDInfo, MsgGetSPDInfo:
		return new(SPDInfo)
	case MsgSetDefault, MsgGetDefault:
		return new(Default)
	}
	return nil
}

func invalid(format string, args ...any) *Error { return Errorf(unix.EINVAL, format, args...) }

// validate checks the prefix lengths against a family.
func (s *Selector) validate(family uint16) *Error {
	n := Bits(family)
	if n == 0 {
		return invalid("the selector's family is %d; it can be 2 for IPv4 or 10 for IPv6", family)
	}
	if int(s.SrcLen) > n || int(s.DstLen) > n {
		return invalid("the selector has prefixes of %d and %d bits; family %d has at most %d", s.SrcLen, s.DstLen, family, n)
	}
	return nil
}

// Validate refuses what the kernel refuses of an SA that is added or updated.
func (m *SA) Validate() error { return asError(m.validate()) }

// asError keeps a nil pointer from becoming an error.
func asError(e *Error) error {
	if e != nil {
		return e
	}
	return nil
}

func (m *SA) validate() *Error {
	a := &m.Attrs
	if Bits(m.Family) == 0 {
		return invalid("the SA's family is %d; it can be 2 for IPv4 or 10 for IPv6", m.Family)
	}
	family := m.Sel.Family
	if family == FamilyUnspec && m.Flags&StateAFUnspec == 0 {
		family = m.Family
	}
	if family != FamilyUnspec {
		if e := m.Sel.validate(family); e != nil {
			return e
		}
	}
	for _, check := range []func() *Error{m.checkAlgos, a.checkSecCtx, m.checkReplay, m.checkMode, m.checkDir} {
		if e := check(); e != nil {
			return e
		}
	}
	if a.MTimerThresh.Set && a.Encap == nil {
		return invalid("MTIMER_THRESH without ENCAP: only an SA in UDP can see a new mapping")
	}
	return m.checkBuild()
}

// checkAlgos checks that the protocol has the attributes that it needs and no others.
func (m *SA) checkAlgos() *Error {
	a := &m.Attrs
	auth := a.Auth != nil || a.AuthTrunc != nil
	tfc := a.TFCPad.Set
	switch m.Proto {
	case ProtoESP:
		switch {
		case a.Comp != nil:
			return invalid("ESP does not compress: give ALG_COMP to an IPComp SA of its own")
		case !auth && a.Crypt == nil && a.AEAD == nil:
			return invalid("ESP without algorithms: give ALG_AEAD, or ALG_CRYPT and ALG_AUTH_TRUNC")
		case a.AEAD != nil && (auth || a.Crypt != nil):
			return invalid("an AEAD authenticates and encrypts by itself: leave the other algorithms out")
		case tfc && m.Mode != ModeTunnel:
			return invalid("TFCPAD in %s mode; only tunnel mode can pad so", ModeName(m.Mode))
		}
	case ProtoAH:
		if !auth || a.AEAD != nil || a.Crypt != nil || a.Comp != nil || tfc {
			return invalid("AH has ALG_AUTH or ALG_AUTH_TRUNC, and no other algorithm and no TFCPAD")
		}
	case ProtoComp:
		switch {
		case a.Comp == nil || auth || a.AEAD != nil || a.Crypt != nil || tfc:
			return invalid("IPComp has ALG_COMP, and no other algorithm and no TFCPAD")
		case m.SPI > 0xffff:
			return invalid("IPComp's SPI 0x%x; it has 16 bits", m.SPI)
		}
	case ProtoRouting, ProtoDstOpts:
		if !a.CoAddr.Set || auth || a.AEAD != nil || a.Crypt != nil || a.Comp != nil || tfc {
			return invalid("protocol %d has COADDR and no algorithm", m.Proto)
		}
	default:
		return invalid("protocol %d has no SAs; ESP is 50, AH 51, IPComp 108", m.Proto)
	}
	return nil
}

func (a *Attrs) checkSecCtx() *Error {
	if c := a.SecCtx; c != nil && (int(c.Len) != sizeSecCtx+int(c.CtxLen) || len(c.Ctx) < int(c.CtxLen)) {
		return invalid("SEC_CTX says %d bytes with a label of %d, and has %d", c.Len, c.CtxLen, sizeSecCtx+len(c.Ctx))
	}
	return nil
}

func (m *SA) checkReplay() *Error {
	r := m.Attrs.ReplayESN
	if r == nil {
		if m.Flags&StateESN != 0 {
			return invalid("extended sequence numbers without REPLAY_ESN_VAL")
		}
		return nil
	}
	if m.Proto != ProtoESP && m.Proto != ProtoAH {
		return invalid("REPLAY_ESN_VAL for protocol %d; only ESP and AH have sequence numbers", m.Proto)
	}
	return nil
}

func (m *SA) checkMode() *Error {
	switch {
	case m.Mode >= modeCount || m.Mode == ModeInTrigger:
		return invalid("no SA can have mode %d; tunnel is 1, transport 0", m.Mode)
	case m.Mode == ModeIPTFS && !m.Attrs.SADir.Set:
		return invalid("IP-TFS without SA_DIR")
	}
	return nil
}

// checkDir checks what goes with one direction only.
func (m *SA) checkDir() *Error {
	a, x := &m.Attrs, &m.Attrs.IPTFS
	in, out := a.SADir.V == SADirIn, a.SADir.V == SADirOut
	forIn := x.DropTime.Set || x.ReorderWindow.Set
	forOut := x.DontFrag || x.InitDelay.Set || x.MaxQSize.Set || x.PktSize.Set
	switch {
	case (forIn || forOut) && m.Mode != ModeIPTFS:
		return invalid("IPTFS attributes in %s mode", ModeName(m.Mode))
	case forIn && !in, forOut && !out:
		return invalid("IPTFS attributes of the other direction: IPTFS_DROP_TIME and IPTFS_REORDER_WINDOW are for inbound SAs, the others for outbound ones")
	case a.PCPU.Set && !in && !out:
		return invalid("SA_PCPU without SA_DIR")
	case out && m.Window != 0:
		return invalid("an outbound SA with a replay window of %d; it has none", m.Window)
	case out && m.Flags&(StateDecapDSCP|StateICMP|StateWildRecv) != 0:
		return invalid("an outbound SA with flags of inbound ones: 0x%x", m.Flags&(StateDecapDSCP|StateICMP|StateWildRecv))
	case out && a.MTimerThresh.Set:
		return invalid("MTIMER_THRESH is for inbound SAs")
	case out && a.Replay.Set && (a.Replay.V.Seq != 0 || a.Replay.V.Bitmap != 0):
		return invalid("an outbound SA with what an inbound one has received")
	case in && m.Flags&StateNoPMTUDisc != 0:
		return invalid("NOPMTUDISC is for outbound SAs")
	case in && a.ExtraFlags.V&(ExtraDontEncapDSCP|ExtraOseqMayWrap) != 0:
		return invalid("an inbound SA with extra flags of outbound ones: 0x%x", a.ExtraFlags.V&(ExtraDontEncapDSCP|ExtraOseqMayWrap))
	}
	r := a.ReplayESN
	switch {
	case r == nil:
	case out && (r.Window != 0 || r.Words != 0 || r.Seq != 0 || r.SeqHi != 0):
		return invalid("an outbound SA with a replay window, or with what an inbound one has received")
	case in && (r.Oseq != 0 || r.OseqHi != 0):
		return invalid("an inbound SA with what an outbound one has sent")
	case in && r.SeqHi != 0 && m.Flags&StateESN == 0:
		return invalid("a high half of the sequence number without extended sequence numbers")
	}
	return nil
}

// checkBuild is what the kernel finds only when it builds the SA, behind the look-up of the algorithms.
func (m *SA) checkBuild() *Error {
	a := &m.Attrs
	if auth := a.authAlgo(); auth != nil {
		known, e := findAlgo(authAlgo, auth.Name)
		if e != nil {
			return e
		}
		if _, e := known.icv(auth, a.AuthTrunc != nil); e != nil {
			return e
		}
	}
	for _, x := range []struct {
		kind algoKind
		algo *Algo
	}{{cryptAlgo, a.Crypt}, {aeadAlgo, a.AEAD}, {compAlgo, a.Comp}} {
		if x.algo != nil {
			if _, e := findAlgo(x.kind, x.algo.Name); e != nil {
				return e
			}
		}
	}
	switch {
	case a.PCPU.Set && a.PCPU.V >= maxCPU:
		return Errorf(unix.ERANGE, "SA_PCPU %d; there is no such processor", a.PCPU.V)
	case m.Proto == ProtoAH && a.Encap != nil:
		return invalid("AH cannot go in UDP: ENCAP is for ESP")
	case m.Proto == ProtoESP && a.AEAD == nil && a.Crypt == nil:
		return invalid("ESP with authentication alone: give ALG_CRYPT ecb(cipher_null) too")
	case a.Encap != nil && a.Encap.Type != EncapUDP && a.Encap.Type != EncapUDPNonIKE && a.Encap.Type != EncapTCP:
		return invalid("ENCAP type %d; ESP in UDP is 2", a.Encap.Type)
	case a.AuthTrunc != nil && a.AuthTrunc.ICVBits%8 != 0:
		return invalid("an ICV of %d bits, which are not whole bytes", a.AuthTrunc.ICVBits)
	}
	r := a.ReplayESN
	switch {
	case r == nil:
	case uint64(r.Window) > 32*uint64(r.Words):
		return invalid("a replay window of %d packets in a bitmap of %d", r.Window, 32*r.Words)
	case m.Flags&StateESN != 0 && r.Window == 0 && a.SADir.V != SADirOut:
		return invalid("extended sequence numbers without a replay window; they need at least 1 packet, or SA_DIR out")
	}
	return nil
}

func (m *SAID) validate() *Error {
	switch m.Proto {
	case ProtoESP, ProtoAH, ProtoComp, ProtoIPsec:
		return nil
	}
	if !m.Attrs.SrcAddr.Set {
		return invalid("protocol %d has no SPI: say which SA is meant with SRCADDR", m.Proto)
	}
	return nil
}

func (m *AllocSPI) validate() *Error {
	switch m.Proto {
	case ProtoESP, ProtoAH:
	case ProtoComp:
		if m.Max > 0xffff {
			return invalid("IPComp's SPI up to 0x%x; it has 16 bits", m.Max)
		}
	default:
		return invalid("protocol %d has no SPI; ESP is 50, AH 51, IPComp 108", m.Proto)
	}
	switch {
	case m.Min > m.Max:
		return invalid("an SPI from 0x%x to 0x%x: the first is above the last", m.Min, m.Max)
	case m.Attrs.PCPU.Set && m.Attrs.PCPU.V >= maxCPU:
		return invalid("SA_PCPU %d; there is no such processor", m.Attrs.PCPU.V)
	}
	return nil
}

func checkPolicyDir(d uint8) *Error {
	if d >= dirCount {
		return invalid("a policy of direction %d; in is 0, out 1, fwd 2", d)
	}
	return nil
}

func (a *Attrs) checkPolicyType() *Error {
	if t := a.PolicyKind(); t != PolicyMain && t != PolicySub {
		return invalid("a policy of type %d; main is 0, sub 1", t)
	}
	return nil
}

func (i *PolicyInfo) validate() *Error {
	switch {
	case i.Share > ShareUnique:
		return invalid("a policy with share %d; any is 0", i.Share)
	case i.Action > ActionBlock:
		return invalid("a policy with action %d; allow is 0, block 1", i.Action)
	}
	if e := i.Sel.validate(i.Sel.Family); e != nil {
		return e
	}
	if e := checkPolicyDir(i.Dir); e != nil {
		return e
	}
	if i.Index != 0 && i.Index&7 != uint32(i.Dir) {
		return invalid("a policy with index %d, which is one of direction %d, not %d", i.Index, i.Index&7, i.Dir)
	}
	return nil
}

// checkTmpls follows the family of packets from the selector through the templates.
func checkTmpls(tmpls []Tmpl, family uint16, dir uint8) *Error {
	if len(tmpls) > maxDepth {
		return invalid("a policy with %d templates; it can have %d", len(tmpls), maxDepth)
	}
	for n := range tmpls {
		t := &tmpls[n]
		own := t.Family
		if own == FamilyUnspec {
			own = family
		}
		if t.Mode >= modeCount {
			return invalid("template %d has mode %d; tunnel is 1, transport 0", n+1, t.Mode)
		}
		switch t.Mode {
		case ModeTunnel, ModeBEET, ModeIPTFS:
			if t.Optional != 0 && dir == DirOut {
				return invalid("template %d of an outbound policy is optional; in %s mode it cannot be", n+1, ModeName(t.Mode))
			}
		default:
			if own != family {
				return invalid("template %d has family %d for packets of family %d; in %s mode they are the same", n+1, own, family, ModeName(t.Mode))
			}
		}
		if Bits(own) == 0 {
			return invalid("template %d has family %d; it can be 2 for IPv4 or 10 for IPv6", n+1, own)
		}
		switch t.Proto {
		case ProtoESP, ProtoAH, ProtoComp, ProtoRouting, ProtoDstOpts:
		default:
			return invalid("template %d has protocol %d; ESP is 50, AH 51, IPComp 108", n+1, t.Proto)
		}
		family = own
	}
	return nil
}

// Validate refuses what the kernel refuses of a policy that is added or updated.
func (m *Policy) Validate() error { return asError(m.validate()) }

func (m *Policy) validate() *Error {
	for _, check := range []func() *Error{m.PolicyInfo.validate, m.Attrs.checkSecCtx, m.Attrs.checkPolicyType} {
		if e := check(); e != nil {
			return e
		}
	}
	return checkTmpls(m.Attrs.Tmpls, m.Sel.Family, m.Dir)
}

func (m *PolicyID) validate() *Error {
	if e := m.Attrs.checkPolicyType(); e != nil {
		return e
	}
	if e := checkPolicyDir(m.Dir); e != nil {
		return e
	}
	return m.Attrs.checkSecCtx()
}

func (m *PolicyExpire) validate() *Error {
	if e := m.Attrs.checkPolicyType(); e != nil {
		return e
	}
	return checkPolicyDir(m.Dir)
}

func (m *Acquire) validate() *Error {
	if e := m.Policy.validate(); e != nil {
		return e
	}
	return checkTmpls(m.Attrs.Tmpls, m.Policy.Sel.Family, m.Policy.Dir)
}

func (m *FlushPolicy) validate() *Error { return m.Attrs.checkPolicyType() }

func (m *Migrate) validate() *Error {
	if e := m.Attrs.checkPolicyType(); e != nil {
		return e
	}
	if e := checkPolicyDir(m.Dir); e != nil {
		return e
	}
	moves := m.Attrs.Migrates
	if len(moves) == 0 || len(moves) > maxDepth {
		return invalid("%d moves to migrate; give 1 to %d in MIGRATE", len(moves), maxDepth)
	}
	for i := range moves {
		v := &moves[i]
		if v.NewDst.IsZero() || v.NewSrc.IsZero() {
			return invalid("move %d goes to no address", i+1)
		}
		if slices.ContainsFunc(moves[:i], v.sameAs) {
			return invalid("move %d is of the same SAs as one before it", i+1)
		}
	}
	return nil
}

// sameAs reports whether two moves are of the same SAs.
func (m *Move) sameAs(o Move) bool {
	n := Bits(m.OldFamily) / 8
	return m.OldFamily == o.OldFamily && bytes.Equal(m.OldDst[:n], o.OldDst[:n]) && bytes.Equal(m.OldSrc[:n], o.OldSrc[:n]) &&
		m.Proto == o.Proto && m.Mode == o.Mode && m.Reqid == o.Reqid
}

// validateNew checks what MsgNewAE needs and MsgGetAE does not.
func (m *AE) validateNew(h Header) *Error {
	a := &m.Attrs
	switch {
	case !h.Has(unix.NLM_F_REPLACE):
		return invalid("NEWAE without the flag NLM_F_REPLACE")
	case a.LTime == nil && !a.Replay.Set && a.ReplayESN == nil && !a.ReplayThresh.Set && !a.ETimerThresh.Set:
		return invalid("NEWAE has nothing to change: give LTIME_VAL, REPLAY_VAL, REPLAY_ESN_VAL, REPLAY_THRESH or ETIMER_THRESH")
	}
	return nil
}

func (m *SPDInfo) validate() *Error {
	for _, t := range []struct {
		what  string
		t     Opt[Thresh]
		limit uint8
	}{{"IPv4", m.Thresh4, 32}, {"IPv6", m.Thresh6, 128}} {
		if t.t.V.Local > t.limit || t.t.V.Remote > t.limit {
			return invalid("%s hash thresholds of %d and %d bits; they can be up to %d", t.what, t.t.V.Local, t.t.V.Remote, t.limit)
		}
	}
	return nil
}
