package speed

import (
	"fmt"
	"math"

	"culvert/offload"
)

// The published run of the Intel Atom C2558: its QuickAssist device, driven by the kernel crypto test of the QAT netkey
// driver, four threads of 5,000,000 requests each, 1024 bytes of plaintext per request with no IP, no SA lookup and no I/O,
// and the hashes' full digests where ESP truncates.
const (
	c2558Threads  = 4
	c2558Requests = 5000000
	c2558Size     = 1024
)

// published is one row of a report: cycles between the first thread's start and the last one's end, the processor's
// frequency as the test had it, and the throughput that it printed.
type published struct {
	name   string
	bits   int
	dir    offload.Direction
	cycles float64
	mhz    float64
	mbps   float64
}

// c2558 is the report.
var c2558 = []published{
	{"authenc(hmac(sha1),cbc(aes))", 128, offload.Seal, 99446457576, 2399, 3952},
	{"authenc(hmac(sha1),cbc(aes))", 128, offload.Open, 106091253696, 2399, 3704},
	{"authenc(hmac(sha256),cbc(aes))", 128, offload.Seal, 99558529560, 2399, 3947},
	{"authenc(hmac(sha256),cbc(aes))", 128, offload.Open, 122812906752, 2399, 3200},
	{"authenc(hmac(sha512),cbc(aes))", 128, offload.Seal, 134119874664, 2399, 2930},
	{"authenc(hmac(sha512),cbc(aes))", 128, offload.Open, 155291391888, 2399, 2531},
	{"authenc(hmac(md5),cbc(aes))", 128, offload.Seal, 100111379832, 2399, 3926},
	{"authenc(hmac(md5),cbc(aes))", 128, offload.Open, 130504449000, 2399, 3011},
	{"authenc(hmac(sha1),cbc(aes))", 256, offload.Seal, 117191387712, 2399, 3353},
	{"authenc(hmac(sha1),cbc(aes))", 256, offload.Open, 107436501192, 2399, 3658},
	{"authenc(hmac(sha256),cbc(aes))", 256, offload.Seal, 113961557256, 2399, 3448},
	{"authenc(hmac(sha256),cbc(aes))", 256, offload.Open, 122816144352, 2399, 3200},
	{"authenc(hmac(sha512),cbc(aes))", 256, offload.Seal, 134154360960, 2399, 2929},
	{"authenc(hmac(sha512),cbc(aes))", 256, offload.Open, 160118259912, 2399, 2454},
	{"authenc(hmac(md5),cbc(aes))", 256, offload.Seal, 115505439384, 2399, 3402},
	{"authenc(hmac(md5),cbc(aes))", 256, offload.Open, 125164367592, 2399, 3140},
	{"authenc(hmac(sha1),cbc(des3_ede))", 192, offload.Seal, 191244542784, 2399, 2055},
	{"authenc(hmac(sha1),cbc(des3_ede))", 192, offload.Open, 154427025720, 2399, 2545},
	{"authenc(hmac(sha256),cbc(des3_ede))", 192, offload.Seal, 201139307760, 2399, 1954},
	{"authenc(hmac(sha256),cbc(des3_ede))", 192, offload.Open, 154425352248, 2399, 2545},
	{"authenc(hmac(sha512),cbc(des3_ede))", 192, offload.Seal, 190371471624, 2399, 2064},
	{"authenc(hmac(sha512),cbc(des3_ede))", 192, offload.Open, 156217053072, 2399, 2516},
	{"authenc(hmac(md5),cbc(des3_ede))", 192, offload.Seal, 199082617056, 2399, 1974},
	{"authenc(hmac(md5),cbc(des3_ede))", 192, offload.Open, 154426223232, 2399, 2545},
}

// recompute is the throughput that follows from cycles and frequency.
func (p *published) recompute() float64 {
	return 8 * c2558Requests * c2558Threads * c2558Size / (p.cycles / p.mhz) // bits per µs
}

// check flags a row whose throughput is not what its own cycles and frequency give.
func (p *published) check() []flag {
	if got := p.recompute(); math.Abs(got-p.mbps) > reproducing {
		return []flag{{code: notReproduced, text: fmt.Sprintf("%.0f cycles at %.0f MHz give %.1f Mbit/s, not the %.0f that were printed", p.cycles, p.mhz, got, p.mbps)}}
	}
	return nil
}
