package pcaplink

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"sync"

	"culvert/dataplane/link"
)

// OuterOptions describe an Outer.
type OuterOptions struct {
	Name string // "pcap" unless given
	// Local is where what is sent comes from. If it is a certain address, only what the capture has for it is replayed; if it has
	// a port, only UDP for that port.
	Local  netip.AddrPort
	Port   uint16 // of UDP encapsulation when Local has none; 4500 unless given
	Rounds int    // how often the capture is replayed; once unless given
}

// Outer is the side of ESP packets.
type Outer struct {
	opts    OuterOptions
	out     *Writer
	in      []link.RxMsg // buffers are the capture's
	replay  *replay
	notices chan link.Notice
	once    sync.Once

	// Fragments is how many packets of the capture were left out because they are parts of fragmented ones.
	Fragments int
}

// NewOuter replays the ESP of in, directly in IP or in UDP, and writes into out. Without a capture readers wait until Close; without
// a Writer what is sent is lost. The Writer is not closed with the Outer.
func NewOuter(in *Capture, out *Writer, opts OuterOptions) *Outer {
	l := &Outer{opts: opts, out: out, notices: make(chan link.Notice)}
	if in != nil {
		l.choose(in)
	}
	l.replay = newReplay(len(l.in), opts.Rounds, in == nil)
	return l
}

// choose finds what of the capture reaches this socket.
func (l *Outer) choose(in *Capture) {
	local := l.opts.Local
	for i := range in.Len() {
		m, port, ok := l.parse(in.Packet(i))
		switch {
		case !ok:
		case local.Addr().IsValid() && !local.Addr().IsUnspecified() && local.Addr().WithZone("") != m.To:
		case local.Port() != 0 && local.Port() != port:
		case port != 0 && local.Port() == 0 && port != l.port() && m.From.Port() != l.port():
		default:
			l.in = append(l.in, m)
		}
	}
}

func (l *Outer) port() uint16 { return cmp.Or(l.opts.Port, 4500) }

const (
	protoUDP = 17
	protoESP = 50
)

// parse takes the outer headers off. port is the UDP destination's, 0 for ESP directly in IP.
func (l *Outer) parse(p []byte) (m link.RxMsg, port uint16, ok bool) {
	be := binary.BigEndian
	var proto uint8
	var src netip.Addr
	if p[0]>>4 == 4 {
		if be.Uint16(p[6:])&0x3fff != 0 {
			if p[9] == protoESP || p[9] == protoUDP {
				l.Fragments++
			}
			return m, 0, false
		}
		proto, m.TOS = p[9], p[1]
		src, m.To = netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
		p = p[int(p[0]&15)*4:]
	} else {
		proto, m.TOS = p[6], p[0]<<4|p[1]>>4
		src, m.To = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
		p = p[40:]
	extension:
		for {
			switch proto {
			case 0, 43, 60: // hop-by-hop, routing, destination options
				if len(p) < 8 || len(p) < 8+int(p[1])*8 {
					return m, 0, false
				}
				proto, p = p[0], p[8+int(p[1])*8:]
			case 44:
				l.Fragments++
				return m, 0, false
			default:
				break extension
			}
		}
	}
	switch proto {
	case protoESP:
		m.From, m.Buf = netip.AddrPortFrom(src, 0), p
		return m, 0, true
	case protoUDP:
		if len(p) < 8 {
			return m, 0, false
		}
		n := int(be.Uint16(p[4:]))
		if n < 8 || n > len(p) {
			return m, 0, false
		}
		m.From, m.Buf = netip.AddrPortFrom(src, be.Uint16(p)), p[8:n]
		return m, be.Uint16(p[2:]), true
	}
	return m, 0, false
}

func (l *Outer) Notices() <-chan link.Notice { return l.notices }
func (l *Outer) Name() string                { return cmp.Or(l.opts.Name, "pcap") }
func (l *Outer) Local() netip.AddrPort       { return l.opts.Local }
func (l *Outer) MaxSegs() int                { return 64 }
func (l *Outer) MaxBytes() int               { return 65507 }
func (l *Outer) Offloads() string            { return "gso, cut for the capture; no gro" }
func (l *Outer) StopReading()                { l.replay.close() }
func (l *Outer) NewReader() link.OuterReader { return &outerReader{l} }
func (l *Outer) NewWriter() link.OuterWriter { return &outerWriter{l: l} }

// Len is how many datagrams of the capture are for this socket.
func (l *Outer) Len() int { return len(l.in) }

