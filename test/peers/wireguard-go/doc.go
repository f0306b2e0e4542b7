// Command wireguard-go is the WireGuard implementation of golang.zx2c4.com/wireguard, as its own main program runs it, but
// configured through standard input: the text of its UAPI "set" operation, without the first line. When the device is up it
// prints "ready". SIGTERM ends it.
//
// It is a peer to compare with, built only when a comparison asks for it.
package main
