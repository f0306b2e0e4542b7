package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"culvert/xfrm"
)

// What Save writes: a magic, records, and a record that ends it with a CRC-32C of all before. A record is its kind (1), the length of
// its content (4, big-endian) and the content; SAs and policies are netlink messages behind what these cannot say.
const (
	saveMagic = "culvert xfrm state, version 1\r\n"

	recordGeneral = 'G'
	recordSA      = 'S'
	recordPolicy  = 'P'
	recordClient  = 'C'
	recordEnd     = 'E'

	maxRecord = 1 << 20
)

// Bits of an SA's record.
const (
	savedInbound = 1 << iota
	savedLarval
	savedDying
)

// ErrSaved says that what Restore reads is not whole, or not what Save wrote.
var ErrSaved = errors.New("the saved state cannot be used")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// savedClient is a connection that outlives the process, in systemd's keeping.
type savedClient struct {
	groups         uint32
	port           uint32
	capAck, extAck bool
}

// Save writes all SAs with their keys, counters, numbers and windows, all policies, and the clients' groups and options. It is for
// a file that only root can read and that no disk keeps. An outbound SA that is restored from it goes on behind its last number
// only if nothing was sent since, or a sequence store says how far it came.
func (s *Server) Save(w io.Writer) error {
	s.mu.Lock()
	b := s.save()
	s.mu.Unlock()
	defer clear(b)
	_, err := w.Write(b)
	return err
}

