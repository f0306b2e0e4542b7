package segment

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"culvert/dataplane/link"
)

// build makes a packet with the checksum of its transport header left undone, as the kernel hands up a super-packet.
func build(t testing.TB, v6, udp bool, payload []byte) ([]byte, link.VNet) {
	t.Helper()
	var ip gopacket.SerializableLayer
	var pseudo gopacket.NetworkLayer
	proto := layers.IPProtocolTCP
	if udp {
		proto = layers.IPProtocolUDP
	}
	h := link.VNet{NeedsCsum: true, CsumStart: 20}
	if v6 {
		l := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: bytes.Repeat([]byte{0x20}, 16), DstIP: bytes.Repeat([]byte{0xfd}, 16)}
		ip, pseudo, h.CsumStart = l, l, 40
	} else {
		l := &layers.IPv4{Version: 4, TTL: 64, Id: 0xfffe, Protocol: proto, SrcIP: []byte{192, 0, 2, 1}, DstIP: []byte{192, 0, 2, 2}}
		ip, pseudo = l, l
	}
	var l4 gopacket.SerializableLayer
	if udp {
		u := &layers.UDP{SrcPort: 1, DstPort: 2}
		u.SetNetworkLayerForChecksum(pseudo)
		l4, h.GSO, h.CsumOffset, h.HdrLen = u, link.GSOUDPL4, 6, h.CsumStart+8
	} else {
		u := &layers.TCP{SrcPort: 1, DstPort: 2, Seq: 0xfffffff0, Ack: 5, ACK: true, PSH: true, FIN: true, CWR: true, Window: 9,
			Options: []layers.TCPOption{{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: []byte("timestam")}}}
		u.SetNetworkLayerForChecksum(pseudo)
		l4, h.GSO, h.CsumOffset, h.HdrLen = u, link.GSOTCP4, 16, h.CsumStart+32
		if v6 {
			h.GSO = link.GSOTCP6
		}
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, l4, gopacket.Payload(payload)); err != nil {
		t.Fatal(err)
	}
	p := buf.Bytes()
	binary.BigEndian.PutUint16(p[int(h.CsumStart)+int(h.CsumOffset):], 0xdead)
	return p, h
}

// Every segment is a packet that gopacket finds right in all lengths and checksums; together they carry the payload.
func TestSegments(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			payload := make([]byte, 3333)
			for i := range payload {
				payload[i] = byte(i * 7)
			}
			p, h := build(t, v6, udp, payload)
			h.GSOSize = 1000
			var s Segmenter
			if err := s.Reset(p, h); err != nil {
				t.Fatal(err)
			}
			var got []byte
			for i := 0; s.More(); i++ {
				wire := s.Next(nil)
				first := gopacket.LayerType(layers.LayerTypeIPv4)
				if v6 {
					first = layers.LayerTypeIPv6
				}
				d := gopacket.NewPacket(wire, first, gopacket.Default)
				if d.ErrorLayer() != nil {
					t.Fatal(d.ErrorLayer().Error())
				}
				last := i == 3
				if l, ok := d.Layer(layers.LayerTypeIPv4).(*layers.IPv4); ok && (int(l.Length) != len(wire) || l.Id != uint16(0xfffe+i) || fold(sum(0, wire[:20])) != 0xffff) {
					t.Errorf("segment %d: %+v", i, l)
				}
				if l, ok := d.Layer(layers.LayerTypeIPv6).(*layers.IPv6); ok && int(l.Length) != len(wire)-40 {
					t.Errorf("segment %d: %+v", i, l)
				}
				if l, ok := d.Layer(layers.LayerTypeTCP).(*layers.TCP); ok {
					if l.Seq != 0xfffffff0+uint32(i*1000) || l.FIN != last || l.PSH != last || l.CWR != (i == 0) || !l.ACK {
						t.Errorf("segment %d: %+v", i, l)
					}
				}
				if l, ok := d.Layer(layers.LayerTypeUDP).(*layers.UDP); ok && int(l.Length) != len(wire)-int(h.CsumStart) {
					t.Errorf("segment %d: %+v", i, l)
				}
				// A packet whose checksum is right comes out of gopacket's own computation unchanged.
				again := gopacket.NewSerializeBuffer()
				if l, ok := d.TransportLayer().(interface {
					SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
				}); ok {
					l.SetNetworkLayerForChecksum(d.NetworkLayer())
				}
				if err := gopacket.SerializePacket(again, gopacket.SerializeOptions{ComputeChecksums: true}, d); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(again.Bytes(), wire) {
					t.Errorf("v6 %v udp %v segment %d: a checksum is wrong", v6, udp, i)
				}
				got = append(got, d.TransportLayer().LayerPayload()...)
			}
			if !bytes.Equal(got, payload) {
				t.Errorf("v6 %v udp %v: %d of %d bytes of payload", v6, udp, len(got), len(payload))
			}
		}
	}
}

// A header that contradicts the packet is refused, whatever it is; nothing panics.
func FuzzSegment(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			p, h := build(f, v6, udp, make([]byte, 3000))
			f.Add(p, h.NeedsCsum, uint8(h.GSO), h.GSOSize, h.CsumStart, h.CsumOffset)
			f.Add(p, h.NeedsCsum, uint8(h.GSO), uint16(1000), h.CsumStart, h.CsumOffset)
		}
	}
	f.Fuzz(func(t *testing.T, p []byte, need bool, gso uint8, size, start, offset uint16) {
		var s Segmenter
		h := link.VNet{NeedsCsum: need, GSO: link.GSOType(gso % 4), GSOSize: size, CsumStart: start, CsumOffset: offset}
		if s.Reset(p, h) != nil {
			return
		}
		n, total := 0, 0
		for ; s.More(); n++ {
			total += len(s.Next(nil))
		}
		if n == 0 || total < len(p) {
			t.Errorf("%d packets of %d bytes from %d", n, total, len(p))
		}
	})
}

// A packet that is none of several only has its checksum finished.
func TestFinish(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			p, h := build(t, v6, udp, []byte("an odd one."))
			h.GSO, h.GSOSize = link.GSONone, 0
			addrs, proto := p[12:20], uint32(layers.IPProtocolTCP)
			if v6 {
				addrs = p[8:40]
			}
			if udp {
				proto = uint32(layers.IPProtocolUDP)
			}
			at := int(h.CsumStart) + int(h.CsumOffset)
			binary.BigEndian.PutUint16(p[at:], fold(sum(proto+uint32(len(p))-uint32(h.CsumStart), addrs))) // of the pseudo-header
			var s Segmenter
			if err := s.Reset(p, h); err != nil {
				t.Fatal(err)
			}
			got := s.Next(nil)
			if s.More() {
				t.Error("there is more")
			}
			whole := fold(sum(sum(proto+uint32(len(p))-uint32(h.CsumStart), addrs), got[h.CsumStart:]))
			if whole != 0xffff {
				t.Errorf("v6 %v udp %v: checksum %#x", v6, udp, got[at:at+2])
			}
		}
	}
}
