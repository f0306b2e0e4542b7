package traffic

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// Stamp is what a flood packet carries at the start of its UDP payload, big-endian: 16 bits trial, 48 bits number, and 64 bits time
// of sending in ns, on a clock that only this process knows.
type Stamp struct {
	Trial  uint16
	Number uint64 // < 1<<48
	Sent   int64
}

const (
	stampLen  = 16
	numberBit = 48
)

// MinPacket is the smallest flood packet of a family, in bytes of IP packet: headers and stamp.
func MinPacket(v6 bool) int {
	if v6 {
		return 40 + 8 + stampLen
	}
	return 20 + 8 + stampLen
}

// template is an Ethernet frame with a UDP packet whose stamp is to be written, and what that takes.
type template struct {
	frame []byte
	stamp int    // offset of the stamp
	csum  int    // offset of the UDP checksum
	base  uint64 // ones'-complement sum of all that the UDP checksum covers but the stamp
}

// flow names the ends of a flood.
type flow struct {
	srcMAC, dstMAC net.HardwareAddr
	src, dst       netip.AddrPort
}

// newTemplate builds a frame whose IP packet has size bytes.
func newTemplate(f flow, size int) (*template, error) {
	v6 := f.dst.Addr().Is6()
	if size < MinPacket(v6) {
		return nil, fmt.Errorf("an IP packet of %d bytes cannot hold headers and stamp: at least %d", size, MinPacket(v6))
	}
	t := &template{}
	eth := &layers.Ethernet{SrcMAC: f.srcMAC, DstMAC: f.dstMAC}
	udp := &layers.UDP{SrcPort: layers.UDPPort(f.src.Port()), DstPort: layers.UDPPort(f.dst.Port())}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	}
	if v6 {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: f.src.Addr().AsSlice(), DstIP: f.dst.Addr().AsSlice()}
		t.stamp = 14 + 40 + 8
	} else {
		eth.EthernetType = layers.EthernetTypeIPv4
		ip = &layers.IPv4{Version: 4, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolUDP, SrcIP: f.src.Addr().AsSlice(), DstIP: f.dst.Addr().AsSlice()}
		t.stamp = 14 + 20 + 8
	}
	t.csum = t.stamp - 2
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		return nil, err
	}
	buf := gopacket.NewSerializeBuffer()
	payload := make(gopacket.Payload, size-(t.stamp-14))
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, udp, payload)
	if err != nil {
		return nil, err
	}
	t.frame = buf.Bytes()
	// The stamp is still zero, so the checksum's complement is the sum of everything else.
	t.base = uint64(^binary.BigEndian.Uint16(t.frame[t.csum:]))
	return t, nil
}

// put writes a stamp into a frame made from the template, and the checksum.
func (t *template) put(frame []byte, s Stamp) {
	w1, w2 := uint64(s.Trial)<<numberBit|s.Number&(1<<numberBit-1), uint64(s.Sent)
	p := frame[t.stamp : t.stamp+stampLen]
	binary.BigEndian.PutUint64(p, w1)
	binary.BigEndian.PutUint64(p[8:], w2)
	sum := t.base + w1>>32 + w1&0xffffffff + w2>>32 + w2&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	c := ^uint16(sum)
	if c == 0 {
		c = 0xffff // zero means that there is no checksum (RFC 768)
	}
	binary.BigEndian.PutUint16(frame[t.csum:], c)
}

// parseStamp reads the stamp from a UDP payload.
func parseStamp(p []byte) (Stamp, bool) {
	if len(p) < stampLen {
		return Stamp{}, false
	}
	w := binary.BigEndian.Uint64(p)
	return Stamp{uint16(w >> numberBit), w & (1<<numberBit - 1), int64(binary.BigEndian.Uint64(p[8:]))}, true
}
