package multibuf

import (
	"crypto/subtle"
	"encoding/binary"

	"culvert/offload"
)

// gcmScratch is what AES-GCM needs besides key and packet.
type gcmScratch struct {
	iv, aad, tag [16]byte
}

// crypt seals or opens the tasks of order, one after the other: within a packet there is enough to do side by side.
func (g *gcmScratch) crypt(k *gcmKernel, dir offload.Direction, tasks []task, order []uint64) {
	for _, key := range order {
		t := &tasks[taskOf(key)]
		s, esp := t.s, t.esp
		// RFC 4106 section 4: the salt, then the packet's IV. Section 5: SPI and sequence number, with ESN all 64 bits of it.
		copy(g.iv[:4], s.salt[:])
		copy(g.iv[4:12], esp[8:16])
		n := 8
		g.aad = [16]byte{}
		copy(g.aad[:], esp[:8])
		if s.esn {
			binary.BigEndian.PutUint32(g.aad[4:], t.job.SeqHi)
			copy(g.aad[8:12], esp[4:8])
			n = 12
		}
		p, length, icv := &esp[s.header], t.end-s.header, esp[t.end:]
		if dir == offload.Seal {
			k.seal(&s.schedule[0], s.rounds, p, length, &g.iv, &g.aad, n, &g.tag)
			copy(icv, g.tag[:])
			continue
		}
		k.open(&s.schedule[0], s.rounds, p, length, &g.iv, &g.aad, n, &g.tag)
		if subtle.ConstantTimeCompare(icv, g.tag[:]) != 1 {
			clear(esp[s.header:t.end]) // what it decrypted to is nobody's business
			t.job.Status = offload.BadICV
		}
	}
	*g = gcmScratch{}
}
