package xfrm

import (
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"culvert/offload"
)

// nameLen is the room for an algorithm's name, final zero byte included.
const nameLen = 64

// maxKeyBits bounds what a key's length may be said to be, so that its bytes can be counted: an attribute has at most 65,535.
const maxKeyBits = 8 * 65535

// Algo is an algorithm and its key. It prints as its name; the key is not shown.
type Algo struct {
	Name    string // as the client wrote it: "aes" and "cbc(aes)" are one
	KeyBits uint32
	ICVBits uint32 // with AttrAlgAuthTrunc and AttrAlgAEAD
	Key     offload.Key
}

// NewAlgo makes an algorithm with a copy of the key.
func NewAlgo(name string, icvBits uint32, key offload.Key) *Algo {
	return &Algo{Name: name, KeyBits: uint32(8 * len(key)), ICVBits: icvBits, Key: append(offload.Key{}, key...)}
}

// Format writes the name and the lengths, whatever the verb: never the key.
func (a Algo) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "%s %d-bit key ***", a.Name, a.KeyBits)
	if a.ICVBits != 0 {
		fmt.Fprintf(f, " %d-bit ICV", a.ICVBits)
	}
}

// LogValue is what Format writes.
func (a Algo) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(a)) }

var _ fmt.Formatter = Algo{}

func hasICV(t uint16) bool { return t == AttrAlgAuthTrunc || t == AttrAlgAEAD }

func decodeAlgo(t uint16, b []byte, off int) (*Algo, *Error) {
	n := sizeAlgo
	if hasICV(t) {
		n = sizeAlgoTrunc
	}
	a := &Algo{Name: cstring(b[:nameLen]), KeyBits: host.Uint32(b[nameLen:])}
	if hasICV(t) {
		a.ICVBits = host.Uint32(b[sizeAlgo:])
	}
	have := len(b) - n
	if a.KeyBits > maxKeyBits || int(a.KeyBits+7)/8 > have {
		return nil, errAt(unix.EINVAL, off, "%s announces a key of %d bits and has %d bytes of it", AttrName(t), a.KeyBits, have)
	}
	a.Key = append(offload.Key{}, b[n:n+int(a.KeyBits+7)/8]...)
	return a, nil
}

// append appends the algorithm as the attribute t, nothing if there is none. A name that is too long is cut as the kernel does.
func (a *Algo) append(dst []byte, wt uint16) []byte {
	if a == nil {
		return dst
	}
	t, n := wt&attrTypeMask, sizeAlgo
	if hasICV(t) {
		n = sizeAlgoTrunc
	}
	key := int(a.KeyBits+7) / 8
	dst, b := appendAttr(dst, wt, n+key)
	copy(b[:nameLen-1], a.Name)
	host.PutUint32(b[nameLen:], a.KeyBits)
	if hasICV(t) {
		host.PutUint32(b[sizeAlgo:], a.ICVBits)
	}
	copy(b[n:], a.Key)
	return dst
}
