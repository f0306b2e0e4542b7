package multibuf_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"culvert/offload"
	"culvert/offload/multibuf"
	"culvert/offload/soft"

	"golang.org/x/sys/unix"
)

var benchLevel = flag.String("level", "", "the level to benchmark; empty: the best")

var benchPackets = flag.Int("mbpackets", 128, "packets to go through")
var benchBudget = flag.Duration("mbbudget", 12*time.Millisecond, "time to spend on each figure")

// threadTime is the processor time of this thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// load is packets for one direction of some SAs, and how to restore them.
type load struct {
	bursts []*offload.Burst
	esp    [][]byte
	fresh  [][]byte
	bytes  int // payload
}

// stride is how far apart packets lie: 2048 would put all of them into the same sets of the first-level cache.
const stride = 2048 + 64

// newLoad makes bursts of batch packets each, 128 packets or a little more in all; sizes are
// payloads, in turn.
func newLoad(b testing.TB, e offload.Engine, tr *offload.Transform, dir offload.Direction, batch, sas int, sizes []int) *load {
	rnd := rand.New(rand.NewPCG(1, 2))
	fill := func(p []byte) []byte {
		for i := range p {
			p[i] = byte(rnd.Uint32())
		}
		return p
	}
	var sessions [2][]offload.Session
	for range sas {
		k := offload.Keys{Enc: fill(make([]byte, tr.EncKeyLen())), Auth: fill(make([]byte, tr.AuthKeyLen))}
		for _, d := range []offload.Direction{offload.Seal, offload.Open} {
			s, err := e.NewSession(tr, d, k)
			if err != nil {
				b.Fatal(err)
			}
			sessions[d] = append(sessions[d], s)
		}
	}
	l := &load{}
	lane, err := e.NewLane(0)
	if err != nil {
		b.Fatal(err)
	}
	defer lane.Close()
	n := max(batch, (*benchPackets+batch-1)/batch*batch)
	memory := make([]byte, n*stride+64)
	for i := 0; i < n; i++ {
		size := sizes[i%len(sizes)]
		l.bytes += size
		esp := fill(memory[i*stride : i*stride+tr.SealedLen(size)])
		if i%batch == 0 {
			l.bursts = append(l.bursts, &offload.Burst{Dir: offload.Seal})
		}
		burst := l.bursts[len(l.bursts)-1]
		burst.Jobs = append(burst.Jobs, offload.Job{Session: sessions[offload.Seal][i%sas], ESP: esp})
		l.esp = append(l.esp, esp)
	}
	for _, burst := range l.bursts {
		if err := offload.Do(lane, burst); err != nil {
			b.Fatal(err)
		}
		burst.Dir = dir
		for i := range burst.Jobs {
			burst.Jobs[i].Session = sessions[dir][slices.Index(sessions[offload.Seal], burst.Jobs[i].Session)]
		}
	}
	for _, esp := range l.esp {
		l.fresh = append(l.fresh, slices.Clone(esp))
	}
	return l
}

// best is the least processor time, in ns, in which the bursts passed through the engine. The best of many short runs was not
// interrupted, so that the wall's clock, which is finer, tells the same; long runs are judged by the thread's own.
func (l *load) best(b testing.TB, e offload.Engine, budget time.Duration) float64 {
	lane, err := e.NewLane(0)
	if err != nil {
		b.Fatal(err)
	}
	defer lane.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const long = 200 * time.Microsecond
	least, leastCPU, spent := time.Duration(1<<62), time.Duration(1<<62), time.Duration(0)
	var done [1]*offload.Burst
	for rounds := 0; rounds < 5 || spent < budget; rounds++ {
		for i := range l.esp {
			copy(l.esp[i], l.fresh[i])
		}
		startCPU, start := threadTime(), time.Now()
		for _, burst := range l.bursts {
			lane.Submit(burst)
			lane.Reap(done[:], true)
		}
		took := time.Since(start)
		least, leastCPU, spent = min(least, took), min(leastCPU, threadTime()-startCPU), spent+took
	}
	for _, burst := range l.bursts {
		for i := range burst.Jobs {
			if burst.Jobs[i].Status != offload.OK {
				b.Fatalf("a packet came back with %v", burst.Jobs[i].Status)
			}
		}
	}
	if least > long {
		least = leastCPU
	}
	return float64(least)
}

