package sa

import (
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"culvert/offload"
)

// TestVolatileDir: the kernel's own file systems in memory are told, also for a directory that is yet to be made in them.
func TestVolatileDir(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	for _, fs := range []string{"tmpfs", "ramfs"} {
		dir := t.TempDir()
		if err := syscall.Mount("none", dir, fs, 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Unmount(dir, 0) })
		for _, d := range []string{dir, filepath.Join(dir, "not", "made")} {
			if got, err := VolatileDir(d); got != fs || err != nil {
				t.Errorf("%s: got %q, %v, want %s", d, got, err, fs)
			}
		}
	}
	// The test's own directory of sources is on whatever the machine has; /proc is never emptied, as nothing is kept there.
	if got, err := VolatileDir("/proc"); got != "" || err != nil {
		t.Errorf("/proc: got %q, %v", got, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := VolatileDir(filepath.Join(file, "x")); err == nil {
		t.Error("a directory below a file: no error")
	}
}

// TestStoreKnows: whoever opens a store can say what was new in it.
func TestStoreKnows(t *testing.T) {
	dir := t.TempDir()
	id := KeyID(offload.Keys{Enc: make([]byte, 16)})
	for round := range 2 {
		s, err := OpenStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		if s.Created() != (round == 0) || s.Has(id) != (round == 1) {
			t.Errorf("round %d: created %v, has the key %v", round, s.Created(), s.Has(id))
		}
		if _, err := s.Sequence(0x1001, netip.MustParseAddr("192.0.2.1"), id, false); err != nil {
			t.Fatal(err)
		}
		if !s.Has(id) {
			t.Error("the key that was begun is not known")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
