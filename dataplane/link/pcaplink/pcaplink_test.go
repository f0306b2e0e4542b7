package pcaplink

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"go.uber.org/goleak"

	"culvert/dataplane/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ip serializes an IP packet between test addresses.
func ip(t testing.TB, v6 bool, proto layers.IPProtocol, l4 ...gopacket.SerializableLayer) []byte {
	t.Helper()
	var l3 gopacket.SerializableLayer = &layers.IPv4{Version: 4, TTL: 64, TOS: 0xb9, Protocol: proto, SrcIP: []byte{192, 0, 2, 1}, DstIP: []byte{192, 0, 2, 2}}
	if v6 {
		l3 = &layers.IPv6{Version: 6, HopLimit: 64, TrafficClass: 0xb9, NextHeader: proto, SrcIP: net.ParseIP("2001:db8::1"), DstIP: net.ParseIP("2001:db8::2")}
	}
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, append([]gopacket.SerializableLayer{l3}, l4...)...))
	return bytes.Clone(buf.Bytes())
}

func udp(t testing.TB, v6 bool, src, dst layers.UDPPort, payload string) []byte {
	return ip(t, v6, layers.IPProtocolUDP, &layers.UDP{SrcPort: src, DstPort: dst}, gopacket.Payload(payload))
}

func esp(t testing.TB, v6 bool, payload string) []byte {
	return ip(t, v6, layers.IPProtocolESP, gopacket.Payload(payload))
}

// frame puts before an IP packet what a link type does.
func frame(linkType uint32, p []byte) []byte {
	v6 := p[0]>>4 == 6
	ether := []byte{0x08, 0x00}
	family := uint32(2)
	if v6 {
		ether, family = []byte{0x86, 0xdd}, 10
	}
	switch linkType {
	case linkEthernet:
		return append(append(make([]byte, 12), ether...), p...)
	case linkNull:
		return append(binary.LittleEndian.AppendUint32(nil, family), p...)
	case linkLoop:
		return append(binary.BigEndian.AppendUint32(nil, family), p...)
	case linkSLL:
		return append(append(make([]byte, 14), ether...), p...)
	case linkSLL2:
		return append(append(bytes.Clone(ether), make([]byte, 18)...), p...)
	}
	return p
}

func pcapOf(t testing.TB, linkType uint32, frames ...[]byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := pcapgo.NewWriter(&buf)
	must(t, w.WriteFileHeader(65535, layers.LinkTypeEthernet))
	for _, f := range frames {
		must(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 2), CaptureLength: len(f), Length: len(f)}, f))
	}
	binary.LittleEndian.PutUint32(buf.Bytes()[20:], linkType) // layers' type has 8 bits
	return buf.Bytes()
}

// swap turns a little-endian pcap into a big-endian one.
func swap(b []byte) []byte {
	b = bytes.Clone(b)
	turn := func(off, n int) {
		for i, j := off, off+n-1; i < j; i, j = i+1, j-1 {
			b[i], b[j] = b[j], b[i]
		}
	}
	for _, f := range [][2]int{{0, 4}, {4, 2}, {6, 2}, {8, 4}, {12, 4}, {16, 4}, {20, 4}} {
		turn(f[0], f[1])
	}
	for off := 24; off < len(b); {
		n := int(binary.LittleEndian.Uint32(b[off+8:]))
		for i := range 4 {
			turn(off+4*i, 4)
		}
		off += 16 + n
	}
	return b
}

func packets(c *Capture) (p [][]byte) {
	for i := range c.Len() {
		p = append(p, c.Packet(i))
	}
	return p
}

func loaded(t testing.TB, b []byte) *Capture {
	t.Helper()
	c, err := Load(bytes.NewReader(b))
	must(t, err)
	return c
}

func same(t *testing.T, got [][]byte, want ...[]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d packets, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("packet %d is %x, want %x", i, got[i], want[i])
		}
	}
}

