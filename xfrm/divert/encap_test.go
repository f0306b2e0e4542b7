package divert

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/xfrm/server"
)

// inNetns calls f in a namespace.
func inNetns(tb testing.TB, ns string, f func() error) {
	tb.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		h, err := os.Open("/run/netns/" + ns)
		if err == nil {
			defer h.Close()
			if err = unix.Setns(int(h.Fd()), unix.CLONE_NEWNET); err == nil {
				err = f()
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		tb.Fatal(err)
	}
}

// daemon is testdata/daemon.py under the launcher, in a namespace.
type daemon struct {
	tb    testing.TB
	cmd   *exec.Cmd
	lines chan string
}

func (r *rig) daemon(ns, order string, addresses ...string) *daemon {
	r.tb.Helper()
	c := r.command("plain", slices.Concat([]string{python(), "testdata/daemon.py", order}, addresses)...)
	c.Args = slices.Concat([]string{"ip", "netns", "exec", ns}, []string{c.Path}, c.Args[1:])
	var err error
	if c.Path, err = exec.LookPath("ip"); err != nil {
		r.tb.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		r.tb.Fatal(err)
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		r.tb.Fatal(err)
	}
	d := &daemon{r.tb, c, make(chan string, 65536)}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			d.lines <- s.Text()
		}
		close(d.lines)
	}()
	r.tb.Cleanup(func() { d.end(syscall.SIGKILL) })
	return d
}

// line is the next line that it prints.
func (d *daemon) line() string {
	d.tb.Helper()
	select {
	case l := <-d.lines:
		return l
	case <-time.After(20 * time.Second):
		d.tb.Fatal("the daemon prints nothing for 20 s")
		return ""
	}
}

func (d *daemon) ready() {
	d.tb.Helper()
	if l := d.line(); l != "ready" {
		d.tb.Fatalf("the daemon says %q, not that it is ready", l)
	}
}

func (d *daemon) end(sig syscall.Signal) {
	d.cmd.Process.Signal(sig)
	d.cmd.Wait()
}

// dial makes a UDP socket in a namespace.
func dial(tb testing.TB, ns, to string) *net.UDPConn {
	tb.Helper()
	var c net.Conn
	inNetns(tb, ns, func() (err error) {
		a, err := net.ResolveUDPAddr("udp", to)
		if err != nil {
			return err
		}
		c, err = net.DialUDP("udp", nil, a)
		return err
	})
	tb.Cleanup(func() { c.Close() })
	return c.(*net.UDPConn)
}

func esp(n uint32) []byte {
	b := make([]byte, 60)
	binary.BigEndian.PutUint32(b, 0xc0000000+n)
	binary.BigEndian.PutUint32(b[4:], n)
	return b
}

// demultiplexed sends IKE, keep-alives and ESP in random order and says that each came to whom it is for, and nothing to the other.
func (r *rig) demultiplexed(d *daemon, c *net.UDPConn) {
	r.tb.Helper()
	for len(r.sink.got) > 0 {
		<-r.sink.got
	}
	for round := range 10 {
		var ike, sealed []string
		for i := range 30 {
			var b []byte
			switch rand.IntN(4) {
			case 0:
				b = append([]byte{0, 0, 0, 0}, make([]byte, 28+rand.IntN(1200))...)
			case 1:
				b = []byte{0xff}
			default:
				b = esp(uint32(round*100 + i))
			}
			if len(b) > 3 && b[0] != 0 {
				sealed = append(sealed, string(b))
			} else {
				ike = append(ike, fmt.Sprintf("%d %x", len(b), b[:min(4, len(b))]))
			}
			if _, err := c.Write(b); err != nil {
				r.tb.Fatal(err)
			}
		}
		for _, want := range ike {
			if got := d.line(); got != want {
				r.tb.Fatalf("the daemon got %q, want %q", got, want)
			}
		}
		for _, want := range sealed {
			select {
			case got := <-r.sink.got:
				if string(got.b) != want {
					r.tb.Fatalf("the gateway got % x…, want % x…", got.b[:min(8, len(got.b))], want[:8])
				}
				if got.from.String() != c.LocalAddr().String() {
					r.tb.Fatalf("from %s, want %s", got.from, c.LocalAddr())
				}
				// And back, from the same port.
				if _, err := got.port.Conn.WriteTo(got.b[:8], got.from); err != nil {
					r.tb.Fatal(err)
				}
				b := make([]byte, 100)
				c.SetReadDeadline(time.Now().Add(20 * time.Second))
				if n, err := c.Read(b); err != nil || string(b[:n]) != want[:8] {
					r.tb.Fatalf("back: %v % x", err, b[:n])
				}
			case <-time.After(20 * time.Second):
				r.tb.Fatal("ESP did not come to the gateway")
			}
		}
	}
	if len(r.sink.got) != 0 || len(d.lines) != 0 {
		r.tb.Errorf("%d datagrams too many for the gateway, %d for the daemon", len(r.sink.got), len(d.lines))
	}
}

