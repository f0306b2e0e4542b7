package strongswan

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/test/lab"
)

// Each of the programs that Debian starts strongSwan with works under culvert exec. They end in order, and nothing is left of them.
func TestStrongSwanPrograms(t *testing.T) {
	long(t)
	for _, command := range [][]string{{"charon-systemd"}, {"ipsec", "start", "--nofork"}} {
		t.Run(strings.Join(command, " "), func(t *testing.T) {
			w := prepare(t, options{command: command})
			// What systemd wants to hear of a service of Type=notify, from the process that it has started.
			notices, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer notices.Close()
			if rc, err := notices.SyscallConn(); err != nil || rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) }) != nil || err != nil {
				t.Fatal(err)
			}
			w.a.daemon = []string{"NOTIFY_SOCKET=" + notices.LocalAddr().String()}
			w.a.startGateway()
			w.a.startCharon()
			w.b.startCharon()
			if command[0] == "charon-systemd" {
				notices.SetReadDeadline(time.Now().Add(patience))
				for ready := false; !ready; {
					text, oob := make([]byte, 4096), make([]byte, 256)
					n, m, _, _, err := notices.ReadMsgUnix(text, oob)
					if err != nil {
						t.Fatalf("systemd would wait for READY=1: %v", err)
					}
					c, err := unix.ParseSocketControlMessage(oob[:m])
					if err != nil || len(c) != 1 {
						t.Fatalf("a notice without a sender: %v", err)
					}
					from, err := unix.ParseUnixCredentials(&c[0])
					if err != nil || int(from.Pid) != w.a.charon.Pid() {
						t.Fatalf("%q comes from %v, %v; the process that systemd would have started is %d", text[:n], from, err, w.a.charon.Pid())
					}
					ready = strings.Contains(string(text[:n]), "READY=1")
				}
			}
			w.up()
			w.ping(w.EthA, w.EthB, false, 5)
			w.ping(w.EthB, w.EthA, true, 5)
			w.down()
			end(t, w.a.charon, syscall.SIGTERM)
			until(t, "nothing is left of the program", func() bool { st := w.a.status(); return len(st.IKE.Clients) == 0 && len(st.IKE.Ports) == 0 })
			if st := w.a.status(); st.IKE.Failures != 0 {
				t.Errorf("%+v", st.IKE)
			}
		})
	}
}

// A connection that is to be started is up by itself, as soon as charon has it.
func TestStrongSwanStart(t *testing.T) {
	long(t)
	w := newWorld(t, options{start: "start"})
	until(t, "the CHILD_SA is installed", func() bool { return len(w.a.installed()) == 1 && len(w.b.installed()) == 1 })
	w.ping(w.EthA, w.EthB, false, 5)
	w.ping(w.EthB, w.EthA, true, 5)
}

// charon is killed and started again, ten times in a row; its SAs of before stay and carry on until they are replaced, and it gets its
// ports. Then the peer's is, and a new tunnel takes the old one's place.
func TestStrongSwanCharonRestarts(t *testing.T) {
	long(t)
	w := newWorld(t, options{})
	w.up()
	w.ping(w.EthA, w.EthB, false, 5)
	for i := range 10 {
		sig := syscall.SIGKILL
		if i%3 == 2 {
			sig = syscall.SIGTERM
		}
		end(t, w.a.charon, sig)
		w.a.startCharon()
		if st := w.a.status(); len(st.IKE.Ports) != 2 || st.IKE.Failures != 0 {
			t.Fatalf("after restart %d: %+v", i+1, st.IKE)
		}
		if i == 0 { // of the daemon before, which has told nobody
			w.ping(w.EthA, w.EthB, false, 5)
		}
	}
	w.a.must("--initiate", "--child", "net", "--timeout", "20")
	w.ping(w.EthA, w.EthB, false, 5)
	kill(t, w.b.charon)
	w.b.startCharon()
	w.b.must("--initiate", "--child", "net", "--timeout", "20")
	w.ping(w.EthB, w.EthA, true, 5)
	w.ping(w.EthA, w.EthB, false, 5)
}

