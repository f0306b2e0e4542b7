package multibuf

import (
	"culvert/offload"

	"golang.org/x/sys/cpu"
)

// avx2 is the level of Intel's Haswell and AMD's Zen and their successors. What of VAES and the SHA instructions there is, is
// used. Costs are cycles measured on Zen 5.
var avx2 = level{
	name: AVX2,
	missing: func() []string {
		x := &cpu.X86
		return lacking(need{x.HasAVX2, "AVX2"}, need{x.HasAES, "AES-NI"})
	},
	kernels: avx2Kernels(cpu.X86.HasAVX2 && hasVAES(), hasSHANI()),
}

// hasVAES tells of AES on 256-bit registers, which some processors without AVX-512 have.
func hasVAES() bool {
	const vaes = 1 << 9
	_, _, ecx, _ := leaf7()
	return ecx&vaes != 0
}

// leaf7 is the features that x/sys/cpu knows a part of.
func leaf7() (eax, ebx, ecx, edx uint32) {
	if most, _, _, _ := cpuid(0, 0); most < 7 {
		return 0, 0, 0, 0
	}
	return cpuid(7, 0)
}

func avx2Kernels(vaes, sha bool) kernels {
	k := kernels{
		detail: "AES-NI, AVX2",
		aesEnc: []cbcKernel{
			{lanes: 8, cost: 50, shared: cbcEncryptShared8AVX2, mixed: cbcEncryptMixed8AVX2},
		},
		aesDec: cbcDecryptAVX2,
		hash32: [...][]hashKernel[uint32]{
			offload.HMACMD5:    {{lanes: 16, cost: 790, run: md5x16AVX2}},
			offload.HMACSHA1:   {{lanes: 8, cost: 540, run: sha1x8AVX2}, {lanes: 16, cost: 840, run: sha1x16AVX2}},
			offload.HMACSHA256: {{lanes: 8, cost: 1100, run: sha256x8AVX2}},
			offload.HMACSHA512: nil,
		},
		hash64: []hashKernel[uint64]{{lanes: 4, cost: 1390, run: sha512x4AVX2}},
		des:    &desAVX2,
		forget: forgetAVX2,
		single: singleAVX,
	}
	if vaes {
		k.detail = "VAES, AVX2"
		k.aesEnc = []cbcKernel{
			{lanes: 8, cost: 50, shared: cbcEncryptShared8AVX2, mixed: cbcEncryptMixed8AVX2},
			{lanes: 16, cost: 54, shared: cbcEncryptShared16VAES, mixed: cbcEncryptMixed16VAES},
		}
		k.aesDec = cbcDecryptVAES
	}
	if sha {
		k.detail += ", SHA-NI"
		k.hash32[offload.HMACSHA1] = shaniKernels.hash32[offload.HMACSHA1]
		k.hash32[offload.HMACSHA256] = shaniKernels.hash32[offload.HMACSHA256]
		k.single[offload.HMACSHA1], k.single[offload.HMACSHA256] = 130, 130
	}
	return k
}

// singleAVX is what the standard library makes of AVX2, without the SHA instructions.
var singleAVX = [...]int{
	offload.HMACMD5: 340, offload.HMACSHA1: 200, offload.HMACSHA256: 380, offload.HMACSHA384: 470, offload.HMACSHA512: 470,
}
