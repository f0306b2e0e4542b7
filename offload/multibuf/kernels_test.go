package multibuf

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"encoding"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"testing"

	"culvert/offload"

	"golang.org/x/sys/unix"
)

// Every kernel of every level is run alone here and compared with the standard library. Its buffers end or begin at a page
// that may not be touched.

// fence is memory between two pages that may not be touched.
type fence struct{ pages []byte }

func newFence(t testing.TB, n int) *fence {
	t.Helper()
	page := os.Getpagesize()
	inside := (n + page - 1) / page * page
	mapped, err := unix.Mmap(-1, 0, inside+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mapped); err != nil {
			t.Error(err)
		}
	})
	for _, guard := range [][]byte{mapped[:page], mapped[page+inside:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return &fence{mapped[page : page+inside]}
}

// last are the n bytes before the upper page, first those after the lower.
func (f *fence) last(n int) []byte  { return f.pages[len(f.pages)-n:] }
func (f *fence) first(n int) []byte { return f.pages[:n:n] }

// kernelTest is chance, memory, and the account of which kernels were run.
type kernelTest struct {
	*testing.T
	rnd    *rand.Rand
	fences []*fence
	ran    map[uintptr]bool
}

func (t *kernelTest) fill(p []byte) []byte {
	for i := range p {
		p[i] = byte(t.rnd.Uint32())
	}
	return p
}

// buffer is n bytes of chance at the end or, every other time, at the beginning of a fenced place for each lane.
func (t *kernelTest) buffer(lane, n int) []byte {
	for len(t.fences) <= lane {
		t.fences = append(t.fences, newFence(t, 9000))
	}
	if t.rnd.IntN(2) == 0 {
		return t.fill(t.fences[lane].last(n))
	}
	return t.fill(t.fences[lane].first(n))
}

func (t *kernelTest) mark(kernel any) { t.ran[reflect.ValueOf(kernel).Pointer()] = true }

// schedules are an AES key's, as kernels take them, and the standard library's cipher.
func (t *kernelTest) schedules(rounds int) (enc, dec []byte, block cipher.Block) {
	key := t.fill(make([]byte, 4*(rounds-6)))
	enc, dec = aligned(aesScheduleLen), aligned(aesScheduleLen)
	expandAES(enc, key)
	invertAES(dec, enc, rounds)
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	return enc, dec, block
}

func (t *kernelTest) same(what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: another result than the standard library's\n%x\n%x", what, got, want)
	}
}

var blockCounts = []int{1, 2, 3, 4, 5, 7, 8, 31, 64, 65}

func (t *kernelTest) cbcEncrypt(k *cbcKernel) {
	for name, run := range map[string]func(*byte, int, *uintptr, int){"shared": k.shared, "mixed": k.mixed} {
		if run == nil {
			continue
		}
		t.mark(run)
		for _, rounds := range []int{10, 12, 14} {
			for _, n := range blockCounts {
				enc, _, block := t.schedules(rounds)
				table := aligned(aesScheduleLen * k.lanes)
				ptrs := alignedWords[uintptr](k.lanes)
				var got, want [][]byte
				for lane := range k.lanes {
					if name == "mixed" {
						enc, _, block = t.schedules(rounds)
						for r := range rounds + 1 {
							copy(table[16*(r*k.lanes+lane):], enc[16*r:16*r+16])
						}
					}
					b := t.buffer(lane, 16+16*n)
					w := bytes.Clone(b)
					cipher.NewCBCEncrypter(block, w[:16]).CryptBlocks(w[16:], w[16:])
					got, want = append(got, b), append(want, w)
					ptrs[lane] = address(b[16:])
				}
				if name == "shared" {
					table = enc
				}
				run(&table[0], rounds, &ptrs[0], n)
				for lane := range k.lanes {
					t.same(fmt.Sprintf("%s, %d rounds, %d blocks, lane %d", name, rounds, n, lane), got[lane], want[lane])
					if ptrs[lane] != address(got[lane])+uintptr(16+16*n) {
						t.Fatalf("%s, %d blocks: lane %d's address is not where it ended", name, n, lane)
					}
				}
			}
		}
	}
}

func (t *kernelTest) cbcDecrypt(run func(*byte, int, *byte, int)) {
	t.mark(run)
	for _, rounds := range []int{10, 12, 14} {
		for n := 1; n < 140; n++ {
			_, dec, block := t.schedules(rounds)
			b := t.buffer(0, 16+16*n)
			w := bytes.Clone(b)
			cipher.NewCBCDecrypter(block, w[:16]).CryptBlocks(w[16:], w[16:])
			run(&dec[0], rounds, &b[16], n)
			t.same(fmt.Sprintf("%d rounds, %d blocks", rounds, n), b, w)
		}
	}
}

