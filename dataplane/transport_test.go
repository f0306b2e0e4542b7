package dataplane

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"culvert/dataplane/link"
	"culvert/dataplane/link/memlink"
	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/soft"
	"culvert/sa"
)

// hosts makes tunnel n's SAs transport-mode ones between its hosts themselves: wirePacket's, of one family.
func hosts(n int, v6 bool) shape {
	return func(from int, out, in *sa.Params) {
		w := wirePacket{v6: v6, host: byte(n)}
		src, _ := netip.AddrFromSlice(w.src())
		dst, _ := netip.AddrFromSlice(w.dst())
		if from == siteB {
			src, dst = dst, src
		}
		for _, p := range []*sa.Params{out, in} {
			p.Mode, p.Src, p.Dst = sa.Transport, src, dst
		}
	}
}

// shown is a packet without what transport mode does not keep: the ID, and so the header's checksum.
func shown(p []byte) []byte {
	p = bytes.Clone(p)
	if p[0]>>4 == 4 {
		clear(p[4:6])
		clear(p[10:12])
	}
	return p
}

func allShown(all [][]byte) (list [][]byte) {
	for _, p := range all {
		list = append(list, shown(p))
	}
	return list
}

// sound checks the sums of a packet.
func sound(t *testing.T, p []byte) {
	t.Helper()
	var h ipHeader
	if err := h.parse(p); err != nil || h.total != len(p) {
		t.Fatalf("%v: % x", err, p[:min(len(p), 80)])
	}
	if h.version == 4 && refSum(p[:h.transport]) != 0xffff {
		t.Errorf("the header's checksum is wrong: % x", p[:h.transport])
	}
	src, dst := p[12:16], p[16:20]
	if h.version == 6 {
		src, dst = p[8:24], p[24:40]
	}
	if tr := p[h.transport:]; refSum(refPseudo(src, dst, h.proto, len(tr)), tr) != 0xffff {
		t.Errorf("the checksum is wrong: % x", p[:min(len(p), 80)])
	}
}

// Packets and super-packets of both families pass through SAs in transport mode, with every kind of transform, both ways, native and
// over UDP; what stands on the wire is their payload alone, with the TOS outside.
func TestTransport(t *testing.T) {
	for _, a := range arrangements[:6] {
		for _, v6 := range []bool{false, true} {
			for wire := range wires {
				for _, tr := range []*offload.Transform{cbcSHA1, nullSHA1, gcm} {
					t.Run(fmt.Sprintf("%s/v6 %v/%s/%s", a.name, v6, wires[wire].name, tr.Name), func(t *testing.T) {
						p := plan{}
						for s := range p.config {
							e := offload.Engine(soft.New())
							if a.chaos != nil {
								e = offloadtest.NewChaos(e, *a.chaos)
							}
							p.config[s] = func(c *Config) { a.set(c, e) }
						}
						w := newWorld(t, p)
						w.tunnel(1, wire, tr, hosts(1, v6))
						w.start()
						for s, st := range w.site {
							var sent [][]byte
							for i := range 40 {
								q := probe(1)
								q.v6, q.tos, q.payload = v6, byte(i%4*0x28), fill(i*30, byte(i))
								sent = append(sent, from(s, q.build(false)))
							}
							st.send(sent...)
							bulk := bulk(v6, false)
							bulk.payload, bulk.ttl, bulk.label, bulk.flags = fill(100*1000, 5), 64, 0, tcpACK|tcpPSH
							bulk.payload = bulk.payload[:45*1000]
							h := link.VNet{NeedsCsum: true, GSO: link.GSOTCP4, GSOSize: 1000, CsumStart: 20, CsumOffset: 16}
							if v6 {
								h.GSO, h.CsumStart = link.GSOTCP6, 40
							}
							super := from(s, bulk.build(true))
							st.sendSuper(h, super)
							sent = append(sent, packetsOf(t, super, h)...)
							got := w.site[1-s].receive(len(sent))
							for _, p := range got {
								sound(t, p)
							}
							sameFlows(t, allShown(got), allShown(sent))
						}
					})
				}
			}
		}
	}
}

