package offload

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the answers
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
)

// The answers come from answers/make.py, which shares no code with any engine: published packets, and where there are none
// a second opinion from OpenSSL.
var (
	//go:embed answers/published.json
	publishedJSON []byte
	//go:embed answers/computed.json
	computedJSON []byte
)

// Answer is a packet whose sealed form is known. It is shared: read only.
type Answer struct {
	Transform *Transform
	Source    string // a publication, or how it was computed
	Keys      Keys
	SeqHi     uint32
	Plain     []byte // SPI, sequence number, IV, payload, trailer: what is there to seal, without room for the ICV

	sealed []byte
	digest [sha256.Size]byte // of the sealed packet, where the packet itself is not kept
}

// Len is the length of the sealed packet.
func (a *Answer) Len() int { return len(a.Plain) + a.Transform.ICVLen }

// IsSealed reports whether a packet is the answer.
func (a *Answer) IsSealed(esp []byte) bool {
	if a.sealed != nil {
		return bytes.Equal(esp, a.sealed)
	}
	return sha256.Sum256(esp) == a.digest
}

// Answers lists what is known of a transform; for each there are packets with and without ESN, short and long.
func Answers(t *Transform) ([]*Answer, error) {
	all, err := loadAnswers()
	return all[t], err
}

var loadAnswers = sync.OnceValues(func() (map[*Transform][]*Answer, error) {
	byID := map[string]*Transform{}
	for _, t := range transforms {
		byID[t.ID()] = t
	}
	all := map[*Transform][]*Answer{}
	for _, file := range [][]byte{publishedJSON, computedJSON} {
		var list []answerJSON
		if err := json.Unmarshal(file, &list); err != nil {
			return nil, fmt.Errorf("offload: read known answers: %w", err)
		}
		for i := range list {
			a, err := list[i].answer(byID[list[i].Transform])
			if err != nil {
				return nil, fmt.Errorf("offload: known answer %s of %s: %w", list[i].Source, list[i].Transform, err)
			}
			all[a.Transform] = append(all[a.Transform], a)
		}
	}
	return all, nil
})

// answerJSON is an answer as make.py writes it, and documents it.
type answerJSON struct {
	Transform, Source   string
	Enc, Auth           hexBytes
	ESN                 bool
	SeqHi               uint32 `json:"seq_hi"`
	Plain, Head, Sealed hexBytes
	Digest              hexBytes
	Len                 int
}

func (j *answerJSON) answer(t *Transform) (*Answer, error) {
	if t == nil {
		return nil, ErrTransform
	}
	a := &Answer{
		Transform: t, Source: j.Source, SeqHi: j.SeqHi, Plain: j.Plain, sealed: j.Sealed,
		Keys: Keys{Enc: Key(j.Enc), Auth: Key(j.Auth), ESN: j.ESN},
	}
	if a.Plain == nil {
		a.Plain = patterned(t, j.Head, j.Len)
	}
	copy(a.digest[:], j.Digest)
	if !t.ValidLen(a.Len()) || a.sealed != nil && len(a.sealed) != a.Len() || a.sealed == nil && len(j.Digest) != len(a.digest) {
		return nil, fmt.Errorf("impossible length %d", a.Len())
	}
	return a, t.CheckKeys(a.Keys)
}

// patterned is a packet of n payload bytes as make.py pads them, with next header 4 (IPv4).
func patterned(t *Transform, head []byte, n int) []byte {
	pad := t.PadLen(n)
	p := make([]byte, 0, len(head)+n+pad+2)
	p = append(p, head...)
	for i := range n {
		p = append(p, byte(31*i+17*(i>>8)+7))
	}
	for i := range pad {
		p = append(p, byte(i+1))
	}
	return append(p, byte(pad), 4)
}

// hexBytes are bytes that JSON has as hex.
type hexBytes []byte

// UnmarshalText reads hex.
func (h *hexBytes) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}
