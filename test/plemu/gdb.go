package plemu

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// qemu is the emulator of user programs that runs 386 code on kernels that do not.
const qemu = "qemu-i386"

// RunQEMU runs a 386 program as Run does one of this machine: QEMU executes it, as a processor without SSE2, and stops at
// what it does not know. QEMU talks of one thread at a time: a Go program is told to run its goroutines on one.
func RunQEMU(ctx context.Context, m Model, argv, env []string) (*Report, error) {
	path, err := exec.LookPath(qemu)
	if err != nil {
		return nil, fmt.Errorf("plemu: %w: %w", ErrNotPermitted, err)
	}
	dir, err := os.MkdirTemp("", "plemu")
	if err != nil {
		return nil, fmt.Errorf("plemu: %w", err)
	}
	defer os.RemoveAll(dir)
	out, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return nil, fmt.Errorf("plemu: %w", err)
	}
	defer out.Close()
	socket := filepath.Join(dir, "gdb")
	cmd := exec.CommandContext(ctx, path, append([]string{"-cpu", "pentium3", "-g", socket}, argv...)...)
	// QEMU's signals come at moments that Go's asynchronous preemption cannot bear.
	cmd.Env = append(env, "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("plemu: %w", err)
	}
	r := &Report{}
	served := serve(ctx, socket, newEmulator(m, 1<<32-1, r))
	if served != nil {
		_ = cmd.Process.Kill()
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("plemu: %s: %w", argv[0], err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("plemu: %s: %w", argv[0], err)
	}
	if served != nil {
		return nil, fmt.Errorf("plemu: %s under %s: %w", argv[0], qemu, served)
	}
	r.Exit = cmd.ProcessState.ExitCode()
	if r.Output, err = os.ReadFile(out.Name()); err != nil {
		return nil, fmt.Errorf("plemu: output: %w", err)
	}
	return r, nil
}

// serve emulates until the program ends.
func serve(ctx context.Context, socket string, e *emulator) error {
	var conn net.Conn
	for {
		var err error
		if conn, err = net.Dial("unix", socket); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond): // QEMU is still to open it
		}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	g := &debugger{conn: conn, in: bufio.NewReader(conn)}
	stop, err := g.ask("?")
	for ; err == nil; stop, err = g.ask(g.answer(e, stop)) {
		if stop == "" || stop[0] == 'W' || stop[0] == 'X' {
			return nil
		}
	}
	if errors.Is(err, io.EOF) {
		return nil // it ends without a word if another thread than the first ends it
	}
	return err
}

// debugger is a connection in the remote protocol of GDB: text between $ and #, and a sum of its bytes, each acknowledged.
type debugger struct {
	conn net.Conn
	in   *bufio.Reader
}

// ask sends a request and gives the reply.
func (g *debugger) ask(request string) (string, error) {
	sum := byte(0)
	for _, c := range []byte(request) {
		sum += c
	}
	if _, err := fmt.Fprintf(g.conn, "$%s#%02x", request, sum); err != nil {
		return "", err
	}
	// Acknowledgements come before the reply.
	if _, err := g.in.ReadBytes('$'); err != nil {
		return "", err
	}
	reply, err := g.in.ReadString('#')
	if err != nil {
		return "", err
	}
	if _, err := g.in.Discard(2); err != nil {
		return "", err
	}
	if _, err := g.conn.Write([]byte("+")); err != nil {
		return "", err
	}
	return reply[:len(reply)-1], nil
}

// Signals as the protocol has them.
const sigILL, sigTRAP, sigSEGV = 4, 5, 11

// answer deals with a stop and says how the program goes on.
func (g *debugger) answer(e *emulator, stop string) string {
	sig, err := strconv.ParseUint(stop[1:min(3, len(stop))], 16, 8)
	switch {
	case err != nil || sig == sigTRAP:
		return "c"
	case sig != sigILL:
		return fmt.Sprintf("C%02x", sig)
	}
	// The registers come in the order of their numbers, with eip in the ninth place.
	reply, err := g.ask("g")
	all, bad := hex.DecodeString(reply)
	if err != nil || bad != nil || len(all) < 36 {
		return fmt.Sprintf("C%02x", sigILL)
	}
	reg := func(n int) uint64 { return uint64(binary.LittleEndian.Uint32(all[4*n:])) }
	r := registers{ax: reg(0), cx: reg(1), dx: reg(2), bx: reg(3), si: reg(6), di: reg(7), ip: reg(8)}
	o, _ := e.step(0, &r, g)
	switch o {
	case goesOn:
		for n, v := range map[int]uint64{0: r.ax, 1: r.cx, 2: r.dx, 3: r.bx, 6: r.si, 7: r.di, 8: r.ip} {
			binary.LittleEndian.PutUint32(all[4*n:], uint32(v))
		}
		if ok, err := g.ask("G" + hex.EncodeToString(all)); err != nil || ok != "OK" {
			return fmt.Sprintf("C%02x", sigILL)
		}
		return "c"
	case protected, missing:
		return fmt.Sprintf("C%02x", sigSEGV)
	default:
		return fmt.Sprintf("C%02x", sigILL)
	}
}

// chunk is how much memory goes into one packet, whose text QEMU limits to 4096 bytes.
const chunk = 1024

func (g *debugger) read(addr uint64, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), chunk)
		reply, err := g.ask(fmt.Sprintf("m%x,%x", addr, n))
		if err != nil {
			return err
		}
		if got, err := hex.Decode(b, []byte(reply)); err != nil || got != n {
			return fmt.Errorf("%d bytes at %#x: %q", n, addr, reply)
		}
		addr, b = addr+uint64(n), b[n:]
	}
	return nil
}

func (g *debugger) write(addr uint64, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), chunk)
		reply, err := g.ask(fmt.Sprintf("M%x,%x:%x", addr, n, b[:n]))
		if err != nil {
			return err
		}
		if reply != "OK" {
			return fmt.Errorf("%d bytes at %#x: %q", n, addr, reply)
		}
		addr, b = addr+uint64(n), b[n:]
	}
	return nil
}