// What a packet of the host's own becomes on the wire: its payload behind ESP, its protocol in the trailer, its TOS and DF outside. It
// may be as large as the path carries and no larger.
func TestTransportOnTheWire(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		var got []memlink.Datagram
		w := newWorld(t, plan{hook: func(int, int) func(memlink.Datagram, func(memlink.Datagram)) {
			return func(d memlink.Datagram, emit func(memlink.Datagram)) {
				d.Buf = bytes.Clone(d.Buf)
				got = append(got, d)
				emit(d)
			}
		}})
		tn := w.tunnel(1, esp4, nullSHA1, hosts(1, v6))
		w.start()
		q := probe(1)
		q.v6, q.tos, q.df, q.ttl = v6, 0xb9, false, 64
		base := ipHeaderLenOf(map[bool]byte{true: 6, false: 4}[v6])
		p := q.build(false)
		w.site[siteA].send(p)
		back := w.site[siteB].receive(1)[0]
		d := got[0]
		payload := p[base:]
		pad := nullSHA1.PadLen(len(payload))
		want := append(append(bytes.Clone(payload), padding[:pad]...), byte(pad), protoUDP)
		if plain := d.Buf[8 : len(d.Buf)-12]; !bytes.Equal(plain, want) {
			t.Errorf("v6 %v: inside\n% x, not\n% x", v6, plain, want)
		}
		if d.TOS != 0xb9 || d.Fragment != !v6 || trafficClass(back) != 0xb9 {
			t.Errorf("v6 %v: TOS %#x, may be fragmented %v", v6, d.TOS, d.Fragment)
		}
		outer := base + nullSHA1.SealedLen(tn.out[siteA].MaxInner()-base)
		if larger := base + nullSHA1.SealedLen(tn.out[siteA].MaxInner()+1-base); outer > sa.DefaultMTU || larger <= sa.DefaultMTU {
			t.Errorf("v6 %v: the largest packets of %d bytes have %d outside, larger ones %d", v6, tn.out[siteA].MaxInner(), outer, larger)
		}
		q.df, q.payload = true, fill(tn.out[siteA].MaxInner()-base-udpHeaderLen, 1)
		w.site[siteA].send(q.build(false))
		if n := len(w.site[siteB].receive(1)[0]); n != tn.out[siteA].MaxInner() {
			t.Errorf("%d bytes of %d", n, tn.out[siteA].MaxInner())
		}
		q.payload = append(q.payload, 1)
		w.site[siteA].send(q.build(false))
		eventually(t, "too big", func() bool { b := w.site[siteA].out(); return b.drops(CauseTooBig) == 1 && b.PTBSent == 1 })
		w.end()
	}
}

// A peer behind a NAT computes its checksums with an address that this side never sees; over UDP they are made right (RFC 3948
// 3.1.2). Native ESP passes no NAT, and what is wrong there stays wrong.
func TestTransportBehindNAT(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, wire := range []int{udp4, esp4} {
			w := newWorld(t, plan{})
			tn := w.tunnel(1, wire, gcm, hosts(1, v6))
			w.start()
			s := w.sealer(tn, siteA)
			base := ipHeaderLenOf(map[bool]byte{true: 6, false: 4}[v6])
			var sent [][]byte
			send := func(next byte, p []byte) {
				d := s.seal(uint64(len(sent)+1), next, p[base:])
				w.inject(wire, siteB, wires[wire].end[siteA], 0, d)
				sent = append(sent, p)
			}
			q := probe(1)
			q.v6 = v6
			private := withAddresses(q.build(false), "192.168.1.1", "192.168.2.2")
			if v6 {
				private = withAddresses(q.build(false), "fd99::1", "fd99::2")
			}
			right := q.build(false)
			wrong := bytes.Clone(right) // with the checksum of the private address
			copy(wrong[base+6:], []byte{0x12, 0x34})
			_ = private
			send(protoUDP, wrong)
			q.udp, q.flags, q.noChecksum = false, tcpACK, false
			tcp := q.build(false)
			bad := bytes.Clone(tcp)
			bad[base+16] ^= 0x55
			send(protoTCP, bad)
			for i, good := range [][]byte{right, tcp} {
				got := w.site[siteB].receive(1)[0]
				want := good
				if wire == esp4 {
					want = sent[i]
				}
				if !bytes.Equal(shown(got), shown(want)) {
					t.Errorf("v6 %v, %s:\n% x, not\n% x", v6, wires[wire].name, got, want)
				}
			}
			if !v6 {
				none := bytes.Clone(right)
				clear(none[base+6 : base+8])
				send(protoUDP, none)
				if got := w.site[siteB].receive(1)[0]; !bytes.Equal(shown(got), shown(none)) {
					t.Errorf("a datagram without a checksum: % x", got)
				}
			}
			w.end()
		}
	}
}

