package server

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"culvert/xfrm"
)

// 100,000 SAs are listed whole to a reader that is slow, while other clients are served as if it were not there, and SAs come and go.
func TestLongListToASlowReader(t *testing.T) {
	const n = 100_000
	s := newServer(t, Config{})
	c := connect(t, s)
	for i := range n {
		s.mu.Lock()
		m := newSA(here, there, uint32(0x1000+i), uint32(i), 1)
		st := &state{info: m.SAInfo, attrs: keep(&m.Attrs), added: time.Now()}
		if err := s.install(st, nil, nil); err != nil {
			t.Fatal(err)
		}
		s.mu.Unlock()
	}
	slow := connect(t, s)
	slow.seq++
	slow.send((&xfrm.Dump{}).Append(nil, xfrm.MsgGetSA, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, slow.seq, 0))
	// A second list at the same time is refused, as by the kernel.
	slow.send((&xfrm.Dump{}).Append(nil, xfrm.MsgGetSA, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, 77, 0))
	seen, busy := map[uint32]int{}, false
	var worst time.Duration
	for pieces := 0; ; pieces++ {
		if pieces%50 == 0 {
			time.Sleep(2 * time.Millisecond)
			m := newSA(here, there, uint32(0x800000+pieces), 1, 2)
			begin := time.Now()
			c.must(m, xfrm.MsgNewSA)
			c.must(said(m), xfrm.MsgDelSA)
			worst = max(worst, time.Since(begin))
		}
		done := false
		for _, m := range slow.recv(5 * time.Second) {
			switch m.Type {
			case xfrm.MsgNewSA:
				seen[decode(t, m, xfrm.DecodeSA).SPI]++
			case unix.NLMSG_ERROR:
				busy = errnoOf(xfrm.DecodeReply(m.Message)) == unix.EBUSY
			case unix.NLMSG_DONE:
				done = true
			}
		}
		if done {
			break
		}
	}
	for i := range n {
		if seen[uint32(0x1000+i)] != 1 {
			t.Fatalf("SA %#x was listed %d times", 0x1000+i, seen[uint32(0x1000+i)])
		}
	}
	if !busy {
		t.Error("a second list at the same time was not refused")
	}
	if worst > time.Second {
		t.Errorf("another client waited %v", worst)
	}
}

