package xfrm

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Limits are when an SA or a policy ends; Inf is never for bytes and packets, 0 is never for times.
type Limits struct {
	SoftBytes, HardBytes     uint64
	SoftPackets, HardPackets uint64
	SoftAdd, HardAdd         uint64 // seconds since it was added
	SoftUse, HardUse         uint64 // seconds since it was first used
}

// Lifetime is how far an SA or a policy has come.
type Lifetime struct {
	Bytes, Packets uint64
	AddTime        uint64 // seconds since 1970
	UseTime        uint64 // seconds since 1970, of the first use for an SA and of the last for a policy; 0: never
}

// Stats count what an SA refused.
type Stats struct {
	ReplayWindow    uint32 // packets left of the window
	Replay          uint32 // packets seen twice
	IntegrityFailed uint32 // packets with a wrong ICV
}

// SAInfo is the fixed part of an SA.
type SAInfo struct {
	Sel    Selector
	Dst    Address
	SPI    uint32
	Proto  uint8 // ProtoESP
	Src    Address
	Limits Limits
	Cur    Lifetime
	Stats  Stats
	Seq    uint32 // of the acquire that the SA answers
	Reqid  uint32
	Family uint16 // of Src and Dst
	Mode   uint8  // ModeTunnel
	Window uint8  // of the replay check in packets; wider ones stand in Attrs.ReplayESN
	Flags  uint8  // StateESN and so on
}

// SrcIP is the outer source address.
func (i *SAInfo) SrcIP() netip.Addr { return i.Src.Addr(i.Family) }

// DstIP is the outer destination address.
func (i *SAInfo) DstIP() netip.Addr { return i.Dst.Addr(i.Family) }

// String names the SA: "src 192.0.2.1 dst 192.0.2.2 proto 50 spi 0xc1234567 reqid 1 mode tunnel".
func (i *SAInfo) String() string {
	return fmt.Sprintf("src %v dst %v proto %d spi 0x%08x reqid %d mode %s", i.SrcIP(), i.DstIP(), i.Proto, i.SPI, i.Reqid, ModeName(i.Mode))
}

// PolicyInfo is the fixed part of a policy.
type PolicyInfo struct {
	Sel      Selector
	Limits   Limits
	Cur      Lifetime
	Priority uint32 // the lowest one wins
	Index    uint32 // the kernel's number for it; its lowest three bits are the direction
	Dir      uint8  // DirIn, DirOut, DirFwd
	Action   uint8  // ActionAllow, ActionBlock
	Flags    uint8  // PolicyICMP and so on
	Share    uint8
}

// String names the policy: "dir out src 10.1.0.0/24 dst 10.2.0.0/24".
func (i *PolicyInfo) String() string { return "dir " + DirName(i.Dir) + " " + i.Sel.String() }

// SA is MsgNewSA and MsgUpdSA, and every message of the kernel that tells of a whole SA.
type SA struct {
	SAInfo
	Attrs Attrs
}

// SAID is MsgDelSA and MsgGetSA: which SA is meant. Attrs.Mark, IfID and SrcAddr are part of that.
type SAID struct {
	Dst    Address
	SPI    uint32
	Family uint16
	Proto  uint8
	Attrs  Attrs
}

// AllocSPI asks for an SPI between Min and Max.
type AllocSPI struct {
	SAInfo
	Min, Max uint32
	Attrs    Attrs
}

// Expire is an SA at a limit: to be replaced soon, or, Hard, not to be used any more.
type Expire struct {
	SAInfo
	Hard  uint8
	Attrs Attrs
}

// Policy is MsgNewPolicy and MsgUpdPolicy, and every message of the kernel that tells of a whole policy.
type Policy struct {
	PolicyInfo
	Attrs Attrs
}

// PolicyID is MsgDelPolicy and MsgGetPolicy: by Index, or where that is 0 by selector and direction.
type PolicyID struct {
	Sel   Selector
	Index uint32
	Dir   uint8
	Attrs Attrs
}

// PolicyExpire is a policy at a limit.
type PolicyExpire struct {
	PolicyInfo
	Hard  uint8
	Attrs Attrs
}

// Acquire asks the IKE daemon for an SA: Policy wants one for the packet that Sel describes, Attrs.Tmpls says of what kind.
type Acquire struct {
	Dst    Address
	SPI    uint32
	Proto  uint8
	Src    Address
	Sel    Selector
	Policy PolicyInfo
	AAlgos uint32
	EAlgos uint32
	CAlgos uint32
	Seq    uint32 // the SA that answers it has it too
	Attrs  Attrs
}

// AE is MsgNewAE and MsgGetAE: replay state and lifetime of an SA, to save and restore.
type AE struct {
	Dst    Address
	SPI    uint32
	Family uint16
	Proto  uint8
	Src    Address
	Flags  uint32 // AEReplayVal and so on
	Reqid  uint32
	Attrs  Attrs
}

// Mapping says that packets of an SA come from another address or port.
type Mapping struct {
	Dst              Address
	SPI              uint32
	Family           uint16
	Proto            uint8
	Reqid            uint32
	OldSrc, NewSrc   Address
	OldPort, NewPort uint16
	Attrs            Attrs
}

// Migrate moves the policy with this selector and direction, and its SAs, as Attrs.Migrates says.
type Migrate struct {
	Sel   Selector
	Index uint32
	Dir   uint8
	Attrs Attrs
}

// Flush deletes all SAs of a protocol.
type Flush struct {
	Proto uint8 // ProtoAny: all
	Attrs Attrs
}

// FlushPolicy deletes all policies of Attrs.PolicyType.
type FlushPolicy struct{ Attrs Attrs }

// Dump asks for all SAs or all policies, of SAs those that Attrs.ProtoFilter and Attrs.Filter let pass. It has no fixed part.
type Dump struct{ Attrs Attrs }

// Report is a Mobile IPv6 event.
type Report struct {
	Proto uint8
	Sel   Selector
	Attrs Attrs
}

// Default says what happens to packets that no policy matches.
type Default struct {
	In, Fwd, Out uint8 // DefaultBlock and so on
	Attrs        Attrs
}

// Count of hash table rows.
type HashInfo struct{ Rows, MaxRows uint32 }

// SADInfo counts the SAs.
type SADInfo struct {
	Flags uint32
	Count Opt[uint32]
	Hash  Opt[HashInfo]
}

// PolicyCounts counts the policies; those for sockets stand apart.
type PolicyCounts struct {
	In, Out, Fwd                   uint32
	SocketIn, SocketOut, SocketFwd uint32
}

// Thresh is how long prefixes must be for a policy to be in the hash table, in bits.
type Thresh struct{ Local, Remote uint8 }

// SPDInfo counts the policies, and sets and tells the thresholds of the hash table.
type SPDInfo struct {
	Flags   uint32
	Counts  Opt[PolicyCounts]
	Hash    Opt[HashInfo]
	Thresh4 Opt[Thresh]
	Thresh6 Opt[Thresh]
}

// Body is a message's content: a pointer to one of the types above.
type Body interface {
	decode(abi ABI, b []byte) *Error
	append(dst []byte, abi ABI) []byte
}

// Append appends a whole message, padded to a multiple of 4 bytes.
func (abi ABI) Append(dst []byte, m Body, typ, flags uint16, seq, pid uint32) []byte {
	dst, start := begin(dst, typ, flags, seq, pid)
	return finish(m.append(dst, abi), start)
}

// Decode reads a body that a program with another ABI has sent. Errors are *Error.
func Decode[T any, P interface {
	*T
	Body
}](abi ABI, body []byte) (T, error) {
	var v T
	if e := P(&v).decode(abi, body); e != nil {
		var zero T
		return zero, e
	}
	return v, nil
}

// fixed checks the length of the part of a body that has no attributes.
func fixed(b []byte, n int, what string) *Error {
	if len(b) < n {
		return Errorf(unix.EINVAL, "%s has %d bytes behind its header and needs %d", what, len(b), n)
	}
	return nil
}

// rest is the attributes of a body whose fixed part has n bytes.
func rest(a *Attrs, abi ABI, b []byte, n int) *Error {
	if n = align(n); n >= len(b) {
		if len(b) < n {
			a.Layout = &Layout{short: n - len(b)} // clients do not count this padding, the kernel does
		}
		return nil
	}
	return a.decode(abi, b[n:], HeaderLen+n)
}

