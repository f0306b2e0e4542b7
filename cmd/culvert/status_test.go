package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"culvert/cmd/culvert/internal/control"
)

// The text tells every drop with its cause and meaning, and shouts when the books do not balance.
func TestPrintStatus(t *testing.T) {
	var b bytes.Buffer
	printStatus(&b, control.Status{
		Version: "devel", PID: 42, Config: "/etc/culvert/culvert.toml", Engine: "soft", Tunnels: 1,
		TUN: control.TUN{Name: "culvert0", MTU: 1422, Offloads: "tso"},
		Lanes: []control.Lane{
			{Name: "outbound", PacketsIn: 640, PacketsOut: 630, Bursts: 10, Drops: map[string]uint64{"no-policy": 10}, Balanced: true},
			{Name: "inbound udp4", PacketsIn: 5, PacketsOut: 1, Drops: map[string]uint64{"duplicate": 1, "integrity-failed": 2}, Balanced: false},
		},
	})
	text := b.String()
	for _, want := range []string{
		"pid 42", "culvert0, MTU 1422", "run to completion", "64.0", "NO",
		"no outbound policy selects the packet", "this sequence number was received before", "the ICV is wrong",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if i, j := strings.Index(text, "integrity-failed"), strings.Index(text, "duplicate"); i > j {
		t.Errorf("the more frequent cause does not come first:\n%s", text)
	}
}

// What goes wrong comes with what to do, and of many tunnels that cannot send a few are named.
func TestPrintTroubles(t *testing.T) {
	var b bytes.Buffer
	since := time.Now().Add(-90 * time.Second)
	st := &control.State{File: "/s/sequence-marks", Problem: "the disk is full", Mend: "make room", Since: &since, Mended: 2}
	for i := range leftShown + 3 {
		st.Left = append(st.Left, control.Left{Tunnel: fmt.Sprintf("t%d", i), SPI: "0x00001000", Packets: uint64(i)})
	}
	printStatus(&b, control.Status{State: st, Hints: []control.Hint{
		{Tunnel: "office", Text: "peer 192.0.2.2 refuses UDP port 4500", Mend: "start it", Packets: 7, Last: time.Now()},
		{Text: "packets come from 203.0.113.1", Mend: "see who that is", Packets: 1, Last: time.Now()},
	}})
	for _, want := range []string{
		"/s/sequence-marks, made again 2 times", "NO SEQUENCE NUMBERS can be reserved, for 1m30s: the disk is full", "make room",
		"t0 (0x00001000) sends nothing", "t7 (0x00001000) can send 7 more packets", "and 3 more tunnels",
		"office: peer 192.0.2.2 refuses UDP port 4500 (packets: 7, the last 0s ago)", "start it", "HINT           packets come from",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "t8 ") {
		t.Errorf("more tunnels than should be:\n%s", b.String())
	}
	b.Reset()
	printStatus(&b, control.Status{State: &control.State{File: "/s/sequence-marks"}})
	if !strings.Contains(b.String(), "state          /s/sequence-marks\n") || strings.Contains(b.String(), "HINT") {
		t.Errorf("without troubles:\n%s", b.String())
	}
}

// Every command has a description and, where it takes arguments or flags of its own, an example; help never fails.
func TestHelp(t *testing.T) {
	c := root()
	for _, sub := range c.Commands() {
		if sub.Short == "" {
			t.Errorf("%s: no description", sub.CommandPath())
		}
		if sub.Runnable() && !sub.HasSubCommands() && sub.Example == "" && sub.Name() != "help" && sub.Name() != "completion" {
			t.Errorf("%s: no example", sub.CommandPath())
		}
		var b bytes.Buffer
		c.SetOut(&b)
		c.SetArgs([]string{sub.Name(), "--help"})
		if err := c.Execute(); err != nil || b.Len() == 0 {
			t.Errorf("%s --help: %v, %d bytes", sub.Name(), err, b.Len())
		}
	}
}

// A mistake on the command line is an error, not a silent default.
func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{{"frobnicate"}, {"run", "surplus"}, {"status", "--nonsense"}, {"example", "no-such"}, {"check", "-c", "/does/not/exist.toml"}} {
		c := root()
		c.SetOut(&bytes.Buffer{})
		c.SetErr(&bytes.Buffer{})
		c.SetArgs(args)
		if err := c.Execute(); err == nil {
			t.Errorf("culvert %s: no error", strings.Join(args, " "))
		} else if strings.Contains(err.Error(), "\n\n") {
			t.Errorf("culvert %s: %q", strings.Join(args, " "), err)
		}
	}
}

// Known answers can be asked for anywhere, also as JSON.
func TestEngines(t *testing.T) {
	for _, args := range [][]string{{"engines", "--check"}, {"engines", "--json"}} {
		c := root()
		var b bytes.Buffer
		c.SetOut(&b)
		c.SetArgs(args)
		if err := c.Execute(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "rfc4106(gcm(aes))") || strings.Contains(b.String(), "REFUSED") {
			t.Errorf("culvert %s:\n%s", strings.Join(args, " "), b.String())
		}
	}
}

// --wait waits for a gateway that comes later and for its routes, and says what it waited for in vain.
func TestStatusWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	client := control.Dial(path)
	if err := awaitReady(t.Context(), client, 0); err != nil {
		t.Errorf("without waiting: %v", err)
	}
	if err := awaitReady(t.Context(), client, time.Millisecond); err == nil || !strings.Contains(err.Error(), "after 1ms: no gateway answers") {
		t.Errorf("without a gateway: %v", err)
	}
	g := &startingGateway{}
	s, err := control.Listen(path, g, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := awaitReady(t.Context(), client, time.Millisecond); err == nil || !strings.Contains(err.Error(), "not ready: host being laid again, missing: the route") {
		t.Errorf("without its routes: %v", err)
	}
	g.after = 2
	if err := awaitReady(t.Context(), client, time.Minute); err != nil || g.asked != 3 {
		t.Errorf("%v after %d questions", err, g.asked)
	}
}

// startingGateway has its routes after some questions; never with 0.
type startingGateway struct {
	control.Source
	after, asked int
}

func (g *startingGateway) Status() control.Status {
	if g.after == 0 {
		return control.Status{Host: control.Host{Guard: true, Missing: []string{"the route"}}}
	}
	g.asked++
	return control.Status{Host: control.Host{Guard: true, InPlace: g.asked > g.after}}
}
