package configs

import (
	"net/netip"
	"testing"

	"culvert/offload"
)

// TestInnerMTU holds the sizes against a table that was computed by hand from RFC 4303 section 2 and RFC 3948: the longest
// inner packet for each transform, outer MTU, and outer IPv4, IPv4+UDP, IPv6 and IPv6+UDP. And it checks that each is the
// longest: one byte more would make the packet longer than the outer MTU.
func TestInnerMTU(t *testing.T) {
	const aes, des = "cbc(aes)", "cbc(des3_ede)"
	mtus := [3]int{1500, 1492, 1400}
	for _, row := range []struct {
		auths  []string
		cipher string
		want   [3][4]int
	}{
		{[]string{"sha1", "md5"}, aes, [3][4]int{{1438, 1422, 1422, 1406}, {1422, 1422, 1406, 1406}, {1342, 1326, 1310, 1310}}},
		{[]string{"sha256"}, aes, [3][4]int{{1438, 1422, 1406, 1406}, {1422, 1422, 1406, 1390}, {1326, 1326, 1310, 1310}}},
		{[]string{"sha384"}, aes, [3][4]int{{1422, 1422, 1406, 1390}, {1422, 1406, 1390, 1390}, {1326, 1310, 1310, 1294}}},
		{[]string{"sha512"}, aes, [3][4]int{{1422, 1406, 1390, 1390}, {1406, 1406, 1390, 1374}, {1310, 1310, 1294, 1294}}},
		{[]string{"sha1", "md5"}, des, [3][4]int{{1446, 1438, 1430, 1422}, {1438, 1430, 1422, 1414}, {1350, 1342, 1326, 1318}}},
		{[]string{"sha256"}, des, [3][4]int{{1446, 1438, 1422, 1414}, {1438, 1430, 1414, 1406}, {1342, 1334, 1326, 1318}}},
	} {
		for _, auth := range row.auths {
			name := "authenc(hmac(" + auth + ")," + row.cipher + ")"
			for _, tr := range offload.Transforms() {
				if tr.Name != name || tr.ICVLen == 12 && auth == "sha256" {
					continue // the row is of the RFC's truncation
				}
				for m, mtu := range mtus {
					for col, want := range row.want[m] {
						tn := Tunnel{Transform: tr, Link: LinkESP, Local: netip.MustParseAddr("192.0.2.1")}
						overhead := 20
						if col >= 2 {
							tn.Local, overhead = netip.MustParseAddr("2001:db8::1"), 40
						}
						if col%2 == 1 {
							tn.Link, overhead = LinkUDP, overhead+8
						}
						got := tn.InnerMTU(mtu)
						if got != want {
							t.Errorf("%v at %d, column %d: %d, want %d", tr, mtu, col, got, want)
						}
						if overhead+tr.SealedLen(got) > mtu || overhead+tr.SealedLen(got+1) <= mtu {
							t.Errorf("%v at %d, column %d: %d is not the longest", tr, mtu, col, got)
						}
						tn.OuterMTU = mtu
						if tn.InnerMTU(9000) != want {
							t.Errorf("%v: the tunnel's outer MTU does not go before the interface's", tr)
						}
					}
				}
			}
		}
	}
}
