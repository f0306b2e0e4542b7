package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"
)

// The reference that the leaf functions are judged by. It shares no code with them: packets are built from their fields,
// and checksums are summed 16 bits at a time in network order, as RFC 1071 says it in words.

// failer is what the helpers need of a test, be it testing's or rapid's.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

func refSum(parts ...[]byte) uint16 {
	var acc uint32
	for _, b := range parts {
		for i := 0; i < len(b); i += 2 {
			word := uint32(b[i]) << 8
			if i+1 < len(b) {
				word |= uint32(b[i+1])
			}
			acc += word
			acc = acc>>16 + acc&0xffff
		}
	}
	return uint16(acc>>16 + acc&0xffff)
}

// refPseudo is the pseudo header for n bytes of proto.
func refPseudo(src, dst []byte, proto byte, n int) []byte {
	p := append(append([]byte{}, src...), dst...)
	if len(src) == 4 {
		return append(p, 0, proto, byte(n>>8), byte(n))
	}
	return append(p, byte(n>>24), byte(n>>16), byte(n>>8), byte(n), 0, 0, 0, proto)
}

// wirePacket is a TCP or UDP packet by its fields.
type wirePacket struct {
	v6             bool
	host           byte // sets source and destination apart from others'
	tos, ttl       byte
	label          uint32 // IPv6 flow label, 20 bits
	id             uint16
	df             bool
	ipOptions      []byte // IPv4: a multiple of 4 bytes
	destOptions    int    // IPv6: how many 8-byte destination options headers
	udp            bool
	noChecksum     bool // UDP
	sport, dport   uint16
	seq, ack       uint32
	reserved       byte // the 4 bits behind the TCP data offset
	flags          byte
	window, urgent uint16
	options        []byte // TCP: a multiple of 4 bytes
	payload        []byte
}

func (w *wirePacket) src() []byte {
	if w.v6 {
		return append(bytes.Repeat([]byte{0xfd, 0x01}, 7), w.host, 1)
	}
	return []byte{10, 0, w.host, 1}
}

func (w *wirePacket) dst() []byte {
	if w.v6 {
		return append(bytes.Repeat([]byte{0xfd, 0x02}, 7), w.host, 2)
	}
	return []byte{10, 1, w.host, 2}
}

// headerLen is the length of the headers.
func (w *wirePacket) headerLen() int {
	n := 20 + len(w.ipOptions)
	if w.v6 {
		n = 40 + 8*w.destOptions
	}
	if w.udp {
		return n + 8
	}
	return n + 20 + len(w.options)
}

func (w *wirePacket) transportAt() int {
	if w.v6 {
		return 40 + 8*w.destOptions
	}
	return 20 + len(w.ipOptions)
}

// transportBytes is the transport header and payload with a checksum of zero.
func (w *wirePacket) transportBytes() []byte {
	be := binary.BigEndian
	var b []byte
	b = be.AppendUint16(b, w.sport)
	b = be.AppendUint16(b, w.dport)
	if w.udp {
		b = be.AppendUint16(b, uint16(8+len(w.payload)))
		b = append(b, 0, 0)
		return append(b, w.payload...)
	}
	b = be.AppendUint32(b, w.seq)
	b = be.AppendUint32(b, w.ack)
	b = append(b, byte(5+len(w.options)/4)<<4|w.reserved, w.flags)
	b = be.AppendUint16(b, w.window)
	b = append(b, 0, 0)
	b = be.AppendUint16(b, w.urgent)
	b = append(b, w.options...)
	return append(b, w.payload...)
}

func (w *wirePacket) proto() byte {
	if w.udp {
		return 17
	}
	return 6
}

func (w *wirePacket) checksumAt() int {
	if w.udp {
		return 6
	}
	return 16
}

// build gives the packet; with partial its transport checksum is the pseudo header's sum only, as an offload header with
// NeedsCsum has it.
func (w *wirePacket) build(partial bool) []byte {
	be := binary.BigEndian
	t := w.transportBytes()
	pseudo := refPseudo(w.src(), w.dst(), w.proto(), len(t))
	sum := ^refSum(pseudo, t)
	if w.udp && sum == 0 {
		sum = 0xffff
	}
	if partial {
		sum = refSum(pseudo)
	}
	if w.udp && w.noChecksum {
		sum = 0
	}
	be.PutUint16(t[w.checksumAt():], sum)

	var b []byte
	if w.v6 {
		b = be.AppendUint32(b, 6<<28|uint32(w.tos)<<20|w.label&0xfffff)
		b = be.AppendUint16(b, uint16(8*w.destOptions+len(t)))
		next := w.proto()
		if w.destOptions > 0 {
			next = 60
		}
		b = append(b, next, w.ttl)
		b = append(append(b, w.src()...), w.dst()...)
		for i := w.destOptions; i > 0; i-- {
			next = 60
			if i == 1 {
				next = w.proto()
			}
			b = append(b, next, 0, 1, 4, 0, 0, 0, 0) // PadN
		}
	} else {
		b = append(b, 0x40|byte(5+len(w.ipOptions)/4), w.tos)
		b = be.AppendUint16(b, uint16(20+len(w.ipOptions)+len(t)))
		b = be.AppendUint16(b, w.id)
		var frag uint16
		if w.df {
			frag = 0x4000
		}
		b = be.AppendUint16(b, frag)
		b = append(b, w.ttl, w.proto(), 0, 0)
		b = append(append(append(b, w.src()...), w.dst()...), w.ipOptions...)
		be.PutUint16(b[10:], ^refSum(b))
	}
	return append(b, t...)
}

