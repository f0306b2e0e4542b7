package sa

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"culvert/offload"
)

// Every version of the table is the map that it was when it was made, whatever was made of it since.
func TestTableAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type version struct {
			t table[int, int]
			m map[int]int
		}
		hash := func(k int) uint32 { return hashSPI(uint32(k)) }
		if rapid.Bool().Draw(t, "collide") {
			hash = func(k int) uint32 { return uint32(k % 3) }
		}
		versions := []version{{m: map[int]int{}}}
		for range rapid.IntRange(1, 12).Draw(t, "transactions") {
			v := rapid.SampledFrom(versions).Draw(t, "from")
			v.t.owned, v.m = false, maps.Clone(v.m)
			for range rapid.IntRange(0, 300).Draw(t, "changes") {
				k := rapid.IntRange(0, 400).Draw(t, "key")
				if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
					v.t.delete(hash(k), k)
					delete(v.m, k)
				} else {
					v.t.set(hash(k), k, k*len(versions))
					v.m[k] = k * len(versions)
				}
			}
			versions = append(versions, v)
		}
		for _, v := range versions {
			got := v.t.values()
			slices.Sort(got)
			if want := slices.Sorted(maps.Values(v.m)); !slices.Equal(got, want) || v.t.n != len(v.m) {
				t.Fatalf("%v, not %v", got, want)
			}
			for k := range 401 {
				val, ok := v.t.get(hash(k), k)
				if want, there := v.m[k]; ok != there || val != want {
					t.Fatalf("%d is %d, %v; not %d, %v", k, val, ok, want, there)
				}
			}
		}
	})
}

// dead reports whether an SA has been ended: session closed and keys gone.
func dead(r retiree) bool {
	s := map[bool]func() offload.Session{true: func() offload.Session { return r.(*Outbound).session }, false: func() offload.Session { return r.(*Inbound).session }}
	_, out := r.(*Outbound)
	closed := s[out]().(*session).closed.Load()
	wiped := !slices.ContainsFunc(r.Params().Keys.Enc, func(b byte) bool { return b != 0 })
	if closed != wiped {
		panic("half dead")
	}
	return closed
}

// An update that fails, or panics, changes nothing: not what is there, nor who owns what was to be added.
func TestUpdateIsAllOrNothing(t *testing.T) {
	d := NewDB()
	o, i := outbound(t, params(t, 256)), inbound(t, params(t, 257))
	update(t, d, func(tx *Tx) error {
		return errors.Join(tx.AddOutbound(o), tx.AddInbound(i), tx.AddPolicy(Policy{Name: "p", Action: Protect, Out: o}))
	})
	before := d.Acquire()
	defer before.Release()
	fresh := outbound(t, params(t, 300))
	change := func(tx *Tx) error {
		moved := o.Params().Endpoint()
		moved.Dst = netip.MustParseAddr("198.51.100.77")
		return errors.Join(tx.MoveOutbound(o, moved), tx.RemoveOutbound(o), tx.RemoveInbound(i), tx.RemovePolicy(Out, "p"), tx.AddOutbound(fresh))
	}
	if err := d.Update(func(tx *Tx) error { return errors.Join(change(tx), errDisk) }); !errors.Is(err, errDisk) {
		t.Fatal(err)
	}
	func() {
		defer func() { recover() }()
		d.Update(func(tx *Tx) error {
			if err := change(tx); err != nil {
				t.Error(err)
			}
			panic("in the middle")
		})
	}()
	after := d.Acquire()
	defer after.Release()
	if after != before || d.Retiring() != 0 || o.Params().Dst != netip.MustParseAddr("198.51.100.2") {
		t.Errorf("version %d has become %d", before.Version(), after.Version())
	}
	if p, ok := after.Outbound(flow("10.0.0.1", "10.0.0.2", 6)); !ok || p.Out != o {
		t.Error("the policy has changed")
	}
	update(t, d, func(tx *Tx) error { return tx.AddOutbound(fresh) }) // nobody has taken it
}

