package dataplane

import (
	"net"
	"net/netip"
	"testing"

	"culvert/dataplane/link"
	"culvert/offload"
	"culvert/offload/soft"
)

// Links without a kernel and without a copy, for lanes that a test or a benchmark drives by hand, turn by turn.

// source is an inner link whose packets a function makes.
type source struct {
	next    func() ([]byte, link.VNet, error) // nil: there are none
	deliver func(h link.VNet, parts [][]byte) // nil: into nothing
	waits   bool                              // whether the lane would wait for the packet that it asks for now
}

func (s *source) NewReader() link.InnerReader { return s }
func (s *source) NewWriter() link.InnerWriter { return s }
func (s *source) Name() string                { return "source" }
func (s *source) MTU() int                    { return 1500 }
func (s *source) Offloads() string            { return "" }
func (s *source) Wake()                       {}
func (s *source) StopReading() {
	s.next = func() ([]byte, link.VNet, error) { return nil, link.VNet{}, net.ErrClosed }
}
func (s *source) Close() error        { return nil }
func (s *source) Flush() (int, error) { return 0, nil }

func (s *source) Next(wait bool) ([]byte, link.VNet, error) {
	s.waits = wait
	if s.next == nil {
		return nil, link.VNet{}, link.ErrAgain
	}
	return s.next()
}

func (s *source) Queue(h link.VNet, parts [][]byte) error {
	if s.deliver != nil {
		s.deliver(h, parts)
	}
	return nil
}

// wire is an outer link whose messages a function makes.
type wire struct {
	local   netip.AddrPort
	receive func(b *link.RxBatch) error // nil: there are none
	deliver func(m *link.TxMsg)         // nil: into nothing
}

// wireBatch is how many messages a wire has in a batch, and wireBuf how long they can be.
const (
	wireBatch = 16
	wireBuf   = 65536 + 64
)

func (w *wire) NewReader() link.OuterReader { return w }
func (w *wire) NewWriter() link.OuterWriter { return w }
func (w *wire) Notices() <-chan link.Notice { return nil }
func (w *wire) Name() string                { return "wire" }
func (w *wire) Local() netip.AddrPort       { return w.local }
func (w *wire) MaxSegs() int                { return 64 }
func (w *wire) MaxBytes() int               { return 65507 }
func (w *wire) Offloads() string            { return "" }
func (w *wire) StopReading()                { w.receive = func(*link.RxBatch) error { return net.ErrClosed } }
func (w *wire) Close() error                { return nil }

// NewBatch makes a batch whose messages have buffers as State, for receive to fill.
func (w *wire) NewBatch() *link.RxBatch {
	bufs := make([][]byte, wireBatch)
	for i := range bufs {
		bufs[i] = make([]byte, wireBuf)
	}
	return &link.RxBatch{Msgs: make([]link.RxMsg, 0, wireBatch), State: bufs}
}

func (w *wire) Recv(b *link.RxBatch, _ bool) error {
	b.Msgs = b.Msgs[:0]
	if w.receive == nil {
		return link.ErrAgain
	}
	return w.receive(b)
}

func (w *wire) Send(msgs []link.TxMsg) error {
	for i := range msgs {
		msgs[i].Err, msgs[i].Failed = nil, 0
		if w.deliver != nil {
			w.deliver(&msgs[i])
		}
	}
	return nil
}

// bench is site A of a world that has no other, with its lanes driven by hand.
type bench struct {
	testing.TB
	*world
	inner *source
	wire  *wire // udp4
	plane *Plane
}

// newBench makes one. The tunnels of its world are those of site A; what arrives is what site B would send.
func newBench(t testing.TB, set func(c *Config)) *bench {
	b := &bench{TB: t, inner: &source{}, wire: &wire{local: wires[udp4].end[siteA]}}
	b.world = newWorld(t, plan{config: [2]func(*Config){func(c *Config) {
		c.Inner.Close()
		c.Inner, c.Outers = b.inner, []link.Outer{b.wire}
		if set != nil {
			set(c)
		}
	}, nil}})
	b.plane = b.world.site[siteA].plane
	return b
}

// out takes one turn of the outbound lane, in of the inbound one. They report whether the lane has something in flight.
func (b *bench) out() bool { return b.turn(b.plane.out, b.plane.out.ring, &b.plane.out.books) }
func (b *bench) in() bool  { return b.turn(b.plane.in[0], b.plane.in[0].ring, &b.plane.in[0].books) }

func (b *bench) turn(s stages, r *ring, books *books) bool {
	if err := r.step(s, books, false); err != nil {
		b.Fatal(err)
	}
	if c := &books.now; !c.Balanced() {
		b.Fatalf("the books do not balance: %s", c.summary())
	}
	return r.used > 0
}

// nullEngine finishes every burst at once and does nothing, so that what is measured is all but the engine.
type nullEngine struct{ soft.Engine }

func (nullEngine) Name() string                      { return "null" }
func (nullEngine) NewLane(int) (offload.Lane, error) { return &nullLane{}, nil }

type nullLane struct{ done *offload.Burst }

func (l *nullLane) Submit(b *offload.Burst) error {
	for i := range b.Jobs {
		b.Jobs[i].Status = offload.OK
	}
	l.done = b
	return nil
}

func (l *nullLane) Reap(dst []*offload.Burst, _ bool) int {
	if l.done == nil {
		return 0
	}
	dst[0], l.done = l.done, nil
	return 1
}

func (l *nullLane) Close() error { return nil }
