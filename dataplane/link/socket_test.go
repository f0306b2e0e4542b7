//go:build linux

package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// outerPair is two sockets of the same kind in two namespaces joined by a veth.
type outerPair struct {
	a, b         Outer
	spaceA       *space
	spaceB       *space
	addrA, addrB netip.AddrPort
}

var kinds = []string{"udp4", "udp6", "esp4", "esp6"}

func newOuterPair(t testing.TB, kind string, optsA, optsB OuterOptions) *outerPair {
	t.Helper()
	p := &outerPair{spaceA: newSpace(t), spaceB: newSpace(t)}
	veth(p.spaceA, p.spaceB, "a0", "b0")
	p.spaceA.addr("a0", "192.0.2.1/24", "2001:db8::1/64")
	p.spaceB.addr("b0", "192.0.2.2/24", "192.0.2.3/24", "2001:db8::2/64", "2001:db8::3/64")
	a, b := "192.0.2.1", "192.0.2.2"
	if strings.HasSuffix(kind, "6") {
		a, b = "2001:db8::1", "2001:db8::2"
	}
	port := uint16(0)
	if strings.HasPrefix(kind, "udp") {
		port = 4500
	}
	p.addrA = netip.AddrPortFrom(netip.MustParseAddr(a), port)
	p.addrB = netip.AddrPortFrom(netip.MustParseAddr(b), port)
	if port != 0 {
		p.a, p.b = p.spaceA.udp(p.addrA.String(), optsA), p.spaceB.udp(p.addrB.String(), optsB)
	} else {
		p.a, p.b = p.spaceA.esp(a, optsA), p.spaceB.esp(b, optsB)
	}
	// Until the neighbour is known the kernel holds a few datagrams only.
	send(t, p.a.NewWriter(), TxMsg{To: p.addrB, Buf: espPacket(1, 0, 40)})
	newReceiver(t, p.b).take(1)
	return p
}

// espPacket is n bytes that look like ESP, different for each SPI and sequence number.
func espPacket(spi, seq uint32, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(uint32(i)*7 + seq*13 + spi)
	}
	binary.BigEndian.PutUint32(b, spi)
	binary.BigEndian.PutUint32(b[4:], seq)
	return b
}

// receiver collects datagrams; what is not there after some seconds is lost.
type receiver struct {
	t     testing.TB
	o     Outer
	r     OuterReader
	b     *RxBatch
	Sizes []int // SegSize of each message
}

func newReceiver(t testing.TB, o Outer) *receiver {
	r := o.NewReader()
	return &receiver{t: t, o: o, r: r, b: r.NewBatch()}
}

// take receives until it has n datagrams, and returns copies of them, each as a message of its own.
func (r *receiver) take(n int) (got []RxMsg) {
	r.t.Helper()
	for give := time.Now().Add(5 * time.Second); len(got) < n; {
		err := r.r.Recv(r.b, false)
		if errors.Is(err, ErrAgain) {
			if time.Now().After(give) {
				r.t.Fatalf("%d of %d datagrams came", len(got), n)
			}
			time.Sleep(time.Millisecond)
			continue
		}
		must(r.t, err)
		for _, m := range r.b.Msgs {
			r.Sizes = append(r.Sizes, m.SegSize)
			seg := m.SegSize
			if seg == 0 {
				seg = max(len(m.Buf), 1)
			}
			for rest := m.Buf; ; {
				d := m
				d.Buf = bytes.Clone(rest[:min(seg, len(rest))])
				d.SegSize = 0
				got = append(got, d)
				if rest = rest[len(d.Buf):]; len(rest) == 0 {
					break
				}
			}
		}
	}
	if len(got) != n {
		r.t.Fatalf("%d datagrams came, %d were sent", len(got), n)
	}
	return got
}

func send(t testing.TB, w OuterWriter, msgs ...TxMsg) {
	t.Helper()
	must(t, w.Send(msgs))
	for i, m := range msgs {
		if m.Err != nil || m.Failed != 0 {
			t.Fatalf("message %d: %d failed: %v", i, m.Failed, m.Err)
		}
	}
}

