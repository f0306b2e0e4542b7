package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"culvert/test/lab"
)

// Flood sends small UDP packets through a row from host A to host B, and counts them there.
type Flood struct {
	tx    *Sender
	rx    *Receiver
	trial uint16
	pids  []int
	where []Counters
}

// floodPort is the source port of a flood.
const floodPort = 40000

// NewFlood makes the sockets of a flood of IP packets of size bytes. pids are the processes whose CPU time trials report.
func NewFlood(ctx context.Context, row *lab.Row, v6 bool, size int, pids ...int) (*Flood, error) {
	rx, err := NewReceiver(ctx, row.HostB, netip.AddrPortFrom(row.EthB.Addr(v6), 0))
	if err != nil {
		return nil, err
	}
	tx, err := NewSender(row.EthA, row.LanA, netip.AddrPortFrom(row.EthA.Addr(v6), floodPort), rx.Addr(), size)
	if err != nil {
		return nil, errors.Join(err, rx.Close())
	}
	return &Flood{tx: tx, rx: rx, pids: pids, where: []Counters{KernelCounters(row)}}, nil
}

// Count adds counters that trials read besides the kernel's, to tell where packets were lost.
func (f *Flood) Count(more ...Counters) { f.where = append(f.where, more...) }

// Close closes the sockets.
func (f *Flood) Close() error { return errors.Join(f.tx.Close(), f.rx.Close()) }

// Trial is one flood at one rate.
type Trial struct {
	Asked float64 // packets/s; 0 is as many as can be
	Sent  uint64
	Wall  time.Duration // of sending
	Received
	CPU     CPU    // of the processes, over Wall
	Aborted bool   // ended early, since the loss allowed was used up
	LostAt  []Lost // by the counters on the way, which may also have counted packets that are not the flood's
}

// Offered is the rate that was really sent, in packets/s.
func (t Trial) Offered() float64 { return float64(t.Sent) / t.Wall.Seconds() }

// Delivered is the rate of packets that arrived, in packets/s, over the time of sending.
func (t Trial) Delivered() float64 { return float64(t.Unique) / t.Wall.Seconds() }

// Loss is the fraction of the packets sent that never arrived.
func (t Trial) Loss() float64 {
	if t.Sent == 0 {
		return 0
	}
	return 1 - float64(t.Unique)/float64(t.Sent)
}

const (
	// headroom bounds the packets of a trial without a rate: more than any machine sends.
	headroom = 10e6
	// A trial is over when nothing has arrived for drainQuiet, and at the latest after drainMax.
	drainQuiet = 30 * time.Millisecond
	drainMax   = time.Second
	// abortLag is how long a packet may be on its way before an early end counts it as lost.
	abortLag = 250 * time.Millisecond
)

// Trial floods at a rate in packets/s (0: as fast as it goes) for d, and waits for the stragglers. A trial whose loss is certain to be more
// than maxLoss, a fraction of what it was to send, ends early; 1 lets it run.
func (f *Flood) Trial(ctx context.Context, rate float64, d time.Duration, maxLoss float64) (Trial, error) {
	limit := rate
	if limit == 0 {
		limit = headroom
	}
	f.trial++
	f.rx.Begin(f.trial, uint64(limit*(d+time.Second).Seconds()))
	t := Trial{Asked: rate}
	lostBefore, err := read(f.where)
	if err != nil {
		return t, err
	}
	before, err := ProcessCPU(f.pids...)
	if err != nil {
		return t, err
	}
	sendCtx, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan bool, 1)
	go func() { watched <- f.watch(sendCtx, stop, rate*d.Seconds()*maxLoss, maxLoss < 1 && rate > 0) }()
	t.Sent, t.Wall, err = f.tx.Run(sendCtx, f.trial, rate, d)
	stop()
	t.Aborted = <-watched
	if err != nil {
		return t, err
	}
	if ctx.Err() != nil {
		return t, context.Cause(ctx)
	}
	after, err := ProcessCPU(f.pids...)
	if err != nil {
		return t, err
	}
	t.CPU = after.Sub(before)
	if err := f.drain(ctx, t.Sent); err != nil {
		return t, err
	}
	t.Received = f.rx.Count()
	lostAfter, err := read(f.where)
	t.LostAt = lostBetween(lostBefore, lostAfter)
	return t, err
}

// watch stops a trial that has lost more than it may.
func (f *Flood) watch(ctx context.Context, stop context.CancelFunc, mayLose float64, armed bool) (stopped bool) {
	const step = 50 * time.Millisecond
	var sent [abortLag / step]uint64 // in a ring
	tick := time.NewTicker(step)
	defer tick.Stop()
	for i := 0; ; i = (i + 1) % len(sent) {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		if armed && float64(sent[i])-float64(f.rx.unique()) > mayLose {
			stop()
			return true
		}
		sent[i] = f.tx.Sent()
	}
}

func (f *Flood) drain(ctx context.Context, sent uint64) error {
	last := f.rx.unique()
	for end := time.Now().Add(drainMax); last < sent && time.Now().Before(end); {
		if err := sleep(ctx, drainQuiet); err != nil {
			return err
		}
		now := f.rx.unique()
		if now == last {
			break
		}
		last = now
	}
	return nil
}

