package padlock_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha1"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/padlock"
	"culvert/offload/soft"
	"culvert/test/plemu"
)

// clean fails if the engine broke a rule of the hardware, seen by the program or not. Faults are counted apart: the engine
// provokes some on purpose where it tries the unit out.
func clean(t *testing.T, m plemu.Model, r *plemu.Report, faults int) {
	t.Helper()
	if r.Bounds != 0 || r.Stale != 0 || len(r.Faults) != faults {
		t.Errorf("%s: %d prefetches beyond a page, %d stale keys, %d faults, not %d: %q",
			m.Name, r.Bounds, r.Stale, len(r.Faults), faults, r.Faults)
	}
}

// The conformance suite passes on every processor, interrupted now and then; all key lengths run on the cipher unit in both
// directions, and the hashes on the hash engine, in the way that the processor has.
func TestConformance(t *testing.T) {
	if m, inside := plemu.Inside(); inside {
		offloadtest.Run(t, padlock.NewOn(m.CPUID))
		return
	}
	modes := map[string]string{"c3": "", "c7": "resumed", "nano": "parts"}
	for _, m := range plemu.Models() {
		t.Run(m.Name, func(t *testing.T) {
			m.InterruptEvery = 50
			r := plemu.Rerun(t, m, "TestConformance")
			clean(t, m, r, 0)
			if r.Interrupted == 0 {
				t.Error("nothing was interrupted")
			}
			mode, ok := modes[m.Name]
			if !ok {
				t.Fatalf("no word on how a %s hashes", m.Name)
			}
			var ops []plemu.Op
			for _, bits := range []int{128, 192, 256} {
				ops = append(ops, plemu.Op{Name: "xcryptcbc", KeyBits: bits}, plemu.Op{Name: "xcryptcbc", KeyBits: bits, Decrypt: true})
			}
			if mode != "" {
				ops = append(ops, plemu.Op{Name: "xsha1", Mode: mode}, plemu.Op{Name: "xsha256", Mode: mode})
			}
			for _, op := range ops {
				if r.Ops[op] < 1000 {
					t.Errorf("%+v was executed %d times only", op, r.Ops[op])
				}
			}
		})
	}
}

// What a processor does that its kind is not known for is found out and done without: every transform stays, and is right.
func TestProving(t *testing.T) {
	if m, inside := plemu.Inside(); inside {
		e := padlock.NewOn(m.CPUID)
		c, err := e.Probe()
		if err != nil {
			t.Fatal(err)
		}
		t.Log(c.Detail)
		for _, tr := range c.Transforms {
			if _, err := offload.Admit(e, tr); err != nil {
				t.Errorf("%s: %v", tr, err)
			}
		}
		return
	}
	for _, c := range []struct {
		model  string
		but    string
		change func(m *plemu.Model)
		says   string
		modes  [2]string // of SHA1 and SHA256 on the hash engine, after the proving
		faults int       // provoked
	}{
		{"c3", "as it is", func(m *plemu.Model) {},
			"VIA C3 Nehemiah (family 6, model 9, stepping 8): AES-CBC in the cipher unit (aligned data), MD5 software, SHA1 software, SHA256 software", [2]string{}, 0},
		{"c7", "as it is", func(m *plemu.Model) {},
			"VIA C7 (family 6, model 10, stepping 9): AES-CBC in the cipher unit, MD5 software, SHA1 resumed, SHA256 resumed, SHA384 software", [2]string{"resumed", "resumed"}, 0},
		{"nano", "as it is", func(m *plemu.Model) {},
			"VIA Nano (family 6, model 15, stepping 2): AES-CBC in the cipher unit, MD5 software, SHA1 in blocks, SHA256 in blocks", [2]string{"parts", "parts"}, 0},
		{"c7", "hashes whole messages only", func(m *plemu.Model) { m.Resume = false },
			"SHA1 whole, SHA256 whole", [2]string{"whole", "whole"}, 0},
		{"nano", "knows no parts", func(m *plemu.Model) { m.Parts = false },
			"SHA1 resumed, SHA256 resumed", [2]string{"resumed", "resumed"}, 2},
		{"c7", "does not obey the align bit", func(m *plemu.Model) { m.Unaligned = false },
			"cipher unit (aligned data), MD5 software, SHA1 resumed", [2]string{"resumed", "resumed"}, 1},
		{"c7", "has SHA256 wrong", func(m *plemu.Model) { m.WrongHash = 256 },
			"SHA1 resumed, SHA256 software", [2]string{"resumed", ""}, 0},
		{"nano", "has SHA1 wrong", func(m *plemu.Model) { m.WrongHash = 160 },
			"SHA1 software, SHA256 in blocks", [2]string{"", "parts"}, 0},
		{"nano", "has its hash engine disabled", func(m *plemu.Model) { m.Flags &^= 1 << 11; m.Hash = false },
			"SHA1 software, SHA256 software", [2]string{}, 0},
	} {
		t.Run(c.model+" "+c.but, func(t *testing.T) {
			m := plemu.Find(c.model)
			c.change(&m)
			r := plemu.Rerun(t, m, "TestProving")
			clean(t, m, r, c.faults)
			if !bytes.Contains(r.Output, []byte(c.says)) {
				t.Errorf("the engine does not say %q:\n%.2000s", c.says, r.Output)
			}
			for i, name := range []string{"xsha1", "xsha256"} {
				if n := r.Ops[plemu.Op{Name: name, Mode: c.modes[i]}]; c.modes[i] != "" && n < 100 {
					t.Errorf("%s %s was executed %d times only", name, c.modes[i], n)
				}
			}
		})
	}
}

