package xfrm

import (
	"bytes"
	"reflect"
	"testing"
)

// FuzzDecode gives every decoder, in both ABIs, any body: none may panic, and what one takes it must encode to what it takes
// again, as the same values and the same bytes. Validating and finding the transform must not panic either.
func FuzzDecode(f *testing.F) {
	for _, g := range goldens(f) {
		for m := range Messages(g.b) {
			f.Add(m.Type, m.Flags, m.Body)
		}
	}
	for typ := MsgMin; typ <= MsgMax; typ++ {
		f.Add(typ, uint16(0), make([]byte, 400))
	}
	f.Fuzz(func(t *testing.T, typ, flags uint16, b []byte) {
		h := Header{Type: typ, Flags: flags}
		raw := append(make([]byte, HeaderLen), b...)
		for _, abi := range []ABI{Align8, Align4} {
			if body, err := DecodeRequest(abi, Message{Header: h, Body: raw[HeaderLen:], raw: raw}); (body == nil) == (err == nil) {
				t.Fatalf("body %v and error %v", body, err)
			}
			body := newBody(h)
			if body == nil {
				return
			}
			before := bytes.Clone(b)
			e := body.decode(abi, b)
			if !bytes.Equal(b, before) {
				t.Fatal("decoding changes what it reads")
			}
			if e != nil {
				if e.Errno == 0 || e.Msg == "" || int(e.Attr) >= HeaderLen+len(b) && e.Attr != 0 {
					t.Fatalf("errno %d, attribute at %d of %d, %q", e.Errno, e.Attr, HeaderLen+len(b), e.Msg)
				}
				continue
			}
			first := abi.Append(nil, body, typ, flags, 1, 2)
			again := newBody(h)
			if e := again.decode(abi, first[HeaderLen:host.Uint32(first)]); e != nil {
				t.Fatalf("encoded, it is refused: %v", e)
			}
			if second := abi.Append(nil, again, typ, flags, 1, 2); !bytes.Equal(first, second) {
				t.Fatalf("encoded\n%x, decoded and encoded again\n%x", first, second)
			}
			if canonical(body); !reflect.DeepEqual(body, canonical(again)) {
				t.Fatalf("decoded again %+v, first %+v", again, body)
			}
			if s, ok := body.(*SA); ok {
				s.Transform()
				s.Attrs.ResolveAlgos()
			}
		}
	})
}

// FuzzMessages splits any datagram, and reads the replies in it: no panic, no endless loop, nothing twice.
func FuzzMessages(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add(g.b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		for m, err := range Messages(b) {
			if err != nil {
				continue
			}
			if len(m.Raw()) != int(m.Len) || len(m.Body) != int(m.Len)-HeaderLen {
				t.Fatalf("a message of %d bytes, body %d, says %d", len(m.Raw()), len(m.Body), m.Len)
			}
			total += len(m.Raw())
			if err := DecodeReply(m); err != nil && m.Type == typeError {
				_ = AsError(err).Error()
			}
		}
		if total > len(b) {
			t.Fatalf("%d bytes of messages in %d", total, len(b))
		}
	})
}
