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
	Outers []link.Outer   // sa.Params.Link indexes this; may be empty, as AddOuter can add others
	Engine offload.Engine // all SAs' sessions are of this engine
	Async  bool           // the engine finishes bursts after Submit has returned
	Pool   offload.Engine // the worker pool over Engine, or nil: where bursts go when a lane cannot keep up

	// Acquire is told of a packet that an outbound policy is to protect and that waits for an SA, if the policy says Acquire: at most
	// once in 100 ms for a policy and a pair of addresses. It is called on a goroutine of the plane, one call at a time, and may
	// change the DB. nil: such packets are dropped.
	Acquire func(policy string, f sa.Flow)
	// HoldFor is how long such a packet waits; 0 is 165 seconds, as the kernel's do.
	HoldFor time.Duration
	// Mapping is told that an authentic packet of an SA over UDP, newer than all before it, came from another address or port than
	// the SA's (RFC 7296 2.23): at most once a second for an SA. from is the SA's endpoint with that source, as MoveInbound
	// takes it. It is called like Acquire. nil: nobody is told, while FollowPeer does what it does.
	Mapping func(i *sa.Inbound, from sa.Endpoint)

	roams chan roam // for Mapping
}

// Plane is a running data plane: one outbound lane, and one inbound lane for each outer link. Each lane is a goroutine
// that runs its packets to completion.
type Plane struct {
	cfg  Config
	out  *outbound
	pair enginePair // the outbound lane's
	in   []*inLane  // by link index; nil where there is no link. Guarded by mu
	gone Counters   // of inbound lanes whose links have been removed

	wg      sync.WaitGroup // the lanes
	helpers sync.WaitGroup // those who tell and wake
	quit    chan struct{}  // ends them
	mu      sync.Mutex
	running bool
	stopped bool
	errs    []error
	died    chan struct{}
	once    sync.Once
}

// enginePair is an engine as one lane uses it.
type enginePair struct {
	direct offload.Lane
	spill  offload.Lane // the worker pool, or nil
}

// close may be called again.
func (e *enginePair) close() {
	if e.direct != nil {
		e.direct.Close()
	}
	if e.spill != nil {
		e.spill.Close()
	}
	*e = enginePair{}
}

// laneID is what SAs call the lane that owns them: 0 is the outbound one. A link that is put in another's place has that one's
// lane, as far as SAs are concerned, and goes on with them.
func laneID(link int) int { return 1 + link }

func (p *Plane) newPair(id int) (e enginePair, err error) {
	if e.direct, err = p.cfg.Engine.NewLane(id); err != nil {
		return e, fmt.Errorf("dataplane: lane %d of engine %s: %w", id, p.cfg.Engine.Name(), err)
	}
	if p.cfg.Pool != nil {
		if e.spill, err = p.cfg.Pool.NewLane(id); err != nil {
			e.direct.Close()
			return e, fmt.Errorf("dataplane: lane %d of engine %s: %w", id, p.cfg.Pool.Name(), err)
		}
	}
	return e, nil
}

// New makes the lanes and all the memory that they will ever use. Nothing runs before Start.
func New(cfg Config) (*Plane, error) {
	if cfg.DB == nil || cfg.Inner == nil || cfg.Engine == nil {
		return nil, errors.New("dataplane: a DB, an inner link and an engine are needed")
	}
	p := &Plane{cfg: cfg, died: make(chan struct{}), quit: make(chan struct{})}
	if cfg.Mapping != nil {
		p.cfg.roams = make(chan roam, roamDepth)
	}
	var err error
	if p.pair, err = p.newPair(0); err != nil {
		return nil, err
	}
	if p.out, err = newOutbound(&p.cfg, 0, p.pair.direct, p.pair.spill); err != nil {
		p.closePairs()
		return nil, err
	}
	for _, o := range cfg.Outers {
		if _, err := p.AddOuter(o); err != nil {
			p.closePairs()
			return nil, err
		}
	}
	return p, nil
}

func (p *Plane) closePairs() {
	p.pair.close()
	for _, l := range p.in {
		if l != nil {
			l.pair.close()
		}
	}
}

// run serves a lane on this goroutine until it ends.
func (p *Plane) run(name string, f func() error) {
	defer p.wg.Done()
	if err := f(); err != nil {
		p.mu.Lock()
		p.errs = append(p.errs, fmt.Errorf("dataplane: %s lane: %w", name, err))
		p.mu.Unlock()
		p.once.Do(func() { close(p.died) })
	}
}

// Start lets the lanes run.
func (p *Plane) Start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = true
	var asks <-chan ask
	if h := p.out.hold; h != nil {
		asks = h.asks
		updated, stop := p.cfg.DB.Watch() // before the lane can have anything that waits
		p.helpers.Go(func() {
			defer stop()
			h.watch(updated, p.cfg.Inner, p.quit)
		})
	}
	p.wg.Add(1)
	go p.run("outbound", func() error { return p.out.ring.run(p.out, &p.out.books) })
	if asks != nil || p.cfg.roams != nil {
		p.helpers.Go(func() { p.tell(asks) })
	}
	for _, l := range p.in {
		if l != nil {
			p.start(l)
		}
	}
}

// Died is closed when a lane has stopped by itself; Stop then tells why.
func (p *Plane) Died() <-chan struct{} { return p.died }

// Stop drains: the links stop reading, every lane finishes what is in flight, then all of them are closed. It returns the
// errors of lanes that had stopped by themselves. A call of Acquire or Mapping is waited for.
func (p *Plane) Stop() error {
	p.cfg.Inner.StopReading()
	p.mu.Lock()
	again := p.stopped
	p.stopped = true
	for _, l := range p.in {
		if l != nil {
			l.link.StopReading()
		}
	}
	p.mu.Unlock()
	p.wg.Wait()
	if !again {
		close(p.quit)
	}
	p.helpers.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closePairs()
	errs := append([]error(nil), p.errs...)
	errs = append(errs, p.cfg.Inner.Close())
	for _, l := range p.in {
		if l != nil {
			errs = append(errs, l.link.Close())
		}
	}
	return errors.Join(errs...)
}

// Stats gives each lane's books: the outbound lane's first, then the inbound ones' in the order of their links, and if links have
// been removed the sum of what their lanes had counted. It may be called at any time.
func (p *Plane) Stats() []LaneStats {
	all := []LaneStats{{"outbound", p.out.books.read()}}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.in {
		if l != nil {
			all = append(all, LaneStats{l.name, l.books.read()})
		}
	}
	if p.gone.PacketsIn > 0 {
		all = append(all, LaneStats{"inbound removed", p.gone})
	}
	return all
}

// Sightings gives what each lane remembers of packets that it refused. It may be called at any time.
func (p *Plane) Sightings() []Sighting {
	all := p.out.books.readSights(nil, "outbound")
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.in {
		if l != nil {
			all = l.books.readSights(all, l.name)
		}
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