// Whatever an authentic peer puts inside, what is delivered is a well-formed IP packet between the SA's endpoints, with sums that are
// right over UDP; nothing panics, and the books balance.
func FuzzTransport(f *testing.F) {
	p4, p6 := probe(0), probe(0)
	p6.v6 = true
	for _, p := range [][]byte{p4.build(false)[20:], p6.build(false)[40:], {1, 2}, {}} {
		for _, next := range []byte{protoUDP, protoTCP, protoICMPv6, protoDestOptions, nextHeaderDummy, 4} {
			f.Add(p, next, false)
			f.Add(p, next, true)
		}
	}
	var b [2]*bench
	var s [2]*sealer
	for v := range b {
		b[v] = newBench(f, nil)
		tn := b[v].tunnel(0, udp4, nullSHA1, hosts(0, v == 1))
		s[v] = b[v].sealer(tn, siteB)
		p := tn.in[siteA].Params()
		b[v].inner.deliver = func(_ link.VNet, parts [][]byte) {
			var flow sa.Flow
			if n, err := parseFlow(parts[0], &flow); err != nil || n != len(parts[0]) || len(parts) != 1 || flow.Src != p.Src || flow.Dst != p.Dst {
				panic("delivered what is no IP packet between the endpoints")
			}
			if q := bytes.Clone(parts[0]); !renewChecksum(q) || !bytes.Equal(q, parts[0]) && flow.Proto != protoUDP && flow.Proto != protoTCP {
				panic("delivered with a checksum that is wrong")
			}
		}
	}
	seq := uint64(0)
	f.Fuzz(func(t *testing.T, data []byte, next byte, v6 bool) {
		v := 0
		if v6 {
			v = 1
		}
		if len(data) > 60000 {
			return
		}
		seq++
		d := s[v].seal(seq, next, data)
		given := false
		b[v].wire.receive = func(r *link.RxBatch) error {
			if given {
				return link.ErrAgain
			}
			given = true
			buf := r.State.([][]byte)[0]
			r.Msgs = append(r.Msgs, link.RxMsg{Buf: buf[:copy(buf, d)], From: wires[udp4].end[siteB], To: wires[udp4].end[siteA].Addr()})
			return nil
		}
		before := b[v].plane.in[0].books.now
		for b[v].in() || !given {
		}
		now := b[v].plane.in[0].books.now
		if now.PacketsIn != before.PacketsIn+1 || now.PacketsOut+now.Dropped() != before.PacketsOut+before.Dropped()+1 {
			t.Fatal(now.summary())
		}
	})
}

// Transport mode allocates nothing, and a burst that does not fit into the memory for rebuilt packets is delivered in parts.
func TestTransportAllocatesNothing(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Engine = nullEngine{} })
	tn := b.tunnel(0, udp4, nullSHA1, hosts(0, false))
	const size, each = 30000, 10
	p := probe(0)
	p.payload = fill(size, 1)
	plain := p.build(false)[20:]
	seq, left := uint64(0), 0
	bufs := make([][]byte, each)
	pad := nullSHA1.PadLen(len(plain))
	for i := range bufs {
		h := binary.BigEndian.AppendUint32(nil, tn.spi[siteB])
		bufs[i] = slices.Concat(h, make([]byte, 4), plain, padding[:pad], []byte{byte(pad), protoUDP}, make([]byte, 12))
	}
	b.wire.receive = func(r *link.RxBatch) error {
		if left == 0 {
			return link.ErrAgain
		}
		left--
		for _, buf := range bufs {
			seq++
			binary.BigEndian.PutUint32(buf[4:], uint32(seq))
			r.Msgs = append(r.Msgs, link.RxMsg{Buf: buf, From: wires[udp4].end[siteB], To: wires[udp4].end[siteA].Addr()})
		}
		return nil
	}
	packet := p.build(false)
	b.inner.next = func() ([]byte, link.VNet, error) {
		if left == 0 {
			return nil, link.VNet{}, link.ErrAgain
		}
		left--
		return packet, link.VNet{}, nil
	}
	tn.out[siteA].SetMTU(65535)
	in := &b.plane.in[0].books.now
	if n := testing.AllocsPerRun(20, func() {
		for left = 1; left > 0; {
			b.in()
		}
	}); n != 0 {
		t.Errorf("inbound allocates %v times", n)
	}
	if in.PacketsOut != 21*each || in.Dropped() > 0 {
		t.Error(in.summary())
	}
	out := &b.plane.out.books.now
	if n := testing.AllocsPerRun(20, func() {
		for left = each; left > 0; {
			b.out()
		}
	}); n != 0 {
		t.Errorf("outbound allocates %v times", n)
	}
	if out.PacketsOut == 0 || out.Dropped() > 0 {
		t.Error(out.summary())
	}
}

// scapyTransport seals and opens in transport mode with scapy.layers.ipsec, whose authors have nothing to do with Culvert.
const scapyTransport = `
import json, sys, warnings
warnings.simplefilter("ignore")
from scapy.layers import ipsec
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.packet import raw
job = json.load(sys.stdin)
def sa():
    return ipsec.SecurityAssociation(ipsec.ESP, spi=job["spi"], crypt_algo=job["crypt"], crypt_key=bytes.fromhex(job["key"]),
        auth_algo=job["auth"], auth_key=bytes.fromhex(job["auth_key"]))
def layer(h):
    b = bytes.fromhex(h)
    return IPv6(b) if b[0] >> 4 == 6 else IP(b)
s, o = sa(), sa()
print(json.dumps({
    "sealed": [raw(s.encrypt(layer(p))).hex() for p in job["plain"]],
    "opened": [raw(o.decrypt(layer(p), verify=True)).hex() for p in job["wire"]],
}))
`

