package divert

import (
	"encoding/binary"
	"runtime"

	"golang.org/x/sys/unix"
)

// arch is what the filter and the supervisor must know of a processor architecture's system calls. The numbers are written
// out, not taken from package unix, because every architecture's filter is generated and tested on every other.
type arch struct {
	name  string // GOARCH
	audit uint32 // AUDIT_ARCH_*, as seccomp_data says it
	order binary.ByteOrder
	word  int    // bytes of a long and of a pointer
	elf   uint16 // e_machine of its programs
	calls [nCalls]uint32
	multi uint32 // socketcall(2), whose arguments lie in memory; 0 = there is none
}

// call names one of the system calls that concern us, whatever its number and however it is made.
type call int

const (
	callSocket call = iota
	callBind
	callConnect
	callGetsockname
	callSetsockopt
	callGetsockopt
	callRecvfrom
	callRecvmsg
	nCalls
)

// The first argument of socketcall(2), from linux/net.h, and how many arguments that call takes.
var multiplexed = [nCalls]struct{ number, args uint32 }{
	callSocket:      {1, 3},
	callBind:        {2, 3},
	callConnect:     {3, 3},
	callGetsockname: {6, 3},
	callRecvfrom:    {12, 6},
	callSetsockopt:  {14, 5},
	callGetsockopt:  {15, 5},
	callRecvmsg:     {17, 3},
}

func (c call) String() string {
	return [nCalls]string{"socket", "bind", "connect", "getsockname", "setsockopt", "getsockopt", "recvfrom", "recvmsg"}[c]
}

// arches lists every architecture that there is a filter for.
var arches = []arch{
	{"amd64", unix.AUDIT_ARCH_X86_64, binary.LittleEndian, 8, 62, [nCalls]uint32{41, 49, 42, 51, 54, 55, 45, 47}, 0},
	{"386", unix.AUDIT_ARCH_I386, binary.LittleEndian, 4, 3, [nCalls]uint32{359, 361, 362, 367, 366, 365, 371, 372}, 102},
	{"arm64", unix.AUDIT_ARCH_AARCH64, binary.LittleEndian, 8, 183, [nCalls]uint32{198, 200, 203, 204, 208, 209, 207, 212}, 0},
	{"arm", unix.AUDIT_ARCH_ARM, binary.LittleEndian, 4, 40, [nCalls]uint32{281, 282, 283, 286, 294, 295, 292, 297}, 0},
	{"mips", unix.AUDIT_ARCH_MIPS, binary.BigEndian, 4, 8, [nCalls]uint32{4183, 4169, 4170, 4172, 4181, 4173, 4176, 4177}, 4102},
	{"mipsle", unix.AUDIT_ARCH_MIPSEL, binary.LittleEndian, 4, 8, [nCalls]uint32{4183, 4169, 4170, 4172, 4181, 4173, 4176, 4177}, 4102},
	{"riscv64", unix.AUDIT_ARCH_RISCV64, binary.LittleEndian, 8, 243, [nCalls]uint32{198, 200, 203, 204, 208, 209, 207, 212}, 0},
}

// native is this program's own architecture; nil where there is no filter for it.
var native = func() *arch {
	for i := range arches {
		if arches[i].name == runtime.GOARCH {
			return &arches[i]
		}
	}
	return nil
}()

// which finds the call that a number stands for. multi is true for socketcall.
func (a *arch) which(nr uint32) (c call, multi, ok bool) {
	if a.multi != 0 && nr == a.multi {
		return 0, true, true
	}
	for c, n := range a.calls {
		if n == nr {
			return call(c), false, true
		}
	}
	return 0, false, false
}

// whichMultiplexed finds the call that socketcall's first argument stands for.
func whichMultiplexed(number uint32) (c call, args int, ok bool) {
	for c, m := range multiplexed {
		if m.number == number {
			return call(c), int(m.args), true
		}
	}
	return 0, 0, false
}
