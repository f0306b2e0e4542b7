package sa

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A developer's umask may let the group write: directories of tests are not what is tested then.
func init() { syscall.Umask(0o022) }

// A directory that others own or can write is refused, by OpenStore as by CheckStore, nothing is made in it, and what the error says to do
// mends it. One that others can only read is used.
func TestStoreIsNobodyElses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root gives directories away")
	}
	for name, c := range map[string]struct {
		mode os.FileMode
		uid  int
		ok   bool
	}{
		"everybody's":              {mode: 0o777},
		"sticky, as /tmp":          {mode: 0o777 | os.ModeSticky},
		"its group's":              {mode: 0o770},
		"another user's":           {mode: 0o700, uid: 65534},
		"another user's, for all":  {mode: 0o777, uid: 65534},
		"readable by others":       {mode: 0o755, ok: true},
		"root's alone, as culvert": {mode: 0o700, ok: true},
	} {
		dir := filepath.Join(t.TempDir(), "state")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, c.uid, 0), os.Chmod(dir, c.mode)); err != nil {
			t.Fatal(err)
		}
		s, err := OpenStore(dir)
		if checked := CheckStore(dir); (checked == nil) != c.ok {
			t.Errorf("%s: check says %v", name, checked)
		} else if err != nil && checked.Error() != err.Error() {
			t.Errorf("%s: check says %v, open %v", name, checked, err)
		}
		if c.ok {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			s.Close()
			continue
		}
		mend := fmt.Sprintf("chown -R root: %s; chmod 700 %[1]s", dir)
		if !errors.Is(err, ErrStoreExposed) || !strings.Contains(err.Error(), mend) {
			t.Errorf("%s: got %v, want %q in it", name, err, mend)
			continue
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v was made in it: %v", name, left, err)
		}
		if err := errors.Join(os.Chown(dir, 0, 0), os.Chmod(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		openStore(t, dir).Close()
	}
}

// What has the name of one of the store's files and is a link, is not a regular file, has a second name or can be written by others is
// neither followed nor written nor believed, whatever became of the directory since. An unfinished file of marks is replaced, not written.
func TestStoreFilesAreItsOwn(t *testing.T) {
	root := os.Geteuid() == 0
	for _, file := range []string{lockName, marksName, marksName + ".new"} {
		for what, put := range map[string]func(name, victim string) error{
			"a link":                func(name, victim string) error { return os.Symlink(victim, name) },
			"a link to nothing":     func(name, victim string) error { return os.Symlink(victim+".none", name) },
			"a second name":         func(name, victim string) error { return os.Link(victim, name) },
			"a pipe":                func(name, _ string) error { return syscall.Mkfifo(name, 0o600) },
			"a file that all write": func(name, _ string) error { return errors.Join(os.WriteFile(name, nil, 0o600), os.Chmod(name, 0o666)) },
			"another user's file": func(name, _ string) error {
				return errors.Join(os.WriteFile(name, nil, 0o600), os.Chown(name, 65534, 65534))
			},
		} {
			if what == "another user's file" && !root {
				continue
			}
			t.Run(file+" is "+what, func(t *testing.T) {
				above := t.TempDir()
				dir, victim := filepath.Join(above, "state"), filepath.Join(above, "victim")
				name := filepath.Join(dir, file)
				if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(victim, []byte("precious"), 0o600), put(name, victim)); err != nil {
					t.Fatal(err)
				}
				checked := CheckStore(dir)
				s, err := OpenStore(dir)
				if err == nil {
					s.Close()
				}
				if replaced := file == marksName+".new"; replaced != (err == nil) {
					t.Errorf("opening gives %v", err)
				} else if err != nil && !strings.Contains(err.Error(), name) {
					t.Errorf("%v does not name the file", err)
				} else if (checked == nil) != (err == nil) || err != nil && checked.Error() != err.Error() {
					t.Errorf("check says %v, open %v", checked, err)
				}
				if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
					t.Errorf("the victim holds %q, %v", b, err)
				}
				if _, err := os.Lstat(victim + ".none"); err == nil {
					t.Error("a file was made through the link")
				}
				if st, err := os.Lstat(filepath.Join(dir, marksName)); file == marksName+".new" &&
					(err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o600) {
					t.Errorf("the marks are %v, %v", st, err)
				}
			})
		}
	}
}

// The same holds for what a running store makes again when it was taken away: it says so, and works again when it is mended.
func TestMendedStoreIsNobodyElses(t *testing.T) {
	for what, c := range map[string]struct {
		spoil, mend func(dir, victim string) error
	}{
		"the lock is a link": {
			func(dir, victim string) error {
				return errors.Join(os.Remove(filepath.Join(dir, lockName)), os.Symlink(victim, filepath.Join(dir, lockName)))
			},
			func(dir, _ string) error { return os.Remove(filepath.Join(dir, lockName)) },
		},
		"the marks are a link": {
			func(dir, victim string) error {
				return errors.Join(os.Remove(filepath.Join(dir, marksName)), os.Symlink(victim, filepath.Join(dir, marksName)))
			},
			func(dir, _ string) error { return os.Remove(filepath.Join(dir, marksName)) },
		},
		"the directory is everybody's": {
			func(dir, _ string) error {
				return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777))
			},
			func(dir, _ string) error { return os.Chmod(dir, 0o700) },
		},
	} {
		t.Run(what, func(t *testing.T) {
			above := t.TempDir()
			dir, victim := filepath.Join(above, "state"), filepath.Join(above, "victim")
			s := storeWithoutWatch(t, dir)
			q := sequence(t, s, keyA)
			mustNext(t, q)
			if err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o600), c.spoil(dir, victim)); err != nil {
				t.Fatal(err)
			}
			if s.look(); s.Err() == nil {
				t.Fatal("nothing is said")
			}
			if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
				t.Errorf("the victim holds %q, %v", b, err)
			}
			if err := c.mend(dir, victim); err != nil {
				t.Fatal(err)
			}
			if s.look(); s.Err() != nil {
				t.Fatalf("mended, it says %v", s.Err())
			}
			last := mustNext(t, q)
			s.disk.close()
			if n := mustNext(t, sequence(t, openStore(t, dir), keyA)); n <= last {
				t.Errorf("after a restart it goes on at %d, behind %d", n, last)
			}
		})
	}
}
