package ike

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"culvert/cmd/culvert/internal/hostnet"
	"culvert/configs"
	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/sa"
	"culvert/xfrm/divert"
	"culvert/xfrm/server"
)

// Plane is what a Daemon needs of the data plane.
type Plane interface {
	AddOuter(l link.Outer) (index int, err error)
	RemoveOuter(index int) error
}

// Config is what a Daemon is made of. Everything in it is used until Close has returned.
type Config struct {
	IKE   configs.IKE
	Guard bool // refuse what policies select where it cannot be protected
	// LocalByDefault is hostnet.Plan's.
	LocalByDefault bool

	TUN    string
	DB     *sa.DB
	Host   *hostnet.Host
	Engine func(t *offload.Transform) (offload.Engine, error)
	Store  *sa.Store // of sequence numbers
	// ESP are the static tunnels' links of protocol 50, by local address: two raw sockets would each get every packet.
	ESP map[netip.Addr]int
	Log *slog.Logger
}

// Daemon is the gateway's side of an IKE daemon. Its methods may be called from any goroutine.
type Daemon struct {
	cfg    Config
	log    *slog.Logger
	server *server.Server
	super  *divert.Supervisor
	db     *server.DB
	plane  Plane
	ln     *net.UnixListener
	netns  uint64 // cookie of the gateway's network namespace
	wake   chan struct{}

	store   *store        // nil: the daemon's sockets end with the gateway
	changed chan struct{} // SAs or policies have
	stop    chan struct{} // the saver, if there is one
	saved   chan struct{} // it has stopped

	mu        sync.Mutex
	restoring bool
	after     configs.AfterDelete
	passed    []sa.Expiry
	links
	pairs

	programs programs

	readers sync.WaitGroup // of links' notices
	warned  sync.Once      // of strongSwan's own routes
}

// New makes a Daemon, and lays the guard that the configuration and earlier processes want for its policies. Start lets it serve.
func New(cfg Config) (*Daemon, error) {
	d := &Daemon{cfg: cfg, log: cfg.Log, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1), after: cfg.IKE.AfterDelete}
	d.links.init()
	d.pairs.init()
	var err error
	if d.netns, err = namespace(); err != nil {
		return nil, err
	}
	kept, err := cfg.Host.Serve(hostnet.Daemon{TUN: cfg.TUN, Guard: cfg.Guard, Ports: []uint16{cfg.IKE.Port, cfg.IKE.PortNATT}, LocalByDefault: cfg.LocalByDefault})
	if err != nil {
		return nil, fmt.Errorf("lay the guard for the IKE daemon's policies: %w", err)
	}
	for _, p := range kept {
		x := d.at(p)
		x.kept, x.laid = true, true
	}
	if len(kept) > 0 {
		d.log.Info("traffic that an IKE daemon's policies protected before is refused until they are there again; `culvert guard remove` gives it up",
			"pairs", len(kept))
	}
	if err := d.Configure(cfg.IKE); err != nil {
		return nil, err
	}
	d.db = server.NewDB(server.DBConfig{
		DB: cfg.DB, Engine: cfg.Engine, Local: d.local, Store: cfg.Store, Place: d.place, Expiries: d.expiries, Wake: d.wake,
	})
	d.server = server.New(server.Config{Backend: &backend{DB: d.db, d: d}, Log: d.log, AcquireExpires: cfg.IKE.HoldFor})
	c := divert.Config{Sink: sink{d}, Log: d.log}
	if d.store, err = newStore(cfg.IKE.StateDir, d.log); err == nil {
		if d.store != nil {
			c.Keep = d.store
		}
		d.super, err = divert.New(c)
	}
	if err != nil {
		d.server.Close()
		return nil, err
	}
	return d, nil
}

// namespace is the cookie of the network namespace of this thread.
func namespace() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("[ike] needs Linux 5.14 or later (SO_NETNS_COOKIE: %w)", err)
	}
	return cookie, nil
}

// Start serves programs under `culvert exec`. The plane is running.
func (d *Daemon) Start(plane Plane) error {
	ln, err := listen(d.cfg.IKE.Socket)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.plane, d.ln = plane, ln
	d.mu.Unlock()
	resumed := false
	if d.store != nil {
		resumed = d.resume()
	}
	if !resumed {
		if ended := endOrphans(d.cfg.IKE.StateDir); len(ended) > 0 {
			d.log.Warn("programs that an earlier gateway served are told to end, as their sockets have ended with it; start them again", "programs", strings.Join(ended, ", "))
		}
	}
	if d.store != nil {
		d.stop, d.saved = make(chan struct{}), make(chan struct{})
		go d.saver(d.stop, d.saved)
	}
	go func() {
		if err := d.super.Serve(ln); err != nil {
			d.log.Error("programs under culvert exec are not taken in any more", "reason", err)
		}
	}()
	return nil
}

