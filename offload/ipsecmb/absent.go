//go:build !ipsecmb || !cgo || !amd64

package ipsecmb

import (
	"errors"
	"fmt"
	"runtime"

	"culvert/offload"
)

// ErrAbsent is why this engine does nothing.
var ErrAbsent = errors.New("ipsecmb: intel-ipsec-mb is not in this program")

// Engine is the engine of a program without intel-ipsec-mb: it only says how to get one with it.
type Engine struct{}

// New makes the engine; without the library there is nothing that the options could shape.
func New(Options) *Engine { return &Engine{} }

func absent() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: the engine is for amd64, and this is %s", ErrAbsent, runtime.GOARCH)
	}
	return fmt.Errorf("%w: install libipsec-mb-dev and build with CGO_ENABLED=1 go build -tags ipsecmb ./cmd/culvert", ErrAbsent)
}

// Name is "ipsecmb".
func (*Engine) Name() string { return "ipsecmb" }

// Probe fails, and says how to build a program with the library.
func (*Engine) Probe() (offload.Caps, error) { return offload.Caps{}, absent() }

// NewSession fails as Probe does.
func (*Engine) NewSession(*offload.Transform, offload.Direction, offload.Keys) (offload.Session, error) {
	return nil, absent()
}

// NewLane fails as Probe does.
func (*Engine) NewLane(int) (offload.Lane, error) { return nil, absent() }

// Levels: there are none.
func (*Engine) Levels() []string { return nil }

// Level is none.
func (*Engine) Level() string { return "" }

// WithLevel fails as Probe does.
func (*Engine) WithLevel(string) (offload.Engine, error) { return nil, absent() }
