package xfrm

import (
	"strings"

	"golang.org/x/sys/unix"

	"culvert/offload"
)

// algoKind is what an algorithm does.
type algoKind uint8

const (
	authAlgo algoKind = iota
	cryptAlgo
	aeadAlgo
	compAlgo
)

var kindNames = [...]string{"authentication", "encryption", "AEAD", "compression"}

// knownAlgo is a row of the kernel's table of algorithms: its name, the other one that it is also known by, the length of the
// ICV where none is said, and the longest one, in bits.
type knownAlgo struct {
	kind             algoKind
	name, alias      string
	icvBits, fullICV uint32
}

// knownAlgos are the names that Linux 6.18 takes, whether or not Culvert can do them.
var knownAlgos = []knownAlgo{
	{authAlgo, "digest_null", "", 0, 0},
	{authAlgo, "hmac(md5)", "md5", 96, 128},
	{authAlgo, "hmac(sha1)", "sha1", 96, 160},
	{authAlgo, "hmac(sha256)", "sha256", 96, 256},
	{authAlgo, "hmac(sha384)", "", 192, 384},
	{authAlgo, "hmac(sha512)", "", 256, 512},
	{authAlgo, "hmac(rmd160)", "rmd160", 96, 160},
	{authAlgo, "hmac(sm3)", "sm3", 256, 256},
	{authAlgo, "xcbc(aes)", "", 96, 128},
	{authAlgo, "cmac(aes)", "", 96, 128},

	{cryptAlgo, "ecb(cipher_null)", "cipher_null", 0, 0},
	{cryptAlgo, "cbc(des)", "des", 0, 0},
	{cryptAlgo, "cbc(des3_ede)", "des3_ede", 0, 0},
	{cryptAlgo, "cbc(cast5)", "cast5", 0, 0},
	{cryptAlgo, "cbc(blowfish)", "blowfish", 0, 0},
	{cryptAlgo, "cbc(aes)", "aes", 0, 0},
	{cryptAlgo, "cbc(serpent)", "serpent", 0, 0},
	{cryptAlgo, "cbc(camellia)", "camellia", 0, 0},
	{cryptAlgo, "cbc(twofish)", "twofish", 0, 0},
	{cryptAlgo, "cbc(sm4)", "sm4", 0, 0},
	{cryptAlgo, "rfc3686(ctr(aes))", "", 0, 0},

	{aeadAlgo, "rfc4106(gcm(aes))", "", 128, 128},
	{aeadAlgo, "rfc4309(ccm(aes))", "", 128, 128},
	{aeadAlgo, "rfc4543(gcm(aes))", "", 128, 128},
	{aeadAlgo, "rfc7539esp(chacha20,poly1305)", "", 128, 128},

	{compAlgo, "deflate", "", 0, 0},
	{compAlgo, "lzs", "", 0, 0},
	{compAlgo, "lzjh", "", 0, 0},
}

func findAlgo(kind algoKind, name string) (*knownAlgo, *Error) {
	for i := range knownAlgos {
		if k := &knownAlgos[i]; k.kind == kind && (k.name == name || k.alias != "" && k.alias == name) {
			return k, nil
		}
	}
	return nil, Errorf(unix.ENOSYS, "there is no %s algorithm %q", kindNames[kind], name)
}

// ResolveAlgos replaces the algorithms' short names by full ones and completes Auth and AuthTrunc from each other, AuthTrunc
// having the last word: after it the attributes are as the kernel lists them. An unknown name is ENOSYS, an ICV that is longer
// than the hash EINVAL; then nothing has changed.
func (a *Attrs) ResolveAlgos() error {
	var names [4]string
	var auth *knownAlgo
	for i, x := range []struct {
		kind algoKind
		algo *Algo
	}{{authAlgo, a.authAlgo()}, {cryptAlgo, a.Crypt}, {aeadAlgo, a.AEAD}, {compAlgo, a.Comp}} {
		if x.algo == nil {
			continue
		}
		k, e := findAlgo(x.kind, x.algo.Name)
		if e != nil {
			return e
		}
		names[i] = k.name
		if x.kind == authAlgo {
			auth = k
		}
	}
	if auth != nil {
		from := a.authAlgo()
		icv, e := auth.icv(from, a.AuthTrunc != nil)
		if e != nil {
			return e
		}
		if a.Auth != from {
			a.Auth.wipe()
		}
		a.Auth = NewAlgo(auth.name, 0, from.Key)
		a.AuthTrunc = NewAlgo(auth.name, icv, from.Key)
		a.Auth.KeyBits, a.AuthTrunc.KeyBits = from.KeyBits, from.KeyBits
		from.wipe()
	}
	for i, algo := range []*Algo{nil, a.Crypt, a.AEAD, a.Comp} {
		if algo != nil {
			algo.Name = names[i]
		}
	}
	return nil
}

func (a *Algo) wipe() {
	if a != nil {
		a.Key.Zero()
	}
}

// authAlgo is the authentication algorithm that counts.
func (a *Attrs) authAlgo() *Algo {
	if a.AuthTrunc != nil {
		return a.AuthTrunc
	}
	return a.Auth
}

// icv is the length of the ICV in bits: what a truncated algorithm says, and the default where it says 0 or cannot say.
func (k *knownAlgo) icv(a *Algo, trunc bool) (uint32, *Error) {
	if !trunc || a.ICVBits == 0 {
		return k.icvBits, nil
	}
	if a.ICVBits > k.fullICV {
		return 0, Errorf(unix.EINVAL, "an ICV of %d bits; %s has %d", a.ICVBits, k.name, k.fullICV)
	}
	return a.ICVBits, nil
}

