// Package xfrm speaks the XFRM protocol of Linux: the netlink messages with which an IKE daemon or iproute2 manages security
// associations and policies (linux/xfrm.h of Linux 6.18). This package is the codec; a server stands in a package below it.
//
// # Reading and writing
//
// Messages splits a datagram. Header.Type says which Decode function takes the Body, and IsDump that it is a Dump. Every type has
// an Append that makes a whole message:
//
//	for m, err := range xfrm.Messages(datagram) {
//		switch m.Type {
//		case xfrm.MsgNewSA, xfrm.MsgUpdSA:
//			s, err := xfrm.DecodeSA(m.Body)
//			...
//			out = xfrm.Reply{PID: pid}.AppendError(out, m, xfrm.AsError(err))
//
// Errors are *Error and have the kernel's errno, a text, and where one attribute is at fault its offset. What is decoded holds no
// part of the datagram.
//
// Decoding and encoding are inverse: what a client has sent is encoded to the same bytes, but for the padding inside structures,
// which is zero, and for what stands behind the end of a structure or of the last attribute that fits, which the kernel ignores.
//
// Two programs on one machine can disagree about six structures: see ABI.
//
// # Keys
//
// Key material is in offload.Key, which prints as ***, and in pointers to Algo, which prints the name alone. Attrs.Wipe zeroes it.
// A datagram that was decoded still has its keys; whoever owns it should clear it.
//
// # Files
//
//	netlink.go    headers, splitting, acknowledgements, ends of dumps
//	types.go      message types, attribute types, flags and their names
//	messages.go   one type for each message: fixed parts
//	attrs.go      the attributes, which are the same for all messages
//	address.go    addresses and selectors
//	algo.go       an algorithm and its key
//	transform.go  algorithms to and from offload's transforms
//	abi.go        sizes, byte order, alignment
//	codec.go      the list of Decode functions and Append methods
//	errors.go     Error
package xfrm
