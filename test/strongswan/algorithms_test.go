package strongswan

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Every algorithm that strongSwan's kernel-libipsec and Culvert have in common carries a file in both directions.
func TestStrongSwanAlgorithms(t *testing.T) {
	long(t)
	w := newWorld(t, options{})
	for _, c := range []struct{ proposal, transform string }{
		{"aes128-sha1", "authenc(hmac(sha1),cbc(aes))"},
		{"aes192-sha256", "authenc(hmac(sha256),cbc(aes))"},
		{"aes256-sha384", "authenc(hmac(sha384),cbc(aes))"},
		{"aes256-sha512", "authenc(hmac(sha512),cbc(aes))"},
		{"aes128-md5", "authenc(hmac(md5),cbc(aes))"},
		{"3des-sha1", "authenc(hmac(sha1),cbc(des3_ede))"},
		{"null-sha256", "authenc(hmac(sha256),ecb(cipher_null))"},
		{"aes128gcm16", "rfc4106(gcm(aes))"},
		{"aes256gcm16", "rfc4106(gcm(aes))"},
		{"chacha20poly1305", "rfc7539esp(chacha20,poly1305)"},
	} {
		t.Run(c.proposal, func(t *testing.T) {
			w.t = t
			w.configure(options{proposal: c.proposal})
			w.up()
			if list := w.a.culvertSays("sa", "list"); strings.Count(list, c.transform+",") != 2 {
				t.Errorf("culvert sa list has no two SAs of %s:\n%s", c.transform, list)
			}
			w.ping(w.EthA, w.EthB, true, 5)
			w.sendFile(w.EthA, w.EthB, false, 1<<20)
			w.sendFile(w.EthB, w.EthA, false, 1<<20)
			w.down()
		})
	}
}

// In transport mode the gateways' own traffic with each other is protected, and nothing else is: IKE goes on beside it. kernel-libipsec has
// no transport mode, so Culvert is on both sides; that what it sends is what others do is for scapy to judge, in package dataplane.
func TestStrongSwanTransport(t *testing.T) {
	w := newWorld(t, options{both: true})
	for _, c := range []struct {
		name string
		o    options
	}{
		{"esp", options{proposal: "aes128-sha256"}},
		{"udp", options{encap: true, proposal: "aes128gcm16-esn"}},
		{"esp over IPv6", options{v6: true, proposal: "aes256-sha1"}},
		{"udp over IPv6", options{encap: true, v6: true, proposal: "chacha20poly1305"}},
	} {
		if testing.Short() && c.name != "udp" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			c.o.both, c.o.child, c.o.local, c.o.remote = true, "mode = transport", "dynamic", "dynamic"
			w.configure(c.o)
			wire := w.capture()
			w.up()
			if list := w.a.must("--list-sas"); !strings.Contains(list, "TRANSPORT") {
				t.Fatalf("not in transport mode:\n%s", list)
			}
			w.ping(w.WanA, w.WanB, c.o.v6, 20)
			w.ping(w.WanB, w.WanA, c.o.v6, 20)
			w.sendFile(w.WanA, w.WanB, c.o.v6, 2<<20)
			w.sendFile(w.WanB, w.WanA, c.o.v6, 2<<20)
			ab := w.flow(w.WanA, w.WanB, c.o.v6)
			before := w.a.installed()
			w.b.must("--rekey", "--child", "net")
			until(t, "another CHILD_SA alone is installed", func() bool { n := w.a.installed(); return len(n) == 1 && n[0] != before[0] })
			ab.lossless("from A to B")
			w.down()
			if clear, all := wire.clear(); clear != 0 || all < 1000 {
				t.Errorf("%d of %d packets on the wire are in the clear", clear, all)
			}
		})
	}
	for _, s := range []*side{w.a, w.b} {
		if st := s.status(); !st.Balanced || st.IKE.Failures != 0 {
			t.Errorf("%s: %+v", s.ns.Role(), st)
		}
	}
}

