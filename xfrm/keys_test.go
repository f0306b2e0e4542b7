package xfrm

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"culvert/offload"
)

// secret is a key whose bytes show in whatever form they are printed.
var secret = offload.Key("SECRETsecret\xde\xad\xbe\xef")

// TestKeysDoNotShow proves that no way of printing, logging or encoding an SA, its attributes or an algorithm shows key material,
// also not that of an attribute which a later one supersedes, nor errors about such messages.
func TestKeysDoNotShow(t *testing.T) {
	s := baseSA()
	s.Attrs.Crypt = NewAlgo("cbc(aes)", 0, secret)
	s.Attrs.AuthTrunc = NewAlgo("hmac(sha256)", 128, secret)
	s.Attrs.AEAD = NewAlgo("rfc4106(gcm(aes))", 128, secret)
	b := s.Append(nil, MsgNewSA, 0, 1, 2)
	b = with(b, AttrAlgCrypt, append(append([]byte("aes\x00"), make([]byte, 60)...), append(u32s(128), secret...)...))
	d, err := DecodeSA(b[HeaderLen:])
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(d.Append(nil, MsgNewSA, 0, 1, 2), secret) {
		t.Fatal("the message has no key to hide")
	}
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("x", "sa", d, "p", &d, "attrs", d.Attrs, "pattrs", &d.Attrs, "algo", d.Attrs.Crypt, "value", *d.Attrs.Crypt)
	}
	out := log.String()
	for _, v := range []any{d, &d, d.Attrs, &d.Attrs, d.Attrs.Crypt, *d.Attrs.Crypt, []*Algo{d.Attrs.Crypt}, d.Attrs.Layout} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%q", "%d"} {
			out += fmt.Sprintf(verb, v) + "\n"
		}
		if j, err := json.Marshal(v); err != nil {
			t.Error(err)
		} else {
			out += string(j)
		}
	}
	_, _, e := d.Transform()
	out += fmt.Sprint(e, d.Validate())
	h := hex.EncodeToString(secret)
	for _, form := range []string{"SECRET", "secret", h, strings.ToUpper(h), "83 69 67", "83, 69", "0x53, 0x45", "U0VDUkVU"} {
		if i := strings.Index(out, form); i >= 0 {
			t.Errorf("the key shows as %q in …%q", form, out[max(0, i-200):i])
		}
	}
}

// TestWipe proves that wiping leaves no key, superseded ones included.
func TestWipe(t *testing.T) {
	s := baseSA()
	s.Attrs.Crypt = NewAlgo("cbc(aes)", 0, secret)
	b := s.Append(nil, MsgNewSA, 0, 1, 2)
	b = with(b, AttrAlgCrypt, append(append([]byte("aes\x00"), make([]byte, 60)...), append(u32s(128), secret...)...))
	d, err := DecodeSA(b[HeaderLen:])
	if err != nil {
		t.Fatal(err)
	}
	keys := []offload.Key{d.Attrs.Crypt.Key, d.Attrs.AuthTrunc.Key}
	superseded := 0
	for _, k := range d.Attrs.Layout.raw {
		keys = append(keys, k)
		superseded++
	}
	if superseded != 1 {
		t.Fatalf("%d superseded attributes", superseded)
	}
	d.Attrs.Wipe()
	for i, k := range keys {
		if !bytes.Equal(k, make([]byte, len(k))) {
			t.Errorf("key %d is still there", i)
		}
	}
}

// TestTransforms proves that every transform there is comes back from the attributes that it is written to, with its keys; and that
// those are what the kernel's own messages have.
func TestTransforms(t *testing.T) {
	for _, tr := range offload.Transforms() {
		k := offload.Keys{Enc: make(offload.Key, tr.EncKeyLen()), Auth: make(offload.Key, tr.AuthKeyLen)}
		for i := range k.Enc {
			k.Enc[i] = byte(37*i + 1)
		}
		for i := range k.Auth {
			k.Auth[i] = byte(i + 1)
		}
		s := baseSA()
		s.Flags |= StateESN
		s.Attrs.ReplayESN = &ReplayESN{Words: 1, Window: 32}
		s.Attrs.SetTransform(tr, k)
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", tr, err)
		}
		d, err := DecodeSA(s.Append(nil, MsgNewSA, 0, 1, 2)[HeaderLen:])
		if err != nil {
			t.Fatal(err)
		}
		got, keys, err := d.Transform()
		if err != nil || got != tr || !keys.Enc.Equal(k.Enc) || !keys.Auth.Equal(k.Auth) || !keys.ESN {
			t.Errorf("%s: got %v, ESN %v, %v", tr, got, keys.ESN, err)
		}
		before := d.Append(nil, MsgNewSA, 0, 1, 2)
		if err := d.Attrs.ResolveAlgos(); err != nil {
			t.Errorf("%s: %v", tr, err)
		}
		if !bytes.Equal(before, d.Append(nil, MsgNewSA, 0, 1, 2)) {
			t.Errorf("%s: resolving full names changes them", tr)
		}
	}
}

