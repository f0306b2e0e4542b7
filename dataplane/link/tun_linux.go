package link

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// TUNOptions switch off what a kernel gets wrong. Everything that the kernel offers is used otherwise.
type TUNOptions struct {
	NoTSO bool // no TCP super-packets, neither way; with it no UDP ones either, and the kernel finishes all checksums
	NoUSO bool // no UDP super-packets, neither way
}

const (
	tunFirst    = 64 // where a packet begins in the reading buffer; its virtio_net_hdr lies just before
	maxPacket   = 65535
	gsoPatience = 4 // refusals in a row after which super-packets of that kind are given up
)

// OpenTUN makes the TUN device name and sets its MTU in bytes (68 to 65,535). It is left down and without addresses. A "%d"
// in name is numbered by the kernel.
//
// wireguard's package makes it, which asks for the virtio_net_hdr and for TSO and USO; the packets go past that package.
func OpenTUN(name string, mtu int, opts TUNOptions) (Inner, error) {
	if mtu < 68 || mtu > maxPacket {
		return nil, fmt.Errorf("link: TUN device %q: MTU %d is not within 68 and %d", name, mtu, maxPacket)
	}
	dev, err := tun.CreateTUN(name, mtu)
	if err != nil {
		return nil, tunOpenError(name, err)
	}
	t := &tunLink{dev: dev, opts: opts, drained: make(chan struct{})}
	t.mtu.Store(int64(mtu))
	err = t.setUp()
	go t.drain()
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("link: TUN device %q: %w", name, err)
	}
	return t, nil
}

func tunOpenError(name string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, unix.EPERM):
		hint = " (run as root or with CAP_NET_ADMIN)"
	case errors.Is(err, unix.EBUSY):
		hint = " (another process holds it)"
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), strings.Contains(err.Error(), "does not exist"):
		hint = " (load the module tun, or let the container have /dev/net/tun)"
	case errors.Is(err, unix.EINVAL):
		hint = " (a name has at most 15 characters, and must not be that of another kind of device)"
	}
	return fmt.Errorf("link: TUN device %q: %w%s", name, err, hint)
}

type tunLink struct {
	dev     tun.Device
	rc      syscall.RawConn
	nlMu    sync.Mutex
	nl      *netlink.Handle // of the network namespace in which the device was made; nil when closed
	name    string
	opts    TUNOptions
	mtu     atomic.Int64
	uso     bool
	down    atomic.Bool // seen down; until something says otherwise
	closed  atomic.Bool
	deaf    atomic.Bool // StopReading
	woken   atomic.Bool // Wake, and nobody has seen it yet
	drained chan struct{}
	once    sync.Once

	gso [gsoTypes]struct {
		off     atomic.Bool
		refused atomic.Uint32 // in a row
		why     atomic.Uint32 // errno; 0 = switched off by option or not offered
	}
}

// setUp takes over what CreateTUN has made.
func (t *tunLink) setUp() (err error) {
	if t.name, err = t.dev.Name(); err != nil {
		return err
	}
	if t.rc, err = t.dev.File().SyscallConn(); err != nil {
		return err
	}
	if t.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	if t.opts.NoTSO {
		t.opts.NoUSO = true
		t.gso[GSOTCP4].off.Store(true)
		t.gso[GSOTCP6].off.Store(true)
	}
	// CreateTUN has set the offloads already, but does not say which were taken.
	const tso = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	set := func(flags int) (err error) {
		if cerr := t.rc.Control(func(fd uintptr) { err = unix.IoctlSetInt(int(fd), unix.TUNSETOFFLOAD, flags) }); cerr != nil {
			return cerr
		}
		return err
	}
	switch {
	case t.opts.NoTSO:
		err = set(0)
	case t.opts.NoUSO:
		err = set(tso)
	default:
		t.uso = set(tso|unix.TUN_F_USO4|unix.TUN_F_USO6) == nil // Linux 6.2
	}
	if err != nil {
		return fmt.Errorf("set offloads: %w", err)
	}
	t.gso[GSOUDPL4].off.Store(!t.uso)
	return nil
}

