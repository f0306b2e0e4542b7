package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/offload"
	"culvert/test/judge"
	"culvert/test/lab"
)

// patience is how long anything may take that is waited for. It bounds a hang; nothing is ever slept for.
const patience = 20 * time.Second

// program is the culvert binary, built once.
var program string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "culvert-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "culvert")
		build := exec.Command("go", "build", "-o", program, "culvert/cmd/culvert")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building culvert: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// row is a lab's row with a gateway program in each of its gateways.
type row struct {
	*lab.Row
	t    *testing.T
	a, b *gateway
}

// gateway is one culvert, running or not.
type gateway struct {
	t       *testing.T
	ns      *lab.Namespace
	side    int // 0 on the left, 1 on the right
	dir     string
	config  string
	control string
	proc    *lab.Process
	logs    []string
	env     []string // of the process, beside the test's own
	secrets []string // hex of the keys in its configuration
}

// newRow makes the namespaces, or skips the test where there can be none.
func newRow(t *testing.T, o lab.RowOptions) *row {
	t.Helper()
	if err := lab.Usable(); err != nil {
		t.Skip(err)
	}
	r, err := lab.NewRow(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &row{Row: r, t: t}
	for i, g := range []struct {
		into **gateway
		ns   *lab.Namespace
	}{{&w.a, r.GatewayA}, {&w.b, r.GatewayB}} {
		dir := filepath.Join(r.Dir(), g.ns.Role())
		if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
			t.Fatal(err)
		}
		*g.into = &gateway{t: t, ns: g.ns, side: i, dir: dir, config: filepath.Join(dir, "culvert.toml"), control: filepath.Join(dir, "control.sock")}
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, g := range []*gateway{w.a, w.b} {
				for i, log := range g.logs {
					text, _ := os.ReadFile(log)
					t.Logf("log %d of %s:\n%s", i, g.ns.Role(), tail(text, 6000))
				}
			}
		}
		if err := r.Close(); err != nil {
			t.Errorf("removing the lab: %v", err)
		}
	})
	return w
}

func tail(b []byte, n int) []byte {
	if len(b) > n {
		return append([]byte("… "), b[len(b)-n:]...)
	}
	return b
}

// tunnel is one tunnel as both gateways have it. The SPI towards the right is spi, towards the left spi + 1.
type tunnel struct {
	name        string
	link        string // "udp", "esp"
	v6          bool   // outside
	transform   *offload.Transform
	esn         bool
	spi         uint32
	left, right []netip.Prefix // the protected networks
	more        string         // further lines of [[tunnel]]
}

var (
	cbcSHA256 = mustTransform("authenc(hmac(sha256),cbc(aes))", 128, 128)
	gcm       = mustTransform("rfc4106(gcm(aes))", 128, 128)
)

func mustTransform(name string, keyBits, icvBits int) *offload.Transform {
	t, err := offload.Lookup(name, keyBits, icvBits)
	if err != nil {
		panic(err)
	}
	return t
}

// ordinary is a tunnel between the two LANs, in both families.
func ordinary(name, link string, v6 bool, transform *offload.Transform) tunnel {
	return tunnel{name: name, link: link, v6: v6, transform: transform, spi: 0xc0001000, left: lab.LANA[:], right: lab.LANB[:]}
}

// keys of one direction of a tunnel: 0 towards the right, 1 towards the left.
func (tn tunnel) keys(direction int) offload.Keys {
	r := judge.Rand(fmt.Sprintf("%s %d", tn.name, direction))
	return offload.Keys{Enc: judge.Bytes(r, tn.transform.EncKeyLen()), Auth: judge.Bytes(r, tn.transform.AuthKeyLen), ESN: tn.esn}
}

// sas are the tunnel's two SAs as a judge takes them, towards the right first.
func (tn tunnel) sas(w *row) []judge.SA {
	var port uint16
	if tn.link == "udp" {
		port = 4500
	}
	a, b := w.WanA.Addr(tn.v6), w.WanB.Addr(tn.v6)
	return []judge.SA{
		{Transform: tn.transform, Keys: tn.keys(0), SPI: tn.spi, Src: a, Dst: b, SrcPort: port, DstPort: port},
		{Transform: tn.transform, Keys: tn.keys(1), SPI: tn.spi + 1, Src: b, Dst: a, SrcPort: port, DstPort: port},
	}
}

// configure writes the configuration of both gateways.
func (w *row) configure(general string, tunnels ...tunnel) {
	w.t.Helper()
	w.a.configure(w, general, tunnels...)
	w.b.configure(w, general, tunnels...)
}

