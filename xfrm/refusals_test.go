package xfrm

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/offload"
)

var record = flag.Bool("record", false, "ask the running kernel, which must be a Linux 6.18 without ESP, and write what it answers to testdata")

const refusalsFile = "testdata/refusals-linux-6.18.txt"

// request is one message that a kernel has answered.
type request struct {
	name string
	b    []byte
}

func addr(s string) Address {
	a, _ := AddressOf(netip.MustParseAddr(s))
	return a
}

// u32s is an attribute of 32-bit integers.
func u32s(v ...uint32) []byte {
	var b []byte
	for _, x := range v {
		b = host.AppendUint32(b, x)
	}
	return b
}

// with appends an attribute to a message.
func with(b []byte, typ uint16, payload []byte) []byte {
	b = appendAttrBytes(b, typ, payload)
	host.PutUint32(b, uint32(len(b)))
	return b
}

func baseSA() *SA {
	m := new(SA)
	m.Src, m.Dst, m.Family, m.Proto, m.SPI, m.Mode = addr("192.0.2.1"), addr("192.0.2.2"), FamilyIPv4, ProtoESP, 0x1234, ModeTunnel
	m.Limits = Limits{Inf, Inf, Inf, Inf, 0, 0, 0, 0}
	m.Attrs.Crypt = NewAlgo("cbc(aes)", 0, make(offload.Key, 16))
	m.Attrs.AuthTrunc = NewAlgo("hmac(sha256)", 128, make(offload.Key, 32))
	return m
}

func basePolicy() *Policy {
	m := new(Policy)
	m.Sel = SelectorOf(netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("10.2.0.0/24"))
	m.Dir, m.Limits = DirOut, Limits{Inf, Inf, Inf, Inf, 0, 0, 0, 0}
	m.Attrs.Tmpls = []Tmpl{baseTmpl()}
	return m
}

func baseTmpl() Tmpl {
	return Tmpl{
		Dst: addr("192.0.2.2"), Src: addr("192.0.2.1"), Proto: ProtoESP, Family: FamilyIPv4, Reqid: 1, Mode: ModeTunnel,
		AAlgos: ^uint32(0), EAlgos: ^uint32(0), CAlgos: ^uint32(0),
	}
}