// drain empties the events of wireguard's goroutines, which would block otherwise, and learns from them.
func (t *tunLink) drain() {
	defer close(t.drained)
	for e := range t.dev.Events() {
		if e&tun.EventUp != 0 {
			t.down.Store(false)
		}
		if e&tun.EventMTUUpdate != 0 {
			if attrs, err := t.attrs(); err == nil {
				t.mtu.Store(int64(attrs.MTU))
			}
		}
	}
}

func (t *tunLink) attrs() (*netlink.LinkAttrs, error) {
	t.nlMu.Lock()
	defer t.nlMu.Unlock()
	if t.nl == nil {
		return nil, net.ErrClosed
	}
	l, err := t.nl.LinkByName(t.name)
	if err != nil {
		return nil, err
	}
	return l.Attrs(), nil
}

func (t *tunLink) Name() string { return t.name }
func (t *tunLink) MTU() int     { return int(t.mtu.Load()) }

func (t *tunLink) Offloads() string {
	if t.opts.NoTSO {
		return "none (switched off)"
	}
	s := "csum tso4 tso6"
	switch {
	case t.uso:
		s += " uso"
	case t.opts.NoUSO:
		s += "; no uso (switched off)"
	default:
		s += "; no uso (needs Linux 6.2)"
	}
	for i := range t.gso {
		if e := t.gso[i].why.Load(); e != 0 {
			s += fmt.Sprintf("; no %v super-packets to the host (the kernel refuses them: %v)", GSOType(i), unix.Errno(e))
		}
	}
	return s
}

// KernelDrops is how many packets for the gateway the kernel has dropped because the device's queue was full.
func (t *tunLink) KernelDrops() uint64 {
	if attrs, err := t.attrs(); err == nil && attrs.Statistics != nil {
		return attrs.Statistics.TxDropped
	}
	return 0
}

func (t *tunLink) StopReading() {
	t.deaf.Store(true)
	_ = t.dev.File().SetReadDeadline(longAgo) // wakes who waits in the poller
}

func (t *tunLink) Wake() {
	t.woken.Store(true)
	_ = t.dev.File().SetReadDeadline(longAgo)
}

// wakened is for a reader whose waiting has ended before a packet came, or is not to begin. The deadline must not stand, or
// nobody could wait any more; but StopReading's must, which may have come at the same time.
func (t *tunLink) wakened() error {
	t.woken.Store(false)
	_ = t.dev.File().SetReadDeadline(time.Time{})
	if t.closed.Load() || t.deaf.Load() {
		return net.ErrClosed
	}
	return ErrAgain
}

func (t *tunLink) Close() (err error) {
	t.once.Do(func() {
		t.closed.Store(true)
		// The package wakes its listener through a pipe. If a message from the kernel has just done so, the listener may have closed
		// that first, and there is nobody left to wake; the device is closed all the same.
		if err = t.dev.Close(); errors.Is(err, unix.EPIPE) || errors.Is(err, os.ErrClosed) {
			err = nil
		}
		<-t.drained
		t.nlMu.Lock()
		defer t.nlMu.Unlock()
		if t.nl != nil {
			t.nl.Close()
			t.nl = nil
		}
	})
	return err
}

// fail makes an error of one that the poller gave.
func (t *tunLink) fail(err error) error {
	if t.closed.Load() || errors.Is(err, syscall.EBADF) {
		return net.ErrClosed
	}
	return fmt.Errorf("link: TUN device %q: %w", t.name, err)
}

func (t *tunLink) NewReader() InnerReader {
	r := &tunReader{t: t, buf: make([]byte, tunFirst+maxPacket+guard)}
	r.once = func(fd uintptr) { r.n, r.errno = readRaw(fd, r.buf[tunFirst-vnetLen:tunFirst+maxPacket]) }
	r.until = func(fd uintptr) bool { r.once(fd); return r.errno != unix.EAGAIN }
	return r
}

type tunReader struct {
	t     *tunLink
	buf   []byte
	n     int
	errno unix.Errno
	once  func(uintptr)
	until func(uintptr) bool
}

