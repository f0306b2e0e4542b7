package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
)

// DefaultSocket is where a gateway listens unless its configuration says otherwise.
const DefaultSocket = "/run/culvert/control.sock"

// Status is the whole gateway at one moment.
type Status struct {
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	Config   string    `json:"config"`
	Loaded   time.Time `json:"config_loaded"`
	Refused  *Refused  `json:"reload_refused,omitempty"` // the last reload, if it failed
	Engine   string    `json:"engine"`
	Workers  int       `json:"workers"`
	Tunnels  int       `json:"tunnels"`
	TUN      TUN       `json:"tun"`
	Host     Host      `json:"host"`
	IKE      *IKE      `json:"ike,omitempty"`   // with [ike] enabled
	State    *State    `json:"state,omitempty"` // nil without a state directory
	Hints    []Hint    `json:"hints"`           // why traffic may not pass; those of the last two minutes
	Links    []Link    `json:"links"`
	Lanes    []Lane    `json:"lanes"`
	Balanced bool      `json:"balanced"` // every lane's books
}

// Refused is a reload that left the gateway as it was.
type Refused struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
}

// Host is the state of the host's routes, rules and addresses that are the gateway's.
type Host struct {
	Guard    bool     `json:"guard"`             // asked for
	InPlace  bool     `json:"in_place"`          // all of it, the guard too
	Missing  []string `json:"missing,omitempty"` // what others removed and is not laid again yet
	Restored uint64   `json:"restored"`          // times that something was laid again
	Problem  string   `json:"problem,omitempty"` // why it cannot be
}

// IKE is what the gateway does for the IKE daemon under culvert exec.
type IKE struct {
	Socket       string      `json:"socket"`
	Clients      []IKEClient `json:"clients"` // XFRM sockets
	Ports        []IKEPort   `json:"ports"`   // UDP ports shared with the daemon
	Requests     uint64      `json:"requests"`
	Refusals     uint64      `json:"refusals"`
	Acquires     uint64      `json:"acquires"`
	AcquiresLost uint64      `json:"acquires_lost"`
	Mappings     uint64      `json:"mappings"`
	Failures     uint64      `json:"failures"`         // system calls that the daemon would not have failed with its kernel
	SAs          int         `json:"sas"`              // the daemon's, of both directions
	Policies     int         `json:"policies"`         // the daemon's, outbound and inbound
	Routed       int         `json:"routed"`           // pairs of subnets with a route into the TUN
	Refused      []string    `json:"refused"`          // pairs that are guarded and have no policy now
	Notice       string      `json:"notice,omitempty"` // what should be changed in the daemon's configuration
}

// IKEClient is one XFRM socket of a program under culvert exec.
type IKEClient struct {
	Program string   `json:"program"`
	PID     int32    `json:"pid"`
	Port    uint32   `json:"port"`   // nl_pid
	Events  []string `json:"events"` // multicast groups
	Lost    uint64   `json:"lost"`   // messages that it did not read in time
}

// IKEPort is a UDP port whose ESP is the gateway's and whose IKE is the daemon's.
type IKEPort struct {
	Address string `json:"address"`
	Program string `json:"program"`
	PID     int32  `json:"pid"`
}

// State is where sequence numbers are reserved.
type State struct {
	File    string     `json:"file"`
	Problem string     `json:"problem,omitempty"` // why none can be
	Since   *time.Time `json:"problem_since,omitempty"`
	Mend    string     `json:"mend,omitempty"`
	Left    []Left     `json:"left,omitempty"` // with a problem: what each tunnel can still send
	Mended  uint64     `json:"mended"`         // times that the file or directory was taken away while in use, and made again
}

// Left is how many packets a tunnel can send with the sequence numbers that it has.
type Left struct {
	Tunnel  string `json:"tunnel"`
	SPI     string `json:"spi"`
	Packets uint64 `json:"packets"`
}

// Hint is a reason why traffic of a tunnel does not pass, as far as the gateway can see it. It may come of what is not authenticated.
type Hint struct {
	Tunnel  string    `json:"tunnel,omitempty"` // none: of a stranger
	Kind    string    `json:"kind"`             // one word, which stays the same
	Text    string    `json:"text"`             // with the last example
	Mend    string    `json:"mend"`
	Packets uint64    `json:"packets"` // that gave reason for it, since
	Since   time.Time `json:"since"`
	Last    time.Time `json:"last"`
}

