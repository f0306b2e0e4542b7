package divert

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// errArch says that there is no filter for this architecture.
var errArch = fmt.Errorf("programs cannot be diverted on %s", runtime.GOARCH)

// tracee is a thread that waits for the answer to a notification. Its number is its own as long as the notification is valid; so
// what was done by number counts only if the notification is valid after it.
type tracee struct {
	l   *listener
	id  uint64
	tid int
	a   *arch
}

// read copies memory. It returns EFAULT as the kernel would, and ESRCH if the thread has gone.
func (t *tracee) read(addr uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if n == 0 {
		return b, nil
	}
	if uint64(uintptr(addr)) != addr {
		return nil, unix.EFAULT
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(n)
	got, err := unix.ProcessVMReadv(t.tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: n}}, 0)
	if !t.l.valid(t.id) {
		clear(b)
		return nil, unix.ESRCH
	}
	return b, moved(got, n, err)
}

// write copies to memory, of a thread that was there just before. It can hit another process only if the thread was killed and
// its number given away within that moment, and the other has the same memory mapped; the kernel offers nothing better.
func (t *tracee) write(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if uint64(uintptr(addr)) != addr {
		return unix.EFAULT
	}
	if !t.l.valid(t.id) {
		return unix.ESRCH
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	put, err := unix.ProcessVMWritev(t.tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	return moved(put, len(b), err)
}

func moved(got, want int, err error) error {
	switch {
	case err != nil:
		return err
	case got != want:
		return unix.EFAULT
	}
	return nil
}

// noThreadFD: this kernel has no PIDFD_THREAD, which is Linux 6.9's.
var noThreadFD atomic.Bool

// dup copies a descriptor of the thread's.
func (t *tracee) dup(fd int32) (int, error) {
	pidfd, err := -1, error(unix.EINVAL)
	if !noThreadFD.Load() {
		if pidfd, err = unix.PidfdOpen(t.tid, unix.O_EXCL); err == unix.EINVAL {
			noThreadFD.Store(true)
		}
	}
	if err == unix.EINVAL {
		p, e := t.process()
		if e != nil {
			return -1, unix.ESRCH
		}
		pidfd, err = unix.PidfdOpen(p, 0)
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	got, err := unix.PidfdGetfd(pidfd, int(fd), 0)
	if err == nil && !t.l.valid(t.id) {
		unix.Close(got)
		return -1, unix.ESRCH
	}
	return got, err
}

// process is the ID of the thread's process.
func (t *tracee) process() (int, error) {
	v, err := t.status("Tgid:")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(v[0])
}

// status is some fields of the thread's status, which must come in that order.
func (t *tracee) status(fields ...string) (values []string, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", t.tid))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, fields[len(values)]); ok {
			if values = append(values, strings.TrimSpace(v)); len(values) == len(fields) {
				return values, nil
			}
		}
	}
	return nil, fmt.Errorf("a process without %s in its status", fields[len(values)])
}

// who is the process, by name, and whether the thread has CAP_NET_ADMIN in the gateway's user namespace, as the kernel's XFRM wants it.
func (t *tracee) who() (p Peer, administers bool, err error) {
	v, err := t.status("Name:", "Tgid:", "CapEff:")
	if err != nil {
		return Peer{}, false, err
	}
	pid, err := strconv.Atoi(v[1])
	if err != nil {
		return Peer{}, false, err
	}
	p = Peer{PID: int32(pid), Comm: v[0]} // that of the first thread is the process's
	if pid != t.tid || strings.Contains(v[0], `\`) {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			return Peer{}, false, err
		}
		p.Comm = strings.TrimSuffix(string(comm), "\n")
	}
	caps, err := strconv.ParseUint(v[2], 16, 64)
	administers = err == nil && caps&(1<<unix.CAP_NET_ADMIN) != 0 && t.ofOurUsers()
	if !t.l.valid(t.id) {
		return Peer{}, false, unix.ESRCH
	}
	return p, administers, nil
}

var ourUsers = sync.OnceValues(func() (string, error) { return os.Readlink("/proc/self/ns/user") })

// ofOurUsers says whether the thread is of the gateway's user namespace.
func (t *tracee) ofOurUsers() bool {
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", t.tid))
	if err != nil {
		return errors.Is(err, os.ErrNotExist) && t.l.valid(t.id) // a kernel without user namespaces
	}
	ours, err := ourUsers()
	return err == nil && ours == theirs
}

// mask is what a pointer has at most.
func (a *arch) mask() uint64 {
	if a.word == 4 {
		return 1<<32 - 1
	}
	return 1<<64 - 1
}

// long decodes an unsigned long.
func (a *arch) long(b []byte) uint64 {
	if a.word == 4 {
		return uint64(a.order.Uint32(b))
	}
	return a.order.Uint64(b)
}

func cookieOf(fd int) (uint64, error) {
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
}
