package speed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"culvert/offload"
	"culvert/offload/multibuf"
	"culvert/offload/pool"
	"culvert/offload/soft"
)

// parse makes options of a command line.
func parse(t *testing.T, args ...string) (*options, error) {
	t.Helper()
	o := &options{}
	f := pflag.NewFlagSet("speed", pflag.ContinueOnError)
	o.flags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o, o.check()
}

func mustParse(t *testing.T, args ...string) *options {
	t.Helper()
	o, err := parse(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// A wrong flag is named, with what it may be.
func TestBadFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--direction=up"}, []string{`--direction "up"`, "seal, open, both"}},
		{[]string{"--batch=0"}, []string{"--batch 0", "1 to 1024"}},
		{[]string{"--threads=300"}, []string{"--threads 300", "1 to 256"}},
		{[]string{"--repeat=-1"}, []string{"--repeat -1", "1 to 100"}},
		{[]string{"--time=1ms"}, []string{"--time 1ms", "10ms to 1h0m0s"}},
		{[]string{"--size=1024,8"}, []string{"--size 8", "16 to 65000"}},
		{[]string{"--sweep", "--size=64"}, []string{"--sweep", "16, 64, 256, 1024, 1400, 8192"}},
		{[]string{"--reference=c3558"}, []string{`--reference "c3558"`, "c2558"}},
		{[]string{"--reference=c2558", "--transform=all"}, []string{"--reference c2558", "leave out --transform"}},
		{[]string{"--reference=c2558", "--sweep"}, []string{"leave out --sweep"}},
		{[]string{"--transform=aes"}, []string{`--transform "aes"`, "authenc(hmac(sha256),cbc(aes))", "`culvert engines` lists all", "or write all"}},
		{[]string{"--transform=authenc(hmac(sha1),cbc(aes))/128"}, []string{"bits of key and ICV"}},
		{[]string{"--key-bits=100"}, []string{"--key-bits 100", "128, 192, 256"}},
		{[]string{"--transform=all", "--key-bits=100"}, []string{"--key-bits 100", "no transform"}},
	} {
		_, err := parse(t, c.args...)
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%v: %v; want %q in it", c.args, err, w)
			}
		}
	}
}

// What the flags amount to.
func TestRowsOfFlags(t *testing.T) {
	all := len(offload.Transforms())
	for _, c := range []struct {
		args []string
		rows int
	}{
		{nil, 2},
		{[]string{"--reference=c2558"}, 24},
		{[]string{"--reference=c2558", "--direction=open"}, 12},
		{[]string{"--sweep"}, 12},
		{[]string{"--sweep", "--direction=seal", "--key-bits=128,256"}, 12},
		{[]string{"--transform=all"}, 2 * all},
		{[]string{"--transform=rfc4106(gcm(aes))", "--transform=authenc(hmac(sha256),cbc(aes))/192/96", "--size=64,1400"}, 8},
		{[]string{"--transform=authenc(sha1,aes)", "--transform=authenc(hmac(sha1),cbc(aes))/128/96"}, 2},
	} {
		if o := mustParse(t, c.args...); len(o.rows) != c.rows {
			t.Errorf("%v: %d rows, not %d", c.args, len(o.rows), c.rows)
		}
	}
	o := mustParse(t, "--reference=c2558")
	for i, g := range o.rows {
		if p := &c2558[i]; g.ref != p || g.t.Name != p.name || g.t.KeyBits != p.bits || g.dir != p.dir || g.size != 1024 {
			t.Errorf("row %d of the report is measured as %s %v, %d bytes", i, g.t, g.dir, g.size)
		}
	}
}

// named is an engine by another name.
type named struct {
	offload.Engine
	name string
}

func (n named) Name() string { return n.name }

// stepped is an engine with levels.
type stepped struct {
	named
	level string
}

func (s stepped) Levels() []string { return []string{"avx2", "sse"} }
func (s stepped) Level() string    { return s.level }
func (s stepped) WithLevel(l string) (offload.Engine, error) {
	s.level = l
	return s, nil
}