// listen makes the socket for launchers, mode 0600. One that a dead gateway left behind is replaced.
func listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the socket: %w", err)
	}
	addr := &net.UnixAddr{Name: path, Net: "unixpacket"}
	c, err := net.DialUnix("unixpacket", nil, addr)
	if err == nil {
		c.Close()
	}
	if err == nil || errors.Is(err, unix.EAGAIN) {
		return nil, fmt.Errorf("a gateway has the socket %s; stop it, or give this one another ike.socket", path)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is in the way and is not a socket; remove it, or choose another ike.socket", path)
		}
		os.Remove(path)
	}
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	return net.ListenUnix("unixpacket", addr)
}

// Close ends the service: programs' sockets are closed and their ports given back, or wait in systemd's store for the next gateway. The
// SAs and policies stay in the data plane until that ends, and the guard stays behind it. It must be called while the data plane runs.
func (d *Daemon) Close() {
	d.mu.Lock()
	ln := d.ln
	d.mu.Unlock()
	if ln != nil {
		ln.Close()
	}
	var kept []divert.Kept
	if d.stop != nil {
		var err error
		if kept, err = d.super.Export(); err != nil {
			d.log.Error("the IKE daemon's sockets cannot be kept for the next gateway", "reason", err)
		}
	}
	d.super.Close()
	if d.stop != nil {
		close(d.stop)
		<-d.saved
		for _, k := range kept { // closing the supervisor has taken its ports out
			d.store.Keep(k)
			k.File.Close()
		}
	}
	d.server.Close()
	d.mu.Lock()
	for addr, l := range d.esp {
		d.drop(addr, l)
	}
	d.mu.Unlock()
	d.readers.Wait()
}

// local reports whether an address is this host's.
func (d *Daemon) local(a netip.Addr) bool {
	_, ok := d.cfg.Host.LocalMTU(a)
	return ok
}

// Acquire is told by the data plane of a packet that has no SA.
func (d *Daemon) Acquire(policy string, f sa.Flow) {
	if index, ok := server.PolicyIndex(policy); ok {
		d.server.Acquire(index, f)
	}
}

// Mapping is told by the data plane of an authentic packet from elsewhere.
func (d *Daemon) Mapping(i *sa.Inbound, from sa.Endpoint) {
	if h := d.db.SA(i); h != nil {
		d.server.Mapping(h, netip.AddrPortFrom(from.Src, from.SrcPort))
	}
}

// Expired takes in the limits that the daemon's SAs have passed.
func (d *Daemon) Expired(x sa.Expiry) {
	d.mu.Lock()
	d.passed = append(d.passed, x)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *Daemon) expiries() []sa.Expiry {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.passed
	d.passed = nil
	return all
}

// Tick does what is due every second.
func (d *Daemon) Tick(now time.Time) {
	d.eachOut(func(o *sa.Outbound) {
		if o.AgeMTU(now) {
			d.log.Info("the path is tried at its full size again", "sa", o.Params().Name, "outer_mtu", o.MTU())
		}
	})
	d.mu.Lock()
	d.resize()
	d.sweep(now)
	d.mu.Unlock()
	if r := d.cfg.Host.RouteOfStrongSwan(); r != "" {
		d.warned.Do(func() {
			d.log.Warn("strongSwan lays routes of its own; they come behind Culvert's rules and change nothing, but set install_routes = no in the section charon of strongswan.conf",
				"route", r)
		})
	}
}

// eachOut calls f with every outbound SA that is not a static tunnel's.
func (d *Daemon) eachOut(f func(o *sa.Outbound)) {
	snap := d.cfg.DB.Acquire()
	defer snap.Release()
	for _, o := range snap.Outbounds() {
		if d.ours(o.Params().Link) {
			f(o)
		}
	}
}

// sink is what the supervisor gives what is diverted to.
type sink struct{ d *Daemon }

// Open serves an XFRM socket.
func (s sink) Open(conn *net.UnixConn, p divert.Peer) (divert.Client, error) {
	var here, there unix.Stat_t
	if unix.Stat("/proc/self/ns/net", &here) == nil && unix.Stat(fmt.Sprintf("/proc/%d/ns/net", p.PID), &there) == nil && here.Ino != there.Ino {
		return nil, fmt.Errorf("%s is in another network namespace than the gateway, which serves its own: start both in the same: %w", p, unix.EOPNOTSUPP)
	}
	if err := s.d.programs.add(s.d.cfg.IKE.StateDir, p); err != nil {
		s.d.log.Warn("a program cannot be noted, and will not be ended by the next gateway if that cannot serve it", "client", p.String(), "reason", err)
	}
	return s.d.server.Attach(conn, server.Peer(p))
}

// Encap takes over the ESP of a port.
func (s sink) Encap(p *divert.Port) error { return s.d.share(p) }

// Yield gives a port back.
func (s sink) Yield(p *divert.Port) { s.d.unshare(p) }
