package divert

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// What the launcher and the gateway say to each other, over a SOCK_SEQPACKET connection, in JSON. The launcher says hello; the
// gateway tries on it what it will do to the program, and says an answer without an error. Then the launcher passes the listener
// of its filter, or a netlink socket that another launcher's filter diverted, and the gateway answers once more.

const protocol = 1

// maxHello is the longest message, in bytes.
const maxHello = 4096

type hello struct {
	Version int    `json:"version"`
	Compat  bool   `json:"compat"`
	FD      int32  `json:"fd"`      // the launcher's end of the connection
	Cookie  uint64 `json:"cookie"`  // of it
	Address uint64 `json:"address"` // of 16 bytes in the launcher
	Nonce   []byte `json:"nonce"`   // what they are; the gateway turns each bit around
}

type passed struct {
	Nested bool `json:"nested"`
}

type answer struct {
	Error string `json:"error,omitempty"`
}

func parseHello(b []byte) (h hello, err error) {
	if err := json.Unmarshal(b, &h); err != nil {
		return h, fmt.Errorf("the launcher's message cannot be read: %w", err)
	}
	if h.Version != protocol {
		return h, fmt.Errorf("the launcher speaks version %d and the gateway %d: they must be of the same Culvert; restart the gateway", h.Version, protocol)
	}
	if len(h.Nonce) != nonceLen {
		return h, fmt.Errorf("a nonce of %d bytes, not %d", len(h.Nonce), nonceLen)
	}
	return h, nil
}

const nonceLen = 16

// patience is how long a launcher may take for a step.
const patience = 10 * time.Second

// Serve takes in launchers until l is closed: it returns nil then. l is a "unixpacket" listener at a path that only root can
// reach; whoever can connect, and is root or of the gateway's own user, has the gateway look into its programs.
func (s *Supervisor) Serve(l *net.UnixListener) error {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
				s.log.Error("a launcher cannot be taken in", "error", err)
				time.Sleep(100 * time.Millisecond)
				continue
			}
			return err
		}
		s.mu.Lock()
		closed := s.closed
		if !closed {
			s.work.Add(1)
		}
		s.mu.Unlock()
		if closed {
			c.Close()
			return nil
		}
		go func() {
			defer s.work.Done()
			defer c.Close()
			if err := s.admit(c); err != nil {
				s.log.Warn("a launcher was refused", "error", err)
			}
		}()
	}
}

// admit talks to one launcher.
func (s *Supervisor) admit(c *net.UnixConn) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-s.stop:
			_ = c.SetDeadline(time.Unix(1, 0))
		case <-over:
		}
	}()
	say := func(err error) error {
		var a answer
		if err != nil {
			a.Error = err.Error()
		}
		b, e := json.Marshal(a)
		if e != nil {
			return e
		}
		if _, e := c.Write(b); err == nil && e != nil {
			return e
		}
		return err
	}
	who, err := credentials(c)
	if err != nil {
		return say(err)
	}
	if who.Uid != 0 && int(who.Uid) != os.Geteuid() {
		return say(fmt.Errorf("only root may run programs under this gateway, and the launcher (process %d) is of user %d", who.Pid, who.Uid))
	}
	b := make([]byte, maxHello)
	n, err := c.Read(b)
	if err != nil {
		return fmt.Errorf("a launcher (process %d) said nothing: %w", who.Pid, err)
	}
	h, err := parseHello(b[:n])
	if err == nil {
		err = try(int(who.Pid), &h)
	}
	if err := say(err); err != nil {
		return err
	}
	fd, p, err := receivePassed(c)
	if err != nil {
		return fmt.Errorf("a launcher (process %d) passed nothing: %w", who.Pid, err)
	}
	if p.Nested {
		defer unix.Close(fd)
		return say(s.nested(fd, h.Compat))
	}
	l, err := newListener(fd)
	if err != nil {
		return say(err)
	}
	if err := l.do(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, zeroID()); err != unix.ENOENT {
		l.close()
		return say(fmt.Errorf("what the launcher passed is not a seccomp listener (%v)", err))
	}
	if err := s.watch(&filterOf{listener: l, pid: who.Pid, compat: h.Compat}); err != nil {
		return say(err)
	}
	return say(nil)
}

func credentials(c *net.UnixConn) (who *unix.Ucred, err error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := rc.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return nil, e
	}
	return who, err
}

// try does to the launcher what will be done to its program: copies a descriptor, reads and writes memory.
func try(pid int, h *hello) error {
	const remedy = "; the gateway needs CAP_SYS_PTRACE, and must be in the launcher's PID namespace or one above; and the sysctl kernel.yama.ptrace_scope must not be 3"
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("the gateway cannot open process %d: %w%s", pid, err, remedy)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, int(h.FD), 0)
	if err != nil {
		return fmt.Errorf("the gateway cannot copy a descriptor of process %d (pidfd_getfd): %w%s", pid, err, remedy)
	}
	defer unix.Close(fd)
	if cookie, err := cookieOf(fd); err != nil || cookie != h.Cookie {
		return fmt.Errorf("descriptor %d of process %d is not what the launcher says (%v)", h.FD, pid, err)
	}
	if uint64(uintptr(h.Address)) != h.Address {
		return fmt.Errorf("the launcher is of another architecture than the gateway")
	}
	b := make([]byte, nonceLen)
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	remote := []unix.RemoteIovec{{Base: uintptr(h.Address), Len: len(b)}}
	n, err := unix.ProcessVMReadv(pid, local, remote, 0)
	if err = moved(n, len(b), err); err != nil {
		return fmt.Errorf("the gateway cannot read the memory of process %d (process_vm_readv): %w%s", pid, err, remedy)
	}
	if string(b) != string(h.Nonce) {
		return fmt.Errorf("the memory of process %d is not what the launcher says", pid)
	}
	for i := range b {
		b[i] = ^b[i]
	}
	n, err = unix.ProcessVMWritev(pid, local, remote, 0)
	if err = moved(n, len(b), err); err != nil {
		return fmt.Errorf("the gateway cannot write the memory of process %d (process_vm_writev): %w%s", pid, err, remedy)
	}
	return nil
}

// receivePassed takes the launcher's second message, with one descriptor.
func receivePassed(c *net.UnixConn) (fd int, p passed, err error) {
	b, oob := make([]byte, maxHello), make([]byte, unix.CmsgSpace(4*8))
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return -1, p, err
	}
	var fds []int
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return -1, p, err
	}
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	if err = json.Unmarshal(b[:n], &p); err == nil && len(fds) != 1 {
		err = fmt.Errorf("%d descriptors, not one", len(fds))
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return -1, p, err
	}
	unix.CloseOnExec(fds[0])
	return fds[0], p, nil
}

// nested says whether a socket that a launcher got as XFRM's is one of ours.
func (s *Supervisor) nested(fd int, compat bool) error {
	cookie, err := cookieOf(fd)
	if err != nil {
		return err
	}
	s.mu.Lock()
	c := s.clients[cookie]
	s.mu.Unlock()
	switch {
	case c == nil:
		return errors.New("another program watches system calls here already, and the kernel allows one; run the command outside of it")
	case compat && !c.filter.compat:
		return errors.New("the outer launcher does without --compat and this one wants it; give --compat to the outer one")
	}
	return nil
}