// benchTransforms are those worth a row.
var benchTransforms = []struct {
	name string
	bits int
}{
	{"authenc(hmac(md5),cbc(aes))", 128},
	{"authenc(hmac(sha1),cbc(aes))", 128}, {"authenc(hmac(sha1),cbc(aes))", 192}, {"authenc(hmac(sha1),cbc(aes))", 256},
	{"authenc(hmac(sha256),cbc(aes))", 128}, {"authenc(hmac(sha256),cbc(aes))", 256},
	{"authenc(hmac(sha384),cbc(aes))", 128}, {"authenc(hmac(sha512),cbc(aes))", 256},
	{"authenc(hmac(sha1),cbc(des3_ede))", 192}, {"authenc(hmac(md5),cbc(des3_ede))", 192},
	{"authenc(hmac(sha1),ecb(cipher_null))", 0}, {"authenc(hmac(sha256),ecb(cipher_null))", 0},
	{"rfc4106(gcm(aes))", 128}, {"rfc4106(gcm(aes))", 256}, {"rfc7539esp(chacha20,poly1305)", 256},
}

// BenchmarkBatch measures payloads of 1024 bytes by transform, direction and size of the burst, the best of many short
// runs, beside soft's.
func BenchmarkBatch(b *testing.B) {
	mb := multibuf.New(multibuf.Options{Level: multibuf.Level(*benchLevel), Rest: soft.New()})
	for _, row := range benchTransforms {
		tr, err := offload.Lookup(row.name, row.bits, 0)
		if err != nil {
			b.Fatal(err)
		}
		for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
			for _, batch := range []int{1, 4, 8, 32, 64} {
				b.Run(fmt.Sprintf("%s/%v/%d", tr.ID(), dir, batch), func(b *testing.B) {
					compare(b, mb, tr, dir, batch, 1, []int{1024})
				})
			}
		}
	}
}

// BenchmarkMix measures a burst of many lengths (28 of 64 bytes, 16 of 570, 4 of 1518, shuffled) of eight SAs in turn, and
// two and five of these in one burst, beside as many packets of 1024 bytes of one SA.
func BenchmarkMix(b *testing.B) {
	mb := multibuf.New(multibuf.Options{Level: multibuf.Level(*benchLevel), Rest: soft.New()})
	imix := slices.Concat(slices.Repeat([]int{64}, 28), slices.Repeat([]int{570}, 16), slices.Repeat([]int{1518}, 4))
	rand.New(rand.NewPCG(3, 4)).Shuffle(len(imix), func(i, j int) { imix[i], imix[j] = imix[j], imix[i] })
	for _, row := range benchTransforms {
		tr, err := offload.Lookup(row.name, row.bits, 0)
		if err != nil {
			b.Fatal(err)
		}
		for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
			for _, batch := range []int{48, 96, 240} {
				b.Run(fmt.Sprintf("%s/%v/%d", tr.ID(), dir, batch), func(b *testing.B) {
					equal := newLoad(b, mb, tr, dir, batch, 1, []int{1024})
					rate := float64(equal.bytes) / equal.best(b, mb, *benchBudget/2)
					b.ReportMetric(compare(b, mb, tr, dir, batch, 8, imix)/rate, "×equal")
				})
			}
		}
	}
}

func compare(b *testing.B, mb offload.Engine, tr *offload.Transform, dir offload.Direction, batch, sas int, sizes []int) (rate float64) {
	budget := *benchBudget
	mine := newLoad(b, mb, tr, dir, batch, sas, sizes)
	ns := mine.best(b, mb, budget)
	theirs := newLoad(b, soft.New(), tr, dir, batch, sas, sizes)
	softNS := theirs.best(b, soft.New(), budget/2)
	for b.Loop() {
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ns/float64(len(mine.esp)), "ns/packet")
	b.ReportMetric(8*float64(mine.bytes)/ns, "Gbit/s")
	b.ReportMetric(8*float64(theirs.bytes)/softNS, "soft-Gbit/s")
	b.ReportMetric(softNS/ns*float64(mine.bytes)/float64(theirs.bytes), "×soft")
	return float64(mine.bytes) / ns
}
