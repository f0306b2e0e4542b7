// Package dataplane is the packet path: it takes packets from the TUN, protects them with ESP (RFC 4303, tunnel mode) and
// sends them, and the reverse.
//
// A packet meets the files in this order:
//
//	out   outbound.go  begin → ipheader.go, split.go → classify (sa.Snapshot) → encapsulate.go, iv.go → ring.go [seal] → complete
//	in    inbound.go   fill → admit (sa.Inbound) → ring.go [open] → accept: encapsulate.go, ecn.go, mss.go → coalesce.go
//
// hold.go keeps packets that wait for an SA, tell.go tells of them and of peers that have moved.
// plane.go puts the lanes together, links.go gives them outer links and takes them away while they run, drops.go lists every
// cause of a drop, stats.go keeps the books, sighting.go the last packets that were refused, icmp.go makes the packet-too-big
// messages, checksum.go the sums. Package link, below, moves the packets.
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
package dataplane
