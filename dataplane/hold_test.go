package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/soft"
	"culvert/sa"
)

// asker notes what Config.Acquire is told.
type asker struct {
	mu  sync.Mutex
	got []ask
	at  []time.Time
}

func (a *asker) acquire(policy string, f sa.Flow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got, a.at = append(a.got, ask{policy, f}), append(a.at, time.Now())
}

func (a *asker) asks() []ask {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.got)
}

// trapping is a plan whose site A asks for SAs.
func trapping(set func(c *Config)) (plan, *asker) {
	a := new(asker)
	return plan{config: [2]func(*Config){func(c *Config) {
		c.Acquire = a.acquire
		if set != nil {
			set(c)
		}
	}, nil}}, a
}

// trap lays tunnel n with the outbound policies of site A waiting for its SA, which is not there yet.
func (w *world) trap(n int, tr *offload.Transform, change shape) *tunnel {
	w.Helper()
	tn := w.draft(n, udp4, tr, change)
	for s := range w.site {
		w.update(s, func(tx *sa.Tx) error {
			err := tx.AddInbound(tn.in[s])
			out := tn.out[s]
			if s == siteA {
				out = nil
			} else {
				err = errors.Join(err, tx.AddOutbound(out))
			}
			for _, p := range policies(n, s, out) {
				p.Acquire = p.Dir == sa.Out
				err = errors.Join(err, tx.AddPolicy(p))
			}
			return err
		})
	}
	return tn
}

// arm gives site A the SA that a trap waits for.
func (w *world) arm(tn *tunnel) {
	w.Helper()
	w.update(siteA, func(tx *sa.Tx) error {
		if err := tx.AddOutbound(tn.out[siteA]); err != nil {
			return err
		}
		if n, err := tx.Attach(tn.out[siteA]); err != nil || n != 2 {
			return fmt.Errorf("%d attached: %w", n, err)
		}
		return nil
	})
}

// numbered is a packet of tunnel n's host with a number in it.
func numbered(n, number, size int) []byte {
	p := probe(n)
	p.payload = fill(size, byte(number))
	p.id = uint16(number) // as a host does, so that merging and cutting on the way changes nothing
	binary.BigEndian.PutUint32(p.payload, uint32(number))
	return p.build(false)
}

// held waits until as many packets wait.
func (s *site) held(n int) {
	s.Helper()
	eventually(s, fmt.Sprint(n, " packets held"), func() bool {
		b := s.out()
		if !b.Balanced() {
			s.Fatalf("the books do not balance: %s", b.summary())
		}
		return b.Held == uint64(n) && b.InFlight == 0
	})
}

// A packet that a trap catches waits, with those that follow; whoever makes SAs is asked once, and told of the flow; when there is
// one they all go, in the order in which they came, and before anything that comes later.
func TestTrap(t *testing.T) {
	for _, a := range arrangements {
		if a.chaos != nil && a.chaos.Errors > 0 {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			p, asked := trapping(func(c *Config) {
				e := offload.Engine(soft.New())
				if a.chaos != nil {
					e = offloadtest.NewChaos(e, *a.chaos)
				}
				a.set(c, e)
			})
			w := newWorld(t, p)
			tn := w.trap(1, gcm, nil)
			w.start()
			var sent [][]byte
			for i := range 20 {
				sent = append(sent, numbered(1, i, 50+150*(i%8)))
			}
			w.site[siteA].send(sent...)
			// A super-packet waits as the packets that it stands for.
			big := bulk(false, false)
			big.payload = fill(30*1000, 3)
			h := link.VNet{NeedsCsum: true, GSO: link.GSOTCP4, GSOSize: 1000, CsumStart: 20, CsumOffset: 16}
			super := big.build(true)
			w.site[siteA].sendSuper(h, super)
			sent = append(sent, packetsOf(t, super, h)...)
			w.site[siteA].held(50)
			w.site[siteB].silent()
			eventually(t, "asked", func() bool { return len(asked.asks()) > 0 })
			if a := asked.asks()[0]; a.policy != "tunnel 1false" || a.flow.Proto != protoUDP || !a.flow.HasPorts || a.flow.Dst != destination(sent[0]) {
				t.Errorf("asked for %+v", a)
			}
			for i := range asked.at[1:] {
				if d := asked.at[i+1].Sub(asked.at[i]); d < askEvery-time.Millisecond {
					t.Errorf("asked again after %v", d)
				}
			}
			w.arm(tn)
			for i := 20; i < 40; i++ {
				sent = append(sent, numbered(1, i, 100))
			}
			w.site[siteA].send(sent[50:]...)
			sameFlows(t, w.site[siteB].receive(len(sent)), sent)
			w.site[siteB].silent()
			w.site[siteA].held(0)
		})
	}
}

