package traffic

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"culvert/test/lab"
)

const (
	sendBatch  = 64                     // packets per sendmmsg
	quantum    = 100 * time.Microsecond // how often a paced sender wakes
	senderNice = -10                    // of its thread
	// maxBehind is how far a paced sender may fall behind its schedule and still catch up. What it lost beyond that, to a busy
	// machine, it forgoes: a burst to make up for it would overrun queues that the rate as such does not.
	maxBehind = time.Millisecond
)

// Sender floods UDP packets out of an interface, through a packet socket: no socket buffer, no route look-up, no neighbour.
type Sender struct {
	fd     int
	tmpl   *template
	frames [sendBatch][]byte
	iovs   [sendBatch]unix.Iovec
	msgs   [sendBatch]mmsghdr
	sent   atomic.Uint64
}

// NewSender makes a sender of IP packets of size bytes from one address and port to another, leaving through from
// towards the neighbour next.
func NewSender(from, next *lab.End, src, dst netip.AddrPort, size int) (*Sender, error) {
	s := &Sender{}
	var err error
	s.tmpl, err = newTemplate(flow{from.MAC, next.MAC, src, dst}, size)
	if err != nil {
		return nil, err
	}
	// Protocol 0: it sends and receives nothing.
	if s.fd, err = from.NS.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, err
	}
	if err := unix.Bind(s.fd, &unix.SockaddrLinklayer{Ifindex: from.Index}); err != nil {
		unix.Close(s.fd)
		return nil, fmt.Errorf("packet socket on %s in %s: %w", from.Name, from.NS.Name(), os.NewSyscallError("bind", err))
	}
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20) // merely fewer waits
	for i := range s.frames {
		s.frames[i] = append([]byte(nil), s.tmpl.frame...)
		s.iovs[i].Base = unsafe.SliceData(s.frames[i])
		s.iovs[i].SetLen(len(s.frames[i]))
		s.msgs[i].hdr.Iov = &s.iovs[i]
		s.msgs[i].hdr.SetIovlen(1)
	}
	return s, nil
}

// Sent is how many packets the run under way, or the last one, has handed to the kernel.
func (s *Sender) Sent() uint64 { return s.sent.Load() }

// Run sends for the duration at a rate in packets/s, or as fast as it goes if that is 0, or until ctx ends. Packets are
// numbered from 0. It returns how many were sent, and in what time. It does not allocate.
func (s *Sender) Run(ctx context.Context, trial uint16, rate float64, d time.Duration) (sent uint64, took time.Duration, err error) {
	// The thread sleeps to the microsecond for the time being, and goes before what it drives: a generator in another machine would
	// not have to share processors with it either.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if was, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil { // 0 is this thread; 20 minus the nice value
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, senderNice)
		defer unix.Setpriority(unix.PRIO_PROCESS, 0, 20-was)
	}
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // 0: the default again

	s.sent.Store(0)
	stamp := Stamp{Trial: trial}
	start := monotonic()
	end := start + int64(d)
	schedule := start // when packet 0 was due, moved on by what is forgone
	for now := start; now < end && ctx.Err() == nil; now = monotonic() {
		n := sendBatch
		if rate > 0 {
			if behind := now - schedule - int64(float64(sent)/rate*1e9); behind > int64(maxBehind) {
				schedule += behind - int64(maxBehind)
			}
			due := int64(float64(now-schedule)*rate/1e9) + 1 - int64(sent) // the first is due at once
			if due <= 0 {
				nap(quantum)
				continue
			}
			n = min(n, int(due))
		}
		stamp.Sent = now
		for i := range n {
			stamp.Number = sent + uint64(i)
			s.tmpl.put(s.frames[i], stamp)
		}
		k, errno := sendmmsg(s.fd, s.msgs[:n], unix.MSG_DONTWAIT)
		switch errno {
		case 0:
			sent += uint64(k)
			s.sent.Store(sent)
		case unix.EAGAIN, unix.ENOBUFS, unix.EINTR:
			nap(quantum / 2)
		default:
			return sent, time.Duration(monotonic() - start), fmt.Errorf("flood: %w", os.NewSyscallError("sendmmsg", errno))
		}
	}
	return sent, time.Duration(monotonic() - start), nil
}

// nap sleeps on the thread itself. It is too short for the scheduler to be told: its monitor would take the processor away and give
// it back at every turn, which costs more than the sleep saves. A signal may end it early.
func nap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// Close closes the socket.
func (s *Sender) Close() error {
	return unix.Close(s.fd)
}
