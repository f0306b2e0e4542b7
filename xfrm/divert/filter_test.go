package divert

import (
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// vm is a filter in a machine that is not the kernel's.
func vm(tb testing.TB, code []unix.SockFilter) *bpf.VM {
	tb.Helper()
	raw := make([]bpf.RawInstruction, len(code))
	for i, c := range code {
		raw[i] = bpf.RawInstruction{Op: c.Code, Jt: c.Jt, Jf: c.Jf, K: c.K}
	}
	ins, ok := bpf.Disassemble(raw)
	if !ok {
		tb.Fatalf("instructions that are none: %v", ins)
	}
	m, err := bpf.NewVM(ins)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// data is struct seccomp_data of an architecture, as the machine reads it: words in network order, where the kernel's are in the
// architecture's.
func data(a *arch, audit, nr uint32, args ...uint64) []byte {
	b := make([]byte, 64)
	a.order.PutUint32(b[dataNumber:], nr)
	a.order.PutUint32(b[dataArch:], audit)
	for i, v := range args {
		a.order.PutUint64(b[dataArgs+8*i:], v)
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], a.order.Uint32(b[i:]))
	}
	return b
}

// Each architecture's filter, run by a machine that nobody here wrote, notifies of what concerns us, answers the per-socket
// policies, and lets go on everything else: also what has a number or an argument beside.
func TestFilterOfEveryArchitecture(t *testing.T) {
	const (
		allow  = unix.SECCOMP_RET_ALLOW
		notify = unix.SECCOMP_RET_USER_NOTIF
		zero   = unix.SECCOMP_RET_ERRNO
		high   = 0xdeadbeef << 32 // what a register's upper half may have for an int
	)
	type row struct {
		c      call
		args   []uint64
		plain  int
		compat int
	}
	rows := []row{
		{callSocket, []uint64{16, 3, 6}, notify, notify},
		{callSocket, []uint64{16 | high, 3, 6 | high}, notify, notify},
		{callSocket, []uint64{16, 3, 0}, allow, allow},
		{callSocket, []uint64{2, 2, 6}, allow, allow},
		{callBind, []uint64{3, 1, 12}, notify, notify},
		{callBind, []uint64{3, 1, 16}, notify, notify},
		{callBind, []uint64{3, 1, 28}, notify, notify},
		{callBind, []uint64{3, 1, 128}, notify, notify},
		{callBind, []uint64{3, 1, 110}, allow, allow},
		{callConnect, []uint64{3, 1, 12}, notify, notify},
		{callConnect, []uint64{3, 1, 16}, allow, allow},
		{callGetsockname, []uint64{3, 1, 1}, notify, notify},
		{callSetsockopt, []uint64{3, 270, 1, 1, 4}, notify, notify},
		{callSetsockopt, []uint64{3, 17, 100, 1, 4}, notify, notify},
		{callSetsockopt, []uint64{3, 17, 103, 1, 4}, allow, allow},
		{callSetsockopt, []uint64{3, 0, 17, 1, 4}, zero, zero},
		{callSetsockopt, []uint64{3, 0, 35, 1, 4}, allow, allow},
		{callSetsockopt, []uint64{3, 41, 35, 1, 4}, zero, zero},
		{callSetsockopt, []uint64{3, 41, 17, 1, 4}, allow, allow},
		{callSetsockopt, []uint64{3, 1, 2, 1, 4}, allow, allow},
		{callGetsockopt, []uint64{3, 270, 9, 1, 1}, notify, notify},
		{callGetsockopt, []uint64{3, 1, 4, 1, 1}, allow, allow},
		{callRecvfrom, []uint64{3, 1, 1, 0, 0, 0}, allow, allow},
		{callRecvfrom, []uint64{3, 1, 1, 0, 0x1000, 1}, allow, notify},
		{callRecvmsg, []uint64{3, 1, 0}, allow, notify},
	}
	for i := range arches {
		a := &arches[i]
		t.Run(a.name, func(t *testing.T) {
			for _, compat := range []bool{false, true} {
				code, err := a.filter(compat)
				if err != nil {
					t.Fatal(err)
				}
				m := vm(t, code)
				check := func(what string, b []byte, want int) {
					t.Helper()
					got, err := m.Run(b)
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					if uint32(got) != uint32(want) {
						t.Errorf("compat %v: %s: %#x, want %#x", compat, what, uint32(got), uint32(want))
					}
				}
				for _, r := range rows {
					want := r.plain
					if compat {
						want = r.compat
					}
					check(fmt.Sprint(r.c, r.args), data(a, a.audit, a.calls[r.c], r.args...), want)
					check(fmt.Sprint("of another architecture: ", r.c, r.args), data(a, a.audit^1<<20, a.calls[r.c], r.args...), allow)
				}
				if a.word == 8 {
					want := allow
					if compat {
						want = notify
					}
					check("recvfrom with a high name", data(a, a.audit, a.calls[callRecvfrom], 3, 1, 1, 0, 1<<32, 1), want)
				}
				known := map[uint32]bool{a.multi: a.multi != 0}
				for _, n := range a.calls {
					known[n] = true
				}
				for n := uint32(0); n < 5000; n++ {
					if !known[n] {
						check(fmt.Sprint("number ", n), data(a, a.audit, n, 16, 3, 6), allow)
					}
				}
				if a.name == "amd64" {
					check("x32", data(a, a.audit, a.calls[callSocket]|0x40000000, 16, 3, 6), allow)
				}
				if a.multi == 0 {
					continue
				}
				for n := uint64(0); n < 30; n++ {
					c, _, ok := whichMultiplexed(uint32(n))
					want := allow
					if ok && (compat || c != callRecvfrom && c != callRecvmsg) {
						want = notify
					}
					check(fmt.Sprint("socketcall ", n), data(a, a.audit, a.multi, n, 1), want)
				}
			}
		})
	}
}

// The demultiplexing program sends to the IKE daemon what has the non-ESP marker, and what is too short for one, and to us all else.
func TestSharedProgram(t *testing.T) {
	m := vm(t, shared)
	for _, r := range []struct {
		b    []byte
		want int
	}{
		{nil, 0}, {[]byte{0xff}, 0}, {[]byte{1, 2, 3}, 0}, {[]byte{0, 0, 0, 0}, 0}, {[]byte{0, 0, 0, 0, 1, 2}, 0},
		{[]byte{0, 0, 0, 1}, 1}, {[]byte{1, 0, 0, 0, 9, 9}, 1}, {[]byte{0xff, 0xff, 0xff, 0xff}, 1},
	} {
		got, err := m.Run(r.b)
		if err != nil || got != r.want {
			t.Errorf("% x: %d (%v), want %d", r.b, got, err, r.want)
		}
	}
}