func (l *Limits) get(b []byte) {
	for i, p := range l.fields() {
		*p = host.Uint64(b[8*i:])
	}
}

func (l *Limits) put(b []byte) {
	for i, p := range l.fields() {
		host.PutUint64(b[8*i:], *p)
	}
}

func (l *Limits) fields() [8]*uint64 {
	return [8]*uint64{&l.SoftBytes, &l.HardBytes, &l.SoftPackets, &l.HardPackets, &l.SoftAdd, &l.HardAdd, &l.SoftUse, &l.HardUse}
}

func (l *Lifetime) get(b []byte) {
	*l = Lifetime{host.Uint64(b), host.Uint64(b[8:]), host.Uint64(b[16:]), host.Uint64(b[24:])}
}

func (l *Lifetime) put(b []byte) {
	host.PutUint64(b, l.Bytes)
	host.PutUint64(b[8:], l.Packets)
	host.PutUint64(b[16:], l.AddTime)
	host.PutUint64(b[24:], l.UseTime)
}

func (i *SAInfo) get(b []byte) {
	i.Sel.get(b)
	i.Dst, i.SPI, i.Proto, i.Src = Address(b[56:]), net.Uint32(b[72:]), b[76], Address(b[80:])
	i.Limits.get(b[96:])
	i.Cur.get(b[160:])
	i.Stats = Stats{host.Uint32(b[192:]), host.Uint32(b[196:]), host.Uint32(b[200:])}
	i.Seq, i.Reqid, i.Family = host.Uint32(b[204:]), host.Uint32(b[208:]), host.Uint16(b[212:])
	i.Mode, i.Window, i.Flags = b[214], b[215], b[216]
}

func (i *SAInfo) put(b []byte) {
	i.Sel.put(b)
	copy(b[56:], i.Dst[:])
	net.PutUint32(b[72:], i.SPI)
	b[76] = i.Proto
	copy(b[80:], i.Src[:])
	i.Limits.put(b[96:])
	i.Cur.put(b[160:])
	host.PutUint32(b[192:], i.Stats.ReplayWindow)
	host.PutUint32(b[196:], i.Stats.Replay)
	host.PutUint32(b[200:], i.Stats.IntegrityFailed)
	host.PutUint32(b[204:], i.Seq)
	host.PutUint32(b[208:], i.Reqid)
	host.PutUint16(b[212:], i.Family)
	b[214], b[215], b[216] = i.Mode, i.Window, i.Flags
}

func (i *PolicyInfo) get(b []byte) {
	i.Sel.get(b)
	i.Limits.get(b[56:])
	i.Cur.get(b[120:])
	i.Priority, i.Index = host.Uint32(b[152:]), host.Uint32(b[156:])
	i.Dir, i.Action, i.Flags, i.Share = b[160], b[161], b[162], b[163]
}

func (i *PolicyInfo) put(b []byte) {
	i.Sel.put(b)
	i.Limits.put(b[56:])
	i.Cur.put(b[120:])
	host.PutUint32(b[152:], i.Priority)
	host.PutUint32(b[156:], i.Index)
	b[160], b[161], b[162], b[163] = i.Dir, i.Action, i.Flags, i.Share
}

func getID(b []byte) (dst Address, spi uint32, family uint16, proto uint8) {
	return Address(b), net.Uint32(b[16:]), host.Uint16(b[20:]), b[22]
}

func putID(b []byte, dst Address, spi uint32, family uint16, proto uint8) {
	copy(b, dst[:])
	net.PutUint32(b[16:], spi)
	host.PutUint16(b[20:], family)
	b[22] = proto
}

func (m *SA) decode(abi ABI, b []byte) *Error {
	n := abi.sizeSAInfo()
	if e := fixed(b, n, "an SA"); e != nil {
		return e
	}
	m.get(b)
	return rest(&m.Attrs, abi, b, n)
}

func (m *SA) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, abi.sizeSAInfo())
	m.put(b)
	return m.Attrs.append(dst, abi)
}

func (m *SAID) decode(abi ABI, b []byte) *Error {
	if e := fixed(b, sizeSAID, "an SA's ID"); e != nil {
		return e
	}
	m.Dst, m.SPI, m.Family, m.Proto = getID(b)
	return rest(&m.Attrs, abi, b, sizeSAID)
}

