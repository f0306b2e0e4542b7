package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"culvert/dataplane/link"
	"culvert/dataplane/link/memlink"
	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/pool"
	"culvert/offload/soft"
	"culvert/sa"
)

// arrangements are the ways in which bursts can leave a lane and come back.
var arrangements = []struct {
	name  string
	chaos *offloadtest.ChaosOptions // of the engine that set is given; nil: soft
	set   func(c *Config, e offload.Engine)
}{
	{"soft", nil, func(c *Config, e offload.Engine) { c.Engine = e }},
	{"pool", nil, func(c *Config, e offload.Engine) { c.Engine, c.Async = pool.New(e, pool.Options{Workers: 3}), true }},
	{"small pool", nil, func(c *Config, e offload.Engine) {
		c.Engine, c.Async = pool.New(e, pool.Options{Workers: 2, Depth: 2}), true
	}},
	{"spill", nil, func(c *Config, e offload.Engine) { c.Engine, c.Pool = e, pool.New(e, pool.Options{Workers: 3}) }},
	{"small spill", nil, func(c *Config, e offload.Engine) {
		c.Engine, c.Pool = e, pool.New(e, pool.Options{Workers: 2, Depth: 1})
	}},
	{"chaos", &offloadtest.ChaosOptions{Seed: 1, Full: 30}, func(c *Config, e offload.Engine) { c.Engine, c.Async = e, true }},
	{"shallow chaos", &offloadtest.ChaosOptions{Seed: 2, Depth: 3, Full: 30}, func(c *Config, e offload.Engine) { c.Engine, c.Async = e, true }},
	{"chaos, one burst", &offloadtest.ChaosOptions{Seed: 3}, func(c *Config, e offload.Engine) { c.Engine = e }},
	{"spill into chaos", &offloadtest.ChaosOptions{Seed: 4, Full: 30}, func(c *Config, e offload.Engine) { c.Engine, c.Pool = soft.New(), e }},
	{"erring chaos", &offloadtest.ChaosOptions{Seed: 5, Full: 10, Errors: 5}, func(c *Config, e offload.Engine) { c.Engine, c.Async = e, true }},
	{"spill into erring chaos", &offloadtest.ChaosOptions{Seed: 6, Errors: 5}, func(c *Config, e offload.Engine) { c.Engine, c.Pool = soft.New(), e }},
}

// wireOrder is a hook that checks that each SA's numbers rise.
type wireOrder struct {
	testing.TB
	mu   sync.Mutex
	last map[uint32]uint32
}

func (o *wireOrder) hook(int, int) func(memlink.Datagram, func(memlink.Datagram)) {
	return func(d memlink.Datagram, emit func(memlink.Datagram)) {
		o.mu.Lock()
		spi, seq := binary.BigEndian.Uint32(d.Buf), binary.BigEndian.Uint32(d.Buf[4:])
		if last := o.last[spi]; seq <= last {
			o.Errorf("SPI %#x: number %d after %d", spi, seq, last)
		}
		o.last[spi] = seq
		o.mu.Unlock()
		emit(d)
	}
}

