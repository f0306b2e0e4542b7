package multibuf

import "golang.org/x/sys/cpu"

// sse is the level of processors with AES-NI and no AVX: Intel's Westmere and Silvermont (the Atom C2000), and virtual
// machines that hide it. Costs are cycles measured on Zen 5.
var sse = level{
	name: SSE,
	missing: func() []string {
		x := &cpu.X86
		return lacking(need{x.HasAES, "AES-NI"})
	},
	kernels: kernels{
		detail: "AES-NI, SSE2",
		aesEnc: []cbcKernel{{lanes: 8, cost: 50, shared: cbcEncryptShared8SSE, mixed: cbcEncryptMixed8SSE}},
		aesDec: cbcDecryptSSE,
	},
}
