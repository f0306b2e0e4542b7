package offloadtest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"culvert/offload"
)

// laneTests are about lanes, bursts and sessions, whatever the transform.
var laneTests = []struct {
	name string
	run  func(*testing.T, *rig)
}{
	{"caps", testCaps},
	{"mixed sessions", testMixed},
	{"random bursts", testRandom},
	{"sessions that are not ours", testForeign},
	{"nothing to do", testNothing},
	{"full lane", testFull},
	{"close in flight", testCloseInFlight},
	{"closed session", testClosedSession},
	{"session closed in flight", testSessionClosedInFlight},
	{"lanes in parallel", testParallel},
	{"shared session", testShared},
}

// testCaps: what an engine says of itself is sound, and is the same every time.
func testCaps(t *testing.T, r *rig) {
	if r.e.Name() == "" {
		t.Error("the engine has no name")
	}
	seen := map[*offload.Transform]bool{}
	for _, tr := range r.caps.Transforms {
		if seen[tr] {
			t.Errorf("%s is listed twice", tr)
		}
		seen[tr] = true
		if !r.caps.Supports(tr) {
			t.Errorf("Supports(%s) is false", tr)
		}
	}
	known := map[*offload.Transform]bool{}
	for _, tr := range offload.Transforms() {
		known[tr] = true
		if !seen[tr] {
			if _, err := r.e.NewSession(tr, offload.Seal, randomKeys(r.rnd, tr, false)); !errors.Is(err, offload.ErrUnsupported) {
				t.Errorf("session for %s, which is not among the capabilities: %v; want ErrUnsupported", tr, err)
			}
		}
	}
	for tr := range seen {
		if !known[tr] {
			t.Errorf("%s is not of offload's table", tr)
		}
	}
	again, err := r.e.Probe()
	if err != nil || len(again.Transforms) != len(r.caps.Transforms) || again.Depth != r.caps.Depth {
		t.Errorf("probed again: %v, %v", again, err)
	}
}

// mix makes probes of both directions with sessions of every transform, sealed packets of all kinds among them.
func (r *rig) mix(pairs []*pair, n, longest int) (seal, open []*probe) {
	for i := range n {
		p := pairs[r.rnd.IntN(len(pairs))]
		plain, hi := r.packet(p.t, r.rnd.IntN(longest)), r.rnd.Uint32()
		name := fmt.Sprintf("packet %d, %s", i, p.t)
		seal = append(seal, p.sealing(name, plain, hi))
		sealed := p.seal(plain, hi)
		switch r.rnd.IntN(8) {
		case 0:
			sealed[r.rnd.IntN(len(sealed))] ^= byte(1 + r.rnd.IntN(255))
		case 1:
			sealed = sealed[:r.rnd.IntN(len(sealed))]
		case 2:
			hi++
		}
		open = append(open, p.opening(name, sealed, hi))
	}
	return seal, open
}

func (r *rig) allPairs(t *testing.T) []*pair {
	var pairs []*pair
	for i, tr := range r.caps.Transforms {
		pairs = append(pairs, r.newPair(t, tr, i%2 == 0), r.newPair(t, tr, i%2 != 0))
	}
	return pairs
}

// testMixed: one burst may have jobs of any sessions, of all transforms.
func testMixed(t *testing.T, r *rig) {
	seal, open := r.mix(r.allPairs(t), maxJobs, 300)
	r.run(t, offload.Seal, seal)
	r.run(t, offload.Open, open)
}

// testRandom: many bursts of any number of jobs, more than the lane holds, sealed and opened on one lane.
func testRandom(t *testing.T, r *rig) {
	pairs := r.allPairs(t)
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for range rounds {
		seal, open := r.mix(pairs, 1+r.rnd.IntN(40), 1+r.rnd.IntN(1500))
		r.run(t, offload.Seal, seal)
		r.run(t, offload.Open, open)
	}
}

// foreign is a session of another engine.
type foreign struct{ offload.Session }

