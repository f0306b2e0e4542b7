package pool_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/pool"
	"culvert/offload/soft"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A pool of software is as good an engine as the software.
func TestConformance(t *testing.T) {
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			offloadtest.Run(t, pool.New(soft.New(), pool.Options{Workers: workers, Depth: 5}))
		})
	}
}

// BenchmarkPool is the default pool.
func BenchmarkPool(b *testing.B) { offloadtest.Bench(b, pool.New(soft.New(), pool.Options{})) }

// gated is a synchronous engine whose lanes wait at a gate: it makes the workers' order the test's.
type gated struct {
	offload.Engine
	enter chan *offload.Burst // a worker has taken this burst
	leave chan struct{}       // let one worker finish
	hold  chan struct{}       // the same for the burst with the tag held
	lanes atomic.Int32        // open ones
	deny  int32               // NewLane fails from this many on; 0: never
}

func newGated() *gated {
	return &gated{Engine: soft.New(), enter: make(chan *offload.Burst), leave: make(chan struct{}), hold: make(chan struct{})}
}

// held is the tag of the burst that waits at its own gate.
const held = 1000

var errDenied = errors.New("no more lanes")

func (g *gated) NewLane(id int) (offload.Lane, error) {
	if g.deny != 0 && g.lanes.Load() >= g.deny {
		return nil, errDenied
	}
	l, err := g.Engine.NewLane(id)
	g.lanes.Add(1)
	return &gatedLane{l, g}, err
}

type gatedLane struct {
	offload.Lane
	g *gated
}

func (l *gatedLane) Submit(b *offload.Burst) error {
	l.g.enter <- b
	if b.Tag == held {
		<-l.g.hold
	} else {
		<-l.g.leave
	}
	if b.Tag < 0 {
		return errors.New("the device is gone")
	}
	return l.Lane.Submit(b)
}

func (l *gatedLane) Close() error {
	l.g.lanes.Add(-1)
	return l.Lane.Close()
}

