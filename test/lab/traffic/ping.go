package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"culvert/test/lab"
)

// PingOptions say where echoes go and how often.
type PingOptions struct {
	From     *lab.Namespace
	Src, Dst netip.Addr
	Interval time.Duration // from a reply (or its absence) to the next request
	Duration time.Duration
	Payload  int           // bytes behind the ICMP header
	Timeout  time.Duration // an echo not back by then is lost
}

// PingResult is the round trips of a train of echoes.
type PingResult struct {
	Sent, Received uint64
	RTT            Latency
}

const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// Ping sends ICMP echo requests one at a time and records the round trips as ping(8) does: from just before sending to the kernel's receive
// timestamp.
func Ping(ctx context.Context, o PingOptions) (PingResult, error) {
	p, err := newPinger(o)
	if err != nil {
		return PingResult{}, err
	}
	defer p.close()
	h := newHistogram()
	var r PingResult
	for end := time.Now().Add(o.Duration); time.Now().Before(end); {
		if err := ctx.Err(); err != nil {
			return r, context.Cause(ctx)
		}
		r.Sent++
		rtt, err := p.echo(uint16(r.Sent))
		switch {
		case err == nil:
			r.Received++
			h.record(rtt)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return r, fmt.Errorf("ping: %w", err)
		}
		if err := sleep(ctx, o.Interval); err != nil {
			return r, err
		}
	}
	r.RTT = h.summary()
	if r.Received == 0 {
		return r, fmt.Errorf("ping: %w: %d echoes sent to %v", ErrNoTraffic, r.Sent, o.Dst)
	}
	return r, nil
}

// Reach sends echoes until one comes back. It returns ErrNoTraffic if none does in time.
func Reach(ctx context.Context, o PingOptions) error {
	p, err := newPinger(o)
	if err != nil {
		return err
	}
	defer p.close()
	for end, seq := time.Now().Add(o.Duration), uint16(1); ; seq++ {
		_, err := p.echo(seq)
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w from %v in %v (%v)", ErrNoTraffic, o.Dst, o.Duration, err)
		}
		if err := sleep(ctx, o.Interval); err != nil {
			return err
		}
	}
}

type pinger struct {
	fd      int
	to      unix.Sockaddr
	v6      bool
	id      uint16
	timeout time.Duration
	out     []byte
	in      []byte
	oob     []byte
}

func newPinger(o PingOptions) (*pinger, error) {
	p := &pinger{v6: o.Dst.Is6(), id: uint16(os.Getpid()), timeout: o.Timeout, out: make([]byte, 8+o.Payload), in: make([]byte, 128+o.Payload), oob: make([]byte, 128)}
	domain, proto := unix.AF_INET, unix.IPPROTO_ICMP
	var from unix.Sockaddr = &unix.SockaddrInet4{Addr: as4(o.Src)}
	p.to = &unix.SockaddrInet4{Addr: as4(o.Dst)}
	if p.v6 {
		domain, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
		from, p.to = &unix.SockaddrInet6{Addr: o.Src.As16()}, &unix.SockaddrInet6{Addr: o.Dst.As16()}
	}
	var err error
	if p.fd, err = o.From.Socket(domain, unix.SOCK_RAW, proto); err != nil {
		return nil, err
	}
	err = errors.Join(
		os.NewSyscallError("bind", unix.Bind(p.fd, from)),
		os.NewSyscallError("SO_TIMESTAMPNS", unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)),
	)
	if err != nil {
		p.close()
		return nil, fmt.Errorf("ping: %w", err)
	}
	return p, nil
}

func as4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}

func (p *pinger) close() { unix.Close(p.fd) }

// echo sends one request and waits for its reply. Without one in time the error is os.ErrDeadlineExceeded.
func (p *pinger) echo(seq uint16) (time.Duration, error) {
	clear(p.out[:8])
	p.out[0] = echoRequest4
	if p.v6 {
		p.out[0] = echoRequest6
	}
	binary.BigEndian.PutUint16(p.out[4:], p.id)
	binary.BigEndian.PutUint16(p.out[6:], seq)
	if !p.v6 { // the kernel writes that of ICMPv6, which covers addresses
		binary.BigEndian.PutUint16(p.out[2:], checksum(p.out))
	}
	start := time.Now()
	if err := unix.Sendto(p.fd, p.out, 0, p.to); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	for {
		left := p.timeout - time.Since(start)
		if left <= 0 {
			return 0, os.ErrDeadlineExceeded
		}
		tv := unix.NsecToTimeval(max(int64(left), int64(time.Microsecond)))
		if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return 0, os.NewSyscallError("SO_RCVTIMEO", err)
		}
		n, oobn, _, _, err := unix.Recvmsg(p.fd, p.in, p.oob, 0)
		switch {
		case err == unix.EAGAIN:
			return 0, os.ErrDeadlineExceeded
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, os.NewSyscallError("recvmsg", err)
		}
		if !p.isReply(p.in[:n], seq) {
			continue
		}
		at, err := timestamp(p.oob[:oobn])
		if err != nil {
			return 0, err
		}
		return at.Sub(start.Round(0)), nil // Round: without the monotonic reading, which the kernel's has not
	}
}

// isReply looks for the echo reply; a raw IPv4 socket hands the IP header over as well.
func (p *pinger) isReply(b []byte, seq uint16) bool {
	want := byte(echoReply6)
	if !p.v6 {
		want = echoReply4
		if len(b) < 20 || int(b[0]&15)*4 > len(b) {
			return false
		}
		b = b[int(b[0]&15)*4:]
	}
	return len(b) >= 8 && b[0] == want && b[1] == 0 && binary.BigEndian.Uint16(b[4:]) == p.id && binary.BigEndian.Uint16(b[6:]) == seq
}

func timestamp(oob []byte) (time.Time, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Time{}, err
	}
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_TIMESTAMPNS {
			continue
		}
		// A struct timespec: two longs.
		switch ne := binary.NativeEndian; len(m.Data) {
		case 16:
			return time.Unix(int64(ne.Uint64(m.Data)), int64(ne.Uint64(m.Data[8:]))), nil
		case 8:
			return time.Unix(int64(ne.Uint32(m.Data)), int64(ne.Uint32(m.Data[4:]))), nil
		}
	}
	return time.Time{}, errors.New("the kernel gave no receive timestamp")
}

// checksum is RFC 1071's over b.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
