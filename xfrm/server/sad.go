package server

import (
	"time"

	"culvert/xfrm"
)

// state is an SA as the server keeps it, real or larval.
type state struct {
	info    xfrm.SAInfo
	attrs   xfrm.Attrs // resolved; what changes with use stands in the handle
	larval  bool       // has an SPI at most, and no keys
	inbound bool
	dying   bool // past its soft limit
	dead    bool
	handle  SAHandle // nil: larval
	added   time.Time
	timer   timer
	node    node[state]
	pools   []*pool // that it is a choice of

	replayThresh, timerThresh uint32 // packets, and tenths of a second

	mapped time.Time // when the last mapping was told
}

// saKey is what finds an SA; those that differ in their mark alone are a list.
type saKey struct {
	dst    xfrm.Address
	spi    uint32
	family uint16
	proto  uint8
}

func (st *state) key() saKey {
	return saKey{significant(st.info.Dst, st.info.Family), st.info.SPI, st.info.Family, st.info.Proto}
}

// significant is the part of an address that counts.
func significant(a xfrm.Address, family uint16) xfrm.Address {
	if family == xfrm.FamilyIPv4 {
		clear(a[4:])
	}
	return a
}

func (st *state) mark() xfrm.Mark { return st.attrs.Mark.V }

// poolKey is what an SA has in common with the templates that ask for it.
type poolKey struct {
	dst, src xfrm.Address
	reqid    uint32
	family   uint16
	proto    uint8
	mode     uint8
}

type spiKey struct {
	spi   uint32
	proto uint8
}

// pool is the SAs that can serve the same templates, in the order of adding, and the policies that choose among them.
type pool struct {
	key      poolKey
	states   []*state
	policies map[*policy]struct{}
}

func (st *state) poolKey() poolKey {
	i := &st.info
	return poolKey{significant(i.Dst, i.Family), significant(i.Src, i.Family), i.Reqid, i.Family, i.Proto, i.Mode}
}

// sad is the SAs.
type sad struct {
	all    list[state]
	byID   map[saKey][]*state // not those without SPI
	spis   map[spiKey]int     // how many SAs have it
	pools  map[poolKey]*pool
	seq    uint32              // of the last acquire
	unborn map[*state]struct{} // the larval ones
}

func (d *sad) init() {
	d.all.init()
	d.byID, d.spis, d.pools = map[saKey][]*state{}, map[spiKey]int{}, map[poolKey]*pool{}
	d.unborn = map[*state]struct{}{}
}

// find is the SA of an ID that a mark, 0 without one, belongs to.
func (d *sad) find(k saKey, mark uint32) *state {
	for _, st := range d.byID[k] {
		if m := st.mark(); mark&m.Mask == m.Value {
			return st
		}
	}
	return nil
}

// findByAddr is the SA of a protocol without SPIs.
func (d *sad) findByAddr(k saKey, src xfrm.Address, mark uint32) *state {
	for st := range d.all.all {
		m := st.mark()
		if st.info.Family == k.family && st.info.Proto == k.proto && significant(st.info.Dst, k.family) == k.dst &&
			significant(st.info.Src, k.family) == significant(src, k.family) && mark&m.Mask == m.Value {
			return st
		}
	}
	return nil
}

// findLarval is the larval SA without an SPI that a request for one, or a real one, takes the place of. The kernel compares no if_id
// here.
func (d *sad) findLarval(i *xfrm.SAInfo, mark xfrm.Mark) *state {
	k := poolKey{significant(i.Dst, i.Family), significant(i.Src, i.Family), i.Reqid, i.Family, i.Proto, i.Mode}
	p := d.pools[k]
	if p == nil {
		return nil
	}
	for _, st := range p.states {
		if m := st.mark(); st.larval && st.info.SPI == 0 && mark.Value&mark.Mask&m.Mask == m.Value {
			return st
		}
	}
	return nil
}

func (d *sad) pool(k poolKey) *pool {
	p := d.pools[k]
	if p == nil {
		p = &pool{key: k, policies: map[*policy]struct{}{}}
		d.pools[k] = p
	}
	return p
}

func (d *sad) drop(p *pool) {
	if len(p.states) == 0 && len(p.policies) == 0 && d.pools[p.key] == p {
		delete(d.pools, p.key)
	}
}

// keys are the pools that an SA belongs to: its own and, in transport mode, that of templates that name no addresses.
func (st *state) keys() []poolKey {
	k := st.poolKey()
	if k.mode != xfrm.ModeTransport {
		return []poolKey{k}
	}
	any := k
	any.dst, any.src = xfrm.Address{}, xfrm.Address{}
	return []poolKey{k, any}
}

// insert puts an SA in front.
func (d *sad) insert(st *state) {
	st.node.entry = st
	d.all.push(&st.node)
	if st.larval {
		d.unborn[st] = struct{}{}
	}
	d.index(st)
}

