// Package speed is the command "culvert speed": how fast each engine seals and opens, with every figure by two clocks.
//
//	speed.go         the command: which rows, in which order, printed how
//	options.go       its flags, and what they may be
//	engines.go       the engines there are, and their levels
//	multibuf.go      engine multibuf, at each of its levels
//	bench.go         one row: threads, repetitions, verification
//	packets.go       the packets of a row, and what must become of them
//	clocks.go        wall, thread, process and waiting time
//	counter*.go, .s  the time stamp counter, and its frequency
//	checks.go        what cannot be: flags
//	c2558.go         the published figures of an Intel Atom C2558 with QuickAssist
//	row.go           a row, and as a line of JSON
//	table.go         the tables
//	progress.go      what a terminal sees meanwhile
//
// Reports of such figures have gone wrong in three ways: a time that lacks what the kernel or a device did, a cycle count
// divided by another clock's frequency, a number too good for the memory it must have passed through. Every row goes
// through the same checks as those reports do in the tests, and a row that cannot be is never shown as a result.
package speed
