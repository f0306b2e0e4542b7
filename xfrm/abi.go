package xfrm

import "encoding/binary"

// ABI is the one thing in which two programs on one machine can disagree about these messages: where a 64-bit integer may
// stand in a C structure. It changes the length of the six structures that hold such integers, not where their fields are.
type ABI uint8

const (
	// Align8 pads structures with 64-bit integers to multiples of 8 bytes: every architecture but one.
	Align8 ABI = iota
	// Align4 pads them to multiples of 4: 386. A 64-bit kernel talks so to a 386 program.
	Align4
)

// String is "align8" or "align4".
func (a ABI) String() string { return named([]string{"align8", "align4"}, "abi", uint8(a)) }

// Sizes in bytes of the structures that are the same everywhere.
const (
	sizeAddress     = 16
	sizeID          = 24
	sizeSelector    = 56
	sizeLifetimeCfg = 64
	sizeLifetimeCur = 32
	sizeSAID        = 24
	sizePolicyID    = 64
	sizeAEventID    = 48
	sizeMapping     = 64
	sizeReport      = 60
	sizeTmpl        = 64
	sizeEncap       = 24
	sizeReplay      = 12
	sizeReplayESN   = 24 // without the bitmap
	sizeAlgo        = 68 // without the key
	sizeAlgoTrunc   = 72 // without the key; also an AEAD's
	sizeSecCtx      = 8  // without the context
	sizePolicyType  = 6
	sizeMigrate     = 76
	sizeKMAddress   = 40
	sizeMark        = 8
	sizeFilter      = 36
	sizeOffload     = 8
	sizeDefault     = 3
	sizeSPDInfo     = 24
)

// end is the length of a structure with 64-bit integers whose last field ends at n.
func (a ABI) end(n int) int {
	if a == Align4 {
		return (n + 3) &^ 3
	}
	return (n + 7) &^ 7
}

// Lengths in bytes of the structures that differ.
func (a ABI) sizeSAInfo() int       { return a.end(217) }
func (a ABI) sizeAllocSPI() int     { return a.end(a.sizeSAInfo() + 8) }
func (a ABI) sizeExpire() int       { return a.end(a.sizeSAInfo() + 1) }
func (a ABI) sizePolicyInfo() int   { return a.end(164) }
func (a ABI) sizePolicyExpire() int { return a.end(a.sizePolicyInfo() + 1) }
func (a ABI) sizeAcquire() int      { return a.end(96 + a.sizePolicyInfo() + 16) }

// Integers are in the machine's own order, addresses, SPIs and ports in the network's.
var (
	host = binary.NativeEndian
	net  = binary.BigEndian
)

// grow appends n zero bytes and returns the longer slice and those bytes.
func grow(dst []byte, n int) (all, fresh []byte) {
	l := len(dst)
	if cap(dst)-l >= n {
		all = dst[:l+n]
		fresh = all[l:]
		clear(fresh)
		return all, fresh
	}
	all = append(dst, make([]byte, n)...)
	return all, all[l:]
}
