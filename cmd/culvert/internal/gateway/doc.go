// Package gateway puts a gateway together from a configuration and runs it: SAs, links, lanes, the host's routes, the
// control socket and the metrics.
//
//	check.go     what a right configuration asks for, and this program or this host does not have
//	host.go      the part of that which is this host's: rights, addresses, ports, directories
//	gateway.go   start, stop, the parts
//	tunnels.go   SAs and policies from the configuration; reload
//	restore.go   what others remove of the host's routes is laid again
//	plain.go     errors without the names of packages
//	watch.go     path MTUs, keepalives, lifetimes
//	diagnose.go  why no traffic passes, as far as it can be told, for the log and the status
//	report.go    what the control socket and the metrics show
package gateway
