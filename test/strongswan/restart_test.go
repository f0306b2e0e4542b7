package strongswan

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// keeper is what systemd is for a service: it takes notices, and keeps descriptors under their names.
type keeper struct {
	t    *testing.T
	conn *net.UnixConn
	path string

	mu    sync.Mutex
	names []string
	files map[string]*os.File
}

func newKeeper(t *testing.T) *keeper {
	t.Helper()
	k := &keeper{t: t, path: filepath.Join(t.TempDir(), "notify"), files: map[string]*os.File{}}
	var err error
	if k.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: k.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.serve()
	}()
	t.Cleanup(func() {
		k.conn.Close()
		<-done
		for _, f := range k.files {
			f.Close()
		}
	})
	return k
}

func (k *keeper) serve() {
	b, oob := make([]byte, 4096), make([]byte, 4096)
	for {
		n, on, _, _, err := k.conn.ReadMsgUnix(b, oob)
		if err != nil {
			return
		}
		var fds []int
		msgs, _ := unix.ParseSocketControlMessage(oob[:on])
		for i := range msgs {
			got, _ := unix.ParseUnixRights(&msgs[i])
			fds = append(fds, got...)
		}
		name, text := "", string(b[:n])
		for line := range strings.Lines(text) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "FDNAME="); ok {
				name = v
			}
		}
		k.mu.Lock()
		switch {
		case strings.HasPrefix(text, "FDSTORE=1") && len(fds) == 1 && k.files[name] == nil:
			unix.CloseOnExec(fds[0])
			k.files[name] = os.NewFile(uintptr(fds[0]), name)
			k.names = append(k.names, name)
			fds = nil
		case strings.HasPrefix(text, "FDSTOREREMOVE=1") && k.files[name] != nil:
			k.files[name].Close()
			delete(k.files, name)
			for i, have := range k.names {
				if have == name {
					k.names = append(k.names[:i], k.names[i+1:]...)
					break
				}
			}
		}
		k.mu.Unlock()
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
}

// pass gives the side's next gateway the descriptors, as systemd does.
func (k *keeper) pass(s *side) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.files = nil
	for _, n := range k.names {
		s.files = append(s.files, k.files[n])
	}
	s.names = strings.Join(k.names, ":")
}

var secret = regexp.MustCompile(`(?:auth-trunc|enc|aead) \S+ 0x([0-9a-f]+)`)

// savesNoKeys checks that what the gateway keeps of its SAs in a file shows none of their keys.
func (s *side) savesNoKeys() {
	s.t.Helper()
	out, err := s.run(program, "exec", "--socket", s.dir+"/exec.sock", "--", "ip", "xfrm", "state")
	if err != nil {
		s.t.Fatalf("ip xfrm state: %v: %s", err, out)
	}
	keys := secret.FindAllStringSubmatch(out, -1)
	if len(keys) < 2 {
		s.t.Fatalf("ip xfrm state shows no keys:\n%s", out)
	}
	until(s.t, "the state is saved", func() bool { return len(s.read(s.ike+"/sas")) > 500 })
	time.Sleep(1200 * time.Millisecond) // again, with all of them
	saved := s.read(s.ike + "/sas")
	for _, k := range keys {
		raw, err := hex.DecodeString(k[1])
		if err != nil {
			s.t.Fatal(err)
		}
		if strings.Contains(saved, string(raw[:8])) || strings.Contains(saved, k[1][:16]) {
			s.t.Error("a key can be read in the file of the saved state")
		}
	}
}

