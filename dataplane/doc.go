// Package dataplane is the packet path: it takes packets from the TUN, protects them with ESP (RFC 4303, in tunnel or transport mode) and
// sends them, and the reverse.
//
// A packet meets the files in this order:
//
//	out   outbound.go  begin → ipheader.go, split.go → classify (sa.Snapshot) → encapsulate.go, iv.go → ring.go [seal] → complete
//	in    inbound.go   fill → admit (sa.Inbound) → ring.go [open] → accept: encapsulate.go, ecn.go, mss.go → coalesce.go
//
// plane.go puts the lanes together, links.go gives them outer links and takes them away while they run, hold.go keeps packets that
// wait for an SA, tell.go tells of them and of peers that have moved, transport.go is what transport mode does otherwise, drops.go
// lists every cause of a drop, stats.go keeps the books, sighting.go the last packets that were refused, icmp.go makes the
// packet-too-big messages, checksum.go the sums. Package link, below, moves the packets.
//
// A lane is one direction of one queue: one goroutine that runs its packets to completion. There is no channel, no lock
// and no allocation per packet; the bursts' memory is made at start. With an engine that finishes inside Submit a lane has
// one burst, which stays in the cache; with an asynchronous one, or when bursts spill to the worker pool, it has eight, and
// the ring gives them back in order.
//
// The lanes wait in the runtime's network poller and are not locked to threads: measured, that moves a quarter more than
// blocking system calls on locked threads do.
//
// A packet is copied once on its way out: from the TUN's super-packet into the arena, where it is sealed in place and from
// where one GSO message carries the whole run. On its way in it is opened where it was received, and written to the TUN from
// there as part of a gather list.
//
// # Packets that wait
//
// With Config.Acquire, what an outbound policy with sa.Policy.Acquire is to protect while it has no SA is neither sent nor dropped, but
// held. At any moment packets in = packets out + drops + in flight + held. The lane sleeps in the TUN's poller and not on a channel,
// so whoever sees the DB change wakes it there (link.Inner.Wake); it then classifies all that waits anew, oldest first, before it
// reads anything else. What waits may so go through another policy than it waited for, or be dropped for any cause that a new packet
// would be.
//
// # Links that come and go
//
// The outbound lane reads the set of links without a lock, once for each burst that it fills and once for each that it sends. An
// inbound SA's lane is that of its link; package sa hands it over when it is moved.
package dataplane
