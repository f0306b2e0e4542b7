package divert

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/xfrm/server"
)

// store keeps descriptors as systemd does: as duplicates, by name.
type store struct {
	mu   sync.Mutex
	kept map[string]Kept
}

func (s *store) Keep(k Kept) {
	fd, err := unix.FcntlInt(k.File.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.kept[k.Name]; ok {
		old.File.Close()
	}
	s.kept[k.Name] = Kept{k.Name, os.NewFile(uintptr(fd), k.Name), k.State}
}

func (s *store) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.kept[name]; ok {
		k.File.Close()
		delete(s.kept, name)
	}
}

// take gives what is kept, as a restarted service gets it.
func (s *store) take(tb testing.TB) []Kept {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Kept
	for _, k := range s.kept {
		fd, err := unix.FcntlInt(k.File.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, Kept{k.Name, os.NewFile(uintptr(fd), k.Name), k.State})
	}
	return all
}

func (s *store) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.kept))
}

// A gateway is closed and another one takes over its descriptors, once by Export and once from a keeper: the IKE daemons that it has notice
// nothing. Their SAs are listed, they rekey, and their ports' ESP goes to the new one.
func TestStrongSwanOverRestart(t *testing.T) {
	cs := pairOfCharons(t, "yes")
	kept := &store{kept: map[string]Kept{}}
	restart := func(c *charon, k Keeper, all func() []Kept) {
		t.Helper()
		var saved bytes.Buffer
		if err := c.sink.Save(&saved); err != nil {
			t.Fatal(err)
		}
		descriptors := all()
		c.l.Close()
		c.sup.Close()
		c.sink.Server.Close()
		// The data plane and its SAs are a new one's.
		c.sink = newSink(c.newServer())
		if err := c.sink.Restore(&saved); err != nil {
			t.Fatal(err)
		}
		c.start(k)
		if err := c.sup.Adopt(descriptors); err != nil {
			t.Fatalf("%v", err)
		}
	}
	// From the beginning, the first host's gateway has a keeper.
	c := cs[0]
	c.l.Close()
	c.sup.Close()
	c.start(kept)
	for _, c := range cs {
		c.startDaemon("")
	}
	cs[0].must("--initiate", "--child", "net")
	if names := strings.Join(kept.names(), " "); strings.Count(names, keptClient) != 2 || strings.Count(names, keptFilter) != 1 || strings.Count(names, keptPort) != 2 {
		t.Errorf("kept: %s", names)
	}
	restart(cs[0], kept, func() []Kept { return kept.take(t) })
	restart(cs[1], nil, func() []Kept {
		all, err := cs[1].sup.Export()
		if err != nil {
			t.Fatal(err)
		}
		return all
	})
	for _, c := range cs {
		if n := len(c.sink.shared()); n != 2 {
			t.Errorf("%s: %d ports are shared, want 2", c.prog, n)
		}
		if sas, policies := c.counts(); sas != 2 || policies != 3 {
			t.Errorf("%s: %d SAs, %d policies", c.prog, sas, policies)
		}
	}
	for _, c := range cs {
		before := [2]string{cs[0].installed(), cs[1].installed()}
		c.must("--rekey", "--child", "net")
		for k, c := range cs {
			eventually(t, "another CHILD_SA is installed", func() bool { s := c.installed(); return s != "" && s != before[k] })
		}
	}
	var groups uint32
	for _, c := range cs[0].sink.Clients() {
		groups |= c.Groups()
	}
	if groups == 0 {
		t.Error("nobody is in a group any more")
	}
	dial(t, cs[1].ns, "192.0.2.1:4500").Write(esp(7))
	if d := <-cs[0].sink.got; !bytes.Equal(d.b, esp(7)) {
		t.Errorf("the gateway got % x", d.b)
	}
	for _, c := range cs {
		c.stop(syscall.SIGTERM)
		eventually(t, "nothing is left of "+c.prog, func() bool { return c.sup.quiet() && len(c.sink.Clients()) == 0 && len(c.sink.shared()) == 0 })
	}
	eventually(t, "nothing is kept", func() bool { return len(kept.names()) == 0 })
}

// A gateway that saves nothing, as one that is killed, has in what is kept what its clients' sockets were: groups, port and options.
func TestKeptSockets(t *testing.T) {
	kept := &store{kept: map[string]Kept{}}
	r := newRig(t, server.Config{})
	r.l.Close()
	r.sup.Close()
	r.start(kept)
	mon := r.command("plain", "ip", "xfrm", "monitor")
	if err := mon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { mon.Process.Kill(); mon.Wait() }()
	is := func() (groups, port uint32) {
		if c := r.sink.Clients(); len(c) == 1 {
			return c[0].Groups(), c[0].Port()
		}
		return 0, 0
	}
	eventually(t, "ip xfrm monitor joins groups", func() bool { g, _ := is(); return g != 0 })
	eventually(t, "that is kept", func() bool {
		kept.mu.Lock()
		defer kept.mu.Unlock()
		for name, k := range kept.kept {
			if st, err := parseState(k.State); err == nil && strings.HasPrefix(name, keptClient) && st.Groups != 0 {
				return true
			}
		}
		return false
	})
	groups, port := is()
	all := kept.take(t)
	r.l.Close()
	r.sup.Close()
	r.sink.Server.Close()
	s := server.New(server.Config{})
	t.Cleanup(s.Close)
	r.sink = newSink(s)
	r.start(kept)
	if err := r.sup.Adopt(all); err != nil {
		t.Fatal(err)
	}
	if g, p := is(); g != groups || p != port {
		t.Errorf("groups %#x and port %d, before %#x and %d", g, p, groups, port)
	}
	mon.Process.Kill()
	mon.Wait()
	eventually(t, "nothing is kept", func() bool { return len(kept.names()) == 0 && r.sup.quiet() })
}

// What cannot be adopted is named, and the rest is.
func TestAdoptRefuses(t *testing.T) {
	r := newRig(t, server.Config{})
	null := func(name, state string) Kept {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		return Kept{name, f, []byte(state)}
	}
	err := r.sup.Adopt([]Kept{
		null("divert-filter-1", `{"version":1,"filter":1}`),
		null("divert-filter-2", `{"version":7,"filter":2}`),
		null("divert-filter-3", `nothing`),
		null("divert-client-4", `{"version":1,"filter":9}`),
		null("other", ""),
	})
	if err == nil {
		t.Fatal("all was adopted")
	}
	for _, want := range []string{"divert-filter-1: not a seccomp listener", "has version 7, and 1 is known", "divert-filter-3: the state of", "divert-client-4: its program's filter has not been kept", "other: not a descriptor of a supervisor"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not in the error: %q\n%v", want, err)
		}
	}
	if !r.sup.quiet() {
		t.Error("something was adopted")
	}
}
