package ike

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// sealName is the name under which systemd keeps the key of the saved state.
const sealName = "seal"

// sealKeyLen is that of AES-256, in bytes.
const sealKeyLen = 32

// seal encrypts the file of the server's state. Its key is in a sealed memfd in systemd's store and in the gateways' memory, and in no
// file: whoever gets hold of the file, out of a backup or of swap, has no SA's key.
type seal struct{ aead cipher.AEAD }

// newSeal makes a key, and the descriptor that is to be kept of it.
func newSeal() (*seal, *os.File, error) {
	fd, err := unix.MemfdCreate("culvert "+sealName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("a file in memory for the key of the saved state: %w", err)
	}
	f := os.NewFile(uintptr(fd), sealName)
	key := make([]byte, sealKeyLen)
	defer clear(key)
	rand.Read(key) // never fails
	if _, err = f.WriteAt(key, 0); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	var s *seal
	if err == nil {
		s, err = openSeal(f)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("the key of the saved state: %w", err)
	}
	return s, f, nil
}

// openSeal reads the key that newSeal has made.
func openSeal(f *os.File) (*seal, error) {
	key := make([]byte, sealKeyLen+1)
	defer clear(key)
	if n, _ := f.ReadAt(key, 0); n != sealKeyLen {
		return nil, fmt.Errorf("the key of the saved state has %d bytes, and should have %d", n, sealKeyLen)
	}
	block, err := aes.NewCipher(key[:sealKeyLen])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &seal{aead}, err
}

// sealContext is what the seal is for.
var sealContext = []byte("culvert: saved state of the XFRM server")

func (s *seal) seal(state []byte) []byte { return s.aead.Seal(nil, nil, state, sealContext) }

// errSeal says that the file is not what this gateway, or the one before it, has written.
var errSeal = errors.New("it was sealed with another key, or changed")

func (s *seal) open(file []byte) ([]byte, error) {
	state, err := s.aead.Open(nil, nil, file, sealContext)
	if err != nil {
		return nil, errSeal
	}
	return state, nil
}
