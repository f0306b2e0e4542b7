package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"culvert/cmd/culvert/internal/complete"
	"culvert/cmd/culvert/internal/early"
	"culvert/test/lab"
	"culvert/test/peers"
)

// Command is `culvert demo` of a version of culvert.
func Command(version string) *cobra.Command {
	o := &options{version: version}
	c := &cobra.Command{
		Use:   "demo",
		Short: "See it work: four namespaces, two gateways, a tunnel between them, measured",
		Long: `Build host A – gateway A – gateway B – host B out of network namespaces, start two culvert gateways with an ESP tunnel
between them, drive it with TCP, with small UDP packets and with echoes, and report what came through: goodput, packets
per second, latency, CPU time, and every drop by its cause.

It needs root and nothing else, takes about half a minute, and removes all that it made, also on ^C, after which the exit
status is 130. Nothing outside its own namespaces is touched. It is 1 if anything in the report could not be measured.`,
		Example: `  sudo culvert demo
  sudo culvert demo --transform 'rfc4106(gcm(aes))' --key-bits 256 --link esp --outer 6
  sudo culvert demo --wire --seconds 10 --json | jq .udp64
  sudo culvert demo --beside wireguard-go   # inside the source tree: it is built from there`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return run(c.Context(), o, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	o.flags(c.Flags())
	complete.Flag(c, "transform", complete.Transforms())
	complete.Flag(c, "key-bits", complete.KeyBits)
	complete.Flag(c, "link", complete.Fixed(linkKinds...))
	complete.Flag(c, "outer", complete.Fixed("4", "6"))
	complete.Flag(c, "inner", complete.Fixed("4", "6"))
	complete.List(c, "beside", complete.Fixed(besides...))
	complete.Flag(c, "engine", complete.Engines)
	complete.Nothing(c, "seconds", "workers")
	return c
}

var errLeft = errors.New("not all that the demo made could be removed")

func run(parent context.Context, o *options, out, status io.Writer) error {
	if err := usable(); err != nil {
		return err
	}
	if parent == nil {
		parent = context.Background()
	}
	// On any signal that would end the process everything is removed first.
	ctx, stop := early.Interruptible(parent, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer stop()
	// A reader of the progress or the report that went away is not to end the process either: the write fails instead.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, unix.SIGPIPE)
	defer signal.Stop(pipe)

	// The generator sleeps and sends on threads of its own, without telling the scheduler, which therefore needs some to spare.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(4, runtime.GOMAXPROCS(0))))

	p := newProgress(status)
	r, err := perform(ctx, p, o)
	p.end()
	if err != nil {
		if ctx.Err() == nil {
			return err
		}
		if errors.Is(err, errLeft) {
			return &interrupted{context.Cause(ctx), err.Error()}
		}
		return &interrupted{context.Cause(ctx), "the demo's namespaces, processes and files are removed"}
	}
	text := []byte(report(r))
	if o.json {
		if text, err = document(r); err != nil {
			return err
		}
	}
	if _, err := out.Write(text); err != nil {
		return err
	}
	if missing := r.shortfalls(); len(missing) > 0 {
		return fmt.Errorf("not all could be measured; the rest of the report holds:\n%s", strings.Join(missing, "\n"))
	}
	return nil
}

// interrupted is a demo's end before its time, which wraps the cause.
type interrupted struct {
	cause error
	what  string
}

func (e *interrupted) Error() string { return "interrupted: " + e.what }
func (e *interrupted) Unwrap() error { return e.cause }

// usable says what is missing on this machine, and how to mend it.
func usable() error {
	if err := lab.Usable(); err != nil {
		return fmt.Errorf("the demo cannot run: %w", err)
	}
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("the demo cannot run: no /dev/net/tun: load the kernel module (modprobe tun), or in a container add the device (--device /dev/net/tun): %w", err)
	default:
		return fmt.Errorf("the demo cannot run: the gateways need /dev/net/tun: %w", err)
	}
}

// perform builds the row, runs everything in it, and removes it whatever happens.
func perform(ctx context.Context, p *progress, o *options) (r *result, err error) {
	p.step("four namespaces: host A – gateway A – gateway B – host B")
	row, err := lab.NewRow(rowOptions(o))
	if err != nil {
		return nil, err
	}
	defer func() {
		p.step("removing namespaces, processes and files")
		if cerr := row.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", errLeft, cerr))
			return
		}
		p.done("done")
		if r != nil {
			r.Total = round(p.elapsed().Seconds(), 1)
		}
	}()
	p.done(row.ID() + "-*")
	r = &result{
		Version: o.version, Transform: o.transform.Name, KeyBits: o.transform.KeyBits, ICVBits: 8 * o.transform.ICVLen,
		Link: o.link, Outer: o.outer, Inner: o.inner, Wire: o.wire, Seconds: o.seconds,
		Machine: thisMachine(), addrs: rowAddresses(row, o),
	}
	// First of all what may turn out not to be possible.
	var program string
	if slices.Contains(o.besideNames, besideWireGuard) {
		p.step("building wireguard-go")
		if program, err = peers.BuildWireGuard(ctx, row.Dir()); err != nil {
			return nil, fmt.Errorf("--beside %s: %w", besideWireGuard, err)
		}
		p.done("built")
	}
	if err := r.measureCulvert(ctx, p, row, o); err != nil {
		return nil, err
	}
	for _, name := range o.besideNames {
		b, err := measureBeside(ctx, p, row, o, name, program)
		if err != nil {
			return nil, fmt.Errorf("beside %s: %w", name, err)
		}
		b.Ratio = newRatio(r, b)
		r.Beside = append(r.Beside, *b)
	}
	return r, nil
}

func rowOptions(o *options) lab.RowOptions {
	families := map[int]lab.Families{4: lab.V4, 6: lab.V6}
	ro := lab.RowOptions{Inner: families[o.inner], Outer: families[o.outer], Wire: o.wire}
	for _, b := range o.besideNames {
		if b == besidePlain {
			ro.Outer |= ro.Inner // without a tunnel the outer link carries the inner family
		}
	}
	return ro
}

func (r *result) measureCulvert(parent context.Context, p *progress, row *lab.Row, o *options) (err error) {
	ctx, cancel := context.WithCancelCause(parent)
	p.step("two culvert gateways")
	pair, err := startGateways(ctx, cancel, row, o)
	defer func() {
		cancel(nil) // from here on the gateways may end
		err = errors.Join(err, pair.stop())
	}()
	if err != nil {
		return err
	}
	if r.setting, err = pair.spoken(); err != nil {
		return err
	}
	p.done("ready")
	m, err := measure(ctx, p, row, o, pair.pids(), pair.lost)
	if ctx.Err() != nil {
		return context.Cause(ctx) // a gateway that died, or a signal, rather than what that broke
	}
	if err != nil {
		return fmt.Errorf("%w%s", err, pair.logs())
	}
	r.TCP, r.UDP, r.Latency, r.Machine.Others = m.tcp, m.udp, m.latency, m.others
	p.step("the gateways' books")
	if r.Gateways, err = pair.books(ctx); err != nil {
		return err
	}
	p.done(balanceWord(r.Gateways))
	return nil
}

// measureBeside measures another way between the same hosts. program is wireguard-go.
func measureBeside(ctx context.Context, p *progress, row *lab.Row, o *options, name, program string) (b *besideRow, err error) {
	if err := row.ForgetPaths(); err != nil {
		return nil, err
	}
	var pids []int
	var stop func() error
	switch name {
	case besidePlain:
		p.step("plain routing, no tunnel")
		if err := row.RoutePlainly(); err != nil {
			return nil, err
		}
		stop = row.UnroutePlainly
	case besideWireGuard:
		p.step("two wireguard-go gateways")
		wg, err := peers.StartWireGuard(ctx, row, program, o.outer6(), 0)
		if err != nil {
			return nil, err
		}
		pids, stop = wg.Pids(), wg.Stop
	}
	defer func() { err = errors.Join(err, stop()) }()
	p.done("ready")
	m, err := measure(ctx, p, row, o, pids)
	if err != nil {
		return nil, err
	}
	return &besideRow{Name: name, TCP: m.tcp, UDP: m.udp, Latency: m.latency}, nil
}
