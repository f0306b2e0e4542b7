package dataplane

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

func mssOption(v uint16) []byte { return []byte{2, 4, byte(v >> 8), byte(v)} }

// What is clamped, and what is left alone: changed packets still have a right checksum and differ in nothing else.
func TestClampMSS(t *testing.T) {
	const syn, ack, rst = 0x02, 0x10, 0x04
	for _, c := range []struct {
		name    string
		flags   byte
		options []byte
		want    []byte // options afterwards; nil: unchanged
	}{
		{"SYN", syn, mssOption(1460), mssOption(1300)},
		{"SYN-ACK", syn | ack, mssOption(65535), mssOption(1300)},
		{"SYN with ECN", syn | tcpECE | tcpCWR, mssOption(1460), mssOption(1300)},
		{"as Linux sends it", syn,
			[]byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7},
			[]byte{2, 4, 5, 0x14, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7}},
		{"behind one NOP, at an odd place", syn, append([]byte{1}, append(mssOption(1460), 0, 0, 0)...), append([]byte{1}, append(mssOption(1300), 0, 0, 0)...)},
		{"behind an option of 3", syn, append([]byte{3, 3, 7}, append(mssOption(0xff00), 1)...), append([]byte{3, 3, 7}, append(mssOption(1300), 1)...)},
		{"the last option", syn, append([]byte{1, 1, 1, 1}, mssOption(1460)...), append([]byte{1, 1, 1, 1}, mssOption(1300)...)},
		{"one above", syn, mssOption(1301), mssOption(1300)},
		{"already that", syn, mssOption(1300), nil},
		{"smaller", syn, mssOption(536), nil},
		{"no SYN", ack, mssOption(1460), nil},
		{"SYN and RST", syn | rst, mssOption(1460), nil},
		{"no options", syn, []byte{}, nil},
		{"no MSS", syn, []byte{1, 1, 4, 2}, nil},
		{"behind the end of options", syn, append([]byte{0, 0, 0, 0}, mssOption(1460)...), nil},
		{"length 3", syn, []byte{2, 3, 5, 0xb4}, nil},
		{"length 6", syn, []byte{2, 6, 5, 0xb4, 0, 0, 1, 1}, nil},
		{"length 0", syn, []byte{2, 0, 5, 0xb4}, nil},
		{"length 1 before", syn, append([]byte{5, 1, 1, 1}, mssOption(1460)...), nil},
		{"length 0 before", syn, append([]byte{5, 0, 1, 1}, mssOption(1460)...), nil},
		{"kind without length", syn, []byte{1, 1, 1, 2}, nil},
		{"cut by the end of the header", syn, []byte{1, 1, 2, 4}, nil},
		{"another option beyond the end", syn, []byte{8, 10, 1, 1, 2, 4, 5, 0xb4}, nil},
	} {
		for _, v6 := range []bool{false, true} {
			// With data behind the header, which is no option whatever it looks like.
			w := wirePacket{v6: v6, ttl: 64, sport: 1, dport: 2, seq: 3, flags: c.flags, options: c.options, payload: mssOption(9000)}
			if v6 {
				w.destOptions = 1
			} else {
				w.ipOptions = []byte{1, 1, 1, 0}
			}
			p := w.build(false)
			if changed := clampMSS(p, 1300); changed != (c.want != nil) {
				t.Errorf("%s, IPv6 %v: changed is %v", c.name, v6, changed)
			}
			if c.want != nil {
				w.options = c.want
			}
			if want := w.build(false); !bytes.Equal(p, want) {
				t.Errorf("%s, IPv6 %v:\n% x, want\n% x", c.name, v6, p, want)
			}
			mustJudge(t, w.build(false), c.name)
		}
	}
}

// What is no whole TCP packet is left alone.
func TestClampMSSOthers(t *testing.T) {
	w := wirePacket{ttl: 64, flags: 2, options: mssOption(1460)}
	tcp := w.build(false)[20:]
	short := bytes.Clone(tcp)
	short[12] = 0x40 // a header of 16 bytes
	long := bytes.Clone(tcp)
	long[12] = 0xf0
	for name, p := range map[string][]byte{
		"empty":                 nil,
		"UDP":                   ipv4(17, 0, nil, tcp),
		"first fragment":        ipv4(6, 0x2000, nil, tcp),
		"later fragment":        ipv4(6, 0x0001, nil, tcp),
		"IPv6 first fragment":   ipv6(6, tcp, fragment(0, true)),
		"IPv6 later fragment":   ipv6(6, tcp, fragment(8, false)),
		"cut short":             ipv4(6, 0, nil, tcp)[:40],
		"TCP cut short":         ipv4(6, 0, nil, tcp[:19]),
		"data offset too small": ipv4(6, 0, nil, short),
		"data offset too large": ipv4(6, 0, nil, long),
		"behind ESP":            ipv6(50, tcp),
	} {
		before := bytes.Clone(p)
		if clampMSS(p, 1000) || !bytes.Equal(p, before) {
			t.Errorf("%s: changed", name)
		}
	}
	// What follows the packet in its buffer is not looked at.
	w.options = []byte{1, 1, 1, 1}
	p := w.build(false)
	p[32] = 0x70 // options of 8 bytes, of which only 4 are there
	if clampMSS(append(p, mssOption(1460)...), 1000) {
		t.Error("an option was found behind the packet")
	}
}