// Clients that are gone, in the middle of whatever, leave no descriptor, goroutine or place in a list.
func TestKilledClientsLeaveNothing(t *testing.T) {
	s := newServer(t, Config{})
	c := connect(t, s)
	for i := range 2000 {
		c.must(newSA(here, there, uint32(0x1000+i), uint32(i), 1), xfrm.MsgNewSA)
	}
	count := func() (fds, goroutines, nodes int) {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for n := s.sad.all.root.next; n != &s.sad.all.root; n = n.next {
			nodes++
		}
		return len(d), runtime.NumGoroutine(), nodes
	}
	fds, goroutines, nodes := count()
	for i := range 300 {
		k := connect(t, s)
		k.c.Join(allGroups)
		k.send((&xfrm.Dump{}).Append(nil, xfrm.MsgGetSA, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, 1, 0))
		if i%3 == 0 {
			k.recv(time.Second)
		}
		m := newSA(here, there, 0x900000, 1, 2)
		c.must(m, xfrm.MsgNewSA)
		c.must(said(m), xfrm.MsgDelSA)
		k.close()
		<-k.c.Done()
	}
	var f, g, n int
	for range 100 {
		if f, g, n = count(); f <= fds && g <= goroutines && n <= nodes {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("descriptors %d, goroutines %d, nodes %d; before %d, %d, %d", f, g, n, fds, goroutines, nodes)
}

// A listener that does not read loses what does not fit, which is counted, and holds nobody up.
func TestListenerThatDoesNotRead(t *testing.T) {
	s := newServer(t, Config{QueueBytes: 64 << 10})
	c, deaf := connect(t, s), connect(t, s)
	deaf.c.Join(allGroups)
	for i := range 3000 {
		c.must(newSA(here, there, uint32(0x1000+i), 1, 1), xfrm.MsgNewSA)
	}
	lost := deaf.c.Overruns()
	got := 0
	for ms := deaf.recv(time.Second); ms != nil; ms = deaf.recv(100 * time.Millisecond) {
		got += len(ms)
	}
	if lost == 0 || uint64(got)+lost != 3000 {
		t.Errorf("%d came and %d were lost, of 3000", got, lost)
	}
}

// Requests that stand in one datagram are answered in order, and rubbish is not answered at all or with EINVAL.
func TestDatagrams(t *testing.T) {
	s := newServer(t, Config{})
	c := connect(t, s)
	var b []byte
	for i := range 3 {
		b = newSA(here, there, uint32(0x1000+i), 1, 1).Append(b, xfrm.MsgNewSA, ack, uint32(100+i), 0)
	}
	c.send(b)
	for i := range 3 {
		ms := c.recv(time.Second)
		if len(ms) != 1 || ms[0].Seq != uint32(100+i) || xfrm.DecodeReply(ms[0].Message) != nil {
			t.Fatalf("answer %d is %+v", i, ms)
		}
	}
	c.send([]byte{1, 2, 3})
	c.send(append(make([]byte, 0), 200, 0, 0, 0, 16, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0)) // longer than the datagram
	c.quiet(10 * time.Millisecond)
	short := make([]byte, 20)
	binary.NativeEndian.PutUint32(short, 20)
	binary.NativeEndian.PutUint16(short[4:], xfrm.MsgNewSA)
	binary.NativeEndian.PutUint16(short[6:], ack)
	if _, err := c.raw(short); errnoOf(err) != unix.EINVAL {
		t.Errorf("a short NEWSA: %v", err)
	}
	for typ := uint16(0); typ < 64; typ++ { // every type with an empty body
		binary.NativeEndian.PutUint32(short, 16)
		binary.NativeEndian.PutUint16(short[4:], typ)
		binary.NativeEndian.PutUint32(short[8:], uint32(1000+typ))
		_, err := c.raw(short[:16])
		ok := typ < xfrm.MsgMin || typ == xfrm.MsgFlushPolicy
		if got := errnoOf(err); ok != (got == 0) || !ok && got != unix.EINVAL {
			t.Errorf("%s without a body: %v", xfrm.TypeName(typ), err)
		}
	}
}

// Options are those of netlink, and the groups those of XFRM.
func TestOptions(t *testing.T) {
	s := newServer(t, Config{})
	c := connect(t, s)
	for _, x := range []struct {
		name  int
		value int32
		want  error
	}{
		{unix.NETLINK_ADD_MEMBERSHIP, int32(xfrm.GroupSA), nil}, {unix.NETLINK_ADD_MEMBERSHIP, 0, unix.EINVAL},
		{unix.NETLINK_ADD_MEMBERSHIP, 33, unix.EINVAL}, {unix.NETLINK_GET_STRICT_CHK, 1, nil}, {unix.NETLINK_NO_ENOBUFS, 1, nil},
		{99, 1, unix.ENOPROTOOPT},
	} {
		if err := c.c.Option(x.name, x.value); err != x.want {
			t.Errorf("option %d with %d: %v, want %v", x.name, x.value, err, x.want)
		}
	}
	sender := connect(t, s)
	sender.must(newSA(here, there, 0x1001, 1, 1), xfrm.MsgNewSA)
	c.event(xfrm.MsgNewSA)
	_, err := c.do(newSA(here, there, 0x1001, 1, 1), xfrm.MsgNewSA, ack)
	if errnoOf(err) != unix.EEXIST {
		t.Fatal(err)
	}
	if err := c.c.Option(unix.NETLINK_DROP_MEMBERSHIP, int32(xfrm.GroupSA)); err != nil {
		t.Fatal(err)
	}
	sender.must(newSA(here, there, 0x1002, 1, 1), xfrm.MsgNewSA)
	c.quiet(10 * time.Millisecond)
}

// SAs with the same ID and other marks are told apart by value and mask.
func TestMarks(t *testing.T) {
	s := newServer(t, Config{})
	c := connect(t, s)
	marked := func(v, m uint32) *xfrm.SA {
		x := newSA(here, there, 0x1001, 1, 1)
		if m != 0 {
			x.Attrs.Mark = xfrm.Some(xfrm.Mark{Value: v, Mask: m})
		}
		return x
	}
	c.must(marked(1, 0xff), xfrm.MsgNewSA)
	c.must(marked(2, 0xff), xfrm.MsgNewSA)
	c.fails(marked(0x102, 0xff), xfrm.MsgNewSA, unix.EEXIST) // 0x102 & 0xff is 2
	get := func(v, m uint32) error {
		id := said(marked(0, 0))
		id.Attrs.Mark = xfrm.Some(xfrm.Mark{Value: v, Mask: m})
		got, err := c.do(id, xfrm.MsgGetSA, ack)
		if err == nil {
			if have := decode(t, got[0], xfrm.DecodeSA).Attrs.Mark.V.Value; have != v&0xff {
				return fmt.Errorf("mark %#x finds the SA with %#x", v, have)
			}
		}
		return err
	}
	for _, x := range []struct {
		v, m uint32
		want unix.Errno
	}{{1, 0xff, 0}, {2, 0xffffffff, 0}, {0x101, 0xffff, 0}, {3, 0xff, unix.ESRCH}, {1, 0, unix.ESRCH}} {
		if err := get(x.v, x.m); errnoOf(err) != x.want {
			t.Errorf("mark %#x/%#x: %v", x.v, x.m, err)
		}
	}
	c.fails(said(marked(0, 0)), xfrm.MsgDelSA, unix.ESRCH)
}

// What is not right is refused with the kernel's errno, and leaves nothing behind.
func TestRefusals(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	c := connect(t, p.Server)
	sa := func(f func(m *xfrm.SA)) *xfrm.SA {
		m := newSA(here, there, 0x1001, 1, 1)
		f(m)
		return m
	}
	for name, x := range map[string]struct {
		m    *xfrm.SA
		want unix.Errno
	}{
		"no algorithm":      {sa(func(m *xfrm.SA) { m.Attrs.AEAD = nil }), unix.EINVAL},
		"unknown algorithm": {sa(func(m *xfrm.SA) { m.Attrs.AEAD.Name = "rfc4106(gcm(foo))" }), unix.ENOSYS},
		"two kinds":         {sa(func(m *xfrm.SA) { m.Attrs.Crypt = xfrm.NewAlgo("aes", 0, make([]byte, 16)) }), unix.EINVAL},
		"short key":         {sa(func(m *xfrm.SA) { m.Attrs.AEAD = xfrm.NewAlgo("rfc4106(gcm(aes))", 128, make([]byte, 7)) }), unix.EINVAL},
		"AH":                {sa(func(m *xfrm.SA) { m.Proto = xfrm.ProtoAH }), unix.EINVAL},
		"a right AH": {sa(func(m *xfrm.SA) {
			m.Proto, m.Attrs.AEAD, m.Attrs.Auth = xfrm.ProtoAH, nil, xfrm.NewAlgo("sha1", 0, make([]byte, 20))
		}), unix.EPROTONOSUPPORT},
		"UDP":                {sa(func(m *xfrm.SA) { m.Proto = 17 }), unix.EINVAL},
		"no family":          {sa(func(m *xfrm.SA) { m.Family = 0 }), unix.EINVAL},
		"mode 9":             {sa(func(m *xfrm.SA) { m.Mode = 9 }), unix.EINVAL},
		"BEET":               {sa(func(m *xfrm.SA) { m.Mode = xfrm.ModeBEET }), unix.EPROTONOSUPPORT},
		"ESN without window": {sa(func(m *xfrm.SA) { m.Flags |= xfrm.StateESN }), unix.EINVAL},
		"out with a window":  {sa(func(m *xfrm.SA) { m.Window, m.Attrs.SADir = 32, xfrm.Some(xfrm.SADirOut) }), unix.EINVAL},
		"direction 3":        {sa(func(m *xfrm.SA) { m.Attrs.SADir = xfrm.Some(uint8(3)) }), unix.ERANGE},
		"reserved SPI":       {sa(func(m *xfrm.SA) { m.SPI = 5 }), unix.EINVAL},
		"no SPI":             {sa(func(m *xfrm.SA) { m.SPI = 0 }), unix.EINVAL},
		"no such processor":  {sa(func(m *xfrm.SA) { m.Attrs.PCPU = xfrm.Some(uint32(1 << 20)) }), unix.EINVAL},
		"ESP in TCP":         {sa(func(m *xfrm.SA) { m.Attrs.Encap = &xfrm.Encap{Type: xfrm.EncapTCP, SrcPort: 1, DstPort: 2} }), unix.EPROTONOSUPPORT},
		"a security label":   {sa(func(m *xfrm.SA) { m.Attrs.SecCtx = &xfrm.SecCtx{} }), unix.EOPNOTSUPP},
	} {
		_, err := c.do(x.m, xfrm.MsgNewSA, ack)
		if e := xfrm.AsError(err); err == nil || e.Errno != x.want || e.Msg == "" {
			t.Errorf("%s: %v (%v), want %v and a text", name, err, errnoOf(err), x.want)
		}
	}
	for name, x := range map[string]struct {
		f    func(p *xfrm.Policy)
		want unix.Errno
	}{
		"two ESP templates":    {func(p *xfrm.Policy) { p.Attrs.Tmpls = append(p.Attrs.Tmpls, p.Attrs.Tmpls[0]) }, unix.EOPNOTSUPP},
		"AH":                   {func(p *xfrm.Policy) { p.Attrs.Tmpls[0].Proto = xfrm.ProtoAH }, unix.EOPNOTSUPP},
		"an interface":         {func(p *xfrm.Policy) { p.Sel.IfIndex = 3 }, unix.EOPNOTSUPP},
		"ports and no proto":   {func(p *xfrm.Policy) { p.Sel.SrcMask = 0xffff }, unix.EOPNOTSUPP},
		"a mask with holes":    {func(p *xfrm.Policy) { p.Sel.Proto, p.Sel.SrcMask = 17, 0xf0f0 }, unix.EOPNOTSUPP},
		"direction 3":          {func(p *xfrm.Policy) { p.Dir = 3 }, unix.EINVAL},
		"another type":         {func(p *xfrm.Policy) { p.Attrs.PolicyType = xfrm.Some(xfrm.PolicyType{Type: 1}) }, unix.EINVAL},
		"index of another dir": {func(p *xfrm.Policy) { p.Index = 8 }, unix.EINVAL},
	} {
		p := newPolicy(xfrm.DirOut, 0, 1, 0)
		x.f(p)
		_, err := c.do(p, xfrm.MsgNewPolicy, ack)
		if e := xfrm.AsError(err); err == nil || e.Errno != x.want || e.Msg == "" {
			t.Errorf("policy with %s: %v (%v), want %v and a text", name, err, errnoOf(err), x.want)
		}
	}
	// Nothing tells packets for policies that differ in their mark apart.
	pol := newPolicy(xfrm.DirOut, 0, 1, 0)
	c.must(pol, xfrm.MsgNewPolicy)
	pol.Attrs.Mark = xfrm.Some(xfrm.Mark{Value: 1, Mask: 1})
	c.fails(pol, xfrm.MsgNewPolicy, unix.EOPNOTSUPP)
	c.must(&xfrm.FlushPolicy{}, xfrm.MsgFlushPolicy)
	c.must(pol, xfrm.MsgNewPolicy)
	s := p.Server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sad.all.n != 0 || len(s.sad.byID) != 0 || len(s.sad.spis) != 0 || s.spd.all.n != 1 || len(s.sad.pools) != 1 || len(s.timers) != 0 {
		t.Errorf("left: %d SAs, %d IDs, %d SPIs, %d policies, %d pools, %d timers", s.sad.all.n, len(s.sad.byID), len(s.sad.spis),
			s.spd.all.n, len(s.sad.pools), len(s.timers))
	}
}

// FuzzDatagram: arbitrary datagrams, after two that make an SA and a policy, neither panic nor leave the server in two minds.
func FuzzDatagram(f *testing.F) {
	add := func(b body, typ, flags uint16) { f.Add(b.Append(nil, typ, flags, 1, 0)) }
	m, pol := newSA(here, there, 0x1001, 1, 1), newPolicy(xfrm.DirOut, 0, 1, 0)
	m.Attrs.ReplayESN = &xfrm.ReplayESN{Words: 4, Window: 128, Bitmap: make([]uint32, 4)}
	add(m, xfrm.MsgNewSA, ack)
	add(m, xfrm.MsgUpdSA, ack)
	add(said(m), xfrm.MsgDelSA, ack)
	add(said(m), xfrm.MsgGetSA, ack)
	add(pol, xfrm.MsgUpdPolicy, ack)
	add(policyID(pol), xfrm.MsgDelPolicy, ack)
	add(&xfrm.AllocSPI{SAInfo: m.SAInfo, Min: 1, Max: ^uint32(0)}, xfrm.MsgAllocSPI, ack)
	add(&xfrm.Dump{}, xfrm.MsgGetSA, ack|unix.NLM_F_DUMP)
	add(&xfrm.Flush{}, xfrm.MsgFlushSA, ack)
	ae := &xfrm.AE{Dst: m.Dst, SPI: m.SPI, Family: m.Family, Proto: m.Proto}
	ae.Attrs.ReplayESN = m.Attrs.ReplayESN
	add(ae, xfrm.MsgNewAE, ack|unix.NLM_F_REPLACE)
	add(&xfrm.Expire{SAInfo: m.SAInfo, Hard: 1}, xfrm.MsgExpire, ack)
	mig := &xfrm.Migrate{Sel: pol.Sel, Dir: pol.Dir}
	mig.Attrs.Migrates = []xfrm.Move{{OldDst: addr(there), OldSrc: addr(here), NewDst: addr("192.0.2.3"), NewSrc: addr(here), Proto: 50,
		Mode: 1, Reqid: 1, OldFamily: 2, NewFamily: 2}}
	add(mig, xfrm.MsgMigrate, ack)
	f.Fuzz(func(t *testing.T, b []byte) {
		p := newPlane(t, Config{}, nil)
		c := connect(t, p.Server)
		c.must(m, xfrm.MsgNewSA)
		c.must(pol, xfrm.MsgNewPolicy)
		c.c.Join(allGroups)
		p.datagram(c.c, b)
		p.datagram(c.c, b)
		consistent(t, p)
	})
}

// Whatever clients do, the server's indexes, the choices of policies and the data plane agree, after every request.
func TestConsistent(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		p := newPlane(outer, Config{}, nil)
		c := connect(outer, p.Server)
		defer p.Server.Close()
		n := func(max int, label string) int { return rapid.IntRange(0, max).Draw(t, label) }
		indexes := []uint32{0}
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			src, dst := here, there
			if n(1, "inbound") == 0 {
				src, dst = dst, src
			}
			m := newSA(src, dst, uint32(0x1000+n(3, "spi")), uint32(n(1, "reqid")), byte(n(1, "key")))
			if n(4, "windows") == 0 {
				m.Window = 32
			}
			var req body = m
			typ, flags := xfrm.MsgNewSA, uint16(ack)
			switch n(12, "operation") {
			case 0, 1, 2:
			case 3:
				typ = xfrm.MsgUpdSA
			case 4:
				req, typ = said(m), xfrm.MsgDelSA
			case 5:
				a := &xfrm.AllocSPI{SAInfo: m.SAInfo, Min: m.SPI, Max: m.SPI}
				a.SPI = 0
				req, typ = a, xfrm.MsgAllocSPI
			case 6:
				req, typ = &xfrm.Expire{SAInfo: m.SAInfo, Hard: uint8(n(1, "hard"))}, xfrm.MsgExpire
			case 7:
				if n(3, "flush") == 0 {
					req, typ = &xfrm.Flush{}, xfrm.MsgFlushSA
				}
			case 8:
				x := &xfrm.AE{Dst: m.Dst, SPI: m.SPI, Family: m.Family, Proto: m.Proto}
				x.Attrs.Replay = xfrm.Some(xfrm.Replay{Oseq: uint32(n(1000, "oseq")), Seq: uint32(n(1000, "seq"))})
				req, typ, flags = x, xfrm.MsgNewAE, ack|unix.NLM_F_REPLACE
			case 9:
				p.Acquire(rapid.SampledFrom(indexes).Draw(t, "acquire"), flow("10.2.0.9"))
				continue
			default:
				req, typ, flags = drawPolicyRequest(t, indexes)
				if pol, ok := req.(*xfrm.Policy); ok && n(2, "pinned") == 0 {
					for i := range pol.Attrs.Tmpls {
						pol.Attrs.Tmpls[i].SPI = m.SPI
					}
				}
			}
			got, _ := c.do(req, typ, flags)
			for _, g := range got {
				if g.Type == xfrm.MsgNewPolicy {
					indexes = append(indexes, decode(outer, g, xfrm.DecodePolicy).Index)
				}
			}
			consistent(t, p)
			if t.Failed() {
				t.Fatalf("after %s", xfrm.TypeName(typ))
			}
		}
	})
}

