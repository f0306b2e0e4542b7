package server

import (
	"runtime"

	"golang.org/x/sys/unix"

	"culvert/xfrm"
)

func invalid(format string, args ...any) *xfrm.Error {
	return xfrm.Errorf(unix.EINVAL, format, args...)
}

func unsupported(format string, args ...any) *xfrm.Error {
	return xfrm.Errorf(unix.EOPNOTSUPP, format, args...)
}

func checkSelector(sel *xfrm.Selector, mayBeAny bool) *xfrm.Error {
	bits := xfrm.Bits(sel.Family)
	switch {
	case sel.Family == xfrm.FamilyUnspec && mayBeAny:
		return nil
	case bits == 0:
		return invalid("the selector's family is %d; it can be 2, IPv4, or 10, IPv6", sel.Family)
	case int(sel.SrcLen) > bits || int(sel.DstLen) > bits:
		return invalid("the selector has prefixes of %d and %d bits; addresses of this family have %d", sel.SrcLen, sel.DstLen, bits)
	}
	return nil
}

// checkAttrs is what holds for every message with attributes.
func checkAttrs(a *xfrm.Attrs) *xfrm.Error {
	switch {
	case a.SADir.Set && a.SADir.V != xfrm.SADirIn && a.SADir.V != xfrm.SADirOut:
		return xfrm.Errorf(unix.ERANGE, "SA_DIR is %d; it can be 1, in, or 2, out", a.SADir.V)
	case a.SecCtx != nil:
		return unsupported("security labels are for the kernel's own SAs; leave SEC_CTX out")
	case a.Offload.Set && a.Offload.V.IfIndex != 0:
		return unsupported("the gateway works without the network card's help; leave OFFLOAD_DEV out")
	}
	return nil
}

func checkPCPU(a *xfrm.Attrs) *xfrm.Error {
	if a.PCPU.Set && int64(a.PCPU.V) >= int64(runtime.NumCPU()) {
		return invalid("SA_PCPU is %d; the processors here are 0 to %d", a.PCPU.V, runtime.NumCPU()-1)
	}
	return nil
}

// checkSA is what the kernel refuses in a new SA before it looks at algorithms.
func checkSA(m *xfrm.SA) *xfrm.Error {
	a := &m.Attrs
	if e := checkAttrs(a); e != nil {
		return e
	}
	if xfrm.Bits(m.Family) == 0 {
		return invalid("the SA's family is %d; it can be 2, IPv4, or 10, IPv6", m.Family)
	}
	if e := checkSelector(&m.Sel, true); e != nil {
		return e
	}
	auth := a.Auth != nil || a.AuthTrunc != nil
	switch m.Proto {
	case xfrm.ProtoESP:
		switch {
		case a.Comp != nil:
			return invalid("an ESP SA cannot compress; leave ALG_COMP out")
		case !auth && a.Crypt == nil && a.AEAD == nil:
			return invalid("an ESP SA needs ALG_AEAD, or ALG_CRYPT and ALG_AUTH_TRUNC or ALG_AUTH")
		case a.AEAD != nil && (auth || a.Crypt != nil):
			return invalid("ALG_AEAD encrypts and authenticates; leave the other algorithms out")
		case a.TFCPad.Set && m.Mode != xfrm.ModeTunnel && m.Mode != xfrm.ModeIPTFS:
			return invalid("TFCPAD is for tunnel mode")
		}
	case xfrm.ProtoAH:
		if !auth || a.AEAD != nil || a.Crypt != nil || a.Comp != nil || a.TFCPad.Set {
			return invalid("an AH SA needs ALG_AUTH_TRUNC or ALG_AUTH and nothing else")
		}
	case xfrm.ProtoComp:
		if a.Comp == nil || auth || a.AEAD != nil || a.Crypt != nil || a.TFCPad.Set || m.SPI >= 0x10000 {
			return invalid("an IPComp SA needs ALG_COMP and nothing else, and an SPI below 65536")
		}
	case xfrm.ProtoDstOpts, xfrm.ProtoRouting:
		if a.Comp != nil || auth || a.AEAD != nil || a.Crypt != nil || a.TFCPad.Set || !a.CoAddr.Set {
			return invalid("a Mobile IPv6 SA needs COADDR and no algorithm")
		}
	default:
		return invalid("there are no SAs of protocol %d", m.Proto)
	}
	if e := checkReplay(m); e != nil {
		return e
	}
	switch m.Mode {
	case xfrm.ModeTransport, xfrm.ModeTunnel, xfrm.ModeRouteOptimization, xfrm.ModeBEET:
	case xfrm.ModeIPTFS:
		if m.Proto != xfrm.ProtoESP {
			return invalid("mode iptfs is for ESP")
		}
	default:
		return invalid("there is no %s for an SA", xfrm.ModeName(m.Mode))
	}
	if a.MTimerThresh.Set && a.Encap == nil {
		return invalid("MTIMER_THRESH is about mappings, which SAs have that are in UDP; give ENCAP, or leave it out")
	}
	if e := checkDir(m); e != nil {
		return e
	}
	return checkPCPU(a)
}

