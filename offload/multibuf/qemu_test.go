//go:build linux && amd64

package multibuf_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestARM64 builds this package's tests for arm64 and runs those of the arm64 level in QEMU: every kernel alone, the
// conformance suite, and random bursts against soft. It does so on a processor with all that there is, and on one without
// the SHA-512 instructions, where SHA-384 and SHA-512 have no kernel. It shows that the results are right, and nothing of
// how fast they are.
func TestARM64(t *testing.T) {
	qemu, err := exec.LookPath("qemu-aarch64")
	if err != nil {
		t.Skipf("NOT RUN: the arm64 level: %v; install qemu-user", err)
	}
	binary := filepath.Join(t.TempDir(), "multibuf.test")
	build := exec.Command("go", "test", "-c", "-o", binary, ".")
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			t.Skipf("NOT RUN: the arm64 level: %v", err)
		}
		t.Fatalf("build the tests for arm64: %v\n%s", err, out)
	}
	for _, c := range []struct {
		cpu, tests string
		sha512     bool
	}{
		{"max", "TestKernels|TestConformance|TestAgainstPeers", true},
		{"cortex-a72", "TestKernels|TestAgainstPeers", false},
	} {
		t.Run(c.cpu, func(t *testing.T) {
			run := exec.Command(qemu, "-cpu", c.cpu, binary, "-test.v", "-test.short", "-test.timeout=5m",
				"-test.run", "^("+c.tests+")$/^arm64$")
			out, err := run.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, test := range strings.Split(c.tests, "|") {
				if want := "--- PASS: " + test + "/arm64"; !strings.Contains(string(out), want) {
					t.Errorf("there is no %q", want)
				}
			}
			if found := strings.Contains(string(out), "--- PASS: TestKernels/arm64/sha512"); found != c.sha512 {
				t.Errorf("a kernel for SHA-512 was run: %v, not %v", found, c.sha512)
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}
