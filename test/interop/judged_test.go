package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"culvert/offload"
	"culvert/test/judge"
)

// wires are the four ways in which an ESP packet travels.
var wires = []struct {
	name     string
	src, dst netip.Addr
	port     uint16
}{
	{"v4", netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 0},
	{"v4-udp", netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 4500},
	{"v6", netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), 0},
	{"v6-udp", netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), 4500},
}

var (
	left4, right4 = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.2.0.1")
	left6, right6 = netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("fd00:2::1")
)

// innerPackets are of both families and several protocols, with lengths that leave every remainder modulo the longest block, from
// an empty datagram to a full packet.
func innerPackets() (all [][]byte) {
	r := judge.Rand("inner packets")
	for n := range 16 {
		all = append(all, judge.UDP(netip.AddrPortFrom(left4, 1000), netip.AddrPortFrom(right4, 2000), judge.Bytes(r, n)))
	}
	return append(all,
		judge.Ping(left4, right4, 1, 2, judge.Bytes(r, 56)),
		judge.TCP(netip.AddrPortFrom(left4, 40000), netip.AddrPortFrom(right4, 9), 7, judge.Bytes(r, 1350)),
		judge.Ping(left6, right6, 3, 4, judge.Bytes(r, 9)),
		judge.UDP(netip.AddrPortFrom(left6, 1000), netip.AddrPortFrom(right6, 2000), judge.Bytes(r, 1280)),
	)
}

func nextHeader(inner []byte) byte {
	if inner[0]>>4 == 6 {
		return 41
	}
	return 4
}

// sealed is one packet that an engine of ours sealed, with what it was made of.
type sealed struct {
	sa      judge.SA
	seq     uint64
	iv      []byte
	inner   []byte
	nextHdr byte
	wire    []byte // the whole outer IP packet
}

// sealAll has an engine seal every inner packet with every transform, over every kind of wire, each with an SPI of its own.
func sealAll(t *testing.T, e offload.Engine, transforms []*offload.Transform, esn bool, inner [][]byte) (out []sealed) {
	t.Helper()
	spi := uint32(0x10000)
	for _, tr := range transforms {
		r := judge.Rand("IVs of " + tr.ID())
		for _, w := range wires {
			sa := judge.SA{Transform: tr, Keys: judge.ExampleKeys(tr, esn), SPI: spi, Src: w.src, Dst: w.dst, SrcPort: w.port, DstPort: w.port}
			spi++
			// With ESN, a high half that is not zero: it must be authenticated.
			seq := uint64(1)
			if esn {
				seq = 3<<32 + 5
			}
			var packets [][]byte
			from := len(out)
			for _, p := range inner {
				iv := judge.Bytes(r, tr.IVLen)
				esp := unsealed(tr, sa.SPI, uint32(seq), iv, p, nil, nextHeader(p))
				packets = append(packets, esp)
				out = append(out, sealed{sa: sa, seq: seq, iv: iv, inner: p, nextHdr: nextHeader(p)})
				seq++
			}
			for i, s := range work(t, e, tr, offload.Seal, sa.Keys, uint32(seq>>32), packets...) {
				if s != offload.OK {
					t.Fatalf("%s seals with %s: %s", e.Name(), tr, s)
				}
				out[from+i].wire = sa.Encapsulate(packets[i])
			}
		}
	}
	return out
}

// bySA groups packets that follow each other with the same SA.
func bySA(all []sealed) (groups [][]sealed) {
	for i, s := range all {
		if i == 0 || all[i-1].sa.SPI != s.sa.SPI {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], s)
	}
	return groups
}

