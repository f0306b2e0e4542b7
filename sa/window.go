package sa

import "fmt"

// Sizes of a Window, in packets. RFC 4303 section 3.4.3 asks for at least 32 and recommends 64.
const (
	MinWindow     = 32
	DefaultWindow = 64
	MaxWindow     = 65536
)

// Verdict is what the replay check says of one sequence number.
type Verdict uint8

// The verdicts.
const (
	Fresh     Verdict = iota // not seen yet
	Duplicate                // inside the window, and seen already
	TooOld                   // left of the window, so that nobody knows; also 0, which no sender uses
	NotMarked                // beyond the mark on disk: it could be accepted again after a restart
)

var verdicts = [...]string{Fresh: "fresh", Duplicate: "duplicate", TooOld: "too-old", NotMarked: "not-marked"}

// String is "fresh", "duplicate", "too-old" or "not-marked".
func (v Verdict) String() string {
	if int(v) < len(verdicts) {
		return verdicts[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Window is the anti-replay filter of RFC 4303 section 3.4.3, as a ring of 64-bit words (RFC 6479): the window slides by
// clearing words, never by shifting them. Sequence numbers are whole, 64 bits wide; Infer makes them from the 32 bits
// that an ESN packet carries.
//
// The zero value is ready to use: DefaultWindow packets, nothing seen. A Window is not safe for concurrent use, must not be
// copied once it is used, and allocates nothing after NewWindow.
type Window struct {
	top  uint64 // the highest number accepted; 0: none yet
	size uint64 // packets; 0: DefaultWindow
	late uint64 // the lowest number recorded behind the top since somebody reset it; 0: none

	// A window of n packets touches at most n/64+1 words; the ring has the next power of two, so that the word of a number
	// inside the window is never that of another one.
	ring  []uint64 // nil: small
	small [2]uint64
}

// NewWindow makes a window of size packets, MinWindow to MaxWindow; it needs no round number.
func NewWindow(size int) (*Window, error) {
	w := new(Window)
	if err := w.init(size); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *Window) init(size int) error {
	if size < MinWindow || size > MaxWindow {
		return fmt.Errorf("sa: %w: a replay window of %d packets; it can have %d to %d", ErrParams, size, MinWindow, MaxWindow)
	}
	words := 2
	for words < (size+63)/64+1 {
		words *= 2
	}
	*w = Window{size: uint64(size)}
	if words > len(w.small) {
		w.ring = make([]uint64, words)
	}
	return nil
}

// words is the ring. Its length is a power of two.
func (w *Window) words() []uint64 {
	if w.ring == nil {
		return w.small[:]
	}
	return w.ring
}

// Size is the window's size in packets.
func (w *Window) Size() int { return int(w.width()) }

func (w *Window) width() uint64 {
	if w.size == 0 {
		return DefaultWindow
	}
	return w.size
}

// Top is the highest number accepted so far, 0 if there is none.
func (w *Window) Top() uint64 { return w.top }

// Infer gives the whole number of which a packet carries the low half: the one number in the 2^32 that begin at the window's
// left edge. That is RFC 4303 appendix A2.2 with its cases A and B in one expression. One window serves all packets of a
// burst, on both sides of a wrap of the low half.
//
// Where the appendix would go below zero, with the left edge before the first number, Infer stays in the first 2^32; past
// 2^64 it gives a number far below the window.
func (w *Window) Infer(lo uint32) uint64 {
	var left uint64
	if w.top >= w.width() {
		left = w.top - w.width() + 1
	}
	return left + uint64(lo-uint32(left))
}

// Check judges a number and changes nothing.
func (w *Window) Check(seq uint64) Verdict {
	if seq > w.top {
		return Fresh
	}
	if seq == 0 || w.top-seq >= w.width() {
		return TooOld
	}
	ring := w.words()
	if ring[int(seq>>6)&(len(ring)-1)]&(1<<(seq&63)) != 0 {
		return Duplicate
	}
	return Fresh
}

// Advance judges a number again and, if it is Fresh, records it. Call it only for packets whose ICV was right: an
// unauthenticated number must not move the window (RFC 4303 section 3.4.3).
func (w *Window) Advance(seq uint64) Verdict {
	ring := w.words()
	mask := len(ring) - 1
	if seq > w.top {
		// Words between the old top's and the new one's hold numbers of a former turn of the ring.
		from, to := w.top>>6, seq>>6
		if to-from >= uint64(len(ring)) {
			clear(ring)
		} else {
			for ; from < to; from++ {
				ring[int(from+1)&mask] = 0
			}
		}
		w.top = seq
	} else if seq == 0 || w.top-seq >= w.width() {
		return TooOld
	}
	word, bit := &ring[int(seq>>6)&mask], uint64(1)<<(seq&63)
	if *word&bit != 0 {
		return Duplicate
	}
	*word |= bit
	if seq < w.top && (w.late == 0 || seq < w.late) {
		w.late = seq
	}
	return Fresh
}

// Resume sets the window to the state in which top and everything before it has been seen: what is safe to assume when an
// SA comes back and only the highest number is known. Packets that were on their way are lost, none is accepted twice.
func (w *Window) Resume(top uint64) {
	w.top = top
	ring := w.words()
	for i := range ring {
		ring[i] = ^uint64(0)
	}
	// Numbers that share top's word but come after it are still to be received.
	ring[int(top>>6)&(len(ring)-1)] = ^uint64(0) >> (63 - top&63)
}
