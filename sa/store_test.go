package sa

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// childEnv makes the test binary a program of its own: what it says is the program, and the directory after a colon.
const childEnv = "CULVERT_SA_CHILD"

func TestMain(m *testing.M) {
	what, dir, ok := strings.Cut(os.Getenv(childEnv), ":")
	if !ok {
		os.Exit(m.Run())
	}
	program := map[string]func(string) error{
		"number": func(dir string) error { return number(dir, true) }, "open": open,
		"number without memory":  func(dir string) error { return number(dir, false) },
		"receive":                func(dir string) error { return receive(dir, true) },
		"receive without memory": func(dir string) error { return receive(dir, false) },
	}[what]
	if err := program(dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func child(what, dir string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), childEnv+"="+what+":"+dir)
	c.Stderr = os.Stderr
	return c
}

// open opens a store and closes it.
func open(dir string) error {
	s, err := OpenStore(dir)
	if err != nil {
		return err
	}
	return s.Close()
}

const childKeys = 3

// What the child says in the place of a key.
const (
	stopping = 0xfe - iota // it stops in order now
	opening                // it takes a key up,
	opened                 // and has it
)

// number hands out numbers of a few keys until it is killed, writing each before it takes the next one. Of all but the last key it
// leaps within the reservations, so that there is an extension every few numbers. Every now and then it stops in order and begins
// again, or gives the numbers of one key back and takes them again, as a reload does.
func number(dir string, memory bool) error {
	if !memory {
		topsDirs = nil
	}
	for {
		s, err := OpenStore(dir)
		if err != nil {
			return err
		}
		if (s.Memory() == nil) != memory {
			return fmt.Errorf("memory: %v", s.Memory())
		}
		say := func(what int) error {
			_, err := syscall.Write(1, []byte{byte(what), 8: 0})
			return err
		}
		var seqs [childKeys]*Sequence
		begin := func(k int) error {
			if err := say(opening); err != nil {
				return err
			}
			seqs[k], err = s.Sequence(256+uint32(k), netip.MustParseAddr("198.51.100.2"), [16]byte{byte(k)}, true)
			if err != nil {
				return err
			}
			return say(opened)
		}
		for k := range seqs {
			if err := begin(k); err != nil {
				return err
			}
		}
		var rec [9]byte
		for range rand.IntN(40) {
			k := rand.IntN(childKeys)
			q := seqs[k]
			switch {
			case rand.IntN(20) == 0:
				q.Close()
				if err := begin(k); err != nil {
					return err
				}
				q = seqs[k]
			case k == childKeys-1:
			case rand.IntN(4) == 0:
				q.at = max(q.at, q.warn)
			case rand.IntN(4) == 0:
				q.at = max(q.at, q.end-1)
			}
			n, err := q.next()
			if err == ErrSeqNotReserved {
				runtime.Gosched()
				continue
			} else if err != nil {
				return err
			}
			rec[0] = byte(k)
			binary.BigEndian.PutUint64(rec[1:], n)
			if _, err := syscall.Write(1, rec[:]); err != nil {
				return err
			}
		}
		if err := say(stopping); err != nil {
			return err
		}
		for _, q := range seqs {
			q.Close()
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
}

// A process that is killed at any moment, many times, also while it stops or gives numbers back, never hands out a number that an
// earlier one has handed out. After a stop in order the numbers go on where they were, and with the memory that outlives the
// process a few later after a kill, unless that came before it had its keys.
func TestKillNeverRepeats(t *testing.T) {
	for _, what := range []string{"number", "number without memory"} {
		t.Run(what, func(t *testing.T) {
			rounds := 60
			if testing.Short() {
				rounds = 10
			}
			dir := t.TempDir()
			t.Cleanup(func() {
				if err := open(dir); err != nil {
					t.Error(err)
				}
			})
			const steady = childKeys - 1 // the key of which no number is leapt over
			var last [childKeys]uint64
			total, stops, leaps := 0, 0, 0
			early := false // the process before was killed while it took numbers up
			for round := range rounds {
				c := child(what, dir)
				out, err := c.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				var rec [9]byte
				kill := rand.IntN(200)       // numbers from now, so that a slow machine is killed as early as a fast one
				wantStop := rand.IntN(3) > 0 // and then at once, or while it stops the next time
				after := time.Duration(rand.IntN(1500)) * time.Microsecond
				began, taking := false, true
				for n := 0; ; n++ {
					if _, err := io.ReadFull(out, rec[:]); err == io.EOF {
						break
					} else if err != nil {
						t.Fatal(err)
					}
					if n >= kill && (rec[0] == stopping || !wantStop) {
						if wantStop {
							time.Sleep(after) // anywhere in what a stop takes
						}
						wantStop, kill = false, math.MaxInt
						if err := c.Process.Kill(); err != nil {
							t.Fatal(err)
						}
					}
					switch rec[0] {
					case stopping:
						stops++
						taking = true // the next is to open
						continue
					case opening, opened:
						taking = rec[0] == opening
						continue
					}
					k, seq := rec[0], binary.BigEndian.Uint64(rec[1:])
					if int(k) >= childKeys {
						rest, _ := io.ReadAll(out)
						t.Fatalf("round %d: the child says: %s%s", round, rec[:], rest)
					}
					if seq <= last[k] {
						t.Fatalf("round %d: key %d: %d after %d", round, k, seq, last[k])
					}
					if k == steady {
						leap := seq - last[k] - 1
						switch {
						case leap == 0:
						case began:
							t.Fatalf("round %d: %d after %d, though it has not been killed in between", round, seq, last[k])
						case leap > memoryStep+1 && what == "number" && !early: // and one that was handed out and not written
							t.Fatalf("round %d: %d after %d, with memory", round, seq, last[k])
						default:
							leaps++
						}
						began = true
					}
					last[k] = seq
					total++
				}
				early = taking || early && !began
				var exit *exec.ExitError
				if err := c.Wait(); !errors.As(err, &exit) || exit.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("round %d: the child ended by itself: %v", round, err)
				}
			}
			t.Logf("%d numbers, %d stops in order, %d leaps in %d rounds", total, stops, leaps, rounds)
			if total < rounds || stops < rounds || leaps == 0 {
				t.Fatal("that proves little")
			}
		})
	}
}

// simDisk is a disk that has a cache. A crash loses any of what was not synced, and so does a sync that fails, after which
// the next one does not bring it back: that is what Linux does. A write that fails may have got half way.
type simDisk struct {
	durable []byte
	cache   []write
	renewed int                  // how often the content was replaced
	fails   func(op string) bool // whether this write, sync or replace does
	coin    func() bool          // whether an unsynced write happens to reach the disk
}

type write struct {
	off  int64
	data []byte
}

var errDisk = fmt.Errorf("write: %w", syscall.ENOSPC)

func (d *simDisk) String() string { return "/disk/marks" }
func (d *simDisk) close() error   { return nil }

func (d *simDisk) writeAt(b []byte, off int64) error {
	if d.fails("write") {
		if d.coin() {
			d.cache = append(d.cache, write{off, bytes.Clone(b[:len(b)/2])})
		}
		return errDisk
	}
	d.cache = append(d.cache, write{off, bytes.Clone(b)})
	return nil
}

func (d *simDisk) sync() error {
	if d.fails("sync") {
		d.crash()
		return errDisk
	}
	for _, w := range d.cache {
		copy(d.durable[w.off:], w.data)
	}
	d.cache = nil
	return nil
}

func (d *simDisk) replace(b []byte) error {
	if d.fails("replace") {
		if d.coin() { // renamed, but the directory's sync failed
			d.durable, d.cache = bytes.Clone(b), nil
		}
		return errDisk
	}
	d.durable, d.cache = bytes.Clone(b), nil
	d.renewed++
	return nil
}

// crash makes each write in the cache reach the disk or not.
func (d *simDisk) crash() {
	for _, w := range d.cache {
		if d.coin() {
			copy(d.durable[w.off:], w.data)
		}
	}
	d.cache = nil
}

func never() bool          { return false }
func works(op string) bool { return false }

// Whatever the disk refuses or loses, and whenever power fails or the process is killed: no number is handed out twice with a key, each that is handed
// out lies below a mark that is durable at that moment, numbers of one sequence rise, and once the disk works again they come.
func TestStoreModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		failing := false
		d := &simDisk{
			fails: func(string) bool { return failing && rapid.IntRange(0, 2).Draw(t, "fail") == 0 },
			coin:  func() bool { return rapid.Bool().Draw(t, "survives") },
		}
		s, err := loadStore(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		memory := func() *tops { return &tops{mem: make([]byte, slotsPerPage*topRecordLen)} }
		s.memory = memory()
		now := time.Unix(1e9, 0)
		s.now = func() time.Time { return now }

		type user struct {
			key  byte
			q    *Sequence
			last uint64
		}
		var users []*user
		used := map[byte][]span{} // numbers handed out, or leapt over as if they were

		use := func(u *user) {
			from := u.q.at
			switch rapid.IntRange(0, 3).Draw(t, "leap") {
			case 0:
				u.q.at = max(u.q.at, u.q.warn)
			case 1:
				u.q.at = max(u.q.at, u.q.end-1)
			}
			n, err := u.q.next()
			if err != nil {
				if err != ErrSeqNotReserved {
					t.Fatal(err)
				}
				return
			}
			if from > n || u.q.at != n+1 {
				t.Fatalf("%d from %d", n, from)
			}
			if n <= u.last {
				t.Fatalf("key %d: %d after %d", u.key, n, u.last)
			}
			u.last = n
			for _, r := range used[u.key] {
				if r.lo <= n && n < r.hi {
					t.Fatalf("key %d: %d again", u.key, n)
				}
			}
			used[u.key] = append(used[u.key], span{n, n + 1})
			marks, err := decodeMarks(d.durable)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range marks {
				if m.used && m.id.KeyID[0] == u.key && n < m.next {
					return
				}
			}
			t.Fatalf("key %d: %d is not below a durable mark", u.key, n)
		}

		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				key := byte(rapid.IntRange(0, 3).Draw(t, "key"))
				q, err := s.Sequence(256, netip.MustParseAddr("198.51.100.2"), [16]byte{key}, true)
				if err != nil {
					if !failing || !errors.Is(err, syscall.ENOSPC) {
						t.Fatal(err)
					}
					return
				}
				users = append(users, &user{key: key, q: q})
			},
			"use": func(t *rapid.T) {
				if len(users) == 0 {
					t.Skip()
				}
				u := rapid.SampledFrom(users).Draw(t, "user")
				for range rapid.IntRange(1, 5).Draw(t, "numbers") {
					use(u)
				}
			},
			"extend": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
				s.extend()
			},
			"close one": func(t *rapid.T) {
				if len(users) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(users)-1).Draw(t, "user")
				users[i].q.Close()
				users = append(users[:i], users[i+1:]...)
			},
			"disk": func(t *rapid.T) { failing = !failing },
			"kill": func(t *rapid.T) {
				torn, mem, content := s.suspect, s.memory, bytes.Clone(d.durable)
				for _, w := range d.cache {
					copy(content[w.off:], w.data)
				}
				users = nil
				if s, err = loadStore(d, content); err != nil {
					if !torn || !errors.Is(err, ErrStoreCorrupt) {
						t.Fatal(err)
					}
					failing, mem = false, memory()
					clear(used)
					if s, err = loadStore(d, nil); err != nil {
						t.Fatal(err)
					}
				}
				s.memory = mem
				s.now = func() time.Time { return now }
			},
			"crash": func(t *rapid.T) {
				torn := s.suspect // a write has failed, and the file has not been replaced since
				d.crash()
				users = nil
				if s, err = loadStore(d, d.durable); err != nil {
					if !torn || !errors.Is(err, ErrStoreCorrupt) {
						t.Fatal(err)
					}
					// It was noticed; people give new keys and remove the file.
					failing = false
					clear(used)
					if s, err = loadStore(d, nil); err != nil {
						t.Fatal(err)
					}
				}
				s.memory = memory()
				s.now = func() time.Time { return now }
			},
			"": func(t *rapid.T) {},
		})

		failing = false
		for _, u := range users {
			u.q.at = u.q.end
			if u.q.next(); u.q.at == u.q.end { // nothing was reserved
				if err := s.extend(); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := u.q.next(); err != nil || n <= u.last {
				t.Fatalf("with a disk that works: %d after %d, %v", n, u.last, err)
			}
		}
	})
}

var (
	peer = netip.MustParseAddr("198.51.100.2")
	keyA = [16]byte{0xaa}
	keyB = [16]byte{0xbb}
)

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func sequence(t *testing.T, s *Store, key [16]byte) *Sequence {
	t.Helper()
	q, err := s.Sequence(256, peer, key, false)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func mustNext(t *testing.T, q *Sequence) uint64 {
	t.Helper()
	n, err := q.next()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A new key starts at 1; one that comes back goes on behind the mark, at once while an old user is still there and after a
// restart; another SPI or peer makes no difference, another key does.
func TestStoreResumes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on", "demand")
	s := openStore(t, dir)
	a := sequence(t, s, keyA)
	if n := mustNext(t, a); n != 1 {
		t.Errorf("a new key starts at %d", n)
	}
	again, err := s.Sequence(999, netip.MustParseAddr("2001:db8::1"), keyA, false)
	if err != nil {
		t.Fatal(err)
	}
	if n := mustNext(t, again); n != 1+firstChunk {
		t.Errorf("its second user starts at %d", n)
	}
	if n := mustNext(t, a); n != 2 {
		t.Errorf("the first goes on at %d", n)
	}
	if n := mustNext(t, sequence(t, s, keyB)); n != 1 {
		t.Errorf("another key starts at %d", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sequence(256, peer, keyA, false); !errors.Is(err, ErrStoreClosed) {
		t.Errorf("after Close: %v", err)
	}
	s = openStore(t, dir)
	if n := mustNext(t, sequence(t, s, keyA)); n != 1+2*firstChunk {
		t.Errorf("after a restart it goes on at %d", n)
	}
	st, err := os.Stat(filepath.Join(dir, marksName))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", st.Mode(), err)
	}
}

// What a sequence has not used is given back when it ends, also what was reserved ahead, and only that: the next user of the key goes
// on behind the last number, in this process and the next, unless somebody else has got numbers beyond.
func TestCloseGivesBack(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	use := func(q *Sequence, from, to uint64) {
		t.Helper()
		for want := from; want <= to; want++ {
			if n := mustNext(t, q); n != want {
				t.Fatalf("%d, not %d", n, want)
			}
		}
	}
	q := sequence(t, s, keyA)
	use(q, 1, 5)
	q.Close()
	q.Close()
	if n, err := q.next(); err != ErrSeqNotReserved {
		t.Errorf("after its end it hands out %d, %v", n, err)
	}
	q = sequence(t, s, keyA) // at once
	use(q, 6, firstChunk-1)  // with a second reservation asked for
	waitFor(t, func() bool { return q.turn.Load() == filled })
	q.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	q = sequence(t, s, keyA)
	use(q, firstChunk, firstChunk+3)
	if err := q.SkipPast(firstChunk + 9); err != nil { // what was used elsewhere is not given back
		t.Fatal(err)
	}
	q.Close()
	a, b := sequence(t, s, keyA), sequence(t, s, keyA)
	use(a, firstChunk+10, firstChunk+11)
	use(b, 2*firstChunk+10, 2*firstChunk+11)
	a.Close() // has b's numbers beyond its own
	c := sequence(t, s, keyA)
	use(c, 3*firstChunk+10, 3*firstChunk+10)
	c.Close()
	b.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	q = sequence(t, s, keyA)
	use(q, 3*firstChunk+11, 3*firstChunk+11)
	if err := q.SkipPast(math.MaxUint32 - 1); err != nil {
		t.Fatal(err)
	}
	use(q, math.MaxUint32, math.MaxUint32)
	q.Close()
	if _, err := s.Sequences([]SequenceID{{KeyID: keyB}, {KeyID: keyA}}); !errors.Is(err, ErrSeqExhausted) {
		t.Errorf("all numbers are used: %v", err)
	}
	use(sequence(t, s, keyB), 1, 1) // which has not lost any by that
}

// While the disk refuses, what was given back is right in this process, and the disk's mark is only too high; it learns of it later.
func TestCloseGivesBackWithoutDisk(t *testing.T) {
	full := false
	d := &simDisk{fails: func(string) bool { return full }, coin: never}
	s, err := loadStore(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	onDisk := func() uint64 {
		marks, err := decodeMarks(d.durable)
		if err != nil {
			t.Fatal(err)
		}
		return marks[s.byKey[keyA]].next
	}
	q := sequence(t, s, keyA)
	mustNext(t, q)
	full = true
	q.Close()
	if err := s.extend(); !errors.Is(err, syscall.ENOSPC) || onDisk() != firstChunk+1 {
		t.Errorf("%v, and on disk is %d", err, onDisk())
	}
	full = false
	if err := s.extend(); err != nil || onDisk() != 2 {
		t.Errorf("%v, and on disk is %d", err, onDisk())
	}
	if n := mustNext(t, sequence(t, s, keyA)); n != 2 {
		t.Errorf("it goes on at %d", n)
	}
}

// What memory tells of a killed process's numbers counts only if that process wrote the mark last, had finished writing and was the
// only one of the key, and if no lane of it can still run.
func TestSequenceMemoryMustAgree(t *testing.T) {
	const used = 70
	mem := func(s *Store) *tops { s.memory = &tops{mem: make([]byte, slotsPerPage*topRecordLen)}; return s.memory }
	const mark, told = firstChunk + 1, 1 + 2*memoryStep
	for what, c := range map[string]struct {
		spoil func(s *Store, r *topRecord)
		want  uint64
	}{
		"nothing":            {func(s *Store, r *topRecord) {}, told},
		"half written":       {func(s *Store, r *topRecord) { r.top++ }, mark},
		"of another process": {func(s *Store, r *topRecord) { r.gen ^= 2 }, mark},
		"of another key":     {func(s *Store, r *topRecord) { r.id[0] ^= 1 }, mark},
		"beyond the mark":    {func(s *Store, r *topRecord) { r.set(1 << 40) }, mark},
		"zero":               {func(s *Store, r *topRecord) { r.set(0) }, mark},
		"empty":              {func(s *Store, r *topRecord) { *r = topRecord{} }, mark},
		"two of one key":     {func(s *Store, r *topRecord) { sequence(t, s, keyA) }, mark + firstChunk},
		"the store closed":   {func(s *Store, r *topRecord) { go s.run(); s.memory.f, _ = os.CreateTemp("", ""); s.Close() }, mark},
	} {
		d := &simDisk{fails: works, coin: never}
		s, err := loadStore(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		m := mem(s)
		q := sequence(t, s, keyA)
		for range used {
			mustNext(t, q)
		}
		c.spoil(s, m.record(q.slot))
		mustNext(t, q) // which lets its record say what it says, but no more
		if s, err = loadStore(d, d.durable); err != nil {
			t.Fatal(err)
		}
		s.memory = m
		q = sequence(t, s, keyA)
		if n := mustNext(t, q); n != c.want {
			t.Errorf("%s: it goes on at %d, want %d", what, n, c.want)
		}
		// A third process without the memory, which comes back for a fourth.
		if s, err = loadStore(d, d.durable); err != nil {
			t.Fatal(err)
		}
		q = sequence(t, s, keyA)
		last := mustNext(t, q)
		if s, err = loadStore(d, d.durable); err != nil {
			t.Fatal(err)
		}
		s.memory = m
		if n := mustNext(t, sequence(t, s, keyA)); n <= last {
			t.Errorf("%s: %d after %d", what, n, last)
		}
	}
}

// Numbers that were skipped are skipped for the process after a kill too, before the first of them is used.
func TestSkipPastIsRemembered(t *testing.T) {
	d := &simDisk{fails: works, coin: never}
	for _, past := range []uint64{1000, 10 * firstChunk} {
		s, err := loadStore(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		m := &tops{mem: make([]byte, slotsPerPage*topRecordLen)}
		s.memory = m
		if err := sequence(t, s, keyA).SkipPast(past); err != nil {
			t.Fatal(err)
		}
		if s, err = loadStore(d, d.durable); err != nil {
			t.Fatal(err)
		}
		s.memory = m
		if n := mustNext(t, sequence(t, s, keyA)); n != past+1 {
			t.Errorf("it goes on at %d behind %d", n, past)
		}
	}
}

// More keys than the file has room for, in one go and one by one, are all there afterwards.
func TestStoreGrows(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	ids := make([]SequenceID, 200)
	for i := range ids {
		ids[i] = SequenceID{SPI: uint32(256 + i), Dst: peer, KeyID: [16]byte{1, byte(i)}}
	}
	if _, err := s.Sequences(ids); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		sequence(t, s, [16]byte{2, byte(i)})
	}
	s.Close()
	s = openStore(t, dir)
	for i := range ids {
		if n := mustNext(t, sequence(t, s, ids[i].KeyID)); n != 1+firstChunk {
			t.Fatalf("key %d goes on at %d", i, n)
		}
	}
	if n := mustNext(t, sequence(t, s, [16]byte{2, 99})); n != 1+firstChunk {
		t.Errorf("a late key goes on at %d", n)
	}
}

// At the end of a 32-bit key's numbers the last is 2^32-1, then and after a restart there is none; an ESN user of the same key goes on.
func TestStoreExhausts(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	q := sequence(t, s, keyA)
	if err := q.SkipPast(math.MaxUint32 - 2); err != nil {
		t.Fatal(err)
	}
	for want := uint64(math.MaxUint32 - 1); want <= math.MaxUint32; want++ {
		if n := mustNext(t, q); n != want {
			t.Errorf("%d, not %d", n, want)
		}
	}
	waitFor(t, func() bool { _, err := q.next(); return err == ErrSeqExhausted })
	if err := q.SkipPast(math.MaxUint32 + 1); err != ErrSeqExhausted {
		t.Errorf("skipping past the end: %v", err)
	}
	s.Close()
	s = openStore(t, dir)
	if _, err := s.Sequence(256, peer, keyA, false); !errors.Is(err, ErrSeqExhausted) {
		t.Errorf("after a restart: %v", err)
	}
	esn, err := s.Sequence(256, peer, keyA, true)
	if err != nil {
		t.Fatal(err)
	}
	if n := mustNext(t, esn); n != 1<<32 {
		t.Errorf("with ESN it goes on at %d", n)
	}
}

// waitFor waits for the store's goroutine, which answers or the test's deadline passes.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for !ok() {
		time.Sleep(time.Millisecond)
	}
}

// Numbers used elsewhere are skipped durably, within a reservation and beyond it, and never backwards.
func TestSkipPast(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	q := sequence(t, s, keyA)
	for _, c := range []struct{ past, want uint64 }{{100, 101}, {7, 102}, {firstChunk + 5, firstChunk + 6}, {1 << 30, 1<<30 + 1}} {
		if err := q.SkipPast(c.past); err != nil {
			t.Fatal(err)
		}
		if n := mustNext(t, q); n != c.want {
			t.Errorf("past %d comes %d, not %d", c.past, n, c.want)
		}
	}
	s.Close()
	if n := mustNext(t, sequence(t, openStore(t, dir), keyA)); n <= 1<<30 {
		t.Errorf("after a restart it goes on at %d", n)
	}
	if err := q.bind(false); err != nil {
		t.Fatal(err)
	}
	if err := q.SkipPast(1 << 31); !errors.Is(err, ErrParams) {
		t.Errorf("skipping an SA's numbers: %v", err)
	}
	if err := q.bind(false); err == nil {
		t.Error("two SAs got one sequence")
	}
	v := NewVolatileSequence()
	if err := v.SkipPast(41); err != nil || mustNext(t, v) != 42 || !v.Volatile() || q.Volatile() {
		t.Errorf("volatile: %v", err)
	}
}

// A sequence made for 32 bits does not serve an SA with ESN, nor the other way round.
func TestSequenceESNMustAgree(t *testing.T) {
	s := openStore(t, t.TempDir())
	p := params(t, 256)
	p.Keys.ESN = true
	if _, err := NewOutbound(p, &session{t: p.Transform}, sequence(t, s, keyA)); !errors.Is(err, ErrParams) {
		t.Errorf("%v", err)
	}
}

// A forgotten key starts anew; one in use is not forgotten; the slot is used again, durably.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	q := sequence(t, s, keyA)
	if err := s.Forget(keyA); !errors.Is(err, ErrStoreBusy) {
		t.Errorf("in use: %v", err)
	}
	q.Close()
	if err := s.Forget(keyA); err != nil {
		t.Fatal(err)
	}
	if err := s.Forget(keyA); err != nil {
		t.Errorf("twice: %v", err)
	}
	for i := range 3 * slotsPerPage { // keys that come and go do not make the file grow
		key := [16]byte{3, byte(i), byte(i >> 8)}
		sequence(t, s, key).Close()
		if err := s.Forget(key); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	if st, err := os.Stat(filepath.Join(dir, marksName)); err != nil || st.Size() != 4096 {
		t.Errorf("the file has %d bytes, %v", st.Size(), err)
	}
	if n := mustNext(t, sequence(t, openStore(t, dir), keyA)); n != 1 {
		t.Errorf("it goes on at %d", n)
	}
}

// Any damage to the file is noticed, named and never taken for a fresh start.
func TestStoreDamage(t *testing.T) {
	good := encodeMarks([]mark{
		{used: true, id: SequenceID{SPI: 256, Dst: peer, KeyID: keyA}, next: 4097, written: time.Unix(1e9, 0)},
		{used: true, id: SequenceID{SPI: 257, Dst: netip.MustParseAddr("2001:db8::1"), KeyID: keyB, ESN: true}, next: 1 << 40, written: time.Unix(1e9, 0)},
		{},
	})
	marks, err := decodeMarks(good)
	if err != nil || !bytes.Equal(encodeMarks(marks), good) {
		t.Fatalf("a good file does not survive: %v", err)
	}
	refused := func(what string, b []byte) {
		t.Helper()
		if _, err := decodeMarks(b); err == nil {
			t.Errorf("%s is not noticed", what)
		}
	}
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			refused(fmt.Sprintf("a flipped bit %d of byte %d", bit, i), bad)
		}
		refused(fmt.Sprintf("a file cut at %d", i), good[:i])
	}
	hole := bytes.Clone(good)
	clear(hole[2*recordLen : 3*recordLen])
	refused("a hole of zeros", hole)
	swapped := bytes.Clone(good)
	copy(swapped[recordLen:], good[2*recordLen:3*recordLen])
	copy(swapped[2*recordLen:], good[recordLen:2*recordLen])
	refused("records in each other's place", swapped)

	dir := t.TempDir()
	for what, content := range map[string][]byte{"hole": hole, "empty": {}, "text": []byte("hello\n")} {
		name := filepath.Join(dir, marksName)
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenStore(dir)
		if !errors.Is(err, ErrStoreCorrupt) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "new one") {
			t.Errorf("%s: %v", what, err)
		}
		if now, _ := os.ReadFile(name); !bytes.Equal(now, content) {
			t.Errorf("%s: the file was changed", what)
		}
	}
	later := bytes.Clone(good[:recordLen])
	later[27]++
	binary.BigEndian.PutUint32(later[60:], checksum(later, 0))
	if _, err := decodeMarks(append(later, good[recordLen:]...)); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a file of a later version: %v", err)
	}
	twice := encodeMarks([]mark{{used: true, id: SequenceID{KeyID: keyA}, next: 1}, {used: true, id: SequenceID{KeyID: keyA}, next: 2}})
	if _, err := loadStore(&simDisk{}, twice); !errors.Is(err, ErrStoreCorrupt) {
		t.Errorf("a key in two slots: %v", err)
	}
}

