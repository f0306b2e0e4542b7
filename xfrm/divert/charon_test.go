package divert

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/offload"
	"culvert/offload/soft"
	"culvert/sa"
	"culvert/xfrm/server"
)

const strongswanConf = `%s {
  load = random nonce aes sha1 sha2 hmac kdf gcm pem pkcs1 x509 pubkey curve25519 gmp openssl drbg kernel-netlink socket-default updown vici
  install_routes = no
  install_virtual_ip = no
  delete_rekeyed_delay = 1
  plugins { vici { socket = unix://%s/vici } }
  filelog { log { path = %s/charon.log
    default = 1
    knl = 2
    flush_line = yes } }
}
`

const swanctlConf = `connections {
  c {
    version = 2
    local_addrs = %[1]s
    remote_addrs = %[2]s
    proposals = aes256-sha256-x25519
    encap = %[5]s
    dpd_delay = 5s
    local { auth = psk
      id = %[1]s }
    remote { auth = psk
      id = %[2]s }
    children { net {
      local_ts = %[3]s
      remote_ts = %[4]s
      esp_proposals = aes256gcm16-x25519-noesn
      rekey_time = 600s
      replay_window = 128 } }
  }
}
secrets { ike-1 { secret = "only for this test" } }
`

// charon is an IKE daemon under the launcher, with a server over a data plane's SAs behind it.
type charon struct {
	tb   testing.TB
	ns   string
	dir  string
	prog string
	*rig
	db    *sa.DB
	local netip.Addr
	cmd   *exec.Cmd
}

// pairOfCharons are two hosts with a wire between them. The first runs charon-systemd, the second charon.
func pairOfCharons(tb testing.TB, encap string) [2]*charon {
	var cs [2]*charon
	for i := range cs {
		cs[i] = &charon{tb: tb, ns: netns(tb, fmt.Sprint("c", i)), dir: tb.TempDir(), prog: []string{"charon-systemd", "/usr/lib/ipsec/charon"}[i]}
	}
	sh(tb, "ip", "link", "add", "v0", "netns", cs[0].ns, "type", "veth", "peer", "name", "v0", "netns", cs[1].ns)
	for i, c := range cs {
		here, there := fmt.Sprintf("192.0.2.%d", i+1), fmt.Sprintf("192.0.2.%d", 2-i)
		sh(tb, "ip", "-n", c.ns, "addr", "add", here+"/24", "dev", "v0")
		sh(tb, "ip", "-n", c.ns, "link", "set", "v0", "up")
		section := filepath.Base(c.prog)
		if err := os.WriteFile(c.dir+"/strongswan.conf", fmt.Appendf(nil, strongswanConf, section, c.dir, c.dir), 0o600); err != nil {
			tb.Fatal(err)
		}
		conf := fmt.Sprintf(swanctlConf, here, there, fmt.Sprintf("10.%d.0.0/24", i+1), fmt.Sprintf("10.%d.0.0/24", 2-i), encap)
		if err := os.WriteFile(c.dir+"/swanctl.conf", []byte(conf), 0o600); err != nil {
			tb.Fatal(err)
		}
		c.newDB()
		c.local = netip.MustParseAddr(here)
		c.rig = newRig(tb, c.config())
	}
	return cs
}

// config is a server's over the data plane's SAs.
func (c *charon) config() server.Config {
	engine := soft.New()
	return server.Config{Backend: server.NewDB(server.DBConfig{
		DB:     c.db,
		Engine: func(*offload.Transform) (offload.Engine, error) { return engine, nil },
		Local:  func(a netip.Addr) bool { return a == c.local },
	})}
}

// newServer is a server with a new data plane.
func (c *charon) newServer() *server.Server {
	c.newDB()
	s := server.New(c.config())
	c.tb.Cleanup(s.Close)
	return s
}

func (c *charon) newDB() {
	db := sa.NewDB()
	c.db = db
	c.tb.Cleanup(func() {
		db.Close()
		if err := db.Wait(); err != nil {
			c.tb.Error(err)
		}
	})
}

// startDaemon starts the daemon and loads its connection. It is told to systemd's socket, if there is one, who is ready.
func (c *charon) startDaemon(notify string) {
	c.tb.Helper()
	self, err := os.Executable()
	if err != nil {
		c.tb.Fatal(err)
	}
	out, err := os.Create(c.dir + "/out")
	if err != nil {
		c.tb.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("ip", "netns", "exec", c.ns, "unshare", "-m", "sh", "-c", `mount -t tmpfs tmpfs /run; exec "$@"`, "sh",
		self, "divert-exec", c.socket, "plain", c.prog)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "STRONGSWAN_CONF="+c.dir+"/strongswan.conf", "NOTIFY_SOCKET="+notify)
	os.Remove(c.dir + "/vici")
	if err := cmd.Start(); err != nil {
		c.tb.Fatal(err)
	}
	c.cmd = cmd
	c.tb.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
		if c.tb.Failed() {
			for _, f := range []string{"/out", "/charon.log"} {
				b, _ := os.ReadFile(c.dir + f)
				c.tb.Logf("%s%s:\n%s", c.ns, f, b[max(0, len(b)-6000):])
			}
		}
	})
	eventually(c.tb, c.prog+" takes its connection", func() bool {
		out, _ := c.swanctl("--load-all", "--file", c.dir+"/swanctl.conf")
		return strings.Contains(out, "successfully loaded 1")
	})
}

