package sa

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func (d *simDisk) intact() error           { return nil }
func (d *simDisk) reopen() ([]byte, error) { return nil, nil }

// storeWithoutWatch is a store on a real directory whose goroutine does not run, so that a test says when it looks.
func storeWithoutWatch(t *testing.T, dir string) *Store {
	t.Helper()
	d, content, err := openDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := loadStore(d, content)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.close() })
	return s
}

// Whatever is taken away or put in its place, at the next look everything is there again: the next process goes on behind the last
// number, and cannot start while this one runs.
func TestDirectoryTakenAway(t *testing.T) {
	for name, take := range map[string]func(dir string) error{
		"directory removed":            os.RemoveAll,
		"directory and parent removed": func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) },
		"directory made anew":          func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
		"directory moved away":         func(dir string) error { return os.Rename(dir, dir+".old") },
		"marks removed":                func(dir string) error { return os.Remove(filepath.Join(dir, marksName)) },
		"marks moved away": func(dir string) error {
			return os.Rename(filepath.Join(dir, marksName), filepath.Join(dir, "old"))
		},
		"lock removed": func(dir string) error { return os.Remove(filepath.Join(dir, lockName)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "culvert", "state")
			s := storeWithoutWatch(t, dir)
			q := sequence(t, s, keyA)
			for range 3 {
				mustNext(t, q)
			}
			if s.look(); s.Mended().Times != 0 {
				t.Fatal("mended before anything was broken")
			}
			if err := take(dir); err != nil {
				t.Fatal(err)
			}
			if !s.look() || s.Err() != nil || s.Mended().Times != 1 || s.Mended().Last == "" {
				t.Fatalf("%v, %+v", s.Err(), s.Mended())
			}
			if s.look(); s.Mended().Times != 1 {
				t.Fatal("mended again what is whole")
			}
			if _, err := OpenStore(dir); !errors.Is(err, ErrStoreBusy) {
				t.Fatalf("a second process: %v", err)
			}
			// And reservations go on in the new file.
			q.at = q.end
			q.refill()
			if err := s.extend(); err != nil {
				t.Fatal(err)
			}
			last := mustNext(t, q)
			if q.Reserved() <= last {
				t.Errorf("reserved up to %d, handed out %d", q.Reserved(), last)
			}
			s.disk.close()
			if n := mustNext(t, sequence(t, openStore(t, dir), keyA)); n <= last {
				t.Errorf("after a restart it goes on at %d, behind %d", n, last)
			}
		})
	}
}

