package e2e

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/test/judge"
	"culvert/test/lab"
)

// troubles is the part of `culvert status --json` about what goes wrong.
type troubles struct {
	State *struct {
		File, Problem, Mend string
		Mended              int
		Left                []struct {
			Tunnel, SPI string
			Packets     uint64
		}
	}
	Hints []hint
}

type hint struct {
	Tunnel, Kind, Text, Mend string
	Packets                  uint64
}

func (g *gateway) troubles() (s troubles) {
	g.t.Helper()
	if err := json.Unmarshal([]byte(g.ask("status", "--json")), &s); err != nil {
		g.t.Fatal(err)
	}
	return s
}

// hinted waits for a hint, which the log and the status's text must have too, in the same words.
func (g *gateway) hinted(kind string, says ...string) {
	g.t.Helper()
	began := time.Now()
	var h hint
	g.until("there is a hint "+kind, func() bool {
		for _, h = range g.troubles().Hints {
			if h.Kind == kind {
				return true
			}
		}
		return false
	})
	for _, s := range says {
		if !strings.Contains(h.Text+" "+h.Mend, s) {
			g.t.Errorf("hint %q, %q does not say %q", h.Text, h.Mend, s)
		}
	}
	if h.Packets == 0 || h.Mend == "" {
		g.t.Errorf("%+v", h)
	}
	// The example in it may be another by then.
	if text := g.ask("status"); !strings.Contains(text, "HINT ") || !strings.Contains(text, h.Mend) {
		g.t.Errorf("status does not say it:\n%s", text)
	}
	said := regexp.MustCompile(`level=WARN .*hint=` + kind + ` packets=\d+ mend=`)
	g.until("the log has the hint "+kind, func() bool { return said.MatchString(g.log()) })
	if n := len(said.FindAllString(g.log(), -1)); n > 2+int(time.Since(began)/(30*time.Second)) {
		g.t.Errorf("the log says it %d times:\n%s", n, g.log())
	}
}

// unhinted waits until the status has no hint any more.
func (g *gateway) unhinted() {
	g.t.Helper()
	g.until("there are no hints", func() bool { return len(g.troubles().Hints) == 0 })
}

// knock sends echo requests that need no answer, until the lab ends.
func knock(t *testing.T, from *lab.Namespace, to netip.Addr) {
	t.Helper()
	judge.Need(t, "ping")
	background(t, from, "ping", "-n", "-i", "0.05", to.String())
}

// What a peer's host answers to ESP when no gateway runs there is said, in the terms of the link, and no more when one does.
func TestHintRefused(t *testing.T) {
	for _, tc := range []struct {
		link string
		v6   bool
		says string
	}{
		{"udp", false, "peer 192.0.2.2 refuses UDP port 4500: no gateway listens there"},
		{"udp", true, "refuses UDP port 4500: no gateway listens there"},
		{"esp", false, "peer 192.0.2.2 refuses protocol 50 (ESP): no gateway is there"},
	} {
		name := tc.link + "4"
		outer := lab.V4
		if tc.v6 {
			name, outer = tc.link+"6", lab.V6
		}
		t.Run(name, func(t *testing.T) {
			w := newRow(t, lab.RowOptions{Outer: outer, Inner: lab.V4})
			office := ordinary("office", tc.link, tc.v6, gcm)
			office.left, office.right = lab.LANA[:1], lab.LANB[:1]
			w.configure("", office)
			w.a.launch()
			w.a.ready()
			knock(t, w.HostA, w.EthB.Addr(false))
			w.a.hinted("peer-refuses", tc.says)
			w.b.launch()
			w.b.ready()
			w.a.unhinted()
			ping(t, w.HostA, w.EthB.Addr(false), 3)
		})
	}
}

