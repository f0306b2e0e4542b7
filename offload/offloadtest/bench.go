package offloadtest

import (
	"errors"
	"fmt"
	"testing"

	"culvert/offload"
)

// Bench measures every transform in both directions with payloads of 64 and 1400 bytes, on one lane, in bursts of 32
// packets of one SA: ns per packet and Gbit/s of payload by the wall clock, and beside them the processor time of the whole
// process. Where the two are far apart, somebody else had the machine, or several workers shared the work. Packets lie 2112
// bytes apart. To open, each packet is copied into place first, which is part of the figure. Of an asynchronous engine up
// to 8 bursts are in flight.
func Bench(b *testing.B, e offload.Engine) {
	caps, err := e.Probe()
	if err != nil {
		b.Fatal(err)
	}
	for _, tr := range caps.Transforms {
		for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
			for _, size := range []int{64, 1400} {
				b.Run(fmt.Sprintf("%s/%v/%d", tr.ID(), dir, size), func(b *testing.B) {
					bench(b, newRig(b, e, caps), tr, dir, size)
				})
			}
		}
	}
}

func bench(b *testing.B, r *rig, tr *offload.Transform, dir offload.Direction, size int) {
	const jobs, stride = 32, 2112
	p := r.newPair(b, tr, false)
	sealed := p.seal(r.packet(tr, size), 0)
	flight := 1
	if r.caps.Async {
		flight = min(8, r.caps.Depth)
	}
	free := make([]*offload.Burst, flight)
	for i := range free {
		memory := make([]byte, jobs*stride)
		free[i] = &offload.Burst{Dir: dir, Jobs: make([]offload.Job, jobs)}
		for k := range free[i].Jobs {
			esp := memory[k*stride:][:len(sealed):len(sealed)]
			copy(esp, sealed)
			free[i].Jobs[k] = offload.Job{Session: p.sessions[dir], ESP: esp}
		}
	}
	dst := make([]*offload.Burst, flight)
	reap := func() {
		n := r.lane.Reap(dst, true)
		for _, burst := range dst[:n] {
			for k := range burst.Jobs {
				if burst.Jobs[k].Status != offload.OK {
					b.Fatalf("a packet came back with %v", burst.Jobs[k].Status)
				}
			}
			free = append(free, burst)
		}
	}
	b.ReportAllocs()
	cpu := int64(0)
	for b.Loop() {
		if cpu == 0 {
			cpu = cpuTime()
		}
		for len(free) == 0 {
			reap()
		}
		burst := free[len(free)-1]
		free = free[:len(free)-1]
		if dir == offload.Open {
			for k := range burst.Jobs {
				copy(burst.Jobs[k].ESP, sealed)
			}
		}
		if err := r.lane.Submit(burst); errors.Is(err, offload.ErrFull) {
			free = append(free, burst)
			reap()
		} else if err != nil {
			b.Fatal(err)
		}
	}
	// Loop has stopped the clock: what is still in flight, at most 8 bursts, counts as submitted work not waited for.
	ns := float64(b.Elapsed().Nanoseconds()) / float64(b.N*jobs)
	for len(free) < flight {
		reap()
	}
	b.ReportMetric(ns, "ns/packet")
	b.ReportMetric(float64(size*8)/ns, "Gbit/s")
	if cpu != 0 {
		b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N*jobs), "cpu-ns/packet")
	}
}
