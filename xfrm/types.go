package xfrm

import (
	"fmt"
	"strconv"
)

// Message types: what Header.Type says the body is.
const (
	MsgNewSA       uint16 = 0x10 + iota // SA: add; also a dump's entry, the answer to MsgGetSA and MsgAllocSPI, and a notification
	MsgDelSA                            // SAID: delete; a notification carries the whole SA in its attributes
	MsgGetSA                            // SAID: one; with NLM_F_DUMP a Dump: all
	MsgNewPolicy                        // Policy: add; also a dump's entry and the answer to MsgGetPolicy
	MsgDelPolicy                        // PolicyID: delete
	MsgGetPolicy                        // PolicyID: one; with NLM_F_DUMP a Dump: all
	MsgAllocSPI                         // AllocSPI: make a larval SA with an unused SPI
	MsgAcquire                          // Acquire: a policy wants an SA that is not there
	MsgExpire                           // Expire: an SA has reached a limit
	MsgUpdPolicy                        // Policy: add or replace
	MsgUpdSA                            // SA: make a larval SA a real one, or change one
	MsgPolExpire                        // PolicyExpire: a policy has reached a limit
	MsgFlushSA                          // Flush: delete all of a protocol
	MsgFlushPolicy                      // FlushPolicy: delete all of a type
	MsgNewAE                            // AE: set, or tell of, replay state and lifetimes
	MsgGetAE                            // AE: ask for them
	MsgReport                           // Report
	MsgMigrate                          // Migrate: move SAs and policies to other addresses (RFC 4555)
	MsgNewSADInfo                       // SADInfo
	MsgGetSADInfo                       // SADInfo: ask for it
	MsgNewSPDInfo                       // SPDInfo: set the hash thresholds; also the answer to MsgGetSPDInfo
	MsgGetSPDInfo                       // SPDInfo: ask for it
	MsgMapping                          // Mapping: a peer behind a NAT has another address or port
	MsgSetDefault                       // Default: what happens to packets without a policy
	MsgGetDefault                       // Default: ask for it; also the answer

	MsgMin = MsgNewSA      // the first type of this protocol
	MsgMax = MsgGetDefault // the last one
)

var msgNames = [...]string{
	"NEWSA", "DELSA", "GETSA", "NEWPOLICY", "DELPOLICY", "GETPOLICY", "ALLOCSPI", "ACQUIRE", "EXPIRE", "UPDPOLICY", "UPDSA", "POLEXPIRE",
	"FLUSHSA", "FLUSHPOLICY", "NEWAE", "GETAE", "REPORT", "MIGRATE", "NEWSADINFO", "GETSADINFO", "NEWSPDINFO", "GETSPDINFO", "MAPPING",
	"SETDEFAULT", "GETDEFAULT",
}

// TypeName names a message type in logs and errors: "NEWSA", "ERROR", "type 99".
func TypeName(t uint16) string {
	switch {
	case t >= MsgMin && t <= MsgMax:
		return msgNames[t-MsgMin]
	case t == typeNoop:
		return "NOOP"
	case t == typeError:
		return "ERROR"
	case t == typeDone:
		return "DONE"
	}
	return "type " + strconv.Itoa(int(t))
}

// Multicast groups, as setsockopt NETLINK_ADD_MEMBERSHIP numbers them. GroupBit is what bind takes.
const (
	GroupAcquire uint32 = 1 + iota // MsgAcquire
	GroupExpire                    // MsgExpire, MsgPolExpire
	GroupSA                        // MsgNewSA, MsgUpdSA, MsgDelSA, MsgFlushSA
	GroupPolicy                    // MsgNewPolicy, MsgUpdPolicy, MsgDelPolicy, MsgFlushPolicy
	GroupAEvents                   // MsgNewAE
	GroupReport                    // MsgReport
	GroupMigrate                   // MsgMigrate
	GroupMapping                   // MsgMapping

	GroupMax = GroupMapping
)

