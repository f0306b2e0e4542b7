package soft_test

import (
	"testing"

	"culvert/offload/offloadtest"
	"culvert/offload/soft"
)

// The whole conformance suite, for every transform.
func TestConformance(t *testing.T) { offloadtest.Run(t, soft.New()) }

// Arbitrary bytes are refused exactly as a plain composition of the standard library refuses them.
func FuzzOpen(f *testing.F) { offloadtest.Fuzz(f, soft.New()) }

// Every transform, direction and two sizes.
func BenchmarkSoft(b *testing.B) { offloadtest.Bench(b, soft.New()) }
