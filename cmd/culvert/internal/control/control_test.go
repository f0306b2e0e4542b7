package control

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type fixed struct{}

func (fixed) Status() Status {
	return Status{Version: "v", PID: 7, Lanes: []Lane{{Name: "outbound", PacketsIn: 3, PacketsOut: 2, Drops: map[string]uint64{"no-policy": 1}, Balanced: true}}, Balanced: true}
}
func (fixed) SAs() []SA          { return []SA{{Name: "branch", SPI: "0x00001001"}} }
func (fixed) Policies() []Policy { return []Policy{{Name: "p", Priority: 5}} }

// What the gateway says is what a client gets, and only the socket's owner can ask.
func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "control.sock")
	s, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v (%v), want 0600", fi.Mode(), err)
	}
	c := Dial(path)
	st, err := c.Status()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(fixed{}.Status(), st); d != "" {
		t.Error(d)
	}
	sas, err := c.SAs()
	if d := cmp.Diff(fixed{}.SAs(), sas); err != nil || d != "" {
		t.Error(err, d)
	}
	pols, err := c.Policies()
	if d := cmp.Diff(fixed{}.Policies(), pols); err != nil || d != "" {
		t.Error(err, d)
	}
	if _, err := c.Raw("nonsense"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("asked for a document that does not exist: %v", err)
	}
}

// A second gateway is refused while the first answers; a socket whose gateway is dead is replaced; a file is never removed.
func TestListenOnWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	first, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "a gateway has the socket") {
		t.Errorf("beside a living gateway: %v", err)
	}
	first.Close()

	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	second, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("in place of a dead gateway: %v", err)
	}
	second.Close()

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("over a file: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("the file was touched")
	}
}

// A link in the socket's place is neither followed, to a living gateway or to a dead one's socket, nor removed.
func TestListenFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	for what, make := range map[string]func(target string){
		"a socket that lives": func(target string) {
			ln, err := net.Listen("unix", target)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
		},
		"a socket left": func(target string) {
			ln, err := net.Listen("unix", target)
			if err != nil {
				t.Fatal(err)
			}
			ln.(*net.UnixListener).SetUnlinkOnClose(false)
			ln.Close()
		},
		"nothing": func(string) {},
	} {
		path, target := filepath.Join(dir, what+".link"), filepath.Join(dir, what)
		make(target)
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "not a socket") {
			t.Errorf("a link to %s: %v", what, err)
		}
		if to, err := os.Readlink(path); err != nil || to != target {
			t.Errorf("the link to %s is gone: %v", what, err)
		}
		if _, err := os.Lstat(target); (err == nil) != (what != "nothing") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A gateway that stops removes its own socket and nothing that took its place.
func TestCloseRemovesItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	s, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("its socket is left")
	}
	if s, err = Listen(path, fixed{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("what took its place holds %q, %v", b, err)
	}
}

// A gateway that hangs keeps its socket, also when so many wait for it that no more can.
func TestListenBesideOneThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	hung, err := net.Listen("unix", path) // and nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	file, err := hung.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := syscall.Listen(int(file.Fd()), 1); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if _, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "a gateway has the socket "+path) {
			t.Fatalf("got %v", err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("its socket was taken away: %v", err)
		}
	}
	if _, err := Dial(path).Status(); err == nil || !strings.Contains(err.Error(), "very many wait") {
		t.Errorf("got %v", err)
	}
}

// Hints name the program as it was called.
func TestHintsCanBeTyped(t *testing.T) {
	old := os.Args[0]
	defer func() { os.Args[0] = old }()
	path := filepath.Join(t.TempDir(), "none.sock")
	for called, want := range map[string]string{"./culvert": "`sudo ./culvert run -c FILE`", "culvert": "`sudo culvert run -c FILE`", "control.test": "`sudo culvert run -c FILE`"} {
		os.Args[0] = called
		if _, err := Dial(path).Status(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("called as %s: %v", called, err)
		}
	}
}

// Whoever asks where nobody answers is told what to do.
func TestNobodyThere(t *testing.T) {
	_, err := Dial(filepath.Join(t.TempDir(), "none.sock")).Status()
	if err == nil || !strings.Contains(err.Error(), "culvert run -c FILE") {
		t.Errorf("got %v", err)
	}
}

// Whoever connects and says nothing keeps nobody else from an answer: there is room for some, and the others' time ends.
func TestSilentClients(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, err := Listen(path, fixed{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 * maxConns {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("GET /status HTTP/1.1\r\n")); err != nil {
			t.Fatal(err)
		}
	}
	c := Dial(path)
	c.http.Timeout = time.Minute
	if _, err := c.Raw("status"); err != nil {
		t.Error(err)
	}
}
