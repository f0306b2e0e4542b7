package multibuf

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"sync/atomic"

	"culvert/offload"
)

// session is what one SA's keys expand to, in one direction. Nothing in it changes until it is wiped, so lanes share it; a
// lane holds it while a kernel reads it.
type session struct {
	t   *offload.Transform
	dir offload.Direction
	k   *kernels // the engine's: layouts depend on it
	esn bool

	header, icv int
	least, odd  int    // the shortest packet, and the bits that a length beyond it must not have: see Transform.ValidLen
	cipher      uint64 // class of tasks to encrypt: cipher and rounds; 0 for none
	auth        uint64 // class of tasks to authenticate: offload.Auth

	// rest is the session of the engine that runs what the level does not; then all below is empty.
	rest offload.Session
	// few is a session of the same engine for when there are too few packets for a kernel, or nil.
	few offload.Session
	// single is that few is to be used for a burst of one job, without a look at it.
	single bool

	rounds   int    // AES
	schedule []byte // AES-CBC for one direction, 3DES for one direction, or AES-GCM's key
	salt     [4]byte

	inner, outer [8]uint64 // HMAC: the hash's chaining values after the padded key (RFC 2104), a word each
	resume       [2][]byte // the same for the standard library's hash: its image, or what MarshalBinary gives if it has none

	// users counts who holds the session, in steps of 2; the lowest bit says that it is closed.
	users atomic.Int64
}

const closed, user = 1, 2

// newSession makes one for the kernels. The keys have been checked.
func newSession(k *kernels, t *offload.Transform, dir offload.Direction, keys offload.Keys) (*session, error) {
	s := &session{t: t, dir: dir, k: k, esn: keys.ESN, header: t.HeaderLen(), icv: t.ICVLen, least: t.MinLen(), odd: t.BlockLen - 1}
	key := keys.Enc[:t.KeyBits/8]
	switch t.Cipher {
	case offload.AESCBC:
		s.rounds = aesRounds(len(key))
		s.schedule = aligned(aesScheduleLen)
		if dir == offload.Seal {
			expandAES(s.schedule, key)
		} else {
			enc := make([]byte, aesScheduleLen)
			expandAES(enc, key)
			invertAES(s.schedule, enc, s.rounds)
			clear(enc)
		}
	case offload.TripleDESCBC:
		s.schedule = aligned(k.des.size)
		k.des.expand(s.schedule, key, dir == offload.Open)
	case offload.AESGCM:
		s.rounds = aesRounds(len(key))
		s.schedule = aligned(k.gcm.size)
		expandAES(s.schedule, key)
		k.gcm.expand(&s.schedule[0], s.rounds)
		copy(s.salt[:], keys.Enc[len(key):])
	}
	s.auth = uint64(t.Auth)
	if t.Cipher != offload.CipherNull {
		s.cipher = uint64(t.Cipher)<<8 | uint64(s.rounds)
	}
	if t.Auth != offload.AuthNone {
		for half, pad := range []byte{0x36, 0x5c} {
			if err := s.precompute(half, keys.Auth, pad); err != nil {
				s.wipe()
				return nil, err
			}
		}
	}
	return s, nil
}

// hmacHash is what there is to know of an HMAC's hash.
type hmacHash struct {
	new   func() hash.Hash
	magic string // how its marshalled state begins; the chaining values follow, big-endian
	words int    // chaining values
	wide  bool   // they have 64 bits, and a block 128 bytes
	out   int    // bytes of the digest, the first of the chaining values
	lsb   bool   // the digest and the length in the padding are little-endian (RFC 1321)
}

var hmacHashes = [...]hmacHash{
	offload.HMACMD5:    {new: md5.New, magic: "md5\x01", words: 4, out: 16, lsb: true},
	offload.HMACSHA1:   {new: sha1.New, magic: "sha\x01", words: 5, out: 20},
	offload.HMACSHA256: {new: sha256.New, magic: "sha\x03", words: 8, out: 32},
	offload.HMACSHA384: {new: sha512.New384, magic: "sha\x04", words: 8, wide: true, out: 48},
	offload.HMACSHA512: {new: sha512.New, magic: "sha\x07", words: 8, wide: true, out: 64},
}

// block is the length of the hash's block in bytes, shift its logarithm.
func (h *hmacHash) block() int { return 1 << h.shift() }

func (h *hmacHash) shift() uint {
	if h.wide {
		return 7
	}
	return 6
}

// precompute runs the padded key through the hash and keeps the state, for the kernels and for the standard library. Keys
// are never longer than a block.
func (s *session) precompute(half int, key []byte, pad byte) error {
	a := &hmacHashes[s.t.Auth]
	block := make([]byte, a.block())
	defer clear(block)
	copy(block, key)
	for i := range block {
		block[i] ^= pad
	}
	h := a.new()
	h.Write(block)
	state, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	resume := bytes.Clone(image(h))
	h.Reset()
	if err != nil {
		return fmt.Errorf("multibuf: %w: %s: %w", offload.ErrUnsupported, s.t, err)
	}
	words, ok := bytes.CutPrefix(state, []byte(a.magic))
	if !ok {
		clear(state)
		clear(resume)
		return fmt.Errorf("multibuf: %w: %s: the Go library's hash state has an unknown form; build with Go 1.26", offload.ErrUnsupported, s.t)
	}
	to := &s.inner
	if half == 1 {
		to = &s.outer
	}
	for i := range a.words {
		if a.wide {
			to[i] = binary.BigEndian.Uint64(words[8*i:])
		} else {
			to[i] = uint64(binary.BigEndian.Uint32(words[4*i:]))
		}
	}
	if resume == nil {
		s.resume[half] = state
		return nil
	}
	s.resume[half] = resume
	clear(state)
	return nil
}

// Transform is the session's transform.
func (s *session) Transform() *offload.Transform { return s.t }

// Direction is the session's direction.
func (s *session) Direction() offload.Direction { return s.dir }

// hold keeps the keys from being wiped until letGo; false if the session is closed.
func (s *session) hold() bool {
	if s.users.Add(user)&closed == 0 {
		return true
	}
	s.letGo()
	return false
}

// letGo wipes the keys if the session was closed meanwhile and nobody else holds it.
func (s *session) letGo() {
	if s.users.Add(-user) == closed {
		s.wipe()
	}
}

// Close wipes the keys, or leaves that to the last lane that is working with them.
func (s *session) Close() error {
	before := s.users.Or(closed)
	if before == 0 {
		s.wipe()
	}
	if before&closed != 0 {
		return nil
	}
	for _, other := range []offload.Session{s.rest, s.few} {
		if other != nil {
			if err := other.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// wipe may run more than once, one after the other or side by side with nobody but itself: who holds a closed session for a
// moment reads none of it.
func (s *session) wipe() {
	if s.users.Or(wiped)&wiped != 0 {
		return
	}
	clear(s.schedule)
	s.salt = [4]byte{}
	s.inner, s.outer = [8]uint64{}, [8]uint64{}
	clear(s.resume[0])
	clear(s.resume[1])
}

// wiped is a bit of users far above any count of them.
const wiped = 1 << 62

// Format prints what the session is for, whatever the verb, and none of its key material.
func (s *session) Format(f fmt.State, _ rune) {
	io.WriteString(f, "multibuf session to "+s.dir.String()+" "+s.t.String())
}

// LogValue is what Format prints.
func (s *session) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(s)) }
