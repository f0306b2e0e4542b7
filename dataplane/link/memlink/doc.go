// Package memlink gives links that live within the process: what one end of a pair sends, the other receives. They are
// deterministic and bounded, push back when full, carry super-packets, and can lose, repeat and reorder by a hook: the
// doubles of a TUN device and of a UDP socket for tests, benchmarks and simulations of a network.
//
// Closing one end wakes both. The closed end reads nothing more; the other still reads what was on its way, then gets
// net.ErrClosed, as it does at once when it writes. To an end that has stopped reading the other writes on, and what does not
// fit is dropped.
//
//	memlink.go  both kinds of pairs, and the hook
//	queue.go    what lies between two ends
package memlink
