package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary play a part instead of running tests.
const roleEnv = "CULVERT_LAB_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "sleeper":
		time.Sleep(time.Hour)
	case "stubborn":
		stubborn()
	case "abandoner":
		abandoner()
	default:
		goleak.VerifyTestMain(m)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if err := Usable(); errors.Is(err, ErrNotPermitted) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

func newRow(t *testing.T, o RowOptions) *Row {
	t.Helper()
	needRoot(t)
	r, err := NewRow(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		assertGone(t, r.Lab)
	})
	return r
}

// assertGone checks that nothing of a lab is to be found in the places where a lab puts things.
func assertGone(t *testing.T, l *Lab) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(netnsDir, l.ID()+"-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("namespaces left: %v %v", left, err)
	}
	if _, err := os.Stat(l.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory %s is still there (%v)", l.Dir(), err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), l.ID()+"-") || strings.Contains(string(mounts), l.Dir()+" ") {
		t.Errorf("a mount of %s is left (%v)", l.ID(), err)
	}
}

// talk sends a line over TCP from one namespace to an address in another, and back.
func talk(t *testing.T, from, to *Namespace, addr netip.Addr) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	l, err := to.Listen(ctx, "tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := from.Dial(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	c.SetDeadline(deadline)
	fmt.Fprintln(c, "through the row")
	if s, err := bufio.NewReader(c).ReadString('\n'); s != "through the row\n" {
		t.Fatalf("echo %q, %v", s, err)
	}
}

// Every combination of inner families is reachable end to end over plain routes, and only over them.
func TestRowForwards(t *testing.T) {
	for _, inner := range []Families{V4, V6, V4 | V6} {
		t.Run(fmt.Sprint(inner), func(t *testing.T) {
			r := newRow(t, RowOptions{Inner: inner})
			for _, v6 := range []bool{false, true} {
				addr := r.EthB.Addr(v6)
				if has := inner&V4 != 0 && !v6 || inner&V6 != 0 && v6; has != addr.IsValid() {
					t.Fatalf("address %v with families %v", addr, inner)
				} else if !has {
					continue
				}
				if err := r.RoutePlainly(); err != nil {
					t.Fatal(err)
				}
				talk(t, r.HostA, r.HostB, addr)
				talk(t, r.HostB, r.HostA, r.EthA.Addr(v6))
				if err := r.UnroutePlainly(); err != nil {
					t.Fatal(err)
				}
				if c, err := r.HostA.Dial(t.Context(), "tcp", netip.AddrPortFrom(addr, 9).String()); !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
					t.Fatalf("without a tunnel or plain routes host B was not unreachable: %v %v", c, err)
				}
			}
		})
	}
}

// An outer link without the inner family cannot be routed over, and says so.
func TestRoutePlainlyNeedsTheFamily(t *testing.T) {
	r := newRow(t, RowOptions{Inner: V6, Outer: V4})
	if err := r.RoutePlainly(); err == nil || !strings.Contains(err.Error(), "no address of that family") {
		t.Fatalf("got %v", err)
	}
}

// "ip netns" sees the namespaces under their names; everything is gone after Close, a process that ignores SIGTERM included,
// which is reported; and Close may be called again.
func TestCloseRemovesEverything(t *testing.T) {
	needRoot(t)
	r, err := NewRow(RowOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"hostA", "gatewayA", "gatewayB", "hostB"} {
		if _, err := os.Stat(filepath.Join("/run/netns", fmt.Sprintf("culvert-%d-%s-%s", os.Getpid(), r.ID()[strings.LastIndex(r.ID(), "-")+1:], role))); err != nil {
			t.Error(err)
		}
	}
	sleeper := startRole(t, r.HostA, "sleeper", nil)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	hard := startRole(t, r.GatewayB, "stubborn", in)
	in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	if err := r.Close(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d, did not end within 3s of SIGTERM and was killed", hard.Pid())) {
		t.Errorf("the process that ignores SIGTERM was not reported: %v", err)
	}
	assertGone(t, r.Lab)
	for _, p := range []*Process{sleeper, hard} {
		if pidAlive(p.Pid()) {
			t.Errorf("process %d lives", p.Pid())
		}
	}
	if err := r.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := r.Namespace("late"); !errors.Is(err, ErrClosed) {
		t.Errorf("Namespace after Close: %v", err)
	}
	if _, err := r.HostA.Start(exec.Command("/proc/self/exe")); !errors.Is(err, ErrClosed) {
		t.Errorf("Start after Close: %v", err)
	}
}

