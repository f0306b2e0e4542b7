package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/test/lab"
)

// hostState is the part of `culvert status --json` about the host's routes.
func (g *gateway) hostState() (h struct {
	InPlace  bool     `json:"in_place"`
	Missing  []string `json:"missing"`
	Restored int      `json:"restored"`
}) {
	g.t.Helper()
	var s struct{ Host json.RawMessage }
	if err := json.Unmarshal([]byte(g.ask("status", "--json")), &s); err != nil {
		g.t.Fatal(err)
	}
	if err := json.Unmarshal(s.Host, &h); err != nil {
		g.t.Fatal(err)
	}
	return h
}

// table is everything of ours that iproute2 sees in the gateway's namespace.
func (g *gateway) table() string {
	g.t.Helper()
	var all strings.Builder
	for _, args := range []string{"-4 rule", "-6 rule", "-4 route show table 4303", "-6 route show table 4303"} {
		all.WriteString(must(g.t, g.ns, "ip", strings.Fields(args)...))
	}
	return all.String()
}

// A second gateway in the same network namespace is refused before it touches anything, whatever else is wrong with it, and the
// first one's rules and routes stay as they were.
func TestSecondGatewayIsRefused(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	before := w.a.table()
	other := *w.a
	other.dir, other.config, other.control = w.a.dir+"/other", w.a.dir+"/other.toml", w.a.dir+"/other.sock"
	for _, general := range []string{"", "[tun]\nname = \"second0\"\n", "[guard]\nenabled = false\n"} {
		other.configure(w, general, tunnel{name: "other", link: "udp", transform: cbcSHA256, spi: 0xd000, left: lab.LANA[:1], right: lab.LANB[:1], more: "local_port = 4501\n"})
		out, err := other.culvert("run", "-c", other.config)
		if exitCode(err) != 1 || !strings.Contains(out, fmt.Sprintf("process %d", w.a.proc.Pid())) || !strings.Contains(out, "stop that one") {
			t.Errorf("a second gateway with %q: %v: %s", general, err, out)
		}
	}
	if after := w.a.table(); after != before {
		t.Errorf("the second gateway changed the host's routes.\nbefore:\n%s\nafter:\n%s", before, after)
	}
	ping(t, w.HostA, w.EthB.Addr(false), 3)
	w.balance()
}

