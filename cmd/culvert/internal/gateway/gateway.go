package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"culvert/cmd/culvert/internal/control"
	"culvert/cmd/culvert/internal/hostnet"
	"culvert/cmd/culvert/internal/ike"
	"culvert/configs"
	"culvert/dataplane"
	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/offload/multibuf"
	"culvert/offload/padlock"
	"culvert/offload/pool"
	"culvert/offload/soft"
	"culvert/sa"
)

// Engines are all that this build has, the preferred first.
func Engines() []offload.Engine {
	return []offload.Engine{padlock.New(), multibuf.New(multibuf.Options{Rest: soft.New()}), soft.New()}
}

// ProtectMemory keeps the process's memory, where keys are, out of core files and from other processes.
func ProtectMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	return nil
}

// SetLevel sets what the log shows to a level of the configuration, whose words are slog's.
func SetLevel(v *slog.LevelVar, l configs.LogLevel) {
	if err := v.UnmarshalText([]byte(l.String())); err != nil {
		panic(err) // a level without a word that slog knows is a mistake in package configs
	}
}

// Gateway is a running gateway.
type Gateway struct {
	log     *slog.Logger
	level   *slog.LevelVar // of log
	version string
	started time.Time

	registry *offload.Registry
	engine   offload.Engine
	pool     *pool.Engine
	store    *sa.Store // nil without a state directory
	db       *sa.DB
	inner    link.Inner
	links    []configs.Link
	outers   []link.Outer
	plane    *dataplane.Plane
	control  *control.Server
	metrics  *http.Server
	ike      *ike.Daemon // nil unless [ike] is enabled
	ikeStore *sa.Store   // of the IKE daemon's SAs

	mu      sync.Mutex // for what a reload changes
	cfg     *configs.Config
	loaded  time.Time
	refused *control.Refused // the last reload, if it failed
	tunnels map[string]*tunnel
	host    hostState
	diag    diagnosis

	net   *hostnet.Host
	owner *hostnet.Owner
	tun   int // index of the TUN, whatever its name
	stop  chan struct{}
	wg    sync.WaitGroup

	died  chan struct{} // closed with cause set
	once  sync.Once
	cause error
}

// Start starts everything. Whatever can be refused is tried before the host's routes are touched, and where the kernel refuses a
// route itself, what had been laid is taken back: an error leaves them, and the guard, as they were.
func Start(cfg *configs.Config, log *slog.Logger, level *slog.LevelVar, version string) (*Gateway, error) {
	g := &Gateway{
		log: log, level: level, version: version, started: time.Now(), cfg: cfg, loaded: time.Now(),
		tunnels: map[string]*tunnel{}, stop: make(chan struct{}), died: make(chan struct{}), diag: newDiagnosis(),
	}
	if err := g.start(); err != nil {
		g.abandon()
		return nil, err
	}
	cfg.EachWarning(func(w string) { log.Warn("configuration", "warning", w) })
	return g, nil
}

func (g *Gateway) start() error {
	cfg := g.cfg
	var err error
	if g.net, err = hostnet.Here(); err != nil {
		return err
	}
	// The routes of a gateway that runs would look like leftovers to this one.
	if g.owner, err = hostnet.Own(); err != nil {
		return err
	}
	g.registry = offload.NewRegistry(Engines()...)
	f := findings{net: g.net}
	f.program(cfg)
	f.host(cfg)
	if err := f.err(); err != nil {
		return err
	}
	cfg.Warnings = append(cfg.Warnings, f.warnings...)
	if err := g.chooseEngine(); err != nil {
		return err
	}
	mtus, err := innerMTUs(g.net, cfg)
	if err != nil {
		return err
	}
	if g.store, err = g.openStore(); err != nil {
		return err
	}
	g.db = sa.NewDB()
	if g.inner, err = link.OpenTUN(cfg.Tun.Name, tunMTU(cfg, mtus), link.TUNOptions{NoTSO: !cfg.Tun.GSO}); err != nil {
		return cfg.Refuse("tun.name", Plain(err), "run as root where /dev/net/tun is, or choose another name", err)
	}
	g.tun = g.net.IndexOf(cfg.Tun.Name)
	g.links = cfg.Links()
	for _, l := range g.links {
		o, err := openLink(l)
		if err != nil {
			return linkError(cfg, l, err)
		}
		g.outers = append(g.outers, o)
	}
	if err := g.loadTunnels(cfg, mtus); err != nil {
		return err
	}
	caps, err := g.engine.Probe()
	if err != nil {
		return err
	}
	if err := g.startIKE(); err != nil {
		return err
	}
	dp := dataplane.Config{DB: g.db, Inner: g.inner, Outers: g.outers, Engine: g.engine, Async: caps.Async}
	if g.ike != nil {
		dp.Acquire, dp.Mapping, dp.HoldFor = g.ike.Acquire, g.ike.Mapping, cfg.IKE.HoldFor
	}
	if g.pool != nil {
		dp.Pool = g.pool
	}
	if g.plane, err = dataplane.New(dp); err != nil {
		return err
	}
	if err := g.serve(); err != nil {
		return err
	}
	watcher, err := g.net.Watch(cfg.Tun.Name)
	if err != nil {
		return err
	}
	before, err := g.net.Snapshot()
	if err != nil {
		watcher.Close()
		return err
	}
	// The guard comes before the first packet.
	err = g.net.Guard(plan(cfg, mtus))
	if err == nil {
		g.plane.Start()
		err = g.net.Apply(plan(cfg, mtus))
	}
	if err != nil {
		watcher.Close()
		return errors.Join(err, g.net.Revert(before))
	}
	if g.ike != nil {
		if err := g.ike.Start(g.plane); err != nil {
			watcher.Close()
			return errors.Join(cfg.Refuse("ike.socket", err.Error(), "stop the other gateway, or choose another path", err), g.net.Revert(before))
		}
	}
	g.watch()
	g.wg.Add(2)
	go g.restore(watcher)
	go func() {
		defer g.wg.Done()
		select {
		case <-g.stop:
		case <-g.plane.Died():
			g.kill(g.planeCause())
		}
	}()
	return nil
}

