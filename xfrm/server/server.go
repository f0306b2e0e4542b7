package server

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"culvert/xfrm"
)

// ErrClosed says that the server has been closed.
var ErrClosed = errors.New("the XFRM server is closed")

// Config is what a server is made of. The zero value is a server without a data plane.
type Config struct {
	// Backend is the data plane; nil: there is none, and SAs and policies are kept and listed only.
	Backend Backend
	// AcquireExpires is how long a larval SA lives, from ALLOCSPI or an acquire. 0 is 165 s, which charon sets in the kernel.
	AcquireExpires time.Duration
	// QueueBytes is how much may wait for a client that does not read, before messages for it are lost. 0 is 4 MiB.
	QueueBytes int
	// Log is where the server tells what a client cannot be told; nil: nowhere.
	Log *slog.Logger

	now func() time.Time // tests have their own
}

// Stats counts what happens beside the answers. The fields may be read at any time.
type Stats struct {
	Requests      atomic.Uint64
	Refusals      atomic.Uint64 // requests that were answered with an error
	Overruns      atomic.Uint64 // messages that clients did not get because they do not read
	Acquires      atomic.Uint64 // told
	AcquiresUnder atomic.Uint64 // not told, because one for the same SA is under way
	AcquiresLost  atomic.Uint64 // because too many were waiting, or nobody listens
	Mappings      atomic.Uint64 // told
	MappingsLost  atomic.Uint64 // because too many were waiting, or one was told a moment ago
}

// Server answers XFRM requests. All methods may be called from any goroutine.
type Server struct {
	cfg     Config
	backend Backend
	strict  bool // there is a data plane, which cannot do everything that can be said
	stats   Stats

	mu       sync.Mutex
	sad      sad
	spd      spd
	byHandle map[SAHandle]*state
	clients  map[*Client]struct{}
	ports    map[uint32]*Client
	lastPort uint32
	adopted  map[uint64]savedClient // by socket cookie: clients from before a restart that have not come yet
	timers   timers
	rearm    chan struct{} // capacity 1: the first timer is another one
	closed   bool

	events chan func() // from the data plane
	stop   chan struct{}
	work   sync.WaitGroup
}

// New makes a server. Close ends it.
func New(cfg Config) *Server {
	if cfg.AcquireExpires == 0 {
		cfg.AcquireExpires = 165 * time.Second
	}
	if cfg.QueueBytes == 0 {
		cfg.QueueBytes = 4 << 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if cfg.now == nil {
		cfg.now = time.Now
	}
	s := &Server{
		cfg: cfg, backend: cfg.Backend, strict: cfg.Backend != nil,
		byHandle: map[SAHandle]*state{}, clients: map[*Client]struct{}{}, ports: map[uint32]*Client{}, lastPort: ^uint32(0) - 4096,
		adopted: map[uint64]savedClient{}, rearm: make(chan struct{}, 1),
		events: make(chan func(), 1024), stop: make(chan struct{}),
	}
	if s.backend == nil {
		s.backend = directory{}
	}
	s.sad.init()
	s.spd.init()
	s.sad.seq = rand.Uint32()
	s.work.Add(1)
	go s.run()
	return s
}

// Stats counts what happens beside the answers.
func (s *Server) Stats() *Stats { return &s.stats }

// Close ends all connections and timers, and waits for them. SAs and policies stay in the data plane as they are.
func (s *Server) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	var all []*Client
	for c := range s.clients {
		all = append(all, c)
	}
	s.mu.Unlock()
	close(s.stop)
	for _, c := range all {
		c.hangup()
	}
	s.work.Wait()
}

// Clients are the connections there are.
func (s *Server) Clients() []*Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Client, 0, len(s.clients))
	for c := range s.clients {
		all = append(all, c)
	}
	return all
}

// run fires timers and takes in what the data plane tells.
func (s *Server) run() {
	defer s.work.Done()
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		wait, ok := s.ring(s.cfg.now())
		if !ok {
			wait = time.Hour
		}
		t.Reset(max(wait, 0))
		select {
		case <-s.stop:
			return
		case <-t.C:
		case <-s.rearm:
		case f := <-s.events:
			f()
		case <-s.backend.Wake():
			s.expire()
		}
	}
}

// multicast gives a message to all members of a group, and says whether there is one.
func (s *Server) multicast(group uint32, b []byte) bool {
	bit, heard := xfrm.GroupBit(group), false
	for c := range s.clients {
		if c.groups.Load()&bit != 0 {
			c.send(b)
			heard = true
		}
	}
	return heard
}

// listened reports whether a group has a member.
func (s *Server) listened(group uint32) bool {
	for c := range s.clients {
		if c.groups.Load()&xfrm.GroupBit(group) != 0 {
			return true
		}
	}
	return false
}

// datagram answers the requests in one datagram, in order. What does not look like a message ends it without an answer, as in the
// kernel.
func (s *Server) datagram(c *Client, b []byte) {
	c.bound.Store(true)
	for m, err := range xfrm.Messages(b) {
		if err != nil {
			return
		}
		s.stats.Requests.Add(1)
		answer, e := s.request(c, m)
		if e != nil {
			s.stats.Refusals.Add(1)
			c.send(c.reply().AppendError(nil, m, e))
		} else if answer && m.Has(unix.NLM_F_ACK) {
			c.send(c.reply().AppendAck(nil, m))
		}
	}
}
