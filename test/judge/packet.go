package judge

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"culvert/offload"
)

// Rand is a source of numbers that depends on the name only, so that a failure comes back.
func Rand(name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(h.Sum64(), 1))
}

// Bytes fills n bytes from r.
func Bytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// ExampleKeys are keys for a transform that depend on its name only.
func ExampleKeys(t *offload.Transform, esn bool) offload.Keys {
	r := Rand("keys of " + t.ID())
	return offload.Keys{Enc: Bytes(r, t.EncKeyLen()), Auth: Bytes(r, t.AuthKeyLen), ESN: esn}
}

// UDP is a whole IP packet of either family, with right checksums.
func UDP(src, dst netip.AddrPort, payload []byte) []byte {
	udp := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
	return packet(src.Addr(), dst.Addr(), layers.IPProtocolUDP, func(n gopacket.NetworkLayer) []gopacket.SerializableLayer {
		if err := udp.SetNetworkLayerForChecksum(n); err != nil {
			panic(err)
		}
		return []gopacket.SerializableLayer{udp, gopacket.Payload(payload)}
	})
}

// TCP is a whole IP packet of either family with the given segment, with right checksums.
func TCP(src, dst netip.AddrPort, seq uint32, payload []byte) []byte {
	tcp := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Seq: seq, Ack: 1, ACK: true, Window: 1000}
	return packet(src.Addr(), dst.Addr(), layers.IPProtocolTCP, func(n gopacket.NetworkLayer) []gopacket.SerializableLayer {
		if err := tcp.SetNetworkLayerForChecksum(n); err != nil {
			panic(err)
		}
		return []gopacket.SerializableLayer{tcp, gopacket.Payload(payload)}
	})
}

// Ping is a whole ICMP or ICMPv6 echo request.
func Ping(src, dst netip.Addr, id, seq uint16, payload []byte) []byte {
	body := make([]byte, 4, 4+len(payload))
	binary.BigEndian.PutUint16(body, id)
	binary.BigEndian.PutUint16(body[2:], seq)
	body = append(body, payload...)
	if src.Is4() {
		return packet(src, dst, layers.IPProtocolICMPv4, func(gopacket.NetworkLayer) []gopacket.SerializableLayer {
			icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: id, Seq: seq}
			return []gopacket.SerializableLayer{icmp, gopacket.Payload(payload)}
		})
	}
	return packet(src, dst, layers.IPProtocolICMPv6, func(n gopacket.NetworkLayer) []gopacket.SerializableLayer {
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
		if err := icmp.SetNetworkLayerForChecksum(n); err != nil {
			panic(err)
		}
		return []gopacket.SerializableLayer{icmp, gopacket.Payload(body)}
	})
}

func packet(src, dst netip.Addr, proto layers.IPProtocol, above func(gopacket.NetworkLayer) []gopacket.SerializableLayer) []byte {
	var network interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	}
	if src.Is4() {
		network = &layers.IPv4{Version: 4, TTL: 64, Id: 7, Protocol: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	} else {
		network = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	ls := append([]gopacket.SerializableLayer{network}, above(network)...)
	if err := gopacket.SerializeLayers(buf, opts, ls...); err != nil {
		panic(err) // only lengths beyond 64 KB fail
	}
	return buf.Bytes()
}
