// Package multibuf is the engine that works on many packets at once. CBC encryption and a hash are chains: one packet cannot
// use what a processor can do, sixteen or sixty-four side by side can.
//
// A map of the package:
//
//	engine.go    Options, Engine, its lane: bursts in, bursts out
//	level.go     Level: the instruction sets there are kernels for, and which of them this machine runs
//	kernels.go   kernels: what a level is made of, each function's contract
//	session.go   session: key schedules and HMAC states, and who may still use them
//	window.go    up to 128 jobs: sorted out, encrypted and authenticated, or verified and decrypted
//	cbc.go       AES-CBC: lanes that are refilled as packets end
//	des.go       3DES-CBC: 64 lanes, or 32; packets to open are cut up among them
//	hmac.go      HMAC: lanes with body, tail and outer block
//	gcm.go       AES-GCM
//	aes.go       the AES key schedule, in constant time
//	image.go     copies of the standard library's hashes
//	words.go     memory that kernels can use: aligned, and wiped
//	level_*.go   a file for each level: its table, what it needs of the machine, what its kernels cost
//	deskeys.go   tables for DES's keys; made by gen
//	generate.go  how gen is called, which is a module of its own
//	*_amd64.s, *_arm64.s, *_amd64.go, *_arm64.go  the kernels and their declarations; made by gen
//
// # Levels and kernels
//
// A level is one table of kernels. What a level leaves nil comes from the next lower level that the machine runs, and what no
// level has is done by the standard library, one packet at a time (hashes), or by another engine (Options.Rest: ciphers).
// To add a level: write its kernels in gen, add a file that fills a table, and add the table to the architecture's list in
// level_*.go, the best first. The tests list every level and kernel by themselves.
//
// # How a burst is worked on
//
// Ciphers and hashes are scheduled apart from each other, so a burst may mix transforms, keys and lengths: the jobs are
// sorted by cipher and length, encrypted, sorted by hash and length, and authenticated; or the other way round. The longest
// packets get their lanes first, a lane whose packet has ended gets the next one, and when fewer are left than a narrower
// kernel has lanes, that one takes over. Which kernel begins is decided by what its steps were measured to cost, so a few
// packets are not worked on by a kernel for many.
//
// The chain of the longest packet bounds a burst: it takes at least as many steps as that one has blocks. Bursts of one
// length, or of many packets, are fast; three long packets among thirty short ones are not.
//
// Lengths, and which session a job has, are public and decide branches and addresses. Keys and contents decide neither.
package multibuf
