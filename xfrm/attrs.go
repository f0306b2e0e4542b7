package xfrm

import (
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"culvert/offload"
)

// Opt is a value that may be absent.
type Opt[T any] struct {
	V   T
	Set bool
}

// Some is a value that is there.
func Some[T any](v T) Opt[T] { return Opt[T]{v, true} }

// Mark is a firewall mark and the bits of it that count.
type Mark struct{ Value, Mask uint32 }

// Replay is an SA's place in its sequence with a window of at most 32 packets.
type Replay struct {
	Oseq   uint32 // the last sequence number sent
	Seq    uint32 // the highest one received: the window's right edge
	Bitmap uint32 // bit n: Seq-n has been received
}

// ReplayESN is the same for wider windows, and with the high halves of extended sequence numbers (RFC 4303 section 2.2.1).
type ReplayESN struct {
	Oseq, Seq     uint32
	OseqHi, SeqHi uint32
	Window        uint32   // packets, at most 32 for each word of the bitmap
	Words         uint32   // 32-bit words of the bitmap, at most 128
	Bitmap        []uint32 // bit n%32 of word n/32: the number n past a multiple of the bitmap's length has been received; or left out: all zeros
}

// maxBitmap is the most words of a bitmap: 4096 packets.
const maxBitmap = 4096 / 32

// SecCtx is a label of a security module.
type SecCtx struct {
	Len, ExtType uint16
	Alg, DOI     uint8
	CtxLen       uint16
	Ctx          []byte // as long as the attribute has it
}

// Encap is what stands between the outer IP header and ESP.
type Encap struct {
	Type             uint16 // EncapUDP
	SrcPort, DstPort uint16
	OrigAddr         Address // the address before NAT, in transport mode (RFC 3948 section 3.1.2)

	pad [2]byte // the kernel keeps and gives back what a client has in it, and iproute2 does not clear it
}

// Tmpl is what a policy wants an SA to be.
type Tmpl struct {
	Dst      Address // of the outer header, in tunnel mode
	SPI      uint32  // 0: any
	Proto    uint8
	Family   uint16
	Src      Address
	Reqid    uint32
	Mode     uint8
	Share    uint8
	Optional uint8 // not 0: if there is no such SA, then without
	AAlgos   uint32
	EAlgos   uint32
	CAlgos   uint32
}

// Move is what Migrate changes in every SA that fits.
type Move struct {
	OldDst, OldSrc Address
	NewDst, NewSrc Address
	Proto, Mode    uint8
	Reqid          uint32
	OldFamily      uint16
	NewFamily      uint16
}

// KMAddress is where IKE is to speak to the peer after a Migrate.
type KMAddress struct {
	Local, Remote Address
	Reserved      uint32
	Family        uint16
}

// AddressFilter limits a dump of SAs to those between two networks.
type AddressFilter struct {
	Src, Dst       Address
	Family         uint16
	SrcLen, DstLen uint8 // bits
}

// Offload asks a network card to do the work.
type Offload struct {
	IfIndex int32
	Flags   uint8 // OffloadInbound and so on
}

// PolicyType tells main policies and sub-policies apart.
type PolicyType struct {
	Type      uint8
	Reserved1 uint16
	Reserved2 uint8
}

// IPTFS are the parameters of ModeIPTFS (RFC 9347).
type IPTFS struct {
	DropTime      Opt[uint32] // µs, inbound
	ReorderWindow Opt[uint16] // packets, inbound
	DontFrag      bool        // outbound
	InitDelay     Opt[uint32] // µs, outbound
	MaxQSize      Opt[uint32] // bytes, outbound
	PktSize       Opt[uint32] // bytes of the outer packet, outbound; 0: the path MTU
}

