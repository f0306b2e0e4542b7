// Package lab builds small networks out of Linux network namespaces, for tests and for demonstrations.
//
// A Lab owns everything that it makes: namespaces (named culvert-<pid>-<n>-<role>, so that "ip netns" lists them), veth
// pairs, processes, and one private directory. Close removes all of it, and New removes what labs of processes
// that have since died left behind. Nothing but the kernel and root is needed: links, addresses, routes and neighbours are
// made through netlink, device features through the ethtool ioctl, sysctls through /proc/sys.
//
//	host A ── eth0 / lan0 ── gateway A ── wan0 / wan0 ── gateway B ── lan0 / eth0 ── host B
//
// NewRow makes that row; New with Namespace and Connect makes any other shape.
//
//	lab.go        Lab: what it owns, and how that is removed
//	namespace.go  Namespace: threads and sockets inside it, sysctls, routes
//	link.go       Connect: veth pairs with addresses and neighbours
//	features.go   offloads of devices
//	process.go    processes inside a namespace
//	row.go        Row
//	sweep.go      whose labs are dead, and removing them
//
// # Threads
//
// A network namespace belongs to a thread. Namespace.Do therefore runs a function on a thread of its own and puts the
// thread back before it is used for anything else; a thread that cannot be put back is ended, never handed back to the
// scheduler. Sockets keep the namespace they were made in and may be used from any goroutine afterwards.
package lab
