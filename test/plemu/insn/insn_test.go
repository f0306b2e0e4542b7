//go:build amd64 || 386

package insn

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"culvert/offload/padlock"
)

// What is executed are the instructions themselves: a processor without them refuses each.
func TestInstructionsAreReal(t *testing.T) {
	if _, err := padlock.New().Probe(); err == nil {
		t.Log("this processor has a PadLock, so the instructions are not refused; test/padlock checks what they do")
		return
	}
	for name, run := range instructions {
		if os.Getenv("CULVERT_INSN") == name {
			run(new(Registers))
			return
		}
	}
	for name := range instructions {
		c := exec.Command(os.Args[0], "-test.run=^TestInstructionsAreReal$")
		c.Env = append(os.Environ(), "CULVERT_INSN="+name)
		out, err := c.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "SIGILL") {
			t.Errorf("%s: %v, want an illegal instruction\n%s", name, err, out)
		}
	}
}

var instructions = map[string]func(*Registers){"CBC": CBC, "CBCHeldKey": CBCHeldKey, "SHA1": SHA1, "SHA256": SHA256}
