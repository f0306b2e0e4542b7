// Package offloadtest is what an engine has to pass, and an engine that is made to be awkward.
//
//	suite.go      Run: the conformance suite
//	transforms.go its tests of each transform
//	lanes.go      its tests of lanes, bursts and sessions
//	reference.go  every transform, composed plainly from the standard library, to compare with
//	fuzz.go       Fuzz: arbitrary bytes to open
//	bench.go      Bench: ns per packet and Gbit/s of every transform, direction and size
//	cputime_*.go  how much processor time a thread has used
//	chaos.go      Chaos: an asynchronous engine out of order, often full, and failing on demand
//
// An engine's test is
//
//	func TestConformance(t *testing.T) { offloadtest.Run(t, soft.New()) }
//
// Where an engine can be conclusively absent, its test probes first and skips; Run takes a failing Probe for a failure.
package offloadtest
