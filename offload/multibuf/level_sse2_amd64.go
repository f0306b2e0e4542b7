package multibuf

import "culvert/offload"

// sse2 is the level of every amd64 processor. Costs are cycles measured on Zen 5.
var sse2 = level{
	name:    SSE2,
	missing: func() []string { return nil },
	kernels: kernels{
		detail: "SSE2",
		hash32: [...][]hashKernel[uint32]{
			offload.HMACMD5:    {{lanes: 8, cost: 790, run: md5x8SSE2}, {lanes: 12, cost: 860, run: md5x12SSE2}},
			offload.HMACSHA1:   {{lanes: 4, cost: 590, run: sha1x4SSE2}, {lanes: 8, cost: 960, run: sha1x8SSE2}},
			offload.HMACSHA256: {{lanes: 4, cost: 1150, run: sha256x4SSE2}},
			offload.HMACSHA512: nil,
		},
		hash64: []hashKernel[uint64]{{lanes: 2, cost: 1480, run: sha512x2SSE2}},
		des:    &desSSE2,
		forget: forgetSSE2,
		single: singleSSE,
	},
}

// singleSSE is what the standard library does without AVX.
var singleSSE = [...]int{
	offload.HMACMD5: 340, offload.HMACSHA1: 300, offload.HMACSHA256: 600, offload.HMACSHA384: 900, offload.HMACSHA512: 900,
}
