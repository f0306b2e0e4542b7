package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"culvert/test/lab"
)

// TCPOptions say what is sent where.
type TCPOptions struct {
	From, To *lab.Namespace
	Addr     netip.Addr // of To; the port is chosen
	Streams  int
	Warmup   time.Duration // left out of the measurement: connections and slow start
	Measure  time.Duration
	Pids     []int // whose CPU time is taken over the interval
}

// TCPResult is what arrived in the interval.
type TCPResult struct {
	Streams int
	Bytes   uint64 // goodput: payload that the receiving application read
	Wall    time.Duration
	CPU     CPU           // of Pids
	Busy    time.Duration // of the machine's processors, the generator included
}

// Gbps is the goodput in Gbit/s.
func (r TCPResult) Gbps() float64 { return float64(r.Bytes) * 8 / r.Wall.Seconds() / 1e9 }

// CPUPerGB is CPU seconds of Pids per GB (1e9 bytes) of goodput; 0 if nothing arrived.
func (r TCPResult) CPUPerGB() float64 {
	if r.Bytes == 0 {
		return 0
	}
	return r.CPU.Total().Seconds() / (float64(r.Bytes) / 1e9)
}

// tcpChunk is what is written and read at a time: what iperf3 does, so that figures can be compared.
const tcpChunk = 128 << 10

// ErrNoTraffic is returned when nothing at all arrived.
var ErrNoTraffic = errors.New("nothing arrived")

// TCP sends on all streams for as long as they go, and counts at the receiver over an interval in which they are all under way.
func TCP(ctx context.Context, o TCPOptions) (TCPResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l, err := o.To.Listen(ctx, "tcp", netip.AddrPortFrom(o.Addr, 0).String())
	if err != nil {
		return TCPResult{}, err
	}
	var received atomic.Uint64
	var wg sync.WaitGroup
	var conns []net.Conn
	defer func() {
		l.Close()
		for _, c := range conns {
			c.Close()
		}
		wg.Wait()
	}()
	dialCtx, dialDone := context.WithTimeout(ctx, 5*time.Second)
	defer dialDone()
	for range o.Streams {
		accepted := make(chan net.Conn, 1)
		wg.Go(func() {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		})
		c, err := o.From.Dial(dialCtx, "tcp", l.Addr().String())
		if err != nil {
			return TCPResult{}, fmt.Errorf("TCP through the tunnel: %w", err)
		}
		conns = append(conns, c)
		in, ok := <-accepted
		if !ok {
			return TCPResult{}, errors.New("TCP through the tunnel: the receiver accepted nothing")
		}
		conns = append(conns, in)
	}
	for i := 0; i < len(conns); i += 2 {
		out, in := conns[i], conns[i+1]
		wg.Go(func() {
			buf := make([]byte, tcpChunk)
			for {
				if _, err := out.Write(buf); err != nil {
					cancel(fmt.Errorf("TCP sender: %w", err))
					return
				}
			}
		})
		wg.Go(func() {
			buf := make([]byte, tcpChunk)
			for {
				n, err := in.Read(buf)
				received.Add(uint64(n))
				if err != nil {
					cancel(fmt.Errorf("TCP receiver: %w", err))
					return
				}
			}
		})
	}
	if err := sleep(ctx, o.Warmup); err != nil {
		return TCPResult{}, err
	}
	begin, err := mark(&received, o.Pids)
	if err != nil {
		return TCPResult{}, err
	}
	if err := sleep(ctx, o.Measure); err != nil {
		return TCPResult{}, err
	}
	end, err := mark(&received, o.Pids)
	if err != nil {
		return TCPResult{}, err
	}
	r := TCPResult{o.Streams, end.bytes - begin.bytes, end.at.Sub(begin.at), end.cpu.Sub(begin.cpu), end.busy - begin.busy}
	if r.Bytes == 0 {
		return r, fmt.Errorf("TCP through the tunnel: %w in %v", ErrNoTraffic, o.Measure)
	}
	return r, nil
}

// moment is everything that is read at one end of an interval.
type moment struct {
	bytes uint64
	at    time.Time
	cpu   CPU
	busy  time.Duration
}

func mark(received *atomic.Uint64, pids []int) (m moment, err error) {
	m.bytes, m.at = received.Load(), time.Now()
	if m.cpu, err = ProcessCPU(pids...); err != nil {
		return m, err
	}
	m.busy, err = MachineCPU()
	return m, err
}

// sleep waits for d, or until ctx ends, whose cause it then returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
