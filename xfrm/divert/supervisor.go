package divert

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Peer is the process that made a socket, for logs and for its netlink port.
type Peer struct {
	PID  int32  // of the process, as the gateway sees it
	Comm string // its program's name
}

// String is "charon[1234]".
func (p Peer) String() string { return fmt.Sprintf("%s[%d]", p.Comm, p.PID) }

// Client is what stands behind one diverted netlink socket. Its methods are called from any goroutine and must not wait for the
// program at the other end.
type Client interface {
	// Port is its netlink port, nl_pid.
	Port() uint32
	// SetPort is bind with an nl_pid: EADDRINUSE if another one is bound to that port. With 0 Port is to stay as it is from now on.
	SetPort(port uint32) error
	// Groups is its multicast groups, as bits, and SetGroups is bind with nl_groups.
	Groups() uint32
	SetGroups(bits uint32)
	// Option is setsockopt at SOL_NETLINK, memberships among them. An error is the program's errno.
	Option(name int, value int32) error
	// Done is closed when nobody has the program's end any more.
	Done() <-chan struct{}
}

// Sink is what a gateway does with what is diverted.
type Sink interface {
	// Open takes over the server's end of a new XFRM socket: a SOCK_SEQPACKET connection whose datagrams are netlink datagrams.
	Open(conn *net.UnixConn, p Peer) (Client, error)
	// Encap takes over the ESP of a UDP socket: the datagrams that are neither IKE nor keep-alives arrive at p.Conn from now on.
	// The sink reads and writes it, and does not close it.
	Encap(p *Port) error
	// Yield says that p.Conn is about to be closed, so that its port is free. It returns when nobody reads or writes it any
	// more. Encap and Yield are called one at a time, and must not call the supervisor.
	Yield(p *Port)
}

// Config is what a Supervisor is made of.
type Config struct {
	Sink Sink
	Log  *slog.Logger // nil: nowhere
	// Keep is told of every descriptor that a restarted gateway needs, when it comes and when it has gone; nil: nobody is.
	Keep Keeper
}

// Stats counts what has been diverted. The fields may be read at any time.
type Stats struct {
	Calls    atomic.Uint64 // system calls that were looked at
	Sockets  atomic.Uint64 // XFRM sockets that were made
	Encaps   atomic.Uint64 // UDP sockets whose ESP was diverted
	Yields   atomic.Uint64 // ports that were given up for a program to bind
	Failures atomic.Uint64 // calls that failed for a reason that the program does not have from its kernel
}

// ErrClosed says that the supervisor has been closed.
var ErrClosed = errors.New("the supervisor is closed")

// Supervisor answers the system calls of programs under Exec. All methods may be called from any goroutine.
type Supervisor struct {
	cfg   Config
	log   *slog.Logger
	stats Stats
	pairs *pairs

	mu      sync.Mutex
	closed  bool
	stop    chan struct{} // closed with it
	filters map[*filterOf]struct{}
	clients map[uint64]*client   // by the cookie of the program's end
	early   map[uint64]*filterOf // UDP sockets that have UDP_ENCAP before they are bound
	seq     uint64

	portMu sync.Mutex // held over changes of ports, and over the sink's answers to them
	ports  map[*Port]struct{}
	work   sync.WaitGroup // one per listener and launcher
}

// filterOf is one program's filter, with all its threads and descendants.
type filterOf struct {
	*listener
	id     uint64
	pid    int32
	compat bool
	kept   string
	calls  sync.WaitGroup // that are being answered
}

// client is one diverted netlink socket.
type client struct {
	Client
	conn    *net.UnixConn
	cookie  uint64
	peer    Peer
	filter  *filterOf
	options atomic.Uint32 // bit n: option n is on
	silent  atomic.Bool   // the program has a copy of conn: see silence

	keeping sync.Mutex // over kept and gone
	kept    string
	gone    bool

	recv  sync.Mutex // compat: one recvfrom at a time
	stash []byte     // a datagram that was received for a call which did not wait for it
}

// New makes a supervisor. Close ends it.
func New(cfg Config) (*Supervisor, error) {
	if native == nil {
		return nil, errArch
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	p, err := newPairs()
	if err != nil {
		return nil, err
	}
	return &Supervisor{
		cfg: cfg, log: cfg.Log, pairs: p, stop: make(chan struct{}), filters: map[*filterOf]struct{}{}, clients: map[uint64]*client{},
		early: map[uint64]*filterOf{}, ports: map[*Port]struct{}{},
	}, nil
}

// Stats counts what has been diverted.
func (s *Supervisor) Stats() *Stats { return &s.stats }

// Close ends the supervision, and waits for the calls that are being answered. The programs' netlink sockets stay as the sink has
// them; new ones, and everything else that is diverted, fail with ENOSYS unless the descriptors that Export gave are adopted.
func (s *Supervisor) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	close(s.stop)
	for f := range s.filters {
		f.stop()
	}
	s.mu.Unlock()
	// A call that has been taken in must be answered: the kernel tells it to no other gateway.
	s.work.Wait()
	for f := range s.filters {
		f.close()
	}
	s.portMu.Lock()
	for p := range s.ports {
		s.yield(p)
	}
	s.portMu.Unlock()
	s.pairs.close()
}