// maxWords is how many words of 32 bits a replay window's bitmap can have.
const maxWords = 128

// checkReplay is about the replay window.
func checkReplay(m *xfrm.SA) *xfrm.Error {
	r := m.Attrs.ReplayESN
	switch {
	case r == nil && m.Flags&xfrm.StateESN != 0:
		return invalid("ESN needs REPLAY_ESN_VAL, which says how wide the window is")
	case r == nil:
		return nil
	case r.Words > maxWords:
		return invalid("the replay window's bitmap has %d words; there can be %d", r.Words, maxWords)
	case len(r.Bitmap) != 0 && uint64(r.Words) != uint64(len(r.Bitmap)): // iproute2 leaves out one without bits
		return invalid("REPLAY_ESN_VAL announces a bitmap of %d words and has %d", r.Words, len(r.Bitmap))
	case m.Proto != xfrm.ProtoESP && m.Proto != xfrm.ProtoAH:
		return invalid("REPLAY_ESN_VAL is for ESP and AH")
	case m.Window != 0:
		return invalid("there are two replay windows, of %d and %d packets; leave the first one 0", m.Window, r.Window)
	case uint64(r.Window) > 32*uint64(r.Words):
		return invalid("the replay window is %d packets wide and its bitmap has %d bits", r.Window, 32*r.Words)
	case m.Flags&xfrm.StateESN != 0 && r.Window == 0 && m.Attrs.SADir.V != xfrm.SADirOut:
		return invalid("ESN needs a replay window, from which the high half of the number is inferred (RFC 4303 section 2.2.1)")
	}
	return nil
}

// checkDir is about SAs that say which way they go.
func checkDir(m *xfrm.SA) *xfrm.Error {
	a := &m.Attrs
	r := a.ReplayESN
	switch a.SADir.V {
	case xfrm.SADirOut:
		switch {
		case m.Flags&(xfrm.StateDecapDSCP|xfrm.StateICMP|xfrm.StateWildRecv) != 0:
			return invalid("flags %#x has some for inbound SAs, and SA_DIR says out", m.Flags)
		case m.Window != 0 || r != nil && r.Window != 0:
			return invalid("an outbound SA has no replay window; make it 0")
		case r != nil && (r.Seq != 0 || r.SeqHi != 0) || a.Replay.Set && (a.Replay.V.Seq != 0 || a.Replay.V.Bitmap != 0):
			return invalid("an outbound SA has received nothing; make its highest number received 0")
		case a.MTimerThresh.Set:
			return invalid("MTIMER_THRESH is for inbound SAs, and SA_DIR says out")
		}
		if r != nil {
			for _, w := range r.Bitmap {
				if w != 0 {
					return invalid("an outbound SA has received nothing; make its bitmap 0")
				}
			}
		}
	case xfrm.SADirIn:
		switch {
		case m.Flags&xfrm.StateNoPMTUDisc != 0:
			return invalid("flags %#x has some for outbound SAs, and SA_DIR says in", m.Flags)
		case a.ExtraFlags.V != 0:
			return invalid("extra flags %#x are for outbound SAs, and SA_DIR says in", a.ExtraFlags.V)
		case r != nil && (r.Oseq != 0 || r.OseqHi != 0) || a.Replay.Set && a.Replay.V.Oseq != 0:
			return invalid("an inbound SA has sent nothing; make its last number sent 0")
		case a.TFCPad.Set:
			return invalid("TFCPAD is for outbound SAs, and SA_DIR says in")
		}
	}
	return nil
}

