package multibuf

import (
	"crypto/subtle"
	"encoding"
	"encoding/binary"
	"hash"
	"math/bits"
	"unsafe"

	"culvert/offload"
)

// macLanes are the lanes of the HMACs over a hash with words of type T.
//
// An HMAC's inner hash (RFC 2104) has two pieces: the body, which is as much of the packet as fills blocks and is read where
// it lies, and the tail: what is left of the packet, with ESN the high half of the sequence number (RFC 4303 section
// 2.2.1), and the hash's padding, which are put together in memory of the lane. The outer hashes are one block each, and
// done after all the inner ones.
type macLanes[T uint32 | uint64] struct {
	state []T // [word][lane]
	ptrs  []uintptr
	left  [maxHashLanes]int  // blocks of this piece; 0: the lane has nothing to do
	tail  [maxHashLanes]bool // this piece is the tail
	of    [maxHashLanes]int  // which of order
	tails []byte             // two blocks a lane
	outer []byte             // a block for each of order
}

func newMACLanes[T uint32 | uint64]() *macLanes[T] {
	block := 16 * int(unsafe.Sizeof(T(0)))
	return &macLanes[T]{
		state: alignedWords[T](8 * maxHashLanes),
		ptrs:  alignedWords[uintptr](maxHashLanes),
		tails: aligned(maxHashLanes * 2 * block),
		outer: aligned(window * block),
	}
}

func (m *macLanes[T]) wipe() {
	clear(m.state)
	clear(m.tails)
	clear(m.outer)
}

// run computes the HMACs of the tasks of order, sorted, the longest first. It returns false, and has done nothing, if there
// is no kernel or it would be slower than the standard library's hash, of which a block costs single.
func (m *macLanes[T]) run(a *hmacHash, ks []hashKernel[T], single int, dir offload.Direction, tasks []task, order []uint64) bool {
	if len(ks) == 0 {
		return false
	}
	block, total, longest := a.block(), 0, 0
	for _, key := range order {
		t := &tasks[taskOf(key)]
		n := t.end/block + 1
		total += n
		longest = max(longest, n)
	}
	kernel := func(i int) (lanes, cost int) { return ks[i].lanes, ks[i].cost }
	inner := &ks[cheapest(len(ks), longest, total, kernel)]
	outer := &ks[cheapest(len(ks), 1, len(order), kernel)]
	cost := inner.cost*max(longest, (total+inner.lanes-1)/inner.lanes) + outer.cost*((len(order)+outer.lanes-1)/outer.lanes)
	if single != 0 && cost > single*(total+len(order)) {
		return false
	}
	m.inner(inner, a, tasks, order)
	m.finish(outer, a, dir, tasks, order)
	clear(m.state)
	return true
}

// inner runs the inner hashes, and leaves each one's digest, padded, as a block of outer.
func (m *macLanes[T]) inner(k *hashKernel[T], a *hmacHash, tasks []task, order []uint64) {
	block, lanes := a.block(), k.lanes
	next, live := 0, 0
	load := func(lane int) {
		t := &tasks[taskOf(order[next])]
		m.of[lane] = next
		next++
		for w := range a.words {
			m.state[w*lanes+lane] = T(t.s.inner[w])
		}
		if n := t.end / block; n > 0 {
			m.ptrs[lane], m.left[lane], m.tail[lane] = address(t.esp), n, false
		} else {
			m.loadTail(lane, a, t)
		}
	}
	for lane := range lanes {
		m.left[lane] = 0
		if next < len(order) {
			load(lane)
			live++
		}
	}
	for live > 0 {
		step, busy := 1<<30, 0
		for lane, n := range m.left[:lanes] {
			if n > 0 {
				step, busy = min(step, n), lane
			}
		}
		if live < lanes {
			for lane, n := range m.left[:lanes] {
				if n == 0 {
					m.ptrs[lane] = m.ptrs[busy]
				}
			}
		}
		k.run(&m.state[0], &m.ptrs[0], step)
		for lane := range lanes {
			if m.left[lane] == 0 {
				continue
			}
			if m.left[lane] -= step; m.left[lane] > 0 {
				continue
			}
			if !m.tail[lane] {
				m.loadTail(lane, a, &tasks[taskOf(order[m.of[lane]])])
				continue
			}
			m.storeInner(lane, lanes, a)
			if next < len(order) {
				load(lane)
			} else {
				live--
			}
		}
	}
}

// loadTail puts the tail of a lane's message together.
func (m *macLanes[T]) loadTail(lane int, a *hmacHash, t *task) {
	block := a.block()
	tail := m.tails[lane*2*block : (lane+1)*2*block]
	clear(tail)
	n := copy(tail, t.esp[t.end&^(block-1):t.end])
	length := uint64(block + t.end)
	if t.s.esn {
		binary.BigEndian.PutUint32(tail[n:], t.job.SeqHi)
		n += 4
		length += 4
	}
	tail[n] = 0x80
	blocks := 1
	if n+1+block/8 > block {
		blocks = 2
	}
	putLength(tail[:blocks*block], a, length)
	m.ptrs[lane], m.left[lane], m.tail[lane] = address(tail), blocks, true
}