// consistent checks that the server's indexes and the data plane agree.
func consistent(t rapid.TB, p *plane) {
	t.Helper()
	s := p.Server
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := p.db.Acquire()
	defer snap.Release()
	real, ids, pooled := 0, 0, 0
	for st := range s.sad.all.all {
		if !st.larval {
			real++
			if s.byHandle[st.handle] != st || st.handle == nil {
				t.Errorf("SA %v is not found by its handle", &st.info)
			}
		}
		if st.dead {
			t.Errorf("SA %v is listed and dead", &st.info)
		}
		if st.info.SPI != 0 {
			ids++
		}
		pooled += len(st.keys())
	}
	for _, l := range s.sad.byID {
		ids -= len(l)
	}
	for k, pl := range s.sad.pools {
		pooled -= len(pl.states)
		if pl.key != k || len(pl.states)+len(pl.policies) == 0 {
			t.Errorf("pool %+v is empty or misplaced", k)
		}
	}
	if n := len(snap.Outbounds()) + len(snap.Inbounds()); n != real || len(s.byHandle) != real || ids != 0 || pooled != 0 {
		t.Errorf("%d real SAs, %d in the data plane, %d handles; %d IDs and %d pool places too few", real, n, len(s.byHandle), ids, pooled)
	}
	effective := 0
	for pol := range s.spd.all.all {
		if s.spd.byKey[pol.key()] != pol || s.spd.byIndex[pol.info.Index] != pol {
			t.Errorf("policy %v is not found", &pol.info)
		}
		if pol.out != s.pick(pol) {
			t.Errorf("policy %v uses another SA than it would choose", &pol.info)
		}
		if pol.info.Dir != xfrm.DirFwd {
			effective++
		}
	}
	for _, pol := range snap.Policies() {
		i, _ := PolicyIndex(pol.Name)
		have := s.spd.byIndex[i]
		if have == nil {
			t.Errorf("policy %s is in the data plane alone", pol.Name)
			continue
		}
		if (have.out == nil) != (pol.Out == nil) || have.out != nil && have.out.handle.(*dbSA).out != pol.Out {
			t.Errorf("policy %s uses another SA in the data plane", pol.Name)
		}
	}
	if n := len(snap.Policies()); n != effective || len(s.spd.byKey) != s.spd.all.n || len(s.spd.byIndex) != s.spd.all.n {
		t.Errorf("%d policies with effect, %d in the data plane", effective, n)
	}
}

