package hostnet

import (
	"bytes"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A snapshot brings back what a plan added, changed and removed: nothing, a guard alone, and a whole other plan.
func TestRevert(t *testing.T) {
	old := siteToSite()
	old.Bypass = nil
	old.Routes[0].MTU = 1300
	for name, before := range map[string]func(*Host) error{
		"nothing":    func(*Host) error { return nil },
		"a guard":    func(h *Host) error { return h.Guard(old) },
		"other ways": func(h *Host) error { return h.Apply(old) },
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t)
			h := here(t)
			if err := before(h); err != nil {
				t.Fatal(err)
			}
			want := dump(t)
			s, err := h.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Apply(siteToSite()); err != nil {
				t.Fatal(err)
			}
			if dump(t) == want {
				t.Fatal("the plan changed nothing")
			}
			if err := h.Revert(s); err != nil {
				t.Fatal(err)
			}
			if got := dump(t); got != want {
				t.Errorf("before\n%s\nafter\n%s", want, got)
			}
		})
	}
}

// Whatever a message of the kernel holds, the watcher outlives it; and a rule that was deleted, or an address of any interface that
// went, counts whatever follows in it.
func FuzzConcerns(f *testing.F) {
	other := []byte{2, 24, 0, 0, 254, 143, 0, 1, 0, 0, 0, 0}
	ours := []byte{2, 24, 0, 0, 252, 143, 0, 1, 0, 0, 0, 0, 8, 0, 15, 0, 0xcf, 0x10, 0, 0}
	is := func(typ uint16, b []byte) bool {
		return concerns(&syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: typ}, Data: b}, 7)
	}
	if is(unix.RTM_DELROUTE, other) || !is(unix.RTM_DELROUTE, ours) || !is(unix.RTM_DELADDR, other) || !is(unix.RTM_DELRULE, nil) {
		f.Error("a message is taken for what it is not")
	}
	f.Add(uint16(unix.RTM_DELROUTE), other)
	f.Add(uint16(unix.RTM_DELROUTE), ours)
	f.Add(uint16(unix.RTM_NEWLINK), bytes.Repeat([]byte{0}, 16))
	f.Fuzz(func(t *testing.T, typ uint16, b []byte) {
		got := is(typ, b)
		switch typ {
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWLINK, unix.RTM_DELLINK:
		case unix.RTM_DELRULE, unix.RTM_NEWADDR, unix.RTM_DELADDR:
			if !got {
				t.Errorf("type %d with % x is passed over", typ, b)
			}
		default:
			if got {
				t.Errorf("type %d is none that is watched", typ)
			}
		}
	})
}
