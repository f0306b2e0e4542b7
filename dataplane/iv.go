package dataplane

import (
	cryptorand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
)

// ivSource makes the unpredictable IVs of the CBC transforms: ChaCha8, keyed by the system's generator, one for each lane,
// so that no system call and no lock stands on the packet path. Its key is replaced by its own output as it runs
// (fast key erasure), and by the system at every start: an IV cannot be foretold from those before it or from another run.
type ivSource struct {
	gen *rand.ChaCha8
}

func newIVSource() (ivSource, error) {
	var seed [32]byte
	if _, err := cryptorand.Read(seed[:]); err != nil {
		return ivSource{}, err
	}
	return ivSource{gen: rand.NewChaCha8(seed)}, nil
}

// read fills iv, whose length is a multiple of 8.
func (s *ivSource) read(iv []byte) {
	for len(iv) >= 8 {
		binary.LittleEndian.PutUint64(iv, s.gen.Uint64())
		iv = iv[8:]
	}
}