// Attrs are the attributes of a message. Any message may carry any of them; those that mean nothing to it are ignored.
//
// A message that was decoded is encoded with its attributes in the order in which they came, also the values that a later one
// of the same type supersedes. Canonical forgets that order. What is not from a message is in the order of the kernel's own.
type Attrs struct {
	Auth      *Algo // the ICV is as long as the kernel's default for the name: 96 bits for sha256
	Crypt     *Algo
	Comp      *Algo
	AuthTrunc *Algo // Algo.ICVBits says how long the ICV is; it wins over Auth
	AEAD      *Algo

	Encap     *Encap
	Tmpls     []Tmpl
	SAInfo    *SAInfo     // in MsgDelSA's notification: what was deleted
	Policy    *PolicyInfo // in MsgDelPolicy's
	SecCtx    *SecCtx
	LTime     *Lifetime
	Replay    Opt[Replay]
	ReplayESN *ReplayESN
	Migrates  []Move
	KMAddress *KMAddress
	Offload   Opt[Offload]
	Filter    *AddressFilter

	Mark         Opt[Mark]
	SrcAddr      Opt[Address]
	CoAddr       Opt[Address]
	LastUsed     Opt[uint64] // seconds since 1970
	PolicyType   Opt[PolicyType]
	ReplayThresh Opt[uint32] // packets between two notifications
	ETimerThresh Opt[uint32] // tenths of a second between two notifications
	TFCPad       Opt[uint32] // bytes (RFC 4303 section 2.7)
	ExtraFlags   Opt[uint32] // ExtraDontEncapDSCP and so on
	ProtoFilter  Opt[uint8]  // of a dump
	SetMark      Opt[uint32]
	SetMarkMask  Opt[uint32]
	IfID         Opt[uint32]
	MTimerThresh Opt[uint32] // seconds between two MsgMapping
	SADir        Opt[uint8]  // SADirIn or SADirOut
	NATKeepalive Opt[uint32] // seconds
	PCPU         Opt[uint32] // the processor
	IPTFS        IPTFS

	// Layout is set by decoding. It is exported so that package fmt asks its Format how to print it.
	Layout *Layout `json:"-"`
}

// Layout remembers what a message's attributes were beside their values: their order, and superseded and unknown ones.
type Layout struct {
	order []uint16            // attribute types with their flags
	raw   map[int]offload.Key // index into order: superseded and unknown ones; superseded ones may hold keys
	short int                 // bytes of padding that the message lacks at its end
	buf   [16]uint16
}

// Format writes "***": superseded attributes may hold keys.
func (*Layout) Format(f fmt.State, _ rune) { io.WriteString(f, "***") }

// Canonical forgets how the message that the attributes came in was laid out, and zeroes superseded keys: encoded again, the
// attributes stand in the order of the kernel's messages, each once.
func (a *Attrs) Canonical() {
	if a.Layout != nil {
		for _, r := range a.Layout.raw {
			r.Zero()
		}
		a.Layout = nil
	}
}

// Wipe zeroes all keys, superseded ones too. The attributes cannot be used afterwards.
func (a *Attrs) Wipe() {
	for _, k := range []*Algo{a.Auth, a.Crypt, a.AuthTrunc, a.AEAD, a.Comp} {
		if k != nil {
			k.Key.Zero()
		}
	}
	a.Canonical()
}

// canonicalOrder is the order in which the kernel's messages have attributes.
var canonicalOrder = [...]uint16{
	AttrSA, AttrPolicy, AttrTmpl, AttrKMAddress, AttrSecCtx, AttrPolicyType, AttrMigrate,
	AttrSAExtraFlags, AttrCoAddr, AttrLastUsed, AttrAlgAEAD, AttrAlgAuth, AttrAlgAuthTrunc, AttrAlgCrypt, AttrAlgComp, AttrEncap, AttrTFCPad,
	AttrMark, AttrSetMark, AttrSetMarkMask, AttrReplayESNVal, AttrReplayVal, AttrLTimeVal, AttrReplayThresh, AttrETimerThresh,
	AttrOffloadDev, AttrIfID, AttrSrcAddr,
	AttrIPTFSDropTime, AttrIPTFSReorder, AttrIPTFSDontFrag, AttrIPTFSInitDelay, AttrIPTFSMaxQSize, AttrIPTFSPktSize,
	AttrSAPCPU, AttrSADir, AttrNATKeepalive, AttrMTimerThresh, AttrProto, AttrAddressFilter,
}

