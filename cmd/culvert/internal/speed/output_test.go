package speed

import (
	"bytes"
	"encoding/json"
	goflag "flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"culvert/offload"
)

var update = goflag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}

// lookup finds a transform that there is.
func lookup(t *testing.T, name string, bits, icv int) *offload.Transform {
	t.Helper()
	tr, err := offload.Lookup(name, bits, icv)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

var (
	softCandidate = &candidate{name: "soft"}
	sseCandidate  = &candidate{name: "lanes", level: "sse"}
	testMachine   = &machine{counter: counter{hz: 2e9}, most: 100e9}
)

// ran is a span of n bursts that took so many s, of which cpu on the processor and the rest waiting.
func ran(n int64, wall, cpu float64) span {
	return span{bursts: n, start: 5e9, end: 5e9 + int64(wall*1e9), cpu: int64(cpu * 1e9), waited: int64((wall - cpu) * 1e9), cycles: uint64(wall * 2e9)}
}

func testRow(c *candidate, g target, whole, copying span) *row {
	r := newRow(testMachine, c, g, shape{batch: 32, threads: 1}, whole, copying)
	r.median = r.Gbps * 0.9
	return r
}

// The plain table: what a row has, what is in parentheses, and the remarks.
func TestPlainTable(t *testing.T) {
	sha1 := target{t: lookup(t, "authenc(hmac(sha1),cbc(aes))", 0, 0), size: 1024}
	short := target{t: lookup(t, "authenc(hmac(sha256),cbc(aes))", 192, 96), size: 64}
	gcm := target{t: lookup(t, "rfc4106(gcm(aes))", 256, 0), size: 8192, dir: offload.Open}
	elsewhere := ran(10000, 0.1, 0.01)
	elsewhere.waited = 0
	unknown := testRow(softCandidate, sha1, ran(2000, 0.1, 0.0999), span{})
	unknown.CyclesPerByte = nil
	var b bytes.Buffer
	style{}.print(&b, []*row{
		testRow(softCandidate, sha1, ran(1000, 0.1, 0.0999), span{}),
		testRow(sseCandidate, sha1, ran(10000, 0.1, 0.04), span{}),
		testRow(sseCandidate, sha1, elsewhere, span{}),
		testRow(softCandidate, short, ran(1, 0.1, 0.0999), span{}),
		testRow(sseCandidate, gcm, ran(4000, 0.1, 0.1), ran(10000, 0.02, 0.02)),
		testRow(sseCandidate, gcm, ran(4000, 0.1, 0.1), ran(10000, 0.2, 0.2)),
		testRow(sseCandidate, gcm, ran(4000, 0.1, 0.1), ran(1000, 0.03, 0.03)),
		testRow(sseCandidate, gcm, ran(400000, 0.1, 0.1), span{}),
		unknown,
	})
	golden(t, "plain.txt", b.Bytes())
}

// Beside a report: its rows in its order, in its unit, with how many times its figure; none where either side cannot be.
func TestReferenceTable(t *testing.T) {
	wrong := c2558[3]
	wrong.mhz = 1200
	refs := []*published{&c2558[0], &c2558[1], &wrong}
	var rows []*row
	for i, p := range refs {
		g := target{t: lookup(t, p.name, p.bits, 0), dir: p.dir, size: c2558Size, ref: p}
		rows = append(rows, testRow(softCandidate, g, ran(1500, 0.1, 0.0999), span{}), testRow(sseCandidate, g, ran(8000, 0.1, 0.099), span{}))
		if i == 1 {
			lost := ran(8000, 0.1, 0.01)
			lost.waited = -1
			rows = append(rows, testRow(softCandidate, g, lost, span{}))
		}
	}
	var b bytes.Buffer
	style{reference: true}.print(&b, rows)
	golden(t, "reference.txt", b.Bytes())
}

// A sweep ends with sizes as columns, a line per engine and direction; what cannot be, or was not measured, has no number.
func TestSweepTable(t *testing.T) {
	tr := lookup(t, "authenc(hmac(md5),cbc(des3_ede))", 0, 0)
	var rows []*row
	for _, c := range []*candidate{softCandidate, sseCandidate} {
		for _, size := range sweepSizes[:5] {
			whole := ran(100000/int64(size), 0.1, 0.098)
			if c == sseCandidate && size == 256 {
				whole.cycles /= 2
			}
			rows = append(rows, testRow(c, target{t: tr, size: size}, whole, span{}))
		}
	}
	var b bytes.Buffer
	style{sweep: true}.print(&b, rows)
	golden(t, "sweep.txt", b.Bytes())
}

// A line of JSON has exactly these names, in this order, and cycles only where they are known.
func TestJSON(t *testing.T) {
	g := target{t: lookup(t, "authenc(hmac(sha256),cbc(aes))", 128, 0), size: 1024, dir: offload.Open}
	for _, c := range []struct {
		name string
		row  *row
		want string
	}{
		{"whole", testRow(sseCandidate, g, ran(1000, 0.1, 0.1), span{}),
			`{"engine":"lanes","cpu_level":"sse","transform":"authenc(hmac(sha256),cbc(aes))","key_bits":128,"direction":"open",` +
				`"size":1024,"batch":32,"threads":1,"ops":32000,"wall_s":0.1,"cpu_s":0.1,"gbps":2.62144,` +
				`"gbps_per_cpu_s":2.62144,"cycles_per_byte":6.103515625,"flags":[]}`},
		{"without a counter", newRow(&machine{}, softCandidate, g, shape{batch: 1, threads: 2}, ran(1000, 1, 0.5), span{}),
			`{"engine":"soft","cpu_level":"","transform":"authenc(hmac(sha256),cbc(aes))","key_bits":128,"direction":"open",` +
				`"size":1024,"batch":1,"threads":2,"ops":1000,"wall_s":1,"cpu_s":0.5,"gbps":0.008192,"gbps_per_cpu_s":0.016384,` +
				`"flags":["cpu-below-wall: 0.500 s of processor time by 2 threads in 1.000 s, and no waiting that explains it: ` +
				`the work was done, or not done, where this clock does not count"]}`},
	} {
		var b bytes.Buffer
		if err := c.row.writeJSON(&b); err != nil {
			t.Fatal(err)
		}
		got := strings.TrimSuffix(b.String(), "\n")
		if got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
		if !json.Valid(b.Bytes()) || strings.Contains(got, "\n") {
			t.Errorf("%s: not one line of JSON: %s", c.name, got)
		}
	}
	if name := transformName(lookup(t, "authenc(hmac(sha256),cbc(aes))", 128, 96)); name != "authenc(hmac(sha256),cbc(aes))/128/96" {
		t.Errorf("the transform with the shorter ICV is called %s", name)
	}
}

// What laying takes is taken off both clocks in the same share; off an asynchronous engine's processor time only.
func TestLayingIsTakenOff(t *testing.T) {
	g := target{t: offload.Transforms()[0], size: 1000, dir: offload.Open}
	// 1000 bursts in 1 s, half of it waiting; 500 bursts of laying alone are 0.05 s of processor time.
	whole, copying := ran(1000, 1, 0.5), ran(500, 0.3, 0.05)
	r := newRow(testMachine, softCandidate, g, shape{batch: 1, threads: 1}, whole, copying)
	near := func(name string, got, want float64) {
		t.Helper()
		if got < want*0.9999 || got > want*1.0001 {
			t.Errorf("%s: %v, not %v", name, got, want)
		}
	}
	near("share", r.copies, 0.2)
	near("wall", r.WallS, 0.8)
	near("CPU", r.CPUS, 0.4)
	near("Gbit/s", r.Gbps, 1000*1000*8/0.8/1e9)
	near("Gbit/CPU s", r.GbpsPerCPUS, 1000*1000*8/0.4/1e9)
	near("cycles/byte", *r.CyclesPerByte, 0.4*2e9/1e6)
	async := &candidate{name: "far", caps: offload.Caps{Async: true}}
	r = newRow(testMachine, async, g, shape{batch: 1, threads: 1}, whole, copying)
	near("wall of an asynchronous engine", r.WallS, 1)
	near("CPU of an asynchronous engine", r.CPUS, 0.4)
}

// The best run is one that had the machine to itself, and one that cannot be is never the best while there is another.
func TestBest(t *testing.T) {
	g := target{t: offload.Transforms()[0], size: 1000}
	good := func(n int64) *row { return testRow(softCandidate, g, ran(n, 1, 1), span{}) }
	shared := func(n int64, cpu float64) *row { return testRow(softCandidate, g, ran(n, 1, cpu), span{}) }
	never := testRow(softCandidate, g, ran(1e9, 1, 1), span{})
	slow, quick := good(100), good(200)
	if r := best([]*row{never, slow, quick, shared(300, 0.5)}); r != quick {
		t.Errorf("the best of all is %v", r)
	}
	thrifty := shared(100, 0.1)
	if r := best([]*row{never, shared(300, 0.5), thrifty}); r != thrifty {
		t.Errorf("the best of what shared the machine is %v", r)
	}
	if r := best([]*row{never, never}); r != never {
		t.Errorf("the best of what cannot be is %v", r)
	}
	a, b, c := good(100), good(300), good(200)
	if r := best([]*row{a, b, c}); r != b || r.median != c.Gbps {
		t.Errorf("the median of three is %v, not %v", r.median, c.Gbps)
	}
}

// To anything but a terminal progress says nothing.
func TestProgress(t *testing.T) {
	var b bytes.Buffer
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	for name, p := range map[string]*progress{"buffer": newProgress(&b, 2), "pipe": newProgress(pw, 2)} {
		p.step("something")
		p.clear()
		if p.w != nil {
			t.Errorf("a %s is taken for a terminal", name)
		}
	}
	pw.Close()
	var one [1]byte
	if n, _ := pr.Read(one[:]); n != 0 || b.Len() != 0 {
		t.Error("progress was written to something that is not a terminal")
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	if p := newProgress(terminal, 2); p.w == nil {
		t.Error("a terminal is not taken for one")
	}
	p := &progress{w: &b, total: 2}
	p.step("something")
	p.clear()
	if got := b.String(); got != "\r\x1b[K1 of 2: something\r\x1b[K" {
		t.Errorf("a terminal sees %q", got)
	}
}
