package multibuf

import (
	"crypto/subtle"
	"encoding"
	"encoding/binary"
	"hash"
	"math/bits"
	"slices"
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
	now   int                // blocks since the beginning
	end   [maxHashLanes]int  // when the lane's piece ends; never: it has nothing to do
	tail  [maxHashLanes]bool // this piece is the tail
	of    [maxHashLanes]int  // which of order
	tails []byte             // two blocks a lane
	outer []byte             // a block for each of order, or
	words []T                // the same memory: [lanes of one run][word][lane]
}

func newMACLanes[T uint32 | uint64]() *macLanes[T] {
	block := 16 * int(unsafe.Sizeof(T(0)))
	m := &macLanes[T]{
		state: alignedWords[T](8 * maxHashLanes),
		ptrs:  alignedWords[uintptr](maxHashLanes),
		tails: aligned(maxHashLanes * 2 * block),
		outer: aligned((window + maxHashLanes) * block),
	}
	m.words = unsafe.Slice((*T)(unsafe.Pointer(&m.outer[0])), len(m.outer)/int(unsafe.Sizeof(T(0))))
	return m
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
	total, longest := 0, 0
	for _, key := range order {
		n := tasks[taskOf(key)].end>>a.shift() + 1
		total, longest = total+n, max(longest, n)
	}
	kernel := func(i int) (lanes, cost int) { return ks[i].lanes, ks[i].cost }
	inner := &ks[cheapest(len(ks), longest, total, kernel)]
	outer := &ks[cheapest(len(ks), 1, len(order), kernel)]
	cost := inner.cost*max(longest, (total+inner.lanes-1)/inner.lanes) + outer.cost*((len(order)+outer.lanes-1)/outer.lanes)
	if single != 0 && cost > single*(total+len(order)) {
		return false
	}
	if outer.takesWords {
		m.padWords(outer, a, len(order))
	}
	m.inner(inner, outer, a, tasks, order)
	m.finish(outer, a, dir, tasks, order)
	clear(m.state)
	return true
}

// column is a lane's words in state: the address of the first, and how far apart they are.
func (m *macLanes[T]) column(lane, lanes int) (first unsafe.Pointer, stride uintptr) {
	return unsafe.Pointer(&m.state[lane]), uintptr(lanes) * unsafe.Sizeof(T(0))
}

// setState gives a lane its chaining values.
func (m *macLanes[T]) setState(lane, lanes int, from *[8]uint64, words int) {
	p, stride := m.column(lane, lanes)
	for w := range words {
		*(*T)(unsafe.Add(p, uintptr(w)*stride)) = T(from[w&7])
	}
}

// inner runs the inner hashes, and leaves each one's digest, padded, as a block of outer, the way the outer kernel wants it.
func (m *macLanes[T]) inner(k, outer *hashKernel[T], a *hmacHash, tasks []task, order []uint64) {
	lanes, shift := k.lanes, a.shift()
	next, live := 0, 0
	m.now = 0
	load := func(lane int) {
		t := &tasks[taskOf(order[next])]
		m.of[lane] = next
		next++
		m.setState(lane, lanes, &t.s.inner, a.words)
		if n := t.end >> shift; n > 0 {
			m.ptrs[lane], m.end[lane], m.tail[lane] = address(t.esp), m.now+n, false
		} else {
			m.loadTail(lane, a, t)
		}
	}
	ends := m.end[:lanes]
	for lane := range ends {
		ends[lane] = never
		if next < len(order) {
			load(lane)
			live++
		}
	}
	for live > 0 {
		until := soonest(ends)
		if live < lanes { // idle lanes read along with a busy one
			busy := slices.Index(ends, until)
			for lane, e := range ends {
				if e == never {
					m.ptrs[lane] = m.ptrs[busy]
				}
			}
		}
		k.run(&m.state[0], &m.ptrs[0], until-m.now, nil)
		m.now = until
		for lane, e := range ends {
			if e != until {
				continue
			}
			if !m.tail[lane] {
				m.loadTail(lane, a, &tasks[taskOf(order[m.of[lane]])])
				continue
			}
			if outer.takesWords {
				m.storeWords(lane, lanes, outer.lanes, a)
			} else {
				m.storeInner(lane, lanes, a)
			}
			if next < len(order) {
				load(lane)
			} else {
				ends[lane] = never
				live--
			}
		}
	}
}

// loadTail puts the tail of a lane's message together.
func (m *macLanes[T]) loadTail(lane int, a *hmacHash, t *task) {
	block := a.block()
	tail := m.tails[lane*2*block : (lane+1)*2*block]
	clear64(tail)
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
	m.ptrs[lane], m.end[lane], m.tail[lane] = address(tail), m.now+blocks, true
}