// A peer whose host is not there is told from one that refuses.
func TestHintUnreachable(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.a.launch()
	w.a.ready()
	must(t, w.GatewayB, "ip", "address", "flush", "dev", lab.WANDevice)
	knock(t, w.HostA, w.EthB.Addr(false))
	must(t, w.GatewayA, "ip", "neighbour", "del", "192.0.2.2", "dev", lab.WANDevice) // which the lab knows without asking
	w.a.hinted("peer-unreachable", "peer 192.0.2.2 cannot be reached", "ip route get 192.0.2.2")
}

// A peer that does not answer in any way, as behind a firewall that drops or, here, with a gateway that hangs, is told from one that
// answers.
func TestHintNoAnswer(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	w.b.signal(syscall.SIGSTOP)
	knock(t, w.HostA, w.EthB.Addr(false))
	w.a.hinted("no-answer", "none has come from it", "UDP port 4500")
	w.b.signal(syscall.SIGCONT)
	w.a.unhinted()
	ping(t, w.HostA, w.EthB.Addr(false), 3)
}

// An SPI that only one side knows is shown with those that there are, and with what to do.
func TestHintUnknownSPI(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	there, here := ordinary("office", "udp", false, gcm), ordinary("office", "udp", false, gcm)
	here.spi = 0xc0002000
	w.a.configure(w, "", there)
	w.b.configure(w, "", here)
	w.start()
	knock(t, w.HostA, w.EthB.Addr(false))
	w.b.hinted("unknown-spi", "SPI 0xc0001000", "peer 192.0.2.1:4500", "0xc0002000 (office)", "out.spi")
	// One who is nobody's peer has a hint of its own, in no tunnel.
	must(t, w.GatewayA, "ip", "address", "add", "192.0.2.77/24", "dev", lab.WANDevice)
	conn, err := w.GatewayA.ListenPacket(context.Background(), "udp", "192.0.2.77:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.WriteTo([]byte("\x12\x34\x56\x78 is no SPI"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.WanB.Addr(false), 4500))); err != nil {
		t.Fatal(err)
	}
	w.b.until("the stranger is shown", func() bool {
		for _, h := range w.b.troubles().Hints {
			if h.Tunnel == "" && strings.Contains(h.Text, "0x12345678") && strings.Contains(h.Text, "192.0.2.77") && h.Packets == 1 {
				return true
			}
		}
		return false
	})
}

// Exchanged directions are recognized as such.
func TestHintExchangedSPIs(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	there, here := ordinary("office", "udp", false, gcm), ordinary("office", "udp", false, gcm)
	here.spi = there.spi - 1 // whose out is there's out
	w.a.configure(w, "", there)
	w.b.configure(w, "", here)
	w.start()
	knock(t, w.HostA, w.EthB.Addr(false))
	w.b.hinted("unknown-spi", "exchange `out` and `in`")
}

// Keys, transforms and ESN that differ cannot be told apart, but they are told from forgeries: nothing is ever right.
func TestHintWrongICV(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*tunnel)
		kind   string
	}{
		"key": {func(tn *tunnel) { tn.name = "other" }, "wrong-icv"},
		"ESN": {func(tn *tunnel) { tn.esn = true; tn.more = "replay_window = 64" }, "wrong-icv"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
			there, here := ordinary("office", "udp", false, cbcSHA256), ordinary("office", "udp", false, cbcSHA256)
			tc.change(&here)
			w.a.configure(w, "", there)
			w.b.configure(w, "", here)
			w.start()
			knock(t, w.HostA, w.EthB.Addr(false))
			w.b.hinted(tc.kind, "SPI 0xc0001000", "192.0.2.1", "none was ever right", "key, transform or ESN differ")
		})
	}
}

// Inner packets that the peer's policies let into the tunnel, and those here do not let out of it, are named.
func TestHintPolicies(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	there, here := ordinary("office", "udp", false, gcm), ordinary("office", "udp", false, gcm)
	here.left, here.right = []netip.Prefix{netip.MustParsePrefix("10.1.0.128/25")}, lab.LANB[:1]
	w.a.configure(w, "", there)
	w.b.configure(w, "", here)
	w.start()
	knock(t, w.HostA, w.EthB.Addr(false))
	w.b.hinted("policy-mismatch", "10.1.0.2 → 10.2.0.2", "remote_subnets")
}

