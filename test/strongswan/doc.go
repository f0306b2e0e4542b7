// Package strongswan runs gateways under an unmodified strongSwan: charon makes the tunnels, Culvert carries them, and at the other end
// is a strongSwan of its own, with kernel-libipsec, or another Culvert.
//
//	host A – gateway A (culvert and charon) – gateway B (charon with kernel-libipsec, or as gateway A) – host B
//
// The gateways would route between the LANs plainly, so that what is not protected is seen on the wire between them.
package strongswan
