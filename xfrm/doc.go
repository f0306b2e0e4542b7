// Package xfrm speaks the XFRM protocol of Linux: the netlink messages with which an IKE daemon or iproute2 manages security
// associations and policies (linux/xfrm.h of Linux 6.18). This package is the codec; a server stands in a package below it.
//
// # Reading and writing
//
// Messages splits a datagram, DecodeRequest reads what a client asks and refuses what the kernel refuses:
//
//	for m, err := range xfrm.Messages(datagram) {
//		...
//		body, err := xfrm.DecodeRequest(xfrm.Native, m)
//		if err != nil {
//			out = reply.AppendError(out, m, xfrm.AsError(err))
//			continue
//		}
//		switch b := body.(type) {
//		case *xfrm.SA: // m.Type is MsgNewSA or MsgUpdSA
//
// Without validation, Header.Type says which Decode function takes the Body, and IsDump that it is a Dump: that is how a program
// reads a kernel. Every type has an Append that makes a whole message.
//
// Errors are *Error and have the kernel's errno, a text, and where one attribute is at fault its offset. What is decoded holds no
// part of the datagram.
//
// Decoding and encoding are inverse: what a client has sent is encoded to the same bytes, but for the padding inside structures,
// which is zero, and for what stands behind the end of a structure or of the last attribute that fits, which the kernel ignores.
//
// # What is proved, and how
//
// testdata/golden has what iproute2, charon 5.9.8, Linux 6.18 and Linux 6.1 have sent each other, and TestGolden wants every byte back.
// testdata/refusals-* has what both kernels answer to the thousand requests of refusals_test.go, each good or wrong in one way;
// TestRefusals wants the same errno and the same attribute blamed. The texts are our own. To record again, as root, in an empty network
// namespace of a Linux 6.18: go test ./xfrm -run Refusals -record.
//
// # Two ABIs
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
//	validate.go   what the kernel refuses of requests
//	abi.go        sizes, byte order, alignment
//	codec.go      the list of Decode functions and Append methods
//	errors.go     Error
package xfrm
