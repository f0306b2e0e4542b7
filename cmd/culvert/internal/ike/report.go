package ike

import (
	"cmp"
	"slices"

	"culvert/cmd/culvert/internal/control"
	"culvert/dataplane/link"
	"culvert/xfrm"
	"culvert/xfrm/server"
)

// Status is the IKE daemon's side of the gateway at this moment.
func (d *Daemon) Status() *control.IKE {
	s := &control.IKE{Socket: d.cfg.IKE.Socket, Clients: []control.IKEClient{}, Ports: []control.IKEPort{}}
	for _, c := range d.server.Clients() {
		s.Clients = append(s.Clients, control.IKEClient{
			Program: c.Peer().Comm, PID: c.Peer().PID, Port: c.Port(), Events: groups(c.Groups()), Lost: c.Overruns(),
		})
	}
	slices.SortFunc(s.Clients, func(a, b control.IKEClient) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Port, b.Port))
	})
	st := d.server.Stats()
	s.Requests, s.Refusals = st.Requests.Load(), st.Refusals.Load()
	s.Acquires, s.AcquiresLost = st.Acquires.Load(), st.AcquiresLost.Load()
	s.Mappings = st.Mappings.Load()
	s.Failures = d.super.Stats().Failures.Load()
	d.mu.Lock()
	for p := range d.ports {
		s.Ports = append(s.Ports, control.IKEPort{Address: p.Addr.String(), Program: p.Peer.Comm, PID: p.Peer.PID})
	}
	d.mu.Unlock()
	slices.SortFunc(s.Ports, func(a, b control.IKEPort) int { return cmp.Compare(a.Address, b.Address) })
	s.Routed, s.Refused = d.cfg.Host.Selections()
	if r := d.cfg.Host.RouteOfStrongSwan(); r != "" {
		s.Notice = "strongSwan lays routes of its own (" + r + "), which change nothing here: set install_routes = no in the section charon of strongswan.conf"
	}
	return s
}

// groups are the names of the events that a client gets.
func groups(bits uint32) []string {
	var names []string
	for _, g := range []struct {
		group uint32
		name  string
	}{
		{xfrm.GroupAcquire, "acquire"}, {xfrm.GroupExpire, "expire"}, {xfrm.GroupSA, "sa"}, {xfrm.GroupPolicy, "policy"},
		{xfrm.GroupAEvents, "aevents"}, {xfrm.GroupReport, "report"}, {xfrm.GroupMigrate, "migrate"}, {xfrm.GroupMapping, "mapping"},
	} {
		if bits&xfrm.GroupBit(g.group) != 0 {
			names = append(names, g.name)
		}
	}
	return names
}

// Outers are the links that are there because of the daemon.
func (d *Daemon) Outers() []link.Outer {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []link.Outer
	for _, o := range d.byID {
		all = append(all, o.link)
	}
	slices.SortFunc(all, func(a, b link.Outer) int {
		return cmp.Or(cmp.Compare(a.Name(), b.Name()), a.Local().Compare(b.Local()))
	})
	return all
}

// IsPolicy reports whether a policy of the data plane is an IKE daemon's, by its name.
func IsPolicy(name string) bool {
	_, ok := server.PolicyIndex(name)
	return ok
}
