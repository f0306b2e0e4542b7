package server

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"culvert/offload"
	"culvert/sa"
	"culvert/xfrm"
)

// DBConfig is what a data plane's backend needs to know.
type DBConfig struct {
	DB *sa.DB
	// Engine gives the engine for a transform.
	Engine func(t *offload.Transform) (offload.Engine, error)
	// Local reports whether an address is this host's.
	Local func(a netip.Addr) bool
	// Store keeps marks ahead of the sequence numbers in use, for keys that come back after a restart. The keys of an IKE daemon
	// live as long as it does, so a directory in /run is right: it lasts as long, and does not wait for a disk. nil: numbers
	// are remembered in memory, as long as the backend lives.
	Store *sa.Store
	// Place, if there is one, completes an SA's parameters with what the host knows: the link, the path MTU.
	Place func(p *sa.Params, dir sa.Dir) error
	// Expiries and Wake, where both are given, are in place of the DB's own: for a gateway with other SAs in the DB, whose expiries
	// are told to somebody else.
	Expiries func() []sa.Expiry
	Wake     <-chan struct{}
}

// DB is the Backend over an sa.DB.
type DB struct {
	cfg DBConfig

	mu       sync.Mutex
	byOut    map[*sa.Outbound]*dbSA
	byIn     map[*sa.Inbound]*dbSA
	graves   map[[16]byte]*grave
	order    [][16]byte       // of the graves, the oldest first
	fresh    []*grave         // whose SAs may still be in use
	live     map[[16]byte]int // outbound SAs by key
	selected map[dirSel]uint32
	selector map[uint32]dirSel // by index
}

// dirSel is what can have one policy, since what the gateway carries has no firewall mark and no if_id to tell others apart.
type dirSel struct {
	dir uint8
	sel xfrm.Selector
}

// grave is what is remembered of a removed SA's key: never the key itself, but its keyed digest.
type grave struct {
	key    [16]byte
	spi    uint32
	old    *dbSA // until nobody can use it any more
	usage  Usage
	buried time.Time
}

// maxGraves bounds how many keys are remembered, in memory.
const maxGraves = 1 << 16

// NewDB makes the backend of a data plane. The DB's SAs and policies are then the server's to change: those of others stay out of its way
// only if they have other SPIs and names.
func NewDB(cfg DBConfig) *DB {
	return &DB{
		cfg: cfg, byOut: map[*sa.Outbound]*dbSA{}, byIn: map[*sa.Inbound]*dbSA{}, graves: map[[16]byte]*grave{},
		live: map[[16]byte]int{}, selected: map[dirSel]uint32{}, selector: map[uint32]dirSel{},
	}
}

// dbSA is one SA, of either side.
type dbSA struct {
	out *sa.Outbound
	in  *sa.Inbound
	key [16]byte
	spi uint32
}

// Usage is what the SA has done so far.
func (h *dbSA) Usage() Usage {
	if h.out != nil {
		s := h.out.Stats()
		return Usage{Packets: s.Packets, Bytes: s.Bytes, FirstUse: s.FirstUse, LastUse: s.LastUse, Oseq: s.Seq}
	}
	s := h.in.Stats()
	return Usage{
		Packets: s.Packets, Bytes: s.Bytes, FirstUse: s.FirstUse, LastUse: s.LastUse, Replay: h.in.Replay(), Drops: s.Drops,
	}
}

func (h *dbSA) wiped() bool {
	if h.out != nil {
		return h.out.Wiped()
	}
	return h.in.Wiped()
}

// Outbound is the SA if it is one that seals, and nil otherwise.
func (h *dbSA) Outbound() *sa.Outbound { return h.out }

// SA is the server's handle of an inbound SA of the data plane, for Server.Mapping; nil if it is not the server's.
func (b *DB) SA(i *sa.Inbound) SAHandle {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.byIn[i]; h != nil {
		return h
	}
	return nil
}

const policyPrefix = "xfrm-"

func policyName(index uint32) string { return policyPrefix + strconv.FormatUint(uint64(index), 10) }

// PolicyIndex is the index of a policy of the data plane, for Server.Acquire; false if it is not the server's.
func PolicyIndex(name string) (uint32, bool) {
	digits, ok := strings.CutPrefix(name, policyPrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), err == nil
}

// Inbound reports whether an SA's destination is this host's.
func (b *DB) Inbound(i *xfrm.SAInfo) bool { return b.cfg.Local(i.DstIP()) }

// Wake receives when an SA has reached a limit.
func (b *DB) Wake() <-chan struct{} {
	if b.cfg.Wake != nil {
		return b.cfg.Wake
	}
	return b.cfg.DB.Wake()
}

