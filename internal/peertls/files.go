package peertls

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Files are the paths of PEM files. Cert holds the node's certificate first and then what leads to an authority, if
// anything; CA holds one authority's certificate or several.
type Files struct{ Cert, Key, CA string }

// The settings that name the files: the fields of errors.
const (
	fieldCert = "tls-cert"
	fieldKey  = "tls-key"
	fieldCA   = "tls-ca"
)

// maxFile bounds each file, in bytes.
const maxFile = 1 << 20

// set is what the files hold.
type set struct {
	cert  tls.Certificate // Leaf is set
	roots *x509.CertPool
}

// stamp tells whether a file may have changed. A file that was replaced has another inode.
type stamp struct {
	dev, ino uint64
	size     int64
	mtime    time.Time
}

// stamps are those of the three files; a file that is not there has a zero one.
type stamps [3]stamp

func (f Files) stat() (s stamps) {
	for i, path := range [...]string{f.Cert, f.Key, f.CA} {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		s[i] = stamp{size: info.Size(), mtime: info.ModTime()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			s[i].dev, s[i].ino = st.Dev, st.Ino
		}
	}
	return s
}

// wrong is a ConfigInvalid about a file. cause is nil or free of key material.
func wrong(field, path, detail string, cause error) error {
	return &fault.Error{Code: fault.ConfigInvalid, Op: "tls", Field: field, Detail: fmt.Sprintf("%s: %s", path, detail), Err: cause}
}

// read makes a set of the files for a node. expired is set where the set is whole but outside its time.
func (f Files) read(node string, now time.Time) (s *set, expired error, err error) {
	var raw [3][]byte
	for i, x := range [...]struct{ field, path string }{{fieldCert, f.Cert}, {fieldKey, f.Key}, {fieldCA, f.CA}} {
		if raw[i], err = readFile(x.path); err != nil {
			return nil, nil, wrong(x.field, x.path, "it cannot be read", err)
		}
	}
	chain, err := certificates(raw[0])
	if err != nil {
		return nil, nil, wrong(fieldCert, f.Cert, "allowed are PEM certificates, the node's own first", err)
	}
	authorities, err := certificates(raw[2])
	if err != nil {
		return nil, nil, wrong(fieldCA, f.CA, "allowed are PEM certificates of authorities", err)
	}
	s = &set{roots: x509.NewCertPool()}
	for _, c := range authorities {
		s.roots.AddCert(c)
	}
	// The certificates were read above, so what is wrong here is the key. The standard library's errors say what kind of thing is
	// wrong and repeat nothing of it.
	if s.cert, err = tls.X509KeyPair(raw[0], raw[1]); err != nil {
		return nil, nil, wrong(fieldKey, f.Key, "allowed is the PEM private key of the certificate in "+f.Cert, err)
	}
	leaf := chain[0]
	s.cert.Leaf = leaf
	if !namesNode(leaf, node) {
		return nil, nil, wrong(fieldCert, f.Cert, fmt.Sprintf("the certificate does not name this node: allowed is one with the DNS name %q or the URI %q; it names %.200q",
			node, nodeURI(node), names(leaf)), nil)
	}
	for _, use := range [...]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		err := s.verify(chain, use, now)
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			expired = err
			err = s.verify(chain, use, leaf.NotBefore)
			if errors.As(err, &invalid) && invalid.Reason == x509.Expired { // the authority's time is another one
				err = nil
			}
		}
		if err != nil {
			return nil, nil, wrong(fieldCert, f.Cert, "allowed is a certificate for server and client authentication that an authority of "+f.CA+" has signed", err)
		}
	}
	return s, expired, nil
}

// verify follows a chain to an authority of the set.
func (s *set) verify(chain []*x509.Certificate, use x509.ExtKeyUsage, now time.Time) error {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: s.roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}})
	return err
}

// certificates reads PEM certificates; other blocks are ignored. There is at least one, or an error.
func certificates(raw []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for {
		var b *pem.Block
		if b, raw = pem.Decode(raw); b == nil {
			break
		}
		if b.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(out)+1, err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("it holds no certificate")
	}
	return out, nil
}

func nodeURI(node string) string { return "kvxfer:node/" + node }

// namesNode reports whether a certificate is one of the node.
func namesNode(c *x509.Certificate, node string) bool {
	if slices.Contains(c.DNSNames, node) {
		return true
	}
	want := nodeURI(node)
	for _, u := range c.URIs {
		if u.String() == want {
			return true
		}
	}
	return false
}

// names lists what a certificate may name nodes by, for errors.
func names(c *x509.Certificate) []string {
	out := slices.Clone(c.DNSNames)
	for _, u := range c.URIs {
		out = append(out, u.String())
	}
	return out
}

// readFile reads a regular file of at most maxFile bytes; a pipe or device might never end.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(raw) > maxFile {
		err = fmt.Errorf("larger than %d bytes", maxFile)
	}
	return raw, err
}
