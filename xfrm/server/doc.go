// Package server answers XFRM requests in user space: what the kernel's net/xfrm does for an IKE daemon and for iproute2, over
// connections that stand for netlink sockets, and with a data plane of our own behind it.
//
//	client.go   Client: one connection; groups, options, what waits to be read
//	server.go   Server, Config, Stats; datagrams in, multicast out
//	request.go  which handler a message goes to; the small handlers
//	install.go  SAs: NEWSA, UPDSA, ALLOCSPI, NEWAE, and the end of one
//	policy.go   policies: NEWPOLICY, UPDPOLICY, DELPOLICY, their limits
//	events.go   EXPIRE, ACQUIRE, MAPPING, MIGRATE
//	dump.go     lists, as slowly as they are read, and their filters
//	check.go    what is refused before anything else
//	sad.go      the SAs, by ID and by what templates ask for
//	spd.go      the policies, and which SA an outbound one uses
//	carry.go    sequence numbers and windows as messages have them
//	clock.go    timers
//	walk.go     lists with places that stay valid
//	save.go     Save, Restore: a gateway's restart
//	backend.go  Backend: the data plane as the server sees it
//	db.go       DB: the Backend over an sa.DB
//
// # A connection
//
// Attach takes a SOCK_SEQPACKET connection; each datagram is what a netlink datagram would be. Requests are carried out in order and
// one at a time, under one lock, so that what is acknowledged has taken effect in the data plane. Nothing in there waits for a client:
// answers and events that a socket does not take are queued up to Config.QueueBytes, and lost and counted beyond that, where the
// kernel says ENOBUFS. A list is made piece by piece as it is read, and a piece only when the one before has left, so that a client
// that lists 100,000 SAs and sleeps holds up nobody and costs one piece. What comes or goes meanwhile is listed or not.
//
// # Errors
//
// The errno is the kernel's, proved by tests that give this package and a kernel the same random requests. The text is our own, and
// comes with NETLINK_EXT_ACK. What the kernel can and the gateway cannot is refused with EPROTONOSUPPORT for an SA's protocol, mode
// or encapsulation, and EOPNOTSUPP for everything else, and the text says what.
//
// # SAs
//
// An SA is found by destination, SPI, protocol, family, and mark: a mark v/m belongs to packets whose mark has the value v in the
// bits m. NEWSA refuses one that is there, UPDSA one that is not. ALLOCSPI makes a larval SA, which has an SPI and no keys and ends
// after Config.AcquireExpires; UPDSA, or NEWSA, puts the real one in its place. UPDSA of a real SA changes its encapsulation's
// ports, selector, limits, if_id and marks; key, numbers, window and counters stay.
//
// An SA is inbound if SA_DIR says so, else if it takes a larval SA's place, else if its destination is this host's.
//
// Limits in bytes, packets and sequence numbers are the data plane's to watch, and known within a burst; limits in time the
// server's. At the soft one there is an EXPIRE and the SA is dying: a policy prefers others to it. At the hard one it is removed,
// and there is an EXPIRE. Unlike in the kernel, a limit of 0 bytes or packets is none.
//
// # Policies
//
// A policy is found by selector, mark, if_id and direction, or by its index, whose lowest three bits are the direction. Selectors
// are compared as they stand. A policy to block discards; one to allow without a template bypasses, which the data plane counts as
// a drop, for there is no clear way out of a TUN; one with a template for ESP protects. An outbound one uses the SA that has the
// template's SPI; if the template has none, the newest of those with its reqid, addresses, protocol and mode that is not dying, or
// the newest that is; if there is none, packets are held or dropped by the data plane, which calls Acquire. fwd policies are kept
// and listed: what came from a tunnel is checked by the in policies, wherever it goes.
//
// A template that is optional ("level use") counts as required if it is for ESP, so that nothing leaves in clear that a policy
// means to protect; if it is for compression it is left out.
//
// Packets in the data plane have no mark and no if_id. A policy with a mark is used as if it had none; a second one for the same
// selector, that differs in its mark alone, is refused, as nothing would tell their packets apart.
//
// The last use of a policy is that of the SAs that fit its template, also of those that are gone; charon reads it to know that its
// peer lives. SETDEFAULT is kept and told, and changes nothing: what no policy matches is discarded either way.
//
// # A key that comes back
//
// An IKE daemon moves an SA by asking for its state (GETSA, GETAE), deleting it, and adding it again with the same key. It may have
// sent more in between, and a sequence number must not be used twice. So the digest of each key is remembered with how far it came
// (maxGraves of them, and in an sa.Store if there is one), and an SA with that key goes on behind whatever is further: what
// is remembered or what the message says. A window, likewise, is what either has seen, if the message says anything of an earlier
// life; a new SA with a fixed key starts with an empty window, as its peer starts at 1. NEWAE moves numbers forward only.
//
// # Events
//
// Acquire and Mapping may be called by a lane. One ACQUIRE is told per pair of addresses, reqid, protocol and mode, for as long as
// the larval SA lives that stands for it, as in the kernel; and none if nobody listens. A MAPPING is told once a second per SA, or
// per MTIMER_THRESH seconds.
//
// # Keys
//
// Keys are in the SAs' attributes, which are zeroed when an SA ends, in notifications to the SA group, as the kernel has it, and in what Save
// writes. Nothing logs them.
package server