func checkPolicyDir(dir uint8) *xfrm.Error {
	if dir > xfrm.DirFwd {
		return invalid("the direction is %d; it can be 0, in, 1, out, or 2, fwd", dir)
	}
	return nil
}

func checkPolicyType(a *xfrm.Attrs) *xfrm.Error {
	if a.PolicyType.Set && a.PolicyType.V.Type != xfrm.PolicyMain {
		return invalid("the policy's type is %d; there is 0, main", a.PolicyType.V.Type)
	}
	return nil
}

// checkPolicy is what the kernel refuses in a policy. It completes templates that say no family.
func checkPolicy(i *xfrm.PolicyInfo, a *xfrm.Attrs) *xfrm.Error {
	switch {
	case i.Share > xfrm.ShareUnique:
		return invalid("the policy's share is %d; it can be 0 to 3", i.Share)
	case i.Action > xfrm.ActionBlock:
		return invalid("the policy's action is %d; it can be 0, allow, or 1, block", i.Action)
	}
	if e := checkSelector(&i.Sel, false); e != nil {
		return e
	}
	if e := checkPolicyDir(i.Dir); e != nil {
		return e
	}
	if i.Index != 0 && uint8(i.Index&7) != i.Dir {
		return invalid("the index %d is one of direction %d, the policy is %s", i.Index, i.Index&7, xfrm.DirName(i.Dir))
	}
	if e := checkAttrs(a); e != nil {
		return e
	}
	if e := checkPolicyType(a); e != nil {
		return e
	}
	return checkTemplates(a.Tmpls, i.Sel.Family, i.Dir)
}

// maxTmpls is how many templates a policy can have.
const maxTmpls = 6

func checkTemplates(ts []xfrm.Tmpl, family uint16, dir uint8) *xfrm.Error {
	if len(ts) > maxTmpls {
		return invalid("there are %d templates; there can be %d", len(ts), maxTmpls)
	}
	for n := range ts {
		t := &ts[n]
		if t.Family == xfrm.FamilyUnspec {
			t.Family = family
		}
		switch {
		case t.Mode == xfrm.ModeTunnel || t.Mode == xfrm.ModeBEET || t.Mode == xfrm.ModeIPTFS:
			if t.Optional != 0 && dir == xfrm.DirOut {
				return invalid("template %d, in mode %s, is optional: an outbound policy must use it", n+1, xfrm.ModeName(t.Mode))
			}
		case t.Mode > xfrm.ModeIPTFS:
			return invalid("template %d has the mode %d; there are 0 to 5", n+1, t.Mode)
		case t.Family != family:
			return invalid("template %d changes the family from %d to %d, which mode %s cannot", n+1, family, t.Family, xfrm.ModeName(t.Mode))
		}
		if xfrm.Bits(t.Family) == 0 {
			return invalid("template %d has the family %d; it can be 2, IPv4, or 10, IPv6", n+1, t.Family)
		}
		family = t.Family
		switch t.Proto {
		case xfrm.ProtoESP, xfrm.ProtoAH, xfrm.ProtoComp, xfrm.ProtoRouting, xfrm.ProtoDstOpts:
		default:
			return invalid("template %d is for protocol %d, which is none of IPsec's", n+1, t.Proto)
		}
	}
	return nil
}

// checkRange is about the SPIs that a client wants to have one of.
func checkRange(m *xfrm.AllocSPI) *xfrm.Error {
	if e := checkAttrs(&m.Attrs); e != nil {
		return e
	}
	switch {
	case m.Proto == xfrm.ProtoComp && m.Max >= 0x10000:
		return invalid("SPIs up to %d; those of IPComp end at 65535", m.Max)
	case m.Proto != xfrm.ProtoComp && m.Proto != xfrm.ProtoESP && m.Proto != xfrm.ProtoAH:
		return invalid("protocol %d has no SPIs", m.Proto)
	case m.Min > m.Max:
		return invalid("SPIs from %d to %d: there are none between", m.Min, m.Max)
	}
	return checkPCPU(&m.Attrs)
}