// The incremental checksum is what summing afresh gives, for every old and new value, at even and odd places.
func TestClampMSSChecksum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawPacket(t)
		w.udp, w.flags = false, 2
		w.payload = fill(rapid.IntRange(0, 5).Draw(t, "payload"), 3)
		old := rapid.Uint16().Draw(t, "old")
		nops := rapid.IntRange(0, 7).Draw(t, "nops")
		options := func(v uint16) []byte {
			o := append(bytes.Repeat([]byte{1}, nops), mssOption(v)...)
			return append(o, make([]byte, -len(o)&3)...)
		}
		w.options = options(old)
		p := w.build(false)
		mss := rapid.OneOf(rapid.Uint16(), rapid.SampledFrom([]uint16{0, 1, 0xfffe, 0xffff})).Draw(t, "mss")
		if changed := clampMSS(p, int(mss)); changed != (old > mss) {
			t.Fatalf("changed is %v for %d to %d", changed, old, mss)
		}
		w.options = options(min(old, mss))
		if want := w.build(false); !bytes.Equal(p, want) {
			t.Fatalf("% x, want % x", p, want)
		}
	})
}

func TestMSSFor(t *testing.T) {
	v4, v6 := ipv4(6, 0, nil, nil), ipv6(6, nil)
	for _, c := range []struct {
		p         []byte
		mtu, want int
	}{
		{v4, 1500, 1460}, {v6, 1500, 1440}, {v4, 1438, 1398}, {v6, 1280, 1220}, {v4, 576, 536}, {v4, 60, 48}, {v6, 0, 48}, {v4, -5, 48},
	} {
		if got := mssFor(c.p, c.mtu); got != c.want {
			t.Errorf("IPv%d, MTU %d: %d, want %d", c.p[0]>>4, c.mtu, got, c.want)
		}
	}
}

// Whatever the packet, only the MSS and the checksum change, to a smaller and a matching value.
func FuzzClampMSS(f *testing.F) {
	w := wirePacket{ttl: 64, flags: 2, options: append([]byte{1}, append(mssOption(1460), 3, 3, 7)...)}
	f.Add(w.build(false), uint16(1200))
	w.v6, w.destOptions = true, 1
	f.Add(w.build(false), uint16(48))
	f.Fuzz(func(t *testing.T, p []byte, mss uint16) {
		before := bytes.Clone(p)
		var h ipHeader
		bad := h.parse(p) != nil
		if !clampMSS(p, int(mss)) {
			if !bytes.Equal(p, before) {
				t.Fatal("changed, but says that it was not")
			}
			return
		}
		if bad || h.proto != protoTCP || h.fragment {
			t.Fatalf("changed a packet that is none of TCP: %+v", h)
		}
		src, dst := addresses(p)
		sum := func(p []byte) uint16 {
			n := h.total - h.transport
			s := refSum(refPseudo(src, dst, 6, n), p[h.transport:h.total])
			if s == 0xffff {
				s = 0
			}
			return s
		}
		// A right checksum stays right, and a wrong one as wrong as it was.
		if sum(p) != sum(before) {
			t.Fatalf("the sum was %#04x and is %#04x", sum(before), sum(p))
		}
		found := -1
		for i := range p {
			if p[i] != before[i] && i != h.transport+16 && i != h.transport+17 {
				if found < 0 {
					found = i
				}
				if i > found+1 {
					t.Fatalf("bytes %d and %d were changed", found, i)
				}
			}
		}
		if found < h.transport+22 {
			t.Fatalf("byte %d was changed", found)
		}
		// The first of the changed bytes is that of the option, or its second if the first was right.
		for _, at := range []int{found, found - 1} {
			if p[at-2] == 2 && p[at-1] == 4 && binary.BigEndian.Uint16(p[at:]) == mss && binary.BigEndian.Uint16(before[at:]) > mss {
				return
			}
		}
		t.Fatalf("no MSS of %d at %d: % x", mss, found, p[h.transport:h.total])
	})
}

func TestClampMSSAllocs(t *testing.T) {
	w := wirePacket{ttl: 64, flags: 2, options: mssOption(1460)}
	p, mss := w.build(false), 1400
	if n := testing.AllocsPerRun(100, func() { clampMSS(p, mss); mss-- }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkClampMSS(b *testing.B) {
	for _, c := range []struct {
		name  string
		flags byte
	}{{"syn", 2}, {"data", tcpACK}} {
		b.Run(c.name, func(b *testing.B) {
			w := wirePacket{ttl: 64, flags: c.flags, options: mssOption(0xffff)}
			p := w.build(false)
			at := len(p) - 2
			for b.Loop() {
				p[at] = 0xff
				clampMSS(p, 1400)
			}
			reportPackets(b, 1, len(p))
		})
	}
}