// A start that is refused leaves the guard of the gateway before it as it was, to the last route.
func TestRefusedStartChangesNothing(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	w.a.kill()
	before := w.a.table()
	// Everything is right but the metrics' address, which is taken; the protected networks are others.
	listener, err := w.GatewayA.Start(exec.Command("python3", "-c", "import socket,time\ns=socket.create_server(('127.0.0.1',9750))\ntime.sleep(600)"))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(listener.Pid(), syscall.SIGKILL)
	until(t, "the port is taken", func() bool {
		out, _ := output(t, w.GatewayA, "ss", "-Hltn")
		return strings.Contains(out, "127.0.0.1:9750")
	})
	g := *w.a
	g.config = g.dir + "/other.toml"
	text := strings.Replace(g.document(w, "", tunnel{name: "other", link: "udp", transform: cbcSHA256, spi: 0xd000, left: lab.LANA[:1], right: lab.LANB[:1]}),
		`listen = ""`, `listen = "127.0.0.1:9750"`, 1)
	write(t, g.config, text)
	if out, err := g.culvert("run", "-c", g.config); exitCode(err) != 1 || !strings.Contains(out, "metrics.listen") {
		t.Errorf("a start whose metrics' port is taken: %v: %s", err, out)
	}
	if after := w.a.table(); after != before {
		t.Errorf("a refused start changed the host's routes.\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

// What others remove of the routes, rules and addresses is laid again at once, and the status and the log say so.
func TestRemovedRoutesAreLaidAgain(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4})
	w.configure("[tun]\naddresses = [\"10.99.0.1/32\"]\n", ordinary("office", "udp", false, gcm))
	w.start()
	before := w.a.table()
	if h := w.a.hostState(); !h.InPlace || h.Restored != 0 {
		t.Fatalf("after the start: %+v", h)
	}
	for _, harm := range []string{
		"ip -4 route del " + lab.LANB[0].Masked().String() + " dev culvert0 table 4303",
		"ip -4 route flush table 4303",
		"ip -6 route flush table 4303",
		"ip -4 rule del pref 204",
		"ip -6 rule del pref 212",
		"ip addr flush dev culvert0",
		"ip link set culvert0 down",
	} {
		done := w.a.hostState().Restored
		must(t, w.GatewayA, "sh", "-c", harm)
		w.a.until("what `"+harm+"` removed is there again", func() bool {
			h := w.a.hostState()
			return h.InPlace && h.Restored > done
		})
		if after := w.a.table(); after != before {
			t.Errorf("after `%s`:\n%s\nbefore:\n%s", harm, after, before)
		}
		for _, v6 := range []bool{false, true} {
			ping(t, w.HostA, w.EthB.Addr(v6), 2)
		}
	}
	if log := w.a.log(); strings.Count(log, "in place again") != 1 || !strings.Contains(log, "missing=") {
		t.Errorf("the log is to say once a minute what was missing:\n%s", log)
	}
	if out := w.a.ask("status"); !strings.Contains(out, "laid again") {
		t.Errorf("status does not say that something was laid again:\n%s", out)
	}
	// The guard of a running gateway is not removed by mistake.
	if out, err := w.a.culvert("guard", "remove"); exitCode(err) != 1 || !strings.Contains(out, fmt.Sprint(w.a.proc.Pid())) || !strings.Contains(out, "--force") {
		t.Errorf("guard remove while a gateway runs: %v: %s", err, out)
	}
	if after := w.a.table(); after != before {
		t.Errorf("a refused removal changed something:\n%s", after)
	}
	must(t, w.GatewayA, program, "guard", "remove", "--force")
	w.a.until("the guard is laid again", func() bool { return w.a.hostState().InPlace })
	w.balance()
}

// Without its TUN a gateway ends, says what happened, and leaves the guard.
func TestDeletedTUNEndsTheGateway(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	must(t, w.GatewayA, "ip", "link", "del", "culvert0")
	w.a.wait()
	if log := w.a.log(); exitCode(w.a.proc.Err()) != 1 || !strings.Contains(log, "culvert0 was deleted") || !strings.Contains(log, "start culvert again") {
		t.Errorf("%v:\n%s", w.a.proc.Err(), log)
	}
	if out := must(t, w.GatewayA, program, "guard", "show", "-c", w.a.config); !strings.Contains(out, "is complete") {
		t.Errorf("the guard is gone: %s", out)
	}
	w.a.launch()
	w.a.ready()
	// The first packet may be refused: the numbers leap over those that the other process had reserved, and beyond the mark
	// of the receiver, which has to be written first.
	until(t, "the tunnel carries again", func() bool {
		_, err := output(t, w.HostA, "ping", "-n", "-c", "1", "-W", "1", w.EthB.Addr(false).String())
		return err == nil
	})
}

// A TUN that was renamed is not said to be deleted: its routes go by the name, so the gateway ends, says what it is called now, and what
// to write.
func TestRenamedTUNEndsTheGateway(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	must(t, w.GatewayA, "ip", "link", "set", "culvert0", "name", "office0")
	w.a.wait()
	if log := w.a.log(); exitCode(w.a.proc.Err()) != 1 || !strings.Contains(log, `culvert0 was renamed to office0`) || !strings.Contains(log, `write name = "office0" below [tun], and start culvert again`) {
		t.Errorf("%v:\n%s", w.a.proc.Err(), log)
	}
	if out := must(t, w.GatewayA, program, "guard", "show", "-c", w.a.config); !strings.Contains(out, "is complete") {
		t.Errorf("the guard is gone: %s", out)
	}
}

// A SIGHUP ends no gateway, however early it comes, and the status shows what the last reload was refused for.
func TestEarlyAndRefusedReload(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	w.a.stop()
	w.a.env = []string{"GODEBUG=inittrace=1"}
	w.a.launch()
	// From when the program has taken its signals, long before it has read its configuration, until after it serves. Before
	// that its own packages are not initialized, and the signal is the Go runtime's.
	w.a.until("the program has taken its signals", func() bool { return strings.Contains(w.a.log(), "init culvert/cmd/culvert/internal/early") })
	if strings.Contains(w.a.log(), "init github.com/google/gopacket/layers") {
		t.Log("the machine was too busy to see the start: the signals come late")
	}
	for range 60 {
		w.a.signal(syscall.SIGHUP)
		time.Sleep(2 * time.Millisecond) // to be spread over the start
	}
	w.a.ready()
	good := w.a.document(w, "", ordinary("office", "udp", false, gcm))
	write(t, w.a.config, "nonsense = true\n"+good)
	w.a.signal(syscall.SIGHUP)
	w.a.until("the status shows the refusal", func() bool {
		out := w.a.ask("status")
		return strings.Contains(out, "REFUSED") && strings.Contains(out, "culvert.toml:1:1") && strings.Contains(out, "nonsense")
	})
	write(t, w.a.config, good)
	w.a.signal(syscall.SIGHUP)
	w.a.until("the refusal is forgotten", func() bool { return !strings.Contains(w.a.ask("status"), "REFUSED") })
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