// A burst of super-packets and single datagrams arrives whole, in order, from the right address; over UDP merged again.
func TestSendReceive(t *testing.T) {
	variants := []struct {
		name         string
		optsA, optsB OuterOptions
	}{
		{"offloads", OuterOptions{}, OuterOptions{}},
		{"plain", OuterOptions{NoGSO: true}, OuterOptions{NoGRO: true, Batch: 3}},
		{"gso only", OuterOptions{}, OuterOptions{NoGRO: true}},
	}
	for _, kind := range kinds {
		for _, v := range variants {
			t.Run(kind+"/"+v.name, func(t *testing.T) {
				p := newOuterPair(t, kind, v.optsA, v.optsB)
				rx := newReceiver(t, p.b)
				var want [][]byte
				var msgs []TxMsg
				seq := uint32(0)
				add := func(tos uint8, seg int, sizes ...int) {
					m := TxMsg{To: p.addrB, TOS: tos, SegSize: seg}
					for _, n := range sizes {
						seq++
						d := espPacket(0x1000, seq, n)
						want = append(want, d)
						m.Buf = append(m.Buf, d...)
					}
					msgs = append(msgs, m)
				}
				many := func(n, size, last int) (s []int) {
					for range n - 1 {
						s = append(s, size)
					}
					return append(s, last)
				}
				add(0, 0, 100)
				add(0, 1400, many(46, 1400, 300)...)
				add(0, 1400, 1400) // one datagram that is said to be several
				add(0, 88, many(64, 88, 88)...)
				add(0, 24, many(150, 24, 24)...)     // more than the kernel cuts at once
				add(0, 1400, many(60, 1400, 700)...) // more bytes than it takes at once
				add(0, 0, 1440)
				send(t, p.a.NewWriter(), msgs...)
				got := rx.take(len(want))
				for i, m := range got {
					if !bytes.Equal(m.Buf, want[i]) {
						t.Fatalf("datagram %d differs: %d bytes, want %d", i, len(m.Buf), len(want[i]))
					}
					if m.From != p.addrA || m.To != p.addrB.Addr() {
						t.Fatalf("datagram %d goes from %v to %v", i, m.From, m.To)
					}
				}
				merged := false
				for _, n := range rx.Sizes {
					merged = merged || n > 0
				}
				if expect := strings.HasPrefix(kind, "udp") && v.optsB == (OuterOptions{}); merged != expect {
					t.Errorf("merged %v, want %v (%v | %v)", merged, expect, p.a.Offloads(), p.b.Offloads())
				}
				if strings.HasPrefix(kind, "udp") != strings.Contains(p.a.Offloads(), "gso") {
					t.Errorf("offloads: %q", p.a.Offloads())
				}
			})
		}
	}
}

// The outer TOS byte or traffic class, ECN bits and all, goes out as given and comes in as it was.
func TestTOS(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			p := newOuterPair(t, kind, OuterOptions{}, OuterOptions{})
			rx := newReceiver(t, p.b)
			w := p.a.NewWriter()
			var msgs []TxMsg
			tos := []uint8{0, 1, 2, 3, 46<<2 | 2, 255, 0}
			for i, v := range tos {
				msgs = append(msgs, TxMsg{To: p.addrB, Buf: bytes.Repeat(espPacket(9, uint32(i), 200), 3), SegSize: 200, TOS: v})
			}
			send(t, w, msgs...)
			for i, m := range rx.take(3 * len(tos)) {
				if m.TOS != tos[i/3] {
					t.Errorf("datagram %d has TOS %#x, want %#x", i, m.TOS, tos[i/3])
				}
			}
		})
	}
}

