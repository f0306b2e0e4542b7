//go:build padlock

// On a machine with a PadLock: go test -tags padlock ./offload/padlock. Elsewhere test/padlock runs the same suite, on
// emulated processors.

package padlock_test

import (
	"testing"

	"culvert/offload"
	"culvert/offload/offloadtest"
	"culvert/offload/padlock"
)

// host gives the engine of this machine.
func host(t testing.TB) offload.Engine {
	e := padlock.New()
	c, err := e.Probe()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(c.Detail)
	return e
}

// The whole conformance suite, on hardware.
func TestConformance(t *testing.T) { offloadtest.Run(t, host(t)) }

// Every transform, direction and two sizes, on hardware.
func BenchmarkPadLock(b *testing.B) { offloadtest.Bench(b, host(b)) }
