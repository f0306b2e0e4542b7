package peers

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"culvert/test/lab"
)

// WireGuardPackage is the program behind WireGuard.
const WireGuardPackage = "culvert/test/peers/wireguard-go"

// What BuildWireGuard lacks. The text says what to do.
var (
	ErrToolchain = errors.New("wireguard-go is built from culvert's source tree, with the Go toolchain, and there is no go in PATH; sudo leaves it out: sudo env PATH=\"$PATH\" culvert …")
	ErrSource    = errors.New("wireguard-go is built from culvert's source tree: change into it, and start the demo there")
	ErrModules   = errors.New("the source of wireguard-go is not on this machine and could not be fetched; with a network, as the user who runs this: go mod download, in culvert's source tree")
)

// BuildWireGuard builds wireguard-go into dir and returns the path of the program. The working directory must lie in
// culvert's source tree.
func BuildWireGuard(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "wireguard-go")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, WireGuardPackage)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", buildError(err, strings.TrimSpace(stderr.String()))
	}
	return program, nil
}

// buildError says what is missing for a build, from what go said.
func buildError(err error, said string) error {
	if errors.Is(err, exec.ErrNotFound) {
		return ErrToolchain
	}
	why := fmt.Errorf("go build %s does not work here", WireGuardPackage)
	for _, w := range []struct {
		err   error
		signs []string
	}{
		{ErrSource, []string{"is not in std", "go.mod file not found", "cannot find main module"}},
		{ErrModules, []string{"dial tcp", "no such host", "proxyconnect", "i/o timeout", "TLS handshake", "module lookup disabled", "missing go.sum entry", "Forbidden", "Not Found", "Bad Gateway"}},
	} {
		if slices.ContainsFunc(w.signs, func(sign string) bool { return strings.Contains(said, sign) }) {
			why = w.err
			break
		}
	}
	return fmt.Errorf("%w\nwhat go says (%w):\n    %s", why, err, strings.ReplaceAll(said, "\n", "\n    "))
}

// WireGuard is a tunnel between the gateways of a row, by a pair of wireguard-go processes.
type WireGuard struct {
	Processes [2]*lab.Process // gateway A, gateway B
	logs      [2]string
}

const (
	wireGuardPort   = 51820
	wireGuardDevice = "wg0"
	startLimit      = 10 * time.Second
)

// StartWireGuard starts program on both gateways, with keys of its own, over the outer addresses of a family, and routes
// the LANs into the tunnel. mtu 0 is WireGuard's default.
func StartWireGuard(ctx context.Context, row *lab.Row, program string, outerV6 bool, mtu int) (*WireGuard, error) {
	if mtu == 0 {
		mtu = 1420 // what wg-quick chooses over a path of 1500
	}
	var private, public [2]string
	for i := range private {
		k, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		private[i], public[i] = hex.EncodeToString(k.Bytes()), hex.EncodeToString(k.PublicKey().Bytes())
	}
	w := &WireGuard{}
	for i, g := range [...]struct {
		ns     *lab.Namespace
		peer   netip.Addr
		remote []netip.Prefix
	}{
		{row.GatewayA, row.WanB.Addr(outerV6), lab.LANB[:]},
		{row.GatewayB, row.WanA.Addr(outerV6), lab.LANA[:]},
	} {
		var config strings.Builder
		fmt.Fprintf(&config, "private_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=%s\n", private[i], wireGuardPort, public[1-i], netip.AddrPortFrom(g.peer, wireGuardPort))
		for _, p := range g.remote {
			fmt.Fprintf(&config, "allowed_ip=%s\n", p)
		}
		w.logs[i] = filepath.Join(row.Dir(), "wireguard-go."+g.ns.Role()+".log")
		p, err := startOne(ctx, g.ns, program, mtu, config.String(), w.logs[i])
		if err != nil {
			return nil, errors.Join(err, w.Stop())
		}
		w.Processes[i] = p
		if err := route(g.ns, g.remote); err != nil {
			return nil, errors.Join(err, w.Stop())
		}
	}
	return w, nil
}

func startOne(ctx context.Context, ns *lab.Namespace, program string, mtu int, config, logPath string) (*lab.Process, error) {
	log, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	stdin, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, stdin.Close(), in.Close())
	}
	defer out.Close()
	cmd := exec.Command(program, "-name", wireGuardDevice, "-mtu", fmt.Sprint(mtu))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, log
	p, err := ns.Start(cmd)
	stdin.Close()
	stdout.Close()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	_, err = io.WriteString(in, config)
	if err := errors.Join(err, in.Close()); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	ready := make(chan bool, 1)
	go func() {
		b := make([]byte, len("ready\n"))
		_, err := io.ReadFull(out, b)
		ready <- err == nil
	}()
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	select {
	case ok := <-ready:
		if ok {
			return p, nil
		}
		err = errors.New("it ended before it was ready")
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-limit.C:
		err = fmt.Errorf("it was not ready within %v", startLimit)
	}
	stop := p.Stop()
	text, _ := os.ReadFile(logPath)
	return nil, errors.Join(fmt.Errorf("wireguard-go on %s: %w\n%s", ns.Role(), err, bytes.TrimSpace(text)), stop)
}

func route(ns *lab.Namespace, remote []netip.Prefix) error {
	link, err := ns.Netlink().LinkByName(wireGuardDevice)
	if err == nil {
		err = ns.Netlink().LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("%s on %s: %w", wireGuardDevice, ns.Role(), err)
	}
	for _, p := range remote {
		if err := ns.AddDeviceRoute(p, wireGuardDevice); err != nil {
			return err
		}
	}
	return nil
}

// Pids are the two processes.
func (w *WireGuard) Pids() []int { return []int{w.Processes[0].Pid(), w.Processes[1].Pid()} }

// Stop ends both processes; device and routes go with them.
func (w *WireGuard) Stop() error {
	var errs []error
	for _, p := range w.Processes {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}