// requests makes the messages that the kernel is asked to judge, each from a good one by one change.
func requests() []request {
	var all []request
	const flags = unix.NLM_F_REQUEST | unix.NLM_F_ACK
	add := func(name string, b []byte) { all = append(all, request{name, b}) }
	sa := func(name string, change func(*SA)) {
		m := baseSA()
		change(m)
		add("NEWSA "+name, Align8.Append(nil, m, MsgNewSA, flags, 1, 0))
	}
	sa("good", func(*SA) {})
	for _, f := range []uint16{0, 7, 10} {
		sa(fmt.Sprintf("family %d", f), func(m *SA) { m.Family = f })
	}
	for _, f := range []uint16{2, 7, 10} {
		sa(fmt.Sprintf("selector family %d", f), func(m *SA) { m.Sel.Family = f })
		for _, n := range []uint8{32, 33, 128, 129} {
			sa(fmt.Sprintf("selector family %d prefix %d", f, n), func(m *SA) { m.Sel.Family, m.Sel.SrcLen = f, n })
		}
		sa(fmt.Sprintf("selector family %d destination prefix 129", f), func(m *SA) { m.Sel.Family, m.Sel.DstLen = f, 129 })
	}
	sa("selector prefix 33 without family", func(m *SA) { m.Sel.SrcLen = 33 })
	sa("selector prefix 129 without family", func(m *SA) { m.Sel.DstLen = 129 })
	for _, f := range []uint8{0, StateAFUnspec} {
		for _, n := range []uint8{1, 32, 33, 128, 129} {
			sa(fmt.Sprintf("selector prefix %d without family, flags %d", n, f), func(m *SA) { m.Flags, m.Sel.SrcLen = f, n })
			sa(fmt.Sprintf("selector prefix %d without family for an IPv6 SA, flags %d", n, f), func(m *SA) { m.Flags, m.Family, m.Sel.SrcLen = f, 10, n })
		}
	}
	sa("selector family 10 prefix 33 for an IPv6 SA", func(m *SA) { m.Family, m.Sel.Family, m.Sel.SrcLen = 10, 10, 33 })
	sa("selector family 2 prefix 33 for an IPv6 SA", func(m *SA) { m.Family, m.Sel.Family, m.Sel.SrcLen = 10, 2, 33 })
	for _, p := range []uint8{0, 17, 43, 51, 60, 108, 255} {
		sa(fmt.Sprintf("proto %d", p), func(m *SA) { m.Proto = p })
		sa(fmt.Sprintf("proto %d without algorithms", p), func(m *SA) { m.Proto = p; m.Attrs = Attrs{} })
		sa(fmt.Sprintf("proto %d with authentication only", p), func(m *SA) { m.Proto = p; m.Attrs.Crypt = nil })
		sa(fmt.Sprintf("proto %d with COADDR", p), func(m *SA) {
			m.Proto, m.Mode, m.Attrs = p, ModeRouteOptimization, Attrs{CoAddr: Some(addr("2001:db8::1"))}
		})
		sa(fmt.Sprintf("proto %d with compression", p), func(m *SA) { m.Proto, m.Attrs = p, Attrs{Comp: NewAlgo("deflate", 0, nil)} })
		sa(fmt.Sprintf("proto %d with compression and SPI 0x10000", p), func(m *SA) {
			m.Proto, m.SPI, m.Attrs = p, 0x10000, Attrs{Comp: NewAlgo("deflate", 0, nil)}
		})
	}
	sa("AH with TFCPAD", func(m *SA) { m.Proto, m.Attrs.Crypt, m.Attrs.TFCPad = ProtoAH, nil, Some[uint32](1) })
	sa("AH with ENCAP", func(m *SA) { m.Proto, m.Attrs.Crypt, m.Attrs.Encap = ProtoAH, nil, &Encap{Type: EncapUDP} })
	sa("IPComp with TFCPAD", func(m *SA) {
		m.Proto, m.Attrs = ProtoComp, Attrs{Comp: NewAlgo("deflate", 0, nil), TFCPad: Some[uint32](1)}
	})
	aead := func() *Algo { return NewAlgo("rfc4106(gcm(aes))", 128, make(offload.Key, 20)) }
	sa("AEAD alone", func(m *SA) { m.Attrs = Attrs{AEAD: aead()} })
	sa("AEAD and encryption", func(m *SA) { m.Attrs.AuthTrunc, m.Attrs.AEAD = nil, aead() })
	sa("AEAD and authentication", func(m *SA) { m.Attrs.Crypt, m.Attrs.AEAD = nil, aead() })
	sa("AEAD and plain authentication", func(m *SA) {
		m.Attrs = Attrs{AEAD: aead(), Auth: NewAlgo("sha1", 0, make(offload.Key, 20))}
	})
	sa("encryption alone", func(m *SA) { m.Attrs.AuthTrunc = nil })
	sa("authentication alone", func(m *SA) { m.Attrs.Crypt = nil })
	sa("ESP with compression too", func(m *SA) { m.Attrs.Comp = NewAlgo("deflate", 0, nil) })
	for _, mode := range []uint8{0, 1, 2, 3, 4, 5, 6, 255} {
		sa(fmt.Sprintf("mode %d", mode), func(m *SA) { m.Mode = mode })
		sa(fmt.Sprintf("mode %d with TFCPAD", mode), func(m *SA) { m.Mode, m.Attrs.TFCPad = mode, Some[uint32](100) })
		sa(fmt.Sprintf("mode %d with selector family 10", mode), func(m *SA) { m.Mode, m.Sel.Family = mode, 10 })
		sa(fmt.Sprintf("mode %d of AH", mode), func(m *SA) { m.Proto, m.Mode, m.Attrs.Crypt = ProtoAH, mode, nil })
		for dir := range uint8(4) {
			sa(fmt.Sprintf("mode %d direction %d", mode, dir), func(m *SA) { m.Mode, m.Attrs.SADir = mode, Some(dir) })
		}
	}
	sa("unknown authentication", func(m *SA) { m.Attrs.AuthTrunc.Name = "hmac(unheard-of)" })
	sa("unknown encryption", func(m *SA) { m.Attrs.Crypt.Name = "cbc(unheard-of)" })
	sa("unknown AEAD", func(m *SA) { m.Attrs = Attrs{AEAD: NewAlgo("unheard-of", 128, make(offload.Key, 20))} })
	sa("unknown authentication and SPI 0", func(m *SA) { m.SPI, m.Attrs.AuthTrunc.Name = 0, "hmac(unheard-of)" })
	for _, bits := range []uint32{0, 1, 96, 256, 257, 1 << 31} {
		sa(fmt.Sprintf("ICV of %d bits", bits), func(m *SA) { m.Attrs.AuthTrunc.ICVBits = bits })
	}
	sa("short names", func(m *SA) {
		m.Attrs = Attrs{Crypt: NewAlgo("aes", 0, make(offload.Key, 16)), Auth: NewAlgo("sha256", 0, make(offload.Key, 32))}
	})
	sa("SPI 0", func(m *SA) { m.SPI = 0 })
	sa("SPI 1", func(m *SA) { m.SPI = 1 })
	sa("ESN flag alone", func(m *SA) { m.Flags = StateESN })
	sa("ESN flag with REPLAY_VAL", func(m *SA) { m.Flags, m.Attrs.Replay = StateESN, Some(Replay{}) })
	for _, r := range []ReplayESN{{}, {Words: 1, Window: 32}, {Words: 1, Window: 33}, {Words: 128, Window: 4096}, {Words: 129, Window: 32}, {Words: 0, Window: 1}} {
		for _, f := range []uint8{0, StateESN} {
			for _, whole := range []bool{true, false} {
				name := fmt.Sprintf("%d words, window %d, flags %d, bitmap %v", r.Words, r.Window, f, whole)
				m := baseSA()
				m.Flags = f
				b := u32s(r.Words, 0, 0, 0, 0, r.Window)
				if whole {
					b = append(b, make([]byte, 4*r.Words)...)
				}
				add("NEWSA "+name, with(Align8.Append(nil, m, MsgNewSA, flags, 1, 0), AttrReplayESNVal, b))
			}
		}
	}
	add("NEWSA bitmap cut", with(Align8.Append(nil, baseSA(), MsgNewSA, flags, 1, 0), AttrReplayESNVal, append(u32s(4, 0, 0, 0, 0, 128), make([]byte, 12)...)))
	add("NEWSA bitmap longer", with(Align8.Append(nil, baseSA(), MsgNewSA, flags, 1, 0), AttrReplayESNVal, append(u32s(1, 0, 0, 0, 0, 32), make([]byte, 12)...)))
	for _, p := range []uint8{ProtoAH, ProtoComp} {
		for _, f := range []uint8{0, StateESN} {
			sa(fmt.Sprintf("proto %d with REPLAY_ESN_VAL, flags %d", p, f), func(m *SA) {
				m.Proto, m.Flags, m.Attrs.ReplayESN = p, f, &ReplayESN{Words: 1, Window: 32}
				if m.Attrs.Crypt = nil; p == ProtoComp {
					m.Attrs.AuthTrunc, m.Attrs.Comp = nil, NewAlgo("deflate", 0, nil)
				}
			})
		}
	}
	sa("window 255", func(m *SA) { m.Window = 255 })
	sa("REPLAY_VAL", func(m *SA) { m.Attrs.Replay = Some(Replay{1, 2, 3}) })
	sa("ENCAP type 0", func(m *SA) { m.Attrs.Encap = &Encap{} })
	sa("ENCAP type 99", func(m *SA) { m.Attrs.Encap = &Encap{Type: 99} })
	sa("ENCAP in UDP", func(m *SA) { m.Attrs.Encap = &Encap{Type: EncapUDP} })
	for dir := range uint8(3) {
		set := func(m *SA) {
			if dir != 0 {
				m.Attrs.SADir = Some(dir)
			}
		}
		for bit := range 8 {
			sa(fmt.Sprintf("direction %d, flag %d", dir, 1<<bit), func(m *SA) {
				set(m)
				if m.Flags = 1 << bit; m.Flags == StateESN {
					m.Attrs.ReplayESN = &ReplayESN{Words: 1, Window: 32}
				}
			})
		}
		for _, x := range []uint32{1, 2, 4, 1 << 31} {
			sa(fmt.Sprintf("direction %d, extra flags %d", dir, x), func(m *SA) { set(m); m.Attrs.ExtraFlags = Some(x) })
		}
		sa(fmt.Sprintf("direction %d, window 32", dir), func(m *SA) { set(m); m.Window = 32 })
		for i, r := range []Replay{{Oseq: 1}, {Seq: 1}, {Bitmap: 1}} {
			sa(fmt.Sprintf("direction %d, REPLAY_VAL %d", dir, i), func(m *SA) { set(m); m.Attrs.Replay = Some(r) })
		}
		for i, r := range []ReplayESN{
			{Words: 1, Window: 32}, {Words: 1}, {Window: 0}, {Words: 1, Window: 1, Oseq: 1}, {Words: 1, Window: 1, OseqHi: 1}, {Words: 1, Window: 1, Seq: 1},
			{Words: 1, Window: 1, SeqHi: 1}, {Words: 1, Window: 1, Bitmap: []uint32{1}}, {Words: 1, Oseq: 1}, {Words: 1, OseqHi: 1}, {Words: 1, Seq: 1},
			{Words: 1, SeqHi: 1}, {Words: 1, Bitmap: []uint32{1}}, {Words: 0, Oseq: 1}, {Words: 0, Seq: 1},
		} {
			for _, f := range []uint8{0, StateESN} {
				sa(fmt.Sprintf("direction %d, REPLAY_ESN_VAL %d, flags %d", dir, i, f), func(m *SA) { set(m); m.Flags, m.Attrs.ReplayESN = f, &r })
			}
		}
		sa(fmt.Sprintf("direction %d, TFCPAD", dir), func(m *SA) { set(m); m.Attrs.TFCPad = Some[uint32](1) })
		sa(fmt.Sprintf("direction %d, SET_MARK", dir), func(m *SA) { set(m); m.Attrs.SetMark = Some[uint32](1) })
		sa(fmt.Sprintf("direction %d, SET_MARK_MASK", dir), func(m *SA) { set(m); m.Attrs.SetMarkMask = Some[uint32](1) })
		sa(fmt.Sprintf("direction %d, MTIMER_THRESH", dir), func(m *SA) { set(m); m.Attrs.MTimerThresh = Some[uint32](1) })
		sa(fmt.Sprintf("direction %d, MTIMER_THRESH and ENCAP", dir), func(m *SA) {
			set(m)
			m.Attrs.MTimerThresh, m.Attrs.Encap = Some[uint32](1), &Encap{Type: EncapUDP}
		})
		for _, v := range []uint32{0, 20} {
			sa(fmt.Sprintf("direction %d, NAT_KEEPALIVE %d", dir, v), func(m *SA) { set(m); m.Attrs.NATKeepalive = Some(v) })
			sa(fmt.Sprintf("direction %d, NAT_KEEPALIVE %d and ENCAP", dir, v), func(m *SA) {
				set(m)
				m.Attrs.NATKeepalive, m.Attrs.Encap = Some(v), &Encap{Type: EncapUDP}
			})
		}
		for _, v := range []uint32{0, 1 << 20} {
			sa(fmt.Sprintf("direction %d, SA_PCPU %d", dir, v), func(m *SA) { set(m); m.Attrs.PCPU = Some(v) })
		}
		for _, v := range []uint8{0, OffloadInbound, OffloadPacket, OffloadPacket | OffloadInbound, 8} {
			sa(fmt.Sprintf("direction %d, offload flags %d", dir, v), func(m *SA) { set(m); m.Attrs.Offload = Some(Offload{1, v}) })
		}
		for _, mode := range []uint8{ModeTunnel, ModeIPTFS} {
			for i, x := range []IPTFS{
				{DropTime: Some[uint32](1)}, {ReorderWindow: Some[uint16](1)}, {DontFrag: true}, {InitDelay: Some[uint32](1)}, {MaxQSize: Some[uint32](1)},
				{PktSize: Some[uint32](1)},
			} {
				sa(fmt.Sprintf("direction %d, mode %d, IPTFS %d", dir, mode, i), func(m *SA) { set(m); m.Mode, m.Attrs.IPTFS = mode, x })
			}
		}
	}
	sa("offload of no device", func(m *SA) { m.Attrs.Offload = Some(Offload{1 << 20, 0}) })
	sa("IF_ID, MARK, SRCADDR, LTIME_VAL, thresholds", func(m *SA) {
		m.Attrs.IfID, m.Attrs.Mark, m.Attrs.SrcAddr = Some[uint32](1), Some(Mark{1, 1}), Some(addr("192.0.2.9"))
		m.Attrs.LTime, m.Attrs.ReplayThresh, m.Attrs.ETimerThresh = &Lifetime{}, Some[uint32](1), Some[uint32](1)
	})
	sa("soft limit beyond the hard one", func(m *SA) { m.Limits.SoftBytes, m.Limits.HardBytes = 2, 1 })
	sa("SEC_CTX", func(m *SA) { m.Attrs.SecCtx = &SecCtx{Len: 8, ExtType: 8, Alg: 1, DOI: 1} })
	sa("SEC_CTX with a wrong length", func(m *SA) { m.Attrs.SecCtx = &SecCtx{Len: 9, ExtType: 8, Alg: 1, DOI: 1} })
	for t := AttrAlgAuth; t <= AttrMax+2; t++ {
		want := 8
		if t <= AttrMax {
			want = Align8.minLen(t)
		}
		for _, n := range []int{0, want - 1, want + 1} {
			if n >= 0 && (n > 0 || n != want-1) {
				add(fmt.Sprintf("NEWSA type %d of %d bytes", t, n), with(Align8.Append(nil, baseSA(), MsgNewSA, flags, 1, 0), t, make([]byte, n)))
			}
		}
	}
	cut := Align8.Append(nil, baseSA(), MsgNewSA, flags, 1, 0)
	for _, key := range []uint32{127, 128, 129, 136, 1 << 20} {
		for _, t := range []uint16{AttrAlgCrypt, AttrAlgAuth, AttrAlgComp, AttrAlgAuthTrunc, AttrAlgAEAD} {
			b := make([]byte, Align8.minLen(t)+16)
			copy(b, "unheard-of")
			host.PutUint32(b[nameLen:], key)
			add(fmt.Sprintf("NEWSA type %d announces a key of %d bits", t, key), with(bytes.Clone(cut), t, b))
		}
	}
	for _, n := range []int{0, 4, 216, 220, 223} {
		b := bytes.Clone(cut[:HeaderLen+n])
		host.PutUint32(b, uint32(len(b)))
		add(fmt.Sprintf("NEWSA cut to a body of %d bytes", n), b)
	}
	upd := baseSA()
	add("UPDSA that is not there", Align8.Append(nil, upd, MsgUpdSA, flags, 1, 0))

	pol := func(name string, change func(*Policy)) {
		m := basePolicy()
		change(m)
		add("NEWPOLICY "+name, Align8.Append(nil, m, MsgNewPolicy, flags, 1, 0))
	}
	pol("good", func(*Policy) {})
	for _, d := range []uint8{0, 2, 3, 4, 255} {
		pol(fmt.Sprintf("direction %d", d), func(m *Policy) { m.Dir = d })
	}
	for _, v := range []uint8{1, 3, 4, 255} {
		pol(fmt.Sprintf("share %d", v), func(m *Policy) { m.Share = v })
		pol(fmt.Sprintf("action %d", v), func(m *Policy) { m.Action = v })
		pol(fmt.Sprintf("flags %d", v), func(m *Policy) { m.Flags = v })
		pol(fmt.Sprintf("type %d", v), func(m *Policy) { m.Attrs.PolicyType = Some(PolicyType{Type: v}) })
	}
	for _, f := range []uint16{0, 7, 10} {
		pol(fmt.Sprintf("family %d", f), func(m *Policy) { m.Sel.Family = f })
		pol(fmt.Sprintf("family %d, no template", f), func(m *Policy) { m.Sel.Family, m.Attrs.Tmpls = f, nil })
	}
	for _, n := range []uint8{32, 33, 255} {
		pol(fmt.Sprintf("prefix %d", n), func(m *Policy) { m.Sel.SrcLen = n })
		pol(fmt.Sprintf("destination prefix %d", n), func(m *Policy) { m.Sel.DstLen = n })
		pol(fmt.Sprintf("IPv6 prefix %d", n), func(m *Policy) { m.Sel.Family, m.Sel.DstLen = FamilyIPv6, n })
	}
	for _, i := range []uint32{1, 2, 8, 9, 10, 11, 15} {
		pol(fmt.Sprintf("index %d", i), func(m *Policy) { m.Index = i })
	}
	tmpl := func(name string, change func(*Tmpl)) {
		for dir := range dirCount {
			pol(fmt.Sprintf("dir %d, template %s", dir, name), func(m *Policy) { m.Dir = dir; change(&m.Attrs.Tmpls[0]) })
		}
	}
	for _, f := range []uint16{0, 7, 10} {
		tmpl(fmt.Sprintf("family %d", f), func(x *Tmpl) { x.Family = f })
		tmpl(fmt.Sprintf("family %d in transport mode", f), func(x *Tmpl) { x.Family, x.Mode = f, ModeTransport })
		tmpl(fmt.Sprintf("family %d in BEET mode", f), func(x *Tmpl) { x.Family, x.Mode = f, ModeBEET })
	}
	for _, v := range []uint8{0, 2, 3, 4, 5, 6, 255} {
		tmpl(fmt.Sprintf("mode %d", v), func(x *Tmpl) { x.Mode = v })
		tmpl(fmt.Sprintf("mode %d, optional", v), func(x *Tmpl) { x.Mode, x.Optional = v, 1 })
	}
	tmpl("optional", func(x *Tmpl) { x.Optional = 1 })
	for _, v := range []uint8{0, 17, 43, 51, 60, 108, 255} {
		tmpl(fmt.Sprintf("proto %d", v), func(x *Tmpl) { x.Proto = v })
	}
	tmpl("share 9", func(x *Tmpl) { x.Share = 9 })
	tmpl("no algorithms", func(x *Tmpl) { x.AAlgos, x.EAlgos, x.CAlgos = 0, 0, 0 })
	for _, n := range []int{6, 7} {
		pol(fmt.Sprintf("%d templates", n), func(m *Policy) {
			m.Attrs.Tmpls = nil
			for range n {
				x := baseTmpl()
				x.Mode = ModeTransport
				m.Attrs.Tmpls = append(m.Attrs.Tmpls, x)
			}
		})
	}
	pol("a transport template of another family behind a tunnel one", func(m *Policy) {
		a, b := baseTmpl(), baseTmpl()
		a.Family, b.Mode, b.Family = FamilyIPv6, ModeTransport, FamilyIPv6
		m.Attrs.Tmpls = []Tmpl{a, b}
	})
	pol("a transport template of the selector's family behind a tunnel one of another", func(m *Policy) {
		a, b := baseTmpl(), baseTmpl()
		a.Family, b.Mode = FamilyIPv6, ModeTransport
		m.Attrs.Tmpls = []Tmpl{a, b}
	})
	polB := func() []byte {
		m := basePolicy()
		m.Attrs.Tmpls = nil
		return Align8.Append(nil, m, MsgNewPolicy, flags, 1, 0)
	}
	for _, n := range []int{0, 63, 65, 127} {
		x := baseTmpl()
		b := make([]byte, 128)
		x.put(b)
		x.put(b[64:])
		add(fmt.Sprintf("NEWPOLICY templates in %d bytes", n), with(polB(), AttrTmpl, b[:n]))
	}
	pol("SEC_CTX", func(m *Policy) { m.Attrs.SecCtx = &SecCtx{Len: 8, ExtType: 8, Alg: 1, DOI: 1} })
	pol("SEC_CTX with a wrong length", func(m *Policy) { m.Attrs.SecCtx = &SecCtx{Len: 9, ExtType: 8, Alg: 1, DOI: 1} })
	pol("SEC_CTX with a wrong context length", func(m *Policy) { m.Attrs.SecCtx = &SecCtx{Len: 8, CtxLen: 1, ExtType: 8, Alg: 1, DOI: 1} })
	pol("SA_DIR 3", func(m *Policy) { m.Attrs.SADir = Some[uint8](3) })

	alloc := func(name string, change func(*AllocSPI)) {
		m := new(AllocSPI)
		m.Src, m.Dst, m.Family, m.Proto, m.Mode, m.Min, m.Max = addr("192.0.2.1"), addr("192.0.2.2"), FamilyIPv4, ProtoESP, ModeTunnel, 0x100, 0xffffffff
		change(m)
		add("ALLOCSPI "+name, Align8.Append(nil, m, MsgAllocSPI, flags, 1, 0))
	}
	alloc("good", func(*AllocSPI) {})
	for _, p := range []uint8{0, 17, 43, 51, 60, 108, 255} {
		alloc(fmt.Sprintf("proto %d", p), func(m *AllocSPI) { m.Proto = p })
		alloc(fmt.Sprintf("proto %d, 0x100 to 0x10000", p), func(m *AllocSPI) { m.Proto, m.Max = p, 0x10000 })
		alloc(fmt.Sprintf("proto %d, 0x100 to 0xffff", p), func(m *AllocSPI) { m.Proto, m.Max = p, 0xffff })
	}
	alloc("a range that is none", func(m *AllocSPI) { m.Min, m.Max = 2, 1 })
	alloc("SPI 0", func(m *AllocSPI) { m.Min, m.Max = 0, 0 })
	alloc("SPI 1", func(m *AllocSPI) { m.Min, m.Max = 1, 1 })
	for _, f := range []uint16{0, 7, 10} {
		alloc(fmt.Sprintf("family %d", f), func(m *AllocSPI) { m.Family = f })
	}
	for _, v := range []uint8{0, 5, 6, 255} {
		alloc(fmt.Sprintf("mode %d", v), func(m *AllocSPI) { m.Mode = v })
	}
	for v := range uint8(4) {
		alloc(fmt.Sprintf("SA_DIR %d", v), func(m *AllocSPI) { m.Attrs.SADir = Some(v) })
	}
	alloc("SA_PCPU 0", func(m *AllocSPI) { m.Attrs.PCPU = Some[uint32](0) })
	alloc("SA_PCPU 1048576", func(m *AllocSPI) { m.Attrs.PCPU = Some[uint32](1 << 20) })
	alloc("MARK, IF_ID, SRCADDR", func(m *AllocSPI) {
		m.Attrs.Mark, m.Attrs.IfID, m.Attrs.SrcAddr = Some(Mark{1, 1}), Some[uint32](1), Some(addr("192.0.2.9"))
	})
	alloc("selector family 7", func(m *AllocSPI) { m.Sel.Family = 7 })

	for _, typ := range []uint16{MsgDelSA, MsgGetSA} {
		for _, f := range []uint16{0, 2, 7, 10} {
			m := SAID{Dst: addr("192.0.2.2"), SPI: 1, Family: f, Proto: ProtoESP}
			add(fmt.Sprintf("%s family %d", TypeName(typ), f), m.Append(nil, typ, flags, 1, 0))
		}
		for _, p := range []uint8{0, 17, 255} {
			m := SAID{Dst: addr("192.0.2.2"), SPI: 1, Family: 2, Proto: p}
			add(fmt.Sprintf("%s proto %d", TypeName(typ), p), m.Append(nil, typ, flags, 1, 0))
			m.Attrs.SrcAddr = Some(addr("192.0.2.1"))
			add(fmt.Sprintf("%s proto %d with SRCADDR", TypeName(typ), p), m.Append(nil, typ, flags, 1, 0))
		}
	}
	for _, typ := range []uint16{MsgDelPolicy, MsgGetPolicy} {
		id := func(name string, change func(*PolicyID)) {
			m := PolicyID{Sel: SelectorOf(netip.MustParsePrefix("10.7.0.0/24"), netip.MustParsePrefix("10.8.0.0/24")), Dir: DirOut}
			change(&m)
			add(TypeName(typ)+" "+name, m.Append(nil, typ, flags, 1, 0))
		}
		id("good", func(*PolicyID) {})
		for _, d := range []uint8{0, 2, 3, 4, 255} {
			id(fmt.Sprintf("direction %d", d), func(m *PolicyID) { m.Dir = d })
			id(fmt.Sprintf("direction %d by index", d), func(m *PolicyID) { m.Dir, m.Index = d, 9 })
		}
		for _, v := range []uint8{1, 2, 255} {
			id(fmt.Sprintf("type %d", v), func(m *PolicyID) { m.Attrs.PolicyType = Some(PolicyType{Type: v}) })
		}
		for _, f := range []uint16{0, 7, 10} {
			id(fmt.Sprintf("family %d", f), func(m *PolicyID) { m.Sel.Family = f })
		}
		id("prefix 33", func(m *PolicyID) { m.Sel.SrcLen = 33 })
		id("SEC_CTX with a wrong length", func(m *PolicyID) { m.Attrs.SecCtx = &SecCtx{Len: 9, ExtType: 8, Alg: 1, DOI: 1} })
	}
	for _, p := range []uint8{0, 17, 43, 50, 51, 60, 108, 255} {
		add(fmt.Sprintf("FLUSHSA proto %d", p), (&Flush{Proto: p}).Append(nil, MsgFlushSA, flags, 1, 0))
	}
	for _, v := range []uint8{0, 1, 2, 255} {
		add(fmt.Sprintf("FLUSHPOLICY type %d", v), (&FlushPolicy{Attrs{PolicyType: Some(PolicyType{Type: v})}}).Append(nil, MsgFlushPolicy, flags, 1, 0))
	}
	ae := func(name string, typ, more uint16, change func(*AE)) {
		m := AE{Dst: addr("192.0.2.2"), SPI: 0x99, Family: 2, Proto: 50}
		change(&m)
		add(TypeName(typ)+" "+name, m.Append(nil, typ, flags|more, 1, 0))
	}
	ae("without attributes", MsgNewAE, unix.NLM_F_REPLACE, func(*AE) {})
	for i, a := range []Attrs{
		{LTime: &Lifetime{}}, {Replay: Some(Replay{})}, {ReplayESN: &ReplayESN{}}, {ReplayThresh: Some[uint32](1)}, {ETimerThresh: Some[uint32](1)},
		{Mark: Some(Mark{1, 1})},
	} {
		ae(fmt.Sprintf("%d", i), MsgNewAE, unix.NLM_F_REPLACE, func(m *AE) { m.Attrs = a })
		ae(fmt.Sprintf("%d without REPLACE", i), MsgNewAE, 0, func(m *AE) { m.Attrs = a })
	}
	for _, f := range []uint16{0, 7} {
		ae(fmt.Sprintf("family %d", f), MsgGetAE, 0, func(m *AE) { m.Family = f })
	}
	exp := func(name string, change func(*Expire)) {
		m := new(Expire)
		m.SAInfo = baseSA().SAInfo
		change(m)
		add("EXPIRE "+name, Align8.Append(nil, m, MsgExpire, flags, 1, 0))
	}
	exp("good", func(*Expire) {})
	exp("hard 2", func(m *Expire) { m.Hard = 2 })
	exp("family 7", func(m *Expire) { m.Family = 7 })
	pexp := func(name string, change func(*PolicyExpire)) {
		m := new(PolicyExpire)
		m.PolicyInfo = basePolicy().PolicyInfo
		m.Sel.Src = addr("10.99.0.0")
		change(m)
		add("POLEXPIRE "+name, Align8.Append(nil, m, MsgPolExpire, flags, 1, 0))
	}
	pexp("good", func(*PolicyExpire) {})
	for _, d := range []uint8{3, 255} {
		pexp(fmt.Sprintf("direction %d", d), func(m *PolicyExpire) { m.Dir = d })
	}
	pexp("family 7", func(m *PolicyExpire) { m.Sel.Family = 7 })
	pexp("type 2", func(m *PolicyExpire) { m.Attrs.PolicyType = Some(PolicyType{Type: 2}) })
	acq := func(name string, change func(*Acquire)) {
		m := new(Acquire)
		m.Dst, m.Src, m.Proto, m.Sel, m.Policy = addr("192.0.2.2"), addr("192.0.2.1"), 50, basePolicy().Sel, basePolicy().PolicyInfo
		m.Attrs.Tmpls = []Tmpl{baseTmpl()}
		change(m)
		add("ACQUIRE "+name, Align8.Append(nil, m, MsgAcquire, flags, 1, 0))
	}
	acq("good", func(*Acquire) {})
	acq("without template", func(m *Acquire) { m.Attrs.Tmpls = nil })
	acq("7 templates", func(m *Acquire) { m.Attrs.Tmpls = make([]Tmpl, 7) })
	acq("template family 7", func(m *Acquire) { m.Attrs.Tmpls[0].Family = 7 })
	acq("template proto 17", func(m *Acquire) { m.Attrs.Tmpls[0].Proto = 17 })
	acq("direction 3", func(m *Acquire) { m.Policy.Dir = 3 })
	acq("policy share 9", func(m *Acquire) { m.Policy.Share = 9 })
	acq("policy family 7", func(m *Acquire) { m.Policy.Sel.Family = 7 })
	acq("selector family 7", func(m *Acquire) { m.Sel.Family = 7 })
	acq("prefix 33", func(m *Acquire) { m.Policy.Sel.SrcLen = 33 })
	mig := func(name string, change func(*Migrate)) {
		m := Migrate{Sel: basePolicy().Sel, Dir: DirOut}
		m.Sel.Src = addr("10.98.0.0")
		m.Attrs.Migrates = []Move{{addr("192.0.2.2"), addr("192.0.2.1"), addr("192.0.2.3"), addr("192.0.2.1"), 50, 1, 1, 2, 2}}
		change(&m)
		add("MIGRATE "+name, m.Append(nil, MsgMigrate, flags, 1, 0))
	}
	mig("good", func(*Migrate) {})
	mig("without attribute", func(m *Migrate) { m.Attrs.Migrates = nil })
	for _, d := range []uint8{3, 255} {
		mig(fmt.Sprintf("direction %d", d), func(m *Migrate) { m.Dir = d })
	}
	mig("7 moves", func(m *Migrate) { m.Attrs.Migrates = make([]Move, 7) })
	mig("families differ", func(m *Migrate) { m.Attrs.Migrates[0].NewFamily = 10 })
	mig("old family 0", func(m *Migrate) { m.Attrs.Migrates[0].OldFamily = 0 })
	mig("nothing changes", func(m *Migrate) { m.Attrs.Migrates[0].NewDst = m.Attrs.Migrates[0].OldDst })
	mig("new destination zero", func(m *Migrate) { m.Attrs.Migrates[0].NewDst = Address{} })
	mig("proto 17", func(m *Migrate) { m.Attrs.Migrates[0].Proto = 17 })
	mig("mode 6", func(m *Migrate) { m.Attrs.Migrates[0].Mode = 6 })
	mig("twice the same", func(m *Migrate) { m.Attrs.Migrates = append(m.Attrs.Migrates, m.Attrs.Migrates[0]) })
	for v := range uint8(5) {
		add(fmt.Sprintf("SETDEFAULT in %d", v), (&Default{In: v}).Append(nil, MsgSetDefault, flags, 1, 0))
		add(fmt.Sprintf("SETDEFAULT fwd %d", v), (&Default{Fwd: v}).Append(nil, MsgSetDefault, flags, 1, 0))
		add(fmt.Sprintf("SETDEFAULT out %d", v), (&Default{Out: v}).Append(nil, MsgSetDefault, flags, 1, 0))
	}
	for _, th := range []Thresh{{32, 32}, {33, 32}, {32, 33}, {128, 128}, {129, 128}, {128, 129}} {
		add(fmt.Sprintf("NEWSPDINFO IPv4 %d %d", th.Local, th.Remote), (&SPDInfo{Thresh4: Some(th)}).Append(nil, MsgNewSPDInfo, flags, 1, 0))
		add(fmt.Sprintf("NEWSPDINFO IPv6 %d %d", th.Local, th.Remote), (&SPDInfo{Thresh6: Some(th)}).Append(nil, MsgNewSPDInfo, flags, 1, 0))
	}
	for t := uint16(1); t <= spdAttrMax+1; t++ {
		add(fmt.Sprintf("NEWSPDINFO type %d of 1 byte", t), with((&SPDInfo{}).Append(nil, MsgNewSPDInfo, flags, 1, 0), t, []byte{1}))
	}
	add("NEWSPDINFO empty", (&SPDInfo{}).Append(nil, MsgNewSPDInfo, flags, 1, 0))
	for typ := MsgMin; typ <= MsgMax+2; typ++ {
		for _, n := range []int{0, 1, 2, 3, 4} {
			b, start := begin(nil, typ, flags, 1, 0)
			b, _ = grow(b, n)
			add(fmt.Sprintf("%s body of %d bytes", TypeName(typ), n), finish(b, start)[:HeaderLen+n])
		}
	}
	for _, r := range []struct {
		typ  uint16
		body Body
	}{{MsgReport, &Report{}}, {MsgMapping, &Mapping{}}, {MsgNewSADInfo, &SADInfo{}}} {
		add(TypeName(r.typ)+" as a request", Align8.Append(nil, r.body, r.typ, flags, 1, 0))
	}
	return all
}

