package speed

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// progress tells a terminal what is being measured, on a line that it overwrites. To anything else it says nothing.
type progress struct {
	w     io.Writer // nil: not a terminal
	total int
	n     int
}

func newProgress(w io.Writer, total int) *progress {
	f, ok := w.(*os.File)
	if !ok {
		return &progress{total: total}
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return &progress{total: total}
	}
	return &progress{w: f, total: total}
}

// step says what comes next.
func (p *progress) step(what string) {
	p.n++
	if p.w != nil {
		fmt.Fprintf(p.w, "\r\x1b[K%d of %d: %s", p.n, p.total, what)
	}
}

// clear empties the line, before something else is printed.
func (p *progress) clear() {
	if p.w != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