// Side A gets another address while traffic flows: MOBIKE moves the SAs, whose numbers go on.
func TestStrongSwanMOBIKE(t *testing.T) {
	long(t)
	for _, encap := range []bool{false, true} {
		t.Run(map[bool]string{false: "esp", true: "udp"}[encap], func(t *testing.T) {
			w := newWorld(t, options{both: true, mobike: true, anyLocal: true, encap: encap, proposal: "aes128gcm16"})
			w.up()
			w.ping(w.EthA, w.EthB, false, 5)
			spi := w.a.installed()
			run := func(args ...string) {
				t.Helper()
				if out, err := w.a.run("ip", args...); err != nil {
					t.Fatalf("ip %v: %v\n%s", args, err, out)
				}
			}
			if err := w.a.ns.SetSysctl("net/ipv4/conf/"+lab.WANDevice+"/promote_secondaries", "1"); err != nil { // or one goes with the other
				t.Fatal(err)
			}
			run("address", "add", "192.0.2.11/24", "dev", lab.WANDevice)
			run("address", "del", "192.0.2.1/24", "dev", lab.WANDevice)
			// charon takes what answers first of all the ways that are left, of either family.
			until(t, "the SAs have moved", func() bool {
				list := w.a.culvertSays("sa", "list")
				return strings.Count(list, " → ") == 2 && !strings.Contains(list, "192.0.2.1 ") && !strings.Contains(list, "192.0.2.1:")
			})
			w.flows("after the move")
			w.ping(w.EthB, w.EthA, false, 5)
			if now := w.a.installed(); len(now) != 1 || now[0] != spi[0] {
				t.Errorf("the CHILD_SAs are %v, and were %v", now, spi)
			}
		})
	}
}

// What iproute2 prints under the launcher is what the kernel's would: an SA that is added with it is listed as it was given.
func TestStrongSwanExecIPRoute(t *testing.T) {
	w := prepare(t, options{})
	w.a.startGateway()
	under := func(args ...string) string {
		t.Helper()
		out, err := w.a.run(program, append([]string{"exec", "--socket", w.a.dir + "/exec.sock", "--", "ip", "xfrm"}, args...)...)
		if err != nil {
			t.Fatalf("ip xfrm %v: %v\n%s", args, err, out)
		}
		return out
	}
	under("state", "add", "src", "192.0.2.1", "dst", "192.0.2.2", "proto", "esp", "spi", "0x1001", "reqid", "7", "mode", "tunnel",
		"aead", "rfc4106(gcm(aes))", "0x000102030405060708090a0b0c0d0e0f10111213", "128")
	under("policy", "add", "src", "10.1.0.0/24", "dst", "10.2.0.0/24", "dir", "out", "tmpl", "src", "192.0.2.1", "dst", "192.0.2.2", "proto", "esp", "reqid", "7", "mode", "tunnel")
	if list := w.a.culvertSays("policy", "list"); !strings.Contains(list, "0x00001001") {
		t.Errorf("culvert policy list:\n%s", list)
	}
	if list := under("state", "list"); !strings.Contains(list, "spi 0x00001001") {
		t.Errorf("ip xfrm state list:\n%s", list)
	}
	if way, _ := w.a.run("ip", "route", "get", "10.2.0.2", "from", "10.1.0.2", "iif", lab.LANDevice); !strings.Contains(way, "culvert0") {
		t.Errorf("the way of what the policy selects: %s", way)
	}
	under("policy", "flush")
	under("state", "flush")
	if st := w.a.status(); st.IKE.SAs != 0 || st.IKE.Policies != 0 || len(st.IKE.Refused) != 1 {
		t.Errorf("%+v", st.IKE)
	}
	// A program's own exit code is culvert exec's.
	for want, args := range map[int][]string{3: {"sh", "-c", "exit 3"}, 127: {"no-such-program"}, 126: {"/etc/passwd"}} {
		_, err := w.a.run(program, append([]string{"exec", "--socket", w.a.dir + "/exec.sock"}, args...)...)
		if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != want {
			t.Errorf("culvert exec %v: %v, want code %d", args, err, want)
		}
	}
	if out, err := w.a.run(program, "exec", "--socket", w.a.dir+"/nothing.sock", "--", "true"); err == nil || !strings.Contains(out, "start it first") {
		t.Errorf("without a gateway: %v %s", err, out)
	}
}
