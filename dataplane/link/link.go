package link

import (
	"errors"
	"net/netip"
	"strconv"
)

// Sentinel errors. Those of one packet or message (all but ErrAgain and ErrGone) leave the link as it was:
// the caller counts the packet and goes on. A closed link answers net.ErrClosed.
var (
	ErrAgain       = errors.New("link: nothing to read now")
	ErrGone        = errors.New("link: the interface was deleted; open it again")
	ErrDown        = errors.New("link: the interface is down; set it up")
	ErrNoGSO       = errors.New("link: the kernel refused this super-packet; queue it again segment by segment")
	ErrUnknownGSO  = errors.New("link: super-packet of a kind that is not supported (UFO or newer)")
	ErrTooBig      = errors.New("link: larger than the interface's MTU, and fragmenting is forbidden")
	ErrUnreachable = errors.New("link: no route to the destination")
	ErrRefused     = errors.New("link: nobody listens at the destination")
	ErrForbidden   = errors.New("link: forbidden by a local firewall rule or policy")
	ErrNoBuffers   = errors.New("link: the device's queue or the kernel's memory is full")
	ErrInvalid     = errors.New("link: malformed packet or message, or destination of another address family")
	ErrOther       = errors.New("link: the kernel refused the packet for another reason")
)

// GSOType is the kind of a super-packet: one IP packet of up to 64 KB that stands for several on the wire.
type GSOType uint8

const (
	GSONone  GSOType = iota // an ordinary packet
	GSOTCP4                 // TCP over IPv4 (VIRTIO_NET_HDR_GSO_TCPV4)
	GSOTCP6                 // TCP over IPv6 (VIRTIO_NET_HDR_GSO_TCPV6)
	GSOUDPL4                // UDP over either, cut into whole datagrams (VIRTIO_NET_HDR_GSO_UDP_L4)

	gsoTypes // how many there are
)

// gsoTable is the one place that says how a kind is called and what virtio calls it (virtio 1.2, 5.1.6).
var gsoTable = [gsoTypes]struct {
	name   string
	virtio uint8
}{
	GSONone:  {"none", 0},
	GSOTCP4:  {"tcp4", 1},
	GSOTCP6:  {"tcp6", 4},
	GSOUDPL4: {"udp", 5},
}

func (t GSOType) String() string {
	if t < gsoTypes {
		return gsoTable[t].name
	}
	return "gso(" + strconv.Itoa(int(t)) + ")"
}

// VNet is the decoded virtio_net_hdr of one packet: what the kernel left undone in it, or may assume about it.
// Offsets count bytes from the start of the IP header.
type VNet struct {
	// NeedsCsum: the field at CsumStart+CsumOffset holds the pseudo-header's sum; the ones' complement sum of everything
	// from CsumStart on must still be put there. Always true with a GSO type.
	NeedsCsum bool
	// DataValid: the transport checksum has been verified and need not be again.
	DataValid bool
	GSO       GSOType
	HdrLen    uint16 // IP and transport header together; a hint on reading, exact on writing
	GSOSize   uint16 // payload bytes per segment
	CsumStart uint16
	// CsumOffset is where the checksum lies, from CsumStart on: 16 for TCP, 6 for UDP.
	CsumOffset uint16
}

// Inner is the side of clear packets: a TUN device or its double. Readers and writers belong to one goroutine each; all
// else may be called from any. Packets are whole IP packets without a link header.
type Inner interface {
	NewReader() InnerReader
	NewWriter() InnerWriter
	Name() string
	MTU() int         // the present one, in bytes; cheap enough to ask per burst
	Offloads() string // what is in use, for people, and why something is not
	Wake()            // who waits to read gets ErrAgain, or if nobody does who waits next
	StopReading()     // readers get net.ErrClosed from now on, also those who wait; writers go on
	Close() error     // wakes everyone who waits; they get net.ErrClosed
}

// InnerReader takes packets from the host.
type InnerReader interface {
	// Next returns one packet or super-packet (up to 65,535 bytes); it is valid, and may be changed, until the next call.
	// wait says whether to wait for one; otherwise, and after a Wake, ErrAgain comes when none is there. ErrUnknownGSO is about
	// one packet: count it and go on. ErrGone and net.ErrClosed are final.
	Next(wait bool) ([]byte, VNet, error)
}

// InnerWriter gives packets to the host.
type InnerWriter interface {
	// Queue adds one packet or super-packet, given as a gather list of at most MaxParts parts. The parts must stay as they
	// are until Flush returns. An error is about this packet alone and it was not queued; ErrNoGSO asks for it again,
	// segment by segment. net.ErrClosed is final. A writer may write at once instead of queueing.
	Queue(h VNet, parts [][]byte) error
	// Flush returns when everything queued was written or refused, with the number refused and why the first one was.
	// Refusals that Queue has already returned are not among them.
	Flush() (failed int, err error)
}

// MaxParts is the longest gather list that every InnerWriter takes.
const MaxParts = 1000

// CanGSO says whether w takes super-packets of kind t just now. What was on at the start may turn off when the kernel
// refuses; nothing turns on again. Ask before building one; a writer that does not say takes all.
func CanGSO(w InnerWriter, t GSOType) bool {
	if c, ok := w.(interface{ CanGSO(GSOType) bool }); ok {
		return c.CanGSO(t)
	}
	return true
}