// A socket bound to no address says which one a message came to, and answers from the one that it is told to.
func TestWildcard(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			p := newOuterPair(t, kind, OuterOptions{}, OuterOptions{})
			must(t, p.b.Close())
			second, all := "192.0.2.3", "0.0.0.0"
			if strings.HasSuffix(kind, "6") {
				second, all = "2001:db8::3", "::"
			}
			to := netip.AddrPortFrom(netip.MustParseAddr(second), p.addrB.Port())
			var b Outer
			if p.addrB.Port() != 0 {
				b = p.spaceB.udp(net.JoinHostPort(all, "4500"), OuterOptions{})
			} else {
				b = p.spaceB.esp(all, OuterOptions{})
			}
			rxA, rxB := newReceiver(t, p.a), newReceiver(t, b)
			send(t, p.a.NewWriter(), TxMsg{To: to, Buf: espPacket(7, 1, 64)})
			m := rxB.take(1)[0]
			if m.To != to.Addr() || m.From != p.addrA {
				t.Fatalf("came from %v to %v", m.From, m.To)
			}
			send(t, b.NewWriter(), TxMsg{To: m.From, From: m.To, Buf: espPacket(7, 2, 64)})
			if m := rxA.take(1)[0]; m.From != to {
				t.Fatalf("answer came from %v, want %v", m.From, to)
			}
			// An address that is not the host's fails the message, and nothing else.
			msgs := []TxMsg{
				{To: p.addrA, From: netip.MustParseAddr(strings.Replace(second, "3", "77", 1)), Buf: espPacket(7, 3, 64)},
				{To: p.addrA, From: m.To, Buf: espPacket(7, 4, 64)},
			}
			must(t, b.NewWriter().Send(msgs))
			if msgs[0].Err == nil || msgs[0].Failed != 1 || msgs[1].Err != nil {
				t.Fatalf("errors %v and %v", msgs[0].Err, msgs[1].Err)
			}
			rxA.take(1)
		})
	}
}

// A datagram of many fragments arrives whole although receive slots are as long as a frame.
func TestLargeDatagram(t *testing.T) {
	for _, kind := range kinds {
		for _, opts := range []OuterOptions{{}, {NoGRO: true}} {
			t.Run(fmt.Sprint(kind, opts.NoGRO), func(t *testing.T) {
				p := newOuterPair(t, kind, OuterOptions{}, opts)
				rx := newReceiver(t, p.b)
				want := [][]byte{espPacket(1, 1, 1000), espPacket(1, 2, 2112), espPacket(1, 3, 2113), espPacket(1, 4, 60000),
					espPacket(1, 5, p.a.MaxBytes()), espPacket(1, 6, 40)}
				w := p.a.NewWriter()
				for _, d := range want {
					if !strings.HasPrefix(kind, "udp") && len(d) > 65000 {
						d = d[:65000]
					}
					send(t, w, TxMsg{To: p.addrB, Buf: d, Fragment: true})
					if got := rx.take(1)[0]; !bytes.Equal(got.Buf, d) {
						t.Fatalf("%d bytes came as %d, or changed", len(d), len(got.Buf))
					}
				}
				// Two of which no super-packet could hold both.
				send(t, w, TxMsg{To: p.addrB, Buf: append(want[3], want[3][:9000]...), SegSize: 60000, Fragment: true})
				if got := rx.take(2); !bytes.Equal(got[0].Buf, want[3]) || !bytes.Equal(got[1].Buf, want[3][:9000]) {
					t.Error("two large ones changed")
				}
			})
		}
	}
}

// Segments larger than the path's MTU: GSO refuses them, single datagrams are fragmented where that is allowed and fail with
// ErrTooBig otherwise. GSO stays on for others.
func TestSegmentsBeyondMTU(t *testing.T) {
	for _, kind := range []string{"udp4", "udp6"} {
		t.Run(kind, func(t *testing.T) {
			p := newOuterPair(t, kind, OuterOptions{}, OuterOptions{})
			rx := newReceiver(t, p.b)
			w := p.a.NewWriter()
			buf := bytes.Repeat(espPacket(3, 1, 2000), 10)
			for range 10 {
				send(t, w, TxMsg{To: p.addrB, Buf: buf[:1000], SegSize: 100}, TxMsg{To: p.addrB, Buf: buf, SegSize: 2000, Fragment: true})
				rx.take(20)
			}
			if s := p.a.Offloads(); strings.Contains(s, "no gso") {
				t.Errorf("offloads: %q", s)
			}
		})
		t.Run(kind+"/DF", func(t *testing.T) {
			p := newOuterPair(t, kind, OuterOptions{}, OuterOptions{})
			rx := newReceiver(t, p.b)
			w := p.a.NewWriter()
			buf := append(bytes.Repeat(espPacket(0xabcd, 1, 2000), 10), espPacket(0xabcd, 2, 500)...)
			msgs := []TxMsg{{To: p.addrB, Buf: buf[:100]}, {To: p.addrB, Buf: buf, SegSize: 2000}, {To: p.addrB, Buf: buf[:200]}}
			must(t, w.Send(msgs))
			if m := msgs[1]; m.Err != ErrTooBig || m.Failed != 10 {
				t.Fatalf("%d failed: %v", m.Failed, m.Err)
			}
			if msgs[0].Err != nil || msgs[2].Err != nil {
				t.Fatal(msgs[0].Err, msgs[2].Err)
			}
			rx.take(3) // the short one at the end fits
			n := notice(t, p.a)
			want := Notice{Kind: NoticeTooBig, MTU: 1500, Peer: p.addrB, SPI: 0xabcd, Seq: 1, Local: true}
			if n != want {
				t.Fatalf("notice %+v, want %+v", n, want)
			}
			select {
			case n := <-p.a.Notices():
				t.Fatalf("told twice: %+v", n)
			default:
			}
		})
	}
}

