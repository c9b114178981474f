package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/peertls"
)

// soon is when an end of validity is worth a word.
const soon = 14 * 24 * time.Hour

func (s *Subject) certificates() Check {
	switch {
	case s.Config == nil:
		return unknown()
	case !s.Config.TLS():
		return ok("none: peers are spoken to in clear")
	}
	const remedy = "make new files; the daemon reads them again by itself"
	var end time.Time
	for _, path := range []string{s.Config.TLSCert, s.Config.TLSCA} {
		certs, err := readCertificates(path)
		if err != nil {
			return fail(remedy, "%s: %v", path, err)
		}
		for _, c := range certs {
			if end.IsZero() || c.NotAfter.Before(end) {
				end = c.NotAfter
			}
			if time.Now().Before(c.NotBefore) {
				return fail("wait, or correct this host's time of day", "%s: it is valid from %s on", path, c.NotBefore.UTC().Format(time.RFC3339))
			}
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(s.Config.TLSKey, &st); err != nil {
		return fail(remedy, "%s: %v", s.Config.TLSKey, err)
	}
	if st.Mode&0o077 != 0 {
		return warn("chmod 600 it", "%s may be read by others, mode %04o", s.Config.TLSKey, st.Mode&0o777)
	}
	left, text := time.Until(end), end.UTC().Format(time.RFC3339)
	if left <= 0 {
		return fail(remedy, "ended %s", text)
	}
	files := peertls.Files{Cert: s.Config.TLSCert, Key: s.Config.TLSKey, CA: s.Config.TLSCA}
	_, err := peertls.Load(files, s.Config.Node, slog.New(slog.DiscardHandler))
	switch {
	case err != nil:
		return fail(remedy, "%v", err)
	case left < soon:
		return warn(remedy, "valid until %s", text)
	}
	return ok("valid until %s", text)
}

func readCertificates(path string) (out []*x509.Certificate, err error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, errors.Unwrap(err) // the path is told beside it
	}
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, errors.New("no certificate in it")
	}
	return out, nil
}
