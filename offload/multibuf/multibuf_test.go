package multibuf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"culvert/offload"
	"culvert/offload/multibuf"
	"culvert/offload/offloadtest"
	"culvert/offload/soft"

	"golang.org/x/sys/unix"
)

var jobsWanted = flag.Int("jobs", 20000, "how many random jobs to compare per level and peer")

// peers are the engines that results are compared with.
var peers = []offload.Engine{soft.New()}

// eachLevel runs a test at every level that this machine runs.
func eachLevel(t *testing.T, test func(*testing.T, *multibuf.Engine)) {
	for _, l := range multibuf.Levels() {
		t.Run(string(l), func(t *testing.T) { test(t, multibuf.New(multibuf.Options{Level: l, Rest: soft.New()})) })
	}
}

// The whole conformance suite, at every level.
func TestConformance(t *testing.T) {
	eachLevel(t, func(t *testing.T, e *multibuf.Engine) { offloadtest.Run(t, e) })
}

// Without another engine to help, what is offered is as good.
func TestConformanceAlone(t *testing.T) {
	if multibuf.Levels()[0] == multibuf.Generic {
		t.Skip("NOT RUN: this machine has no level with kernels")
	}
	e := multibuf.New(multibuf.Options{})
	caps, err := e.Probe()
	if err != nil {
		t.Fatal(err)
	}
	if n, all := len(caps.Transforms), len(offload.Transforms()); n == 0 || n == all {
		t.Fatalf("%d of %d transforms are offered; chacha20-poly1305 cannot be", n, all)
	}
	offloadtest.Run(t, e)
}

// Arbitrary bytes are refused exactly as a plain composition of the standard library refuses them.
func FuzzOpen(f *testing.F) {
	offloadtest.Fuzz(f, multibuf.New(multibuf.Options{Rest: soft.New()}))
}

// A level that there is not is refused with what there is.
func TestUnknownLevel(t *testing.T) {
	e := multibuf.New(multibuf.Options{Level: "mmx"})
	_, err := e.Probe()
	if err == nil || !strings.Contains(err.Error(), "mmx") || !strings.Contains(err.Error(), string(multibuf.Generic)) {
		t.Errorf("probe: %v", err)
	}
	if _, again := e.NewLane(0); again == nil {
		t.Error("a lane of it opens")
	}
	if _, again := e.NewSession(offload.Transforms()[0], offload.Seal, offload.Keys{}); again == nil || errors.Is(again, offload.ErrKey) {
		t.Errorf("session: %v", again)
	}
}

// Generic has no kernels, and without another engine only the null cipher.
func TestGenericAlone(t *testing.T) {
	e := multibuf.New(multibuf.Options{Level: multibuf.Generic})
	caps, err := e.Probe()
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range caps.Transforms {
		if tr.Cipher != offload.CipherNull {
			t.Errorf("%s is offered", tr)
		}
	}
	offloadtest.Run(t, e)
}

// A session belongs to the engine of its level: layouts of keys differ between levels.
func TestOtherEngine(t *testing.T) {
	a, b := multibuf.New(multibuf.Options{Rest: soft.New()}), multibuf.New(multibuf.Options{Level: multibuf.Generic, Rest: soft.New()})
	tr := offload.Transforms()[0]
	s, err := a.NewSession(tr, offload.Seal, randomKeys(rand.New(rand.NewPCG(1, 1)), tr, false))
	if err != nil {
		t.Fatal(err)
	}
	l, err := b.NewLane(0)
	if err != nil {
		t.Fatal(err)
	}
	burst := &offload.Burst{Jobs: []offload.Job{{Session: s, ESP: make([]byte, tr.SealedLen(10))}}}
	if err := offload.Do(l, burst); err != nil || burst.Jobs[0].Status != offload.EngineError {
		t.Errorf("%v, %v", err, burst.Jobs[0].Status)
	}
}

func randomKeys(rnd *rand.Rand, t *offload.Transform, esn bool) offload.Keys {
	fill := func(n int) offload.Key {
		k := make(offload.Key, n)
		for i := range k {
			k[i] = byte(rnd.Uint32())
		}
		return k
	}
	return offload.Keys{Enc: fill(t.EncKeyLen()), Auth: fill(t.AuthKeyLen), ESN: esn}
}

// fenced is slots between pages that may not be touched.
type fenced struct {
	slots [][]byte
	page  int
}

const slotPages = 3