// Whether a packet may be fragmented is said message by message, also within one call of Send.
func TestFragment(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			p := newOuterPair(t, kind, OuterOptions{}, OuterOptions{})
			rx := newReceiver(t, p.b)
			w := p.a.NewWriter()
			big := espPacket(0x1234, 1, 3000)
			var msgs []TxMsg
			for i := range 130 {
				msgs = append(msgs, TxMsg{To: p.addrB, Buf: big, Fragment: i%3 != 1}, TxMsg{To: p.addrB, Buf: big[:500], Fragment: i%5 == 0})
			}
			for range 2 {
				must(t, w.Send(msgs))
				arrived := 0
				for i, m := range msgs {
					want := error(nil)
					if len(m.Buf) > 1500 && !m.Fragment {
						want = ErrTooBig
					} else {
						arrived++
					}
					if m.Err != want {
						t.Fatalf("message %d: %v, want %v", i, m.Err, want)
					}
				}
				rx.take(arrived)
			}
		})
	}
}

func notice(t testing.TB, o Outer) Notice {
	t.Helper()
	select {
	case n := <-o.Notices():
		return n
	case <-time.After(5 * time.Second):
		t.Fatal("no notice came")
		return Notice{}
	}
}

// A router on the way has a smaller MTU: its ICMP message arrives as a Notice with the SPI, the datagrams around it arrive.
func TestPathMTUNotice(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			a, r, b := newSpace(t), newSpace(t), newSpace(t)
			r.sysctl("net/ipv6/conf/default/dad_transmits", "9") // newSpace has seen to it that the router need not wait for them
			veth(a, r, "a0", "ra")
			veth(r, b, "rb", "b0")
			r.sysctl("net/ipv4/ip_forward", "1")
			r.sysctl("net/ipv6/conf/all/forwarding", "1")
			a.addr("a0", "192.0.2.1/24", "2001:db8:a::1/64")
			r.addr("ra", "192.0.2.254/24", "2001:db8:a::fe/64")
			r.addr("rb", "198.51.100.254/24", "2001:db8:b::fe/64")
			b.addr("b0", "198.51.100.2/24", "2001:db8:b::2/64")
			a.route("198.51.100.0/24", "192.0.2.254")
			b.route("192.0.2.0/24", "198.51.100.254")
			a.route("2001:db8:b::/64", "2001:db8:a::fe")
			b.route("2001:db8:a::/64", "2001:db8:b::fe")
			r.mtu("rb", 1300)
			b.mtu("b0", 1300)
			local, to, router := "192.0.2.1", "198.51.100.2", "192.0.2.254"
			if strings.HasSuffix(kind, "6") {
				local, to, router = "2001:db8:a::1", "2001:db8:b::2", "2001:db8:a::fe"
			}
			var oa, ob Outer
			peer := netip.AddrPortFrom(netip.MustParseAddr(to), 0)
			if strings.HasPrefix(kind, "udp") {
				oa, ob = a.udp(net.JoinHostPort(local, "4500"), OuterOptions{}), b.udp(net.JoinHostPort(to, "4500"), OuterOptions{})
				peer = netip.AddrPortFrom(peer.Addr(), 4500)
			} else {
				oa, ob = a.esp(local, OuterOptions{}), b.esp(to, OuterOptions{})
			}
			// A reader that waits is what takes notice; nobody need send again.
			done := make(chan error)
			go func() {
				rd := oa.NewReader()
				done <- rd.Recv(rd.NewBatch(), true)
			}()
			w := oa.NewWriter()
			rx := newReceiver(t, ob)
			send(t, w, TxMsg{To: peer, Buf: espPacket(0xcafe, 1, 100)}, TxMsg{To: peer, Buf: espPacket(0xbeef, 2, 1400)})
			want := Notice{Kind: NoticeTooBig, MTU: 1300, Peer: peer, SPI: 0xbeef, Seq: 2, From: netip.MustParseAddr(router)}
			if n := notice(t, oa); n != want {
				t.Fatalf("notice %+v, want %+v", n, want)
			}
			// The error is not paid for by the next datagrams. Nor does the kernel believe the message, which could be forged: too
			// large ones are sent on, and answered, until whoever knows whether to believe it sends smaller ones.
			send(t, w, TxMsg{To: peer, Buf: espPacket(0xcafe, 3, 100)}, TxMsg{To: peer, Buf: espPacket(0xbeef, 4, 1400)}, TxMsg{To: peer, Buf: espPacket(0xcafe, 5, 100)})
			want.Seq = 4
			if n := notice(t, oa); n != want {
				t.Fatalf("notice %+v, want %+v", n, want)
			}
			for i, m := range rx.take(3) {
				if seq := binary.BigEndian.Uint32(m.Buf[4:]); seq != uint32(i)*2+1 {
					t.Fatalf("number %d came in place %d", seq, i)
				}
			}
			must(t, oa.Close())
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Fatal(err)
			}
		})
	}
}