// TUN is the inner side.
type TUN struct {
	Name     string `json:"name"`
	MTU      int    `json:"mtu"`
	Offloads string `json:"offloads"`
	// KernelDrops are the packets that the kernel had no room for in the TUN's queue. No lane has seen them. Nil where nobody counts.
	KernelDrops *uint64 `json:"kernel_drops"`
}

// Link is one outer side.
type Link struct {
	Name     string         `json:"name"`
	Local    netip.AddrPort `json:"local"`
	Offloads string         `json:"offloads"`
	// KernelDrops are the datagrams, merged ones as one, that the kernel had no room for in the socket's buffer. No lane has seen them.
	KernelDrops *uint64 `json:"kernel_drops"`
}

// Lane is one lane's books: packets_in = packets_out + the sum of drops + in_flight + held.
type Lane struct {
	Name       string            `json:"name"`
	PacketsIn  uint64            `json:"packets_in"`
	PacketsOut uint64            `json:"packets_out"`
	BytesIn    uint64            `json:"bytes_in"`
	BytesOut   uint64            `json:"bytes_out"`
	InFlight   uint64            `json:"in_flight"`
	Held       uint64            `json:"held"`  // waiting for an SA that an IKE daemon negotiates
	Drops      map[string]uint64 `json:"drops"` // by cause; causes that never occurred are left out
	Bursts     uint64            `json:"bursts"`
	Spilled    uint64            `json:"spilled"`
	PTBSent    uint64            `json:"ptb_sent"`
	Balanced   bool              `json:"balanced"`
}

// SA is one security association; its keys are not part of it.
type SA struct {
	Name         string     `json:"name"`
	Origin       string     `json:"origin"` // "static", "ike"
	Reqid        uint32     `json:"reqid,omitempty"`
	Direction    string     `json:"direction"` // "out", "in"
	SPI          string     `json:"spi"`       // 0x and eight digits
	Src          string     `json:"src"`
	Dst          string     `json:"dst"`
	Link         string     `json:"link"`
	Transform    string     `json:"transform"`
	KeyBits      int        `json:"key_bits"`
	ICVBits      int        `json:"icv_bits"`
	ESN          bool       `json:"esn"`
	ReplayWindow int        `json:"replay_window"`
	Sequence     uint64     `json:"sequence"` // last sent, or highest received
	MaxInner     int        `json:"max_inner,omitempty"`
	Packets      uint64     `json:"packets"`
	Bytes        uint64     `json:"bytes"`
	Duplicates   uint64     `json:"duplicates"`
	TooOld       uint64     `json:"too_old"`
	BadICV       uint64     `json:"bad_icv"`
	MTUIgnored   uint64     `json:"mtu_ignored,omitempty"` // ICMP messages of a smaller path MTU that quoted nothing just sent
	Added        time.Time  `json:"added"`
	LastUsed     *time.Time `json:"last_used,omitempty"`
	Expired      bool       `json:"expired"`
}

// Policy is one row of the SPD.
type Policy struct {
	Name      string `json:"name"`
	Origin    string `json:"origin"` // "static", "ike"
	Direction string `json:"direction"`
	Priority  int    `json:"priority"`
	Selector  string `json:"selector"`
	Action    string `json:"action"`
	SA        string `json:"sa,omitempty"` // the SA that protects it
}

// Source is the gateway as the socket sees it.
type Source interface {
	Status() Status
	SAs() []SA
	Policies() []Policy
}

// Server answers on the Unix socket.
type Server struct {
	http *http.Server
	path string
	ln   net.Listener
	made fs.FileInfo // the socket as it was made
}

// Listen makes the socket, mode 0600, in a directory that is made when it is missing. A socket that a dead gateway left
// behind is replaced; one that a living gateway has is an error, also if that hangs.
func Listen(path string, src Source, log *slog.Logger) (*Server, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the socket: %w", err)
	}
	// First what it is: a link would be followed to somebody else's socket.
	fi, err := os.Lstat(path)
	if err == nil && fi.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("%s is in the way and is not a socket; remove it, or choose another `control` path", path)
	}
	if err := Taken(path); err != nil {
		return nil, err
	}
	if err == nil {
		if err := removeSame(path, fi); err != nil {
			return nil, fmt.Errorf("remove the socket that a dead gateway left: %w", err)
		}
	}
	old := syscall.Umask(0o177) // the socket is never open to others, not even for a moment
	ln, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("%w", err)
	}
	// By name it would remove whatever is there when it stops.
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	made, err := os.Lstat(path)
	if err != nil {
		ln.Close()
		return nil, err
	}
	mux := http.NewServeMux()
	answer := func(f func() any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			enc.Encode(f())
		}
	}
	mux.HandleFunc("GET /status", answer(func() any { return src.Status() }))
	mux.HandleFunc("GET /sas", answer(func() any { return src.SAs() }))
	mux.HandleFunc("GET /policies", answer(func() any { return src.Policies() }))
	s := &Server{path: path, made: made, ln: netutil.LimitListener(ln, maxConns), http: &http.Server{
		Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}
	go s.http.Serve(s.ln)
	return s, nil
}