// Every link type gives the same IP packets, in both byte orders and packed.
func TestLoadPcap(t *testing.T) {
	want := [][]byte{udp(t, false, 1, 2, "four"), udp(t, true, 3, 4, "six")}
	for _, l := range []uint32{linkNull, linkEthernet, linkRaw12, linkRaw14, linkRaw, linkLoop, linkSLL, linkIPv4, linkIPv6, linkSLL2} {
		t.Run(fmt.Sprint(l), func(t *testing.T) {
			b := pcapOf(t, l, frame(l, want[0]), frame(l, want[1]))
			var z bytes.Buffer
			zw := gzip.NewWriter(&z)
			zw.Write(b)
			zw.Close()
			for _, b := range [][]byte{b, swap(b), z.Bytes()} {
				c := loaded(t, b)
				same(t, packets(c), want...)
				if c.NotIP+c.Truncated+c.Malformed != 0 {
					t.Errorf("%+v", c)
				}
			}
		})
	}
}

// pcapng: several interfaces of different link types, several sections, blocks of other kinds, simple packets.
func TestLoadNg(t *testing.T) {
	want := [][]byte{udp(t, false, 1, 2, "four"), udp(t, true, 3, 4, "six")}
	var buf bytes.Buffer
	for range 2 {
		w, err := pcapgo.NewNgWriterInterface(&buf, pcapgo.NgInterface{Name: "eth0", Comment: "odd", LinkType: layers.LinkTypeEthernet}, pcapgo.DefaultNgWriterOptions)
		must(t, err)
		id, err := w.AddInterface(pcapgo.NgInterface{LinkType: layers.LinkTypeRaw})
		must(t, err)
		f := frame(linkEthernet, want[0])
		must(t, w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(f), Length: len(f)}, f))
		must(t, w.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{PacketsReceived: 3}))
		must(t, w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(want[1]), Length: len(want[1]), InterfaceIndex: id}, want[1]))
		must(t, w.Flush())
	}
	f := frame(linkEthernet, want[0])
	for len(f)%4 != 0 {
		f = append(f, 0)
	}
	n := uint32(16 + len(f))
	for _, v := range []uint32{blockSimple, n, uint32(len(f))} {
		buf.Write(binary.LittleEndian.AppendUint32(nil, v))
	}
	buf.Write(f)
	buf.Write(binary.LittleEndian.AppendUint32(nil, n))
	c := loaded(t, buf.Bytes())
	same(t, packets(c), want[0], want[1], want[0], want[1], want[0])
	if c.NotIP+c.Truncated+c.Malformed != 0 {
		t.Errorf("%+v", c)
	}
	// big-endian, by hand
	be := func(vs ...uint32) (b []byte) {
		for _, v := range vs {
			b = binary.BigEndian.AppendUint32(b, v)
		}
		return b
	}
	p := want[0]
	b := be(blockSection, 28, 0x1a2b3c4d, 0x00010000, 0xffffffff, 0xffffffff, 28)
	b = append(b, be(blockInterface, 20, linkRaw<<16, 0, 20)...)
	b = append(b, be(blockEnhanced, 32+uint32(len(p)), 0, 0, 0, uint32(len(p)), uint32(len(p)))...)
	b = append(append(b, p...), be(32+uint32(len(p)))...)
	same(t, packets(loaded(t, b)), p)
}

// What is no whole IP packet is left out and counted by cause; padding of the frame is cut off.
func TestLoadCounts(t *testing.T) {
	p, p6 := udp(t, false, 1, 2, "four"), udp(t, true, 1, 2, "six")
	vlan := append(append(make([]byte, 12), 0x88, 0xa8, 0, 1, 0x81, 0, 0, 2), frame(linkEthernet, p)[12:]...)
	arp := append(append(make([]byte, 12), 8, 6), make([]byte, 28)...)
	short := frame(linkEthernet, p)[:40]
	bad := frame(linkEthernet, p)
	bad[14] = 0x42
	tso, tso6 := frame(linkEthernet, p), frame(linkEthernet, p6)
	tso[16], tso[17], tso6[18], tso6[19] = 0, 0, 0, 0
	b := pcapOf(t, linkEthernet, append(frame(linkEthernet, p), 0, 0, 0), vlan, arp, short, bad, make([]byte, 5), tso, tso6)
	// As the last: one that the capture cut short.
	h := make([]byte, 16)
	binary.LittleEndian.PutUint32(h[8:], 40)
	binary.LittleEndian.PutUint32(h[12:], 100)
	b = append(append(b, h...), short...)
	c := loaded(t, b)
	same(t, packets(c), p, p, p, p6)
	if c.NotIP != 2 || c.Malformed != 2 || c.Truncated != 1 {
		t.Errorf("%d not IP, %d malformed, %d truncated", c.NotIP, c.Malformed, c.Truncated)
	}
	// A file whose writer was killed holds all up to there.
	c = loaded(t, b[:len(b)-10])
	if c.Len() != 4 || c.Truncated != 1 {
		t.Errorf("%d packets, %d truncated", c.Len(), c.Truncated)
	}
}

