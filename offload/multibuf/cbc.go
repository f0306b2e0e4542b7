package multibuf

import "slices"

// cbcLanes are the lanes of AES-CBC encryption.
type cbcLanes struct {
	ptrs  []uintptr
	end   [maxCBCLanes]int // when the lane's packet ends, in blocks since the pass began; never: it has nothing to do
	of    [maxCBCLanes]*session
	table []byte // round keys of all lanes, if they differ
	park  []byte // where lanes with nothing to do work
	chain []chain
}

// chain is what is left to encrypt of one packet. CBC keeps no state but the block before, which is in the packet.
type chain struct {
	p      uintptr
	blocks int
	s      *session
}

// never is later than any packet ends.
const never = 1 << 30

// soonest is when the first of some lanes ends.
func soonest(ends []int) int {
	first := never
	for _, e := range ends {
		first = min(first, e)
	}
	return first
}

// parkBlocks is how many blocks a lane can do without a packet.
const parkBlocks = 128

func newCBCLanes() *cbcLanes {
	return &cbcLanes{
		ptrs:  alignedWords[uintptr](maxCBCLanes),
		table: aligned(aesScheduleLen * maxCBCLanes),
		park:  aligned(16 + 16*parkBlocks),
		chain: make([]chain, 0, window),
	}
}

// encrypt encrypts the tasks of order, which have keys of one length and are sorted, the longest first, more or less.
func (c *cbcLanes) encrypt(ks []cbcKernel, tasks []task, order []uint64) {
	c.chain = c.chain[:0]
	for _, key := range order {
		t := &tasks[taskOf(key)]
		header := t.s.header
		c.chain = append(c.chain, chain{address(t.esp[header:]), (t.end - header) / 16, t.s})
	}
	for len(c.chain) > 0 {
		total, longest := 0, 0
		for i := range c.chain {
			total, longest = total+c.chain[i].blocks, max(longest, c.chain[i].blocks)
		}
		at := cheapest(len(ks), longest, total, func(i int) (lanes, cost int) { return ks[i].lanes, ks[i].cost })
		narrower := 0
		if at > 0 {
			narrower = ks[at-1].lanes
		}
		c.pass(&ks[at], narrower)
	}
	clear(c.chain[:cap(c.chain)])
	clear(c.of[:])
}

// cheapest finds the kernel that costs least for work of total blocks, of which longest are in one chain.
func cheapest(n, longest, total int, kernel func(int) (lanes, cost int)) int {
	best, least := 0, 0
	for i := range n {
		lanes, cost := kernel(i)
		if cost *= max(longest, (total+lanes-1)/lanes); i == 0 || cost < least {
			best, least = i, cost
		}
	}
	return best
}

// pass works on the chains with one kernel until so few are left that a narrower one, of that many lanes, can have them.
func (c *cbcLanes) pass(k *cbcKernel, narrower int) {
	rounds := c.chain[0].s.rounds
	shared := k.shared != nil
	for i := range c.chain {
		shared = shared && c.chain[i].s == c.chain[0].s
	}
	keys := &c.table[0]
	run := k.mixed
	if shared {
		keys, run = &c.chain[0].s.schedule[0], k.shared
	}
	next, live, now := 0, 0, 0
	load := func(lane int) {
		ch := &c.chain[next]
		next++
		c.ptrs[lane], c.end[lane] = ch.p, now+ch.blocks
		if c.of[lane] != ch.s || !shared {
			c.of[lane] = ch.s
			if !shared {
				c.setKey(lane, k.lanes, ch.s)
			}
		}
	}
	ends := c.end[:k.lanes]
	for lane := range ends {
		ends[lane] = never
		if next < len(c.chain) {
			load(lane)
			live++
		}
	}
	for live > 0 && (next < len(c.chain) || live > narrower) {
		until := soonest(ends)
		if live < k.lanes {
			until = min(until, now+parkBlocks)
			for lane, e := range ends {
				if e == never {
					c.ptrs[lane] = address(c.park[16:])
				}
			}
		}
		run(keys, rounds, &c.ptrs[0], until-now)
		now = until
		for lane, e := range ends {
			switch {
			case e != now:
			case next < len(c.chain):
				load(lane)
			default:
				ends[lane] = never
				live--
			}
		}
	}
	if !shared {
		clear(c.table[:16*k.lanes*(rounds+1)])
	}
	c.chain = c.chain[:0]
	for lane, e := range ends {
		if e != never {
			c.chain = append(c.chain, chain{c.ptrs[lane], e - now, c.of[lane]})
		}
	}
	slices.SortFunc(c.chain, func(a, b chain) int { return b.blocks - a.blocks })
}

// setKey writes a session's round keys into a lane's column of the table.
func (c *cbcLanes) setKey(lane, lanes int, s *session) {
	to := c.table[16*lane:]
	for from := s.schedule[:16*(s.rounds+1)]; ; to = to[16*lanes:] {
		*(*[16]byte)(to) = [16]byte(from)
		if from = from[16:]; len(from) == 0 {
			return
		}
	}
}

// decryptCBC decrypts the tasks of order, one after the other: within a packet the blocks do not depend on each other.
func decryptCBC(run func(*byte, int, *byte, int), tasks []task, order []uint64) {
	for _, key := range order {
		t := &tasks[taskOf(key)]
		header := t.s.header
		run(&t.s.schedule[0], t.s.rounds, &t.esp[header], (t.end-header)/16)
	}
}
