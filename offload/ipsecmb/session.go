//go:build ipsecmb && cgo && amd64

package ipsecmb

// #include "run.h"
import "C"

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"culvert/offload"
)

// What the library calls our ciphers and HMACs. AES-GCM and ChaCha20-Poly1305 name a "hash" too.
var (
	cipherModes = [...]C.IMB_CIPHER_MODE{
		offload.CipherNull: C.IMB_CIPHER_NULL, offload.AESCBC: C.IMB_CIPHER_CBC, offload.TripleDESCBC: C.IMB_CIPHER_DES3,
		offload.AESGCM: C.IMB_CIPHER_GCM, offload.ChaCha20Poly1305: C.IMB_CIPHER_CHACHA20_POLY1305,
	}
	hashAlgs = [...]C.IMB_HASH_ALG{
		offload.HMACMD5: C.IMB_AUTH_MD5, offload.HMACSHA1: C.IMB_AUTH_HMAC_SHA_1, offload.HMACSHA256: C.IMB_AUTH_HMAC_SHA_256,
		offload.HMACSHA384: C.IMB_AUTH_HMAC_SHA_384, offload.HMACSHA512: C.IMB_AUTH_HMAC_SHA_512,
	}
)

func hashOf(t *offload.Transform) C.IMB_HASH_ALG {
	switch t.Cipher {
	case offload.AESGCM:
		return C.IMB_AUTH_AES_GMAC
	case offload.ChaCha20Poly1305:
		return C.IMB_AUTH_CHACHA20_POLY1305
	default:
		return hashAlgs[t.Auth]
	}
}

// session is one SA's key schedules. They lie in C memory, laid out for the level of the engine that made them.
type session struct {
	t    *offload.Transform
	dir  offload.Direction
	core *core
	esn  bool
	salt [4]byte
	keys *C.culvert_session

	// users counts the bursts that use the keys, and has the closed bit once nobody may begin to. Who leaves both at zero
	// users and closed frees the keys.
	users atomic.Int64
}

const closed = 1 << 62

var errNoMemory = errors.New("ipsecmb: no memory for key schedules")

func (c *core) newSession(t *offload.Transform, dir offload.Direction, k offload.Keys) (*session, error) {
	s := &session{t: t, dir: dir, core: c, esn: k.ESN}
	enc := k.Enc[:t.KeyBits/8]
	copy(s.salt[:], k.Enc[t.KeyBits/8:])
	c.mu.Lock()
	s.keys = C.culvert_new_session(c.manager, cipherModes[t.Cipher], hashOf(t), bytesOf(enc), C.uint32_t(len(enc)), bytesOf(k.Auth), C.uint32_t(len(k.Auth)))
	c.mu.Unlock()
	if s.keys == nil {
		return nil, errNoMemory
	}
	return s, nil
}

// bytesOf is the address of a key for C.
func bytesOf(k offload.Key) *C.uint8_t {
	if len(k) == 0 {
		return nil
	}
	return (*C.uint8_t)(&k[0])
}

// Transform is the session's transform.
func (s *session) Transform() *offload.Transform { return s.t }

// Direction is the session's direction.
func (s *session) Direction() offload.Direction { return s.dir }

// acquire keeps the keys until release; false if the session is closed.
func (s *session) acquire() bool {
	if s.users.Add(1)&closed != 0 {
		s.release()
		return false
	}
	return true
}

func (s *session) release() {
	if s.users.Add(-1) == closed {
		s.free()
	}
}

// free wipes the keys. A late acquire may come and go, and make the count pass closed again: only the first frees.
func (s *session) free() {
	if s.users.CompareAndSwap(closed, closed|freed) {
		C.culvert_free_session(s.keys)
		s.keys = nil
		clear(s.salt[:])
	}
}

// freed is set beside closed when the keys are gone.
const freed = 1 << 61

// Close wipes the keys as soon as no burst uses them.
func (s *session) Close() error {
	for {
		n := s.users.Load()
		if n&closed != 0 {
			return nil
		}
		if s.users.CompareAndSwap(n, n|closed) {
			if n == 0 {
				s.free()
			}
			return nil
		}
	}
}

// Format prints what the session is for, whatever the verb, and none of its key material.
func (s *session) Format(f fmt.State, _ rune) {
	io.WriteString(f, "ipsecmb session to "+s.dir.String()+" "+s.t.String())
}

// LogValue is what Format prints.
func (s *session) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(s)) }