// Errors that ICMP reports at a later call are not taken for that call's: not one datagram to a peer that listens is lost while
// another peer refuses all of its.
func TestRefusalsDoNotSpoilOthers(t *testing.T) {
	for _, kind := range []string{"udp4", "udp6"} {
		t.Run(kind, func(t *testing.T) {
			p := newOuterPair(t, kind, OuterOptions{}, OuterOptions{})
			p.spaceB.sysctl("net/ipv4/icmp_ratelimit", "0")
			p.spaceB.sysctl("net/ipv6/icmp/ratelimit", "0")
			deaf := netip.AddrPortFrom(p.addrB.Addr(), 9)
			rx := newReceiver(t, p.b)
			w := p.a.NewWriter()
			const rounds, each = 50, 20
			for range rounds {
				var msgs []TxMsg
				for i := range uint32(each) {
					msgs = append(msgs, TxMsg{To: deaf, Buf: espPacket(0xdead, i, 90)}, TxMsg{To: p.addrB, Buf: espPacket(0x600d, i, 90)})
				}
				send(t, w, msgs...)
				rx.take(each)
			}
			want := Notice{Kind: NoticeRefused, Peer: deaf, SPI: 0xdead, From: p.addrB.Addr()}
			if n := notice(t, p.a); n != want {
				t.Fatalf("notice %+v, want %+v", n, want)
			}
		})
	}
}

// What cannot be sent fails with its own sentinel; its neighbours in the burst are sent.
func TestMessageErrors(t *testing.T) {
	p := newOuterPair(t, "udp4", OuterOptions{}, OuterOptions{})
	rx := newReceiver(t, p.b)
	good := TxMsg{To: p.addrB, Buf: espPacket(1, 1, 50)}
	msgs := []TxMsg{
		good,
		{To: netip.MustParseAddrPort("203.0.113.1:4500"), Buf: good.Buf}, // no route
		good,
		{To: netip.MustParseAddrPort("[2001:db8::2]:4500"), Buf: good.Buf}, // other family
		{To: p.addrB}, // empty
		good,
		{To: netip.AddrPort{}, Buf: good.Buf},
		{To: p.addrB, Buf: make([]byte, 1600)}, // larger than the device's MTU
		good,
		{To: netip.MustParseAddrPort("255.255.255.255:4500"), Buf: good.Buf}, // broadcast without SO_BROADCAST
		{To: p.addrB, Buf: good.Buf, SegSize: -1},
	}
	want := []error{nil, ErrUnreachable, nil, ErrInvalid, ErrInvalid, nil, ErrInvalid, ErrTooBig, nil, ErrForbidden, ErrInvalid}
	must(t, p.a.NewWriter().Send(msgs))
	for i, m := range msgs {
		failed := 1
		if want[i] == nil {
			failed = 0
		}
		if m.Err != want[i] || m.Failed != failed {
			t.Errorf("message %d: %d failed: %v, want %v", i, m.Failed, m.Err, want[i])
		}
	}
	rx.take(4)
}

