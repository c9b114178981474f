package natsaccess

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/kvxfer/kvxfer/internal/fault"
)

const (
	maxSecret = 4 << 10 // bytes of a token or password file
	maxPEM    = 1 << 20
)

// Files are paths, "" where there is none. The zero value is no credentials and no TLS of one's own.
type Files struct {
	Creds    string // credentials file: JWT and seed; client only
	User     string // a name, not a path; with Password
	Password string // one line
	Token    string // one line
	CA       string // who signs the other side's certificate, PEM; without, the host's authorities (client) or nobody (server)
	Cert     string // own certificate, PEM; with Key
	Key      string // its private key, PEM
}

// Authenticates says whether a server with these files knows who connects: by a secret or by a certificate.
func (f Files) Authenticates() bool {
	return f.User != "" || f.Token != "" || f.Cert != "" && f.CA != ""
}

// Check reads every file once. ConfigInvalid names the setting.
func (f Files) Check() error {
	kinds := 0
	for _, s := range []string{f.Creds, f.User + f.Password, f.Token} {
		if s != "" {
			kinds++
		}
	}
	switch {
	case kinds > 1:
		return wrong("nats-creds", "credentials of several kinds; allowed: one of nats-creds, nats-user with nats-password-file, nats-token-file", nil)
	case (f.User == "") != (f.Password == ""):
		return wrong("nats-password-file", "nats-user or nats-password-file is not set; allowed: both or none", nil)
	case (f.Cert == "") != (f.Key == ""):
		return wrong("nats-tls-key", "nats-tls-cert or nats-tls-key is not set; allowed: both or none", nil)
	}
	if f.Creds != "" {
		raw, err := read(f.Creds, maxPEM)
		if err == nil && (!strings.Contains(string(raw), "NATS USER JWT") || !strings.Contains(string(raw), "NKEY SEED")) {
			err = errors.New("it holds no user JWT with its seed")
		}
		if err != nil {
			return wrong("nats-creds", "allowed is a credentials file", err)
		}
	}
	for _, s := range []struct{ field, path string }{{"nats-password-file", f.Password}, {"nats-token-file", f.Token}} {
		if s.path != "" {
			if _, err := secret(s.path); err != nil {
				return wrong(s.field, "allowed is a readable file with one line", err)
			}
		}
	}
	if f.Cert != "" {
		if _, err := tls.LoadX509KeyPair(f.Cert, f.Key); err != nil {
			return wrong("nats-tls-cert", "allowed are a certificate and the key that belongs to it, PEM", err)
		}
	}
	if f.CA != "" {
		if _, err := pool(f.CA); err != nil {
			return wrong("nats-tls-ca", "allowed are certificates of authorities, PEM", err)
		}
	}
	return nil
}

// ClientOptions make a connection prove itself by the files, and believe the server by them. A connection inside the
// process needs no TLS. Call Check before.
func (f Files) ClientOptions(inProcess bool) []nats.Option {
	// Nothing ends a daemon's connection but the daemon: credentials that are refused now may be replaced later.
	out := []nats.Option{nats.IgnoreAuthErrorAbort()}
	switch {
	case f.Creds != "":
		out = append(out, nats.UserCredentials(f.Creds))
	case f.User != "":
		out = append(out, nats.UserInfoHandler(func() (string, string) {
			p, _ := secret(f.Password) // refused by the server when it cannot be read, which names the setting
			return f.User, p
		}))
	case f.Token != "":
		out = append(out, nats.TokenHandler(func() string {
			s, _ := secret(f.Token)
			return s
		}))
	}
	if inProcess {
		return out
	}
	if f.CA != "" {
		out = append(out, nats.RootCAs(f.CA))
	}
	if f.Cert != "" {
		out = append(out, nats.ClientCert(f.Cert, f.Key))
	}
	return out
}

// Secrets are what a server asks of its clients, "" for none. Call Check before.
func (f Files) Secrets() (user, password, token string, err error) {
	if f.User != "" {
		if password, err = secret(f.Password); err != nil {
			return "", "", "", wrong("nats-password-file", "allowed is a readable file with one line", err)
		}
	}
	if f.Token != "" {
		if token, err = secret(f.Token); err != nil {
			return "", "", "", wrong("nats-token-file", "allowed is a readable file with one line", err)
		}
	}
	return f.User, password, token, nil
}

// ServerTLS is a listener's TLS, nil without a certificate. With a CA every client must show a certificate that it signed.
// The files are read for every connection; one that cannot be used leaves the former set in force.
func (f Files) ServerTLS(log *slog.Logger) (*tls.Config, error) {
	if f.Cert == "" {
		return nil, nil
	}
	first, err := f.load()
	if err != nil {
		return nil, err
	}
	s := &served{files: f, log: log, now: first}
	c := first.Clone()
	c.GetConfigForClient = s.config
	return c, nil
}

// served is a server's certificate as last read.
type served struct {
	files Files
	log   *slog.Logger

	mu     sync.Mutex
	now    *tls.Config
	broken string // what is wrong with the present files, so that it is logged once
}

func (s *served) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.files.load()
	switch {
	case err == nil:
		s.now, s.broken = c, ""
	case err.Error() != s.broken:
		s.broken = err.Error()
		s.log.Warn("registry certificate not replaced", "error", err)
	}
	return s.now, nil
}

func (f Files) load() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, wrong("nats-tls-cert", "allowed are a certificate and the key that belongs to it, PEM", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}}
	if f.CA != "" {
		if c.ClientCAs, err = pool(f.CA); err != nil {
			return nil, wrong("nats-tls-ca", "allowed are certificates of authorities, PEM", err)
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

func pool(path string) (*x509.CertPool, error) {
	raw, err := read(path, maxPEM)
	if err != nil {
		return nil, err
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(raw) {
		return nil, errors.New("it holds no certificate")
	}
	return p, nil
}

// secret is the one line of a file, without the line's end.
func secret(path string) (string, error) {
	raw, err := read(path, maxSecret)
	if err != nil {
		return "", err
	}
	s := strings.TrimRight(string(raw), "\r\n")
	if s == "" || strings.ContainsAny(s, "\r\n\x00") {
		return "", errors.New("it is not one line")
	}
	return s, nil
}

// read refuses what is not a regular file: a pipe would answer once and then block.
func read(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("it is no regular file of at most %d bytes", limit)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	return io.ReadAll(io.LimitReader(f, limit))
}

func wrong(field, detail string, err error) error {
	return &fault.Error{Code: fault.ConfigInvalid, Op: "registry access", Field: field, Detail: detail, Err: err}
}