func newFenced(t *testing.T, n int) *fenced {
	f := &fenced{page: os.Getpagesize()}
	mapped, err := unix.Mmap(-1, 0, (n*(slotPages+1)+1)*f.page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mapped); err != nil {
			t.Error(err)
		}
	})
	for i := 0; i < len(mapped); i += (slotPages + 1) * f.page {
		if err := unix.Mprotect(mapped[i:i+f.page], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		if i+f.page < len(mapped) {
			f.slots = append(f.slots, mapped[i+f.page:i+(slotPages+1)*f.page])
		}
	}
	return f
}

// place puts a packet at the end of a slot, at its beginning, or somewhere in between, at an odd address as likely as not.
func (f *fenced) place(rnd *rand.Rand, i int, packet []byte) []byte {
	at := 0
	switch rnd.IntN(3) {
	case 0:
		at = len(f.slots[i]) - len(packet)
	case 1:
		at = rnd.IntN(len(f.slots[i]) - len(packet))
	}
	p := f.slots[i][at : at+len(packet) : at+len(packet)]
	copy(p, packet)
	return p
}

// TestAgainstPeers compares random bursts with what other engines make of them: up to 300 jobs of up to twelve SAs of any
// transforms, lengths equal, of a few kinds or wild, and a part of the packets to open damaged; between fences. The seed is
// fixed. Built with the tag ipsecmb, it compares with that engine as well as with soft.
func TestAgainstPeers(t *testing.T) {
	most := 300
	f := newFenced(t, most)
	against := func(t *testing.T, e, peer offload.Engine) {
		caps, err := peer.Probe()
		if err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(11, 13))
		mine, theirs := openLane(t, e), openLane(t, peer)
		n := *jobsWanted
		if testing.Short() {
			n /= 8
		}
		seen, worked := map[offload.Status]int{}, map[*offload.Transform]int{}
		done := 0
		for round := 0; done < n; round++ {
			type sa struct {
				tr           *offload.Transform
				mine, theirs [2]offload.Session
			}
			all := caps.Transforms
			few := []*offload.Transform{all[rnd.IntN(len(all))], all[rnd.IntN(len(all))]}
			sas := make([]sa, 1+rnd.IntN(12))
			for i := range sas {
				s := &sas[i]
				s.tr = few[rnd.IntN(2)]
				if round%3 == 0 {
					s.tr = all[rnd.IntN(len(all))]
				}
				k := randomKeys(rnd, s.tr, rnd.IntN(2) == 0)
				for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
					s.mine[dir], s.theirs[dir] = newSession(t, e, s.tr, dir, k), newSession(t, peer, s.tr, dir, k)
				}
			}
			jobs := 1 + rnd.IntN(1<<rnd.IntN(9))
			jobs = min(jobs, most)
			lengths := []int{rnd.IntN(1500), rnd.IntN(200), rnd.IntN(9000)}
			burst := func(dir offload.Direction) *offload.Burst {
				return &offload.Burst{Dir: dir, Jobs: make([]offload.Job, jobs)}
			}
			got, want := burst(offload.Seal), burst(offload.Seal)
			which := make([]*sa, jobs)
			for i := range jobs {
				s := &sas[rnd.IntN(len(sas))]
				which[i] = s
				size := lengths[0]
				switch round % 4 {
				case 1:
					size = lengths[rnd.IntN(3)]
				case 2:
					size = rnd.IntN(1500)
				}
				esp := make([]byte, s.tr.SealedLen(size))
				for k := 0; k < len(esp); k += 8 {
					var word [8]byte
					binary.LittleEndian.PutUint64(word[:], rnd.Uint64())
					copy(esp[k:], word[:])
				}
				worked[s.tr] += 2
				hi := rnd.Uint32()
				want.Jobs[i] = offload.Job{Session: s.theirs[offload.Seal], ESP: esp, SeqHi: hi}
				got.Jobs[i] = offload.Job{Session: s.mine[offload.Seal], ESP: f.place(rnd, i, esp), SeqHi: hi}
			}
			compareBursts(t, round, mine, theirs, got, want, seen)
			// The sealed packets, some of them damaged, are what is opened.
			got.Dir, want.Dir = offload.Open, offload.Open
			for i := range jobs {
				esp, hi := want.Jobs[i].ESP, want.Jobs[i].SeqHi
				switch rnd.IntN(10) {
				case 0:
					esp[rnd.IntN(len(esp))] ^= 1 << rnd.IntN(8)
				case 1:
					esp[len(esp)-1-rnd.IntN(which[i].tr.ICVLen)] ^= 1 << rnd.IntN(8)
				case 2:
					esp = esp[:rnd.IntN(len(esp))]
				case 3:
					hi++
				}
				want.Jobs[i] = offload.Job{Session: which[i].theirs[offload.Open], ESP: esp, SeqHi: hi}
				got.Jobs[i] = offload.Job{Session: which[i].mine[offload.Open], ESP: f.place(rnd, i, esp), SeqHi: hi}
			}
			compareBursts(t, round, mine, theirs, got, want, seen)
			done += 2 * jobs
			for i := range sas {
				for dir := range sas[i].mine {
					sas[i].mine[dir].Close()
					sas[i].theirs[dir].Close()
				}
			}
		}
		for _, s := range []offload.Status{offload.OK, offload.BadICV, offload.BadLength} {
			if seen[s] == 0 {
				t.Errorf("no packet ended with %v", s)
			}
		}
		for _, tr := range caps.Transforms {
			if worked[tr] == 0 {
				t.Errorf("no packet was of %s", tr)
			}
		}
		t.Logf("%d jobs of %d transforms: %v", done, len(worked), seen)
	}
	eachLevel(t, func(t *testing.T, e *multibuf.Engine) {
		for _, peer := range peers {
			t.Run(peer.Name(), func(t *testing.T) { against(t, e, peer) })
		}
	})
}