// compress runs a block's compression of the standard library from given chaining values.
func compress(t *testing.T, a *hmacHash, state []uint64, blocks []byte) []uint64 {
	t.Helper()
	h := a.new()
	marshalled, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	size := 4
	if a.wide {
		size = 8
	}
	words := marshalled[len(a.magic):]
	for i, v := range state {
		if a.wide {
			binary.BigEndian.PutUint64(words[size*i:], v)
		} else {
			binary.BigEndian.PutUint32(words[size*i:], uint32(v))
		}
	}
	if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(marshalled); err != nil {
		t.Fatal(err)
	}
	h.Write(blocks)
	if marshalled, err = h.(encoding.BinaryMarshaler).MarshalBinary(); err != nil {
		t.Fatal(err)
	}
	words = marshalled[len(a.magic):]
	result := make([]uint64, a.words)
	for i := range result {
		if a.wide {
			result[i] = binary.BigEndian.Uint64(words[size*i:])
		} else {
			result[i] = uint64(binary.BigEndian.Uint32(words[size*i:]))
		}
	}
	return result
}

func hashTest[T uint32 | uint64](t *kernelTest, auth offload.Auth, k *hashKernel[T]) {
	a := &hmacHashes[auth]
	t.mark(k.run)
	if k.takesWords && k.lanes&(k.lanes-1) != 0 {
		t.Fatalf("%d lanes are no power of two", k.lanes)
	}
	for n := 1; n < 8; n++ {
		state := alignedWords[T](a.words * k.lanes)
		ptrs := alignedWords[uintptr](k.lanes)
		want := make([][]uint64, k.lanes)
		ends := make([]uintptr, k.lanes)
		blocks := make([][]byte, k.lanes)
		for lane := range k.lanes {
			b := t.buffer(lane, n*a.block())
			chaining := make([]uint64, a.words)
			for w := range chaining {
				chaining[w] = uint64(T(t.rnd.Uint64()))
				state[w*k.lanes+lane] = T(chaining[w])
			}
			want[lane] = compress(t.T, a, chaining, b)
			ptrs[lane] = address(b)
			ends[lane] = address(b) + uintptr(len(b))
			blocks[lane] = b
		}
		before := slices.Clone(state)
		k.run(&state[0], &ptrs[0], n, nil)
		if n == 1 && k.takesWords {
			words := alignedWords[T](16 * k.lanes)
			again := alignedWords[T](len(before))
			copy(again, before)
			for lane := range k.lanes {
				for w := range 16 {
					words[w*k.lanes+lane] = getWord[T](blocks[lane][w*a.block()/16:], a.lsb)
				}
			}
			k.run(&again[0], nil, 1, &words[0])
			if !slices.Equal(again, state) {
				t.Fatal("a block given as words gives another result")
			}
		}
		for lane := range k.lanes {
			for w, v := range want[lane] {
				if uint64(state[w*k.lanes+lane]) != v {
					t.Fatalf("%d blocks, lane %d: word %d is %#x, not %#x", n, lane, w, state[w*k.lanes+lane], v)
				}
			}
			if ptrs[lane] != ends[lane] {
				t.Fatalf("%d blocks: lane %d's address is not where it ended", n, lane)
			}
		}
	}
}

func (t *kernelTest) tripleDES(k *desKernel) {
	for _, c := range []struct {
		name    string
		run     func(*byte, *uint64, *uintptr, int)
		decrypt bool
		shared  bool
	}{
		{"encrypt, shared", k.encShared, false, true}, {"encrypt, mixed", k.encMixed, false, false},
		{"decrypt, shared", k.decShared, true, true}, {"decrypt, mixed", k.decMixed, true, false},
	} {
		if c.decrypt && c.run == nil {
			continue
		}
		t.mark(c.run)
		for _, n := range blockCounts {
			key := t.fill(make([]byte, 24))
			keys := aligned(max(k.size, k.table))
			schedule := aligned(k.size)
			chain := alignedWords[uint64](k.lanes)
			ptrs := alignedWords[uintptr](k.lanes)
			var got, want [][]byte
			for lane := range k.lanes {
				switch {
				case c.shared:
					k.expand(schedule, key, c.decrypt)
					copy(keys, schedule)
				case lane%3 != 2: // every third lane has the key of the one before
					t.fill(key)
					k.expand(schedule, key, c.decrypt)
					lanes := []uint8{uint8(lane), uint8(lane + 1)}
					k.put(keys, lanes[:min(2, k.lanes-lane)], schedule)
				}
				block, err := des.NewTripleDESCipher(key)
				if err != nil {
					t.Fatal(err)
				}
				b := t.buffer(lane, 8*n)
				iv := t.fill(make([]byte, 8))
				chain[lane] = binary.NativeEndian.Uint64(iv)
				w := bytes.Clone(b)
				if c.decrypt {
					cipher.NewCBCDecrypter(block, iv).CryptBlocks(w, w)
				} else {
					cipher.NewCBCEncrypter(block, iv).CryptBlocks(w, w)
				}
				got, want = append(got, b), append(want, w)
				ptrs[lane] = address(b)
			}
			last := make([]uint64, k.lanes) // of ciphertext
			for lane := range last {
				last[lane] = binary.NativeEndian.Uint64(want[lane][8*n-8:])
				if c.decrypt {
					last[lane] = binary.NativeEndian.Uint64(got[lane][8*n-8:])
				}
			}
			c.run(&keys[0], &chain[0], &ptrs[0], n)
			for lane := range k.lanes {
				t.same(fmt.Sprintf("%s, %d blocks, lane %d", c.name, n, lane), got[lane], want[lane])
				if ptrs[lane] != address(got[lane])+uintptr(8*n) || chain[lane] != last[lane] {
					t.Fatalf("%s, %d blocks: lane %d's address or chaining value is not where it ended", c.name, n, lane)
				}
			}
		}
	}
}

