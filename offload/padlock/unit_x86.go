//go:build amd64 || 386

package padlock

// hostCPUID executes CPUID with ECX 0.
//
//go:noescape
func hostCPUID(leaf uint32) (eax, ebx, ecx, edx uint32)

// xcryptCBC executes rep xcryptcbc on n > 0 blocks of 16 bytes, with the key read anew, and leaves the next IV at iv.
// word, key and iv are multiples of 16; key has 256 readable bytes.
//
//go:noescape
func xcryptCBC(word, key, iv, src, dst *byte, n uintptr)

// xsha1 executes rep xsha1. The state, of 128 bytes at a multiple of 16, begins with the hash's five words in the machine's
// byte order, before and after. Of count bytes done are done already, a multiple of 64, and src is what follows them; the
// message's padding is the unit's. With done = inParts count is a number of blocks of 64 bytes and nothing is padded.
//
//go:noescape
func xsha1(state, src *byte, done, count uintptr)

// xsha256 executes rep xsha256, whose state has eight words.
//
//go:noescape
func xsha256(state, src *byte, done, count uintptr)
