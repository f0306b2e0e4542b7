package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"culvert/cmd/culvert/internal/hostnet"
	"culvert/configs"
	"culvert/offload"
	"culvert/sa"
)

// Check finds what a configuration asks for, though it is right in itself, and this program does not have; with host, also
// what this machine does not have: engines, addresses, directories, names that are taken. It changes nothing, and it is what
// Start does first, so that what it passes starts, if nothing changes in between. An error is a configs.Errors.
//
// What only a try shows is left to Start: that the other gateway which holds a lock, a socket or an interface has ended.
func Check(cfg *configs.Config, host bool) ([]configs.Warning, error) {
	var f findings
	if host {
		h, err := hostnet.Here()
		if err != nil {
			return nil, err
		}
		defer h.Close()
		f.net = h
	}
	f.program(cfg)
	if host && len(f.errs) == 0 {
		if _, err := selectEngine(offload.NewRegistry(Engines()...), cfg); err != nil {
			f.add(err)
		}
		f.host(cfg)
	}
	return f.warnings, f.err()
}

// findings are what Check has found so far.
type findings struct {
	net      *hostnet.Host // to look at, nil where only the program is checked
	errs     configs.Errors
	warnings []configs.Warning
}

func (f *findings) add(err error) {
	var one *configs.Error
	if !errors.As(err, &one) {
		one = &configs.Error{What: err.Error(), Class: configs.ErrValue}
	}
	f.errs = append(f.errs, one)
}

func (f *findings) refuse(cfg *configs.Config, key, what, mend string, cause error) {
	f.errs = append(f.errs, cfg.Refuse(key, what, mend, cause))
}

func (f *findings) warn(cfg *configs.Config, key, what string) {
	f.warnings = append(f.warnings, configs.Warning{Pos: cfg.Pos(key), Key: key, What: what})
}

func (f *findings) err() error {
	if len(f.errs) == 0 {
		return nil
	}
	return f.errs
}

// program checks what is the same on every machine.
func (f *findings) program(cfg *configs.Config) {
	if len(cfg.Tunnels) == 0 {
		f.refuse(cfg, "tunnel", "there is no tunnel", "add a [[tunnel]]; `culvert example` prints some", nil)
	}
	var names []string
	for _, e := range Engines() {
		names = append(names, e.Name())
	}
	if cfg.Engine != "" && !slices.Contains(names, cfg.Engine) {
		f.refuse(cfg, "engine", fmt.Sprintf("there is no engine %s", configs.Quote(cfg.Engine)),
			fmt.Sprintf(`write one of %s, or "" to have one chosen`, strings.Join(names, ", ")), nil)
	}
}

// host checks what depends on this machine, its engines aside. The running gateway asks it too, about a new configuration.
func (f *findings) host(cfg *configs.Config) {
	f.stateDir(cfg)
	switch kind, err := f.net.OtherInterface(cfg.Tun.Name); {
	case err != nil:
		f.add(err)
	case kind != "":
		f.refuse(cfg, "tun.name", fmt.Sprintf("this host has an interface %s already, which is no TUN (%s)", cfg.Tun.Name, kind), "choose a name that is free", nil)
	}
	ours := make(map[netip.Addr]bool)
	for _, t := range cfg.Tunnels {
		if ours[t.Local] {
			continue
		}
		if _, err := outerMTU(f.net, cfg, t); err != nil {
			f.add(err)
		} else {
			ours[t.Local] = true
		}
	}
	f.control(cfg)
	if cfg.Metrics.Listen != "" {
		f.listen(cfg)
	}
}

// stateDir checks that the marks can be written, and that they last.
func (f *findings) stateDir(cfg *configs.Config) {
	if cfg.StateDir == "" {
		return // package configs has refused it if it matters
	}
	f.writable(cfg, "state_dir", cfg.StateDir)
	kind, err := sa.VolatileDir(cfg.StateDir)
	if err != nil || kind == "" || cfg.StateDirVolatile {
		return // an error is one of writable's too
	}
	const disk = `write a directory on a disk, such as "/var/lib/culvert"`
	if i := slices.IndexFunc(cfg.Tunnels, func(t *configs.Tunnel) bool { return t.Transform.AEAD }); i >= 0 {
		t := cfg.Tunnels[i]
		f.refuse(cfg, "state_dir", fmt.Sprintf("%s is on a %s, which a reboot empties: tunnel %q would then use sequence numbers again with the same key, and %s reveals what it carries when that happens",
			cfg.StateDir, kind, t.Name, t.Transform.Name), disk+"; or state_dir_volatile = true, if the keys are new at each boot", nil)
		return
	}
	f.warn(cfg, "state_dir", fmt.Sprintf("%s is on a %s, which a reboot empties: the sequence numbers then begin at 1 again, and a peer whose SA is not new drops them as repeated; %s", cfg.StateDir, kind, disk))
}

