package soft

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"crypto/subtle"
	"encoding/binary"

	"culvert/offload"

	"golang.org/x/crypto/chacha20poly1305"
)

// state is all that one goroutine needs to work on a session's packets. Several of one session share no memory, so each
// can be wiped when it is not in use.
type state struct {
	t       *offload.Transform
	header  int // bytes before the ciphertext
	icv     int // bytes
	esn     bool
	nonce   [12]byte // AEAD: the salt, then the packet's IV (RFC 4106 section 4, RFC 7634 section 2)
	aad     [12]byte // AEAD: SPI, with ESN the high half of the sequence number, its low half (RFC 4106 section 5)
	seqHi   [4]byte  // HMAC with ESN: what follows the ciphertext but is not sent (RFC 4303 section 2.2.1)
	aead    cipher.AEAD
	mac     *mac
	block   cipher.Block
	encrypt cbc
	decrypt cbc
}

// cbc is what the standard library's CBC modes are: a new IV costs no allocation.
type cbc interface {
	cipher.BlockMode
	SetIV(iv []byte)
}

// newState makes everything for one direction. The keys have been checked.
func newState(t *offload.Transform, dir offload.Direction, k offload.Keys) (*state, error) {
	st := &state{t: t, header: t.HeaderLen(), icv: t.ICVLen, esn: k.ESN}
	key, salt := k.Enc[:t.KeyBits/8], k.Enc[t.KeyBits/8:]
	var err error
	switch t.Cipher {
	case offload.AESCBC:
		st.block, err = aes.NewCipher(key)
	case offload.TripleDESCBC:
		st.block, err = des.NewTripleDESCipher(key)
	case offload.AESGCM:
		if st.block, err = aes.NewCipher(key); err == nil {
			st.aead, err = cipher.NewGCM(st.block)
		}
	case offload.ChaCha20Poly1305:
		st.aead, err = chacha20poly1305.New(key)
	}
	if err != nil {
		return nil, err
	}
	if t.AEAD {
		copy(st.nonce[:], salt)
		return st, nil
	}
	if st.block != nil {
		iv := make([]byte, t.IVLen)
		if dir == offload.Seal {
			st.encrypt = cipher.NewCBCEncrypter(st.block, iv).(cbc)
		} else {
			st.decrypt = cipher.NewCBCDecrypter(st.block, iv).(cbc)
		}
	}
	st.mac, err = newMAC(hashes[t.Auth], k.Auth)
	return st, err
}

// seal works on a packet whose length is valid.
func (st *state) seal(esp []byte, seqHi uint32) offload.Status {
	end := len(esp) - st.icv
	if st.aead != nil {
		nonce, aad := st.aeadInput(esp, seqHi)
		// The capacity ends with the packet: Seal appends the ICV in place and can reach no further.
		st.aead.Seal(esp[st.header:st.header:len(esp)], nonce, esp[st.header:end], aad)
		return offload.OK
	}
	if st.encrypt != nil {
		st.encrypt.SetIV(esp[8:st.header])
		st.encrypt.CryptBlocks(esp[st.header:end], esp[st.header:end])
	}
	copy(esp[end:], st.mac.compute(esp[:end], st.unsent(seqHi)))
	return offload.OK
}

// open works on a packet whose length is valid. Nothing is decrypted before the ICV has proved right.
func (st *state) open(esp []byte, seqHi uint32) offload.Status {
	end := len(esp) - st.icv
	if st.aead != nil {
		nonce, aad := st.aeadInput(esp, seqHi)
		if _, err := st.aead.Open(esp[st.header:st.header:len(esp)], nonce, esp[st.header:], aad); err != nil {
			return offload.BadICV
		}
		return offload.OK
	}
	sum := st.mac.compute(esp[:end], st.unsent(seqHi))
	if subtle.ConstantTimeCompare(sum[:st.icv], esp[end:]) != 1 {
		return offload.BadICV
	}
	if st.decrypt != nil {
		st.decrypt.SetIV(esp[8:st.header])
		st.decrypt.CryptBlocks(esp[st.header:end], esp[st.header:end])
	}
	return offload.OK
}

// aeadInput builds nonce and additional data for a packet.
func (st *state) aeadInput(esp []byte, seqHi uint32) (nonce, aad []byte) {
	copy(st.nonce[4:], esp[8:16])
	if !st.esn {
		copy(st.aad[:8], esp[:8])
		return st.nonce[:], st.aad[:8]
	}
	copy(st.aad[:4], esp[:4])
	binary.BigEndian.PutUint32(st.aad[4:], seqHi)
	copy(st.aad[8:], esp[4:8])
	return st.nonce[:], st.aad[:]
}

// unsent is what an HMAC covers after the ciphertext: with ESN the high half of the sequence number, otherwise nothing.
func (st *state) unsent(seqHi uint32) []byte {
	if !st.esn {
		return nil
	}
	binary.BigEndian.PutUint32(st.seqHi[:], seqHi)
	return st.seqHi[:]
}

// wipe clears all that depends on the keys. The state is of no use after it.
func (st *state) wipe() {
	clear(st.nonce[:])
	wipe(st.block)
	wipe(st.aead)
	wipe(st.encrypt) // AES's CBC modes hold a copy of the key schedule
	wipe(st.decrypt)
	if st.mac != nil {
		st.mac.wipe()
	}
}
