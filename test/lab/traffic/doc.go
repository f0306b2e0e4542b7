// Package traffic drives what lies between two namespaces of a lab, and measures it: TCP goodput, floods of small UDP
// packets, and the latency of single packets. It needs no other program.
//
// Everything is measured at the receiver and against the wall clock; where CPU time is given, the wall time of the same interval
// stands beside it.
//
//	flood.go     Flood: one trial at one rate; the search for the highest rate
//	sender.go    Sender: through a packet socket, on a schedule
//	receiver.go  Receiver: what arrived, twice, out of order, and when
//	packet.go    what a flood packet carries
//	mmsg.go      many packets per system call
//	tcp.go       TCP streams
//	ping.go      echoes
//	latency.go   distributions
//	cpu.go       processor time
//	drops.go     packets for which a socket had no room
//	lost.go      where on the way packets were lost
package traffic