// watch answers a filter's calls until its last process has ended.
func (s *Supervisor) watch(f *filterOf) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		f.close()
		return ErrClosed
	}
	if f.id == 0 {
		s.seq++
		f.id = s.seq
	}
	s.seq = max(s.seq, f.id)
	s.filters[f] = struct{}{}
	s.work.Add(1)
	s.mu.Unlock()
	f.kept = s.keep(f)
	go func() {
		defer s.work.Done()
		var err error
		for {
			var n notification // each call has its own
			if err = f.next(&n); err != nil {
				break
			}
			f.calls.Go(func() { s.handle(f, &n) })
		}
		f.calls.Wait()
		s.mu.Lock()
		if s.closed { // and Close closes the filter
			s.mu.Unlock()
			return
		}
		delete(s.filters, f)
		for cookie, of := range s.early {
			if of == f {
				delete(s.early, cookie)
			}
		}
		s.mu.Unlock()
		if !errors.Is(err, errNoTask) {
			s.log.Error("the system calls of a program cannot be watched any more", "pid", f.pid, "error", err)
		}
		s.portMu.Lock()
		for p := range s.ports {
			if p.filter == f {
				s.yield(p)
			}
		}
		s.portMu.Unlock()
		s.forget(f.kept)
		f.close()
	}()
	return nil
}

// request is a notified call, whose arguments are in args however it was made.
type request struct {
	tracee
	f    *filterOf
	call call
	args [6]uint64
}

func (r *request) fd() int32 { return int32(uint32(r.args[0])) }

// verdict is the answer to a call.
type verdict struct {
	val    int64
	errno  unix.Errno
	native bool // the kernel shall do it
	given  bool // it has been answered
}

var (
	done   = verdict{}
	goesOn = verdict{native: true}
)

func fails(e unix.Errno) verdict { return verdict{errno: e} }

// handle answers one call.
func (s *Supervisor) handle(f *filterOf, n *notification) {
	s.stats.Calls.Add(1)
	r := &request{tracee: tracee{f.listener, n.ID, int(n.PID), native}, f: f, args: n.Data.Args}
	v := goesOn
	if n.Data.Arch == native.audit {
		if c, multi, ok := native.which(n.Data.Nr); ok {
			r.call = c
			if multi {
				ok = r.demultiplex()
			}
			if ok {
				v = s.judge(r)
			}
		}
	}
	var err error
	switch {
	case v.given:
		return
	case v.native:
		err = f.goOn(n.ID)
	default:
		err = f.answer(n.ID, v.val, v.errno)
	}
	// ENOENT: the caller has been killed, or a signal has ended the call; then it makes it again.
	if err != nil && !errors.Is(err, unix.ENOENT) {
		s.log.Error("a system call cannot be answered", "call", r.call, "pid", r.tid, "error", err)
	}
}

// demultiplex takes the arguments of socketcall from memory.
func (r *request) demultiplex() bool {
	c, args, ok := whichMultiplexed(uint32(r.args[0]))
	if !ok {
		return false
	}
	b, err := r.read(r.args[1]&r.a.mask(), args*r.a.word)
	if err != nil {
		return false // the kernel finds the same
	}
	r.call = c
	r.args = [6]uint64{}
	for i := range args {
		r.args[i] = r.a.long(b[i*r.a.word:])
	}
	return true
}