// aeOrder is the order in MsgNewAE, where the mark comes later.
var aeOrder = [...]uint16{
	AttrReplayESNVal, AttrReplayVal, AttrLTimeVal, AttrReplayThresh, AttrETimerThresh, AttrMark, AttrIfID, AttrSAPCPU, AttrSADir,
}

// strictFrom is the first of the types whose length must be exact. Those before may be longer than they need.
const strictFrom = AttrSADir

// attrTable has a row for each attribute type: its name and the fewest bytes that it must have.
var attrTable = [AttrMax + 1]struct {
	name string
	min  int
}{
	AttrUnspec:         {"UNSPEC", 0},
	AttrAlgAuth:        {"ALG_AUTH", sizeAlgo},
	AttrAlgCrypt:       {"ALG_CRYPT", sizeAlgo},
	AttrAlgComp:        {"ALG_COMP", sizeAlgo},
	AttrEncap:          {"ENCAP", sizeEncap},
	AttrTmpl:           {"TMPL", sizeTmpl},
	AttrSA:             {"SA", 0}, // by ABI
	AttrPolicy:         {"POLICY", 0},
	AttrSecCtx:         {"SEC_CTX", sizeSecCtx},
	AttrLTimeVal:       {"LTIME_VAL", sizeLifetimeCur},
	AttrReplayVal:      {"REPLAY_VAL", sizeReplay},
	AttrReplayThresh:   {"REPLAY_THRESH", 4},
	AttrETimerThresh:   {"ETIMER_THRESH", 4},
	AttrSrcAddr:        {"SRCADDR", sizeAddress},
	AttrCoAddr:         {"COADDR", sizeAddress},
	AttrLastUsed:       {"LASTUSED", 8},
	AttrPolicyType:     {"POLICY_TYPE", sizePolicyType},
	AttrMigrate:        {"MIGRATE", sizeMigrate},
	AttrAlgAEAD:        {"ALG_AEAD", sizeAlgoTrunc},
	AttrKMAddress:      {"KMADDRESS", sizeKMAddress},
	AttrAlgAuthTrunc:   {"ALG_AUTH_TRUNC", sizeAlgoTrunc},
	AttrMark:           {"MARK", sizeMark},
	AttrTFCPad:         {"TFCPAD", 4},
	AttrReplayESNVal:   {"REPLAY_ESN_VAL", sizeReplayESN},
	AttrSAExtraFlags:   {"SA_EXTRA_FLAGS", 4},
	AttrProto:          {"PROTO", 1},
	AttrAddressFilter:  {"ADDRESS_FILTER", sizeFilter},
	AttrPad:            {"PAD", 0},
	AttrOffloadDev:     {"OFFLOAD_DEV", sizeOffload},
	AttrSetMark:        {"SET_MARK", 4},
	AttrSetMarkMask:    {"SET_MARK_MASK", 4},
	AttrIfID:           {"IF_ID", 4},
	AttrMTimerThresh:   {"MTIMER_THRESH", 4},
	AttrSADir:          {"SA_DIR", 1},
	AttrNATKeepalive:   {"NAT_KEEPALIVE_INTERVAL", 4},
	AttrSAPCPU:         {"SA_PCPU", 4},
	AttrIPTFSDropTime:  {"IPTFS_DROP_TIME", 4},
	AttrIPTFSReorder:   {"IPTFS_REORDER_WINDOW", 2},
	AttrIPTFSDontFrag:  {"IPTFS_DONT_FRAG", 0},
	AttrIPTFSInitDelay: {"IPTFS_INIT_DELAY", 4},
	AttrIPTFSMaxQSize:  {"IPTFS_MAX_QSIZE", 4},
	AttrIPTFSPktSize:   {"IPTFS_PKT_SIZE", 4},
}

