package strongswan

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// floods sends from both hosts, in both families, until its result is called, which gives how many answers there were.
func (w *world) floods() func() (received int) {
	all := []*stream{w.flow(w.EthA, w.EthB, false), w.flow(w.EthA, w.EthB, true), w.flow(w.EthB, w.EthA, false), w.flow(w.EthB, w.EthA, true)}
	return func() (received int) {
		for _, s := range all {
			_, n := s.stop()
			received += n
		}
		return received
	}
}

// flows wants traffic to get through now.
func (w *world) flows(when string) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		s := w.flow(w.EthA, w.EthB, false)
		time.Sleep(200 * time.Millisecond)
		if _, n := s.stop(); n > 0 {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("no packet gets through %s", when)
		}
	}
}

// Under load from all sides charon is killed and started again, then the gateway, and the tunnel is terminated; and nothing of it is ever
// in the clear on the wire. Where there is no guard yet, it is: so the test would see it. What is configured to be guarded is so
// from the gateway's start, before charon has made any policy.
func TestStrongSwanNothingInTheClear(t *testing.T) {
	for _, both := range []bool{false, true} {
		name := "kernel-libipsec"
		if both {
			name = "culvert"
		}
		t.Run(name, func(t *testing.T) {
			w := prepare(t, options{both: both, ike: []string{`local_subnets = ["10.1.0.0/24", "fd00:1::/64"]`, `remote_subnets = ["10.2.0.0/24", "fd00:2::/64"]`}})
			before := w.capture()
			stop := w.floods()
			time.Sleep(300 * time.Millisecond)
			if clear, _ := before.clear(); clear == 0 {
				t.Fatal("nothing is in the clear before there is a guard: this test sees nothing")
			}
			stop()

			w.a.startGateway()
			if both {
				w.b.write("culvert.toml", strings.NewReplacer("10.1.", "10.2.", "10.2.", "10.1.", "fd00:1:", "fd00:2:", "fd00:2:", "fd00:1:").Replace(w.b.read("culvert.toml")))
				w.b.startGateway()
			}
			wire := w.capture()
			// While side B is a strongSwan it has no guard of its own.
			stop = w.floods()
			time.Sleep(200 * time.Millisecond)
			w.b.startCharon()
			w.a.startCharon()
			w.up()
			w.flows("through the tunnel")

			kill(t, w.a.charon)
			time.Sleep(300 * time.Millisecond)
			w.a.startCharon()
			w.a.must("--initiate", "--child", "net", "--timeout", "20")
			w.flows("after charon was killed and started again")

			kill(t, w.a.gw)
			time.Sleep(300 * time.Millisecond)
			end(t, w.a.charon, syscall.SIGKILL)
			w.a.startGateway()
			time.Sleep(200 * time.Millisecond)
			w.a.startCharon()
			w.a.must("--initiate", "--child", "net", "--timeout", "20")
			w.flows("after the gateway was killed and started again")

			w.a.must("--terminate", "--ike", "c")
			time.Sleep(300 * time.Millisecond)
			end(t, w.a.charon, syscall.SIGTERM)
			end(t, w.a.gw, syscall.SIGTERM)
			time.Sleep(300 * time.Millisecond)
			stop()
			judge := func() (int, int) { return wire.clearFrom(w.EthA) }
			if both {
				judge = wire.clear
			}
			if clear, all := judge(); clear != 0 || all < 100 {
				t.Errorf("%d of %d packets on the wire are in the clear", clear, all)
			}
		})
	}
}

// With charon.install_routes = yes, its default, strongSwan's own routes change nothing: what its policies protect is in the TUN before,
// and stays guarded after. The log and the status say what to set.
func TestStrongSwanInstallRoutes(t *testing.T) {
	w := newWorld(t, options{routes: true})
	wire := w.capture()
	w.up()
	w.ping(w.EthA, w.EthB, false, 20)
	w.ping(w.EthB, w.EthA, true, 20)
	until(t, "the status says what to set", func() bool { return strings.Contains(w.a.status().IKE.Notice, "install_routes = no") })
	until(t, "the log says what to set", func() bool { return strings.Contains(w.a.read(w.a.logs[0]), "install_routes = no") })
	s := w.flow(w.EthA, w.EthB, false)
	w.a.must("--terminate", "--ike", "c")
	time.Sleep(200 * time.Millisecond)
	s.stop()
	if clear, _ := wire.clearFrom(w.EthA); clear != 0 {
		t.Errorf("%d packets on the wire are in the clear", clear)
	}
}

// Policies for everything: IKE goes past the tunnel, the gateway's own addresses that are in no policy keep their way, and the rest of
// the world is behind the tunnel.
func TestStrongSwanEverything(t *testing.T) {
	long(t)
	w := newWorld(t, options{local: "10.1.0.0/24,fd00:1::/64", remote: "0.0.0.0/0,::/0"})
	wire := w.capture()
	w.up()
	for _, v6 := range []bool{false, true} {
		w.ping(w.EthA, w.EthB, v6, 10)
		w.ping(w.EthB, w.EthA, v6, 10)
	}
	before := w.a.installed()
	w.a.must("--rekey", "--ike", "c")
	w.a.must("--rekey", "--child", "net")
	until(t, "another CHILD_SA is installed", func() bool { n := w.a.installed(); return len(n) == 1 && n[0] != before[0] })
	w.ping(w.EthA, w.EthB, false, 10)
	if clear, _ := wire.clear(); clear != 0 {
		t.Errorf("%d packets on the wire are in the clear", clear)
	}
	// From the gateway itself, with the outer address, which no policy has.
	if out, err := w.a.run("ping", "-n", "-c", "3", "-I", w.a.end.Addr(false).String(), w.b.end.Addr(false).String()); err != nil {
		t.Errorf("the gateway's own traffic: %v\n%s", err, out)
	}
}

// With after_delete = "clear" traffic leaves in clear once its policy is deleted, as with the kernel's ESP.
func TestStrongSwanAfterDeleteClear(t *testing.T) {
	long(t)
	w := newWorld(t, options{ike: []string{`after_delete = "clear"`}})
	w.up()
	wire := w.capture()
	w.ping(w.EthA, w.EthB, false, 5)
	if clear, _ := wire.clear(); clear != 0 {
		t.Errorf("%d packets are in the clear while the tunnel is up", clear)
	}
	w.down()
	if st := w.a.status(); st.IKE.Routed != 0 || len(st.IKE.Refused) != 0 {
		t.Errorf("after the end: %+v", st.IKE)
	}
	wire = w.capture()
	w.ping(w.EthA, w.EthB, false, 5)
	w.ping(w.EthB, w.EthA, true, 5)
	if clear, _ := wire.clear(); clear < 20 {
		t.Errorf("%d packets are in the clear after the end", clear)
	}
}