// kill ends the gateway's service: Died is closed, and Cause says why.
func (g *Gateway) kill(why error) {
	g.once.Do(func() {
		g.cause = why
		close(g.died)
	})
}

// startIKE prepares what serves an IKE daemon, if there is to be one.
func (g *Gateway) startIKE() (err error) {
	cfg := g.cfg
	if !cfg.IKE.Enabled {
		return nil
	}
	if g.ikeStore, err = sa.OpenStore(cfg.IKE.StateDir); err != nil {
		return cfg.Refuse("ike.state_dir", Plain(err), storeMend(err), err)
	}
	esp := map[netip.Addr]int{}
	for i, l := range g.links {
		if l.Kind == configs.LinkESP {
			esp[l.Local.Addr()] = i
		}
	}
	g.ike, err = ike.New(ike.Config{
		IKE: cfg.IKE, Guard: cfg.Guard.Enabled, LocalByDefault: cfg.Guard.LocalByDefault, TUN: cfg.Tun.Name, DB: g.db, Host: g.net, Store: g.ikeStore, ESP: esp, Log: g.log,
		Engine: func(t *offload.Transform) (offload.Engine, error) { return g.registry.Select(t, g.engine.Name()) },
	})
	return err
}

// planeCause says why the data plane may have stopped by itself: without its TUN it cannot go on.
func (g *Gateway) planeCause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := g.net.Missing(plan(g.cfg, g.innerNow())); errors.Is(err, hostnet.ErrNoTUN) {
		return g.noTUN()
	}
	return errors.New("the data plane stopped by itself")
}

// renamed is the error for a TUN that has another name now.
type renamed struct{ to string }

func (e *renamed) Error() string { return "the TUN is " + e.to + " now" }
func (e *renamed) Unwrap() error { return hostnet.ErrNoTUN }

// noTUN says where the TUN is that there is none of.
func (g *Gateway) noTUN() error {
	if now := g.net.NameOf(g.tun); now != "" {
		return &renamed{now}
	}
	return hostnet.ErrNoTUN
}

// chooseEngine selects the engine, and makes the pool for it if there are to be workers.
func (g *Gateway) chooseEngine() (err error) {
	if g.engine, err = selectEngine(g.registry, g.cfg); err != nil {
		return err
	}
	if g.cfg.Workers > 0 {
		p := pool.New(g.engine, pool.Options{Workers: g.cfg.Workers})
		if _, err := p.Probe(); err != nil {
			return g.cfg.Refuse("workers", err.Error(), "set it to 0", err)
		}
		g.pool = p
	}
	return nil
}

// openStore opens the sequence store, nil without a state directory, which package configs refuses for an AEAD.
func (g *Gateway) openStore() (*sa.Store, error) {
	if g.cfg.StateDir == "" {
		g.log.Warn("there is no state_dir: what is received before a restart can be replayed after it")
		return nil, nil
	}
	s, err := sa.OpenStore(g.cfg.StateDir)
	if err != nil {
		return nil, g.cfg.Refuse("state_dir", Plain(err), storeMend(err), err)
	}
	if s.Created() {
		g.log.Info("no sequence marks were there: a new file of them begins", "state_dir", g.cfg.StateDir)
	}
	if err := s.Memory(); err != nil {
		g.log.Info("no memory outlives the process: if it is killed, it refuses up to 4 seconds' worth of what peers send next", "reason", err)
	}
	return s, nil
}

