package hostnet

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// ownName is an abstract Unix socket (unix(7)). Such names belong to a network namespace, as the routes do, and vanish with
// the process that holds them, however it ends.
const ownName = "@culvert-gateway"

// Owner is the right to change this network namespace's routes and rules, which one process has at a time: two gateways
// would each take the other's for what an earlier run left behind, and remove them.
type Owner struct{ ln *net.UnixListener }

// ErrOwned says that another gateway has this network namespace.
var ErrOwned = errors.New("a gateway runs in this network namespace")

// Own takes the namespace, or says with an error that wraps ErrOwned which process has it.
func Own() (*Owner, error) {
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: ownName})
	if errors.Is(err, unix.EADDRINUSE) {
		if pid := OwnedBy(); pid != 0 {
			return nil, fmt.Errorf("%w already, %s: both would lay and remove the same routes; stop that one, or start this one in a network namespace of its own", ErrOwned, Process(pid))
		}
		return nil, fmt.Errorf("%w already, or is just ending; try again", ErrOwned)
	}
	if err != nil {
		return nil, fmt.Errorf("take the network namespace: %w", err)
	}
	go func() {
		// Whoever connects asks the kernel who listens, and wants nothing of us. Left in the queue, such connections would fill it,
		// also those of users who may do nothing else.
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return &Owner{ln}, nil
}

// Process names what OwnedBy gave.
func Process(pid int) string {
	if pid <= 0 {
		return "a process that cannot be seen from here"
	}
	return fmt.Sprintf("process %d", pid)
}

// Release gives the namespace back.
func (o *Owner) Release() { o.ln.Close() }

// OwnedBy is the process that runs a gateway in this network namespace, in our PID namespace's numbers; 0 if there is none, -1 if it
// cannot be told which.
func OwnedBy() int {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: ownName})
	if errors.Is(err, unix.EAGAIN) {
		return -1 // its queue is full: it is stopped, and very many have asked
	}
	if err != nil {
		return 0
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	if pid == 0 {
		pid = -1 // of another PID namespace
	}
	return pid
}
