// Package ike lets an unmodified IKE daemon make the running gateway's tunnels: it owns the XFRM server, the supervisor of the
// programs under `culvert exec`, and what both need of the data plane and of the host.
//
//	daemon.go   Daemon: start, stop, what clients and ports come and go
//	backend.go  the server's changes of SAs and policies, with the host's routes before and after them
//	links.go    which outer link an SA uses: a port shared with the daemon, or a raw socket for protocol 50
//	pairs.go    from policies to what the host sends into the TUN or refuses
//	keep.go     what outlives the gateway's process: sockets in systemd's store, SAs in a file in memory
//	orphans.go  programs whose gateway has died are ended by the next one
//	seal.go     what that file is encrypted with
//	report.go   what there is, for the control socket
//
// # Locks
//
// The server calls the backend under its own lock, and that the DB's; inside those come Daemon.mu and then the host's. Whoever holds
// Daemon.mu changes neither the server nor the DB.
//
// # No plaintext
//
// A policy's routes and guard stand before the policy takes effect, and so before the daemon's message is acknowledged. When a policy is
// deleted its route into the TUN goes and its guard stays, unless the configuration says after_delete = "clear": a daemon deletes a
// policy for many reasons, a dead peer and a reauthentication among them, and says none. When the daemon ends without deleting, its
// policies and SAs stay, as in the kernel, and carry on once a daemon shares the port again. When the gateway ends, the guard stays, and
// the next gateway takes it over from the kernel.
package ike