// AttrName names an attribute type: "ALG_CRYPT", "attribute 99".
func AttrName(t uint16) string {
	if t <= AttrMax {
		return attrTable[t].name
	}
	return fmt.Sprintf("attribute %d", t)
}

// minLen is the fewest bytes that an attribute must have.
func (abi ABI) minLen(t uint16) int {
	switch t {
	case AttrSA:
		return abi.sizeSAInfo()
	case AttrPolicy:
		return abi.sizePolicyInfo()
	}
	return attrTable[t].min
}

// checkLen checks an attribute's length: too short is ERANGE, or, where it must be exact, too short or too long is EINVAL; a flag
// with a value is ERANGE.
func (abi ABI) checkLen(x attribute, off int) *Error {
	n, want := len(x.b), abi.minLen(x.typ)
	errno := unix.ERANGE
	switch {
	case x.typ < strictFrom && n >= want, n == want:
		return nil
	case x.typ >= strictFrom && x.typ != AttrIPTFSDontFrag:
		errno = unix.EINVAL
	}
	return errAt(errno, off, "%s has %d bytes and needs %d", AttrName(x.typ), n, want)
}

// decode reads all attributes of b, which starts at byte base of the message. The last one of a type wins; those with types that
// are not known are kept and ignored. What it reads it copies.
func (a *Attrs) decode(abi ABI, b []byte, base int) *Error {
	var seen [AttrMax + 1]uint16 // 1 + index into order
	var at [AttrMax + 1][]byte
	var w *Layout
	for off, x := range attributes(b) {
		if w == nil {
			w = new(Layout)
			w.order = w.buf[:0]
		}
		i := len(w.order)
		w.order = append(w.order, x.wire)
		w.short = max(0, off+align(attrHeaderLen+len(x.b))-len(b))
		if x.typ == AttrUnspec || x.typ > AttrMax || x.typ == AttrPad {
			w.keep(i, x.b)
			continue
		}
		if e := abi.checkLen(x, base+off); e != nil {
			return e
		}
		if before := seen[x.typ]; before != 0 {
			w.keep(int(before)-1, at[x.typ])
		}
		seen[x.typ], at[x.typ] = uint16(i+1), x.b
		if e := a.decodeOne(abi, x.typ, x.b, base+off); e != nil {
			return e
		}
	}
	a.Layout = w
	return nil
}

func (w *Layout) keep(i int, b []byte) {
	if w.raw == nil {
		w.raw = make(map[int]offload.Key)
	}
	w.raw[i] = append(offload.Key{}, b...)
}

