package main

import (
	"os"
	"strings"
	"testing"
)

// A device that cannot be made is an error that names it, not a peer that is silently absent from a comparison. (That the peer
// carries traffic is shown in package peers.)
func TestRefusesADeviceThatCannotBe(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	stdin := os.Stdin
	os.Stdin = null
	defer func() { os.Stdin = stdin }()
	name := "a-name-longer-than-interfaces-have"
	if err := run(name, 1420); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("got %v, want an error about %s", err, name)
	}
}
