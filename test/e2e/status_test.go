package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"culvert/test/lab"
	"culvert/test/lab/traffic"
)

// status, sa list and policy list tell the truth, in text and in JSON: what was sent is what they count, sums and states agree, and no
// key is in anything that the gateway prints or logs.
func TestStatus(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4})
	office := ordinary("office", "udp", false, cbcSHA256)
	w.configure("[log]\nlevel = \"debug\"\n", office)
	w.start()
	sent := uint64(ping(t, w.HostA, w.EthB.Addr(false), 7) + ping(t, w.HostA, w.EthB.Addr(true), 4))
	// An empty datagram, one without SA, and a keepalive.
	for _, datagram := range []string{"", "\x12\x34\x56\x78: there is no SA with this SPI", "\xff"} {
		conn, err := w.GatewayA.Dial(context.Background(), "udp", netip.AddrPortFrom(w.WanB.Addr(false), 4500).String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(datagram)); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	w.b.until("the datagrams have arrived", func() bool { d := w.b.status().drops(); return d["no-state"]+d["keepalive"]+d["runt"] == 3 })
	w.balance()

	a, b := w.a.status(), w.b.status()
	if !a.Balanced || !b.Balanced || a.PID != w.a.proc.Pid() || a.Tunnels != 1 {
		t.Errorf("status: %+v", a)
	}
	if got := b.drops(); got["no-state"] != 1 || got["keepalive"] != 1 || got["runt"] != 1 {
		t.Errorf("drops %v, want one no-state, one keepalive and one runt", got)
	}
	w.onlyDrops("no-state", "keepalive", "runt")
	for _, c := range []struct {
		g         *gateway
		direction string
		spi       uint32
	}{{w.a, "out", office.spi}, {w.b, "in", office.spi}, {w.b, "out", office.spi + 1}, {w.a, "in", office.spi + 1}} {
		s := c.g.association("office", c.direction)
		if s.SPI != fmt.Sprintf("0x%08x", c.spi) || s.Packets != sent || s.Sequence != sent || s.Bytes == 0 || s.Duplicates+s.TooOld+s.BadICV != 0 {
			t.Errorf("%s, %s: %+v, want SPI 0x%08x with %d packets", c.g.ns.Role(), c.direction, s, c.spi, sent)
		}
	}

	text := w.b.ask("status")
	asJSON := w.b.ask("status", "--json") + w.b.ask("sa", "list", "--json")
	for _, want := range []string{
		`(?m)^culvert .*pid \d+`, `tunnels: 1`, `(?m)^tun\s+culvert0, MTU 1422`, `(?m)^link\s+udp4 on 192\.0\.2\.2:4500`,
		fmt.Sprintf(`(?m)^\s*outbound\s+\d+\s+%d\s+\d+\s+0\s.*yes`, sent), fmt.Sprintf(`(?m)^\s*inbound udp4\s+%d\s+%d\s+3\s+0\s.*yes`, sent+3, sent),
		`(?m)^1\s+inbound udp4\s+no-state\s+\S`, `(?m)^1\s+inbound udp4\s+keepalive\s+\S`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("status does not match %s:\n%s", want, text)
		}
	}
	sas := w.a.ask("sa", "list")
	for _, want := range []string{"office  out  0xc0001000", "office  in  0xc0001001", "192.0.2.1:4500 → 192.0.2.2:4500", "authenc(hmac(sha256),cbc(aes)), 128-bit key, 128-bit ICV", fmt.Sprintf("sequence %d, packets %[1]d", sent), "duplicates 0, too old 0, bad ICV 0"} {
		if !strings.Contains(sas, want) {
			t.Errorf("sa list does not say %q:\n%s", want, sas)
		}
	}
	policies := w.a.ask("policy", "list")
	for _, want := range []string{"10.1.0.0/24", "10.2.0.0/24", "fd00:1::/64", "fd00:2::/64", "protect", "0xc0001000"} {
		if !strings.Contains(policies, want) {
			t.Errorf("policy list does not say %q:\n%s", want, policies)
		}
	}
	var rows []struct{ Name, Direction, Selector, Action, SA string }
	if err := json.Unmarshal([]byte(w.a.ask("policy", "list", "--json")), &rows); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range rows {
		count[r.Direction+" "+r.Action]++
	}
	if count["out protect"] != 2 || count["in protect"] != 2 || len(rows) != 4 {
		t.Errorf("policies: %+v", rows)
	}

	w.a.stop()
	w.b.stop()
	everything := text + sas + policies + asJSON + w.a.log() + w.b.log()
	for _, key := range append(w.a.secrets, w.b.secrets...) {
		if strings.Contains(strings.ToLower(everything), key) || strings.Contains(strings.ToLower(everything), key[:16]) {
			t.Errorf("the key %s… is in what the gateways printed", key[:4])
		}
	}

	// Nobody answers any more: the commands say so, with what to do.
	out, err := w.a.culvert("status", "--control", w.a.control)
	if exitCode(err) != 1 || !strings.Contains(out, w.a.control) || !strings.Contains(out, "culvert run") {
		t.Errorf("status of a gateway that is not there: %v: %s", err, out)
	}
}

