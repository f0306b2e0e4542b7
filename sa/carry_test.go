package sa

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What Replay shows is what the window knows, after every burst, and a window that resumes from it gives the same verdicts.
func TestReplayShowsAndResumes(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{32, 33, 64, 100, 128, 1024}).Draw(t, "window")
		withWindow := func(size int) *Inbound {
			p := params(outer, 0x1000)
			p.ReplayWindow = size
			return inbound(outer, p)
		}
		in := withWindow(size)
		next := rapid.Uint64Range(1, 5000).Draw(t, "start")
		for range rapid.IntRange(1, 12).Draw(t, "bursts") {
			for range rapid.IntRange(0, 40).Draw(t, "packets") {
				seq := next
				switch rapid.IntRange(0, 9).Draw(t, "kind") {
				case 0:
					seq -= min(seq-1, rapid.Uint64Range(0, uint64(2*size)).Draw(t, "late"))
				case 1:
					seq += rapid.Uint64Range(1, uint64(4*size)).Draw(t, "jump")
				}
				in.Advance(seq)
				next = max(next, seq) + 1
			}
			in.Account(1, 100, time.Now())
			in.Publish()
			r := in.Replay()
			if r.Top != in.Top() {
				t.Fatalf("Replay shows the top %d, it is %d", r.Top, in.Top())
			}
			again := withWindow(size)
			again.ResumeReplay(r)
			low := r.Top - min(r.Top, uint64(size)+3)
			for seq := low; seq < r.Top+3; seq++ {
				if a, b := in.CheckSeq(seq), again.CheckSeq(seq); a != b {
					t.Fatalf("window %d, top %d: %d was %v and is %v after taking over", size, r.Top, seq, a, b)
				}
			}
			if got := again.Replay(); len(got.Seen) != len(r.Seen) || got.Top != r.Top {
				t.Fatalf("taken over as %d words up to %d, from %d up to %d", len(got.Seen), got.Top, len(r.Seen), r.Top)
			} else {
				for n := range r.Seen {
					if got.Seen[n] != r.Seen[n] {
						t.Fatalf("word %d is %#x, was %#x", n, got.Seen[n], r.Seen[n])
					}
				}
			}
		}
	})
}

// Readers of a window in use see it whole: in order, so that everything up to the top has been seen.
func TestReplayWhileInUse(t *testing.T) {
	p := params(t, 0x1000)
	p.ReplayWindow = 256
	in := inbound(t, p)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for seq := uint64(1); ; seq++ {
			select {
			case <-stop:
				return
			default:
			}
			in.Advance(seq)
			if seq%7 == 0 {
				in.Account(7, 700, time.Now())
				in.Publish()
			}
		}
	})
	for range 3000 {
		r := in.Replay()
		for n := range min(r.Top, 256) {
			if r.Seen[n/64]&(1<<(n%64)) == 0 {
				t.Fatalf("top %d: %d is not shown as seen", r.Top, r.Top-n)
			}
		}
	}
	close(stop)
	wg.Wait()
}

