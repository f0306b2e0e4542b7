package gateway

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"culvert/cmd/culvert/internal/control"
	"culvert/cmd/culvert/internal/hostnet"
	"culvert/configs"
)

// config is a configuration with the given settings of its one tunnel.
func config(t *testing.T, dir, tunnel string) *configs.Config {
	t.Helper()
	file := filepath.Join(dir, "culvert.toml")
	text := fmt.Sprintf(`
state_dir = %q
control = %q
[tun]
name = "culvert0"
[metrics]
listen = ""
[[tunnel]]
name = "branch"
local = "192.0.2.1"
remote = "192.0.2.2"
transform = "rfc4106(gcm(aes))"
key_bits = 128
local_subnets = ["10.1.0.0/24"]
remote_subnets = ["10.2.0.0/24"]
`, filepath.Join(dir, "state"), filepath.Join(dir, "control.sock")) + tunnel
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := configs.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// keys makes both SAs from one digit.
func keys(digit string) string {
	return fmt.Sprintf("[tunnel.out]\nspi = 0x100%s\nenc_key = %q\n[tunnel.in]\nspi = 0x200%s\nenc_key = %q\n",
		digit, strings.Repeat("a"+digit, 20), digit, strings.Repeat("b"+digit, 20))
}

// The host's routes follow the policies, with the exact inner MTU, which was worked out by hand.
func TestPlan(t *testing.T) {
	cfg := config(t, t.TempDir(), keys("1")+`
[[policy]]
name = "clear"
action = "bypass"
remote = "10.2.0.128/25"
`)
	// 1500 - 20 (IP) - 8 (UDP) - 8 (ESP) - 8 (IV) - 16 (ICV) = 1440; payload + 2 is a multiple of 4: 1438.
	const inner = 1438
	mtus := map[string]int{"branch": cfg.Tunnel("branch").InnerMTU(1500)}
	p := plan(cfg, mtus)
	if len(p.Routes) != 1 || p.Routes[0].Remote != netip.MustParsePrefix("10.2.0.0/24") || p.Routes[0].MTU != inner {
		t.Errorf("routes %v, want one to 10.2.0.0/24 with MTU %d", p.Routes, inner)
	}
	want := hostnet.Pair{Remote: netip.MustParsePrefix("10.2.0.0/24"), Local: netip.MustParsePrefix("10.1.0.0/24")}
	if len(p.Protected) != 1 || p.Protected[0] != want || !p.Guard {
		t.Errorf("protected %v, guard %v", p.Protected, p.Guard)
	}
	if len(p.Bypass) != 1 || p.Bypass[0] != netip.MustParsePrefix("10.2.0.128/25") {
		t.Errorf("bypass %v", p.Bypass)
	}
	if m := tunMTU(cfg, mtus); m != inner {
		t.Errorf("the TUN's MTU is %d, want %d", m, inner)
	}
}

// A gateway starts, takes up what can change while it runs, keeps what it has when something cannot, and leaves nothing but
// the guard.
func TestStartReloadStop(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, ends with the test's goroutine
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out0"}, PeerName: "out1"}); err != nil {
		t.Fatal(err)
	}
	out0, err := netlink.LinkByName("out0")
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr("192.0.2.1/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.AddrAdd(out0, a), netlink.LinkSetUp(out0)); err != nil {
		t.Fatal(err)
	}

	here, err := hostnet.Here()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	dir := t.TempDir()
	level := new(slog.LevelVar)
	g, err := Start(config(t, dir, keys("1")), slog.New(slog.NewTextHandler(io.Discard, nil)), level, "test")
	if err != nil {
		t.Fatal(err)
	}
	client := control.Dial(filepath.Join(dir, "control.sock"))
	spis := func() (all []string) {
		sas, err := client.SAs()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sas {
			all = append(all, s.SPI)
		}
		return all
	}
	if got := fmt.Sprint(spis()); got != "[0x00001001 0x00002001]" {
		t.Errorf("SAs after the start: %s", got)
	}
	if st, err := client.Status(); err != nil || !st.Balanced || st.Tunnels != 1 || st.TUN.MTU != 1438 || !st.Host.InPlace {
		t.Errorf("status %+v, %v", st, err)
	}

	// The old keys with another DSCP would begin a replay window anew.
	err = g.Reload(config(t, dir, `dscp = 46
`+keys("1")))
	var refusal *configs.Error
	if !errors.As(err, &refusal) || refusal.Class != configs.ErrRestart || !strings.Contains(err.Error(), "culvert.toml:") {
		t.Errorf("a change to an SA that keeps its keys: %v", err)
	}
	if got := fmt.Sprint(spis()); got != "[0x00001001 0x00002001]" {
		t.Errorf("SAs after a refused reload: %s", got)
	}
	if err := g.Reload(config(t, dir, `dscp = 46
`+keys("2"))); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(spis()); got != "[0x00001002 0x00002002]" {
		t.Errorf("SAs after a reload with new keys: %s", got)
	}

	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName("culvert0"); err == nil {
		t.Error("the TUN is still there")
	}
	if rules, routes, err := here.Leftovers(); err != nil || rules == 0 || routes == 0 {
		t.Errorf("the guard is gone: rules %d, routes %d, %v", rules, routes, err)
	}
	if _, err := client.Status(); err == nil {
		t.Error("the control socket still answers")
	}
}
