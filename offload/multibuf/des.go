package multibuf

import (
	"encoding/binary"
	"slices"

	"culvert/offload"
)

// desLanes are the lanes of 3DES-CBC.
type desLanes struct {
	k      *desKernel
	ptrs   []uintptr
	chain  []uint64
	end    [maxDESLanes]int // when the lane's piece ends, in blocks since the beginning; never: it has nothing to do
	of     [maxDESLanes]*session
	table  []byte // keys of all lanes, if they differ
	park   []byte // where lanes with nothing to do work
	pieces []piece

	keyless []uint8 // lanes of which the key is not in the table yet
	same    []uint8 // those of them that have one session
}

// piece is a part of a packet that one lane works on: all of it to encrypt, some of it to decrypt.
type piece struct {
	p      uintptr
	blocks int
	iv     uint64 // the block before it, of ciphertext
	s      *session
}

func newDESLanes(k *desKernel) *desLanes {
	return &desLanes{
		k:      k,
		ptrs:   alignedWords[uintptr](maxDESLanes),
		chain:  alignedWords[uint64](maxDESLanes),
		table:  aligned(k.table),
		park:   aligned(8 * parkBlocks),
		pieces: make([]piece, 0, window+maxDESLanes),

		keyless: make([]uint8, 0, maxDESLanes),
		same:    make([]uint8, 0, maxDESLanes),
	}
}

// crypt encrypts or decrypts the tasks of order, sorted, the longest first.
func (d *desLanes) crypt(dir offload.Direction, tasks []task, order []uint64) {
	// To decrypt, packets are cut so that all lanes have about as much to do. Each piece's IV is read now: it is the end of
	// the one before, which may be plaintext by the time that the piece gets a lane.
	most := 1 << 30
	if dir == offload.Open {
		total := 0
		for _, key := range order {
			t := &tasks[taskOf(key)]
			total += (t.end - t.s.header) / 8
		}
		most = (total + d.k.lanes - 1) / d.k.lanes
	}
	d.pieces = d.pieces[:0]
	for _, key := range order {
		t := &tasks[taskOf(key)]
		for at := t.s.header; at < t.end; {
			n := min(most, (t.end-at)/8)
			d.pieces = append(d.pieces, piece{address(t.esp[at:]), n, binary.NativeEndian.Uint64(t.esp[at-8:]), t.s})
			at += 8 * n
		}
	}
	if dir == offload.Open {
		slices.SortFunc(d.pieces, func(a, b piece) int { return b.blocks - a.blocks })
	}
	for len(d.pieces) > 0 {
		k, narrower := d.k, 0
		if few := k.fewer; few != nil && dir == offload.Seal {
			total, longest := 0, 0
			for i := range d.pieces {
				total, longest = total+d.pieces[i].blocks, max(longest, d.pieces[i].blocks)
			}
			narrower = few.lanes
			if few.cost*max(longest, (total+few.lanes-1)/few.lanes) < k.cost*max(longest, (total+k.lanes-1)/k.lanes) {
				k, narrower = few, 0
			}
		}
		d.pass(k, dir, narrower)
	}
	clear(d.of[:])
	clear(d.pieces[:cap(d.pieces)])
	clear(d.chain)
}

// pass works on the pieces with one kernel, until so few are left that one of that many lanes can have them.
func (d *desLanes) pass(k *desKernel, dir offload.Direction, narrower int) {
	shared := true
	for i := range d.pieces {
		shared = shared && d.pieces[i].s == d.pieces[0].s
	}
	keys := &d.table[0]
	run := k.encMixed
	switch {
	case shared && dir == offload.Seal:
		keys, run = &d.pieces[0].s.schedule[0], k.encShared
	case shared:
		keys, run = &d.pieces[0].s.schedule[0], k.decShared
	case dir == offload.Open:
		run = k.decMixed
	}
	clear(d.of[:])
	next, live, now := 0, 0, 0
	load := func(lane int) {
		p := &d.pieces[next]
		next++
		d.ptrs[lane], d.chain[lane], d.end[lane] = p.p, p.iv, now+p.blocks
		if d.of[lane] != p.s {
			d.of[lane] = p.s
			if !shared {
				d.keyless = append(d.keyless, uint8(lane))
			}
		}
	}
	ends := d.end[:k.lanes]
	for lane := range ends {
		ends[lane] = never
		if next < len(d.pieces) {
			load(lane)
			live++
		}
	}
	for live > 0 && (next < len(d.pieces) || live > narrower) {
		until := soonest(ends)
		if live < len(ends) {
			until = min(until, now+parkBlocks)
			for lane, e := range ends {
				if e == never {
					d.ptrs[lane] = address(d.park)
				}
			}
		}
		d.putKeys(k)
		run(keys, &d.chain[0], &d.ptrs[0], until-now)
		now = until
		for lane, e := range ends {
			switch {
			case e != now:
			case next < len(d.pieces):
				load(lane)
			default:
				ends[lane] = never
				live--
			}
		}
	}
	d.pieces = d.pieces[:0]
	for lane, e := range ends {
		if e != never {
			d.pieces = append(d.pieces, piece{d.ptrs[lane], e - now, d.chain[lane], d.of[lane]})
		}
	}
	if !shared {
		clear(d.table[:k.table])
	}
}

// putKeys writes the keys that are not in the table yet, each into all its lanes at once.
func (d *desLanes) putKeys(k *desKernel) {
	for len(d.keyless) > 0 {
		s := d.of[d.keyless[0]]
		others := d.keyless[:0]
		d.same = d.same[:0]
		for _, lane := range d.keyless {
			if d.of[lane] == s {
				d.same = append(d.same, lane)
			} else {
				others = append(others, lane)
			}
		}
		k.put(d.table, d.same, s.schedule)
		d.keyless = others
	}
}