// ask sends a request to the kernel and gives its errno and the offset that it blames.
func ask(t *testing.T, fd int, b []byte) (unix.Errno, uint32) {
	t.Helper()
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		for m := range Messages(buf[:n]) {
			if m.Type != typeError {
				continue
			}
			if err := DecodeReply(m); err != nil {
				e := AsError(err)
				return e.Errno, e.Attr
			}
			return 0, 0
		}
	}
}

func recordRefusals(t *testing.T) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# What Linux 6.18 without ESP answers to the requests of refusals_test.go, which writes this with -record: errno, attribute, request.\n")
	for _, r := range requests() {
		for _, flush := range [][]byte{
			(&Flush{Proto: ProtoIPsec}).Append(nil, MsgFlushSA, unix.NLM_F_REQUEST|unix.NLM_F_ACK, 9, 0),
			(&FlushPolicy{}).Append(nil, MsgFlushPolicy, unix.NLM_F_REQUEST|unix.NLM_F_ACK, 9, 0),
		} {
			ask(t, fd, flush)
		}
		errno, at := ask(t, fd, r.b)
		fmt.Fprintf(&out, "%s %d %s\n", errnoName(errno), at, r.name)
	}
	if err := os.WriteFile(refusalsFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// errnoName is what stands in the recorded files: architectures number some errnos differently.
func errnoName(e unix.Errno) string {
	if e == 0 {
		return "OK"
	}
	return unix.ErrnoName(e)
}

// answer is a row of a recorded file.
type answer struct {
	errno unix.Errno
	attr  uint32
}

func answers(t *testing.T, file string) map[string]answer {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string]answer{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		fields := strings.SplitN(s.Text(), " ", 3)
		var a answer
		if _, err := fmt.Sscan(fields[1], &a.attr); err != nil {
			t.Fatalf("%s: %q: %v", file, s.Text(), err)
		}
		for _, e := range []unix.Errno{0, unix.ENOENT, unix.ESRCH, unix.EINVAL, unix.ERANGE, unix.ENOSYS, unix.EPROTONOSUPPORT} {
			if errnoName(e) == fields[0] {
				a.errno = e
			}
		}
		if errnoName(a.errno) != fields[0] {
			t.Fatalf("%s: %q: no such errno", file, s.Text())
		}
		all[fields[2]] = a
	}
	return all
}

