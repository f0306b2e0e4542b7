// Package divert brings the sockets of an unmodified IKE daemon to a gateway: its netlink sockets of NETLINK_XFRM, and the ESP that
// arrives at its UDP sockets. The daemon believes that it talks to the kernel.
//
//	doc.go         this
//	exec.go        Exec: the launcher; what it checks first, and the filter's installation
//	gate.go        Serve: what launchers and a gateway say to each other
//	arch.go        system calls and structures, by architecture
//	filter.go      the seccomp program
//	notify.go      the listener of a filter, and its ioctls
//	supervisor.go  Supervisor, Sink, Client: which call is answered how
//	tracee.go      memory and descriptors of the thread that makes a call
//	pair.go        the connections that stand for netlink sockets
//	netlink.go     bind, connect, getsockname and options of those
//	compat.go      recvfrom and recvmsg of those, for programs that look at the sender's family
//	encap.go       Port: a UDP port that a program and the gateway share
//	thread.go      threads that change their network namespace
//	keep.go        Export, Adopt: a gateway's restart
//
// # The mechanism
//
// Exec installs a seccomp filter with a user-notification listener, passes the listener to the gateway and executes the command in
// place. The filter lets a call go on or stops it by the call's number and arguments; the Supervisor, which reads the listener, does
// what is to be done and answers. A program makes a dozen such calls in its life:
//
//	socket(AF_NETLINK, *, NETLINK_XFRM)       gives the lowest free descriptor, of a connection to Sink.Open
//	bind, connect, getsockname, and options   Client's, if the descriptor is such a connection
//	setsockopt UDP_ENCAP                      shares the socket's port with Sink.Encap, and is not done
//	bind of a shared UDP port                 Sink.Yield first
//	setsockopt IP_XFRM_POLICY                 0, at once
//
// A program without CAP_NET_ADMIN, or of another user namespace than the gateway, gets the kernel's socket, and EPERM of it.
//
// The connection is of AF_UNIX and SOCK_SEQPACKET, which keeps datagrams whole, ignores the address that a sender names, and gives a
// receiver the address of its peer: twelve bytes that are the kernel's nl_pid 0 and nl_groups 0. So sending, receiving, polling,
// duplicating, forking, passing and closing are the kernel's work, as fast as ever. What can be told from a netlink socket:
// SO_DOMAIN and SO_PROTOCOL, getpeername, the sa_family of a sender (not with Compat), a port that is known before bind, and that
// a reader who is too slow is not told ENOBUFS. A socket is recognised by its SO_COOKIE, never by its number.
//
// The Supervisor trusts no number: after it has read memory or copied a descriptor of a thread it asks whether the thread still waits
// for that answer. This is no sandbox, though. A program that wants to reach the kernel's XFRM can.
//
// # Architectures
//
// The filter knows one architecture: Culvert's own. Calls of another one that the kernel has beside (i386 and x32 on amd64, arm on
// arm64) go on untouched, to the kernel; so Exec refuses a program of another architecture. socketcall(2), of 386 and MIPS, has
// its arguments in memory, where a filter does not see them, and is stopped whenever its first one is of interest.
//
// # Ports
//
// A UDP port is shared as a reuseport group of two sockets with a classic BPF program, which the kernel runs on each datagram: RFC
// 3948's non-ESP marker to the daemon, ESP to the gateway. The gateway's socket is in the daemon's network namespace, belongs to its
// user, and has its address, device, mark and IPV6_V6ONLY. It is closed
// when the daemon ends or takes UDP_ENCAP back, and before any program under a launcher binds the port. If the one who had the port before
// still lives and has it, the bind fails with EADDRINUSE, also if both sockets have SO_REUSEADDR; else it is made by the gateway for
// the program, but for ports below 1024, which not everybody may bind and which are left to the program. A daemon that sets
// SO_REUSEPORT itself is refused.
//
// All of that is for programs of any network namespace; a Sink that serves one must look at where a socket is.
//
// # Requirements
//
// Linux 5.14, and from 5.19 on no signal interrupts a call that is being answered; for the launcher CAP_SYS_ADMIN, for the gateway CAP_SYS_ADMIN and CAP_SYS_PTRACE. There is no
// no_new_privs, which would break AppArmor's transitions. One filter with a listener is possible for a process: Exec under Exec, at the
// same gateway, runs the command and does no more; Exec under another program's listener (some container runtimes have one) is
// refused.
//
// # Restarts
//
// The end of a gateway ends the connections for requests, so that who waits is told. It does not end those for events: the program
// has been given a copy of the gateway's end of those, for a netlink socket never ends, and a daemon would spin.
//
// While nobody reads a listener the calls wait; when its last descriptor is closed they fail with ENOSYS. A gateway that hands
// its descriptors over, by Export or through a Keeper, leaves daemons that notice nothing. Close answers what has been taken in; a
// gateway that is killed in that moment leaves one call that only a signal ends.
package divert
