package offloadtest

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"

	"culvert/offload"
)

// Run is the conformance suite. It compares the engine with the known answers and, packet by packet, with a plain
// composition of the standard library. It opens several lanes, and several sessions of every transform; bursts have up to
// 256 jobs. With -short it takes fewer sizes.
func Run(t *testing.T, e offload.Engine) {
	caps, err := e.Probe()
	if err != nil {
		t.Fatalf("%s: probe: %v", e.Name(), err)
	}
	if len(caps.Transforms) == 0 || caps.Depth < 1 {
		t.Fatalf("%s: probe gives %d transforms and a depth of %d without an error", e.Name(), len(caps.Transforms), caps.Depth)
	}
	for _, tr := range caps.Transforms {
		t.Run(tr.ID(), func(t *testing.T) { runTransform(t, newRig(t, e, caps), tr) })
	}
	for _, test := range laneTests {
		t.Run(test.name, func(t *testing.T) { test.run(t, newRig(t, e, caps)) })
	}
}

// rig is an engine, a lane of it, and chance that is the same in every run of a test.
type rig struct {
	e    offload.Engine
	caps offload.Caps
	lane offload.Lane
	rnd  *rand.Rand
}

func newRig(t testing.TB, e offload.Engine, caps offload.Caps) *rig {
	t.Helper()
	return &rig{e: e, caps: caps, lane: openLane(t, e, 0), rnd: seeded(t.Name())}
}

func openLane(t testing.TB, e offload.Engine, id int) offload.Lane {
	t.Helper()
	l, err := e.NewLane(id)
	if err != nil {
		t.Fatalf("%s: lane %d: %v", e.Name(), id, err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("%s: close lane %d: %v", e.Name(), id, err)
		}
	})
	return l
}

// seeded gives chance that depends on a name only.
func seeded(name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(h.Sum64(), 0))
}

func randomBytes(rnd *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rnd.Uint32())
	}
	return p
}

// randomKeys are keys that CheckKeys likes.
func randomKeys(rnd *rand.Rand, t *offload.Transform, esn bool) offload.Keys {
	return offload.Keys{Enc: randomBytes(rnd, t.EncKeyLen()), Auth: randomBytes(rnd, t.AuthKeyLen), ESN: esn}
}

// pair is both sessions of one SA, and what they are compared with.
type pair struct {
	reference
	sessions [2]offload.Session // by direction
}

func (r *rig) newPair(t testing.TB, tr *offload.Transform, esn bool) *pair {
	t.Helper()
	p := &pair{reference: reference{tr, randomKeys(r.rnd, tr, esn)}}
	for _, dir := range []offload.Direction{offload.Seal, offload.Open} {
		k := p.k.Clone()
		s, err := r.e.NewSession(tr, dir, k)
		if err != nil {
			t.Fatalf("session to %v %s: %v", dir, tr, err)
		}
		k.Zero() // the session must have copied them
		if s.Transform() != tr || s.Direction() != dir {
			t.Fatalf("session to %v %s says it is to %v %s", dir, tr, s.Direction(), s.Transform())
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Errorf("close session: %v", err)
			}
		})
		p.sessions[dir] = s
	}
	return p
}

// packet makes a plain packet of n payload bytes: random, and padded as RFC 4303 section 2.4 has it.
func (r *rig) packet(tr *offload.Transform, n int) []byte {
	p := randomBytes(r.rnd, tr.HeaderLen()+n)
	pad := tr.PadLen(n)
	for i := range pad {
		p = append(p, byte(i+1))
	}
	return append(p, byte(pad), 4)
}

// guardLen bytes lie before and after each packet, and must not change.
const guardLen, guardByte = 64, 0xe7

// probe is one job: what goes in, what must come out.
type probe struct {
	name   string
	ses    offload.Session
	in     []byte // Seal: without the ICV
	icv    int    // Seal: room for it
	seqHi  uint32
	align  int // bytes that the packet begins after a multiple of 64
	status offload.Status
	out    []byte // with OK: Seal the packet, Open all before the ICV; otherwise the bytes that must not have changed
	slot   []byte
	esp    []byte
}

// sealing is a probe that seals a plain packet.
func (p *pair) sealing(name string, plain []byte, seqHi uint32) *probe {
	return &probe{
		name: name, ses: p.sessions[offload.Seal], in: plain, icv: p.t.ICVLen, seqHi: seqHi,
		status: offload.OK, out: p.seal(plain, seqHi),
	}
}

