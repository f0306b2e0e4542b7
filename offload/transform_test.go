package offload_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"culvert/offload"
)

func lookup(t testing.TB, name string, keyBits, icvBits int) *offload.Transform {
	t.Helper()
	tr, err := offload.Lookup(name, keyBits, icvBits)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// The table has every combination once, and each is found by what it is called.
func TestTransforms(t *testing.T) {
	all := offload.Transforms()
	if want := 6*(3+1+1) + 3 + 1; len(all) != want { // six HMACs on AES, 3DES and null; GCM; ChaCha20
		t.Errorf("%d transforms, not %d", len(all), want)
	}
	ids := map[string]bool{}
	for i, tr := range all {
		if ids[tr.ID()] {
			t.Errorf("%s is there twice", tr.ID())
		}
		ids[tr.ID()] = true
		if got := lookup(t, tr.Name, tr.KeyBits, tr.ICVLen*8); got != tr {
			t.Errorf("Lookup of %s gives %s", tr, got)
		}
		if again := offload.Transforms()[i]; again != tr {
			t.Errorf("row %d is %s, then %s", i, tr, again)
		}
		if tr.RFC == "" {
			t.Errorf("%s: where is it specified?", tr)
		}
	}
	all[0] = nil
	if offload.Transforms()[0] == nil {
		t.Error("the caller can change the table")
	}
}

// A row of each kind, against its RFC.
func TestTransformSizes(t *testing.T) {
	for _, c := range []struct {
		name                                     string
		keyBits, icvBits                         int // for Lookup
		enc, auth, header, block, icv, salt, min int // bytes
		aead                                     bool
		text, id                                 string
	}{
		{"authenc(hmac(md5),cbc(aes))", 0, 0, 16, 16, 24, 16, 12, 0, 52, false,
			"authenc(hmac(md5),cbc(aes)) 128-bit key, 96-bit ICV", "authenc(hmac(md5),cbc(aes))/128/96"},
		{"authenc(hmac(sha1),cbc(aes))", 192, 96, 24, 20, 24, 16, 12, 0, 52, false,
			"authenc(hmac(sha1),cbc(aes)) 192-bit key, 96-bit ICV", "authenc(hmac(sha1),cbc(aes))/192/96"},
		{"authenc(hmac(sha256),cbc(aes))", 256, 0, 32, 32, 24, 16, 16, 0, 56, false,
			"authenc(hmac(sha256),cbc(aes)) 256-bit key, 128-bit ICV", "authenc(hmac(sha256),cbc(aes))/256/128"},
		{"authenc(hmac(sha256),cbc(aes))", 128, 96, 16, 32, 24, 16, 12, 0, 52, false,
			"authenc(hmac(sha256),cbc(aes)) 128-bit key, 96-bit ICV", "authenc(hmac(sha256),cbc(aes))/128/96"},
		{"authenc(hmac(sha384),cbc(des3_ede))", 0, 0, 24, 48, 16, 8, 24, 0, 48, false,
			"authenc(hmac(sha384),cbc(des3_ede)) 192-bit key, 192-bit ICV", "authenc(hmac(sha384),cbc(des3_ede))/192/192"},
		{"authenc(hmac(sha512),ecb(cipher_null))", 0, 0, 0, 64, 8, 4, 32, 0, 44, false,
			"authenc(hmac(sha512),ecb(cipher_null)) 256-bit ICV", "authenc(hmac(sha512),ecb(cipher_null))/0/256"},
		{"rfc4106(gcm(aes))", 256, 128, 36, 0, 16, 4, 16, 4, 36, true,
			"rfc4106(gcm(aes)) 256-bit key, 128-bit ICV", "rfc4106(gcm(aes))/256/128"},
		{"rfc7539esp(chacha20,poly1305)", 0, 0, 36, 0, 16, 4, 16, 4, 36, true,
			"rfc7539esp(chacha20,poly1305) 256-bit key, 128-bit ICV", "rfc7539esp(chacha20,poly1305)/256/128"},
	} {
		tr := lookup(t, c.name, c.keyBits, c.icvBits)
		got := []int{tr.EncKeyLen(), tr.AuthKeyLen, tr.HeaderLen(), tr.BlockLen, tr.ICVLen, tr.SaltLen, tr.MinLen()}
		want := []int{c.enc, c.auth, c.header, c.block, c.icv, c.salt, c.min}
		if fmt.Sprint(got) != fmt.Sprint(want) || tr.AEAD != c.aead {
			t.Errorf("%s: keys, header, block, ICV, salt, shortest %v, AEAD %t; want %v, %t", tr, got, tr.AEAD, want, c.aead)
		}
		if tr.String() != c.text || tr.ID() != c.id {
			t.Errorf("it is called %q, %q; want %q, %q", tr, tr.ID(), c.text, c.id)
		}
	}
}

// The largest inner packet for the usual MTUs: outside there are IPv4 or IPv6, bare or with UDP (RFC 3948).
func TestMaxPayloadOfMTUs(t *testing.T) {
	outer := [4]int{20, 28, 40, 48}
	for _, c := range []struct {
		name string
		want map[int][4]int
	}{
		{"authenc(hmac(sha1),cbc(aes))", map[int][4]int{1500: {1438, 1422, 1422, 1406}, 1492: {1422, 1422, 1406, 1406}, 1400: {1342, 1326, 1310, 1310}}},
		{"authenc(hmac(sha256),cbc(aes))", map[int][4]int{1500: {1438, 1422, 1406, 1406}, 1492: {1422, 1422, 1406, 1390}, 1400: {1326, 1326, 1310, 1310}}},
		{"authenc(hmac(sha384),cbc(aes))", map[int][4]int{1500: {1422, 1422, 1406, 1390}, 1492: {1422, 1406, 1390, 1390}, 1400: {1326, 1310, 1310, 1294}}},
		{"authenc(hmac(sha512),cbc(aes))", map[int][4]int{1500: {1422, 1406, 1390, 1390}, 1492: {1406, 1406, 1390, 1374}, 1400: {1310, 1310, 1294, 1294}}},
		{"authenc(hmac(md5),cbc(des3_ede))", map[int][4]int{1500: {1446, 1438, 1430, 1422}, 1492: {1438, 1430, 1422, 1414}, 1400: {1350, 1342, 1326, 1318}}},
		{"authenc(hmac(sha256),cbc(des3_ede))", map[int][4]int{1500: {1446, 1438, 1422, 1414}, 1492: {1438, 1430, 1414, 1406}, 1400: {1342, 1334, 1326, 1318}}},
		{"rfc4106(gcm(aes))", map[int][4]int{1500: {1446, 1438, 1426, 1418}}},
	} {
		tr := lookup(t, c.name, 0, 0)
		for mtu, want := range c.want {
			for i, o := range outer {
				if got := tr.MaxPayload(mtu - o); got != want[i] {
					t.Errorf("%s in an MTU of %d with %d bytes outside: %d, not %d", tr, mtu, o, got, want[i])
				}
			}
		}
	}
}

// PadLen, SealedLen, MaxPayload and ValidLen agree with each other and with RFC 4303 section 2.4 at every length.
func TestLengthsAgree(t *testing.T) {
	for _, tr := range offload.Transforms() {
		for n := range 600 {
			pad, sealed := tr.PadLen(n), tr.SealedLen(n)
			if pad < 0 || pad >= tr.BlockLen || (n+pad+2)%tr.BlockLen != 0 {
				t.Fatalf("%s: a payload of %d is padded with %d", tr, n, pad)
			}
			if sealed != tr.HeaderLen()+n+pad+2+tr.ICVLen || sealed < tr.MinLen() || !tr.ValidLen(sealed) {
				t.Fatalf("%s: a payload of %d is sealed in %d", tr, n, sealed)
			}
			most := tr.MaxPayload(n)
			if most < -1 || most >= 0 && tr.SealedLen(most) > n || tr.SealedLen(most+1) <= n {
				t.Fatalf("%s: in %d bytes fits a payload of %d", tr, n, most)
			}
			if tr.ValidLen(n) != (most >= 0 && tr.SealedLen(most) == n) {
				t.Fatalf("%s: ValidLen(%d) is %t, the largest payload in it %d", tr, n, tr.ValidLen(n), most)
			}
		}
		if tr.ValidLen(-8) {
			t.Errorf("%s: a negative length is valid", tr)
		}
	}
}

// Names as people and kernels write them.
func TestLookup(t *testing.T) {
	for _, c := range []struct {
		name             string
		keyBits, icvBits int
		want             string
	}{
		{"authenc(hmac(sha256),cbc(aes))", 0, 0, "authenc(hmac(sha256),cbc(aes))/128/128"},
		{"authenc(hmac(sha256),cbc(aes))", 0, 96, "authenc(hmac(sha256),cbc(aes))/128/96"},
		{"authenc(hmac(sha1), cbc(aes))", 256, 0, "authenc(hmac(sha1),cbc(aes))/256/96"},
		{"authenc(hmac(sha1),cipher_null)", 0, 0, "authenc(hmac(sha1),ecb(cipher_null))/0/96"},
		{"authenc(sha1,aes)", 0, 0, "authenc(hmac(sha1),cbc(aes))/128/96"},
		{"authenc(hmac(md5),cbc(des3_ede))", 168, 0, "authenc(hmac(md5),cbc(des3_ede))/192/96"},
		{"rfc4106(gcm(aes))", 192, 128, "rfc4106(gcm(aes))/192/128"},
	} {
		if got := lookup(t, c.name, c.keyBits, c.icvBits).ID(); got != c.want {
			t.Errorf("%s, %d, %d gives %s, not %s", c.name, c.keyBits, c.icvBits, got, c.want)
		}
	}
	for _, c := range []struct {
		name             string
		keyBits, icvBits int
		says             string
	}{
		{"authenc(hmac(sha1),cbc(twofish))", 0, 0, "authenc(hmac(sha1),cbc(aes)), "},
		{"", 0, 0, "rfc4106(gcm(aes))"},
		{"authenc(", 0, 0, `name "authenc("`},
		{"authenc(hmac(sha1))", 0, 0, "there are"},
		{"authenc(hmac(sha1),cbc(aes))", 512, 0, "it has 128, 192, 256"},
		{"rfc4106(gcm(aes))", 168, 0, "it has 128, 192, 256"},
		{"authenc(hmac(sha256),cbc(aes))", 128, 160, "it has 96, 128"},
		{"authenc(hmac(sha1),ecb(cipher_null))", 128, 0, "it has 0"},
		{"rfc4106(gcm(aes))", 128, 64, "it has 128"},
	} {
		tr, err := offload.Lookup(c.name, c.keyBits, c.icvBits)
		if tr != nil || !errors.Is(err, offload.ErrTransform) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q, %d, %d gives %v, error %q; want one that says %q", c.name, c.keyBits, c.icvBits, tr, err, c.says)
		}
	}
}