// testForeign: a job whose session is missing, another engine's, or of the other direction fails alone.
func testForeign(t *testing.T, r *rig) {
	p := r.newPair(t, r.caps.Transforms[0], false)
	for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
		plain := r.packet(p.t, 30)
		sealed := p.seal(plain, 0)
		good := func() *probe {
			if dir == offload.Seal {
				return p.sealing("good", plain, 0)
			}
			return p.opening("good", sealed, 0)
		}
		bad := func(name string, s offload.Session) *probe {
			return &probe{name: name, ses: s, in: sealed, status: offload.EngineError, out: sealed[:p.t.HeaderLen()]}
		}
		r.run(t, dir, []*probe{
			good(),
			bad("no session", nil),
			good(),
			bad("session of another engine", foreign{p.sessions[dir]}),
			good(),
			bad("session of the other direction", p.sessions[1-dir]),
			good(),
		})
	}
}

// testNothing: bursts without jobs, empty packets, Reap without room.
func testNothing(t *testing.T, r *rig) {
	var one [1]*offload.Burst
	if n := r.lane.Reap(one[:], true); n != 0 {
		t.Fatalf("Reap of an unused lane gives %d", n)
	}
	empty := &offload.Burst{Dir: offload.Open}
	if err := pass(r.lane, []*offload.Burst{empty}); err != nil {
		t.Fatalf("burst without jobs: %v", err)
	}
	p := r.newPair(t, r.caps.Transforms[0], false)
	b := &offload.Burst{Dir: offload.Open, Jobs: []offload.Job{{Session: p.sessions[offload.Open]}}}
	if err := r.lane.Submit(b); err != nil {
		t.Fatal(err)
	}
	if n := r.lane.Reap(nil, true); n != 0 {
		t.Fatalf("Reap without room gives %d", n)
	}
	if n := r.lane.Reap(one[:], true); n != 1 || one[0] != b {
		t.Fatal("the burst is lost")
	}
	if b.Jobs[0].Status != offload.BadLength {
		t.Errorf("a job without a packet: %v, not %v", b.Jobs[0].Status, offload.BadLength)
	}
}

// flood submits bursts of one packet until the lane is full, and returns them, the refused one last.
func (r *rig) flood(t *testing.T, p *pair) (taken []*offload.Burst, refused *offload.Burst, probes []*probe) {
	t.Helper()
	for {
		plain := r.packet(p.t, 20+len(taken)%30)
		pr := p.sealing(fmt.Sprintf("burst %d", len(taken)), plain, 0)
		b := &offload.Burst{Dir: offload.Seal, Jobs: []offload.Job{pr.lay()}, Tag: len(taken)}
		probes = append(probes, pr)
		err := r.lane.Submit(b)
		if errors.Is(err, offload.ErrFull) {
			return taken, b, probes
		}
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, b)
		if len(taken) > r.caps.Depth {
			t.Fatalf("the lane took %d bursts; its depth is %d", len(taken), r.caps.Depth)
		}
	}
}

// reapAll reaps n bursts, each of which must be one of those given, once.
func (r *rig) reapAll(t *testing.T, want []*offload.Burst) {
	t.Helper()
	left := map[*offload.Burst]bool{}
	for _, b := range want {
		left[b] = true
	}
	dst := make([]*offload.Burst, 2)
	for len(left) > 0 {
		n := r.lane.Reap(dst, true)
		if n == 0 {
			t.Fatalf("%d of %d bursts never came back", len(left), len(want))
		}
		for _, b := range dst[:n] {
			if !left[b] {
				t.Fatal("a burst came back that was not in flight")
			}
			delete(left, b)
		}
	}
	if n := r.lane.Reap(dst, true); n != 0 {
		t.Fatalf("%d bursts too many came back", n)
	}
}