// A packet that is routed into the TUN, and that no policy selects, is named with what its source lacks.
func TestHintNoPolicy(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	here := ordinary("office", "udp", false, gcm)
	here.left, here.right = []netip.Prefix{netip.MustParsePrefix("10.1.0.128/25")}, lab.LANB[:1]
	w.configure("", here)
	w.start()
	knock(t, w.HostA, w.EthB.Addr(false))
	w.a.hinted("no-policy", "10.1.0.2 → 10.2.0.2", "local_subnets")
}

// A link of the other kind on the peer's side is named.
func TestHintEncapsulation(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	there, here := ordinary("office", "udp", false, gcm), ordinary("office", "esp", false, gcm)
	second := tunnel{name: "second", link: "udp", transform: gcm, spi: 0xd0001000, left: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/24")}, right: []netip.Prefix{netip.MustParsePrefix("10.8.0.0/24")}}
	w.a.configure(w, "", there)
	w.b.configure(w, "", here, second) // which has a socket for UDP too
	w.start()
	knock(t, w.HostA, w.EthB.Addr(false))
	w.b.hinted("other-encapsulation", "SPI 0xc0001000", "come by udp4", "link is esp4")
}

// The tunnel's own address is taken off the host: that is said, and that it is there again, and then traffic passes without a restart.
func TestHintLocalAddress(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	ping(t, w.HostA, w.EthB.Addr(false), 3)
	var kept string
	for _, line := range strings.Split(must(t, w.GatewayA, "ip", "-o", "-4", "address", "show", "dev", lab.WANDevice), "\n") {
		kept = strings.Fields(line)[3]
	}
	must(t, w.GatewayA, "ip", "address", "del", kept, "dev", lab.WANDevice)
	knock(t, w.HostA, w.EthB.Addr(false))
	w.a.hinted("local-address", "192.0.2.1", "nothing can be sent or received")
	must(t, w.GatewayA, "ip", "address", "add", kept, "dev", lab.WANDevice)
	w.a.unhinted()
	w.a.until("the log says that it is there again", func() bool { return strings.Contains(w.a.log(), "there again") })
	ping(t, w.HostA, w.EthB.Addr(false), 3)
}

// blast sends small datagrams from host A through the tunnel, until done. It gives up when gateway A sends nothing any more.
func (w *row) blast(what string, done func() bool) {
	w.t.Helper()
	conn, err := w.HostA.Dial(context.Background(), "udp", netip.AddrPortFrom(w.EthB.Addr(false), 9).String())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	// Sixty packets with each call: a machine that is busy gets there too.
	const size, each = 16, 60
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		w.t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) }); cerr != nil || err != nil {
		w.t.Fatal(cerr, err)
	}
	packets := make([]byte, size*each)
	last, moved := uint64(0), time.Now()
	for !done() {
		if seq := w.a.association("office", "out").Sequence; seq != last {
			last, moved = seq, time.Now()
		} else if time.Since(moved) > patience {
			w.t.Fatalf("for %v nothing was sent after packet %d, and it is not so that %s", patience, seq, what)
		}
		for range 100 {
			conn.Write(packets) // what host B answers to port 9 is no concern
		}
	}
}

