package xfrm

import (
	"errors"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// Types that every netlink protocol has.
const (
	typeNoop  uint16 = 1
	typeError uint16 = 2
	typeDone  uint16 = 3
)

// HeaderLen is the length of a Header in bytes.
const HeaderLen = 16

const (
	attrHeaderLen = 4
	attrTypeMask  = 0x3fff // without the flags "nested" and "network byte order"
)

// ErrTruncated says that a datagram ends inside a message, or that a message's length is less than its header's.
var ErrTruncated = errors.New("truncated netlink message")

// Header is what every netlink message starts with.
type Header struct {
	Len   uint32 // bytes, this header included, the padding behind the message not
	Type  uint16 // MsgNewSA and so on
	Flags uint16 // unix.NLM_F_*
	Seq   uint32 // the sender's; an answer has the request's
	PID   uint32 // the port of a request's sender; 0 in the kernel's notifications
}

// Has reports whether all these flags are set.
func (h Header) Has(flags uint16) bool { return h.Flags&flags == flags }

// IsDump reports whether a request asks for a list. NLM_F_DUMP has two bits, and one of them alone asks for no list.
func (h Header) IsDump() bool { return h.Has(unix.NLM_F_DUMP) }

// Message is one netlink message. Body is part of the datagram it came in.
type Message struct {
	Header
	Body []byte

	raw []byte
}

// Raw is the whole message, header included, as AppendError wants it.
func (m Message) Raw() []byte { return m.raw }

// Messages splits a datagram into its messages. A length that does not fit ends it with an error that wraps ErrTruncated; what
// is shorter than a header behind the last message is ignored, as the kernel does.
func Messages(b []byte) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for off := 0; len(b)-off >= HeaderLen; {
			h := decodeHeader(b[off:])
			if h.Len < HeaderLen || uint64(h.Len) > uint64(len(b)-off) {
				yield(Message{Header: h}, fmt.Errorf("%w: byte %d of %d says %s of %d bytes", ErrTruncated, off, len(b), TypeName(h.Type), h.Len))
				return
			}
			end := off + int(h.Len)
			if !yield(Message{Header: h, Body: b[off+HeaderLen : end : end], raw: b[off:end:end]}, nil) {
				return
			}
			off = off + align(int(h.Len))
		}
	}
}

func decodeHeader(b []byte) Header {
	return Header{Len: host.Uint32(b), Type: host.Uint16(b[4:]), Flags: host.Uint16(b[6:]), Seq: host.Uint32(b[8:]), PID: host.Uint32(b[12:])}
}

func (h Header) put(b []byte) {
	host.PutUint32(b, h.Len)
	host.PutUint16(b[4:], h.Type)
	host.PutUint16(b[6:], h.Flags)
	host.PutUint32(b[8:], h.Seq)
	host.PutUint32(b[12:], h.PID)
}

func align(n int) int { return (n + 3) &^ 3 }

// begin appends a header whose length finish fills in.
func begin(dst []byte, typ, flags uint16, seq, pid uint32) (all []byte, start int) {
	start = len(dst)
	dst, h := grow(dst, HeaderLen)
	Header{Type: typ, Flags: flags, Seq: seq, PID: pid}.put(h)
	return dst, start
}

// finish writes the length of the message that starts at start, and pads it to where the next one may start.
func finish(dst []byte, start int) []byte {
	n := len(dst) - start
	host.PutUint32(dst[start:], uint32(n))
	dst, _ = grow(dst, align(n)-n)
	return dst
}

// appendAttr appends an attribute with room for n bytes and returns that room.
func appendAttr(dst []byte, typ uint16, n int) (all, payload []byte) {
	dst, a := grow(dst, align(attrHeaderLen+n))
	host.PutUint16(a, uint16(attrHeaderLen+n))
	host.PutUint16(a[2:], typ)
	return dst, a[attrHeaderLen : attrHeaderLen+n]
}

func appendAttrBytes(dst []byte, typ uint16, b []byte) []byte {
	dst, p := appendAttr(dst, typ, len(b))
	copy(p, b)
	return dst
}

func appendAttrU32(dst []byte, typ uint16, v uint32) []byte {
	dst, p := appendAttr(dst, typ, 4)
	host.PutUint32(p, v)
	return dst
}

// attributes yields type and payload of each attribute of b, and where in b it starts. It stops at one whose length does not fit.
func attributes(b []byte) iter.Seq2[int, attribute] {
	return func(yield func(int, attribute) bool) {
		for off := 0; len(b)-off >= attrHeaderLen; {
			n, typ := int(host.Uint16(b[off:])), host.Uint16(b[off+2:])
			if n < attrHeaderLen || n > len(b)-off {
				return
			}
			if !yield(off, attribute{typ & attrTypeMask, typ, b[off+attrHeaderLen : off+n : off+n]}) {
				return
			}
			off += align(n)
		}
	}
}

