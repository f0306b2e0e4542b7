package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/test/judge"
	"culvert/test/lab"
)

// Hosts on both sides send all the time, and the gateways would route it plainly to each other. From the moment that a gateway says
// that it serves, nothing of it is ever in the clear on the wire: not while it runs, not after SIGTERM, not after kill -9, not while it
// starts again, and not when the other one dies. Where no gateway has ever run, it is: so the test would see it.
func TestNothingInTheClear(t *testing.T) {
	for _, link := range []string{"udp", "esp"} {
		t.Run(link, func(t *testing.T) {
			judge.Need(t, "ping")
			w := newRow(t, lab.RowOptions{Wire: true})
			if err := w.RoutePlainly(); err != nil {
				t.Fatal(err)
			}
			flood := func(from, to *lab.End, v6 bool) *lab.Process {
				p, _, _ := background(t, from.NS, "ping", "-n", "-i", "0.005", "-W", "1", "-p", fmt.Sprintf("%x", mark), to.Addr(v6).String())
				return p
			}
			before := startCapture(t, w.GatewayB, lab.WANDevice)
			floods := []*lab.Process{flood(w.EthA, w.EthB, false), flood(w.EthA, w.EthB, true), flood(w.EthB, w.EthA, false), flood(w.EthB, w.EthA, true)}
			for _, v6 := range []bool{false, true} {
				ping(t, w.HostA, w.EthB.Addr(v6), 5)
			}
			clear := 0
			for _, p := range before.stop() {
				if strings.Contains(string(p), mark) {
					clear++
				}
			}
			if clear == 0 {
				t.Fatal("without a gateway nothing is in the clear: the test would see nothing")
			}

			w.configure("", ordinary("office", link, false, gcm))
			w.start()
			c := startCapture(t, w.GatewayB, lab.WANDevice)
			served := func() {
				t.Helper()
				for _, v6 := range []bool{false, true} {
					until(t, fmt.Sprintf("IPv%d passes the tunnel", version(v6)), func() bool {
						_, err := output(t, w.HostA, "ping", "-n", "-c", "1", "-W", "1", w.EthB.Addr(v6).String())
						return err == nil
					})
				}
			}
			// undelivered wants the hosts to send while the gateway is down: every one of these is refused or vanishes.
			undelivered := func(g *gateway) {
				t.Helper()
				from, to := w.EthA, w.EthB
				if g.side == 1 {
					from, to = to, from
				}
				for _, v6 := range []bool{false, true} {
					if out, err := output(t, from.NS, "ping", "-n", "-c", "20", "-i", "0.01", "-W", "1", "-p", fmt.Sprintf("%x", mark), to.Addr(v6).String()); err == nil {
						t.Errorf("IPv%d passes although %s is down: %s", version(v6), g.ns.Role(), out)
					}
				}
			}
			served()
			w.balance()
			for _, g := range []*gateway{w.a, w.b} {
				for _, end := range []struct {
					how string
					do  func()
				}{{"kill -9", g.kill}, {"SIGTERM", g.stop}} {
					end.do()
					undelivered(g)
					g.launch()
					g.ready()
					served()
					if t.Failed() {
						t.Fatalf("after %s of %s", end.how, g.ns.Role())
					}
				}
			}
			w.a.kill()
			w.b.kill()
			undelivered(w.a)
			for _, p := range floods {
				if err := syscall.Kill(p.Pid(), syscall.SIGINT); err != nil {
					t.Error(err)
				}
				<-p.Done()
			}
			if n := onlyESP(t, c.stop(), mark); n < 1000 {
				t.Errorf("only %d ESP packets were on the wire: the hosts did not send all the time", n)
			}

			// The guard stays until it is removed by hand.
			if out := must(t, w.GatewayA, program, "guard", "show", "-c", w.a.config); !strings.Contains(out, "is complete") || !strings.Contains(out, "unreachable route") {
				t.Errorf("no guard stands after the gateway was killed: %s", out)
			}
			for _, ns := range []*lab.Namespace{w.GatewayA, w.GatewayB} {
				if out := must(t, ns, program, "guard", "remove"); !strings.Contains(out, "removed unreachable route to") {
					t.Errorf("guard remove does not say what it removed: %s", out)
				}
			}
			if out, err := w.a.culvert("guard", "show", "-c", w.a.config); exitCode(err) != 1 || !strings.Contains(out, "no rule or route") || !strings.Contains(out, "missing are") {
				t.Errorf("after its removal: %v: %s", err, out)
			}
			ping(t, w.HostA, w.EthB.Addr(false), 2)
		})
	}
}

// A gateway that is killed at any moment, also in the middle of its start, and started again, takes over what the one before it left,
// also where that had another configuration; and all the while the hosts send, and nothing of it is in the clear on the wire.
func TestTakeOver(t *testing.T) {
	judge.Need(t, "ping")
	w := newRow(t, lab.RowOptions{Wire: true})
	if err := w.RoutePlainly(); err != nil {
		t.Fatal(err)
	}
	served := func() {
		t.Helper()
		for _, v6 := range []bool{false, true} {
			until(t, fmt.Sprintf("IPv%d passes the tunnel", version(v6)), func() bool {
				_, err := output(t, w.HostA, "ping", "-n", "-c", "1", "-W", "1", w.EthB.Addr(v6).String())
				return err == nil
			})
		}
	}
	office := ordinary("office", "esp", false, gcm)
	wider := office
	wider.right = append(slices.Clone(office.right), netip.MustParsePrefix("10.66.0.0/16"))
	w.configure("", office)
	w.start()
	served()
	before := w.a.table()
	c := startCapture(t, w.GatewayB, lab.WANDevice)
	var floods []*lab.Process
	for _, v6 := range []bool{false, true} {
		for _, ends := range [][2]*lab.End{{w.EthA, w.EthB}, {w.EthB, w.EthA}} {
			p, _, _ := background(t, ends[0].NS, "ping", "-n", "-i", "0.002", "-W", "1", "-p", fmt.Sprintf("%x", mark), ends[1].Addr(v6).String())
			floods = append(floods, p)
		}
	}
	for i := range 20 {
		w.a.kill()
		// Every other start has a network more, whose guard the next one is to remove.
		w.a.configure(w, "", []tunnel{wider, office}[i%2])
		w.a.launch()
		if i%4 == 3 {
			w.a.ready()
			served()
			continue
		}
		time.Sleep(time.Duration(i*i) * time.Millisecond) // the moments to kill it at: from its first to when it has long served
	}
	if after := w.a.table(); after != before {
		t.Errorf("after all this the host has\n%s\nand had\n%s", after, before)
	}
	for _, p := range floods {
		if err := syscall.Kill(p.Pid(), syscall.SIGINT); err != nil {
			t.Error(err)
		}
		<-p.Done()
	}
	if n := onlyESP(t, c.stop(), mark); n < 1000 {
		t.Errorf("only %d ESP packets were on the wire: the hosts did not send all the time", n)
	}
	w.balance()
}
