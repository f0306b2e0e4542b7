package divert

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendBuffer is how many bytes a netlink socket's ends take before a writer has to wait: dumps one way, requests the other.
const (
	sendBuffer    = 1 << 20
	requestBuffer = 512 << 10
)

// pairs makes connections whose server's end has the name that netlink clients want to see: twelve bytes, which are an abstract
// AF_UNIX name of ten zero bytes, and which are, seen as struct sockaddr_nl, nl_pid 0 and nl_groups 0: the kernel's address.
//
// Abstract names belong to a network namespace, and anybody in it may take them. So the connections are made in a namespace of
// their own, by a thread that stays in it. Where the kernel has no namespaces they are made in the gateway's.
type pairs struct {
	ask  chan chan<- pair
	once sync.Once
}

type pair struct {
	theirs int
	ours   *net.UnixConn
	err    error
}

func newPairs() (*pairs, error) {
	p := &pairs{ask: make(chan chan<- pair)}
	started := make(chan error)
	onThreadOfItsOwn(func() {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == unix.EINVAL {
			err = nil
		}
		if err != nil {
			started <- fmt.Errorf("a network namespace for the netlink connections: %w (the gateway needs CAP_SYS_ADMIN)", err)
			return
		}
		l, err := listenAsKernel()
		started <- err
		if err != nil {
			return
		}
		defer unix.Close(l)
		for to := range p.ask {
			theirs, ours, err := connectTo(l)
			to <- pair{theirs, ours, err}
		}
	})
	return p, <-started
}

func (p *pairs) close() { p.once.Do(func() { close(p.ask) }) }

// make makes a connection: the program's end, which is blocking, and the server's.
func (p *pairs) make() (theirs int, ours *net.UnixConn, err error) {
	to := make(chan pair)
	p.ask <- to
	r := <-to
	return r.theirs, r.ours, r.err
}

// kernelName is the name, with the family in the byte order of this machine.
func kernelName() (b [lenNetlink]byte) {
	native.order.PutUint16(b[:], unix.AF_UNIX)
	return b
}

func bindRaw(fd int, addr []byte) error {
	_, _, e := unix.Syscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&addr[0])), uintptr(len(addr)))
	if e != 0 {
		return e
	}
	return nil
}

func listenAsKernel() (int, error) {
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	name := kernelName()
	if err = bindRaw(l, name[:]); err == nil {
		err = unix.Listen(l, 16)
	}
	if err != nil {
		unix.Close(l)
		return -1, fmt.Errorf("the name that netlink clients expect: %w", err)
	}
	return l, nil
}

func connectTo(l int) (theirs int, ours *net.UnixConn, err error) {
	theirs, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	defer func() {
		if err != nil {
			unix.Close(theirs)
			theirs = -1
		}
	}()
	name := kernelName()
	if _, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(theirs), uintptr(unsafe.Pointer(&name)), lenNetlink); e != 0 {
		return theirs, nil, e
	}
	for {
		fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err == unix.EINTR || err == unix.ECONNABORTED {
			continue
		}
		if err != nil {
			return theirs, nil, err
		}
		// In a namespace of many, a stranger may have come first.
		if who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil || int(who.Pid) != os.Getpid() {
			unix.Close(fd)
			continue
		}
		ours, err = unixConn(fd)
		if err != nil {
			return theirs, nil, err
		}
		// Larger than the host's maximum; without CAP_NET_ADMIN as large as that.
		grow(theirs, requestBuffer)
		if rc, err := ours.SyscallConn(); err == nil {
			_ = rc.Control(func(fd uintptr) { grow(int(fd), sendBuffer) })
		}
		return theirs, ours, nil
	}
}

func grow(fd, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
	}
}

// unixConn takes over a descriptor.
func unixConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "xfrm")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("not a Unix socket")
	}
	return u, nil
}