func open(t *testing.T, e offload.Engine) offload.Lane {
	t.Helper()
	l, err := e.NewLane(0)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func job(t *testing.T, tag int) *offload.Burst {
	t.Helper()
	tr, err := offload.Lookup("authenc(hmac(sha1),cbc(aes))", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	k := offload.Keys{Enc: offload.Key("0123456789abcdef"), Auth: offload.Key("0123456789abcdef0123")}
	s, err := soft.New().NewSession(tr, offload.Seal, k)
	if err != nil {
		t.Fatal(err)
	}
	return &offload.Burst{Tag: tag, Jobs: []offload.Job{{Session: s, ESP: make([]byte, tr.SealedLen(64))}}}
}

// With two workers a burst that is held up is overtaken by the next one, and Reap without wait never blocks.
func TestOutOfOrder(t *testing.T) {
	g := newGated()
	l := open(t, pool.New(g, pool.Options{Workers: 2, Depth: 4}))
	defer l.Close()
	slow, fast := job(t, held), job(t, 2)
	dst := make([]*offload.Burst, 4)
	if err := l.Submit(slow); err != nil {
		t.Fatal(err)
	}
	if b := <-g.enter; b != slow {
		t.Fatal("another burst than the one submitted")
	}
	if n := l.Reap(dst, false); n != 0 {
		t.Fatalf("Reap gives %d bursts while the only one is being worked on", n)
	}
	if err := l.Submit(fast); err != nil {
		t.Fatal(err)
	}
	if b := <-g.enter; b != fast {
		t.Fatal("the second worker did not take the second burst")
	}
	g.leave <- struct{}{}
	if n := l.Reap(dst, true); n != 1 || dst[0] != fast {
		t.Fatal("the second burst did not overtake the first")
	}
	if n := l.Reap(dst, false); n != 0 {
		t.Fatalf("Reap gives %d bursts while the first is being worked on", n)
	}
	g.hold <- struct{}{}
	if n := l.Reap(dst, true); n != 1 || dst[0] != slow {
		t.Fatal("the first burst did not come back")
	}
	for _, b := range []*offload.Burst{slow, fast} {
		if b.Jobs[0].Status != offload.OK {
			t.Errorf("burst %d: %v", b.Tag, b.Jobs[0].Status)
		}
	}
}

// A lane takes exactly Depth bursts, finished or not, until some are reaped.
func TestDepth(t *testing.T) {
	const depth = 3
	g := newGated()
	l := open(t, pool.New(g, pool.Options{Workers: 1, Depth: depth}))
	defer l.Close()
	for i := range depth {
		if err := l.Submit(job(t, i)); err != nil {
			t.Fatalf("burst %d: %v", i, err)
		}
	}
	if err := l.Submit(job(t, depth)); !errors.Is(err, offload.ErrFull) {
		t.Fatalf("burst %d: %v; want ErrFull", depth, err)
	}
	for range depth {
		<-g.enter
		g.leave <- struct{}{}
	}
	if err := l.Submit(job(t, depth)); !errors.Is(err, offload.ErrFull) {
		t.Fatalf("finished but not reaped: %v; want ErrFull", err)
	}
	dst := make([]*offload.Burst, depth)
	for n := 0; n < depth; {
		n += l.Reap(dst, true)
	}
	if err := l.Submit(job(t, depth)); err != nil {
		t.Fatalf("all reaped: %v", err)
	}
	<-g.enter
	g.leave <- struct{}{}
	if n := l.Reap(dst, true); n != 1 {
		t.Fatal("the last burst is lost")
	}
}

// The last Close waits until bursts in flight are finished, and they can be reaped after it; the workers and their lanes are
// gone by then, and a new lane starts new ones.
func TestCloseInFlight(t *testing.T) {
	g := newGated()
	e := pool.New(g, pool.Options{Workers: 2, Depth: 4})
	for range 2 {
		l := open(t, e)
		if n := g.lanes.Load(); n != 2 {
			t.Fatalf("%d workers' lanes are open, not 2", n)
		}
		for i := range 4 {
			if err := l.Submit(job(t, i)); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			for range 4 {
				<-g.enter
				g.leave <- struct{}{}
			}
		}()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if n := g.lanes.Load(); n != 0 {
			t.Fatalf("%d workers' lanes are still open", n)
		}
		dst := make([]*offload.Burst, 8)
		if n := l.Reap(dst, true); n != 4 {
			t.Fatalf("Reap after Close gives %d bursts of 4", n)
		}
		for _, b := range dst[:4] {
			if b.Jobs[0].Status != offload.OK {
				t.Errorf("burst %d: %v", b.Tag, b.Jobs[0].Status)
			}
		}
	}
}

// One lane's Close leaves the workers to the others.
func TestCloseOneOfTwo(t *testing.T) {
	e := pool.New(soft.New(), pool.Options{Workers: 2})
	a, b := open(t, e), open(t, e)
	a.Close()
	a.Close()
	burst := job(t, 1)
	if err := offload.Do(b, burst); err != nil || burst.Jobs[0].Status != offload.OK {
		t.Fatalf("the other lane: %v, %v", err, burst.Jobs[0].Status)
	}
	b.Close()
}

// A burst that the inner engine does not take comes back failed.
func TestInnerError(t *testing.T) {
	g := newGated()
	l := open(t, pool.New(g, pool.Options{Workers: 1}))
	defer l.Close()
	b := job(t, -1)
	b.Jobs[0].Status = offload.OK
	if err := l.Submit(b); err != nil {
		t.Fatal(err)
	}
	<-g.enter
	g.leave <- struct{}{}
	if n := l.Reap(make([]*offload.Burst, 1), true); n != 1 {
		t.Fatal("the burst is lost")
	}
	if b.Jobs[0].Status != offload.EngineError {
		t.Errorf("%v; want %v", b.Jobs[0].Status, offload.EngineError)
	}
}

// If one of the workers gets no lane, those of the others are closed again.
func TestInnerWithoutLanes(t *testing.T) {
	g := newGated()
	g.deny = 2
	e := pool.New(g, pool.Options{Workers: 3})
	if _, err := e.NewLane(0); !errors.Is(err, errDenied) {
		t.Fatalf("%v; want %v", err, errDenied)
	}
	if n := g.lanes.Load(); n != 0 {
		t.Fatalf("%d lanes are left open", n)
	}
}

// engineWith is an engine with other capabilities.
type engineWith struct {
	offload.Engine
	caps offload.Caps
	err  error
}

func (e engineWith) Probe() (offload.Caps, error) { return e.caps, e.err }

// What cannot be pooled is refused, with the inner engine's reason where it has one.
func TestNotShared(t *testing.T) {
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		inner offload.Engine
		want  error
	}{
		"sessions not shared": {engineWith{Engine: soft.New(), caps: offload.Caps{Depth: 1}}, pool.ErrNotShared},
		"asynchronous":        {engineWith{Engine: soft.New(), caps: offload.Caps{Depth: 1, Shared: true, Async: true}}, pool.ErrNotShared},
		"absent":              {engineWith{Engine: soft.New(), err: gone}, gone},
	} {
		e := pool.New(c.inner, pool.Options{})
		if _, err := e.Probe(); !errors.Is(err, c.want) {
			t.Errorf("%s: probe: %v; want %v", name, err, c.want)
		}
		if _, err := e.NewLane(0); !errors.Is(err, c.want) {
			t.Errorf("%s: lane: %v; want %v", name, err, c.want)
		}
	}
}

// The names and numbers that people see.
func TestCaps(t *testing.T) {
	e := pool.New(soft.New(), pool.Options{Workers: 3, Depth: 9})
	caps, err := e.Probe()
	if err != nil {
		t.Fatal(err)
	}
	if e.Name() != "pool(soft)" || !caps.Async || caps.Depth != 9 || len(caps.Transforms) != len(offload.Transforms()) {
		t.Errorf("%s: %+v", e.Name(), caps)
	}
	if name := pool.New(soft.New(), pool.Options{Name: "many"}).Name(); name != "many" {
		t.Errorf("the name is %q", name)
	}
}