func (l *Outer) Close() error {
	l.replay.close()
	l.once.Do(func() { close(l.notices) })
	return nil
}

type outerReader struct{ l *Outer }

const batch = 64

type batchState struct {
	bufs [batch][]byte
	msgs [batch]link.RxMsg
}

func (r *outerReader) NewBatch() *link.RxBatch { return &link.RxBatch{State: new(batchState)} }

func (r *outerReader) Recv(b *link.RxBatch, wait bool) error {
	b.Msgs = nil
	first, n, err := r.l.replay.take(wait, batch)
	if err != nil {
		return err
	}
	s := b.State.(*batchState)
	for i, m := range r.l.in[first : first+n] {
		s.bufs[i] = append(s.bufs[i][:0], m.Buf...) // the caller may change it
		m.Buf = s.bufs[i]
		s.msgs[i] = m
	}
	b.Msgs = s.msgs[:n]
	return nil
}

type outerWriter struct {
	l   *Outer
	buf []byte
	id  uint16 // of IPv4 packets that may be fragmented
}

func (w *outerWriter) Send(msgs []link.TxMsg) error {
	for i := range msgs {
		m := &msgs[i]
		m.Err, m.Failed = nil, 0
		if len(m.Buf) == 0 || m.SegSize < 0 || !m.To.IsValid() {
			m.Err, m.Failed = link.ErrInvalid, m.Datagrams()
			continue
		}
		for rest := m.Buf; len(rest) > 0; {
			d := rest
			if m.SegSize > 0 {
				d = rest[:min(m.SegSize, len(rest))]
			}
			rest = rest[len(d):]
			if err := w.write(m, d); err != nil {
				m.Failed++
				if m.Err == nil {
					m.Err = err
				}
			}
		}
	}
	return nil
}

// write puts the outer headers before a datagram. It is ESP in UDP when the destination has a port.
func (w *outerWriter) write(m *link.TxMsg, d []byte) error {
	be := binary.BigEndian
	from, to := w.from(m), m.To.Addr().Unmap()
	if from.Is4() != to.Is4() {
		return link.ErrInvalid
	}
	l4, proto := len(d), uint8(protoESP)
	if m.To.Port() != 0 {
		l4, proto = l4+8, protoUDP
	}
	header := 40
	if to.Is4() {
		header = 20
	}
	if header+l4 > 65535 {
		return link.ErrTooBig
	}
	w.buf = append(w.buf[:0], make([]byte, 48)...)[:header]
	b := w.buf
	var pseudo uint32
	if to.Is4() {
		src, dst := from.As4(), to.As4()
		b[0], b[1], b[8], b[9] = 0x45, m.TOS, 64, proto
		be.PutUint16(b[2:], uint16(20+l4))
		if m.Fragment {
			w.id++
			be.PutUint16(b[4:], w.id)
		} else {
			b[6] = 0x40 // DF
		}
		copy(b[12:], src[:])
		copy(b[16:], dst[:])
		be.PutUint16(b[10:], ^fold(sum(0, b)))
		pseudo = sum(uint32(proto)+uint32(l4), b[12:20])
	} else {
		src, dst := from.As16(), to.As16()
		b[0], b[1], b[6], b[7] = 0x60|m.TOS>>4, m.TOS<<4, proto, 64
		be.PutUint16(b[4:], uint16(l4))
		copy(b[8:], src[:])
		copy(b[24:], dst[:])
		pseudo = sum(uint32(proto)+uint32(l4), b[8:40])
	}
	if proto == protoUDP {
		b = b[:header+8]
		u := b[header:]
		be.PutUint16(u, cmp.Or(w.l.opts.Local.Port(), w.l.port()))
		be.PutUint16(u[2:], m.To.Port())
		be.PutUint16(u[4:], uint16(l4))
		be.PutUint16(u[6:], 0)
		be.PutUint16(u[6:], cmp.Or(^fold(sum(sum(pseudo, u), d)), 0xffff))
	}
	w.buf = append(b, d...)
	if w.l.out.Write(w.buf) != nil {
		return link.ErrOther
	}
	return nil
}

// from is the source address of m; without any, the unspecified one of the same family.
func (w *outerWriter) from(m *link.TxMsg) netip.Addr {
	switch local := w.l.opts.Local.Addr(); {
	case m.From.IsValid():
		return m.From.Unmap()
	case local.IsValid():
		return local.Unmap()
	case m.To.Addr().Unmap().Is4():
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func sum(acc uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		acc += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		acc += uint32(b[0]) << 8
	}
	return acc
}

func fold(acc uint32) uint16 {
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}
