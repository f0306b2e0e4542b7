package server

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"culvert/xfrm"
)

// masked is a message as both sides must have it: without the client's port and the time of adding.
func masked(t *rapid.T, m msg) []byte {
	var out []byte
	switch m.Type {
	case xfrm.MsgNewPolicy, xfrm.MsgUpdPolicy:
		p, err := xfrm.DecodePolicy(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		p.Cur.AddTime = 0
		out = p.Append(nil, m.Type, m.Flags, m.Seq, 0)
	case xfrm.MsgDelPolicy:
		p, err := xfrm.DecodePolicyID(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		if p.Attrs.Policy != nil {
			p.Attrs.Policy.Cur.AddTime = 0
		}
		out = p.Append(nil, m.Type, m.Flags, m.Seq, 0)
	case xfrm.MsgNewSPDInfo:
		p, err := xfrm.DecodeSPDInfo(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		p.Hash.V.Rows = 0 // grows when the kernel finds time
		out = p.Append(nil, m.Type, m.Flags, m.Seq, 0)
	case xfrm.MsgPolExpire:
		p, err := xfrm.DecodePolicyExpire(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		p.Cur.AddTime = 0
		out = p.Append(nil, m.Type, m.Flags, m.Seq, 0)
	case xfrm.MsgAcquire:
		p, err := xfrm.DecodeAcquire(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		p.Seq = 0
		out = p.Append(nil, m.Type, m.Flags, m.Seq, 0)
	case xfrm.MsgNewSA:
		p, err := xfrm.DecodeSA(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		p.Cur.AddTime, p.Limits.HardAdd = 0, 0
		out = p.Append(nil, m.Type, m.Flags, m.Seq, 0)
	case xfrm.MsgDelSA:
		p, err := xfrm.DecodeSAID(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		if i := p.Attrs.SAInfo; i != nil {
			i.Cur.AddTime, i.Limits.HardAdd = 0, 0
		}
		out = p.Append(nil, m.Type, m.Flags, m.Seq, 0)
	case xfrm.MsgNewAE:
		p, err := xfrm.DecodeAE(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		if l := p.Attrs.LTime; l != nil {
			l.AddTime = 0
		}
		out = p.Append(nil, m.Type, m.Flags, m.Seq, 0)
	case xfrm.MsgExpire:
		p, err := xfrm.DecodeExpire(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		p.Cur.AddTime, p.Limits.HardAdd = 0, 0
		out = p.Append(nil, m.Type, m.Flags, m.Seq, 0)
	default:
		out = bytes.Clone(m.Raw())
		clear(out[12:16])
	}
	return out
}

// The same random policy operations to this machine's kernel and to the server: the same errno, the same answers, the same lists in
// the same order, the same notifications, byte for byte.
func TestPoliciesAsTheKernel(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		s := New(Config{})
		defer s.Close()
		k, u := kernel(outer), connect(outer, s)
		defer k.close()
		defer u.close()
		kernelGroup(outer, k, xfrm.GroupPolicy, xfrm.GroupExpire, xfrm.GroupAcquire, xfrm.GroupMigrate)
		u.c.Join(allGroups)
		indexes := []uint32{0}
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			req, typ, flags := drawPolicyRequest(t, indexes)
			k.seq++
			b := req.Append(nil, typ, flags, k.seq, 0)
			want, got := exchange(t, k, b), exchange(t, u, b)
			for _, m := range want {
				if m.Type == xfrm.MsgNewPolicy {
					if p, err := xfrm.DecodePolicy(m.Body); err == nil {
						indexes = append(indexes, p.Index)
					}
				}
			}
			what := fmt.Sprintf("%s flags %#x", xfrm.TypeName(typ), flags)
			compare(t, what, want, got)
		}
	})
}

func kernelGroup(tb testing.TB, k *tester, groups ...uint32) {
	for _, g := range groups {
		if err := unix.SetsockoptInt(k.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(g)); err != nil {
			tb.Fatal(err)
		}
	}
}

// exchange gives everything that a request causes: a request of nothing after it, which is answered, tells the end.
func exchange(t *rapid.T, c *tester, b []byte) []msg {
	c.send(b)
	const end = 0xfffffff0
	var all []msg
	if b[6]&3 != 0 && (b[7]&3) != 0 { // a dump ends by itself, and only then is the next request carried out
		for {
			for _, m := range c.recv(5e9) {
				all = append(all, m)
				if m.Type == unix.NLMSG_DONE || m.Type == unix.NLMSG_ERROR {
					return all
				}
			}
		}
	}
	d := xfrm.Default{}
	c.send(d.Append(nil, xfrm.MsgGetDefault, unix.NLM_F_REQUEST, end, 0))
	for {
		ms := c.recv(5e9)
		if ms == nil {
			t.Fatal("no answer within 5 s")
		}
		for _, m := range ms {
			if m.Seq == end {
				return all
			}
			all = append(all, m)
		}
	}
}

func compare(t *rapid.T, what string, want, got []msg) {
	describe := func(ms []msg) (s string) {
		for _, m := range ms {
			s += xfrm.TypeName(m.Type)
			if m.Type == unix.NLMSG_ERROR {
				s += fmt.Sprintf(" %v", xfrm.DecodeReply(m.Message))
			}
			s += fmt.Sprintf(" (%d bytes) ", m.Len)
		}
		return s
	}
	if len(want) != len(got) {
		t.Fatalf("%s: the kernel: %s; the server: %s", what, describe(want), describe(got))
	}
	for i := range want {
		w, g := want[i], got[i]
		if w.Type == unix.NLMSG_ERROR && g.Type == unix.NLMSG_ERROR {
			if we, ge := errnoOf(xfrm.DecodeReply(w.Message)), errnoOf(xfrm.DecodeReply(g.Message)); we != ge {
				t.Fatalf("%s: the kernel says %v (%v), the server %v (%v)", what, we, xfrm.DecodeReply(w.Message), ge, xfrm.DecodeReply(g.Message))
			}
			continue
		}
		if a, b := masked(t, w), masked(t, g); !bytes.Equal(a, b) {
			at := 0
			for at < min(len(a), len(b)) && a[at] == b[at] {
				at++
			}
			t.Fatalf("%s: message %d of %d, byte %d:\nkernel %s %x\nserver %s %x", what, i, len(want), at, xfrm.TypeName(w.Type), a[at:], xfrm.TypeName(g.Type), b[at:])
		}
	}
}

// drawPolicyRequest is a request out of a small world, so that requests meet.
func drawPolicyRequest(t *rapid.T, indexes []uint32) (body, uint16, uint16) {
	n := func(max int, label string) int { return rapid.IntRange(0, max).Draw(t, label) }
	dir := uint8(n(2, "dir"))
	p := newPolicy(dir, n(3, "network"), uint32(n(1, "reqid")), 0)
	switch n(30, "odd") {
	case 0:
		p.Dir = 3
	case 1:
		p.Action = uint8(n(2, "action"))
	case 2:
		p.Share = uint8(n(4, "share"))
	case 3:
		p.Sel.Family = uint16(n(11, "family"))
	case 4:
		p.Sel.DstLen = uint8(n(140, "dst len"))
	case 5:
		p.Attrs.Tmpls[0].Optional = 1
	case 6:
		p.Attrs.Tmpls = append(p.Attrs.Tmpls, p.Attrs.Tmpls...)
	case 7:
		p.Attrs.Tmpls[0].Mode = uint8(n(7, "mode"))
	case 8:
		p.Attrs.Tmpls[0].Proto = uint8(n(120, "proto"))
	case 9:
		p.Attrs.Tmpls[0].Family = uint16(n(11, "tmpl family"))
	case 10:
		p.Index = uint32(n(40, "wanted index"))
	case 11:
		p.Attrs.PolicyType = xfrm.Some(xfrm.PolicyType{Type: uint8(2 * n(1, "type"))})
	case 12:
		p.Attrs.Tmpls = nil
	case 13:
		p.Sel.Src[3] = 9 // host bits beyond the prefix make another selector
	case 14:
		for range 6 {
			p.Attrs.Tmpls = append(p.Attrs.Tmpls, p.Attrs.Tmpls[0])
		}
	}
	p.Priority = uint32(n(2, "priority"))
	if n(4, "has mark") == 0 {
		p.Attrs.Mark = xfrm.Some(xfrm.Mark{Value: uint32(n(3, "mark")), Mask: uint32(n(3, "mask"))})
	}
	if n(4, "has if_id") == 0 {
		p.Attrs.IfID = xfrm.Some(uint32(n(2, "if_id")))
	}
	id := policyID(p)
	id.Attrs.Mark, id.Attrs.IfID = p.Attrs.Mark, p.Attrs.IfID
	if n(2, "by index") == 0 {
		id.Index = rapid.SampledFrom(indexes).Draw(t, "index")
	}
	switch n(13, "operation") {
	case 0, 1, 2:
		return p, xfrm.MsgNewPolicy, ack
	case 3, 4:
		return p, xfrm.MsgUpdPolicy, ack
	case 5:
		return id, xfrm.MsgGetPolicy, ack
	case 6, 7:
		return id, xfrm.MsgDelPolicy, ack
	case 8:
		return &xfrm.Dump{}, xfrm.MsgGetPolicy, unix.NLM_F_REQUEST | unix.NLM_F_DUMP
	case 9:
		return &xfrm.SPDInfo{Flags: 7}, xfrm.MsgGetSPDInfo, ack
	case 10:
		if n(3, "flush") == 0 {
			return &xfrm.FlushPolicy{}, xfrm.MsgFlushPolicy, ack
		}
		return &xfrm.Dump{}, xfrm.MsgGetPolicy, unix.NLM_F_REQUEST | unix.NLM_F_DUMP
	case 11:
		x := &xfrm.PolicyExpire{PolicyInfo: p.PolicyInfo, Attrs: xfrm.Attrs{Mark: p.Attrs.Mark, IfID: p.Attrs.IfID}, Hard: uint8(n(1, "hard"))}
		x.Index = id.Index
		return x, xfrm.MsgPolExpire, ack
	case 12:
		x := &xfrm.Acquire{Dst: addr(there), Proto: xfrm.ProtoESP, Src: addr(here), Sel: p.Sel, Policy: p.PolicyInfo, AAlgos: 5, Attrs: p.Attrs}
		return x, xfrm.MsgAcquire, ack
	default:
		m := xfrm.Move{OldDst: addr(there), OldSrc: addr(here), NewDst: addr("192.0.2.3"), NewSrc: addr(here), Proto: xfrm.ProtoESP,
			Mode: xfrm.ModeTunnel, Reqid: uint32(n(1, "move reqid")), OldFamily: xfrm.FamilyIPv4, NewFamily: xfrm.FamilyIPv4}
		if n(1, "back") == 0 {
			m.OldDst, m.NewDst = m.NewDst, m.OldDst
		}
		return &xfrm.Migrate{Sel: p.Sel, Dir: p.Dir, Attrs: xfrm.Attrs{Migrates: []xfrm.Move{m}, IfID: p.Attrs.IfID}}, xfrm.MsgMigrate, ack
	}
}

// Larval SAs, which this machine's kernel has though it has no ESP.
func TestLarvalAsTheKernel(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		s := New(Config{})
		defer s.Close()
		k, u := kernel(outer), connect(outer, s)
		defer k.close()
		defer u.close()
		kernelGroup(outer, k, xfrm.GroupSA, xfrm.GroupExpire, xfrm.GroupAEvents)
		u.c.Join(allGroups)
		n := func(max int, label string) int { return rapid.IntRange(0, max).Draw(t, label) }
		for range rapid.IntRange(1, 25).Draw(t, "requests") {
			m := newSA(there, here, uint32(0x1000+n(3, "spi")), uint32(1+n(2, "reqid")), 0x11)
			if n(9, "other proto") == 0 {
				m.Proto = rapid.SampledFrom([]uint8{51, 108, 17, 43}).Draw(t, "proto")
			}
			var mark xfrm.Opt[xfrm.Mark]
			if n(3, "has mark") == 0 {
				mark = xfrm.Some(xfrm.Mark{Value: uint32(n(3, "mark")), Mask: uint32(n(3, "mask"))})
			}
			id := said(m)
			id.Attrs.Mark = mark
			var req body = id
			typ, flags := xfrm.MsgGetSA, uint16(ack)
			switch n(9, "operation") {
			case 0, 1, 2, 3:
				a := &xfrm.AllocSPI{SAInfo: m.SAInfo, Min: m.SPI, Max: m.SPI, Attrs: xfrm.Attrs{Mark: mark}}
				a.SPI = 0
				if n(9, "bad range") == 0 {
					a.Max--
				}
				if n(5, "dir") == 0 {
					a.Attrs.SADir = xfrm.Some(uint8(n(3, "sa dir")))
				}
				if n(5, "has if_id") == 0 {
					a.Attrs.IfID = xfrm.Some(uint32(n(1, "if_id")))
				}
				req, typ = a, xfrm.MsgAllocSPI
			case 4:
			case 5:
				typ = xfrm.MsgDelSA
			case 6:
				req, typ, flags = &xfrm.Dump{}, xfrm.MsgGetSA, unix.NLM_F_REQUEST|unix.NLM_F_DUMP
			case 7:
				req, typ = &xfrm.AE{Dst: m.Dst, SPI: m.SPI, Family: m.Family, Proto: m.Proto, Flags: uint32(n(15, "ae")), Attrs: xfrm.Attrs{Mark: mark}}, xfrm.MsgGetAE
			case 8:
				x := &xfrm.AE{Dst: m.Dst, SPI: m.SPI, Family: m.Family, Proto: m.Proto, Attrs: xfrm.Attrs{Mark: mark}}
				if n(1, "replay") == 0 {
					x.Attrs.Replay = xfrm.Some(xfrm.Replay{Seq: 1})
				}
				req, typ = x, xfrm.MsgNewAE
				if n(1, "replace") == 0 {
					flags |= unix.NLM_F_REPLACE
				}
			case 9:
				if n(2, "flush") == 0 {
					req, typ = &xfrm.Flush{Proto: rapid.SampledFrom([]uint8{0, 50, 51, 108, 255, 17}).Draw(t, "flush proto")}, xfrm.MsgFlushSA
				} else {
					req, typ = &xfrm.Expire{SAInfo: m.SAInfo, Attrs: xfrm.Attrs{Mark: mark}}, xfrm.MsgExpire
				}
			}
			k.seq++
			b := req.Append(nil, typ, flags, k.seq, 0)
			want, got := exchange(t, k, b), exchange(t, u, b)
			compare(t, xfrm.TypeName(typ), want, got)
		}
	})
}