// ErrSearch is returned when not even the lowest rate got through.
var ErrSearch = errors.New("no rate was carried within the loss allowed")

// SearchOptions bound a search for the highest rate.
type SearchOptions struct {
	MaxLoss   float64       // a fraction
	Start     float64       // first rate tried, packets/s
	Lowest    float64       // rates below are not tried
	Precision float64       // the search ends when the bracket is narrower than this fraction
	Probe     time.Duration // length of a trial of the search
	Confirm   time.Duration // length of the trial whose result counts
	Budget    time.Duration // for all trials before the first that may count
}

// SearchResult is the highest rate found.
type SearchResult struct {
	Trial
	Tried []Trial // all, in order; the last one is Trial
	// Bracketed: a rate not much higher was tried and failed. Otherwise the time was up, or the generator gave no more.
	Bracketed        bool
	GeneratorLimited bool
}

// Search finds the highest rate at which no more than MaxLoss of the packets are lost (RFC 2544, 26.1): it doubles until that fails, halves the
// bracket, and then confirms in a longer trial, lower each time that fails. If that goes on for too long, the last trial goes its whole length
// whatever it loses, and is returned with ErrSearch.
func (f *Flood) Search(ctx context.Context, o SearchOptions) (SearchResult, error) {
	return search(o, time.Now, func(rate float64, d time.Duration, maxLoss float64) (Trial, error) {
		return f.Trial(ctx, rate, d, maxLoss)
	})
}

const (
	// hiccup is the loss up to which a trial that failed is given a second chance: machines stumble. More is an overload.
	hiccup = 0.1
	// growth is how much more a generator must have sent for a doubled rate not to be beyond it.
	growth = 1.1
	// patience is how often a rate may be doubled without growth.
	patience = 2
)

const (
	// confirmTrials and confirmLengths bound the trials that confirm: their number, and the time after which one more is the last.
	confirmTrials  = 10
	confirmLengths = 2
)

func search(o SearchOptions, now func() time.Time, attempt func(rate float64, d time.Duration, maxLoss float64) (Trial, error)) (SearchResult, error) {
	var r SearchResult
	try := func(rate float64, d time.Duration, maxLoss float64) (t Trial, err error) {
		if t, err = attempt(rate, d, maxLoss); err == nil {
			r.Trial = t
			r.Tried = append(r.Tried, t)
		}
		return t, err
	}
	deadline := now().Add(o.Budget)
	probe := func(rate float64) (t Trial, carried bool, err error) {
		for range 2 {
			if t, err = try(rate, o.Probe, o.MaxLoss); err != nil {
				return t, false, err
			}
			if carried = t.Loss() <= o.MaxLoss; carried || t.Loss() > hiccup || !now().Before(deadline) {
				break
			}
		}
		return t, carried, nil
	}
	lo, hi := 0.0, 0.0 // rates asked for that were carried, and not; 0 is not known yet
	sent := 0.0        // the most that was really sent and carried
	idle := 0          // how often the rate was doubled in vain
	for rate := o.Start; now().Before(deadline) && rate >= o.Lowest; {
		t, carried, err := probe(rate)
		if err != nil {
			return r, err
		}
		if carried {
			lo = rate
			if t.Offered() < growth*sent && hi == 0 {
				idle++
			} else {
				idle = 0
			}
			sent = max(sent, t.Offered())
		} else {
			hi, idle = rate, 0
		}
		switch {
		case hi == 0:
			rate = 2 * lo
		case lo == 0:
			rate = hi / 2
		default:
			rate = (lo + hi) / 2
		}
		if r.Bracketed = lo != 0 && hi != 0 && hi/lo <= 1+o.Precision; r.Bracketed || idle == patience {
			break
		}
	}
	r.GeneratorLimited = idle == patience
	if lo == 0 {
		lo = o.Lowest
	}
	deadline = now().Add(confirmLengths * o.Confirm)
	for rate, n := lo, 1; ; n++ {
		// The last one is not cut short: what it lost is to be true of its whole length.
		last, mayLose := n == confirmTrials || rate <= o.Lowest || !now().Before(deadline), o.MaxLoss
		if last {
			mayLose = 1
		}
		t, err := try(rate, o.Confirm, mayLose)
		if err != nil {
			return r, err
		}
		if t.Loss() <= o.MaxLoss {
			return r, nil
		}
		if r.GeneratorLimited = false; last {
			return r, fmt.Errorf("%w (%.2g %%)", ErrSearch, 100*o.MaxLoss)
		}
		rate = max(lower(rate, t), o.Lowest)
	}
}

// lower is the rate to confirm after a trial that lost too much: a little less where it lost a little, and else somewhat less than what
// came through, which in a trial cut short by a stall is no measure of more than half.
func lower(rate float64, t Trial) float64 {
	if t.Loss() <= hiccup {
		return 0.93 * rate
	}
	return min(max(0.95*t.Delivered(), rate/2), 0.8*rate)
}
