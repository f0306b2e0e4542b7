package sa

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// persisted is an inbound SA with a mark in a store.
func persisted(tb testing.TB, s *Store, p Params) *Inbound {
	tb.Helper()
	i := inbound(tb, p)
	r, err := s.Received(p.SPI, p.Dst, p.Keys)
	if err == nil {
		err = i.Persist(r)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return i
}

// accept is what a lane does with one packet.
func accept(i *Inbound, seq uint64) bool {
	return i.CheckSeq(seq) == Fresh && i.Advance(seq) == Fresh
}

const (
	childSAs   = 3
	childBurst = 32
)

// receive is a gateway that is killed. From its input it reads packets, each the index of an SA and a number, in bursts; those of each
// burst that it accepts it writes to its output, as one would be delivered, and a record of zeros behind them.
func receive(dir string, memory bool) error {
	if !memory {
		topsDirs = nil
	}
	s, err := OpenStore(dir)
	if err != nil {
		return err
	}
	if (s.Memory() == nil) != memory {
		return fmt.Errorf("memory: %v", s.Memory())
	}
	var ins [childSAs]*Inbound
	tb := &testing.B{}
	for k := range ins {
		p := params(tb, 0x1000+uint32(k))
		p.Keys.ESN = k == 1
		ins[k] = persisted(tb, s, p)
	}
	in := bufio.NewReader(os.Stdin)
	var rec [9]byte
	for {
		var out []byte
		for range childBurst {
			if _, err := io.ReadFull(in, rec[:]); err != nil {
				return err
			}
			if accept(ins[rec[0]], binary.BigEndian.Uint64(rec[1:])) {
				out = append(out, rec[:]...)
			}
		}
		for _, i := range ins {
			i.Account(1, 1, time.Now())
		}
		clear(rec[:])
		if _, err := syscall.Write(1, append(out, rec[:]...)); err != nil {
			return err
		}
	}
}

// A process that is killed at any moment, many times, never accepts a packet that an earlier one has accepted, though all of those are
// sent again and again; with the memory that outlives it, it accepts all others, without it those beyond the mark.
func TestKillNeverAcceptsTwice(t *testing.T) {
	for _, what := range []string{"receive", "receive without memory"} {
		t.Run(what, func(t *testing.T) {
			rounds := 50
			if testing.Short() {
				rounds = 10
			}
			dir := t.TempDir()
			t.Cleanup(func() {
				if err := open(dir); err != nil {
					t.Error(err)
				}
			})
			accepted := map[[9]byte]bool{}
			var order [][9]byte
			var next [childSAs]uint64
			next[1] = 1 << 33
			record := func(k int, seq uint64) (r [9]byte) {
				r[0] = byte(k)
				binary.BigEndian.PutUint64(r[1:], seq)
				return r
			}
			var began [childSAs]bool
			fresh, replays, lost := 0, 0, 0
			for round := range rounds {
				if what != "receive" { // past the mark, which is all that is known; the first packets wait for the disk
					for k := range next {
						next[k] += 2 * firstHead
					}
				}
				c := child(what, dir)
				stdin, stdout := pipes(t, c)
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				// exchange sends a burst, and gives what is accepted of it; false when the child has ended.
				exchange := func(burst [][9]byte) (got [][9]byte, ok bool) {
					var b []byte
					for _, r := range burst {
						b = append(b, r[:]...)
					}
					b = append(b, make([]byte, 9*(childBurst-len(burst)))...) // number 0, which nobody accepts
					if _, err := stdin.Write(b); err != nil {
						return nil, false
					}
					for {
						var r [9]byte
						if _, err := io.ReadFull(stdout, r[:]); err != nil {
							return got, false
						}
						if r == [9]byte{} {
							return got, true
						}
						if r[0] >= childSAs {
							rest, _ := io.ReadAll(stdout)
							t.Fatalf("round %d: the child says: %s%s", round, r[:], rest)
						}
						got = append(got, r)
						if accepted[r] {
							t.Fatalf("round %d: SA %d has accepted %#x twice", round, r[0], binary.BigEndian.Uint64(r[1:]))
						}
						accepted[r] = true
						order = append(order, r)
					}
				}
				ok := true
				for at := 0; ok && at < len(order); at += childBurst {
					burst := order[at:min(at+childBurst, len(order))]
					replays += len(burst)
					_, ok = exchange(burst[:len(burst):len(burst)])
				}
				if !ok {
					t.Fatalf("round %d: the child has ended early", round)
				}
				kill := rand.IntN(60)
				for n := 0; ok; n++ {
					if n == kill {
						if err := c.Process.Kill(); err != nil {
							t.Fatal(err)
						}
					}
					var burst [][9]byte
					k := rand.IntN(childSAs)
					for range childBurst {
						next[k]++
						burst = append(burst, record(k, next[k]))
					}
					rand.Shuffle(len(burst), func(a, b int) { burst[a], burst[b] = burst[b], burst[a] })
					var got [][9]byte
					got, ok = exchange(burst)
					fresh += len(got)
					if ok && began[k] {
						lost += len(burst) - len(got)
					}
					began[k] = began[k] || len(got) > 0 // until the first mark of SA 1 has leapt to where its numbers begin
				}
				c.Wait()
			}
			t.Logf("%d packets accepted, %d refused in %d rounds, %d replays", fresh, lost, rounds, replays)
			if fresh < 10*rounds || replays == 0 {
				t.Error("that proves little")
			}
			if what == "receive" && lost > 0 {
				t.Errorf("%d fresh packets were refused", lost)
			}
		})
	}
}

func pipes(t *testing.T, c *exec.Cmd) (io.Writer, io.Reader) {
	t.Helper()
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	return in, out
}

// Whatever the disk refuses or loses, and whenever power fails: no number is accepted twice, each that is accepted lies below a mark that
// is durable at that moment, and what is refused after a failure is bounded.
func TestReceivedSurvivesPowerFailures(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	failing := false
	d := &simDisk{coin: func() bool { return r.IntN(2) == 0 }, fails: func(string) bool { return failing && r.IntN(3) == 0 }}
	s, err := loadStore(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := params(t, 0x1234)
	i := persisted(t, s, p)
	now := i.life.added
	seen := map[uint64]bool{}
	next, refused, dropped := uint64(0), 0, 0
	for step := range 60_000 {
		failing = step/1000%3 == 2
		switch n := r.IntN(2000); {
		case n == 0: // power fails
			d.crash()
			failing = false
			if s, err = loadStore(d, d.durable); err != nil {
				t.Fatal(err)
			}
			i = persisted(t, s, p)
			now = i.life.added
			refused = 0
		case n < 100:
			s.extend() // whether it works or not
		case n < 110:
			now = now.Add(15 * time.Second)
		case n < 115:
			next += uint64(r.IntN(100_000)) // the peer restarts
		}
		now = now.Add(time.Millisecond)
		seq := max(1, next-min(next, uint64(r.IntN(200)))) // an old one, or
		if r.IntN(10) > 0 {
			next++
			seq = next
		}
		switch {
		case accept(i, seq):
			if seen[seq] {
				t.Fatalf("step %d: %d was accepted twice", step, seq)
			}
			seen[seq] = true
			marks, err := decodeMarks(d.durable)
			if err != nil {
				t.Fatal(err)
			}
			if m := marks[i.received.slot]; seq >= m.next {
				t.Fatalf("step %d: %d was accepted with a durable mark of %d", step, seq, m.next)
			}
			i.Account(1, 1, now)
			refused = 0
		case !seen[seq] && seq == next:
			dropped++
			if refused++; refused > firstHead+60_000/20 && !failing {
				t.Fatalf("step %d: %d packets were refused one after another", step, refused)
			}
		}
	}
	t.Logf("%d accepted, %d refused", len(seen), dropped)
	if len(seen) < 20_000 || dropped == 0 {
		t.Error("that proves little")
	}
}

// The mark keeps its distance by the rate, and comes back to an SA that has become slow; a slow disk costs packets beyond the mark,
// and nothing else.
func TestReceivedFollowsTheRate(t *testing.T) {
	d := &simDisk{coin: never, fails: works}
	s, err := loadStore(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	i := persisted(t, s, params(t, 0x1234))
	rec := i.received
	if rec.limit != firstHead+1 {
		t.Errorf("at first the limit is %d", rec.limit)
	}
	now := i.life.added
	seq := uint64(0)
	// run sends packets at a rate, with a disk that takes 5 ms, and counts those that are refused.
	run := func(rate int, d time.Duration) (refused int) {
		every := time.Second / time.Duration(rate)
		disk := now
		for end := now.Add(d); now.Before(end); now = now.Add(every) {
			seq++
			if !accept(i, seq) {
				refused++
			}
			i.Account(1, 1, now)
			if now.Sub(disk) >= 5*time.Millisecond {
				s.extend()
				disk = now
			}
		}
		return refused
	}
	ahead := func() uint64 { return s.marks[rec.slot].next - 1 - seq }
	for _, c := range []struct {
		rate     int
		d        time.Duration
		min, max uint64
	}{
		{1, 100 * time.Second, minHead / 4, minHead + 1},
		{100_000, 4 * time.Second, 100_000, 400_001},
		{10, 100 * time.Second, minHead / 4, minHead + 1},
		{20_000, time.Second, 5000, 150_000},
		{1_000, 120 * time.Second, 1000, 4_001},
	} {
		if n := run(c.rate, c.d); n != 0 {
			t.Errorf("at %d a second %d packets were refused", c.rate, n)
		}
		if a := ahead(); a < c.min || a > c.max {
			t.Errorf("at %d a second the mark is %d ahead, want %d to %d", c.rate, a, c.min, c.max)
		}
	}
	// A disk that does not answer.
	limit := rec.limit
	for range 10_000 {
		seq++
		if ok := accept(i, seq); ok != (seq < limit) {
			t.Fatalf("%d with a limit of %d: %v", seq, limit, ok)
		}
		i.Account(1, 1, now)
	}
	if v := i.Advance(seq); v != NotMarked {
		t.Errorf("beyond the limit: %v", v)
	}
	for range 3 { // what was asked for, and what was still missing
		s.extend()
		seq++
		accept(i, seq)
	}
	if seq++; !accept(i, seq) {
		t.Error("refused when the disk has answered")
	}
}

// After a stop in order the window goes on where it was: everything before is refused, everything after accepted. A mark is one SA's,
// for its SPI and setting of ESN, and is given out once.
func TestReceivedResumes(t *testing.T) {
	dir := t.TempDir()
	p := params(t, 0x1234)
	s := openStore(t, dir)
	if err := s.Memory(); err != nil {
		t.Fatal(err)
	}
	db := NewDB()
	i := persisted(t, s, p)
	update(t, db, func(tx *Tx) error { return tx.AddInbound(i) })
	for seq := uint64(1); seq <= 100; seq++ {
		accept(i, seq)
	}
	i.Account(100, 100, time.Now())
	if _, err := s.Received(p.SPI, p.Dst, p.Keys); !errors.Is(err, ErrStoreBusy) || !strings.Contains(err.Error(), "0x00001234") {
		t.Errorf("a second one: %v", err)
	}
	other, err := s.Received(p.SPI+1, p.Dst, p.Keys)
	if err != nil || other.top0 != 0 {
		t.Fatalf("another SPI begins at %d: %v", other.top0, err)
	}
	if err := inbound(t, p).Persist(i.received); !errors.Is(err, ErrParams) {
		t.Errorf("a mark for two: %v", err)
	}
	q := p
	q.Keys.ESN = true
	if err := inbound(t, q).Persist(other); !errors.Is(err, ErrParams) {
		t.Errorf("the other ESN: %v", err)
	}
	q = p
	q.NoReplayCheck = true
	if err := inbound(t, q).Persist(other); !errors.Is(err, ErrParams) {
		t.Errorf("no replay check: %v", err)
	}
	name := s.memory.f.Name()
	other.Close()
	db.Close()
	if err := errors.Join(db.Wait(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", name, err)
	}

	s = openStore(t, dir)
	if m := s.marks[s.byKey[receivedID(KeyID(p.Keys), p.SPI)]]; m.next != 101 {
		t.Errorf("on disk is %d", m.next)
	}
	i = persisted(t, s, p)
	for seq := uint64(0); seq < 150; seq++ {
		if accept(i, seq) != (seq > 100) {
			t.Errorf("%d: %v", seq, seq <= 100)
		}
	}
	if st := i.Stats(); st.Seq != 100 {
		t.Errorf("it shows %d", st.Seq)
	}
	// Closed and opened again before the disk has it.
	i.Account(1, 1, time.Now())
	i.received.Close()
	if i = persisted(t, s, p); i.Top() != 149 {
		t.Errorf("goes on at %d", i.Top())
	}
	i.received.Close()
	var none *Received
	none.Close()
}

// At the end of the numbers the mark ends too.
func TestReceivedEnds(t *testing.T) {
	for _, esn := range []bool{false, true} {
		s, err := loadStore(&simDisk{coin: never, fails: works}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p := params(t, 0x1234)
		p.Keys.ESN = esn
		i := persisted(t, s, p)
		now := i.life.added
		if accept(i, lastSeq(esn)) {
			t.Error("a leap beyond the mark is accepted")
		}
		s.extend()
		for _, seq := range []uint64{lastSeq(esn) - 1, lastSeq(esn)} {
			if !accept(i, seq) {
				t.Errorf("%#x is refused", seq)
			}
			i.Account(1, 1, now)
			now = now.Add(time.Minute)
			s.extend()
		}
		if next := s.marks[i.received.slot].next; next != lastSeq(esn)+1 {
			t.Errorf("the mark is %#x", next)
		}
		if esn && accept(i, math.MaxUint64) {
			t.Error("a number that no sender uses is accepted")
		}
	}
}

// The memory is a file of this user alone, on a tmpfs; anything else is left alone, and the mark on disk holds.
func TestMemoryIsOurOwn(t *testing.T) {
	defer func(d []string) { topsDirs = d }(topsDirs)
	dir := t.TempDir()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var st syscall.Stat_t
	if err := syscall.Fstat(int(d.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	shm, err := os.MkdirTemp("/dev/shm", "culvert-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(shm)
	name := filepath.Join(shm, fmt.Sprintf("culvert-%x-%x", st.Dev, st.Ino))
	victim := filepath.Join(shm, "victim")
	for what, prepare := range map[string]func() error{
		"a link":             func() error { return os.Symlink(victim, name) },
		"a second name":      func() error { return errors.Join(os.WriteFile(victim, nil, 0o600), os.Link(victim, name)) },
		"others may read it": func() error { return errors.Join(os.WriteFile(name, nil, 0o600), os.Chmod(name, 0o644)) },
		"a pipe":             func() error { return syscall.Mkfifo(name, 0o600) },
		"another user's":     func() error { return errors.Join(os.WriteFile(name, nil, 0o600), os.Chown(name, 1234, 1234)) },
	} {
		os.Remove(name)
		os.Remove(victim)
		topsDirs = []string{shm}
		if err := prepare(); err != nil {
			if what == "another user's" && os.Geteuid() != 0 {
				continue
			}
			t.Fatal(err)
		}
		s := openStore(t, dir)
		if s.Memory() == nil {
			t.Errorf("%s is used", what)
		}
		i := persisted(t, s, params(t, 0x1234))
		accept(i, i.Top()+1)
		i.Account(1, 1, time.Now())
		i.received.Close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(victim); err == nil && st.Size() > 0 {
			t.Errorf("%s: it was written to", what)
		}
	}
	topsDirs = []string{"/proc"}
	if s := openStore(t, dir); s.Memory() == nil || !strings.Contains(s.Memory().Error(), "/proc is not a tmpfs") {
		t.Errorf("%v", s.Memory())
	}
}

// A store that is in memory has its memory with it, and not where nobody would remove it.
func TestMemoryInTheDirectory(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "culvert-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir)
	if err := s.Memory(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("culvert-%x-%x", st.Dev, st.Ino)
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
		t.Error(err)
	}
	for _, d := range topsDirs {
		if _, err := os.Stat(filepath.Join(d, name)); err == nil {
			t.Errorf("it is in %s", d)
		}
	}
}

// A record in memory counts only if the process that wrote it is the one that wrote the mark last, and had finished.
func TestMemoryMustAgree(t *testing.T) {
	dir := t.TempDir()
	p := params(t, 0x1234)
	const top = 70
	for what, spoil := range map[string]func(r *topRecord){
		"nothing":              func(r *topRecord) {},
		"half written":         func(r *topRecord) { r.top++ },
		"of another process":   func(r *topRecord) { r.gen ^= 2 },
		"of another key":       func(r *topRecord) { r.id[0] ^= 1 },
		"beyond the mark":      func(r *topRecord) { r.set(1 << 40) },
		"empty":                func(r *topRecord) { *r = topRecord{} },
		"empty, 0 as mark too": func(r *topRecord) { r.gen, r.top, r.not = 0, 0, math.MaxUint64 },
	} {
		os.Remove(filepath.Join(dir, marksName))
		s := openStore(t, dir)
		i := persisted(t, s, p)
		for seq := uint64(1); seq <= top; seq++ {
			accept(i, seq)
		}
		i.Account(1, 1, time.Now())
		spoil(i.received.memory)
		limit := i.received.limit
		if err := s.Close(); err != nil { // as if killed: the mark is not closed
			t.Fatal(err)
		}
		s = openStore(t, dir)
		i = persisted(t, s, p)
		want := limit - 1
		if what == "nothing" {
			want = top
		}
		if i.Top() != want {
			t.Errorf("%s: it goes on at %d, want %d", what, i.Top(), want)
		}
		i.received.Close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReceivedAllocatesNothing(t *testing.T) {
	s := openStore(t, t.TempDir())
	i := persisted(t, s, params(t, 0x1234))
	now, seq := time.Now(), uint64(0)
	noAllocs(t, "inbound with a mark", func() {
		seq++
		i.Advance(seq)
		i.Account(1, 1, now)
		i.Publish()
	})
	i.received.Close()
}

// Many inbound SAs get their marks with one wait for the disk, all or none.
func TestReceiveds(t *testing.T) {
	syncs, broken := 0, false
	d := &simDisk{coin: never, fails: func(op string) bool {
		if op == "sync" {
			syncs++
		}
		return broken
	}}
	s, err := loadStore(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	const n = 1000
	var ids []ReceivedID
	for i := range n {
		p := params(t, uint32(0x1000+i))
		ids = append(ids, ReceivedID{p.SPI, p.Dst, p.Keys})
	}
	if _, err := s.Receiveds(append(slices.Clone(ids), ids[7])); !errors.Is(err, ErrStoreBusy) || !strings.Contains(err.Error(), "0x00001007") {
		t.Fatalf("one twice: %v", err)
	}
	broken = true
	if _, err := s.Receiveds(ids); err == nil {
		t.Fatal("a disk that fails gives marks")
	}
	broken, syncs = false, 0
	all, err := s.Receiveds(ids)
	if err != nil {
		t.Fatal(err)
	}
	if syncs > 1 {
		t.Errorf("the disk was waited for %d times", syncs)
	}
	marks, err := decodeMarks(d.durable)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range all {
		if m := marks[r.slot]; r.top != 0 || r.limit != firstHead+1 || m.next != r.limit || !m.in || m.id.SPI != ids[i].SPI {
			t.Fatalf("the mark of 0x%08x is %+v, durable %+v", ids[i].SPI, r, m)
		}
	}
	if _, err := s.Received(ids[3].SPI, ids[3].Dst, ids[3].Keys); !errors.Is(err, ErrStoreBusy) {
		t.Errorf("one that is open: %v", err)
	}
}
