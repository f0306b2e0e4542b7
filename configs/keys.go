package configs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"culvert/offload"
)

// maxKeyFile bounds a key file: the longest key has 128 digits, the rest is for comments.
const maxKeyFile = 4096

// keyUse is where a key was first used, to find it used again.
type keyUse struct {
	key string // path of the SA
	off int
}

// keyPart is one of the two keys of an SA, as the configuration names it.
type keyPart uint8

const (
	encKey keyPart = iota
	authKey
)

var keyParts = [...]string{encKey: "enc_key", authKey: "auth_key"}

// keys reads the keys of one SA and checks them against its transform. t is nil if the tunnel's transform is not known
// because of a mistake there; then only their form is checked.
func (l *loader) keys(r *reader, t *offload.Transform, esn bool) offload.Keys {
	k := offload.Keys{ESN: esn}
	var okEnc, okAuth bool
	k.Enc, okEnc = l.key(r, encKey, t)
	k.Auth, okAuth = l.key(r, authKey, t)
	if t == nil || !okEnc || !okAuth {
		return k
	}
	if err := t.CheckKeys(k); err != nil {
		// Lengths and zeros are found above, where the place is known better.
		r.fail(r.keyName(encKey), &problem{err.Error(), "generate another key", ErrKey})
		return k
	}
	l.keyReuse(r, t, k)
	return k
}

// keyName returns the name under which a key is written: in the file itself or in one of its own.
func (r *reader) keyName(p keyPart) string {
	if name := keyParts[p]; r.has(name) {
		return name
	}
	return keyParts[p] + "_file"
}

// key reads one key. The result is false if there is a mistake, which is noted.
func (l *loader) key(r *reader, p keyPart, t *offload.Transform) (offload.Key, bool) {
	name, file := keyParts[p], keyParts[p]+"_file"
	var k offload.Key
	good := true
	if v := r.take(name, `write the hexadecimal digits in quotes: "…"`, kindString); v != nil {
		if l.inline < 0 {
			l.inline = v.off
		}
		var bad *digitError
		if k, bad = decodeKey(v.text); bad != nil {
			// An escape in the string would shift the column; the beginning of the value is near enough then.
			off := v.off
			if l.doc.holds(v.text) && len(v.text) > 0 {
				off = cap(l.doc.data) - cap(v.text) + bad.off
			}
			l.fail(off, join(r.path, name), &problem{bad.what, bad.mend, ErrKey})
			good = false
		}
	} else if r.has(name) {
		good = false
	}
	if v := r.take(file, `write the path in quotes: "…"`, kindString); v != nil {
		if r.has(name) {
			r.fail(file, &problem{"there is " + name + " as well", "keep one of the two", ErrConflict})
			return nil, false
		}
		k, good = l.keyFile(r, file, v)
	} else if r.has(file) {
		good = false
	}
	if t == nil || !good {
		return k, false
	}
	if problem := checkKey(k, p, t, r.has(name) || r.has(file)); problem != nil {
		off := r.t.off
		if r.has(name) || r.has(file) {
			name = r.keyName(p)
			off = r.at(name)
		}
		l.fail(off, join(r.path, name), problem)
		return k, false
	}
	return k, true
}