// KernelDrops says how many packets the kernel has dropped before an Inner or Outer read them, because its queue or buffer was
// full. ok is false where nothing counts them. It costs a system call or two.
func KernelDrops(l any) (n uint64, ok bool) {
	if c, ok := l.(interface{ KernelDrops() uint64 }); ok {
		return c.KernelDrops(), true
	}
	return 0, false
}

// Outer is the side of ESP packets: a UDP socket, a raw socket or their double. Readers and writers belong to one
// goroutine each; all else may be called from any. Buffers begin at the SPI (for UDP also: at the non-ESP marker or a
// keepalive, RFC 3948).
type Outer interface {
	NewReader() OuterReader
	NewWriter() OuterWriter
	// Notices gives what routers and the own host say about packets sent. It is bounded; when nobody listens the newest
	// are dropped. Close closes it.
	Notices() <-chan Notice
	Name() string          // "udp4", "udp6", "esp4", "esp6", ...
	Local() netip.AddrPort // as bound; port 0 without UDP
	MaxSegs() int          // datagrams that one TxMsg should hold; 1 where each is sent alone anyhow
	MaxBytes() int         // bytes that one TxMsg should hold
	Offloads() string      // what is in use, for people, and why something is not
	StopReading()          // readers get net.ErrClosed from now on, also those who wait; writers go on
	Close() error          // wakes everyone who waits; they get net.ErrClosed
}

// RxMsg is one message received.
type RxMsg struct {
	Buf     []byte         // may be changed; not longer than what was received
	SegSize int            // merged by GRO: datagrams of SegSize bytes, the last may be shorter; 0 = one datagram
	From    netip.AddrPort // port 0 without UDP
	To      netip.Addr     // the own address it came to
	TOS     uint8          // outer TOS byte or traffic class: DSCP and ECN
}

// Datagrams is the number of datagrams in m.
func (m *RxMsg) Datagrams() int { return datagrams(len(m.Buf), m.SegSize) }

// RxBatch is what one Recv fills. Its buffers are the reader's or the kernel's: they are valid until the next Recv with
// the same batch, so a reader of provided buffers (io_uring, AF_XDP) gives them back there.
type RxBatch struct {
	Msgs  []RxMsg // its capacity is what one Recv can bring
	State any     // of the reader that made it
}

// OuterReader receives.
type OuterReader interface {
	// NewBatch makes a batch with its fixed memory. Make them at the start.
	NewBatch() *RxBatch
	// Recv fills b with at least one message. wait says whether to wait for one; otherwise ErrAgain comes when none is
	// there. b must be of this reader's NewBatch.
	Recv(b *RxBatch, wait bool) error
}

// TxMsg is one message to send: one datagram, or several of SegSize bytes (the last may be shorter) that lie back to back.
type TxMsg struct {
	To      netip.AddrPort // port ignored without UDP
	From    netip.Addr     // source address; the zero Addr leaves it to the socket and the routing
	Buf     []byte
	SegSize int   // 0 = one datagram
	TOS     uint8 // outer TOS byte or traffic class
	// Fragment: the outer packets may be fragmented, here and by IPv4 routers (DF is clear). Otherwise one that is larger
	// than the interface's MTU fails with ErrTooBig; what the path beyond carries is for who reads Notices. Turning it costs a system call, and it is a setting of the socket: of the
	// writers of an Outer only one may send messages with it.
	Fragment bool
	Err      error // out: nil, or a sentinel: why the first of the Failed failed
	Failed   int   // out: how many of its datagrams were not sent
}

// Datagrams is the number of datagrams in m.
func (m *TxMsg) Datagrams() int { return datagrams(len(m.Buf), m.SegSize) }

func datagrams(n, seg int) int {
	if seg <= 0 || n <= seg {
		return 1
	}
	return (n + seg - 1) / seg
}

// OuterWriter sends.
type OuterWriter interface {
	// Send sends all messages in order, and waits while the socket is full. It sets Err and Failed of each. It fails
	// only with net.ErrClosed; the messages not sent have that as Err.
	Send(msgs []TxMsg) error
}

// NoticeKind is what a Notice is about.
type NoticeKind uint8

const (
	NoticeOther       NoticeKind = iota
	NoticeTooBig                 // fragmentation needed, packet too big, or larger than the own device's MTU: see MTU
	NoticeUnreachable            // host or network not reachable
	NoticeRefused                // port or protocol not reachable: nobody listens
	NoticeForbidden              // administratively prohibited
	NoticeExpired                // TTL or hop limit, or reassembly time, exceeded

	noticeKinds
)

var noticeNames = [noticeKinds]string{
	NoticeOther:       "other",
	NoticeTooBig:      "too big",
	NoticeUnreachable: "unreachable",
	NoticeRefused:     "refused",
	NoticeForbidden:   "forbidden",
	NoticeExpired:     "expired",
}

func (k NoticeKind) String() string {
	if k < noticeKinds {
		return noticeNames[k]
	}
	return "notice(" + strconv.Itoa(int(k)) + ")"
}

// Notice is one answer of the network about a packet that was sent. It is not authenticated: believe only one that quotes
// a known SPI (RFC 4301, 8.2) and a sequence number just sent, and a smaller MTU only down to the protocol's minimum.
type Notice struct {
	Kind  NoticeKind
	MTU   int            // of the next hop, outer IP packet, bytes; 0 when not said
	Peer  netip.AddrPort // where the packet was sent to
	SPI   uint32         // of the packet quoted; 0 when the quotation is too short to hold it and Seq
	Seq   uint32         // the low half of the quoted packet's sequence number
	From  netip.Addr     // who says so; not valid when the own host does
	Local bool           // the own host says so: it is to be believed
}
