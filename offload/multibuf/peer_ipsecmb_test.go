//go:build ipsecmb && cgo && amd64

package multibuf_test

import "culvert/offload/ipsecmb"

func init() { peers = append(peers, ipsecmb.New(ipsecmb.Options{TripleDES: true})) }
