// Command culvert is a userspace IPsec ESP gateway. See `culvert --help`.
//
//	main.go, root.go  the command line, and how errors are told; status.go, engines.go and run.go have the commands
//	check.go          culvert check
//	exec.go           culvert exec
//	usage.go          unknown commands, flags and arguments are errors that name what was probably meant; help
//	internal/early    the signals of culvert run, before anything else
//	internal/gateway  a gateway from a configuration: start, reload, stop, metrics
//	internal/ike      an IKE daemon's side of it: XFRM server, links, routes
//	internal/hostnet  the host's routes, and the guard
//	internal/control  how commands ask a running gateway
//	internal/demo     culvert demo
//	internal/complete what shells complete the values of flags to
//	internal/speed    culvert speed
package main
