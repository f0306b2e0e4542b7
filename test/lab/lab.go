package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Errors that callers tell apart.
var (
	ErrNotPermitted = errors.New("network namespaces need root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")
	ErrClosed       = errors.New("the lab is closed")
)

const (
	namePrefix = "culvert-"
	netnsDir   = "/run/netns"       // where "ip netns" looks
	runDir     = "/run/culvert-lab" // one directory per lab, in memory: keys that are kept in it reach no disk
)

var serial atomic.Uint32

// Lab owns namespaces, links, processes and a directory.
type Lab struct {
	id    string // culvert-<pid>-<n>
	dir   string
	owner *os.File // holds the lock that says "alive"; the kernel drops it when the process dies, however it dies

	mu     sync.Mutex
	spaces []*Namespace
	procs  []*Process
	closed bool
}

// Usable says why no lab can be made here, and how to mend it; nil if one can.
func Usable() error {
	errc := make(chan error, 1)
	goLocked(func() {
		errc <- unix.Unshare(unix.CLONE_NEWNET) // never unlocked: the thread that tried it ends
	})
	switch err := <-errc; {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: run it with sudo, or in a container started with --privileged", ErrNotPermitted)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("this kernel has no network namespaces (CONFIG_NET_NS): %w", err)
	default:
		return fmt.Errorf("cannot make a network namespace: %w", err)
	}
}

// New starts an empty lab, after it has removed what labs of dead processes left behind.
func New() (*Lab, error) {
	if err := Usable(); err != nil {
		return nil, err
	}
	unlock, err := lockRun()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := sweep(); err != nil {
		return nil, fmt.Errorf("removing what an earlier run left behind: %w", err)
	}
	for {
		l := &Lab{id: fmt.Sprintf("%s%d-%d", namePrefix, os.Getpid(), serial.Add(1))}
		l.dir = filepath.Join(runDir, strings.TrimPrefix(l.id, namePrefix))
		err := os.Mkdir(l.dir, 0o700)
		if errors.Is(err, os.ErrExist) {
			continue // the same pid in another pid namespace that shares /run
		}
		if err != nil {
			return nil, err
		}
		if err = inMemory(l.dir); err == nil {
			l.owner, err = own(l.dir)
		}
		if err != nil {
			return nil, errors.Join(err, removeDir(l.dir))
		}
		return l, nil
	}
}

// ID is the start of every namespace's name: culvert-<pid>-<n>.
func (l *Lab) ID() string { return l.id }

// Dir is a directory (mode 0700) in memory for sockets, configurations, state and logs. It is removed with the lab.
func (l *Lab) Dir() string { return l.dir }

// Namespace makes a network namespace with its loopback up. Its name is <ID>-<role>.
//
// IPv6 is quiet in it: no duplicate address detection, no router solicitations, no link-local addresses, so that the
// only packets on a link are those that a test sends. Reverse-path filtering and the rate limits of ICMP errors are off.
func (l *Lab) Namespace(role string) (*Namespace, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	ns := &Namespace{lab: l, role: role, name: l.id + "-" + role}
	h, err := newNamed(ns.name)
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", ns.name, err)
	}
	ns.handle = h
	l.spaces = append(l.spaces, ns) // from here on Close removes it
	if err := ns.prepare(); err != nil {
		return nil, fmt.Errorf("namespace %s: %w", ns.name, err)
	}
	return ns, nil
}

// Close stops the processes, removes links, namespaces and the directory, and reports what could not be removed. It may be
// called more than once.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	spaces, procs := l.spaces, l.procs
	l.mu.Unlock()

	var errs []error
	// All are told to end before any is waited for.
	for _, p := range procs {
		p.terminate()
	}
	for _, p := range procs {
		if err := p.Stop(); err != nil {
			errs = append(errs, err)
		}
	}
	for _, ns := range spaces {
		errs = append(errs, ns.remove())
	}
	unlock, err := lockRun()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer unlock()
	errs = append(errs, removeDir(l.dir), l.owner.Close())
	return errors.Join(errs...)
}

// newNamed makes a namespace on a thread of its own and binds it to a name. The thread goes back to where it came from, or ends.
func newNamed(name string) (h netns.NsHandle, err error) {
	h = netns.None()
	derr := onThread(func() error {
		h, err = netns.NewNamed(name)
		if err != nil {
			// What NewNamed leaves when only its last step, the bind mount, failed.
			if path := filepath.Join(netnsDir, name); !errors.Is(err, os.ErrExist) {
				os.Remove(path)
			}
		}
		return err
	})
	return h, derr
}

// onThread runs fn on a locked thread and then puts the thread back into the namespace it was in. A thread that cannot be
// put back ends with its goroutine. A panic in fn is raised again in the caller.
func onThread(fn func() error) error {
	type outcome struct {
		err      error
		panicked any
	}
	done := make(chan outcome, 1)
	goLocked(func() {
		o := outcome{err: errors.New("the function ended its goroutine (runtime.Goexit, or FailNow of a test)")}
		defer func() { done <- o }()
		home, err := netns.Get()
		if err != nil {
			o.err = fmt.Errorf("finding the thread's own namespace: %w", err)
			return // locked: the thread ends
		}
		defer home.Close()
		defer func() {
			o.panicked = recover()
			if err := netns.Set(home); err != nil {
				o.err = errors.Join(o.err, fmt.Errorf("putting the thread back into its namespace (the thread is ended): %w", err))
				return // locked: the thread ends
			}
			runtime.UnlockOSThread()
		}()
		o.err = fn()
	})
	o := <-done
	if o.panicked != nil {
		panic(o.panicked)
	}
	return o.err
}

// goLocked runs fn on a new goroutine that is locked to its thread, which ends with it unless fn unlocks it. That thread is never
// the main one: the runtime cannot end that, it would stay in a foreign namespace, and /proc/self means it.
func goLocked(fn func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// As long as the main thread is held here, the next goroutine is on another.
			defer runtime.UnlockOSThread()
			settled := make(chan struct{})
			go func() {
				runtime.LockOSThread()
				close(settled)
				fn()
			}()
			<-settled
			return
		}
		fn()
	}()
}