// Where the unit has one key length wrong, the registry refuses exactly that one's transforms, and software takes them.
func TestAdmission(t *testing.T) {
	m, inside := plemu.Inside()
	if !inside {
		for _, bits := range []int{128, 192, 256, 0} {
			m := plemu.Find("nano")
			m.WrongKeyBits = bits
			// With wrong 128-bit keys unaligned data cannot be proved either, which faults nothing.
			clean(t, m, plemu.Rerun(t, m, "TestAdmission"), 0)
		}
		return
	}
	e := padlock.NewOn(m.CPUID)
	reg := offload.NewRegistry(e, soft.New())
	rep := reg.Reports()[0]
	if rep.Err != nil {
		t.Fatal(rep.Err)
	}
	if len(rep.Results) != 18 {
		t.Errorf("%d transforms, not AES-CBC's 18", len(rep.Results))
	}
	for _, res := range rep.Results {
		wrong := res.Transform.KeyBits == m.WrongKeyBits
		if errors.Is(res.Err, offload.ErrWrongAnswer) != wrong || (res.Err != nil) != wrong {
			t.Errorf("%d bits are wrong; %s: %v", m.WrongKeyBits, res.Transform, res.Err)
		}
		want := "padlock"
		if wrong {
			want = "soft"
		}
		if got, err := reg.Select(res.Transform, ""); err != nil || got.Name() != want {
			t.Errorf("%d bits are wrong; %s goes to %v, %v, not %s", m.WrongKeyBits, res.Transform, got, err, want)
		}
	}
	for _, tr := range offload.Transforms() {
		if tr.Cipher != offload.AESCBC {
			if got, err := reg.Select(tr, ""); err != nil || got.Name() != "soft" {
				t.Errorf("%s goes to %v, %v, not soft", tr, got, err)
			}
		}
	}
}

