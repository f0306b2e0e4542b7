package sa

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// model is the replay window as RFC 4303 section 3.4.3 describes it, without any ring.
type model struct {
	size uint64
	top  uint64
	seen map[uint64]bool
}

func (m *model) check(seq uint64) Verdict {
	switch {
	case seq == 0:
		return TooOld
	case seq > m.top:
		return Fresh
	case m.top-seq >= m.size:
		return TooOld
	case m.seen[seq]:
		return Duplicate
	}
	return Fresh
}

func (m *model) advance(seq uint64) Verdict {
	v := m.check(seq)
	if v == Fresh {
		m.seen[seq] = true
		m.top = max(m.top, seq)
	}
	return v
}

// appendixA is RFC 4303 appendix A2.2 as it is printed, case by case, with all variables of 32 bits.
func appendixA(top uint64, size uint32, seql uint32) (seqh uint32, belowZero bool) {
	tl, th := uint32(top), uint32(top>>32)
	bl := tl - size + 1
	if tl >= size-1 {
		if seql >= bl {
			return th, false
		}
		return th + 1, false
	}
	if seql >= bl {
		return th - 1, th == 0
	}
	return th, false
}

// near draws a number that matters to a window with that top.
func near(t *rapid.T, top, size uint64) uint64 {
	switch rapid.IntRange(0, 9).Draw(t, "where") {
	case 0:
		return rapid.Uint64Range(0, 3).Draw(t, "small")
	case 1: // far ahead: the ring is cleared as a whole
		return top + rapid.Uint64Range(0, 300_000).Draw(t, "jump")
	case 2: // the left edge
		return top - size + rapid.Uint64Range(0, 3).Draw(t, "edge") - 1
	case 3: // a turn of the ring behind or ahead
		return top + rapid.SampledFrom([]uint64{-size, size}).Draw(t, "turn") + 64 - rapid.Uint64Range(0, 128).Draw(t, "off")
	case 4, 5, 6:
		return top + rapid.Uint64Range(1, 80).Draw(t, "ahead")
	default:
		return top - rapid.Uint64Range(0, size+65).Draw(t, "back")
	}
}

func drawSize(t *rapid.T) int {
	return rapid.OneOf(
		rapid.SampledFrom([]int{MinWindow, 33, 63, 64, 65, 127, 128, 129, 1024, 4096, MaxWindow - 1, MaxWindow}),
		rapid.IntRange(MinWindow, MaxWindow),
	).Draw(t, "size")
}

// The ring and the model judge every number alike, before and after, and the zero value is a window of 64.
func TestWindowAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := drawSize(t)
		w, err := NewWindow(size)
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "zero value") {
			w, size = new(Window), 64
		}
		if w.Size() != size {
			t.Fatalf("a window of %d says it has %d", size, w.Size())
		}
		m := model{size: uint64(size), seen: map[uint64]bool{}}
		if rapid.Bool().Draw(t, "high") { // around a wrap of the low half
			start := uint64(5)<<32 - rapid.Uint64Range(0, 200).Draw(t, "start")
			w.Advance(start)
			m.advance(start)
		}
		for range rapid.IntRange(1, 200).Draw(t, "packets") {
			seq := near(t, m.top, m.size)
			if got, want := w.Check(seq), m.check(seq); got != want {
				t.Fatalf("size %d, top %d: Check(%d) is %v, not %v", size, m.top, seq, got, want)
			}
			if rapid.IntRange(0, 3).Draw(t, "authentic") == 0 {
				continue // Check alone must not have changed anything
			}
			if got, want := w.Advance(seq), m.advance(seq); got != want {
				t.Fatalf("size %d, top %d: Advance(%d) is %v, not %v", size, m.top, seq, got, want)
			}
			if w.Top() != m.top {
				t.Fatalf("top is %d, not %d", w.Top(), m.top)
			}
		}
	})
}

// Whatever number a peer may have sent, from the left edge on and up to 2^32-1 further, the low half is enough to find it, and
// that is what the appendix says too.
func TestInfer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, err := NewWindow(drawSize(t))
		if err != nil {
			t.Fatal(err)
		}
		size := uint64(w.Size())
		w.top = rapid.OneOf(
			rapid.Uint64Range(size-2, size+2),
			rapid.Uint64Range(0, 3*MaxWindow),
			rapid.Map(rapid.Uint64Range(0, 2*MaxWindow), func(d uint64) uint64 { return 7<<32 + d - MaxWindow }),
			rapid.Uint64Range(0, math.MaxUint64-(1<<33)),
		).Draw(t, "top")
		var left uint64
		if w.top >= size {
			left = w.top - size + 1
		}
		seq := left + rapid.OneOf(
			rapid.Uint64Range(0, 2*MaxWindow), rapid.Uint64Range(0, math.MaxUint32),
			rapid.Uint64Range(math.MaxUint32-2, math.MaxUint32),
		).Draw(t, "from the left edge")
		if got := w.Infer(uint32(seq)); got != seq {
			t.Fatalf("top %#x, size %d: %#x is taken for %#x", w.top, size, seq, got)
		}
		if hi, belowZero := appendixA(w.top, uint32(size), uint32(seq)); !belowZero && hi != uint32(seq>>32) {
			t.Fatalf("the appendix has %#x for the high half of %#x", hi, seq)
		}
	})
}

