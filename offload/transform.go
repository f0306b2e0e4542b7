package offload

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Errors of Lookup and CheckKeys.
var (
	ErrTransform = errors.New("no such transform")
	ErrKey       = errors.New("unusable key")
)

// Cipher is how a transform encrypts.
type Cipher uint8

// The ciphers.
const (
	CipherNull       Cipher = iota // RFC 2410: nothing is encrypted
	AESCBC                         // RFC 3602
	TripleDESCBC                   // RFC 2451
	AESGCM                         // RFC 4106, with its own authentication
	ChaCha20Poly1305               // RFC 7634, with its own authentication
)

// ciphers is the table of them: all that depends on the cipher alone.
var ciphers = [...]struct {
	name    string // as the kernel has it
	rfc     string
	keyBits []int // without the salt; the first is the default
	salt    int   // bytes
	iv      int   // bytes
	block   int   // bytes: what payload and trailer are aligned to (RFC 4303 section 2.4: at least 4)
	icv     int   // bytes, of an AEAD
	aead    bool
}{
	CipherNull:       {name: "ecb(cipher_null)", rfc: "RFC 2410", keyBits: []int{0}, block: 4},
	AESCBC:           {name: "cbc(aes)", rfc: "RFC 3602", keyBits: []int{128, 192, 256}, iv: 16, block: 16},
	TripleDESCBC:     {name: "cbc(des3_ede)", rfc: "RFC 2451", keyBits: []int{192}, iv: 8, block: 8},
	AESGCM:           {name: "rfc4106(gcm(aes))", rfc: "RFC 4106", keyBits: []int{128, 192, 256}, salt: 4, iv: 8, block: 4, icv: 16, aead: true},
	ChaCha20Poly1305: {name: "rfc7539esp(chacha20,poly1305)", rfc: "RFC 7634", keyBits: []int{256}, salt: 4, iv: 8, block: 4, icv: 16, aead: true},
}

// String is the kernel's name.
func (c Cipher) String() string {
	if int(c) < len(ciphers) {
		return ciphers[c].name
	}
	return fmt.Sprintf("cipher(%d)", uint8(c))
}

// Auth is how a transform authenticates.
type Auth uint8

// The authentication algorithms.
const (
	AuthNone   Auth = iota // the cipher is an AEAD and does it
	HMACMD5                // RFC 2403
	HMACSHA1               // RFC 2404
	HMACSHA256             // RFC 4868, and the draft before it
	HMACSHA384             // RFC 4868
	HMACSHA512             // RFC 4868
)

// auths is the table of them. The key is as long as the hash's output.
var auths = [...]struct {
	name string // as the kernel has it
	key  int    // bytes
	icvs []authICV
}{
	AuthNone:   {name: ""},
	HMACMD5:    {name: "hmac(md5)", key: 16, icvs: []authICV{{96, "RFC 2403"}}},
	HMACSHA1:   {name: "hmac(sha1)", key: 20, icvs: []authICV{{96, "RFC 2404"}}},
	HMACSHA256: {name: "hmac(sha256)", key: 32, icvs: []authICV{{128, "RFC 4868"}, {96, "draft-ietf-ipsec-ciph-sha-256-00"}}},
	HMACSHA384: {name: "hmac(sha384)", key: 48, icvs: []authICV{{192, "RFC 4868"}}},
	HMACSHA512: {name: "hmac(sha512)", key: 64, icvs: []authICV{{256, "RFC 4868"}}},
}

// authICV is one truncation of a hash; the first of a hash is its default.
type authICV struct {
	bits int
	rfc  string
}

// String is the kernel's name, and "none" for the AEADs.
func (a Auth) String() string {
	if a == AuthNone {
		return "none"
	}
	if int(a) < len(auths) {
		return auths[a].name
	}
	return fmt.Sprintf("auth(%d)", uint8(a))
}

// aliases are the short names that the kernel also knows.
var aliases = map[string]string{
	"cipher_null": "ecb(cipher_null)",
	"aes":         "cbc(aes)",
	"des3_ede":    "cbc(des3_ede)",
	"md5":         "hmac(md5)",
	"sha1":        "hmac(sha1)",
	"sha256":      "hmac(sha256)",
	"sha384":      "hmac(sha384)",
	"sha512":      "hmac(sha512)",
}

// Transform is one way to protect packets: an algorithm, a key length and a truncation. There is one value of each,
// shared by all and never changed, so pointers compare with ==.
type Transform struct {
	Name    string // as the kernel has it: "authenc(hmac(sha1),cbc(aes))", "rfc4106(gcm(aes))"
	Cipher  Cipher
	Auth    Auth // AuthNone for an AEAD
	KeyBits int  // of the encryption key without its salt; 0 for the null cipher; 192 for 3DES, parity included

	SaltLen    int // bytes, at the end of Keys.Enc
	AuthKeyLen int // bytes
	BlockLen   int // bytes: payload, padding, pad length and next header together are a multiple of it
	IVLen      int // bytes
	ICVLen     int // bytes

	AEAD bool
	RFC  string // where it is specified: "RFC 3602, RFC 2404"
}

