package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/test/lab"
)

// build makes the culvert program, once for all tests.
var build = sync.OnceValues(func() (path string, err error) {
	dir, err := os.MkdirTemp("", "culvert-demo-test-")
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "culvert")
	cmd := exec.Command("go", "build", "-o", path, "culvert/cmd/culvert")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return path, fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built {
		if path, _ := build(); path != "" {
			os.RemoveAll(filepath.Dir(path))
		}
	}
	os.Exit(code)
}

var built bool

// program builds culvert: a demo runs its own executable as the gateways.
func program(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("drives whole gateways for some seconds: not with -short")
	}
	if err := usable(); err != nil {
		t.Skip(err)
	}
	built = true
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The whole demo, over native ESP and IPv6 with frames as on a wire: everything that TCP, UDP and echoes ask for comes through, and the books
// of both gateways balance.
func TestDemo(t *testing.T) {
	culvert := program(t)
	cmd := exec.Command(culvert, "demo", "--seconds", "0.5", "--json", "--link", "esp", "--outer", "6", "--inner", "6", "--wire", "--transform", "rfc4106(gcm(aes))", "--key-bits", "256")
	var out, status bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &status
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, status.String())
	}
	var r result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if r.Transform != "rfc4106(gcm(aes))" || r.KeyBits != 256 || r.Link != "esp" || r.Outer != 6 || r.Inner != 6 || !r.Wire || r.Engine == "" || r.InnerMTU < 1280 || r.Version == "" || r.Machine.Kernel == "" {
		t.Errorf("%+v", r)
	}
	if len(r.TCP) != 2 || *r.TCP[0].Gbps <= 0 || *r.TCP[1].Gbps <= 0 || r.TCP[0].Streams != 1 || r.TCP[1].Streams != 4 {
		t.Errorf("TCP: %+v", r.TCP)
	}
	if r.UDP.Delivered <= 0 || *r.Latency.P50 <= 0 || r.Latency.Samples == 0 {
		t.Errorf("UDP %+v, latency %+v", r.UDP, r.Latency)
	}
	if len(r.Gateways) != 2 {
		t.Fatalf("%+v", r.Gateways)
	}
	for _, g := range r.Gateways {
		in := g.Out
		for _, n := range g.Drops {
			in += n
		}
		if !g.Balanced || g.In != in || g.Out == 0 {
			t.Errorf("gateway %s: %+v", g.Name, g)
		}
	}
	assertNothingLeft(t, cmd.Process.Pid)
}

// start starts a demo and waits until its progress says what is given.
func start(t *testing.T, culvert, until string) (cmd *exec.Cmd, status *watched) {
	t.Helper()
	cmd = exec.Command(culvert, "demo")
	status = &watched{until: until, seen: make(chan struct{})}
	cmd.Stderr = status
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	select {
	case <-status.seen:
	case <-time.After(time.Minute):
		t.Fatalf("it never said %q", until)
	}
	return cmd, status
}

// watched closes a channel when a text has been written to it. Only one goroutine writes, and text is read after that has ended.
type watched struct {
	until string
	seen  chan struct{}
	found bool
	text  strings.Builder
}

func (w *watched) Write(b []byte) (int, error) {
	w.text.Write(b)
	if !w.found && strings.Contains(w.text.String(), w.until) {
		w.found = true
		close(w.seen)
	}
	return len(b), nil
}

// Whatever it is doing when a signal comes, a demo removes everything, says so, and fails.
func TestDemoInterrupted(t *testing.T) {
	culvert := program(t)
	for _, c := range []struct {
		until  string
		signal unix.Signal
		status int
	}{{"four namespaces", unix.SIGINT, 130}, {"two culvert gateways", unix.SIGTERM, 143}, {"TCP, 4 streams", unix.SIGINT, 130}, {"UDP, 64-byte", unix.SIGHUP, 129}} {
		t.Run(c.until, func(t *testing.T) {
			cmd, status := start(t, culvert, c.until)
			gateways := children(t, cmd.Process.Pid)
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			var ee *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &ee) || ee.ExitCode() != c.status || !strings.Contains(status.text.String(), "interrupted: the demo's namespaces, processes and files are removed") {
				t.Errorf("%v\n%s", err, status.text.String())
			}
			assertNothingLeft(t, cmd.Process.Pid)
			for _, pid := range gateways {
				if unix.Kill(pid, 0) == nil {
					t.Errorf("gateway process %d lives", pid)
				}
			}
		})
	}
}

// A gateway that dies ends the demo with its name and its log.
func TestDemoGatewayDies(t *testing.T) {
	culvert := program(t)
	cmd, status := start(t, culvert, "TCP, 1 stream")
	gateways := children(t, cmd.Process.Pid)
	if len(gateways) != 2 {
		t.Fatalf("processes %v", gateways)
	}
	if err := unix.Kill(gateways[1], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var ee *exec.ExitError
	err := cmd.Wait()
	if text := status.text.String(); !errors.As(err, &ee) || !strings.Contains(text, "it ended with signal: killed; the end of its log:\n") || !strings.Contains(text, "msg=ready") {
		t.Errorf("%v\n%s", err, text)
	}
	assertNothingLeft(t, cmd.Process.Pid)
}

// Of a demo that was killed the next one removes everything: what its gateways keep in memory is in its directory too.
func TestDemoKilled(t *testing.T) {
	culvert := program(t)
	cmd, _ := start(t, culvert, "TCP, 1 stream")
	states, err := filepath.Glob(fmt.Sprintf("/run/culvert-lab/%d-*/gateway?.state", cmd.Process.Pid))
	if err != nil || len(states) != 2 {
		t.Fatalf("%v %v", states, err)
	}
	for _, dir := range states {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("culvert-%x-%x", st.Dev, st.Ino)
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
		for _, elsewhere := range []string{"/dev/shm", "/run"} {
			if _, err := os.Stat(filepath.Join(elsewhere, name)); err == nil {
				t.Errorf("%s in %s would stay", name, elsewhere)
			}
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	if _, err := lab.Sweep(); err != nil { // as the next one does first
		t.Error(err)
	}
	assertNothingLeft(t, cmd.Process.Pid)
}

// What cannot be is refused before anything is made: there is no line of progress.
func TestDemoRefused(t *testing.T) {
	culvert := program(t)
	for _, c := range []struct{ args, want string }{
		{"--engine warp", `culvert: --engine "warp": write one of padlock, multibuf, soft`},
		{"--link tcp", `culvert: --link "tcp": write one of udp, esp`},
		{"--transform rfc4106(gcm(aes)) --key-bits 100", "it has 128, 192, 256"},
	} {
		cmd := exec.Command(culvert, append([]string{"demo"}, strings.Fields(c.args)...)...)
		out, err := cmd.CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte(c.want)) || bytes.Contains(out, []byte("namespace")) {
			t.Errorf("%s: %v\n%s", c.args, err, out)
		}
		assertNothingLeft(t, cmd.Process.Pid)
	}
}

// children are the processes that a process has started and that live.
func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // state, parent, …
		if len(f) < 2 || f[1] != strconv.Itoa(pid) || f[0] == "Z" {
			continue
		}
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, n)
	}
	return pids
}
