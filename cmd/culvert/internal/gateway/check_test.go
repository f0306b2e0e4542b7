package gateway

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"culvert/configs"
	"culvert/sa"
)

// host is a network namespace with the interface out0 and its address 192.0.2.1, for the goroutine of the test.
func host(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, ends with the test's goroutine
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out0"}, PeerName: "out1"}); err != nil {
		t.Fatal(err)
	}
	give(t, "out0", "192.0.2.1/24")
	ip(t, "route add 10.1.0.0/25 dev out0") // the LAN
	give(t, "lo", "127.0.0.1/8")
}

func give(t *testing.T, name, address string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(l, a); err != nil && !errors.Is(err, unix.EEXIST) {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
}

// document is the text of a configuration that starts on host, with GCM if aead and else with CBC.
func document(dir string, aead bool) string {
	s := `state_dir = "DIR/state"
state_dir_volatile = true
control = "DIR/control.sock"
engine = ""
tun = {name = "culvert0"}
metrics = {listen = ""}
[[tunnel]]
name = "branch"
local = "192.0.2.1"
remote = "192.0.2.2"
transform = "rfc4106(gcm(aes))"
local_subnets = ["10.1.0.0/24"]
remote_subnets = ["10.2.0.0/24"]
` + keys("1")
	if !aead {
		s = strings.Replace(s, "rfc4106(gcm(aes))", "authenc(hmac(sha1),cbc(aes))", 1)
		s = regexp.MustCompile(`enc_key = "(.{32})(.{8})"`).ReplaceAllString(s, "enc_key = \"$1\"\nauth_key = \"$1$2\"")
	}
	return strings.ReplaceAll(s, "DIR", dir)
}

func load(t *testing.T, text string) *configs.Config {
	t.Helper()
	cfg, err := configs.LoadBytes("culvert.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func memory(t *testing.T, fs string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, fs, 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) }) // a store keeps its memory mapped for as long as the process lives
	return dir
}

// What check finds wrong, run refuses with the same words, before it has made anything; and following the hint leads to a
// configuration that both take. Each case changes one line of a right one.
func TestCheckIsWhatStartRefuses(t *testing.T) {
	host(t)
	dir, tmpfs, ramfs := t.TempDir(), memory(t, "tmpfs"), memory(t, "ramfs")
	ro := memory(t, "tmpfs")
	if err := unix.Mount("none", ro, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged, alive := t.TempDir(), dir+"/alive.sock"
	if err := os.WriteFile(damaged+"/sequence-marks", []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	listen(t, "unix", alive)
	state := `state_dir = "` + dir + `/state"`
	onDisk := "state_dir_volatile = true"
	control := `control = "` + dir + `/control.sock"`
	for _, c := range []struct{ name, old, new, want, mended string }{
		{"AEAD on a tmpfs", state + "\n" + onDisk, `state_dir = "` + tmpfs + `/a/b"`,
			`culvert.toml:1:1: state_dir: ` + tmpfs + `/a/b is on a tmpfs, which a reboot empties: tunnel "branch" would then use sequence numbers again with the same key, and rfc4106(gcm(aes)) reveals what it carries when that happens; write a directory on a disk, such as "/var/lib/culvert"; or state_dir_volatile = true, if the keys are new at each boot`,
			`state_dir = "` + tmpfs + "/a/b\"\nstate_dir_volatile = true"},
		{"AEAD on a ramfs", state + "\n" + onDisk, `state_dir = "` + ramfs + `"`, "is on a ramfs, which a reboot empties", `state_dir = "` + ramfs + "\"\nstate_dir_volatile = true"},
		{"a state directory in a file", state, `state_dir = "` + dir + `/file/x"`, `the directory "` + dir + `/file/x": it, or what leads to it, is no directory; choose another path`, state},
		{"a state directory that is a file", state, `state_dir = "` + dir + `/file"`, `the directory "` + dir + `/file": it, or what leads to it, is no directory; choose another path`, state},
		{"a state directory that is read-only", state, `state_dir = "` + ro + `/x"`, "is on a file system that is read-only; choose", state},
		{"a state directory with too long a name", state, `state_dir = "/var/` + strings.Repeat("x", 300) + `"`, "file name too long", state},
		{"no such engine", `engine = ""`, `engine = "warp"`, `culvert.toml:4:1: engine: there is no engine "warp"; write one of padlock, multibuf, soft, or "" to have one chosen`, `engine = "soft"`},
		{"an interface that is none", "culvert0", "out0", `culvert.toml:5:8: tun.name: this host has an interface out0 already, which is no TUN (veth); choose a name that is free`, "culvert1"},
		{"a TAP", "culvert0", "tap0", `which is no TUN (tap)`, "culvert2"},
		{"an address that is not ours", `"192.0.2.1"`, `"192.0.2.9"`, `culvert.toml:9:1: tunnel.branch.local: no interface of this host has the address 192.0.2.9; give this host the address, or write one that it has`, `"192.0.2.1"`},
		{"a control socket on a file", control, `control = "` + dir + `/file"`, "is there already, and is no socket; remove it, or choose another path", control},
		{"a control socket in a file", control, `control = "` + dir + `/file/x.sock"`, ": it, or what leads to it, is no directory; choose another path", control},
		{"a control socket where nothing can be written", control, `control = "` + ro + `/x.sock"`, "read-only", control},
		{"metrics at an address that is not ours", `listen = ""`, `listen = "192.0.2.9:1"`, `metrics.listen: this host cannot listen on "192.0.2.9": cannot assign requested address; write an address that it has`, `listen = "127.0.0.1:9750"`},
		{"a state directory of the kernel's", state, `state_dir = "/proc/culvert"`, `culvert.toml:1:1: state_dir: "/proc/culvert" is on a file system of the kernel's own (proc), where nobody can make a file; choose a directory that can be written`, state},
		{"damaged marks", state, `state_dir = "` + damaged + `"`, `culvert.toml:1:1: state_dir: ` + damaged + `/sequence-marks: the sequence store is damaged: it has 7 bytes, not a whole number of records of 64. Going on could repeat sequence numbers: give every SA with a static key a new one, then remove the file`, state},
		{"a control socket in the kernel's", control, `control = "/proc/x.sock"`, `control: "/proc" is on a file system of the kernel's own (proc), where nobody can make a file; choose a directory that can be written`, control},
		{"a control socket that another gateway has", control, `control = "` + alive + `"`, "control: a gateway has the socket " + alive + "; stop it, or give this one another `control` path", control},
		{"a TUN that another program has", "culvert0", "culvert8", `culvert.toml:5:8: tun.name: another program has the TUN culvert8; stop it, or choose another name`, "culvert9"},
		{"a UDP port that another program has", "[[tunnel]]\n", "[[tunnel]]\nlocal_port = 4501\n", `tunnel.branch.local: udp 192.0.2.1:4501 cannot be opened: address already in use; stop the program that has it (ss -ulpn), or give the tunnel another local_port`, "[[tunnel]]\nlocal_port = 4502\n"},
		{"metrics at a port that another program has", `listen = ""`, `listen = "127.0.0.1:9750"`, `metrics.listen: another program listens on "127.0.0.1:9750"; stop it (ss -tlnp), write a free port, or "" to switch the metrics off`, `listen = "127.0.0.1:9751"`},
		{"metrics at a name that is none", `listen = ""`, `listen = "no such host:1"`, `metrics.listen: this host cannot listen on "no such host"`, `listen = ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			host(t)
			text := document(dir, true)
			if !strings.Contains(text, c.old) {
				t.Fatalf("no %s to change", c.old)
			}
			broken := strings.Replace(text, c.old, c.new, 1)
			if c.name == "a TAP" {
				if err := netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tap0"}, Mode: netlink.TUNTAP_MODE_TAP}); err != nil {
					t.Fatal(err)
				}
			}
			switch c.name {
			case "a TUN that another program has":
				tt := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "culvert8"}, Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true, Queues: 1}
				if err := netlink.LinkAdd(tt); err != nil {
					t.Fatal(err)
				}
				defer tt.Fds[0].Close()
			case "a UDP port that another program has":
				listen(t, "udp4", "192.0.2.1:4501")
			case "metrics at a port that another program has":
				listen(t, "tcp", "127.0.0.1:9750")
			}
			_, err := Check(load(t, broken), true)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("check: got %v\nwant %s", err, c.want)
			}
			if strings.Count(err.Error(), "\n") > 0 {
				t.Errorf("more than one mistake:\n%v", err)
			}
			_, again := Start(load(t, broken), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
			if again == nil || again.Error() != err.Error() {
				t.Errorf("run refuses with\n%v\ncheck with\n%v", again, err)
			}
			if _, err := netlink.LinkByName("culvert0"); err == nil {
				t.Error("the TUN was made")
			}
			mended := strings.Replace(text, c.old, c.mended, 1)
			if _, err := Check(load(t, mended), true); err != nil {
				t.Errorf("mended as the message says: %v", err)
			}
			startAndStop(t, mended)
		})
	}
}

// listen has an address until the test ends.
func listen(t *testing.T, network, address string) {
	t.Helper()
	var c io.Closer
	var err error
	if strings.HasPrefix(network, "udp") {
		c, err = net.ListenPacket(network, address)
	} else {
		c, err = net.Listen(network, address)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

// A host without TUN is refused by both, with how to mend it; a device that cannot be opened too.
func TestCheckWithoutTUN(t *testing.T) {
	host(t)
	defer func(d string) { tunDevice = d }(tunDevice)
	text, dir := document(t.TempDir(), true), t.TempDir()
	for what, c := range map[string]struct{ device, want string }{
		"no device": {dir + "/tun", "culvert.toml:5:1: tun: this host has no TUN: " + dir + "/tun: no such file or directory; load the module tun (modprobe tun), or let the container have " + dir + "/tun"},
		"refused":   {dir, "culvert.toml:5:1: tun: " + dir + " cannot be opened: is a directory; let the container, or the service, have " + dir},
	} {
		tunDevice = c.device
		_, err := Check(load(t, text), true)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got  %v\nwant %s", what, err, c.want)
		}
		if _, again := Start(load(t, text), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test"); again == nil || again.Error() != c.want {
			t.Errorf("%s: run refuses with %v", what, again)
		}
	}
}

// While the gateway runs, the configuration that it runs with is right, with what it holds itself; what somebody else holds is not.
func TestCheckBesideTheRunningGateway(t *testing.T) {
	host(t)
	text := strings.Replace(document(t.TempDir(), true), `listen = ""`, `listen = "127.0.0.1:9750"`, 1)
	g, err := Start(load(t, text), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop()
	if w, err := Check(load(t, text), true); err != nil || len(w) > 0 {
		t.Errorf("its own configuration: %v, %v", w, err)
	}
	// Somebody else is another process than the one that runs the gateway.
	other := exec.Command("python3", "-c", `
import socket, sys
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("192.0.2.1", 4501))
t = socket.socket(); t.bind(("127.0.0.1", 9751)); t.listen()
print("ready", flush=True); sys.stdin.read()`)
	in, _ := other.StdinPipe()
	out, _ := other.StdoutPipe()
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer in.Close()
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	for old, c := range map[string][2]string{
		"[[tunnel]]\n":     {"[[tunnel]]\nlocal_port = 4501\n", "udp 192.0.2.1:4501 cannot be opened: address already in use"},
		`"127.0.0.1:9750"`: {`"127.0.0.1:9751"`, `another program listens on "127.0.0.1:9751"`},
	} {
		if _, err := Check(load(t, strings.Replace(text, old, c[0], 1)), true); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("got %v, want %s", err, c[1])
		}
	}
}

// A plain user who checks a file for root is told what run needs, and that nothing is wrong; root without the capability is refused,
// for nobody could run it.
func TestCheckWithoutPrivileges(t *testing.T) {
	for _, link := range []string{"udp", "esp"} {
		text := strings.Replace(document("/var/lib/culvert-test", true), "[[tunnel]]\n", "[[tunnel]]\nlink = \""+link+"\"\n", 1)
		want := []string{"culvert.toml:5:1: tun: culvert run needs CAP_NET_ADMIN for the TUN, routes and rules, which "}
		if link == "esp" {
			want = append(want, "culvert.toml:8:1: tunnel.branch.link: culvert run needs CAP_NET_RAW for ESP without UDP, which ")
		}
		t.Run("user/"+link, func(t *testing.T) {
			host(t)
			// Of this thread alone, which ends with the test.
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); e != 0 {
				t.Fatal(e)
			}
			w, err := Check(load(t, text), true)
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			var all []string
			for _, w := range w {
				all = append(all, w.String())
			}
			for _, s := range want {
				if !strings.Contains(strings.Join(all, "\n"), s+"user 65534 does not have; run it as root") {
					t.Errorf("no warning %q in %q", s, all)
				}
			}
		})
		t.Run("root/"+link, func(t *testing.T) {
			host(t)
			h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&h, &data[0]); err != nil {
				t.Fatal(err)
			}
			data[0].Effective &^= 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
			if err := unix.Capset(&h, &data[0]); err != nil {
				t.Fatal(err)
			}
			_, err := Check(load(t, text), true)
			for _, s := range want {
				if err == nil || !strings.Contains(err.Error(), s+"root does not have here; let the container, or the service, have it") {
					t.Errorf("no error %q in %v", s, err)
				}
			}
		})
	}
}

func FuzzParseSocket(f *testing.F) {
	f.Add("  12: 0100007F:1194 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 0")
	f.Add("  12: 00000000000000000000000001000000:1194 00000000000000000000000000000000:0000 07 0:0 0:0 0 0 0 4711 2 0 0")
	f.Fuzz(func(t *testing.T, line string) {
		if at, inode, ok := parseSocket(line); ok && (!at.IsValid() || inode == "") {
			t.Errorf("%q: %v, %q", line, at, inode)
		}
	})
}

// The kernel's tables are read as what the sockets were bound to.
func TestParseSocket(t *testing.T) {
	host(t)
	listen(t, "udp4", "127.0.0.1:4505")
	listen(t, "udp6", "[::]:4506")
	listen(t, "tcp4", "0.0.0.0:4507")
	for table, want := range map[string]string{"udp": "127.0.0.1:4505", "udp6": "[::]:4506", "tcp": "0.0.0.0:4507"} {
		b, err := os.ReadFile("/proc/thread-self/net/" + table)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for line := range strings.Lines(string(b)) {
			at, _, ok := parseSocket(line)
			found = found || ok && at.String() == want
		}
		if !found {
			t.Errorf("no %s in\n%s", want, b)
		}
	}
}

func startAndStop(t *testing.T, text string) {
	t.Helper()
	g, err := Start(load(t, text), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
	if err != nil {
		t.Fatalf("a configuration that check takes does not start: %v", err)
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

// What does not depend on the host is checked without it too, and nothing else is.
func TestCheckWithoutHost(t *testing.T) {
	away := strings.NewReplacer("192.0.2.1", "198.51.100.77", `"culvert0"`, `"eth0"`).Replace(document("/proc/nowhere", true))
	if w, err := Check(load(t, away), false); err != nil || len(w) != 0 {
		t.Errorf("got %v, %v", w, err)
	}
	if _, err := Check(load(t, ""), false); err == nil || err.Error() != "culvert.toml: tunnel: there is no tunnel; add a [[tunnel]], or an [ike] with enabled = true; `culvert example` prints some" {
		t.Errorf("no tunnels: %v", err)
	}
	if _, err := Check(load(t, strings.Replace(away, `engine = ""`, `engine = "warp"`, 1)), false); err == nil {
		t.Error("no such engine: no error")
	}
}

// CBC does not depend on the numbers: a state directory in memory is worth one warning, not a refusal.
func TestVolatileStateOfCBC(t *testing.T) {
	host(t)
	text := strings.Replace(document(memory(t, "tmpfs"), false), "state_dir_volatile = true", "", 1)
	w, err := Check(load(t, text), true)
	if err != nil || len(w) != 1 || !strings.Contains(w[0].String(), "culvert.toml:1:1: state_dir: ") || !strings.Contains(w[0].String(), "is on a tmpfs, which a reboot empties") {
		t.Fatalf("got %v, %v", w, err)
	}
	startAndStop(t, text)
}

// A reload that brings an AEAD to a state directory in memory is refused like a start, and leaves the gateway as it was.
func TestReloadChecksState(t *testing.T) {
	host(t)
	dir := memory(t, "tmpfs")
	cbc := strings.Replace(document(dir, false), "state_dir_volatile = true\n", "", 1)
	g, err := Start(load(t, cbc), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop()
	gcm := strings.Replace(document(dir, true), "state_dir_volatile = true\n", "", 1)
	gcm = strings.NewReplacer("0x1001", "0x1003", "0x2001", "0x2003", "a1a1", "a3a3", "b1b1", "b3b3").Replace(gcm)
	if err := g.Reload(load(t, gcm)); err == nil || !strings.Contains(err.Error(), "is on a tmpfs") {
		t.Fatalf("got %v", err)
	}
	if err := g.Reload(load(t, "state_dir_volatile = true\n"+gcm)); err != nil {
		t.Errorf("with keys that are new at each boot: %v", err)
	}
}

// A reload says "restart" only of what a restart takes up: what that would refuse too is refused for what it is, and after a
// restart with what needed one the gateway runs.
func TestReloadSaysRestart(t *testing.T) {
	host(t)
	dir := t.TempDir()
	text := document(dir, true)
	g, err := Start(load(t, text), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { g.Stop() }()
	for _, c := range []struct {
		old, new string
		restart  bool
		want     string
	}{
		{"/state\"", "/elsewhere\"", true, "the sequence numbers in use are reserved in the directory of the start; restart culvert, or undo the change"},
		{"/state\"", "/control.sock/x\"", false, "is no directory; choose another path"},
		{`engine = ""`, `engine = "soft"`, true, "restart culvert, or undo the change"},
		{`engine = ""`, `engine = "warp"`, false, "there is no engine"},
		{"culvert0", "culvert7", true, "restart culvert, or undo the change"},
		{"culvert0", "out0", false, "is no TUN"},
		{"192.0.2.1", "192.0.2.9", false, "no interface of this host has the address 192.0.2.9; give this host the address, or write one that it has"},
		{`listen = ""`, `listen = "127.0.0.1:0"`, true, "restart culvert, or undo the change"},
		{`listen = ""`, `listen = "192.0.2.9:0"`, false, "cannot listen on"},
		{"[[tunnel]]", "[[policy]]", false, ""},
		{`remote = "192.0.2.2"`, `remote = "192.0.2.3"`, false, "remote changed, but not the SPIs and keys of both directions: the new SAs would take again what was received before; give the tunnel new SPIs and keys in both directions, or undo the change"},
	} {
		changed := strings.Replace(text, c.old, c.new, 1)
		cfg, err := configs.LoadBytes("culvert.toml", []byte(changed))
		if err == nil {
			err = g.Reload(cfg)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "restart culvert") != c.restart {
			t.Errorf("%s: got %v", c.new, err)
		}
		if !c.restart {
			continue
		}
		if err := g.Stop(); err != nil {
			t.Fatal(err)
		}
		startAndStop(t, changed)
		if g, err = Start(load(t, text), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test"); err != nil {
			t.Fatal(err)
		}
	}
}

// The loopback interface's MTU is more than an IP packet can have; a tunnel over it works all the same.
func TestLoopbackTunnel(t *testing.T) {
	host(t)
	text := strings.NewReplacer("192.0.2.1", "127.0.0.1", "192.0.2.2", "127.0.0.2").Replace(document(t.TempDir(), true))
	if _, err := Check(load(t, text), true); err != nil {
		t.Fatal(err)
	}
	startAndStop(t, text)
}

// A new file of marks, and a key that begins at 1, are in the log; a key that goes on is not.
func TestNewMarksAreLogged(t *testing.T) {
	host(t)
	dir := t.TempDir()
	for round, want := range [][]string{{"no sequence marks were there", "a key that was never used", "tunnel=branch"}, nil} {
		var b strings.Builder
		g, err := Start(load(t, document(dir, true)), slog.New(slog.NewTextHandler(&b, nil)), new(slog.LevelVar), "test")
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Stop(); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if strings.Count(b.String(), w) != 1 {
				t.Errorf("round %d: not once %q in\n%s", round, w, b.String())
			}
		}
		if want == nil && (strings.Contains(b.String(), "marks") || strings.Contains(b.String(), "begin at 1")) {
			t.Errorf("round %d: %s", round, b.String())
		}
	}
}

// What only a try shows of the state directory is told once, with one hint and without the names of packages.
func TestStoreRefusals(t *testing.T) {
	host(t)
	dir := t.TempDir()
	text := document(dir, true)
	start := func(text string) string {
		g, err := Start(load(t, text), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
		if err == nil {
			g.Stop()
			t.Fatal("it starts")
		}
		return strings.ReplaceAll(err.Error(), dir, "DIR")
	}
	s, err := sa.OpenStore(dir + "/state")
	if err != nil {
		t.Fatal(err)
	}
	const busy = `^culvert.toml:1:1: state_dir: the sequence store is in use: DIR/state is locked by process \d+; stop that one, or give each gateway a directory of its own$`
	if got := start(text); !regexp.MustCompile(busy).MatchString(got) {
		t.Errorf("got %s", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// A directory that others can change, and links in it: run and check say the same, and nothing is written through them.
	victim := dir + "/victim"
	if err := errors.Join(os.Chown(dir+"/state", 65534, 65534), os.Chmod(dir+"/state", 0o777), os.WriteFile(victim, []byte("precious"), 0o600),
		os.Remove(dir+"/state/lock"), os.Symlink(victim, dir+"/state/lock"), os.Symlink(victim, dir+"/state/sequence-marks.new")); err != nil {
		t.Fatal(err)
	}
	checked := func() string {
		if _, err := Check(load(t, text), true); err != nil {
			return strings.ReplaceAll(err.Error(), dir, "DIR")
		}
		return "nothing"
	}
	const exposed = `culvert.toml:1:1: state_dir: others can change the sequence store: the directory DIR/state belongs to user 65534 (mode 0777). If you trust what is in it: chown -R root: DIR/state; chmod 700 DIR/state. If not, remove it, and give every SA with a static key a new one`
	if run, check := start(text), checked(); run != exposed || check != exposed {
		t.Errorf("run says   %s\ncheck says %s\nwant       %s", run, check, exposed)
	}
	if out, err := exec.Command("sh", "-c", fmt.Sprintf("chown -R root: %s; chmod 700 %[1]s", dir+"/state")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const link = `culvert.toml:1:1: state_dir: DIR/state/lock: it is no file of the sequence store but a symbolic link; remove it, and find out who put it there`
	if run, check := start(text), checked(); run != link || check != link {
		t.Errorf("run says   %s\ncheck says %s\nwant       %s", run, check, link)
	}
	if err := os.Remove(dir + "/state/lock"); err != nil {
		t.Fatal(err)
	}
	startAndStop(t, text)
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
		t.Errorf("the victim holds %q, %v", b, err)
	}
	if err := os.WriteFile(dir+"/state/sequence-marks", []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	const damaged = `culvert.toml:1:1: state_dir: DIR/state/sequence-marks: the sequence store is damaged: it has 7 bytes, not a whole number of records of 64. Going on could repeat sequence numbers: give every SA with a static key a new one, then remove the file`
	if got := start(text); got != damaged {
		t.Errorf("got  %s\nwant %s", got, damaged)
	}
}

// Of a chain of network errors the reason is told, not the address again.
func TestReason(t *testing.T) {
	err := &net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", unix.EADDRINUSE)}
	if got := reason(err); got != unix.EADDRINUSE {
		t.Errorf("got %v", got)
	}
	if got := reason(io.EOF); got != io.EOF {
		t.Errorf("got %v", got)
	}
}

// Where only a default route leads to a local subnet, the guard lets nothing from a tunnel get there: that is worth a warning, unless the
// configuration says that it is meant.
func TestLocalSubnetBehindTheDefaultRoute(t *testing.T) {
	host(t)
	text := strings.Replace(document(t.TempDir(), true), "10.1.0.0/24", "10.7.0.0/24", 1)
	if w, err := Check(load(t, text), true); err != nil || len(w) != 1 || !strings.Contains(w[0].String(), "culvert.toml:12:1: tunnel.branch.local_subnets: no route but the default one leads to 10.7.0.0/24") {
		t.Errorf("got %v, %v", w, err)
	}
	if w, err := Check(load(t, text+"[guard]\nlocal_by_default_route = true\n"), true); err != nil || len(w) != 0 {
		t.Errorf("with local_by_default_route: %v, %v", w, err)
	}
	ip(t, "route add 10.7.0.0/25 dev out0")
	if w, err := Check(load(t, text), true); err != nil || len(w) != 0 {
		t.Errorf("with a route: %v, %v", w, err)
	}
}