func (t *kernelTest) gcm(k *gcmKernel) {
	t.mark(k.expand)
	t.mark(k.seal)
	t.mark(k.open)
	lengths := []int{1400, 1471, 1472, 1473, 1500, 2943, 2944, 2945, 9000 - 16}
	for n := range 300 {
		lengths = append(lengths, n)
	}
	for i, n := range lengths {
		rounds := []int{10, 12, 14}[i%3]
		aadLen := []int{8, 12}[i/3%2]
		enc, _, block := t.schedules(rounds)
		key := aligned(k.size)
		copy(key, enc)
		k.expand(&key[0], rounds)
		stdlib, err := cipher.NewGCM(block)
		if err != nil {
			t.Fatal(err)
		}
		var iv, aad, tag [16]byte
		t.fill(iv[:12])
		t.fill(aad[:aadLen])
		plain := t.fill(make([]byte, n))
		want := stdlib.Seal(nil, iv[:12], plain, aad[:aadLen])
		b := t.buffer(0, max(n, 1))[:n] // never quite empty: it must have an address
		copy(b, plain)
		p := &t.fences[0].pages[0]
		if n > 0 {
			p = &b[0]
		}
		le := binary.LittleEndian
		iv0, iv1, aad0, aad1 := le.Uint64(iv[:]), le.Uint64(iv[8:]), le.Uint64(aad[:]), le.Uint64(aad[8:])
		k.seal(&key[0], rounds, p, n, iv0, iv1, aad0, aad1, aadLen, &tag[0])
		t.same(fmt.Sprintf("seal %d bytes, %d rounds", n, rounds), append(bytes.Clone(b), tag[:]...), want)
		tag = [16]byte{}
		k.open(&key[0], rounds, p, n, iv0, iv1, aad0, aad1, aadLen, &tag[0])
		t.same(fmt.Sprintf("open %d bytes, %d rounds", n, rounds), append(bytes.Clone(b), tag[:]...), append(bytes.Clone(plain), want[n:]...))
	}
}

// kernelsOf are all functions of a table that are assembly, or might be, by the path to them.
func kernelsOf(k *kernels) map[string]uintptr {
	all := map[string]uintptr{}
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Func:
			if !v.IsNil() {
				all[path] = v.Pointer()
			}
		case reflect.Pointer:
			if !v.IsNil() {
				walk(path, v.Elem())
			}
		case reflect.Struct:
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case reflect.Slice, reflect.Array:
			for i := range v.Len() {
				walk(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
			}
		}
	}
	walk("", reflect.ValueOf(k).Elem())
	return all
}