// broken is an engine that this machine does not run.
type broken struct{ named }

var errBroken = errors.New("this machine has no such device")

func (broken) Probe() (offload.Caps, error) { return offload.Caps{}, errBroken }

// Which engines are measured, at which levels, and what is said of the others.
func TestChoose(t *testing.T) {
	all := []offload.Engine{soft.New(), stepped{named{soft.New(), "lanes"}, "avx2"}, broken{named{soft.New(), "card"}}}
	for _, c := range []struct {
		names, levels []string
		chosen, notes string
		err           string
	}{
		{chosen: "soft, lanes (avx2)", notes: "card is left out: this machine has no such device"},
		{names: []string{"soft"}, chosen: "soft"},
		{names: []string{"lanes", "soft"}, chosen: "soft, lanes (avx2)"},
		{names: []string{"lanes"}, levels: []string{"sse"}, chosen: "lanes (sse)"},
		{names: []string{"lanes"}, levels: []string{"all"}, chosen: "lanes (avx2), lanes (sse)"},
		{levels: []string{"sse"}, chosen: "lanes (sse)", notes: "soft is left out: --cpu sse: the engine has no levels; card is left out: this machine has no such device"},
		{names: []string{"card"}, err: "--engine card: this machine has no such device"},
		{names: []string{"qat"}, err: `--engine "qat": write one or more of soft, lanes, card, or all`},
		{levels: []string{"mmx"}, err: `--cpu "mmx": write one or more of avx512, avx2, avx, shani, sse-sha, sse, sse2, arm64, generic, or all`},
		{names: []string{"lanes"}, levels: []string{"avx512"}, err: "--engine lanes: --cpu avx512: on this machine the engine has avx2, sse"},
		{levels: []string{"avx512"}, err: "no engine is left to measure: soft is left out"},
	} {
		chosen, notes, err := choose(all, c.names, c.levels)
		if c.err != "" || err != nil {
			if err == nil || c.err == "" || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, %v: the error is %v, not %q", c.names, c.levels, err, c.err)
			}
			continue
		}
		var names []string
		for _, e := range chosen {
			names = append(names, e.String())
		}
		if got := strings.Join(names, ", "); got != c.chosen || strings.Join(notes, "; ") != c.notes {
			t.Errorf("%v, %v: %s; notes %q", c.names, c.levels, got, notes)
		}
	}
}

// Package multibuf's engine has its levels here, each of which can be forced and says so.
func TestMultibufLevels(t *testing.T) {
	best := lanesOf(multibuf.New(multibuf.Options{Rest: soft.New()}))
	chosen, _, err := choose([]offload.Engine{best}, nil, []string{"all"})
	if err != nil {
		t.Fatal(err)
	}
	if len(chosen) != len(multibuf.Levels()) || best.Level() != chosen[0].level {
		t.Errorf("%d levels, not %v; the best is %s", len(chosen), multibuf.Levels(), best.Level())
	}
	for i, c := range chosen {
		want := string(multibuf.Levels()[i])
		if c.name != "multibuf" || c.level != want || !slices.Contains(levelNames, want) || !strings.HasPrefix(c.caps.Detail, want) {
			t.Errorf("level %s is called %s, with %q; --cpu takes %v", want, c, c.caps.Detail, levelNames)
		}
	}
	if _, err := best.WithLevel("mmx"); err == nil {
		t.Error("there is a level mmx")
	}
}

// measured runs a command line and reads back its lines.
func measured(t *testing.T, engines []offload.Engine, args ...string) (rows []row, msg string, err error) {
	t.Helper()
	var out, stderr bytes.Buffer
	err = run(context.Background(), mustParse(t, append(args, "--json")...), engines, &out, &stderr)
	for d := json.NewDecoder(&out); ; {
		var r row
		if e := d.Decode(&r); e == io.EOF {
			return rows, stderr.String(), err
		} else if e != nil {
			t.Fatal(e)
		}
		rows = append(rows, r)
	}
}