// packetsOf are the packets that a super-packet stands for.
func packetsOf(t *testing.T, super []byte, h link.VNet) (all [][]byte) {
	t.Helper()
	var s splitter
	if err := s.Reset(bytes.Clone(super), h); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		p := make([]byte, s.Size())
		var n int
		n, more = s.Next(p)
		all = append(all, p[:n])
	}
	return all
}

// Under steady traffic, SAs come and go a hundred times: whatever arrives does so in order, and what waits is never lost as long
// as there is room, nor overtaken.
func TestTrapsInOrder(t *testing.T) {
	p, _ := trapping(nil)
	w := newWorld(t, p)
	tn := w.trap(1, gcm, nil)
	w.arm(tn)
	w.start()
	const rounds, each = 100, 40
	var load sync.WaitGroup
	load.Go(func() {
		for i := range rounds * each {
			w.site[siteA].send(numbered(1, i, 60))
			if i%10 == 0 {
				runtime.Gosched()
			}
			// So that no more are on their way than may wait.
			for w.site[siteA].out().Held > holdPolicyPackets/2 || w.site[siteA].cfg.Inner.(interface{ Pending() int }).Pending() > 8 {
				time.Sleep(20 * time.Microsecond)
			}
		}
	})
	stop := make(chan struct{})
	load.Go(func() {
		for on := true; ; on = !on {
			select {
			case <-stop:
				return
			default:
			}
			w.update(siteA, func(tx *sa.Tx) error {
				for _, v6 := range []bool{false, true} {
					pol, _ := tx.Policy(sa.Out, fmt.Sprint("tunnel 1", v6))
					if pol.Out = nil; on {
						pol.Out = tn.out[siteA]
					}
					if err := tx.ReplacePolicy(pol); err != nil {
						return err
					}
				}
				return nil
			})
			time.Sleep(time.Duration(w.rnd.IntN(300)) * time.Microsecond)
		}
	})
	for i := range rounds * each {
		got := w.site[siteB].receive(1)[0]
		if n := int(binary.BigEndian.Uint32(got[28:])); n != i {
			t.Errorf("packet %d came in place %d: %s", n, i, w.summary())
			break
		}
	}
	close(stop)
	if t.Failed() {
		w.site[siteA].host.Close()
	}
	load.Wait()
	if b := w.site[siteA].out(); b.Dropped() > 0 {
		t.Error(b.summary())
	}
}

// What becomes of packets that wait, other than that they are sent by the SA of their own policy.
func TestHeldOtherwise(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(w *world, tn *tunnel)
		cause Cause
		hold  time.Duration
	}{
		{"the policy is removed", func(w *world, tn *tunnel) {
			w.update(siteA, func(tx *sa.Tx) error { return tx.RemovePolicy(sa.Out, "tunnel 1false") })
		}, CauseHoldPolicyGone, 0},
		{"the policy is made to discard", func(w *world, tn *tunnel) {
			w.update(siteA, func(tx *sa.Tx) error {
				p, _ := tx.Policy(sa.Out, "tunnel 1false")
				p.Action, p.Acquire, p.Reqid, p.Tunnel = sa.Discard, false, 0, ""
				return tx.ReplacePolicy(p)
			})
		}, CausePolicyDiscard, 0},
		{"nobody is asked any more", func(w *world, tn *tunnel) {
			w.update(siteA, func(tx *sa.Tx) error {
				p, _ := tx.Policy(sa.Out, "tunnel 1false")
				p.Acquire = false
				return tx.ReplacePolicy(p)
			})
		}, CauseNoOutboundSA, 0},
		{"nobody makes one", func(*world, *tunnel) {}, CauseHoldTimedOut, 20 * time.Millisecond},
		{"the gateway stops", func(w *world, tn *tunnel) { w.end() }, CauseClosing, 0},
		{"an SA whose packets are too small", func(w *world, tn *tunnel) {
			tn.out[siteA].SetMTU(128)
			w.arm(tn)
		}, CauseTooBig, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := trapping(func(cfg *Config) { cfg.HoldFor = c.hold })
			w := newWorld(t, p)
			tn := w.trap(1, gcm, nil)
			w.start()
			begin := time.Now()
			w.site[siteA].send(numbered(1, 0, 200), numbered(1, 1, 200), numbered(1, 2, 200))
			if c.hold == 0 {
				w.site[siteA].held(3)
			}
			c.do(w, tn)
			eventually(t, c.cause.String(), func() bool { b := w.site[siteA].out(); return b.drops(c.cause) == 3 })
			if b := w.site[siteA].out(); b.Held != 0 || b.Dropped() != 3 || !b.Balanced() {
				t.Error(b.summary())
			}
			if d := time.Since(begin); d < c.hold {
				t.Errorf("waited %v only", d)
			}
		})
	}
}