// keyFile reads a key from the file that a value names. Before the file is open, messages have only a value that can be no key.
func (l *loader) keyFile(r *reader, name string, v *value) (offload.Key, bool) {
	path, key := string(v.text), join(r.path, name)
	pos := l.doc.pos(v.off)
	if path == "" {
		l.fail(v.off, key, &problem{"the key file has no name", "write its path", ErrRead})
		return nil, false
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(l.file), path)
	}
	read := readFile
	if l.noFiles {
		read = func(string, int64) ([]byte, fs.FileInfo, error) { return nil, nil, errNoFiles }
	}
	data, st, err := read(path, maxKeyFile)
	defer clear(data)
	if err != nil {
		what, shown := "the key file that is named here", ""
		if isPath(string(v.text)) {
			what, shown = "the key file", path
		}
		e := fileError(pos, key, what, shown, err)
		e.Mend += "; a relative path begins at the directory of this file, and a key itself goes into " + strings.TrimSuffix(name, "_file")
		l.errs = append(l.errs, e)
		return nil, false
	}
	if p := exposed("it is a key file", path, st); p != nil {
		if !l.told[p.mend] { // once of a directory with many of them
			l.told[p.mend] = true
			l.fail(v.off, key, p)
		}
		return nil, false
	}
	// Comments become blanks, so that every place stays what it is.
	for rest := data; len(rest) > 0; {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		if c := bytes.IndexByte(line, '#'); c >= 0 {
			for i := c; i < len(line); i++ {
				line[i] = ' '
			}
		}
		rest = after
	}
	k, bad := decodeKey(data)
	if bad != nil {
		line := 1 + bytes.Count(data[:bad.off], []byte("\n"))
		column := bad.off - bytes.LastIndexByte(data[:bad.off], '\n')
		l.errs = append(l.errs, &Error{Pos: Pos{path, line, column}, Key: key, What: bad.what, Mend: bad.mend, Class: ErrKey})
		return nil, false
	}
	if len(k) == 0 {
		l.errs = append(l.errs, &Error{Pos: Pos{path, 1, 1}, Key: key, What: "there is no key in the file", Mend: "write it in hexadecimal digits", Class: ErrKey})
		return nil, false
	}
	return k, true
}

// keyFileNames end the names of files with keys.
var keyFileNames = []string{".key", ".hex", ".txt", ".psk", ".secret"}

// isPath reports whether a text is surely the path of a file, and no key that somebody wrote in its place: it ends as such names do,
// and has no run of letters and digits that is as long as a key's.
func isPath(s string) bool {
	if len(s) > maxShown || !slices.Contains(keyFileNames, filepath.Ext(s)) {
		return false
	}
	const shortest = 16 // characters of any key's part, however it is written
	run := 0
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9':
			run++
		case strings.IndexByte("/._-", c) >= 0:
			run = 0
		default:
			return false
		}
		if run >= shortest {
			return false
		}
	}
	return true
}

// digitError is what keeps a text from being a key in hexadecimal. It says nothing of the text.
type digitError struct {
	off        int
	what, mend string
}

// decodeKey decodes hexadecimal digits, with or without 0x before them, with blanks and line ends among them.
func decodeKey(text []byte) (offload.Key, *digitError) {
	digits := make([]byte, 0, len(text))
	defer func() { clear(digits[:cap(digits)]) }()
	start := len(text) - len(bytes.TrimLeft(text, " \t\r\n"))
	if bytes.HasPrefix(text[start:], []byte("0x")) || bytes.HasPrefix(text[start:], []byte("0X")) {
		start += 2
	}
	last := start
	for i := start; i < len(text); i++ {
		switch c := text[i]; {
		case isHex(c):
			digits = append(digits, c)
			last = i
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
		default:
			return nil, &digitError{i, "a character that is not a hexadecimal digit", "write the key in the digits 0-9 and a-f only; `base64 -d | od -An -tx1` makes them of base64"}
		}
	}
	if len(digits)%2 != 0 {
		return nil, &digitError{last, fmt.Sprintf("%d hexadecimal digits, an odd number", len(digits)), "a byte has two digits: add the missing one or remove the one too many"}
	}
	k := make(offload.Key, len(digits)/2)
	hex.Decode(k, digits) // cannot fail: these are digits, and an even number of them
	return k, nil
}

