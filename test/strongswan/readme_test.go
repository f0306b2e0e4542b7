package strongswan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the README says about strongSwan, typed line by line on a machine with a connection in /etc/swanctl/conf.d, makes a tunnel. The
// machine is fresh: namespaces of its own, and directories where the commands write that are nobody else's.
func TestStrongSwanReadme(t *testing.T) {
	long(t)
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n## Use it with strongSwan\n")
	if !ok {
		t.Fatal("README.md has no section about strongSwan")
	}
	body, _, _ := strings.Cut(rest, "\n## ")
	var commands strings.Builder
	n := 0
	for line := range strings.Lines(body) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands.WriteString(command)
			n++
		}
	}
	if n != 5 {
		t.Fatalf("the README has %d commands, want 5", n)
	}
	w := prepare(t, options{local: "10.1.0.0/24", remote: "10.2.0.0/24"})
	w.b.startCharon()
	bin := filepath.Join(w.a.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(bin, "culvert")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "sudo"), []byte("#!/bin/sh\nexec \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.a.write("readme.sh", `set -e -o pipefail
mount -t tmpfs tmpfs /run
mkdir /run/upper /run/work /run/lib
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work /etc
mount --bind /run/lib /var/lib
mkdir -p /etc/swanctl/conf.d
cp "$1/swanctl.conf" /etc/swanctl/conf.d/tunnel.conf
export PATH="$1/bin:$PATH"
unset STRONGSWAN_CONF SWANCTL_DIR
`+commands.String()+`
swanctl --initiate --child net --timeout 20
culvert status
echo the tunnel is up
wait
`)
	p, log := w.a.background("unshare", "-m", "bash", w.a.dir+"/readme.sh", w.a.dir)
	until(t, "the commands have made a tunnel", func() bool {
		select {
		case <-p.Done():
			t.Fatalf("the commands ended by themselves: %v", p.Err())
		default:
		}
		return strings.Contains(w.a.read(log), "the tunnel is up")
	})
	w.ping(w.EthA, w.EthB, false, 5)
	w.ping(w.EthB, w.EthA, false, 5)
	out, _ := w.a.run("ip", "netns", "pids", w.GatewayA.Name())
	for _, pid := range strings.Fields(out) {
		w.a.run("kill", pid)
	}
}
