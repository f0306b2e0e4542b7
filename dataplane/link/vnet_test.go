package link

import "testing"

// A header survives the way through the host's byte order, and kinds that have no GSOType are recognized.
func TestVNet(t *testing.T) {
	for g := range gsoTypes {
		for _, flags := range []struct{ need, valid bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
			want := VNet{NeedsCsum: flags.need, DataValid: flags.valid, GSO: g, HdrLen: 0x1234, GSOSize: 0x0578, CsumStart: 40, CsumOffset: 16}
			var b [vnetLen]byte
			want.encode(&b)
			var got VNet
			if !got.decode(&b) || got != want {
				t.Errorf("%+v became %+v", want, got)
			}
			b[1] |= virtioECN
			if !got.decode(&b) || got != want {
				t.Errorf("with ECN %+v became %+v", want, got)
			}
		}
	}
	known := 0
	for kind := range virtioECN {
		var h VNet
		if h.decode(&[vnetLen]byte{1: byte(kind)}) {
			known++
		}
	}
	if known != int(gsoTypes) {
		t.Errorf("%d kinds known, want %d", known, gsoTypes)
	}
	var h VNet
	if h.decode(&[vnetLen]byte{1: 3}) {
		t.Error("UFO taken for something else")
	}
}

// Every row of the enumerations has a name, and what is outside says so.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for g := range gsoTypes + 1 {
		seen[g.String()] = true
	}
	for k := range noticeKinds + 1 {
		seen[k.String()] = true
	}
	if len(seen) != int(gsoTypes)+int(noticeKinds)+2 || seen[""] {
		t.Errorf("names: %v", seen)
	}
}

// Datagrams counts the last, shorter one too.
func TestDatagrams(t *testing.T) {
	for _, c := range []struct{ n, seg, want int }{{0, 0, 1}, {10, 0, 1}, {10, 10, 1}, {11, 10, 2}, {20, 10, 2}, {21, 10, 3}, {5, 10, 1}} {
		m := TxMsg{Buf: make([]byte, c.n), SegSize: c.seg}
		r := RxMsg{Buf: m.Buf, SegSize: c.seg}
		if m.Datagrams() != c.want || r.Datagrams() != c.want {
			t.Errorf("%+v: %d and %d", c, m.Datagrams(), r.Datagrams())
		}
	}
}
