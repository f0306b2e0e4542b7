package strongswan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"culvert/test/judge"
)

// libreswan is where test/run unpacks Debian's package, which cannot be installed beside strongSwan's.
const libreswan = "/var/cache/culvert-test/libreswan"

// startPluto starts libreswan's daemon under the gateway, with one connection, and waits until it listens.
func (s *side) startPluto(there *side) {
	s.t.Helper()
	s.write("ipsec.conf", `config setup
conn net
  left=`+s.end.Addr(false).String()+`
  right=`+there.end.Addr(false).String()+`
  leftsubnet=10.1.0.0/24
  rightsubnet=10.2.0.0/24
  authby=secret
  ikev2=insist
  ike=aes128-sha2_256;dh31
  esp=aes128-sha2_256
  pfs=no
  leftupdown=%disabled
  auto=add
`)
	s.write("ipsec.secrets", s.end.Addr(false).String()+" "+there.end.Addr(false).String()+` : PSK "only for this test"`+"\n")
	nss := filepath.Join(s.dir, "nss")
	if err := os.Mkdir(nss, 0o700); err != nil {
		s.t.Fatal(err)
	}
	if out, err := s.run("certutil", "-N", "-d", "sql:"+nss, "--empty-password"); err != nil {
		s.t.Fatalf("certutil: %v: %s", err, out)
	}
	s.charon, _ = s.background("unshare", "-m", "sh", "-c", `mount -t tmpfs tmpfs /run && mkdir /run/pluto &&
mount -t tmpfs tmpfs /usr/libexec && mkdir /usr/libexec/ipsec && mount --bind `+libreswan+`/usr/libexec/ipsec /usr/libexec/ipsec && exec "$@"`, "sh",
		program, "exec", "--socket", s.dir+"/exec.sock", "--", "/usr/libexec/ipsec/pluto", "--nofork", "--config", s.dir+"/ipsec.conf",
		"--secretsfile", s.dir+"/ipsec.secrets", "--nssdir", nss, "--rundir", s.dir, "--logfile", s.dir+"/pluto.log")
	s.logs = append(s.logs, s.dir+"/pluto.log")
	until(s.t, "pluto takes its connection", func() bool {
		select {
		case <-s.charon.Done():
			s.t.Fatalf("pluto in %s ended by itself: %v", s.ns.Role(), s.charon.Err())
		default:
		}
		out, err := s.run(libreswan+"/usr/libexec/ipsec/addconn", "--ctlsocket", s.dir+"/pluto.ctl", "--config", s.dir+"/ipsec.conf", "net")
		return err == nil && !strings.Contains(out, "failed")
	})
}

func (s *side) whack(args ...string) string {
	s.t.Helper()
	out, err := s.run("timeout", append([]string{"30", libreswan + "/usr/libexec/ipsec/whack", "--ctlsocket", s.dir + "/pluto.ctl"}, args...)...)
	if err != nil {
		s.t.Fatalf("whack %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// libreswan under culvert exec makes a tunnel with strongSwan as strongSwan does: traffic passes both ways, it is rekeyed from both sides,
// and nothing is in the clear.
func TestStrongSwanLibreswan(t *testing.T) {
	long(t)
	judge.Need(t, "certutil", libreswan+"/usr/libexec/ipsec/pluto")
	w := prepare(t, options{local: "10.1.0.0/24", remote: "10.2.0.0/24"})
	w.a.startGateway()
	w.b.startCharon()
	w.a.startPluto(w.b)
	wire := w.capture()
	w.a.whack("--initiate", "--name", "net")
	until(t, "the CHILD_SA is installed", func() bool { return len(w.b.installed()) == 1 && w.a.status().IKE.SAs == 2 })
	w.ping(w.EthA, w.EthB, false, 20)
	w.ping(w.EthB, w.EthA, false, 20)
	w.sendFile(w.EthA, w.EthB, false, 5<<20)
	w.sendFile(w.EthB, w.EthA, false, 5<<20)
	for _, rekey := range []func(){
		func() { w.a.whack("--rekey-ipsec", "--name", "net") },
		func() { w.b.must("--rekey", "--child", "net") },
	} {
		before := w.b.installed()
		rekey()
		until(t, "another CHILD_SA alone is installed", func() bool {
			now := w.b.installed()
			return len(now) == 1 && now[0] != before[0] && w.a.status().IKE.SAs == 2
		})
		w.ping(w.EthA, w.EthB, false, 20)
		w.ping(w.EthB, w.EthA, false, 20)
	}
	w.a.whack("--terminate", "--name", "net")
	until(t, "the SAs and policies are gone", func() bool { return w.a.status().IKE.SAs == 0 })
	if clear, all := wire.clear(); clear != 0 || all < 1000 {
		t.Errorf("%d of %d packets on the wire are in the clear", clear, all)
	}
	if st := w.a.status(); !st.Balanced || st.IKE.Failures != 0 {
		t.Errorf("%+v", st)
	}
}
