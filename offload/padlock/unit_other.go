//go:build !amd64 && !386

package padlock

// hostCPUID answers nothing, so that nothing else here is called.
func hostCPUID(uint32) (eax, ebx, ecx, edx uint32) { return 0, 0, 0, 0 }

const notHere = "padlock: the instructions are x86's"

func xcryptCBC(_, _, _, _, _ *byte, _ uintptr) { panic(notHere) }
func xsha1(_, _ *byte, _, _ uintptr)           { panic(notHere) }
func xsha256(_, _ *byte, _, _ uintptr)         { panic(notHere) }
