package gateway

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"culvert/cmd/culvert/internal/hostnet"
)

// ip runs ip(8) in the namespace of the test's thread.
func ip(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
	return string(out)
}

// laid is all of the host's rules and of culvert's table.
func laid(t *testing.T) string {
	t.Helper()
	s := ip(t, "-4 rule") + ip(t, "-6 rule")
	for _, family := range []string{"-4", "-6"} {
		out, _ := exec.Command("ip", family, "route", "show", "table", "4303").Output() // an error says that there is none
		s += string(out)
	}
	return s
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it is not so that %s", what)
		}
	}
}

func started(t *testing.T, text string) *Gateway {
	t.Helper()
	g, err := Start(load(t, text), slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// The kernel drops IPv4 routes without a word when their source address goes, as when a LAN interface is configured anew: the route
// is laid again, first without the address, and with it when that is back.
func TestSourceAddressComesAndGoes(t *testing.T) {
	host(t)
	ip(t, "addr add 10.1.0.1/24 dev out0")
	g := started(t, document(t.TempDir(), true))
	route := func() string { return ip(t, "route show table 4303 10.2.0.0/24 dev culvert0") }
	if s := route(); !strings.Contains(s, "src 10.1.0.1") {
		t.Fatalf("at the start: %q", s)
	}
	ip(t, "addr del 10.1.0.1/24 dev out0")
	waitFor(t, "the route is laid without the address", func() bool { s := route(); return s != "" && !strings.Contains(s, "src 10.1.0.1") })
	ip(t, "addr add 10.1.0.1/24 dev out0")
	waitFor(t, "the route has the address again", func() bool { return strings.Contains(route(), "src 10.1.0.1") })
	waitFor(t, "the status says that all is in place", func() bool { return g.Status().Host.InPlace })
}

// A route that somebody laid over ours with another MTU is not ours: packets that are too long for the tunnel would go into it.
func TestMTUIsKept(t *testing.T) {
	host(t)
	g := started(t, document(t.TempDir(), true))
	ip(t, "route replace 10.2.0.0/24 dev culvert0 metric 1 proto 143 mtu 1500 table 4303")
	waitFor(t, "the route has the tunnel's MTU again", func() bool {
		return strings.Contains(ip(t, "route show table 4303 10.2.0.0/24 dev culvert0"), "mtu 1438")
	})
	if s := g.Status().Host; s.Restored == 0 {
		t.Errorf("the status says %+v", s)
	}
}

// The source address may be one of the TUN's own, which it does not have before the gateway gives it.
func TestSourceOnTheTUN(t *testing.T) {
	host(t)
	text := strings.Replace(document(t.TempDir(), true), `tun = {name = "culvert0"}`, `tun = {name = "culvert0", addresses = ["10.1.0.1/32"]}`, 1)
	started(t, text)
	if s := ip(t, "route show table 4303 10.2.0.0/24 dev culvert0"); !strings.Contains(s, "src 10.1.0.1") {
		t.Errorf("the route is %q", s)
	}
}

// One thing that cannot be laid does not keep the guard from being laid again, and is tried again until it can be.
func TestRestoreGoesOn(t *testing.T) {
	host(t)
	g := started(t, document(t.TempDir(), true))
	g.mu.Lock()
	g.cfg.Tun.Addresses = []netip.Prefix{netip.MustParsePrefix("ff02::1/128")} // which the kernel gives to no interface
	g.mu.Unlock()
	ip(t, "rule del pref 204")
	waitFor(t, "the guard is laid", func() bool { return strings.Contains(ip(t, "rule"), "blackhole") })
	waitFor(t, "the status says what cannot be laid", func() bool { s := g.Status().Host; return !s.InPlace && strings.Contains(s.Problem, "ff02::1") })
	g.mu.Lock()
	g.cfg.Tun.Addresses = nil
	g.mu.Unlock()
	// Nothing changes on the host now: the gateway tries by itself.
	waitFor(t, "all is in place", func() bool { s := g.Status().Host; return s.InPlace && s.Problem == "" })
}

// A start that fails as late as can be, when the kernel refuses one of the TUN's addresses, leaves the rules and routes as they were:
// on a host without any, and on one with the guard of an earlier gateway of another configuration.
func TestLateFailureChangesNothing(t *testing.T) {
	host(t)
	for _, before := range []string{"nothing", "an earlier guard"} {
		if before != "nothing" {
			startAndStop(t, strings.ReplaceAll(document(t.TempDir(), true), "10.2.0.0/24", "10.7.0.0/16"))
		}
		want := laid(t)
		cfg := load(t, document(t.TempDir(), true))
		cfg.Tun.Addresses = []netip.Prefix{netip.MustParsePrefix("ff02::1/128")}
		g, err := Start(cfg, slog.New(slog.DiscardHandler), new(slog.LevelVar), "test")
		if err == nil {
			g.Stop()
			t.Fatal("it started")
		}
		if !strings.Contains(err.Error(), "ff02::1") {
			t.Errorf("the error is %v", err)
		}
		if got := laid(t); got != want {
			t.Errorf("%s: before\n%s\nafter\n%s", before, want, got)
		}
	}
}

// Against somebody who takes away again and again, what is missing is laid again each time, at a bounded rate, and ends in place.
func TestFight(t *testing.T) {
	host(t)
	var log strings.Builder
	g, err := Start(load(t, document(t.TempDir(), true)), slog.New(slog.NewTextHandler(&log, nil)), new(slog.LevelVar), "test")
	if err != nil {
		t.Fatal(err)
	}
	const length = 3 * time.Second
	for end := time.Now().Add(length); time.Now().Before(end); {
		exec.Command("ip", "rule", "del", "pref", "204").Run() // an error says that it is not there yet
	}
	waitFor(t, "in the end all is in place", func() bool { return g.Status().Host.InPlace })
	n := g.Status().Host.Restored
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	if most := uint64(length/restoreEvery) + 2; n < 3 || n > most {
		t.Errorf("restored %d times in %v, want 3 to %d", n, length, most)
	}
	if said := strings.Count(log.String(), "in place again"); said != 1 {
		t.Errorf("the log says so %d times: %s", said, fmt.Sprint(log.String()))
	}
}

// A gateway that stops takes its TUN away, and with it its routes: that is nobody's doing, and is neither mended nor told.
func TestStoppingMendsNothing(t *testing.T) {
	host(t)
	dir := t.TempDir()
	var said strings.Builder
	g, err := Start(config(t, dir, keys("1")), slog.New(slog.NewTextHandler(&said, nil)), new(slog.LevelVar), "test")
	if err != nil {
		t.Fatal(err)
	}
	again, err := hostnet.Here()
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}
	g.net = again
	said.Reset()
	if gone, failed := g.restoreNow(time.Now()); gone || failed || g.host.problem != nil || said.Len() > 0 {
		t.Errorf("gone %v, failed %v, problem %v: %s", gone, failed, g.host.problem, said.String())
	}
}