func compareBursts(t *testing.T, round int, mine, theirs offload.Lane, got, want *offload.Burst, seen map[offload.Status]int) {
	t.Helper()
	if err := offload.Do(mine, got); err != nil {
		t.Fatal(err)
	}
	if err := offload.Do(theirs, want); err != nil {
		t.Fatal(err)
	}
	for i := range want.Jobs {
		g, w := &got.Jobs[i], &want.Jobs[i]
		seen[w.Status]++
		tr := w.Session.Transform()
		if g.Status != w.Status {
			t.Fatalf("round %d, %v, job %d of %d, %s, %d bytes: %v, not %v", round, want.Dir, i, len(want.Jobs), tr, len(w.ESP), g.Status, w.Status)
		}
		n := len(w.ESP)
		if w.Status != offload.OK {
			n = min(n, tr.HeaderLen()) // the rest is unspecified
		}
		if !bytes.Equal(g.ESP[:n], w.ESP[:n]) {
			t.Fatalf("round %d, %v, job %d of %d, %s, %d bytes: another packet than the peer's", round, want.Dir, i, len(want.Jobs), tr, n)
		}
	}
}

func openLane(t *testing.T, e offload.Engine) offload.Lane {
	t.Helper()
	l, err := e.NewLane(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func newSession(t *testing.T, e offload.Engine, tr *offload.Transform, dir offload.Direction, k offload.Keys) offload.Session {
	t.Helper()
	s, err := e.NewSession(tr, dir, k)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestGenerated runs the generator and compares: what is committed is what it makes.
func TestGenerated(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("NOT RUN: the generator's output was not compared")
	}
	dir := t.TempDir()
	gen := filepath.Join(dir, "gen")
	build := exec.Command("go", "build", "-o", gen, ".")
	build.Dir = "gen"
	build.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off", "GOOS=", "GOARCH=", "GOARM=", "GO386=", "GOMIPS=")
	if out, err := build.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "avo") && (strings.Contains(string(out), "dial ") || strings.Contains(string(out), "disabled by GOPROXY")) {
			t.Skipf("NOT RUN: the generator's modules cannot be had here: %s", out)
		}
		t.Fatalf("build the generator: %v\n%s", err, out)
	}
	directives, err := os.ReadFile("generate.go")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for line := range strings.Lines(string(directives)) {
		_, args, ok := strings.Cut(strings.TrimRight(line, "\"\n"), "go run . ")
		if !ok {
			continue
		}
		work := filepath.Join(dir, fmt.Sprint(compared), "gen")
		if err := os.MkdirAll(work, 0o755); err != nil {
			t.Fatal(err)
		}
		run := exec.Command(gen, strings.Fields(args)...)
		run.Dir = work
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		made, err := filepath.Glob(filepath.Join(work, "..", "*.*"))
		if err != nil || len(made) == 0 {
			t.Fatalf("%s: it makes nothing", line)
		}
		for _, name := range made {
			fresh, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			committed, err := os.ReadFile(filepath.Base(name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(body(fresh), body(committed)) {
				t.Errorf("%s is not what the generator makes; run go generate", filepath.Base(name))
			}
			compared++
		}
	}
	if files, _ := filepath.Glob("*_amd64.s"); compared < 2*len(files) {
		t.Errorf("%d files compared, but there are %d of assembly, each with its declarations", compared, len(files))
	}
}

// body is a file without its first line, which names the command that made it.
func body(file []byte) []byte {
	_, rest, _ := bytes.Cut(file, []byte("\n"))
	return rest
}
