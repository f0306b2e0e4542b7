package early

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// Signals receives SIGHUP, SIGTERM and SIGINT for `culvert run`. Other commands leave them their usual effect.
var Signals = func() chan os.Signal {
	c := make(chan os.Signal, 4)
	if slices.Contains(os.Args[1:], "run") {
		Take(c)
	}
	return c
}()

// Take has the signals sent to c.
func Take(c chan os.Signal) { signal.Notify(c, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP) }
