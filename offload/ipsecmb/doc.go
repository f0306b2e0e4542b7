// Package ipsecmb is an engine over intel-ipsec-mb, the C library that others build gateways on. It is there to measure
// beside: the gateway itself needs no C. It is built only where asked for:
//
//	apt-get install libipsec-mb-dev
//	CGO_ENABLED=1 go build -tags ipsecmb ./cmd/culvert
//
// Otherwise the engine is still there, and its Probe says just that.
//
//	options.go     Options
//	engine.go      Engine, its levels, its lane (with the tag)
//	session.go     session: key schedules in C memory, closing (with the tag)
//	run.c, run.h   one call per burst: submit all jobs, flush (with the tag)
//	absent.go      Engine without the tag
//
// A burst is finished inside Submit, by one call to C: every packet becomes a job of the library's, which works on as many
// of them at once as the processor's registers hold, and what is left over is flushed. The ICV of a received packet is
// compared here and in constant time, not by the library. Packets are worked on where they lie.
//
// The library's 3DES takes a thousand times as long as its AES at all levels but AVX-512. The engine therefore refuses it,
// unless Options ask for it in order to measure it.
package ipsecmb
