// Package e2e runs gateways as an operator does: the culvert binary, a process each, in network namespaces, with the tools of other
// people in the hosts behind them and on the wire between them.
//
//	e2e_test.go       a row of host, gateway, gateway, host; configurations; processes; what the gateways say of themselves
//	capture_test.go   tcpdump on the wire
//	traffic_test.go   ping, iperf3 and a file through every link, both families inside and outside
//	mtu_test.go       exact sizes, exact answers
//	leak_test.go      nothing in the clear, whatever happens to a gateway
//	host_test.go      one gateway in each namespace; what others remove of its routes is laid again; early signals
//	sequence_test.go  no sequence number twice, whatever happens to a gateway
//	reload_test.go    SIGHUP
//	status_test.go    what status, sa list and policy list print
//	soak_test.go      load without growth, for as long as -soak says
package e2e
