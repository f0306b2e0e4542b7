package traffic

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latency is a distribution of times.
type Latency struct {
	Samples             int64
	P50, P99, P999, Max time.Duration
}

// histogram records times from 100 ns to 10 s at three significant digits; what is outside counts as the nearest.
type histogram struct{ h *hdrhistogram.Histogram }

const (
	shortest = 100
	longest  = int64(10 * time.Second)
)

func newHistogram() *histogram { return &histogram{hdrhistogram.New(shortest, longest, 3)} }

func (h *histogram) record(d time.Duration) {
	_ = h.h.RecordValue(min(max(int64(d), 0), longest)) // within its range by construction
}

func (h *histogram) reset() { h.h.Reset() }

func (h *histogram) summary() Latency {
	if h.h.TotalCount() == 0 {
		return Latency{}
	}
	at := func(p float64) time.Duration { return time.Duration(h.h.ValueAtQuantile(p)) }
	return Latency{h.h.TotalCount(), at(50), at(99), at(99.9), time.Duration(h.h.Max())}
}
