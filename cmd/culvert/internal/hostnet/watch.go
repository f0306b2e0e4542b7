package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNoTUN says that the TUN is gone. With it go its routes; they cannot be laid again before a new one is there.
var ErrNoTUN = errors.New("the TUN is gone")

// Missing says what the host should have by p and does not have, each as a short phrase; nothing if all is in place. An
// error that wraps ErrNoTUN says that there is no TUN of the plan's name.
func (h *Host) Missing(p Plan) ([]string, error) {
	l, err := h.tun(&p)
	if err != nil {
		return nil, err
	}
	var missing []string
	if l.Attrs().RawFlags&unix.IFF_UP == 0 {
		missing = append(missing, p.TUN+" up")
	}
	if len(p.Addresses) > 0 {
		addrs, err := whole(func() ([]netlink.Addr, error) { return h.nl.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", p.TUN, err)
		}
		for _, want := range p.Addresses {
			if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
				ip, _ := netip.AddrFromSlice(a.IP)
				ones, _ := a.Mask.Size()
				return ip.Unmap() == want.Addr() && ones == want.Bits()
			}) {
				missing = append(missing, fmt.Sprintf("address %v of %s", want, p.TUN))
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	more, err := h.missing(&p, l.Attrs().Index)
	return append(missing, more...), err
}

// MissingGuard says what of the guard the host does not have, whether a gateway runs or not.
func (h *Host) MissingGuard(p Plan) ([]string, error) {
	if !p.Guard {
		return nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.missing(&p, 0)
}

// missing compares rules and routes; tun 0 leaves the routes into the TUN out.
func (h *Host) missing(p *Plan, tun int) ([]string, error) {
	var missing []string
	routes, err := h.ourRoutes()
	if err != nil {
		return nil, err
	}
	haveRoutes := map[key]*netlink.Route{}
	for i := range routes {
		haveRoutes[routeKey(&routes[i])] = &routes[i]
	}
	selRoutes, selRules := h.selected(tun)
	for _, r := range append(p.routes(tun, h.sources()), selRoutes...) {
		kind := "route"
		if r.Type == unix.RTN_UNREACHABLE {
			kind = "guard route"
		}
		switch is := haveRoutes[routeKey(&r)]; {
		case is == nil:
			missing = append(missing, fmt.Sprintf("%s to %v", kind, r.Dst))
		case !sameRoute(is, &r):
			missing = append(missing, fmt.Sprintf("%s to %v with MTU %d%s (it has MTU %d%s)", kind, r.Dst, r.MTU, source(&r), is.MTU, source(is)))
		}
	}
	rules, err := h.ourRules()
	if err != nil {
		return nil, err
	}
	have := ruleKeys(rules)
	for _, r := range append(p.rules(), selRules...) {
		if !have[ruleKey(r)] {
			missing = append(missing, ruleText(r))
		}
	}
	return missing, nil
}

func source(r *netlink.Route) string {
	if len(r.Src) == 0 {
		return ""
	}
	return " and source " + r.Src.String()
}

func familyName(f int) string {
	if f == unix.AF_INET6 {
		return "IPv6"
	}
	return "IPv4"
}

// tun finds the plan's TUN.
func (h *Host) tun(p *Plan) (netlink.Link, error) {
	l, err := h.nl.LinkByName(p.TUN)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil, fmt.Errorf("%w: this host has no interface %s any more", ErrNoTUN, p.TUN)
	}
	if err != nil {
		return nil, fmt.Errorf("find the TUN %s: %w", p.TUN, err)
	}
	return l, nil
}

// Watcher tells when something that a plan laid may have been changed by others.
type Watcher struct {
	c    chan struct{}
	sock *nl.NetlinkSocket
	done chan struct{}
}

// Watch begins to watch the TUN's state, the host's addresses, our table and our rules. Plans are compared by the caller, with
// Missing, whenever Changed receives.
func (h *Host) Watch(tun string) (*Watcher, error) {
	l, err := h.nl.LinkByName(tun)
	if err != nil {
		return nil, fmt.Errorf("find the TUN %s: %w", tun, err)
	}
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return nil, fmt.Errorf("watch the host's routes: %w", err)
	}
	// So that the reader sees that it is to end.
	if err := s.SetReceiveTimeout(&unix.Timeval{Sec: 1}); err != nil {
		s.Close()
		return nil, fmt.Errorf("watch the host's routes: %w", err)
	}
	w := &Watcher{c: make(chan struct{}, 1), sock: s, done: make(chan struct{})}
	go w.read(l.Attrs().Index)
	return w, nil
}

// Changed receives after a change; many changes may be one.
func (w *Watcher) Changed() <-chan struct{} { return w.c }

// Close ends the watch.
func (w *Watcher) Close() { close(w.done) }

func (w *Watcher) read(tun int) {
	defer w.sock.Close()
	for {
		msgs, _, err := w.sock.Receive()
		select {
		case <-w.done:
			return
		default:
		}
		ours := errors.Is(err, unix.ENOBUFS) // messages were lost: anything may have changed
		if err != nil && !ours && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return
		}
		for i := range msgs {
			ours = ours || concerns(&msgs[i], tun)
		}
		if ours {
			select {
			case w.c <- struct{}{}:
			default:
			}
		}
	}
}

// concerns reports whether a message of rtnetlink is about something that a plan lays. Other routes of the host may change
// thousands of times a second. Addresses may be those of any interface: the kernel drops IPv4 routes whose source address goes, and
// does not say so.
func concerns(m *syscall.NetlinkMessage, tun int) bool {
	d := m.Data
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return len(d) >= unix.SizeofIfInfomsg && int(int32(binary.NativeEndian.Uint32(d[4:]))) == tun
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		table, ok := attr32(d, unix.SizeofRtMsg, unix.RTA_TABLE)
		return ok && (table == Table || table == PolicyTable || table == strongswanTable)
	case unix.RTM_DELRULE:
		return true // rare, and not all kernels say whose it was
	}
	return false
}

// strongswanTable is where strongSwan lays its own routes.
const strongswanTable = 220

// attr32 finds an attribute of 4 bytes behind the head of a message.
func attr32(d []byte, head int, typ uint16) (uint32, bool) {
	if len(d) < head {
		return 0, false
	}
	for d = d[head:]; len(d) >= unix.SizeofRtAttr; {
		n := int(binary.NativeEndian.Uint16(d))
		if n < unix.SizeofRtAttr || n > len(d) {
			return 0, false
		}
		if binary.NativeEndian.Uint16(d[2:]) == typ && n == unix.SizeofRtAttr+4 {
			return binary.NativeEndian.Uint32(d[4:]), true
		}
		d = d[min((n+3)&^3, len(d)):]
	}
	return 0, false
}

// List is everything of ours that the host has, each as `ip` would name it.
func (h *Host) List() ([]string, error) {
	rules, err := h.ourRules()
	if err != nil {
		return nil, err
	}
	routes, err := h.ourRoutes()
	if err != nil {
		return nil, err
	}
	var all []string
	for i := range rules {
		all = append(all, ruleText(&rules[i]))
	}
	for i := range routes {
		r := &routes[i]
		kind := map[int]string{unix.RTN_UNREACHABLE: "unreachable ", unix.RTN_THROW: "throw "}[r.Type]
		all = append(all, fmt.Sprintf("%sroute to %v in table %d", kind, r.Dst, r.Table))
	}
	return all, nil
}
