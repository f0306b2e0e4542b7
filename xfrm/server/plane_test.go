package server

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"culvert/sa"
	"culvert/xfrm"
)

// use makes an outbound SA send packets, as a lane does.
func use(tb testing.TB, p *plane, o *sa.Outbound, packets int) (last uint64) {
	tb.Helper()
	defer p.db.Acquire().Release()
	for range packets {
		n, err := o.NextSeq()
		if err != nil {
			tb.Fatal(err)
		}
		last = n
	}
	o.Account(uint64(packets), uint64(100*packets), time.Now())
	o.Publish()
	return last
}

// receive makes an inbound SA accept numbers.
func receive(tb testing.TB, p *plane, i *sa.Inbound, seqs ...uint64) {
	tb.Helper()
	defer p.db.Acquire().Release()
	for _, n := range seqs {
		if v := i.Advance(n); v != sa.Fresh {
			tb.Fatalf("number %d is %v", n, v)
		}
	}
	i.Account(uint64(len(seqs)), uint64(100*len(seqs)), time.Now())
	i.Publish()
}

// The outbound SA is that of the template's SPI where it has one, and else the newest of the template's reqid and addresses; it
// follows what comes and goes.
func TestChoice(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	c := connect(t, p.Server)
	trap, pinned := newPolicy(xfrm.DirOut, 0, 1, 0), newPolicy(xfrm.DirOut, 1, 2, 0x2001)
	c.must(trap, xfrm.MsgNewPolicy)
	c.must(pinned, xfrm.MsgNewPolicy)
	spi := func(dst string) uint32 {
		if o := p.outFor(t, dst); o != nil {
			return o.Params().SPI
		}
		return 0
	}
	expect := func(what string, want0, want1 uint32) {
		t.Helper()
		if a, b := spi("10.2.0.9"), spi("10.2.1.9"); a != want0 || b != want1 {
			t.Fatalf("%s: the policies use %#x and %#x, want %#x and %#x", what, a, b, want0, want1)
		}
	}
	expect("without SAs", 0, 0)
	sas := map[uint32]*xfrm.SA{
		0x1001: newSA(here, there, 0x1001, 1, 1), 0x1002: newSA(here, there, 0x1002, 1, 2), 0x1003: newSA(here, there, 0x1003, 9, 3),
		0x2001: newSA(here, there, 0x2001, 2, 4), 0x2002: newSA(here, there, 0x2002, 2, 5), 0x2003: newSA(here, "192.0.2.7", 0x2003, 1, 6),
	}
	add := func(spi uint32) { c.must(sas[spi], xfrm.MsgNewSA) }
	del := func(spi uint32) { c.must(said(sas[spi]), xfrm.MsgDelSA) }
	add(0x1001)
	expect("one SA", 0x1001, 0)
	add(0x1002)
	expect("a newer one", 0x1002, 0)
	add(0x1003)
	add(0x2003)
	expect("one with another reqid, and one for another peer", 0x1002, 0)
	add(0x2002)
	expect("one with the reqid but another SPI", 0x1002, 0)
	add(0x2001)
	expect("the one that the template names", 0x1002, 0x2001)
	del(0x1002)
	expect("the newest is gone", 0x1001, 0x2001)
	soft := &xfrm.Expire{SAInfo: sas[0x1001].SAInfo}
	c.must(soft, xfrm.MsgExpire)
	expect("one that is dying is better than none", 0x1001, 0x2001)
	add(0x1002)
	c.must(&xfrm.Expire{SAInfo: sas[0x1002].SAInfo}, xfrm.MsgExpire)
	expect("of two that are dying the newest", 0x1002, 0x2001)
	pinned.Attrs.Tmpls[0].SPI = 0x2002
	c.must(pinned, xfrm.MsgUpdPolicy)
	expect("the policy names another", 0x1002, 0x2002)
	del(0x2001)
	del(0x2002)
	expect("its SA is gone", 0x1002, 0)
	c.must(&xfrm.Flush{}, xfrm.MsgFlushSA)
	expect("all are gone", 0, 0)
	if pol := p.policyFor(t, "10.2.0.9"); pol.Action != sa.Protect {
		t.Fatalf("a policy without an SA says %v", pol.Action)
	}
	trap.Action = xfrm.ActionBlock
	c.must(trap, xfrm.MsgUpdPolicy)
	if pol := p.policyFor(t, "10.2.0.9"); pol.Action != sa.Discard {
		t.Fatalf("a policy to block says %v", pol.Action)
	}
	trap.Action, trap.Attrs.Tmpls = xfrm.ActionAllow, nil
	c.must(trap, xfrm.MsgUpdPolicy)
	if pol := p.policyFor(t, "10.2.0.9"); pol.Action != sa.Bypass {
		t.Fatalf("a policy to allow without a template says %v", pol.Action)
	}
	c.must(&xfrm.FlushPolicy{}, xfrm.MsgFlushPolicy)
	snap := p.db.Acquire()
	defer snap.Release()
	if n := len(snap.Policies()) + len(snap.Outbounds()) + len(snap.Inbounds()); n != 0 {
		t.Fatalf("%d SAs and policies are left in the data plane", n)
	}
}