// maxConns bounds how many are answered at once, and with it the memory of answers that nobody reads; others wait.
const maxConns = 32

// Taken is an error, with what to do, if a living gateway has the socket, also if that hangs.
func Taken(path string) error {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
	}
	// With EAGAIN so many wait already for one that hangs that no more can.
	if err == nil || errors.Is(err, syscall.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("a gateway has the socket %s; stop it, or give this one another `control` path", path)
	}
	return nil
}

// Close stops answering and removes the socket.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	s.ln.Close() // in case nobody had been served yet
	return errors.Join(err, removeSame(s.path, s.made))
}

// removeSame removes a socket, if it is still that one which has the name.
func removeSame(path string, was fs.FileInfo) error {
	fi, err := os.Lstat(path)
	if err == nil && fi.Mode()&fs.ModeSocket != 0 && os.SameFile(fi, was) {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// maxSocketPath is the longest path of a Unix socket, in bytes (unix(7)).
const maxSocketPath = 107

// innermost leaves out the URL and the address, which the user did not write.
func innermost(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// program is how this one was called, for hints that can be typed as they are.
func program() string {
	if filepath.Base(os.Args[0]) == "culvert" {
		return os.Args[0]
	}
	return "culvert"
}

// Client asks the gateway behind one socket.
type Client struct {
	path string
	http http.Client
}

// Dial prepares a client for the socket at path; it connects with each question.
func Dial(path string) *Client {
	c := &Client{path: path}
	c.http.Timeout = 10 * time.Second
	c.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}
	return c
}

// Raw gives the document behind what ("status", "sas", "policies") as the gateway sent it.
func (c *Client) Raw(what string) ([]byte, error) {
	switch {
	case c.path == "":
		return nil, fmt.Errorf("the path of the control socket is empty; name the one in the gateway's configuration, or leave --control out for %s", DefaultSocket)
	case len(c.path) > maxSocketPath:
		return nil, fmt.Errorf("the path of the control socket has %d bytes, and a socket's has at most %d; name the one in the gateway's configuration", len(c.path), maxSocketPath)
	case strings.ContainsRune(c.path, 0):
		return nil, fmt.Errorf("the path of the control socket %q has a zero byte; name the one in the gateway's configuration", c.path)
	}
	r, err := c.http.Get("http://culvert/" + what)
	var slow net.Error
	switch {
	case errors.Is(err, syscall.EAGAIN): // which counts as a timeout too
		return nil, fmt.Errorf("the gateway behind %s hangs: very many wait for its answers already; restart it", c.path)
	case errors.As(err, &slow) && slow.Timeout():
		return nil, fmt.Errorf("the gateway behind %s took the question and did not answer within %v: it is stopped or overloaded; `ps` shows its state, SIGCONT wakes a stopped one", c.path, c.http.Timeout)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%s may not be opened by this user; ask as root: sudo %s …", c.path, program())
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no gateway answers on %s; start one with `sudo %s run -c FILE`, or name its socket with --control", c.path, program())
	case err != nil:
		return nil, fmt.Errorf("ask the gateway behind %s: %w", c.path, innermost(err))
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if errors.As(err, &slow) && slow.Timeout() {
		return nil, fmt.Errorf("the gateway behind %s stopped in the middle of its answer; ask again", c.path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the gateway answered %s to %q", r.Status, what)
	}
	return body, nil
}

// Status asks for the gateway's status.
func (c *Client) Status() (s Status, err error) {
	err = c.get("status", &s)
	return s, err
}

// SAs asks for the SAD.
func (c *Client) SAs() (s []SA, err error) {
	err = c.get("sas", &s)
	return s, err
}

// Policies asks for the SPD.
func (c *Client) Policies() (p []Policy, err error) {
	err = c.get("policies", &p)
	return p, err
}

func (c *Client) get(what string, into any) error {
	b, err := c.Raw(what)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("the answer to %q: %w", what, err)
	}
	return nil
}