func startRole(t *testing.T, ns *Namespace, role string, stdout *os.File) *Process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = os.Stderr
	if stdout != nil {
		cmd.Stdout = stdout
	}
	p, err := ns.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func stubborn() {
	ignoreTerm()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

// The directory is in memory whatever /run is, so that what gateways leave there in memory goes with it.
func TestDirIsInMemory(t *testing.T) {
	r := newRow(t, RowOptions{})
	var fs unix.Statfs_t
	if err := unix.Statfs(r.Dir(), &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("%s is on a file system of type %#x (%v)", r.Dir(), fs.Type, err)
	}
	if st, err := os.Stat(r.Dir()); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", st.Mode(), err)
	}
}

// A process is in its namespace, and its end is told.
func TestStart(t *testing.T) {
	r := newRow(t, RowOptions{})
	p := startRole(t, r.GatewayA, "sleeper", nil)
	got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	if want := inodeOf(t, r.GatewayA); got != want {
		t.Errorf("the process is in %s, the gateway's namespace is %s", got, want)
	}
	if p.Err() != nil {
		t.Errorf("still running, but Err is %v", p.Err())
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	var ee *exec.ExitError
	if !errors.As(p.Err(), &ee) {
		t.Errorf("ended by SIGTERM, but Err is %v", p.Err())
	}
	if _, err := r.HostA.Start(exec.Command("/does/not/exist")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
}

func inodeOf(t *testing.T, ns *Namespace) (link string) {
	t.Helper()
	err := ns.Do(func() (err error) {
		link, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// A lab that its process could not close (SIGKILL) is removed by the next sweep, with its processes dead before; a
// lab whose process lives is left alone, and so is a namespace that is not a lab's.
func TestSweep(t *testing.T) {
	r := newRow(t, RowOptions{Inner: V4, Outer: V4})
	stranger := fmt.Sprintf("culvert-lab-test-%d", os.Getpid())
	h, err := newNamed(stranger)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	defer removeNamed(stranger)

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=abandoner")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var id, dir string
	var pid int
	if _, err := fmt.Fscan(out, &id, &dir, &pid); err != nil {
		t.Fatal(err)
	}
	names := func() []string {
		g, err := filepath.Glob(filepath.Join(netnsDir, id+"-*"))
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	if removed, err := Sweep(); err != nil || len(names()) != 2 {
		t.Errorf("a living process's lab was swept: removed %v (%v), left %v", removed, err, names())
	}
	cmd.Process.Kill()
	cmd.Wait()
	if len(names()) != 2 {
		t.Fatalf("expected the killed process's namespaces to be left, found %v", names())
	}
	waitFor(t, "the abandoned process to die with its parent", func() bool { return !pidAlive(pid) || zombie(pid) })
	removed, err := Sweep()
	if err != nil {
		t.Fatal(err)
	}
	if len(names()) != 0 {
		t.Errorf("left after the sweep: %v (removed %v)", names(), removed)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s left after the sweep: %v", dir, err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), dir+" ") {
		t.Errorf("what was mounted on %s is left (%v)", dir, err)
	}
	for _, keep := range []string{stranger, r.HostA.Name(), r.HostB.Name()} {
		if _, err := os.Stat(filepath.Join(netnsDir, keep)); err != nil {
			t.Errorf("swept what was not its own: %v", err)
		}
	}
}

// abandoner makes a lab with a process in it, says so, and waits to be killed.
func abandoner() {
	l, err := New()
	if err == nil {
		_, err = l.Namespace("one")
	}
	var ns *Namespace
	if err == nil {
		ns, err = l.Namespace("two")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=sleeper")
	p, err := ns.Start(cmd)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.ID(), l.Dir(), p.Pid())
	time.Sleep(time.Hour)
}

// A start that fails half-way leaves nothing.
func TestFailedRowLeavesNothing(t *testing.T) {
	needRoot(t)
	next := serial.Load() + 1
	_, err := NewRow(RowOptions{MTU: 1}) // no veth can have it
	if err == nil {
		t.Fatal("an MTU of 1 was accepted")
	}
	assertGone(t, &Lab{id: fmt.Sprintf("%s%d-%d", namePrefix, os.Getpid(), next), dir: filepath.Join(runDir, fmt.Sprintf("%d-%d", os.Getpid(), next))})
}

func TestParseName(t *testing.T) {
	for _, c := range []struct {
		name, lab string
		pid       int
		ok        bool
	}{
		{"culvert-12-3-hostA", "12-3", 12, true},
		{"culvert-12-3-host-A", "12-3", 12, true},
		{"culvert-12-3-", "", 0, false},
		{"culvert-12-3", "", 0, false},
		{"culvert-lab-test-7", "lab-test", 0, false},
		{"culvert-0-3-hostA", "0-3", 0, false},
		{"culvert--1-3-hostA", "-1", 0, false},
		{"other-12-3-hostA", "", 0, false},
	} {
		lab, pid, ok := parseName(c.name)
		if ok != c.ok || ok && (lab != c.lab || pid != c.pid) {
			t.Errorf("parseName(%q) = %q %d %v", c.name, lab, pid, ok)
		}
	}
}

// However functions end, no thread that the scheduler may use again is in another namespace than the process.
func TestThreadsComeBack(t *testing.T) {
	r := newRow(t, RowOptions{Inner: V4, Outer: V4})
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			defer func() {
				if i%4 == 3 && recover() != "as asked" {
					t.Error("the panic was not raised in the caller")
				}
			}()
			err := r.HostA.Do(func() error {
				switch i % 4 {
				case 1:
					return io.ErrUnexpectedEOF
				case 2:
					runtime.Goexit()
				case 3:
					panic("as asked")
				}
				return nil
			})
			if bad := i%4 == 1 || i%4 == 2; bad != (err != nil) {
				t.Errorf("case %d: %v", i%4, err)
			}
		})
	}
	wg.Wait()
	assertThreadsHome(t, home)
}

func assertThreadsHome(t *testing.T, home string) {
	t.Helper()
	// A thread that is ending may be seen for a moment longer.
	waitFor(t, "every thread to be in the process's namespace", func() bool {
		links, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			if got, err := os.Readlink(l); err == nil && got != home {
				return false
			}
		}
		return true
	})
}

// A thread whose namespace cannot be restored is ended, and the caller told.
func TestLostThreadEnds(t *testing.T) {
	r := newRow(t, RowOptions{Inner: V4, Outer: V4})
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var tid int
	err = r.HostA.Do(func() error {
		tid = unix.Gettid()
		// Take away the descriptor that leads back: in its place is one that setns refuses.
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(null)
		for _, e := range fds {
			var fd int
			fmt.Sscan(e.Name(), &fd)
			if l, _ := os.Readlink("/proc/self/fd/" + e.Name()); l == home {
				if err := unix.Dup3(null, fd, unix.O_CLOEXEC); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "the thread is ended") {
		t.Fatalf("got %v", err)
	}
	waitFor(t, "the thread to end", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
		return errors.Is(err, os.ErrNotExist)
	})
	assertThreadsHome(t, home)
}

// A sysctl written in a namespace is that namespace's alone, and a misspelt one is an error.
func TestSysctl(t *testing.T) {
	r := newRow(t, RowOptions{})
	if got, err := r.GatewayA.Sysctl("net/ipv4/ip_forward"); err != nil || got != "1" {
		t.Errorf("gateway A: %q %v", got, err)
	}
	if got, err := r.HostA.Sysctl("net/ipv4/ip_forward"); err != nil || got != "0" {
		t.Errorf("host A: %q %v", got, err)
	}
	if err := r.HostA.SetSysctl("net/ipv4/ip_froward", "1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("misspelt: %v", err)
	}
}

// With Wire every feature that lets large packets pass is off on both ends, and a TCP transfer crosses in frames of at most
// the MTU; without, super-packets cross whole. The frames are seen by a packet socket in gateway B.
func TestWire(t *testing.T) {
	for _, wire := range []bool{false, true} {
		t.Run(fmt.Sprint(wire), func(t *testing.T) {
			r := newRow(t, RowOptions{Inner: V4, Outer: V4, Wire: wire})
			for _, e := range []*End{r.WanA, r.WanB} {
				features, err := e.NS.Features(e.Name)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range WireFeatures {
					if wire && features[f] {
						t.Errorf("%s of %s is on", f, e.NS.Name())
					}
				}
				for _, f := range []string{"tx-tcp-segmentation", "tx-udp-segmentation", "tx-generic-segmentation"} {
					if on, known := features[f]; !known || on == wire {
						t.Errorf("%s of %s: on %v, known %v", f, e.NS.Name(), on, known)
					}
				}
			}
			if err := r.RoutePlainly(); err != nil {
				t.Fatal(err)
			}
			largest := sniff(t, r.GatewayB, WANDevice, func() { transfer(t, r.HostA, r.HostB, r.EthB.Addr(false), 8<<20) })
			if whole := largest > 1514; whole == wire {
				t.Errorf("largest frame %d bytes with Wire %v", largest, wire)
			}
		})
	}
}

func TestSetFeaturesReportsWhatDidNotTake(t *testing.T) {
	r := newRow(t, RowOptions{Inner: V4, Outer: V4})
	if err := r.GatewayA.SetFeatures(WANDevice, true, "no-such-feature"); !errors.Is(err, ErrFeature) {
		t.Errorf("on: %v", err)
	}
	if err := r.GatewayA.SetFeatures(WANDevice, false, "no-such-feature"); err != nil {
		t.Errorf("off: %v", err)
	}
	if err := r.GatewayA.SetFeatures(WANDevice, true, "rx-lro"); err == nil {
		t.Error("a veth took large receive offload")
	}
	if _, err := r.GatewayA.Features("nothere0"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("missing device: %v", err)
	}
}

// sniff returns the length of the largest frame that comes in through a device while fn runs.
func sniff(t *testing.T, ns *Namespace, device string, fn func()) int {
	t.Helper()
	fd, err := ns.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(htons(unix.ETH_P_IP)))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	fn()
	largest := 0
	buf := make([]byte, 1)
	for {
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		if err != nil {
			return largest
		}
		if a := from.(*unix.SockaddrLinklayer); a.Pkttype != unix.PACKET_OUTGOING && deviceName(t, ns, a.Ifindex) == device {
			largest = max(largest, n)
		}
	}
}

func deviceName(t *testing.T, ns *Namespace, index int) string {
	t.Helper()
	link, err := ns.Netlink().LinkByIndex(index)
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().Name
}

func transfer(t *testing.T, from, to *Namespace, addr netip.Addr, size int64) {
	t.Helper()
	l, err := to.Listen(t.Context(), "tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- -1
			return
		}
		n, _ := io.Copy(io.Discard, c)
		c.Close()
		got <- n
	}()
	c, err := from.Dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 256<<10)
	for sent := int64(0); sent < size; sent += int64(len(buf)) {
		if _, err := c.Write(buf); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	if n := <-got; n != size {
		t.Fatalf("%d of %d bytes arrived", n, size)
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(b), ") Z ")
}