// onlyState reports whether a kernel that answers so has found nothing wrong with the request itself, only that an SA, a policy,
// or support for a protocol or mode is not there.
func (a answer) onlyState() bool {
	return a.errno == unix.ESRCH || a.errno == unix.ENOENT || a.errno == unix.EPROTONOSUPPORT
}

// TestRefusals proves that what Linux 6.18 refuses of requests is refused with the same errno, and blamed on the same attribute
// where it blames one; and that what it takes is taken. That kernel has no ESP and stops there; what a kernel finds later is what
// Linux 6.1 found, except where a request has what 6.1 does not know.
func TestRefusals(t *testing.T) {
	if *record {
		recordRefusals(t)
	}
	new, old := answers(t, refusalsFile), answers(t, "testdata/refusals-linux-6.1.txt")
	refused, taken := 0, 0
	all := requests()
	names := map[string]bool{}
	for _, r := range all {
		if names[r.name] {
			t.Errorf("%s: twice", r.name)
		}
		names[r.name] = true
		want, ok := new[r.name]
		if !ok {
			t.Errorf("%s: no answer was recorded", r.name)
			continue
		}
		switch {
		case r.name == "NEWSA AEAD alone":
			want = answer{} // that kernel has no AEAD at all, and says so
		case want.errno == unix.EPROTONOSUPPORT && !unknownTo61(r.name):
			if want, ok = old[r.name]; !ok {
				t.Errorf("%s: no answer of 6.1 was recorded", r.name)
			}
		}
		if want.onlyState() || want.errno == unix.EPROTONOSUPPORT {
			want = answer{}
		}
		var got Error
		for m, err := range Messages(r.b) {
			if err != nil {
				t.Fatal(err)
			}
			body, err := DecodeRequest(Align8, m)
			if err != nil {
				got = *AsError(err)
			}
			if (body == nil) == (err == nil) {
				t.Errorf("%s: body %v and error %v", r.name, body, err)
			}
		}
		if got.Errno != want.errno || got.Attr != want.attr && want.attr != 0 {
			t.Errorf("%s: %s %q at %d; the kernel says %s at %d", r.name, errnoName(got.Errno), got.Msg, got.Attr, errnoName(want.errno), want.attr)
		}
		if got.Errno == 0 {
			taken++
		} else {
			refused++
		}
	}
	if len(names) != len(new) {
		t.Errorf("%d answers to %d requests", len(new), len(names))
	}
	if refused < 400 || taken < 300 {
		t.Errorf("only %d were refused and %d taken", refused, taken)
	}
}

// unknownTo61 reports whether a request has what Linux 6.1 does not know: SA_DIR out, which lets extended sequence numbers do without
// a window, IP-TFS, and packet offload.
func unknownTo61(name string) bool {
	for _, what := range []string{"direction 2, REPLAY_ESN_VAL", "mode 5", "offload flags"} {
		if strings.Contains(name, what) {
			return true
		}
	}
	return false
}