// consistent checks what must hold of a real row, however busy the machine is.
func consistent(t *testing.T, r *row) {
	t.Helper()
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(b) }
	bits := float64(r.Ops) * float64(r.Size) * 8
	if r.Ops <= 0 || r.Ops%int64(r.Batch) != 0 || r.WallS <= 0 || r.CPUS <= 0 || r.Flags == nil ||
		!near(r.Gbps, bits/r.WallS/1e9) || !near(r.GbpsPerCPUS, bits/r.CPUS/1e9) {
		t.Errorf("a row that contradicts itself: %+v", r)
	}
	if c := r.CyclesPerByte; c != nil && (*c <= 0 || math.IsInf(*c, 0)) {
		t.Errorf("%v cycles per byte", *c)
	}
}

// Every transform in both directions, for a moment each, on the synchronous reference.
func TestRealRows(t *testing.T) {
	rows, msg, err := measured(t, []offload.Engine{soft.New()}, "--transform=all", "--time=10ms", "--repeat=1", "--batch=4", "--size=64")
	if err != nil || msg != "" {
		t.Fatalf("%v; %s", err, msg)
	}
	if want := 2 * len(offload.Transforms()); len(rows) != want {
		t.Fatalf("%d rows, not %d", len(rows), want)
	}
	for i := range rows {
		consistent(t, &rows[i])
	}
}

// Several threads, sizes beyond a slot, and an asynchronous engine, whose processor time is the process's.
func TestRealThreads(t *testing.T) {
	workers := pool.New(soft.New(), pool.Options{Workers: 2, Name: "workers"})
	rows, _, err := measured(t, []offload.Engine{soft.New(), workers}, "--time=20ms", "--repeat=2", "--threads=3", "--size=16,1400,8192",
		"--transform=authenc(hmac(sha512),cbc(aes))")
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 12 {
		t.Fatalf("%d rows, not 12", len(rows))
	}
	for i := range rows {
		if consistent(t, &rows[i]); rows[i].Threads != 3 {
			t.Errorf("%d threads", rows[i].Threads)
		}
	}
}

// The tables of real rows: the report's has all its rows, and nothing is left out of a sweep.
func TestRealTables(t *testing.T) {
	for name, want := range map[string]int{"--reference=c2558": 24, "--sweep": 12} {
		var out bytes.Buffer
		o := mustParse(t, name, "--time=10ms", "--repeat=1", "--batch=2")
		if err := run(context.Background(), o, []offload.Engine{soft.New()}, &out, io.Discard); err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(out.String()) {
			if f := strings.Fields(line); strings.HasPrefix(line, "authenc(") && len(f) > 10 && slices.Contains(f, "soft") {
				n++
			}
		}
		if n != want {
			t.Errorf("%s has %d rows, not %d:\n%s", name, n, want, out.String())
		}
	}
}

// spoiler is soft with a lane that does something wrong to every burst after the first few, as an engine may that passes its
// known answers.
type spoiler struct {
	named
	after int
	spoil func(*offload.Burst) error
}

func (s spoiler) NewLane(id int) (offload.Lane, error) {
	l, err := s.Engine.NewLane(id)
	return &spoilerLane{Lane: l, s: s}, err
}

type spoilerLane struct {
	offload.Lane
	s spoiler
	n int
}

func (l *spoilerLane) Submit(b *offload.Burst) error {
	if err := l.Lane.Submit(b); err != nil {
		return err
	}
	if l.n++; l.n > l.s.after {
		return l.s.spoil(b)
	}
	return nil
}

