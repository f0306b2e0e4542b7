//go:build linux && (amd64 || 386)

package plemu

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"culvert/test/plemu/insn"
)

// pages gives n pages of memory, and one behind them that does not exist.
func pages(t *testing.T, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, 4096*(n+1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mprotect(m[4096*n:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	return m[: 4096*n : 4096*n]
}

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// bench is memory laid out for one operation of the cipher unit.
type bench struct {
	mem                 []byte
	word, key, iv, data []byte
	plain, sealed       []byte
}

func newBench(t *testing.T, blocks int) *bench {
	mem := pages(t, 2)
	b := &bench{mem: mem, word: mem[0:16], key: mem[256:512], iv: mem[512:528], data: mem[1024 : 1024+16*blocks]}
	for i := range 16 {
		b.key[i], b.iv[i] = byte(i*9+1), byte(i*7+2)
	}
	for i := range b.data {
		b.data[i] = byte(i * 3)
	}
	b.word[0] = 10
	b.plain = bytes.Clone(b.data)
	b.sealed = b.want(b.key[:16])
	return b
}

func (b *bench) want(key []byte) []byte {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	out := make([]byte, len(b.plain))
	cipher.NewCBCEncrypter(block, b.iv).CryptBlocks(out, b.plain)
	return out
}

func (b *bench) registers() *insn.Registers {
	return &insn.Registers{AX: addr(b.iv), BX: addr(b.key), CX: uintptr(len(b.data) / 16), DX: addr(b.word), SI: addr(b.data), DI: addr(b.data)}
}

// faults runs f and reports whether the hardware's fault reaches the program.
func faults(f func()) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { ok = recover() != nil }()
	f()
	return
}

// Registers and memory after encryption and decryption are as the hardware leaves them, interrupted or not.
func TestCBCRegisters(t *testing.T) {
	if _, inside := Inside(); !inside {
		m := Find("c3")
		r := Rerun(t, m, "TestCBCRegisters")
		if want := map[Op]int{{Name: "xcryptcbc", KeyBits: 128}: 1, {Name: "xcryptcbc", KeyBits: 128, Decrypt: true}: 1}; fmt.Sprint(r.Ops) != fmt.Sprint(want) {
			t.Errorf("operations: %v, not %v", r.Ops, want)
		}
		m.InterruptEvery = 2
		if r := Rerun(t, m, "TestCBCRegisters"); r.Interrupted == 0 {
			t.Error("nothing was interrupted")
		}
		return
	}
	b := newBench(t, 5)
	iv := bytes.Clone(b.iv)
	r := b.registers()
	insn.CBC(r)
	if !bytes.Equal(b.data, b.sealed) || !bytes.Equal(b.iv, iv) {
		t.Errorf("encrypted to %x, IV %x", b.data, b.iv)
	}
	after := insn.Registers{AX: addr(b.data) + 64, BX: addr(b.key), DX: addr(b.word), SI: addr(b.data) + 80, DI: addr(b.data) + 80}
	if *r != after {
		t.Errorf("registers %x, not %x", *r, after)
	}
	b.word[1] = 2
	r = b.registers()
	insn.CBC(r)
	if !bytes.Equal(b.data, b.plain) || !bytes.Equal(b.iv, b.sealed[64:]) {
		t.Errorf("decrypted to %x, IV %x", b.data, b.iv)
	}
	after.AX = addr(b.iv)
	if *r != after {
		t.Errorf("registers %x, not %x", *r, after)
	}
	r = b.registers()
	r.CX = 0
	insn.CBC(r)
	if !bytes.Equal(b.data, b.plain) {
		t.Error("no blocks, and yet they have changed")
	}
}

// A new key, and a new control word, count for nothing until EFLAGS is loaded.
func TestStaleKey(t *testing.T) {
	if _, inside := Inside(); !inside {
		if r := Rerun(t, Find("c7"), "TestStaleKey"); r.Stale != 2 {
			t.Errorf("%d operations with a stale key, not 2", r.Stale)
		}
		return
	}
	// Each thread's unit has its own key, as each processor's would.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b := newBench(t, 4)
	first := b.sealed
	seal := func(f func(*insn.Registers)) []byte {
		copy(b.data, b.plain)
		f(b.registers())
		return b.data
	}
	if !bytes.Equal(seal(insn.CBC), first) {
		t.Fatal("the first key is not used")
	}
	b.key[3] ^= 0x40
	second := b.want(b.key[:16])
	if !bytes.Equal(seal(insn.CBCHeldKey), first) {
		t.Error("a new key is used without a reload")
	}
	b.word[1] |= 2
	if !bytes.Equal(seal(insn.CBCHeldKey), first) {
		t.Error("a new control word is used without a reload")
	}
	b.word[1] = 0
	if !bytes.Equal(seal(insn.CBC), second) {
		t.Error("the new key is not used after a reload")
	}
	if !bytes.Equal(seal(insn.CBCHeldKey), second) {
		t.Error("the same key is not used without a reload")
	}
}

// offences are what the hardware answers with a fault, by the models that do.
var offences = []struct {
	name   string
	models []string
	do     func(b *bench, r *insn.Registers)
}{
	{"control word not at a multiple of 16", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { r.DX += 8 }},
	{"key not at a multiple of 16", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { r.BX += 4 }},
	{"IV not at a multiple of 16", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { r.AX++ }},
	{"source not at a multiple of 16", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { r.SI += 3 }},
	{"destination not at a multiple of 16", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { r.DI -= 3 }},
	{"align bit", []string{"c3"}, func(b *bench, r *insn.Registers) { b.word[0] |= 1 << 5 }},
	{"reserved bit", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { b.word[2] = 1 }},
	{"reserved bit far out", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { b.word[15] = 0x80 }},
	{"wrong rounds", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { b.word[0] = 12 }},
	{"256 bits to expand", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { b.word[0], b.word[1] = 14, 2<<2 }},
	{"no such key size", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { b.word[0], b.word[1] = 0x80, 3<<2 }},
	{"data that is not there", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { r.SI = addr(b.mem) + 8192 }},
	{"prefetch of what is not there", []string{"c3", "c7", "nano"}, func(b *bench, r *insn.Registers) { r.SI = addr(b.mem) + 8192 - 64 - 48 }},
	{"hash state not at a multiple of 16", []string{"c7", "nano"}, nil},
}

// Every offence is a fault of the program, and is reported.
func TestFaults(t *testing.T) {
	m, inside := Inside()
	if !inside {
		for _, m := range Models() {
			want := 0
			for _, o := range offences {
				if slices.Contains(o.models, m.Name) {
					want++
				}
			}
			if r := Rerun(t, m, "TestFaults"); len(r.Faults) != want || r.Bounds != 1 {
				t.Errorf("%s: %d faults, not %d; %d prefetches beyond a page, not 1:\n%s", m.Name, len(r.Faults), want, r.Bounds, strings.Join(r.Faults, "\n"))
			}
		}
		return
	}
	for _, o := range offences {
		if !slices.Contains(o.models, m.Name) {
			continue
		}
		b := newBench(t, 4)
		if o.do == nil {
			r := &insn.Registers{CX: 64, SI: addr(b.data), DI: addr(b.mem) + 8}
			if !faults(func() { insn.SHA1(r) }) {
				t.Errorf("%s: no fault", o.name)
			}
			continue
		}
		r := b.registers()
		o.do(b, r)
		if !faults(func() { insn.CBC(r) }) {
			t.Errorf("%s: no fault", o.name)
		}
		if !bytes.Equal(b.data, b.plain) {
			t.Errorf("%s: a fault, and yet the data has changed", o.name)
		}
	}
	b := newBench(t, 4)
	if insn.CBC(b.registers()); !bytes.Equal(b.data, b.sealed) {
		t.Error("without an offence the result is wrong")
	}
}

// Data that ends as far before the page's end as the unit prefetches is no offence, nor is data at any address where the align
// bit is obeyed.
func TestAllowed(t *testing.T) {
	m, inside := Inside()
	if !inside {
		for _, m := range Models() {
			if r := Rerun(t, m, "TestAllowed"); r.Bounds != 0 || len(r.Faults) != 0 {
				t.Errorf("%s: %d prefetches beyond a page, faults %q", m.Name, r.Bounds, r.Faults)
			}
		}
		return
	}
	b := newBench(t, 4)
	last := b.mem[8192-64-64 : 8192-64]
	copy(last, b.plain)
	r := b.registers()
	r.SI, r.DI = addr(last), addr(last)
	if insn.CBC(r); !bytes.Equal(last, b.sealed) {
		t.Error("the data at the end of the page is wrong")
	}
	if m.Unaligned {
		odd := b.mem[2049 : 2049+64]
		copy(odd, b.plain)
		b.word[0] |= 1 << 5
		r = b.registers()
		r.SI, r.DI = addr(odd), addr(odd)
		if insn.CBC(r); !bytes.Equal(odd, b.sealed) {
			t.Error("the data at an odd address is wrong")
		}
	}
}

// The hashes: whole, resumed and in parts, interrupted and not, are the standard library's, and leave nothing of their state's
// memory as it was.
func TestHashes(t *testing.T) {
	m, inside := Inside()
	if !inside {
		for _, name := range []string{"c7", "nano"} {
			m := Find(name)
			Rerun(t, m, "TestHashes")
			m.InterruptEvery = 2
			if r := Rerun(t, m, "TestHashes"); r.Interrupted == 0 {
				t.Error("nothing was interrupted")
			}
		}
		return
	}
	mem := pages(t, 1)
	state, msg := mem[16:16+128], mem[301:301+256]
	for i := range msg {
		msg[i] = byte(i * 5)
	}
	first, second := sha1.Sum(msg), sha256.Sum256(msg)
	init := map[string][]uint32{
		"xsha1":   {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0},
		"xsha256": {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
	}
	for name, h := range map[string]struct {
		do   func(*insn.Registers)
		want []byte
	}{"xsha1": {insn.SHA1, first[:]}, "xsha256": {insn.SHA256, second[:]}} {
		start := func() {
			clear(state)
			for i, w := range init[name] {
				binary.LittleEndian.PutUint32(state[4*i:], w)
			}
		}
		check := func(how string) {
			t.Helper()
			for i := range init[name] {
				if got, want := binary.LittleEndian.Uint32(state[4*i:]), binary.BigEndian.Uint32(h.want[4*i:]); got != want {
					t.Errorf("%s %s: word %d is %#x, not %#x", name, how, i, got, want)
				}
			}
			if bytes.Contains(state, []byte{0, 0, 0, 0}) {
				t.Errorf("%s %s: part of the state's memory is as it was", name, how)
			}
		}
		start()
		r := &insn.Registers{CX: uintptr(len(msg)), SI: addr(msg), DI: addr(state)}
		h.do(r)
		check("whole")
		if r.SI != addr(msg)+256 || r.CX != 0 {
			t.Errorf("%s: registers %x", name, *r)
		}
		if !m.Parts {
			continue
		}
		start()
		h.do(&insn.Registers{AX: ^uintptr(0), CX: 2, SI: addr(msg), DI: addr(state)})
		half := bytes.Clone(state)
		h.do(&insn.Registers{AX: 128, CX: 256, SI: addr(msg[128:]), DI: addr(state)})
		check("in parts and resumed")
		copy(state, half)
		h.do(&insn.Registers{AX: ^uintptr(0), CX: 2, SI: addr(msg[128:]), DI: addr(state)})
		end := mem[1024:1088]
		end[0], end[62] = 0x80, 8 // 2048 bits
		h.do(&insn.Registers{AX: ^uintptr(0), CX: 1, SI: addr(end), DI: addr(state)})
		check("in parts with padding")
	}
}

// A processor without a hash engine kills who uses one.
func TestUndefined(t *testing.T) {
	if _, inside := Inside(); inside {
		mem := pages(t, 1)
		insn.SHA1(&insn.Registers{CX: 64, SI: addr(mem[512:]), DI: addr(mem)})
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := Find("c3")
	r, err := Run(t.Context(), m, []string{self, "-test.run=^TestUndefined$"}, m.environment())
	if errors.Is(err, ErrNotPermitted) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != 2 || !bytes.Contains(r.Output, []byte("SIGILL")) || len(r.Faults) != 1 {
		t.Errorf("it ends with status %d, faults %q:\n%s", r.Exit, r.Faults, r.Output)
	}
}

// A program ends with its own status, and the end of the context ends it before.
func TestRunEnds(t *testing.T) {
	r, err := Run(t.Context(), Find("c3"), []string{"/bin/sh", "-c", "echo out; sh -c 'echo err >&2'; exit 7"}, nil)
	if errors.Is(err, ErrNotPermitted) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != 7 || string(r.Output) != "out\nerr\n" {
		t.Errorf("status %d, output %q", r.Exit, r.Output)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Find("c3"), []string{"/bin/sh", "-c", "while :; do :; done"}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := Run(t.Context(), Find("c3"), []string{"/nonexistent"}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

// Where tracing is not permitted Run says so: in a program that is traced itself, as nothing is traced twice.
func TestNotPermitted(t *testing.T) {
	if _, inside := Inside(); !inside {
		Rerun(t, Find("c3"), "TestNotPermitted")
		return
	}
	if _, err := Run(t.Context(), Find("c3"), []string{"/bin/true"}, nil); !errors.Is(err, ErrNotPermitted) || !strings.Contains(err.Error(), "ptrace: ") {
		t.Errorf("%v", err)
	}
}

// AES over a schedule is the standard library's, for the example of FIPS 197 appendix B and its schedule, both ways.
func TestCipherBlock(t *testing.T) {
	// The schedule of a 128-bit key, expanded with the tables: the words of FIPS 197 appendix A.1 begin and end so.
	key := []byte{0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf, 0x4f, 0x3c}
	w := append([]byte(nil), key...)
	rcon := byte(1)
	for i := 16; i < 176; i += 4 {
		t := [4]byte(w[i-4:])
		if i%16 == 0 {
			t = [4]byte{sbox[t[1]] ^ rcon, sbox[t[2]], sbox[t[3]], sbox[t[0]]}
			rcon = product(rcon, 2)
		}
		for k := range t {
			w = append(w, w[i-16+k]^t[k])
		}
	}
	if want := []byte{0xb6, 0x63, 0x0c, 0xa6}; !bytes.Equal(w[172:], want) {
		t.Fatalf("the schedule ends with %x, not %x", w[172:], want)
	}
	inv := make([]byte, 176)
	for r := range 11 {
		copy(inv[16*r:], w[160-16*r:176-16*r])
		if r > 0 && r < 10 {
			for c := 16 * r; c < 16*r+16; c += 4 {
				a := [4]byte(inv[c:])
				for k := range a {
					inv[c+k] = product(a[k], 14) ^ product(a[(k+1)%4], 11) ^ product(a[(k+2)%4], 13) ^ product(a[(k+3)%4], 9)
				}
			}
		}
	}
	std, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range 50 {
		var in, want [16]byte
		for i := range in {
			in[i] = byte(seed*31 + i*i*7)
		}
		std.Encrypt(want[:], in[:])
		got := in
		if cipherBlock(&got, w, 10, false); got != want {
			t.Fatalf("%x is encrypted to %x, not %x", in, got, want)
		}
		if cipherBlock(&got, inv, 10, true); got != in {
			t.Fatalf("%x is decrypted to %x, not %x", want, got, in)
		}
	}
}