// refSegments is what segmentation must make of w as a super-packet of segments of size bytes.
func refSegments(w wirePacket, size int) [][]byte {
	var all [][]byte
	payload := w.payload
	for i := 0; ; i++ {
		s := w
		n := min(size, len(payload))
		s.payload = payload[:n]
		payload = payload[n:]
		s.id += uint16(i)
		s.seq += uint32(i * size)
		if len(payload) > 0 {
			s.flags &^= 0x01 | 0x08 // FIN, PSH
		}
		if i > 0 {
			s.flags &^= 0x80 // CWR
		}
		all = append(all, s.build(false))
		if len(payload) == 0 {
			return all
		}
	}
}

// fill makes bytes that differ from place to place.
func fill(n int, seed byte) []byte {
	b := make([]byte, n)
	x := uint32(seed) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// drawPacket draws a packet of a flow; its payload is left empty.
func drawPacket(t *rapid.T) wirePacket {
	w := wirePacket{
		v6:    rapid.Bool().Draw(t, "v6"),
		udp:   rapid.Bool().Draw(t, "udp"),
		host:  rapid.Byte().Draw(t, "host"),
		tos:   rapid.Byte().Draw(t, "tos"),
		ttl:   rapid.Byte().Draw(t, "ttl"),
		sport: rapid.Uint16().Draw(t, "sport"),
		dport: rapid.Uint16().Draw(t, "dport"),
	}
	if w.v6 {
		w.label = rapid.Uint32().Draw(t, "label")
	} else {
		w.id = rapid.Uint16().Draw(t, "id")
		w.df = rapid.Bool().Draw(t, "df")
	}
	if !w.udp {
		w.seq = rapid.Uint32().Draw(t, "seq")
		w.ack = rapid.Uint32().Draw(t, "ack")
		w.window = rapid.Uint16().Draw(t, "window")
		w.options = rapid.SampledFrom([][]byte{
			nil, {1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}, append([]byte{1, 1, 5, 34}, fill(32, 1)...),
		}).Draw(t, "options")
	}
	return w
}

// judge says what is wrong with a packet as it goes on the wire, by the reference and by gopacket's decoders; nil if nothing.
func judge(pkt []byte) error {
	if len(pkt) < 20 {
		return fmt.Errorf("%d bytes", len(pkt))
	}
	be := binary.BigEndian
	first, at := layers.LayerTypeIPv4, int(pkt[0]&15)*4
	src, dst, proto := pkt[12:16], pkt[16:20], pkt[9]
	if pkt[0]>>4 == 6 {
		first, at = layers.LayerTypeIPv6, 40
		src, dst, proto = pkt[8:24], pkt[24:40], pkt[6]
		if n := int(be.Uint16(pkt[4:])); n != len(pkt)-40 {
			return fmt.Errorf("payload length %d in a packet of %d", n, len(pkt))
		}
		for proto == 60 {
			proto, at = pkt[at], at+int(pkt[at+1]+1)*8
		}
	} else {
		if n := int(be.Uint16(pkt[2:])); n != len(pkt) {
			return fmt.Errorf("total length %d in a packet of %d", n, len(pkt))
		}
		if s := refSum(pkt[:at]); s != 0xffff {
			return fmt.Errorf("IPv4 header checksum: the sum is %#04x", s)
		}
	}
	t := pkt[at:]
	if proto == 17 {
		if n := int(be.Uint16(t[4:])); n != len(t) {
			return fmt.Errorf("UDP length %d, is %d", n, len(t))
		}
		if t[6] == 0 && t[7] == 0 {
			return fmt.Errorf("no UDP checksum")
		}
	}
	if s := refSum(refPseudo(src, dst, proto, len(t)), t); s != 0xffff {
		return fmt.Errorf("transport checksum: the sum is %#04x", s)
	}

	// What a stranger reads in it; lazily, since it would take random payload on port 53 for DNS.
	p := gopacket.NewPacket(pkt, first, gopacket.DecodeOptions{Lazy: true})
	var sum, want uint16
	var err error
	switch l := p.TransportLayer().(type) {
	case *layers.TCP:
		// Over the packet with its checksum in it: what is left over must be nothing.
		l.SetNetworkLayerForChecksum(p.NetworkLayer())
		sum, err = l.ComputeChecksum()
	case *layers.UDP:
		l.SetNetworkLayerForChecksum(p.NetworkLayer())
		buf, body := gopacket.NewSerializeBuffer(), gopacket.Payload(l.Payload)
		want = l.Checksum
		err = gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, l, body)
		if sum = l.Checksum; sum == 0 {
			sum = 0xffff
		}
	default:
		if e := p.ErrorLayer(); e != nil {
			return fmt.Errorf("gopacket: %w", e.Error())
		}
		return fmt.Errorf("gopacket: no transport layer in protocol %d", proto)
	}
	if err != nil {
		return fmt.Errorf("gopacket: %w", err)
	}
	if sum != want {
		return fmt.Errorf("gopacket: transport checksum: %#04x instead of %#04x", want, sum)
	}
	return nil
}

func mustJudge(t failer, pkt []byte, what string) {
	t.Helper()
	if err := judge(pkt); err != nil {
		t.Fatalf("%s: %v\n% x", what, err, pkt[:min(len(pkt), 120)])
	}
}

func sizeName(n int) string { return fmt.Sprintf("%dB", n) }

// reportPackets reports the cost of packets, of which each round of the loop handled n with size bytes in all.
func reportPackets(b *testing.B, n, size int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/packet")
	b.ReportMetric(float64(b.N)*float64(size)*8/float64(b.Elapsed().Nanoseconds()), "Gbit/s")
	b.ReportMetric(0, "ns/op")
}