func (a *Attrs) decodeOne(abi ABI, t uint16, b []byte, off int) (e *Error) {
	u32 := func() Opt[uint32] { return Some(host.Uint32(b)) }
	switch t {
	case AttrAlgAuth:
		a.Auth, e = decodeAlgo(t, b, off)
	case AttrAlgCrypt:
		a.Crypt, e = decodeAlgo(t, b, off)
	case AttrAlgComp:
		a.Comp, e = decodeAlgo(t, b, off)
	case AttrAlgAuthTrunc:
		a.AuthTrunc, e = decodeAlgo(t, b, off)
	case AttrAlgAEAD:
		a.AEAD, e = decodeAlgo(t, b, off)
	case AttrEncap:
		a.Encap = &Encap{host.Uint16(b), net.Uint16(b[2:]), net.Uint16(b[4:]), Address(b[8:]), [2]byte(b[6:])}
	case AttrTmpl:
		a.Tmpls = make([]Tmpl, len(b)/sizeTmpl)
		for i := range a.Tmpls {
			a.Tmpls[i].get(b[i*sizeTmpl:])
		}
	case AttrSA:
		a.SAInfo = new(SAInfo)
		a.SAInfo.get(b)
	case AttrPolicy:
		a.Policy = new(PolicyInfo)
		a.Policy.get(b)
	case AttrSecCtx:
		a.SecCtx = &SecCtx{host.Uint16(b), host.Uint16(b[2:]), b[4], b[5], host.Uint16(b[6:]), slices.Clone(b[sizeSecCtx:])}
	case AttrLTimeVal:
		a.LTime = new(Lifetime)
		a.LTime.get(b)
	case AttrReplayVal:
		a.Replay = Some(Replay{host.Uint32(b), host.Uint32(b[4:]), host.Uint32(b[8:])})
	case AttrReplayESNVal:
		a.ReplayESN, e = decodeReplayESN(b, off)
	case AttrReplayThresh:
		a.ReplayThresh = u32()
	case AttrETimerThresh:
		a.ETimerThresh = u32()
	case AttrSrcAddr:
		a.SrcAddr = Some(Address(b))
	case AttrCoAddr:
		a.CoAddr = Some(Address(b))
	case AttrLastUsed:
		a.LastUsed = Some(host.Uint64(b))
	case AttrPolicyType:
		a.PolicyType = Some(PolicyType{b[0], host.Uint16(b[2:]), b[4]})
	case AttrMigrate:
		a.Migrates = make([]Move, len(b)/sizeMigrate)
		for i := range a.Migrates {
			a.Migrates[i].get(b[i*sizeMigrate:])
		}
	case AttrKMAddress:
		a.KMAddress = &KMAddress{Address(b), Address(b[16:]), host.Uint32(b[32:]), host.Uint16(b[36:])}
	case AttrMark:
		a.Mark = Some(Mark{host.Uint32(b), host.Uint32(b[4:])})
	case AttrTFCPad:
		a.TFCPad = u32()
	case AttrSAExtraFlags:
		a.ExtraFlags = u32()
	case AttrProto:
		a.ProtoFilter = Some(b[0])
	case AttrAddressFilter:
		a.Filter = &AddressFilter{Address(b), Address(b[16:]), host.Uint16(b[32:]), b[34], b[35]}
	case AttrOffloadDev:
		a.Offload = Some(Offload{int32(host.Uint32(b)), b[4]})
	case AttrSetMark:
		a.SetMark = u32()
	case AttrSetMarkMask:
		a.SetMarkMask = u32()
	case AttrIfID:
		a.IfID = u32()
	case AttrMTimerThresh:
		a.MTimerThresh = u32()
	case AttrSADir:
		if b[0] != SADirIn && b[0] != SADirOut {
			return errAt(unix.ERANGE, off, "SA_DIR %d; inbound is 1, outbound 2", b[0])
		}
		a.SADir = Some(b[0])
	case AttrNATKeepalive:
		a.NATKeepalive = u32()
	case AttrSAPCPU:
		a.PCPU = u32()
	case AttrIPTFSDropTime:
		a.IPTFS.DropTime = u32()
	case AttrIPTFSReorder:
		a.IPTFS.ReorderWindow = Some(host.Uint16(b))
	case AttrIPTFSDontFrag:
		a.IPTFS.DontFrag = true
	case AttrIPTFSInitDelay:
		a.IPTFS.InitDelay = u32()
	case AttrIPTFSMaxQSize:
		a.IPTFS.MaxQSize = u32()
	case AttrIPTFSPktSize:
		a.IPTFS.PktSize = u32()
	}
	return e
}

// append appends all attributes that are set.
func (a *Attrs) append(dst []byte, abi ABI) []byte { return a.appendInOrder(dst, abi, nil) }

