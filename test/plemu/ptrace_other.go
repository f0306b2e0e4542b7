//go:build !linux || !amd64

package plemu

import (
	"context"
	"fmt"
	"runtime"
)

// Run needs Linux on amd64.
func Run(context.Context, Model, []string, []string) (*Report, error) {
	return nil, fmt.Errorf("plemu: %w: programs are supervised on linux/amd64, not on %s/%s", ErrNotPermitted, runtime.GOOS, runtime.GOARCH)
}