// A policy that is narrower than the trap, as an IKE daemon makes when the peer has narrowed the selectors (RFC 7296 2.9), takes the
// packets that are its own; the others wait on. Another trap takes them over, and asks for itself.
func TestHeldForAnother(t *testing.T) {
	p, asked := trapping(nil)
	w := newWorld(t, p)
	tn := w.trap(1, gcm, nil)
	w.start()
	w.site[siteA].send(numbered(1, 0, 60))
	w.site[siteA].held(1)
	one := probe(1)
	dst, _ := netip.AddrFromSlice(one.dst())
	narrow := sa.Policy{Name: "narrow", Dir: sa.Out, Priority: -1, Action: sa.Protect, Acquire: true, Tunnel: "narrow",
		Sel: sa.Selector{Dst: netip.PrefixFrom(dst, dst.BitLen())}}
	w.update(siteA, func(tx *sa.Tx) error { return tx.AddPolicy(narrow) })
	eventually(t, "asked for the other trap", func() bool {
		return slices.ContainsFunc(asked.asks(), func(a ask) bool { return a.policy == "narrow" && a.flow.Dst == dst })
	})
	w.site[siteA].held(1)
	w.update(siteA, func(tx *sa.Tx) error {
		narrow.Out = tn.out[siteA]
		return errors.Join(tx.AddOutbound(tn.out[siteA]), tx.ReplacePolicy(narrow))
	})
	w.site[siteB].receive(1)
	w.site[siteA].held(0)
}

// An SA that has passed its hard lifetime is none: what comes then waits for the next.
func TestTrapOfExpired(t *testing.T) {
	p, asked := trapping(nil)
	w := newWorld(t, p)
	tn := w.trap(1, gcm, func(from int, out, _ *sa.Params) {
		if from == siteA {
			out.Lifetime.Hard.Packets = 1
		}
	})
	w.arm(tn)
	w.start()
	w.site[siteA].send(numbered(1, 0, 60))
	w.site[siteB].receive(1)
	w.site[siteA].send(numbered(1, 1, 60))
	w.site[siteA].held(1)
	eventually(t, "asked", func() bool { return len(asked.asks()) == 1 })
	next := w.draft(2, udp4, gcm, func(_ int, out, in *sa.Params) { out.Name, in.Name = "tunnel 1", "tunnel 1" })
	w.update(siteB, func(tx *sa.Tx) error { return tx.AddInbound(next.in[siteB]) })
	w.update(siteA, func(tx *sa.Tx) error {
		if err := tx.AddOutbound(next.out[siteA]); err != nil {
			return err
		}
		_, err := tx.Attach(next.out[siteA])
		return err
	})
	w.site[siteB].receive(1)
	w.site[siteA].held(0)
}

// Without anybody to ask, or a policy that says so, nothing waits.
func TestNoTrap(t *testing.T) {
	for _, ask := range []bool{false, true} {
		p, asked := trapping(nil)
		if !ask {
			p = plan{}
		}
		w := newWorld(t, p)
		w.trap(1, gcm, nil)
		w.update(siteA, func(tx *sa.Tx) error {
			pol, _ := tx.Policy(sa.Out, "tunnel 1false")
			pol.Acquire = !ask
			return tx.ReplacePolicy(pol)
		})
		w.start()
		w.site[siteA].send(numbered(1, 0, 60))
		eventually(t, "dropped", func() bool { b := w.site[siteA].out(); return b.drops(CauseNoOutboundSA) == 1 })
		if b := w.site[siteA].out(); b.Held != 0 || len(asked.asks()) > 0 {
			t.Errorf("%s, asked %v", b.summary(), asked.asks())
		}
	}
}

