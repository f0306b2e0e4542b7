package padlock_test

import (
	"testing"

	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/padlock"
)

// host gives the engine of this machine, and skips where there is none.
func host(t testing.TB) offload.Engine {
	e := padlock.New()
	c, err := e.Probe()
	if err != nil {
		t.Skip(err)
	}
	t.Log(c.Detail)
	return e
}

// The whole conformance suite, on hardware. (That of test/padlock runs on emulated processors.)
func TestConformance(t *testing.T) { offloadtest.Run(t, host(t)) }

// Every transform, direction and two sizes, on hardware.
func BenchmarkPadLock(b *testing.B) { offloadtest.Bench(b, host(b)) }