// A port's IKE goes to the daemon and its ESP to the gateway: of IPv4 and IPv6, of all addresses and of one, whatever order the daemon
// makes its calls in, in a namespace that is not the gateway's; and to the daemon alone when it says so.
func TestPort(t *testing.T) {
	for _, order := range []string{"bind", "encap"} {
		for _, addresses := range [][]string{{"0.0.0.0", "::"}, {"127.0.0.1", "::1"}} {
			t.Run(order+" "+addresses[0], func(t *testing.T) {
				ns := netns(t, "port")
				r := newRig(t, server.Config{})
				d := r.daemon(ns, order, addresses...)
				d.ready()
				if n := len(r.sink.shared()); n != 2 {
					t.Fatalf("%d ports are shared, want 2", n)
				}
				four, six := dial(t, ns, "127.0.0.1:4500"), dial(t, ns, "[::1]:4500")
				r.demultiplexed(d, four)
				r.demultiplexed(d, six)
				four.Write([]byte("\x00\x00\x00\x00off"))
				if l := d.line(); l != "7 00000000" {
					t.Fatal(l)
				}
				if l := d.line(); l != "off" {
					t.Fatal(l)
				}
				four.Write(esp(1))
				if l := d.line(); l != "60 c0000001" {
					t.Errorf("after UDP_ENCAP 0 the daemon got %q", l)
				}
				r.demultiplexed(d, six)
				d.end(syscall.SIGKILL)
				eventually(t, "no port is shared", func() bool { return len(r.sink.shared()) == 0 && r.sup.quiet() })
				var free error // for a program without a launcher
				inNetns(t, ns, func() error {
					c, err := net.ListenPacket("udp", "0.0.0.0:4500")
					if err == nil {
						c.Close()
					}
					free = err
					return nil
				})
				if free != nil {
					t.Errorf("the port is not free when the daemon has gone: %v", free)
				}
			})
		}
	}
}

// A daemon that is started while another one lives is told that the address is in use, even if both set SO_REUSEADDR, and the other one's ESP goes on to the gateway.
func TestPortInUse(t *testing.T) {
	ns := netns(t, "use")
	r := newRig(t, server.Config{})
	first := r.daemon(ns, "reuseaddr", "0.0.0.0", "::")
	first.ready()
	c, six := dial(t, ns, "127.0.0.1:4500"), dial(t, ns, "[::1]:4500")
	for _, a := range []string{"bind 0.0.0.0", "reuseaddr 127.0.0.1", "reuseaddr ::", "reuseaddr 0.0.0.0"} {
		order, a, _ := strings.Cut(a, " ")
		second := r.daemon(ns, order, a)
		if l := second.line(); l != "EADDRINUSE" {
			t.Fatalf("a second daemon at %s says %q", a, l)
		}
		second.end(syscall.SIGKILL)
		r.demultiplexed(first, c)
		r.demultiplexed(first, six)
	}
	first.end(syscall.SIGKILL)
	third := r.daemon(ns, "reuseport", "0.0.0.0")
	if l := third.line(); l != "EADDRINUSE" {
		t.Errorf("a daemon with SO_REUSEPORT of its own says %q", l)
	}
	if !strings.Contains(r.log.String(), "has set SO_REUSEPORT on its own socket") {
		t.Errorf("the log does not say why:\n%s", r.log)
	}
}

// A daemon that ends leaves the port free though its parent, under the same filter, lives on.
func TestPortOfChild(t *testing.T) {
	r := newRig(t, server.Config{})
	shell := r.command("plain", "sh", "-c", `"$@" & wait; sleep 60`, "sh", python(), "testdata/daemon.py", "bind", fmt.Sprintf("127.77.%d.%d", os.Getpid()>>8&255, os.Getpid()&255))
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { shell.Process.Kill(); shell.Wait() }()
	eventually(t, "the port is shared", func() bool { return len(r.sink.shared()) == 1 })
	if pid := r.sink.shared()[0].Peer.PID; int(pid) == shell.Process.Pid {
		t.Fatal("the daemon is no child")
	} else if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the port is free", func() bool { return len(r.sink.shared()) == 0 })
	if r.sup.quiet() {
		t.Error("the shell has ended: this proves nothing")
	}
}

