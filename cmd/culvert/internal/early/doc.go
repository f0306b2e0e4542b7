// Package early takes the signals of `culvert run` before the other packages are initialized, which is about a tenth of a
// second: a SIGHUP that came in that time would end the process. It imports nothing but the standard library, so that Go
// initializes it first.
//
//	signals.go      Signals
//	interrupted.go  what ends other commands, and their exit status
package early