// appendInOrder is append with those in first, as far as they are set, before the others.
func (a *Attrs) appendInOrder(dst []byte, abi ABI, first []uint16) []byte {
	var done uint64
	last := -1 // where the last one of Layout starts
	if w := a.Layout; w != nil {
		for i, wt := range w.order {
			before := len(dst)
			if raw, ok := w.raw[i]; ok {
				dst = appendAttrBytes(dst, wt, raw)
			} else {
				t := wt & attrTypeMask
				done |= 1 << t
				dst = a.appendOne(dst, abi, t, wt)
			}
			if len(dst) > before {
				last = before
			}
		}
	}
	n := len(dst)
	for _, t := range first {
		if done&(1<<t) == 0 {
			done |= 1 << t
			dst = a.appendOne(dst, abi, t, t)
		}
	}
	for _, t := range canonicalOrder {
		if done&(1<<t) == 0 {
			dst = a.appendOne(dst, abi, t, t)
		}
	}
	if w := a.Layout; w != nil && len(dst) == n && (len(w.order) == 0 || last >= 0 && padding(dst[last:]) == w.short) {
		dst = dst[:n-w.short] // finish pads the message again, without counting it
	}
	return dst
}

// padding is the number of bytes behind the value of the attribute that b is.
func padding(b []byte) int { return len(b) - int(host.Uint16(b)) }

