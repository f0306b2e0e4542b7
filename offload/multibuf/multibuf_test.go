package multibuf_test

import (
	"testing"

	"culvert/offload/multibuf"
	"culvert/offload/offloadtest"
	"culvert/offload/soft"
)

// The whole conformance suite, at every level that this machine runs.
func TestConformance(t *testing.T) {
	for _, l := range multibuf.Levels() {
		t.Run(string(l), func(t *testing.T) {
			offloadtest.Run(t, multibuf.New(multibuf.Options{Level: l, Rest: soft.New()}))
		})
	}
}
