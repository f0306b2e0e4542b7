package ike

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"culvert/xfrm/divert"
)

// programsFile, below ike.state_dir, has the programs that a gateway serves, a line for each: boot, process ID, time of its start, name.
const programsFile = "programs"

// programs are those that have sockets of this gateway. The next one, if it does not get their sockets, ends them: it cannot serve them
// any more, and whoever has started them starts them again.
type programs struct {
	mu    sync.Mutex
	lines map[string]bool // of the file
}

// add notes a program. It is not forgotten when it ends: its line is nobody else's then.
func (s *programs) add(stateDir string, p divert.Peer) error {
	line := lineOf(int(p.PID))
	if line == "" {
		return nil // it has gone
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines[line] {
		return nil
	}
	if s.lines == nil {
		s.lines = map[string]bool{}
	}
	for have := range s.lines {
		if !lives(have) {
			delete(s.lines, have)
		}
	}
	s.lines[line] = true
	var b bytes.Buffer
	for have := range s.lines {
		b.WriteString(have + "\n")
	}
	return replace(filepath.Join(stateDir, programsFile), b.Bytes())
}

// endOrphans ends the programs that an earlier gateway has served and nobody serves now, and gives their names.
func endOrphans(stateDir string) (ended []string) {
	name := filepath.Join(stateDir, programsFile)
	text, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		f := strings.SplitN(line, " ", 4)
		var pid int
		if len(f) != 4 {
			continue
		}
		if _, err := fmt.Sscan(f[1], &pid); err != nil || pid < 2 {
			continue
		}
		// The descriptor is this process's, whatever becomes of its ID.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if same(lineOf(pid), line) && unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0) == nil {
			ended = append(ended, fmt.Sprintf("%s[%d]", f[3], pid))
		}
		unix.Close(fd)
	}
	os.Remove(name)
	return ended
}

func lives(line string) bool {
	var pid int
	f := strings.SplitN(line, " ", 4)
	if _, err := fmt.Sscan(f[1], &pid); err != nil {
		return false
	}
	return same(lineOf(pid), line)
}

// same says whether two lines are of one process, which may have another name meanwhile.
func same(a, b string) bool {
	x, y := strings.SplitN(a, " ", 4), strings.SplitN(b, " ", 4)
	return len(x) == 4 && len(y) == 4 && slices.Equal(x[:3], y[:3])
}

var bootID = sync.OnceValues(func() ([]byte, error) { return os.ReadFile("/proc/sys/kernel/random/boot_id") })

// lineOf is the line of a process; "" if there is none.
func lineOf(pid int) string {
	boot, err := bootID()
	if err != nil {
		return ""
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return ""
	}
	f := strings.Fields(string(stat[end+1:]))
	const start = 22 - 3 // proc(5): the 22nd field, and the 3rd is the first behind the name
	if len(f) <= start || f[0] == "Z" {
		return ""
	}
	return fmt.Sprintf("%s %d %s %s", bytes.TrimSpace(boot), pid, f[start], strings.ReplaceAll(string(stat[open+1:end]), "\n", " "))
}