// Expiries gives the limits that SAs have reached, each once.
func (b *DB) Expiries() []Expiry {
	var all []Expiry
	passed := b.cfg.Expiries
	if passed == nil {
		passed = func() []sa.Expiry { return b.cfg.DB.Expiries(time.Now()) }
	}
	for _, x := range passed() {
		b.mu.Lock()
		h := b.byOut[x.Outbound]
		if x.Inbound != nil {
			h = b.byIn[x.Inbound]
		}
		b.mu.Unlock()
		if h != nil {
			all = append(all, Expiry{h, x.Hard})
		}
	}
	return all
}

// dbTx is a transaction under way, and what is to be done when it has taken effect, or not.
type dbTx struct {
	b      *DB
	tx     *sa.Tx
	commit []func()
	undo   []func()
}

// Update makes changes take effect at once or not at all.
func (b *DB) Update(f func(tx Tx) error) error {
	t := &dbTx{b: b}
	err := b.cfg.DB.Update(func(tx *sa.Tx) error {
		t.tx = tx
		return f(t)
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		for _, u := range t.undo {
			u()
		}
		return answer(err)
	}
	for _, c := range t.commit {
		c()
	}
	return nil
}

// answer is what a client is told of an error of the data plane.
func answer(err error) error {
	if e := (*xfrm.Error)(nil); errors.As(err, &e) {
		return e
	}
	errno := unix.EIO
	for _, x := range []struct {
		err   error
		errno unix.Errno
	}{
		{sa.ErrParams, unix.EINVAL}, {sa.ErrExists, unix.EEXIST}, {sa.ErrNotFound, unix.ESRCH}, {sa.ErrClosed, unix.ESHUTDOWN},
		{sa.ErrSeqExhausted, unix.EOVERFLOW}, {offload.ErrUnsupported, unix.ENOENT}, {offload.ErrTransform, unix.ENOENT},
		{offload.ErrKey, unix.EINVAL}, {offload.ErrEngine, unix.ENOENT}, {offload.ErrNotAdmitted, unix.ENOENT},
	} {
		if errors.Is(err, x.err) {
			errno = x.errno
			break
		}
	}
	return &xfrm.Error{Errno: errno, Msg: strings.TrimPrefix(strings.TrimPrefix(err.Error(), "sa: "), "offload: ")}
}

// peers names an SA by its addresses, for people and for policies without a reqid.
func peers(src, dst xfrm.Address, family uint16) string {
	return src.Addr(family).String() + ">" + dst.Addr(family).String()
}

// params are the data plane's parameters of an SA. The keys share the attributes' memory.
func (b *DB) params(s *SASpec) (*sa.Params, error) {
	i, a := s.Info, s.Attrs
	m := xfrm.SA{SAInfo: *i, Attrs: *a}
	t, keys, err := m.Transform()
	if err != nil {
		return nil, err
	}
	p := &sa.Params{
		Name: peers(i.Src, i.Dst, i.Family), SPI: i.SPI, Src: i.SrcIP(), Dst: i.DstIP(), Transform: t, Keys: keys, Reqid: i.Reqid,
		ECN: i.Flags&xfrm.StateNoECN == 0, Lifetime: lifetime(&i.Limits),
	}
	if i.Mode == xfrm.ModeTransport {
		p.Mode = sa.Transport
	}
	if e := a.Encap; e != nil {
		p.Encap, p.SrcPort, p.DstPort = sa.EncapUDP, e.SrcPort, e.DstPort
	}
	dir := sa.Out
	if s.Inbound {
		dir = sa.In
		window := int(i.Window)
		if r := a.ReplayESN; r != nil {
			window = int(min(r.Window, sa.MaxWindow))
		}
		if window == 0 {
			p.NoReplayCheck = true
		} else {
			p.ReplayWindow = max(window, sa.MinWindow) // a wider one takes more that is late, and nothing twice
		}
		if i.Flags&xfrm.StateDecapDSCP != 0 {
			p.DSCP = sa.CopyDSCP
		}
	} else {
		p.DF = sa.DFCopy
		if i.Flags&xfrm.StateNoPMTUDisc != 0 {
			p.DF = sa.DFClear
		}
		if a.ExtraFlags.V&xfrm.ExtraDontEncapDSCP != 0 {
			p.DSCP = sa.SetDSCP(0)
		}
		p.TFCPad = int(min(a.TFCPad.V, sa.MaxMTU))
	}
	if b.cfg.Place != nil {
		if err := b.cfg.Place(p, dir); err != nil {
			return nil, err
		}
	}
	if err := p.ValidateFor(dir); err != nil {
		return nil, err
	}
	return p, nil
}

// lifetime is the limits that the data plane watches; those in time are the server's. A soft limit beyond the hard one is never
// reached, and left out.
func lifetime(l *xfrm.Limits) sa.Lifetime {
	limit := func(n uint64) uint64 {
		if n == xfrm.Inf {
			return 0
		}
		return n
	}
	var x sa.Lifetime
	x.Hard.Bytes, x.Hard.Packets = limit(l.HardBytes), limit(l.HardPackets)
	soft := func(n, hard uint64) uint64 {
		if n = limit(n); hard != 0 && n > hard {
			return 0
		}
		return n
	}
	x.Soft.Bytes, x.Soft.Packets = soft(l.SoftBytes, x.Hard.Bytes), soft(l.SoftPackets, x.Hard.Packets)
	return x
}

// AddSA makes an SA of the data plane.
func (t *dbTx) AddSA(s *SASpec) (SAHandle, error) {
	b := t.b
	p, err := b.params(s)
	if err != nil {
		return nil, err
	}
	engine, err := b.cfg.Engine(p.Transform)
	if err != nil {
		return nil, err
	}
	h := &dbSA{key: sa.KeyID(p.Keys), spi: p.SPI}
	before := b.remember(h.key, s.Carry)
	if s.Inbound {
		return h, t.addInbound(h, p, engine, s.Carry, before)
	}
	return h, t.addOutbound(h, p, engine, s.Carry, before)
}

func (t *dbTx) addInbound(h *dbSA, p *sa.Params, engine offload.Engine, c *Carry, before *grave) error {
	session, err := engine.NewSession(p.Transform, offload.Open, p.Keys)
	if err != nil {
		return err
	}
	h.in, err = sa.NewInbound(*p, session, nil)
	if err != nil {
		return errors.Join(err, session.Close())
	}
	t.undo = append(t.undo, func() { // the keys were copied
		session.Close()
		h.in.Params().Keys.Zero()
	})
	// Without a word about an earlier life the SA is new, and so is its window: a peer with a fixed key that starts again begins
	// at 1.
	if c != nil {
		var known Usage
		if before != nil && before.spi == p.SPI {
			known = before.usage
		}
		h.in.Carry(c.use(&known))
		if r := merge(c.Replay, known.Replay); r.Top != 0 {
			h.in.ResumeReplay(r)
		}
	}
	if err := t.tx.AddInbound(h.in); err != nil {
		return err
	}
	t.commit = append(t.commit, func() { t.b.byIn[h.in] = h })
	return nil
}

func (t *dbTx) addOutbound(h *dbSA, p *sa.Params, engine offload.Engine, c *Carry, before *grave) error {
	var last uint64
	var known Usage
	if before != nil {
		known, last = before.usage, before.usage.Oseq
	}
	if c != nil {
		last = max(last, c.Oseq)
	}
	if t.b.cfg.Store == nil && p.Transform.AEAD && (c == nil || c.Replaced == nil) && t.b.uses(h.key) > 0 {
		return xfrm.Errorf(unix.EEXIST, "another outbound SA has this key, and both would send the same numbers; use each key once")
	}
	seq, err := t.b.sequence(h, p, last)
	if err != nil {
		return err
	}
	t.undo = append(t.undo, func() { seq.Close() })
	session, err := engine.NewSession(p.Transform, offload.Seal, p.Keys)
	if err != nil {
		return err
	}
	t.undo = append(t.undo, func() { session.Close() })
	if h.out, err = sa.NewOutbound(*p, session, seq); err != nil {
		return err
	}
	t.undo = append(t.undo, func() { h.out.Params().Keys.Zero() })
	if c != nil {
		h.out.Carry(c.use(&known))
	}
	if err := t.tx.AddOutbound(h.out); err != nil {
		return err
	}
	t.commit = append(t.commit, func() {
		t.b.byOut[h.out] = h
		t.b.live[h.key]++
	})
	return nil
}

// uses is how many outbound SAs have a key.
func (b *DB) uses(key [16]byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live[key]
}

// sequence is where an outbound SA's numbers come from: behind everything that was sent with the key.
func (b *DB) sequence(h *dbSA, p *sa.Params, last uint64) (*sa.Sequence, error) {
	seq := sa.NewVolatileSequence()
	if b.cfg.Store != nil {
		var err error
		if seq, err = b.cfg.Store.Sequence(p.SPI, p.Dst, h.key, p.Keys.ESN); err != nil {
			return nil, err
		}
	}
	if last == 0 {
		return seq, nil
	}
	if !p.Keys.ESN && last > 1<<32-1 {
		seq.Close()
		return nil, xfrm.Errorf(unix.EOVERFLOW, "the key has sent %d packets, and has no number left without ESN", last)
	}
	if err := seq.SkipPast(last); err != nil {
		seq.Close()
		return nil, err
	}
	return seq, nil
}

// slack is what the numbers skip where an SA may still be sending while another takes its key over.
const slack = 1 << 16

// remember is what is known of a key that comes back: final, for it waits until nobody can use the SA that had it. Where that
// takes long, and where the SA is replaced in this very transaction, numbers skip what may be sent meanwhile.
func (b *DB) remember(key [16]byte, c *Carry) *grave {
	if c != nil && c.Replaced != nil {
		old := c.Replaced.(*dbSA)
		u := old.Usage()
		u.Oseq += slack
		return &grave{key: key, spi: old.spi, usage: u}
	}
	b.mu.Lock()
	g := b.graves[key]
	b.mu.Unlock()
	if g == nil {
		return nil
	}
	known := *g
	if known.old == nil {
		return &known
	}
	for range 500 {
		if known.old.wiped() {
			known.usage = known.old.Usage()
			return &known
		}
		time.Sleep(100 * time.Microsecond)
	}
	known.usage = known.old.Usage()
	known.usage.Oseq += slack
	return &known
}

// use is what an SA has done before: what the message says and what is known, whichever is more.
func (c *Carry) use(known *Usage) sa.Use {
	now := time.Now()
	ago := func(at time.Time) time.Duration {
		if at.IsZero() {
			return 0
		}
		return max(1, now.Sub(at))
	}
	u := sa.Use{FirstUse: ago(known.FirstUse), LastUse: ago(known.LastUse)}
	if cur := c.Cur; cur != nil {
		u.Packets, u.Bytes = max(cur.Packets, known.Packets), max(cur.Bytes, known.Bytes)
		if cur.AddTime != 0 {
			u.Age = max(0, now.Sub(time.Unix(int64(min(cur.AddTime, 1<<40)), 0)))
		}
		if cur.UseTime != 0 {
			u.FirstUse = max(u.FirstUse, ago(time.Unix(int64(min(cur.UseTime, 1<<40)), 0)))
		}
	}
	if u.LastUse == 0 {
		u.LastUse = u.FirstUse
	}
	u.Age = max(u.Age, u.FirstUse)
	return u
}

// RemoveSA ends an SA, and remembers how far it came.
func (t *dbTx) RemoveSA(handle SAHandle) error {
	h := handle.(*dbSA)
	if h.out != nil {
		if err := t.tx.RemoveOutbound(h.out); err != nil {
			return err
		}
	} else if err := t.tx.RemoveInbound(h.in); err != nil {
		return err
	}
	t.commit = append(t.commit, func() {
		if h.out != nil {
			if t.b.live[h.key]--; t.b.live[h.key] == 0 {
				delete(t.b.live, h.key)
			}
		}
		delete(t.b.byOut, h.out)
		delete(t.b.byIn, h.in)
		t.b.bury(h)
	})
	return nil
}

// bury remembers a key.
func (b *DB) bury(h *dbSA) {
	left := b.fresh[:0]
	for _, g := range b.fresh {
		if g.old != nil && g.old.wiped() {
			g.usage, g.old = g.old.Usage(), nil
		}
		if g.old != nil {
			left = append(left, g)
		}
	}
	clear(b.fresh[len(left):])
	g := &grave{key: h.key, spi: h.spi, old: h, buried: time.Now()}
	b.fresh = append(left, g)
	if b.graves[h.key] == nil {
		b.order = append(b.order, h.key)
	}
	b.graves[h.key] = g
	if len(b.order) > maxGraves {
		delete(b.graves, b.order[0])
		b.order = b.order[1:]
	}
}

// ChangeSA gives an SA other addresses, ports or limits.
func (t *dbTx) ChangeSA(handle SAHandle, s *SASpec) error {
	h := handle.(*dbSA)
	p, err := t.b.params(s)
	if err != nil {
		return err
	}
	if h.out != nil {
		if h.out.Params().Endpoint() != p.Endpoint() {
			if err := t.tx.MoveOutbound(h.out, p.Endpoint()); err != nil {
				return err
			}
		}
		t.commit = append(t.commit, func() { _ = h.out.SetLifetime(p.Lifetime) }) // ValidateFor has found it right
		return nil
	}
	if h.in.Params().Endpoint() != p.Endpoint() {
		if err := t.tx.MoveInbound(h.in, p.Endpoint()); err != nil {
			return err
		}
	}
	t.commit = append(t.commit, func() { _ = h.in.SetLifetime(p.Lifetime) })
	return nil
}

// SetPolicy adds or replaces a policy. Those to forward have no effect of their own: what comes from a tunnel is checked against the
// inbound ones, wherever it goes.
func (t *dbTx) SetPolicy(q *PolicySpec) error {
	i := q.Info
	if i.Dir == xfrm.DirFwd {
		return nil
	}
	k := dirSel{i.Dir, i.Sel}
	t.b.mu.Lock()
	other, taken := t.b.selected[k]
	t.b.mu.Unlock()
	if taken && other != i.Index {
		return unsupported("there is a policy for this selector, index %d, with another mark or if_id: what the gateway carries has "+
			"neither, so nothing would tell them apart", other)
	}
	p, err := policyOf(q)
	if err != nil {
		return err
	}
	if _, have := t.tx.Policy(p.Dir, p.Name); have {
		err = t.tx.ReplacePolicy(*p)
	} else {
		err = t.tx.AddPolicy(*p)
	}
	if err != nil {
		return err
	}
	index := i.Index
	t.commit = append(t.commit, func() { t.b.selected[k], t.b.selector[index] = index, k })
	return nil
}

// RemovePolicy removes a policy.
func (t *dbTx) RemovePolicy(index uint32) error {
	dir := sa.Out
	switch uint8(index & 7) {
	case xfrm.DirFwd:
		return nil
	case xfrm.DirIn:
		dir = sa.In
	}
	if err := t.tx.RemovePolicy(dir, policyName(index)); err != nil {
		return err
	}
	t.commit = append(t.commit, func() {
		delete(t.b.selected, t.b.selector[index])
		delete(t.b.selector, index)
	})
	return nil
}

// policyOf is the data plane's form of a policy.
func policyOf(q *PolicySpec) (*sa.Policy, error) {
	i := q.Info
	sel, err := selectorOf(&i.Sel)
	if err != nil {
		return nil, err
	}
	p := &sa.Policy{Name: policyName(i.Index), Sel: sel, Priority: priority(i.Priority), Action: sa.Discard}
	if i.Dir == xfrm.DirIn {
		p.Dir = sa.In
	}
	if i.Action == xfrm.ActionBlock {
		return p, nil
	}
	t, e := template(i, q.Attrs)
	if e != nil {
		return nil, e
	}
	if t == nil {
		p.Action = sa.Bypass
		return p, nil
	}
	p.Action = sa.Protect
	p.Reqid, p.Tunnel = t.Reqid, peers(t.Src, t.Dst, t.Family)
	p.Acquire = p.Dir == sa.Out
	if h, ok := q.Out.(*dbSA); ok && p.Dir == sa.Out {
		p.Out = h.out
	}
	return p, nil
}

// priority is a policy's place in the order: an int has 31 bits on some machines.
func priority(p uint32) int {
	const most = int(^uint(0) >> 1)
	if uint64(p) > uint64(most) {
		return most
	}
	return int(p)
}

// selectorOf is the data plane's form of a selector.
func selectorOf(s *xfrm.Selector) (sa.Selector, error) {
	x := sa.Selector{Src: s.SrcPrefix(), Dst: s.DstPrefix(), Proto: s.Proto}
	switch {
	case s.IfIndex != 0:
		return x, unsupported("the selector names interface %d; what the gateway carries has none", s.IfIndex)
	case s.User != 0:
		return x, unsupported("the selector names user %d; what the gateway carries has none", s.User)
	case (s.SrcMask != 0 || s.DstMask != 0) && s.Proto == 0:
		return x, unsupported("the selector has ports and no protocol; name one that has ports")
	}
	var e *xfrm.Error
	if x.SrcPorts, e = ports(s.SrcPort, s.SrcMask); e != nil {
		return x, e
	}
	if x.DstPorts, e = ports(s.DstPort, s.DstMask); e != nil {
		return x, e
	}
	return x, nil
}

// ports is the range that a port and its mask mean.
func ports(port, mask uint16) (sa.PortRange, *xfrm.Error) {
	switch rest := ^mask; {
	case mask == 0:
		return sa.PortRange{}, nil
	case rest == 0:
		return sa.OnePort(port), nil
	case rest&(rest+1) != 0:
		return sa.PortRange{}, unsupported("the mask %#x of port %d leaves out bits in the middle, so the ports are no range", mask, port)
	default:
		return sa.PortRange{Lo: port & mask, Hi: port&mask | rest}, nil
	}
}
