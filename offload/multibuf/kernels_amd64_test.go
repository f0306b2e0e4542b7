package multibuf

import (
	"bytes"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"culvert/offload"
)

// TestSameAddress gives several lanes the same message: each has what it would have had alone.
func TestSameAddress(t *testing.T) {
	for i := range levels {
		l := &levels[i]
		t.Run(string(l.name), func(t *testing.T) {
			if lacks := l.missing(); len(lacks) > 0 {
				t.Skipf("NOT RUN: this machine lacks %v", lacks)
			}
			rnd := rand.New(rand.NewPCG(3, 5))
			for auth, ks := range l.kernels.hash32 {
				for i := range ks {
					sameAddress(t, rnd, &hmacHashes[auth], &ks[i])
				}
			}
			for i := range l.kernels.hash64 {
				sameAddress(t, rnd, &hmacHashes[len(hmacHashes)-1], &l.kernels.hash64[i])
			}
		})
	}
}

func sameAddress[T uint32 | uint64](t *testing.T, rnd *rand.Rand, a *hmacHash, k *hashKernel[T]) {
	const blocks = 3
	size := blocks * a.block()
	memory := make([]byte, size+17)
	for i := range memory {
		memory[i] = byte(rnd.Uint32())
	}
	before := bytes.Clone(memory)
	state := alignedWords[T](a.words * k.lanes)
	ptrs := alignedWords[uintptr](k.lanes)
	var want [][]uint64
	for lane := range k.lanes {
		at := 0
		if lane%3 == 2 { // most have this one, the others one that overlaps it
			at = 17
		}
		chaining := make([]uint64, a.words)
		for w := range chaining {
			chaining[w] = uint64(T(rnd.Uint64()))
			state[w*k.lanes+lane] = T(chaining[w])
		}
		want = append(want, compress(t, a, chaining, memory[at:at+size]))
		ptrs[lane] = address(memory[at:])
	}
	k.run(&state[0], &ptrs[0], blocks, nil)
	if !bytes.Equal(memory, before) {
		t.Fatalf("%s, %d lanes: a message was changed", a.magic[:3], k.lanes)
	}
	for lane := range k.lanes {
		for w, v := range want[lane] {
			if uint64(state[w*k.lanes+lane]) != v {
				t.Fatalf("%s, %d lanes: lane %d, word %d is %#x, not %#x", a.magic[:3], k.lanes, lane, w, state[w*k.lanes+lane], v)
			}
		}
	}
}

// TestAVX2Parts runs the kernels of the AVX2 level that this machine would not choose: those for processors that lack VAES,
// or the SHA instructions.
func TestAVX2Parts(t *testing.T) {
	if lacks := avx2.missing(); len(lacks) > 0 {
		t.Skipf("NOT RUN: this machine lacks %v", lacks)
	}
	for _, has := range [][2]bool{{false, false}, {hasVAES(), false}, {false, hasSHANI()}} {
		parts := avx2Kernels(has[0], has[1])
		kt := &kernelTest{T: t, rnd: rand.New(rand.NewPCG(5, 7)), ran: map[uintptr]bool{}}
		for i := range parts.aesEnc {
			kt.cbcEncrypt(&parts.aesEnc[i])
		}
		kt.cbcDecrypt(parts.aesDec)
		for auth, ks := range parts.hash32 {
			for i := range ks {
				hashTest(kt, offload.Auth(auth), &ks[i])
				sameAddress(t, kt.rnd, &hmacHashes[auth], &ks[i])
			}
		}
	}
}

// legacyFunctions are those for processors without AVX. An instruction with a VEX or EVEX prefix is disassembled to a name
// with a v in front.
var legacyFunctions = regexp.MustCompile(`multibuf\.\w+?(SSE|SSE2|SHANI)\.abi0>:$`)

// TestNoAVX disassembles the package: levels for processors without AVX have no instruction that needs it, and sse2 none
// that is younger than SSE2.
func TestNoAVX(t *testing.T) {
	objdump, err := exec.LookPath("objdump")
	if err != nil {
		t.Skip("NOT RUN: there is no objdump")
	}
	if testing.Short() {
		t.Skip("NOT RUN: the instructions were not looked at")
	}
	program := filepath.Join(t.TempDir(), "test") // what is running may have no symbols
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	out, err := exec.Command(objdump, "-d", "--no-show-raw-insn", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	// What SSE2 does not have, of what the generator might write.
	young := []string{"pshufb", "palignr", "pinsrd", "pextrd", "pinsrq", "pextrq", "pblendw", "pblendvb", "ptest", "popcnt", "crc32", "andn", "rorx", "bzhi", "movbe"}
	functions, name := map[string]int{}, ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if strings.HasSuffix(line, ">:") {
			name = ""
			if legacyFunctions.MatchString(line) {
				name = line
			}
			continue
		}
		_, code, ok := strings.Cut(line, ":\t")
		if name == "" || !ok {
			continue
		}
		functions[name]++
		op, operands, _ := strings.Cut(code, " ")
		if strings.HasPrefix(op, "v") || strings.Contains(operands, "%ymm") || strings.Contains(operands, "%zmm") || strings.Contains(operands, "%k") {
			t.Errorf("%s %s", name, code)
		}
		if strings.HasSuffix(name, "SSE2.abi0>:") && (slices.Contains(young, op) || strings.HasPrefix(op, "aes") || strings.HasPrefix(op, "sha1") || strings.HasPrefix(op, "sha2")) {
			t.Errorf("%s %s", name, code)
		}
		if strings.HasSuffix(name, "SSE.abi0>:") && (strings.HasPrefix(op, "sha1") || strings.HasPrefix(op, "sha2")) {
			t.Errorf("%s %s", name, code)
		}
	}
	kinds := map[string]int{}
	for name, n := range functions {
		if n < 16 {
			t.Errorf("%s has only %d instructions: was it disassembled?", name, n)
		}
		kinds[legacyFunctions.FindStringSubmatch(name)[1]]++
	}
	if kinds["SSE"] == 0 || kinds["SSE2"] == 0 || kinds["SHANI"] == 0 {
		t.Errorf("functions found: %v", kinds)
	}
	t.Logf("functions: %v", kinds)
}
