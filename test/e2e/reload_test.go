package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"culvert/test/lab"
)

// SIGHUP brings a new tunnel up while the old one goes on with its numbers, counters and window; a file with a mistake changes nothing,
// and the log says where the mistake is; a tunnel that is gone from the file carries nothing any more.
func TestReload(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	first := tunnel{name: "first", link: "udp", transform: cbcSHA256, spi: 0xc0003000, left: lab.LANA[:1], right: lab.LANB[:1]}
	second := tunnel{name: "second", link: "udp", transform: gcm, spi: 0xc0003100, left: lab.LANA[:1], right: []netip.Prefix{netip.MustParsePrefix("10.2.1.7/32")}}
	to := second.right[0].Addr()
	addAddress(t, w.EthB, w.LanB, second.right[0])
	must(t, w.HostA, "ip", "route", "add", to.String(), "via", w.LanA.Addr(false).String())
	must(t, w.GatewayB, "ip", "route", "add", to.String(), "dev", lab.LANDevice)

	w.configure("", first)
	w.start()
	reload := func(g *gateway, says string) {
		t.Helper()
		had := strings.Count(g.log(), says)
		g.signal(syscall.SIGHUP)
		g.until(fmt.Sprintf("the log says %q", says), func() bool { return strings.Count(g.log(), says) > had })
	}
	ping(t, w.HostA, w.EthB.Addr(false), 10)
	if out, err := output(t, w.HostA, "ping", "-n", "-c", "1", "-W", "1", to.String()); err == nil {
		t.Fatalf("the second network answers without its tunnel: %s", out)
	}
	before := w.a.association("first", "out")
	pid := w.a.status().PID

	// A second tunnel.
	w.configure("", first, second)
	reload(w.a, "configuration loaded")
	reload(w.b, "configuration loaded")
	ping(t, w.HostA, to, 10)
	ping(t, w.HostA, w.EthB.Addr(false), 10)
	after := w.a.association("first", "out")
	if after.Sequence != before.Sequence+10 || after.Packets != before.Packets+10 {
		t.Errorf("the first tunnel went from %+v to %+v: it was not left alone", before, after)
	}
	if n := w.a.association("second", "out").Packets; n != 10 {
		t.Errorf("the second tunnel carried %d packets, want 10", n)
	}
	if s := w.a.status(); s.PID != pid || s.Tunnels != 2 {
		t.Errorf("pid %d with %d tunnels, want %d with 2", s.PID, s.Tunnels, pid)
	}

	// A file with a mistake.
	good, err := os.ReadFile(w.a.config)
	if err != nil {
		t.Fatal(err)
	}
	bad := strings.Replace(string(good), "transform = ", "transfrom = ", 1)
	if err := os.WriteFile(w.a.config, []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	line := 1 + strings.Count(bad[:strings.Index(bad, "transfrom")], "\n")
	reload(w.a, fmt.Sprintf("%s:%d:", w.a.config, line))
	if !strings.Contains(w.a.log(), "transfrom") {
		t.Errorf("the log does not name the key: %s", w.a.log())
	}
	ping(t, w.HostA, to, 5)
	ping(t, w.HostA, w.EthB.Addr(false), 5)
	if got := w.a.association("first", "out"); got.Sequence != after.Sequence+5 {
		t.Errorf("after the bad file the first tunnel is at %+v, before it was at %+v", got, after)
	}

	// What cannot be changed in a running gateway is refused with the reason, and nothing changes.
	if err := os.WriteFile(w.a.config, []byte(strings.Replace(string(good), "control = ", "control = \"/run/elsewhere.sock\" # ", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	reload(w.a, "restart")
	ping(t, w.HostA, to, 5)

	// The second tunnel goes.
	w.configure("", first)
	reload(w.a, "configuration loaded")
	reload(w.b, "configuration loaded")
	if out, err := output(t, w.HostA, "ping", "-n", "-c", "1", "-W", "1", to.String()); err == nil {
		t.Errorf("the second network answers without its tunnel: %s", out)
	}
	ping(t, w.HostA, w.EthB.Addr(false), 5)
	for _, s := range w.a.sas() {
		if s.Name != "first" {
			t.Errorf("the SA %+v is still there", s)
		}
	}
	w.balance()
}

// A reload that renames a tunnel, again and again, loses no packet of a ping through it, and its numbers go on.
func TestReloadRenames(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	one := tunnel{name: "t", link: "udp", transform: gcm, spi: 0xc0003000, left: lab.LANA[:1], right: lab.LANB[:1]}
	w.configure("", one)
	w.start()
	pinging, stdout, _ := background(t, w.HostA, "ping", "-n", "-c", "300", "-i", "0.005", "-w", "60", w.EthB.Addr(false).String())
	good, err := os.ReadFile(w.a.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"renamed", "t", "other", "renamed"} {
		text := strings.Replace(string(good), `name = "t"`, fmt.Sprintf("name = %q", name), 1) // configure would change the keys with it
		if name != "t" && text == string(good) {
			t.Fatalf("there is no name in\n%s", good)
		}
		if err := os.WriteFile(w.a.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		had := strings.Count(w.a.log(), "configuration loaded")
		w.a.signal(syscall.SIGHUP)
		w.a.until("it was loaded", func() bool { return strings.Count(w.a.log(), "configuration loaded") > had })
	}
	<-pinging.Done()
	text, err := os.ReadFile(stdout)
	if err != nil {
		t.Fatal(err)
	}
	answered(t, string(text), 300)
	if got := w.a.association("renamed", "out"); got.Packets != 300 || got.Sequence != 300 {
		t.Errorf("the renamed SA is at %+v", got)
	}
	w.balance()
}

// Reloading all the time under load loses no packet of a tunnel that does not change.
func TestReloadLosesNothing(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	first := tunnel{name: "first", link: "udp", transform: gcm, spi: 0xc0003000, left: lab.LANA[:1], right: lab.LANB[:1]}
	second := tunnel{name: "second", link: "udp", transform: cbcSHA256, spi: 0xc0003100, left: lab.LANA[:1], right: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}}
	w.configure("", first)
	w.start()
	done := make(chan struct{})
	pinging, stdout, _ := background(t, w.HostA, "ping", "-n", "-c", "400", "-i", "0.005", "-w", "60", w.EthB.Addr(false).String())
	go func() { <-pinging.Done(); close(done) }()
	n := 0
	for running := true; running; n++ {
		select {
		case <-done:
			running = false
		default:
		}
		tunnels := []tunnel{first, second}[:1+n%2]
		w.a.configure(w, "", tunnels...)
		had := strings.Count(w.a.log(), "configuration loaded")
		w.a.signal(syscall.SIGHUP)
		w.a.until("it was loaded", func() bool {
			log := w.a.log()
			return strings.Count(log, "configuration loaded") > had || strings.Contains(log, "level=ERROR")
		})
		if strings.Contains(w.a.log(), "level=ERROR") {
			t.Fatalf("reload %d failed", n)
		}
	}
	text, err := os.ReadFile(stdout)
	if err != nil {
		t.Fatal(err)
	}
	answered(t, string(text), 400)
	if n < 5 {
		t.Errorf("only %d reloads", n)
	}
	w.balance()
}

// A tunnel for everything becomes one for a subnet and the reverse, and back, under load: nothing is lost, and nobody is told that the
// other side is unreachable.
func TestReloadNarrowsAndWidens(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	narrow := tunnel{name: "t", link: "udp", transform: gcm, spi: 0xc0003000, left: lab.LANA[:1], right: lab.LANB[:1]}
	wide := narrow
	wide.right = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	w.configure("", wide)
	w.start()
	ping(t, w.HostA, w.EthB.Addr(false), 5)
	pinging, stdout, _ := background(t, w.HostA, "ping", "-n", "-c", "400", "-i", "0.005", "-W", "2", w.EthB.Addr(false).String())
	n := 0
	for running := true; running; n++ {
		select {
		case <-pinging.Done():
			running = false
		default:
		}
		w.a.configure(w, "", []tunnel{narrow, wide}[n%2])
		had := strings.Count(w.a.log(), "configuration loaded")
		w.a.signal(syscall.SIGHUP)
		w.a.until("it is loaded", func() bool { return strings.Count(w.a.log(), "configuration loaded") > had })
	}
	text, err := os.ReadFile(stdout)
	if err != nil {
		t.Fatal(err)
	}
	answered(t, string(text), 400)
	if strings.Contains(string(text), "nreachable") {
		t.Errorf("under %d reloads ping says:\n%s", n, text)
	}
	if n < 4 {
		t.Errorf("only %d reloads", n)
	}
	if log := w.a.log(); strings.Contains(log, "others removed") {
		t.Errorf("the gateway took its own changes for others':\n%s", log)
	}
	w.balance()
}
