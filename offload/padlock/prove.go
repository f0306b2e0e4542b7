package padlock

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"runtime/debug"
	"unsafe"

	"culvert/offload"
)

// unit is a processor's PadLock, as far as it was found to work.
type unit struct {
	features
	unaligned bool // the cipher unit takes data at any address
	ways      [len(hashes)]hashWay
}

// prove tries out what depends on the stepping and no flag tells: a mistake costs speed here, and packets later.
func prove(f features) unit {
	u := unit{features: f}
	u.unaligned = f.ace2 && u.provesUnaligned()
	if f.phe {
		for _, a := range []offload.Auth{offload.HMACSHA1, offload.HMACSHA256} {
			ways := []hashWay{resumed, whole}
			if f.multipart {
				ways = []hashWay{inBlocks, resumed, whole}
			}
			for _, w := range ways {
				if u.provesHash(a, w) {
					u.ways[a] = w
					break
				}
			}
		}
	}
	return u
}

// survives reports whether try says so, and neither panics nor faults: what the unit does not like is a general protection fault.
func survives(try func() bool) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return try()
}

// provesUnaligned reports whether data at every address within 16 bytes is encrypted and decrypted well.
func (u unit) provesUnaligned() bool {
	u.unaligned = true
	return survives(func() bool {
		key, iv := pattern(16, 0x11), pattern(16, 0x5a)
		l := newLane(&u)
		mem := unsafe.Slice((*byte)(aligned(pageSize, pageSize)), pageSize)
		block, err := aes.NewCipher(key)
		if err != nil {
			return false
		}
		for at := range 16 {
			plain, data := pattern(96, byte(at)), mem[at:at+96]
			want := make([]byte, len(plain))
			cipher.NewCBCEncrypter(block, iv).CryptBlocks(want, plain)
			copy(data, plain)
			for _, step := range []struct {
				decrypt bool
				want    []byte
			}{{false, want}, {true, plain}} {
				s := &session{hard: (*hardKeys)(aligned(int(unsafe.Sizeof(hardKeys{})), 16))}
				s.hard.set(key, step.decrypt)
				l.crypt(s, iv, data)
				if !bytes.Equal(data, step.want) {
					return false
				}
			}
		}
		return true
	})
}

// provesHash reports whether a hash computed in this way gives the right HMACs.
func (u unit) provesHash(a offload.Auth, w hashWay) bool {
	u.ways[a] = w
	return survives(func() bool {
		l := newLane(&u)
		key := pattern(hashes[a].new().Size(), 0x77)
		s := &session{t: &offload.Transform{Auth: a}, way: w}
		if s.inner.set(a, key, 0x36) != nil || s.outer.set(a, key, 0x5c) != nil {
			return false
		}
		// A unit that takes the first block for one of the message's reads beyond it.
		mem := make([]byte, 2048)
		for _, n := range []int{24, 55, 56, 63, 64, 65, 119, 120, 128, 1400} {
			for _, at := range []int{0, 5} {
				msg := mem[at : at+n]
				copy(msg, pattern(n, byte(n)))
				m := hmac.New(hashes[a].new, key)
				m.Write(msg)
				if !hmac.Equal(l.mac(s, msg), m.Sum(nil)) {
					return false
				}
			}
		}
		return true
	})
}

// pattern is n bytes that do not repeat soon.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		seed = seed*5 + 29
		b[i] = seed ^ byte(i>>3)
	}
	return b
}
