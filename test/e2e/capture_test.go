package e2e

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"culvert/test/judge"
	"culvert/test/lab"
)

// capture is a running tcpdump.
type capture struct {
	t      *testing.T
	proc   *lab.Process
	file   string
	stderr string
}

// startCapture has tcpdump write what passes an interface, in either direction, from now on.
func startCapture(t *testing.T, ns *lab.Namespace, device string, more ...string) *capture {
	t.Helper()
	judge.Need(t, "tcpdump")
	c := &capture{t: t, file: filepath.Join(t.TempDir(), "wire.pcap")}
	// Every packet is written at once; the buffer holds what comes while the machine is busy.
	args := append([]string{"-i", device, "-w", c.file, "-U", "--immediate-mode", "-n", "-Z", "root", "-B", "65536"}, more...)
	c.proc, _, c.stderr = background(t, ns, "tcpdump", args...)
	until(t, "tcpdump listens", func() bool {
		text, err := os.ReadFile(c.stderr)
		return err == nil && strings.Contains(string(text), "listening on")
	})
	return c
}

var droppedByKernel = regexp.MustCompile(`(\d+) packets? dropped by kernel`)

// stop ends the capture and gives its packets. It fails the test if tcpdump missed any: what was not seen proves nothing.
func (c *capture) stop() [][]byte {
	c.t.Helper()
	if err := syscall.Kill(c.proc.Pid(), syscall.SIGINT); err != nil {
		c.t.Fatal(err)
	}
	select {
	case <-c.proc.Done():
	case <-time.After(patience):
		c.t.Fatal("tcpdump does not end")
	}
	text, err := os.ReadFile(c.stderr)
	if err != nil {
		c.t.Fatal(err)
	}
	if m := droppedByKernel.FindSubmatch(text); m == nil || string(m[1]) != "0" {
		c.t.Fatalf("tcpdump did not see everything: %s", text)
	}
	packets, err := judge.ReadPcap(c.file)
	if err != nil {
		c.t.Fatal(err)
	}
	return packets
}

// kind is what a packet on the outer wire is.
type kind int

const (
	other     kind = iota
	esp            // protocol 50, or UDP port 4500 with an SPI
	keepalive      // RFC 3948 section 2.3
	icmpError      // from a gateway to a gateway, about an ESP packet
	quiet          // what any IPv6 link carries: neighbour and router discovery, group membership
)

// outer dissects a captured packet as far as the tests need.
func outer(p []byte) (k kind, src, dst netip.Addr) {
	if len(p) < 20 {
		return other, src, dst
	}
	var proto byte
	var payload []byte
	switch p[0] >> 4 {
	case 4:
		src, dst = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		proto, payload = p[9], p[min(len(p), int(p[0]&15)*4):]
		if binary.BigEndian.Uint16(p[6:])&0x1fff != 0 && (proto == 50 || proto == 17) {
			return esp, src, dst // a later fragment; its first one was judged
		}
	case 6:
		if len(p) < 40 {
			return other, src, dst
		}
		src, dst = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		proto, payload = p[6], p[40:]
		if proto == 0 && len(payload) >= 8 { // hop-by-hop options, before group membership
			proto, payload = payload[0], payload[min(len(payload), 8+8*int(payload[1])):]
		}
		if proto == 44 && len(payload) >= 8 {
			if binary.BigEndian.Uint16(payload[2:])&0xfff8 != 0 {
				return esp, src, dst
			}
			proto, payload = payload[0], payload[8:]
		}
	}
	switch {
	case proto == 50:
		return esp, src, dst
	case proto == 17 && len(payload) >= 8 && (binary.BigEndian.Uint16(payload) == 4500 || binary.BigEndian.Uint16(payload[2:]) == 4500):
		data := payload[8:min(len(payload), max(8, int(binary.BigEndian.Uint16(payload[4:]))))]
		if len(data) == 1 && data[0] == 0xff {
			return keepalive, src, dst
		}
		if len(data) >= 8 && binary.BigEndian.Uint32(data) >= 256 {
			return esp, src, dst
		}
	case proto == 1 && len(payload) > 0 && (payload[0] == 3 || payload[0] == 11):
		return icmpError, src, dst
	case proto == 58 && len(payload) > 0 && payload[0] < 128:
		return icmpError, src, dst
	case proto == 58 && len(payload) > 0 && payload[0] >= 130 && payload[0] <= 143:
		return quiet, src, dst
	}
	return other, src, dst
}

// inLAN reports whether an address is one of the protected networks'.
func inLAN(a netip.Addr) bool {
	for _, p := range append(lab.LANA[:], lab.LANB[:]...) {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// onlyESP fails the test unless every packet is ESP between the gateways, or what belongs to it, and none has the mark in it. It gives
// the number of ESP packets.
func onlyESP(t *testing.T, packets [][]byte, mark string) (n int) {
	t.Helper()
	bad := 0
	for _, p := range packets {
		k, src, dst := outer(p)
		if k == esp {
			n++
		}
		if k == other || inLAN(src) || inLAN(dst) || mark != "" && strings.Contains(string(p), mark) {
			if bad++; bad <= 5 {
				t.Errorf("on the wire in the clear: %v to %v: %x", src, dst, p[:min(len(p), 128)])
			}
		}
	}
	if bad > 5 {
		t.Errorf("and %d more", bad-5)
	}
	return n
}