func FuzzDecodeMarks(f *testing.F) {
	f.Add(encodeMarks(make([]mark, 2)))
	f.Add(encodeMarks([]mark{{used: true, id: SequenceID{SPI: 256, Dst: peer, KeyID: keyA, ESN: true}, next: 9, written: time.Unix(5, 0)}}))
	f.Add(encodeMarks([]mark{{used: true, in: true, gen: 77, id: SequenceID{SPI: 256, Dst: peer, KeyID: keyA}, next: 9, written: time.Unix(5, 0)}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= recordLen {
			binary.BigEndian.PutUint32(b[28:], uint32(len(b)/recordLen-1))
		}
		for i := 0; i+recordLen <= len(b); i += recordLen { // let it past count and checksums
			binary.BigEndian.PutUint32(b[i+60:], checksum(b[i:i+recordLen], i/recordLen))
		}
		marks, err := decodeMarks(b)
		if err != nil {
			return
		}
		again, err := decodeMarks(encodeMarks(marks))
		if err != nil || len(again) != len(marks) {
			t.Fatal(err)
		}
		for i := range marks {
			if again[i] != marks[i] {
				t.Fatalf("%+v becomes %+v", marks[i], again[i])
			}
		}
	})
}

// A second store of the same directory is refused, in this process and in another, and says who has it.
func TestStoreIsLocked(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	if _, err := OpenStore(dir); !errors.Is(err, ErrStoreBusy) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("in this process: %v", err)
	}
	out, err := child("open", dir).Output()
	if err == nil || !strings.Contains(string(out), ErrStoreBusy.Error()) || !strings.Contains(string(out), dir) {
		t.Errorf("in another process: %v, %s", err, out)
	}
	s.Close()
	if out, err := child("open", dir).Output(); err != nil {
		t.Errorf("after Close: %v, %s", err, out)
	}
}