func (s *Supervisor) judge(r *request) verdict {
	if r.call == callSocket {
		if uint32(r.args[0]) != unix.AF_NETLINK || uint32(r.args[2]) != netlinkXfrm { // of socketcall
			return goesOn
		}
		return s.socket(r)
	}
	if r.call == callSetsockopt && r.a.multi != 0 {
		if name := uint32(r.args[2]); uint32(r.args[1]) == solIP && name == ipXfrmPolicy ||
			uint32(r.args[1]) == solIPv6 && name == ipv6XfrmPolicy {
			return done
		}
	}
	fd, err := r.dup(r.fd())
	if err != nil {
		if err != unix.EBADF && err != unix.ESRCH {
			s.stats.Failures.Add(1)
			s.log.Error("a program's descriptor cannot be looked at", "call", r.call, "pid", r.tid, "error", err)
		}
		return goesOn // and the kernel says EBADF
	}
	defer unix.Close(fd)
	cookie, err := cookieOf(fd)
	if err != nil {
		return goesOn // not a socket
	}
	s.mu.Lock()
	c := s.clients[cookie]
	s.mu.Unlock()
	switch {
	case c != nil:
		return s.netlink(r, c, fd)
	case r.call == callSetsockopt && uint32(r.args[1]) == solUDP && uint32(r.args[2]) == udpEncap:
		return s.encap(r, fd, cookie)
	case r.call == callBind:
		return s.bindInet(r, fd, cookie)
	}
	return goesOn
}

// socket answers socket(AF_NETLINK, type, NETLINK_XFRM).
func (s *Supervisor) socket(r *request) verdict {
	typ := uint32(r.args[1])
	switch {
	case typ&^(0xf|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK) != 0:
		return fails(unix.EINVAL)
	case typ&0xf != unix.SOCK_RAW && typ&0xf != unix.SOCK_DGRAM:
		return fails(unix.ESOCKTNOSUPPORT)
	}
	p, administers, err := r.who()
	if err != nil {
		return fails(unix.ESRCH) // it has gone
	}
	if !administers {
		return goesOn // and the kernel says EPERM to all that is sent
	}
	theirs, conn, err := s.pairs.make()
	if err != nil {
		return s.refuse(r, err)
	}
	defer unix.Close(theirs)
	if typ&unix.SOCK_NONBLOCK != 0 {
		if err := unix.SetNonblock(theirs, true); err != nil {
			conn.Close()
			return s.refuse(r, err)
		}
	}
	c, err := s.open(r.f, theirs, conn, p)
	if err != nil {
		return s.refuse(r, err)
	}
	if err := r.l.give(r.id, theirs, typ&unix.SOCK_CLOEXEC != 0); err != nil {
		// The program's end is closed on return, and the sink sees that.
		if e, ok := err.(unix.Errno); ok && e != unix.ENOENT {
			return fails(e) // EMFILE
		}
		return verdict{given: true}
	}
	s.stats.Sockets.Add(1)
	s.log.Debug("XFRM socket diverted", "client", p, "port", c.Port())
	return verdict{given: true}
}

// silence keeps the connection of a program that listens for events from ending with the gateway, by a copy of the gateway's end in
// the program itself. A netlink socket never ends, and a daemon does not expect it: strongSwan would read the end of it over and over,
// with half of a processor. A socket for requests is left to end, so that who waits for an answer is told.
func (s *Supervisor) silence(r *request, c *client) {
	if c.silent.Swap(true) {
		return
	}
	rc, err := c.conn.SyscallConn()
	if err == nil {
		var fd int
		if fd, err = dup(rc); err == nil {
			err = r.l.leave(r.id, fd)
			unix.Close(fd)
		}
	}
	if err != nil {
		s.log.Debug("an XFRM socket will end with the gateway", "client", c.peer, "reason", err)
	}
}

// open registers a connection and hands it to the sink.
func (s *Supervisor) open(f *filterOf, theirs int, conn *net.UnixConn, p Peer) (*client, error) {
	cookie, err := cookieOf(theirs)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return s.register(f, cookie, conn, p)
}

func (s *Supervisor) register(f *filterOf, cookie uint64, conn *net.UnixConn, p Peer) (*client, error) {
	c := &client{conn: conn, cookie: cookie, peer: p, filter: f}
	c.kept = s.keep(c) // before the sink has it, which may close it at once
	var err error
	if c.Client, err = s.cfg.Sink.Open(conn, p); err != nil {
		conn.Close()
		s.forget(c.kept)
		return nil, err
	}
	s.mu.Lock()
	s.clients[cookie] = c
	s.mu.Unlock()
	go func() {
		select {
		case <-s.stop: // what is kept is for the next gateway
			return
		case <-c.Done():
		}
		s.mu.Lock()
		delete(s.clients, cookie)
		s.mu.Unlock()
		c.keeping.Lock()
		defer c.keeping.Unlock()
		c.gone = true
		s.forget(c.kept)
	}()
	return c, nil
}

// refuse fails a call for a reason of the gateway's own.
func (s *Supervisor) refuse(r *request, err error) verdict {
	s.stats.Failures.Add(1)
	s.log.Error("a diverted system call fails", "call", r.call, "pid", r.tid, "error", err)
	var e unix.Errno
	if !errors.As(err, &e) || e == 0 {
		e = unix.ENOBUFS
	}
	return fails(e)
}
