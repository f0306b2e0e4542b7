package offloadtest

import (
	"fmt"
	"testing"

	"culvert/offload"
)

// Fuzz opens arbitrary bytes with every transform, and compares status and plaintext with the reference. The corpus begins
// with the known answers, sealed, and the fuzzing uses the first answer's keys of each transform, so that good packets and
// nearly good ones are among what it tries.
func Fuzz(f *testing.F, e offload.Engine) {
	caps, err := e.Probe()
	if err != nil {
		f.Fatal(err)
	}
	r := newRig(f, e, caps)
	var pairs []*pair
	for _, tr := range caps.Transforms {
		for _, esn := range []bool{false, true} {
			p := r.newPair(f, tr, esn)
			pairs = append(pairs, p)
			for _, n := range []int{0, 1, 50} {
				f.Add(p.seal(r.packet(tr, n), 1), uint32(1))
			}
		}
	}
	f.Add([]byte{}, uint32(0))
	f.Fuzz(func(t *testing.T, esp []byte, seqHi uint32) {
		var open []*probe
		for _, p := range pairs {
			open = append(open, p.opening(fmt.Sprintf("%s, esn %t", p.t, p.k.ESN), esp, seqHi))
		}
		r.run(t, offload.Open, open)
	})
}
