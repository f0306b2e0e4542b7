package speed

import (
	"fmt"
	"math"
)

// observation is what a measurement says of itself, ours or one out of a report.
type observation struct {
	bytes   float64 // worked on
	wall    float64 // s from the first thread's start to the last one's end; 0: not told
	cpu     float64 // s of processor time, of all threads together
	threads int     // that are to be busy all the time

	userOnly  bool    // cpu lacks what the kernel did (getrusage's user time)
	elsewhere bool    // an asynchronous engine: a device, or other threads, may do the work
	waited    float64 // s that threads were ready and had no processor; negative: not known

	cycles, hz float64 // counted from start to end, and the frequency given for them; 0: not told
	rate       float64 // bytes/s as reported; 0: bytes by wall
}

// Tolerances.
const (
	slack       = 0.1  // of the time that threads should have been running
	clockSlack  = 0.02 // between the counter and the clock
	enoughCopy  = 0.5  // of an opening loop spent on copying makes the difference uncertain
	reproducing = 1.0  // Mbit/s: reports have whole ones
)

// flag says what is wrong with a row.
type flag struct {
	code flagCode
	text string // with the figures
	mark string // short enough to stand in a table's row; "": the text stands below
}

// flagCode names a kind of flag.
type flagCode string

// All of them.
const (
	noTime          flagCode = "no-time"
	userTimeOnly    flagCode = "user-time-only"
	cpuBelowWall    flagCode = "cpu-below-wall"
	cpuAboveWall    flagCode = "cpu-above-wall"
	fasterThanCache flagCode = "faster-than-memory"
	clocksDisagree  flagCode = "cycles-disagree"
	notReproduced   flagCode = "does-not-reproduce"
	sharedMachine   flagCode = "shared-machine"
	mostlyCopying   flagCode = "mostly-copying"
)

// impossible are the flags of rows that cannot be as they are; the others say how to read a row.
var impossible = map[flagCode]bool{
	noTime: true, userTimeOnly: true, cpuBelowWall: true, cpuAboveWall: true,
	fasterThanCache: true, clocksDisagree: true, notReproduced: true,
}

// String is how JSON has it.
func (f flag) String() string { return string(f.code) + ": " + f.text }

// anyImpossible reports whether a row is no result.
func anyImpossible(flags []flag) bool {
	for _, f := range flags {
		if impossible[f.code] {
			return true
		}
	}
	return false
}

// check finds what cannot be. most is the bytes/s that one thread can read and write on the machine; 0: not known.
func (o observation) check(most float64) (flags []flag) {
	add := func(c flagCode, format string, args ...any) {
		flags = append(flags, flag{code: c, text: fmt.Sprintf(format, args...)})
	}
	busy := o.wall * float64(o.threads) // thread seconds
	switch {
	case o.userOnly && o.cpu <= 0:
		add(noTime, "%.0f bytes in no time at all: the clock counts only what it sees at its ticks", o.bytes)
	case !o.userOnly && o.wall <= 0:
		add(noTime, "%.0f bytes in no time at all", o.bytes)
	}
	switch {
	case o.userOnly:
		if o.wall > 0 && o.cpu < (1-slack)*busy {
			add(userTimeOnly, "%.2f s of user time in %.2f s: what the kernel or a device did in the rest is not counted; by wall time it is %s",
				o.cpu, o.wall, gbits(o.bytes/o.wall))
		}
	case o.elsewhere:
	case o.cpu > (1+slack)*busy:
		add(cpuAboveWall, "%.3f s of processor time by %s in %.3f s: one of the clocks is wrong", o.cpu, count(o.threads, "thread"), o.wall)
	case o.cpu < (1-slack)*busy && o.waited >= 0 && o.cpu+o.waited >= (1-slack)*busy:
		percent := 100 * o.waited / busy
		add(sharedMachine, "threads waited %.0f %% of the time for a processor: the figure by wall time is the busy machine's, the one by CPU time is good", percent)
		flags[len(flags)-1].mark = fmt.Sprintf("waited %.0f %%", percent)
	case o.cpu < (1-slack)*busy:
		add(cpuBelowWall, "%.3f s of processor time by %s in %.3f s, and no waiting that explains it: the work was done, or not done, where this clock does not count",
			o.cpu, count(o.threads, "thread"), o.wall)
	}
	rate := o.rate
	if rate == 0 && o.wall > 0 {
		rate = o.bytes / o.wall
	}
	if limit := most * float64(o.threads); limit > 0 && rate > limit {
		add(fasterThanCache, "%s is more than the %s that %s can read and write here at best", gbits(rate), gbits(limit), count(o.threads, "thread"))
	}
	if o.cycles > 0 && o.hz > 0 && o.wall > 0 {
		if t := o.cycles / o.hz; math.Abs(t/o.wall-1) > clockSlack {
			add(clocksDisagree, "%.0f cycles at %.0f MHz are %.3f s, but the clock has %.3f s: the frequency is not the counter's", o.cycles, o.hz/1e6, t, o.wall)
		}
	}
	return flags
}

// gbits is bytes/s for people.
func gbits(bytesPerSecond float64) string { return figure(bytesPerSecond*8/1e9) + " Gbit/s" }

// count is a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// moveRate finds out how many bytes/s one thread can read and write at most: a copy within the first-level cache, the best
// of several, and twice that, since an engine that works in place touches each byte once where a copy touches two.
func moveRate() float64 {
	src, dst := make([]byte, 8<<10), make([]byte, 8<<10)
	best := 0.0
	for range 20 {
		const copies = 200
		start := rawTime()
		for range copies {
			copy(dst, src)
		}
		if t := rawTime() - start; t > 0 {
			best = max(best, copies*float64(len(src))/(float64(t)/1e9))
		}
	}
	return 2 * best
}