// An SA that replaces another goes on with its age, its counters and its limits.
func TestCarry(t *testing.T) {
	p := params(t, 0x1000)
	p.Lifetime = Lifetime{Soft: Limits{Packets: 8}, Hard: Limits{Packets: 10, Add: time.Hour}}
	out := outbound(t, p)
	out.Carry(Use{Packets: 7, Bytes: 700, Age: time.Minute, FirstUse: 50 * time.Second, LastUse: time.Second})
	s := out.Stats()
	if s.Packets != 7 || s.Bytes != 700 {
		t.Errorf("counters are %d packets, %d bytes", s.Packets, s.Bytes)
	}
	near := func(what string, at time.Time, ago time.Duration) {
		if d := time.Since(at) - ago; d < -100*time.Millisecond || d > time.Second {
			t.Errorf("%s is %v ago, want %v", what, time.Since(at), ago)
		}
	}
	near("added", s.Added, time.Minute)
	near("first use", s.FirstUse, 50*time.Second)
	near("last use", s.LastUse, time.Second)
	now := time.Now()
	out.Account(1, 100, now)
	out.Publish()
	if s := out.Stats(); !s.SoftExpired || s.HardExpired {
		t.Errorf("after 8 packets: soft %v, hard %v", s.SoftExpired, s.HardExpired)
	}
	if err := out.SetLifetime(Lifetime{Soft: Limits{Packets: 20}, Hard: Limits{Packets: 9}}); err == nil {
		t.Error("a soft limit beyond the hard one was taken")
	}
	if err := out.SetLifetime(Lifetime{Soft: Limits{Packets: 9}, Hard: Limits{Packets: 12}}); err != nil {
		t.Fatal(err)
	}
	if s := out.Stats(); s.SoftExpired {
		t.Error("the soft limit was raised and is still passed")
	}
	out.Account(1, 100, now)
	out.Publish()
	if s := out.Stats(); !s.SoftExpired || s.HardExpired {
		t.Errorf("after 9 packets: soft %v, hard %v", s.SoftExpired, s.HardExpired)
	}
	out.Account(3, 300, now)
	out.Publish()
	if !out.Expired() {
		t.Error("12 packets are not the hard limit")
	}
}

// The last number of a removed SA is final once it is wiped, also if it was never accounted.
func TestWipedIsFinal(t *testing.T) {
	db := NewDB()
	out := outbound(t, params(t, 0x1000))
	if err := db.Update(func(tx *Tx) error { return tx.AddOutbound(out) }); err != nil {
		t.Fatal(err)
	}
	snap := db.Acquire()
	for range 3 {
		if _, err := out.NextSeq(); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Update(func(tx *Tx) error { return tx.RemoveOutbound(out) }); err != nil {
		t.Fatal(err)
	}
	if out.Wiped() {
		t.Error("wiped while a lane holds a snapshot")
	}
	if n, err := out.NextSeq(); n != 4 || err != nil {
		t.Fatalf("NextSeq is %d, %v", n, err)
	}
	snap.Release()
	if err := db.Wait(); err != nil {
		t.Fatal(err)
	}
	if s := out.Stats(); !out.Wiped() || s.Seq != 4 {
		t.Errorf("wiped %v, last number %d", out.Wiped(), s.Seq)
	}
	seq := NewVolatileSequence()
	if err := seq.SkipPast(4); err != nil {
		t.Fatal(err)
	}
	next, err := NewOutbound(params(t, 0x1000), &session{t: transform(t, gcm)}, seq)
	if err != nil {
		t.Fatal(err)
	}
	if s := next.Stats(); s.Seq != 4 {
		t.Errorf("an SA that goes on behind 4 shows %d", s.Seq)
	}
	if n, err := next.NextSeq(); n != 5 || err != nil {
		t.Errorf("NextSeq is %d, %v", n, err)
	}
}

// An inbound SA that is put on another link changes hands when the last burst that saw it on the former one is done, with
// everything shown; a lane that pays its debts late does not touch what is another's. One that comes back in between stays.
func TestMovedToAnotherLink(t *testing.T) {
	db := NewDB()
	in := inbound(t, params(t, 0x1001))
	update(t, db, func(tx *Tx) error { return tx.AddInbound(in) })
	move := func(link int) {
		t.Helper()
		update(t, db, func(tx *Tx) error {
			e := in.Params().Endpoint()
			e.Link = link
			return tx.MoveInbound(in, e)
		})
	}
	owner := func(want int) {
		t.Helper()
		for give := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			lane, ok := in.Owner()
			if want < 0 && !ok || ok && lane == want {
				return
			}
			if time.Now().After(give) {
				t.Fatalf("the owner is %d, %v, not %d", lane, ok, want)
			}
		}
	}
	snap := db.Acquire()
	if !in.Claim(1, 0) {
		t.Fatal("not claimed")
	}
	in.Advance(7)
	in.Account(1, 100, time.Now())
	move(1)
	if in.Claim(2, 1) {
		t.Fatal("claimed while the former lane has a burst in hand")
	}
	in.Advance(9)
	in.Account(1, 100, time.Now())
	snap.Release()
	owner(-1)
	if s, r := in.Stats(), in.Replay(); s.Packets != 2 || r.Top != 9 {
		t.Errorf("handed over with %d packets, number %d shown", s.Packets, r.Top)
	}
	if !in.Claim(2, 1) {
		t.Fatal("not claimed by the new lane")
	}
	in.Advance(10)
	in.Account(1, 100, time.Now())
	in.PublishFor(1)
	if s := in.Stats(); s.Packets != 2 {
		t.Error("a lane that has lost the SA publishes what is another's")
	}
	in.PublishFor(2)
	if s, r := in.Stats(), in.Replay(); s.Packets != 3 || r.Top != 10 {
		t.Errorf("the new lane shows %d packets, number %d", s.Packets, r.Top)
	}

	// There and back, while a burst of before is in hand: lane 2 has never lost it, until the third move.
	snap = db.Acquire()
	move(7)
	move(1)
	later := db.Acquire()
	snap.Release()
	time.Sleep(5 * time.Millisecond)
	if !in.Claim(2, 1) {
		t.Fatal("the lane has lost an SA of its own link")
	}
	move(5)
	if in.Claim(3, 5) {
		t.Fatal("claimed while a burst of the second move is in hand")
	}
	in.Advance(11)
	later.Release()
	owner(-1)
	// What moves but stays on its link stays with its lane.
	in.Claim(4, 5)
	update(t, db, func(tx *Tx) error {
		e := in.Params().Endpoint()
		e.Src = netip.MustParseAddr("203.0.113.99")
		return tx.MoveInbound(in, e)
	})
	db.Acquire().Release()
	time.Sleep(5 * time.Millisecond)
	owner(4)
	db.Close()
	if err := db.Wait(); err != nil {
		t.Fatal(err)
	}
}

