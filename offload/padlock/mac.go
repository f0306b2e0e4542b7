package padlock

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding"
	"encoding/binary"
	"errors"
	"hash"

	"culvert/offload"
)

// hashWay is how a hash is computed.
type hashWay uint8

// The ways. All but the first are the unit's, and which of them a processor has right is tried out.
const (
	inSoftware hashWay = iota // by the standard library
	inBlocks                  // block by block from the HMAC's precomputed state, padding included
	resumed                   // to its end from that state, as after an interruption
	whole                     // to its end from the very start, the HMAC's first block included
)

var hashWays = [...]string{inSoftware: "software", inBlocks: "in blocks", resumed: "resumed", whole: "whole"}

// String says it in a word or two.
func (w hashWay) String() string { return hashWays[w] }

// inParts tells the unit to hash a number of blocks, and no more.
const inParts = ^uintptr(0)

// hashes are the hashes of the HMACs. Those that the unit has come with their initial state.
var hashes = [...]struct {
	name string
	new  func() hash.Hash
	unit func(state, src *byte, done, count uintptr)
	init []uint32
}{
	offload.HMACMD5: {name: "MD5", new: md5.New},
	offload.HMACSHA1: {name: "SHA1", new: sha1.New, unit: xsha1,
		init: []uint32{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}},
	offload.HMACSHA256: {name: "SHA256", new: sha256.New, unit: xsha256,
		init: []uint32{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}},
	offload.HMACSHA384: {name: "SHA384", new: sha512.New384},
	offload.HMACSHA512: {name: "SHA512", new: sha512.New},
}

// blockLen is that of the unit's hashes.
const blockLen = 64

// resumable is a hash whose state can be set.
type resumable interface {
	hash.Hash
	encoding.BinaryMarshaler
	encoding.BinaryUnmarshaler
}

// half is the inner or the outer half of an HMAC (RFC 2104) under one key: its first block, and what the hash is after it.
type half struct {
	block [128]byte
	after []byte   // as the standard library marshals it
	state [32]byte // as the unit has it
}

var errState = errors.New("the standard library's hash state has an unknown form")

// set computes everything. The key is no longer than the hash's block.
func (h *half) set(auth offload.Auth, key []byte, pad byte) error {
	std := hashes[auth].new().(resumable)
	n := copy(h.block[:], key)
	clear(h.block[n:])
	for i := range h.block[:std.BlockSize()] {
		h.block[i] ^= pad
	}
	std.Write(h.block[:std.BlockSize()])
	var err error
	if h.after, err = std.MarshalBinary(); err != nil {
		return err
	}
	if words := len(hashes[auth].init); words > 0 {
		// Four bytes say whose state it is; the words follow, big-endian.
		if len(h.after) < 4+4*words {
			return errState
		}
		for i := range words {
			binary.NativeEndian.PutUint32(h.state[4*i:], binary.BigEndian.Uint32(h.after[4+4*i:]))
		}
	}
	return nil
}

func (h *half) wipe() {
	clear(h.block[:])
	clear(h.after)
	clear(h.state[:])
}

// mac gives the whole HMAC of msg. The result is valid until the next call.
func (l *lane) mac(s *session, msg []byte) []byte {
	return l.hash(s, &s.outer, l.hash(s, &s.inner, msg))
}

// hash gives the hash of a half's first block followed by msg, which may be what the last call gave.
func (l *lane) hash(s *session, h *half, msg []byte) []byte {
	if s.way == inSoftware {
		std := l.std[s.t.Auth]
		if err := std.UnmarshalBinary(h.after); err != nil {
			panic("padlock: a hash refuses its own state: " + err.Error())
		}
		std.Write(msg)
		return std.Sum(l.sum[:0])
	}
	xsha, init := hashes[s.t.Auth].unit, hashes[s.t.Auth].init
	state, total := &l.sc.state, blockLen+len(msg)
	copy(state[:], h.state[:])
	switch s.way {
	case inBlocks:
		if n := len(msg) / blockLen; n > 0 {
			xsha(&state[0], &msg[0], inParts, uintptr(n))
		}
		tail := l.sc.block[:]
		n := copy(tail, msg[len(msg)&^(blockLen-1):])
		tail[n] = 0x80
		end := (n + 1 + 8 + blockLen - 1) &^ (blockLen - 1)
		clear(tail[n+1 : end-8])
		binary.BigEndian.PutUint64(tail[end-8:], uint64(total)*8)
		xsha(&state[0], &tail[0], inParts, uintptr(end/blockLen))
	case resumed:
		xsha(&state[0], &msg[0], blockLen, uintptr(total))
	case whole:
		for i, w := range init {
			binary.NativeEndian.PutUint32(state[4*i:], w)
		}
		l.whole = append(append(l.whole[:0], h.block[:blockLen]...), msg...)
		xsha(&state[0], &l.whole[0], 0, uintptr(total))
		clear(l.whole[:blockLen])
	}
	for i := range init {
		binary.BigEndian.PutUint32(l.sum[4*i:], binary.NativeEndian.Uint32(state[4*i:]))
	}
	return l.sum[:4*len(init)]
}