// testFull: a full lane takes nothing of a burst, keeps what it has, and takes the burst once there is room.
func testFull(t *testing.T, r *rig) {
	p := r.newPair(t, r.caps.Transforms[0], false)
	for range 3 {
		taken, refused, probes := r.flood(t, p)
		last := probes[len(probes)-1]
		j := &refused.Jobs[0]
		if j.Status != stale || !bytes.Equal(j.ESP[:len(last.in)], last.in) || refused.Tag != len(taken) {
			t.Fatal("ErrFull, and yet something of the burst has changed")
		}
		r.reapAll(t, taken)
		if err := r.lane.Submit(refused); err != nil {
			t.Fatalf("an empty lane: %v", err)
		}
		r.reapAll(t, []*offload.Burst{refused})
		for i, b := range append(taken, refused) {
			if err := probes[i].check(b.Jobs[0].Status); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// testCloseInFlight: a closed lane gives back what it took, with final statuses, and takes nothing more.
func testCloseInFlight(t *testing.T, r *rig) {
	p := r.newPair(t, r.caps.Transforms[0], false)
	taken, refused, probes := r.flood(t, p)
	if err := r.lane.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.lane.Submit(refused); !errors.Is(err, offload.ErrClosed) {
		t.Errorf("submit to a closed lane: %v; want ErrClosed", err)
	}
	if err := r.lane.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	r.reapAll(t, taken)
	for i, b := range taken {
		if st := b.Jobs[0].Status; st == offload.EngineError {
			continue
		}
		if err := probes[i].check(b.Jobs[0].Status); err != nil {
			t.Error(err)
		}
	}
}

// testClosedSession: jobs of a closed session fail, and their neighbours do not.
func testClosedSession(t *testing.T, r *rig) {
	for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
		open, shut := r.newPair(t, r.caps.Transforms[0], false), r.newPair(t, r.caps.Transforms[0], false)
		plain := r.packet(open.t, 30)
		good := open.sealing("open session", plain, 0)
		if dir == offload.Open {
			good = open.opening("open session", open.seal(plain, 0), 0)
		}
		in := shut.seal(plain, 0)
		closed := &probe{name: "closed session", ses: shut.sessions[dir], in: in, status: offload.EngineError, out: in[:shut.t.HeaderLen()]}
		for range 2 {
			if err := shut.sessions[dir].Close(); err != nil {
				t.Fatal(err)
			}
		}
		r.run(t, dir, []*probe{good, closed, closed, good})
	}
}

// testSessionClosedInFlight: every job still ends, done or failed.
func testSessionClosedInFlight(t *testing.T, r *rig) {
	for range 20 {
		p := r.newPair(t, r.caps.Transforms[r.rnd.IntN(len(r.caps.Transforms))], true)
		taken, _, probes := r.flood(t, p)
		if err := p.sessions[offload.Seal].Close(); err != nil {
			t.Fatal(err)
		}
		r.reapAll(t, taken)
		for i, b := range taken {
			if b.Jobs[0].Status == offload.EngineError {
				continue
			}
			if err := probes[i].check(b.Jobs[0].Status); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// inParallel runs mixes on several lanes at once.
func (r *rig) inParallel(t *testing.T, pairs func(lane int) []*pair) {
	const lanes = 4
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	var wg sync.WaitGroup
	for id := range lanes {
		own := &rig{e: r.e, caps: r.caps, lane: openLane(t, r.e, id), rnd: seeded(fmt.Sprint(t.Name(), id))}
		mine := pairs(id)
		wg.Go(func() {
			for range rounds {
				seal, open := own.mix(mine, 1+own.rnd.IntN(30), 400)
				if err := own.runOn(own.lane, offload.Seal, seal); err != nil {
					t.Errorf("lane %d: %v", id, err)
					return
				}
				if err := own.runOn(own.lane, offload.Open, open); err != nil {
					t.Errorf("lane %d: %v", id, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// testParallel: lanes do not disturb each other.
func testParallel(t *testing.T, r *rig) {
	r.inParallel(t, func(int) []*pair { return r.allPairs(t) })
}

// testShared: with Caps.Shared, nor do lanes that use the same sessions.
func testShared(t *testing.T, r *rig) {
	if !r.caps.Shared {
		t.Skip("the engine's sessions are not shared")
	}
	pairs := r.allPairs(t)
	r.inParallel(t, func(int) []*pair { return pairs })
}
