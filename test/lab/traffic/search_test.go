package traffic

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// device is a tunnel that carries up to capacity packets/s, driven by a generator that sends up to most. Its clock is its own.
type device struct {
	capacity, most float64
	shy            int // so many confirmations lose half, whatever the rate
	stumbles       int // so many trials send half of what they were asked
	clock          time.Time
	confirm        time.Duration
	lowest         float64 // of the rates tried
}

func (d *device) try(rate float64, length time.Duration, _ float64) (Trial, error) {
	d.clock = d.clock.Add(length + 50*time.Millisecond)
	d.lowest = min(d.lowest, rate)
	sent := min(rate, d.most)
	if d.stumbles > 0 {
		d.stumbles--
		sent /= 2
	}
	carried := min(sent, d.capacity)
	if length == d.confirm && d.shy > 0 {
		d.shy--
		carried /= 2
	}
	s := length.Seconds()
	return Trial{Asked: rate, Sent: uint64(sent * s), Wall: length, Received: Received{Unique: uint64(carried * s)}}, nil
}

var searchOptions = SearchOptions{
	MaxLoss: 0.005, Start: 20e3, Lowest: 500, Precision: 0.04, Probe: 400 * time.Millisecond, Confirm: 4 * time.Second, Budget: 20 * time.Second,
}

func (d *device) search(o SearchOptions) (SearchResult, error) {
	d.confirm, d.lowest = o.Confirm, math.Inf(1)
	return search(o, func() time.Time { return d.clock }, d.try)
}

// Whatever a device carries, the search finds within its precision, never above, and confirms it.
func TestSearchFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &device{capacity: rapid.Float64Range(1000, 3e6).Draw(t, "capacity"), most: math.Inf(1)}
		r, err := d.search(searchOptions)
		if err != nil {
			t.Fatal(err)
		}
		if top := d.capacity / (1 - searchOptions.MaxLoss) * 1.001; r.Offered() > top || r.Offered() < d.capacity*(1-2*searchOptions.Precision) {
			t.Fatalf("found %.0f of %.0f", r.Offered(), d.capacity)
		}
		if !r.Bracketed || r.GeneratorLimited || r.Wall != searchOptions.Confirm || r.Loss() > searchOptions.MaxLoss {
			t.Fatalf("%+v", r)
		}
	})
}

// A generator that is slower than the device is what is found, and it is said.
func TestSearchGeneratorLimited(t *testing.T) {
	d := &device{capacity: 1e6, most: 300e3}
	r, err := d.search(searchOptions)
	if err != nil || !r.GeneratorLimited || r.Bracketed || math.Abs(r.Offered()-300e3) > 3e3 {
		t.Errorf("%+v %v", r, err)
	}
}

// A generator that stumbles, because the machine is busy, is not taken for one that can do no more.
func TestSearchGeneratorStumbles(t *testing.T) {
	d := &device{capacity: 300e3, most: math.Inf(1), stumbles: 2}
	r, err := d.search(searchOptions)
	if err != nil || r.GeneratorLimited || r.Offered() < 300e3*(1-2*searchOptions.Precision) {
		t.Errorf("%.0f: %+v %v", r.Offered(), r, err)
	}
}

// One trial that loses a little more than it may does not end the search there.
func TestSearchHiccup(t *testing.T) {
	d := &device{capacity: 300e3, most: math.Inf(1)}
	n := 0
	d.confirm = searchOptions.Confirm
	r, err := search(searchOptions, func() time.Time { return d.clock }, func(rate float64, length time.Duration, maxLoss float64) (Trial, error) {
		tr, err := d.try(rate, length, maxLoss)
		if n++; n == 3 {
			tr.Unique -= tr.Unique / 20
		}
		return tr, err
	})
	if err != nil || r.Offered() < 300e3*(1-2*searchOptions.Precision) {
		t.Errorf("%.0f: %+v %v", r.Offered(), r, err)
	}
}

// A confirmation that fails is tried again lower: half as high at most, and nearer where it lost little.
func TestSearchBacksOff(t *testing.T) {
	d := &device{capacity: 100e3, most: math.Inf(1), shy: 2}
	r, err := d.search(searchOptions)
	if err != nil || r.Offered() > 100e3/4*1.01 || r.Offered() < 100e3/4*0.9 {
		t.Errorf("%.0f: %v", r.Offered(), err)
	}
	for _, c := range []struct{ sent, got, want float64 }{{1000, 950, 930}, {1000, 800, 760}, {1000, 890, 800}, {1000, 100, 500}, {1000, 0, 500}} {
		tr := Trial{Sent: uint64(c.sent), Wall: time.Second, Received: Received{Unique: uint64(c.got)}}
		if got := lower(1000, tr); math.Abs(got-c.want) > 1 {
			t.Errorf("after %.0f of %.0f: %.0f, want %.0f", c.got, c.sent, got, c.want)
		}
	}
}

// The last trial of a search that finds nothing goes its whole length whatever it loses; no other does, and all are told in order.
func TestSearchLastTrialIsWhole(t *testing.T) {
	d := &device{capacity: 100e3, most: math.Inf(1), shy: math.MaxInt}
	d.confirm = searchOptions.Confirm
	var mayLose []float64
	r, err := search(searchOptions, func() time.Time { return d.clock }, func(rate float64, length time.Duration, maxLoss float64) (Trial, error) {
		mayLose = append(mayLose, maxLoss)
		return d.try(rate, length, maxLoss)
	})
	if !errors.Is(err, ErrSearch) {
		t.Fatal(err)
	}
	for i, m := range mayLose {
		if whole := m == 1; whole != (i == len(mayLose)-1) || !whole && m != searchOptions.MaxLoss {
			t.Errorf("trial %d of %d may lose %v", i+1, len(mayLose), m)
		}
	}
	if last := len(r.Tried) - 1; len(r.Tried) != len(mayLose) || r.Tried[last].Asked != r.Asked || r.Tried[0].Asked != searchOptions.Start {
		t.Errorf("%d trials, %d told; the last %+v", len(mayLose), len(r.Tried), r.Trial)
	}
	// Two lengths, one more, and what was under way when they were over.
	if spent := d.clock.Sub(time.Time{}); spent > searchOptions.Budget+5*searchOptions.Confirm {
		t.Errorf("it took %v", spent)
	}
}

// A device that carries nothing is ErrSearch, with what was tried last; rates below the lowest are not tried.
func TestSearchFindsNothing(t *testing.T) {
	d := &device{most: math.Inf(1)}
	_, err := d.search(searchOptions)
	if !errors.Is(err, ErrSearch) || d.lowest < searchOptions.Lowest {
		t.Errorf("%v; lowest rate tried %v", err, d.lowest)
	}
	d = &device{capacity: 1e6, most: math.Inf(1), shy: math.MaxInt}
	if r, err := d.search(searchOptions); !errors.Is(err, ErrSearch) || r.Sent == 0 {
		t.Errorf("%+v %v", r, err)
	}
}

// When the time is up, what was carried so far is confirmed, and it is not called the highest.
func TestSearchOutOfTime(t *testing.T) {
	d := &device{capacity: 10e6, most: math.Inf(1)}
	o := searchOptions
	o.Budget = 2 * o.Probe
	r, err := d.search(o)
	if err != nil || r.Bracketed || r.GeneratorLimited || r.Offered() < 20e3 || len(r.Tried) > 4 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestSearchError(t *testing.T) {
	broken := errors.New("broken")
	_, err := search(searchOptions, time.Now, func(float64, time.Duration, float64) (Trial, error) { return Trial{}, broken })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