type attribute struct {
	typ, wire uint16 // without and with the flags
	b         []byte
}

// Reply says how a client wants its answers: what it has set with setsockopt at SOL_NETLINK.
type Reply struct {
	PID    uint32 // the client's port
	CapAck bool   // NETLINK_CAP_ACK: errors quote the request's header alone
	ExtAck bool   // NETLINK_EXT_ACK: errors have a text, and the offset of the attribute at fault
}

// Types of the attributes of an extended acknowledgement.
const (
	extAckMsg    = 1
	extAckOffset = 2
)

// AppendAck appends the acknowledgement of a request that was carried out.
func (r Reply) AppendAck(dst []byte, req Message) []byte { return r.AppendError(dst, req, nil) }

// AppendError appends the answer to a request that was refused, or with nil its acknowledgement. The refusal quotes the whole
// request, keys and all, unless CapAck is set: it is for the client that sent it.
func (r Reply) AppendError(dst []byte, req Message, e *Error) []byte {
	var flags uint16
	quote := e != nil && !r.CapAck
	if !quote {
		flags |= unix.NLM_F_CAPPED
	}
	tlvs := r.ExtAck && e != nil && (e.Msg != "" || e.Attr != 0)
	if tlvs {
		flags |= unix.NLM_F_ACK_TLVS
	}
	dst, start := begin(dst, typeError, flags, req.Seq, r.PID)
	dst, b := grow(dst, 4+HeaderLen)
	if e != nil {
		host.PutUint32(b, uint32(-int32(e.Errno)))
	}
	req.Header.put(b[4:])
	if quote {
		dst, b = grow(dst, align(len(req.Body)))
		copy(b, req.Body)
	}
	if tlvs {
		dst = appendExtAck(dst, e)
	}
	return finish(dst, start)
}

func appendExtAck(dst []byte, e *Error) []byte {
	if e.Msg != "" {
		dst = appendAttrBytes(dst, extAckMsg, append([]byte(e.Msg), 0))
	}
	if e.Attr != 0 {
		dst = appendAttrU32(dst, extAckOffset, e.Attr)
	}
	return dst
}

// AppendDone appends the end of a dump. A dump that could not be finished ends with an error. Every message of a dump has
// NLM_F_MULTI, this one too; flags can add NLM_F_DUMP_INTR.
func (r Reply) AppendDone(dst []byte, req Header, flags uint16, e *Error) []byte {
	tlvs := r.ExtAck && e != nil && (e.Msg != "" || e.Attr != 0)
	if tlvs {
		flags |= unix.NLM_F_ACK_TLVS
	}
	dst, start := begin(dst, typeDone, unix.NLM_F_MULTI|flags, req.Seq, r.PID)
	dst, b := grow(dst, 4)
	if e != nil {
		host.PutUint32(b, uint32(-int32(e.Errno)))
	}
	if tlvs {
		dst = appendExtAck(dst, e)
	}
	return finish(dst, start)
}

// DecodeReply reads what AppendError or AppendDone wrote: nil for an acknowledgement, an *Error for a refusal.
func DecodeReply(m Message) error {
	if m.Type != typeError && m.Type != typeDone {
		return Errorf(unix.EBADMSG, "%s is no acknowledgement", TypeName(m.Type))
	}
	if len(m.Body) < 4 {
		return fmt.Errorf("%w: %s with a body of %d bytes", ErrTruncated, TypeName(m.Type), len(m.Body))
	}
	code := int32(host.Uint32(m.Body))
	if code == 0 {
		return nil
	}
	if code > 0 || code == -code {
		return Errorf(unix.EBADMSG, "%s with the code %d, which is no errno", TypeName(m.Type), code)
	}
	e := &Error{Errno: unix.Errno(-code)}
	if !m.Has(unix.NLM_F_ACK_TLVS) {
		return e
	}
	rest := m.Body[4:]
	if m.Type == typeError {
		skip := HeaderLen
		if !m.Has(unix.NLM_F_CAPPED) && len(rest) >= HeaderLen {
			skip = align(int(min(host.Uint32(rest), 1<<30)))
		}
		rest = rest[min(max(skip, HeaderLen), len(rest)):]
	}
	for _, a := range attributes(rest) {
		switch {
		case a.typ == extAckMsg:
			e.Msg = cstring(a.b)
		case a.typ == extAckOffset && len(a.b) >= 4:
			e.Attr = host.Uint32(a.b)
		}
	}
	return e
}

// cstring is the text up to the first zero byte.
func cstring(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