// Where the store cannot write, opening it says so and what is to be done.
func TestStoreNeedsToWrite(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	c := child("open", dir)
	if os.Getuid() == 0 { // root writes anywhere, so be somebody else; the test binary itself may be out of reach then
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		exe := filepath.Join(os.TempDir(), fmt.Sprintf("sa-test-%d", os.Getpid()))
		content, err := os.ReadFile(c.Path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(exe, content, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(exe)
		c.Path = exe
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := c.Output()
	if err == nil || !strings.Contains(string(out), dir) || !strings.Contains(string(out), "must be able to write") {
		t.Errorf("read-only: %v, %q", err, out)
	}

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(file); !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), file) {
		t.Errorf("a file for a directory: %v", err)
	}

	if os.Getuid() != 0 {
		return // who cannot mount has no disk to fill
	}
	full := t.TempDir() // a disk of one page, which the lock takes
	if err := syscall.Mount("tmpfs", full, "tmpfs", 0, "size=4096,mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(full, syscall.MNT_DETACH)
	if _, err := OpenStore(full); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), full) {
		t.Errorf("a full disk: %v", err)
	}
	if entries, _ := os.ReadDir(full); len(entries) != 1 || entries[0].Name() != lockName {
		t.Errorf("a failed creation leaves %v", entries)
	}
}

