// Package judge lets programs that other people wrote say whether ESP packets are right: scapy builds and opens them, tshark
// checks their ICV and decrypts them, tcpdump decrypts them.
//
//	judge.go    what judges have in common
//	scapy.go    scapy.layers.ipsec of Debian's python3-scapy, driven through esp.py
//	tshark.go   Wireshark's dissector, told the keys through a table of SAs
//	tcpdump.go  tcpdump -E
//	pcap.go     capture files
//	packet.go   inner packets and keys to try
//
// Each judge says of a transform whether it knows it, and if not, why: a test that asks a judge lists what was not judged.
package judge
