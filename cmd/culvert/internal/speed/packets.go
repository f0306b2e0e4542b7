package speed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"culvert/offload"
	"culvert/offload/soft"
)

// errWrong is what an engine is told that gave a wrong answer while it was measured.
var errWrong = errors.New("wrong result")

// distinct is how many different packets a burst has, over and over: enough to notice an engine that mixes up neighbours,
// few enough to stay in the first-level cache while they are copied into place.
const distinct = 8

// slot is the distance between packets. At multiples of 2048 they would share the sets of a first-level cache.
func slot(esp int) int {
	return max(1, (esp-64+2047)/2048)*2048 + 64
}

// packets are those of a row, before and after, and the keys of their SA.
type packets struct {
	t      *offload.Transform
	keys   offload.Keys
	plain  [distinct][]byte // with room for the ICV
	sealed [distinct][]byte
}

// newPackets makes packets whose plaintext (payload, padding, pad length and next header) is size bytes, rounded up to the
// transform's blocks, and has the reference engine seal them.
func newPackets(t *offload.Transform, size int) (*packets, error) {
	rnd := rand.New(rand.NewPCG(uint64(size), 0x9e3779b97f4a7c15))
	random := func(n int) []byte {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(rnd.Uint32())
		}
		return p
	}
	p := &packets{t: t, keys: offload.Keys{Enc: random(t.EncKeyLen()), Auth: random(t.AuthKeyLen)}}
	payload := size - 2
	for i := range p.plain {
		esp := random(t.SealedLen(payload))
		binary.BigEndian.PutUint32(esp, 0x1000)
		binary.BigEndian.PutUint32(esp[4:], uint32(i+1))
		end := len(esp) - t.ICVLen
		pad := t.PadLen(payload)
		for k := range pad {
			esp[end-2-pad+k] = byte(k + 1)
		}
		esp[end-2], esp[end-1] = byte(pad), 4
		p.plain[i] = esp
		p.sealed[i] = bytes.Clone(esp)
	}
	return p, p.reference(offload.Seal, p.sealed[:])
}

// reference has package soft seal or open packets in place, and fails unless all are good.
func (p *packets) reference(dir offload.Direction, esps [][]byte) error {
	e := soft.New()
	s, err := e.NewSession(p.t, dir, p.keys)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := e.NewLane(0)
	if err != nil {
		return err
	}
	defer l.Close()
	b := &offload.Burst{Dir: dir, Jobs: make([]offload.Job, len(esps))}
	for i := range esps {
		b.Jobs[i] = offload.Job{Session: s, ESP: esps[i]}
	}
	if err := offload.Do(l, b); err != nil {
		return err
	}
	for i := range b.Jobs {
		if st := b.Jobs[i].Status; st != offload.OK {
			return fmt.Errorf("%w: package soft cannot %v packet %d: %s", errWrong, dir, i, st.Text())
		}
	}
	return nil
}

// before is what a direction starts from, after what must come out.
func (p *packets) before(dir offload.Direction) *[distinct][]byte {
	if dir == offload.Open {
		return &p.sealed
	}
	return &p.plain
}

// lay copies the packets of a burst into place.
func (p *packets) lay(b *offload.Burst) {
	from := p.before(b.Dir)
	for k := range b.Jobs {
		copy(b.Jobs[k].ESP, from[k%distinct])
	}
}

// verify compares a burst whose packets were laid and have been worked on once.
func (p *packets) verify(b *offload.Burst) error {
	for k := range b.Jobs {
		if st := b.Jobs[k].Status; st != offload.OK {
			return fmt.Errorf("%w: packet %d of a burst: %s", errWrong, k, st.Text())
		}
		want, got := p.sealed[k%distinct], b.Jobs[k].ESP
		if b.Dir == offload.Open {
			end := len(got) - p.t.ICVLen
			want, got = p.plain[k%distinct][:end], got[:end]
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%w: packet %d of a burst is another than package soft makes", errWrong, k)
		}
	}
	return nil
}

// verifyLast looks at a burst as the measured loop left it. Opened packets must be the plaintext. Sealed ones have been
// sealed over and over, each time over what the last time left: they must be authentic.
func (p *packets) verifyLast(b *offload.Burst) error {
	if b.Dir == offload.Open {
		return p.verify(b)
	}
	esps := make([][]byte, len(b.Jobs))
	for k := range b.Jobs {
		esps[k] = bytes.Clone(b.Jobs[k].ESP)
	}
	return p.reference(offload.Open, esps)
}