// charon's way to install a pair, and to move it: ALLOCSPI and UPDSA make the inbound SA; GETSA, GETAE, DELSA, NEWSA move one, and
// what was sent and received in between is not forgotten.
func TestCharonMovesAnSA(t *testing.T) {
	for _, esn := range []bool{false, true} {
		name := "32 bits"
		if esn {
			name = "ESN"
		}
		t.Run(name, func(t *testing.T) { moveSA(t, esn) })
	}
}

func moveSA(t *testing.T, esn bool) {
	p := newPlane(t, Config{}, nil)
	c := connect(t, p.Server)
	alloc := &xfrm.AllocSPI{SAInfo: newSA(there, here, 0, 1, 0).SAInfo, Min: 0xc0000000, Max: 0xcfffffff}
	larval := decode(t, c.must(alloc, xfrm.MsgAllocSPI)[0], xfrm.DecodeSA)
	if larval.SPI < 0xc0000000 || larval.SPI > 0xcfffffff || larval.Limits.HardAdd != 165 {
		t.Fatalf("ALLOCSPI gives %v, %d s", &larval.SAInfo, larval.Limits.HardAdd)
	}
	encap := &xfrm.Encap{Type: xfrm.EncapUDP, SrcPort: 4500, DstPort: 4500}
	in, out := newSA(there, here, larval.SPI, 1, 0x21), newSA(here, there, 0xc1111111, 1, 0x22)
	in.Attrs.Encap, out.Attrs.Encap = encap, encap
	if esn {
		in.Flags |= xfrm.StateESN
		out.Flags |= xfrm.StateESN
		in.Attrs.ReplayESN = &xfrm.ReplayESN{Words: 4, Window: 128, Bitmap: make([]uint32, 4)}
		out.Attrs.ReplayESN = &xfrm.ReplayESN{Words: 1, Window: 1, Bitmap: make([]uint32, 1)}
	} else {
		in.Window = 32
	}
	c.must(in, xfrm.MsgUpdSA)
	c.must(out, xfrm.MsgNewSA)
	c.must(newPolicy(xfrm.DirIn, 0, 1, 0), xfrm.MsgNewPolicy)
	c.must(newPolicy(xfrm.DirFwd, 0, 1, 0), xfrm.MsgNewPolicy)
	outPol := newPolicy(xfrm.DirOut, 0, 1, out.SPI)
	c.must(outPol, xfrm.MsgNewPolicy)
	inbound := func(spi uint32) *sa.Inbound {
		snap := p.db.Acquire()
		defer snap.Release()
		i := snap.Inbound(spi)
		if i == nil {
			t.Fatalf("no inbound SA %#x", spi)
		}
		return i
	}
	o, i := p.outFor(t, "10.2.0.9"), inbound(in.SPI)
	use(t, p, o, 10)
	receive(t, p, i, 1, 2, 3, 5, 20)
	got := decode(t, c.must(policyID(newPolicy(xfrm.DirFwd, 0, 1, 0)), xfrm.MsgGetPolicy)[0], xfrm.DecodePolicy)
	if now := uint64(time.Now().Unix()); got.Cur.UseTime+2 < now || got.Cur.UseTime > now {
		t.Errorf("the fwd policy was used at %d, now is %d", got.Cur.UseTime, now)
	}

	for round := range 3 {
		for _, m := range []*xfrm.SA{in, out} {
			have := decode(t, c.must(said(m), xfrm.MsgGetSA)[0], xfrm.DecodeSA)
			ae := decode(t, c.must(&xfrm.AE{Dst: m.Dst, SPI: m.SPI, Family: m.Family, Proto: m.Proto, Flags: xfrm.AEReplayVal}, xfrm.MsgGetAE)[0], xfrm.DecodeAE)
			if have.Cur.Packets == 0 || have.Cur.Bytes != 100*have.Cur.Packets || have.Cur.UseTime == 0 || !have.Attrs.LastUsed.Set {
				t.Fatalf("round %d: GETSA shows %+v, last used %v", round, have.Cur, have.Attrs.LastUsed)
			}
			// The old SA goes on until it is deleted.
			held := p.db.Acquire()
			if m == out {
				use(t, p, o, 3)
			} else {
				receive(t, p, i, uint64(30+10*round))
			}
			c.must(said(m), xfrm.MsgDelSA)
			var last uint64
			if m == out { // and, for a lane that holds a snapshot, a moment longer
				last = use(t, p, o, 2)
			} else {
				receive(t, p, i, uint64(31+10*round))
			}
			time.AfterFunc(5*time.Millisecond, held.Release)

			next := &xfrm.SA{SAInfo: have.SAInfo, Attrs: xfrm.Attrs{
				AEAD: have.Attrs.AEAD, Encap: &xfrm.Encap{Type: xfrm.EncapUDP, SrcPort: 4500, DstPort: uint16(5000 + round)},
				Replay: ae.Attrs.Replay, ReplayESN: ae.Attrs.ReplayESN, LTime: ae.Attrs.LTime,
			}}
			c.must(next, xfrm.MsgNewSA)
			shown := decode(t, c.must(said(m), xfrm.MsgGetSA)[0], xfrm.DecodeSA)
			if m == out {
				c.must(outPol, xfrm.MsgUpdPolicy)
				o = p.outFor(t, "10.2.0.9")
				if n, err := o.NextSeq(); err != nil || n != last+1 {
					t.Fatalf("round %d: the SA went on with number %d, %v; the last one was %d", round, n, err, last)
				}
				if port := o.Params().DstPort; port != uint16(5000+round) {
					t.Errorf("it sends to port %d", port)
				}
				if s := o.Stats(); s.Packets < have.Cur.Packets+5 {
					t.Errorf("it counts %d packets, and had sent %d and 5", s.Packets, have.Cur.Packets)
				}
				o.Account(1, 100, time.Now())
				o.Publish()
				continue
			}
			i = inbound(in.SPI)
			for _, n := range []uint64{1, 2, 3, 5, 20, uint64(30 + 10*round), uint64(31 + 10*round)} {
				if v := i.CheckSeq(n); v == sa.Fresh {
					t.Fatalf("round %d: number %d would be taken again", round, n)
				}
			}
			if n := uint64(29 + 10*round); i.CheckSeq(n) != sa.Fresh {
				t.Errorf("round %d: number %d, which is late, is %v", round, n, i.CheckSeq(n))
			}
			if shown.Cur.AddTime != have.Cur.AddTime {
				t.Errorf("it is as old as %d, was %d", shown.Cur.AddTime, have.Cur.AddTime)
			}
		}
	}
}

