package early

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// What Take was given receives a SIGHUP, and the process lives on. This test's arguments have no word "run", so that nothing else
// in the process takes it.
func TestTake(t *testing.T) {
	c := make(chan os.Signal, 1)
	Take(c)
	defer signal.Stop(c)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	select {
	case s := <-c:
		if s != syscall.SIGHUP {
			t.Errorf("received %v", s)
		}
	case <-time.After(20 * time.Second):
		t.Error("the signal has not come")
	}
	select {
	case s := <-Signals:
		t.Errorf("a command that is not run has taken %v", s)
	default:
	}
}
