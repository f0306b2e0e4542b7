package xfrm

import (
	"runtime"
	"testing"
)

// TestSizes proves that every fixed part is as long as a C compiler makes the structures of linux/xfrm.h: gcc -m64, and gcc -m32,
// where the six structures with 64-bit integers are 4 to 8 bytes shorter.
func TestSizes(t *testing.T) {
	for _, x := range []struct {
		body   Body
		c      string
		at8    int
		at4    int
		counts bool // false: the last bytes are padding that a client need not send
	}{
		{&SA{}, "xfrm_usersa_info", 224, 220, true},
		{&SAID{}, "xfrm_usersa_id", 24, 24, true},
		{&AllocSPI{}, "xfrm_userspi_info", 232, 228, true},
		{&Expire{}, "xfrm_user_expire", 232, 224, true},
		{&Policy{}, "xfrm_userpolicy_info", 168, 164, true},
		{&PolicyID{}, "xfrm_userpolicy_id", 64, 64, true},
		{&PolicyExpire{}, "xfrm_user_polexpire", 176, 168, true},
		{&Acquire{}, "xfrm_user_acquire", 280, 276, true},
		{&AE{}, "xfrm_aevent_id", 48, 48, true},
		{&Mapping{}, "xfrm_user_mapping", 64, 64, true},
		{&Migrate{}, "xfrm_userpolicy_id", 64, 64, true},
		{&Flush{}, "xfrm_usersa_flush", 1, 1, false},
		{&Report{}, "xfrm_user_report", 60, 60, true},
		{&Default{}, "xfrm_userpolicy_default", 3, 3, false},
		{&SADInfo{}, "__u32", 4, 4, true},
		{&SPDInfo{}, "__u32", 4, 4, true},
	} {
		for abi, want := range map[ABI]int{Align8: x.at8, Align4: x.at4} {
			if got := len(abi.Append(nil, x.body, 0, 0, 0, 0)) - HeaderLen; got != align(want) {
				t.Errorf("%s, %s: %d bytes, not %d", x.c, abi, got, want)
			}
			if e := x.body.decode(abi, make([]byte, want-1)); e == nil {
				t.Errorf("%s, %s: %d bytes are taken", x.c, abi, want-1)
			}
			if e := x.body.decode(abi, make([]byte, want)); e != nil {
				t.Errorf("%s, %s: %d bytes are refused: %v", x.c, abi, want, e)
			}
		}
		if x.counts != (x.at8%4 == 0) {
			t.Errorf("%s: the table contradicts itself", x.c)
		}
	}
	// The structures that stand in attributes.
	a := Attrs{SAInfo: &SAInfo{}, Policy: &PolicyInfo{}}
	for abi, want := range map[ABI]int{Align8: 4 + 224 + 4 + 168, Align4: 4 + 220 + 4 + 164} {
		if got := len(a.append(nil, abi)); got != want {
			t.Errorf("XFRMA_SA and XFRMA_POLICY, %s: %d bytes, not %d", abi, got, want)
		}
	}
}

// TestNative proves that only a 386 program packs its structures tighter.
func TestNative(t *testing.T) {
	if (Native == Align4) != (runtime.GOARCH == "386") {
		t.Errorf("%s on %s", Native, runtime.GOARCH)
	}
}

// TestByteOrder proves field by field what is in network order and what in the machine's, for a message written out by hand.
func TestByteOrder(t *testing.T) {
	m := Mapping{SPI: 0x01020304, Family: FamilyIPv4, Proto: 50, Reqid: 0x0a0b0c0d, OldPort: 0x1194, NewPort: 0x1195}
	b := m.Append(nil, MsgMapping, 0, 1, 2)[HeaderLen:]
	if got := [4]byte(b[16:]); got != [4]byte{1, 2, 3, 4} {
		t.Errorf("the SPI is % x", got)
	}
	if got := [4]byte(b[60:]); got != [4]byte{0x11, 0x94, 0x11, 0x95} {
		t.Errorf("the ports are % x", got)
	}
	if host.Uint16(b[20:]) != 2 || host.Uint32(b[24:]) != 0x0a0b0c0d {
		t.Errorf("family or reqid is not in the machine's order: % x", b[20:28])
	}
}