// While the disk refuses, a sequence lives on what is reserved, then says that nothing is, and the store says why; when it
// works again it goes on, with the file replaced, since nobody knows what it holds.
func TestStoreDiskFull(t *testing.T) {
	for _, refused := range []string{"write", "sync"} {
		full := false
		d := &simDisk{fails: func(op string) bool { return full && op == refused }, coin: never}
		s, err := loadStore(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		q := sequence(t, s, keyA)
		full = true
		for n := uint64(1); n <= firstChunk; n++ {
			if got := mustNext(t, q); got != n {
				t.Fatal(got, n)
			}
			if n == firstChunk/2+1 {
				if err := s.extend(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), d.String()) {
					t.Fatal(err)
				}
			}
		}
		if _, err := q.next(); err != ErrSeqNotReserved {
			t.Errorf("%s: at the end of the reservation: %v", refused, err)
		}
		if err := s.Err(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: the store says %v", refused, err)
		}
		full = false
		if err := s.extend(); err != nil || s.Err() != nil {
			t.Fatal(err, s.Err())
		}
		if n := mustNext(t, q); n != firstChunk+1 {
			t.Errorf("%s: it goes on at %d", refused, n)
		}
		if d.renewed != 2 { // at first, and now
			t.Errorf("%s: after a failure the content was replaced %d times", refused, d.renewed-1)
		}
	}
}