// writable checks that a directory is there, or can be made, and can be written.
func (f *findings) writable(cfg *configs.Config, key, dir string) {
	at := dir
	for {
		st, err := os.Stat(at)
		if err == nil && !st.IsDir() {
			err = unix.ENOTDIR
		}
		if err == nil {
			err = unix.Faccessat(unix.AT_FDCWD, at, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
		}
		up := filepath.Dir(at)
		if errors.Is(err, unix.ENOENT) && up != at {
			at = up
			continue
		}
		if err == nil {
			return
		}
		f.notWritable(cfg, key, dir, at, err)
		return
	}
}

func (f *findings) notWritable(cfg *configs.Config, key, dir, at string, err error) {
	what := "the directory " + configs.Quote(dir)
	if at != dir {
		what += " cannot be made, because " + configs.Quote(at)
	}
	switch {
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		// Who runs the gateway may be another than who checks its configuration.
		f.warn(cfg, key, fmt.Sprintf("%s cannot be written by user %d; run culvert as root, or as the owner of the directory", what, os.Geteuid()))
		return
	case errors.Is(err, unix.ENOTDIR):
		f.refuse(cfg, key, what+": it, or what leads to it, is no directory", "choose another path", err)
	case errors.Is(err, unix.EROFS):
		f.refuse(cfg, key, what+" is on a file system that is read-only", "choose a directory that can be written", err)
	default:
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err // without the path once more
		}
		f.refuse(cfg, key, fmt.Sprintf("%s cannot be used: %v", what, err), "choose a directory that can be written", err)
	}
}

// control checks the place of the control socket.
func (f *findings) control(cfg *configs.Config) {
	if cfg.Control == "" {
		return
	}
	if st, err := os.Lstat(cfg.Control); err == nil && st.Mode()&fs.ModeSocket == 0 {
		f.refuse(cfg, "control", configs.Quote(cfg.Control)+" is there already, and is no socket", "remove it, or choose another path", nil)
		return
	}
	f.writable(cfg, "control", filepath.Dir(cfg.Control))
}

// listen checks the address that the metrics are to be served at, on a port that is free: theirs may be a running gateway's.
func (f *findings) listen(cfg *configs.Config) {
	host, _, err := net.SplitHostPort(cfg.Metrics.Listen)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var lc net.ListenConfig
		var ln net.Listener
		if ln, err = lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0")); err == nil {
			ln.Close()
			return
		}
	}
	f.refuse(cfg, "metrics.listen", fmt.Sprintf("this host cannot listen on %s: %v", configs.Quote(host), reason(err)),
		`write an address that it has, such as "127.0.0.1:9750", or "" to switch it off`, err)
}

// reason is the innermost of a chain of the net package's errors: the outer ones repeat the address.
func reason(err error) error {
	for {
		var op *net.OpError
		var sys *os.SyscallError
		switch {
		case errors.As(err, &op):
			err = op.Err
		case errors.As(err, &sys):
			err = sys.Err
		default:
			return err
		}
	}
}

// selectEngine takes the engine that the configuration names, or the first that was admitted for every transform in use.
func selectEngine(registry *offload.Registry, cfg *configs.Config) (offload.Engine, error) {
	names := []string{cfg.Engine}
	if cfg.Engine == "" {
		names = nil
		for _, e := range Engines() {
			names = append(names, e.Name())
		}
	}
	var why []string
next:
	for _, name := range names {
		var engine offload.Engine
		for _, t := range cfg.Tunnels {
			e, err := registry.Select(t.Transform, name)
			if err != nil {
				why = append(why, Plain(err))
				continue next
			}
			engine = e
		}
		return engine, nil
	}
	what := "no engine was admitted for all transforms in use: " + strings.Join(why, "; ")
	mend := "`culvert engines` lists what this machine has: use a transform that one of them has together with the others"
	if cfg.Engine != "" {
		what, mend = strings.Join(why, "; "), `write "" to have one chosen; `+"`culvert engines` lists what this machine has"
	}
	return nil, cfg.Refuse("engine", what, mend, offload.ErrNotAdmitted)
}
