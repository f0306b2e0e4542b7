package multibuf

import (
	"culvert/offload"

	"golang.org/x/sys/cpu"
)

// sse is the level of processors with AES-NI and no AVX: Intel's Westmere and Silvermont (the Atom C2000), and virtual
// machines that hide it. Costs are cycles measured on Zen 5.
var sse = level{
	name: SSE,
	missing: func() []string {
		x := &cpu.X86
		return lacking(need{x.HasSSSE3, "SSSE3"}, need{x.HasSSE41, "SSE4.1"}, need{x.HasAES, "AES-NI"})
	},
	kernels: kernels{
		detail: "AES-NI, SSE4.1",
		aesEnc: []cbcKernel{{lanes: 8, cost: 50, shared: cbcEncryptShared8SSE, mixed: cbcEncryptMixed8SSE}},
		aesDec: cbcDecryptSSE,
		hash32: [...][]hashKernel[uint32]{
			offload.HMACMD5:    {{lanes: 4, cost: 450, run: md5x4SSE}, {lanes: 8, cost: 500, run: md5x8SSE}, {lanes: 12, cost: 700, run: md5x12SSE}},
			offload.HMACSHA1:   {{lanes: 4, cost: 450, run: sha1x4SSE}, {lanes: 8, cost: 900, run: sha1x8SSE}},
			offload.HMACSHA256: {{lanes: 4, cost: 1200, run: sha256x4SSE}},
			offload.HMACSHA512: nil,
		},
		hash64: []hashKernel[uint64]{{lanes: 2, cost: 1400, run: sha512x2SSE}},
		single: singleSSE,
	},
}

// singleSSE is what the standard library does without AVX.
var singleSSE = [...]int{
	offload.HMACMD5: 340, offload.HMACSHA1: 300, offload.HMACSHA256: 600, offload.HMACSHA384: 900, offload.HMACSHA512: 900,
}