// A key that is new while the disk refuses gets no sequence, and the error says what and where.
func TestStoreRefusesNewKeysWithoutDisk(t *testing.T) {
	full := false
	d := &simDisk{fails: func(string) bool { return full }, coin: never}
	s, err := loadStore(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	full = true
	if _, err := s.Sequence(256, peer, keyB, false); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), d.String()) {
		t.Errorf("%v", err)
	}
	if err := s.Forget(keyB); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("forgetting: %v", err)
	}
	full = false
	if n := mustNext(t, sequence(t, s, keyB)); n != 1 {
		t.Errorf("later it starts at %d", n)
	}
}

// Reservations follow the rate: about four seconds' worth at once when it rises, by halves when it falls, and never less than
// the least.
func TestReservationsFollowTheRate(t *testing.T) {
	d := &simDisk{fails: works, coin: never}
	s, err := loadStore(d, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1e9, 0)
	s.now = func() time.Time { return now }
	q, err := s.Sequence(256, peer, keyA, true)
	if err != nil {
		t.Fatal(err)
	}
	// run sends at a rate until the next reservation is asked for, and gives its size.
	run := func(perSecond float64) uint64 {
		if q.turn.Load() == filled {
			q.at = q.end
			q.refill()
		}
		now = now.Add(time.Duration(float64(q.warn-q.at) / perSecond * float64(time.Second)))
		q.at = q.warn
		mustNext(t, q)
		if err := s.extend(); err != nil {
			t.Fatal(err)
		}
		return q.spare.hi - q.spare.lo
	}
	run(2e6)
	q.at = q.end // what the other half takes
	now = now.Add(firstChunk / 2 * time.Second / 2e6)
	q.refill()
	if got := run(2e6); got < 3*2e6 || got > 5*2e6 {
		t.Errorf("at 2,000,000 a second it reserves %d", got)
	}
	last := q.spare.hi - q.spare.lo
	for range 20 {
		got := run(10)
		if got < last/2 || got > last {
			t.Fatalf("at 10 a second %d follows %d", got, last)
		}
		last = got
	}
	if last != minChunk {
		t.Errorf("a slow SA reserves %d", last)
	}
}