// configure writes the gateway's configuration: a TOML text to begin with, then tunnels.
func (g *gateway) configure(w *row, general string, tunnels ...tunnel) {
	g.t.Helper()
	if err := os.WriteFile(g.config, []byte(g.document(w, general, tunnels...)), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) document(w *row, general string, tunnels ...tunnel) string {
	var b strings.Builder
	fmt.Fprintf(&b, "state_dir = %q\nstate_dir_volatile = true\ncontrol = %q\n%s\n[metrics]\nlisten = \"\"\n", filepath.Join(g.dir, "state"), g.control, general)
	g.secrets = nil
	for _, tn := range tunnels {
		ends := []netip.Addr{w.WanA.Addr(tn.v6), w.WanB.Addr(tn.v6)}
		nets := [][]netip.Prefix{tn.left, tn.right}
		fmt.Fprintf(&b, "\n[[tunnel]]\nname = %q\nlink = %q\nlocal = %q\nremote = %q\n", tn.name, tn.link, ends[g.side], ends[1-g.side])
		fmt.Fprintf(&b, "transform = %q\nkey_bits = %d\nicv_bits = %d\nesn = %v\n", tn.transform.Name, tn.transform.KeyBits, tn.transform.ICVLen*8, tn.esn)
		fmt.Fprintf(&b, "local_subnets = %s\nremote_subnets = %s\n%s\n", list(nets[g.side]), list(nets[1-g.side]), tn.more)
		for i, dir := range []string{"out", "in"} {
			to := (g.side + i) % 2
			k := tn.keys(to)
			fmt.Fprintf(&b, "[tunnel.%s]\nspi = 0x%08x\n", dir, tn.spi+uint32(to))
			for name, key := range map[string][]byte{"enc_key": k.Enc, "auth_key": k.Auth} {
				if len(key) > 0 {
					fmt.Fprintf(&b, "%s = \"%x\"\n", name, key)
					g.secrets = append(g.secrets, fmt.Sprintf("%x", key))
				}
			}
		}
	}
	return b.String()
}

func list(ps []netip.Prefix) string {
	var quoted []string
	for _, p := range ps {
		quoted = append(quoted, fmt.Sprintf("%q", p))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// start runs both gateways and waits until they serve.
func (w *row) start() {
	w.t.Helper()
	w.a.launch()
	w.b.launch()
	w.a.ready()
	w.b.ready()
}

// launch starts the gateway's process.
func (g *gateway) launch() {
	g.t.Helper()
	name := filepath.Join(g.dir, fmt.Sprintf("log.%d", len(g.logs)))
	log, err := os.Create(name)
	if err != nil {
		g.t.Fatal(err)
	}
	defer log.Close()
	g.logs = append(g.logs, name)
	cmd := exec.Command(program, "run", "-c", g.config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), g.env...)
	if g.proc, err = g.ns.Start(cmd); err != nil {
		g.t.Fatal(err)
	}
}

// ready waits until the gateway serves: it says so when routes, SAs and lanes are there.
func (g *gateway) ready() {
	g.t.Helper()
	g.until("the gateway is ready", func() bool {
		select {
		case <-g.proc.Done():
			g.t.Fatalf("%s ended by itself: %v", g.ns.Role(), g.proc.Err())
		default:
		}
		return strings.Contains(g.log(), "msg=ready")
	})
}

// log is what the running process has logged so far.
func (g *gateway) log() string {
	g.t.Helper()
	text, err := os.ReadFile(g.logs[len(g.logs)-1])
	if err != nil {
		g.t.Fatal(err)
	}
	return string(text)
}

// until polls for what takes its time, and fails the test when it takes too long.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v, and it is not so that %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}

func (g *gateway) until(what string, done func() bool) {
	g.t.Helper()
	until(g.t, what, done)
}

// signal sends a signal to the gateway's process.
func (g *gateway) signal(s syscall.Signal) {
	g.t.Helper()
	if err := syscall.Kill(g.proc.Pid(), s); err != nil {
		g.t.Fatal(err)
	}
}

// kill ends the process as a crash would, and waits until it is gone.
func (g *gateway) kill() {
	g.t.Helper()
	g.signal(syscall.SIGKILL)
	g.wait()
}

// wait waits until the process has ended.
func (g *gateway) wait() {
	g.t.Helper()
	select {
	case <-g.proc.Done():
	case <-time.After(patience):
		g.t.Fatalf("%s has not ended after %v", g.ns.Role(), patience)
	}
}

// stop ends the process in order: SIGTERM, exit status 0.
func (g *gateway) stop() {
	g.t.Helper()
	g.signal(syscall.SIGTERM)
	g.wait()
	if err := g.proc.Err(); err != nil {
		g.t.Errorf("%s after SIGTERM: %v", g.ns.Role(), err)
	}
}

// culvert runs a command of the binary in the gateway's namespace, and gives what it printed on either output.
func (g *gateway) culvert(args ...string) (string, error) {
	g.t.Helper()
	return output(g.t, g.ns, program, args...)
}

// ask runs a query against the gateway's socket, which must succeed.
func (g *gateway) ask(args ...string) string {
	g.t.Helper()
	out, err := g.culvert(append(args, "--control", g.control)...)
	if err != nil {
		g.t.Fatalf("culvert %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// status is what of `culvert status --json` the tests look at.
type status struct {
	PID      int
	Balanced bool
	Tunnels  int
	TUN      struct {
		Name        string
		MTU         int
		KernelDrops uint64 `json:"kernel_drops"`
	}
	Links []struct {
		KernelDrops uint64 `json:"kernel_drops"`
	}
	Lanes []lane
}

type lane struct {
	Name       string
	PacketsIn  uint64 `json:"packets_in"`
	PacketsOut uint64 `json:"packets_out"`
	InFlight   uint64 `json:"in_flight"`
	Drops      map[string]uint64
	PTBSent    uint64 `json:"ptb_sent"`
	Balanced   bool
}

// association is what of `culvert sa list --json` the tests look at.
type association struct {
	Name, Direction, SPI, Transform string
	Sequence, Packets, Bytes        uint64
	Duplicates                      uint64
	TooOld                          uint64 `json:"too_old"`
	BadICV                          uint64 `json:"bad_icv"`
	MaxInner                        int    `json:"max_inner"`
}

func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}

func (g *gateway) status() status {
	g.t.Helper()
	return decode[status](g.t, g.ask("status", "--json"))
}

func (g *gateway) sas() []association {
	g.t.Helper()
	return decode[[]association](g.t, g.ask("sa", "list", "--json"))
}

// association finds the SA of a tunnel and direction.
func (g *gateway) association(name, direction string) association {
	g.t.Helper()
	for _, s := range g.sas() {
		if s.Name == name && s.Direction == direction {
			return s
		}
	}
	g.t.Fatalf("%s has no SA %q %s", g.ns.Role(), name, direction)
	return association{}
}

// drops adds up the gateway's drops by cause, over all lanes.
func (s status) drops() map[string]uint64 {
	sum := map[string]uint64{}
	for _, l := range s.Lanes {
		for cause, n := range l.Drops {
			sum[cause] += n
		}
	}
	return sum
}

// balance waits until nothing is in flight, then checks every lane's books: packets in = packets out + drops.
func (w *row) balance() {
	w.t.Helper()
	for _, g := range []*gateway{w.a, w.b} {
		var s status
		g.until("nothing is in flight", func() bool {
			s = g.status()
			return !slices.ContainsFunc(s.Lanes, func(l lane) bool { return l.InFlight != 0 })
		})
		if !s.Balanced {
			w.t.Errorf("%s says that its books do not balance", g.ns.Role())
		}
		for _, l := range s.Lanes {
			var dropped uint64
			for _, n := range l.Drops {
				dropped += n
			}
			if l.PacketsIn != l.PacketsOut+dropped || !l.Balanced {
				w.t.Errorf("%s, lane %s: %d in, %d out, %d dropped (%v)", g.ns.Role(), l.Name, l.PacketsIn, l.PacketsOut, dropped, l.Drops)
			}
		}
	}
}

// onlyDrops fails the test if the gateways dropped packets for any but the given causes, and but for the groups that the
// kernel reports on every interface, the TUN too (RFC 3810).
func (w *row) onlyDrops(causes ...string) {
	w.t.Helper()
	for _, g := range []*gateway{w.a, w.b} {
		for cause, n := range g.status().drops() {
			if !slices.Contains(causes, cause) && cause != "link-local" {
				w.t.Errorf("%s dropped %d packets: %s", g.ns.Role(), n, cause)
			}
		}
	}
}

// background starts a program in a namespace, with its outputs in the returned files. It ends with the lab at the latest.
func background(t *testing.T, ns *lab.Namespace, name string, args ...string) (p *lab.Process, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	stdout, stderr = filepath.Join(dir, "stdout"), filepath.Join(dir, "stderr")
	cmd := exec.Command(name, args...)
	// The programs' decimal points and messages are parsed.
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	for _, f := range []struct {
		name string
		into func(*os.File)
	}{{stdout, func(f *os.File) { cmd.Stdout = f }}, {stderr, func(f *os.File) { cmd.Stderr = f }}} {
		file, err := os.Create(f.name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		f.into(file)
	}
	p, err := ns.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p, stdout, stderr
}

// output runs a program in a namespace and gives all that it printed.
func output(t *testing.T, ns *lab.Namespace, name string, args ...string) (string, error) {
	t.Helper()
	p, stdout, stderr := background(t, ns, name, args...)
	select {
	case <-p.Done():
	case <-time.After(2 * patience):
		t.Fatalf("%s %s has not ended after %v", name, strings.Join(args, " "), 2*patience)
	}
	var text []byte
	for _, f := range []string{stdout, stderr} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	return string(bytes.TrimSpace(text)), p.Err()
}

// must is output of a program that must succeed.
func must(t *testing.T, ns *lab.Namespace, name string, args ...string) string {
	t.Helper()
	out, err := output(t, ns, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// exitCode is the status of a program that ended by itself.
func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return 0
}
