package configs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"culvert/sa"
)

// TestExamples: every example loads, without a warning.
func TestExamples(t *testing.T) {
	n := 0
	for _, name := range Examples() {
		if !strings.HasSuffix(name, ".toml") {
			continue
		}
		n++
		c := example(t, name)
		for _, w := range c.Warnings {
			t.Errorf("%s: warning: %v", name, w)
		}
		spd(t, c)
	}
	if n < 5 {
		t.Errorf("only %d examples", n)
	}
}

// TestExamplePairs: the two ends of an example fit: what one sends with the other receives with, and their subnets are
// each other's.
func TestExamplePairs(t *testing.T) {
	for _, name := range []string{"site-to-site-udp", "site-to-site-esp-ipv6"} {
		a, b := example(t, name+".toml").Tunnels[0], example(t, name+"-branch.toml").Tunnels[0]
		for _, d := range []struct{ out, in sa.Params }{{a.OutParams(), b.InParams()}, {b.OutParams(), a.InParams()}} {
			o, i := d.out, d.in
			if o.SPI != i.SPI || o.Src != i.Src || o.Dst != i.Dst || o.SrcPort != i.SrcPort || o.DstPort != i.DstPort || o.Encap != i.Encap ||
				o.Transform != i.Transform || !o.Keys.Enc.Equal(i.Keys.Enc) || !o.Keys.Auth.Equal(i.Keys.Auth) || o.Keys.ESN != i.Keys.ESN {
				t.Errorf("%s: %v and %v are not the two ends of one SA", name, o, i)
			}
			if err := o.ValidateFor(sa.Out); err != nil {
				t.Error(err)
			}
			if err := i.ValidateFor(sa.In); err != nil {
				t.Error(err)
			}
		}
		if !slices.Equal(a.LocalSubnets, b.RemoteSubnets) || !slices.Equal(a.RemoteSubnets, b.LocalSubnets) {
			t.Errorf("%s: the subnets are not each other's", name)
		}
	}
}

// TestExampleDocumentsEverything: the first example has every key that there is, but for those that exclude others of it.
func TestExampleDocumentsEverything(t *testing.T) {
	text, err := Example("site-to-site-udp")
	if err != nil {
		t.Fatal(err)
	}
	for table, keys := range schema() {
		for _, k := range keys {
			if !regexp.MustCompile(`(?m)^(\[+([a-z]+\.)?` + k + `\]+|` + k + ` =|#.*\b` + k + `\b)`).Match(text) {
				t.Errorf("%s of %q is not in the example", k, table)
			}
		}
	}
}

// TestExampleKeysAreSamples: nobody can take an example's key for a real one; it says so itself.
func TestExampleKeysAreSamples(t *testing.T) {
	for _, name := range Examples() {
		text, err := Example(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range regexp.MustCompile(`[0-9a-f]{32,}`).FindAllString(string(text), -1) {
			if !strings.HasPrefix(key, "5a3b1e0000000000") {
				t.Errorf("%s: %s… does not look like a sample", name, key[:8])
			}
		}
		if strings.Contains(string(text), "5a3b1e") && !regexp.MustCompile("(?i)sample").Match(text) {
			t.Errorf("%s does not say that its keys are samples", name)
		}
	}
}

// TestExampleUnknown: a name that there is not is answered with those that there are.
func TestExampleUnknown(t *testing.T) {
	if _, err := Example("nothing"); err == nil || !strings.Contains(err.Error(), "many-selectors.toml") {
		t.Errorf("got %v", err)
	}
}

// TestService: the unit has what the gateway relies on, every group of settings has its comment, and systemd, where it is
// installed, has nothing against it.
func TestService(t *testing.T) {
	text, err := Example("culvert.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"Type=notify", "ExecStart=/usr/local/bin/culvert run -c /etc/culvert/culvert.toml", "ExecReload=/bin/kill -HUP $MAINPID",
		"LimitCORE=0", "StateDirectory=culvert", "RuntimeDirectory=culvert", "NoNewPrivileges=yes", "WantedBy=multi-user.target",
	} {
		if !strings.Contains("\n"+string(text), "\n"+line+"\n") {
			t.Errorf("the unit has no line %s", line)
		}
	}
	// What the program does not have yet, nor need, is neither spoken of nor granted.
	if m := regexp.MustCompile(`(?i)io_uring|xdp|bpf|af_alg|/dev/crypto|culvert exec|memlock|sys_admin|ptrace`).Find(text); m != nil {
		t.Errorf("the unit has %q", m)
	}
	c, err := LoadBytes("defaults", nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.StateDir != "/var/lib/culvert" || filepath.Dir(c.Control) != "/run/culvert" {
		t.Error("the unit's directories are not the configuration's")
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed: systemd's own check of the unit did not run")
	}
	unit := filepath.Join(t.TempDir(), "culvert.service")
	write(t, unit, strings.Replace(string(text), "/usr/local/bin/culvert", os.Args[0], 1), 0o644)
	if out, err := exec.Command(analyze, "verify", "--man=no", unit).CombinedOutput(); err != nil || strings.Contains(string(out), "culvert.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestDropIns: systemd takes the units with the drop-ins for an IKE daemon, and what the gateway is granted by them is there.
func TestDropIns(t *testing.T) {
	dir := t.TempDir()
	for to, from := range map[string]string{
		"culvert.service": "culvert.service", "culvert.service.d/ike.conf": "culvert-ike.conf", "strongswan.service.d/culvert.conf": "strongswan-culvert.conf",
	} {
		text, err := Example(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, to)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, to), strings.ReplaceAll(string(text), "/usr/local/bin/culvert", os.Args[0]), 0o644)
	}
	write(t, filepath.Join(dir, "strongswan.service"), "[Unit]\nDescription=stand-in\n[Service]\nType=notify\nExecStart=/usr/sbin/charon-systemd\n", 0o644)
	for file, lines := range map[string][]string{
		"culvert-ike.conf": {
			"FileDescriptorStoreMax=512", "RuntimeDirectoryPreserve=restart", "CapabilityBoundingSet=CAP_SYS_ADMIN CAP_SYS_PTRACE CAP_CHOWN", "RestrictNamespaces=no", "ProtectProc=default",
			"SystemCallFilter=memfd_create pidfd_open pidfd_getfd process_vm_readv process_vm_writev setns unshare",
		},
		"strongswan-culvert.conf": {"Requires=culvert.service", "After=culvert.service", "ExecStart=", "ExecStart=/usr/local/bin/culvert exec -- /usr/sbin/charon-systemd"},
	} {
		text, err := Example(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if !strings.Contains("\n"+string(text), "\n"+line+"\n") {
				t.Errorf("%s has no line %s", file, line)
			}
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed: systemd's own check of the units did not run")
	}
	cmd := exec.Command(analyze, "verify", "--man=no", "culvert.service", "strongswan.service")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), dir) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestExampleKeyFiles: the command in the example makes the key files that both ends need, and they are taken.
func TestExampleKeyFiles(t *testing.T) {
	dir := t.TempDir()
	text, err := Example("site-to-site-esp-ipv6")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^#   (umask .*)$`).FindSubmatch(text)
	if m == nil {
		t.Fatal("there is no command in it")
	}
	cmd := exec.Command("sh", "-c", string(m[1]))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"site-to-site-esp-ipv6.toml", "site-to-site-esp-ipv6-branch.toml"} {
		text, err := Example(name)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := LoadBytes(filepath.Join(dir, name), text); err != nil || len(c.Warnings) > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