// The gateway is killed, and later restarted in order, with its descriptors in systemd's keeping: charon does not notice, the same SAs
// carry on within a second, and the tunnel can be rekeyed and terminated; nothing is in the clear meanwhile.
func TestStrongSwanGatewayRestart(t *testing.T) {
	long(t)
	for _, o := range []options{{}, {both: true}, {both: true, encap: true}} {
		name := map[bool]string{false: "kernel-libipsec", true: "culvert"}[o.both]
		if o.encap {
			name += ", udp"
		}
		t.Run(name, func(t *testing.T) {
			w := prepare(t, o)
			k := newKeeper(t)
			w.a.env = []string{"NOTIFY_SOCKET=" + k.path}
			w.a.ike = shm(t)
			w.configs()
			w.a.startGateway()
			if o.both {
				w.b.startGateway()
			}
			w.a.startCharon()
			w.b.startCharon()
			wire := w.capture()
			w.up()
			spi := w.a.installed()
			pid := w.a.charon.Pid()
			w.a.savesNoKeys()
			for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
				s := w.flow(w.EthA, w.EthB, false)
				until(t, "packets get through", func() bool { return w.a.carried() > 30 })
				if sig == syscall.SIGKILL {
					time.Sleep(1200 * time.Millisecond) // the state is saved each second
				}
				end(t, w.a.gw, sig)
				k.pass(w.a)
				began := time.Now()
				w.a.startGateway()
				until(t, "packets get through again", func() bool { return w.a.carried() > 10 })
				took := time.Since(began)
				t.Logf("after %v packets get through %v after the start", sig, took.Round(time.Millisecond))
				if took > 10*time.Second { // the log tells how soon it is; a second is usual, and this machine may be busy
					t.Errorf("after %v no packet gets through for %v", sig, took)
				}
				s.stop()
				if now := w.a.installed(); len(now) != 1 || now[0] != spi[0] {
					t.Errorf("after %v the CHILD_SAs are %v, and were %v", sig, now, spi)
				}
				if st := w.a.status(); st.IKE.SAs != 2 || st.IKE.Failures != 0 || len(st.IKE.Clients) < 2 {
					t.Errorf("after %v: %+v", sig, st.IKE)
				}
				w.ping(w.EthB, w.EthA, true, 10)
			}
			w.a.must("--rekey", "--child", "net")
			until(t, "another CHILD_SA is installed", func() bool { n := w.a.installed(); return len(n) == 1 && n[0] != spi[0] })
			w.ping(w.EthA, w.EthB, false, 10)
			if err := syscall.Kill(pid, 0); err != nil {
				t.Errorf("charon: %v", err)
			}
			w.down()
			if clear, all := wire.clear(); clear != 0 || all < 100 {
				t.Errorf("%d of %d packets on the wire are in the clear", clear, all)
			}
		})
	}
}

// carried is how many packets the side's running gateway has brought in from the wire.
func (s *side) carried() (n uint64) {
	for _, l := range s.status().Lanes {
		if strings.HasPrefix(l.Name, "inbound") {
			n += l.Out
		}
	}
	return n
}

// shm is a directory in memory.
func shm(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "culvert-strongswan-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A gateway that is killed, with nobody to keep its sockets, leaves a charon that waits and does not spin, and that ends when it is told to.
// It is told so by the next gateway, which it could not work with; started again, it has its tunnel.
func TestStrongSwanGatewayKilled(t *testing.T) {
	w := newWorld(t, options{})
	w.up()
	w.ping(w.EthA, w.EthB, false, 5)
	kill(t, w.a.gw)
	busy := func() time.Duration {
		f := strings.Fields(w.a.read(fmt.Sprintf("/proc/%d/stat", w.a.charon.Pid())))
		if len(f) < 15 {
			t.Fatal("charon has ended by itself")
		}
		user, _ := strconv.Atoi(f[13])
		system, _ := strconv.Atoi(f[14])
		return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 everywhere
	}
	before := busy()
	time.Sleep(2 * time.Second)
	if spent := busy() - before; spent > 500*time.Millisecond {
		t.Errorf("in two seconds charon has used the processor for %v", spent)
	}
	if out, err := w.a.swanctl("--stats"); err != nil {
		t.Errorf("charon does not answer: %v: %s", err, out)
	}
	w.a.startGateway()
	select {
	case <-w.a.charon.Done():
	case <-time.After(patience):
		t.Fatal("the next gateway has not ended the charon that it cannot serve")
	}
	w.a.startCharon()
	w.up()
	w.ping(w.EthA, w.EthB, true, 5)
}