func (m *SAID) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, sizeSAID)
	putID(b, m.Dst, m.SPI, m.Family, m.Proto)
	return m.Attrs.append(dst, abi)
}

func (m *AllocSPI) decode(abi ABI, b []byte) *Error {
	n := abi.sizeAllocSPI()
	if e := fixed(b, n, "ALLOCSPI"); e != nil {
		return e
	}
	m.get(b)
	at := abi.sizeSAInfo()
	m.Min, m.Max = host.Uint32(b[at:]), host.Uint32(b[at+4:])
	return rest(&m.Attrs, abi, b, n)
}

func (m *AllocSPI) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, abi.sizeAllocSPI())
	m.put(b)
	at := abi.sizeSAInfo()
	host.PutUint32(b[at:], m.Min)
	host.PutUint32(b[at+4:], m.Max)
	return m.Attrs.append(dst, abi)
}

func (m *Expire) decode(abi ABI, b []byte) *Error {
	n := abi.sizeExpire()
	if e := fixed(b, n, "EXPIRE"); e != nil {
		return e
	}
	m.get(b)
	m.Hard = b[abi.sizeSAInfo()]
	return rest(&m.Attrs, abi, b, n)
}

func (m *Expire) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, abi.sizeExpire())
	m.put(b)
	b[abi.sizeSAInfo()] = m.Hard
	return m.Attrs.append(dst, abi)
}

func (m *Policy) decode(abi ABI, b []byte) *Error {
	n := abi.sizePolicyInfo()
	if e := fixed(b, n, "a policy"); e != nil {
		return e
	}
	m.get(b)
	return rest(&m.Attrs, abi, b, n)
}

func (m *Policy) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, abi.sizePolicyInfo())
	m.put(b)
	return m.Attrs.append(dst, abi)
}

func getPolicyID(b []byte) (sel Selector, index uint32, dir uint8) {
	sel.get(b)
	return sel, host.Uint32(b[56:]), b[60]
}

func putPolicyID(b []byte, sel *Selector, index uint32, dir uint8) {
	sel.put(b)
	host.PutUint32(b[56:], index)
	b[60] = dir
}

func (m *PolicyID) decode(abi ABI, b []byte) *Error {
	if e := fixed(b, sizePolicyID, "a policy's ID"); e != nil {
		return e
	}
	m.Sel, m.Index, m.Dir = getPolicyID(b)
	return rest(&m.Attrs, abi, b, sizePolicyID)
}

func (m *PolicyID) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, sizePolicyID)
	putPolicyID(b, &m.Sel, m.Index, m.Dir)
	return m.Attrs.append(dst, abi)
}

func (m *Migrate) decode(abi ABI, b []byte) *Error {
	if e := fixed(b, sizePolicyID, "MIGRATE"); e != nil {
		return e
	}
	m.Sel, m.Index, m.Dir = getPolicyID(b)
	return rest(&m.Attrs, abi, b, sizePolicyID)
}

func (m *Migrate) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, sizePolicyID)
	putPolicyID(b, &m.Sel, m.Index, m.Dir)
	return m.Attrs.append(dst, abi)
}

func (m *PolicyExpire) decode(abi ABI, b []byte) *Error {
	n := abi.sizePolicyExpire()
	if e := fixed(b, n, "POLEXPIRE"); e != nil {
		return e
	}
	m.get(b)
	m.Hard = b[abi.sizePolicyInfo()]
	return rest(&m.Attrs, abi, b, n)
}

func (m *PolicyExpire) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, abi.sizePolicyExpire())
	m.put(b)
	b[abi.sizePolicyInfo()] = m.Hard
	return m.Attrs.append(dst, abi)
}

func (m *Acquire) decode(abi ABI, b []byte) *Error {
	n := abi.sizeAcquire()
	if e := fixed(b, n, "ACQUIRE"); e != nil {
		return e
	}
	m.Dst, m.SPI, m.Proto, m.Src = Address(b), net.Uint32(b[16:]), b[20], Address(b[24:])
	m.Sel.get(b[40:])
	m.Policy.get(b[96:])
	at := 96 + abi.sizePolicyInfo()
	m.AAlgos, m.EAlgos, m.CAlgos, m.Seq = host.Uint32(b[at:]), host.Uint32(b[at+4:]), host.Uint32(b[at+8:]), host.Uint32(b[at+12:])
	return rest(&m.Attrs, abi, b, n)
}

