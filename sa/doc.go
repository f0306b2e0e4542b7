// Package sa is the security associations and policies of the gateway: the SAD and SPD of RFC 4301, with the parts of RFC 4303
// that have state, which are sequence numbers, the replay window and lifetimes.
//
// A map of the package:
//
//	params.go    Params: what an SA is made of, and what is refused; Lifetime, DSCPMode, Endpoint
//	outbound.go  Outbound: an SA that seals; sequence numbers, peer, path MTU
//	inbound.go   Inbound: an SA that opens; ESN inference, the two replay checks
//	window.go    Window: the replay filter alone
//	carry.go     what an SA takes over from one that it replaces, and what may change while it lives
//	life.go      limits soft and hard, counters and how they are read
//	sequence.go  Sequence: numbers handed out, one at a time
//	store.go     Store: marks on disk ahead of the numbers in use
//	received.go  Received: marks on disk ahead of the numbers accepted
//	memory.go    the numbers accepted and used, in memory that outlives the process
//	marks.go     the store's file, byte by byte, and how it is written durably
//	heal.go      a directory that is taken away from a running store is made again
//	own.go       directories and files that others could change are refused
//	volatile.go  directories that a reboot empties
//	selector.go  Selector, PortRange, Flow: which packets are meant, and as text
//	policy.go    Policy, Conflicts
//	spd.go       how the first of thousands of policies is found
//	db.go        DB, Tx, Snapshot: all of it together, changed as a whole and read without locks
//	table.go     the hash table whose versions share what did not change
//	print.go     how all of them print, which is without keys
//
// # Who may call what
//
// An SA is cold parameters, which anyone may read, and run-time state with one owner: the lane that Claim made it. To the
// owning lane belong
//
//	Outbound: NextSeq, Account, Publish
//	Inbound:  Seq, SeqHi, Check, CheckSeq, Advance, Top, Roams, Account, AccountDrops, Publish
//
// An inbound SA that MoveInbound puts on another link passes from the old link's lane to the new one's once no snapshot from before
// the move is held. A lane that may have lost an SA since it accounted calls PublishFor instead of Publish.
//
// and nobody else may call these, not even one after the other without a hand-over that orders memory. They take no locks
// and do not allocate, but for Publish, which takes a lock that readers hold for a copy. Account and AccountDrops are for each
// run of packets; limits are enforced by what they count, at once, and Publish makes the counts visible. All other methods may be called from any goroutine at any time. Before
// an SA is in a DB, whoever made it may call all of them.
//
// A Window and a Sequence are their SA's. A Store and a DB may be used from any goroutine; transactions run one after
// another. A Snapshot may be passed on, and is released once.
//
// # How long things live
//
// NewOutbound and NewInbound copy the keys, and leave the caller's copy to the caller. An SA that Update has added belongs to
// the DB: once it is removed and every snapshot from before has been released, its session is closed, its sequence too, and
// its keys are wiped. A lane therefore holds the snapshot with which it looked an SA up until the last packet of that burst
// has come back from its engine, and holds none while it waits for packets.
//
// # A packet's number, out and in
//
//	out  NextSeq                 the number is below the mark on disk, so it is never handed out again; the mark moves back to the
//	                             last number used only when no lane can take one any more
//	in   Seq, CheckSeq           before the ICV: which 64-bit number is it, and can it be fresh
//	     [open with that number]
//	     Advance                 after the ICV, with the same number: check again, for a copy may have come in between, and record
//
// # What was accepted before a restart
//
// An inbound SA with a mark (Store.Received, Inbound.Persist) accepts no packet that an earlier process has accepted with its key.
// Two records see to that. The mark on disk lies ahead of all numbers accepted, durably, before they are: the store moves it on when
// a quarter of the distance is used, without the lane waiting. The exact highest number lies in memory that outlives the process
// (a mapped file on a tmpfs, which Store.Memory tells of), written with each burst before its packets are delivered.
//
//	stopped in order     the exact number is on disk: nothing is lost
//	killed, kill -9      the exact number is in memory: nothing is lost
//	power failure, or a  only the mark is there: everything up to it counts as received. Packets numbered between the last one
//	kill without memory  accepted and the mark are refused: 4 seconds' worth at the rate of the time, at least 1024, and 65,536
//	                     for an SA that began, or whose peer's numbers leapt, within ten seconds
//
// The other choice after a power failure, to go on at the last number known and accept what may be repeated, would let anybody who
// has recorded packets replay them; refusing fresh ones ends by itself. When the disk is slower than the numbers, packets beyond the
// mark are dropped under a cause of their own, NotMarked, rather than accepted without a record; the next mark that is asked for
// is further ahead. So are the first packets after the numbers have leapt beyond the mark, as a peer's do after a power failure
// (Store), for as long as the disk takes.
package sa