// GroupBit is the bit of a group in sockaddr_nl.nl_groups: charon binds to 0xc3, acquire, expire, migrate and mapping.
func GroupBit(group uint32) uint32 { return 1 << (group - 1) }

// Attribute types.
const (
	AttrUnspec         uint16 = iota
	AttrAlgAuth               // Attrs.Auth
	AttrAlgCrypt              // Attrs.Crypt
	AttrAlgComp               // Attrs.Comp
	AttrEncap                 // Attrs.Encap
	AttrTmpl                  // Attrs.Tmpls
	AttrSA                    // Attrs.SAInfo
	AttrPolicy                // Attrs.PolicyInfo
	AttrSecCtx                // Attrs.SecCtx
	AttrLTimeVal              // Attrs.LTime
	AttrReplayVal             // Attrs.Replay
	AttrReplayThresh          // Attrs.ReplayThresh
	AttrETimerThresh          // Attrs.ETimerThresh
	AttrSrcAddr               // Attrs.SrcAddr
	AttrCoAddr                // Attrs.CoAddr
	AttrLastUsed              // Attrs.LastUsed
	AttrPolicyType            // Attrs.PolicyType
	AttrMigrate               // Attrs.Migrates
	AttrAlgAEAD               // Attrs.AEAD
	AttrKMAddress             // Attrs.KMAddress
	AttrAlgAuthTrunc          // Attrs.AuthTrunc
	AttrMark                  // Attrs.Mark
	AttrTFCPad                // Attrs.TFCPad
	AttrReplayESNVal          // Attrs.ReplayESN
	AttrSAExtraFlags          // Attrs.ExtraFlags
	AttrProto                 // Attrs.ProtoFilter
	AttrAddressFilter         // Attrs.AddressFilter
	AttrPad                   // carries nothing: it aligns the next one where 64-bit loads must be aligned
	AttrOffloadDev            // Attrs.Offload
	AttrSetMark               // Attrs.SetMark
	AttrSetMarkMask           // Attrs.SetMarkMask
	AttrIfID                  // Attrs.IfID
	AttrMTimerThresh          // Attrs.MTimerThresh
	AttrSADir                 // Attrs.SADir
	AttrNATKeepalive          // Attrs.NATKeepalive
	AttrSAPCPU                // Attrs.PCPU
	AttrIPTFSDropTime         // Attrs.IPTFS.DropTime
	AttrIPTFSReorder          // Attrs.IPTFS.ReorderWindow
	AttrIPTFSDontFrag         // Attrs.IPTFS.DontFrag
	AttrIPTFSInitDelay        // Attrs.IPTFS.InitDelay
	AttrIPTFSMaxQSize         // Attrs.IPTFS.MaxQSize
	AttrIPTFSPktSize          // Attrs.IPTFS.PktSize

	AttrMax = AttrIPTFSPktSize
)

// Attribute types of SADInfo and SPDInfo, which number their own.
const (
	sadAttrCount uint16 = 1
	sadAttrHash  uint16 = 2

	spdAttrInfo    uint16 = 1
	spdAttrHash    uint16 = 2
	spdAttrThresh4 uint16 = 3
	spdAttrThresh6 uint16 = 4
	spdAttrMax            = spdAttrThresh6
)

// Families, as Family fields have them.
const (
	FamilyUnspec uint16 = 0
	FamilyIPv4   uint16 = 2
	FamilyIPv6   uint16 = 10
)

// Protocols that SAs are of.
const (
	ProtoAny     uint8 = 0   // in requests: any of them
	ProtoRouting uint8 = 43  // Mobile IPv6
	ProtoESP     uint8 = 50  // RFC 4303
	ProtoAH      uint8 = 51  // RFC 4302
	ProtoDstOpts uint8 = 60  // Mobile IPv6
	ProtoComp    uint8 = 108 // RFC 3173
	ProtoIPsec   uint8 = 255 // in requests: ESP, AH and IPComp
)