func (m *Acquire) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, abi.sizeAcquire())
	copy(b, m.Dst[:])
	net.PutUint32(b[16:], m.SPI)
	b[20] = m.Proto
	copy(b[24:], m.Src[:])
	m.Sel.put(b[40:])
	m.Policy.put(b[96:])
	at := 96 + abi.sizePolicyInfo()
	for i, v := range [...]uint32{m.AAlgos, m.EAlgos, m.CAlgos, m.Seq} {
		host.PutUint32(b[at+4*i:], v)
	}
	return m.Attrs.append(dst, abi)
}

func (m *AE) decode(abi ABI, b []byte) *Error {
	if e := fixed(b, sizeAEventID, "an SA's replay state"); e != nil {
		return e
	}
	m.Dst, m.SPI, m.Family, m.Proto = getID(b)
	m.Src, m.Flags, m.Reqid = Address(b[24:]), host.Uint32(b[40:]), host.Uint32(b[44:])
	return rest(&m.Attrs, abi, b, sizeAEventID)
}

func (m *AE) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, sizeAEventID)
	putID(b, m.Dst, m.SPI, m.Family, m.Proto)
	copy(b[24:], m.Src[:])
	host.PutUint32(b[40:], m.Flags)
	host.PutUint32(b[44:], m.Reqid)
	return m.Attrs.appendInOrder(dst, abi, aeOrder[:])
}

func (m *Mapping) decode(abi ABI, b []byte) *Error {
	if e := fixed(b, sizeMapping, "MAPPING"); e != nil {
		return e
	}
	m.Dst, m.SPI, m.Family, m.Proto = getID(b)
	m.Reqid, m.OldSrc, m.NewSrc = host.Uint32(b[24:]), Address(b[28:]), Address(b[44:])
	m.OldPort, m.NewPort = net.Uint16(b[60:]), net.Uint16(b[62:])
	return rest(&m.Attrs, abi, b, sizeMapping)
}

func (m *Mapping) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, sizeMapping)
	putID(b, m.Dst, m.SPI, m.Family, m.Proto)
	host.PutUint32(b[24:], m.Reqid)
	copy(b[28:], m.OldSrc[:])
	copy(b[44:], m.NewSrc[:])
	net.PutUint16(b[60:], m.OldPort)
	net.PutUint16(b[62:], m.NewPort)
	return m.Attrs.append(dst, abi)
}

func (m *Flush) decode(abi ABI, b []byte) *Error {
	if e := fixed(b, 1, "FLUSHSA"); e != nil {
		return e
	}
	m.Proto = b[0]
	return rest(&m.Attrs, abi, b, 1)
}

func (m *Flush) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, align(1))
	b[0] = m.Proto
	return m.Attrs.append(dst, abi)
}

func (m *FlushPolicy) decode(abi ABI, b []byte) *Error   { return rest(&m.Attrs, abi, b, 0) }
func (m *FlushPolicy) append(dst []byte, abi ABI) []byte { return m.Attrs.append(dst, abi) }

func (m *Dump) decode(abi ABI, b []byte) *Error   { return rest(&m.Attrs, abi, b, 0) }
func (m *Dump) append(dst []byte, abi ABI) []byte { return m.Attrs.append(dst, abi) }

func (m *Report) decode(abi ABI, b []byte) *Error {
	if e := fixed(b, sizeReport, "REPORT"); e != nil {
		return e
	}
	m.Proto = b[0]
	m.Sel.get(b[4:])
	return rest(&m.Attrs, abi, b, sizeReport)
}

func (m *Report) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, sizeReport)
	b[0] = m.Proto
	m.Sel.put(b[4:])
	return m.Attrs.append(dst, abi)
}

func (m *Default) decode(abi ABI, b []byte) *Error {
	if e := fixed(b, sizeDefault, "the default policy"); e != nil {
		return e
	}
	m.In, m.Fwd, m.Out = b[0], b[1], b[2]
	return rest(&m.Attrs, abi, b, sizeDefault)
}

func (m *Default) append(dst []byte, abi ABI) []byte {
	dst, b := grow(dst, align(sizeDefault))
	b[0], b[1], b[2] = m.In, m.Fwd, m.Out
	return m.Attrs.append(dst, abi)
}