// putLength ends a padded message with its length in bits (FIPS 180-4 section 5.1, RFC 1321 section 3.2).
func putLength(message []byte, a *hmacHash, length uint64) {
	last := message[len(message)-8:]
	if a.lsb {
		binary.LittleEndian.PutUint64(last, length*8)
	} else {
		binary.BigEndian.PutUint64(last, length*8)
	}
}

// storeInner makes the outer block of a lane's message.
func (m *macLanes[T]) storeInner(lane, lanes int, a *hmacHash) {
	block := a.block()
	b := m.outer[m.of[lane]*block : (m.of[lane]+1)*block]
	clear(b)
	size := int(unsafe.Sizeof(T(0)))
	for w := range a.out / size {
		putWord(b[w*size:], m.state[w*lanes+lane], a.lsb)
	}
	b[a.out] = 0x80
	putLength(b, a, uint64(block+a.out))
}

// finish runs the outer hashes, and stores the ICVs or compares them.
func (m *macLanes[T]) finish(k *hashKernel[T], a *hmacHash, dir offload.Direction, tasks []task, order []uint64) {
	block, size := a.block(), int(unsafe.Sizeof(T(0)))
	for first := 0; first < len(order); first += k.lanes {
		these := order[first:min(first+k.lanes, len(order))]
		for lane := range k.lanes {
			n := first
			if lane < len(these) {
				n += lane
				s := tasks[taskOf(these[lane])].s
				for w := range a.words {
					m.state[w*k.lanes+lane] = T(s.outer[w])
				}
			}
			m.ptrs[lane] = address(m.outer[n*block:])
		}
		k.run(&m.state[0], &m.ptrs[0], 1)
		for lane, key := range these {
			t := &tasks[taskOf(key)]
			icv := t.esp[t.end:]
			if dir == offload.Seal {
				for w := 0; w*size < len(icv); w++ {
					putWord(icv[w*size:], m.state[w*k.lanes+lane], a.lsb)
				}
				continue
			}
			var differ T
			for w := 0; w*size < len(icv); w++ {
				differ |= m.state[w*k.lanes+lane] ^ getWord[T](icv[w*size:], a.lsb)
			}
			if differ != 0 {
				t.job.Status = offload.BadICV
			}
		}
	}
}

func putWord[T uint32 | uint64](b []byte, v T, lsb bool) {
	if unsafe.Sizeof(v) == 8 {
		binary.BigEndian.PutUint64(b, uint64(v))
		return
	}
	if lsb {
		v = T(bits.ReverseBytes32(uint32(v)))
	}
	binary.BigEndian.PutUint32(b, uint32(v))
}

func getWord[T uint32 | uint64](b []byte, lsb bool) T {
	var v T
	if unsafe.Sizeof(v) == 8 {
		return T(binary.BigEndian.Uint64(b))
	}
	if lsb {
		return T(binary.LittleEndian.Uint32(b))
	}
	return T(binary.BigEndian.Uint32(b))
}

// oneMAC is the standard library's hashes, for one packet at a time.
type oneMAC struct {
	hash [len(hmacHashes)]hash.Hash
	sum  [64]byte
	hi   [4]byte
}

func (o *oneMAC) make() {
	for auth := range hmacHashes {
		if hmacHashes[auth].new != nil {
			o.hash[auth] = hmacHashes[auth].new()
		}
	}
}

func (o *oneMAC) wipe() {
	for _, h := range o.hash {
		if h != nil {
			h.Reset()
		}
	}
	clear(o.sum[:])
}

// run is macLanes.run, packet by packet.
func (o *oneMAC) run(auth offload.Auth, dir offload.Direction, tasks []task, order []uint64) {
	h := o.hash[auth]
	state := h.(encoding.BinaryUnmarshaler)
	for _, key := range order {
		t := &tasks[taskOf(key)]
		err := state.UnmarshalBinary(t.s.resume[0])
		h.Write(t.esp[:t.end])
		if t.s.esn {
			binary.BigEndian.PutUint32(o.hi[:], t.job.SeqHi)
			h.Write(o.hi[:])
		}
		sum := h.Sum(o.sum[:0])
		if err == nil {
			err = state.UnmarshalBinary(t.s.resume[1])
		}
		h.Write(sum)
		sum = h.Sum(o.sum[:0])
		icv := t.esp[t.end:]
		switch {
		case err != nil: // the library refuses its own state
			t.job.Status = offload.EngineError
		case dir == offload.Seal:
			copy(icv, sum)
		case subtle.ConstantTimeCompare(icv, sum[:len(icv)]) != 1:
			t.job.Status = offload.BadICV
		}
	}
	h.Reset()
	clear(o.sum[:])
}
