package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// StopGrace is how long a process has between SIGTERM and SIGKILL.
const StopGrace = 3 * time.Second

// Process is a process inside a namespace. It is killed when its parent dies, however that dies.
type Process struct {
	cmd     *exec.Cmd
	name    string
	done    chan struct{}
	waitErr error // valid once done is closed
}

// Start starts cmd inside the namespace. It gets a process group of its own, so that a ^C on the terminal reaches only the
// parent, which then ends it in order. Stdout and Stderr should be files: those need no copying goroutine.
func (n *Namespace) Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, name: fmt.Sprintf("%s in %s", cmd.Path, n.name), done: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL

	n.lab.mu.Lock()
	defer n.lab.mu.Unlock()
	if n.lab.closed {
		return nil, ErrClosed
	}
	started := make(chan error, 1)
	goLocked(func() {
		// A child is of the namespace of the thread that clones it, and Pdeathsig means the death of that thread, not of the
		// process: so this thread stays until the child has ended, and then ends itself: it is never unlocked.
		if err := netns.Set(n.handle); err != nil {
			started <- fmt.Errorf("entering namespace %s: %w", n.name, err)
			return
		}
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.waitErr = cmd.Wait()
		close(p.done)
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.name, err)
	}
	n.lab.procs = append(n.lab.procs, p)
	return p, nil
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended; Err then says how.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is nil while the process runs, and after it ended with status 0.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.waitErr
	default:
		return nil
	}
}

// terminate asks the process to end.
func (p *Process) terminate() {
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Signal(unix.SIGTERM) // it may end at any moment
	}
}

// Stop ends the process: SIGTERM, and SIGKILL after StopGrace. It returns an error when the process had to be killed;
// how it ended otherwise is Err's to tell.
func (p *Process) Stop() error {
	p.terminate()
	grace := time.NewTimer(StopGrace)
	defer grace.Stop()
	select {
	case <-p.done:
		return nil
	case <-grace.C:
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s, pid %d: %w", p.name, p.Pid(), err)
	}
	<-p.done
	return fmt.Errorf("%s, pid %d, did not end within %v of SIGTERM and was killed", p.name, p.Pid(), StopGrace)
}