// What is no capture says so, with the file and the place.
func TestLoadErrors(t *testing.T) {
	huge := pcapOf(t, linkRaw, []byte("x"))
	binary.LittleEndian.PutUint32(huge[32:], 1<<30)
	for _, b := range [][]byte{nil, []byte("abc"), []byte("a text, and no capture at all"), huge, {0x1f, 0x8b, 9}, {0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 1, 2, 3, 4}} {
		path := filepath.Join(t.TempDir(), "x.pcap")
		must(t, os.WriteFile(path, b, 0o600))
		if _, err := LoadFile(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%x: %v", b, err)
		} else if !errors.Is(err, ErrFormat) && b[0] != 0x1f {
			t.Errorf("%x: %v", b, err)
		}
	}
	many := pcapOf(t, linkRaw, esp(t, false, "one"), esp(t, false, "two"))
	if _, err := load(bytes.NewReader(many), int64(len(many))); err != nil {
		t.Error(err)
	}
	if _, err := load(bytes.NewReader(many), int64(len(many))-1); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
	if _, err := LoadFile("/nonexistent"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// The packets come in order, as often as asked for, and then the end; the caller may change them.
func TestInnerReplay(t *testing.T) {
	want := [][]byte{udp(t, false, 1, 2, "four"), udp(t, true, 3, 4, "six")}
	l := NewInner(loaded(t, pcapOf(t, linkRaw, want...)), nil, InnerOptions{Rounds: 3})
	defer l.Close()
	r := l.NewReader()
	for i := range 6 {
		p, h, err := r.Next(i%2 == 0)
		if err != nil || h != (link.VNet{}) || !bytes.Equal(p, want[i%2]) {
			t.Fatalf("%d: %x %+v %v", i, p, h, err)
		}
		clear(p)
	}
	for _, wait := range []bool{true, false} {
		if _, _, err := r.Next(wait); !errors.Is(err, io.EOF) || !errors.Is(err, net.ErrClosed) || err != ErrEnd {
			t.Error(err)
		}
	}
	empty := NewInner(new(Capture), nil, InnerOptions{Rounds: 9})
	if _, _, err := empty.NewReader().Next(true); err != ErrEnd {
		t.Error(err)
	}
}

// Without a capture readers wait, until the link is closed or stops reading.
func TestIdle(t *testing.T) {
	for _, stop := range []func(link.Inner, link.Outer){
		func(i link.Inner, o link.Outer) { i.Close(); o.Close() },
		func(i link.Inner, o link.Outer) { i.StopReading(); o.StopReading() },
	} {
		i, o := NewInner(nil, nil, InnerOptions{}), NewOuter(nil, nil, OuterOptions{})
		ri, ro := i.NewReader(), o.NewReader()
		b := ro.NewBatch()
		if _, _, err := ri.Next(false); err != link.ErrAgain {
			t.Error(err)
		}
		if err := ro.Recv(b, false); err != link.ErrAgain {
			t.Error(err)
		}
		done := make(chan error, 2)
		go func() { _, _, err := ri.Next(true); done <- err }()
		go func() { done <- ro.Recv(b, true) }()
		select {
		case err := <-done:
			t.Fatal("did not wait:", err)
		case <-time.After(10 * time.Millisecond):
		}
		stop(i, o)
		for range 2 {
			if err := <-done; err != net.ErrClosed {
				t.Error(err)
			}
		}
		i.Close()
		o.Close()
		if _, open := <-o.Notices(); open {
			t.Error("Notices is open")
		}
	}
}

// An outer link gets the ESP that is for its address and port, in UDP or not, with where it came from.
func TestOuterReplay(t *testing.T) {
	frag := esp(t, false, "fragment")
	frag[6] = 0x20
	hop := ip(t, true, layers.IPProtocolIPv6HopByHop, gopacket.Payload("\x32\x00\x01\x04\x00\x00\x00\x00after options"))
	c := loaded(t, pcapOf(t, linkRaw,
		esp(t, false, "plain four"), esp(t, true, "plain six"), udp(t, false, 1234, 4500, "in udp four"), udp(t, true, 4500, 4500, "in udp six"),
		udp(t, false, 4500, 1234, "answer"), udp(t, false, 53, 53, "no ESP"), ip(t, false, layers.IPProtocolTCP, gopacket.Payload("no UDP")), frag, hop))
	for _, v := range []struct {
		local string
		want  []string
	}{
		{"", []string{"plain four", "plain six", "in udp four", "in udp six", "answer", "after options"}},
		{"192.0.2.2:0", []string{"plain four", "in udp four", "answer"}},
		{"192.0.2.2:4500", []string{"in udp four"}},
		{"0.0.0.0:1234", []string{"answer"}},
		{"[2001:db8::2]:0", []string{"plain six", "in udp six", "after options"}},
		{"192.0.2.1:4500", nil},
	} {
		var o OuterOptions
		if v.local != "" {
			o.Local = netip.MustParseAddrPort(v.local)
		}
		l := NewOuter(c, nil, o)
		r := l.NewReader()
		b := r.NewBatch()
		var got []string
		for r.Recv(b, true) == nil {
			for _, m := range b.Msgs {
				got = append(got, string(m.Buf))
				from := netip.MustParseAddr("192.0.2.1")
				if m.To.Is6() {
					from = netip.MustParseAddr("2001:db8::1")
				}
				port := map[string]uint16{"in udp four": 1234, "in udp six": 4500, "answer": 4500}[string(m.Buf)]
				if m.From != netip.AddrPortFrom(from, port) || m.TOS != 0xb9 || m.SegSize != 0 {
					t.Errorf("%+v", m)
				}
				clear(m.Buf)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(v.want) {
			t.Errorf("%s: %q, want %q", v.local, got, v.want)
		}
		if l.Fragments != 1 || l.Len() != len(v.want) {
			t.Errorf("%s: %d fragments, %d datagrams", v.local, l.Fragments, l.Len())
		}
		if err := r.Recv(b, false); err != ErrEnd {
			t.Error(err)
		}
	}
}

// What is written reads back the same: super-packets as packets of the wire, datagrams with their headers, one by one.
// tcpdump and tshark find every checksum right.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.pcap")
	w, err := Create(path)
	must(t, err)
	tick := time.Unix(1_700_000_000, 0)
	w.Clock = func() time.Time { tick = tick.Add(time.Millisecond); return tick }
	in := NewInner(nil, w, InnerOptions{})
	defer in.Close()
	big := udp(t, false, 5, 6, strings.Repeat("payload.", 300))
	h := link.VNet{NeedsCsum: true, GSO: link.GSOUDPL4, GSOSize: 1000, HdrLen: 28, CsumStart: 20, CsumOffset: 6}
	iw := in.NewWriter()
	must(t, iw.Queue(h, [][]byte{big[:28], big[28:]}))
	if n, err := iw.Flush(); n != 0 || err != nil {
		t.Error(n, err)
	}
	for _, bad := range [][]byte{nil, make([]byte, 65536)} {
		if err := iw.Queue(link.VNet{}, [][]byte{bad}); err != link.ErrInvalid {
			t.Error(err)
		}
	}
	out := NewOuter(nil, w, OuterOptions{Local: netip.MustParseAddrPort("192.0.2.1:4500")})
	defer out.Close()
	buf := make([]byte, 250)
	for i := range buf {
		buf[i] = byte(i)
	}
	msgs := []link.TxMsg{
		{To: netip.MustParseAddrPort("192.0.2.2:4500"), Buf: buf, SegSize: 100, TOS: 0xb9},
		{To: netip.MustParseAddrPort("192.0.2.2:0"), Buf: buf, Fragment: true},
		{To: netip.MustParseAddrPort("[2001:db8::2]:4500"), From: netip.MustParseAddr("2001:db8::1"), Buf: buf[:99], TOS: 0xb9},
		{To: netip.MustParseAddrPort("[2001:db8::2]:0"), From: netip.MustParseAddr("2001:db8::1"), Buf: buf},
		{To: netip.MustParseAddrPort("[2001:db8::2]:0"), Buf: buf}, // from an IPv4 address
		{To: netip.MustParseAddrPort("192.0.2.2:4500"), Buf: make([]byte, 65508)},
		{To: netip.MustParseAddrPort("192.0.2.2:4500")},
	}
	must(t, out.NewWriter().Send(msgs))
	for i, want := range []error{nil, nil, nil, nil, link.ErrInvalid, link.ErrTooBig, link.ErrInvalid} {
		if msgs[i].Err != want || msgs[i].Failed != 0 != (want != nil) {
			t.Errorf("message %d: %d × %v, want %v", i, msgs[i].Failed, msgs[i].Err, want)
		}
	}
	must(t, w.Close())
	if err := w.Write(big); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if w.Packets() != 9 {
		t.Errorf("%d packets", w.Packets())
	}

	c, err := LoadFile(path)
	must(t, err)
	if c.Len() != 9 || c.Malformed+c.NotIP+c.Truncated != 0 {
		t.Fatalf("%d packets, %+v", c.Len(), *c)
	}
	for i, n := range []int{1028, 1028, 428} {
		if len(c.Packet(i)) != n {
			t.Errorf("packet %d has %d bytes, want %d", i, len(c.Packet(i)), n)
		}
	}
	back := NewOuter(c, nil, OuterOptions{})
	r := back.NewReader()
	b := r.NewBatch()
	must(t, r.Recv(b, true))
	var got []string
	for _, m := range b.Msgs {
		got = append(got, fmt.Sprint(m.From, m.To, m.TOS, len(m.Buf)))
	}
	want := []string{
		"192.0.2.1:4500 192.0.2.2 185 100", "192.0.2.1:4500 192.0.2.2 185 100", "192.0.2.1:4500 192.0.2.2 185 50",
		"192.0.2.1:0 192.0.2.2 0 250", "[2001:db8::1]:4500 2001:db8::2 185 99", "[2001:db8::1]:0 2001:db8::2 0 250",
	}
	for i, s := range want {
		if i >= len(got) || strings.ReplaceAll(got[i], " ", "") != strings.ReplaceAll(s, " ", "") {
			t.Errorf("%q, want %q", got, want)
			break
		}
	}

	t.Run("pcapgo", func(t *testing.T) {
		f, err := os.Open(path)
		must(t, err)
		defer f.Close()
		r, err := pcapgo.NewReader(f)
		must(t, err)
		if r.LinkType() != layers.LinkTypeRaw {
			t.Errorf("link type %v", r.LinkType())
		}
		for i := range 9 {
			p, ci, err := r.ReadPacketData()
			if err != nil || !bytes.Equal(p, c.Packet(i)) || ci.Timestamp.Sub(time.Unix(1_700_000_000, 0)) != time.Duration(i+1)*time.Millisecond {
				t.Errorf("packet %d: %v %v", i, ci, err)
			}
		}
	})
	t.Run("tcpdump", func(t *testing.T) {
		text := run(t, "tcpdump", "-nvvr", path)
		if strings.Contains(text, "bad") || strings.Count(text, "ESP(") < 2 || !strings.Contains(text, "DF") {
			t.Error(text)
		}
	})
	t.Run("tshark", func(t *testing.T) {
		text := run(t, "tshark", "-nr", path, "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-T", "fields",
			"-e", "ip.checksum.status", "-e", "udp.checksum.status", "-e", "esp.spi", "-e", "frame.protocols")
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if len(lines) != 9 || strings.Contains(text, "malformed") {
			t.Fatal(text)
		}
		for _, l := range lines {
			f := strings.Split(l, "\t")
			if f[0] == "0" || f[1] == "0" { // 1 is good, 2 not checked
				t.Errorf("checksum: %q", l)
			}
			if strings.Contains(l, "esp") && f[2] == "" {
				t.Errorf("no SPI: %q", l)
			}
		}
	})
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip(err)
	}
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatal(name, err)
	}
	return string(out)
}

// A file that cannot be written fails the packets, and Close says why.
func TestWriteError(t *testing.T) {
	w, err := NewWriter(failing{})
	must(t, err)
	iw := NewInner(nil, w, InnerOptions{}).NewWriter()
	ow := NewOuter(nil, w, OuterOptions{}).NewWriter()
	p := esp(t, false, strings.Repeat("x", 1000))
	for range 100 {
		err = iw.Queue(link.VNet{}, [][]byte{p})
	}
	if err != link.ErrOther {
		t.Error(err)
	}
	m := []link.TxMsg{{To: netip.MustParseAddrPort("192.0.2.2:0"), Buf: p}}
	if err := ow.Send(m); err != nil || m[0].Err != link.ErrOther {
		t.Error(err, m[0].Err)
	}
	if err := w.Close(); !errors.Is(err, errFull) {
		t.Error(err)
	}
	if err := w.Close(); !errors.Is(err, errFull) {
		t.Error("the second time:", err)
	}
}

var errFull = errors.New("disk full")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFull }

