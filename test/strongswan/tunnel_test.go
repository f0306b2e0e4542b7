package strongswan

import (
	"slices"
	"strings"
	"testing"
)

// An unmodified charon, started through culvert exec, makes a tunnel with an unmodified strongSwan that has kernel-libipsec: both families
// pass in both directions, a file arrives as it was sent, nothing is in the clear, and status, sa list and policy list show what the
// daemon has made. Terminated, its SAs and policies are gone, and the traffic is refused.
func TestStrongSwanTunnel(t *testing.T) {
	w := newWorld(t, options{})
	wire := w.capture()
	w.up()
	for _, v6 := range []bool{false, true} {
		w.ping(w.EthA, w.EthB, v6, 20)
		w.ping(w.EthB, w.EthA, v6, 20)
	}
	w.sendFile(w.EthA, w.EthB, false, 5<<20)
	w.sendFile(w.EthB, w.EthA, true, 5<<20)

	st := w.a.status()
	if st.IKE.SAs != 2 || st.IKE.Policies != 4 || st.IKE.Routed != 2 || st.IKE.Failures != 0 || len(st.IKE.Refused) != 0 {
		t.Errorf("status says %+v", st.IKE)
	}
	text := w.a.culvertSays("status")
	for _, want := range []string{"charon[", "shares UDP port 0.0.0.0:4500", "routes and guard in place"} {
		if !strings.Contains(text, want) {
			t.Errorf("culvert status does not say %q:\n%s", want, text)
		}
	}
	if text := w.a.culvertSays("sa", "list"); strings.Count(text, "from the IKE daemon") != 2 || !strings.Contains(text, "authenc(hmac(sha256),cbc(aes))") {
		t.Errorf("culvert sa list:\n%s", text)
	}
	if text := w.a.culvertSays("policy", "list"); strings.Count(text, "protect") != 4 {
		t.Errorf("culvert policy list:\n%s", text)
	}
	out, err := w.a.run(program, "exec", "--socket", w.a.dir+"/exec.sock", "--", "ip", "xfrm", "state", "list")
	if err != nil || strings.Count(out, "proto esp") != 2 {
		t.Errorf("ip xfrm state under culvert exec: %v\n%s", err, out)
	}

	w.a.must("--terminate", "--ike", "c")
	until(t, "the SAs and policies are gone", func() bool { st := w.a.status(); return st.IKE.SAs == 0 && st.IKE.Policies == 0 })
	if st := w.a.status(); len(st.IKE.Refused) != 2 {
		t.Errorf("refused after the tunnel's end: %v", st.IKE.Refused)
	}
	lost := w.flow(w.EthA, w.EthB, false)
	until(t, "a hundred packets have been sent", func() bool { st := w.a.status(); return st.Balanced && len(st.Lanes) > 0 })
	if _, received := lost.stop(); received != 0 {
		t.Errorf("%d pings were answered after the tunnel's end", received)
	}
	if clear, all := wire.clear(); clear != 0 || all < 5000 {
		t.Errorf("%d of %d packets on the wire are in the clear", clear, all)
	}
}

// Rekeying the CHILD_SA and the IKE_SA, from either side, loses not one packet.
func TestStrongSwanRekey(t *testing.T) {
	w := newWorld(t, options{})
	w.up()
	ab, ba := w.flow(w.EthA, w.EthB, false), w.flow(w.EthB, w.EthA, true)
	for _, s := range []*side{w.a, w.b} {
		for _, what := range [][]string{{"--rekey", "--child", "net"}, {"--rekey", "--ike", "c"}} {
			before := [2][]string{w.a.installed(), w.b.installed()}
			s.must(what...)
			if what[1] == "--child" {
				for i, s := range []*side{w.a, w.b} {
					until(t, "another CHILD_SA alone is installed", func() bool {
						now := s.installed()
						return len(now) == 1 && !slices.Equal(now, before[i])
					})
				}
			}
		}
	}
	until(t, "the old SAs are gone", func() bool { return w.a.status().IKE.SAs == 2 })
	ab.lossless("from A to B")
	ba.lossless("from B to A")
	if st := w.a.status(); !st.Balanced {
		t.Errorf("the books do not balance: %+v", st.Lanes)
	}
}
