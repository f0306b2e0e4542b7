package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"culvert/cmd/culvert/internal/control"
	"culvert/cmd/culvert/internal/hostnet"
	"culvert/offload"
	"culvert/test/lab"
	"culvert/test/lab/traffic"
)

// gateway is one culvert process.
type gateway struct {
	name   string // "A", "B"
	ns     *lab.Namespace
	proc   *lab.Process
	config string // path
	log    string // path
	socket string // path
	client *control.Client
}

// gateways is the pair with an ESP tunnel between them.
type gateways [2]*gateway

const (
	startLimit = 15 * time.Second
	logLines   = 25 // of a log, shown when something failed
)

// configTemplate is a configuration as a person would write one; culvert example prints commented ones.
var configTemplate = template.Must(template.New("").Funcs(template.FuncMap{"quote": strconv.Quote}).Parse(`# Written by culvert demo.
state_dir = {{quote .StateDir}}
state_dir_volatile = true # the keys below are new in every run
control   = {{quote .Socket}}
{{- if .Engine}}
engine    = {{quote .Engine}}
{{- end}}
workers   = {{.Workers}}

[metrics]
listen = ""

[[tunnel]]
name           = "demo"
local          = "{{.Local}}"
remote         = "{{.Remote}}"
link           = "{{.Link}}"
transform      = {{quote .Transform.Name}}
key_bits       = {{.Transform.KeyBits}}
local_subnets  = ["{{.LocalNet}}"]
remote_subnets = ["{{.RemoteNet}}"]

[tunnel.out]
spi = {{.Out.SPI}}
{{template "keys" .Out}}
[tunnel.in]
spi = {{.In.SPI}}
{{template "keys" .In}}
{{- define "keys"}}
{{- if .Enc}}enc_key = "{{.Enc}}"
{{end}}
{{- if .Auth}}auth_key = "{{.Auth}}"
{{end}}
{{- end}}`))

type saSecrets struct{ SPI, Enc, Auth string }

type gatewayConfig struct {
	StateDir, Socket, Engine string
	Workers                  int
	Local, Remote            netip.Addr
	LocalNet, RemoteNet      netip.Prefix
	Link                     string
	Transform                *offload.Transform
	Out, In                  saSecrets
}

// newSA makes an SA's SPI and random keys, in hexadecimal.
func newSA(t *offload.Transform) (saSecrets, error) {
	secret := make([]byte, 4+t.EncKeyLen()+t.AuthKeyLen)
	if _, err := rand.Read(secret); err != nil {
		return saSecrets{}, err
	}
	defer clear(secret)
	secret[0] |= 0x80 // an SPI is above 255
	spi, enc, auth := secret[:4], secret[4:4+t.EncKeyLen()], secret[4+t.EncKeyLen():]
	return saSecrets{fmt.Sprintf("0x%x", spi), fmt.Sprintf("%x", enc), fmt.Sprintf("%x", auth)}, nil
}

// startGateways writes the two configurations and starts the two processes. They are ready when it returns. A process that ends
// before it is stopped cancels the context with its log in the cause.
func startGateways(ctx context.Context, cancel context.CancelCauseFunc, row *lab.Row, o *options) (gateways, error) {
	aToB, err := newSA(o.transform)
	if err != nil {
		return gateways{}, err
	}
	bToA, err := newSA(o.transform)
	if err != nil {
		return gateways{}, err
	}
	inner := 0
	if o.inner6() {
		inner = 1
	}
	wanA, wanB := row.WanA.Addr(o.outer6()), row.WanB.Addr(o.outer6())
	var pair gateways
	for i, g := range [...]struct {
		ns *lab.Namespace
		c  gatewayConfig
	}{
		{row.GatewayA, gatewayConfig{Local: wanA, Remote: wanB, LocalNet: lab.LANA[inner], RemoteNet: lab.LANB[inner], Out: aToB, In: bToA}},
		{row.GatewayB, gatewayConfig{Local: wanB, Remote: wanA, LocalNet: lab.LANB[inner], RemoteNet: lab.LANA[inner], Out: bToA, In: aToB}},
	} {
		name := string(rune('A' + i))
		base := filepath.Join(row.Dir(), "gateway"+name)
		g.c.StateDir, g.c.Socket, g.c.Engine, g.c.Workers, g.c.Link, g.c.Transform = base+".state", base+".sock", o.engine, o.workers, o.link, o.transform
		gw := &gateway{name: name, ns: g.ns, config: base + ".toml", log: base + ".log", socket: g.c.Socket, client: control.Dial(g.c.Socket)}
		if err := gw.start(&g.c); err != nil {
			return pair, err
		}
		pair[i] = gw
		go gw.watch(ctx, cancel)
	}
	for _, gw := range pair {
		if err := gw.waitReady(ctx); err != nil {
			return pair, err
		}
	}
	return pair, nil
}

