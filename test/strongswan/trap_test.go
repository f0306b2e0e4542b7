package strongswan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"culvert/test/judge"
	"culvert/test/lab"
)

// A trap policy: nothing is negotiated before the first packet, which waits for it and is not lost, nor are those that follow. Terminated,
// the trap stays and the next packet begins it anew. Without the trap the traffic is refused.
func TestStrongSwanTrap(t *testing.T) {
	for _, both := range []bool{false, true} {
		t.Run(map[bool]string{false: "kernel-libipsec", true: "culvert"}[both], func(t *testing.T) {
			w := newWorld(t, options{both: both, start: "trap"})
			wire := w.capture()
			if st := w.a.status(); st.IKE.Policies != 4 || st.IKE.SAs != 0 || st.IKE.Routed != 2 {
				t.Errorf("before the first packet: %+v", st.IKE)
			}
			for i := range 2 {
				w.ping(w.EthA, w.EthB, i == 1, 10) // the first one of all is answered too
				until(t, "the CHILD_SA is installed", func() bool { return len(w.a.installed()) == 1 })
				if st := w.a.status(); st.IKE.Acquires != i+1 || st.IKE.SAs != 2 {
					t.Errorf("after the packets: %+v", st.IKE)
				}
				w.a.must("--terminate", "--ike", "c")
				until(t, "the SAs are gone", func() bool { st := w.a.status(); return st.IKE.SAs == 0 && st.IKE.Policies == 4 })
			}
			w.a.must("--uninstall", "--child", "net")
			until(t, "the policies are gone", func() bool { return w.a.status().IKE.Policies == 0 })
			s := w.flow(w.EthA, w.EthB, false)
			time.Sleep(200 * time.Millisecond)
			if _, n := s.stop(); n != 0 {
				t.Errorf("%d packets got through without a policy", n)
			}
			if clear, all := wire.clear(); clear != 0 || all < 40 {
				t.Errorf("%d of %d packets on the wire are in the clear", clear, all)
			}
			if st := w.a.status(); !st.Balanced {
				t.Errorf("the books do not balance: %+v", st.Lanes)
			}
		})
	}
}

// The peer is behind a NAT, whose mapping changes while it sends: charon is told and moves the SAs, and traffic goes on in both
// directions. The NAT is of nftables, in the peer's namespace, and rewrites the port of what passes.
func TestStrongSwanNAT(t *testing.T) {
	long(t)
	judge.Need(t, "nft")
	for _, both := range []bool{false, true} {
		t.Run(map[bool]string{false: "kernel-libipsec", true: "culvert"}[both], func(t *testing.T) {
			w := prepare(t, options{both: both, encap: both})
			nat := func(port int) {
				t.Helper()
				w.b.write("nat", fmt.Sprintf(`flush ruleset
table ip nat {
	chain out { type filter hook postrouting priority 100; oif %[1]q udp sport 4500 udp sport set %[2]d; }
	chain in { type filter hook prerouting priority -300; iif %[1]q udp dport %[2]d udp dport set 4500; }
}
`, lab.WANDevice, port))
				if out, err := w.b.run("nft", "-f", w.b.dir+"/nat"); err != nil {
					t.Fatalf("nft: %v\n%s", err, out)
				}
			}
			nat(40001)
			w.a.startGateway()
			if both {
				w.b.startGateway()
			}
			w.a.startCharon()
			w.b.startCharon()
			w.b.must("--initiate", "--child", "net", "--timeout", "20")
			w.ping(w.EthB, w.EthA, false, 5)
			if list := w.a.culvertSays("sa", "list"); strings.Count(list, "192.0.2.2:40001") != 2 {
				t.Fatalf("the SAs are not with the peer's mapping:\n%s", list)
			}
			spi := w.a.installed()
			s := w.flow(w.EthB, w.EthA, false)
			time.Sleep(100 * time.Millisecond)
			nat(40002)
			until(t, "the SAs follow the mapping", func() bool { return strings.Count(w.a.culvertSays("sa", "list"), "192.0.2.2:40002") == 2 })
			sent, received := s.stop()
			t.Logf("%d packets were sent, and %d answered", sent, received)
			w.ping(w.EthA, w.EthB, false, 5)
			w.ping(w.EthB, w.EthA, true, 5)
			if now := w.a.installed(); len(now) != 1 || now[0] != spi[0] {
				t.Errorf("the CHILD_SAs are %v, and were %v", now, spi)
			}
		})
	}
}
