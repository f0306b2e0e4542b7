package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"culvert/test/lab"
	"culvert/test/lab/traffic"
)

const (
	maxLoss    = 0.005 // CSIT's partial drop rate
	smallBytes = 64    // of the IP packet
	reachLimit = 5 * time.Second
)

var tcpStreams = [...]int{1, 4}

// readings are the figures of one tunnel.
type readings struct {
	tcp     []tcpRow
	udp     udpRow
	latency latencyRow
	others  float64 // processors that other programs kept busy meanwhile
}

// measure drives a tunnel from host A to host B. pids are the processes that it is made of, and counters what they say of their losses.
func measure(ctx context.Context, p *progress, row *lab.Row, o *options, pids []int, counters ...traffic.Counters) (r readings, err error) {
	v6 := o.inner6()
	ping := traffic.PingOptions{
		From: row.HostA, Src: row.EthA.Addr(v6), Dst: row.EthB.Addr(v6), Payload: 56,
		Interval: 50 * time.Millisecond, Timeout: 500 * time.Millisecond, Duration: reachLimit,
	}
	p.step("first echo through it")
	if err := traffic.Reach(ctx, ping); err != nil {
		return r, err
	}
	p.done("answered")

	for _, n := range tcpStreams {
		p.step(fmt.Sprintf("TCP, %s", count(n, "stream")))
		t, err := traffic.TCP(ctx, traffic.TCPOptions{
			From: row.HostA, To: row.HostB, Addr: row.EthB.Addr(v6), Streams: n, Warmup: min(o.duration()/4, time.Second), Measure: o.duration(), Pids: pids,
		})
		if err != nil {
			return r, err
		}
		r.tcp = append(r.tcp, newTCPRow(t, len(pids) > 0))
		p.done(fmt.Sprintf("%.2f Gbit/s, %.2f of %.0f cores busy", t.Gbps(), t.Busy.Seconds()/t.Wall.Seconds(), float64(cores())))
	}

	p.step(fmt.Sprintf("UDP, %d-byte packets: searching the highest rate", smallBytes))
	if r.udp, err = flood(ctx, row, o, pids, counters); err != nil {
		return r, err
	}
	outcome := fmt.Sprintf("%.1f kpps", r.udp.Delivered)
	if !r.udp.Within {
		outcome = "no rate found"
	}
	p.done(fmt.Sprintf("%s, after %s", outcome, count(len(r.udp.Tried), "trial")))

	p.step("latency, idle")
	ping.Interval, ping.Duration = time.Millisecond, o.duration()
	begin, err := otherLoad(pids)
	if err != nil {
		return r, err
	}
	echoes, err := traffic.Ping(ctx, ping)
	if err != nil {
		return r, err
	}
	end, err := otherLoad(pids)
	if err != nil {
		return r, err
	}
	r.others = round(max((end-begin).Seconds(), 0)/o.seconds, 2)
	r.latency = newLatencyRow(echoes)
	p.done(show(r.latency.P50, 0) + " µs")
	return r, nil
}

// otherLoad is the processor time that neither the tunnel nor this process has used so far.
func otherLoad(pids []int) (time.Duration, error) {
	ours, err := traffic.ProcessCPU(append([]int{os.Getpid()}, pids...)...)
	if err != nil {
		return 0, err
	}
	all, err := traffic.MachineCPU()
	return all - ours.Total(), err
}

func flood(ctx context.Context, row *lab.Row, o *options, pids []int, counters []traffic.Counters) (udpRow, error) {
	f, err := traffic.NewFlood(ctx, row, o.inner6(), smallBytes, pids...)
	if err != nil {
		return udpRow{}, err
	}
	f.Count(counters...)
	s, err := search(ctx, f.Search, traffic.SearchOptions{
		MaxLoss: maxLoss, Start: 20e3, Lowest: 500, Precision: 0.04,
		Probe: min(300*time.Millisecond, o.duration()/4), Confirm: o.duration(), Budget: max(o.duration()*5/4, time.Second),
	})
	within := !errors.Is(err, traffic.ErrSearch)
	if !within {
		err = nil // the last rate tried is shown, and that it lost more
	}
	return newUDPRow(s, within, len(pids) > 0), errors.Join(err, f.Close())
}

// searches is how often a rate is searched for where none was found: each time from a quarter of the lowest that was tried, and below.
const searches = 3

// search searches again, lower, on a machine that is so busy that nothing was carried. The trials are those of all searches.
func search(ctx context.Context, once func(context.Context, traffic.SearchOptions) (traffic.SearchResult, error), o traffic.SearchOptions) (traffic.SearchResult, error) {
	var tried []traffic.Trial
	for n := 1; ; n++ {
		s, err := once(ctx, o)
		tried = append(tried, s.Tried...)
		s.Tried = tried
		if !errors.Is(err, traffic.ErrSearch) || n == searches {
			return s, err
		}
		o.Start = max(s.Asked/4, 2)
		for _, t := range tried {
			o.Start = min(o.Start, max(t.Asked/4, 2))
		}
		o.Lowest = min(o.Lowest, o.Start/4)
	}
}

// string of the addresses of the row, as the tunnel uses them.
func rowAddresses(row *lab.Row, o *options) addresses {
	text := func(e *lab.End, v6 bool) string {
		a := e.Addr(v6)
		if a == (netip.Addr{}) {
			return ""
		}
		return a.String()
	}
	in, out := o.inner6(), o.outer6()
	return addresses{text(row.EthA, in), text(row.LanA, in), text(row.WanA, out), text(row.WanB, out), text(row.LanB, in), text(row.EthB, in)}
}