// A lane at full speed over a real disk gets every number once, in order. Where the disk is too slow it is told so and goes on later.
func TestStoreAtSpeed(t *testing.T) {
	s := openStore(t, t.TempDir())
	q := sequence(t, s, keyA)
	total := uint64(2_000_000)
	if testing.Short() {
		total = 500_000
	}
	for want := uint64(1); want <= total; {
		n, err := q.next()
		if err == ErrSeqNotReserved {
			runtime.Gosched()
			continue
		}
		if err != nil || n != want {
			t.Fatalf("%d, %v; want %d", n, err, want)
		}
		want++
	}
}

// The store tries again by itself once a disk that refused works, and its lane goes on.
func TestStoreTriesAgain(t *testing.T) {
	var full atomic.Bool
	s, err := loadStore(&simDisk{fails: func(string) bool { return full.Load() }, coin: never}, nil)
	if err != nil {
		t.Fatal(err)
	}
	q := sequence(t, s, keyA)
	go s.run()
	defer s.Close()
	full.Store(true)
	q.at = q.end
	waitFor(t, func() bool { _, err := q.next(); return err == ErrSeqNotReserved && s.Err() != nil })
	full.Store(false)
	waitFor(t, func() bool { n, err := q.next(); return err == nil && n == firstChunk+1 })
	if s.Err() != nil {
		t.Errorf("the store still says %v", s.Err())
	}
}