var transforms = makeTransforms()

func makeTransforms() []*Transform {
	var all []*Transform
	for _, c := range []Cipher{AESCBC, TripleDESCBC, CipherNull} {
		for a := HMACMD5; a <= HMACSHA512; a++ {
			for _, icv := range auths[a].icvs {
				for _, bits := range ciphers[c].keyBits {
					all = append(all, &Transform{
						Name:   "authenc(" + auths[a].name + "," + ciphers[c].name + ")",
						Cipher: c, Auth: a, KeyBits: bits,
						AuthKeyLen: auths[a].key, BlockLen: ciphers[c].block, IVLen: ciphers[c].iv, ICVLen: icv.bits / 8,
						RFC: ciphers[c].rfc + ", " + icv.rfc,
					})
				}
			}
		}
	}
	for _, c := range []Cipher{AESGCM, ChaCha20Poly1305} {
		for _, bits := range ciphers[c].keyBits {
			all = append(all, &Transform{
				Name: ciphers[c].name, Cipher: c, KeyBits: bits,
				SaltLen: ciphers[c].salt, BlockLen: ciphers[c].block, IVLen: ciphers[c].iv, ICVLen: ciphers[c].icv,
				AEAD: true, RFC: ciphers[c].rfc,
			})
		}
	}
	return all
}

// Transforms lists every transform, in an order that does not change.
func Transforms() []*Transform { return slices.Clone(transforms) }

// Lookup finds a transform by the kernel's name, the bits of its encryption key (without the salt of an AEAD) and the bits
// of its ICV. A 0 asks for the default: the shortest key, and the truncation of the RFC. The kernel's short names
// ("authenc(hmac(sha1),cipher_null)") are taken too, and 168 for 3DES's 192. The error wraps ErrTransform and lists what
// there is.
func Lookup(name string, keyBits, icvBits int) (*Transform, error) {
	full := canonical(name)
	if keyBits == 168 && strings.Contains(full, ciphers[TripleDESCBC].name) {
		keyBits = 192 // without the parity bits
	}
	var names []string
	var keys, icvs []int
	for _, t := range transforms {
		names = append(names, t.Name)
		if t.Name != full {
			continue
		}
		keys, icvs = append(keys, t.KeyBits), append(icvs, t.ICVLen*8)
		// The first row of a name has the default key and the default ICV.
		if keyBits == 0 && t.KeyBits != keys[0] || keyBits != 0 && t.KeyBits != keyBits {
			continue
		}
		if icvBits == 0 && t.ICVLen*8 != icvs[0] || icvBits != 0 && t.ICVLen*8 != icvBits {
			continue
		}
		return t, nil
	}
	switch {
	case keys == nil:
		return nil, fmt.Errorf("offload: %w: name %q; there are %s", ErrTransform, name, strings.Join(compact(names), ", "))
	case keyBits != 0 && !slices.Contains(keys, keyBits):
		return nil, fmt.Errorf("offload: %w: %s with an encryption key of %d bits; it has %s", ErrTransform, full, keyBits, bitList(keys))
	default:
		return nil, fmt.Errorf("offload: %w: %s with an ICV of %d bits; it has %s", ErrTransform, full, icvBits, bitList(icvs))
	}
}

// canonical resolves the kernel's short names, alone or inside authenc().
func canonical(name string) string {
	name = strings.ReplaceAll(name, " ", "")
	inside, ok := strings.CutPrefix(name, "authenc(")
	if !ok || !strings.HasSuffix(inside, ")") {
		return name
	}
	auth, enc, ok := strings.Cut(strings.TrimSuffix(inside, ")"), ",")
	if !ok {
		return name
	}
	return "authenc(" + cmp.Or(aliases[auth], auth) + "," + cmp.Or(aliases[enc], enc) + ")"
}

func compact[T cmp.Ordered](s []T) []T {
	slices.Sort(s)
	return slices.Compact(s)
}

func bitList(bits []int) string {
	var s []string
	for _, b := range compact(bits) {
		s = append(s, strconv.Itoa(b))
	}
	return strings.Join(s, ", ")
}

// String names the transform in full: "authenc(hmac(sha256),cbc(aes)) 128-bit key, 128-bit ICV".
func (t *Transform) String() string {
	if t.KeyBits == 0 {
		return fmt.Sprintf("%s %d-bit ICV", t.Name, t.ICVLen*8)
	}
	return fmt.Sprintf("%s %d-bit key, %d-bit ICV", t.Name, t.KeyBits, t.ICVLen*8)
}