// The memory for packets that wait is never exceeded and never lost, whatever they are, and gives each back as it came; against a
// list as the model.
func TestHoldAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHold(0)
		type packet struct {
			policy string
			data   []byte
		}
		var model []packet
		at := func(i int) int16 {
			x := h.head
			for range i {
				x = h.packet[x].next
			}
			return x
		}
		fits := func(p packet) bool {
			packets, size, chunks := 0, 0, 0
			for _, m := range model {
				chunks += (len(m.data) + holdChunk - 1) / holdChunk
				if m.policy == p.policy {
					packets++
					size += len(m.data)
				}
			}
			return packets < holdPolicyPackets && (packets == 0 || size+len(p.data) <= holdPolicyBytes) &&
				chunks+(len(p.data)+holdChunk-1)/holdChunk <= holdPackets
		}
		policy := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("p", rapid.IntRange(0, 40).Draw(t, "policy")) })
		size := rapid.OneOf(rapid.IntRange(20, 3000), rapid.IntRange(20, maxHeld))
		for n := range rapid.IntRange(1, 2000).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			default:
				p := packet{policy.Draw(t, "policy"), fill(size.Draw(t, "size"), byte(n))}
				if h.put(p.policy, p.data, &sa.Flow{}, time.Now(), n%2 == 0) != fits(p) {
					t.Fatalf("put of %d bytes for %s: not as in the model", len(p.data), p.policy)
				}
				if fits(p) {
					model = append(model, p)
				}
			case 7, 8:
				if len(model) > 0 {
					i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
					h.cursor = at(i)
					if got := h.take(at(i)); !bytes.Equal(got, model[i].data) {
						t.Fatalf("packet %d of %d bytes came back as %d bytes", i, len(model[i].data), len(got))
					}
					model = slices.Delete(model, i, i+1)
					if i < len(model) && h.cursor != at(i) || i == len(model) && h.cursor != none {
						t.Fatal("the cursor has not moved on")
					}
				}
			case 9:
				if len(model) > 0 {
					i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
					p := packet{policy.Draw(t, "policy"), model[i].data}
					was := model[i]
					model[i].policy = ""
					model[i].data = nil
					ok := fits(p)
					model[i] = was
					if h.rejoin(at(i), p.policy) != ok {
						t.Fatal("rejoin: not as in the model")
					}
					if ok {
						model[i].policy = p.policy
					} else {
						h.remove(at(i))
						model = slices.Delete(model, i, i+1)
					}
				}
			}
			if h.count != len(model) || h.any.Load() != (len(model) > 0) {
				t.Fatalf("%d packets wait, not %d", h.count, len(model))
			}
		}
		for h.head != none {
			h.remove(h.head)
		}
		free, unused := 0, 0
		for i := h.free; i != none; i = h.chain[i] {
			free++
		}
		for i := h.unused; i != none; i = h.policy[i].next {
			unused++
		}
		if free != holdPackets || h.room != holdPackets || unused != holdPackets || h.unasked != 0 || h.tail != none {
			t.Fatalf("%d of %d chunks free, %d policies, %d not asked for", free, h.room, unused, h.unasked)
		}
	})
}

