package multibuf

import (
	"culvert/offload"

	"golang.org/x/sys/cpu"
)

// shani is the SHA instructions without AVX, where the standard library leaves them alone: Intel's Goldmont and Tremont.
// Costs are cycles measured on Zen 5.
var shani = level{
	name: SHANI,
	missing: func() []string {
		return append(sse.missing(), lacking(need{hasSHANI(), "SHA-NI"})...)
	},
	kernels: shaniKernels,
}

func hasSHANI() bool {
	const sha = 1 << 29
	_, ebx, _, _ := leaf7()
	return ebx&sha != 0 && cpu.X86.HasSSE41
}

var shaniKernels = kernels{
	detail: "SHA-NI, AES-NI",
	hash32: [...][]hashKernel[uint32]{
		offload.HMACSHA1:   {{lanes: 2, cost: 190, run: sha1x2SHANI}, {lanes: 4, cost: 240, run: sha1x4SHANI}},
		offload.HMACSHA256: {{lanes: 2, cost: 250, run: sha256x2SHANI}, {lanes: 4, cost: 310, run: sha256x4SHANI}},
		offload.HMACSHA512: nil,
	},
}