// refuseGSO makes w's kernel refuse UDP_SEGMENT with errno, as those do that have a device without checksum offloads, or IPsec,
// on the path. What is sent without it goes to the real one.
func refuseGSO(w *sockWriter, errno unix.Errno) (refusals *int) {
	refusals = new(int)
	once := w.once
	w.once = func(fd uintptr) {
		hi := w.hi
		for i := w.lo; i < hi; i++ {
			if w.pieces[i].seg == 0 {
				continue
			}
			if i == w.lo {
				*refusals++
				w.n, w.errno = -1, errno
				return
			}
			w.hi = i
			break
		}
		once(fd)
		w.hi = hi
	}
	return refusals
}

// Where the kernel refuses GSO every datagram still goes, in order, and after a few refusals GSO is off and says so.
func TestGSORefused(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EIO, unix.EINVAL, unix.EOPNOTSUPP} {
		t.Run(errno.Error(), func(t *testing.T) {
			p := newOuterPair(t, "udp4", OuterOptions{}, OuterOptions{NoGRO: true})
			rx := newReceiver(t, p.b)
			w := p.a.NewWriter()
			refusals := refuseGSO(w.(*sockWriter), errno)
			for round := range 4 {
				var msgs []TxMsg
				seq := uint32(0)
				for range 3 {
					m := TxMsg{To: p.addrB, SegSize: 100}
					for range 70 { // more than one piece
						m.Buf = append(m.Buf, espPacket(1, seq, 100)...)
						seq++
					}
					msgs = append(msgs, m, TxMsg{To: p.addrB, Buf: espPacket(1, seq, 80)})
					seq++
				}
				send(t, w, msgs...)
				for i, m := range rx.take(int(seq)) {
					if n := binary.BigEndian.Uint32(m.Buf[4:]); int(n) != i {
						t.Fatalf("round %d: number %d came in place %d", round, n, i)
					}
				}
			}
			want := gsoRefusalMax + 1
			if errno == unix.EOPNOTSUPP {
				want *= 2 // each is tried again, for an ICMP message can say that too
			}
			if *refusals != want {
				t.Errorf("tried %d times", *refusals)
			}
			if says := "no gso (the kernel refuses it: " + errno.Error() + "), gro"; p.a.Offloads() != says {
				t.Errorf("offloads: %q", p.a.Offloads())
			}
		})
	}
}

// Segments that fail by themselves too are no reason to give GSO up.
func TestGSONotToBlame(t *testing.T) {
	p := newOuterPair(t, "udp4", OuterOptions{}, OuterOptions{})
	w := p.a.NewWriter()
	refuseGSO(w.(*sockWriter), unix.EINVAL) // as old kernels do when the segments exceed the MTU
	for range 4 * gsoRefusalMax {
		m := []TxMsg{{To: p.addrB, Buf: make([]byte, 10000), SegSize: 2000}}
		must(t, w.Send(m))
		if m[0].Err != ErrTooBig || m[0].Failed != 5 {
			t.Fatalf("%d failed: %v", m[0].Failed, m[0].Err)
		}
	}
	if s := p.a.Offloads(); s != "gso, gro" {
		t.Errorf("offloads: %q", s)
	}
}