// A state directory that is removed while the gateway runs is made again, and no packet is lost for it, however many there are.
func TestStateRemoved(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	ping(t, w.HostA, w.EthB.Addr(false), 3)
	state := filepath.Join(w.a.dir, "state")
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	w.a.until("it is made again", func() bool { s := w.a.troubles().State; return s != nil && s.Mended == 1 && s.Problem == "" })
	w.a.until("the log says so", func() bool { return strings.Contains(w.a.log(), "taken away while in use") })
	if _, err := os.Stat(filepath.Join(state, "sequence-marks")); err != nil {
		t.Error(err)
	}
	w.blast("more was sent than had been reserved", func() bool { return w.a.association("office", "out").Sequence > 200000 })
	if n := w.a.status().drops()["seq-not-reserved"]; n != 0 {
		t.Errorf("%d packets had no sequence number", n)
	}
	// What is there is worth something: after a kill the peer takes what comes.
	last := w.a.association("office", "out").Sequence
	taken := w.b.association("office", "in")
	w.a.kill()
	w.a.launch()
	w.a.ready()
	knock(t, w.HostA, w.EthB.Addr(false))
	w.b.until("the peer takes packets after the restart", func() bool { return w.b.association("office", "in").Packets > taken.Packets+5 })
	if in := w.b.association("office", "in"); in.TooOld+in.Duplicates+in.BadICV != 0 {
		t.Errorf("the peer refused packets: %+v", in)
	}
	if now := w.a.association("office", "out").Sequence; now <= last {
		t.Errorf("after the restart the sequence is at %d, after %d", now, last)
	}
}

// A state directory that cannot be made again is an error in the log and in the status, with what is left to send and what to do. When it
// is used up the status says that nothing is sent, and when the way is free the tunnel goes on without a restart.
func TestStateLost(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	ping(t, w.HostA, w.EthB.Addr(false), 3)
	state, began := filepath.Join(w.a.dir, "state"), time.Now()
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	w.a.until("a file is in the way", func() bool {
		os.RemoveAll(state) // which the gateway may have made again
		return os.WriteFile(state, nil, 0o600) == nil
	})
	var s troubles
	w.a.until("the status has a problem", func() bool { s = w.a.troubles(); return s.State.Problem != "" && len(s.State.Left) == 1 })
	if l := s.State.Left[0]; l.Tunnel != "office" || l.SPI != "0xc0001000" || l.Packets == 0 || l.Packets > 1<<18 || s.State.Mend == "" {
		t.Errorf("%+v", s.State)
	}
	w.a.until("the log has the error", func() bool { return strings.Contains(w.a.log(), "level=ERROR") })
	for _, want := range []string{"no sequence numbers can be reserved on disk", state, "not a directory", "office 0xc0001000: ", "mend="} {
		if !strings.Contains(w.a.log(), want) {
			t.Errorf("the log does not say %q: %s", want, w.a.log())
		}
	}
	for _, bad := range []string{"sa: ", "sequence store:"} {
		if strings.Contains(s.State.Problem, bad) || strings.Contains(w.a.log(), bad) {
			t.Errorf("%q is in what a user reads: %s", bad, s.State.Problem)
		}
	}
	w.blast("the numbers are used up", func() bool { return w.a.status().drops()["seq-not-reserved"] > 0 })
	text := w.a.ask("status")
	for _, want := range []string{"NO SEQUENCE NUMBERS can be reserved", "office (0xc0001000) sends nothing"} {
		if !strings.Contains(text, want) {
			t.Errorf("status does not say %q:\n%s", want, text)
		}
	}
	if n, most := strings.Count(w.a.log(), "level=ERROR"), 1+int(time.Since(began)/(30*time.Second)); n > most {
		t.Errorf("the log has %d errors, want at most %d", n, most)
	}
	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	w.a.until("it is mended", func() bool { s := w.a.troubles().State; return s.Problem == "" && s.Mended >= 1 })
	w.a.until("the log says so", func() bool { return strings.Contains(w.a.log(), "sequence numbers are reserved on disk again") })
	taken := w.b.association("office", "in").Packets
	knock(t, w.HostA, w.EthB.Addr(false)) // the first may find the TUN's queue full still
	w.b.until("packets pass again", func() bool { return w.b.association("office", "in").Packets > taken+5 })
}
