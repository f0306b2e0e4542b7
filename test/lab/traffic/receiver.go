package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"culvert/test/lab"
)

const (
	recvBatch  = 64
	recvBuffer = 64 << 10 // UDP_GRO hands over up to 64 KB of datagrams at a time
	sampleOne  = 16       // every so many packets' one-way latency is recorded
)

// Received is what a receiver has counted of one trial.
type Received struct {
	Unique     uint64
	Duplicates uint64
	Reordered  uint64 // arrived after a packet with a higher number
	Latency    Latency
}

// Receiver counts flood packets at their destination.
type Receiver struct {
	conn *net.UDPConn
	raw  interface {
		Read(func(fd uintptr) (done bool)) error
	}
	bufs [recvBatch][]byte
	ctl  [recvBatch][]byte
	iovs [recvBatch]unix.Iovec
	msgs [recvBatch]mmsghdr
	done chan struct{}

	mu      sync.Mutex
	trial   uint16
	seen    []uint64 // bit per number
	next    uint64   // highest number seen, plus one
	count   Received
	latency *histogram
}

// NewReceiver binds a UDP socket in the namespace and starts counting. The port is chosen if it is 0.
func NewReceiver(ctx context.Context, ns *lab.Namespace, addr netip.AddrPort) (*Receiver, error) {
	pc, err := ns.ListenPacket(ctx, "udp", addr.String())
	if err != nil {
		return nil, err
	}
	r := &Receiver{conn: pc.(*net.UDPConn), done: make(chan struct{}), latency: newHistogram()}
	raw, err := r.conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, pc.Close())
	}
	r.raw = raw
	err = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		// Without it the kernel takes apart what a gateway put together, to the same result.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, 1)
	})
	if err != nil {
		return nil, errors.Join(err, pc.Close())
	}
	for i := range r.msgs {
		r.bufs[i] = make([]byte, recvBuffer)
		r.ctl[i] = make([]byte, unix.CmsgSpace(4))
		r.iovs[i].Base = unsafe.SliceData(r.bufs[i])
		r.iovs[i].SetLen(recvBuffer)
		r.msgs[i].hdr.Iov = &r.iovs[i]
		r.msgs[i].hdr.SetIovlen(1)
		r.msgs[i].hdr.Control = unsafe.SliceData(r.ctl[i])
	}
	go r.loop()
	return r, nil
}

// Addr is where it listens.
func (r *Receiver) Addr() netip.AddrPort { return r.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// Begin forgets the last trial and counts packets of the given one, up to limit of them.
func (r *Receiver) Begin(trial uint16, limit uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if words := int(limit/64) + 1; words > cap(r.seen) {
		r.seen = make([]uint64, words)
	} else {
		r.seen = r.seen[:words]
		clear(r.seen)
	}
	r.trial, r.next, r.count = trial, 0, Received{}
	r.latency.reset()
}

// Count is what has arrived of the trial so far.
func (r *Receiver) Count() Received {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.count
	c.Latency = r.latency.summary()
	return c
}

// unique is Count without the latency, cheap enough to be asked often.
func (r *Receiver) unique() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count.Unique
}

func (r *Receiver) loop() {
	defer close(r.done)
	for {
		var n int
		var errno unix.Errno
		err := r.raw.Read(func(fd uintptr) bool {
			for i := range r.msgs {
				r.msgs[i].hdr.SetControllen(len(r.ctl[i]))
			}
			n, errno = recvmmsg(int(fd), r.msgs[:], unix.MSG_DONTWAIT)
			return errno != unix.EAGAIN
		})
		if err != nil {
			return // closed
		}
		if errno != 0 {
			continue // an ICMP error that belongs to no one, or a signal
		}
		now := monotonic()
		r.mu.Lock()
		for i := range n {
			p := r.bufs[i][:r.msgs[i].len]
			seg := segmentSize(&r.msgs[i].hdr, r.ctl[i])
			if seg <= 0 {
				seg = len(p)
			}
			for len(p) > 0 {
				m := min(seg, len(p))
				r.take(p[:m], now)
				p = p[m:]
			}
		}
		r.mu.Unlock()
	}
}

// take counts one datagram.
func (r *Receiver) take(p []byte, now int64) {
	s, ok := parseStamp(p)
	if !ok || s.Trial != r.trial || s.Number/64 >= uint64(len(r.seen)) {
		return // a straggler of the last trial, or a stranger
	}
	word, bit := &r.seen[s.Number/64], uint64(1)<<(s.Number%64)
	if *word&bit != 0 {
		r.count.Duplicates++
		return
	}
	*word |= bit
	r.count.Unique++
	if s.Number < r.next {
		r.count.Reordered++
	} else {
		r.next = s.Number + 1
	}
	if r.count.Unique%sampleOne == 0 {
		r.latency.record(time.Duration(now - s.Sent))
	}
}

// segmentSize reads the UDP_GRO control message: how long each datagram in the buffer is, but the last. 0: there is one.
func segmentSize(h *unix.Msghdr, ctl []byte) int {
	if int(h.Controllen) < unix.CmsgSpace(4) {
		return 0
	}
	c := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(ctl)))
	if c.Level != unix.SOL_UDP || c.Type != unix.UDP_GRO {
		return 0
	}
	return int(binary.NativeEndian.Uint32(ctl[unix.CmsgLen(0):]))
}

// Close stops counting.
func (r *Receiver) Close() error {
	err := r.conn.Close()
	<-r.done
	if err != nil {
		return fmt.Errorf("flood receiver: %w", err)
	}
	return nil
}
