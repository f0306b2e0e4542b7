package main

// avx512 is the level of that name: AVX-512 F, BW, VL, DQ, VBMI with VAES, VPCLMULQDQ and GFNI, and SHA-NI.
func avx512() {
	for _, zmms := range []int{1, 2, 4, 8} {
		cbcEncrypt512(zmms, true)
		cbcEncrypt512(zmms, false)
	}
	cbcDecrypt512()
	for _, sets := range []int{1, 2} {
		md5x16(sets)
		sha1x16(sets)
		sha2x16(sha256, sets)
		sha2x16(sha512, sets)
	}
	for _, encrypt := range []bool{true, false} {
		des512(encrypt, true)
		des512(encrypt, false)
	}
	desPut512()
	des512x32(true)
	des512x32(false)
	gcmExpand512()
	gcm512(true)
	gcm512(false)
	forget512()
}
