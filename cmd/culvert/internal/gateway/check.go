package gateway

import (
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

	"culvert/cmd/culvert/internal/control"
	"culvert/cmd/culvert/internal/hostnet"
	"culvert/configs"
	"culvert/offload"
	"culvert/sa"
)

// Check finds what a configuration asks for, though it is right in itself, and this program does not have; with host, also
// what this machine does not have: engines, addresses, directories, names that are taken. It changes nothing, and it is what
// Start does first, so that what it passes starts for root, if nothing changes in between and the gateway that runs here has been
// stopped. A warning is what depends on who runs it. An error is a configs.Errors.
//
// What only a try shows is left to Start: that a gateway in another network namespace has left the state directory, and that the
// kernel takes every route.
func Check(cfg *configs.Config, host bool) ([]configs.Warning, error) {
	var f findings
	if host {
		h, err := hostnet.Here()
		if err != nil {
			return nil, err
		}
		defer h.Close()
		f.net, f.gateway = h, hostnet.OwnedBy()
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
	gateway  int           // the process that runs a gateway here already, as of hostnet.OwnedBy
	reload   bool          // the running gateway asks, about a new configuration
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
	if len(cfg.Tunnels) == 0 && !cfg.IKE.Enabled {
		f.refuse(cfg, "tunnel", "there is no tunnel", "add a [[tunnel]], or an [ike] with enabled = true; `culvert example` prints some", nil)
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

// host checks what depends on this machine, its engines aside.
func (f *findings) host(cfg *configs.Config) {
	f.stateDir(cfg)
	switch kind, err := f.net.OtherInterface(cfg.Tun.Name); {
	case err != nil:
		f.add(err)
	case kind != "":
		f.refuse(cfg, "tun.name", fmt.Sprintf("this host has an interface %s already, which is no TUN (%s)", cfg.Tun.Name, kind), "choose a name that is free", nil)
	}
	ours, interfaces := make(map[netip.Addr]bool), f.net.InterfaceMTUs()
	for _, t := range cfg.Tunnels {
		if ours[t.Local] {
			continue
		}
		if _, err := outerMTU(interfaces, cfg, t); err != nil {
			f.add(err)
		} else {
			ours[t.Local] = true
		}
	}
	f.localSubnets(cfg)
	f.control(cfg)
	if cfg.IKE.Enabled {
		f.socket(cfg, "ike.socket", cfg.IKE.Socket)
		f.writable(cfg, "ike.state_dir", cfg.IKE.StateDir)
	}
	if cfg.Metrics.Listen != "" {
		f.metrics(cfg)
	}
	if !f.reload {
		f.privileges(cfg)
		f.tun(cfg)
		f.ports(cfg, ours)
	}
}

// localSubnets looks for the routes by which what comes from a tunnel leaves.
func (f *findings) localSubnets(cfg *configs.Config) {
	if !cfg.Guard.Enabled || cfg.Guard.LocalByDefault {
		return
	}
	looked := map[netip.Prefix]bool{}
	for _, p := range cfg.Policies {
		l := p.Sel.Src.Masked()
		if p.Action != sa.Protect || p.Dir != sa.Out || l.Bits() == 0 || looked[l] {
			continue
		}
		looked[l] = true
		switch routed, err := f.net.Routed(l); {
		case err != nil:
			f.add(err)
		case !routed && !f.net.Has(l):
			f.warn(cfg, fmt.Sprintf("tunnel.%s.local_subnets", p.Tunnel), fmt.Sprintf("no route but the default one leads to %v, and the guard lets nothing from a tunnel leave by that: "+
				"give this host a route to it, or, if the LAN is behind the default route, set local_by_default_route = true in [guard]", l))
		}
	}
}

// stateDir checks that the marks can be written, and that they last.
func (f *findings) stateDir(cfg *configs.Config) {
	if cfg.StateDir == "" {
		return // package configs has refused it if it matters
	}
	f.writable(cfg, "state_dir", cfg.StateDir)
	f.marks(cfg)
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

// marks checks that the sequence marks can be believed.
func (f *findings) marks(cfg *configs.Config) {
	err := sa.CheckStore(cfg.StateDir)
	for range 3 {
		if f.gateway == 0 || !errors.Is(err, sa.ErrStoreCorrupt) {
			break
		}
		time.Sleep(10 * time.Millisecond) // it may just be writing
		err = sa.CheckStore(cfg.StateDir)
	}
	switch {
	case err == nil, f.reload, errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EROFS): // the directory's, and told
	case errors.Is(err, unix.EACCES) && os.Geteuid() != 0: // the same
	case errors.Is(err, sa.ErrStoreExposed) && os.Geteuid() != 0:
		f.warn(cfg, "state_dir", Plain(err)) // whose it must be depends on who runs the gateway
	default:
		f.refuse(cfg, "state_dir", Plain(err), storeMend(err), err)
	}
}

// pseudoFS are file systems in which the kernel alone makes files, whatever access(2) says, by what statfs(2) calls them.
var pseudoFS = map[uint32]string{
	unix.PROC_SUPER_MAGIC: "proc", unix.SYSFS_MAGIC: "sysfs", unix.CGROUP_SUPER_MAGIC: "cgroup", unix.CGROUP2_SUPER_MAGIC: "cgroup2",
	unix.DEVPTS_SUPER_MAGIC: "devpts", unix.DEBUGFS_MAGIC: "debugfs", unix.TRACEFS_MAGIC: "tracefs", unix.SECURITYFS_MAGIC: "securityfs",
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
		var sfs unix.Statfs_t
		if err == nil && unix.Statfs(at, &sfs) == nil && pseudoFS[uint32(sfs.Type)] != "" {
			f.refuse(cfg, key, fmt.Sprintf("%s is on a file system of the kernel's own (%s), where nobody can make a file", configs.Quote(dir), pseudoFS[uint32(sfs.Type)]), "choose a directory that can be written", nil)
			return
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
	if cfg.Control != "" {
		f.socket(cfg, "control", cfg.Control)
	}
}

func (f *findings) socket(cfg *configs.Config, key, path string) {
	if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSocket == 0 {
		f.refuse(cfg, key, configs.Quote(path)+" is there already, and is no socket", "remove it, or choose another path", nil)
		return
	}
	had := len(f.errs)
	f.writable(cfg, key, filepath.Dir(path))
	if len(f.errs) == had && !f.reload && f.gateway == 0 {
		if err := control.Taken(path); err != nil {
			f.refuse(cfg, key, err.Error(), "", err)
		}
	}
}

// reason is the innermost of a chain of the net and os packages' errors: the outer ones repeat the address or the path.
func reason(err error) error {
	for {
		var op *net.OpError
		var sys *os.SyscallError
		var path *fs.PathError
		switch {
		case errors.As(err, &op):
			err = op.Err
		case errors.As(err, &sys):
			err = sys.Err
		case errors.As(err, &path):
			err = path.Err
		default:
			return err
		}
	}
}

// transforms are those in use. An IKE daemon may use any, unless an engine is named, which then decides what the daemon can have.
func transforms(registry *offload.Registry, cfg *configs.Config) []*offload.Transform {
	var all []*offload.Transform
	for _, t := range cfg.Tunnels {
		all = append(all, t.Transform)
	}
	if !cfg.IKE.Enabled || cfg.Engine != "" && len(all) > 0 {
		return all
	}
	for _, t := range offload.Transforms() {
		if cfg.Engine != "" {
			if _, err := registry.Select(t, cfg.Engine); err == nil {
				return append(all, t)
			}
		} else if !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
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
		for _, t := range transforms(registry, cfg) {
			e, err := registry.Select(t, name)
			if err != nil {
				why = append(why, Plain(err))
				continue next
			}
			engine = e
		}
		if engine != nil {
			return engine, nil
		}
		why = append(why, name+" was admitted for no transform")
	}
	what := "no engine was admitted for all transforms in use: " + strings.Join(why, "; ")
	mend := "`culvert engines` lists what this machine has: use a transform that one of them has together with the others"
	if cfg.Engine != "" {
		what, mend = strings.Join(why, "; "), `write "" to have one chosen; `+"`culvert engines` lists what this machine has"
	}
	return nil, cfg.Refuse("engine", what, mend, offload.ErrNotAdmitted)
}
