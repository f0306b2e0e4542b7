//go:build !ipsecmb || !cgo || !amd64

package ipsecmb

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"culvert/offload"
)

// Without the library every door says how to get one with it, and a registry that has the engine offers nothing of it.
func TestAbsent(t *testing.T) {
	e := New(Options{})
	_, probe := e.Probe()
	_, session := e.NewSession(offload.Transforms()[0], offload.Seal, offload.Keys{})
	_, lane := e.NewLane(0)
	_, level := e.WithLevel("sse")
	mend := "go build -tags ipsecmb"
	if runtime.GOARCH != "amd64" {
		mend = runtime.GOARCH
	}
	for name, err := range map[string]error{"Probe": probe, "NewSession": session, "NewLane": lane, "WithLevel": level} {
		if !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), mend) {
			t.Errorf("%s: %v; want ErrAbsent, and %q", name, err, mend)
		}
	}
	r := offload.NewRegistry(e)
	if rep := r.Reports()[0]; !errors.Is(rep.Err, ErrAbsent) || len(rep.Admitted()) != 0 {
		t.Errorf("a registry says %v, and admits %d transforms", rep.Err, len(rep.Admitted()))
	}
}
