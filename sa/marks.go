package sa

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The file of a Store: a header and slots of 64 bytes, so that no record crosses a sector and writing one is all or nothing.
// Integers are big-endian. Every record ends with a CRC-32C of itself and its place; a free slot is a valid record too, so
// that a hole of zeros is never taken for one.
//
//	header: 0 magic (24) | 24 version (4) | 28 number of slots (4) | 32 zero (28) | 60 CRC
//	slot:   0 state (1) | 1 flags (1) | 2 zero (2) | 4 SPI (4) | 8 next (8) | 16 key ID (16) | 32 destination (16)
//	        48 time written, Unix seconds (8) | 56 generation (4) | 60 CRC
const (
	marksName    = "sequence-marks"
	lockName     = "lock"
	marksMagic   = "culvert sequence marks\r\n"
	marksVersion = 1
	recordLen    = 64
	slotsPerPage = 4096/recordLen - 1 // with the header a page

	slotFree = 0xf0
	slotUsed = 0x0f

	flagESN = 1 << 0
	flagIP4 = 1 << 1
	flagIn  = 1 << 2 // of an inbound SA
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// mark is one slot: the first number of a key that is not reserved yet, or that an inbound SA may not have accepted yet.
type mark struct {
	used    bool
	in      bool
	gen     uint32 // which record in memory belongs to it; 0: none
	id      SequenceID
	next    uint64
	written time.Time
}

func offset(slot int) int64 { return int64(slot+1) * recordLen }

// seal writes a record's checksum; place is the record's index in the file, the header's being 0.
func seal(rec *[recordLen]byte, place int) {
	binary.BigEndian.PutUint32(rec[60:], checksum(rec[:], place))
}

func checksum(rec []byte, place int) uint32 {
	var at [4]byte
	binary.BigEndian.PutUint32(at[:], uint32(place))
	return crc32.Update(crc32.Checksum(rec[:60], castagnoli), castagnoli, at[:])
}

func (m *mark) encode(slot int) [recordLen]byte {
	var rec [recordLen]byte
	rec[0] = slotFree
	if m.used {
		rec[0] = slotUsed
		if m.id.ESN {
			rec[1] |= flagESN
		}
		if m.id.Dst.Is4() {
			rec[1] |= flagIP4
		}
		if m.in {
			rec[1] |= flagIn
		}
		binary.BigEndian.PutUint32(rec[56:], m.gen)
		binary.BigEndian.PutUint32(rec[4:], m.id.SPI)
		binary.BigEndian.PutUint64(rec[8:], m.next)
		copy(rec[16:32], m.id.KeyID[:])
		dst := m.id.Dst.As16()
		copy(rec[32:48], dst[:])
		binary.BigEndian.PutUint64(rec[48:], uint64(m.written.Unix()))
	}
	seal(&rec, slot+1)
	return rec
}

func encodeMarks(marks []mark) []byte {
	var head [recordLen]byte
	copy(head[:], marksMagic)
	binary.BigEndian.PutUint32(head[24:], marksVersion)
	binary.BigEndian.PutUint32(head[28:], uint32(len(marks)))
	seal(&head, 0)
	b := make([]byte, 0, recordLen*(len(marks)+1))
	b = append(b, head[:]...)
	for i := range marks {
		rec := marks[i].encode(i)
		b = append(b, rec[:]...)
	}
	return b
}

// decodeMarks reads a whole file. It accepts nothing that encodeMarks did not write.
func decodeMarks(b []byte) ([]mark, error) {
	if len(b) < 2*recordLen || len(b)%recordLen != 0 {
		return nil, fmt.Errorf("it has %d bytes, not a whole number of records of %d", len(b), recordLen)
	}
	if string(b[:len(marksMagic)]) != marksMagic {
		return nil, errors.New("it does not begin as a file of sequence marks")
	}
	if binary.BigEndian.Uint32(b[60:]) != checksum(b[:recordLen], 0) {
		return nil, errors.New("the checksum of its header is wrong")
	}
	if v := binary.BigEndian.Uint32(b[24:]); v != marksVersion {
		return nil, fmt.Errorf("it is of version %d, this program reads version %d", v, marksVersion)
	}
	if n, want := int64(len(b)/recordLen-1), int64(binary.BigEndian.Uint32(b[28:])); n != want {
		return nil, fmt.Errorf("it has %d slots, but its header says %d", n, want)
	}
	marks := make([]mark, len(b)/recordLen-1)
	for i := range marks {
		rec := b[offset(i):][:recordLen]
		if binary.BigEndian.Uint32(rec[60:]) != checksum(rec, i+1) {
			return nil, fmt.Errorf("the checksum of slot %d, at byte %d, is wrong", i, offset(i))
		}
		switch rec[0] {
		case slotFree:
		case slotUsed:
			m := &marks[i]
			m.used = true
			m.id.ESN = rec[1]&flagESN != 0
			m.in = rec[1]&flagIn != 0
			m.gen = binary.BigEndian.Uint32(rec[56:])
			m.id.SPI = binary.BigEndian.Uint32(rec[4:])
			m.next = binary.BigEndian.Uint64(rec[8:])
			m.id.KeyID = [16]byte(rec[16:32])
			m.id.Dst = netip.AddrFrom16([16]byte(rec[32:48]))
			if rec[1]&flagIP4 != 0 {
				m.id.Dst = m.id.Dst.Unmap()
			}
			m.written = time.Unix(int64(binary.BigEndian.Uint64(rec[48:])), 0)
			if m.next == 0 {
				return nil, fmt.Errorf("slot %d, at byte %d, has no mark", i, offset(i))
			}
		default:
			return nil, fmt.Errorf("slot %d, at byte %d, has the unknown state %#x", i, offset(i), rec[0])
		}
	}
	return marks, nil
}

// disk is what a Store writes to. Tests have one that loses what was not synced.
type disk interface {
	writeAt(b []byte, off int64) error
	sync() error            // what was written is durable when it returns
	replace(b []byte) error // the whole content; durable when it returns, and the old content or the new at any moment
	close() error
	String() string // the file's name, for errors

	intact() error                     // nil if what is written is where the next process will look for it
	reopen() (found []byte, err error) // after intact has said no: makes the way for replace, and gives what is there now, if it is not ours
}

// dirDisk is the store's directory.
type dirDisk struct {
	dir  *os.File
	lock *os.File
	file *os.File
}

// openDir makes and locks a directory and reads its marks, nil if there is no such file.
func openDir(dir string) (*dirDisk, []byte, error) {
	fail := func(err error) (*dirDisk, []byte, error) { return nil, nil, unusable(err) }
	if err := makeDir(dir); err != nil {
		return fail(err)
	}
	d := &dirDisk{}
	var err error
	if d.dir, d.lock, err = lockDir(dir); errors.Is(err, ErrStoreBusy) {
		return nil, nil, fmt.Errorf("sa: %w", err)
	} else if err != nil {
		return fail(err)
	}
	content := []byte(nil)
	if d.file, content, err = openMarks(d.String()); err != nil {
		d.close()
		return fail(err)
	}
	return d, content, nil
}

// unusable is a system's error about the directory for people.
func unusable(err error) error {
	if errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("sa: sequence store: %w. The gateway must be able to write there: "+
			"choose a directory that lasts and is its own", err)
	}
	return fmt.Errorf("sa: sequence store: %w", err)
}

