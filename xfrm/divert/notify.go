package divert

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The structures of linux/seccomp.h. They have the same layout for every word size, and the kernel says how large it has them.
type (
	seccompData struct {
		Nr   uint32
		Arch uint32
		IP   uint64
		Args [6]uint64
	}
	notification struct {
		ID    uint64
		PID   uint32 // of the thread
		Flags uint32
		Data  seccompData
	}
	response struct {
		ID    uint64
		Val   int64
		Error int32
		Flags uint32
	}
	addFD struct {
		ID         uint64
		Flags      uint32
		SrcFD      uint32
		NewFD      uint32
		NewFDFlags uint32
	}
	notifSizes struct{ Notif, Resp, Data uint16 }
)

// listener is the descriptor through which a filter's notifications come.
type listener struct {
	f  *os.File
	rc syscall.RawConn
}

// newListener takes over fd.
func newListener(fd int) (*listener, error) {
	if err := unix.SetNonblock(fd, true); err != nil { // for the runtime's poller; the ioctls do not look at it
		unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "seccomp listener")
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &listener{f, rc}, nil
}

// errNoTask says that the last process under the filter has ended.
var errNoTask = errors.New("the last process under this filter has ended")

// next waits for a notification. It returns errNoTask at the end, and os.ErrClosed after close.
//
// The ioctl would block whatever the descriptor's flags say, so it is called only when poll says that it need not. If the
// caller is killed between the two, the ioctl returns ENOENT.
func (l *listener) next(n *notification) error {
	var failed error
	err := l.rc.Read(func(fd uintptr) bool {
		for {
			p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if _, err := unix.Poll(p[:], 0); err != nil {
				if err == unix.EINTR {
					continue
				}
				failed = err
				return true
			}
			switch {
			case p[0].Revents&unix.POLLIN != 0:
				*n = notification{}
				switch err := ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n)); err {
				case 0:
					return true
				case unix.ENOENT:
					continue
				default:
					failed = err
					return true
				}
			case p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0:
				failed = errNoTask
				return true
			}
			return false
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// do calls an ioctl of the listener with a structure of package seccomp.
func (l *listener) do(req uintptr, p unsafe.Pointer) error {
	var e unix.Errno
	if err := l.rc.Control(func(fd uintptr) { e = ioctl(fd, req, p) }); err != nil {
		return err
	}
	if e != 0 {
		return e
	}
	return nil
}

// valid reports whether the caller still waits for the answer to a notification, so that its thread's id is still its own.
func (l *listener) valid(id uint64) bool {
	return l.do(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id)) == nil
}

// answer ends a call with a value, or with an errno. It fails with ENOENT if the caller does not wait any more.
func (l *listener) answer(id uint64, val int64, e unix.Errno) error {
	r := response{ID: id, Val: val, Error: -int32(e)}
	if e != 0 {
		r.Val = 0
	}
	return l.do(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
}

// goOn has the kernel do the call as if there were no filter.
func (l *listener) goOn(id uint64) error {
	r := response{ID: id, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	return l.do(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
}

// give puts a copy of fd into the caller at its lowest free number and ends the call with that number, in one step.
func (l *listener) give(id uint64, fd int, cloexec bool) error {
	a := addFD{ID: id, Flags: unix.SECCOMP_ADDFD_FLAG_SEND, SrcFD: uint32(fd)}
	if cloexec {
		a.NewFDFlags = unix.O_CLOEXEC
	}
	// A signal in this moment would take the descriptor back and leave the answer, which is then 0: the program's standard input. The
	// Go runtime sends signals to its threads all the time.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, was unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &was); err != nil {
		return err
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil)
	return l.do(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&a))
}

// leave puts a copy of fd into the caller, which does not know of it and does not hand it on by exec.
func (l *listener) leave(id uint64, fd int) error {
	a := addFD{ID: id, SrcFD: uint32(fd), NewFDFlags: unix.O_CLOEXEC}
	return l.do(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&a))
}

// stop ends next; what has been taken in can still be answered.
func (l *listener) stop() { _ = l.f.SetReadDeadline(time.Unix(1, 0)) }

func (l *listener) close() { l.f.Close() }

// ioctl answers the errno; 0 is success, also where the call has a positive result.
func ioctl(fd, req uintptr, p unsafe.Pointer) unix.Errno {
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, fd, req, uintptr(p))
		if e != unix.EINTR {
			return e
		}
	}
}

func dup(rc syscall.RawConn) (fd int, err error) {
	if e := rc.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) }); e != nil {
		return -1, e
	}
	return fd, err
}

// zeroID is a notification that never is.
func zeroID() unsafe.Pointer { return unsafe.Pointer(new(uint64)) }
