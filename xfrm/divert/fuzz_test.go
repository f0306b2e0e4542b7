package divert

import (
	"encoding/binary"
	"encoding/json"
	"testing"

	"golang.org/x/sys/unix"
)

// What a program says is taken as it is, or refused: nothing in it makes the supervisor fail.
func FuzzAddresses(f *testing.F) {
	f.Add(sockaddrNL{7, 0xc3}.bytes(binary.LittleEndian))
	f.Add([]byte{2, 0, 0x11, 0x94, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(append([]byte{10, 0, 0x11, 0x94, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8}, make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
			a, e := parseNL(order, b)
			if (e == 0) != (len(b) >= lenNetlink && order.Uint16(b) == unix.AF_NETLINK) {
				t.Fatalf("% x: errno %d", b, e)
			}
			if e == 0 {
				again, e := parseNL(order, a.bytes(order))
				if e != 0 || again != a {
					t.Fatalf("% x: %v, and then %v (%d)", b, a, again, e)
				}
			}
			p, ok := parseInet(order, b)
			if ok && (len(b) < lenInet4 || p.Port() != binary.BigEndian.Uint16(b[2:]) || !p.Addr().IsValid()) {
				t.Fatalf("% x: %v", b, p)
			}
			if ok && p.Port() != 0 && !overlap(p, false, p, false) {
				t.Fatalf("%v does not overlap itself", p)
			}
		}
	})
}

// Structures of each word size and byte order.
func FuzzMsghdr(f *testing.F) {
	f.Add(make([]byte, 56))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		for i := range arches {
			a := &arches[i]
			m, ok := a.parseMsghdr(b)
			if ok != (len(b) >= 7*a.word) {
				t.Fatalf("%s: %d bytes: %v", a.name, len(b), ok)
			}
			if ok && (m.name > a.mask() || m.iovLen > a.mask()) {
				t.Fatalf("%s: %+v", a.name, m)
			}
			if n := len(a.parsePieces(b)); n != len(b)/(2*a.word) {
				t.Fatalf("%s: %d pieces in %d bytes", a.name, n, len(b))
			}
		}
	})
}

// What a launcher says, what a keeper kept, and what a program's file begins with.
func FuzzMessages(f *testing.F) {
	h, _ := json.Marshal(hello{Version: 1, Nonce: make([]byte, nonceLen)})
	s, _ := json.Marshal(state{Version: 1, Filter: 1})
	f.Add(h)
	f.Add(s)
	f.Add([]byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00"))
	f.Add([]byte("6.18.44-fc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHello(b); err == nil && (h.Version != protocol || len(h.Nonce) != nonceLen) {
			t.Fatalf("%q: %+v", b, h)
		}
		if st, err := parseState(b); err == nil && (st.Version != 1 || st.Filter == 0) {
			t.Fatalf("%q: %+v", b, st)
		}
		if word, _, ok := elfMachine(b); ok && word != 4 && word != 8 {
			t.Fatalf("%q: words of %d bytes", b, word)
		}
		version(string(b))
	})
}
