package multibuf

import (
	"culvert/offload"

	"golang.org/x/sys/cpu"
)

// levels are those of arm64, the best first.
var levels = []level{arm64}

// arm64 is the level of the ARMv8 cryptography extension. The costs are estimates for Arm's Neoverse N1, that of SHA-512 for
// its successors: counts of the instructions that its one cryptography pipe takes, where several messages fill it, and
// latencies where one does not. They have not been measured. AES-GCM is for another engine to do.
var arm64 = level{
	name: ARM64,
	missing: func() []string {
		a := &cpu.ARM64
		return lacking(need{a.HasAES, "AES"}, need{a.HasSHA1, "SHA1"}, need{a.HasSHA2, "SHA2"})
	},
	kernels: armKernels(cpu.ARM64.HasSHA512),
}

// armKernels is the level's table. The SHA-512 instructions are an extension of their own; lanes of NEON words would not be
// faster than the standard library, as NEON has no rotation.
func armKernels(sha512 bool) kernels {
	k := kernels{
		detail: "AES, SHA1, SHA2, NEON",
		aesEnc: []cbcKernel{
			{lanes: 4, cost: 48, shared: cbcEncryptShared4, mixed: cbcEncryptMixed4},
			{lanes: 8, cost: 88, shared: cbcEncryptShared8, mixed: cbcEncryptMixed8},
		},
		aesDec: cbcDecrypt,
		des:    &desNEON,
		hash32: [...][]hashKernel[uint32]{
			offload.HMACMD5:    {{lanes: 4, cost: 680, run: md5x4}, {lanes: 8, cost: 720, run: md5x8}},
			offload.HMACSHA1:   {{lanes: 2, cost: 155, run: sha1x2}, {lanes: 4, cost: 300, run: sha1x4}},
			offload.HMACSHA256: {{lanes: 2, cost: 125, run: sha256x2}, {lanes: 4, cost: 240, run: sha256x4}},
			offload.HMACSHA512: nil,
		},
		single: [...]int{
			offload.HMACMD5: 350, offload.HMACSHA1: 120, offload.HMACSHA256: 95, offload.HMACSHA384: 320, offload.HMACSHA512: 320,
		},
	}
	if sha512 {
		k.detail = "AES, SHA1, SHA2, SHA512, NEON"
		k.hash64 = []hashKernel[uint64]{{lanes: 2, cost: 340, run: sha512x2}}
	}
	return k
}
