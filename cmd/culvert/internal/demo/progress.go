package demo

import (
	"fmt"
	"io"
	"time"
)

// progress tells what is going on, a line per step.
type progress struct {
	w     io.Writer
	start time.Time
	open  bool // a line is begun
}

func newProgress(w io.Writer) *progress { return &progress{w: w, start: time.Now()} }

// step begins a line.
func (p *progress) step(what string) {
	p.end()
	fmt.Fprintf(p.w, "%5.1fs  %s … ", time.Since(p.start).Seconds(), what)
	p.open = true
}

// done ends the line with the outcome.
func (p *progress) done(outcome string) {
	fmt.Fprintln(p.w, outcome)
	p.open = false
}

// end ends a line that has no outcome, so that what follows begins on its own.
func (p *progress) end() {
	if p.open {
		fmt.Fprintln(p.w)
		p.open = false
	}
}

func (p *progress) elapsed() time.Duration { return time.Since(p.start) }