// appendOne appends the attribute t if it is set, with wt as its type.
func (a *Attrs) appendOne(dst []byte, abi ABI, t, wt uint16) []byte {
	u32 := func(v Opt[uint32]) []byte {
		if !v.Set {
			return dst
		}
		return appendAttrU32(dst, wt, v.V)
	}
	u8 := func(v Opt[uint8]) []byte {
		if !v.Set {
			return dst
		}
		dst, p := appendAttr(dst, wt, 1)
		p[0] = v.V
		return dst
	}
	addr := func(v Opt[Address]) []byte {
		if !v.Set {
			return dst
		}
		return appendAttrBytes(dst, wt, v.V[:])
	}
	var p []byte
	switch t {
	case AttrAlgAuth:
		return a.Auth.append(dst, wt)
	case AttrAlgCrypt:
		return a.Crypt.append(dst, wt)
	case AttrAlgComp:
		return a.Comp.append(dst, wt)
	case AttrAlgAuthTrunc:
		return a.AuthTrunc.append(dst, wt)
	case AttrAlgAEAD:
		return a.AEAD.append(dst, wt)
	case AttrEncap:
		if v := a.Encap; v != nil {
			dst, p = appendAttr(dst, wt, sizeEncap)
			host.PutUint16(p, v.Type)
			net.PutUint16(p[2:], v.SrcPort)
			net.PutUint16(p[4:], v.DstPort)
			copy(p[6:], v.pad[:])
			copy(p[8:], v.OrigAddr[:])
		}
	case AttrTmpl:
		if len(a.Tmpls) != 0 {
			dst, p = appendAttr(dst, wt, sizeTmpl*len(a.Tmpls))
			for i := range a.Tmpls {
				a.Tmpls[i].put(p[i*sizeTmpl:])
			}
		}
	case AttrSA:
		if v := a.SAInfo; v != nil {
			dst, p = appendAttr(dst, wt, abi.sizeSAInfo())
			v.put(p)
		}
	case AttrPolicy:
		if v := a.Policy; v != nil {
			dst, p = appendAttr(dst, wt, abi.sizePolicyInfo())
			v.put(p)
		}
	case AttrSecCtx:
		if v := a.SecCtx; v != nil {
			dst, p = appendAttr(dst, wt, sizeSecCtx+len(v.Ctx))
			host.PutUint16(p, v.Len)
			host.PutUint16(p[2:], v.ExtType)
			p[4], p[5] = v.Alg, v.DOI
			host.PutUint16(p[6:], v.CtxLen)
			copy(p[8:], v.Ctx)
		}
	case AttrLTimeVal:
		if v := a.LTime; v != nil {
			dst, p = appendAttr(dst, wt, sizeLifetimeCur)
			v.put(p)
		}
	case AttrReplayVal:
		if v := a.Replay; v.Set {
			dst, p = appendAttr(dst, wt, sizeReplay)
			host.PutUint32(p, v.V.Oseq)
			host.PutUint32(p[4:], v.V.Seq)
			host.PutUint32(p[8:], v.V.Bitmap)
		}
	case AttrReplayESNVal:
		if v := a.ReplayESN; v != nil {
			// Words and Bitmap of different lengths would be refused by every reader: the bitmap is left out then.
			bitmap := v.Bitmap
			if len(bitmap) != int(v.Words) {
				bitmap = nil
			}
			dst, p = appendAttr(dst, wt, sizeReplayESN+4*len(bitmap))
			for i, x := range [...]uint32{v.Words, v.Oseq, v.Seq, v.OseqHi, v.SeqHi, v.Window} {
				host.PutUint32(p[4*i:], x)
			}
			for i, x := range bitmap {
				host.PutUint32(p[sizeReplayESN+4*i:], x)
			}
		}
	case AttrReplayThresh:
		return u32(a.ReplayThresh)
	case AttrETimerThresh:
		return u32(a.ETimerThresh)
	case AttrSrcAddr:
		return addr(a.SrcAddr)
	case AttrCoAddr:
		return addr(a.CoAddr)
	case AttrLastUsed:
		if v := a.LastUsed; v.Set {
			dst, p = appendAttr(dst, wt, 8)
			host.PutUint64(p, v.V)
		}
	case AttrPolicyType:
		if v := a.PolicyType; v.Set {
			dst, p = appendAttr(dst, wt, sizePolicyType)
			p[0], p[4] = v.V.Type, v.V.Reserved2
			host.PutUint16(p[2:], v.V.Reserved1)
		}
	case AttrMigrate:
		if len(a.Migrates) != 0 {
			dst, p = appendAttr(dst, wt, sizeMigrate*len(a.Migrates))
			for i := range a.Migrates {
				a.Migrates[i].put(p[i*sizeMigrate:])
			}
		}
	case AttrKMAddress:
		if v := a.KMAddress; v != nil {
			dst, p = appendAttr(dst, wt, sizeKMAddress)
			copy(p, v.Local[:])
			copy(p[16:], v.Remote[:])
			host.PutUint32(p[32:], v.Reserved)
			host.PutUint16(p[36:], v.Family)
		}
	case AttrMark:
		if v := a.Mark; v.Set {
			dst, p = appendAttr(dst, wt, sizeMark)
			host.PutUint32(p, v.V.Value)
			host.PutUint32(p[4:], v.V.Mask)
		}
	case AttrTFCPad:
		return u32(a.TFCPad)
	case AttrSAExtraFlags:
		return u32(a.ExtraFlags)
	case AttrProto:
		return u8(a.ProtoFilter)
	case AttrAddressFilter:
		if v := a.Filter; v != nil {
			dst, p = appendAttr(dst, wt, sizeFilter)
			copy(p, v.Src[:])
			copy(p[16:], v.Dst[:])
			host.PutUint16(p[32:], v.Family)
			p[34], p[35] = v.SrcLen, v.DstLen
		}
	case AttrOffloadDev:
		if v := a.Offload; v.Set {
			dst, p = appendAttr(dst, wt, sizeOffload)
			host.PutUint32(p, uint32(v.V.IfIndex))
			p[4] = v.V.Flags
		}
	case AttrSetMark:
		return u32(a.SetMark)
	case AttrSetMarkMask:
		return u32(a.SetMarkMask)
	case AttrIfID:
		return u32(a.IfID)
	case AttrMTimerThresh:
		return u32(a.MTimerThresh)
	case AttrSADir:
		return u8(a.SADir)
	case AttrNATKeepalive:
		return u32(a.NATKeepalive)
	case AttrSAPCPU:
		return u32(a.PCPU)
	case AttrIPTFSDropTime:
		return u32(a.IPTFS.DropTime)
	case AttrIPTFSReorder:
		if v := a.IPTFS.ReorderWindow; v.Set {
			dst, p = appendAttr(dst, wt, 2)
			host.PutUint16(p, v.V)
		}
	case AttrIPTFSDontFrag:
		if a.IPTFS.DontFrag {
			dst, _ = appendAttr(dst, wt, 0)
		}
	case AttrIPTFSInitDelay:
		return u32(a.IPTFS.InitDelay)
	case AttrIPTFSMaxQSize:
		return u32(a.IPTFS.MaxQSize)
	case AttrIPTFSPktSize:
		return u32(a.IPTFS.PktSize)
	}
	return dst
}

