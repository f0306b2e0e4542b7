// Package link moves packets between the kernel and the data plane, many per system call and without allocating.
//
// There are two sides. Inner is the side of clear packets (a TUN device), Outer the side of ESP packets (a UDP socket or
// a raw socket). Both carry super-packets: 64 KB that stand for some 46 packets of the wire, because a system call costs
// more than encrypting a packet does.
//
//	link.go           the interfaces, the messages, the sentinel errors
//	vnet.go           the virtio_net_hdr in front of every TUN packet
//	tun_linux.go      OpenTUN: made by wireguard's tun package, super-packets read and written on its file directly
//	udp_linux.go      OpenUDP: ESP in UDP, merged and cut by the kernel (UDP_GRO, UDP_SEGMENT); NewUDP: on a socket made elsewhere
//	esp_linux.go      OpenESP: a raw socket of protocol 50, neither merged nor cut
//	socket_linux.go   what both are made of: options, offloads, closing
//	recv_linux.go     the receiving half: recvmmsg, batches, control messages
//	send_linux.go     the sending half: sendmmsg, cutting, refusals, falling back from UDP_SEGMENT
//	notice_linux.go   the error queue: ICMP answers as Notices
//	sys_linux.go      the system calls, and control messages for every word size
//	memlink/          pairs within the process, for tests and benchmarks
//	pcaplink/         replays a capture, and writes one
//	internal/segment  cuts super-packets where no kernel does
//
// Ownership: what Next returns is valid until the next Next; what Recv returns, until the next Recv with that batch; what
// Queue is given must stay until Flush returns; what Send is given is free when it returns.
//
// Waiting goes through the runtime's poller with system calls that never block inside, which was measured to be the best
// of polling, blocking, spinning and this. Every call is first tried without waiting.
package link