func (r *tunReader) Next(wait bool) ([]byte, VNet, error) {
	for {
		if r.t.deaf.Load() {
			return nil, VNet{}, net.ErrClosed
		}
		if err := r.t.rc.Control(r.once); err != nil {
			return nil, VNet{}, r.t.fail(err)
		}
		if r.errno == unix.EAGAIN {
			if !wait {
				return nil, VNet{}, ErrAgain
			}
			if r.t.woken.Load() {
				return nil, VNet{}, r.t.wakened()
			}
			if err := r.t.rc.Read(r.until); err != nil {
				if r.t.closed.Load() || r.t.deaf.Load() {
					return nil, VNet{}, net.ErrClosed
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					return nil, VNet{}, r.t.wakened()
				}
				// The poller gives up on a device that has been deleted. Reading says so more clearly.
				if cerr := r.t.rc.Control(r.once); cerr != nil || r.errno == unix.EAGAIN {
					return nil, VNet{}, r.t.fail(err)
				}
			}
		}
		switch r.errno {
		case 0:
			if r.n < vnetLen+1 {
				return nil, VNet{}, ErrInvalid
			}
			var h VNet
			if !h.decode((*[vnetLen]byte)(r.buf[tunFirst-vnetLen:])) {
				return nil, VNet{}, ErrUnknownGSO
			}
			return r.buf[tunFirst : tunFirst-vnetLen+r.n], h, nil
		case unix.EBADFD, unix.ENODEV:
			return nil, VNet{}, ErrGone
		case unix.EINTR, unix.EAGAIN:
		default:
			return nil, VNet{}, r.t.fail(r.errno)
		}
	}
}

func (t *tunLink) NewWriter() InnerWriter {
	w := &tunWriter{t: t}
	setIovec(&w.iov[0], w.hdr[:])
	w.once = func(fd uintptr) { w.errno = writevRaw(fd, w.iov[:w.parts]) }
	w.until = func(fd uintptr) bool { w.once(fd); return w.errno != unix.EAGAIN }
	return w
}

// tunWriter writes at once: a TUN device takes one packet per system call anyhow.
type tunWriter struct {
	t     *tunLink
	hdr   [vnetLen]byte
	iov   [1 + MaxParts]unix.Iovec
	parts int
	errno unix.Errno
	once  func(uintptr)
	until func(uintptr) bool
}

func (w *tunWriter) CanGSO(t GSOType) bool { return t < gsoTypes && !w.t.gso[t].off.Load() }

func (w *tunWriter) Flush() (int, error) { return 0, nil }

func (w *tunWriter) Queue(h VNet, parts [][]byte) error {
	if len(parts) == 0 || len(parts) > MaxParts || h.GSO >= gsoTypes {
		return ErrInvalid
	}
	gso := &w.t.gso[h.GSO]
	if gso.off.Load() {
		return ErrNoGSO
	}
	h.encode(&w.hdr)
	for i, p := range parts {
		setIovec(&w.iov[1+i], p)
	}
	w.parts = 1 + len(parts)
	for {
		if err := w.t.rc.Control(w.once); err != nil {
			return w.t.fail(err)
		}
		if w.errno == unix.EAGAIN {
			if err := w.t.rc.Write(w.until); err != nil {
				return w.t.fail(err)
			}
		}
		switch w.errno {
		case 0:
			if h.GSO != GSONone && gso.refused.Load() != 0 {
				gso.refused.Store(0)
			}
			return nil
		case unix.EINTR, unix.EAGAIN:
			continue
		case unix.EBADFD, unix.ENODEV:
			return ErrGone
		case unix.EIO:
			if w.t.isDown() {
				return ErrDown
			}
			return w.refused(h.GSO)
		case unix.EINVAL:
			return w.refused(h.GSO)
		case unix.ENOBUFS, unix.ENOMEM:
			return ErrNoBuffers
		}
		return ErrOther
	}
}

// refused is after a write that the kernel finds fault with. One super-packet may be at fault itself; when they are
// refused in a row, the kernel is.
func (w *tunWriter) refused(t GSOType) error {
	if t == GSONone {
		return ErrInvalid
	}
	gso := &w.t.gso[t]
	if gso.refused.Add(1) >= gsoPatience {
		gso.why.Store(uint32(w.errno))
		gso.off.Store(true)
	}
	return ErrNoGSO
}

// isDown asks whether EIO means that the interface is down. The answer "down" is kept until an event says otherwise.
func (t *tunLink) isDown() bool {
	if t.down.Load() {
		return true
	}
	attrs, err := t.attrs()
	down := err == nil && attrs.Flags&net.FlagUp == 0
	if down {
		t.down.Store(true)
	}
	return down
}