// Judge: what Culvert seals in transport mode scapy opens to the very packet, and what scapy seals Culvert opens.
func TestTransportAgainstScapy(t *testing.T) {
	for _, tr := range []struct {
		*offload.Transform
		crypt, auth string
	}{{cbcSHA1, "AES-CBC", "HMAC-SHA1-96"}, {gcm, "AES-GCM", "NULL"}, {nullSHA1, "NULL", "HMAC-SHA1-96"}} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprint(tr.Name, "/v6 ", v6), func(t *testing.T) {
				var wire []string
				var outer [][]byte
				w := newWorld(t, plan{hook: func(int, int) func(memlink.Datagram, func(memlink.Datagram)) {
					return func(d memlink.Datagram, emit func(memlink.Datagram)) {
						q := wirePacket{v6: v6, host: 1}
						h := make([]byte, 20)
						h[0], h[8], h[9] = 0x45, 64, 50
						copy(h[12:], q.src())
						copy(h[16:], q.dst())
						binary.BigEndian.PutUint16(h[2:], uint16(20+len(d.Buf)))
						if v6 {
							h = make([]byte, 40)
							h[0], h[6], h[7] = 0x60, 50, 64
							copy(h[8:], q.src())
							copy(h[24:], q.dst())
							binary.BigEndian.PutUint16(h[4:], uint16(len(d.Buf)))
						} else {
							binary.BigEndian.PutUint16(h[10:], ^refSum(h))
						}
						outer = append(outer, append(h, d.Buf...))
						emit(d)
					}
				}})
				tn := w.tunnel(1, esp4, tr.Transform, hosts(1, v6))
				w.start()
				var sent [][]byte
				var plain []string
				for i := range 10 {
					q := probe(1)
					q.v6, q.udp, q.flags, q.payload = v6, i%2 == 0, tcpACK, fill(i*97, byte(i))
					sent = append(sent, q.build(false))
					plain = append(plain, hex.EncodeToString(sent[i]))
				}
				w.site[siteA].send(sent...)
				w.site[siteB].receive(len(sent))
				for _, p := range outer {
					wire = append(wire, hex.EncodeToString(p))
				}
				k := tn.keys[siteA]
				job, err := json.Marshal(map[string]any{"spi": tn.spi[siteA], "crypt": tr.crypt, "auth": tr.auth,
					"key": hex.EncodeToString(k.Enc), "auth_key": hex.EncodeToString(k.Auth), "plain": plain, "wire": wire})
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command("/usr/bin/python3", "-c", scapyTransport) // the one that Debian's python3-scapy belongs to
				cmd.Stdin = bytes.NewReader(job)
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("scapy: %v: %s", err, stderr.String())
				}
				var said struct{ Sealed, Opened []string }
				if err := json.Unmarshal(out, &said); err != nil {
					t.Fatal(err)
				}
				decode := func(all []string) (list [][]byte) {
					for _, s := range all {
						b, err := hex.DecodeString(s)
						if err != nil {
							t.Fatal(err)
						}
						list = append(list, b)
					}
					return list
				}
				opened := decode(said.Opened)
				if len(opened) != len(sent) {
					t.Fatalf("scapy opened %d of %d", len(opened), len(sent))
				}
				for i := range opened {
					if !bytes.Equal(shown(opened[i]), shownWithout(sent[i], opened[i])) {
						t.Errorf("scapy opened\n% x, sent was\n% x", opened[i], sent[i])
					}
				}
				base := ipHeaderLenOf(map[bool]byte{true: 6, false: 4}[v6])
				// Its numbers begin at 1 as Culvert's did, so they go to an SA that has seen none.
				w2 := newWorld(t, plan{})
				keys := slices.Clone(tn.keys[:])
				w2.tunnel(1, esp4, tr.Transform, func(from int, out, in *sa.Params) {
					hosts(1, v6)(from, out, in)
					out.Keys, in.Keys = keys[from].Clone(), keys[from].Clone()
				})
				w2.start()
				for _, p := range decode(said.Sealed) {
					w2.inject(esp4, siteB, wires[esp4].end[siteA], 0, p[base:])
				}
				sameFlows(t, allShown(w2.site[siteB].receive(len(sent))), allShown(sent))
			})
		}
	}
}

// shownWithout is shown of a packet with the DF of another: the header on the wire is the test's.
func shownWithout(p, other []byte) []byte {
	p = shown(p)
	if p[0]>>4 == 4 {
		p[6] = other[6]
	}
	return p
}
