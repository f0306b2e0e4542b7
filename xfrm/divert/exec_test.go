package divert

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"culvert/xfrm/server"
)

// code runs a launcher and gives its exit code and output.
func (r *rig) code(mode string, argv ...string) (int, string) {
	r.tb.Helper()
	out, err := r.command(mode, argv...).CombinedOutput()
	var e *exec.ExitError
	if err != nil && !errors.As(err, &e) {
		r.tb.Fatal(err)
	}
	if e == nil {
		return 0, string(out)
	}
	return e.ExitCode(), string(out)
}

// Exit codes are env(1)'s, a command's own goes through, and each failure says what to do.
func TestExitCodes(t *testing.T) {
	r := newRig(t, server.Config{})
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	foreign := "\x7fELF\x01\x02\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x14" + strings.Repeat("\x00", 100) // PowerPC
	for _, c := range []struct {
		name string
		code int
		says string
		argv []string
	}{
		{"a command's own", 7, "", []string{"sh", "-c", "exit 7"}},
		{"not found", ExitNotFound, "no such command in PATH", []string{"culvert-no-such-command"}},
		{"no such file", ExitNotFound, "there is no such file", []string{dir + "/none"}},
		{"not executable", ExitNotExecutable, "cannot be executed", []string{write("plain", "x", 0o600)}},
		{"a directory", ExitNotExecutable, "is a directory", []string{dir}},
		{"no interpreter", ExitNotFound, "", []string{write("lost", "#!/culvert/no/such\n", 0o700)}},
		{"a script without #!", 9, "", []string{write("script", "exit 9\n", 0o700)}},
		{"another architecture", ExitFailure, "another architecture", []string{write("foreign", foreign, 0o700)}},
		{"no command", ExitFailure, "no command is given", []string{""}},
	} {
		code, out := r.code("plain", c.argv...)
		if code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%s: exit code %d, want %d: %s", c.name, code, c.code, out)
		}
	}
	lonely := &rig{tb: t, socket: dir + "/nobody"}
	if code, out := lonely.code("plain", "true"); code != ExitFailure || !strings.Contains(out, "no gateway serves at") {
		t.Errorf("without a gateway: exit code %d: %s", code, out)
	}
	// Without the capability.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", self, "divert-exec", r.socket, "plain", "true").CombinedOutput()
	if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != ExitFailure || !strings.Contains(string(out), "CAP_SYS_ADMIN is needed") {
		t.Errorf("without CAP_SYS_ADMIN: %v: %s", err, out)
	}
}

// The command has the launcher's process ID, environment, arguments, descriptors and limits, and no descriptor more.
func TestExecLeavesAlone(t *testing.T) {
	r := newRig(t, server.Config{})
	script := `echo $$ "$CULVERT_TEST_X" "$@"; read line <&5; echo "$line"; ls /proc/$$/fd | tr '\n' ' '; echo; ulimit -Sn; grep NoNewPrivs /proc/$$/status`
	run := func(c *exec.Cmd) []string {
		t.Helper()
		pr, pw, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer pr.Close()
		pw.WriteString("through\n")
		pw.Close()
		c.Env = append(os.Environ(), "CULVERT_TEST_X=a b")
		c.ExtraFiles = []*os.File{nil, nil, pr}
		var out strings.Builder
		c.Stdout, c.Stderr = &out, &out
		if err := c.Run(); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		lines := strings.Split(out.String(), "\n")
		pid, rest, _ := strings.Cut(lines[0], " ")
		if want := c.Process.Pid; pid != strconv.Itoa(want) {
			t.Errorf("process %s, want %d", pid, want)
		}
		lines[0] = rest
		return lines
	}
	got := run(r.command("plain", "sh", "-c", script, "sh", "x", "y z"))
	want := run(exec.Command("sh", "-c", script, "sh", "x", "y z"))
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("under the launcher:\n%q\nwithout:\n%q", got, want)
	}
	if !strings.Contains(strings.Join(got, "\n"), "NoNewPrivs:\t0") {
		t.Errorf("no_new_privs is not 0: %q", got)
	}
}

// A launcher within another one's program just runs the command if the gateway is the same, and is refused otherwise.
func TestNested(t *testing.T) {
	r, other := newRig(t, server.Config{}), newRig(t, server.Config{})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if code, out := r.code("plain", self, "divert-exec", r.socket, "plain", "ip", "xfrm", "state", "count"); code != 0 || !strings.Contains(out, "SAD count 0") {
		t.Errorf("nested: exit code %d: %s", code, out)
	}
	if code, out := r.code("compat", self, "divert-exec", r.socket, "compat", "true"); code != 0 {
		t.Errorf("nested, both with compat: exit code %d: %s", code, out)
	}
	if code, out := r.code("plain", self, "divert-exec", r.socket, "compat", "true"); code != ExitFailure || !strings.Contains(out, "give --compat to the outer one") {
		t.Errorf("compat in plain: exit code %d: %s", code, out)
	}
	if code, out := r.code("plain", self, "divert-exec", other.socket, "plain", "true"); code != ExitFailure || !strings.Contains(out, "another program watches system calls here already") {
		t.Errorf("under another gateway: exit code %d: %s", code, out)
	}
}

// A program without CAP_NET_ADMIN gets from its XFRM socket what the kernel gives it: EPERM, and nothing of the gateway's.
func TestUnprivilegedProgram(t *testing.T) {
	r := newRig(t, server.Config{})
	for _, drop := range [][]string{
		{"setpriv", "--reuid=65534", "--clear-groups"},
		{"setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"},
		{"unshare", "--user", "--map-root-user"},
	} {
		code, out := r.code("plain", append(drop, "ip", "xfrm", "state", "list")...)
		if code == 0 || !strings.Contains(out, "Operation not permitted") {
			t.Errorf("%v: exit code %d: %s", drop, code, out)
		}
	}
	if n := r.sup.Stats().Sockets.Load(); n != 0 {
		t.Errorf("%d sockets were diverted", n)
	}
}

// Whoever says something else than a launcher is refused, and the next one is served.
func TestStrangers(t *testing.T) {
	r := newRig(t, server.Config{})
	for _, said := range []string{"", "x", "{}", `{"version":2}`, `{"version":1,"nonce":"AAAAAAAAAAAAAAAAAAAAAA==","fd":0,"address":1}`, `{"version":1,"nonce":"AAAAAAAAAAAAAAAAAAAAAA==","fd":-1}`} {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: r.socket, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		c.Write([]byte(said))
		if said == "" {
			c.CloseWrite()
		}
		n, _ := c.Read(b)
		if n != 0 && !strings.Contains(string(b[:n]), `"error"`) {
			t.Errorf("%q is answered %q", said, b[:n])
		}
		c.Close()
	}
	if out := r.run("plain", "ip", "xfrm", "state", "count"); !strings.Contains(out, "SAD count 0") {
		t.Errorf("afterwards: %s", out)
	}
}
