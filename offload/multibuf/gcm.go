package multibuf

import (
	"encoding/binary"
	"math/bits"

	"culvert/offload"
)

// gcmScratch is what AES-GCM needs besides key and packet.
type gcmScratch struct {
	tag [16]byte
}

// crypt seals or opens the tasks of order, one after the other: within a packet there is enough to do side by side.
func (g *gcmScratch) crypt(k *gcmKernel, dir offload.Direction, tasks []task, order []uint64) {
	native := binary.LittleEndian // kernels of big-endian machines would need their own
	for _, key := range order {
		t := &tasks[taskOf(key)]
		s, esp := t.s, t.esp
		// RFC 4106 section 4: the salt, then the packet's IV. Section 5: SPI and sequence number, with ESN all 64 bits of it.
		iv := native.Uint64(esp[8:])
		iv0, iv1 := uint64(native.Uint32(s.salt[:]))|iv<<32, iv>>32
		aad0, aad1, n := native.Uint64(esp), uint64(0), 8
		if s.esn {
			aad0, aad1, n = aad0&(1<<32-1)|uint64(bits.ReverseBytes32(t.job.SeqHi))<<32, aad0>>32, 12
		}
		p, length, icv := &esp[s.header], t.end-s.header, esp[t.end:]
		if dir == offload.Seal {
			k.seal(&s.schedule[0], s.rounds, p, length, iv0, iv1, aad0, aad1, n, &icv[:16][0])
			continue
		}
		k.open(&s.schedule[0], s.rounds, p, length, iv0, iv1, aad0, aad1, n, &g.tag[0])
		differ := native.Uint64(icv) ^ native.Uint64(g.tag[:])
		differ |= native.Uint64(icv[8:]) ^ native.Uint64(g.tag[8:])
		if differ != 0 {
			clear(esp[s.header:t.end]) // what it decrypted to is nobody's business
			t.job.Status = offload.BadICV
		}
	}
	clear(g.tag[:])
}
