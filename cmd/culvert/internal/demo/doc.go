// Package demo shows the gateway at work on one machine: four network namespaces in a row, two culvert processes with an ESP tunnel
// between them, and a generator that drives the tunnel and measures it.
//
//	demo.go      the command; from the first namespace to the last one removed
//	options.go   its flags, and what they may be
//	gateways.go  the two processes: configurations, start, books, logs
//	measure.go   TCP, UDP and echoes through a tunnel, whosever it is
//	result.go    what was found out, and as JSON
//	figure.go    numbers that may not have been measured
//	report.go    the same for a person
//	machine.go   where it ran
//	progress.go  what a terminal sees meanwhile
package demo
