package judge

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"culvert/offload"
)

// SA is what a judge is told about one direction of a tunnel.
type SA struct {
	Transform *offload.Transform
	Keys      offload.Keys
	SPI       uint32
	Src, Dst  netip.Addr // the outer addresses
	// SrcPort and DstPort are the ports of ESP in UDP (RFC 3948); both are 0 for native ESP.
	SrcPort, DstPort uint16
}

// UDP reports whether packets of the SA are in UDP.
func (s SA) UDP() bool { return s.SrcPort != 0 || s.DstPort != 0 }

// packages names the Debian package of each tool that a judge or a test runs.
var packages = map[string]string{
	"tshark":           "tshark",
	"tcpdump":          "tcpdump",
	"iperf3":           "iperf3",
	"ping":             "iputils-ping",
	"ip":               "iproute2",
	"/usr/bin/python3": "python3-scapy",
}

// Need skips the test, saying what is missing and how to get it, unless all of the tools are installed.
func Need(tb testing.TB, tools ...string) {
	tb.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			tb.Skipf("%s is not installed (apt-get install %s): %v", tool, packages[tool], err)
		}
	}
}

// Encapsulate puts an ESP packet into the outer headers of its SA, as it would be on the wire. Over IPv4 the UDP checksum is zero, as
// RFC 3948 section 2.1 would have it; over IPv6 it is computed.
func (s SA) Encapsulate(esp []byte) []byte {
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	var ls []gopacket.SerializableLayer
	proto := layers.IPProtocolESP
	if s.UDP() {
		proto = layers.IPProtocolUDP
	}
	var network gopacket.NetworkLayer
	if s.Dst.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: s.Src.AsSlice(), DstIP: s.Dst.AsSlice()}
		network = ip
		ls = append(ls, ip)
	} else {
		ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: s.Src.AsSlice(), DstIP: s.Dst.AsSlice()}
		network = ip
		ls = append(ls, ip)
	}
	if s.UDP() {
		udp := &layers.UDP{SrcPort: layers.UDPPort(s.SrcPort), DstPort: layers.UDPPort(s.DstPort)}
		if err := udp.SetNetworkLayerForChecksum(network); err != nil {
			panic(err) // both kinds of network layer are known to it
		}
		ls = append(ls, udp)
	}
	if err := gopacket.SerializeLayers(buf, opts, append(ls, gopacket.Payload(esp))...); err != nil {
		panic(err) // only lengths beyond 64 KB fail
	}
	out := buf.Bytes()
	if s.UDP() && s.Dst.Is4() {
		out[26], out[27] = 0, 0
	}
	return out
}

// ESP finds the ESP packet in a whole outer IP packet (IPv4 without options, or IPv6 without extension headers; in UDP or not). It is
// for packets that Culvert or a judge made, which have no others.
func ESP(outer []byte) ([]byte, error) {
	if len(outer) < 20 {
		return nil, fmt.Errorf("judge: %d bytes are no IP packet", len(outer))
	}
	var head int
	var proto byte
	switch outer[0] >> 4 {
	case 4:
		head, proto = int(outer[0]&15)*4, outer[9]
		if n := int(binary.BigEndian.Uint16(outer[2:])); n <= len(outer) {
			outer = outer[:n]
		}
	case 6:
		head, proto = 40, outer[6]
	default:
		return nil, fmt.Errorf("judge: IP version %d", outer[0]>>4)
	}
	if proto == 17 {
		head += 8
	} else if proto != 50 {
		return nil, fmt.Errorf("judge: protocol %d is not ESP", proto)
	}
	if len(outer) < head+8 {
		return nil, fmt.Errorf("judge: %d bytes are too short for ESP", len(outer))
	}
	return outer[head:], nil
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }
