package sa

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"unsafe"
)

// tops is a file in memory that outlives the process, though not the machine: a mapped tmpfs, to which a lane writes without a
// system call, and without ever waiting for a disk. It holds the exact highest number of each inbound SA, and for each outbound one
// a number that lies just beyond all that were used.
type tops struct {
	f    *os.File
	path string // of f, which may have moved since it was opened
	mem  []byte
}

// topRecord is one slot's, in the machine's byte order. It counts only if everything in it agrees with the mark on disk.
type topRecord struct {
	id  [16]byte
	gen uint64
	top uint64
	not uint64 // ^top: a record that was being written when the process was killed does not agree
	_   [3]uint64
}

const topRecordLen = int(unsafe.Sizeof(topRecord{}))

// topsDirs are where such a file may be; tests have others.
var topsDirs = []string{"/dev/shm", "/run"}

// openTops opens the file that belongs to a store's directory, for that many slots.
func openTops(dir *os.File, slots int) (*tops, error) {
	name, err := topsName(dir)
	if err != nil {
		return nil, err
	}
	err = errors.New("there is no directory for it")
	// A store that is in memory itself has it with it, so that they are removed together.
	for _, d := range append([]string{dir.Name()}, topsDirs...) {
		var t *tops
		if t, err = openTopsAt(d, name, slots); err == nil {
			return t, nil
		}
	}
	return nil, err
}

// topsName is what the file of a store's directory is called.
func topsName(dir *os.File) (string, error) {
	st, err := dir.Stat()
	if err != nil {
		return "", err
	}
	sys := st.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("culvert-%x-%x", sys.Dev, sys.Ino), nil
}

// follow renames the file when the store's directory has become another one.
func (t *tops) follow(dir *os.File) {
	if t == nil {
		return
	}
	name, err := topsName(dir)
	if err != nil {
		return
	}
	// Without, a kill costs what a power failure costs.
	if path := filepath.Join(filepath.Dir(t.path), name); path != t.path && os.Rename(t.path, path) == nil {
		t.path = path
	}
}

func openTopsAt(dir, name string, slots int) (*tops, error) {
	var fsys syscall.Statfs_t
	if err := syscall.Statfs(dir, &fsys); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if volatileFS[uint32(fsys.Type)] != "tmpfs" {
		return nil, fmt.Errorf("%s is not a tmpfs", dir)
	}
	// Anybody may write into /dev/shm: the file must be our own, and nobody else's to write.
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	t := &tops{f: f, path: f.Name()}
	st, err := f.Stat()
	if err == nil {
		sys := st.Sys().(*syscall.Stat_t)
		if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 || int(sys.Uid) != os.Geteuid() || sys.Nlink != 1 {
			err = fmt.Errorf("%s is not a file of this user alone; remove it", f.Name())
		} else {
			err = t.grow(slots)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return t, nil
}

// grow makes room for that many slots. Records of before stay where they are, and valid: nothing is ever unmapped.
func (t *tops) grow(slots int) error {
	if t == nil || slots*topRecordLen <= len(t.mem) {
		return nil
	}
	size := slots * topRecordLen
	// Pages are allocated here, where it can fail; a write to one that is not there kills the process.
	if err := syscall.Fallocate(int(t.f.Fd()), 0, 0, int64(size)); err != nil {
		return &os.PathError{Op: "allocate", Path: t.f.Name(), Err: err}
	}
	mem, err := syscall.Mmap(int(t.f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return &os.PathError{Op: "map", Path: t.f.Name(), Err: err}
	}
	_ = syscall.Mlock(mem) // without, a record that was swapped out costs a lane a wait
	t.mem = mem
	return nil
}

func (t *tops) record(slot int) *topRecord {
	if t == nil || (slot+1)*topRecordLen > len(t.mem) {
		return nil
	}
	return (*topRecord)(unsafe.Pointer(&t.mem[slot*topRecordLen]))
}

// recall gives the number of a slot, if it was written by the process that wrote the mark of this generation.
func (t *tops) recall(slot int, id [16]byte, gen uint32) (uint64, bool) {
	r := t.record(slot)
	if r == nil || gen == 0 || r.gen != uint64(gen) || r.id != id || r.top != ^r.not {
		return 0, false
	}
	return r.top, true
}

// keep begins a slot's record, nil if there is no room for it.
func (t *tops) keep(slot int, id [16]byte, gen uint32, top uint64) *topRecord {
	r := t.record(slot)
	if r != nil {
		r.gen = 0
		r.set(top)
		r.id, r.gen = id, uint64(gen)
	}
	return r
}

// forget makes a slot's record worth nothing.
func (t *tops) forget(slot int) {
	if r := t.record(slot); r != nil {
		r.gen = 0
	}
}

func (r *topRecord) set(top uint64) { r.top, r.not = top, ^top }

// close closes the file, and removes it if nothing in it is of use any more.
func (t *tops) close(remove bool) error {
	if t == nil {
		return nil
	}
	var err error
	if remove {
		if err = os.Remove(t.path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(err, t.f.Close())
}