// Each thing that can be wrong with keys is found and named, and good keys pass.
func TestCheckKeys(t *testing.T) {
	ones := func(n int) offload.Key { return bytes.Repeat([]byte{1}, n) }
	count := func(n int) offload.Key {
		k := make(offload.Key, n)
		for i := range k {
			k[i] = byte(2 * i)
		}
		return k
	}
	des := func(a, b, c byte) offload.Key {
		return append(append(bytes.Repeat([]byte{a}, 8), bytes.Repeat([]byte{b}, 8)...), bytes.Repeat([]byte{c}, 8)...)
	}
	const cbc, null, gcm, des3 = "authenc(hmac(sha1),cbc(aes))", "authenc(hmac(sha1),ecb(cipher_null))", "rfc4106(gcm(aes))", "authenc(hmac(sha1),cbc(des3_ede))"
	for _, c := range []struct {
		name string
		keys offload.Keys
		says string // "": good
	}{
		{cbc, offload.Keys{Enc: ones(16), Auth: ones(20)}, ""},
		{cbc, offload.Keys{Enc: ones(24), Auth: ones(20)}, "has 192 bits, not 128"},
		{cbc, offload.Keys{Enc: ones(16), Auth: ones(16)}, "authentication key has 128 bits, not 160"},
		{cbc, offload.Keys{Enc: ones(16)}, "authentication key has 0 bits, not 160"},
		{cbc, offload.Keys{Enc: make(offload.Key, 16), Auth: ones(20)}, "encryption key is all zeros"},
		{cbc, offload.Keys{Enc: ones(16), Auth: make(offload.Key, 20)}, "authentication key is all zeros"},
		{null, offload.Keys{Auth: ones(20)}, ""},
		{null, offload.Keys{Enc: ones(16), Auth: ones(20)}, "the null cipher has none"},
		{gcm, offload.Keys{Enc: ones(20)}, ""},
		{gcm, offload.Keys{Enc: append(ones(16), 0, 0, 0, 0)}, ""},
		{gcm, offload.Keys{Enc: append(make(offload.Key, 16), 1, 2, 3, 4)}, "all zeros"},
		{gcm, offload.Keys{Enc: ones(16)}, "the 32-bit salt (RFC 4106) that follows it is missing"},
		{gcm, offload.Keys{Enc: ones(24)}, "has 192 bits, not 160 (128, and 32 of salt)"},
		{gcm, offload.Keys{Enc: ones(20), Auth: ones(20)}, "leave it out"},
		{des3, offload.Keys{Enc: count(24), Auth: ones(20)}, ""},
		{des3, offload.Keys{Enc: des(2, 4, 2), Auth: ones(20)}, ""},
		{des3, offload.Keys{Enc: des(2, 2, 4), Auth: ones(20)}, "makes it single DES"},
		{des3, offload.Keys{Enc: des(4, 2, 2), Auth: ones(20)}, "makes it single DES"},
		{des3, offload.Keys{Enc: des(2, 3, 4), Auth: ones(20)}, "makes it single DES"}, // 2 and 3 differ in parity only
	} {
		err := lookup(t, c.name, 0, 0).CheckKeys(c.keys)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: good keys: %v", c.name, err)
		case c.says != "" && (!errors.Is(err, offload.ErrKey) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v; want an error that says %q", c.name, err, c.says)
		}
	}
}

// Every value of an enumeration has a name of its own, and a foreign value says what it is.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	name := func(s string) {
		t.Helper()
		if s == "" || seen[s] {
			t.Errorf("name %q is empty or used twice", s)
		}
		seen[s] = true
	}
	if len(offload.Statuses()) != 5 || offload.Statuses()[0] != offload.Pending {
		t.Errorf("the statuses are %v", offload.Statuses())
	}
	for _, s := range append(offload.Statuses(), 99) {
		name(s.String())
		if s.Text() == "" {
			t.Errorf("%v has no text", s)
		}
	}
	for _, d := range []offload.Direction{offload.Seal, offload.Open, 99} {
		name(d.String())
	}
	for c := offload.CipherNull; c <= offload.ChaCha20Poly1305; c++ {
		name(c.String())
	}
	for a := offload.AuthNone; a <= offload.HMACSHA512; a++ {
		name(a.String())
	}
	name(offload.Cipher(99).String())
	name(offload.Auth(99).String())
}