// A flow is asked for once in 100 ms; of very many at once those that cannot be remembered are asked for later, not twice.
func TestAskRate(t *testing.T) {
	h := newHold(0)
	drain := func() (n int) {
		for len(h.asks) > 0 {
			<-h.asks
			n++
		}
		return n
	}
	now := time.Now()
	flow := func(i int) *sa.Flow {
		return &sa.Flow{Src: netip.AddrFrom4([4]byte{10, 0, 0, 1}), Dst: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}
	}
	for i := range 10 {
		if !h.ask("p", flow(1), now.Add(time.Duration(i)*askEvery/10)) {
			t.Error("not asked")
		}
	}
	if n := drain(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	h.ask("p", flow(1), now.Add(askEvery))
	h.ask("q", flow(1), now.Add(askEvery))
	h.ask("p", flow(2), now.Add(askEvery))
	if n := drain(); n != 3 {
		t.Errorf("%d asked", n)
	}
	count := map[string]int{}
	now = now.Add(time.Hour)
	for range 3 {
		for i := range 3000 {
			h.ask("p", flow(i), now)
			for len(h.asks) > 0 {
				a := <-h.asks
				count[a.flow.Dst.String()]++
			}
		}
	}
	if len(count) < 500 || len(count) > askSets*askWays {
		t.Errorf("%d flows of 3000 asked for", len(count))
	}
	for dst, n := range count {
		if n > 1 {
			t.Errorf("%s asked for %d times", dst, n)
		}
	}
	// Nobody listens: what has no room is not as good as asked.
	now = now.Add(time.Hour)
	asked := 0
	for i := range 1000 {
		if h.ask("p", flow(i), now) {
			asked++
		}
	}
	if asked != askDepth || drain() != askDepth {
		t.Errorf("%d asked with room for %d", asked, askDepth)
	}
}

// To wait, to be refused, to go on and to be asked for allocates nothing.
func TestHoldAllocatesNothing(t *testing.T) {
	w := newBench(t, func(c *Config) { c.Engine, c.Acquire = nullEngine{}, func(string, sa.Flow) {} })
	tn := w.trap(0, gcm, nil)
	packets, _ := benchPackets(1400, false, 1)
	left := 0
	w.inner.next = func() ([]byte, link.VNet, error) {
		if left == 0 {
			return nil, link.VNet{}, link.ErrAgain
		}
		left--
		return packets[0], link.VNet{}, nil
	}
	lane := w.plane.out
	turn := func() {
		for left = 2 * holdPolicyPackets; left > 0; { // half are refused
			w.out()
		}
		lane.hold.version = 0 // as if the DB had changed
		w.out()
		for len(lane.hold.asks) > 0 {
			<-lane.hold.asks
		}
	}
	w.arm(tn)
	if n := testing.AllocsPerRun(20, turn); n != 0 {
		t.Errorf("sending allocates %v times", n)
	}
	w.update(siteA, func(tx *sa.Tx) error { return tx.RemoveOutbound(tn.out[siteA]) })
	if n := testing.AllocsPerRun(20, turn); n != 0 {
		t.Errorf("waiting allocates %v times", n)
	}
	if c := &lane.books.now; c.Held != holdPolicyPackets || c.Drops[CauseHoldFull] == 0 || !c.Balanced() {
		t.Error(c.summary())
	}
	lane.dismiss()
	lane.books.publish()
}

// A packet from another address or port is told of once a second, if it is authentic and newer than all before; and no more once the
// SA has been moved there.
func TestMapping(t *testing.T) {
	type told struct {
		i    *sa.Inbound
		from sa.Endpoint
	}
	got := make(chan told, 100)
	p := plan{config: [2]func(*Config){nil, func(c *Config) { c.Mapping = func(i *sa.Inbound, e sa.Endpoint) { got <- told{i, e} } }}}
	w := newWorld(t, p)
	tn, native := w.tunnel(1, udp4, cbcSHA1, nil), w.tunnel(2, esp4, cbcSHA1, nil)
	w.start()
	s := w.sealer(tn, siteA)
	home := wires[udp4].end[siteA]
	moved := netip.MustParseAddrPort("198.51.100.7:4500")
	next := netip.MustParseAddrPort("198.51.100.8:4500")
	p4, p2 := probe(1), probe(2)
	packet := func(seq uint64) []byte { return s.seal(seq, nextHeaderIPv4, p4.build(false)) }
	accepted := func(n uint64) {
		t.Helper()
		eventually(t, "accepted", func() bool { return tn.in[siteB].Stats().Packets == n })
	}
	w.inject(udp4, siteB, home, 0, packet(10), packet(11))
	accepted(2)
	forged := packet(50)
	forged[len(forged)-1] ^= 1
	w.inject(udp4, siteB, moved, 0, forged, packet(5), packet(11)) // forged, old, repeated
	accepted(3)
	w.inject(esp4, siteB, netip.AddrPortFrom(moved.Addr(), 0), 0, w.sealer(native, siteA).seal(1, nextHeaderIPv4, p2.build(false)))
	eventually(t, "accepted", func() bool { return native.in[siteB].Stats().Packets == 1 })
	w.site[siteB].receive(4)
	select {
	case x := <-got:
		t.Fatalf("told of %v", x.from)
	case <-time.After(20 * time.Millisecond):
	}
	begin := time.Now()
	w.inject(udp4, siteB, moved, 0, packet(12), packet(13), packet(14))
	x := <-got
	want := tn.in[siteB].Params().Endpoint()
	want.Src, want.SrcPort = moved.Addr(), moved.Port()
	if x.i != tn.in[siteB] || x.from != want {
		t.Errorf("told of %+v, not %+v", x.from, want)
	}
	for seq := uint64(15); ; seq++ { // it is told again, but not within a second
		w.inject(udp4, siteB, next, 0, packet(seq))
		w.site[siteB].receive(1)
		if seq == 15 {
			w.site[siteB].receive(3)
		}
		select {
		case x = <-got:
		case <-time.After(50 * time.Millisecond):
			continue
		}
		break
	}
	if d := time.Since(begin); d < time.Second {
		t.Errorf("told again after %v", d)
	}
	if x.from.SrcPort != next.Port() || x.from.Src != next.Addr() {
		t.Errorf("told of %+v", x.from)
	}
	w.update(siteB, func(tx *sa.Tx) error { return tx.MoveInbound(tn.in[siteB], x.from) })
	tn.in[siteB].Roams(time.Now().Add(-time.Hour)) // whatever it told last
	w.inject(udp4, siteB, next, 0, packet(100))
	w.site[siteB].receive(1)
	if len(got) > 0 {
		t.Error("told of where it is now")
	}
}