// Replaying does not allocate, once it has gone round.
func TestNoAllocation(t *testing.T) {
	c := loaded(t, pcapOf(t, linkRaw, esp(t, false, "one"), udp(t, true, 4500, 4500, "two")))
	i, o := NewInner(c, nil, InnerOptions{Rounds: 1e9}), NewOuter(c, nil, OuterOptions{Rounds: 1e9})
	ri, ro, wi, wo := i.NewReader(), o.NewReader(), i.NewWriter(), o.NewWriter()
	b := ro.NewBatch()
	parts := make([][]byte, 1)
	msgs := []link.TxMsg{{To: netip.MustParseAddrPort("192.0.2.2:4500"), Buf: make([]byte, 1000), SegSize: 100}}
	round := func() {
		for range 2 {
			p, h, err := ri.Next(true)
			must(t, err)
			parts[0] = p
			must(t, wi.Queue(h, parts))
		}
		must(t, ro.Recv(b, true))
		must(t, wo.Send(msgs))
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// No file makes Load panic, hang or ask for much; what it returns are packets as long as they say, and can be replayed.
// Classic files that pcapgo reads to the end give the same number of frames here.
func FuzzLoad(f *testing.F) {
	p, p6 := udp(f, false, 4500, 4500, "four"), esp(f, true, "six")
	for _, l := range []uint32{linkNull, linkEthernet, linkRaw, linkLoop, linkSLL, linkSLL2} {
		b := pcapOf(f, l, frame(l, p), frame(l, p6))
		f.Add(b)
		f.Add(swap(b))
	}
	var ng bytes.Buffer
	w, err := pcapgo.NewNgWriter(&ng, layers.LinkTypeRaw)
	must(f, err)
	must(f, w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(p), Length: len(p)}, p))
	must(f, w.Flush())
	f.Add(ng.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 2 && b[0] == 0x1f && b[1] == 0x8b {
			return // what gzip makes of it is gzip's
		}
		c, err := Load(bytes.NewReader(b))
		if err != nil {
			return
		}
		for i := range c.Len() {
			if n, err := ipLength(c.Packet(i)); err != nil || n != len(c.Packet(i)) {
				t.Fatalf("packet %d of %d bytes: %d %v", i, len(c.Packet(i)), n, err)
			}
		}
		l := NewOuter(c, nil, OuterOptions{})
		r := l.NewReader()
		batch := r.NewBatch()
		for n := 0; ; n += len(batch.Msgs) {
			if err := r.Recv(batch, true); err != nil {
				if n != l.Len() {
					t.Fatalf("%d of %d datagrams", n, l.Len())
				}
				break
			}
		}
		if r, err := pcapgo.NewReader(bytes.NewReader(b)); err == nil {
			r.SetSnaplen(maxFrame) // it would make a buffer of whatever size the file says
			frames := 0
			for {
				if _, _, err := r.ReadPacketData(); err == io.EOF {
					break
				} else if err != nil {
					return
				}
				frames++
			}
			n := c.Len() + c.NotIP + c.Malformed + c.Truncated
			if n != frames && (n != frames+1 || c.Truncated == 0) { // pcapgo does not see that the last has a header only
				t.Fatalf("%d frames here, %d in pcapgo", n, frames)
			}
		}
	})
}
