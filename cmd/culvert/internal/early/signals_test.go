package early

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// What Take was given receives its signals, and the process lives on: however many of the one kind come that nobody receives, one of
// the other kind is not lost. This test's arguments have no word "run", so that nothing else in the process takes them.
func TestTake(t *testing.T) {
	reload, stop := make(chan os.Signal, 1), make(chan os.Signal, 1)
	Take(reload, stop)
	defer signal.Stop(reload)
	defer signal.Stop(stop)
	receive := func(c chan os.Signal, want syscall.Signal) {
		t.Helper()
		select {
		case s := <-c:
			if s != want {
				t.Errorf("received %v, want %v", s, want)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%v has not come", want)
		}
	}
	send := func(s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		send(syscall.SIGHUP)
		receive(reload, syscall.SIGHUP)
		send(syscall.SIGHUP) // and leave it
	}
	for len(reload) == 0 {
		time.Sleep(time.Millisecond) // until the last is there
	}
	send(syscall.SIGTERM)
	receive(stop, syscall.SIGTERM)
	for name, c := range map[string]chan os.Signal{"Reload": Reload, "Stop": Stop} {
		select {
		case s := <-c:
			t.Errorf("a command that is not run has taken %v into %s", s, name)
		default:
		}
	}
}

// A signal ends the context and says which it was; without one, stop ends it, and the parent's end is one too.
func TestInterruptible(t *testing.T) {
	for sig, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		ctx, stop := Interruptible(t.Context(), syscall.SIGINT, syscall.SIGTERM)
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
			t.Fatalf("%v did not end it", sig)
		}
		var why Interrupted
		if !errors.As(context.Cause(ctx), &why) || why.Signal != sig || why.ExitStatus() != status {
			t.Errorf("%v: the cause is %v", sig, context.Cause(ctx))
		}
		stop()
	}
	ctx, stop := Interruptible(t.Context(), syscall.SIGINT)
	stop()
	if <-ctx.Done(); !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Errorf("stopped: the cause is %v", context.Cause(ctx))
	}
	why := errors.New("the parent's")
	parent, cancel := context.WithCancelCause(t.Context())
	ctx, stop = Interruptible(parent, syscall.SIGINT)
	defer stop()
	cancel(why)
	if <-ctx.Done(); context.Cause(ctx) != why {
		t.Errorf("the parent ended: the cause is %v", context.Cause(ctx))
	}
}
