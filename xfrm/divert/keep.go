package divert

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Kept is a descriptor that outlives the gateway, as systemd's file-descriptor store keeps it, with what must be known of it.
// There are no secrets in it.
type Kept struct {
	Name  string // unique, of letters, digits and "-"
	File  *os.File
	State []byte // less than a kilobyte, of version 1
}

// Keeper stores descriptors. Its methods are called from any goroutine, and must not call the supervisor.
type Keeper interface {
	// Keep stores one, in place of what has its name; File is closed when it returns.
	Keep(k Kept)
	// Forget drops one by its name.
	Forget(name string)
}

// What Kept.Name begins with.
const (
	keptFilter = "divert-filter-"
	keptClient = "divert-client-"
	keptPort   = "divert-port-"
)

// state is Kept.State.
type state struct {
	Version int    `json:"version"`
	Filter  uint64 `json:"filter"` // its number, which its clients and ports name
	Compat  bool   `json:"compat,omitempty"`
	PID     int32  `json:"pid"`
	Comm    string `json:"comm,omitempty"`
	Cookie  uint64 `json:"cookie,omitempty"`  // of the program's socket
	Options uint32 `json:"options,omitempty"` // bits by number
	Groups  uint32 `json:"groups,omitempty"`
	Port    uint32 `json:"port,omitempty"` // nl_pid; 0: as the sink says
	Netns   uint64 `json:"netns,omitempty"`
}

func parseState(b []byte) (state, error) {
	var st state
	if err := json.Unmarshal(b, &st); err != nil {
		return st, fmt.Errorf("the state of a kept descriptor: %w", err)
	}
	if st.Version != 1 {
		return st, fmt.Errorf("the state of a kept descriptor has version %d, and 1 is known", st.Version)
	}
	if st.Filter == 0 {
		return st, errors.New("the state of a kept descriptor names no filter")
	}
	return st, nil
}

// keepable is one of *filterOf, *client, *Port.
type keepable interface {
	state() (name string, st state)
	SyscallConn() (syscall.RawConn, error)
}

func (f *filterOf) SyscallConn() (syscall.RawConn, error) { return f.rc, nil }
func (c *client) SyscallConn() (syscall.RawConn, error)   { return c.conn.SyscallConn() }

// SyscallConn is Conn's.
func (p *Port) SyscallConn() (syscall.RawConn, error) { return p.Conn.SyscallConn() }

func (f *filterOf) state() (string, state) {
	return fmt.Sprint(keptFilter, f.id), state{Version: 1, Filter: f.id, Compat: f.compat, PID: f.pid}
}

func (c *client) state() (string, state) {
	st := state{Version: 1, Filter: c.filter.id, PID: c.peer.PID, Comm: c.peer.Comm, Cookie: c.cookie, Options: c.options.Load()}
	if c.Client != nil { // it has been opened
		st.Groups, st.Port = c.Groups(), c.Port()
	}
	return fmt.Sprint(keptClient, c.cookie), st
}

// changed keeps a client again, with its groups and options of now.
func (s *Supervisor) changed(c *client) {
	if s.cfg.Keep == nil {
		return
	}
	c.keeping.Lock()
	defer c.keeping.Unlock()
	if !c.gone {
		c.kept = s.keep(c)
	}
}

func (p *Port) state() (string, state) {
	return fmt.Sprint(keptPort, p.cookie), state{Version: 1, Filter: p.filter.id, PID: p.Peer.PID, Comm: p.Peer.Comm, Cookie: p.cookie,
		Netns: p.netns}
}

func keptOf(k keepable) (Kept, error) {
	name, st := k.state()
	rc, err := k.SyscallConn()
	if err != nil {
		return Kept{}, err
	}
	fd, err := dup(rc)
	if err != nil {
		return Kept{}, err
	}
	b, err := json.Marshal(st)
	if err != nil {
		unix.Close(fd)
		return Kept{}, err
	}
	return Kept{Name: name, File: os.NewFile(uintptr(fd), name), State: b}, nil
}

// keep tells the keeper, and gives the name to forget.
func (s *Supervisor) keep(k keepable) string {
	if s.cfg.Keep == nil {
		return ""
	}
	kept, err := keptOf(k)
	if err != nil {
		s.log.Warn("a descriptor is not kept for a restart", "error", err)
		return ""
	}
	defer kept.File.Close()
	s.cfg.Keep.Keep(kept)
	return kept.Name
}