// TestGoldenTransforms proves with what charon and iproute2 have sent that their names, short ones too, mean the transforms that the
// kernel made of them, and that resolving the names gives what the kernel lists.
func TestGoldenTransforms(t *testing.T) {
	listed := map[uint32]*SA{}
	var asked []*SA
	for _, g := range goldens(t) {
		if strings.Contains(g.where, "6.18") {
			continue // it has no ESP
		}
		for m := range Messages(g.b) {
			if m.Type != MsgNewSA && m.Type != MsgUpdSA {
				continue
			}
			s, err := Decode[SA](Align8, m.Body)
			if err != nil {
				t.Fatal(err)
			}
			if s.Proto != ProtoESP || s.Attrs.Crypt == nil && s.Attrs.AEAD == nil {
				continue
			}
			if g.fromKernel {
				listed[s.SPI] = &s
			} else {
				asked = append(asked, &s)
			}
		}
	}
	seen, compared := map[string]bool{}, 0
	for _, s := range asked {
		tr, _, err := s.Transform()
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		seen[tr.ID()] = true
		k := listed[s.SPI]
		if k == nil {
			continue
		}
		compared++
		if err := s.Attrs.ResolveAlgos(); err != nil {
			t.Errorf("%s: %v", s, err)
		}
		only := func(a Attrs) []byte {
			b := Attrs{Auth: a.Auth, AuthTrunc: a.AuthTrunc, Crypt: a.Crypt, AEAD: a.AEAD}
			return b.append(nil, Align8)
		}
		// The same SPI may have been used with another key in another run.
		if ours, theirs := only(s.Attrs), only(k.Attrs); len(ours) != len(theirs) {
			t.Errorf("%s: resolved %v %v %v, the kernel lists %v %v %v", s, s.Attrs.Auth, s.Attrs.AuthTrunc, s.Attrs.Crypt, k.Attrs.Auth, k.Attrs.AuthTrunc, k.Attrs.Crypt)
		} else if got, _, err := k.Transform(); err != nil || got != tr {
			t.Errorf("%s: %v, the kernel lists %v (%v)", s, tr, got, err)
		}
	}
	for _, must := range []string{
		"authenc(hmac(sha256),cbc(aes))/128/128", "authenc(hmac(sha256),ecb(cipher_null))/0/96", "authenc(hmac(sha1),cbc(aes))/128/96",
		"authenc(hmac(md5),cbc(des3_ede))/192/96", "rfc4106(gcm(aes))/128/128", "rfc7539esp(chacha20,poly1305)/256/128",
		"authenc(hmac(sha512),cbc(aes))/256/256",
	} {
		if !seen[must] {
			t.Errorf("nobody asked for %s", must)
		}
	}
	if compared < 8 {
		t.Errorf("only %d were listed by the kernel", compared)
	}
}

