package demo

import (
	"bufio"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// cores is how many processors this process may use.
func cores() int { return runtime.NumCPU() }

func thisMachine() machine {
	m := machine{CPU: runtime.GOARCH, Cores: cores(), Go: runtime.Version()}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if key, value, ok := strings.Cut(s.Text(), ":"); ok && isCPUName(strings.TrimSpace(key)) && strings.TrimSpace(value) != "" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}

// isCPUName: x86 and MIPS name the processor on different lines; ARM on none.
func isCPUName(key string) bool { return key == "model name" || key == "cpu model" }
