package ike

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"culvert/sa"
	"culvert/xfrm/divert"
)

// Where the state of descriptors and of the server is, below ike.state_dir. There are keys in the latter, which is sealed.
const (
	keptDir   = "kept"
	savedFile = "sas"
)

// store is systemd's file-descriptor store (sd_pid_notify_with_fds(3)): what is in it outlives the gateway's process, so that the next
// one goes on with the IKE daemon's sockets. systemd keeps a name with each; the rest is in a file of that name.
type store struct {
	log    *slog.Logger
	notify string // path of systemd's socket
	dir    string
	seal   *seal      // of the server's state, from inherited on
	mu     sync.Mutex // of sending
}

// newStore finds the store of the service that this process is of; nil if it is of none, or if the state would be on a disk.
func newStore(stateDir string, log *slog.Logger) (*store, error) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	kind, err := sa.VolatileDir(stateDir)
	if err != nil {
		return nil, fmt.Errorf("ike.state_dir: %w", err)
	}
	if kind == "" {
		log.Warn("ike.state_dir is on a disk, where no keys are written: the IKE daemon's tunnels end with the gateway", "state_dir", stateDir,
			"remedy", "let it be a directory in /run")
		return nil, nil
	}
	s := &store{log: log, notify: name, dir: filepath.Join(stateDir, keptDir)}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	return s, nil
}

// Keep stores a descriptor.
func (s *store) Keep(k divert.Kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := replace(filepath.Join(s.dir, k.Name), k.State)
	if err == nil {
		// One of the same name would be a second one.
		err = errors.Join(s.tell("FDSTOREREMOVE=1\nFDNAME="+k.Name, nil), s.tell("FDSTORE=1\nFDPOLL=0\nFDNAME="+k.Name, k.File))
	}
	if err != nil {
		s.log.Warn("a descriptor of the IKE daemon's is not kept for a restart of the gateway", "name", k.Name, "reason", err)
	}
}

// Forget drops one.
func (s *store) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.tell("FDSTOREREMOVE=1\nFDNAME="+name, nil); err != nil {
		s.log.Warn("a descriptor of the IKE daemon's stays in systemd's store", "name", name, "reason", err)
	}
	os.Remove(filepath.Join(s.dir, name))
}

func (s *store) tell(text string, f *os.File) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var oob []byte
	if f != nil {
		oob = unix.UnixRights(int(f.Fd()))
	}
	return unix.Sendmsg(fd, []byte(text), oob, &unix.SockaddrUnix{Name: s.notify}, unix.MSG_NOSIGNAL)
}

// inherited are the descriptors that systemd has kept. The variables that say so are taken out of the environment. The seal is the one
// that was kept, or a new one.
func (s *store) inherited() (all []divert.Kept, err error) {
	defer func() {
		if s.seal != nil {
			return
		}
		var f *os.File
		if s.seal, f, err = newSeal(); err == nil {
			err = errors.Join(s.tell("FDSTOREREMOVE=1\nFDNAME="+sealName, nil), s.tell("FDSTORE=1\nFDPOLL=0\nFDNAME="+sealName, f))
			f.Close()
		}
	}()
	pid, _ := strconv.Atoi(os.Getenv("LISTEN_PID"))
	n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for _, v := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(v)
	}
	if pid != os.Getpid() {
		return nil, nil
	}
	for i := range n {
		fd := 3 + i // SD_LISTEN_FDS_START
		unix.CloseOnExec(fd)
		if i >= len(names) {
			unix.Close(fd)
			continue
		}
		if names[i] == sealName {
			f := os.NewFile(uintptr(fd), sealName)
			if s.seal, err = openSeal(f); err != nil {
				s.log.Warn("what systemd has kept of the gateway before cannot be used", "reason", err)
			}
			f.Close()
			continue
		}
		state, err := os.ReadFile(filepath.Join(s.dir, names[i]))
		if err != nil {
			s.log.Warn("a descriptor that systemd has kept cannot be gone on with", "name", names[i], "reason", err)
			unix.Close(fd)
			s.Forget(names[i])
			continue
		}
		all = append(all, divert.Kept{Name: names[i], File: os.NewFile(uintptr(fd), names[i]), State: state})
	}
	return all, nil
}

// clean removes the files of what was not kept.
func (s *store) clean(kept []divert.Kept) {
	have := map[string]bool{}
	for _, k := range kept {
		have[k.Name] = true
	}
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		if !have[e.Name()] {
			os.Remove(filepath.Join(s.dir, e.Name()))
		}
	}
}

// replace writes a file of its owner's as a whole.
func replace(name string, content []byte) error {
	next := name + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, name)
}

// How often the server's state is written: soon after a change, and as long as SAs are in use, whose windows and counters move.
const (
	saveSoon  = 20 * time.Millisecond
	saveEvery = time.Second
	// saveShare is how many times longer than it took the saver waits before it saves again.
	saveShare = 20
)

// saver keeps the file of the server's state as it is now.
func (d *Daemon) saver(stop, done chan struct{}) {
	defer close(done)
	wait := saveEvery
	for {
		t := time.NewTimer(wait)
		select {
		case <-stop:
			t.Stop()
			d.save()
			return
		case <-d.changed:
			t.Stop()
			time.Sleep(saveSoon)
		case <-t.C:
		}
		began := time.Now()
		d.save()
		took := time.Since(began)
		time.Sleep(min(saveShare*took, time.Second))
		wait = max(saveEvery, saveShare*took)
	}
}

func (d *Daemon) save() {
	if d.store.seal == nil {
		return // which was told at the start
	}
	name := filepath.Join(d.cfg.IKE.StateDir, savedFile)
	var b bytes.Buffer
	err := d.server.Save(&b)
	if err == nil {
		err = replace(name, d.store.seal.seal(b.Bytes()))
	}
	clear(b.Bytes())
	if err != nil {
		d.log.Error("the state of the IKE daemon's SAs cannot be saved for a restart of the gateway", "file", name, "reason", err)
	}
}

// resume goes on with what the process before has left in the store: its SAs and policies first, so that traffic goes on, then the
// daemon's sockets. It reports whether there was something.
func (d *Daemon) resume() bool {
	kept, err := d.store.inherited()
	if err != nil {
		d.log.Error("the IKE daemon's SAs will be lost when the gateway is restarted", "reason", err)
	}
	d.store.clean(kept)
	name := filepath.Join(d.cfg.IKE.StateDir, savedFile)
	if len(kept) == 0 {
		// The daemon is not there any more that the SAs were of.
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("the state of an earlier IKE daemon's SAs cannot be removed", "file", name, "reason", err)
		}
		return false
	}
	began := time.Now()
	file, err := os.ReadFile(name)
	var state []byte
	if err == nil && d.store.seal != nil {
		state, err = d.store.seal.open(file)
	}
	if err == nil {
		d.setRestoring(true)
		err = d.server.Restore(bytes.NewReader(state))
		d.setRestoring(false)
		clear(state)
	}
	if err != nil {
		d.log.Error("the IKE daemon's SAs are lost; it must be restarted", "reason", err, "remedy", "systemctl restart strongswan")
	}
	if err := d.super.Adopt(kept); err != nil {
		d.log.Error("not all of the IKE daemon's sockets could be gone on with", "reason", err, "remedy", "systemctl restart strongswan")
	}
	d.log.Info("the IKE daemon of before is served again", "descriptors", len(kept), "took", time.Since(began).Round(time.Millisecond))
	return true
}

func (d *Daemon) setRestoring(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.restoring = on
}