// TestTransformRefusals proves the errno and that the text names the fault.
func TestTransformRefusals(t *testing.T) {
	key := func(n int) offload.Key { return offload.Key(bytes.Repeat([]byte{1, 2, 3}, n)[:n]) }
	aes, sha := func() *Algo { return NewAlgo("aes", 0, key(16)) }, func() *Algo { return NewAlgo("sha256", 0, key(32)) }
	for name, x := range map[string]struct {
		a     Attrs
		errno unix.Errno
		text  string
	}{
		"nothing":          {Attrs{}, unix.EINVAL, "neither"},
		"no encryption":    {Attrs{Auth: sha()}, unix.EINVAL, "cipher_null"},
		"no authenticator": {Attrs{Crypt: aes()}, unix.ENOENT, "without authentication"},
		"digest_null":      {Attrs{Crypt: aes(), Auth: NewAlgo("digest_null", 0, nil)}, unix.ENOENT, "no authentication"},
		"unknown cipher":   {Attrs{Crypt: NewAlgo("rot13", 0, key(16)), Auth: sha()}, unix.ENOSYS, "rot13"},
		"unknown hash":     {Attrs{Crypt: aes(), Auth: NewAlgo("crc32", 0, key(4))}, unix.ENOSYS, "crc32"},
		"unknown AEAD":     {Attrs{AEAD: NewAlgo("gcm(rot13)", 128, key(20))}, unix.ENOSYS, "rot13"},
		"no short sha512":  {Attrs{Crypt: aes(), Auth: NewAlgo("sha512", 0, key(64))}, unix.ENOSYS, "sha512"},
		"camellia":         {Attrs{Crypt: NewAlgo("cbc(camellia)", 0, key(16)), Auth: sha()}, unix.ENOSYS, "camellia"},
		"CCM":              {Attrs{AEAD: NewAlgo("rfc4309(ccm(aes))", 128, key(19))}, unix.ENOSYS, "ccm"},
		"ICV too long":     {Attrs{Crypt: aes(), AuthTrunc: NewAlgo("sha256", 257, key(32))}, unix.EINVAL, "257"},
		"odd ICV":          {Attrs{Crypt: aes(), AuthTrunc: NewAlgo("sha256", 160, key(32))}, unix.ENOENT, "160"},
		"AEAD ICV 0":       {Attrs{AEAD: NewAlgo("rfc4106(gcm(aes))", 0, key(20))}, unix.EINVAL, "0 bits"},
		"AEAD and cipher":  {Attrs{AEAD: NewAlgo("rfc4106(gcm(aes))", 128, key(20)), Crypt: aes()}, unix.EINVAL, "by itself"},
		"short key":        {Attrs{Crypt: NewAlgo("aes", 0, key(15)), Auth: sha()}, unix.EINVAL, "120"},
		"no key":           {Attrs{Crypt: NewAlgo("aes", 0, nil), Auth: sha()}, unix.EINVAL, "0 bits"},
		"no salt":          {Attrs{AEAD: NewAlgo("rfc4106(gcm(aes))", 128, key(3))}, unix.EINVAL, "24 bits"},
		"null with a key":  {Attrs{Crypt: NewAlgo("cipher_null", 0, key(16)), Auth: sha()}, unix.EINVAL, "128 bits"},
		"short hash key":   {Attrs{Crypt: aes(), Auth: NewAlgo("sha256", 0, key(31))}, unix.EINVAL, "248"},
		"zero key":         {Attrs{Crypt: NewAlgo("aes", 0, make(offload.Key, 16)), Auth: sha()}, unix.EINVAL, "zeros"},
	} {
		s := baseSA()
		s.Attrs = x.a
		_, _, err := s.Transform()
		if e := (*Error)(nil); !errors.As(err, &e) || e.Errno != x.errno || !strings.Contains(e.Msg, x.text) || strings.HasPrefix(e.Msg, "offload") {
			t.Errorf("%s: %v, want errno %d and %q", name, err, int(x.errno), x.text)
		}
	}
}

// TestSelectors proves that ::/0, 2001:db8::/32 and mapped addresses keep their family.
func TestSelectors(t *testing.T) {
	for _, x := range []string{"::/0", "0.0.0.0/0", "2001:db8::/32", "::ffff:192.0.2.0/120", "10.1.0.0/24", "2001:db8::1/128"} {
		p := netip.MustParsePrefix(x)
		m := Policy{PolicyInfo: PolicyInfo{Sel: SelectorOf(p, p)}}
		d, err := DecodePolicy(m.Append(nil, MsgNewPolicy, 0, 1, 2)[HeaderLen:])
		if err != nil || d.Sel.SrcPrefix() != p || d.Sel.DstPrefix() != p {
			t.Errorf("%s comes back as %v and %v (%v)", x, d.Sel.SrcPrefix(), d.Sel.DstPrefix(), err)
		}
	}
	if (&Selector{SrcLen: 99, Family: FamilyIPv4}).SrcPrefix().IsValid() || (&Selector{}).DstPrefix().IsValid() {
		t.Error("a prefix that is none is valid")
	}
	if a, f := AddressOf(netip.Addr{}); !a.IsZero() || f != FamilyUnspec || a.Addr(f).IsValid() {
		t.Error("no address is one")
	}
}
