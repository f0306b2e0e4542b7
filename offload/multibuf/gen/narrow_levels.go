package main

// avx2 is the level of that name, but for the SHA instructions: AVX2 and AES-NI, and VAES in functions of their own.
func avx2() {
	for _, v := range []*aes{aesAVX2, aesVAES} {
		v.cbcEncrypt(8, true)
		v.cbcEncrypt(8, false)
		v.cbcDecrypt()
	}
	isaAVX2.rest()
}

// sse is what the level of that name has more than sse2: AES-NI, and nothing in AVX's encodings.
func sse() {
	aesSSE.cbcEncrypt(8, true)
	aesSSE.cbcEncrypt(8, false)
	aesSSE.cbcDecrypt()
}

// sse2 is the level of that name: what every amd64 processor has.
func sse2() {
	isaSSE2.rest()
}

// shani is SHA-1 and SHA-256 with the SHA instructions, in SSE's encodings.
func shani() {
	for _, lanes := range []int{2, 4} {
		sha1NI(lanes)
		sha256NI(lanes)
	}
}

// rest is the hashes, 3DES, and the end of all work.
func (v *isa) rest() {
	v.md5(2)
	if !v.vex {
		v.md5(3)
	}
	v.sha1(1)
	v.sha1(2)
	v.sha2(sha256)
	v.sha2(sha512)
	v.des3(true)
	v.des3(false)
	v.forget()
}