// With Culvert on both sides: native ESP, IPv6 outside, ESN, and windows of every size; rekeyed under load without a lost packet.
func TestStrongSwanBothSides(t *testing.T) {
	long(t)
	w := newWorld(t, options{both: true})
	for _, c := range []struct {
		name string
		o    options
	}{
		{"esp", options{both: true, proposal: "aes128gcm16-esn", child: "replay_window = 1024"}},
		{"esp over IPv6", options{both: true, v6: true, proposal: "aes256-sha256-esn", child: "replay_window = 4096"}},
		{"udp", options{both: true, encap: true, proposal: "chacha20poly1305", child: "replay_window = 32"}},
		{"udp over IPv6", options{both: true, encap: true, v6: true, proposal: "aes128-sha1", child: "replay_window = 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.t = t
			w.configure(c.o)
			w.up()
			list := w.a.culvertSays("sa", "list")
			if c.o.encap == strings.Contains(list, " on esp") || strings.Contains(c.o.proposal, "esn") != strings.Contains(list, "ESN") {
				t.Errorf("culvert sa list:\n%s", list)
			}
			if n := strings.Split(c.o.child, " = ")[1]; n != "0" && !strings.Contains(list, "window "+n+",") {
				t.Errorf("no SA has a window of %s:\n%s", n, list)
			}
			w.sendFile(w.EthA, w.EthB, false, 4<<20)
			w.sendFile(w.EthB, w.EthA, true, 4<<20)
			ab, ba := w.flow(w.EthA, w.EthB, true), w.flow(w.EthB, w.EthA, false)
			time.Sleep(100 * time.Millisecond)
			before := w.b.installed()
			w.b.must("--rekey", "--child", "net")
			until(t, "another CHILD_SA is installed", func() bool { n := w.b.installed(); return len(n) == 1 && n[0] != before[0] })
			until(t, "the old SAs are gone", func() bool { return w.a.status().IKE.SAs == 2 && w.b.status().IKE.SAs == 2 })
			ab.lossless("from A to B")
			ba.lossless("from B to A")
			w.down()
		})
	}
	for _, s := range []*side{w.a, w.b} {
		if st := s.status(); !st.Balanced || st.IKE.Failures != 0 {
			t.Errorf("%s: %+v", s.ns.Role(), st)
		}
	}
}

// Fifty CHILD_SAs of one connection, each with subnets of its own.
func TestStrongSwanManyChildren(t *testing.T) {
	long(t)
	w := prepare(t, options{})
	const n = 50
	var a, b strings.Builder
	for i := range n {
		fmt.Fprintf(&a, "    c%d { local_ts = 10.1.0.%d/32\n remote_ts = 10.2.0.0/24\n esp_proposals = aes128gcm16 }\n", i, i+2)
		fmt.Fprintf(&b, "    c%d { local_ts = 10.2.0.0/24\n remote_ts = 10.1.0.%d/32\n esp_proposals = aes128gcm16 }\n", i, i+2)
	}
	for _, s := range []struct {
		*side
		children string
	}{{w.a, a.String()}, {w.b, b.String()}} {
		conf := s.read("swanctl.conf")
		s.write("swanctl.conf", strings.Replace(conf, "    children { net {", "    children {\n"+s.children+"    net {", 1))
	}
	w.a.startGateway()
	w.a.startCharon()
	w.b.startCharon()
	for i := range n {
		w.a.must("--initiate", "--child", fmt.Sprint("c", i), "--timeout", "20")
	}
	until(t, "all SAs are there", func() bool {
		st := w.a.status()
		return st.IKE.SAs == 2*n && st.IKE.Policies == 2*n && st.IKE.Routed == n
	})
	w.ping(w.EthA, w.EthB, false, 10) // of c0
	w.down()
	if st := w.a.status(); st.IKE.Policies != 0 || len(st.IKE.Refused) != n {
		t.Errorf("after the end: %+v", st.IKE)
	}
}