// What is wrong with a change is said, with a sentinel and the name.
func TestTxRefusals(t *testing.T) {
	d := NewDB()
	o, i := outbound(t, params(t, 256)), inbound(t, params(t, 257))
	strangerOut, strangerIn := outbound(t, params(t, 256)), inbound(t, params(t, 257))
	another := outbound(t, params(t, 999))
	update(t, d, func(tx *Tx) error {
		return errors.Join(tx.AddOutbound(o), tx.AddInbound(i), tx.AddPolicy(Policy{Name: "p", Action: Protect, Out: o}))
	})
	var leaked *Tx
	bad := i.Params().Endpoint()
	bad.Dst = netip.MustParseAddr("2001:db8::1")
	for _, c := range []struct {
		what string
		want error
		f    func(tx *Tx) error
	}{
		{"same outbound SPI and peer", ErrExists, func(tx *Tx) error { return tx.AddOutbound(strangerOut) }},
		{"same inbound SPI", ErrExists, func(tx *Tx) error { return tx.AddInbound(strangerIn) }},
		{"same policy", ErrExists, func(tx *Tx) error { return tx.AddPolicy(Policy{Name: "p"}) }},
		{"remove a stranger", ErrNotFound, func(tx *Tx) error { return tx.RemoveOutbound(strangerOut) }},
		{"remove a stranger, in", ErrNotFound, func(tx *Tx) error { return tx.RemoveInbound(strangerIn) }},
		{"remove no policy", ErrNotFound, func(tx *Tx) error { return tx.RemovePolicy(In, "p") }},
		{"replace no policy", ErrNotFound, func(tx *Tx) error { return tx.ReplacePolicy(Policy{Name: "q"}) }},
		{"replace with nonsense", ErrParams, func(tx *Tx) error { return tx.ReplacePolicy(Policy{Name: "p", Action: 9}) }},
		{"point to a stranger", ErrNotFound, func(tx *Tx) error { return second(tx.Repoint(o, another)) }},
		{"point from a stranger", ErrNotFound, func(tx *Tx) error { return second(tx.Repoint(another, nil)) }},
		{"attach a stranger", ErrNotFound, func(tx *Tx) error { return second(tx.Attach(another)) }},
		{"a policy with a stranger", ErrNotFound, func(tx *Tx) error { return tx.AddPolicy(Policy{Name: "q", Action: Protect, Out: another}) }},
		{"move a stranger", ErrNotFound, func(tx *Tx) error { return tx.MoveInbound(strangerIn, Endpoint{}) }},
		{"move out a stranger", ErrNotFound, func(tx *Tx) error { return tx.MoveOutbound(another, Endpoint{}) }},
		{"move to nowhere", ErrParams, func(tx *Tx) error { return tx.MoveOutbound(o, Endpoint{}) }},
		{"move to two families", ErrParams, func(tx *Tx) error { return tx.MoveInbound(i, bad) }},
		{"move on top of another", ErrExists, func(tx *Tx) error {
			p := params(t, 256)
			p.Dst = netip.MustParseAddr("198.51.100.3")
			if err := tx.AddOutbound(outbound(t, p)); err != nil {
				return err
			}
			return tx.MoveOutbound(o, p.Endpoint())
		}},
		{"bring back the removed", ErrRetired, func(tx *Tx) error {
			other := NewDB()
			update(t, other, func(tx *Tx) error { return tx.AddOutbound(another) })
			return tx.AddOutbound(another)
		}},
	} {
		err := d.Update(func(tx *Tx) error { leaked = tx; return c.f(tx) })
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, not %v", c.what, err, c.want)
		}
	}
	for _, err := range []error{leaked.AddOutbound(o), leaked.AddInbound(i), leaked.RemovePolicy(Out, "p"), leaked.Replace(nil, nil, nil)} {
		if !errors.Is(err, ErrTxDone) {
			t.Errorf("after the update: %v", err)
		}
	}
	d.Close()
	d.Close()
	if err := d.Update(func(*Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// SAs are found by SPI, in the snapshots that have them, and listed in order.
func TestSnapshotsDoNotChange(t *testing.T) {
	d := NewDB()
	empty := d.Acquire()
	defer empty.Release()
	var outs []*Outbound
	var ins []*Inbound
	for n := range uint32(100) {
		p := params(t, 256+n*n)
		p.Name = fmt.Sprintf("tunnel %02d", n)
		outs, ins = append(outs, outbound(t, p)), append(ins, inbound(t, p))
	}
	for _, n := range rand.Perm(100) {
		update(t, d, func(tx *Tx) error { return errors.Join(tx.AddOutbound(outs[n]), tx.AddInbound(ins[n])) })
	}
	full := d.Acquire()
	defer full.Release()
	update(t, d, func(tx *Tx) error { return tx.Replace(outs[50:], ins[:50], nil) })
	half := d.Acquire()
	defer half.Release()
	if empty.Version() != 0 || full.Version() != 100 || half.Version() != 101 {
		t.Errorf("versions %d, %d, %d", empty.Version(), full.Version(), half.Version())
	}
	for _, c := range []struct {
		s    *Snapshot
		outs []*Outbound
		ins  []*Inbound
	}{{empty, nil, nil}, {full, outs, ins}, {half, outs[50:], ins[:50]}} {
		if !slices.Equal(c.s.Outbounds(), c.outs) || !slices.Equal(c.s.Inbounds(), c.ins) {
			t.Errorf("version %d: %d and %d SAs, or out of order", c.s.Version(), len(c.s.Outbounds()), len(c.s.Inbounds()))
		}
		for n, i := range ins {
			want := i
			if !slices.Contains(c.ins, i) {
				want = nil
			}
			if got := c.s.Inbound(i.Params().SPI); got != want {
				t.Errorf("version %d: SPI of %d gives %v", c.s.Version(), n, got)
			}
		}
		if c.s.Inbound(255) != nil {
			t.Error("an SPI that nobody has is found")
		}
	}
	for _, sas := range []int{50, 50} {
		if d.Retiring() != sas*2 {
			t.Errorf("%d retiring", d.Retiring())
		}
	}
}

// An SA lives as long as any snapshot that shows it is held, however many newer ones have come and gone, and not longer.
func TestRetireWaitsForSnapshots(t *testing.T) {
	d := NewDB()
	o, i := outbound(t, params(t, 256)), inbound(t, params(t, 257))
	update(t, d, func(tx *Tx) error { return errors.Join(tx.AddOutbound(o), tx.AddInbound(i)) })
	oldest := d.Acquire()
	update(t, d, func(tx *Tx) error { return tx.AddPolicy(Policy{Name: "p"}) })
	newer := d.Acquire()
	update(t, d, func(tx *Tx) error { return tx.RemoveOutbound(o) })
	between := d.Acquire()
	update(t, d, func(tx *Tx) error { return tx.RemoveInbound(i) })
	newer.Release() // the oldest shows both still
	between.Release()
	for range 10 {
		d.Acquire().Release()
	}
	if dead(o) || dead(i) || d.Retiring() != 2 {
		t.Fatalf("wiped while a snapshot shows them; %d retiring", d.Retiring())
	}
	oldest.Release()
	if err := d.Wait(); err != nil {
		t.Fatal(err)
	}
	if !dead(o) || !dead(i) || d.Retiring() != 0 {
		t.Errorf("not wiped; %d retiring", d.Retiring())
	}
	if err := d.Update(func(tx *Tx) error { return tx.AddOutbound(o) }); !errors.Is(err, ErrRetired) {
		t.Errorf("a dead SA comes back: %v", err)
	}
}

// What is removed and added again in one update, by hand or by Replace, goes on untouched.
func TestRemoveAndAddIsNothing(t *testing.T) {
	d := NewDB()
	o, i := outbound(t, params(t, 256)), inbound(t, params(t, 257))
	update(t, d, func(tx *Tx) error { return tx.Replace([]*Outbound{o}, []*Inbound{i}, nil) })
	update(t, d, func(tx *Tx) error { return errors.Join(tx.RemoveOutbound(o), tx.AddOutbound(o)) })
	update(t, d, func(tx *Tx) error { return tx.Replace([]*Outbound{o}, []*Inbound{i}, nil) })
	if d.Retiring() != 0 || dead(o) || dead(i) {
		t.Error("wiped")
	}
	passing := outbound(t, params(t, 300)) // comes and goes in one update: it stays the caller's
	update(t, d, func(tx *Tx) error { return errors.Join(tx.AddOutbound(passing), tx.RemoveOutbound(passing)) })
	if d.Retiring() != 0 || dead(passing) {
		t.Error("an SA that was never in the database was wiped")
	}
	d.Close()
	if err := d.Wait(); err != nil || !dead(o) || !dead(i) {
		t.Errorf("after Close: %v", err)
	}
}

// brittle is a session whose engine fails to close it.
type brittle struct{ session }

func (b *brittle) Close() error { b.session.Close(); return errDisk }

// An engine's failure to close a session is not lost, and the keys are wiped all the same.
func TestWipeErrors(t *testing.T) {
	p := params(t, 256)
	o, err := NewOutbound(p, &brittle{session{t: p.Transform}}, NewVolatileSequence())
	if err != nil {
		t.Fatal(err)
	}
	d := NewDB()
	update(t, d, func(tx *Tx) error { return tx.AddOutbound(o) })
	d.Close()
	if err := d.Wait(); !errors.Is(err, errDisk) || o.Params().Keys.Enc[0] != 0 {
		t.Errorf("%v", err)
	}
}

// A rekey moves the tunnel's policies to the new SA at once; removing an SA leaves its policies, which protect without one.
func TestRekey(t *testing.T) {
	d := NewDB()
	old, fresh := outbound(t, params(t, 256)), outbound(t, params(t, 300))
	strange := params(t, 400)
	strange.Reqid = 8
	other := outbound(t, strange)
	update(t, d, func(tx *Tx) error {
		return errors.Join(tx.AddOutbound(old), tx.AddOutbound(other),
			tx.AddPolicy(Policy{Name: "a", Action: Protect, Reqid: 7, Sel: selector(t, "dst 10.1.0.0/16")}),
			tx.AddPolicy(Policy{Name: "b", Action: Protect, Tunnel: "office", Sel: selector(t, "dst 10.2.0.0/16")}),
			tx.AddPolicy(Policy{Name: "c", Action: Protect, Reqid: 8, Out: other, Sel: selector(t, "dst 10.3.0.0/16")}),
			tx.AddPolicy(Policy{Name: "d", Action: Bypass, Reqid: 7, Sel: selector(t, "dst 10.4.0.0/16")}))
	})
	expect := func(when string, a, b *Outbound) {
		t.Helper()
		s := d.Acquire()
		defer s.Release()
		for n, want := range []*Outbound{a, b, other, nil} {
			p, ok := s.Outbound(flow("10.0.0.1", fmt.Sprintf("10.%d.0.1", n+1), 6))
			if !ok || p.Out != want {
				t.Errorf("%s: policy %d has %v", when, n, p)
			}
		}
	}
	expect("before the first SA", nil, nil)
	attach := func(o *Outbound) {
		t.Helper()
		update(t, d, func(tx *Tx) error {
			n, err := tx.Attach(o)
			if n != 2 {
				t.Errorf("%d policies attached", n)
			}
			return err
		})
	}
	attach(old)
	expect("attached", old, old)
	update(t, d, func(tx *Tx) error { return tx.AddOutbound(fresh) })
	attach(fresh)
	attach(fresh)
	expect("rekeyed", fresh, fresh)
	update(t, d, func(tx *Tx) error { return second(tx.Repoint(fresh, old)) })
	expect("pointed back", old, old)
	update(t, d, func(tx *Tx) error { return tx.RemoveOutbound(old) })
	expect("removed", nil, nil)
}

// An SA that moves keeps its numbers, window, counters and owner; it is found under its new address, and its path is unknown.
func TestMove(t *testing.T) {
	d := NewDB()
	o, i := outbound(t, params(t, 256)), inbound(t, params(t, 257))
	update(t, d, func(tx *Tx) error {
		return errors.Join(tx.AddOutbound(o), tx.AddInbound(i), tx.AddPolicy(Policy{Name: "p", Action: Protect, Out: o}))
	})
	now := time.Now()
	o.Claim(3)
	mustNext(t, o.seq)
	o.Account(5, 500, now)
	o.Publish()
	o.LearnMTU(1300, now)
	i.Advance(9)
	i.Account(4, 400, now)
	i.Publish()
	to := Endpoint{
		Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"), Encap: EncapUDP, SrcPort: 4500, DstPort: 1024, Link: 2,
	}
	update(t, d, func(tx *Tx) error {
		if err := errors.Join(tx.MoveOutbound(o, to), tx.MoveInbound(i, to), tx.MoveInbound(i, to)); err != nil {
			return err
		}
		if got, ok := tx.Outbound(256, to.Dst); !ok || got != o {
			t.Error("inside the update it is not at its new address")
		}
		return tx.AddPolicy(Policy{Name: "q", Action: Protect, Out: o}) // it is the same SA
	})
	if o.Params().Endpoint() != to || i.Params().Endpoint() != to || o.Peer() != netip.AddrPortFrom(to.Dst, 1024) {
		t.Errorf("it is at %v and sends to %v", o.Params().Endpoint(), o.Peer())
	}
	if o.MTU() != DefaultMTU || o.MaxInner() != o.Params().MaxInner(DefaultMTU) {
		t.Errorf("MTU %d, inner %d", o.MTU(), o.MaxInner())
	}
	if lane, ok := o.Owner(); !ok || lane != 3 || o.Stats().Packets != 5 || i.Stats().Packets != 4 || i.Check(9) != Duplicate || mustNext(t, o.seq) != 2 {
		t.Error("the move has lost something")
	}
	update(t, d, func(tx *Tx) error { return tx.RemoveOutbound(o) })
	if err := d.Wait(); err != nil || !dead(o) || dead(i) {
		t.Errorf("removed after the move: %v", err)
	}
}

// An SA that is renamed keeps its state and its peer; what may come through it is what the policies of its name say, of one time: to a
// snapshot from before it has the name of before.
func TestRename(t *testing.T) {
	d := NewDB()
	p := params(t, 257)
	p.Name = "old"
	i, o := inbound(t, p), outbound(t, params(t, 256))
	in := func(name string) Policy { return Policy{Name: name, Dir: In, Action: Protect, Tunnel: name} }
	update(t, d, func(tx *Tx) error { return errors.Join(tx.AddInbound(i), tx.AddOutbound(o), tx.AddPolicy(in("old"))) })
	before := d.Acquire()
	peer := netip.MustParseAddrPort("192.0.2.77:4500")
	o.SetPeer(peer)
	mustNext(t, o.seq)
	i.Advance(9)
	update(t, d, func(tx *Tx) error {
		return errors.Join(tx.RenameInbound(i, "middle"), tx.RenameInbound(i, "new"), tx.RenameOutbound(o, "new"), tx.RemovePolicy(In, "old"), tx.AddPolicy(in("new")))
	})
	after := d.Acquire()
	flow := &Flow{Src: netip.MustParseAddr("10.2.0.1"), Dst: netip.MustParseAddr("10.1.0.1"), Proto: 17}
	if !before.AllowedIn(i, flow) || !after.AllowedIn(i, flow) {
		t.Errorf("allowed: before %v, after %v", before.AllowedIn(i, flow), after.AllowedIn(i, flow))
	}
	// The old name is another's from here on.
	update(t, d, func(tx *Tx) error { return errors.Join(tx.RemovePolicy(In, "new"), tx.AddPolicy(in("old"))) })
	last := d.Acquire()
	if last.AllowedIn(i, flow) {
		t.Error("the SA still has its old name")
	}
	if i.Params().Name != "new" || o.Params().Name != "new" || o.Peer() != peer || i.Check(9) != Duplicate || mustNext(t, o.seq) != 2 {
		t.Error("the renaming has lost something")
	}
	if err := d.Update(func(tx *Tx) error { return tx.RenameInbound(inbound(t, params(t, 300)), "x") }); !errors.Is(err, ErrNotFound) {
		t.Errorf("one that is not there: %v", err)
	}
	before.Release()
	after.Release()
	last.Release()
}

// A snapshot that is released too often is a mistake that shows at once.
func TestDoubleReleasePanics(t *testing.T) {
	d := NewDB()
	s := d.Acquire()
	update(t, d, func(tx *Tx) error { return tx.AddPolicy(Policy{Name: "p"}) })
	s.Release()
	defer func() {
		if recover() == nil {
			t.Error("nothing happens")
		}
	}()
	s.Release()
}

// Lanes that look SAs up while a writer replaces them never hold one that is wiped, and in the end all that were removed are.
// Meaningful with -race, which sees a wiped key being read.
func TestLanesAndWriter(t *testing.T) {
	d := NewDB()
	rounds := 300
	if testing.Short() {
		rounds = 100
	}
	var stop atomic.Bool
	var lanes sync.WaitGroup
	var served atomic.Int64
	for lane := range 3 {
		lanes.Go(func() {
			var late []*Snapshot // bursts that are in some engine's queue
			for n := 0; !stop.Load(); n++ {
				s := d.Acquire()
				for spi := uint32(256); spi < 264; spi++ {
					if i := s.Inbound(spi); i != nil {
						served.Add(1)
						if dead(i) || dead(i.Paired()) {
							t.Error("a visible SA is wiped")
						}
						if i.Claim(lane, 0) {
							i.Advance(i.Seq(uint32(n)))
							i.Account(1, 1, i.life.added)
							i.Publish()
						}
					}
				}
				if p, ok := s.Outbound(&Flow{Src: netip.AddrFrom4([4]byte{10}), Dst: netip.AddrFrom4([4]byte{10})}); ok && p.Out != nil && dead(p.Out) {
					t.Error("a policy points to a wiped SA")
				}
				if late = append(late, s); len(late) > 5 {
					k := rand.IntN(len(late))
					late[k].Release()
					late = slices.Delete(late, k, k+1)
				}
			}
			for _, s := range late {
				s.Release()
			}
		})
	}
	var all []retiree
	for round := range rounds {
		update(t, d, func(tx *Tx) error {
			spi := uint32(256 + round%8)
			p := params(t, spi)
			p.ReplayWindow = 64
			o := outbound(t, p)
			i, err := NewInbound(p, &session{t: p.Transform, dir: offload.Open}, o)
			if err != nil {
				return err
			}
			all = append(all, o, i)
			if old, ok := tx.Inbound(spi); ok {
				if err := errors.Join(tx.RemoveInbound(old), tx.RemoveOutbound(old.Paired())); err != nil {
					return err
				}
			}
			name := fmt.Sprint(round % 3) // policies come and go too
			if _, ok := tx.Policy(Out, name); ok {
				if err := tx.RemovePolicy(Out, name); err != nil {
					return err
				}
			} else if err := tx.AddPolicy(Policy{Name: name, Action: Protect, Reqid: 7, Priority: -round, Sel: Selector{Dst: prefix([]string{"10.0.0.0/8", ""}[round%2])}}); err != nil {
				return err
			}
			if err := errors.Join(tx.AddOutbound(o), tx.AddInbound(i)); err != nil {
				return err
			}
			return second(tx.Attach(o))
		})
		d.Expiries(time.Now())
	}
	for served.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	stop.Store(true)
	lanes.Wait()
	d.Close()
	if err := d.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if !dead(r) {
			t.Fatalf("%v was removed and is not wiped", r)
		}
	}
}

// Ten thousand SAs with their policies are made and removed one update at a time, in any order of magnitude but minutes.
func BenchmarkLoadSAs(b *testing.B) {
	for b.Loop() {
		d := NewDB()
		var ins []*Inbound
		for n := range uint32(10_000) {
			i := inbound(b, params(b, 256+n))
			ins = append(ins, i)
			update(b, d, func(tx *Tx) error { return tx.AddInbound(i) })
		}
		for _, i := range ins {
			update(b, d, func(tx *Tx) error { return tx.RemoveInbound(i) })
		}
		if err := d.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSnapshotInbound(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("%d SAs", n), func(b *testing.B) {
			d := NewDB()
			defer d.Close()
			spis := make([]uint32, 1024)
			update(b, d, func(tx *Tx) error {
				for k := range n {
					p := params(b, 0xc0000000|rand.Uint32()>>2)
					spis[k%len(spis)] = p.SPI
					if err := tx.AddInbound(inbound(b, p)); err != nil && !errors.Is(err, ErrExists) {
						return err
					}
				}
				return nil
			})
			busy := spis[:min(n, 1024)]
			s := d.Acquire()
			defer s.Release()
			defer perPacket(b)()
			for i := 0; b.Loop(); i++ {
				if s.Inbound(busy[i%len(busy)]) == nil {
					b.Fatal("not found")
				}
			}
		})
	}
}

// BenchmarkAcquireRelease is once per burst, not per packet.
func BenchmarkAcquireRelease(b *testing.B) {
	b.Run("one lane", func(b *testing.B) {
		d := NewDB()
		defer perPacket(b)()
		for b.Loop() {
			d.Acquire().Release()
		}
	})
	b.Run("a lane on each processor", func(b *testing.B) {
		d := NewDB()
		defer perPacket(b)()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				d.Acquire().Release()
			}
		})
	})
}

// Errors say which SA or policy they are about.
func TestErrorsName(t *testing.T) {
	d := NewDB()
	o := outbound(t, params(t, 0xc0ffee01))
	for want, f := range map[string]func(tx *Tx) error{
		`outbound "office" spi 0xc0ffee01 to 198.51.100.2`: func(tx *Tx) error { return tx.RemoveOutbound(o) },
		`policy "p" in`: func(tx *Tx) error { return tx.RemovePolicy(In, "p") },
	} {
		if err := d.Update(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s: %v", want, err)
		}
	}
}
