package memlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"culvert/dataplane/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	addrA = netip.MustParseAddrPort("192.0.2.1:4500")
	addrB = netip.MustParseAddrPort("192.0.2.2:4500")
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func numbered(n uint32, size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint32(b, n)
	return b
}

// What is queued in parts arrives in one piece with its header, in order, both ways; the reader owns it until its next call.
func TestInner(t *testing.T) {
	a, b := NewInnerPair(InnerOptions{}, InnerOptions{})
	for _, c := range []struct{ from, to link.Inner }{{a, b}, {b, a}} {
		w, r := c.from.NewWriter(), c.to.NewReader()
		h := link.VNet{NeedsCsum: true, GSO: link.GSOTCP6, GSOSize: 1200, CsumStart: 40, CsumOffset: 16}
		must(t, w.Queue(h, [][]byte{[]byte("one"), {}, []byte("two")}))
		must(t, w.Queue(link.VNet{}, [][]byte{[]byte("three")}))
		p, got, err := r.Next(true)
		must(t, err)
		if string(p) != "onetwo" || got != h {
			t.Fatalf("%q %+v", p, got)
		}
		copy(p, "changed by its owner")
		if p, got, err = r.Next(false); err != nil || string(p) != "three" || got != (link.VNet{}) {
			t.Fatalf("%q %+v %v", p, got, err)
		}
		if _, _, err = r.Next(false); err != link.ErrAgain {
			t.Fatal(err)
		}
		for _, bad := range [][][]byte{nil, {{}}, {make([]byte, 65536)}, make([][]byte, link.MaxParts+1)} {
			if err := w.Queue(link.VNet{}, bad); err != link.ErrInvalid {
				t.Errorf("%d parts: %v", len(bad), err)
			}
		}
	}
}

// NoGSO refuses super-packets and says so; Segment cuts them; both pass ordinary packets.
func TestInnerGSO(t *testing.T) {
	p := make([]byte, 28+2500)
	p[0], p[9] = 0x45, 17
	h := link.VNet{NeedsCsum: true, GSO: link.GSOUDPL4, GSOSize: 1000, HdrLen: 28, CsumStart: 20, CsumOffset: 6}
	a, b := NewInnerPair(InnerOptions{NoGSO: true}, InnerOptions{Segment: true})
	if w := a.NewWriter(); link.CanGSO(w, link.GSOUDPL4) || w.Queue(h, [][]byte{p}) != link.ErrNoGSO || w.Queue(link.VNet{}, [][]byte{p}) != nil {
		t.Error("NoGSO is not kept to")
	}
	w, r := b.NewWriter(), a.NewReader()
	if !link.CanGSO(w, link.GSOUDPL4) {
		t.Error("Segment takes super-packets")
	}
	must(t, w.Queue(h, [][]byte{p[:28], p[28:]}))
	for _, n := range []int{1028, 1028, 528} {
		got, vn, err := r.Next(false)
		if err != nil || len(got) != n || vn != (link.VNet{}) {
			t.Errorf("%d bytes, %+v, %v; want %d", len(got), vn, err, n)
		}
	}
	h.CsumStart = 9000
	if err := w.Queue(h, [][]byte{p}); err != link.ErrInvalid {
		t.Error(err)
	}
}

