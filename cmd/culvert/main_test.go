package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain lets the test program be culvert itself.
func TestMain(m *testing.M) {
	if os.Getenv("CULVERT_TEST_MAIN") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A command whose output could not be written does not claim success.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range []string{"--help", "version", "example", "example site-to-site-udp", "engines", "engines --json", "completion bash"} {
		cmd := exec.Command(os.Args[0], strings.Fields(args)...)
		cmd.Env = append(os.Environ(), "CULVERT_TEST_MAIN=1")
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = full, &said
		if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), "no space left on device") {
			t.Errorf("culvert %s: %v, %q", args, err, said.String())
		}
	}
}
