package sa

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lookEvery is how often a Store looks whether its directory is still what it was. An idle SA writes nothing for hours, and a process
// that is started meanwhile in a directory that is empty begins at 1.
const lookEvery = time.Second

// ErrStoreMoved says that the place of a Store's directory is on another file system now: the old one was unmounted, or another is
// mounted over it. Marks written there would be hidden when it is mounted again, and the old ones believed.
var ErrStoreMoved = errors.New("its place is on another file system than when culvert started")

// Mended is how often somebody has removed or replaced the directory or a file in it while a Store was using it, and the store has made
// it again with all marks.
type Mended struct {
	Times uint64
	Last  string // what had happened, the last time
}

// Mended is how often that has happened so far. What cannot be mended is said by Err.
func (s *Store) Mended() Mended {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mended
}

// File is the name of the file that holds the marks.
func (s *Store) File() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disk.String()
}

// Reserved is the first number that is not reserved: those below last while the disk refuses. It is 0 for a volatile sequence.
func (s *Sequence) Reserved() uint64 {
	if s.store == nil {
		return 0
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.store.marks[s.slot].next
}

// look finds out what others have done to the directory, and mends it. It reports whether the disk works again after it did not.
func (s *Store) look() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.disk.intact() != nil {
		s.suspect = true
	}
	if !s.suspect {
		return false
	}
	err := s.settle()
	if err == nil && s.suspect {
		err = s.commit(nil)
	}
	if s.err = err; err != nil {
		s.err = fmt.Errorf("sa: sequence store: %s: %w", s.disk, err)
	}
	return err == nil
}

// settle puts all marks into what is now in the place of a directory or file that somebody has taken away. What this process has in
// memory is the truth of its keys while it has the lock; if another gateway has written there since, its marks are kept beside. Whoever
// replaces the file calls it before.
func (s *Store) settle() error {
	if !s.suspect {
		return nil
	}
	gone := s.disk.intact()
	if gone == nil {
		return nil
	}
	found, err := s.disk.reopen()
	if err == nil && found != nil {
		err = s.adopt(found)
	}
	if err == nil {
		err = s.disk.replace(encodeMarks(s.marks))
	}
	if err != nil {
		return fmt.Errorf("%w, and cannot be made again: %w", gone, err)
	}
	s.suspect = false
	if d, ok := s.disk.(*dirDisk); ok {
		s.memory.follow(d.dir)
	}
	s.mended.Times++
	s.mended.Last = gone.Error()
	return nil
}

// adopt takes over the marks of a file that was put in our file's place: keys that this process does not have, and of those that it
// has the higher mark.
func (s *Store) adopt(content []byte) error {
	marks, err := decodeMarks(content)
	if err != nil {
		return fmt.Errorf("the file in its place cannot be believed: %w: %w. Remove it: this process has all marks, and writes them again",
			ErrStoreCorrupt, err)
	}
	for _, m := range marks {
		if !m.used {
			continue
		}
		slot, known := s.byKey[m.id.KeyID]
		switch {
		case known && !m.in:
			// Who wrote it may have used numbers that are beyond ours, or among those reserved here. So neither does the memory of this
			// process tell where to go on, nor may the mark move back to there: no reservation ends where it is now.
			mine := &s.marks[slot]
			mine.gen = 0
			if mine.next = max(mine.next, m.next); mine.next < math.MaxUint64 {
				mine.next++
			}
		case !known:
			if len(s.free) == 0 {
				s.enlarge()
			}
			slot = s.free[len(s.free)-1]
			s.free = s.free[:len(s.free)-1]
			s.marks[slot] = m
			s.byKey[m.id.KeyID] = slot
		}
	}
	return nil
}

// enlarge doubles the number of slots in memory; the file has them when it is replaced.
func (s *Store) enlarge() {
	n := len(s.marks)
	s.marks = append(s.marks[:n:n], make([]mark, n)...)
	_ = s.memory.grow(len(s.marks)) // slots without a record are as if there were no memory
	for i := len(s.marks) - 1; i >= n; i-- {
		s.free = append(s.free, i)
	}
}

// intact compares what the names lead to with what is open.
func (d *dirDisk) intact() error {
	for _, c := range []struct {
		what string
		f    *os.File
		stat func(string) (fs.FileInfo, error)
	}{{"the directory", d.dir, os.Stat}, {"the lock in the directory", d.lock, os.Lstat}, {"the file", d.file, os.Lstat}} {
		if c.f == nil {
			continue
		}
		name := c.f.Name()
		if c.f == d.file {
			name = d.String() // which it was renamed to
		}
		there, err := c.stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s was removed while it was in use", c.what)
		} else if err != nil {
			return err
		}
		open, err := c.f.Stat()
		if err != nil {
			return err
		}
		if !os.SameFile(there, open) {
			return fmt.Errorf("%s was replaced by another while it was in use", c.what)
		}
	}
	return nil
}

// reopen makes the directory again if it is gone, and takes its lock if that is another one. The file that was open stays so until
// replace, so that intact says no until all marks are there.
func (d *dirDisk) reopen() ([]byte, error) {
	dir := d.dir.Name()
	was, err := d.dir.Stat()
	if err != nil {
		return nil, err
	}
	place, err := nearest(dir)
	if err != nil {
		return nil, err
	}
	if device(place) != device(was) {
		return nil, fmt.Errorf("%w: mount that again, or stop culvert, and give every SA new keys before it starts there", ErrStoreMoved)
	}
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	there, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	held, err := d.lock.Stat()
	if err != nil {
		return nil, err
	}
	lock, err := os.Lstat(filepath.Join(dir, lockName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil || !os.SameFile(lock, held) || !os.SameFile(there, was) {
		nd, nl, err := lockDir(dir)
		if err != nil {
			return nil, err
		}
		d.dir.Close()
		d.lock.Close()
		d.dir, d.lock = nd, nl
	}
	f, content, err := openMarks(d.String())
	if err != nil || f == nil {
		return nil, err
	}
	defer f.Close()
	if d.file != nil {
		mine, err := d.file.Stat()
		if err != nil {
			return nil, err
		}
		if st, err := f.Stat(); err == nil && os.SameFile(st, mine) {
			return nil, nil
		}
	}
	return content, nil
}

// nearest is the directory, or what is nearest above it if it does not exist.
func nearest(dir string) (fs.FileInfo, error) {
	for {
		st, err := os.Stat(dir)
		up := filepath.Dir(dir)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || up == dir {
			return st, err
		}
		dir = up
	}
}

func device(st fs.FileInfo) uint64 { return uint64(st.Sys().(*syscall.Stat_t).Dev) }