// Close wakes a reader and a writer that wait, and what was not sent says so.
func TestCloseWakes(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			p := newOuterPair(t, kind, OuterOptions{SendBuf: 20000}, OuterOptions{})
			p.spaceA.slow("a0", 1000, 10000)
			read, wrote := make(chan error), make(chan error)
			rd := p.a.NewReader()
			go func() { read <- rd.Recv(rd.NewBatch(), true) }()
			msgs := make([]TxMsg, 1000)
			for i := range msgs {
				msgs[i] = TxMsg{To: p.addrB, Buf: espPacket(1, uint32(i), 1000)}
			}
			msgs[999] = TxMsg{To: p.addrB, Buf: make([]byte, 1000), SegSize: 100}
			go func() { wrote <- p.a.NewWriter().Send(msgs) }()
			select { // both wait for what does not come
			case err := <-read:
				t.Fatal("reader:", err)
			case err := <-wrote:
				t.Fatal("writer:", err)
			case <-time.After(100 * time.Millisecond):
			}
			must(t, p.a.Close())
			for name, c := range map[string]chan error{"reader": read, "writer": wrote} {
				select {
				case err := <-c:
					if !errors.Is(err, net.ErrClosed) {
						t.Errorf("%s: %v", name, err)
					}
				case <-time.After(5 * time.Second):
					t.Fatalf("%s is not woken", name)
				}
			}
			if m := msgs[999]; m.Err != net.ErrClosed || m.Failed != 10 {
				t.Errorf("last message: %d failed: %v", m.Failed, m.Err)
			}
			if m := msgs[0]; m.Err != nil {
				t.Errorf("first message: %v", m.Err)
			}
			if _, open := <-p.a.Notices(); open {
				t.Error("Notices is open")
			}
			if err := rd.Recv(rd.NewBatch(), false); !errors.Is(err, net.ErrClosed) {
				t.Error("reading afterwards:", err)
			}
			if err := p.a.NewWriter().Send(msgs[:1]); !errors.Is(err, net.ErrClosed) || msgs[0].Err != net.ErrClosed {
				t.Error("writing afterwards:", err)
			}
			must(t, p.a.Close())
		})
	}
}

// StopReading wakes a reader, and keeps others from what has come already, but lets writers go on.
func TestStopReading(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			p := newOuterPair(t, kind, OuterOptions{}, OuterOptions{})
			rd := p.a.NewReader()
			b := rd.NewBatch()
			read := make(chan error)
			go func() { read <- rd.Recv(b, true) }()
			select {
			case err := <-read:
				t.Fatal("did not wait:", err)
			case <-time.After(50 * time.Millisecond):
			}
			p.a.StopReading()
			select {
			case err := <-read:
				if !errors.Is(err, net.ErrClosed) {
					t.Error("reader:", err)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("the reader is not woken")
			}
			send(t, p.b.NewWriter(), TxMsg{To: p.addrA, Buf: espPacket(1, 1, 100)})
			for _, wait := range []bool{false, true} {
				if err := p.a.NewReader().Recv(b, wait); !errors.Is(err, net.ErrClosed) {
					t.Error("reading afterwards:", err)
				}
			}
			rx := newReceiver(t, p.b)
			send(t, p.a.NewWriter(), TxMsg{To: p.addrB, Buf: make([]byte, 1000), SegSize: 100})
			rx.take(10)
		})
	}
}

// A full socket makes the sender wait, not lose; every datagram that the receiver's buffer takes arrives once.
func TestSendWaits(t *testing.T) {
	p := newOuterPair(t, "udp4", OuterOptions{SendBuf: 10000, NoGSO: true}, OuterOptions{})
	p.spaceA.slow("a0", 2_000_000, 10000)
	rx := newReceiver(t, p.b)
	const n = 500
	done := make(chan error)
	go func() {
		var msgs []TxMsg
		for i := range uint32(n) {
			msgs = append(msgs, TxMsg{To: p.addrB, Buf: espPacket(1, i, 1000)})
		}
		err := p.a.NewWriter().Send(msgs)
		for _, m := range msgs {
			err = errors.Join(err, m.Err)
		}
		done <- err
	}()
	for i, m := range rx.take(n) {
		if seq := binary.BigEndian.Uint32(m.Buf[4:]); int(seq) != i {
			t.Fatalf("number %d came in place %d", seq, i)
		}
	}
	must(t, <-done)
}

