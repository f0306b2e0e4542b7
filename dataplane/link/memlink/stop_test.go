package memlink

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"culvert/dataplane/link"
)

// An end that has stopped reading reads nothing more, not even what was there; it writes on, and so does the other, which
// would otherwise wait for room for ever.
func TestStopReading(t *testing.T) {
	t.Run("inner", func(t *testing.T) {
		a, b := NewInnerPair(InnerOptions{}, InnerOptions{Depth: 2})
		packet := [][]byte{make([]byte, 100)}
		if err := b.NewWriter().Queue(link.VNet{}, packet); err != nil {
			t.Fatal(err)
		}
		a.StopReading()
		if _, _, err := a.NewReader().Next(true); !errors.Is(err, net.ErrClosed) {
			t.Error("reading:", err)
		}
		for range 10 {
			if err := b.NewWriter().Queue(link.VNet{}, packet); err != nil {
				t.Error("the other end:", err)
			}
		}
		if n := b.Drops(); n != 9 {
			t.Errorf("%d dropped, want 9", n)
		}
		if err := a.NewWriter().Queue(link.VNet{}, packet); err != nil {
			t.Error("writing:", err)
		}
		if p, _, err := b.NewReader().Next(true); err != nil || len(p) != 100 {
			t.Error("the other end:", len(p), err)
		}
	})
	t.Run("outer", func(t *testing.T) {
		to := netip.MustParseAddrPort("192.0.2.1:4500")
		a, b := NewOuterPair(OuterOptions{}, OuterOptions{Depth: 2})
		r := a.NewReader()
		woken := make(chan error)
		go func() { woken <- r.Recv(r.NewBatch(), true) }()
		a.StopReading()
		if err := <-woken; !errors.Is(err, net.ErrClosed) {
			t.Error("reading:", err)
		}
		msgs := make([]link.TxMsg, 10)
		for i := range msgs {
			msgs[i] = link.TxMsg{To: to, Buf: make([]byte, 100)}
		}
		for _, end := range []*Outer{a, b} {
			if err := end.NewWriter().Send(msgs); err != nil {
				t.Error(end.Name(), err)
			}
		}
		if n := b.Drops(); n != 8 {
			t.Errorf("%d dropped, want 8", n)
		}
	})
}

// Wake ends one wait, of who waits or of who waits next; a packet that is there comes first.
func TestWake(t *testing.T) {
	a, b := NewInnerPair(InnerOptions{}, InnerOptions{})
	r := a.NewReader()
	next := make(chan error)
	go func() {
		_, _, err := r.Next(true)
		next <- err
	}()
	select {
	case err := <-next:
		t.Fatal("did not wait:", err)
	case <-time.After(20 * time.Millisecond):
	}
	a.Wake()
	if err := <-next; err != link.ErrAgain {
		t.Fatal(err)
	}
	a.Wake()
	if err := b.NewWriter().Queue(link.VNet{}, [][]byte{{1}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{nil, link.ErrAgain} {
		if _, _, err := r.Next(true); err != want {
			t.Fatalf("%v, not %v", err, want)
		}
	}
	a.Wake()
	a.StopReading()
	if _, _, err := r.Next(true); err != net.ErrClosed {
		t.Fatal(err)
	}
}
