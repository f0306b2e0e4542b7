package speed

import (
	"fmt"
	"math"
	"time"
)

// counter is the time stamp counter's frequency, and how it is known.
type counter struct {
	hz  float64 // 0: unknown, and no figure in cycles can be given
	how string
}

// calibration is how long the counter is watched beside the clock.
const calibration = 30 * time.Millisecond

// findCounter takes the frequency that the processor declares, if a calibration agrees with it; else the calibrated one.
func findCounter() counter {
	if !counterSteady() {
		return counter{how: "no steady counter to be read here"}
	}
	declared, leaf := declaredHz()
	return chooseCounter(calibrate(calibration), declared, leaf)
}

// agreement is how far two frequencies of one counter may be apart: leaf 0x16 has whole MHz.
const agreement = 0.002

func chooseCounter(calibrated, declared float64, leaf string) counter {
	switch {
	case calibrated <= 0:
		return counter{how: "the counter did not move"}
	case declared <= 0:
		return counter{calibrated, "calibrated against CLOCK_MONOTONIC_RAW; CPUID does not give it"}
	case math.Abs(declared/calibrated-1) <= agreement:
		return counter{declared, "CPUID leaf " + leaf + ", and so calibrated against CLOCK_MONOTONIC_RAW"}
	default:
		return counter{calibrated, fmt.Sprintf("calibrated against CLOCK_MONOTONIC_RAW; CPUID leaf %s has %.1f MHz", leaf, declared/1e6)}
	}
}

// calibrate watches the counter for a while.
func calibrate(d time.Duration) float64 {
	c0, t0 := counterAndTime()
	time.Sleep(d)
	c1, t1 := counterAndTime()
	if t1 <= t0 {
		return 0
	}
	return float64(c1-c0) / float64(t1-t0) * 1e9
}

// counterAndTime reads both at one moment: of several tries the one with the least between two reads of the counter.
func counterAndTime() (c uint64, t int64) {
	best := uint64(math.MaxUint64)
	for range 20 {
		before := readCounter()
		now := rawTime()
		after := readCounter()
		if gap := after - before; gap < best {
			best, c, t = gap, before+gap/2, now
		}
	}
	return c, t
}
