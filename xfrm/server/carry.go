package server

import (
	"culvert/sa"
	"culvert/xfrm"
)

// carryOf is what a message says that an SA has done before; nil if it says nothing.
func carryOf(a *xfrm.Attrs, inbound bool) *Carry {
	c := &Carry{Cur: a.LTime}
	switch r := a.ReplayESN; {
	case r != nil:
		c.Oseq = uint64(r.OseqHi)<<32 | uint64(r.Oseq)
		c.Replay = decodeReplay(r)
	case a.Replay.Set:
		c.Oseq = uint64(a.Replay.V.Oseq)
		c.Replay.Top = uint64(a.Replay.V.Seq)
		c.Replay.Seen = []uint64{uint64(a.Replay.V.Bitmap)}
	}
	if inbound {
		c.Oseq = 0
	} else {
		c.Replay = sa.Replay{}
	}
	if c.Cur == nil && c.Oseq == 0 && c.Replay.Top == 0 {
		return nil
	}
	return c
}

// decodeReplay undoes encodeReplay.
func decodeReplay(r *xfrm.ReplayESN) sa.Replay {
	top := uint64(r.SeqHi)<<32 | uint64(r.Seq)
	w := min(uint64(r.Window), uint64(32*len(r.Bitmap)))
	out := sa.Replay{Top: top, Seen: make([]uint64, (w+63)/64)}
	if w == 0 || top == 0 {
		return out
	}
	pos := uint64(r.Seq-1) % w
	for n := range w {
		if at := (pos + w - n) % w; r.Bitmap[at/32]&(1<<(at%32)) != 0 {
			out.Seen[n/64] |= 1 << (n % 64)
		}
	}
	return out
}

// merge is everything that either of two windows has seen.
func merge(a, b sa.Replay) sa.Replay {
	if a.Top < b.Top {
		a, b = b, a
	}
	shift := a.Top - b.Top
	out := sa.Replay{Top: a.Top, Seen: append([]uint64(nil), a.Seen...)}
	for n := range uint64(64 * len(out.Seen)) {
		if n < shift {
			continue
		}
		if m := n - shift; m >= uint64(64*len(b.Seen)) || b.Seen[m/64]&(1<<(m%64)) != 0 {
			if n < out.Top {
				out.Seen[n/64] |= 1 << (n % 64)
			}
		}
	}
	return out
}
