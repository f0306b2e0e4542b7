package strongswan

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority is a CA for one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  crypto.Signer
	next int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key, next: 1}
	a.cert = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "a CA for one test"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}, nil, key)
	return a
}

// sign makes a certificate; parent nil is the CA's own.
func (a *authority) sign(c, parent *x509.Certificate, of crypto.Signer) *x509.Certificate {
	a.t.Helper()
	if parent == nil {
		parent = c
	}
	c.SerialNumber = big.NewInt(a.next)
	a.next++
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, parent, of.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	done, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return done
}

// equip gives a side the CA's certificate, one of its own for its address, and the key, where swanctl looks for them.
func (a *authority) equip(s *side, key crypto.Signer) {
	a.t.Helper()
	addr := s.end.Addr(false)
	cert := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: addr.String()}, IPAddresses: []net.IP{addr.AsSlice()}, KeyUsage: x509.KeyUsageDigitalSignature}, a.cert, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"x509ca/ca.pem":   {Type: "CERTIFICATE", Bytes: a.cert.Raw},
		"x509/own.pem":    {Type: "CERTIFICATE", Bytes: cert.Raw},
		"private/own.pem": {Type: "PRIVATE KEY", Bytes: der},
	} {
		if err := os.MkdirAll(filepath.Join(s.dir, filepath.Dir(name)), 0o700); err != nil {
			a.t.Fatal(err)
		}
		s.write(name, string(pem.EncodeToMemory(block)))
	}
}

// With certificates instead of a shared secret, RSA on one side and ECDSA on the other: what the daemons negotiate so is carried as well,
// also when the IKE SA is authenticated anew. A peer whose certificate is another CA's gets no tunnel.
func TestStrongSwanCertificates(t *testing.T) {
	long(t)
	w := newWorld(t, options{})
	ca := newAuthority(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca.equip(w.a, rsaKey)
	ca.equip(w.b, ecKey)
	for _, s := range []*side{w.a, w.b} {
		text := strings.ReplaceAll(s.read("swanctl.conf"), "auth = psk", "auth = pubkey")
		text = strings.Replace(text, "local { auth = pubkey", "local { auth = pubkey\n      certs = own.pem", 1)
		if strings.Count(text, "pubkey") != 2 {
			t.Fatalf("not the configuration that was expected:\n%s", text)
		}
		s.write("swanctl.conf", text)
		s.load()
	}
	wire := w.capture()
	w.up()
	if list := w.b.must("--list-certs"); !strings.Contains(list, "a CA for one test") {
		t.Errorf("no certificate is loaded:\n%s", list)
	}
	w.ping(w.EthA, w.EthB, false, 10)
	w.ping(w.EthB, w.EthA, true, 10)
	w.sendFile(w.EthA, w.EthB, false, 1<<20)
	w.a.must("--rekey", "--ike", "c", "--reauth")
	until(t, "a CHILD_SA alone is installed", func() bool {
		return len(w.a.installed()) == 1 && len(w.b.installed()) == 1 && w.a.status().IKE.SAs == 2
	})
	w.ping(w.EthA, w.EthB, false, 10)
	if clear, _ := wire.clear(); clear != 0 {
		t.Errorf("%d packets on the wire are in the clear", clear)
	}
	w.down()
}
