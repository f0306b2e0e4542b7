package early

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// Reload receives a SIGHUP, Stop the first of SIGINT and SIGTERM, for `culvert run`; several that nobody has received yet are one.
// They are apart so that many of the one kind do not push out the other. Other commands leave them their usual effect.
var Reload, Stop = func() (reload, stop chan os.Signal) {
	reload, stop = make(chan os.Signal, 1), make(chan os.Signal, 1)
	if slices.Contains(os.Args[1:], "run") {
		Take(reload, stop)
	}
	return reload, stop
}()

// Take has the signals sent to these.
func Take(reload, stop chan os.Signal) {
	signal.Notify(reload, syscall.SIGHUP)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
}
