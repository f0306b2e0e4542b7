package multibuf

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"culvert/offload"
)

// chainOfMultiplications takes 12 cycles a round on every processor of the last fifteen years.
//
//go:noinline
func chainOfMultiplications(rounds int) uint64 {
	x := uint64(3)
	for range rounds {
		x *= x
		x *= x
		x *= x
		x *= x
	}
	return x
}

// least is the time that the function takes, in ns, at best.
func least(rounds, runs int, f func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	best := 1e18
	for range rounds {
		start := time.Now()
		for range runs {
			f()
		}
		best = min(best, float64(time.Since(start))/float64(runs))
	}
	return best
}

var sink uint64 // what nobody needs, but the compiler must not leave out

// clockRate is in cycles per ns.
var clockRate = sync.OnceValue(func() float64 {
	return 12 * 10000 / least(100, 1, func() { sink += chainOfMultiplications(10000) })
})

// cycles is how many the function takes, at best.
func cycles(f func()) float64 { return least(200, 5, f) * clockRate() }

// BenchmarkKernels gives the cycles that a block of every lane takes: the costs in the levels' tables. Packets have 1024
// bytes and lie 2112 bytes apart.
func BenchmarkKernels(b *testing.B) {
	const stride, size = 2112, 1024
	memory := aligned(maxDESLanes*stride + 4096)
	ptrs := alignedWords[uintptr](maxDESLanes)
	reset := func() {
		for i := range ptrs {
			ptrs[i] = address(memory[64+stride*i:])
		}
	}
	report := func(b *testing.B, n float64, lanes, bytes int) {
		for b.Loop() {
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(n, "cycles/step")
		b.ReportMetric(n/float64(lanes*bytes), "cycles/byte")
	}
	table := aligned(1 << 16)
	for i := range levels {
		l := &levels[i]
		if len(l.missing()) > 0 {
			continue
		}
		for _, k := range l.kernels.aesEnc {
			for _, rounds := range []int{10, 14} {
				for name, run := range map[string]func(*byte, int, *uintptr, int){"shared": k.shared, "mixed": k.mixed} {
					if run == nil {
						continue
					}
					b.Run(fmt.Sprintf("%s/cbc%d-encrypt-%s/%d", l.name, rounds*32-192, name, k.lanes), func(b *testing.B) {
						n := cycles(func() { reset(); run(&table[0], rounds, &ptrs[0], size/16) })
						report(b, n/(size/16), k.lanes, 16)
					})
				}
			}
		}
		if run := l.kernels.aesDec; run != nil {
			b.Run(fmt.Sprintf("%s/cbc128-decrypt", l.name), func(b *testing.B) {
				n := cycles(func() {
					for p := range 32 {
						run(&table[0], 10, &memory[64+stride*p], size/16)
					}
				})
				report(b, n/32/(size/16), 1, 16)
			})
		}
		for a, ks := range l.kernels.hash32 {
			for _, k := range ks {
				b.Run(fmt.Sprintf("%s/%v/%d", l.name, offload.Auth(a), k.lanes), func(b *testing.B) {
					state := alignedWords[uint32](8 * k.lanes)
					n := cycles(func() { reset(); k.run(&state[0], &ptrs[0], size/64, nil) })
					report(b, n/(size/64), k.lanes, 64)
				})
			}
		}
		for _, k := range l.kernels.hash64 {
			b.Run(fmt.Sprintf("%s/sha512/%d", l.name, k.lanes), func(b *testing.B) {
				state := alignedWords[uint64](8 * k.lanes)
				n := cycles(func() { reset(); k.run(&state[0], &ptrs[0], size/128, nil) })
				report(b, n/(size/128), k.lanes, 128)
			})
		}
		if g := l.kernels.gcm; g != nil {
			var tag [16]byte
			for name, run := range map[string]func(*byte, int, *byte, int, uint64, uint64, uint64, uint64, int, *byte){"seal": g.seal, "open": g.open} {
				for _, n := range []int{4, 64, 1024, 1028} {
					b.Run(fmt.Sprintf("%s/gcm128-%s/%d", l.name, name, n), func(b *testing.B) {
						c := cycles(func() {
							for p := range 32 {
								run(&table[0], 10, &memory[64+stride*p], n, 1, 2, 3, 4, 8, &tag[0])
							}
						})
						report(b, c/32, 1, n)
					})
				}
			}
		}
		for d := l.kernels.des; d != nil; d = d.fewer {
			chain := alignedWords[uint64](d.lanes)
			for name, run := range map[string]func(*byte, *uint64, *uintptr, int){
				"encrypt-shared": d.encShared, "encrypt-mixed": d.encMixed, "decrypt-shared": d.decShared, "decrypt-mixed": d.decMixed,
			} {
				if run == nil {
					continue
				}
				b.Run(fmt.Sprintf("%s/3des-%s/%d", l.name, name, d.lanes), func(b *testing.B) {
					n := cycles(func() { reset(); run(&table[0], &chain[0], &ptrs[0], size/8) })
					report(b, n/(size/8), d.lanes, 8)
				})
			}
		}
	}
}
