package divert

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Exit codes of a launcher, as env(1) has them. A command that was run has its own.
const (
	ExitFailure       = 125 // the launcher itself
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// Options are what Exec needs to know.
type Options struct {
	// Socket is the path where a Supervisor serves.
	Socket string
	// Compat diverts receiving too, for programs that insist on AF_NETLINK in a sender's address. It costs each recvmsg of the
	// program a round trip to the gateway, whatever it receives from.
	Compat bool
}

// ExitError is an error of Exec, with the exit code for it.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string { return e.Err.Error() }

func (e *ExitError) Unwrap() error { return e.Err }

// ExitStatus is the code with which the program should end.
func (e *ExitError) ExitStatus() int { return e.Code }

// failure is an error of the launcher's own.
func failure(format string, a ...any) error { return &ExitError{ExitFailure, fmt.Errorf(format, a...)} }

// Exec runs a command in place of this process, with the same ID, environment and descriptors, under a filter that brings its XFRM
// sockets to the gateway. It returns only if that fails, with an *ExitError; the process is not to be used for anything else then,
// for its thread may be under the filter.
func Exec(o Options, argv []string) error {
	runtime.LockOSThread() // the filter is this thread's, and exec leaves this thread alone
	if len(argv) == 0 || argv[0] == "" {
		return failure("no command is given")
	}
	path, err := find(argv[0], os.Getenv("PATH"))
	if err != nil {
		return err
	}
	if err := checkHost(); err != nil {
		return err
	}
	if err := checkProgram(path); err != nil {
		return err
	}
	g, err := connect(o)
	if err != nil {
		return err
	}
	if err := g.install(o.Compat); err != nil {
		return err
	}
	g.c.Close()
	return run(path, argv)
}

// find looks a command up as execvp(3) does.
func find(name, path string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, runnable(name)
	}
	var refused error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		p := dir + "/" + name
		err := runnable(p)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			refused = err
		}
	}
	if refused != nil {
		return "", refused
	}
	return "", &ExitError{ExitNotFound, fmt.Errorf("%s: no such command in PATH: %w", name, fs.ErrNotExist)}
}

func runnable(p string) error {
	st, err := os.Stat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return &ExitError{ExitNotFound, fmt.Errorf("%s: there is no such file: %w", p, fs.ErrNotExist)}
	case err != nil:
		return &ExitError{ExitNotExecutable, err}
	case st.IsDir():
		return &ExitError{ExitNotExecutable, fmt.Errorf("%s is a directory", p)}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, p, unix.X_OK, unix.AT_EACCESS); err != nil {
		return &ExitError{ExitNotExecutable, fmt.Errorf("%s cannot be executed: %w", p, err)}
	}
	return nil
}

// checkHost looks for what can be known before a filter is there.
func checkHost() error {
	if native == nil {
		return &ExitError{ExitFailure, errArch}
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return failure("uname: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	if major, minor, ok := version(release); ok && (major < 5 || major == 5 && minor < 14) {
		return failure("Linux 5.14 or later is needed to divert a program's sockets, and this is %s: run a later kernel", release)
	}
	var sizes notifSizes
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&sizes)))
	switch {
	case e != 0:
		return failure("this kernel has no seccomp notifications (%v): build it with CONFIG_SECCOMP_FILTER", e)
	case sizes.Notif > uint16(unsafe.Sizeof(notification{})) || sizes.Resp > uint16(unsafe.Sizeof(response{})):
		return failure("this kernel's seccomp notifications have %d and %d bytes, more than this Culvert knows: use a later one", sizes.Notif, sizes.Resp)
	}
	var head unix.CapUserHeader
	var data [2]unix.CapUserData
	head.Version = unix.LINUX_CAPABILITY_VERSION_3
	if err := unix.Capget(&head, &data[0]); err != nil {
		return failure("capget: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return failure("CAP_SYS_ADMIN is needed to install the filter: run it as root, or with AmbientCapabilities=CAP_SYS_ADMIN in the unit")
	}
	return nil
}

// version is a kernel's.
func version(release string) (major, minor int, ok bool) {
	a, rest, _ := strings.Cut(release, ".")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	major, err := strconv.Atoi(a)
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(rest)
	return major, minor, err == nil
}

// checkProgram refuses an ELF program of another architecture, whose system calls the filter lets through: it would talk to the
// kernel, and nobody would know why there is no tunnel.
func checkProgram(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil // it may be executable and not readable
	}
	defer f.Close()
	var b [20]byte
	if n, err := f.ReadAt(b[:], 0); n < len(b) || err != nil {
		return nil
	}
	word, machine, ok := elfMachine(b[:])
	if ok && (word != native.word || machine != native.elf) {
		return failure("%s is a program of another architecture (%d bits, ELF machine %d) than this one (%s): use the Culvert of its architecture, as launcher and as gateway",
			path, 8*word, machine, native.name)
	}
	return nil
}

// elfMachine is what an ELF header says; ok is false for anything else.
func elfMachine(b []byte) (word int, machine uint16, ok bool) {
	if len(b) < 20 || string(b[:4]) != "\x7fELF" || b[4] < 1 || b[4] > 2 || b[5] < 1 || b[5] > 2 {
		return 0, 0, false
	}
	order := binary.ByteOrder(binary.LittleEndian)
	if b[5] == 2 {
		order = binary.BigEndian
	}
	return 4 * int(b[4]), order.Uint16(b[18:]), true
}

