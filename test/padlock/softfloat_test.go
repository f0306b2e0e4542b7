package padlock_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"culvert/test/plemu"
)

// compile386 compiles this package's tests for a 386 without SSE2, as the C3 is.
func compile386(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("compiles for another processor")
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("qemu-i386"); err != nil {
		t.Skip(err)
	}
	program := filepath.Join(t.TempDir(), "padlock.test")
	cmd := exec.Command(tool, "test", "-c", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=386", "GO386=softfloat")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return program
}

// The 386's own instructions give the known answers of every transform, in all the ways to hash, and keep to the page ends; and on
// a processor without PadLock the engine says so.
func Test386(t *testing.T) {
	if _, inside := plemu.Inside(); inside {
		return
	}
	program := compile386(t)
	for name, modes := range map[string]string{"c3": "", "c7": "resumed", "nano": "parts"} {
		t.Run(name, func(t *testing.T) {
			m := plemu.Find(name)
			m.InterruptEvery = 10
			r := plemu.RerunQEMU(t, m, program, "TestProving")
			clean(t, m, r, 0)
			if r.Interrupted == 0 || modes != "" && !bytes.Contains(r.Output, []byte("SHA1 "+map[string]string{"resumed": "resumed", "parts": "in blocks"}[modes])) {
				t.Errorf("%d interrupts:\n%s", r.Interrupted, r.Output)
			}
			ops := []plemu.Op{{Name: "xsha1", Mode: modes}, {Name: "xsha256", Mode: modes}}
			if modes == "" {
				ops = nil
			}
			for _, bits := range []int{128, 192, 256} {
				ops = append(ops, plemu.Op{Name: "xcryptcbc", KeyBits: bits}, plemu.Op{Name: "xcryptcbc", KeyBits: bits, Decrypt: true})
			}
			for _, op := range ops {
				if r.Ops[op] < 50 {
					t.Errorf("%+v was executed %d times only", op, r.Ops[op])
				}
			}
			t.Log(r.Ops)
		})
	}
	t.Run("host", func(t *testing.T) {
		cmd := exec.Command("qemu-i386", "-cpu", "pentium3", program, "-test.run=^TestHost$", "-test.v")
		cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestHost ") || !strings.Contains(string(out), "not a VIA CPU") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