// checkKey says what is wrong with one key for its transform.
func checkKey(k offload.Key, p keyPart, t *offload.Transform, written bool) *problem {
	want, algorithm, secret := t.EncKeyLen(), encName(t), t.KeyBits/8
	if p == authKey {
		want, algorithm, secret = t.AuthKeyLen, authName(t), t.AuthKeyLen
	}
	switch {
	case want == 0 && !written:
		return nil
	case want == 0 && p == authKey:
		return &problem{t.Name + " authenticates with enc_key and has no other key", "remove it", ErrKey}
	case want == 0:
		return &problem{t.Name + " does not encrypt and has no such key", "remove it", ErrKey}
	case !written:
		return &problem{
			fmt.Sprintf("it is missing, and %s is as well", keyParts[p]+"_file"),
			fmt.Sprintf("write %d hexadecimal digits (%d bytes, %s), which `openssl rand -hex %d` makes", 2*want, want, algorithm, want), ErrMissing,
		}
	case len(k) != want:
		return &problem{fmt.Sprintf("%d bytes, want %d (%s)", len(k), want, algorithm), lengthMend(len(k), p, t), ErrKey}
	}
	zero := byte(0)
	for _, b := range k[:secret] {
		zero |= b
	}
	if zero == 0 {
		return &problem{"the key is all zeros", fmt.Sprintf("make one with `openssl rand -hex %d`; a kernel in lockdown shows zeros instead of its keys", want), ErrKey}
	}
	if p == encKey && t.Cipher == offload.TripleDESCBC {
		for i := range 2 {
			if a, b := k[8*i:8*i+8], k[8*i+8:8*i+16]; sameDES(a, b) {
				return &problem{
					fmt.Sprintf("DES keys %d and %d of the three are equal, which makes it single DES", i+1, i+2),
					"make another with `openssl rand -hex 24`", ErrKey,
				}
			}
		}
	}
	return nil
}

// sameDES compares two DES keys without their parity bits, which the cipher ignores.
func sameDES(a, b []byte) bool {
	diff := byte(0)
	for i := range a {
		diff |= (a[i] ^ b[i]) &^ 1
	}
	return diff == 0
}

// lengthMend says what a key of this length would be right for, if anything.
func lengthMend(got int, p keyPart, t *offload.Transform) string {
	if p == encKey {
		if t.SaltLen > 0 && got == t.KeyBits/8 {
			return fmt.Sprintf("append the %d digits of the salt (%s)", 2*t.SaltLen, t.RFC)
		}
		for _, other := range offload.Transforms() {
			if other.Name == t.Name && other.EncKeyLen() == got {
				return fmt.Sprintf("write the whole key, or key_bits = %d if that is meant", other.KeyBits)
			}
		}
		return fmt.Sprintf("write %d hexadecimal digits", 2*t.EncKeyLen())
	}
	return fmt.Sprintf("write %d hexadecimal digits", 2*t.AuthKeyLen)
}

// encName names a cipher with its key length as people do.
func encName(t *offload.Transform) string {
	name := ""
	switch t.Cipher {
	case offload.AESCBC, offload.AESGCM:
		name = fmt.Sprintf("AES-%d", t.KeyBits)
	case offload.TripleDESCBC:
		name = "3DES, three keys of 8 bytes"
	case offload.ChaCha20Poly1305:
		name = "ChaCha20"
	default:
		name = t.Cipher.String()
	}
	if t.SaltLen > 0 {
		name += fmt.Sprintf(" and %d bytes of salt", t.SaltLen)
	}
	return name
}

var authNames = map[offload.Auth]string{
	offload.HMACMD5: "HMAC-MD5", offload.HMACSHA1: "HMAC-SHA1", offload.HMACSHA256: "HMAC-SHA256",
	offload.HMACSHA384: "HMAC-SHA384", offload.HMACSHA512: "HMAC-SHA512",
}

func authName(t *offload.Transform) string {
	if n, ok := authNames[t.Auth]; ok {
		return n
	}
	return "the ICV"
}

// keyReuse finds a key that encrypts in two SAs. With an AEAD that repeats nonces, because both count from 1, and gives both
// plaintexts and the authentication key away (RFC 4106 section 9); otherwise it is only unwise.
func (l *loader) keyReuse(r *reader, t *offload.Transform, k offload.Keys) {
	part, secret := encKey, k.Enc
	if t.KeyBits == 0 {
		part, secret = authKey, k.Auth
	} else {
		secret = secret[:t.KeyBits/8] // without the salt: it is no secret and no excuse
	}
	sum := sha256.Sum256(secret)
	off := r.at(r.keyName(part))
	first, used := l.keyUses[sum]
	if !used {
		l.keyUses[sum] = keyUse{r.path, off}
		return
	}
	what := fmt.Sprintf("the same key as %s at %v", first.key, l.doc.pos(first.off))
	if t.AEAD {
		r.fail(r.keyName(part), &problem{what + ": with " + t.Name + " two SAs of one key reveal what they carry", "give every SA a key of its own", ErrKey})
		return
	}
	r.warn(r.keyName(part), "%s: give every SA a key of its own", what)
}
