//go:build linux && amd64

package plemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Run runs a program, argv[0] its path, on a processor of the model, and waits for it to end. What the program starts itself is
// traced too. The end of ctx kills it.
func Run(ctx context.Context, m Model, argv, env []string) (*Report, error) {
	out, err := os.CreateTemp("", "plemu")
	if err != nil {
		return nil, fmt.Errorf("plemu: output: %w", err)
	}
	defer os.Remove(out.Name())
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("plemu: input: %w", err)
	}
	defer null.Close()

	r := &Report{}
	errs := make(chan error)
	go func() {
		// Only the thread that starts the program can trace it, and only that thread's children are waited for.
		runtime.LockOSThread()
		t := tracer{emulator: newEmulator(m, ^uint64(0), r)}
		errs <- t.run(ctx, argv, &syscall.ProcAttr{
			Env:   env,
			Files: []uintptr{null.Fd(), out.Fd(), out.Fd()},
			Sys:   &syscall.SysProcAttr{Ptrace: true},
		})
	}()
	if err := <-errs; err != nil {
		return nil, fmt.Errorf("plemu: %s: %w", argv[0], err)
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("plemu: output: %w", err)
	}
	if r.Output, err = io.ReadAll(out); err != nil {
		return nil, fmt.Errorf("plemu: output: %w", err)
	}
	return r, nil
}

// tracer is the supervisor of one program.
type tracer struct {
	*emulator
}

func (t *tracer) run(ctx context.Context, argv []string, attr *syscall.ProcAttr) error {
	main, err := syscall.ForkExec(argv[0], argv, attr)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) {
		return fmt.Errorf("%w: ptrace: %w", ErrNotPermitted, err)
	}
	if err != nil {
		return err
	}
	var first unix.WaitStatus
	if _, err := wait(main, &first); err != nil {
		return err
	}
	if !first.Stopped() {
		return fmt.Errorf("it did not start: wait status %#x", first)
	}
	const follow = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	err = unix.PtraceSetOptions(main, follow)
	if err == nil {
		// Reading its memory is permitted or not for the same reasons.
		err = process(main).read(0, nil)
	}
	if err != nil {
		unix.Kill(main, unix.SIGKILL)
		_, _ = wait(main, &first)
		return fmt.Errorf("%w: %w", ErrNotPermitted, err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ctx.Done():
			unix.Kill(main, unix.SIGKILL)
		case <-ended:
		}
	}()
	for tid, ws := main, first; ; {
		if tid == main && (ws.Exited() || ws.Signaled()) {
			t.report.Exit = ws.ExitStatus()
			if ws.Signaled() {
				t.report.Exit = 128 + int(ws.Signal())
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			return nil
		}
		if ws.Stopped() {
			// A thread that is gone meanwhile has been killed with its program, whose end is still to come.
			if err := unix.PtraceCont(tid, t.signal(tid, ws)); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("continue: %w", err)
			}
		}
		if tid, err = wait(-1, &ws); err != nil {
			return err
		}
	}
}

// wait waits for a child of this thread, or any with -1.
func wait(pid int, ws *unix.WaitStatus) (int, error) {
	for {
		tid, err := unix.Wait4(pid, ws, unix.WALL|unix.WNOTHREAD, nil)
		if !errors.Is(err, unix.EINTR) {
			return tid, err
		}
	}
}

// signal deals with a stop and says which signal the thread shall get.
func (t *tracer) signal(tid int, ws unix.WaitStatus) int {
	switch sig := ws.StopSignal(); {
	case sig == unix.SIGTRAP || sig == unix.SIGSTOP:
		return 0 // the tracing's own: new threads, new programs
	case sig == unix.SIGILL:
		return int(t.illegal(tid))
	default:
		return int(sig)
	}
}

// illegal executes the instruction that the thread was refused, or says which signal it gets instead.
func (t *tracer) illegal(tid int) unix.Signal {
	var u unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &u) != nil {
		return 0 // gone
	}
	r := registers{ax: u.Rax, bx: u.Rbx, cx: u.Rcx, dx: u.Rdx, si: u.Rsi, di: u.Rdi, ip: u.Rip}
	o, addr := t.step(tid, &r, process(tid))
	switch o {
	case goesOn:
		u.Rax, u.Rbx, u.Rcx, u.Rdx, u.Rsi, u.Rdi, u.Rip = r.ax, r.bx, r.cx, r.dx, r.si, r.di, r.ip
		_ = unix.PtraceSetRegs(tid, &u) // it fails only for a thread that is gone
		return 0
	case protected:
		setSigInfo(tid, siKernel, 0)
		return unix.SIGSEGV
	case missing:
		setSigInfo(tid, segvMapErr, addr)
		return unix.SIGSEGV
	default:
		return unix.SIGILL
	}
}

// Codes of SIGSEGV: of a general protection fault, which has no address, and of a page that is not there.
const siKernel, segvMapErr = 0x80, 1

// setSigInfo says why the thread gets a SIGSEGV.
func setSigInfo(tid int, code int32, addr uint64) {
	info := struct {
		signo, errno, code, _ int32
		addr                  uint64
		_                     [104]byte
	}{signo: int32(unix.SIGSEGV), code: code, addr: addr}
	_, _, _ = unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SETSIGINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(&info)), 0, 0)
}

// process is the memory of a traced process.
type process int

func (p process) read(addr uint64, b []byte) error {
	return transfer(addr, b, func(local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
		return unix.ProcessVMReadv(int(p), local, remote, 0)
	})
}

func (p process) write(addr uint64, b []byte) error {
	return transfer(addr, b, func(local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
		return unix.ProcessVMWritev(int(p), local, remote, 0)
	})
}

func transfer(addr uint64, b []byte, call func([]unix.Iovec, []unix.RemoteIovec) (int, error)) error {
	local := []unix.Iovec{{}}
	if len(b) > 0 {
		local[0].Base = &b[0]
	}
	local[0].SetLen(len(b))
	n, err := call(local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}})
	if err == nil && n < len(b) {
		err = unix.EFAULT
	}
	if err != nil {
		return fmt.Errorf("%d bytes at %#x: %w", len(b), addr, err)
	}
	return nil
}
