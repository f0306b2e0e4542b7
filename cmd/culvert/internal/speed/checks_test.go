package speed

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// codes are the flags' names.
func codes(flags []flag) (c []flagCode) {
	for _, f := range flags {
		c = append(c, f.code)
	}
	return c
}

// speedRow is a row of an `openssl speed` report: n blocks of size bytes in so many seconds of user time, within 3 s.
type speedRow struct {
	size, n  float64
	user     float64
	reported float64 // 1000s of bytes/s, where the report has them
	want     []flagCode
}

func (s speedRow) check(most float64) []flag {
	return observation{
		bytes: s.size * s.n, wall: 3, cpu: s.user, userOnly: true, threads: 1, waited: -1, rate: s.reported * 1000,
	}.check(most)
}

// A published report had a VIA C3 of 666.55 MHz encrypt 6 GB/s with AES: its tool divided by the user time, while the engine
// was driven through the kernel. Every row is flagged for that, and the two that are beyond eight bytes per cycle, which no
// such processor moves, for that too.
func TestVIAC3Report(t *testing.T) {
	user, memory := []flagCode{userTimeOnly}, []flagCode{userTimeOnly, fasterThanCache}
	for _, r := range []speedRow{
		{16, 43843, 0.05, 14837.51, user},
		{64, 43409, 0.04, 70870.03, user},
		{256, 42798, 0.05, 199466.36, user},
		{1024, 41086, 0.01, 5435667.18, memory},
		{8192, 23249, 0.03, 6065857.95, memory},
	} {
		flags := r.check(8 * 666.55e6)
		if got := codes(flags); !slices.Equal(got, r.want) || !anyImpossible(flags) {
			t.Errorf("%v bytes: %v, not %v", r.size, got, r.want)
		}
		if r.size == 8192 && !strings.Contains(flags[0].text, "by wall time it is 0.51 Gbit/s") {
			t.Errorf("the true figure is not told: %s", flags[0].text)
		}
	}
}

// A published report set a hifn card and the kernel's software beside libcrypto, by user time. libcrypto's rows, all of whose
// work is user time, are sound; all others are flagged, and those with no time at all for that too.
func TestHifnReport(t *testing.T) {
	user, none := []flagCode{userTimeOnly}, []flagCode{noTime, userTimeOnly}
	for name, rows := range map[string][]speedRow{
		"libcrypto":          {{16, 201124, 3.00, 0, nil}, {64, 51381, 3.01, 0, nil}, {256, 12912, 3.01, 0, nil}, {1024, 3233, 3.01, 0, nil}, {8192, 404, 3.02, 0, nil}},
		"cryptodev software": {{16, 61531, 0.20, 0, user}, {64, 46481, 0.08, 0, user}, {256, 22956, 0.04, 0, user}, {1024, 7496, 0.01, 0, user}, {8192, 1041, 0, 0, none}},
		"cryptodev hifn":     {{16, 36353, 0.15, 0, user}, {64, 34432, 0.12, 0, user}, {256, 28077, 0.05, 0, user}, {1024, 15986, 0.07, 0, user}, {8192, 3245, 0, 0, none}},
	} {
		for _, r := range rows {
			flags := r.check(0)
			if got := codes(flags); !slices.Equal(got, r.want) || anyImpossible(flags) != (r.want != nil) {
				t.Errorf("%s, %v bytes: %v, not %v", name, r.size, got, r.want)
			}
		}
	}
}

// All 24 rows of the C2558's report follow from their own cycles and frequency; one that is a hundredth off, or that was
// computed with the frequency of a core at rest, does not, and has no ratio.
func TestC2558Reproduces(t *testing.T) {
	if len(c2558) != 24 {
		t.Fatalf("%d rows, not 24", len(c2558))
	}
	for i := range c2558 {
		p := &c2558[i]
		if f := p.check(); f != nil {
			t.Errorf("%s %d %v: %v", p.name, p.bits, p.dir, f)
		}
		for name, change := range map[string]func(*published){
			"throughput": func(p *published) { p.mbps *= 1.01 },
			"frequency":  func(p *published) { p.mhz = 1200 },
		} {
			q := *p
			change(&q)
			if got := codes(q.check()); !slices.Equal(got, []flagCode{notReproduced}) {
				t.Errorf("%s %d %v with another %s: %v", p.name, p.bits, p.dir, name, got)
			}
			if r := (&row{Gbps: 1, ref: &q}); r.times(1) != "-" || r.published("1") != "(1)" {
				t.Errorf("a row beside a report that contradicts itself says %s times %s", r.times(1), r.published("1"))
			}
		}
	}
	if got := c2558[0].recompute(); math.Abs(got-3952.40) > 0.01 {
		t.Errorf("the first row gives %.3f Mbit/s", got)
	}
}

