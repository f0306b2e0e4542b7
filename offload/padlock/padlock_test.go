package padlock

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"culvert/offload"
)

// machine is a CPUID with what matters.
type machine struct {
	vendor    string
	signature uint32
	top       uint32
	flags     uint32
}

func (m machine) cpuid(leaf uint32) (eax, ebx, ecx, edx uint32) {
	word := func(at int) uint32 {
		var w uint32
		for i := range 4 {
			w |= uint32(m.vendor[at+i]) << (8 * i)
		}
		return w
	}
	switch leaf {
	case 0:
		if m.vendor == "" {
			return
		}
		return 1, word(0), word(8), word(4)
	case 1:
		return m.signature, 0, 0, 0
	case 0xC0000000:
		return m.top, 0, 0, 0
	case 0xC0000001:
		return 0, 0, 0, m.flags
	}
	panic(fmt.Sprintf("leaf %#x is nothing to the engine", leaf))
}

// Every processor is told apart, and who has no PadLock hears why, and what to do.
func TestDetect(t *testing.T) {
	const top = 0xC0000001
	for _, c := range []struct {
		machine
		name             string // without an error
		ace2, phe, multi bool
		err              error
		says             []string
	}{
		{machine: machine{"CentaurHauls", 0x698, top, 0xcc}, name: "VIA C3 Nehemiah (family 6, model 9, stepping 8)"},
		{machine: machine{"CentaurHauls", 0x6a9, top, 0x3fcc}, name: "VIA C7 (family 6, model 10, stepping 9)", ace2: true, phe: true},
		{machine: machine{"CentaurHauls", 0x6d0, top, 0x3fcc}, name: "VIA C7 (family 6, model 13, stepping 0)", ace2: true, phe: true},
		{machine: machine{"CentaurHauls", 0x6f8, top, 0x3fcc}, name: "VIA Nano (family 6, model 15, stepping 8)", ace2: true, phe: true, multi: true},
		{machine: machine{"CentaurHauls", 0x106fa, top, 0x3fcc}, name: "VIA (family 6, model 31, stepping 10)", ace2: true, phe: true, multi: true},
		{machine: machine{"  Shanghai  ", 0x307b0, top, 0x3fcc}, name: "Zhaoxin (family 7, model 11, stepping 0)", ace2: true, phe: true, multi: true},
		{machine: machine{"CentaurHauls", 0x6a9, top, 0x3dcc}, name: "VIA C7 (family 6, model 10, stepping 9)", phe: true},  // ACE2 disabled
		{machine: machine{"CentaurHauls", 0x6a9, top, 0x37cc}, name: "VIA C7 (family 6, model 10, stepping 9)", ace2: true}, // PHE disabled
		{machine: machine{"GenuineIntel", 0x406d8, 0, 0}, err: ErrAbsent, says: []string{"not a VIA CPU", `"GenuineIntel"`, "another engine"}},
		{machine: machine{"AuthenticAMD", 0xb00f21, top, 0x3fcc}, err: ErrAbsent, says: []string{"not a VIA CPU", `"AuthenticAMD"`}},
		{machine: machine{}, err: ErrAbsent, says: []string{"not a VIA CPU"}},
		{machine: machine{"CentaurHauls", 0x678, 0, 0}, err: ErrAbsent, says: []string{"model 7", "0xC0000001", "hypervisor"}},
		{machine: machine{"CentaurHauls", 0x693, top, 0x0c}, err: ErrAbsent, says: []string{"stepping 3", "bit 6", "stepping 8 on"}},
		{machine: machine{"CentaurHauls", 0x6a9, top, 0x3f4c}, err: ErrDisabled, says: []string{"C7", "bit 7", "BIOS", "CONFIG_CPU_SUP_CENTAUR", "MSR 0x1107", "bit 28"}},
	} {
		f, err := detect(c.cpuid)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%+v: %v, not %v", c.machine, err, c.err)
			continue
		}
		if err == nil {
			if want := (features{c.name, c.ace2, c.phe, c.multi}); f != want {
				t.Errorf("%+v: %+v, not %+v", c.machine, f, want)
			}
			continue
		}
		e := NewOn(c.cpuid)
		_, probed := e.Probe()
		for _, s := range c.says {
			if probed == nil || !strings.Contains(probed.Error(), s) {
				t.Errorf("%+v: probe says %v; it should say %q", c.machine, probed, s)
			}
		}
		if _, err := e.NewLane(0); !errors.Is(err, c.err) {
			t.Errorf("%+v: lane: %v", c.machine, err)
		}
		if _, err := e.NewSession(offload.Transforms()[0], offload.Seal, offload.Keys{}); !errors.Is(err, offload.ErrUnsupported) || !errors.Is(err, c.err) {
			t.Errorf("%+v: session: %v", c.machine, err)
		}
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The schedules are those of FIPS 197 appendix A, from first to last word.
func TestExpand(t *testing.T) {
	for _, c := range []struct {
		key   string
		words map[int]string
	}{
		{"2b7e151628aed2a6abf7158809cf4f3c", map[int]string{0: "2b7e1516", 4: "a0fafe17", 10: "5935807a", 43: "b6630ca6"}},
		{"8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b", map[int]string{0: "8e73b0f7", 6: "fe0c91f7", 7: "2402f5a5", 51: "01002202"}},
		{"603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4", map[int]string{0: "603deb10", 8: "9ba35411", 12: "a8b09c1a", 59: "706c631e"}},
	} {
		key := unhex(t, c.key)
		var w [256]byte
		expand(&w, key, len(key)/4+6)
		for i, want := range c.words {
			if got := hex.EncodeToString(w[4*i : 4*i+4]); got != want {
				t.Errorf("%d bits: word %d is %s, not %s", len(key)*8, i, got, want)
			}
		}
		if rest := w[16*(len(key)/4+7):]; !bytes.Equal(rest, make([]byte, len(rest))) {
			t.Errorf("%d bits: something follows the schedule: %x", len(key)*8, rest)
		}
	}
}

// The inverse schedule is that of FIPS 197 appendix C.3 (equivalent inverse cipher, key 00 01 ... 1f).
func TestInvert(t *testing.T) {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	var w [256]byte
	expand(&w, key, 14)
	invert(&w, 14)
	for r, want := range map[int]string{
		0:  "24fc79ccbf0979e9371ac23c6d68de36",
		1:  "34f1d1ffbfceaa2ffce9e25f2558016e",
		13: "1a1f181d1e1b1c191217101516131411",
		14: "000102030405060708090a0b0c0d0e0f",
	} {
		if got := hex.EncodeToString(w[16*r : 16*r+16]); got != want {
			t.Errorf("round key %d is %s, not %s", r, got, want)
		}
	}
}

// The S-box is a permutation, with FIPS 197's values where they were looked up; the schedules above use many more.
func TestSub(t *testing.T) {
	seen := map[byte]bool{}
	for i := range 256 {
		seen[sub(byte(i))] = true
	}
	if len(seen) != 256 {
		t.Errorf("%d values, not 256", len(seen))
	}
	for in, want := range map[byte]byte{0: 0x63, 1: 0x7c, 0x53: 0xed, 0xff: 0x16, 0x10: 0xca, 0x9a: 0xb8} {
		if got := sub(in); got != want {
			t.Errorf("sub(%#x) is %#x, not %#x", in, got, want)
		}
	}
}

// The control words say what they should for each key length and direction, bit by bit.
func TestControlWords(t *testing.T) {
	for _, c := range []struct {
		bits    int
		decrypt bool
		word    uint16
	}{
		{128, false, 10}, {128, true, 10 | 1<<9},
		{192, false, 12 | 1<<7 | 1<<10}, {192, true, 12 | 1<<7 | 1<<9 | 1<<10},
		{256, false, 14 | 1<<7 | 2<<10}, {256, true, 14 | 1<<7 | 1<<9 | 2<<10},
	} {
		h := (*hardKeys)(aligned(512, 16))
		key := pattern(c.bits/8, 9)
		h.set(key, c.decrypt)
		want := [16]byte{byte(c.word), byte(c.word >> 8)}
		if h.word != want {
			t.Errorf("%d bits, decrypt %t: %x, not %x", c.bits, c.decrypt, h.word, want)
		}
		want[0] |= 1 << 5
		if h.wordAlign != want {
			t.Errorf("%d bits, decrypt %t, any address: %x, not %x", c.bits, c.decrypt, h.wordAlign, want)
		}
		if raw := bytes.HasPrefix(h.key[:], key); raw == (c.decrypt && c.bits != 128) {
			t.Errorf("%d bits, decrypt %t: the key begins as it was given: %t", c.bits, c.decrypt, raw)
		}
	}
}

// A lane's memory for the unit begins with a page, wherever the heap has room.
func TestScratch(t *testing.T) {
	var keep []any
	for i := range 50 {
		keep = append(keep, make([]byte, 8+i), newScratch())
		sc := keep[len(keep)-1].(*scratch)
		for name, p := range map[string]unsafe.Pointer{"iv": unsafe.Pointer(&sc.iv), "state": unsafe.Pointer(&sc.state), "bounce": unsafe.Pointer(&sc.bounce)} {
			if uintptr(p)%16 != 0 {
				t.Fatalf("%s lies at %p", name, p)
			}
		}
		if uintptr(unsafe.Pointer(sc))%pageSize != 0 {
			t.Fatalf("the memory begins at %p, not with a page", sc)
		}
	}
}

func testKeys(tr *offload.Transform) offload.Keys {
	return offload.Keys{Enc: pattern(tr.EncKeyLen(), 0x31), Auth: pattern(tr.AuthKeyLen, 0x62)}
}

// secrets is all memory of a session that depends on its keys.
func secrets(s *session) [][]byte {
	all := [][]byte{s.hard.word[:], s.hard.wordAlign[:], s.hard.key[:]}
	for _, h := range []*half{&s.inner, &s.outer} {
		all = append(all, h.block[:], h.after, h.state[:])
	}
	return all
}

// Close wipes everything, at once or when the last lane has left; and then the session is of no use.
func TestCloseWipes(t *testing.T) {
	for _, tr := range offload.Transforms() {
		if tr.Cipher != offload.AESCBC {
			continue
		}
		for _, busy := range []bool{false, true} {
			s, err := newSession(tr, offload.Open, testKeys(tr), inSoftware)
			if err != nil {
				t.Fatal(err)
			}
			blank := func(b []byte) bool { return bytes.Equal(b, make([]byte, len(b))) }
			if !slices.ContainsFunc(secrets(s), func(b []byte) bool { return len(b) == 256 && !blank(b) }) {
				t.Fatal("there is nothing to wipe: this test would see nothing")
			}
			for range 2 {
				if busy && !s.acquire() {
					t.Fatal("an open session cannot be used")
				}
			}
			for range 2 {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if s.acquire() {
				t.Error("a closed session can be used")
			}
			if busy {
				s.release()
				if !slices.ContainsFunc(secrets(s), func(b []byte) bool { return !blank(b) }) {
					t.Error("the keys are wiped while a lane is at work with them")
				}
				s.release()
			}
			for i, b := range secrets(s) {
				if !blank(b) {
					t.Errorf("%s: Close left part %d: %x", tr, i, b)
				}
			}
		}
	}
}

// The first blocks of the HMAC, which show its key, are kept only where the unit needs them.
func TestKeyBlocks(t *testing.T) {
	tr := offload.Transforms()[0]
	for w := range hashWays {
		s, err := newSession(tr, offload.Seal, testKeys(tr), hashWay(w))
		if err != nil {
			t.Fatal(err)
		}
		if kept := s.inner.block != [128]byte{}; kept != (hashWay(w) == whole) {
			t.Errorf("%v: the block is kept: %t", hashWay(w), kept)
		}
	}
}

// A session says what it is for, and nothing else.
func TestSessionPrints(t *testing.T) {
	tr := offload.Transforms()[0]
	s, err := newSession(tr, offload.Open, testKeys(tr), inSoftware)
	if err != nil {
		t.Fatal(err)
	}
	want := "padlock session to open " + tr.String()
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if got := fmt.Sprintf(format, s); got != want {
			t.Errorf("%s gives %q, not %q", format, got, want)
		}
	}
	if got := s.LogValue(); got.Kind() != slog.KindString || got.String() != want {
		t.Errorf("slog gives %q", got)
	}
}

// The software way of every HMAC is the standard library's, whatever the unit.
func TestSoftwareHMAC(t *testing.T) {
	for a, h := range hashes {
		if h.new == nil {
			continue
		}
		u := unit{}
		if !u.provesHash(offload.Auth(a), inSoftware) {
			t.Errorf("%s in software is wrong", h.name)
		}
	}
}

// What faults is survived, and what panics; the fault of a page that does not exist among them.
func TestSurvives(t *testing.T) {
	var none *[1 << 20]byte
	for name, c := range map[string]struct {
		try  func() bool
		want bool
	}{
		"good":  {func() bool { return true }, true},
		"wrong": {func() bool { return false }, false},
		"panic": {func() bool { panic("no") }, false},
		"fault": {func() bool { return none[500000] == 0 }, false},
	} {
		if got := survives(c.try); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
