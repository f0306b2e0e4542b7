package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// commands are the indented lines of a section of the README, but for what stands between fences.
func commands(t *testing.T, readme, section string) string {
	t.Helper()
	_, rest, ok := strings.Cut(readme, "\n## "+section+"\n")
	if !ok {
		t.Fatalf("README.md has no section %q", section)
	}
	body, _, _ := strings.Cut(rest, "\n## ")
	var lines []string
	fenced := false
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		if command, ok := strings.CutPrefix(line, "    "); ok {
			lines = append(lines, command)
		}
	}
	if lines == nil {
		t.Fatalf("README.md, %q: no commands: this test would prove nothing", section)
	}
	return strings.Join(lines, "")
}

// A person who types what the README says, line by line, gets what it says: the program is built and installed, two gateways from the
// examples have a tunnel between them, and nothing is left. The machine is fresh: namespaces of its own, and empty directories where
// the commands write. Only the demo is left out, which has a test of its own.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs gateways: not with -short")
	}
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	text, err := os.ReadFile(filepath.Join(root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	build := strings.Replace(commands(t, string(text), "See it work"), "sudo culvert demo\n", "", 1)
	if strings.Contains(build, "demo") {
		t.Errorf("the demo would run as well:\n%s", build)
	}
	work := t.TempDir()
	script := `set -e -o pipefail
mount -t proc proc /proc
mkdir "$2/tree" "$2/work" "$2/lib"
mount --bind "$2/lib" /var/lib
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /usr/local/bin
mkdir /run/netns
ip link set lo up
printf '#!/bin/sh\nexec "$@"\n' >/usr/local/bin/sudo
chmod +x /usr/local/bin/sudo
cd "$1"
git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --ignore-failed-read | tar -x -C "$2/tree"
set -x
cd "$2/tree"
` + build + `
cd "$2/work"
` + commands(t, string(text), "Use it") + `
set +x
echo "left: $(ip netns list) $(ls /run/netns)"
`
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", script, "-", root(t), work)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(tool)+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	out, err := cmd.CombinedOutput()
	said := string(out)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for _, want := range []string{
		"head.toml is right", "branch.toml is right", "3 packets transmitted, 3 received", "sequence 3, packets 3", "balanced=true", "configuration  head.toml", "head-office", "removed unreachable route to 10.2.0.0/16", "removed unreachable route to 10.1.0.0/16", "\nleft:  \n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q was not said", want)
		}
	}
	if t.Failed() {
		t.Log(said)
	}
}