// Packets that end just before memory that does not exist are sealed and opened, at every distance up to the prefetch and
// beyond, of lengths shorter and longer than it.
func TestPageEnd(t *testing.T) {
	m, inside := plemu.Inside()
	if !inside {
		for _, m := range plemu.Models() {
			clean(t, m, plemu.Rerun(t, m, "TestPageEnd"), 0)
		}
		return
	}
	mem, err := unix.Mmap(-1, 0, 3*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mprotect(mem[8192:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	e := padlock.NewOn(m.CPUID)
	tr, err := offload.Lookup("authenc(hmac(sha1),cbc(aes))", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	k := offload.Keys{Enc: bytes.Repeat([]byte{3}, 16), Auth: bytes.Repeat([]byte{4}, 20), ESN: true}
	var ses [2]offload.Session
	for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
		if ses[dir], err = e.NewSession(tr, dir, k); err != nil {
			t.Fatal(err)
		}
	}
	lane, err := e.NewLane(0)
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(k.Enc)
	if err != nil {
		t.Fatal(err)
	}
	for _, blocks := range []int{1, 2, 3, 4, 5, 6, 33, 90, 300} {
		for gap := range 100 {
			n := tr.HeaderLen() + 16*blocks + tr.ICVLen
			esp := mem[8192-gap-n : 8192-gap]
			for i := range esp {
				esp[i] = byte(i*7 + gap)
			}
			plain := bytes.Clone(esp[:n-tr.ICVLen])
			want := bytes.Clone(plain)
			cipher.NewCBCEncrypter(block, want[8:24]).CryptBlocks(want[24:], want[24:])
			h := hmac.New(sha1.New, k.Auth)
			h.Write(want)
			h.Write([]byte{1, 2, 3, 4})
			want = h.Sum(want)[:n]
			for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
				b := &offload.Burst{Dir: dir, Jobs: []offload.Job{{Session: ses[dir], ESP: esp, SeqHi: 0x01020304}}}
				if err := offload.Do(lane, b); err != nil || b.Jobs[0].Status != offload.OK {
					t.Fatalf("%v, %d blocks, %d bytes before the end: %v, %v", dir, blocks, gap, b.Jobs[0].Status, err)
				}
				if dir == offload.Seal && !bytes.Equal(esp, want) || dir == offload.Open && !bytes.Equal(esp, append(plain, want[len(plain):]...)) {
					t.Fatalf("%v, %d blocks, %d bytes before the end: the packet is wrong", dir, blocks, gap)
				}
			}
		}
	}
}

// Goroutines whose stacks grow and move, and a garbage collector at work, do not disturb the unit.
func TestMovingStacks(t *testing.T) {
	m, inside := plemu.Inside()
	if !inside {
		m := plemu.Find("c7")
		m.InterruptEvery = 4
		clean(t, m, plemu.Rerun(t, m, "TestMovingStacks"), 0)
		return
	}
	e := padlock.NewOn(m.CPUID)
	tr, err := offload.Lookup("authenc(hmac(sha256),cbc(aes))", 256, 0)
	if err != nil {
		t.Fatal(err)
	}
	k := offload.Keys{Enc: bytes.Repeat([]byte{5}, 32), Auth: bytes.Repeat([]byte{6}, 32), ESN: true}
	seal, err := e.NewSession(tr, offload.Seal, k)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := soft.New().NewSession(tr, offload.Open, k)
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	const goroutines = 8
	for id := range goroutines {
		go func() { errs <- deeper(e, seal, ref, id, 60) }()
	}
	for range goroutines {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// deeper seals a packet that lies on its stack, if the compiler lets it, at every depth of a recursion.
func deeper(e offload.Engine, seal, ref offload.Session, id, depth int) error {
	tr := seal.Transform()
	var mem [700]byte
	n := tr.SealedLen(500)
	for i := range mem {
		mem[i] = byte(i + id + depth)
	}
	lane, err := e.NewLane(id)
	if err != nil {
		return err
	}
	sealed := offload.Burst{Dir: offload.Seal, Jobs: []offload.Job{{Session: seal, ESP: mem[:n], SeqHi: 9}}}
	if err := offload.Do(lane, &sealed); err != nil {
		return err
	}
	if depth%8 == 0 {
		runtime.GC()
	}
	check, err := soft.New().NewLane(id)
	if err != nil {
		return err
	}
	opened := offload.Burst{Dir: offload.Open, Jobs: []offload.Job{{Session: ref, ESP: mem[:n], SeqHi: 9}}}
	if err := offload.Do(check, &opened); err != nil {
		return err
	}
	if opened.Jobs[0].Status != offload.OK {
		return fmt.Errorf("goroutine %d, depth %d: %v", id, depth, opened.Jobs[0].Status)
	}
	if depth == 0 {
		return nil
	}
	return deeper(e, seal, ref, id, depth-1)
}

// On this processor, unless it is one of VIA's, the engine says at once that it is none.
func TestHost(t *testing.T) {
	e := padlock.New()
	c, err := e.Probe()
	t.Log(err)
	if err == nil {
		t.Skip("this is a " + c.Detail)
	}
	if !errors.Is(err, padlock.ErrAbsent) && !errors.Is(err, padlock.ErrDisabled) || !strings.HasPrefix(err.Error(), "padlock: ") {
		t.Errorf("probe: %v", err)
	}
	if _, err := e.NewSession(offload.Transforms()[0], offload.Seal, offload.Keys{}); !errors.Is(err, offload.ErrUnsupported) {
		t.Errorf("session: %v", err)
	}
	if _, err := e.NewLane(0); err == nil {
		t.Error("a lane of nothing")
	}
}
