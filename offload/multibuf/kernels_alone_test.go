package multibuf

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"encoding"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"culvert/offload"
)

// eachLevel runs a test for the kernels of every level of this machine, and not those that it inherits.
func eachLevel(t *testing.T, do func(t *testing.T, l *level)) {
	for i := range levels {
		l := &levels[i]
		t.Run(string(l.name), func(t *testing.T) {
			if lacks := l.missing(); len(lacks) > 0 {
				t.Skip("this processor lacks ", lacks)
			}
			do(t, l)
		})
	}
}

// alone is memory for packets of a kernel under test: at odd addresses, in which guards lie between the packets.
type alone struct {
	rnd    *rand.Rand
	memory []byte
	before []byte
	at     []int // of packets
	ptrs   []uintptr
	of     []int // which packet a lane has
}

// newAlone lays packets of size bytes out for lanes lanes; sharing makes some lanes have the same one.
func newAlone(rnd *rand.Rand, lanes, size, head int, sharing bool) *alone {
	a := &alone{rnd: rnd, ptrs: alignedWords[uintptr](lanes)}
	place := 0
	for range lanes {
		place += head + rnd.IntN(70)
		a.at = append(a.at, place)
		place += size
	}
	a.memory = make([]byte, place+64)
	for i := range a.memory {
		a.memory[i] = byte(rnd.Uint32())
	}
	a.before = slices.Clone(a.memory)
	for lane := range lanes {
		p := lane
		if sharing && rnd.IntN(2) == 0 {
			p = rnd.IntN(lanes)
		}
		a.of = append(a.of, p)
		a.ptrs[lane] = address(a.memory[a.at[p]:])
	}
	return a
}

// checkPtrs sees that the kernel has moved every address past what it did.
func (a *alone) checkPtrs(t *testing.T, size int) {
	t.Helper()
	for lane, p := range a.ptrs {
		if want := address(a.memory[a.at[a.of[lane]]:]) + uintptr(size); p != want {
			t.Fatalf("lane %d's address was moved by %d bytes too much", lane, int(p-want))
		}
	}
}

// blockCounts are lengths to test kernels with: each small one, and some that wrap around what a kernel does at once.
var blockCounts = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 23, 31, 33, 64, 95}

// Every AES-CBC encryption kernel does what the standard library does, with one key and with a key a lane, and touches
// nothing else.
func TestEncryptKernels(t *testing.T) {
	eachLevel(t, func(t *testing.T, l *level) {
		rnd := rand.New(rand.NewPCG(1, 1))
		for _, k := range l.kernels.aesEnc {
			for _, blocks := range blockCounts {
				for keyLen := 16; keyLen <= 32; keyLen += 8 {
					for _, mixed := range []bool{false, true} {
						a := newAlone(rnd, k.lanes, 16*blocks, 16, false)
						rounds := aesRounds(keyLen)
						table := aligned(aesScheduleLen * k.lanes)
						keys := make([][]byte, k.lanes)
						for lane := range keys {
							keys[lane] = make([]byte, keyLen)
							binary.LittleEndian.PutUint64(keys[lane], rnd.Uint64())
							if !mixed {
								keys[lane] = keys[0]
							}
							schedule := aligned(aesScheduleLen)
							expandAES(schedule, keys[lane])
							if !mixed {
								copy(table, schedule)
							}
							for r := 0; mixed && r <= rounds; r++ {
								copy(table[16*(k.lanes*r+lane):], schedule[16*r:16*r+16])
							}
						}
						run := k.shared
						if mixed {
							run = k.mixed
						}
						if run == nil {
							continue
						}
						run(&table[0], rounds, &a.ptrs[0], blocks)
						a.checkPtrs(t, 16*blocks)
						for lane, at := range a.at {
							b, err := aes.NewCipher(keys[lane])
							if err != nil {
								t.Fatal(err)
							}
							p := a.before[at : at+16*blocks]
							cipher.NewCBCEncrypter(b, a.before[at-16:at]).CryptBlocks(p, p)
						}
						if !slices.Equal(a.memory, a.before) {
							t.Fatalf("%d lanes, %d blocks, %d-byte keys, mixed %v: differs from the standard library", k.lanes, blocks, keyLen, mixed)
						}
					}
				}
			}
		}
	})
}

