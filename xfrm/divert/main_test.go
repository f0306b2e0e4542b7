package divert

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"culvert/xfrm/server"
)

// The test binary is the launcher too: divert.test divert-exec SOCKET plain|compat COMMAND…
// And it is a program that uses a netlink library: divert.test divert-vishvananda
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "divert-exec" {
		err := Exec(Options{Socket: os.Args[2], Compat: os.Args[3] == "compat"}, os.Args[4:])
		fmt.Fprintln(os.Stderr, "culvert exec:", err)
		var e *ExitError
		if errors.As(err, &e) {
			os.Exit(e.Code)
		}
		os.Exit(99)
	}
	if len(os.Args) == 2 && os.Args[1] == "divert-vishvananda" {
		if err := vishvananda(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// datagram is what arrived at a shared port.
type datagram struct {
	b    []byte
	from net.Addr
	port *Port
}

// testSink is a gateway: an XFRM server, and a reader for each port.
type testSink struct {
	*server.Server
	mu      sync.Mutex
	readers map[*Port]chan struct{}
	got     chan datagram
}

func (s *testSink) Open(conn *net.UnixConn, p Peer) (Client, error) {
	c, err := s.Attach(conn, server.Peer(p))
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (s *testSink) Encap(p *Port) error {
	left := make(chan struct{})
	s.mu.Lock()
	s.readers[p] = left
	s.mu.Unlock()
	go func() {
		defer close(left)
		b := make([]byte, 65536)
		for {
			n, from, err := p.Conn.ReadFrom(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			if err != nil {
				continue
			}
			select {
			case s.got <- datagram{bytes.Clone(b[:n]), from, p}:
			default:
			}
		}
	}()
	return nil
}

func (s *testSink) Yield(p *Port) {
	p.Conn.SetReadDeadline(time.Unix(1, 0))
	s.mu.Lock()
	left := s.readers[p]
	delete(s.readers, p)
	s.mu.Unlock()
	<-left
}

func (s *testSink) shared() []*Port {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*Port
	for p := range s.readers {
		all = append(all, p)
	}
	return all
}

// rig is a supervisor that serves, with a server behind it.
type rig struct {
	tb     testing.TB
	sup    *Supervisor
	sink   *testSink
	socket string
	l      *net.UnixListener
	log    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(tb testing.TB, cfg server.Config) *rig {
	tb.Helper()
	s := server.New(cfg)
	tb.Cleanup(s.Close)
	r := &rig{tb: tb, sink: newSink(s), socket: filepath.Join(tb.TempDir(), "gw"), log: &lockedBuffer{}}
	r.start(nil)
	return r
}

func newSink(s *server.Server) *testSink {
	return &testSink{Server: s, readers: map[*Port]chan struct{}{}, got: make(chan datagram, 4096)}
}

// start begins to serve.
func (r *rig) start(k Keeper) {
	r.tb.Helper()
	var err error
	if r.sup, err = New(Config{Sink: r.sink, Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Keep: k}); err != nil {
		r.tb.Fatal(err)
	}
	os.Remove(r.socket)
	if r.l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: r.socket, Net: "unixpacket"}); err != nil {
		r.tb.Fatal(err)
	}
	served := make(chan error, 1)
	l, sup := r.l, r.sup
	go func() { served <- sup.Serve(l) }()
	r.tb.Cleanup(func() {
		l.Close()
		sup.Close()
		if err := <-served; err != nil {
			r.tb.Errorf("Serve: %v", err)
		}
		if r.tb.Failed() && r.log.String() != "" {
			r.tb.Logf("the supervisor's log:\n%s", r.log)
			r.log = &lockedBuffer{}
		}
	})
}

// command is a command under the launcher.
func (r *rig) command(mode string, argv ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	r.tb.Cleanup(cancel)
	self, err := os.Executable()
	if err != nil {
		r.tb.Fatal(err)
	}
	c := exec.CommandContext(ctx, self, slices.Concat([]string{"divert-exec", r.socket, mode}, argv)...)
	c.WaitDelay = time.Second
	return c
}

// run runs a command, which must succeed, and gives what it prints.
func (r *rig) run(mode string, argv ...string) string {
	r.tb.Helper()
	out, err := r.command(mode, argv...).CombinedOutput()
	if err != nil {
		r.tb.Fatalf("%s: %v\n%s\n%s", strings.Join(argv, " "), err, out, r.log)
	}
	return string(out)
}

// python is the interpreter itself, where "python3" may be a script that looks for it.
var python = sync.OnceValue(func() string {
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		return "python3"
	}
	return strings.TrimSpace(string(out))
})

// eventually waits for a condition.
func eventually(tb testing.TB, what string, f func() bool) {
	tb.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); {
		if time.Now().After(end) {
			tb.Fatalf("after 20 s not yet: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// netns makes a network namespace with loopback up.
func netns(tb testing.TB, name string) string {
	tb.Helper()
	ns := fmt.Sprintf("culvert-divert-%s-%d", name, os.Getpid())
	sh(tb, "ip", "netns", "add", ns)
	tb.Cleanup(func() { exec.Command("ip", "netns", "delete", ns).Run() })
	sh(tb, "ip", "-n", ns, "link", "set", "lo", "up")
	return ns
}

func sh(tb testing.TB, argv ...string) string {
	tb.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		tb.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}
