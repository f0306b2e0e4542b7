package server

import (
	"golang.org/x/sys/unix"

	"culvert/xfrm"
)

// pieceLen is how long the datagrams of a dump are at most, in bytes, as long as one entry is not longer.
const pieceLen = 16 << 10

// dump is a list under way.
type dump struct {
	c      *Client
	req    xfrm.Header
	ps     *cursor[policy]
	ss     *cursor[state]
	filter xfrm.Attrs
	refuse *xfrm.Error
	ended  bool
}

// startDump begins a list. A client has one at a time.
func (s *Server) startDump(c *Client, m xfrm.Message) *xfrm.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dump != nil {
		return xfrm.Errorf(unix.EBUSY, "the list that was asked for before has not been read to its end")
	}
	d := &dump{c: c, req: m.Header}
	if m.Type == xfrm.MsgGetPolicy {
		d.ps = s.spd.all.start()
	} else {
		// Attributes follow the header at once. A body that is none, as of older programs, filters nothing.
		if q, err := xfrm.DecodeDump(m.Body); err == nil {
			d.filter = q.Attrs
		} else {
			d.refuse = xfrm.AsError(err)
		}
		if f := d.filter.Filter; f != nil && (f.SrcLen > 128 || f.DstLen > 128) {
			d.refuse = invalid("the filter has prefixes of %d and %d bits; there are at most 128", f.SrcLen, f.DstLen)
		}
		d.ss = s.sad.all.start()
	}
	c.dump = d
	c.poke()
	return nil
}

func (d *dump) close() {
	if d.ps != nil {
		d.ps.close()
	}
	if d.ss != nil {
		d.ss.close()
	}
}

// piece makes the next datagram; the last one is the end of the list alone, as the kernel sends it.
func (d *dump) piece() (b []byte, last bool) {
	r := d.c.reply()
	if d.refuse != nil {
		return r.AppendDone(nil, d.req, 0, d.refuse), true
	}
	if !d.ended {
		b = make([]byte, 0, pieceLen+2048)
		if d.ps != nil {
			d.ended = d.ps.next(func(p *policy) bool {
				m := p.show()
				return d.add(&b, m.Append(b, xfrm.MsgNewPolicy, unix.NLM_F_MULTI, d.req.Seq, r.PID))
			})
		} else {
			d.ended = d.ss.next(func(st *state) bool {
				if !d.wants(st) {
					return true
				}
				m := st.show()
				return d.add(&b, m.Append(b, xfrm.MsgNewSA, unix.NLM_F_MULTI, d.req.Seq, r.PID))
			})
		}
		if len(b) > 0 {
			return b, false
		}
	}
	return r.AppendDone(nil, d.req, 0, nil), true
}

// add takes a message into the datagram unless it is full; the first one always fits.
func (d *dump) add(b *[]byte, longer []byte) bool {
	if len(*b) > 0 && len(longer) > pieceLen {
		return false
	}
	*b = longer
	return true
}

// wants reports whether an SA passes the filters.
func (d *dump) wants(st *state) bool {
	if p := d.filter.ProtoFilter; p.Set && !protoMatches(p.V, st.info.Proto) {
		return false
	}
	f := d.filter.Filter
	if f == nil {
		return true
	}
	if f.Family != xfrm.FamilyUnspec && f.Family != st.info.Family {
		return false
	}
	return prefixMatches(f.Src, st.info.Src, f.SrcLen) && prefixMatches(f.Dst, st.info.Dst, f.DstLen)
}

// protoMatches reports whether a request for a protocol means one: 0 means all, and 255 those of IPsec.
func protoMatches(want, p uint8) bool {
	switch want {
	case xfrm.ProtoAny, p:
		return true
	case xfrm.ProtoIPsec:
		return p == xfrm.ProtoESP || p == xfrm.ProtoAH || p == xfrm.ProtoComp
	}
	return false
}

func prefixMatches(a, b xfrm.Address, bits uint8) bool {
	n := min(int(bits), 128)
	for i := 0; i < n/8; i++ {
		if a[i] != b[i] {
			return false
		}
	}
	return n%8 == 0 || (a[n/8]^b[n/8])>>(8-n%8) == 0
}