// A file that somebody has removed under the store is noticed, and there again at the next attempt.
func TestStoreFileRemoved(t *testing.T) {
	dir := t.TempDir()
	d, content, err := openDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := loadStore(d, content) // without its goroutine, which would be quicker
	if err != nil {
		t.Fatal(err)
	}
	q := sequence(t, s, keyA)
	if err := os.Remove(filepath.Join(dir, marksName)); err != nil {
		t.Fatal(err)
	}
	q.at = q.end
	if _, err := q.next(); err != ErrSeqNotReserved {
		t.Fatal(err)
	}
	if err := s.extend(); err == nil || !strings.Contains(err.Error(), "was removed") {
		t.Fatalf("%v", err)
	}
	if err := s.extend(); err != nil {
		t.Fatal(err)
	}
	last := mustNext(t, q)
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	if n := mustNext(t, sequence(t, openStore(t, dir), keyA)); n <= last {
		t.Errorf("after a restart it goes on at %d, behind %d", n, last)
	}
}

// The name of a key is stable, since files hold it, tells keys apart, and does not contain any of it.
func TestKeyID(t *testing.T) {
	gcmKeys := keysFor(transform(t, gcm), 0x42)
	id := KeyID(gcmKeys)
	if got := hex.EncodeToString(id[:]); got != "96d6bb4697134c8a0155af97b1de64c5" {
		t.Errorf("the name of a known key is %s", got)
	}
	if bytes.Contains(id[:], []byte{0x42, 0x42}) {
		t.Error("the name shows the key")
	}
	other := gcmKeys.Clone()
	other.Enc[19] ^= 1
	split := gcmKeys.Clone()
	split.Enc, split.Auth = split.Enc[:10], split.Enc[10:]
	if KeyID(other) == id || KeyID(split) == id {
		t.Error("different keys have one name")
	}
	esn := gcmKeys.Clone()
	esn.ESN = true
	if KeyID(esn) != id {
		t.Error("the setting of ESN makes another name of the same key")
	}
}

func BenchmarkSequenceStored(b *testing.B) {
	s, err := OpenStore(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	q, err := s.Sequence(256, peer, keyA, true)
	if err != nil {
		b.Fatal(err)
	}
	stalls := 0
	defer perPacket(b)()
	for b.Loop() {
		if _, err := q.next(); err != nil {
			stalls++
		}
	}
	b.ReportMetric(float64(stalls)/float64(b.N), "stalls/packet")
}

// What is in the place of the marks and is no file is refused, not read: a device would never end.
func TestMarksMustBeAFile(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"link to a device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"FIFO":             func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory":        func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		dir := t.TempDir()
		if err := put(filepath.Join(dir, marksName)); err != nil {
			t.Fatal(err)
		}
		if s, err := OpenStore(dir); err == nil {
			s.Close()
			t.Errorf("%s: opened", name)
		} else if !strings.Contains(err.Error(), marksName) {
			t.Errorf("%s: %v does not name the file", name, err)
		}
	}
}

// CheckStore says of a file of marks what OpenStore says, and of none nothing; it does not mind that a store is open.
func TestCheckStore(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, marksName)
	if err := errors.Join(CheckStore(dir), CheckStore(filepath.Join(dir, "none"))); err != nil {
		t.Errorf("without a file: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("it made %v, %v", entries, err)
	}
	s := openStore(t, dir)
	sequence(t, s, keyA)
	if err := CheckStore(dir); err != nil {
		t.Errorf("while it is open: %v", err)
	}
	s.Close()
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func() error{
		"damage": func() error {
			return os.WriteFile(name, append(good[:recordLen+9:recordLen+9], good[recordLen+8:]...), 0o600)
		},
		"a link":    func() error { return os.Symlink("/dev/zero", name) },
		"directory": func() error { return os.Mkdir(name, 0o700) },
	} {
		os.Remove(name)
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		_, want := OpenStore(dir)
		if got := CheckStore(dir); want == nil || got == nil || got.Error() != want.Error() {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
}

func TestStoredSequenceAllocatesNothing(t *testing.T) {
	s := openStore(t, t.TempDir())
	if s.Memory() != nil {
		t.Fatal(s.Memory())
	}
	q := sequence(t, s, keyA)
	noAllocs(t, "a number of a store's", func() {
		for range memoryStep {
			if _, err := q.next(); err != nil && err != ErrSeqNotReserved {
				t.Fatal(err)
			}
		}
	})
	q.Close()
}
