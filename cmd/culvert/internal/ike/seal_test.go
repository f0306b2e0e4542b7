package ike

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What is sealed opens with the key from the descriptor, by the next process too, and by nothing else; the key cannot be changed; and
// nothing of the state is in the file.
func TestSeal(t *testing.T) {
	s, f, err := newSeal()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	state := bytes.Repeat([]byte("an SA's key"), 100)
	file := s.seal(state)
	if bytes.Contains(file, state[:8]) || bytes.Equal(s.seal(state), file) {
		t.Error("the state can be seen in the file, or that it is the same as before")
	}
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	kept := os.NewFile(uintptr(fd), sealName)
	defer kept.Close()
	next, err := openSeal(kept)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := next.open(file); err != nil || !bytes.Equal(got, state) {
		t.Errorf("opened: %v", err)
	}
	if _, err := kept.WriteAt([]byte{1}, 0); err == nil {
		t.Error("the key can be changed")
	}
	for i := range file {
		file[i] ^= 1
		if _, err := next.open(file); !errors.Is(err, errSeal) {
			t.Fatalf("byte %d is changed: %v", i, err)
		}
		file[i] ^= 1
	}
	for n := range len(file) {
		if _, err := next.open(file[:n]); !errors.Is(err, errSeal) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	other, g, err := newSeal()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := other.open(file); !errors.Is(err, errSeal) {
		t.Errorf("another key: %v", err)
	}
	empty, err := os.Create(t.TempDir() + "/empty")
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if _, err := openSeal(empty); err == nil {
		t.Error("an empty file is a key")
	}
}
