package strongswan

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A static tunnel and strongSwan's beside it, between the same gateways: IPv4 goes through the one and IPv6 through the other. Reloads
// that change the static one lose no packet of strongSwan's, and an SPI that strongSwan's SA has is refused.
func TestStrongSwanBesideStatic(t *testing.T) {
	long(t)
	w := prepare(t, options{both: true, local: "fd00:1::/64", remote: "fd00:2::/64"})
	static := func(s *side, here, there netip.Addr, local, remote, out, in string) {
		conf := s.read("culvert.toml")
		conf, _, _ = strings.Cut(conf, "[[tunnel]]")
		s.write("culvert.toml", conf+fmt.Sprintf(`[[tunnel]]
name = "static"
local = %q
remote = %q
local_port = 4501
remote_port = 4501
transform = "rfc4106(gcm(aes))"
local_subnets = [%q]
remote_subnets = [%q]
out = {spi = %s, enc_key = "aa0%s02030405060708090a0b0c0d0e0f10111213"}
in = {spi = %s, enc_key = "bb0%s02030405060708090a0b0c0d0e0f10111213"}
`, here, there, local, remote, out, out[len(out)-2:len(out)-1], in, in[len(in)-2:len(in)-1]))
	}
	a, b := w.a.end.Addr(false), w.b.end.Addr(false)
	write := func(out, in string) {
		static(w.a, a, b, "10.1.0.0/24", "10.2.0.0/24", out, in)
		// The other side's directions are the other way round, and so are its keys.
		static(w.b, b, a, "10.2.0.0/24", "10.1.0.0/24", in, out)
		conf := w.b.read("culvert.toml")
		w.b.write("culvert.toml", strings.NewReplacer(`"aa0`, `"bb0`, `"bb0`, `"aa0`).Replace(conf))
	}
	write("0x1001", "0x1002")
	w.a.startGateway()
	w.b.startGateway()
	w.a.startCharon()
	w.b.startCharon()
	w.up()
	w.ping(w.EthA, w.EthB, false, 5)
	w.ping(w.EthA, w.EthB, true, 5)
	if list := w.a.culvertSays("sa", "list", "--json"); strings.Count(list, `"origin": "static"`) != 2 || strings.Count(list, `"origin": "ike"`) != 2 {
		t.Errorf("culvert sa list --json:\n%s", list)
	}
	v6 := w.flow(w.EthA, w.EthB, true)
	for i := range 3 {
		write(fmt.Sprintf("0x20%d1", i), fmt.Sprintf("0x20%d2", i))
		for _, s := range []*side{w.a, w.b} {
			if err := syscall.Kill(s.gw.Pid(), syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			until(t, "the static tunnel has its new SPIs", func() bool { return strings.Contains(s.culvertSays("sa", "list"), fmt.Sprintf("0x000020%d1", i)) })
		}
		w.flows("through the static tunnel")
	}
	v6.lossless("strongSwan's tunnel during reloads")

	spi := w.a.installed()[0]
	write("0x3001", "0x"+spi)
	if err := syscall.Kill(w.a.gw.Pid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	until(t, "the reload is refused", func() bool { return strings.Contains(w.a.culvertSays("status"), "REFUSED") })
	time.Sleep(100 * time.Millisecond)
	w.ping(w.EthA, w.EthB, true, 5)
	w.ping(w.EthA, w.EthB, false, 5)
	if text := w.a.culvertSays("status"); !strings.Contains(text, "routes and guard in place") || !strings.Contains(text, spi+": it is there already, made by the IKE daemon") {
		t.Errorf("culvert status:\n%s", text)
	}
}