// decodeReplayESN takes a bitmap that is there whole or not at all, as the kernel does.
func decodeReplayESN(b []byte, off int) (*ReplayESN, *Error) {
	words := host.Uint32(b)
	if words > maxBitmap || len(b) < sizeReplayESN+4*int(words) && len(b) != sizeReplayESN {
		return nil, errAt(unix.EINVAL, off, "REPLAY_ESN_VAL announces a bitmap of %d words, at most %d, in %d bytes", words, maxBitmap, len(b))
	}
	r := &ReplayESN{
		Oseq: host.Uint32(b[4:]), Seq: host.Uint32(b[8:]), OseqHi: host.Uint32(b[12:]), SeqHi: host.Uint32(b[16:]),
		Window: host.Uint32(b[20:]), Words: words,
	}
	if words > 0 && len(b) > sizeReplayESN {
		r.Bitmap = make([]uint32, words)
	}
	for i := range r.Bitmap {
		r.Bitmap[i] = host.Uint32(b[sizeReplayESN+4*i:])
	}
	return r, nil
}

func (t *Tmpl) get(b []byte) {
	*t = Tmpl{
		Dst: Address(b), SPI: net.Uint32(b[16:]), Proto: b[20], Family: host.Uint16(b[24:]), Src: Address(b[28:]),
		Reqid: host.Uint32(b[44:]), Mode: b[48], Share: b[49], Optional: b[50],
		AAlgos: host.Uint32(b[52:]), EAlgos: host.Uint32(b[56:]), CAlgos: host.Uint32(b[60:]),
	}
}

func (t *Tmpl) put(b []byte) {
	copy(b, t.Dst[:])
	net.PutUint32(b[16:], t.SPI)
	b[20] = t.Proto
	host.PutUint16(b[24:], t.Family)
	copy(b[28:], t.Src[:])
	host.PutUint32(b[44:], t.Reqid)
	b[48], b[49], b[50] = t.Mode, t.Share, t.Optional
	host.PutUint32(b[52:], t.AAlgos)
	host.PutUint32(b[56:], t.EAlgos)
	host.PutUint32(b[60:], t.CAlgos)
}

func (m *Move) get(b []byte) {
	*m = Move{
		OldDst: Address(b), OldSrc: Address(b[16:]), NewDst: Address(b[32:]), NewSrc: Address(b[48:]),
		Proto: b[64], Mode: b[65], Reqid: host.Uint32(b[68:]), OldFamily: host.Uint16(b[72:]), NewFamily: host.Uint16(b[74:]),
	}
}

func (m *Move) put(b []byte) {
	copy(b, m.OldDst[:])
	copy(b[16:], m.OldSrc[:])
	copy(b[32:], m.NewDst[:])
	copy(b[48:], m.NewSrc[:])
	b[64], b[65] = m.Proto, m.Mode
	host.PutUint32(b[68:], m.Reqid)
	host.PutUint16(b[72:], m.OldFamily)
	host.PutUint16(b[74:], m.NewFamily)
}

// PolicyKind is the policy's type, PolicyMain where none is said.
func (a *Attrs) PolicyKind() uint8 { return a.PolicyType.V.Type }