func (m *SADInfo) decode(_ ABI, b []byte) *Error {
	if e := fixed(b, 4, "SADINFO"); e != nil {
		return e
	}
	m.Flags = host.Uint32(b)
	for off, a := range attributes(b[4:]) {
		want := 4
		switch a.typ {
		case sadAttrCount:
		case sadAttrHash:
			want = 8
		default:
			continue
		}
		if len(a.b) < want {
			return errAt(unix.ERANGE, HeaderLen+4+off, "attribute %d of SADINFO has %d bytes and needs %d", a.typ, len(a.b), want)
		}
		if a.typ == sadAttrCount {
			m.Count = Some(host.Uint32(a.b))
		} else {
			m.Hash = Some(HashInfo{host.Uint32(a.b), host.Uint32(a.b[4:])})
		}
	}
	return nil
}

func (m *SADInfo) append(dst []byte, _ ABI) []byte {
	dst, b := grow(dst, 4)
	host.PutUint32(b, m.Flags)
	if m.Count.Set {
		dst = appendAttrU32(dst, sadAttrCount, m.Count.V)
	}
	return m.Hash.V.append(dst, sadAttrHash, m.Hash.Set)
}

func (h HashInfo) append(dst []byte, typ uint16, set bool) []byte {
	if !set {
		return dst
	}
	dst, p := appendAttr(dst, typ, 8)
	host.PutUint32(p, h.Rows)
	host.PutUint32(p[4:], h.MaxRows)
	return dst
}

// spdLens are the lengths of SPDInfo's attributes in bytes.
var spdLens = [spdAttrMax + 1]int{spdAttrInfo: sizeSPDInfo, spdAttrHash: 8, spdAttrThresh4: 2, spdAttrThresh6: 2}

func (m *SPDInfo) decode(_ ABI, b []byte) *Error {
	if e := fixed(b, 4, "SPDINFO"); e != nil {
		return e
	}
	m.Flags = host.Uint32(b)
	for off, a := range attributes(b[4:]) {
		if a.typ == 0 || a.typ > spdAttrMax {
			continue
		}
		if len(a.b) < spdLens[a.typ] {
			if a.typ == spdAttrInfo || a.typ == spdAttrHash {
				continue // the kernel does not look at them in a request
			}
			return errAt(unix.ERANGE, HeaderLen+4+off, "attribute %d of SPDINFO has %d bytes and needs %d", a.typ, len(a.b), spdLens[a.typ])
		}
		switch a.typ {
		case spdAttrInfo:
			var c PolicyCounts
			for i, p := range c.fields() {
				*p = host.Uint32(a.b[4*i:])
			}
			m.Counts = Some(c)
		case spdAttrHash:
			m.Hash = Some(HashInfo{host.Uint32(a.b), host.Uint32(a.b[4:])})
		case spdAttrThresh4:
			m.Thresh4 = Some(Thresh{a.b[0], a.b[1]})
		case spdAttrThresh6:
			m.Thresh6 = Some(Thresh{a.b[0], a.b[1]})
		}
	}
	return nil
}

func (c *PolicyCounts) fields() [6]*uint32 {
	return [6]*uint32{&c.In, &c.Out, &c.Fwd, &c.SocketIn, &c.SocketOut, &c.SocketFwd}
}

func (m *SPDInfo) append(dst []byte, _ ABI) []byte {
	dst, b := grow(dst, 4)
	host.PutUint32(b, m.Flags)
	if m.Counts.Set {
		dst, b = appendAttr(dst, spdAttrInfo, sizeSPDInfo)
		for i, p := range m.Counts.V.fields() {
			host.PutUint32(b[4*i:], *p)
		}
	}
	dst = m.Hash.V.append(dst, spdAttrHash, m.Hash.Set)
	dst = m.Thresh4.V.append(dst, spdAttrThresh4, m.Thresh4.Set)
	return m.Thresh6.V.append(dst, spdAttrThresh6, m.Thresh6.Set)
}

func (t Thresh) append(dst []byte, typ uint16, set bool) []byte {
	if !set {
		return dst
	}
	return appendAttrBytes(dst, typ, []byte{t.Local, t.Remote})
}
