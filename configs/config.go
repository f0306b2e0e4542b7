package configs

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"culvert/offload"
	"culvert/sa"
)

// Config is a whole configuration, checked: every reference resolves, every key is loaded and fits its transform.
type Config struct {
	File     string // as it was given to Load
	StateDir string // where sequence high-water marks are kept; "" = nowhere (no AEAD then)
	// StateDirVolatile says that the keys of this file are new at each boot, so that StateDir may be emptied by one.
	StateDirVolatile bool
	Control          string    // path of the control socket; "" = none
	Engine           string    // name of the engine to prefer; "" = choose
	Workers          int       // crypto workers for lanes that cannot keep up; 0 = run to completion
	Tun              Tun       // [tun]
	Log              Log       // [log]
	Metrics          Metrics   // [metrics]
	Guard            Guard     // [guard]
	IKE              IKE       // [ike]
	Tunnels          []*Tunnel // in the order of the file
	Policies         []*Policy // one per direction and selector, those of the tunnels' subnets first, then [[policy]]
	Warnings         []Warning // what works and is still worth a line in the log
	links            []Link
	places           map[string]Pos     // of every key that is written
	byName           map[string]*Tunnel // nil: not made yet
}

// Tun is the interface that the protected traffic goes through.
type Tun struct {
	Name      string
	MTU       int            // 0 = the exact inner MTU; the most that any tunnel carries, see Tunnel.InnerMTU
	Addresses []netip.Prefix // of the interface, host bits kept
	GSO       bool           // segmentation offload between kernel and gateway
}

// LogFormat is how log lines are written.
type LogFormat uint8

// The log formats.
const (
	LogText LogFormat = iota
	LogJSON
)

var logFormats = []string{LogText: "text", LogJSON: "json"}

// String is the word of the configuration.
func (f LogFormat) String() string { return logFormats[f] }

// LogLevel is the least severe level that is logged.
type LogLevel uint8

// The log levels.
const (
	LogDebug LogLevel = iota
	LogInfo
	LogWarn
	LogError
)

// levels are log/slog's.
var levels = [...]slog.Level{LogDebug: slog.LevelDebug, LogInfo: slog.LevelInfo, LogWarn: slog.LevelWarn, LogError: slog.LevelError}

// Slog is the level as log/slog has it.
func (l LogLevel) Slog() slog.Level { return levels[l] }

var logLevels = []string{LogDebug: "debug", LogInfo: "info", LogWarn: "warn", LogError: "error"}

// String is the word of the configuration.
func (l LogLevel) String() string { return logLevels[l] }

// Log says what is logged, and how.
type Log struct {
	Level  LogLevel
	Format LogFormat
}

// Metrics says where the Prometheus metrics are served.
type Metrics struct {
	Listen string // host:port; "" = not at all
}

// Guard keeps protected traffic from leaving in clear while the gateway is not running.
type Guard struct {
	Enabled bool // unreachable routes and source rules that outlive the process
	// LocalByDefault lets a packet from a tunnel, for a local subnet to which no other route leads, leave in clear by the default
	// route: for gateways whose LAN is behind it.
	LocalByDefault bool
}

// AfterDelete is what becomes of traffic whose policy an IKE daemon has deleted.
type AfterDelete uint8

// The ways.
const (
	DeleteGuard AfterDelete = iota // it is refused until a new policy protects it, or the guard is removed
	DeleteClear                    // it leaves in clear, as with the kernel's ESP
)

var afterDeleteWords = []string{DeleteGuard: "guard", DeleteClear: "clear"}

// String is the word of the configuration.
func (a AfterDelete) String() string { return afterDeleteWords[a] }

// IKE says how an IKE daemon, started through `culvert exec`, makes tunnels.
type IKE struct {
	Enabled  bool
	Socket   string        // path where `culvert exec` finds the gateway
	StateDir string        // where sequence high-water marks of the daemon's SAs are kept; as long as the daemon lives is enough
	HoldFor  time.Duration // how long a packet may wait for the SA that it has asked for; 0 = not at all
	// Port and PortNATT are the UDP ports that the daemon sends IKE from: such packets never go into a tunnel.
	Port, PortNATT uint16
	AfterDelete    AfterDelete
	// LocalSubnets and RemoteSubnets are guarded from the gateway's start, pair by pair, before the daemon has made a policy.
	LocalSubnets, RemoteSubnets []netip.Prefix
}

// LinkKind is how ESP is carried.
type LinkKind uint8

