package ike

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"culvert/xfrm/divert"
)

// What an earlier gateway served is told to end; a process that has got the same ID since, or that nobody served, is left alone, and so is
// whatever a damaged file may name.
func TestOrphansEnd(t *testing.T) {
	dir := t.TempDir()
	run := func() *exec.Cmd {
		c := exec.Command("sleep", "60")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill() })
		return c
	}
	served, reused, stranger, gone := run(), run(), run(), run()
	var p programs
	for _, c := range []*exec.Cmd{gone, served, served} {
		if err := p.add(dir, divert.Peer{PID: int32(c.Process.Pid)}); err != nil {
			t.Fatal(err)
		}
	}
	gone.Process.Kill()
	gone.Wait()
	if err := p.add(dir, divert.Peer{PID: int32(os.Getpid())}); err != nil { // which forgets who has gone
		t.Fatal(err)
	}
	name := filepath.Join(dir, programsFile)
	text, err := os.ReadFile(name)
	if err != nil || strings.Count(string(text), "\n") != 2 || strings.Contains(string(text), fmt.Sprintf(" %d ", gone.Process.Pid)) {
		t.Fatalf("%v in the file:\n%s", err, text)
	}
	lines := []string{lineOf(served.Process.Pid), "", "x", "a b c d", lineOf(stranger.Process.Pid)[:20], "boot -1 5 init", "boot 0 5 init", "boot 1 1 init"}
	f := strings.Fields(lineOf(reused.Process.Pid))
	lines = append(lines, fmt.Sprintf("%s %s %s9 %s", f[0], f[1], f[2], f[3]), strings.Repeat("9", 5000))
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := endOrphans(dir)
	if len(ended) != 1 || ended[0] != fmt.Sprintf("sleep[%d]", served.Process.Pid) {
		t.Errorf("ended: %v", ended)
	}
	if err := served.Wait(); served.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("the program that was served has ended with %v", err)
	}
	for _, c := range []*exec.Cmd{reused, stranger} {
		if lineOf(c.Process.Pid) == "" {
			t.Errorf("%d has been ended", c.Process.Pid)
		}
	}
	if again := endOrphans(dir); len(again) != 0 {
		t.Errorf("a second time: %v", again)
	}
}