// A full queue makes the writer wait until the reader takes something, or drops and counts.
func TestBackPressure(t *testing.T) {
	a, b := NewInnerPair(InnerOptions{Depth: 4}, InnerOptions{Depth: 4, DropWhenFull: true})
	done := make(chan error)
	go func() {
		w := a.NewWriter()
		for i := range uint32(1000) {
			if err := w.Queue(link.VNet{}, [][]byte{numbered(i, 40)}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	r := b.NewReader()
	for i := range uint32(1000) {
		p, _, err := r.Next(true)
		must(t, err)
		if n := binary.BigEndian.Uint32(p); n != i {
			t.Fatalf("number %d came in place %d", n, i)
		}
		if n := b.Pending(); n > 4 {
			t.Fatalf("%d packets in a queue of 4", n)
		}
	}
	must(t, <-done)
	w := b.NewWriter()
	for i := range uint32(10) {
		must(t, w.Queue(link.VNet{}, [][]byte{numbered(i, 40)}))
	}
	if a.Pending() != 4 || b.Drops() != 6 {
		t.Errorf("%d pending, %d dropped", a.Pending(), b.Drops())
	}
}

// Messages arrive with addresses, TOS and segment size; one by one where the receiver does not merge.
func TestOuter(t *testing.T) {
	for _, merge := range []bool{true, false} {
		a, b := NewOuterPair(OuterOptions{Local: addrA, NoGRO: !merge}, OuterOptions{Local: addrB, Batch: 2})
		w, r := a.NewWriter(), b.NewReader()
		batch := r.NewBatch()
		if err := r.Recv(batch, false); err != link.ErrAgain {
			t.Fatal(err)
		}
		buf := bytes.Repeat([]byte("0123456789"), 25)
		moved := netip.MustParseAddr("192.0.2.77")
		msgs := []link.TxMsg{
			{To: addrB, Buf: buf, SegSize: 100, TOS: 3},
			{To: addrB, Buf: buf[:100], SegSize: 100, From: moved},
			{To: addrB},
			{Buf: buf},
		}
		must(t, w.Send(msgs))
		for i, want := range []error{nil, nil, link.ErrInvalid, link.ErrInvalid} {
			if msgs[i].Err != want {
				t.Errorf("message %d: %v", i, msgs[i].Err)
			}
		}
		type seen struct {
			n, seg int
			tos    uint8
			from   netip.AddrPort
		}
		want := []seen{{100, 0, 3, addrA}, {100, 0, 3, addrA}, {50, 0, 3, addrA}}
		if merge {
			want = []seen{{250, 100, 3, addrA}}
		}
		want = append(want, seen{100, 0, 0, netip.AddrPortFrom(moved, 4500)})
		var got []seen
		for r.Recv(batch, false) == nil {
			if len(batch.Msgs) > 2 {
				t.Errorf("a batch of %d", len(batch.Msgs))
			}
			for _, m := range batch.Msgs {
				if m.To != addrB.Addr() {
					t.Errorf("came to %v", m.To)
				}
				got = append(got, seen{len(m.Buf), m.SegSize, m.TOS, m.From})
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

// A hook loses, repeats, reorders and changes single datagrams, also those of a message of several.
func TestHook(t *testing.T) {
	var held []byte
	hook := func(d Datagram, emit func(Datagram)) {
		switch n := binary.BigEndian.Uint32(d.Buf); {
		case n == 2: // lost
		case n == 3: // twice
			emit(d)
			emit(d)
		case n == 4: // later
			held = bytes.Clone(d.Buf)
		case n == 6:
			emit(d)
			d.Buf = held
			emit(d)
		case n == 7: // from elsewhere
			d.From = addrB
			emit(d)
		default:
			emit(d)
		}
	}
	a, b := NewOuterPair(OuterOptions{Local: addrA, Hook: hook}, OuterOptions{Local: addrB})
	var buf []byte
	for i := range uint32(8) {
		buf = append(buf, numbered(i, 50)...)
	}
	msgs := []link.TxMsg{{To: addrB, Buf: buf, SegSize: 50}}
	must(t, a.NewWriter().Send(msgs))
	r := b.NewReader()
	batch := r.NewBatch()
	must(t, r.Recv(batch, true))
	var got []uint32
	for _, m := range batch.Msgs {
		got = append(got, binary.BigEndian.Uint32(m.Buf))
	}
	if want := []uint32{0, 1, 3, 3, 5, 6, 4, 7}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if from := batch.Msgs[7].From; from != addrB {
		t.Errorf("from %v", from)
	}
	ia, ib := NewInnerPair(InnerOptions{Hook: func(p InnerPacket, emit func(InnerPacket)) { emit(p); emit(p) }}, InnerOptions{})
	must(t, ia.NewWriter().Queue(link.VNet{DataValid: true}, [][]byte{numbered(1, 40)}))
	if ib.Pending() != 2 {
		t.Errorf("%d came", ib.Pending())
	}
}

// A datagram beyond the MTU fails by itself and gives a notice, unless it may be fragmented.
func TestOuterMTU(t *testing.T) {
	a, b := NewOuterPair(OuterOptions{Local: addrA, MTU: 1000}, OuterOptions{Local: addrB})
	buf := append(bytes.Repeat(numbered(0xabcd, 973), 2), numbered(0xabcd, 500)...)
	msgs := []link.TxMsg{{To: addrB, Buf: buf[:972]}, {To: addrB, Buf: buf, SegSize: 973}, {To: addrB, Buf: buf[:973], Fragment: true}}
	must(t, a.NewWriter().Send(msgs))
	if msgs[0].Err != nil || msgs[1].Err != link.ErrTooBig || msgs[1].Failed != 2 || msgs[2].Err != nil {
		t.Errorf("%v, %d × %v, %v", msgs[0].Err, msgs[1].Failed, msgs[1].Err, msgs[2].Err)
	}
	if b.Pending() != 3 {
		t.Errorf("%d came", b.Pending())
	}
	want := link.Notice{Kind: link.NoticeTooBig, MTU: 1000, Peer: addrB, SPI: 0xabcd, Local: true}
	if n := <-a.Notices(); n != want {
		t.Errorf("%+v", n)
	}
	a.Notify(link.Notice{Kind: link.NoticeRefused})
	<-a.Notices()
	if n := <-a.Notices(); n.Kind != link.NoticeRefused {
		t.Errorf("%+v", n)
	}
}

// Close wakes who waits at either end. The other end still reads what was on its way.
func TestClose(t *testing.T) {
	ia, ib := NewInnerPair(InnerOptions{Depth: 1}, InnerOptions{})
	oa, ob := NewOuterPair(OuterOptions{Local: addrA, Depth: 1}, OuterOptions{Local: addrB})
	done := make(chan error, 4)
	msgs := []link.TxMsg{{To: addrB, Buf: numbered(1, 40)}, {To: addrB, Buf: numbered(2, 40)}}
	go func() { _, _, err := ia.NewReader().Next(true); done <- err }()
	go func() {
		w := ia.NewWriter()
		w.Queue(link.VNet{}, [][]byte{numbered(1, 40)})
		done <- w.Queue(link.VNet{}, [][]byte{numbered(2, 40)})
	}()
	go func() { r := oa.NewReader(); done <- r.Recv(r.NewBatch(), true) }()
	go func() { done <- oa.NewWriter().Send(msgs) }()
	for ib.Pending() == 0 || ob.Pending() == 0 {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-done:
		t.Fatal("somebody did not wait:", err)
	case <-time.After(20 * time.Millisecond):
	}
	must(t, ia.Close())
	must(t, oa.Close())
	for range 4 {
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	if msgs[0].Err != nil || msgs[1].Err != net.ErrClosed || msgs[1].Failed != 1 {
		t.Errorf("%v, %d × %v", msgs[0].Err, msgs[1].Failed, msgs[1].Err)
	}
	r, ro := ib.NewReader(), ob.NewReader()
	batch := ro.NewBatch()
	if p, _, err := r.Next(true); err != nil || p[3] != 1 {
		t.Error("what was on its way:", err)
	}
	if err := ro.Recv(batch, true); err != nil || batch.Msgs[0].Buf[3] != 1 {
		t.Error("what was on its way:", err)
	}
	if _, _, err := r.Next(true); err != net.ErrClosed {
		t.Error(err)
	}
	if err := ro.Recv(batch, true); err != net.ErrClosed {
		t.Error(err)
	}
	if err := ib.NewWriter().Queue(link.VNet{}, [][]byte{numbered(1, 40)}); err != net.ErrClosed {
		t.Error(err)
	}
	if err := ob.NewWriter().Send(msgs[:1]); err != net.ErrClosed {
		t.Error(err)
	}
	if _, open := <-oa.Notices(); open {
		t.Error("Notices is open")
	}
	oa.Notify(link.Notice{}) // must not panic
	must(t, oa.Close())
	must(t, ob.Close())
}

// A pair that has warmed up does not allocate, with a hook or without.
func TestNoAllocation(t *testing.T) {
	hook := func(d Datagram, emit func(Datagram)) { emit(d) }
	p := make([]byte, 28+9000)
	p[0], p[9] = 0x45, 17
	h := link.VNet{NeedsCsum: true, GSO: link.GSOUDPL4, GSOSize: 1000, HdrLen: 28, CsumStart: 20, CsumOffset: 6}
	parts := [][]byte{p[:28], p[28:]}
	for _, cut := range []bool{false, true} {
		ia, ib := NewInnerPair(InnerOptions{Segment: cut, Depth: 16}, InnerOptions{})
		opts := OuterOptions{Local: addrA, Depth: 16, NoGRO: cut}
		if cut {
			opts.Hook = hook
		}
		oa, ob := NewOuterPair(opts, OuterOptions{})
		w, r, ow, or := ia.NewWriter(), ib.NewReader(), oa.NewWriter(), ob.NewReader()
		batch := or.NewBatch()
		msgs := []link.TxMsg{{To: addrB, Buf: p[:9000], SegSize: 1000}}
		round := func() {
			must(t, w.Queue(h, parts))
			for ib.Pending() > 0 {
				_, _, err := r.Next(true)
				must(t, err)
			}
			must(t, ow.Send(msgs))
			for ob.Pending() > 0 {
				must(t, or.Recv(batch, true))
			}
		}
		for range 100 {
			round()
		}
		if n := testing.AllocsPerRun(100, round); n != 0 {
			t.Errorf("cut %v: %v allocations", cut, n)
		}
	}
}

// A burst of 46 packets in one message from one end to the other.
func BenchmarkOuter(b *testing.B) {
	oa, ob := NewOuterPair(OuterOptions{Local: addrA}, OuterOptions{})
	w, r := oa.NewWriter(), ob.NewReader()
	batch := r.NewBatch()
	const segs, size = 46, 1400
	msgs := []link.TxMsg{{To: addrB, Buf: make([]byte, segs*size), SegSize: size}}
	for b.Loop() {
		if w.Send(msgs) != nil || r.Recv(batch, true) != nil {
			b.Fatal("closed")
		}
	}
	packets := float64(b.N) * segs
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/packets, "ns/packet")
	b.ReportMetric(packets*size*8/float64(b.Elapsed().Nanoseconds()), "Gbit/s")
}