// gateway is the launcher's connection to it.
type gateway struct {
	c      *net.UnixConn
	socket string
}

// cell is what the gateway reads and writes: a variable of the package, for nothing else stays at its address.
var cell [nonceLen]byte

// connect introduces the launcher, and has the gateway try what it needs.
func connect(o Options) (*gateway, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: o.Socket, Net: "unixpacket"})
	if err != nil {
		return nil, failure("no gateway serves at %s: start it first, or give the path that it has (%w)", o.Socket, err)
	}
	g := &gateway{c, o.Socket}
	nonce := make([]byte, nonceLen)
	if _, err := rand.Read(nonce); err != nil {
		return nil, failure("%w", err)
	}
	copy(cell[:], nonce)
	h := hello{Version: protocol, Compat: o.Compat, Address: uint64(uintptr(unsafe.Pointer(&cell))), Nonce: nonce}
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, failure("%w", err)
	}
	if e := rc.Control(func(fd uintptr) { h.FD = int32(fd); h.Cookie, err = cookieOf(int(fd)) }); e != nil || err != nil {
		return nil, failure("SO_COOKIE: %w", errors.Join(e, err))
	}
	b, err := json.Marshal(h)
	if err != nil {
		return nil, failure("%w", err)
	}
	if err := g.say(b, nil); err != nil {
		return nil, err
	}
	for i := range cell {
		if cell[i] != ^nonce[i] {
			return nil, failure("the gateway at %s did not reach this process's memory: it must run on the same host", o.Socket)
		}
	}
	return g, nil
}

// say sends a message and waits for the answer.
func (g *gateway) say(b, oob []byte) error {
	_ = g.c.SetDeadline(time.Now().Add(patience))
	if _, _, err := g.c.WriteMsgUnix(b, oob, nil); err != nil {
		return failure("the gateway at %s: %w", g.socket, err)
	}
	in := make([]byte, maxHello)
	n, err := g.c.Read(in)
	if err != nil {
		return failure("the gateway at %s did not answer: %w", g.socket, err)
	}
	var a answer
	if err := json.Unmarshal(in[:n], &a); err != nil {
		return failure("the gateway at %s: %w", g.socket, err)
	}
	if a.Error != "" {
		return failure("the gateway at %s refuses: %s", g.socket, a.Error)
	}
	return nil
}

// pass sends a descriptor.
func (g *gateway) pass(fd int, p passed) error {
	b, err := json.Marshal(p)
	if err != nil {
		return failure("%w", err)
	}
	return g.say(b, unix.UnixRights(fd))
}

// install puts the thread under the filter, and gives the listener to the gateway.
func (g *gateway) install(compat bool) error {
	f, err := native.filter(compat)
	if err != nil {
		return failure("%w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	// With it a signal waits until a call has been answered, as it does with these calls in the kernel; Linux 5.19. Not with compat,
	// whose recvfrom may take for ever.
	flags := uintptr(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	if !compat {
		flags |= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	fd, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if e == unix.EINVAL && !compat {
		fd, _, e = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	}
	runtime.KeepAlive(f)
	switch e {
	case 0:
	case unix.EBUSY:
		return g.nested()
	case unix.EACCES:
		return failure("seccomp: %w: the filter needs CAP_SYS_ADMIN; run it as root", e)
	case unix.EINVAL:
		return failure("seccomp: %w: this kernel has no notification listeners; Linux 5.14 with CONFIG_SECCOMP_FILTER is needed", e)
	default:
		return failure("seccomp: %w", e)
	}
	// The kernel tells a flag that it does not know from a notification that there is none of.
	a := addFD{Flags: unix.SECCOMP_ADDFD_FLAG_SEND, SrcFD: uint32(fd)}
	if e := ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&a)); e != unix.ENOENT {
		return failure("this kernel cannot put a descriptor into a program (SECCOMP_ADDFD_FLAG_SEND: %v): Linux 5.14 or later is needed", e)
	}
	if err := g.pass(int(fd), passed{}); err != nil {
		return err
	}
	unix.Close(int(fd))
	return nil
}

// nested is for a thread that has a filter with a listener already. If it is this gateway's, there is nothing left to do.
func (g *gateway) nested() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, netlinkXfrm)
	if err != nil {
		return failure("another program watches system calls here already, and answers a netlink socket with an error (%w): run the command outside of it", err)
	}
	defer unix.Close(fd)
	return g.pass(fd, passed{Nested: true})
}

// run replaces the process. A file without a format that the kernel knows is a script of sh, as for execvp(3).
func run(path string, argv []string) error {
	err := unix.Exec(path, argv, os.Environ())
	if errors.Is(err, unix.ENOEXEC) {
		err = unix.Exec("/bin/sh", append([]string{"sh", path}, argv[1:]...), os.Environ())
	}
	code := ExitNotExecutable
	if errors.Is(err, fs.ErrNotExist) { // of its interpreter
		code = ExitNotFound
	}
	return &ExitError{code, fmt.Errorf("%s: %w", path, err)}
}