// A key that comes back goes on behind its last number, whatever the message says: also after a restart, by the store.
func TestKeyComesBack(t *testing.T) {
	dir := t.TempDir()
	store, err := sa.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlane(t, Config{}, store)
	c := connect(t, p.Server)
	pol, m := newPolicy(xfrm.DirOut, 0, 1, 0), newSA(here, there, 0xc1111111, 1, 0x22)
	c.must(pol, xfrm.MsgNewPolicy)
	c.must(m, xfrm.MsgNewSA)
	last := use(t, p, p.outFor(t, "10.2.0.9"), 1000)
	c.must(said(m), xfrm.MsgDelSA)
	c.must(newSA(here, there, 0xc1111111, 1, 0x22), xfrm.MsgNewSA)
	if n := use(t, p, p.outFor(t, "10.2.0.9"), 1); n <= last {
		t.Fatalf("number %d after %d", n, last)
	} else {
		last = n
	}
	p.Close()
	p.db.Close()
	if err := p.db.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if store, err = sa.OpenStore(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	p = newPlane(t, Config{}, store)
	c = connect(t, p.Server)
	c.must(pol, xfrm.MsgNewPolicy)
	c.must(newSA(here, there, 0xc1111111, 1, 0x22), xfrm.MsgNewSA)
	if n := use(t, p, p.outFor(t, "10.2.0.9"), 1); n <= last {
		t.Fatalf("after a restart number %d after %d", n, last)
	}
}

// Without a store two SAs do not have one AEAD key at the same time: they would send the same numbers.
func TestKeyIsUsedOnce(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	c := connect(t, p.Server)
	a := newSA(here, there, 0x1001, 1, 7)
	b := newSA(here, there, 0x1002, 1, 7)
	b.Attrs.AEAD = xfrm.NewAlgo(a.Attrs.AEAD.Name, 128, a.Attrs.AEAD.Key)
	c.must(a, xfrm.MsgNewSA)
	c.fails(b, xfrm.MsgNewSA, unix.EEXIST)
	use(t, p, mustOut(t, p, 0x1001), 5)
	c.must(said(a), xfrm.MsgDelSA)
	c.must(b, xfrm.MsgNewSA)
	if n := use(t, p, mustOut(t, p, 0x1002), 1); n != 6 {
		t.Fatalf("the key goes on with number %d under another SPI, want 6", n)
	}
}

func mustOut(tb testing.TB, p *plane, spi uint32) *sa.Outbound {
	tb.Helper()
	snap := p.db.Acquire()
	defer snap.Release()
	for _, o := range snap.Outbounds() {
		if o.Params().SPI == spi {
			return o
		}
	}
	tb.Fatalf("no outbound SA %#x", spi)
	return nil
}

// Limits in packets and time are told soft, then hard, and then the SA is gone.
func TestExpiry(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	c, ear := connect(t, p.Server), connect(t, p.Server)
	ear.c.Join(xfrm.GroupBit(xfrm.GroupExpire))
	m := newSA(here, there, 0x1001, 1, 7)
	m.Limits.SoftPackets, m.Limits.HardPackets = 5, 9
	c.must(m, xfrm.MsgNewSA)
	o := mustOut(t, p, 0x1001)
	expect := func(hard uint8, spi uint32) {
		t.Helper()
		x := decode(t, ear.event(xfrm.MsgExpire), xfrm.DecodeExpire)
		if x.Hard != hard || x.SPI != spi {
			t.Fatalf("EXPIRE hard %d of %#x, want hard %d of %#x", x.Hard, x.SPI, hard, spi)
		}
	}
	use(t, p, o, 6)
	expect(0, 0x1001)
	use(t, p, o, 4)
	expect(1, 0x1001)
	c.fails(said(m), xfrm.MsgGetSA, unix.ESRCH)

	timed := newSA(here, there, 0x1002, 1, 8)
	timed.Limits.SoftAdd, timed.Limits.HardAdd = 1, 2
	begin := time.Now()
	c.must(timed, xfrm.MsgNewSA)
	expect(0, 0x1002)
	if d := time.Since(begin); d < 900*time.Millisecond {
		t.Errorf("soft after %v", d)
	}
	expect(1, 0x1002)
	if d := time.Since(begin); d < 1900*time.Millisecond {
		t.Errorf("hard after %v", d)
	}
	c.fails(said(timed), xfrm.MsgDelSA, unix.ESRCH)
	ear.quiet(20 * time.Millisecond)
}

// A larval SA ends with an EXPIRE, a policy with a POLEXPIRE.
func TestLarvalAndPolicyExpiry(t *testing.T) {
	p := newPlane(t, Config{AcquireExpires: time.Second}, nil)
	c := connect(t, p.Server)
	c.c.Join(xfrm.GroupBit(xfrm.GroupExpire))
	alloc := &xfrm.AllocSPI{SAInfo: newSA(there, here, 0, 1, 0).SAInfo, Min: 0x1234, Max: 0x1234}
	c.must(alloc, xfrm.MsgAllocSPI)
	pol := newPolicy(xfrm.DirOut, 0, 1, 0)
	pol.Limits.SoftAdd, pol.Limits.HardAdd = 1, 2
	c.must(pol, xfrm.MsgNewPolicy)
	var larval, soft, hard bool
	for !larval || !soft || !hard {
		for _, m := range c.recv(5 * time.Second) {
			switch m.Type {
			case xfrm.MsgExpire:
				x := decode(t, m, xfrm.DecodeExpire)
				larval = x.SPI == 0x1234 && x.Hard == 1
			case xfrm.MsgPolExpire:
				x := decode(t, m, xfrm.DecodePolicyExpire)
				soft, hard = soft || x.Hard == 0, hard || x.Hard == 1
			}
		}
	}
	c.fails(policyID(pol), xfrm.MsgGetPolicy, unix.ENOENT)
	info := decode(t, c.must(&xfrm.SADInfo{}, xfrm.MsgGetSADInfo)[0], xfrm.DecodeSADInfo)
	if info.Count.V != 0 {
		t.Errorf("%d SAs are left", info.Count.V)
	}
}

// A packet without an SA makes one ACQUIRE while that is under way, and the SA that answers ends the larval one.
func TestAcquire(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	c := connect(t, p.Server)
	pol := newPolicy(xfrm.DirOut, 0, 7, 0)
	c.must(pol, xfrm.MsgNewPolicy)
	index, ok := PolicyIndex(p.policyFor(t, "10.2.0.9").Name)
	if !ok {
		t.Fatal("the policy in the data plane has no index")
	}
	f := flow("10.2.0.9")
	p.Acquire(index, f) // nobody listens
	for p.Stats().AcquiresLost.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	c.c.Join(xfrm.GroupBit(xfrm.GroupAcquire))
	for range 5 {
		p.Acquire(index, f)
	}
	a := decode(t, c.event(xfrm.MsgAcquire), xfrm.DecodeAcquire)
	if a.Dst != addr(there) || a.Src != addr(here) || a.Proto != xfrm.ProtoESP || a.Seq == 0 || a.Policy.Index != index ||
		len(a.Attrs.Tmpls) != 1 || a.Attrs.Tmpls[0].Reqid != 7 {
		t.Fatalf("ACQUIRE %+v", a)
	}
	if a.Sel.DstPrefix() != netip.MustParsePrefix("10.2.0.9/32") || a.Sel.Proto != 17 || a.Sel.DstPort != 53 || a.Sel.DstMask != 0xffff {
		t.Errorf("its selector is %v", &a.Sel)
	}
	for p.Stats().AcquiresUnder.Load() < 4 {
		time.Sleep(time.Millisecond)
	}
	c.quiet(10 * time.Millisecond)
	count := func() uint32 {
		return decode(t, c.must(&xfrm.SADInfo{}, xfrm.MsgGetSADInfo)[0], xfrm.DecodeSADInfo).Count.V
	}
	if n := count(); n != 1 {
		t.Fatalf("%d SAs, want the larval one", n)
	}
	c.must(newSA(here, there, 0x1001, 7, 1), xfrm.MsgNewSA)
	if n := count(); n != 1 {
		t.Fatalf("%d SAs, want the real one", n)
	}
	if p.outFor(t, "10.2.0.9") == nil {
		t.Error("the policy does not use it")
	}
}

// A packet from another port makes one MAPPING in a second, with where it was and where it is.
func TestMapping(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	c := connect(t, p.Server)
	c.c.Join(xfrm.GroupBit(xfrm.GroupMapping))
	m := newSA(there, here, 0x1001, 7, 1)
	m.Window, m.Attrs.Encap = 32, &xfrm.Encap{Type: xfrm.EncapUDP, SrcPort: 4500, DstPort: 4500}
	c.must(m, xfrm.MsgNewSA)
	snap := p.db.Acquire()
	in := snap.Inbound(0x1001)
	snap.Release()
	h := p.backend.SA(in)
	p.Mapping(h, netip.MustParseAddrPort("192.0.2.2:4500")) // where it is
	for range 4 {
		p.Mapping(h, netip.MustParseAddrPort("198.51.100.7:61000"))
	}
	x := decode(t, c.event(xfrm.MsgMapping), xfrm.DecodeMapping)
	if x.SPI != 0x1001 || x.Reqid != 7 || x.OldSrc != addr(there) || x.OldPort != 4500 || x.NewSrc != addr("198.51.100.7") || x.NewPort != 61000 {
		t.Errorf("MAPPING %+v", x)
	}
	for p.Stats().MappingsLost.Load() < 3 {
		time.Sleep(time.Millisecond)
	}
	c.quiet(10 * time.Millisecond)
}

// UPDSA of a real SA changes what may change, and keeps key and numbers.
func TestUpdateSA(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	c := connect(t, p.Server)
	encap := func(port uint16) *xfrm.Encap {
		return &xfrm.Encap{Type: xfrm.EncapUDP, SrcPort: 4500, DstPort: port}
	}
	m := newSA(here, there, 0x1001, 7, 1)
	m.Attrs.Encap = encap(4500)
	c.must(m, xfrm.MsgNewSA)
	o := mustOut(t, p, 0x1001)
	use(t, p, o, 5)
	next := newSA(here, there, 0x1001, 7, 99)
	next.Attrs.Encap, next.Limits.HardPackets = encap(5555), 8
	c.must(next, xfrm.MsgUpdSA)
	if mustOut(t, p, 0x1001) != o {
		t.Error("it is another SA")
	}
	if port := o.Peer().Port(); port != 5555 {
		t.Errorf("it sends to port %d", port)
	}
	shown := decode(t, c.must(said(m), xfrm.MsgGetSA)[0], xfrm.DecodeSA)
	if !shown.Attrs.AEAD.Key.Equal(m.Attrs.AEAD.Key) || shown.Attrs.Encap.DstPort != 5555 || shown.Limits.HardPackets != 8 || shown.Cur.Packets != 5 {
		t.Errorf("GETSA shows port %d, limit %d, %d packets", shown.Attrs.Encap.DstPort, shown.Limits.HardPackets, shown.Cur.Packets)
	}
	use(t, p, o, 3)
	if !o.Expired() {
		t.Error("the new limit does not hold")
	}
	without := newSA(here, there, 0x1002, 7, 1)
	c.must(without, xfrm.MsgNewSA)
	without.Attrs.Encap = encap(4500)
	c.fails(without, xfrm.MsgUpdSA, unix.EINVAL)
	c.fails(newSA(here, there, 0x1003, 7, 1), xfrm.MsgUpdSA, unix.ESRCH)
	c.fails(newSA(here, there, 0x1002, 7, 1), xfrm.MsgNewSA, unix.EEXIST)
}

// NEWAE sets counters and moves numbers forward, never back.
func TestNewAE(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	c := connect(t, p.Server)
	c.c.Join(xfrm.GroupBit(xfrm.GroupAEvents))
	m := newSA(here, there, 0x1001, 7, 1)
	c.must(m, xfrm.MsgNewSA)
	c.must(newPolicy(xfrm.DirOut, 0, 7, 0), xfrm.MsgNewPolicy)
	use(t, p, p.outFor(t, "10.2.0.9"), 5)
	ae := &xfrm.AE{Dst: m.Dst, SPI: m.SPI, Family: m.Family, Proto: m.Proto}
	ae.Attrs.Replay = xfrm.Some(xfrm.Replay{Oseq: 500000})
	ae.Attrs.LTime = &xfrm.Lifetime{Packets: 70, Bytes: 7000, AddTime: uint64(time.Now().Unix()) - 100, UseTime: uint64(time.Now().Unix()) - 50}
	c.fails(ae, xfrm.MsgNewAE, unix.EINVAL)
	if _, err := c.do(ae, xfrm.MsgNewAE, ack|unix.NLM_F_REPLACE); err != nil {
		t.Fatal(err)
	}
	o := p.outFor(t, "10.2.0.9")
	if n := use(t, p, o, 1); n != 500001 {
		t.Errorf("it goes on with %d", n)
	}
	if s := o.Stats(); s.Packets != 71 || s.Bytes != 7100 {
		t.Errorf("it counts %d packets, %d bytes", s.Packets, s.Bytes)
	}
	ae.Attrs.Replay.V.Oseq = 3
	if _, err := c.do(ae, xfrm.MsgNewAE, ack|unix.NLM_F_REPLACE); err != nil {
		t.Fatal(err)
	}
	if n := use(t, p, p.outFor(t, "10.2.0.9"), 1); n <= 500001 {
		t.Errorf("it goes back to %d", n)
	}
}

// MIGRATE moves a policy's template and the SAs that fit: they keep their numbers.
func TestMigrate(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	c := connect(t, p.Server)
	m := newSA(here, there, 0x1001, 7, 1)
	pol := newPolicy(xfrm.DirOut, 0, 7, 0)
	c.must(m, xfrm.MsgNewSA)
	c.must(pol, xfrm.MsgNewPolicy)
	o := p.outFor(t, "10.2.0.9")
	use(t, p, o, 5)
	req := &xfrm.Migrate{Sel: pol.Sel, Dir: pol.Dir}
	req.Attrs.Migrates = []xfrm.Move{{
		OldDst: addr(there), OldSrc: addr(here), NewDst: addr("198.51.100.7"), NewSrc: addr("192.0.2.9"), Proto: xfrm.ProtoESP,
		Mode: xfrm.ModeTunnel, Reqid: 7, OldFamily: xfrm.FamilyIPv4, NewFamily: xfrm.FamilyIPv4,
	}}
	c.must(req, xfrm.MsgMigrate)
	if p.outFor(t, "10.2.0.9") != o {
		t.Fatal("the policy uses another SA")
	}
	if dst := o.Params().Dst.String(); dst != "198.51.100.7" {
		t.Errorf("the SA sends to %s", dst)
	}
	if n := use(t, p, o, 1); n != 6 {
		t.Errorf("the SA goes on with %d", n)
	}
	c.fails(said(m), xfrm.MsgGetSA, unix.ESRCH)
	m.Dst = addr("198.51.100.7")
	c.must(said(m), xfrm.MsgDelSA)
	if p.outFor(t, "10.2.0.9") != nil {
		t.Error("the policy uses an SA that is gone")
	}
	c.must(newSA("192.0.2.9", "198.51.100.7", 0x1002, 7, 2), xfrm.MsgNewSA)
	if p.outFor(t, "10.2.0.9") == nil {
		t.Error("the policy does not find an SA at its new addresses")
	}
}

// What Save writes, Restore takes in: SAs, numbers, windows, counters, policies in their order, clients.
func TestSaveAndRestore(t *testing.T) {
	p := newPlane(t, Config{}, nil)
	c := connect(t, p.Server)
	in, out := newSA(there, here, 0x1001, 1, 0x21), newSA(here, there, 0x1002, 1, 0x22)
	in.Window = 32
	c.must(in, xfrm.MsgNewSA)
	c.must(out, xfrm.MsgNewSA)
	for n := range 3 {
		c.must(newPolicy(xfrm.DirOut, n, 1, 0), xfrm.MsgNewPolicy)
		c.must(newPolicy(xfrm.DirIn, n, 1, 0), xfrm.MsgNewPolicy)
	}
	c.must(&xfrm.AllocSPI{SAInfo: newSA(there, here, 0, 5, 0).SAInfo, Min: 0x9999, Max: 0x9999}, xfrm.MsgAllocSPI)
	use(t, p, p.outFor(t, "10.2.0.9"), 7)
	snap := p.db.Acquire()
	receive(t, p, snap.Inbound(0x1001), 1, 3, 4)
	snap.Release()
	c.c.SetGroups(0xc3)
	list := func(c *tester) (all []byte) {
		for _, typ := range []uint16{xfrm.MsgGetSA, xfrm.MsgGetPolicy} {
			got, err := c.do(&xfrm.Dump{}, typ, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range got {
				all = append(all, m.Body...)
			}
		}
		return all
	}
	before := list(c)
	var saved bytes.Buffer
	if err := p.Save(&saved); err != nil {
		t.Fatal(err)
	}
	q := newPlane(t, Config{}, nil)
	for cut := range saved.Len() {
		if err := q.Restore(bytes.NewReader(saved.Bytes()[:cut])); err == nil {
			t.Fatalf("the first %d of %d bytes were taken", cut, saved.Len())
		}
	}
	broken := bytes.Clone(saved.Bytes())
	broken[len(broken)/2] ^= 1
	if err := q.Restore(bytes.NewReader(broken)); err == nil {
		t.Fatal("a flipped bit was not noticed")
	}
	if err := q.Restore(&saved); err != nil {
		t.Fatal(err)
	}
	// The same socket comes back: what stands for it here is a copy of its descriptor.
	conn, err := c.c.conn.File()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	again := fileConn(t, conn)
	back, err := q.Attach(again, Peer{PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	if back.Groups() != 0xc3 || !back.extAck.Load() || back.Port() != c.c.Port() {
		t.Errorf("the client came back with groups %#x, port %d", back.Groups(), back.Port())
	}
	d := connect(t, q.Server)
	if after := list(d); !bytes.Equal(before, after) {
		t.Errorf("the lists differ:\n%x\n%x", before, after)
	}
	if n := use(t, q, q.outFor(t, "10.2.0.9"), 1); n != 8 {
		t.Errorf("the outbound SA goes on with %d", n)
	}
	s2 := q.db.Acquire()
	defer s2.Release()
	i := s2.Inbound(0x1001)
	for n, want := range map[uint64]sa.Verdict{1: sa.Duplicate, 2: sa.Fresh, 3: sa.Duplicate, 4: sa.Duplicate, 5: sa.Fresh} {
		if v := i.CheckSeq(n); v != want {
			t.Errorf("number %d is %v, want %v", n, v, want)
		}
	}
}
