package multibuf

import "unsafe"

// alignment is that of a cache line, and of the widest register.
const alignment = 64

// aligned makes n bytes of zeros at a multiple of 64. Go moves nothing that it has put on the heap.
func aligned(n int) []byte {
	b := make([]byte, n+alignment)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (alignment - 1))
	return b[skip : skip+n : skip+n]
}

// alignedWords makes n words of zeros at a multiple of 64.
func alignedWords[T uint32 | uint64 | uintptr](n int) []T {
	b := aligned(n * int(unsafe.Sizeof(T(0))))
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

// address is where a buffer is, for kernels; see kernels for why it is not a pointer.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
