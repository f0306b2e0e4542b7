package traffic

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"
)

// What put writes is what gopacket decodes: the addresses and ports asked for, the length asked for, the stamp, and the checksums
// that gopacket computes when it builds the same packet itself.
func TestPacketAgainstGopacket(t *testing.T) {
	f4 := flow{net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}, netip.MustParseAddrPort("10.1.0.2:40000"), netip.MustParseAddrPort("10.2.0.2:7")}
	f6 := f4
	f6.src, f6.dst = netip.MustParseAddrPort("[fd00:1::2]:40000"), netip.MustParseAddrPort("[fd00:2::2]:7")
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom([]flow{f4, f6}).Draw(t, "flow")
		v6 := f.dst.Addr().Is6()
		size := rapid.IntRange(MinPacket(v6), 1500).Draw(t, "size")
		tm, err := newTemplate(f, size)
		if err != nil {
			t.Fatal(err)
		}
		frame := bytes.Clone(tm.frame)
		// Put twice: the second stamp must not depend on the first.
		for range 2 {
			s := Stamp{rapid.Uint16().Draw(t, "trial"), rapid.Uint64Max(1<<numberBit-1).Draw(t, "number"), rapid.Int64Min(0).Draw(t, "sent")}
			tm.put(frame, s)
			verify(t, frame, f, size, s)
		}
	})
}

func verify(t *rapid.T, frame []byte, f flow, size int, s Stamp) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		t.Fatal(e.Error())
	}
	eth := p.LinkLayer().(*layers.Ethernet)
	udp := p.TransportLayer().(*layers.UDP)
	if eth.SrcMAC.String() != f.srcMAC.String() || eth.DstMAC.String() != f.dstMAC.String() {
		t.Fatalf("from %v to %v", eth.SrcMAC, eth.DstMAC)
	}
	if len(frame) != max(14+size, 60) /* the shortest on Ethernet */ || len(udp.Payload) != size-(len(p.NetworkLayer().LayerContents())+8) || p.NetworkLayer().NetworkFlow().Src().String() != f.src.Addr().String() || p.NetworkLayer().NetworkFlow().Dst().String() != f.dst.Addr().String() {
		t.Fatalf("%d bytes, %v", len(frame)-14, p.NetworkLayer().NetworkFlow())
	}
	if uint16(udp.SrcPort) != f.src.Port() || uint16(udp.DstPort) != f.dst.Port() {
		t.Fatalf("ports %v", udp.TransportFlow())
	}
	if got, ok := parseStamp(udp.Payload); !ok || got != s {
		t.Fatalf("stamp %+v, want %+v", got, s)
	}
	if udp.Checksum == 0 {
		t.Fatal("no UDP checksum")
	}
	have := udp.Checksum
	if err := udp.SetNetworkLayerForChecksum(p.NetworkLayer()); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, p.NetworkLayer().(gopacket.SerializableLayer), udp, gopacket.Payload(udp.Payload))
	if err != nil {
		t.Fatal(err)
	}
	if udp.Checksum == 0 {
		udp.Checksum = 0xffff // gopacket leaves out RFC 768's substitution
	}
	if have != udp.Checksum {
		t.Fatalf("checksum %#x, gopacket computes %#x", have, udp.Checksum)
	}
	// Everything but that checksum, byte by byte.
	want := buf.Bytes()
	at := 14 + size - len(udp.Payload) - 2
	copy(want[at:at+2], frame[at:at+2])
	if !bytes.Equal(want, frame) {
		t.Fatalf("frame\n%x, gopacket builds\n%x", frame, want)
	}
}
