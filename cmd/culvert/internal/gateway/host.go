package gateway

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"culvert/configs"
)

// tunDevice is what a TUN is made with; tests have others.
var tunDevice = "/dev/net/tun"

// privileges checks what the process must be allowed to. Another user may be the one who runs the gateway, but nobody is allowed
// more than root.
func (f *findings) privileges(cfg *configs.Config) {
	f.need(cfg, "tun", unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "for the TUN, routes and rules")
	for _, t := range cfg.Tunnels {
		if t.LinkIndex >= 0 && cfg.Links()[t.LinkIndex].Kind == configs.LinkESP {
			f.need(cfg, fmt.Sprintf("tunnel.%s.link", t.Name), unix.CAP_NET_RAW, "CAP_NET_RAW", "for ESP without UDP")
			break
		}
	}
}

func (f *findings) need(cfg *configs.Config, key string, bit int, name, why string) {
	switch {
	case capable(bit):
	case os.Geteuid() == 0:
		f.refuse(cfg, key, fmt.Sprintf("culvert run needs %s %s, which root does not have here", name, why), "let the container, or the service, have it", unix.EPERM)
	default:
		f.warn(cfg, key, fmt.Sprintf("culvert run needs %s %s, which user %d does not have; run it as root", name, why, os.Geteuid()))
	}
}

// capable reports whether the calling thread has a capability (capabilities(7)) in effect.
func capable(bit int) bool {
	var data [2]unix.CapUserData
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capget(&h, &data[0]) == nil && data[bit/32].Effective&(1<<(bit%32)) != 0
}

// tun checks that a TUN can be made.
func (f *findings) tun(cfg *configs.Config) {
	d, err := os.OpenFile(tunDevice, os.O_RDWR|unix.O_NONBLOCK, 0)
	switch {
	case err == nil:
		d.Close()
	case errors.Is(err, unix.EACCES) && os.Geteuid() != 0:
		f.warn(cfg, "tun", fmt.Sprintf("%s cannot be opened by user %d; run culvert as root", tunDevice, os.Geteuid()))
		return
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		f.refuse(cfg, "tun", fmt.Sprintf("this host has no TUN: %s: %v", tunDevice, reason(err)), "load the module tun (modprobe tun), or let the container have "+tunDevice, err)
		return
	default:
		f.refuse(cfg, "tun", fmt.Sprintf("%s cannot be opened: %v", tunDevice, reason(err)), "let the container, or the service, have "+tunDevice, err)
		return
	}
	if f.gateway != 0 {
		return // it may have the interface, and nobody else can be told from it
	}
	switch held, err := f.net.HeldTUN(cfg.Tun.Name); {
	case err != nil:
		f.add(err)
	case held:
		f.refuse(cfg, "tun.name", fmt.Sprintf("another program has the TUN %s", cfg.Tun.Name), "stop it, or choose another name", unix.EBUSY)
	}
}

// ports checks that nobody else has the tunnels' UDP ports; a gateway that runs here may have them.
func (f *findings) ports(cfg *configs.Config, ours map[netip.Addr]bool) {
	for _, l := range cfg.Links() {
		if l.Kind != configs.LinkUDP || !ours[l.Local.Addr()] {
			continue
		}
		network := "udp4"
		if l.Local.Addr().Is6() {
			network = "udp6"
		}
		c, err := new(net.ListenConfig).ListenPacket(context.Background(), network, l.Local.String())
		switch {
		case err == nil:
			c.Close()
		case errors.Is(err, unix.EADDRINUSE) && f.gatewayHas("udp", l.Local):
		case errors.Is(err, unix.EACCES) && os.Geteuid() != 0:
			i := slices.IndexFunc(cfg.Tunnels, func(t *configs.Tunnel) bool { return cfg.Links()[t.LinkIndex] == l })
			f.need(cfg, fmt.Sprintf("tunnel.%s.local", cfg.Tunnels[i].Name), unix.CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE", fmt.Sprintf("for the UDP port %d", l.Local.Port()))
		default:
			f.add(linkError(cfg, l, fmt.Errorf("%s cannot be opened: %w", l, reason(err))))
		}
	}
}

// metrics checks that the metrics can be served at their address; a gateway that runs here may have it.
func (f *findings) metrics(cfg *configs.Config) {
	host, port, err := net.SplitHostPort(cfg.Metrics.Listen)
	if err == nil {
		if f.reload {
			port = "0" // the old address is this gateway's own, and a new one needs a restart
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var ln net.Listener
		if ln, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, port)); err == nil {
			ln.Close()
			return
		}
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		at, perr := net.ResolveTCPAddr("tcp", cfg.Metrics.Listen)
		if perr == nil && f.gatewayHas("tcp", at.AddrPort()) {
			return
		}
		f.refuse(cfg, "metrics.listen", fmt.Sprintf("another program listens on %s", configs.Quote(cfg.Metrics.Listen)),
			`stop it (ss -tlnp), write a free port, or "" to switch the metrics off`, err)
	case errors.Is(err, unix.EACCES) && os.Geteuid() != 0:
		f.warn(cfg, "metrics.listen", fmt.Sprintf("user %d may not listen on %s; run culvert as root, or write a port of 1024 or more", os.Geteuid(), configs.Quote(cfg.Metrics.Listen)))
	default:
		f.refuse(cfg, "metrics.listen", fmt.Sprintf("this host cannot listen on %s: %v", configs.Quote(host), reason(err)),
			`write an address that it has, such as "127.0.0.1:9750", or "" to switch it off`, err)
	}
}

// gatewayHas reports whether a socket that is in the way of an address is that of the gateway which runs here. Where that cannot be
// told, as by users who may not look, it is believed to be.
func (f *findings) gatewayHas(proto string, at netip.AddrPort) bool {
	if f.gateway <= 0 {
		return f.gateway < 0
	}
	inodes := map[string]bool{}
	for _, table := range []string{proto, proto + "6"} {
		// Of this thread's network namespace, which need not be the process's.
		b, err := os.ReadFile("/proc/thread-self/net/" + table)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // without IPv6 there is no table of it
			return true
		}
		for line := range strings.Lines(string(b)) {
			if have, inode, ok := parseSocket(line); ok && have.Port() == at.Port() &&
				(have.Addr() == at.Addr().Unmap() || have.Addr().IsUnspecified() || at.Addr().IsUnspecified() || !at.Addr().IsValid()) {
				inodes["socket:["+inode+"]"] = true
			}
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd", f.gateway)
	open, err := os.ReadDir(dir)
	if err != nil {
		return true
	}
	for _, o := range open {
		if to, err := os.Readlink(filepath.Join(dir, o.Name())); err == nil && inodes[to] {
			return true
		}
	}
	return false
}

// parseSocket reads the local address and the inode of one line of /proc/net/udp, udp6, tcp or tcp6 (proc_net(5)).
func parseSocket(line string) (at netip.AddrPort, inode string, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return at, "", false
	}
	addr, port, _ := strings.Cut(fields[1], ":")
	b, err := hex.DecodeString(addr)
	n, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil || len(b)%4 != 0 {
		return at, "", false
	}
	for i := 0; i < len(b); i += 4 { // words of the machine's own byte order, printed as numbers
		w := uint32(b[i])<<24 | uint32(b[i+1])<<16 | uint32(b[i+2])<<8 | uint32(b[i+3])
		binary.NativeEndian.PutUint32(b[i:], w)
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), fields[9], ok
}