func (s *Supervisor) forget(name string) {
	if name != "" {
		s.cfg.Keep.Forget(name)
	}
}

// Export gives copies of everything that another gateway needs to go on for this one, after this one has been closed. The caller
// closes the files.
func (s *Supervisor) Export() ([]Kept, error) {
	s.portMu.Lock()
	defer s.portMu.Unlock()
	var all []keepable
	s.mu.Lock()
	for f := range s.filters {
		all = append(all, f)
	}
	for _, c := range s.clients {
		all = append(all, c)
	}
	s.mu.Unlock()
	for p := range s.ports {
		all = append(all, p)
	}
	var out []Kept
	for _, k := range all {
		kept, err := keptOf(k)
		if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
			continue // it has just ended
		}
		if err != nil {
			for _, k := range out {
				k.File.Close()
			}
			return nil, err
		}
		out = append(out, kept)
	}
	return out, nil
}

// Adopt goes on with what Export, or a Keeper's Keep, gave. It takes the files over. What cannot be gone on with is closed, and
// named in the error; all else is adopted. A descriptor whose name is not the supervisor's is an error too.
func (s *Supervisor) Adopt(kept []Kept) error {
	var errs []error
	filters := map[uint64]*filterOf{}
	for _, prefix := range []string{keptFilter, keptClient, keptPort} { // in this order: the later name the earlier
		for _, k := range kept {
			if !strings.HasPrefix(k.Name, prefix) {
				continue
			}
			if err := s.adopt(prefix, k, filters); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", k.Name, err))
				if s.cfg.Keep != nil {
					s.cfg.Keep.Forget(k.Name)
				}
			}
		}
	}
	for _, k := range kept {
		if !strings.HasPrefix(k.Name, keptFilter) && !strings.HasPrefix(k.Name, keptClient) && !strings.HasPrefix(k.Name, keptPort) {
			errs = append(errs, fmt.Errorf("%s: not a descriptor of a supervisor", k.Name))
		}
		k.File.Close()
	}
	// The filters begin when their clients are known, so that no call is judged before.
	for _, f := range filters {
		if err := s.watch(f); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s *Supervisor) adopt(prefix string, k Kept, filters map[uint64]*filterOf) error {
	st, err := parseState(k.State)
	if err != nil {
		return err
	}
	f := filters[st.Filter]
	if prefix != keptFilter && f == nil {
		return errors.New("its program's filter has not been kept")
	}
	fd, err := unix.FcntlInt(k.File.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	who := Peer{PID: st.PID, Comm: st.Comm}
	switch prefix {
	case keptFilter:
		if f != nil {
			unix.Close(fd)
			return errors.New("a filter of this number has been kept twice")
		}
		l, err := newListener(fd)
		if err != nil {
			return err
		}
		if err := l.do(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, zeroID()); err != unix.ENOENT {
			l.close()
			return fmt.Errorf("not a seccomp listener (%v)", err)
		}
		filters[st.Filter] = &filterOf{listener: l, id: st.Filter, pid: st.PID, compat: st.Compat}
	case keptClient:
		conn, err := unixConn(fd)
		if err != nil {
			return err
		}
		c, err := s.register(f, st.Cookie, conn, who)
		if err != nil {
			return err
		}
		// What the sink remembers itself it is told again.
		for name := range 32 {
			if st.Options>>name&1 != 0 {
				if err := c.Option(name, 1); err != nil {
					s.log.Warn("an option of a kept socket is lost", "client", who, "option", name, "error", err)
				}
			}
		}
		if st.Port != 0 && st.Port != c.Port() {
			if err := c.SetPort(st.Port); err != nil {
				s.log.Warn("a kept socket has another netlink port than before", "client", who, "port", st.Port, "error", err)
			}
		}
		if st.Groups != 0 {
			c.SetGroups(st.Groups)
		}
		c.options.Store(st.Options)
		s.changed(c)
	case keptPort:
		addr, err := boundTo(fd)
		if err != nil {
			unix.Close(fd)
			return err
		}
		t, err := traitsOf(fd)
		if err != nil {
			unix.Close(fd)
			return err
		}
		unix.Close(t.netns)
		s.portMu.Lock()
		defer s.portMu.Unlock()
		return s.give(&Port{Addr: addr, Only6: t.only6, Peer: who, filter: f, cookie: st.Cookie, netns: st.Netns}, fd)
	}
	return nil
}
