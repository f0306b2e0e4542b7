// Package pcaplink gives links whose packets come from a capture and go into one: an Inner replays the IP packets, an Outer the
// ESP among them, in UDP or not. What comes out is written as it would look on the wire, with all headers and checksums.
//
// A replay goes as fast as it is read, and ends: its readers then get ErrEnd, which is net.ErrClosed as well as io.EOF, so that
// whoever reads a link until it is closed needs no case for it. Several
// readers share it: a packet goes to whichever asks first.
//
//	pcaplink.go  Inner
//	outer.go     Outer
//	capture.go   Capture: what is replayed
//	writer.go    Writer: what is written
package pcaplink
