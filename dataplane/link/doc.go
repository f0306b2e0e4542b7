// Package link moves packets between the kernel and the data plane, many per system call and without allocating.
//
// There are two sides. Inner is the side of clear packets (a TUN device), Outer the side of ESP packets (a UDP socket or
// a raw socket). Both carry super-packets: 64 KB that stand for some 46 packets of the wire, because a system call costs
// more than encrypting a packet does.
//
//	link.go      the interfaces, the messages, the sentinel errors
//	vnet.go      the virtio_net_hdr in front of every TUN packet
//	tun_linux.go      OpenTUN: made by wireguard's tun package, super-packets read and written on its file directly
//	socket_linux.go   what both outer sockets share: options, waiting, closing
//	udp_linux.go      OpenUDP: recvmmsg with UDP_GRO, sendmmsg with UDP_SEGMENT
//	esp_linux.go      OpenESP: a raw socket of protocol 50, without merging on either way
//	recv_linux.go     the receiving half: batches, control messages
//	send_linux.go     the sending half: grouping, refusals, falling back from GSO
//	notice_linux.go   the error queue: ICMP answers as Notices
//	memlink/     pairs within the process, for tests and benchmarks
//	pcaplink/    replays a capture, and writes one
//
// Ownership: what Next returns is valid until the next Next; what Recv returns, until the next Recv with that batch; what
// Queue is given must stay until Flush returns; what Send is given is free when it returns.
//
// Waiting goes through the runtime's poller with system calls that never block inside, which was measured to be the best
// of polling, blocking, spinning and this. Every call is first tried without waiting.
package link