// Transform finds the transform that the SA's algorithms, key lengths and ICV length make, and its keys, which share the
// attributes' memory: Attrs.Wipe zeroes both. Refusals have the errno that the kernel gives where it lacks an algorithm: ENOSYS
// for one, ENOENT for a combination; and EINVAL for a key that does not fit.
func (m *SA) Transform() (*offload.Transform, offload.Keys, error) {
	t, k, e := m.Attrs.transform()
	if e != nil {
		return nil, offload.Keys{}, e
	}
	k.ESN = m.Flags&StateESN != 0
	return t, k, nil
}

func (a *Attrs) transform() (*offload.Transform, offload.Keys, *Error) {
	var none offload.Keys
	if a.AEAD != nil {
		if a.Auth != nil || a.AuthTrunc != nil || a.Crypt != nil {
			return nil, none, Errorf(unix.EINVAL, "an AEAD authenticates and encrypts by itself: leave the other algorithms out")
		}
		known, e := findAlgo(aeadAlgo, a.AEAD.Name)
		if e != nil {
			return nil, none, e
		}
		return lookup(known.name, known.name, a.AEAD.Key, nil, a.AEAD.ICVBits)
	}
	auth := a.authAlgo()
	switch {
	case a.Crypt == nil && auth == nil:
		return nil, none, Errorf(unix.EINVAL, "there is neither an AEAD nor an encryption algorithm; give one, cipher_null for none")
	case a.Crypt == nil:
		return nil, none, Errorf(unix.EINVAL, "there is no encryption algorithm; cipher_null is the one that does nothing")
	}
	crypt, e := findAlgo(cryptAlgo, a.Crypt.Name)
	if e != nil {
		return nil, none, e
	}
	if auth == nil {
		return nil, none, Errorf(unix.ENOENT, "%s without authentication is not supported, as anybody could change packets: add hmac(sha256)", crypt.name)
	}
	known, e := findAlgo(authAlgo, auth.Name)
	if e != nil {
		return nil, none, e
	}
	icv, e := known.icv(auth, a.AuthTrunc != nil)
	if e != nil {
		return nil, none, e
	}
	if icv == 0 {
		return nil, none, Errorf(unix.ENOENT, "%s is no authentication, as anybody could change packets: use hmac(sha256)", known.name)
	}
	return lookup("authenc("+known.name+","+crypt.name+")", crypt.name, a.Crypt.Key, auth.Key, icv)
}

// lookup asks for the transform with these keys' lengths.
func lookup(name, cipher string, enc, auth offload.Key, icvBits uint32) (*offload.Transform, offload.Keys, *Error) {
	k := offload.Keys{Enc: enc, Auth: auth}
	any, err := offload.Lookup(name, 0, 0)
	if err != nil {
		return nil, offload.Keys{}, Errorf(unix.ENOSYS, "%s is not supported; there are %s", name, transformNames())
	}
	if icvBits == 0 {
		return nil, offload.Keys{}, Errorf(unix.EINVAL, "%s with an ICV of 0 bits; give %d", name, any.ICVLen*8)
	}
	keyBits := max(0, 8*(len(enc)-any.SaltLen))
	if keyBits == 0 && any.KeyBits != 0 || keyBits != 0 && any.KeyBits == 0 {
		return nil, offload.Keys{}, Errorf(unix.EINVAL, "%s with an encryption key of %d bits", cipher, 8*len(enc))
	}
	t, err := offload.Lookup(name, keyBits, int(icvBits))
	if err != nil {
		errno := unix.ENOENT
		if _, other := offload.Lookup(name, keyBits, 0); other != nil {
			errno = unix.EINVAL // the key's length, which the kernel refuses when it sets the key
		}
		return nil, offload.Keys{}, Errorf(errno, "%s", strings.TrimPrefix(err.Error(), "offload: "))
	}
	if err := t.CheckKeys(k); err != nil {
		return nil, offload.Keys{}, Errorf(unix.EINVAL, "%s", strings.TrimPrefix(err.Error(), "offload: "))
	}
	return t, k, nil
}

func transformNames() string {
	var names []string
	for _, t := range offload.Transforms() {
		if len(names) == 0 || names[len(names)-1] != t.Name {
			names = append(names, t.Name)
		}
	}
	return strings.Join(names, ", ")
}

// SetTransform gives the attributes the algorithms of a transform with copies of the keys, as the kernel lists them. The ESN of
// the keys is SAInfo.Flags's to say.
func (a *Attrs) SetTransform(t *offload.Transform, k offload.Keys) {
	for _, old := range []*Algo{a.Auth, a.AuthTrunc, a.Crypt, a.AEAD} {
		old.wipe()
	}
	a.Auth, a.AuthTrunc, a.Crypt, a.AEAD = nil, nil, nil, nil
	icv := uint32(8 * t.ICVLen)
	if t.AEAD {
		a.AEAD = NewAlgo(t.Cipher.String(), icv, k.Enc)
		return
	}
	a.Crypt = NewAlgo(t.Cipher.String(), 0, k.Enc)
	a.Auth = NewAlgo(t.Auth.String(), 0, k.Auth)
	a.AuthTrunc = NewAlgo(t.Auth.String(), icv, k.Auth)
}
