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

func (d *device) try(rate float64, length time.Duration) (Trial, error) {
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
	r, err := search(searchOptions, func() time.Time { return d.clock }, func(rate float64, length time.Duration) (Trial, error) {
		tr, err := d.try(rate, length)
		if n++; n == 3 {
			tr.Unique -= tr.Unique / 20
		}
		return tr, err
	})
	if err != nil || r.Offered() < 300e3*(1-2*searchOptions.Precision) {
		t.Errorf("%.0f: %+v %v", r.Offered(), r, err)
	}
}

// A confirmation that fails is tried again lower.
func TestSearchBacksOff(t *testing.T) {
	d := &device{capacity: 100e3, most: math.Inf(1), shy: 2}
	r, err := d.search(searchOptions)
	if err != nil || r.Offered() > 100e3*confirmations[2]*1.01 || r.Offered() < 100e3*confirmations[2]*0.9 {
		t.Errorf("%.0f: %+v %v", r.Offered(), r, err)
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
	if err != nil || r.Bracketed || r.GeneratorLimited || r.Offered() < 20e3 || r.Trials > 4 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestSearchError(t *testing.T) {
	broken := errors.New("broken")
	_, err := search(searchOptions, time.Now, func(float64, time.Duration) (Trial, error) { return Trial{}, broken })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