// opening is a probe that opens a packet, sealed or not.
func (p *pair) opening(name string, esp []byte, seqHi uint32) *probe {
	o := &probe{name: name, ses: p.sessions[offload.Open], in: esp, seqHi: seqHi}
	o.out, o.status = p.open(esp, seqHi)
	if o.status != offload.OK {
		o.out = esp[:min(p.t.HeaderLen(), len(esp))]
	}
	return o
}

// lay puts the packet between its guards.
func (p *probe) lay() offload.Job {
	n := len(p.in) + p.icv
	p.slot = bytes.Repeat([]byte{guardByte}, guardLen+64+n+guardLen)
	begin := guardLen + p.align
	p.esp = p.slot[begin : begin+n]
	copy(p.esp, p.in)
	return offload.Job{Session: p.ses, ESP: p.esp, SeqHi: p.seqHi, Status: stale}
}

// check compares what came out.
func (p *probe) check(status offload.Status) error {
	if status != p.status {
		return fmt.Errorf("%s (%d bytes): the status is %v, not %v", p.name, len(p.esp), status, p.status)
	}
	got := p.esp[:min(len(p.out), len(p.esp))]
	for i := range got {
		if got[i] != p.out[i] {
			return fmt.Errorf("%s (%d bytes, %v): byte %d is %#02x, not %#02x", p.name, len(p.esp), status, i, got[i], p.out[i])
		}
	}
	begin := guardLen + p.align
	for i, c := range p.slot {
		if (i < begin || i >= begin+len(p.esp)) && c != guardByte {
			return fmt.Errorf("%s (%d bytes): a byte outside has changed, at %d", p.name, len(p.esp), i-begin)
		}
	}
	return nil
}

// stale is a status that no engine gives; it must not survive.
const stale = offload.Status(99)

// maxJobs is how many jobs a burst of the suite has at most.
const maxJobs = 256

// run passes probes of one direction through the engine, in bursts, and checks each.
func (r *rig) run(t testing.TB, dir offload.Direction, probes []*probe) {
	t.Helper()
	if err := r.runOn(r.lane, dir, probes); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) runOn(l offload.Lane, dir offload.Direction, probes []*probe) error {
	var bursts []*offload.Burst
	of := map[*offload.Burst][]*probe{}
	for len(probes) > 0 {
		n := min(len(probes), maxJobs)
		b := &offload.Burst{Dir: dir, Tag: len(bursts) + 1000}
		for _, p := range probes[:n] {
			b.Jobs = append(b.Jobs, p.lay())
		}
		of[b] = probes[:n]
		bursts = append(bursts, b)
		probes = probes[n:]
	}
	if err := pass(l, bursts); err != nil {
		return fmt.Errorf("%v: %w", dir, err)
	}
	for i, b := range bursts {
		if b.Tag != i+1000 || b.Dir != dir || len(b.Jobs) != len(of[b]) {
			return fmt.Errorf("%v: the engine changed the burst itself", dir)
		}
		for k, p := range of[b] {
			if b.Jobs[k].Session != p.ses || b.Jobs[k].SeqHi != p.seqHi || len(b.Jobs[k].ESP) != len(p.esp) {
				return fmt.Errorf("%v: %s: the engine changed the job itself", dir, p.name)
			}
			if err := p.check(b.Jobs[k].Status); err != nil {
				return fmt.Errorf("%v: job %d of %d: %w", dir, k, len(b.Jobs), err)
			}
		}
	}
	return nil
}

// pass submits all bursts and reaps them all, each exactly once.
func pass(l offload.Lane, bursts []*offload.Burst) error {
	flying := map[*offload.Burst]bool{}
	dst := make([]*offload.Burst, 3)
	reap := func() error {
		n := l.Reap(dst, true)
		if n == 0 {
			return fmt.Errorf("Reap with wait gives nothing with %d bursts in flight", len(flying))
		}
		for _, b := range dst[:n] {
			if !flying[b] {
				return errors.New("Reap gives a burst that is not in flight")
			}
			delete(flying, b)
		}
		return nil
	}
	for _, b := range bursts {
		for {
			err := l.Submit(b)
			if err == nil {
				flying[b] = true
				break
			}
			if !errors.Is(err, offload.ErrFull) {
				return fmt.Errorf("submit: %w", err)
			}
			if len(flying) == 0 {
				return errors.New("an empty lane is full")
			}
			if err := reap(); err != nil {
				return err
			}
		}
	}
	for len(flying) > 0 {
		if err := reap(); err != nil {
			return err
		}
	}
	if n := l.Reap(dst, true); n != 0 {
		return fmt.Errorf("Reap gives %d bursts with none in flight", n)
	}
	return nil
}