// Whatever order an engine finishes bursts in, and however often it is full or fails: packets leave in the order of their numbers,
// flows arrive in order, what was lost is counted once, and everything comes to an end.
func TestOrder(t *testing.T) {
	for _, a := range arrangements {
		t.Run(a.name, func(t *testing.T) {
			order := &wireOrder{TB: t, last: map[uint32]uint32{}}
			var chaos [2]*offloadtest.Chaos
			p := plan{hook: order.hook, depth: 8192}
			for s := range p.config {
				e := offload.Engine(soft.New())
				if a.chaos != nil {
					chaos[s] = offloadtest.NewChaos(soft.New(), *a.chaos)
					e = chaos[s]
				}
				p.config[s] = func(c *Config) { a.set(c, e) }
			}
			w := newWorld(t, p)
			for n := range 8 {
				w.tunnel(n, n%len(wires), []*offload.Transform{gcm, cbcSHA1}[n/4], nil)
			}
			want := traffic(5000, 8)
			// All is there before a gateway begins, so bursts are full.
			a, b := w.site[siteA], w.site[siteB]
			a.send(want...)
			a.start()
			eventually(t, "sent", func() bool { o := a.out(); return o.PacketsIn == uint64(len(want)) && o.InFlight == 0 })
			b.start()
			var in Counters
			eventually(t, "received", func() bool {
				in = Counters{}
				for wire := range wires {
					i := b.in(wire)
					in.PacketsIn += i.PacketsIn
					in.PacketsOut += i.PacketsOut
					in.InFlight += i.InFlight
					in.Spilled += i.Spilled
					for c, n := range i.Drops {
						in.Drops[c] += n
					}
				}
				return in.PacketsIn == a.out().PacketsOut && in.InFlight == 0
			})
			out := a.out()
			got := b.receive(int(in.PacketsOut))
			b.silent()
			inOrder(t, got, want)
			w.end()
			lost := [2]int{out.drops(CauseEngineError), in.drops(CauseEngineError)}
			if out.Dropped() != uint64(lost[siteA]) || in.Dropped() != uint64(lost[siteB]) {
				t.Errorf("other drops than the engine's:\n%s\n%s", out.summary(), in.summary())
			}
			if spills := a.cfg.Pool != nil; spills != (out.Spilled > 0) || spills != (in.Spilled > 0) {
				t.Errorf("spilled:\n%s\n%s", out.summary(), in.summary())
			}
			for s, c := range chaos {
				if c == nil {
					if lost[s] != 0 {
						t.Errorf("site %d: %d engine errors", s, lost[s])
					}
					continue
				}
				st := c.Stats()
				t.Logf("site %d: %+v, %d engine errors", s, st, lost[s])
				if st.Failed != lost[s] || st.Touched != 0 || st.Submitted == 0 {
					t.Errorf("site %d: %+v, but %d engine errors", s, st, lost[s])
				}
			}
		})
	}
}

// traffic is n packets of a few flows in each of a number of tunnels, in no order.
func traffic(n, tunnels int) (all [][]byte) {
	r := rand.New(rand.NewPCG(7, 7))
	seq := map[uint16]uint32{}
	for i := range n {
		flow := uint16(r.IntN(tunnels * 4))
		p := wirePacket{host: byte(int(flow) % tunnels), ttl: 64, sport: flow, id: uint16(i), flags: tcpACK, seq: seq[flow], v6: flow%3 == 0, payload: fill(r.IntN(1200), byte(i))}
		if flow%2 == 0 {
			p.udp = true
		}
		seq[flow] += uint32(len(p.payload))
		all = append(all, p.build(false))
	}
	return all
}

// inOrder checks that what came of each flow was sent, in this order; some may be lost.
func inOrder(t testing.TB, got, want [][]byte) {
	t.Helper()
	next := map[string][][]byte{}
	for _, p := range want {
		next[flowOf(p)] = append(next[flowOf(p)], p)
	}
	for i, p := range got {
		q := next[flowOf(p)]
		for len(q) > 0 && string(q[0]) != string(p) {
			q = q[1:]
		}
		if len(q) == 0 {
			t.Fatalf("packet %d came twice, changed or late", i)
		}
		next[flowOf(p)] = q[1:]
	}
}

// brokenEngine breaks the rules of engines.
type brokenEngine struct {
	offload.Engine
	rule string
}

func (e brokenEngine) NewLane(id int) (offload.Lane, error) {
	l, err := e.Engine.NewLane(id)
	return &brokenLane{Lane: l, rule: e.rule}, err
}

type brokenLane struct {
	offload.Lane
	rule string
	n    int
	odd  offload.Burst
}

var errBroken = errors.New("broken")

func (l *brokenLane) Submit(b *offload.Burst) error {
	if l.n++; l.n%3 != 0 {
		return l.Lane.Submit(b)
	}
	switch l.rule {
	case "loses bursts":
		return nil
	case "refuses bursts":
		return errBroken
	case "is full of nothing":
		return offload.ErrFull
	}
	return l.Lane.Submit(b)
}

func (l *brokenLane) Reap(dst []*offload.Burst, wait bool) int {
	n := l.Lane.Reap(dst, wait)
	if l.rule == "does not finish jobs" {
		for _, b := range dst[:n] {
			b.Jobs[len(b.Jobs)/2].Status = offload.Pending
		}
	}
	if l.rule == "gives back what it was not given" && n < len(dst) {
		l.odd = offload.Burst{Tag: l.n%12 - 2, Jobs: make([]offload.Job, 3)}
		dst[n] = &l.odd
		n++
	}
	return n
}

