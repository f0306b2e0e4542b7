package traffic

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of sendmmsg(2); the compiler pads it as C does.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// sendmmsg and recvmmsg enter the kernel without telling the scheduler: neither waits on a non-blocking socket, and telling it
// costs about as much as a packet does.
func sendmmsg(fd int, msgs []mmsghdr, flags int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(msgs))), uintptr(len(msgs)), uintptr(flags), 0, 0)
	return int(n), errno
}

func recvmmsg(fd int, msgs []mmsghdr, flags int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(msgs))), uintptr(len(msgs)), uintptr(flags), 0, 0)
	return int(n), errno
}

var epoch = time.Now()

// monotonic is the time in ns since some moment in the past, on a clock that is never set.
func monotonic() int64 { return int64(time.Since(epoch)) }
