package divert

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Offsets within struct seccomp_data: the number, the architecture, the instruction pointer, and six arguments of 64 bits.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16
)

// Constants of the socket interface that are the same on every architecture, of linux/netlink.h, linux/udp.h and linux/in.h.
const (
	solNetlink = 270
	solUDP     = 17
	solIP      = 0
	solIPv6    = 41

	udpEncap       = 100
	ipXfrmPolicy   = 17
	ipv6XfrmPolicy = 35

	netlinkXfrm = 6
)

// Lengths that a program may give for an address. A sockaddr_nl has 12 bytes; the others are IPv4's, IPv6's, and
// sockaddr_storage's, which may be either and also a netlink address.
const (
	lenNetlink = 12
	lenInet4   = 16
	lenInet6   = 28
	lenStorage = 128
)

// program builds a filter. Jumps are by label, forwards only, as BPF wants them.
type program struct {
	code  []unix.SockFilter
	fixes []fix
	at    map[string]int
}

type fix struct {
	ins         int
	yes, no     string // "" = the next instruction
	conditional bool
}

const (
	opLoad = 0x20 // BPF_LD | BPF_W | BPF_ABS
	opJeq  = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	opJa   = 0x05 // BPF_JMP | BPF_JA
	opRet  = 0x06 // BPF_RET | BPF_K
)

func (p *program) load(off uint32) { p.code = append(p.code, unix.SockFilter{Code: opLoad, K: off}) }
func (p *program) ret(v uint32)    { p.code = append(p.code, unix.SockFilter{Code: opRet, K: v}) }
func (p *program) label(l string)  { p.at[l] = len(p.code) }

func (p *program) jeq(k uint32, yes, no string) {
	p.fixes = append(p.fixes, fix{len(p.code), yes, no, true})
	p.code = append(p.code, unix.SockFilter{Code: opJeq, K: k})
}

func (p *program) jump(l string) {
	p.fixes = append(p.fixes, fix{len(p.code), l, "", false})
	p.code = append(p.code, unix.SockFilter{Code: opJa})
}

func (p *program) link() error {
	for _, f := range p.fixes {
		dist := func(l string) (int, error) {
			if l == "" {
				return 0, nil
			}
			to, ok := p.at[l]
			if !ok || to <= f.ins {
				return 0, fmt.Errorf("filter: no label %q after instruction %d", l, f.ins)
			}
			return to - f.ins - 1, nil
		}
		yes, err := dist(f.yes)
		if err != nil {
			return err
		}
		no, err := dist(f.no)
		if err != nil {
			return err
		}
		if !f.conditional {
			p.code[f.ins].K = uint32(yes)
			continue
		}
		if yes > 255 || no > 255 {
			return fmt.Errorf("filter: a jump of %d instructions does not fit into a byte", max(yes, no))
		}
		p.code[f.ins].Jt, p.code[f.ins].Jf = uint8(yes), uint8(no)
	}
	return nil
}

// filter generates the seccomp program for one architecture. It decides by a call's number and arguments alone, never by a
// descriptor's number: what a descriptor is, the supervisor finds out.
//
//	socket(AF_NETLINK, *, NETLINK_XFRM)               notify
//	bind(*, *, 12 | 16 | 28 | 128)                    notify
//	connect(*, *, 12)                                 notify
//	getsockname                                       notify
//	setsockopt(*, SOL_NETLINK | SOL_UDP+UDP_ENCAP)    notify
//	setsockopt(*, IP_XFRM_POLICY | IPV6_XFRM_POLICY)  0
//	getsockopt(*, SOL_NETLINK)                        notify
//	with compat: recvfrom(…, name ≠ NULL), recvmsg    notify
//	all else, and all of another architecture         allow
//
// The arguments of socketcall lie in memory, where BPF cannot see them, so every such call with one of these numbers is
// notified, and the supervisor lets go on what does not concern it.
func (a *arch) filter(compat bool) ([]unix.SockFilter, error) {
	p := &program{at: map[string]int{}}
	low, high := uint32(0), uint32(4) // of an argument's 64 bits
	if a.order.String() == "BigEndian" {
		low, high = 4, 0
	}
	arg := func(i uint32) uint32 { return dataArgs + 8*i + low }

	p.load(dataArch)
	p.jeq(a.audit, "", "allow")
	p.load(dataNumber)
	p.jeq(a.calls[callSocket], "socket", "")
	p.jeq(a.calls[callBind], "bind", "")
	p.jeq(a.calls[callConnect], "connect", "")
	p.jeq(a.calls[callGetsockname], "notify", "")
	p.jeq(a.calls[callSetsockopt], "setsockopt", "")
	p.jeq(a.calls[callGetsockopt], "getsockopt", "")
	if compat {
		p.jeq(a.calls[callRecvfrom], "recvfrom", "")
		p.jeq(a.calls[callRecvmsg], "notify", "")
	}
	if a.multi != 0 {
		p.jeq(a.multi, "", "allow")
		p.load(arg(0))
		for c, m := range multiplexed {
			if recv := call(c) == callRecvfrom || call(c) == callRecvmsg; recv && !compat {
				continue
			}
			p.jeq(m.number, "notify", "")
		}
	}
	p.jump("allow")

	p.label("socket")
	p.load(arg(0))
	p.jeq(unix.AF_NETLINK, "", "allow")
	p.load(arg(2))
	p.jeq(netlinkXfrm, "notify", "allow")

	p.label("bind")
	p.load(arg(2))
	p.jeq(lenNetlink, "notify", "")
	p.jeq(lenInet4, "notify", "")
	p.jeq(lenInet6, "notify", "")
	p.jeq(lenStorage, "notify", "allow")

	p.label("connect")
	p.load(arg(2))
	p.jeq(lenNetlink, "notify", "allow")

	p.label("getsockopt")
	p.load(arg(1))
	p.jeq(solNetlink, "notify", "allow")

	p.label("setsockopt")
	p.load(arg(1))
	p.jeq(solNetlink, "notify", "")
	p.jeq(solUDP, "udp", "")
	p.jeq(solIP, "ip", "")
	p.jeq(solIPv6, "ipv6", "allow")
	p.label("udp")
	p.load(arg(2))
	p.jeq(udpEncap, "notify", "allow")
	p.label("ip")
	p.load(arg(2))
	p.jeq(ipXfrmPolicy, "done", "allow")
	p.label("ipv6")
	p.load(arg(2))
	p.jeq(ipv6XfrmPolicy, "done", "allow")

	if compat {
		p.label("recvfrom") // a pointer: both halves
		p.load(arg(4))
		p.jeq(0, "", "notify")
		p.load(dataArgs + 8*4 + high)
		p.jeq(0, "allow", "notify")
	}

	p.label("notify")
	p.ret(unix.SECCOMP_RET_USER_NOTIF)
	p.label("done")
	p.ret(unix.SECCOMP_RET_ERRNO)
	p.label("allow")
	p.ret(unix.SECCOMP_RET_ALLOW)
	return p.code, p.link()
}
