package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const ownerFile = "owner"

// lockRun takes the lock under which labs come and go, so that nobody sweeps a lab that is just being made.
func lockRun() (unlock func(), err error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(runDir, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", f.Name(), err), f.Close())
	}
	return func() { f.Close() }, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// own marks dir as belonging to this process, by a lock that the kernel drops when the process is gone: a pid that
// is used again, or means another process in another pid namespace, cannot be mistaken for the owner.
func own(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ownerFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

// owned reports whether the process that made the lab directory still lives.
func owned(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, ownerFile))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // died between the two; the run lock says that nobody is in between now
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	switch err := flock(f, unix.LOCK_EX|unix.LOCK_NB); {
	case err == nil:
		return false, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	default:
		return false, err
	}
}

// Sweep removes the namespaces and directories of labs whose process is gone, and returns the names of what it removed.
// New does it as well.
func Sweep() ([]string, error) {
	unlock, err := lockRun()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return sweep()
}

// sweep does it under the run lock. Namespaces go before the directory that tells who owned them.
func sweep() (removed []string, err error) {
	var errs []error
	alive := map[string]bool{} // lab, as <pid>-<n>
	var dead []string
	dirs, err := os.ReadDir(runDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, d := range dirs {
		if _, ok := labPid(d.Name()); !ok {
			continue
		}
		live, err := owned(filepath.Join(runDir, d.Name()))
		if err != nil {
			errs = append(errs, err)
			live = true // could not tell
		}
		if alive[d.Name()] = live; !live {
			dead = append(dead, d.Name())
		}
	}
	names, err := os.ReadDir(netnsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, n := range names {
		lab, pid, ok := parseName(n.Name())
		if !ok {
			continue
		}
		live, known := alive[lab]
		if !known {
			live = pidAlive(pid) // its directory is gone: the pid is all there is to judge by
		}
		if live {
			continue
		}
		if err := removeNamed(n.Name()); err != nil {
			errs = append(errs, fmt.Errorf("namespace %s: %w", n.Name(), err))
			continue
		}
		removed = append(removed, n.Name())
	}
	for _, d := range dead {
		path := filepath.Join(runDir, d)
		if err := removeDir(path); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, path)
	}
	return removed, errors.Join(errs...)
}

// parseName splits culvert-<pid>-<n>-<role> into <pid>-<n> and the pid.
func parseName(name string) (lab string, pid int, ok bool) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return "", 0, false
	}
	parts := strings.SplitN(rest, "-", 3)
	if len(parts) != 3 || parts[2] == "" {
		return "", 0, false
	}
	lab = parts[0] + "-" + parts[1]
	pid, ok = labPid(lab)
	return lab, pid, ok
}

// labPid takes the pid from <pid>-<n>.
func labPid(lab string) (pid int, ok bool) {
	p, n, found := strings.Cut(lab, "-")
	pid, err := strconv.Atoi(p)
	_, err2 := strconv.ParseUint(n, 10, 32)
	return pid, found && err == nil && err2 == nil && pid > 0
}

func pidAlive(pid int) bool {
	return !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// removeNamed undoes the name of a namespace. The namespace itself ends with its last thread and socket.
func removeNamed(name string) error {
	path := filepath.Join(netnsDir, name)
	// EINVAL: not a mount point, the left-over of a start that failed half-way.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// inMemory lays a tmpfs over a lab's directory where it is on a disk, as /run is in many containers. Gateways keep what is to outlive
// them next to their state if that is in memory, and so in the lab's directory, with which it is removed.
func inMemory(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if fs.Type == unix.TMPFS_MAGIC {
		return nil
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return &os.PathError{Op: "mount a tmpfs on", Path: dir, Err: err}
	}
	return nil
}

// removeDir removes a lab's directory, and what was mounted there.
func removeDir(dir string) error {
	// EINVAL: nothing is.
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	return os.RemoveAll(dir)
}
