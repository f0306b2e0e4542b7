package link

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the packet path. They never block (the descriptors are non-blocking and the flags say so too), so
// they go past the scheduler, which saves a fifth of their price. mmsghdr, msghdr and iovec differ between 32 and 64 bits;
// x/sys has them right for every architecture.

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

func recvmmsg(fd uintptr, h []unix.Mmsghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(h))), uintptr(len(h)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), e
}

func sendmmsg(fd uintptr, h []unix.Mmsghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(h))), uintptr(len(h)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), e
}

func readRaw(fd uintptr, b []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), e
}

func writevRaw(fd uintptr, v []unix.Iovec) unix.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(v))), uintptr(len(v)))
	return e
}

func setIovec(v *unix.Iovec, b []byte) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
}

// control builds control messages. Its memory is words, because a cmsghdr must be aligned as one.
type control struct {
	buf [controlWords]uint64
	n   int
}

const (
	controlWords = 16
	controlLen   = controlWords * 8
)

// add appends a message of type T. The caller knows that it fits: three of the largest do.
func add[T any](c *control, level, kind int32, v T) {
	size := int(unsafe.Sizeof(v))
	p := unsafe.Add(unsafe.Pointer(&c.buf), c.n)
	h := (*unix.Cmsghdr)(p)
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(size))
	*(*T)(unsafe.Add(p, unix.CmsgLen(0))) = v
	c.n += unix.CmsgSpace(size)
}

// install puts what was added into h.
func (c *control) install(h *unix.Msghdr) {
	h.Control = nil
	if c.n > 0 {
		h.Control = (*byte)(unsafe.Pointer(&c.buf))
	}
	h.SetControllen(c.n)
}

// nextControl takes the first control message off b. ok is false at the end, or where it is damaged.
func nextControl(b []byte) (level, kind int32, data, rest []byte, ok bool) {
	if len(b) < unix.SizeofCmsghdr {
		return 0, 0, nil, nil, false
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(b)))
	n := int(h.Len)
	if n < unix.CmsgLen(0) || n > len(b) {
		return 0, 0, nil, nil, false
	}
	data = b[unix.CmsgLen(0):n]
	return h.Level, h.Type, data, b[min(unix.CmsgSpace(len(data)), len(b)):], true
}