func (d *sad) index(st *state) {
	if st.info.SPI != 0 {
		k := st.key()
		d.byID[k] = append([]*state{st}, d.byID[k]...)
		d.spis[spiKey{k.spi, k.proto}]++
	}
	for _, k := range st.keys() {
		p := d.pool(k)
		p.states = append(p.states, st)
		st.pools = append(st.pools, p)
	}
}

func (d *sad) unindex(st *state) {
	if st.info.SPI != 0 {
		k := st.key()
		if rest := without(d.byID[k], st); len(rest) > 0 {
			d.byID[k] = rest
		} else {
			delete(d.byID, k)
		}
		if sk := (spiKey{k.spi, k.proto}); d.spis[sk] > 1 {
			d.spis[sk]--
		} else {
			delete(d.spis, sk)
		}
	}
	for _, p := range st.pools {
		p.states = without(p.states, st)
		d.drop(p)
	}
	st.pools = nil
}

func (d *sad) remove(st *state) {
	d.unindex(st)
	d.all.remove(&st.node)
	delete(d.unborn, st)
	st.dead = true
}

func without[T comparable](all []T, gone T) []T {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i] == gone {
			return append(all[:i], all[i+1:]...)
		}
	}
	return all
}

// choose is the SA of a pool that a packet is sent with: the newest that is not dying, else the newest.
func (p *pool) choose(fits func(*state) bool) *state {
	var second *state
	for i := len(p.states) - 1; i >= 0; i-- {
		switch st := p.states[i]; {
		case st.larval || st.inbound || !fits(st):
		case !st.dying:
			return st
		case second == nil:
			second = st
		}
	}
	return second
}

// lastUse is when one of the pool's SAs was used last.
func (p *pool) lastUse() (last time.Time) {
	for _, st := range p.states {
		if st.handle == nil {
			continue
		}
		if u := st.handle.Usage(); u.LastUse.After(last) {
			last = u.LastUse
		}
	}
	return last
}

// show completes an SA with what it has done, as a client gets to see it. The attributes share memory with the SA's own.
func (st *state) show() xfrm.SA {
	m := xfrm.SA{SAInfo: st.info, Attrs: st.attrs}
	m.Cur.AddTime = uint64(st.added.Unix())
	var u Usage
	if st.handle != nil {
		u = st.handle.Usage()
	}
	m.Cur.Packets, m.Cur.Bytes, m.Cur.UseTime = u.Packets, u.Bytes, seconds(u.FirstUse)
	m.Stats = xfrm.Stats{ReplayWindow: uint32(u.Drops.TooOld), Replay: uint32(u.Drops.Duplicate), IntegrityFailed: uint32(u.Drops.BadICV)}
	if !u.LastUse.IsZero() {
		m.Attrs.LastUsed = xfrm.Some(uint64(u.LastUse.Unix()))
	}
	m.Attrs.Replay, m.Attrs.ReplayESN = st.replay(&u)
	return m
}

func seconds(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.Unix())
}

// replay is the sequence numbers and the window as messages have them: in the form that the SA was made with.
func (st *state) replay(u *Usage) (xfrm.Opt[xfrm.Replay], *xfrm.ReplayESN) {
	if have := st.attrs.ReplayESN; have != nil {
		return xfrm.Opt[xfrm.Replay]{}, encodeReplay(have, u)
	}
	r := xfrm.Replay{Oseq: uint32(u.Oseq), Seq: uint32(u.Replay.Top)}
	if len(u.Replay.Seen) > 0 {
		r.Bitmap = uint32(u.Replay.Seen[0])
		if w := st.info.Window; w < 32 {
			r.Bitmap &= 1<<w - 1
		}
	}
	return xfrm.Some(r), nil
}

// encodeReplay is a window of the size and form of have. In the bitmap, the bit of the number n is n-1 modulo the window, counted
// back from the low half of the highest number.
func encodeReplay(have *xfrm.ReplayESN, u *Usage) *xfrm.ReplayESN {
	top := u.Replay.Top
	r := &xfrm.ReplayESN{
		Oseq: uint32(u.Oseq), OseqHi: uint32(u.Oseq >> 32), Seq: uint32(top), SeqHi: uint32(top >> 32),
		Words: have.Words, Window: have.Window, Bitmap: make([]uint32, len(have.Bitmap)),
	}
	w := uint64(have.Window)
	if w == 0 || top == 0 {
		return r
	}
	pos := uint64(r.Seq-1) % w
	for n := range min(w, uint64(64*len(u.Replay.Seen))) {
		if u.Replay.Seen[n/64]&(1<<(n%64)) != 0 {
			at := (pos + w - n) % w
			if int(at/32) < len(r.Bitmap) {
				r.Bitmap[at/32] |= 1 << (at % 32)
			}
		}
	}
	return r
}