// clear64 clears memory that is a multiple of 64 bytes long; unlike clear, it is a few instructions and no call.
func clear64(b []byte) {
	for len(b) >= 64 {
		*(*[64]byte)(b) = [64]byte{}
		b = b[64:]
	}
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

// padWords fills in what follows the digests in n outer blocks.
func (m *macLanes[T]) padWords(k *hashKernel[T], a *hmacHash, n int) {
	size := int(unsafe.Sizeof(T(0)))
	top, bits, at := T(1)<<(8*size-1), T(8*(a.block()+a.out)), 15
	if a.lsb {
		top, at = 0x80, 14
	}
	for first := 0; first < n; first += k.lanes {
		block := m.words[first*16 : (first+k.lanes)*16]
		clear(block[a.out/size*k.lanes:])
		mark, length := block[a.out/size*k.lanes:][:k.lanes], block[at*k.lanes:][:k.lanes]
		for lane := range mark {
			mark[lane] = top
		}
		for lane := range length {
			length[lane] = bits
		}
	}
}

// storeWords puts the digest of a lane's message into the outer block, word by word.
func (m *macLanes[T]) storeWords(lane, lanes, outerLanes int, a *hmacHash) {
	size := unsafe.Sizeof(T(0))
	n := m.of[lane]
	to := unsafe.Pointer(&m.words[(n&^(outerLanes-1))*16+n&(outerLanes-1)])
	from, stride := m.column(lane, lanes)
	for at := 0; at < a.out; at += int(size) {
		*(*T)(to) = *(*T)(from)
		to, from = unsafe.Add(to, uintptr(outerLanes)*size), unsafe.Add(from, stride)
	}
}

// storeInner makes the outer block of a lane's message.
func (m *macLanes[T]) storeInner(lane, lanes int, a *hmacHash) {
	block := a.block()
	b := m.outer[m.of[lane]*block : (m.of[lane]+1)*block]
	clear64(b)
	p, stride := m.column(lane, lanes)
	size := int(unsafe.Sizeof(T(0)))
	for at := 0; at < a.out; at += size {
		putWord(b[at:], *(*T)(p), a.lsb)
		p = unsafe.Add(p, stride)
	}
	b[a.out] = 0x80
	putLength(b, a, uint64(block+a.out))
}

// finish runs the outer hashes, and stores the ICVs or compares them.
func (m *macLanes[T]) finish(k *hashKernel[T], a *hmacHash, dir offload.Direction, tasks []task, order []uint64) {
	block, size := a.block(), int(unsafe.Sizeof(T(0)))
	for first := 0; first < len(order); first += k.lanes {
		these := order[first:min(first+k.lanes, len(order))]
		for lane, key := range these {
			m.setState(lane, k.lanes, &tasks[taskOf(key)].s.outer, a.words)
		}
		if k.takesWords {
			k.run(&m.state[0], nil, 1, &m.words[first*16])
		} else {
			for lane := range k.lanes {
				m.ptrs[lane] = address(m.outer[min(first+lane, len(order)-1)*block:])
			}
			k.run(&m.state[0], &m.ptrs[0], 1, nil)
		}
		for lane, key := range these {
			t := &tasks[taskOf(key)]
			icv := t.esp[t.end:]
			p, stride := m.column(lane, k.lanes)
			var differ T
			for ; len(icv) >= size; icv = icv[size:] {
				if dir == offload.Seal {
					putWord(icv, *(*T)(p), a.lsb)
				} else {
					differ |= *(*T)(p) ^ getWord[T](icv, a.lsb)
				}
				p = unsafe.Add(p, stride)
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
	work [len(hmacHashes)][]byte // their images
	sum  [64]byte
	hi   [4]byte
}

func (o *oneMAC) make() {
	for auth := range hmacHashes {
		if hmacHashes[auth].new != nil {
			o.hash[auth] = hmacHashes[auth].new()
			o.work[auth] = image(o.hash[auth])
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
	resume := func(half []byte) error {
		if work := o.work[auth]; work != nil {
			copy(work, half)
			return nil
		}
		return h.(encoding.BinaryUnmarshaler).UnmarshalBinary(half)
	}
	for _, key := range order {
		t := &tasks[taskOf(key)]
		err := resume(t.s.resume[0])
		h.Write(t.esp[:t.end])
		if t.s.esn {
			binary.BigEndian.PutUint32(o.hi[:], t.job.SeqHi)
			h.Write(o.hi[:])
		}
		sum := h.Sum(o.sum[:0])
		if err == nil {
			err = resume(t.s.resume[1])
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