// The AES-CBC decryption kernel does what the standard library does, and touches nothing else.
func TestDecryptKernels(t *testing.T) {
	eachLevel(t, func(t *testing.T, l *level) {
		if l.kernels.aesDec == nil {
			t.Skip("inherited")
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		for blocks := 1; blocks < 100; blocks++ {
			for keyLen := 16; keyLen <= 32; keyLen += 8 {
				a := newAlone(rnd, 1, 16*blocks, 16, false)
				key := make([]byte, keyLen)
				binary.LittleEndian.PutUint64(key, rnd.Uint64())
				enc, dec := aligned(aesScheduleLen), aligned(aesScheduleLen)
				expandAES(enc, key)
				invertAES(dec, enc, aesRounds(keyLen))
				at := a.at[0]
				l.kernels.aesDec(&dec[0], aesRounds(keyLen), &a.memory[at], blocks)
				b, err := aes.NewCipher(key)
				if err != nil {
					t.Fatal(err)
				}
				p := a.before[at : at+16*blocks]
				cipher.NewCBCDecrypter(b, slices.Clone(a.before[at-16:at])).CryptBlocks(p, p)
				if !slices.Equal(a.memory, a.before) {
					t.Fatalf("%d blocks, %d-byte key: differs from the standard library", blocks, keyLen)
				}
			}
		}
	})
}

// Every hash kernel does to chaining values what the standard library does, for messages anywhere and the same one in
// several lanes, and changes none of them.
func TestHashKernels(t *testing.T) {
	eachLevel(t, func(t *testing.T, l *level) {
		rnd := rand.New(rand.NewPCG(1, 3))
		for auth, ks := range l.kernels.hash32 {
			for i := range ks {
				t.Run(fmt.Sprintf("%v/%d", offload.Auth(auth), ks[i].lanes), func(t *testing.T) { testHash(t, rnd, &hmacHashes[auth], &ks[i]) })
			}
		}
		for i := range l.kernels.hash64 {
			k := &l.kernels.hash64[i]
			t.Run(fmt.Sprintf("sha512/%d", k.lanes), func(t *testing.T) { testHash(t, rnd, &hmacHashes[offload.HMACSHA512], k) })
		}
	})
}

func testHash[T uint32 | uint64](t *testing.T, rnd *rand.Rand, a *hmacHash, k *hashKernel[T]) {
	size := a.block() / 16
	for _, blocks := range blockCounts[:12] {
		for _, sharing := range []bool{false, true} {
			m := newAlone(rnd, k.lanes, a.block()*blocks, 0, sharing)
			state := alignedWords[T](a.words * k.lanes)
			for i := range state {
				state[i] = T(rnd.Uint64())
			}
			was := slices.Clone(state)
			k.run(&state[0], &m.ptrs[0], blocks)
			m.checkPtrs(t, a.block()*blocks)
			if !slices.Equal(m.memory, m.before) {
				t.Fatalf("%d blocks: a message was changed", blocks)
			}
			for lane, p := range m.of {
				h := a.new()
				empty, err := h.(encoding.BinaryMarshaler).MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				words := empty[len(a.magic):]
				for w := range a.words {
					if a.wide {
						binary.BigEndian.PutUint64(words[8*w:], uint64(was[w*k.lanes+lane]))
					} else {
						binary.BigEndian.PutUint32(words[4*w:], uint32(was[w*k.lanes+lane]))
					}
				}
				if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(empty); err != nil {
					t.Fatal(err)
				}
				h.Write(m.before[m.at[p] : m.at[p]+a.block()*blocks])
				after, err := h.(encoding.BinaryMarshaler).MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				for w := range a.words {
					want := after[len(a.magic)+size*w:][:size]
					got := make([]byte, size)
					putWord(got, state[w*k.lanes+lane], false)
					if !slices.Equal(got, want) {
						t.Fatalf("%d blocks, lane %d, word %d: %x, want %x", blocks, lane, w, got, want)
					}
				}
			}
		}
	}
}

// Every 3DES kernel does what the standard library does, with one key and with a key a lane, and touches nothing else.
func TestDESKernels(t *testing.T) {
	eachLevel(t, func(t *testing.T, l *level) {
		k := l.kernels.des
		if k == nil {
			t.Skip("inherited")
		}
		rnd := rand.New(rand.NewPCG(1, 4))
		for _, blocks := range []int{1, 2, 3, 7, 16} {
			for _, mixed := range []bool{false, true} {
				for _, decrypt := range []bool{false, true} {
					a := newAlone(rnd, k.lanes, 8*blocks, 0, false)
					chain, table := alignedWords[uint64](k.lanes), aligned(k.table)
					iv := make([]uint64, k.lanes)
					keys := make([][]byte, k.lanes)
					var shared []byte
					for lane := range keys {
						iv[lane] = rnd.Uint64()
						chain[lane] = iv[lane]
						keys[lane] = make([]byte, 24)
						for i := range keys[lane] {
							keys[lane][i] = byte(rnd.Uint32())
						}
						if !mixed {
							keys[lane] = keys[0]
						}
						schedule := aligned(k.size)
						k.expand(schedule, keys[lane], decrypt)
						shared = schedule
						if mixed {
							k.put(table, lane, schedule)
						}
					}
					switch {
					case mixed && decrypt:
						k.decMixed(&table[0], &chain[0], &a.ptrs[0], blocks)
					case mixed:
						k.encMixed(&table[0], &chain[0], &a.ptrs[0], blocks)
					case decrypt:
						k.decShared(&shared[0], &chain[0], &a.ptrs[0], blocks)
					default:
						k.encShared(&shared[0], &chain[0], &a.ptrs[0], blocks)
					}
					a.checkPtrs(t, 8*blocks)
					for lane, at := range a.at {
						b, err := des.NewTripleDESCipher(keys[lane])
						if err != nil {
							t.Fatal(err)
						}
						first := make([]byte, 8)
						binary.NativeEndian.PutUint64(first, iv[lane])
						p := a.before[at : at+8*blocks]
						last := binary.NativeEndian.Uint64(p[8*blocks-8:])
						if decrypt {
							cipher.NewCBCDecrypter(b, first).CryptBlocks(p, p)
						} else {
							cipher.NewCBCEncrypter(b, first).CryptBlocks(p, p)
							last = binary.NativeEndian.Uint64(p[8*blocks-8:])
						}
						if chain[lane] != last {
							t.Fatalf("%d blocks, mixed %v, decrypt %v: lane %d's chaining value is wrong", blocks, mixed, decrypt, lane)
						}
					}
					if !slices.Equal(a.memory, a.before) {
						t.Fatalf("%d blocks, mixed %v, decrypt %v: differs from the standard library", blocks, mixed, decrypt)
					}
				}
			}
		}
	})
}