// Who watches hears of every update, once for those that it has not looked at, and of none that failed or after it has stopped.
func TestWatch(t *testing.T) {
	db := NewDB()
	a, stopA := db.Watch()
	b, stopB := db.Watch()
	heard := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	if heard(a) {
		t.Error("nothing has changed")
	}
	add := func(name string) error {
		return db.Update(func(tx *Tx) error { return tx.AddPolicy(Policy{Name: name}) })
	}
	if add("1") != nil || add("2") != nil {
		t.Fatal("not added")
	}
	if !heard(a) || heard(a) || !heard(b) || heard(b) {
		t.Error("not heard once")
	}
	if add("2") == nil || heard(a) {
		t.Error("heard of an update that failed")
	}
	stopA()
	if add("3") != nil || heard(a) || !heard(b) {
		t.Error("after one has stopped")
	}
	stopB()
	stopB()
}

// A lane may still owe a Publish when an SA is wiped; what is shown is final either way.
func TestWipedBeforePublish(t *testing.T) {
	db := NewDB()
	out, in := outbound(t, params(t, 0x1000)), inbound(t, params(t, 0x1001))
	update(t, db, func(tx *Tx) error { return errors.Join(tx.AddOutbound(out), tx.AddInbound(in)) })
	snap := db.Acquire()
	for range 3 {
		if _, err := out.NextSeq(); err != nil {
			t.Fatal(err)
		}
	}
	out.Account(2, 200, time.Now())
	in.Advance(7)
	in.Account(1, 100, time.Now())
	update(t, db, func(tx *Tx) error { return errors.Join(tx.RemoveOutbound(out), tx.RemoveInbound(in)) })
	snap.Release()
	out.Publish()
	in.Publish()
	if err := db.Wait(); err != nil {
		t.Fatal(err)
	}
	if s := out.Stats(); s.Seq != 3 || s.Packets != 2 {
		t.Errorf("the outbound SA ends with number %d, %d packets", s.Seq, s.Packets)
	}
	if s, r := in.Stats(), in.Replay(); s.Packets != 1 || r.Top != 7 || r.Seen[0] != 1 {
		t.Errorf("the inbound SA ends with number %d, %d packets, window %x", r.Top, s.Packets, r.Seen)
	}
}