// storeMend is what to do about it, where the error does not say so itself.
func storeMend(err error) string {
	for _, told := range []error{sa.ErrStoreBusy, sa.ErrStoreCorrupt, sa.ErrStoreExposed, sa.ErrStoreForeign, fs.ErrPermission, unix.EROFS} {
		if errors.Is(err, told) {
			return ""
		}
	}
	return "let state_dir be a directory that lasts and that culvert can write"
}

func openLink(l configs.Link) (link.Outer, error) {
	opts := link.OuterOptions{Mark: hostnet.Mark}
	if l.Kind == configs.LinkESP {
		return link.OpenESP(l.Local.Addr(), opts)
	}
	return link.OpenUDP(l.Local, opts)
}

func linkError(cfg *configs.Config, l configs.Link, err error) error {
	for i, t := range cfg.Tunnels {
		if t.LinkIndex >= 0 && cfg.Links()[t.LinkIndex] == l {
			mend := "stop what has it, or give the tunnel another address"
			switch {
			case errors.Is(err, unix.EADDRNOTAVAIL):
				mend = "give this host the address, or name one that it has"
			case errors.Is(err, unix.EADDRINUSE):
				mend = "stop the program that has it (ss -ulpn), or give the tunnel another local_port"
			case errors.Is(err, unix.EPERM):
				mend = "run as root"
			case errors.Is(err, unix.EACCES):
				mend = "run as root, or with CAP_NET_BIND_SERVICE, or give the tunnel a local_port of 1024 or more"
			}
			return cfg.Refuse(fmt.Sprintf("tunnel.%s.local", cfg.Tunnels[i].Name), Plain(err), mend, err)
		}
	}
	return err
}

// serve opens the control socket and the metrics.
func (g *Gateway) serve() (err error) {
	if g.cfg.Control != "" {
		if g.control, err = control.Listen(g.cfg.Control, g, g.log); err != nil {
			return g.cfg.Refuse("control", err.Error(), controlMend(err), err)
		}
	}
	if g.cfg.Metrics.Listen != "" {
		ln, err := net.Listen("tcp", g.cfg.Metrics.Listen)
		if err != nil {
			return g.cfg.Refuse("metrics.listen", err.Error(), `choose a free address, or "" for none`, err)
		}
		g.metrics = &http.Server{Handler: g.metricsHandler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
			ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelWarn)}
		go g.metrics.Serve(ln)
	}
	return nil
}

// controlMend is what to do where the error does not say so itself.
func controlMend(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return `choose a path where a socket can be made, such as "` + control.DefaultSocket + `"`
	}
	return ""
}

// Died is closed when the gateway cannot go on: its data plane has stopped by itself, or the TUN is gone.
func (g *Gateway) Died() <-chan struct{} { return g.died }

// Cause is why, once Died is closed, and what to do; stop is what Stop gave.
func (g *Gateway) Cause(stop error) error {
	var moved *renamed
	if errors.As(g.cause, &moved) {
		return fmt.Errorf("the interface %s was renamed to %s, and its routes and rules go by the name: keep what renamed it from doing so (a rule of udev's, a network manager), or write name = %[2]q below [tun], and start culvert again; until then the guard holds what it protects", g.cfg.Tun.Name, moved.to)
	}
	if errors.Is(g.cause, hostnet.ErrNoTUN) {
		return fmt.Errorf("the interface %s was deleted: start culvert again; until then the guard holds what it protects", g.cfg.Tun.Name)
	}
	return errors.New(Plain(errors.Join(g.cause, stop)))
}

// Stop drains and closes everything. The guard stays.
func (g *Gateway) Stop() error {
	close(g.stop)
	if g.control != nil {
		g.control.Close()
	}
	if g.metrics != nil {
		g.metrics.Close()
	}
	if g.ike != nil {
		g.ike.Close()
	}
	err := g.plane.Stop() // which closes the links, and so ends what reads their notices
	g.wg.Wait()
	g.logBooks(g.plane.Stats())
	g.plane, g.inner, g.outers, g.ike = nil, nil, nil, nil
	g.abandon()
	return err
}

// abandon closes what there is, in the order in which nothing is used after its end.
func (g *Gateway) abandon() {
	if g.control != nil {
		g.control.Close()
	}
	if g.metrics != nil {
		g.metrics.Close()
	}
	if g.ike != nil {
		g.ike.Close()
	}
	if g.plane != nil {
		g.plane.Stop() // which closes the links
	} else {
		for _, o := range g.outers {
			o.Close()
		}
		if g.inner != nil {
			g.inner.Close()
		}
	}
	if g.db != nil {
		g.db.Close()
		if err := g.db.Wait(); err != nil {
			g.log.Error("could not wipe an SA's keys from its engine", "reason", err)
		}
	}
	for _, s := range []*sa.Store{g.store, g.ikeStore} {
		if s != nil {
			s.Close()
		}
	}
	if g.owner != nil {
		g.owner.Release()
	}
	if g.net != nil {
		g.net.Close()
	}
	g.cfg.Wipe()
}
