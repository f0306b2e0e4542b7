package sa

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"culvert/offload"
)

// Every refusal is ErrParams, names the SA and the mistake, and changes nothing else.
func TestParamsRefusals(t *testing.T) {
	addr := netip.MustParseAddr
	for _, c := range []struct {
		want   string
		dir    Dir
		change func(p *Params)
	}{
		{"the SPI is missing", Out, func(p *Params) { p.SPI = 0 }},
		{"SPI 1 is reserved", Out, func(p *Params) { p.SPI = 1 }},
		{"SPI 255 is reserved", Out, func(p *Params) { p.SPI = 255 }},
		{"there is no mode(2)", Out, func(p *Params) { p.Mode = 2 }},
		{"TFC padding in transport mode", Out, func(p *Params) { p.Mode, p.TFCPad = Transport, 1000 }},
		{"no mode(9)", Out, func(p *Params) { p.Mode = 9 }},
		{"source address is missing", Out, func(p *Params) { p.Src = netip.Addr{} }},
		{"destination address is missing", Out, func(p *Params) { p.Dst = netip.Addr{} }},
		{"not a host's", Out, func(p *Params) { p.Dst = addr("0.0.0.0") }},
		{"not a host's", Out, func(p *Params) { p.Dst = addr("224.0.0.5") }},
		{"write 192.0.2.1", Out, func(p *Params) { p.Src = addr("::ffff:192.0.2.1") }},
		{"not of one family", Out, func(p *Params) { p.Src = addr("2001:db8::1") }},
		{"without UDP encapsulation", Out, func(p *Params) { p.DstPort = 4500 }},
		{"needs both ports", Out, func(p *Params) { p.Encap, p.DstPort = EncapUDP, 4500 }},
		{"no encap(7)", Out, func(p *Params) { p.Encap = 7 }},
		{"the transform is missing", Out, func(p *Params) { p.Transform = nil }},
		{"unusable key", Out, func(p *Params) { p.Keys.Enc = p.Keys.Enc[:4] }},
		{"no dscp(128)", Out, func(p *Params) { p.DSCP = 128 }},
		{"no df(9)", Out, func(p *Params) { p.DF = 9 }},
		{"link -1", Out, func(p *Params) { p.Link = -1 }},
		{"soft limit of 2 bytes", Out, func(p *Params) { p.Lifetime = Lifetime{Soft: Limits{Bytes: 2}, Hard: Limits{Bytes: 1}} }},
		{"soft limit of 2 packets", Out, func(p *Params) { p.Lifetime = Lifetime{Soft: Limits{Packets: 2}, Hard: Limits{Packets: 1}} }},
		{"soft limit of 2s", Out, func(p *Params) {
			p.Lifetime = Lifetime{Soft: Limits{Add: 2 * time.Second}, Hard: Limits{Add: time.Second}}
		}},
		{"of use", Out, func(p *Params) {
			p.Lifetime = Lifetime{Soft: Limits{Use: 2 * time.Second}, Hard: Limits{Use: time.Second}}
		}},
		{"negative", Out, func(p *Params) { p.Lifetime.Hard.Add = -1 }},
		{"a path MTU of 100", Out, func(p *Params) { p.PathMTU = 100 }},
		{"1280 to 65535", Out, func(p *Params) { p.Src, p.Dst, p.PathMTU = addr("2001:db8::1"), addr("2001:db8::2"), 1279 }},
		{"TFC padding", Out, func(p *Params) { p.TFCPad = 70000 }},
		{"the inbound one's", Out, func(p *Params) { p.FollowPeer = true }},
		{"the replay window is missing", In, func(p *Params) { p.ReplayWindow = 0 }},
		{"window of 31", In, func(p *Params) { p.ReplayWindow = 31 }},
		{"window of 65537", In, func(p *Params) { p.ReplayWindow = 65537 }},
		{"choose one", In, func(p *Params) { p.NoReplayCheck = true }},
		{"ESN needs", In, func(p *Params) { p.NoReplayCheck, p.ReplayWindow, p.Keys.ESN = true, 0, true }},
		{"for outbound SAs", In, func(p *Params) { p.DSCP = SetDSCP(46) }},
	} {
		p := params(t, 0xc0000001)
		p.ReplayWindow = 64
		if err := p.ValidateFor(c.dir); err != nil {
			t.Fatal(err)
		}
		c.change(&p)
		err := p.ValidateFor(c.dir)
		if !errors.Is(err, ErrParams) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"office" spi 0x`) {
			t.Errorf("want %q, got: %v", c.want, err)
		}
		if c.dir == Out {
			_, err = NewOutbound(p, &session{t: p.Transform}, NewVolatileSequence())
		} else {
			_, err = NewInbound(p, &session{t: p.Transform, dir: offload.Open}, nil)
		}
		if !errors.Is(err, ErrParams) {
			t.Errorf("%s: an SA was made of it: %v", c.want, err)
		}
	}
}

// A session of another transform or direction, a missing one, and a sequence that is in use are refused.
func TestNewRefusesStrangers(t *testing.T) {
	p := params(t, 256)
	in := p
	in.ReplayWindow = 64
	other := transform(t, "rfc7539esp(chacha20,poly1305)")
	taken := NewVolatileSequence()
	if _, err := NewOutbound(p, &session{t: p.Transform}, taken); err != nil {
		t.Fatal(err)
	}
	follow := in
	follow.FollowPeer = true
	for what, err := range map[string]error{
		"no session":       second(NewOutbound(p, nil, NewVolatileSequence())),
		"other transform":  second(NewOutbound(p, &session{t: other}, NewVolatileSequence())),
		"other direction":  second(NewOutbound(p, &session{t: p.Transform, dir: offload.Open}, NewVolatileSequence())),
		"no sequence":      second(NewOutbound(p, &session{t: p.Transform}, nil)),
		"sequence in use":  second(NewOutbound(p, &session{t: p.Transform}, taken)),
		"in: no session":   second(NewInbound(in, nil, nil)),
		"in: direction":    second(NewInbound(in, &session{t: p.Transform}, nil)),
		"follows, no pair": second(NewInbound(follow, &session{t: p.Transform, dir: offload.Open}, nil)),
	} {
		if !errors.Is(err, ErrParams) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// Without ESN the last number is 2^32-1; then the SA has expired for good, and has asked to be replaced long before.
func TestNextSeqEnds(t *testing.T) {
	d := NewDB()
	seq := NewVolatileSequence()
	if err := seq.SkipPast(3<<30 - 2); err != nil {
		t.Fatal(err)
	}
	p := params(t, 256)
	o, err := NewOutbound(p, &session{t: p.Transform}, seq)
	if err != nil {
		t.Fatal(err)
	}
	update(t, d, func(tx *Tx) error { return tx.AddOutbound(o) })
	if n, err := o.NextSeq(); n != 3<<30-1 || err != nil {
		t.Fatal(n, err)
	}
	now := time.Now()
	o.Account(1, 100, now)
	o.Publish()
	if got := d.Expiries(now); len(got) != 1 || got[0] != (Expiry{Outbound: o, Cause: CauseSequence}) {
		t.Fatalf("near the end: %v", got)
	}
	seq.at = math.MaxUint32 // all numbers between have been used
	if n, err := o.NextSeq(); n != math.MaxUint32 || err != nil {
		t.Fatal(n, err)
	}
	for _, want := range []error{ErrSeqExhausted, ErrSeqExhausted, ErrSeqExhausted} {
		if n, err := o.NextSeq(); n != 0 || err != want {
			t.Errorf("after the last number: %d, %v; want %v", n, err, want)
		}
	}
	if got := d.Expiries(now); len(got) != 1 || got[0] != (Expiry{Outbound: o, Hard: true, Cause: CauseSequence}) {
		t.Errorf("at the end: %v", got)
	}
}

// With ESN the numbers go on past 2^32.
func TestNextSeqESN(t *testing.T) {
	seq := NewVolatileSequence()
	if err := seq.SkipPast(math.MaxUint32 - 1); err != nil {
		t.Fatal(err)
	}
	p := params(t, 256)
	p.Keys.ESN = true
	o, err := NewOutbound(p, &session{t: p.Transform}, seq)
	if err != nil {
		t.Fatal(err)
	}
	for want := uint64(math.MaxUint32); want < math.MaxUint32+3; want++ {
		if n, err := o.NextSeq(); n != want || err != nil {
			t.Fatal(n, err, want)
		}
	}
}

// An SA whose lane checks a burst before opening any of it, then advances packet by packet, accepts each once, counts what it
// was told and tells the pair of readers' figures of one moment.
func TestInboundBurst(t *testing.T) {
	p := params(t, 256)
	p.Keys.ESN = true
	i := inbound(t, p)
	i.Resume(1<<32 - 3)
	wire := []uint32{0xfffffffe, 0xffffffff, 0, 1, 1, 0xfffffffd}
	want := []Verdict{Fresh, Fresh, Fresh, Fresh, Duplicate, Duplicate}
	seqs := make([]uint64, len(wire))
	for k, lo := range wire {
		seqs[k] = i.Seq(lo)
		if i.SeqHi(lo) != uint32(seqs[k]>>32) {
			t.Errorf("SeqHi and Seq disagree on %#x", lo)
		}
		before := want[k]
		if k == 4 {
			before = Fresh // its twin has not been opened yet
		}
		if v := i.Check(lo); v != before {
			t.Errorf("before the ICV %#x is %v", lo, v)
		}
	}
	for k, seq := range seqs {
		if v := i.Advance(seq); v != want[k] {
			t.Errorf("after the ICV %#x is %v", seq, v)
		}
		if top := slices.Max(append(seqs[:k+1:k+1], 1<<32-3)); i.Top() != top {
			t.Errorf("after %#x the top is %#x", seq, i.Top())
		}
	}
	now := i.Stats().Added.Add(time.Second)
	i.Account(4, 400, now)
	i.Publish()
	i.AccountDrops(Drops{Duplicate: 2, TooOld: 1, BadICV: 5})
	i.Publish()
	i.AccountDrops(Drops{BadICV: 1})
	i.Publish()
	s := i.Stats()
	if s.Packets != 4 || s.Bytes != 400 || s.Seq != 1<<32+1 || s.Drops != (Drops{2, 1, 6}) || !s.LastUse.Equal(now) || !s.FirstUse.Equal(now) {
		t.Errorf("%+v", s)
	}
}

// Without ESN the number is the one in the packet, and one that comes again after 2^32-1 is old.
func TestInboundWithoutESN(t *testing.T) {
	i := inbound(t, params(t, 256))
	i.Resume(math.MaxUint32 - 1)
	if i.Seq(math.MaxUint32) != math.MaxUint32 || i.Check(math.MaxUint32) != Fresh || i.Advance(math.MaxUint32) != Fresh {
		t.Error("the last number is not accepted")
	}
	if v := i.Check(3); v != TooOld {
		t.Errorf("a number after the wrap is %v", v)
	}
}

// Without the replay check everything is fresh, always, and the highest number is still known.
func TestNoReplayCheck(t *testing.T) {
	p := params(t, 256)
	p.NoReplayCheck = true
	i := inbound(t, p)
	for _, lo := range []uint32{9, 9, 1, 0} {
		if i.Check(lo) != Fresh || i.Advance(i.Seq(lo)) != Fresh {
			t.Errorf("%d is refused", lo)
		}
	}
	i.Account(4, 4, time.Now())
	i.Publish()
	if s := i.Stats(); s.Seq != 9 {
		t.Errorf("the highest is %d", s.Seq)
	}
}

// Each limit, soft and hard, in both directions, is passed exactly when it is reached, told once, and enforced if hard.
func TestLifetimes(t *testing.T) {
	for _, c := range []struct {
		cause Cause
		set   func(l *Limits, v int)
	}{
		{CauseBytes, func(l *Limits, v int) { l.Bytes = uint64(v) * 100 }},
		{CausePackets, func(l *Limits, v int) { l.Packets = uint64(v) }},
		{CauseAdd, func(l *Limits, v int) { l.Add = time.Duration(v) * time.Second }},
		{CauseUse, func(l *Limits, v int) { l.Use = time.Duration(v-1) * time.Second }}, // the first packet comes after a second
	} {
		t.Run(c.cause.String(), func(t *testing.T) {
			p := params(t, 256)
			c.set(&p.Lifetime.Soft, 3)
			c.set(&p.Lifetime.Hard, 6)
			d, o, i := NewDB(), outbound(t, p), inbound(t, p)
			update(t, d, func(tx *Tx) error { return errors.Join(tx.AddOutbound(o), tx.AddInbound(i)) })
			for n := 1; n <= 8; n++ { // a packet of 100 bytes a second
				out, in := o.life.added.Add(time.Duration(n)*time.Second), i.life.added.Add(time.Duration(n)*time.Second)
				_, err := o.NextSeq()
				if expired := n > 6; (err == ErrExpired) != expired || o.Expired() != expired || i.Expired() != expired {
					t.Errorf("second %d: %v, expired %v and %v", n, err, o.Expired(), i.Expired())
				}
				o.Account(1, 100, out)
				o.Publish()
				i.Account(1, 100, in)
				i.Publish()
				var want []Expiry
				if n == 3 || n == 6 {
					want = []Expiry{{Outbound: o, Hard: n == 6, Cause: c.cause}, {Inbound: i, Hard: n == 6, Cause: c.cause}}
				}
				if got := d.Expiries(in); !slices.Equal(got, want) {
					t.Errorf("second %d: %v", n, got)
				}
				if s := o.Stats(); s.SoftExpired != (n >= 3) || s.HardExpired != (n >= 6) {
					t.Errorf("second %d: %+v", n, s)
				}
			}
		})
	}
}

// Limits in time pass without any packet, those of use do not begin before the first, and a hard limit that comes together
// with the soft one is told alone.
func TestLifetimesWithoutTraffic(t *testing.T) {
	p := params(t, 256)
	p.Lifetime = Lifetime{Soft: Limits{Use: time.Second, Add: time.Minute}, Hard: Limits{Use: time.Second, Add: time.Minute}}
	d, o := NewDB(), outbound(t, p)
	update(t, d, func(tx *Tx) error { return tx.AddOutbound(o) })
	if got := d.Expiries(o.life.added.Add(59 * time.Second)); got != nil {
		t.Errorf("too early: %v", got)
	}
	at := o.life.added.Add(time.Minute)
	if got := d.Expiries(at); len(got) != 1 || got[0] != (Expiry{Outbound: o, Hard: true, Cause: CauseAdd}) {
		t.Errorf("%v", got)
	}
	if got := d.Expiries(at.Add(time.Hour)); got != nil {
		t.Errorf("told again: %v", got)
	}
}

// A lane that passes a limit wakes the reader, and never waits for one.
func TestLifetimeWakes(t *testing.T) {
	p := params(t, 256)
	p.Lifetime.Soft.Packets, p.Lifetime.Hard.Packets = 1, 2
	d, o, q := NewDB(), outbound(t, p), p
	q.SPI++
	other := outbound(t, q)
	update(t, d, func(tx *Tx) error { return errors.Join(tx.AddOutbound(o), tx.AddOutbound(other)) })
	for range 3 { // nobody reads
		o.Account(1, 1, time.Now())
		o.Publish()
		other.Account(1, 1, time.Now())
		other.Publish()
	}
	select {
	case <-d.Wake():
	default:
		t.Error("nobody was woken")
	}
	if got := d.Expiries(time.Now()); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// Readers never see half of a burst, nor counters going back.
func TestCountersDoNotTear(t *testing.T) {
	i := inbound(t, params(t, 256))
	bursts := uint64(500_000)
	if testing.Short() {
		bursts = 50_000
	}
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			var last uint64
			for {
				s := i.Stats()
				if s.Bytes != 100*s.Packets || s.Packets < last || s.Drops.TooOld != 3*s.Drops.Duplicate || s.Drops.BadICV != 5*s.Drops.Duplicate {
					t.Errorf("torn: %+v", s)
					return
				}
				last = s.Packets
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	now := time.Now()
	for n := range bursts {
		i.Account(n%64, 100*(n%64), now)
		i.AccountDrops(Drops{Duplicate: n % 3, TooOld: 3 * (n % 3), BadICV: 5 * (n % 3)})
		i.Publish()
	}
	close(done)
	readers.Wait()
}

// The first lane that claims an SA keeps it, among many at once.
func TestClaim(t *testing.T) {
	o, i := outbound(t, params(t, 256)), inbound(t, params(t, 256))
	if _, ok := o.Owner(); ok {
		t.Error("a new SA has an owner")
	}
	for what, claim := range map[string]func(int) bool{"outbound": o.Claim, "inbound": func(lane int) bool { return i.Claim(lane, 0) }} {
		var wg sync.WaitGroup
		won := make([]bool, 8)
		for lane := range won {
			wg.Go(func() {
				first := claim(lane)
				won[lane] = claim(lane) && first // claiming again is no harm
			})
		}
		wg.Wait()
		n, winner := 0, 0
		for lane, w := range won {
			if w {
				n, winner = n+1, lane
			}
		}
		if n != 1 {
			t.Fatalf("%s: %d lanes own it", what, n)
		}
		lane, ok := o.Owner()
		if what == "inbound" {
			lane, ok = i.Owner()
		}
		if !ok || lane != winner {
			t.Errorf("%s: owned by %d, %v; %d had won", what, lane, ok, winner)
		}
	}
}

// The largest inner packet for outer families, UDP and transforms: columns are IPv4, IPv4 with UDP, IPv6, IPv6 with UDP.
func TestMaxInner(t *testing.T) {
	for _, c := range []struct {
		transform string
		icv       int
		mtu       int
		want      [4]int
	}{
		{"authenc(hmac(sha1),cbc(aes))", 0, 1500, [4]int{1438, 1422, 1422, 1406}},
		{"authenc(hmac(sha1),cbc(aes))", 0, 1492, [4]int{1422, 1422, 1406, 1406}},
		{"authenc(hmac(sha1),cbc(aes))", 0, 1400, [4]int{1342, 1326, 1310, 1310}},
		{"authenc(hmac(sha256),cbc(aes))", 128, 1500, [4]int{1438, 1422, 1406, 1406}},
		{"authenc(hmac(sha256),cbc(aes))", 128, 1492, [4]int{1422, 1422, 1406, 1390}},
		{"authenc(hmac(sha384),cbc(aes))", 0, 1500, [4]int{1422, 1422, 1406, 1390}},
		{"authenc(hmac(sha512),cbc(aes))", 0, 1500, [4]int{1422, 1406, 1390, 1390}},
		{"authenc(hmac(sha512),cbc(aes))", 0, 1400, [4]int{1310, 1310, 1294, 1294}},
		{"authenc(hmac(sha1),cbc(des3_ede))", 0, 1500, [4]int{1446, 1438, 1430, 1422}},
		{"authenc(hmac(sha256),cbc(des3_ede))", 128, 1492, [4]int{1438, 1430, 1414, 1406}},
	} {
		for column, want := range c.want {
			p := params(t, 256)
			var err error
			if p.Transform, err = offload.Lookup(c.transform, 0, c.icv); err != nil {
				t.Fatal(err)
			}
			p.Keys = keysFor(p.Transform, 0)
			for k := range p.Keys.Enc {
				p.Keys.Enc[k] = byte(k + 1)
			}
			for k := range p.Keys.Auth {
				p.Keys.Auth[k] = byte(k + 1)
			}
			if column >= 2 {
				p.Src, p.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
			}
			if column%2 == 1 {
				p.Encap, p.SrcPort, p.DstPort = EncapUDP, 4500, 4500
			}
			p.PathMTU = c.mtu
			if got := outbound(t, p).MaxInner(); got != want {
				t.Errorf("%s, MTU %d, column %d: %d, not %d", c.transform, c.mtu, column, got, want)
			}
		}
	}
}

// A path MTU is learned downwards only, not below the floor, and is believed for ten minutes.
func TestPathMTU(t *testing.T) {
	o := outbound(t, params(t, 256))
	now := o.life.added
	if o.MTU() != DefaultMTU || o.AgeMTU(now.Add(time.Hour)) {
		t.Errorf("at first it is %d", o.MTU())
	}
	full := o.MaxInner()
	if o.LearnMTU(1500, now) || o.LearnMTU(9000, now) || o.MTU() != 1500 {
		t.Error("it has grown")
	}
	if !o.LearnMTU(1400, now) || o.MTU() != 1400 || o.MaxInner() >= full {
		t.Errorf("1400 gives %d, inner %d", o.MTU(), o.MaxInner())
	}
	if !o.LearnMTU(0, now) || o.MTU() != 576 {
		t.Errorf("0 gives %d", o.MTU())
	}
	if o.AgeMTU(now.Add(MTUAge-time.Second)) || o.MTU() != 576 {
		t.Error("aged too early")
	}
	if !o.AgeMTU(now.Add(MTUAge+time.Second)) || o.MTU() != 1500 || o.MaxInner() != full {
		t.Errorf("aged to %d", o.MTU())
	}
	o.SetMTU(10)
	if o.MTU() != 128 {
		t.Errorf("set to 10 it is %d", o.MTU())
	}
	p := params(t, 256)
	p.Src, p.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	if o = outbound(t, p); !o.LearnMTU(576, now) || o.MTU() != 1280 {
		t.Errorf("IPv6 learned %d", o.MTU())
	}
}

// An ICMP message that quotes a packet of the SA is believed if that was sent in the last seconds, whatever else anybody knows of
// the SA; what is not believed is counted.
func TestQuotedMTU(t *testing.T) {
	for _, esn := range []bool{false, true} {
		t.Run(fmt.Sprintf("ESN %v", esn), func(t *testing.T) {
			first := uint64(1 << 31)
			if esn {
				first = 1<<32 - 9 // the low half wraps on the way
			}
			p := params(t, 256)
			p.Keys.ESN = esn
			seq := NewVolatileSequence()
			if err := seq.SkipPast(first - 1); err != nil {
				t.Fatal(err)
			}
			o, err := NewOutbound(p, &session{t: p.Transform}, seq)
			if err != nil {
				t.Fatal(err)
			}
			at := func(s float64) time.Time { return o.life.added.Add(time.Duration(s * float64(time.Second))) }
			ignored := uint64(0)
			// quote gives messages about packets first+n at second s, which are believed or not.
			quote := func(s float64, want bool, numbers ...int64) {
				t.Helper()
				for _, n := range numbers {
					lo := uint32(int64(first) + n)
					if got := o.LearnQuotedMTU(1400, lo, at(s)); got != want {
						t.Errorf("second %v: packet %d: %v", s, n, got)
					}
					if !want {
						ignored++
						if o.MTU() != DefaultMTU {
							t.Fatalf("the MTU is %d", o.MTU())
						}
					}
					o.ResetMTU()
				}
			}
			sent := int64(0)
			send := func(s float64, n int64, publish bool) {
				for range n {
					if _, err := o.NextSeq(); err != nil {
						t.Fatal(err)
					}
				}
				o.Account(uint64(n), 1, at(s))
				if publish {
					o.Publish()
				}
				sent += n
			}
			quote(0, false, -1, 0, 1, 12345) // nothing was sent: an earlier process may have used -1
			send(1000, 2, true)
			quote(1000, true, 0, 1)
			quote(1000, false, -1, 2, 3, 1000, -1000, 1<<30, -1<<30)
			quote(1003.9, true, 0, 1)
			quote(1004.1, false, 0, 1)
			send(1000.3, 2, true) // within a second of the others, and then long nothing
			send(5000, 2, true)
			quote(5000.1, true, 4, 5)
			quote(5000.1, false, 0, 1, 2, 3, 6)
			for s := 5001.0; s < 5010; s++ { // two a second
				send(s, 2, true)
			}
			quote(5009.5, true, sent-1, sent-6)
			quote(5009.5, false, sent, sent-12, 5, 4, 0)
			send(5010, 2, false) // the lane has not shown it yet
			quote(5010, true, sent-1, sent-3)
			quote(5010, false, sent+1<<18)
			o.Publish()
			quote(5010, true, sent-1)
			quote(5010, false, sent)
			if s := o.Stats(); s.MTUIgnored != ignored {
				t.Errorf("%d ignored messages are counted, %d were", s.MTUIgnored, ignored)
			}
			if o.ResetMTU() || !o.LearnMTU(1300, at(5010)) || o.MTU() != 1300 || !o.ResetMTU() || o.MTU() != DefaultMTU {
				t.Errorf("reset to %d", o.MTU())
			}
		})
	}
}

func TestPeer(t *testing.T) {
	p := params(t, 256)
	p.Encap, p.SrcPort, p.DstPort = EncapUDP, 4500, 4501
	o := outbound(t, p)
	if got := o.Peer().String(); got != "198.51.100.2:4501" {
		t.Errorf("at first %s", got)
	}
	moved := netip.MustParseAddrPort("198.51.100.9:1024")
	o.SetPeer(moved)
	noAllocs(t, "Peer, and SetPeer to the same", func() { o.SetPeer(o.Peer()) })
	if o.Peer() != moved {
		t.Errorf("moved to %v", o.Peer())
	}
}

func TestDSCP(t *testing.T) {
	for _, c := range []struct {
		mode         DSCPMode
		name         string
		encap, decap uint8 // of an inner 10 and an outer 20
	}{{KeepDSCP, "keep", 10, 10}, {CopyDSCP, "copy", 10, 20}, {SetDSCP(46), "set 46", 46, 10}, {SetDSCP(0), "set 0", 0, 10}} {
		if c.mode.String() != c.name || c.mode.Encap(10) != c.encap || c.mode.Decap(20, 10) != c.decap {
			t.Errorf("%v: out %d, in %d", c.mode, c.mode.Encap(10), c.mode.Decap(20, 10))
		}
	}
}

// What the caller does with its keys afterwards does not reach the SA, and the other way round.
func TestKeysAreCopied(t *testing.T) {
	p := params(t, 256)
	o := outbound(t, p)
	p.Keys.Zero()
	if o.Params().Keys.Enc[0] == 0 {
		t.Error("the SA shares the caller's key")
	}
}

func TestPacketPathAllocatesNothing(t *testing.T) {
	p := params(t, 256)
	p.Keys.ESN = true
	p.Lifetime.Soft.Packets = 3
	o, i := outbound(t, p), inbound(t, p)
	now := time.Now()
	noAllocs(t, "outbound", func() {
		if _, err := o.NextSeq(); err != nil {
			t.Fatal(err)
		}
		o.Account(1, 1, now)
		o.Publish()
		o.Claim(1)
	})
	lo := uint32(0)
	noAllocs(t, "inbound", func() {
		lo++
		seq := i.Seq(lo)
		i.Check(lo)
		i.CheckSeq(seq)
		i.Advance(seq)
		i.Account(1, 1, now)
		i.Publish()
		i.AccountDrops(Drops{BadICV: 1})
		i.Publish()
	})
}

// Every value of an enumeration has a name of its own, and a value outside prints as such.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range []fmt.Stringer{
		Tunnel, Transport, EncapNone, EncapUDP, Out, In, Fresh, Duplicate, TooOld, NotMarked, Discard, Protect, Bypass,
		CauseBytes, CausePackets, CauseAdd, CauseUse, CauseSequence,
		DFSet, DFClear,
	} {
		if n := s.String(); n == "" || strings.Contains(n, "(") || seen[n] {
			t.Errorf("%#v is %q", s, n)
		} else {
			seen[n] = true
		}
	}
	for _, s := range []fmt.Stringer{Mode(99), Encap(99), Dir(99), Verdict(99), Action(99), Cause(99), DF(99), DSCPMode(99 | 0x80)} {
		if !strings.Contains(s.String(), "(") {
			t.Errorf("%q", s)
		}
	}
}

func BenchmarkNextSeq(b *testing.B) {
	p := params(b, 256)
	p.Keys.ESN = true
	o := outbound(b, p)
	defer perPacket(b)()
	for b.Loop() {
		if _, err := o.NextSeq(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheckAdvance(b *testing.B) {
	for _, esn := range []bool{false, true} {
		b.Run(fmt.Sprintf("esn %v", esn), func(b *testing.B) {
			p := params(b, 256)
			p.Keys.ESN, p.ReplayWindow = esn, 4096
			i := inbound(b, p)
			defer perPacket(b)()
			for lo := uint32(1); b.Loop(); lo++ {
				seq := i.Seq(lo)
				if i.CheckSeq(seq) == Fresh {
					i.Advance(seq)
				}
			}
		})
	}
}

// BenchmarkAccount is once per burst, not per packet.
func BenchmarkAccount(b *testing.B) {
	p := params(b, 256)
	p.Lifetime.Soft.Bytes = math.MaxUint64
	i := inbound(b, p)
	now := time.Now()
	defer perPacket(b)()
	for b.Loop() {
		i.Account(46, 46*1500, now)
	}
}