// An engine that goes wrong while it is measured has no row, and the command fails and says which and how.
func TestWrongEngines(t *testing.T) {
	errDevice := errors.New("the device is gone")
	for name, c := range map[string]struct {
		direction string
		spoil     func(*offload.Burst) error
		want      error
	}{
		"a status":     {"both", func(b *offload.Burst) error { b.Jobs[3].Status = offload.EngineError; return nil }, errWrong},
		"plaintext":    {"open", func(b *offload.Burst) error { b.Jobs[3].ESP[40] ^= 1; return nil }, errWrong},
		"an ICV":       {"seal", func(b *offload.Burst) error { e := b.Jobs[3].ESP; e[len(e)-1] ^= 1; return nil }, errWrong},
		"the lane":     {"both", func(*offload.Burst) error { return errDevice }, errDevice},
		"a whole lane": {"both", func(*offload.Burst) error { return offload.ErrFull }, offload.ErrFull},
	} {
		// The known answers take some tens of bursts on a lane of their own; a row's first comparison takes one.
		bad := spoiler{named{soft.New(), "bad"}, 100, c.spoil}
		rows, msg, err := measured(t, []offload.Engine{bad}, "--direction="+c.direction, "--time=30ms", "--repeat=2", "--size=64")
		if len(rows) != 0 || !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), "engine bad") || !strings.Contains(msg, "bad is left out") {
			t.Errorf("%s: %d rows, %v, said %q", name, len(rows), err, msg)
		}
	}
	// One that is wrong at once does not pass its known answers.
	bad := spoiler{named{soft.New(), "bad"}, 0, func(b *offload.Burst) error { b.Jobs[0].ESP[30] ^= 1; return nil }}
	if rows, _, err := measured(t, []offload.Engine{bad}, "--time=10ms"); len(rows) != 0 || !errors.Is(err, offload.ErrWrongAnswer) {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// narrow has one transform.
type narrow struct{ named }

func (n narrow) Probe() (offload.Caps, error) {
	caps, err := n.Engine.Probe()
	caps.Transforms = caps.Transforms[:1]
	return caps, err
}

// A transform that an engine does not have is said once, and is no failure.
func TestUnsupported(t *testing.T) {
	rows, msg, err := measured(t, []offload.Engine{narrow{named{soft.New(), "narrow"}}},
		"--transform=authenc(hmac(md5),cbc(aes))", "--transform=rfc4106(gcm(aes))", "--time=10ms", "--repeat=1")
	if err != nil || len(rows) != 2 || strings.Count(msg, "narrow is left out for rfc4106(gcm(aes))") != 1 {
		t.Errorf("%d rows, %v, said %q", len(rows), err, msg)
	}
}

// Interrupted, the command ends with what it has.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out bytes.Buffer
	start := time.Now()
	err := run(ctx, mustParse(t, "--time=1h"), []offload.Engine{soft.New()}, &out, io.Discard)
	if !errors.Is(err, context.Canceled) || time.Since(start) > 30*time.Minute {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// Packets lie at least 2112 bytes apart, never overlap, and never share the sets of a first-level cache.
func TestSlot(t *testing.T) {
	for esp := 36; esp < 70000; esp += 4 {
		s := slot(esp)
		if s < 2112 || s < esp || s >= esp+2112 && esp > 2112 || s%2048 != 64 {
			t.Fatalf("%d bytes: a slot of %d", esp, s)
		}
	}
}

// The cipher works on exactly the size asked for, where that is whole blocks.
func TestPacketSize(t *testing.T) {
	for _, tr := range offload.Transforms() {
		for _, size := range sweepSizes {
			p, err := newPackets(tr, size)
			if err != nil {
				t.Fatal(err)
			}
			got := len(p.sealed[0]) - tr.HeaderLen() - tr.ICVLen
			if want := (size + tr.BlockLen - 1) / tr.BlockLen * tr.BlockLen; got != want {
				t.Errorf("%s, size %d: %d bytes of plaintext, not %d", tr, size, got, want)
			}
			for i := range p.plain {
				if k := (i + 1) % distinct; bytes.Equal(p.sealed[i], p.sealed[k]) {
					t.Errorf("%s: packets %d and %d are the same", tr, i, k)
				}
			}
		}
	}
}

// The command has help with examples, and refuses arguments.
func TestCommand(t *testing.T) {
	c := Command()
	if !strings.Contains(c.Example, "--reference c2558") || c.Args(c, []string{"x"}) == nil {
		t.Error("the command has no examples, or takes arguments")
	}
	c.SetArgs([]string{"--direction", "up"})
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	c.SilenceUsage = true
	if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "--direction") {
		t.Errorf("a bad flag: %v", err)
	}
}