// stop ends the daemon.
func (c *charon) stop(sig syscall.Signal) {
	c.tb.Helper()
	c.cmd.Process.Signal(sig)
	done := make(chan struct{})
	go func() { c.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		c.tb.Fatalf("%s does not end 20 s after %s", c.prog, sig)
	}
}

func (c *charon) swanctl(args ...string) (string, error) {
	cmd := exec.Command("timeout", slices.Concat([]string{"20", "ip", "netns", "exec", c.ns, "swanctl"}, args, []string{"--uri", "unix://" + c.dir + "/vici"})...)
	cmd.Env = append(os.Environ(), "STRONGSWAN_CONF="+c.dir+"/strongswan.conf")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *charon) must(args ...string) string {
	c.tb.Helper()
	out, err := c.swanctl(args...)
	if err != nil {
		c.tb.Fatalf("swanctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

var inboundSPI = regexp.MustCompile(`(?m)^    in  (\w+),`)

// installed is the inbound SPI of the only installed CHILD_SA, "" if there is not one.
func (c *charon) installed() string {
	out, _ := c.swanctl("--list-sas")
	if strings.Count(out, "INSTALLED") != 1 {
		return ""
	}
	m := inboundSPI.FindAllStringSubmatch(out, -1)
	if len(m) != 1 {
		return ""
	}
	return m[0][1]
}

// counts are the SAs and policies that the server has, as iproute2 counts them.
func (c *charon) counts() (sas, policies int) {
	c.tb.Helper()
	return strings.Count(c.run("plain", "ip", "xfrm", "state", "list"), "proto esp"), strings.Count(c.run("plain", "ip", "xfrm", "policy", "list"), "proto esp")
}

// Two unmodified strongSwans establish an IKE_SA and a CHILD_SA with each other, rekey it from each side, and terminate it. All their
// SAs are in the data planes, none is in the kernel, and charon-systemd is the process that was started, and says READY=1 itself.
func TestStrongSwan(t *testing.T) {
	cs := pairOfCharons(t, "no")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	cs[0].startDaemon(notify.LocalAddr().String())
	cs[1].startDaemon("")
	told := ""
	notify.SetReadDeadline(time.Now().Add(10 * time.Second))
	for !strings.Contains(told, "READY=1") {
		b := make([]byte, 1024)
		n, err := notify.Read(b)
		if err != nil {
			t.Fatalf("charon-systemd tells systemd %q, and not READY=1: %v", told, err)
		}
		told += string(b[:n]) + "\n"
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", cs[0].cmd.Process.Pid)); err != nil || filepath.Base(exe) != "charon-systemd" {
		t.Errorf("the process that was started is %s now, not charon-systemd", exe)
	}

	cs[0].must("--initiate", "--child", "net")
	for _, c := range cs {
		c := c
		eventually(t, "the CHILD_SA is installed", func() bool { return c.installed() != "" })
		if sas, policies := c.counts(); sas != 2 || policies != 3 {
			t.Errorf("%d SAs and %d policies of %s, want 2 and 3", sas, policies, c.prog)
		}
		if out := sh(t, "ip", "-n", c.ns, "xfrm", "state") + sh(t, "ip", "-n", c.ns, "xfrm", "policy"); strings.Contains(out, "proto esp") {
			t.Errorf("the kernel has SAs or policies:\n%s", out)
		}
	}
	for i, c := range cs {
		before := [2]string{cs[0].installed(), cs[1].installed()}
		c.must("--rekey", "--child", "net")
		for k, c := range cs {
			eventually(t, "another CHILD_SA is installed", func() bool { s := c.installed(); return s != "" && s != before[k] })
			eventually(t, "the old SAs are gone", func() bool { sas, policies := c.counts(); return sas == 2 && policies == 3 })
		}
		t.Logf("rekeyed by %s: %v → [%s %s]", cs[i].prog, before, cs[0].installed(), cs[1].installed())
	}
	cs[1].must("--terminate", "--ike", "c")
	for _, c := range cs {
		eventually(t, "SAs and policies are gone", func() bool { sas, policies := c.counts(); return sas == 0 && policies == 0 })
	}
	for _, c := range cs {
		c.stop(syscall.SIGTERM)
		eventually(t, "nothing is left of "+c.prog, func() bool {
			return c.sup.quiet() && len(c.sink.Clients()) == 0 && len(c.sink.shared()) == 0
		})
		if n := c.sup.Stats().Failures.Load(); n != 0 {
			t.Errorf("%d failures of the supervisor's own", n)
		}
		t.Logf("%s: %d calls, %d sockets, %d ports", c.prog, c.sup.Stats().Calls.Load(), c.sup.Stats().Sockets.Load(), c.sup.Stats().Encaps.Load())
	}
}
