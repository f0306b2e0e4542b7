// Package hostnet lays the host's routes into the TUN, and the guard that keeps protected traffic off every other way, also
// while no gateway runs.
//
// All routes are in one table of their own, found through rules in front of the main table (and of strongSwan's, 220):
//
//	200  fwmark Mark            lookup main     the gateway's own ESP packets never enter the TUN
//	201  iif lo                 goto 212        the host's own packets are nobody's forgery
//	202  iif TUN                goto 212        what the gateway decapsulated has been judged
//	203  from local             goto 212        only where a remote subnet contains a local one
//	203  from bypassed          goto 212        answers to what was let past the tunnel
//	204  from remote to local   blackhole       the guard: clear traffic that should have come protected (RFC 4301 5.2)
//	212                         lookup Table
//	217  iif TUN to local       lookup main     without its default route
//	218  iif TUN to local       unreachable     what was decapsulated for nobody here leaves in clear by no default route
//
// A subnet of everything is selected in two halves (0.0.0.0/1 and 128.0.0.0/1): the kernel tells rules of one preference apart only by
// what both of them have.
//
// and in the table, for each remote subnet, a route into the TUN with the tunnel's exact MTU, behind it (the guard) an
// unreachable one of the worst metric, and for each bypassed prefix a throw route, which sends the look-up on to the main
// table. The TUN's routes vanish with the process that holds the TUN; the guard stays, whatever happened to the process.
//
// An IKE daemon's policies have a table of their own, 4304, for packets from their local subnets alone, so that a policy for everything
// leaves the host's other traffic alone. For each pair of a local and a remote subnet:
//
//	199  iif lo udp sport 500   goto 216        IKE is never protected by what it negotiates; 4500 likewise, and ESP itself
//	203  from local             goto 212        cannot be what 205 refuses
//	205  from remote to local   blackhole       the guard
//	213  from local             lookup 4304
//	214  from own (IPv6)        goto 216        the host's own addresses that are in no local subnet
//	215  from 0.0.0.0 iif lo    lookup 4304     the host's own packets that have no source yet, if it may become a local subnet's
//	216                         nop             past it all
//
// with a route into the TUN, an unreachable one behind it, and throw routes for what a policy lets past the tunnel. All of it comes
// before strongSwan's own rule, 220.
//
//	hostnet.go    routes into the TUN, the guard, removing both
//	look.go       what a host has, looked at and not changed
//	addresses.go  all addresses that it has
//	selected.go   what an IKE daemon's policies select
//	own.go        one gateway in each network namespace
//	watch.go      what of it others have removed
package hostnet
