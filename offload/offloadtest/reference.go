package offloadtest

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"fmt"
	"hash"

	"culvert/offload"

	"golang.org/x/crypto/chacha20poly1305"
)

// reference does one packet the plainest way: objects made anew for each, no state kept, memory copied. Its own offsets are
// counted from RFC 4303's figures, not taken from the transform's methods.
type reference struct {
	t *offload.Transform
	k offload.Keys
}

func (r reference) ivLen() int {
	switch r.t.Cipher {
	case offload.AESCBC:
		return 16
	case offload.TripleDESCBC, offload.AESGCM, offload.ChaCha20Poly1305:
		return 8
	}
	return 0
}

func (r reference) block() cipher.Block {
	var b cipher.Block
	var err error
	if r.t.Cipher == offload.TripleDESCBC {
		b, err = des.NewTripleDESCipher(r.k.Enc)
	} else {
		b, err = aes.NewCipher(r.k.Enc[:r.t.KeyBits/8])
	}
	if err != nil {
		panic(err)
	}
	return b
}

func (r reference) aead() cipher.AEAD {
	var a cipher.AEAD
	var err error
	if r.t.Cipher == offload.AESGCM {
		a, err = cipher.NewGCM(r.block())
	} else {
		a, err = chacha20poly1305.New(r.k.Enc[:32])
	}
	if err != nil {
		panic(err)
	}
	return a
}

// aad is RFC 4106 figures 2 and 3.
func (r reference) aad(esp []byte, seqHi uint32) []byte {
	if !r.k.ESN {
		return bytes.Clone(esp[:8])
	}
	aad := bytes.Clone(esp[:4])
	aad = binary.BigEndian.AppendUint32(aad, seqHi)
	return append(aad, esp[4:8]...)
}

func (r reference) nonce(esp []byte) []byte {
	return append(bytes.Clone(r.k.Enc[r.t.KeyBits/8:]), esp[8:16]...)
}

// icv is the truncated HMAC of everything before it, and of the high half of an extended sequence number.
func (r reference) icv(before []byte, seqHi uint32) []byte {
	var h func() hash.Hash
	switch r.t.Auth {
	case offload.HMACMD5:
		h = md5.New
	case offload.HMACSHA1:
		h = sha1.New
	case offload.HMACSHA256:
		h = sha256.New
	case offload.HMACSHA384:
		h = sha512.New384
	case offload.HMACSHA512:
		h = sha512.New
	default:
		panic(fmt.Sprintf("no HMAC for %v", r.t.Auth))
	}
	m := hmac.New(h, r.k.Auth)
	m.Write(before)
	if r.k.ESN {
		m.Write([]byte{byte(seqHi >> 24), byte(seqHi >> 16), byte(seqHi >> 8), byte(seqHi)})
	}
	return m.Sum(nil)[:r.t.ICVLen]
}

// seal gives the packet for a plain one: SPI, sequence number, IV, payload and trailer, without the ICV.
func (r reference) seal(plain []byte, seqHi uint32) []byte {
	head, text := plain[:8+r.ivLen()], plain[8+r.ivLen():]
	if r.t.AEAD {
		return append(bytes.Clone(head), r.aead().Seal(nil, r.nonce(plain), text, r.aad(plain, seqHi))...)
	}
	ciphertext := bytes.Clone(text)
	if r.t.Cipher != offload.CipherNull {
		cipher.NewCBCEncrypter(r.block(), head[8:]).CryptBlocks(ciphertext, text)
	}
	packet := append(bytes.Clone(head), ciphertext...)
	return append(packet, r.icv(packet, seqHi)...)
}

// open gives back the plain packet, and the status that an engine must give.
func (r reference) open(esp []byte, seqHi uint32) ([]byte, offload.Status) {
	iv, icv, align := r.ivLen(), r.t.ICVLen, 4
	if r.t.Cipher == offload.AESCBC || r.t.Cipher == offload.TripleDESCBC {
		align = iv
	}
	text := len(esp) - 8 - iv - icv
	if text < align || text%align != 0 {
		return nil, offload.BadLength
	}
	head, end := esp[:8+iv], len(esp)-icv
	if r.t.AEAD {
		plain, err := r.aead().Open(nil, r.nonce(esp), esp[8+iv:], r.aad(esp, seqHi))
		if err != nil {
			return nil, offload.BadICV
		}
		return append(bytes.Clone(head), plain...), offload.OK
	}
	if !hmac.Equal(r.icv(esp[:end], seqHi), esp[end:]) {
		return nil, offload.BadICV
	}
	plain := bytes.Clone(esp[:end])
	if r.t.Cipher != offload.CipherNull {
		cipher.NewCBCDecrypter(r.block(), head[8:]).CryptBlocks(plain[8+iv:], esp[8+iv:end])
	}
	return plain, offload.OK
}
