// Package soft is the engine that runs everywhere: every transform, on the algorithms of the Go standard library and
// golang.org/x/crypto. It needs nothing of the machine, so it is the engine to fall back on, and the one that others are
// compared with.
//
//	soft.go    Engine and its lane: the burst loop
//	session.go session: keys, a free list of states, closing
//	state.go   state: the objects one goroutine works with; seal and open
//	mac.go     HMAC that resumes from its two precomputed states
//	flat.go    copying and wiping the standard library's plain structs
//
// A burst is finished inside Submit. Nothing is allocated per burst or per job. Sessions are Shared: any number of lanes may
// use one at the same time. Each takes a state of its own from the session's free list, with one atomic operation per run
// of jobs, and a state is made only when more lanes meet in a session than ever before.
package soft