// What the receive buffer cannot hold is dropped by the kernel, which counts it.
func TestKernelDrops(t *testing.T) {
	p := newOuterPair(t, "udp4", OuterOptions{}, OuterOptions{RecvBuf: 4096})
	w := p.a.NewWriter()
	for i := range uint32(100) {
		send(t, w, TxMsg{To: p.addrB, Buf: espPacket(1, i, 1000)})
	}
	if n, ok := KernelDrops(p.b); !ok || n == 0 || n >= 100 {
		t.Errorf("%d dropped, counted %v", n, ok)
	}
}

// The options reach the socket.
func TestSocketOptions(t *testing.T) {
	s := newSpace(t)
	o := s.udp("127.0.0.1:0", OuterOptions{Mark: 77, Device: "lo", RecvBuf: 10 << 20}).(*socket)
	if o.Local().Port() == 0 {
		t.Error("no port")
	}
	must(t, o.rc.Control(func(fd uintptr) {
		for name, want := range map[[2]int]int{
			{unix.SOL_SOCKET, unix.SO_MARK}:          77,
			{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX}: 1,
			{unix.SOL_SOCKET, unix.SO_RCVBUF}:        20 << 20, // the kernel doubles it
			{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER}:  unix.IP_PMTUDISC_PROBE,
			{unix.SOL_SOCKET, unix.SO_NO_CHECK}:      0,
		} {
			if got, err := unix.GetsockoptInt(int(fd), name[0], name[1]); err != nil || got != want {
				t.Errorf("option %v is %d, want %d (%v)", name, got, want, err)
			}
		}
	}))
}

// Errors of opening say what was wrong and what to do.
func TestOpenErrors(t *testing.T) {
	s := newSpace(t)
	first := s.udp("127.0.0.1:4500", OuterOptions{})
	for _, c := range []struct {
		addr, text string
		opts       OuterOptions
		is         error
	}{
		{first.Local().String(), "another process", OuterOptions{}, unix.EADDRINUSE},
		{"192.0.2.9:4500", "no interface has this address", OuterOptions{}, unix.EADDRNOTAVAIL},
		{"127.0.0.1:4501", "no such interface", OuterOptions{Device: "nowhere0"}, unix.ENODEV},
		{"[fe80::1%nowhere0]:4500", `no interface "nowhere0"`, OuterOptions{}, nil},
	} {
		s.do(func() {
			o, err := OpenUDP(netip.MustParseAddrPort(c.addr), c.opts)
			if err == nil {
				o.Close()
				t.Errorf("%s opened", c.addr)
				return
			}
			if !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%s: %v", c.addr, err)
			}
		})
	}
	if _, err := OpenESP(netip.Addr{}, OuterOptions{}); err == nil || !strings.Contains(err.Error(), "an address is needed") {
		t.Error(err)
	}
}

// Link-local peers keep their interface.
func TestLinkLocal(t *testing.T) {
	a, b := newSpace(t), newSpace(t)
	veth(a, b, "a0", "b0")
	a.addr("a0", "fe80::a/64")
	b.addr("b0", "fe80::b/64")
	oa, ob := a.udp("[fe80::a%a0]:4500", OuterOptions{}), b.udp("[::]:4500", OuterOptions{})
	rxA, rxB := newReceiver(t, oa), newReceiver(t, ob)
	idx, err := a.nl.LinkByName("a0")
	must(t, err)
	to := netip.MustParseAddrPort(fmt.Sprintf("[fe80::b%%%d]:4500", idx.Attrs().Index))
	send(t, oa.NewWriter(), TxMsg{To: to, Buf: espPacket(1, 1, 40)})
	var m RxMsg
	b.do(func() { m = rxB.take(1)[0] })
	if m.From.Addr().WithZone("") != netip.MustParseAddr("fe80::a") || m.From.Addr().Zone() != "b0" {
		t.Fatalf("came from %v", m.From)
	}
	b.do(func() { send(t, ob.NewWriter(), TxMsg{To: m.From, Buf: espPacket(1, 2, 40)}) })
	rxA.take(1)
}