// checkedTunnel is a configuration for every host.
const checkedTunnel = `state_dir = "DIR/state"
state_dir_volatile = true
control = "DIR/control.sock"
tun = {name = "culvertcheck0"}
metrics = {listen = ""}
[[tunnel]]
name = "branch"
local = "127.0.0.1"
remote = "127.0.0.2"
transform = "rfc4106(gcm(aes))"
local_subnets = ["10.1.0.0/24"]
remote_subnets = ["10.2.0.0/24"]
out = {spi = 0x1001, enc_key = "000102030405060708090a0b0c0d0e0f10111213"}
in = {spi = 0x1002, enc_key = "100102030405060708090a0b0c0d0e0f10111213"}
`

// check and run refuse a bad configuration with its place, and a good one with a warning is only warned of.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := dir + "/culvert.toml"
	here := strings.ReplaceAll(checkedTunnel, "DIR", dir)
	for _, c := range []struct {
		text   string
		status int
		says   []string
		flags  []string
	}{
		{here, 0, []string{"right for this host: tunnels 1, policies 2"}, nil},
		{strings.ReplaceAll(here, "127.0.0.", "198.51.100."), 1, []string{file + ":8:1: tunnel.branch.local: no interface of this host has the address 198.51.100.1", "another host", "--syntax-only"}, nil},
		{strings.ReplaceAll(here, "127.0.0.", "198.51.100."), 0, []string{"tunnels 1", "was not looked for"}, []string{"--syntax-only"}},
		{"", 1, []string{"there is no tunnel", "culvert example"}, []string{"--syntax-only"}},
		{"[tun]\nnmae = \"x\"\n", 1, []string{file + ":2:1", "nmae", "name"}, nil},
		{"[tun\n", 1, []string{file + ":1:"}, nil},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(program, append([]string{"check", "-c", file}, c.flags...)...).CombinedOutput()
		if exitCode(err) != c.status {
			t.Errorf("check of %q: %v: %s", c.text, err, out)
		}
		for _, s := range c.says {
			if !strings.Contains(string(out), s) {
				t.Errorf("check of %q does not say %q: %s", c.text, s, out)
			}
		}
	}
}

// What a gateway that does not run lets its queues lose is in its status as the kernel counts it: no lane has seen it.
func TestStatusOfKernelDrops(t *testing.T) {
	w := newRow(t, lab.RowOptions{Outer: lab.V4, Inner: lab.V4})
	w.configure("", ordinary("office", "udp", false, gcm))
	w.start()
	if s := w.b.status(); s.TUN.KernelDrops != 0 || len(s.Links) != 1 || s.Links[0].KernelDrops != 0 {
		t.Fatalf("before: %+v", s)
	}
	w.b.signal(syscall.SIGSTOP)
	for _, flood := range []struct {
		from *lab.Namespace
		to   netip.AddrPort
	}{
		{w.HostB, netip.AddrPortFrom(w.EthA.Addr(false), 9)}, // into the TUN, whose queue holds 2000
		{w.GatewayA, netip.AddrPortFrom(w.WanB.Addr(false), 4500)},
	} {
		conn, err := flood.from.Dial(context.Background(), "udp", flood.to.String())
		if err != nil {
			t.Fatal(err)
		}
		datagram := make([]byte, 1300)
		for range 40_000 {
			if _, err := conn.Write(datagram); err != nil {
				t.Fatal(err)
			}
		}
		conn.Close()
	}
	w.b.signal(syscall.SIGCONT)
	w.balance()
	tun := decode[[]struct {
		Stats struct{ TX struct{ Dropped uint64 } } `json:"stats64"`
	}](t, must(t, w.GatewayB, "ip", "-json", "-stats", "link", "show", w.b.status().TUN.Name))[0].Stats.TX.Dropped
	socket, err := traffic.SocketDrops(w.GatewayB)
	if err != nil {
		t.Fatal(err)
	}
	if s := w.b.status(); tun == 0 || socket == 0 || s.TUN.KernelDrops != tun || s.Links[0].KernelDrops != socket {
		t.Errorf("status %+v; the kernel counts %d for the TUN and %d for the socket", s, tun, socket)
	}
	text := w.b.ask("status")
	for _, want := range []string{
		fmt.Sprintf("the kernel dropped %d packets for the TUN", tun), fmt.Sprintf("the kernel dropped %d datagrams for this socket", socket),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}