// tshark finds what every engine seals authentic, and decrypts it to the inner packet byte for byte: every transform that tshark
// knows, both families outside and inside, with UDP and without; and it finds padding, IV and sequence number to be what they should.
func TestTsharkOpensOurs(t *testing.T) {
	for e, transforms := range admitted(t) {
		t.Run(e.Name(), func(t *testing.T) {
			var known []*offload.Transform
			for _, tr := range transforms {
				if err := judge.TsharkKnows(tr, false); err != nil {
					t.Logf("not judged: %s: %v", tr, err)
					continue
				}
				known = append(known, tr)
			}
			all := sealAll(t, e, known, false, innerPackets())
			var sas []judge.SA
			var packets [][]byte
			for _, g := range bySA(all) {
				sas = append(sas, g[0].sa)
			}
			for _, s := range all {
				packets = append(packets, s.wire)
			}
			got := judge.Tshark(t, judge.WritePcap(t, packets), sas...)
			if len(got) != len(all) {
				t.Fatalf("tshark saw %d of %d packets", len(got), len(all))
			}
			for i, d := range got {
				s := all[i]
				what := fmt.Sprintf("%s to %s, UDP %v, %d bytes", s.sa.Transform, s.sa.Dst, s.sa.UDP(), len(s.inner))
				switch {
				case !d.ESP || d.SPI != s.sa.SPI || uint64(d.Seq) != s.seq:
					t.Errorf("%s: tshark sees %+v", what, d)
				case !d.ICVGood || d.ICVBad:
					t.Errorf("%s: tshark finds the ICV wrong", what)
				case !bytes.Equal(d.Inner, s.inner) || d.NextHeader != s.nextHdr:
					t.Errorf("%s: tshark decrypts to %d: %x, want %d: %x", what, d.NextHeader, d.Inner, s.nextHdr, s.inner)
				case s.sa.Transform.IVLen > 0 && !bytes.Equal(d.IV, s.iv):
					t.Errorf("%s: tshark reads the IV %x, want %x", what, d.IV, s.iv)
				}
				for k, b := range d.Pad {
					if int(b) != k+1 {
						t.Errorf("%s: the padding is %x (RFC 4303 section 2.4 wants 1, 2, 3, …)", what, d.Pad)
						break
					}
				}
			}
		})
	}
}

// tcpdump -E decrypts what every engine seals with a CBC cipher and an ICV of 96 bits. The inner packet is a syslog message, which
// tcpdump prints letter for letter.
func TestTcpdumpOpensOurs(t *testing.T) {
	for e, transforms := range admitted(t) {
		t.Run(e.Name(), func(t *testing.T) {
			var known []*offload.Transform
			for _, tr := range transforms {
				if err := judge.TcpdumpKnows(tr); err != nil {
					t.Logf("not judged: %s: %v", tr, err)
					continue
				}
				known = append(known, tr)
			}
			r := judge.Rand("messages")
			var inner [][]byte
			for n := range 40 {
				text := fmt.Sprintf("<30>%d:%x", n, judge.Bytes(r, n*10))
				inner = append(inner, judge.UDP(netip.AddrPortFrom(left4, 5140), netip.AddrPortFrom(right4, 514), []byte(text)))
			}
			all := sealAll(t, e, known, false, inner)
			var sas []judge.SA
			var packets [][]byte
			for _, g := range bySA(all) {
				sas = append(sas, g[0].sa)
			}
			for _, s := range all {
				packets = append(packets, s.wire)
			}
			// What tcpdump prints begins anew with every outer packet, in the order of the capture.
			text := judge.Tcpdump(t, judge.WritePcap(t, packets), sas...)
			for _, s := range all {
				what := fmt.Sprintf("%s to %s, UDP %v", s.sa.Transform, s.sa.Dst, s.sa.UDP())
				_, after, found := strings.Cut(text, fmt.Sprintf("ESP(spi=0x%08x,seq=0x%x)", s.sa.SPI, s.seq))
				if !found {
					t.Fatalf("%s: tcpdump does not show packet %d", what, s.seq)
				}
				text = after
				shown, _, _ := strings.Cut(text, "ESP(spi=")
				if want := "Msg: " + string(s.inner[20+8+4:]) + "\n"; !strings.Contains(shown, want) {
					t.Errorf("%s: tcpdump shows\n%s\nwant\n%s", what, shown, want)
				}
			}
		})
	}
}

