package multibuf

import (
	"bytes"
	"encoding"
	"testing"

	"culvert/offload"
)

// TestImage proves that what is resumed from an image goes on as the hash that it was taken of, and that only what can be
// copied has one.
func TestImage(t *testing.T) {
	for auth := range hmacHashes {
		if hmacHashes[auth].new == nil {
			continue
		}
		from, to := hmacHashes[auth].new(), hmacHashes[auth].new()
		if image(from) == nil {
			t.Errorf("%v: the library's hash has no image: one packet at a time takes longer", offload.Auth(auth))
		}
		from.Write(make([]byte, 200))
		to.Write([]byte("something else"))
		copy(image(to), image(from))
		if a, b := from.Sum(nil), to.Sum(nil); !bytes.Equal(a, b) {
			t.Errorf("%v: %x is not %x", offload.Auth(auth), b, a)
		}
		if _, ok := from.(encoding.BinaryUnmarshaler); !ok {
			t.Errorf("%v: the hash cannot be resumed otherwise", offload.Auth(auth))
		}
	}
	n := 5
	for _, x := range []any{nil, n, &n, (*struct{ n int })(nil), &struct{ p *int }{&n}, &struct{ s string }{}, &struct{ f []int }{}} {
		if image(x) != nil {
			t.Errorf("%T has an image", x)
		}
	}
}