// An engine that breaks its rules loses packets, which are counted, but never stops a lane, and never has one pass on what was not
// finished.
func TestBrokenEngine(t *testing.T) {
	for _, rule := range []string{"loses bursts", "refuses bursts", "is full of nothing", "does not finish jobs", "gives back what it was not given"} {
		for _, inner := range []offload.Engine{soft.New(), offloadtest.NewChaos(soft.New(), offloadtest.ChaosOptions{Full: 20})} {
			for _, spill := range []bool{false, true} {
				t.Run(fmt.Sprint(rule, "/", inner.Name(), "/", spill), func(t *testing.T) {
					e := brokenEngine{inner, rule}
					set := func(c *Config) {
						if c.Engine, c.Async = e, true; spill {
							c.Engine, c.Pool, c.Async = soft.New(), e, false
						}
					}
					order := &wireOrder{TB: t, last: map[uint32]uint32{}}
					w := newWorld(t, plan{config: [2]func(*Config){set, set}, hook: order.hook})
					w.tunnel(0, udp4, gcm, nil)
					w.tunnel(1, udp4, cbcSHA1, nil)
					want := traffic(2000, 2)
					a, b := w.site[siteA], w.site[siteB]
					a.send(want...)
					a.start()
					eventually(t, "sent", func() bool { o := a.out(); return o.PacketsIn == uint64(len(want)) && o.InFlight == 0 })
					b.start()
					eventually(t, "received", func() bool { i := b.in(udp4); return i.PacketsIn == a.out().PacketsOut && i.InFlight == 0 })
					out, in := a.out(), b.in(udp4)
					inOrder(t, b.receive(int(in.PacketsOut)), want)
					b.silent()
					for _, c := range []Counters{out, in} {
						n := c.drops(CauseEngineError)
						if c.Dropped() != uint64(n) {
							t.Errorf("other drops than the engine's: %s", c.summary())
						}
						if fails := rule != "gives back what it was not given" && !(spill && (rule == "refuses bursts" || rule == "is full of nothing")); fails == (n == 0) {
							t.Errorf("%d engine errors of %d packets", n, c.PacketsIn)
						}
					}
				})
			}
		}
	}
}

// A lane whose source ends finishes what is in flight, with any engine.
func TestDrain(t *testing.T) {
	chaos := offloadtest.NewChaos(soft.New(), offloadtest.ChaosOptions{Depth: 16})
	set := func(c *Config) { c.Engine, c.Async = chaos, true }
	w := newWorld(t, plan{config: [2]func(*Config){set, set}})
	w.tunnel(0, udp4, gcm, nil)
	out, in := w.site[siteA].plane.out, w.site[siteB].plane.in[udp4]
	load := traffic(burstJobs, 1)
	for rounds := 0; out.ring.used < 3; rounds++ { // chaos gives some back at once
		w.site[siteA].send(load...)
		if err := out.ring.step(out, &out.books, false); err != nil || rounds == 100 {
			t.Fatal(rounds, err)
		}
	}
	w.site[siteA].cfg.Inner.StopReading()
	if err := out.ring.run(out, &out.books); err != nil {
		t.Fatal(err)
	}
	if b := w.site[siteA].out(); b.InFlight != 0 || b.PacketsIn == 0 || b.PacketsOut != b.PacketsIn {
		t.Errorf("outbound: %s", b.summary())
	}
	for rounds := 0; in.ring.used < 3; rounds++ {
		if err := in.ring.step(in, &in.books, false); err != nil || rounds == 100 {
			t.Fatal(rounds, err)
		}
	}
	w.site[siteB].cfg.Outers[udp4].StopReading()
	if err := in.ring.run(in, &in.books); err != nil {
		t.Fatal(err)
	}
	if b := w.site[siteB].in(udp4); b.InFlight != 0 || b.PacketsIn == 0 || b.PacketsOut != b.PacketsIn {
		t.Errorf("inbound: %s", b.summary())
	}
	if st := chaos.Stats(); st.Touched != 0 {
		t.Errorf("%+v", st)
	}
}