// lockDir opens a directory and takes its lock, if both are nobody else's.
func lockDir(dir string) (d, lock *os.File, err error) {
	if d, err = os.Open(dir); err != nil {
		return nil, nil, err
	}
	if err := ownDir(d); err != nil {
		d.Close()
		return nil, nil, err
	}
	if lock, err = openOwn(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE); err != nil {
		d.Close()
		return nil, nil, err
	}
	if err := flock(lock); err != nil {
		holder := lockHolder(lock)
		lock.Close()
		d.Close()
		if err == syscall.EWOULDBLOCK {
			return nil, nil, fmt.Errorf("%w: %s is locked by %s; stop that one, or give each gateway a directory of its own",
				ErrStoreBusy, dir, holder)
		}
		return nil, nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	// Who holds the lock is for error messages only, so it does not matter if this fails.
	if lock.Truncate(0) == nil {
		lock.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	return d, lock, nil
}

// openMarks opens the file of marks and reads it; both are nil if there is none.
func openMarks(name string) (*os.File, []byte, error) {
	f, err := openOwn(name, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, err
	}
	content, err := readMarks(f)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, content, nil
}

// maxMarks bounds the file of marks: a million keys.
const maxMarks = 64 << 20

func readMarks(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > maxMarks {
		return nil, fmt.Errorf("%s is not a file of marks: %d bytes; move it away, and give every SA new keys", f.Name(), st.Size())
	}
	return io.ReadAll(io.LimitReader(f, maxMarks))
}

// makeDir makes a directory that is not there, durably, with what leads to it.
func makeDir(dir string) error {
	if st, err := os.Stat(dir); err == nil {
		if !st.IsDir() {
			return &os.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	p, err := os.Open(parent)
	if err != nil {
		return err
	}
	defer p.Close()
	return syncDir(p)
}

// syncDir makes a directory's entries durable. Some file systems have nothing to do for that and say so.
func syncDir(d *os.File) error {
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EINTR {
			return err
		}
	}
}

func lockHolder(f *os.File) string {
	b := make([]byte, 16)
	n, _ := f.ReadAt(b, 0)
	if pid := strings.TrimSpace(string(b[:n])); pid != "" {
		return "process " + pid
	}
	return "another process"
}

func (d *dirDisk) String() string { return filepath.Join(d.dir.Name(), marksName) }

func (d *dirDisk) writeAt(b []byte, off int64) error {
	_, err := d.file.WriteAt(b, off)
	return err
}

// sync also notices that somebody has removed the file: what is written to it then is gone with the process.
func (d *dirDisk) sync() error {
	if err := d.file.Sync(); err != nil {
		return err
	}
	return d.intact()
}

func (d *dirDisk) replace(b []byte) error {
	// What a process left that was killed here is of no use. A new file is nobody else's, by whatever name.
	if err := os.Remove(d.String() + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := openOwn(d.String()+".new", os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), d.String())
	}
	if err != nil {
		f.Close()
		os.Remove(f.Name()) // it may be what fills the disk
		return err
	}
	// The new file is the one that is found from here on, so it is the one to write to even if the next step fails.
	if d.file != nil {
		d.file.Close()
	}
	d.file = f
	return syncDir(d.dir)
}

func (d *dirDisk) close() error {
	var errs []error
	for _, f := range []*os.File{d.file, d.lock, d.dir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
