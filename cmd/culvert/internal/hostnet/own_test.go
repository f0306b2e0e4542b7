package hostnet

import (
	"errors"
	"os"
	"testing"
)

// One process has a namespace, and who comes second is told which; however many ask, also more than a socket's queue takes, and
// none of them learns less. It is free again when it is released.
func TestOwn(t *testing.T) {
	inNamespace(t)
	if pid := OwnedBy(); pid != 0 {
		t.Fatalf("process %d has a new namespace", pid)
	}
	o, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 { // net.core.somaxconn is 4096
		if pid := OwnedBy(); pid != os.Getpid() {
			t.Fatalf("asked %d times: process %d", i, pid)
		}
	}
	if _, err := Own(); !errors.Is(err, ErrOwned) {
		t.Errorf("taken twice: %v", err)
	}
	o.Release()
	if o, err = Own(); err != nil {
		t.Fatalf("after its release: %v", err)
	}
	o.Release()
}