// Gateways that are stopped under full load, at any moment, with any engine, come to an end with their books balanced and nothing
// left running (TestMain sees to that).
func TestStopUnderLoad(t *testing.T) {
	for _, a := range arrangements {
		t.Run(a.name, func(t *testing.T) {
			for round := range 5 {
				p := plan{depth: 64}
				for s := range p.config {
					e := offload.Engine(soft.New())
					if a.chaos != nil {
						e = offloadtest.NewChaos(e, *a.chaos)
					}
					p.config[s] = func(c *Config) { a.set(c, e) }
				}
				w := newWorld(t, p)
				w.tunnel(0, udp4, gcm, nil)
				w.start()
				packets := traffic(100, 1)
				var load sync.WaitGroup
				for s, st := range w.site {
					load.Go(func() {
						for i := 0; ; i++ {
							if st.write.Queue(link.VNet{}, [][]byte{from(s, packets[i%len(packets)])}) != nil {
								return
							}
						}
					})
					load.Go(func() {
						for {
							if _, _, err := st.read.Next(true); err != nil {
								return
							}
						}
					})
				}
				eventually(t, "load", func() bool { return w.site[siteB].in(udp4).PacketsOut > uint64(100*round) })
				w.end()
				load.Wait()
			}
		})
	}
}

// A data plane that was made and never started can be stopped; one that is stopped twice says nothing new.
func TestStopIdle(t *testing.T) {
	w := newWorld(t, plan{})
	w.tunnel(0, udp4, gcm, nil)
	w.end()
	if err := w.site[siteA].plane.Stop(); err != nil {
		t.Error(err)
	}
}

// A lane whose device disappears ends with that error; the data plane says that it died, and why.
func TestDied(t *testing.T) {
	w := newWorld(t, plan{config: [2]func(*Config){func(c *Config) { c.Inner = goneInner{c.Inner} }, nil}})
	a := w.site[siteA]
	a.start()
	<-a.plane.Died()
	if err := a.plane.Stop(); !errors.Is(err, link.ErrGone) {
		t.Error(err)
	}
	a.plane.errs = nil // told
}

// goneInner is an inner link whose device is deleted.
type goneInner struct{ link.Inner }

func (g goneInner) NewReader() link.InnerReader { return goneReader{} }

type goneReader struct{}

func (goneReader) Next(bool) ([]byte, link.VNet, error) { return nil, link.VNet{}, link.ErrGone }

// What a data plane cannot be made of is refused, and leaves no lane open.
func TestNewErrors(t *testing.T) {
	inner, host := memlink.NewInnerPair(memlink.InnerOptions{}, memlink.InnerOptions{})
	outer, peer := memlink.NewOuterPair(memlink.OuterOptions{}, memlink.OuterOptions{})
	defer func() {
		for _, c := range []interface{ Close() error }{inner, host, outer, peer} {
			c.Close()
		}
	}()
	good := Config{DB: sa.NewDB(), Inner: inner, Outers: []link.Outer{outer}, Engine: soft.New()}
	for name, spoil := range map[string]func(c *Config){
		"no DB":           func(c *Config) { c.DB = nil },
		"no inner link":   func(c *Config) { c.Inner = nil },
		"no engine":       func(c *Config) { c.Engine = nil },
		"no lane":         func(c *Config) { c.Engine = lanelessEngine{soft.New(), 0} },
		"no second lane":  func(c *Config) { c.Engine = lanelessEngine{soft.New(), 1} },
		"no pooled lane":  func(c *Config) { c.Pool = lanelessEngine{soft.New(), 0} },
		"a pool of pools": func(c *Config) { c.Pool = pool.New(pool.New(soft.New(), pool.Options{}), pool.Options{}) },
	} {
		c := good
		spoil(&c)
		if p, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
			p.Stop()
		}
	}
}

// lanelessEngine has lanes below an id only.
type lanelessEngine struct {
	offload.Engine
	lanes int
}

func (e lanelessEngine) NewLane(id int) (offload.Lane, error) {
	if id >= e.lanes {
		return nil, errBroken
	}
	return e.Engine.NewLane(id)
}