// A port that a socket has been given, and that it has neither bound nor used, is another's who binds it, as with the kernel, which gives
// one only then; after that it is nobody else's.
func TestPorts(t *testing.T) {
	s := newServer(t, Config{})
	first, second, third := connect(t, s), connect(t, s), connect(t, s)
	port := first.c.Port()
	if port != uint32(os.Getpid()) {
		t.Fatalf("the first socket of a process has port %d", port)
	}
	if err := second.c.SetPort(port); err != nil || second.c.Port() != port {
		t.Fatalf("a port that nobody has bound: %v, port %d", err, second.c.Port())
	}
	if first.c.Port() == port || first.c.Port() == third.c.Port() {
		t.Errorf("the first one has port %d now", first.c.Port())
	}
	if err := third.c.SetPort(port); err != unix.EADDRINUSE {
		t.Errorf("a port that is bound: %v", err)
	}
	if err := second.c.SetPort(port); err != nil {
		t.Errorf("one's own port: %v", err)
	}
	used := first.c.Port()
	first.must(&xfrm.SADInfo{}, xfrm.MsgGetSADInfo) // which binds it
	if err := third.c.SetPort(used); err != unix.EADDRINUSE {
		t.Errorf("a port that is in use: %v", err)
	}
	own := third.c.Port()
	if err := third.c.SetPort(0); err != nil || third.c.Port() != own {
		t.Errorf("bind without a port: %v, port %d, and it was %d", err, third.c.Port(), own)
	}
	if err := first.c.SetPort(own); err != unix.EADDRINUSE {
		t.Errorf("a port that was kept: %v", err)
	}
}