// A daemon that is killed and started again gets its ports each time, at once, while ESP keeps coming: ten times, by SIGTERM and by
// SIGKILL, and two daemons at the same time, at addresses of their own.
func TestPortRestart(t *testing.T) {
	ns := netns(t, "again")
	sh(t, "ip", "-n", ns, "addr", "add", "127.0.0.2/8", "dev", "lo")
	r := newRig(t, server.Config{})
	stop, stopped := make(chan struct{}), make(chan struct{})
	flood := [2]*net.UDPConn{dial(t, ns, "127.0.0.1:4500"), dial(t, ns, "127.0.0.2:4500")}
	go func() {
		defer close(stopped)
		for i := uint32(1); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			flood[i&1].Write(esp(i))
			if i%16 == 0 {
				time.Sleep(2 * time.Millisecond)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	var before [2]*daemon
	for i := range 10 {
		sig := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[i&1]
		var now [2]*daemon
		for k := range now {
			if before[k] != nil {
				before[k].cmd.Process.Signal(sig)
				before[k].cmd.Wait() // its sockets are closed; nobody waits for the gateway
			}
			now[k] = r.daemon(ns, "bind", fmt.Sprintf("127.0.0.%d", k+1))
		}
		for k, d := range now {
			if l := d.line(); l != "ready" {
				t.Fatalf("restart %d of daemon %d: %s", i, k, l)
			}
		}
		before = now
		eventually(t, "two ports are shared", func() bool { return len(r.sink.shared()) == 2 })
		for len(r.sink.got) > 0 {
			<-r.sink.got
		}
		seen := map[string]bool{}
		for end := time.After(20 * time.Second); len(seen) < 2; {
			select {
			case d := <-r.sink.got:
				seen[d.port.Addr.String()] = true
			case <-end:
				t.Fatalf("after restart %d ESP comes only from %v", i, seen)
			}
		}
	}
	if n := r.sup.Stats().Failures.Load(); n != 0 {
		t.Errorf("%d failures of the supervisor's own", n)
	}
}

// An unmodified charon gets its ports at each of ten restarts, by SIGTERM and by SIGKILL.
func TestStrongSwanRestart(t *testing.T) {
	cs := pairOfCharons(t, "yes")
	c := cs[1]
	for i := range 10 {
		c.startDaemon("")
		if n := len(c.sink.shared()); n != 2 {
			t.Fatalf("start %d: %d ports are shared, want 2", i, n)
		}
		log, err := os.ReadFile(c.dir + "/charon.log")
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"unable to bind", "UDP decapsulation", "could not open"} {
			if strings.Contains(string(log), bad) {
				t.Fatalf("start %d: %q:\n%s", i, bad, log)
			}
		}
		c.stop([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i&1])
	}
	eventually(t, "nothing is left", func() bool { return c.sup.quiet() && len(c.sink.Clients()) == 0 && len(c.sink.shared()) == 0 })
}

// open counts this process's descriptors.
func open(tb testing.TB) int {
	tb.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(e)
}

// Nothing is left of three hundred programs that are killed at whatever moment: no goroutine, no descriptor, no client.
func TestKilledClients(t *testing.T) {
	r := newRig(t, server.Config{})
	r.run("compat", "ip", "xfrm", "state")
	eventually(t, "quiet", func() bool { return r.sup.quiet() && len(r.sink.Clients()) == 0 })
	fds, routines := open(t), runtime.NumGoroutine()
	served := r.sup.Stats().Sockets.Load()
	const batch = 20
	for range 300 / batch {
		var all []*exec.Cmd
		for i := range batch {
			// Some make many sockets and wait in recvfrom, some are killed in the launcher, some in between.
			mode := []string{"plain", "compat"}[i&1]
			c := r.command(mode, "ip", "xfrm", "monitor")
			if i%5 == 4 {
				c = r.command(mode, "sh", "-c", "while :; do ip xfrm state count; done")
			}
			c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
		// The kills meet about as many in the launcher, in a call that is being answered, and waiting for messages.
		before := r.sup.Stats().Sockets.Load()
		eventually(t, "half of them have sockets", func() bool { return r.sup.Stats().Sockets.Load() >= before+batch/2 })
		for _, c := range all {
			syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
			c.Wait()
		}
	}
	t.Logf("%d sockets were diverted", r.sup.Stats().Sockets.Load()-served)
	eventually(t, "no client is left", func() bool { return r.sup.quiet() && len(r.sink.Clients()) == 0 })
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= routines })
	eventually(t, "no descriptor is left", func() bool { return open(t) <= fds })
}
