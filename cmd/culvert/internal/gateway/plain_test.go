package gateway

import (
	"errors"
	"fmt"
	"testing"

	"culvert/offload"
)

// The names of packages are left out wherever an error came through one, and nothing else is; the error stays what it was.
func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"offload: no such transform: name":                                           "no such transform: name",
		"offload: the engine is not admitted: padlock for x: padlock: there is none": "the engine is not admitted: padlock for x: there is none",
		"offload: none for x (padlock: padlock: there is none; soft: offload: slow)": "none for x (padlock: there is none; soft: slow)",
		"a path: /run/soft: denied":                                                  "a path: /run/soft: denied",
		"ends with: offload":                                                         "ends with: offload",
		"offload":                                                                    "offload",
	} {
		if got := Plain(errors.New(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	err := Plainly(fmt.Errorf("offload: %w: x", offload.ErrTransform))
	if err.Error() != "no such transform: x" || !errors.Is(err, offload.ErrTransform) {
		t.Errorf("%v", err)
	}
}
