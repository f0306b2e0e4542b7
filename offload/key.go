package offload

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// redacted stands for a key wherever one would be printed. It says nothing of the key, not even its length.
const redacted = "***"

// Key is key material. Printed by any verb of fmt, as text, as JSON or by slog it is "***".
//
// Package fmt calls no methods on unexported struct fields, nor where a verb is wrong for what is around the key (%p of a
// struct): a type that keeps a Key in an unexported field must hide it itself, as the engines' sessions do.
type Key []byte

// String is "***".
func (Key) String() string { return redacted }

// GoString is "***".
func (Key) GoString() string { return redacted }

// Format writes "***" for every verb and flag.
func (Key) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalText gives "***": a key is never written anywhere by a general encoder.
func (Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON gives the string "***".
func (Key) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalBinary gives "***", so that encoding/gob does not write a key either.
func (Key) MarshalBinary() ([]byte, error) { return []byte(redacted), nil }

// LogValue is "***".
func (Key) LogValue() slog.Value { return slog.StringValue(redacted) }

// Zero wipes the key in place.
func (k Key) Zero() { clear(k) }

// Clone is a copy with memory of its own.
func (k Key) Clone() Key { return append(Key(nil), k...) }

// Equal compares in a time that depends on the lengths only.
func (k Key) Equal(other Key) bool { return subtle.ConstantTimeCompare(k, other) == 1 }

// allZero reports, in a time that depends on the length only, whether the key is nothing but zero bits.
func (k Key) allZero() bool {
	var acc byte
	for _, b := range k {
		acc |= b
	}
	return subtle.ConstantTimeByteEq(acc, 0) == 1
}

// Keys are what a session needs to know besides its transform.
//
// Enc is the encryption key. For the AEADs the 4-byte salt follows the key itself (RFC 4106 section 8.1, RFC 7634
// section 2), which is also how IKE derives it and how the kernel takes it. It is empty for the null cipher.
//
// Auth is the key of the HMAC, exactly as long as the hash (RFC 4868 section 2.1.1); empty for the AEADs.
//
// ESN says that sequence numbers have 64 bits, so that Job.SeqHi is authenticated.
type Keys struct {
	Enc  Key
	Auth Key
	ESN  bool
}

// Format writes "***" for every verb and flag: without it a pointer to Keys inside another struct would print them where
// the verb is not one for pointers.
func (Keys) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// LogValue is "***".
func (Keys) LogValue() slog.Value { return slog.StringValue(redacted) }

// Zero wipes both keys in place.
func (k Keys) Zero() { k.Enc.Zero(); k.Auth.Zero() }

// Clone is a copy with memory of its own.
func (k Keys) Clone() Keys { return Keys{Enc: k.Enc.Clone(), Auth: k.Auth.Clone(), ESN: k.ESN} }