// TestKernels runs every kernel of every level that this machine runs, says which levels it does not run and why, and fails
// if a kernel that could have been run was not.
func TestKernels(t *testing.T) {
	for i := range levels {
		l := &levels[i]
		t.Run(string(l.name), func(t *testing.T) {
			all := kernelsOf(&l.kernels)
			if lacks := l.missing(); len(lacks) > 0 {
				t.Skipf("NOT RUN: level %s with %d kernels: this machine lacks %v", l.name, len(all), lacks)
			}
			ran := map[uintptr]bool{}
			run := func(name string, test func(*kernelTest)) {
				t.Run(name, func(t *testing.T) {
					test(&kernelTest{T: t, rnd: rand.New(rand.NewPCG(7, uint64(len(name)))), ran: ran})
				})
			}
			k := &l.kernels
			for i := range k.aesEnc {
				run(fmt.Sprintf("aes-cbc encryption, %d lanes", k.aesEnc[i].lanes), func(t *kernelTest) { t.cbcEncrypt(&k.aesEnc[i]) })
			}
			if k.aesDec != nil {
				run("aes-cbc decryption", func(t *kernelTest) { t.cbcDecrypt(k.aesDec) })
			}
			for auth := range k.hash32 {
				for i := range k.hash32[auth] {
					run(fmt.Sprintf("%v, %d lanes", offload.Auth(auth), k.hash32[auth][i].lanes),
						func(t *kernelTest) { hashTest(t, offload.Auth(auth), &k.hash32[auth][i]) })
				}
			}
			for i := range k.hash64 {
				run(fmt.Sprintf("sha512, %d lanes", k.hash64[i].lanes), func(t *kernelTest) { hashTest(t, offload.HMACSHA512, &k.hash64[i]) })
			}
			for d := k.des; d != nil; d = d.fewer {
				run(fmt.Sprintf("3des, %d lanes", d.lanes), func(t *kernelTest) {
					t.mark(d.expand)
					t.mark(d.put)
					t.tripleDES(d)
				})
			}
			if k.forget != nil {
				run("forget", func(t *kernelTest) {
					t.mark(k.forget)
					k.forget() // what is in registers, Go cannot look at
				})
			}
			if k.gcm != nil {
				run("gcm", func(t *kernelTest) { t.gcm(k.gcm) })
			}
			for path, pointer := range all {
				if !ran[pointer] {
					t.Errorf("NOT RUN: %s%s", l.name, path)
				}
			}
			t.Logf("level %s: all of %d kernels were run", l.name, len(all))
		})
	}
}

// Levels are complete and in order: the lists of kernels ascend, and none has more lanes than the scratch has room for.
func TestTables(t *testing.T) {
	for i := range levels {
		k := &levels[i].kernels
		ascending := func(what string, lanes, costs []int, limit int) {
			if !slices.IsSorted(lanes) || !slices.IsSorted(costs) || slices.Contains(costs, 0) || len(lanes) > 0 && lanes[len(lanes)-1] > limit {
				t.Errorf("%s: %s: lanes %v at costs of %v, at most %d lanes", levels[i].name, what, lanes, costs, limit)
			}
		}
		var lanes, costs []int
		for _, c := range k.aesEnc {
			lanes, costs = append(lanes, c.lanes), append(costs, c.cost)
			if c.mixed == nil {
				t.Errorf("%s: %d lanes have no kernel for mixed keys", levels[i].name, c.lanes)
			}
		}
		ascending("AES-CBC", lanes, costs, maxCBCLanes)
		for auth, hs := range k.hash32 {
			lanes, costs = nil, nil
			for _, h := range hs {
				lanes, costs = append(lanes, h.lanes), append(costs, h.cost)
			}
			ascending(offload.Auth(auth).String(), lanes, costs, maxHashLanes)
		}
		lanes, costs = nil, nil
		for _, h := range k.hash64 {
			lanes, costs = append(lanes, h.lanes), append(costs, h.cost)
		}
		ascending("SHA-512", lanes, costs, maxHashLanes)
	}
}

// The key schedule is the standard's (FIPS 197 appendix A), and its inverse decrypts: shown without any kernel.
func TestAESSchedule(t *testing.T) {
	for _, c := range []struct {
		key  []byte
		last string
	}{
		{[]byte{0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf, 0x4f, 0x3c}, "d014f9a8c9ee2589e13f0cc8b6630ca6"},
		{[]byte{0x8e, 0x73, 0xb0, 0xf7, 0xda, 0x0e, 0x64, 0x52, 0xc8, 0x10, 0xf3, 0x2b, 0x80, 0x90, 0x79, 0xe5, 0x62, 0xf8, 0xea, 0xd2, 0x52, 0x2c, 0x6b, 0x7b}, "e98ba06f448c773c8ecc720401002202"},
		{[]byte{0x60, 0x3d, 0xeb, 0x10, 0x15, 0xca, 0x71, 0xbe, 0x2b, 0x73, 0xae, 0xf0, 0x85, 0x7d, 0x77, 0x81, 0x1f, 0x35, 0x2c, 0x07, 0x3b, 0x61, 0x08, 0xd7, 0x2d, 0x98, 0x10, 0xa3, 0x09, 0x14, 0xdf, 0xf4}, "fe4890d1e6188d0b046df344706c631e"},
	} {
		enc := make([]byte, aesScheduleLen)
		expandAES(enc, c.key)
		r := aesRounds(len(c.key))
		if got := fmt.Sprintf("%x", enc[16*r:16*r+16]); got != c.last {
			t.Errorf("%d-bit key: the last round key is %s, not %s", 8*len(c.key), got, c.last)
		}
	}
}
