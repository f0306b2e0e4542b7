package dataplane

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/sa"
)

const (
	// burstJobs is the number of packets that a lane gives to the engine at once: the 46 segments of a full super-packet,
	// or the 64 datagrams of the largest GSO message.
	burstJobs = 64
	// arenaLen holds a whole burst of packets of the usual size, and any single packet: 64 × 2 KB.
	arenaLen = 128 << 10
	// maxESP is the largest ESP packet: what fits into a UDP datagram over IPv4.
	maxESP = 65507
	// readAhead is what packet memory has behind its end, for engines that fetch more than they use.
	readAhead = 256
	// minIPv6MTU is what every IPv6 link carries (RFC 8200 5).
	minIPv6MTU = 1280
	// protoTCP is TCP's protocol number.
	protoTCP = 6
)

// Config is what a data plane is made of. Everything in it is used until Stop has returned.
type Config struct {
	DB     *sa.DB
	Inner  link.Inner
	Outers []link.Outer   // sa.Params.Link indexes this
	Engine offload.Engine // all SAs' sessions are of this engine
	Async  bool           // the engine finishes bursts after Submit has returned
	Pool   offload.Engine // the worker pool over Engine, or nil: where bursts go when a lane cannot keep up
}

// Plane is a running data plane: one outbound lane, and one inbound lane for each outer link. Each lane is a goroutine
// that runs its packets to completion.
type Plane struct {
	cfg   Config
	out   *outbound
	in    []*inbound
	lanes []offload.Lane

	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
	died chan struct{}
	once sync.Once
}

// New makes the lanes and all the memory that they will ever use. Nothing runs before Start.
func New(cfg Config) (*Plane, error) {
	if cfg.DB == nil || cfg.Inner == nil || len(cfg.Outers) == 0 || cfg.Engine == nil {
		return nil, errors.New("dataplane: a DB, an inner link, an outer link and an engine are needed")
	}
	p := &Plane{cfg: cfg, died: make(chan struct{})}
	id := 0
	next := func() (direct, spill offload.Lane, err error) {
		if direct, err = cfg.Engine.NewLane(id); err != nil {
			return nil, nil, fmt.Errorf("dataplane: lane %d of engine %s: %w", id, cfg.Engine.Name(), err)
		}
		p.lanes = append(p.lanes, direct)
		if cfg.Pool != nil {
			if spill, err = cfg.Pool.NewLane(id); err != nil {
				return nil, nil, fmt.Errorf("dataplane: lane %d of engine %s: %w", id, cfg.Pool.Name(), err)
			}
			p.lanes = append(p.lanes, spill)
		}
		id++
		return direct, spill, nil
	}
	direct, spill, err := next()
	if err == nil {
		p.out, err = newOutbound(&p.cfg, id, direct, spill)
	}
	if err != nil {
		p.closeLanes()
		return nil, err
	}
	for i := range cfg.Outers {
		direct, spill, err := next()
		if err != nil {
			p.closeLanes()
			return nil, err
		}
		p.in = append(p.in, newInbound(&p.cfg, id, i, direct, spill))
	}
	return p, nil
}

func (p *Plane) closeLanes() {
	for _, l := range p.lanes {
		l.Close()
	}
}

// Start lets the lanes run.
func (p *Plane) Start() {
	run := func(name string, f func() error) {
		defer p.wg.Done()
		if err := f(); err != nil {
			p.mu.Lock()
			p.errs = append(p.errs, fmt.Errorf("dataplane: %s lane: %w", name, err))
			p.mu.Unlock()
			p.once.Do(func() { close(p.died) })
		}
	}
	p.wg.Add(1 + len(p.in))
	go run("outbound", func() error { return p.out.ring.run(p.out, &p.out.books) })
	for i, l := range p.in {
		go run("inbound "+p.cfg.Outers[i].Name(), func() error { return l.ring.run(l, &l.books) })
	}
}

// Died is closed when a lane has stopped by itself; Stop then tells why.
func (p *Plane) Died() <-chan struct{} { return p.died }

// Stop drains: the links stop reading, every lane finishes what is in flight, then all of them are closed. It returns the
// errors of lanes that had stopped by themselves.
func (p *Plane) Stop() error {
	p.cfg.Inner.StopReading()
	for _, o := range p.cfg.Outers {
		o.StopReading()
	}
	p.wg.Wait()
	p.closeLanes()
	errs := append([]error(nil), p.errs...)
	errs = append(errs, p.cfg.Inner.Close())
	for _, o := range p.cfg.Outers {
		errs = append(errs, o.Close())
	}
	return errors.Join(errs...)
}

// Stats gives each lane's books, the outbound lane's first. It may be called at any time.
func (p *Plane) Stats() []LaneStats {
	all := []LaneStats{{"outbound", p.out.books.read()}}
	for i, l := range p.in {
		all = append(all, LaneStats{"inbound " + p.cfg.Outers[i].Name(), l.books.read()})
	}
	return all
}

// Sightings gives what each lane remembers of packets that it refused. It may be called at any time.
func (p *Plane) Sightings() []Sighting {
	all := p.out.books.readSights(nil, "outbound")
	for i, l := range p.in {
		all = l.books.readSights(all, "inbound "+p.cfg.Outers[i].Name())
	}
	return all
}

// ringDepth is how many bursts a lane has: one is enough when the engine finishes inside Submit, and keeps the cache warm.
func ringDepth(async bool) int {
	if async {
		return 8
	}
	return 1
}

// ptbLimiter bounds the packet-too-big messages (RFC 1812 4.3.2.8, RFC 4443 2.4 f): a bucket of 100, refilled at 100 a second.
type ptbLimiter struct {
	tokens int
	last   time.Time
}

func (b *ptbLimiter) allow() bool {
	const size, every = 100, 10 * time.Millisecond
	now := time.Now()
	if n := now.Sub(b.last) / every; n > 0 {
		b.tokens, b.last = min(size, b.tokens+int(min(n, size))), now
	}
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}

// saRun sums up a run of packets of one SA, so that the SA's counters are touched once for the run and not for each packet.
type saRun struct {
	out            *sa.Outbound
	in             *sa.Inbound
	packets, bytes uint64
}

func (r *saRun) flushOut(b *books, now time.Time) {
	if r.out != nil && r.packets > 0 && r.out.Account(r.packets, r.bytes, now) {
		b.owe(r.out)
	}
	r.packets, r.bytes = 0, 0
}

func (r *saRun) flushIn(b *books, now time.Time) {
	if r.in != nil && r.packets > 0 && r.in.Account(r.packets, r.bytes, now) {
		b.owe(r.in)
	}
	r.packets, r.bytes = 0, 0
}
