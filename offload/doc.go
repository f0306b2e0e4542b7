// Package offload seals and opens ESP packets (RFC 4303), and lets many ways of doing so stand side by side.
//
// A map of the package:
//
//	transform.go  Transform: one row per algorithm, key length and truncation; every size follows from it
//	key.go        Key, Keys: key material that never prints
//	job.go        Job, Burst, Status, Direction: the unit of work and how it ended
//	engine.go     Engine, Lane, Session: what a way of doing the work looks like
//	answers.go    Answer: published and independently computed packets, embedded
//	admit.go      Admit: an engine proves itself with them
//	registry.go   Registry: probes and admits engines at start, and offers what passed
//
// Below it:
//
//	soft         the standard library's algorithms; runs everywhere, and is the reference
//	multibuf     many packets at once, in assembly of our own for amd64 and arm64
//	padlock      VIA's instructions, for amd64 and 386
//	ipsecmb      intel-ipsec-mb by cgo, behind a build tag: a yardstick and a second opinion
//	pool         any synchronous engine on several goroutines
//	offloadtest  the conformance suite that every engine passes, and Chaos, an unruly double
//
// # How a packet is worked on
//
// The caller owns a buffer with a whole ESP packet in it, and the engine works in place:
//
//	SPI | sequence | IV | payload, padding, pad length, next header | ICV
//	<-- HeaderLen() --> <------ multiple of BlockLen ------------->  <ICVLen>
//
// Sealing starts with everything but the ICV in clear and ends with a packet for the wire. Opening starts with a packet
// from the wire and ends with the plaintext where the ciphertext was. The engine writes neither SPI, sequence number, IV
// nor padding, and believes none of the plaintext: sequence numbers, IVs, the pad bytes and the replay window are the
// caller's.
//
// # Who owns what
//
// From Submit until Reap gives the burst back, the burst, its jobs and their buffers belong to the lane. Nothing of them
// is kept afterwards. A lane is used by one goroutine. A session belongs to one SA in one direction; unless an engine's
// Caps say Shared, it is used by one lane at a time.
package offload
