package peers

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"culvert/test/lab"
	"culvert/test/lab/traffic"
)

// wireguard-go, built and started as comparisons do it, carries both inner families over both outer ones, and its device
// is gone when it is stopped.
func TestWireGuard(t *testing.T) {
	if err := lab.Usable(); errors.Is(err, lab.ErrNotPermitted) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	row, err := lab.NewRow(lab.RowOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := row.Close(); err != nil {
			t.Error(err)
		}
	}()
	program, err := BuildWireGuard(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, outerV6 := range []bool{false, true} {
		w, err := StartWireGuard(t.Context(), row, program, outerV6, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, v6 := range []bool{false, true} {
			err := traffic.Reach(t.Context(), traffic.PingOptions{From: row.HostA, Src: row.EthA.Addr(v6), Dst: row.EthB.Addr(v6), Interval: 20 * time.Millisecond, Duration: 10 * time.Second, Timeout: time.Second})
			if err != nil {
				t.Errorf("outer IPv6 %v, inner IPv6 %v: %v", outerV6, v6, err)
			}
		}
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := row.GatewayA.Netlink().LinkByName(wireGuardDevice); err == nil {
			t.Error("the device outlived its process")
		}
	}
}

// What a build lacks is told from what go says: itself, the source tree, or modules that it cannot fetch.
func TestBuildErrors(t *testing.T) {
	tree, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir string
		env       map[string]string
		want      error
		says      string
	}{
		{"no toolchain", tree, map[string]string{"PATH": "/nowhere"}, ErrToolchain, "sudo env PATH"},
		{"elsewhere", "/", nil, ErrSource, "change into it"},
		{"no modules", tree, map[string]string{"GOMODCACHE": t.TempDir(), "GOPROXY": "off", "GOFLAGS": "-modcacherw"}, ErrModules, "go mod download"},
		{"no network", tree, map[string]string{"GOMODCACHE": t.TempDir(), "GOPROXY": "http://127.0.0.1:1", "GOFLAGS": "-modcacherw"}, ErrModules, "what go says (exit status 1):\n    "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(c.dir)
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			if _, err := BuildWireGuard(t.Context(), t.TempDir()); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}
