package speed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"culvert/cmd/culvert/internal/complete"
	"culvert/cmd/culvert/internal/early"
	"culvert/cmd/culvert/internal/gateway"
	"culvert/offload"
)

// Command is "culvert speed".
func Command() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "speed",
		Short: "Measure how fast the engines seal and open packets",
		Long: `Measures how fast the engines of this machine seal and open ESP packets in memory: no network, no SA lookup.

Every figure is given by wall time (CLOCK_MONOTONIC_RAW, from the first thread's start to the last one's end) and by
processor time (user and system, summed over the threads; for an asynchronous engine the whole process). Cycles per byte
are processor time in cycles of the time stamp counter, which is not the core's own clock, and are left out where the
counter's frequency is not known. A row whose figures contradict each other is marked and shown in parentheses.

Only the plaintext is counted: payload, padding, pad length and next header, which is what the cipher works on. Packets lie
2112 bytes apart, and a burst is of one SA. An engine seals the same buffers again and again; before it opens them they are
laid again, by a copy, whose time is measured by itself and taken off (the column "laying" says how much it was).

Each engine first gives the known answers. The first packets of a row are compared with the reference engine's, so are the
last, and every status in between is looked at. Of the repetitions the best by wall time is shown (by processor time, if all
of them had to share the machine), and the median by wall time beside it.`,
		Example: `  culvert speed                                      AES-128 and SHA-1, on every engine
  culvert speed --reference c2558                    the 24 rows of an Atom C2558 with QuickAssist, beside it
  culvert speed --reference c2558 --threads 4        ... with as many threads as were used there
  culvert speed --sweep --transform "rfc4106(gcm(aes))" --key-bits 128,256
  culvert speed --engine soft --transform all --direction open --json
  culvert speed --sweep --cpu all --time 2s          the levels of the engines that have some`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			ctx, stop := early.Interruptible(c.Context(), os.Interrupt, unix.SIGTERM)
			defer stop()
			return run(ctx, o, engines(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	o.flags(c.Flags())
	complete.List(c, "engine", func(*cobra.Command) (names []string) {
		for _, e := range engines() {
			names = append(names, e.Name())
		}
		return append(names, "all")
	})
	complete.Flag(c, "transform", complete.Transforms("all"))
	complete.List(c, "key-bits", complete.KeyBits)
	complete.Flag(c, "direction", complete.Fixed(directionNames...))
	complete.List(c, "cpu", complete.Fixed(append([]string{"all"}, levelNames...)...))
	complete.Flag(c, "reference", complete.Fixed(references...))
	complete.Nothing(c, "size", "batch", "threads", "time", "repeat")
	return c
}

// run measures all rows and prints them.
func run(ctx context.Context, o *options, all []offload.Engine, out, msg io.Writer) error {
	chosen, notes, err := choose(all, o.engineNames, o.levels)
	if err != nil {
		return err
	}
	if ctx == nil {
		ctx = context.Background()
	}
	// A thread that waits for another to let go of Go's scheduler would seem to wait for the engine.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), o.threads+1)))
	m := &machine{counter: findCounter(), most: moveRate()}
	if !o.json {
		header(out, o, m, chosen)
	}

	p := newProgress(msg, len(chosen)*len(o.rows))
	var rows []*row
	var wrong error
	for _, next := range order(o, chosen) {
		p.step(fmt.Sprintf("%s, %s %v, %d bytes", next.engine, next.t, next.dir, next.size))
		r, err := measure(ctx, m, next.engine, next.target, shape{o.batch, o.threads, o.time, o.repeat})
		if ctx.Err() != nil {
			wrong = context.Cause(ctx)
			break
		}
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s is left out for %s: %s", next.engine, next.t, gateway.Plain(err)))
			if !errors.Is(err, offload.ErrUnsupported) {
				wrong = errors.Join(wrong, fmt.Errorf("engine %s, %v %s, %d bytes: %w", next.engine, next.dir, next.t, next.size, gateway.Plainly(err)))
			}
			continue
		}
		if o.json {
			p.clear()
			if err := r.writeJSON(out); err != nil {
				return err
			}
		}
		rows = append(rows, r)
	}
	p.clear()

	notes = dedupe(notes)
	if o.json {
		for _, n := range notes {
			fmt.Fprintln(msg, "culvert:", n)
		}
		return wrong
	}
	style{reference: o.reference != "", sweep: o.sweep}.print(out, rows)
	if len(notes) > 0 {
		fmt.Fprintln(out)
	}
	for _, n := range notes {
		fmt.Fprintln(out, n)
	}
	return wrong
}

// work is one row to measure.
type work struct {
	target
	engine *candidate
}

// order lists all rows. In a sweep the sizes of an engine follow each other, as they will stand side by side; else the
// engines do, for they are to be compared.
func order(o *options, chosen []*candidate) (list []work) {
	for _, g := range o.rows {
		for _, c := range chosen {
			list = append(list, work{g, c})
		}
	}
	if o.sweep {
		// Stable: what is equal here stays in the order of sizes.
		place := map[*candidate]int{}
		for i, c := range chosen {
			place[c] = i
		}
		block := map[[2]any]int{}
		for _, w := range list {
			key := [2]any{w.t, w.dir}
			if _, ok := block[key]; !ok {
				block[key] = len(block)
			}
		}
		slices.SortStableFunc(list, func(a, b work) int {
			if d := block[[2]any{a.t, a.dir}] - block[[2]any{b.t, b.dir}]; d != 0 {
				return d
			}
			return place[a.engine] - place[b.engine]
		})
	}
	return list
}

func dedupe(notes []string) (once []string) {
	for _, n := range notes {
		if !slices.Contains(once, n) {
			once = append(once, n)
		}
	}
	return once
}

// header says what was measured, on what, and how.
func header(w io.Writer, o *options, m *machine, chosen []*candidate) {
	name, kernel := thisMachine()
	fmt.Fprintf(w, "machine  %s, %d processors; Linux %s; %s\n", name, runtime.NumCPU(), kernel, runtime.Version())
	for _, c := range chosen {
		fmt.Fprintf(w, "engine   %s: %s\n", c, c.caps.Detail)
	}
	if m.counter.hz > 0 {
		fmt.Fprintf(w, "counter  %.1f MHz: %s\n", m.counter.hz/1e6, m.counter.how)
	} else {
		fmt.Fprintf(w, "counter  no cycles per byte: %s\n", m.counter.how)
	}
	fmt.Fprintf(w, "rows     %s, bursts of %s of one SA; the best of %d repetitions of %v or more, and the median by wall time\n",
		count(o.threads, "thread"), count(o.batch, "packet"), o.repeat, o.time/time.Duration(o.repeat))
	if o.reference != "" {
		fmt.Fprintf(w, "beside   an Intel Atom C2558 with QuickAssist: %d threads of %d requests, %d bytes of plaintext each; hashes not truncated\n",
			c2558Threads, c2558Requests, c2558Size)
	}
	fmt.Fprintln(w)
}

// thisMachine is the processor's and the kernel's names.
func thisMachine() (cpu, kernel string) {
	cpu = runtime.GOARCH
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			key, value, _ := strings.Cut(s.Text(), ":")
			if key, value = strings.TrimSpace(key), strings.TrimSpace(value); (key == "model name" || key == "cpu model") && value != "" {
				cpu = value
				break
			}
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	return cpu, kernel
}
