// Package traffic drives what lies between two namespaces of a lab, and measures it: TCP goodput, floods of small UDP
// packets, and the latency of single packets. It needs no other program.
//
// Everything is measured at the receiver and against the wall clock; where CPU time is given, the wall time of the same interval
// stands beside it.
package traffic
