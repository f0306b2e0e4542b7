package divert

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"culvert/xfrm/server"
)

// vishvananda is a program that uses a Go netlink library, which wants AF_NETLINK in each sender's address. The test binary is that
// program too.
func vishvananda() error {
	want := &netlink.XfrmState{
		Src: net.IPv4(192, 0, 2, 1), Dst: net.IPv4(192, 0, 2, 2), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL, Spi: 0x1001, Reqid: 7,
		Aead: &netlink.XfrmStateAlgo{Name: "rfc4106(gcm(aes))", Key: bytes.Repeat([]byte{0xab}, 20), ICVLen: 128},
	}
	if err := netlink.XfrmStateAdd(want); err != nil {
		return fmt.Errorf("XfrmStateAdd: %w", err)
	}
	if err := netlink.XfrmStateAdd(want); err == nil || !os.IsExist(err) {
		return fmt.Errorf("XfrmStateAdd a second time: %v", err)
	}
	all, err := netlink.XfrmStateList(netlink.FAMILY_ALL)
	if err != nil || len(all) != 1 || all[0].Spi != want.Spi || !all[0].Dst.Equal(want.Dst) {
		return fmt.Errorf("XfrmStateList: %v %v", all, err)
	}
	pol := &netlink.XfrmPolicy{
		Src: &net.IPNet{IP: net.IPv4(10, 1, 0, 0), Mask: net.CIDRMask(16, 32)}, Dst: &net.IPNet{IP: net.IPv4(10, 2, 0, 0), Mask: net.CIDRMask(16, 32)},
		Dir:   netlink.XFRM_DIR_OUT,
		Tmpls: []netlink.XfrmPolicyTmpl{{Src: want.Src, Dst: want.Dst, Proto: want.Proto, Mode: want.Mode, Reqid: 7}},
	}
	if err := netlink.XfrmPolicyAdd(pol); err != nil {
		return fmt.Errorf("XfrmPolicyAdd: %w", err)
	}
	if all, err := netlink.XfrmPolicyList(netlink.FAMILY_ALL); err != nil || len(all) != 1 || all[0].Dst.String() != "10.2.0.0/16" {
		return fmt.Errorf("XfrmPolicyList: %v %v", all, err)
	}
	if err := netlink.XfrmPolicyDel(pol); err != nil {
		return fmt.Errorf("XfrmPolicyDel: %w", err)
	}
	if err := netlink.XfrmStateDel(want); err != nil {
		return fmt.Errorf("XfrmStateDel: %w", err)
	}
	// What is not XFRM's works as ever.
	if _, err := netlink.LinkByName("lo"); err != nil {
		return fmt.Errorf("LinkByName: %w", err)
	}
	return nil
}

// An unmodified user of vishvananda/netlink works with compat; without it, the library refuses the answers, which shows what
// compat is for.
func TestVishvananda(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, server.Config{})
	for range 5 {
		r.run("compat", self, "divert-vishvananda")
	}
	if n := r.sup.Stats().Sockets.Load(); n < 5*6 {
		t.Errorf("%d sockets were diverted", n)
	}
	if code, out := r.code("plain", self, "divert-vishvananda"); code == 0 || !strings.Contains(out, "XfrmStateAdd") {
		t.Errorf("without compat: exit code %d: %s", code, out)
	}
}