// A directory that another gateway has taken over meanwhile is its own until it ends. Then its marks are kept beside ours, and of a
// key that both have the higher one counts.
func TestDirectoryTakenOver(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := storeWithoutWatch(t, dir)
	q := sequence(t, s, keyA)
	mustNext(t, q)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	other, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	shared := sequence(t, other, keyA)
	if err := errors.Join(shared.store.skip(shared, 5*firstChunk)); err != nil {
		t.Fatal(err)
	}
	high := shared.Reserved()
	for i := range 2 * slotsPerPage { // more than there is room for
		if _, err := other.Sequence(uint32(1000+i), netip.MustParseAddr("192.0.2.9"), [16]byte{1, byte(i), byte(i >> 8)}, false); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(filepath.Join(dir, marksName))
	if err != nil {
		t.Fatal(err)
	}
	if s.look() || !errors.Is(s.Err(), ErrStoreBusy) || !strings.Contains(s.Err().Error(), "cannot be made again") {
		t.Fatalf("while another gateway has it: %v", s.Err())
	}
	q.at = q.end
	q.refill()
	if err := s.extend(); !errors.Is(err, ErrStoreBusy) {
		t.Fatalf("a reservation while another gateway has the directory: %v", err)
	}
	if now, err := os.ReadFile(filepath.Join(dir, marksName)); err != nil || string(now) != string(before) {
		t.Fatalf("the other gateway's file was changed: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if !s.look() {
		t.Fatal(s.Err())
	}
	if !s.Has([16]byte{1, 0, 0}) || !s.Has([16]byte{1, 2*slotsPerPage - 1, 0}) {
		t.Error("the other gateway's keys are forgotten")
	}
	if err := s.extend(); err != nil {
		t.Fatal(err)
	}
	if n := mustNext(t, q); n < high {
		t.Errorf("it goes on at %d, but the other gateway had reserved up to %d", n, high)
	}
	s.disk.close()
	again := openStore(t, dir)
	if !again.Has([16]byte{1, 7, 0}) || !again.Has(keyA) {
		t.Error("the file does not have the keys of both")
	}
}

// A file that is put in place of ours and cannot be read is not overwritten, until somebody takes it away.
func TestStrangeFileInPlace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := storeWithoutWatch(t, dir)
	mustNext(t, sequence(t, s, keyA))
	name := filepath.Join(dir, marksName)
	if err := errors.Join(os.Remove(name), os.WriteFile(name, []byte("somebody's"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if s.look() || !errors.Is(s.Err(), ErrStoreCorrupt) || !strings.Contains(s.Err().Error(), "Remove it") {
		t.Fatalf("%v", s.Err())
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != "somebody's" {
		t.Fatalf("%q, %v", b, err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if !s.look() || s.Err() != nil {
		t.Fatal(s.Err())
	}
}

// Where another file system is in the directory's place nothing is written: it might be gone with the next reboot, and the old marks
// believed. When it is taken away everything is as before.
func TestMountedOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := filepath.Join(t.TempDir(), "state")
	s := storeWithoutWatch(t, dir)
	mustNext(t, sequence(t, s, keyA))
	if err := syscall.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Skipf("mounting a tmpfs: %v", err)
	}
	mounted := true
	defer func() {
		if mounted {
			syscall.Unmount(dir, 0)
		}
	}()
	if s.look() || !errors.Is(s.Err(), ErrStoreMoved) {
		t.Fatalf("%v", s.Err())
	}
	if l, err := os.ReadDir(dir); err != nil || len(l) != 0 {
		t.Errorf("something was written there: %v, %v", l, err)
	}
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	mounted = false
	if !s.look() || s.Err() != nil {
		t.Fatal(s.Err())
	}
}

// The memory of exact numbers goes with the directory: after a kill nothing is refused that was not received.
func TestMemoryFollows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s.Memory() != nil {
		t.Skip(s.Memory())
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return s.Mended().Times == 1 }) // by the store's own goroutine
	s.mu.Lock()
	want, err := topsName(s.disk.(*dirDisk).dir)
	path := s.memory.path
	s.mu.Unlock()
	if err != nil || filepath.Base(path) != want {
		t.Errorf("the memory is %s, and the directory's would be %s, %v", path, want, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the memory is left behind")
	}
}

// Numbers that another process may have used in the place of the directory are not used again, though they are among those that are
// reserved here, or beyond what memory tells: neither after a sequence has been given back nor after a kill.
func TestTakenOverIsNotGivenBack(t *testing.T) {
	for _, skipped := range []uint64{0, 5 * firstChunk} { // by the other one
		for _, killed := range []bool{false, true} {
			dir := filepath.Join(t.TempDir(), "state")
			s := storeWithoutWatch(t, dir)
			m := &tops{mem: make([]byte, slotsPerPage*topRecordLen)}
			s.memory = m
			q := sequence(t, s, keyA)
			mustNext(t, q)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			other := openStore(t, dir)
			theirs := sequence(t, other, keyA)
			if err := theirs.SkipPast(skipped + 1000); err != nil {
				t.Fatal(err)
			}
			last := mustNext(t, theirs)
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			if !s.look() {
				t.Fatal(s.Err())
			}
			if !killed {
				q.Close()
			}
			if err := s.extend(); err != nil {
				t.Fatal(err)
			}
			s.memory = nil // which is not closed with it
			s.disk.close()
			s = storeWithoutWatch(t, dir)
			s.memory = m
			if n := mustNext(t, sequence(t, s, keyA)); n <= last {
				t.Errorf("skipped %d, killed %v: it goes on at %d, though the other process has used %d", skipped, killed, n, last)
			}
		}
	}
}