// A burst that crosses 2^32, out of order and with stragglers, is inferred right both by a window that stands still until the
// burst has been opened and by one that moves with every packet.
func TestInferAcrossWrapInBurst(t *testing.T) {
	const base = 1<<32 - 8
	burst := []uint64{base + 1, base + 9, base + 3, base + 7, base + 8, base + 2, base + 40, base + 12, base + 7 + 63}
	for _, moving := range []bool{false, true} {
		w, err := NewWindow(MinWindow)
		if err != nil {
			t.Fatal(err)
		}
		w.Advance(base)
		for _, seq := range burst {
			if got := w.Infer(uint32(seq)); got != seq {
				t.Errorf("moving %v: %#x is taken for %#x", moving, seq, got)
			}
			if moving && w.Advance(seq) != Fresh {
				t.Errorf("%#x is not fresh", seq)
			}
		}
	}
}

// The end of the 64-bit space and the time before the first packet give no false freshness.
func TestInferAtTheEnds(t *testing.T) {
	var w Window
	if got := w.Infer(math.MaxUint32); got != math.MaxUint32 {
		t.Errorf("before the first packet 2^32-1 is %#x", got)
	}
	if v := w.Check(w.Infer(0)); v != TooOld {
		t.Errorf("a first packet with number 0 is %v", v)
	}
	w.Advance(math.MaxUint64)
	if v := w.Check(w.Infer(5)); v != TooOld {
		t.Errorf("a number beyond 2^64 is %v", v)
	}
}

// After Resume nothing up to the top is accepted, and everything above is.
func TestWindowResume(t *testing.T) {
	for _, size := range []int{32, 64, 100, 4096} {
		for _, top := range []uint64{1, 63, 64, 65, 1000, 1<<32 - 1, 1 << 32} {
			w, err := NewWindow(size)
			if err != nil {
				t.Fatal(err)
			}
			w.Resume(top)
			for back := range min(uint64(size), top) {
				if v := w.Check(top - back); v != Duplicate {
					t.Fatalf("size %d, resumed at %d: %d is %v", size, top, top-back, v)
				}
			}
			for ahead := uint64(1); ahead < 3*uint64(size); ahead++ {
				if v := w.Advance(top + ahead); v != Fresh {
					t.Fatalf("size %d, resumed at %d: %d is %v", size, top, top+ahead, v)
				}
			}
		}
	}
}

func TestWindowSizes(t *testing.T) {
	for _, size := range []int{-1, 0, 31, 65537} {
		if _, err := NewWindow(size); !errors.Is(err, ErrParams) {
			t.Errorf("a window of %d gives %v", size, err)
		}
	}
}

func TestWindowAllocatesNothing(t *testing.T) {
	w, err := NewWindow(MaxWindow)
	if err != nil {
		t.Fatal(err)
	}
	var seq uint64
	noAllocs(t, "the window", func() {
		seq += 1 << 20
		w.Check(w.Infer(uint32(seq)))
		w.Advance(seq)
	})
}

// FuzzWindow compares with the model over steps of three bytes: two of distance, one of direction and kind.
func FuzzWindow(f *testing.F) {
	f.Add(uint16(64), uint64(0), []byte("\x00\x01\x00\x00\x05\x01"))
	f.Add(uint16(32), uint64(1<<32-3), []byte("\x00\x01\x02\x00\x02\x02\xff\xff\x00"))
	f.Fuzz(func(t *testing.T, size uint16, start uint64, steps []byte) {
		w, err := NewWindow(MinWindow + int(size)%(MaxWindow-MinWindow+1))
		if err != nil {
			t.Fatal(err)
		}
		m := model{size: uint64(w.Size()), seen: map[uint64]bool{}}
		w.Advance(start)
		m.advance(start)
		for ; len(steps) >= 3; steps = steps[3:] {
			seq := m.top + uint64(binary.BigEndian.Uint16(steps))
			if steps[2]&1 != 0 {
				seq = m.top - uint64(binary.BigEndian.Uint16(steps))
			}
			if got, want := w.Check(seq), m.check(seq); got != want {
				t.Fatalf("size %d, top %d: Check(%d) is %v, not %v", m.size, m.top, seq, got, want)
			}
			if steps[2]&2 == 0 {
				continue
			}
			if got, want := w.Advance(seq), m.advance(seq); got != want {
				t.Fatalf("size %d, top %d: Advance(%d) is %v, not %v", m.size, m.top, seq, got, want)
			}
		}
	})
}

func BenchmarkWindow(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
		step func(i uint64) uint64
	}{
		{"in order/64", 64, func(i uint64) uint64 { return i }},
		{"in order/4096", 4096, func(i uint64) uint64 { return i }},
		{"in order/65536", 65536, func(i uint64) uint64 { return i }},
		{"reordered by 32/64", 64, func(i uint64) uint64 { return i ^ 31 }},
		{"gaps of 1000/4096", 4096, func(i uint64) uint64 { return i * 1000 }},
	} {
		b.Run(c.name, func(b *testing.B) {
			w, err := NewWindow(c.size)
			if err != nil {
				b.Fatal(err)
			}
			defer perPacket(b)()
			for i := uint64(64); b.Loop(); i++ {
				seq := w.Infer(uint32(c.step(i)))
				if w.Check(seq) == Fresh {
					w.Advance(seq)
				}
			}
		})
	}
}
