package multibuf

import (
	"slices"

	"culvert/offload"

	"golang.org/x/sys/cpu"
)

// avx512 is the level of Intel's Ice Lake and AMD's Zen 4 and their successors. Costs are cycles measured on Zen 5.
var avx512 = level{
	name: AVX512,
	missing: func() []string {
		x := &cpu.X86
		return lacking(
			need{x.HasAVX512F, "AVX512F"}, need{x.HasAVX512BW, "AVX512BW"}, need{x.HasAVX512VL, "AVX512VL"},
			need{x.HasAVX512DQ, "AVX512DQ"}, need{x.HasAVX512VBMI, "AVX512VBMI"}, need{x.HasAVX512GFNI, "GFNI"},
			need{x.HasAVX512VAES, "VAES"}, need{x.HasAVX512VPCLMULQDQ, "VPCLMULQDQ"}, need{x.HasBMI2, "BMI2"},
		)
	},
	kernels: avx512Kernels(hasSHANI()),
}

func avx512Kernels(sha bool) kernels {
	k := kernels{
		detail: "VAES, AVX-512",
		aesEnc: []cbcKernel{
			{lanes: 4, cost: 47, shared: cbcEncryptShared4AVX512, mixed: cbcEncryptMixed4AVX512},
			{lanes: 8, cost: 48, shared: cbcEncryptShared8AVX512, mixed: cbcEncryptMixed8AVX512},
			{lanes: 16, cost: 50, shared: cbcEncryptShared16AVX512, mixed: cbcEncryptMixed16AVX512},
			{lanes: 32, cost: 80, shared: cbcEncryptShared32AVX512, mixed: cbcEncryptMixed32AVX512},
		},
		aesDec: cbcDecryptAVX512,
		des:    &des512,
		gcm:    &gcmKernel{size: 256 + 96*16 + 64, expand: gcmExpandAVX512, seal: gcmSealAVX512, open: gcmOpenAVX512},
		hash32: [...][]hashKernel[uint32]{
			offload.HMACMD5:    {{lanes: 16, cost: 560, run: md5x16AVX512, takesWords: true}, {lanes: 32, cost: 575, run: md5x32AVX512, takesWords: true}},
			offload.HMACSHA1:   {{lanes: 16, cost: 450, run: sha1x16AVX512, takesWords: true}, {lanes: 32, cost: 550, run: sha1x32AVX512, takesWords: true}},
			offload.HMACSHA256: {{lanes: 16, cost: 715, run: sha256x16AVX512, takesWords: true}, {lanes: 32, cost: 1010, run: sha256x32AVX512, takesWords: true}},
			offload.HMACSHA512: nil,
		},
		hash64: []hashKernel[uint64]{
			{lanes: 8, cost: 900, run: sha512x8AVX512, takesWords: true}, {lanes: 16, cost: 1285, run: sha512x16AVX512, takesWords: true},
		},
		forget: forgetAVX512,
		single: [...]int{
			offload.HMACMD5: 340, offload.HMACSHA1: 110, offload.HMACSHA256: 115, offload.HMACSHA384: 470, offload.HMACSHA512: 470,
		},
	}
	if sha { // for few packets; the processors that have this level have it
		k.detail += ", SHA-NI"
		for _, auth := range []offload.Auth{offload.HMACSHA1, offload.HMACSHA256} {
			k.hash32[auth] = slices.Concat(shaniKernels.hash32[auth], k.hash32[auth])
		}
	}
	return k
}
