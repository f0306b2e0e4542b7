//go:build !386

package xfrm

// Native is the ABI of this program.
const Native = Align8
