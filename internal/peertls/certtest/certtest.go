package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Leaf says what a certificate holds.
type Leaf struct {
	DNS, URIs           []string
	NotBefore, NotAfter time.Time          // zero: an hour ago, and in a day
	Usages              []x509.ExtKeyUsage // nil: server and client
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	must(err)
	return n
}

// must ends the program: nothing here depends on anything that may fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// New makes an authority.
func New(name string) *Authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	now := time.Now()
	t := &x509.Certificate{SerialNumber: serial(), Subject: pkix.Name{CommonName: name}, NotBefore: now.AddDate(-10, 0, 0), NotAfter: now.AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	raw, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	must(err)
	cert, err := x509.ParseCertificate(raw)
	must(err)
	return &Authority{cert, key}
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Issue makes a certificate and its key, both PEM.
func (a *Authority) Issue(l Leaf) (cert, key []byte) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	now := time.Now()
	t := &x509.Certificate{SerialNumber: serial(), Subject: pkix.Name{CommonName: "kvxfer test"}, DNSNames: l.DNS, NotBefore: l.NotBefore, NotAfter: l.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: l.Usages}
	for _, s := range l.URIs {
		u, err := url.Parse(s)
		must(err)
		t.URIs = append(t.URIs, u)
	}
	if t.NotBefore.IsZero() {
		t.NotBefore = now.Add(-time.Hour)
	}
	if t.NotAfter.IsZero() {
		t.NotAfter = now.AddDate(0, 0, 1)
	}
	if t.ExtKeyUsage == nil {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	raw, err := x509.CreateCertificate(rand.Reader, t, a.cert, k.Public(), a.key)
	must(err)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	must(err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Write puts a certificate for a node, its key and the authorities that it trusts into dir as node.crt, node.key and ca.crt, each
// replaced as a whole, and returns their paths. Without authorities to trust it is a itself.
func (a *Authority) Write(dir string, l Leaf, trusts ...*Authority) (cert, key, ca string, err error) {
	c, k := a.Issue(l)
	if len(trusts) == 0 {
		trusts = []*Authority{a}
	}
	var cas []byte
	for _, t := range trusts {
		cas = append(cas, t.PEM()...)
	}
	cert, key, ca = filepath.Join(dir, "node.crt"), filepath.Join(dir, "node.key"), filepath.Join(dir, "ca.crt")
	for _, f := range []struct {
		path string
		raw  []byte
	}{{cert, c}, {key, k}, {ca, cas}} {
		if err := os.WriteFile(f.path+".new", f.raw, 0o600); err != nil {
			return "", "", "", err
		}
		if err := os.Rename(f.path+".new", f.path); err != nil {
			return "", "", "", err
		}
	}
	return cert, key, ca, nil
}