// The kinds of links.
const (
	LinkUDP LinkKind = iota // ESP in UDP, RFC 3948
	LinkESP                 // ESP as IP protocol 50
)

var linkKinds = []string{LinkUDP: "udp", LinkESP: "esp"}

// String is the word of the configuration.
func (k LinkKind) String() string { return linkKinds[k] }

var dfWords = []string{sa.DFSet: "set", sa.DFClear: "clear", sa.DFCopy: "copy"}

// Tunnel is one pair of security associations and what goes with it.
type Tunnel struct {
	Name          string
	Pos           Pos // of its name
	Local, Remote netip.Addr
	Link          LinkKind
	LocalPort     uint16 // 0 with LinkESP
	RemotePort    uint16 // 0 with LinkESP
	Transform     *offload.Transform
	ESN           bool
	ReplayCheck   bool
	ReplayWindow  int // packets; 0 without ReplayCheck
	OuterMTU      int // of the path between Local and Remote; 0 = of the interface
	DF            sa.DF
	DSCP          sa.DSCPMode // of the outer header, outbound: sa.KeepDSCP is that of the inner one
	DSCPIn        sa.DSCPMode // of the inner header, inbound: sa.KeepDSCP or sa.CopyDSCP
	ECN           bool
	TFCPad        int // inner packets are padded up to this length, in bytes; 0 = not
	MSSClamp      bool
	FollowPeer    bool
	Keepalive     time.Duration // 0 = none
	Priority      int           // of the policies made from the subnets
	LocalSubnets  []netip.Prefix
	RemoteSubnets []netip.Prefix
	Out, In       SA
	Lifetime      sa.Lifetime // of both directions
	LinkIndex     int         // of its link in Config.Links
}

// SA is what one direction of a tunnel has of its own.
type SA struct {
	SPI  uint32
	Keys offload.Keys // with ESN set as the tunnel's; owned by the Config, wiped by Config.Wipe
	Pos  Pos          // of the SPI
	id   keyID
}

// Link is one socket of the outer side.
type Link struct {
	Kind  LinkKind
	Local netip.AddrPort // port 0 with LinkESP
}

// String is the link as kind and address: "udp 192.0.2.1:4500", "esp 192.0.2.1".
func (l Link) String() string {
	if l.Kind == LinkESP {
		return l.Kind.String() + " " + l.Local.Addr().String()
	}
	return l.Kind.String() + " " + l.Local.String()
}

// Links are the sockets that the tunnels need, each once, in the order in which the tunnels first name them.
// Tunnel.LinkIndex and sa.Params.Link count in this list.
func (c *Config) Links() []Link { return slices.Clone(c.links) }

func (t *Tunnel) link() Link { return Link{t.Link, netip.AddrPortFrom(t.Local, t.LocalPort)} }

// Tunnel returns the tunnel of a name, nil if there is none.
func (c *Config) Tunnel(name string) *Tunnel {
	if c.byName != nil {
		return c.byName[name]
	}
	for _, t := range c.Tunnels {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// index makes Tunnel fast, when all tunnels are there.
func (c *Config) index() {
	c.byName = make(map[string]*Tunnel, len(c.Tunnels))
	for _, t := range c.Tunnels {
		if c.byName[t.Name] == nil {
			c.byName[t.Name] = t
		}
	}
}

// Pos returns where a key is written, such as "engine", "tun.name" or "tunnel.branch.out.spi"; for one that is not, where its
// table is, and the file as a whole if that is not there either.
func (c *Config) Pos(key string) Pos {
	for {
		if p, ok := c.places[key]; ok {
			return p
		}
		i := strings.LastIndexByte(key, '.')
		if i < 0 {
			return Pos{File: c.File}
		}
		key = key[:i]
	}
}

// Refuse returns an Error about a key of this configuration, for what only the running gateway can know: an engine that this
// machine does not have, an address that is not its own. The class is ErrValue, the cause may be nil.
func (c *Config) Refuse(key, what, mend string, cause error) *Error {
	return &Error{Pos: c.Pos(key), Key: key, What: what, Mend: mend, Class: ErrValue, Cause: cause}
}

func (c *Config) refuse(key, what, mend string, class error) *Error {
	return &Error{Pos: c.Pos(key), Key: key, What: what, Mend: mend, Class: class}
}

// Wipe overwrites the keys, when every session that needs them is made.
func (c *Config) Wipe() {
	for _, t := range c.Tunnels {
		t.Out.Keys.Zero()
		t.In.Keys.Zero()
	}
}