func (g *gateway) start(c *gatewayConfig) error {
	if err := os.Mkdir(c.StateDir, 0o700); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := configTemplate.Execute(&text, c); err != nil {
		return err
	}
	defer clear(text.Bytes())
	if err := os.WriteFile(g.config, text.Bytes(), 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(g.log, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", "run", "-c", g.config)
	cmd.Args[0] = "culvert"
	cmd.Stdout, cmd.Stderr = log, log
	// The demo is no service: the gateway must not report to whatever manages the demo.
	cmd.Env = without(os.Environ(), "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID")
	g.proc, err = g.ns.Start(cmd)
	return err
}

// without leaves variables out of an environment.
func without(env []string, names ...string) []string {
	var kept []string
next:
	for _, e := range env {
		for _, n := range names {
			if strings.HasPrefix(e, n+"=") {
				continue next
			}
		}
		kept = append(kept, e)
	}
	return kept
}

// watch cancels the context if the process ends while the context lives.
func (g *gateway) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
	case <-g.proc.Done():
		how := "with status 0, unasked"
		if err := g.proc.Err(); err != nil {
			how = "with " + err.Error()
		}
		cancel(g.failure("it ended "+how, nil))
	}
}

// failure is an error about the gateway with the end of its log.
func (g *gateway) failure(what string, err error) error {
	if err != nil {
		what += ": " + err.Error()
	}
	return &gatewayError{name: g.name, what: what, log: tail(g.log, logLines)}
}

// gatewayError is a failure of one gateway.
type gatewayError struct{ name, what, log string }

func (e *gatewayError) Error() string {
	if e.log == "" {
		return fmt.Sprintf("gateway %s: %s; its log is empty", e.name, e.what)
	}
	return fmt.Sprintf("gateway %s: %s; the end of its log:\n%s", e.name, e.what, e.log)
}

// tail is the last lines of a file, indented.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "    (" + err.Error() + ")"
	}
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return ""
	}
	all := strings.Split(string(b), "\n")
	all = all[max(len(all)-lines, 0):]
	return "    " + strings.Join(all, "\n    ")
}

// waitReady waits until the gateway answers on its control socket.
func (g *gateway) waitReady(ctx context.Context) error {
	for end := time.Now().Add(startLimit); ; {
		s, err := g.client.Status()
		if err == nil && len(s.Links) > 0 {
			return nil
		}
		if time.Now().After(end) {
			return g.failure(fmt.Sprintf("not ready within %v", startLimit), err)
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func (p gateways) pids() []int { return []int{p[0].proc.Pid(), p[1].proc.Pid()} }

// spoken asks gateway A how it works.
func (p gateways) spoken() (setting, error) {
	s, err := p[0].client.Status()
	if err != nil {
		return setting{}, p[0].failure("no status", err)
	}
	return setting{s.Engine, s.Workers, s.TUN.MTU}, nil
}

// lost counts what the gateways have dropped so far, by their own causes.
func (p gateways) lost() (map[traffic.Point]uint64, error) {
	counts := map[traffic.Point]uint64{}
	for _, g := range p {
		s, err := g.client.Status()
		if err != nil {
			return nil, g.failure("no status", err)
		}
		for _, l := range s.Lanes {
			for cause, n := range l.Drops {
				counts[traffic.Point{Where: "gateway " + g.name, Cause: cause}] += n
			}
		}
	}
	return counts, nil
}

const idleLimit = 2 * time.Second

// books asks both gateways for their counters when nothing is in flight any more.
func (p gateways) books(ctx context.Context) ([]gatewayRow, error) {
	var rows []gatewayRow
	for _, g := range p {
		s, err := g.idle(ctx)
		if err != nil {
			return nil, err
		}
		row := gatewayRow{Name: g.name, Drops: map[string]uint64{}, Balanced: s.Balanced}
		for _, l := range s.Lanes {
			row.In += l.PacketsIn
			row.Out += l.PacketsOut
			for cause, n := range l.Drops {
				row.Drops[cause] += n
			}
		}
		if row.Kernel, err = g.kernelDrops(s.TUN.Name); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// idle waits until the lanes have nothing in flight and their books balance; if that does not come about it returns what there is.
func (g *gateway) idle(ctx context.Context) (control.Status, error) {
	for end := time.Now().Add(idleLimit); ; {
		s, err := g.client.Status()
		if err != nil {
			return s, g.failure("no status", err)
		}
		inFlight := uint64(0)
		for _, l := range s.Lanes {
			inFlight += l.InFlight
		}
		if s.Balanced && inFlight == 0 || time.Now().After(end) {
			return s, nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return s, err
		}
	}
}

// kernelDrops reads what the kernel dropped in front of the gateway.
func (g *gateway) kernelDrops(tun string) (kernelDrops, error) {
	link, err := g.ns.Netlink().LinkByName(tun)
	if err != nil {
		return kernelDrops{}, g.failure("its TUN "+tun, err)
	}
	d := kernelDrops{}
	if s := link.Attrs().Statistics; s != nil {
		d.TUN = s.TxDropped
	}
	d.Socket, err = traffic.SocketDrops(g.ns)
	return d, err
}

// stop ends both processes, and removes the guard that they leave standing: what comes next in these namespaces is not theirs.
func (p gateways) stop() error {
	var errs []error
	for _, g := range p {
		if g != nil && g.proc != nil {
			errs = append(errs, g.proc.Stop(), g.ns.Do(removeGuard))
		}
	}
	return errors.Join(errs...)
}

// logs are the ends of both logs, for an error that neither gateway can be blamed for alone.
func (p gateways) logs() string {
	var b strings.Builder
	for _, g := range p {
		if g != nil {
			fmt.Fprintf(&b, "\n  log of gateway %s:\n%s", g.name, tail(g.log, logLines))
		}
	}
	return b.String()
}

// sleep waits for d, or until ctx ends, whose cause it then returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// removeGuard takes away what a gateway leaves in the calling thread's network namespace.
func removeGuard() error {
	h, err := hostnet.Here()
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Remove()
}