// scapy opens what every engine seals, with 32-bit and with extended sequence numbers.
func TestScapyOpensOurs(t *testing.T) {
	for e, transforms := range admitted(t) {
		for _, esn := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/ESN=%v", e.Name(), esn), func(t *testing.T) {
				groups := bySA(sealAll(t, e, transforms, esn, innerPackets()[10:]))
				var jobs []judge.OpenJob
				for _, g := range groups {
					j := judge.OpenJob{SA: g[0].sa}
					for _, s := range g {
						j.Wire = append(j.Wire, judge.Wire{Packet: s.wire, SeqHi: uint32(s.seq >> 32)})
					}
					jobs = append(jobs, j)
				}
				for i, opened := range judge.ScapyOpen(t, jobs...) {
					for k, o := range opened {
						s := groups[i][k]
						if o.Err != "" || !bytes.Equal(o.Inner, s.inner) {
							t.Errorf("%s to %s, UDP %v: scapy opens it to %x (%s), want %x", s.sa.Transform, s.sa.Dst, s.sa.UDP(), o.Inner, o.Err, s.inner)
						}
					}
				}
			})
		}
	}
}

// Every engine opens what scapy seals, with 32-bit and with extended sequence numbers, and refuses it when any part was altered,
// even if it is the high half of the sequence number, which was never sent.
func TestWeOpenScapys(t *testing.T) {
	inner := innerPackets()[10:]
	for _, esn := range []bool{false, true} {
		var jobs []judge.SealJob
		spi := uint32(0x20000)
		for _, tr := range offload.Transforms() {
			for _, w := range wires {
				sa := judge.SA{Transform: tr, Keys: judge.ExampleKeys(tr, esn), SPI: spi, Src: w.src, Dst: w.dst, SrcPort: w.port, DstPort: w.port}
				spi++
				j := judge.SealJob{SA: sa}
				for i, p := range inner {
					seq := uint64(i + 1)
					if esn {
						seq += 7 << 32
					}
					j.Plain = append(j.Plain, judge.Plain{Inner: p, Seq: seq})
				}
				jobs = append(jobs, j)
			}
		}
		wire := judge.ScapySeal(t, jobs...)
		for e, transforms := range admitted(t) {
			t.Run(fmt.Sprintf("%s/ESN=%v", e.Name(), esn), func(t *testing.T) {
				n := 0
				for i, j := range jobs {
					tr := j.SA.Transform
					if !slices.Contains(transforms, tr) {
						continue
					}
					n++
					seqHi := uint32(j.Plain[0].Seq >> 32)
					var good, bad [][]byte
					for _, w := range wire[i] {
						esp, err := judge.ESP(w)
						if err != nil {
							t.Fatal(err)
						}
						good = append(good, bytes.Clone(esp))
						// SPI, sequence number, IV (or first payload byte), last byte of the trailer, both ends of the ICV.
						for _, at := range []int{0, 7, 8, len(esp) - tr.ICVLen - 1, len(esp) - tr.ICVLen, len(esp) - 1} {
							p := bytes.Clone(esp)
							p[at] ^= 0x10
							bad = append(bad, p)
						}
					}
					for k, s := range work(t, e, tr, offload.Open, j.SA.Keys, seqHi, good...) {
						p := good[k]
						end := len(p) - tr.ICVLen
						plain := p[tr.HeaderLen():end]
						pad := int(plain[len(plain)-2])
						if s != offload.OK || pad > len(plain)-2 || !bytes.Equal(plain[:len(plain)-2-pad], inner[k]) || plain[len(plain)-1] != nextHeader(inner[k]) {
							t.Errorf("%s to %s: scapy's packet is opened to %x (%s), want %x", tr, j.SA.Dst, plain, s, inner[k])
						}
						if seq := binary.BigEndian.Uint32(p[4:]); seq != uint32(j.Plain[k].Seq) {
							t.Errorf("%s: sequence number %d, want %d", tr, seq, j.Plain[k].Seq)
						}
					}
					for k, s := range work(t, e, tr, offload.Open, j.SA.Keys, seqHi, bad...) {
						if s != offload.BadICV {
							t.Errorf("%s: altered packet %d gives %s", tr, k, s)
						}
					}
					if esn {
						p, err := judge.ESP(wire[i][0])
						if err != nil {
							t.Fatal(err)
						}
						if s := work(t, e, tr, offload.Open, j.SA.Keys, seqHi+1, bytes.Clone(p)); s[0] != offload.BadICV {
							t.Errorf("%s: another high half gives %s", tr, s[0])
						}
					}
				}
				if n == 0 {
					t.Fatal("no transform was tried")
				}
			})
		}
	}
}