func (s *Server) save() []byte {
	b := []byte(saveMagic)
	record := func(kind byte, content []byte) {
		b = append(b, kind)
		b = binary.BigEndian.AppendUint32(b, uint32(len(content)))
		b = append(b, content...)
		clear(content)
	}
	be := binary.BigEndian
	d := &s.spd
	record(recordGeneral, append(be.AppendUint32(be.AppendUint32(nil, d.index), s.sad.seq),
		d.thresh4.Local, d.thresh4.Remote, d.thresh6.Local, d.thresh6.Remote, d.def.In, d.def.Fwd, d.def.Out))
	for n := s.sad.all.root.prev; n != &s.sad.all.root; n = n.prev { // oldest first
		st := n.entry
		if st == nil {
			continue
		}
		var flags byte
		for _, x := range []struct {
			set bool
			bit byte
		}{{st.inbound, savedInbound}, {st.larval, savedLarval}, {st.dying, savedDying}} {
			if x.set {
				flags |= x.bit
			}
		}
		c := []byte{flags}
		c = be.AppendUint32(c, st.replayThresh)
		c = be.AppendUint32(c, st.timerThresh)
		c = be.AppendUint64(c, uint64(st.added.UnixNano()))
		m := st.show()
		m.Attrs.LTime = &m.Cur
		record(recordSA, m.Append(c, xfrm.MsgNewSA, 0, 0, 0))
	}
	for n := s.spd.all.root.prev; n != &s.spd.all.root; n = n.prev {
		p := n.entry
		if p == nil {
			continue
		}
		var used int64
		if u := p.lastUse(); !u.IsZero() {
			used = u.UnixNano()
		}
		c := be.AppendUint64(be.AppendUint64(nil, uint64(p.added.UnixNano())), uint64(used))
		m := p.show()
		record(recordPolicy, m.Append(c, xfrm.MsgNewPolicy, 0, 0, 0))
	}
	for c := range s.clients {
		cookie, err := c.cookie()
		if err != nil {
			continue // the connection is at its end
		}
		var flags byte
		if c.capAck.Load() {
			flags |= 1
		}
		if c.extAck.Load() {
			flags |= 2
		}
		content := be.AppendUint64(nil, cookie)
		content = be.AppendUint32(content, c.groups.Load())
		content = be.AppendUint32(content, c.Port())
		record(recordClient, append(content, flags))
	}
	b = append(b, recordEnd)
	b = be.AppendUint32(b, 4)
	return be.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Restore takes in what Save wrote: into a server without SAs and policies, all of it or, with an error, nothing. Clients that were
// connected get their ports, groups and options back when Attach is given the same sockets.
func (s *Server) Restore(r io.Reader) error {
	b, err := io.ReadAll(r)
	defer clear(b)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sad.all.n != 0 || s.spd.all.n != 0 {
		return fmt.Errorf("%w: there are SAs or policies already", ErrSaved)
	}
	if err := checkSaved(b); err != nil {
		return err
	}
	adopted := map[uint64]savedClient{}
	for at := len(saveMagic); ; {
		kind, content := b[at], b[at+5:at+5+int(binary.BigEndian.Uint32(b[at+1:]))]
		if kind == recordEnd {
			break
		}
		if err := s.restore(kind, content, adopted); err != nil {
			s.empty()
			return fmt.Errorf("%w: byte %d: %w", ErrSaved, at, err)
		}
		at += 5 + len(content)
	}
	s.adopted = adopted
	return nil
}

// checkSaved finds out whether the records are whole.
func checkSaved(b []byte) error {
	if !bytes.HasPrefix(b, []byte(saveMagic)) {
		return fmt.Errorf("%w: it does not begin as one", ErrSaved)
	}
	for at := len(saveMagic); ; {
		if len(b)-at < 5 {
			return fmt.Errorf("%w: it ends at byte %d, inside a record", ErrSaved, len(b))
		}
		n := binary.BigEndian.Uint32(b[at+1:])
		if n > maxRecord || int(n) > len(b)-at-5 {
			return fmt.Errorf("%w: byte %d: a record of %d bytes, %d are left", ErrSaved, at, n, len(b)-at-5)
		}
		if b[at] == recordEnd {
			if n != 4 || len(b) != at+9 || crc32.Checksum(b[:at+5], castagnoli) != binary.BigEndian.Uint32(b[at+5:]) {
				return fmt.Errorf("%w: its checksum is wrong", ErrSaved)
			}
			return nil
		}
		at += 5 + int(n)
	}
}

var errRecord = errors.New("the record has another length than its kind")

func (s *Server) restore(kind byte, b []byte, adopted map[uint64]savedClient) error {
	be := binary.BigEndian
	switch kind {
	case recordGeneral:
		if len(b) != 15 {
			return errRecord
		}
		s.spd.index, s.sad.seq = be.Uint32(b), be.Uint32(b[4:])
		s.spd.thresh4, s.spd.thresh6 = xfrm.Thresh{Local: b[8], Remote: b[9]}, xfrm.Thresh{Local: b[10], Remote: b[11]}
		s.spd.def.In, s.spd.def.Fwd, s.spd.def.Out = b[12], b[13], b[14]
	case recordSA:
		if len(b) < 17+xfrm.HeaderLen {
			return errRecord
		}
		m, err := xfrm.DecodeSA(b[17+xfrm.HeaderLen:])
		if err != nil {
			return err
		}
		return s.restoreSA(&m, b[0], be.Uint32(b[1:]), be.Uint32(b[5:]), time.Unix(0, int64(be.Uint64(b[9:]))))
	case recordPolicy:
		if len(b) < 16+xfrm.HeaderLen {
			return errRecord
		}
		m, err := xfrm.DecodePolicy(b[16+xfrm.HeaderLen:])
		if err != nil {
			return err
		}
		if e := checkPolicy(&m.PolicyInfo, &m.Attrs); e != nil {
			return e
		}
		p, err := s.makePolicy(&m.PolicyInfo, &m.Attrs)
		if err != nil {
			return err
		}
		if s.spd.byKey[p.key()] != nil || s.spd.byIndex[m.Index] != nil {
			return errors.New("the policy is there twice")
		}
		p.added = time.Unix(0, int64(be.Uint64(b)))
		if used := int64(be.Uint64(b[8:])); used != 0 {
			p.used = time.Unix(0, used)
		}
		return s.installPolicy(p, nil, m.Index)
	case recordClient:
		if len(b) != 17 {
			return errRecord
		}
		adopted[be.Uint64(b)] = savedClient{groups: be.Uint32(b[8:]), port: be.Uint32(b[12:]), capAck: b[16]&1 != 0, extAck: b[16]&2 != 0}
	default:
		return fmt.Errorf("a record of the unknown kind %q", kind)
	}
	return nil
}

func (s *Server) restoreSA(m *xfrm.SA, flags byte, replay, timer uint32, added time.Time) error {
	st := &state{
		info: m.SAInfo, attrs: keep(&m.Attrs), larval: flags&savedLarval != 0, inbound: flags&savedInbound != 0,
		dying: flags&savedDying != 0, replayThresh: replay, timerThresh: timer, added: added,
	}
	st.info.Cur, st.info.Stats = xfrm.Lifetime{}, xfrm.Stats{}
	if st.larval {
		s.sad.insert(st)
		s.schedule(st)
		return nil
	}
	err := error(nil)
	if e := checkSA(m); e != nil {
		err = e
	} else if e := s.checkSupport(m); e != nil {
		err = e
	} else if mark := st.mark(); s.sad.find(st.key(), mark.Value&mark.Mask) != nil {
		err = errors.New("the SA is there twice")
	} else {
		err = s.install(st, nil, carryOf(&m.Attrs, st.inbound))
	}
	if err != nil {
		m.Attrs.Wipe()
	}
	return err
}

// empty removes everything.
func (s *Server) empty() {
	var ps []*policy
	for p := range s.spd.all.all {
		ps = append(ps, p)
	}
	var ss []*state
	for st := range s.sad.all.all {
		ss = append(ss, st)
	}
	if err := errors.Join(s.removePolicies(ps), s.removeSAs(ss)); err != nil {
		s.cfg.Log.Error("what was restored in part cannot be removed", "error", err)
	}
}

// adopt gives a client that was connected before a restart what it had.
func (s *Server) adopt(c *Client) {
	if len(s.adopted) == 0 {
		return
	}
	cookie, err := c.cookie()
	if err != nil {
		return
	}
	was, ok := s.adopted[cookie]
	if !ok {
		return
	}
	delete(s.adopted, cookie)
	c.groups.Store(was.groups & allGroups)
	c.capAck.Store(was.capAck)
	c.extAck.Store(was.extAck)
	if s.ports[was.port] == nil {
		c.port.Store(was.port)
	}
}

// cookie is the kernel's number for the socket, which it keeps as long as the socket is open anywhere.
func (c *Client) cookie() (cookie uint64, err error) {
	e := c.raw.Control(func(fd uintptr) {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	})
	if e != nil {
		return 0, e
	}
	return cookie, err
}
