package early

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Interrupted is why a command ended before its time.
type Interrupted struct{ Signal syscall.Signal }

// Error says no more than that: whoever sent the signal knows the rest.
func (Interrupted) Error() string { return "interrupted" }

// ExitStatus is what a shell gives for a program that a signal ended: 130 for SIGINT, 143 for SIGTERM.
func (i Interrupted) ExitStatus() int { return 128 + int(i.Signal) }

// Interruptible gives a context that ends with the first of the signals, or with the parent; an Interrupted is the cause then. stop
// gives the signals back their usual effect.
func Interruptible(parent context.Context, signals ...os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	came := make(chan os.Signal, 1)
	signal.Notify(came, signals...)
	go func() {
		select {
		case s := <-came:
			cancel(Interrupted{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(came)
		cancel(nil)
	}
}
