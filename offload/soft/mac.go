package soft

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding"
	"hash"

	"culvert/offload"
)

// hashes makes the hash of each HMAC.
var hashes = [...]func() hash.Hash{
	offload.HMACMD5:    md5.New,
	offload.HMACSHA1:   sha1.New,
	offload.HMACSHA256: sha256.New,
	offload.HMACSHA384: sha512.New384,
	offload.HMACSHA512: sha512.New,
}

// mac is an HMAC (RFC 2104) under one key. What the hash is after the first, padded, block of its inner and of its outer
// half depends on the key alone: both are computed once, and every packet resumes from them. crypto/hmac does the same
// through UnmarshalBinary; copying the struct saves 10 % or more of a short packet's SHA-1 and SHA-256.
type mac struct {
	h    hash.Hash // the working state
	work []byte    // its memory; nil if it is not a plain struct

	inner, outer []byte // both halves' states: memory images, or what MarshalBinary gave
	sum          [64]byte
}

// newMAC computes both halves. The key may have any length.
func newMAC(newHash func() hash.Hash, key []byte) (*mac, error) {
	m := &mac{h: newHash()}
	m.work = memory(m.h)
	block := make([]byte, m.h.BlockSize())
	defer clear(block)
	if len(key) > len(block) { // RFC 2104 section 2: too long a key is hashed first
		m.h.Write(key)
		key = m.h.Sum(m.sum[:0])
	}
	var err error
	if m.inner, err = m.half(block, key, 0x36); err != nil {
		return nil, err
	}
	m.outer, err = m.half(block, key, 0x5c)
	clear(m.sum[:])
	return m, err
}

// half gives the state of the hash after its first block, which is the key, padded with zeros, xored with pad.
func (m *mac) half(block, key []byte, pad byte) ([]byte, error) {
	clear(block)
	copy(block, key)
	for i := range block {
		block[i] ^= pad
	}
	m.h.Reset()
	m.h.Write(block)
	if m.work != nil {
		return append([]byte(nil), m.work...), nil
	}
	return m.h.(encoding.BinaryMarshaler).MarshalBinary()
}

// resume sets the working state to one of the halves.
func (m *mac) resume(half []byte) {
	if m.work != nil {
		copy(m.work, half)
		return
	}
	if err := m.h.(encoding.BinaryUnmarshaler).UnmarshalBinary(half); err != nil {
		panic("soft: a hash refuses its own state: " + err.Error())
	}
}

// compute gives the whole HMAC of data followed by more. The result is valid until the next call.
func (m *mac) compute(data, more []byte) []byte {
	m.resume(m.inner)
	m.h.Write(data)
	if len(more) != 0 {
		m.h.Write(more)
	}
	sum := m.h.Sum(m.sum[:0])
	m.resume(m.outer)
	m.h.Write(sum)
	return m.h.Sum(m.sum[:0])
}

func (m *mac) wipe() {
	clear(m.inner)
	clear(m.outer)
	clear(m.sum[:])
	m.h.Reset()
	wipe(m.h)
}