// ID is a short unique name for metrics and files, "name/key bits/ICV bits": "authenc(hmac(sha256),cbc(aes))/128/96".
func (t *Transform) ID() string { return fmt.Sprintf("%s/%d/%d", t.Name, t.KeyBits, t.ICVLen*8) }

// EncKeyLen is the length of Keys.Enc in bytes, with the salt.
func (t *Transform) EncKeyLen() int { return t.KeyBits/8 + t.SaltLen }

// HeaderLen is the number of bytes before the ciphertext: SPI, sequence number and IV.
func (t *Transform) HeaderLen() int { return 8 + t.IVLen }

// PadLen is the number of pad bytes (0 to BlockLen-1) with which a payload, the pad length and the next header fill whole
// blocks (RFC 4303 section 2.4).
func (t *Transform) PadLen(payload int) int { return -(payload + 2) & (t.BlockLen - 1) }

// SealedLen is the length of the whole ESP packet, from the SPI to the ICV, that carries a payload.
func (t *Transform) SealedLen(payload int) int {
	return t.Overhead() + payload + t.PadLen(payload)
}

// Overhead is what ESP adds to a payload that needs no padding: header, IV, pad length, next header, ICV.
func (t *Transform) Overhead() int { return t.HeaderLen() + 2 + t.ICVLen }

// MaxPayload is the longest payload whose SealedLen is at most esp, and -1 if not even an empty one fits.
func (t *Transform) MaxPayload(esp int) int {
	room := esp - t.HeaderLen() - t.ICVLen
	if room < t.BlockLen {
		return -1
	}
	return room&^(t.BlockLen-1) - 2
}

// MinLen is the length of the shortest packet: one block, or one 4-byte word, between header and ICV.
func (t *Transform) MinLen() int { return t.HeaderLen() + t.BlockLen + t.ICVLen }

// ValidLen reports whether a packet of n bytes can be of this transform. Engines answer BadLength where it is false.
func (t *Transform) ValidLen(n int) bool {
	return n >= t.MinLen() && (n-t.HeaderLen()-t.ICVLen)&(t.BlockLen-1) == 0
}

// CheckKeys says what is wrong with the keys for this transform: a length that is not exactly right, only zeros (what a
// kernel in lockdown shows instead of keys), or a 3DES key that is no more than single DES (RFC 2451 section 2.3; parity
// bits are ignored). The error wraps ErrKey and never contains key material.
func (t *Transform) CheckKeys(k Keys) error {
	if got, want := len(k.Enc), t.EncKeyLen(); got != want {
		return t.keyError(t.encLenText(got))
	}
	if got, want := len(k.Auth), t.AuthKeyLen; got != want {
		if t.AEAD {
			return t.keyError(fmt.Sprintf("there is an authentication key of %d bits, but the cipher authenticates by itself: leave it out", got*8))
		}
		return t.keyError(fmt.Sprintf("the authentication key has %d bits, not %d", got*8, want*8))
	}
	const zeros = "is all zeros; a kernel in lockdown shows keys so: take them from the key exchange instead"
	if t.KeyBits != 0 && k.Enc[:t.KeyBits/8].allZero() {
		return t.keyError("the encryption key " + zeros)
	}
	if t.AuthKeyLen != 0 && k.Auth.allZero() {
		return t.keyError("the authentication key " + zeros)
	}
	if t.Cipher == TripleDESCBC && (sameDES(k.Enc[:8], k.Enc[8:16]) || sameDES(k.Enc[8:16], k.Enc[16:])) {
		return t.keyError("two adjoining thirds of the 3DES key are equal, which makes it single DES")
	}
	return nil
}

func (t *Transform) keyError(what string) error {
	return fmt.Errorf("offload: %w for %s: %s", ErrKey, t, what)
}

func (t *Transform) encLenText(got int) string {
	switch {
	case t.KeyBits == 0:
		return fmt.Sprintf("there is an encryption key of %d bits, but the null cipher has none: leave it out", got*8)
	case t.SaltLen == 0:
		return fmt.Sprintf("the encryption key has %d bits, not %d", got*8, t.KeyBits)
	case got*8 == t.KeyBits:
		return fmt.Sprintf("the encryption key has %d bits; the %d-bit salt (%s) that follows it is missing", got*8, t.SaltLen*8, t.RFC)
	default:
		return fmt.Sprintf("the encryption key has %d bits, not %d (%d, and %d of salt)", got*8, t.EncKeyLen()*8, t.KeyBits, t.SaltLen*8)
	}
}

// sameDES compares two DES keys in constant time, without their parity bits.
func sameDES(a, b Key) bool {
	var diff byte
	for i := range a {
		diff |= (a[i] ^ b[i]) &^ 1
	}
	return diff == 0
}