// Modes of SAs and templates.
const (
	ModeTransport         uint8 = iota // RFC 4303 section 3.1.1
	ModeTunnel                         // RFC 4303 section 3.1.2
	ModeRouteOptimization              // Mobile IPv6
	ModeInTrigger                      // Mobile IPv6
	ModeBEET                           // draft-nikander-esp-beet-mode
	ModeIPTFS                          // RFC 9347
	modeCount
)

var modeNames = [...]string{"transport", "tunnel", "ro", "in_trigger", "beet", "iptfs"}

// ModeName is "tunnel", "transport" and so on.
func ModeName(m uint8) string { return named(modeNames[:], "mode", m) }

// Flags of SAInfo.
const (
	StateNoECN      uint8 = 1   // no congestion experienced is copied inward
	StateDecapDSCP  uint8 = 2   // the inner DSCP becomes the outer one
	StateNoPMTUDisc uint8 = 4   // the outer don't-fragment bit is clear
	StateWildRecv   uint8 = 8   // any source address is taken
	StateICMP       uint8 = 16  // also ICMP errors that quote a matching packet
	StateAFUnspec   uint8 = 32  // in tunnel mode, both families inside
	StateAlign4     uint8 = 64  // AH over IPv4 with 4-byte alignment
	StateESN        uint8 = 128 // RFC 4303 section 2.2.1
)

// Flags of Attrs.ExtraFlags.
const (
	ExtraDontEncapDSCP uint32 = 1 // the outer DSCP is 0
	ExtraOseqMayWrap   uint32 = 2 // a 32-bit outbound sequence number may start again
)

// Directions of policies, and what MsgGetPolicy's Index says in its low bits.
const (
	DirIn uint8 = iota
	DirOut
	DirFwd
	dirCount
)

var dirNames = [...]string{"in", "out", "fwd"}

// DirName is "in", "out" or "fwd".
func DirName(d uint8) string { return named(dirNames[:], "dir", d) }

// Directions of SAs, in Attrs.SADir.
const (
	SADirIn  uint8 = 1
	SADirOut uint8 = 2
)

// Actions of policies.
const (
	ActionAllow uint8 = 0
	ActionBlock uint8 = 1
)

// Flags of policies.
const (
	PolicyLocalOK    uint8 = 1 // a program may override it for its socket
	PolicyICMP       uint8 = 2 // also ICMP errors that quote a matching packet
	PolicyCPUAcquire uint8 = 4 // acquires name the processor
)

// Shares of policies and templates.
const (
	ShareAny uint8 = iota
	ShareSession
	ShareUser
	ShareUnique
)

// Types of policies, in Attrs.PolicyType.
const (
	PolicyMain uint8 = 0
	PolicySub  uint8 = 1
	PolicyAny  uint8 = 255
)

// Defaults for packets that no policy matches.
const (
	DefaultUnspec uint8 = 0 // leave it as it is
	DefaultBlock  uint8 = 1
	DefaultAccept uint8 = 2
)

// Flags of AE: what is wanted, or what is told and why.
const (
	AEReplayThresh uint32 = 1  // Attrs.ReplayThresh is wanted
	AEReplayVal    uint32 = 2  // Attrs.Replay or ReplayESN is wanted
	AELifetimeVal  uint32 = 4  // Attrs.LTime is wanted
	AETimerThresh  uint32 = 8  // Attrs.ETimerThresh is wanted
	AECauseReplay  uint32 = 16 // told because sequence numbers moved
	AECauseTimer   uint32 = 32 // told because the timer ran out
	AECauseUpdate  uint32 = 64 // told because MsgNewAE changed it
)

// Types of Encap.
const (
	EncapUDPNonIKE uint16 = 1 // with eight zero bytes, from before RFC 3948
	EncapUDP       uint16 = 2 // RFC 3948
	EncapTCP       uint16 = 7 // RFC 9329
)

// Flags of Offload.
const (
	OffloadIPv6    uint8 = 1
	OffloadInbound uint8 = 2
	OffloadPacket  uint8 = 4
)

// Inf is a limit that is never reached.
const Inf = ^uint64(0)

func named[T ~uint8 | ~uint16](names []string, kind string, v T) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s %d", kind, v)
}