// Each check by itself, on either side of its limit.
func TestChecks(t *testing.T) {
	good := observation{bytes: 1e9, wall: 1, cpu: 0.99, threads: 1, waited: 0, cycles: 2.4e9, hz: 2.4e9}
	const most = 10e9
	for name, c := range map[string]struct {
		change func(*observation)
		want   []flagCode
	}{
		"sound":                                {func(*observation) {}, nil},
		"no wall time":                         {func(o *observation) { o.wall, o.cpu, o.cycles = 0, 0, 0 }, []flagCode{noTime}},
		"little CPU, unexplained":              {func(o *observation) { o.cpu = 0.02 }, []flagCode{cpuBelowWall}},
		"little CPU, waiting not known":        {func(o *observation) { o.cpu, o.waited = 0.5, -1 }, []flagCode{cpuBelowWall}},
		"little CPU, waiting explains it":      {func(o *observation) { o.cpu, o.waited = 0.4, 0.59 }, []flagCode{sharedMachine}},
		"little CPU, waiting does not explain": {func(o *observation) { o.cpu, o.waited = 0.4, 0.3 }, []flagCode{cpuBelowWall}},
		"little CPU, an asynchronous engine":   {func(o *observation) { o.cpu, o.elsewhere = 0.02, true }, nil},
		"nearly all CPU":                       {func(o *observation) { o.cpu = 0.91 }, nil},
		"more CPU than there was":              {func(o *observation) { o.cpu = 1.2 }, []flagCode{cpuAboveWall}},
		"four threads":                         {func(o *observation) { o.cpu, o.threads = 3.9, 4 }, nil},
		"four threads, of which one worked":    {func(o *observation) { o.threads = 4 }, []flagCode{cpuBelowWall}},
		"beyond memory":                        {func(o *observation) { o.bytes = 11e9 }, []flagCode{fasterThanCache}},
		"beyond one memory, by two threads":    {func(o *observation) { o.bytes, o.threads, o.cpu = 11e9, 2, 2 }, nil},
		"reported beyond memory":               {func(o *observation) { o.rate = 11e9 }, []flagCode{fasterThanCache}},
		"cycles of another clock":              {func(o *observation) { o.hz = 1.2e9 }, []flagCode{clocksDisagree}},
		"cycles within tolerance":              {func(o *observation) { o.hz = 2.43e9 }, nil},
		"cycles unknown":                       {func(o *observation) { o.cycles, o.hz = 0, 0 }, nil},
	} {
		o := good
		c.change(&o)
		flags := o.check(most)
		if got := codes(flags); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
		for _, f := range flags {
			if f.text == "" || !strings.HasPrefix(f.String(), string(f.code)+": ") {
				t.Errorf("%s: flag without a reason: %q", name, f)
			}
		}
	}
}

// The declared frequency of the counter is believed only if the clock agrees; without either there are no cycles.
func TestChooseCounter(t *testing.T) {
	for _, c := range []struct {
		calibrated, declared, want float64
		how                        string
	}{
		{2.4001e9, 2.4e9, 2.4e9, "CPUID leaf 0x15, and so calibrated"},
		{2.095e9, 2.4e9, 2.095e9, "CPUID leaf 0x15 has 2400.0 MHz"},
		{2.095e9, 0, 2.095e9, "CPUID does not give it"},
		{0, 2.4e9, 0, "did not move"},
	} {
		got := chooseCounter(c.calibrated, c.declared, "0x15")
		if got.hz != c.want || !strings.Contains(got.how, c.how) {
			t.Errorf("%v calibrated, %v declared: %v", c.calibrated, c.declared, got)
		}
	}
}
