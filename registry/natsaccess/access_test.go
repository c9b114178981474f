package natsaccess_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls/certtest"
	"github.com/kvxfer/kvxfer/registry/natsaccess"
	"github.com/kvxfer/kvxfer/registry/natsaccess/accesstest"
)

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestFilesAreNamed(t *testing.T) {
	dir := t.TempDir()
	cert, key, ca, err := certtest.New("ca").Write(dir, certtest.Leaf{DNS: []string{"n"}})
	require.NoError(t, err)
	_, otherKey, _, err := certtest.New("other").Write(t.TempDir(), certtest.Leaf{DNS: []string{"n"}})
	require.NoError(t, err)
	creds, err := accesstest.New().Creds(dir, "u")
	require.NoError(t, err)
	secret, two := file(t, "hush\n"), file(t, "hush\nhush\n")
	for _, ok := range []natsaccess.Files{
		{}, {Creds: creds}, {User: "u", Password: secret}, {Token: secret}, {CA: ca}, {Cert: cert, Key: key}, {Creds: creds, Cert: cert, Key: key, CA: ca},
	} {
		require.NoError(t, ok.Check())
	}
	for _, x := range []struct {
		field string
		f     natsaccess.Files
	}{
		{"nats-creds", natsaccess.Files{Creds: filepath.Join(dir, "none")}},
		{"nats-creds", natsaccess.Files{Creds: secret}},
		{"nats-creds", natsaccess.Files{Creds: dir}},
		{"nats-creds", natsaccess.Files{Creds: creds, Token: secret}},
		{"nats-password-file", natsaccess.Files{User: "u"}},
		{"nats-password-file", natsaccess.Files{Password: secret}},
		{"nats-password-file", natsaccess.Files{User: "u", Password: two}},
		{"nats-token-file", natsaccess.Files{Token: two}},
		{"nats-token-file", natsaccess.Files{Token: file(t, "\n")}},
		{"nats-token-file", natsaccess.Files{Token: "/dev/null"}},
		{"nats-tls-cert", natsaccess.Files{Cert: cert, Key: otherKey}},
		{"nats-tls-key", natsaccess.Files{Cert: cert}},
		{"nats-tls-ca", natsaccess.Files{CA: secret}},
	} {
		err := x.f.Check()
		require.ErrorIs(t, err, fault.ErrConfigInvalid, "%+v", x)
		assert.Equal(t, x.field, fault.From("", err).Field)
		assert.Contains(t, err.Error(), "allowed")
		assert.NotContains(t, err.Error(), "hush")
	}
}

func TestExplain(t *testing.T) {
	f := natsaccess.Files{Creds: "/c"}
	for _, x := range []struct {
		err   error
		field string // "": not of this kind
		code  fault.Code
	}{
		{nil, "", 0},
		{nats.ErrNoServers, "", 0},
		{errors.New("i/o timeout"), "", 0},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, "", 0},
		{fmt.Errorf("x: %w", nats.ErrAuthorization), "nats-creds", fault.PermissionDenied},
		{nats.ErrAuthExpired, "nats-creds", fault.PermissionDenied},
		{nats.ErrPermissionViolation, "nats-creds", fault.PermissionDenied},
		{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, "nats-tls-ca", fault.ConfigInvalid},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, "nats", fault.ConfigInvalid},
		{x509.CertificateInvalidError{}, "nats-tls-ca", fault.ConfigInvalid},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}, "nats-tls-cert", fault.PermissionDenied},
		{nats.ErrSecureConnWanted, "nats", fault.ConfigInvalid},
	} {
		why := f.Explain("op", x.err)
		if x.field == "" {
			require.NoError(t, why)
			continue
		}
		fe := fault.From("", why)
		assert.Equal(t, x.field, fe.Field, "%v", x.err)
		assert.Equal(t, x.code, fe.Code, "%v", x.err)
		assert.False(t, fe.Retryable())
	}
	for field, f := range map[string]natsaccess.Files{"nats": {}, "nats-token-file": {Token: "/t"}, "nats-password-file": {User: "u", Password: "/p"}} {
		assert.Equal(t, field, fault.From("", f.Explain("op", nats.ErrAuthorization)).Field)
	}
}

func TestServerCertificateIsReadAgain(t *testing.T) {
	dir, ca := t.TempDir(), certtest.New("ca")
	write := func(name string) {
		_, _, _, err := ca.Write(dir, certtest.Leaf{DNS: []string{name}})
		require.NoError(t, err)
	}
	write("first")
	f := natsaccess.Files{Cert: filepath.Join(dir, "node.crt"), Key: filepath.Join(dir, "node.key"), CA: filepath.Join(dir, "ca.crt")}
	c, err := f.ServerTLS(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Equal(t, tls.RequireAndVerifyClientCert, c.ClientAuth)
	shown := func() string {
		now, err := c.GetConfigForClient(nil)
		require.NoError(t, err)
		leaf, err := x509.ParseCertificate(now.Certificates[0].Certificate[0])
		require.NoError(t, err)
		return leaf.DNSNames[0]
	}
	assert.Equal(t, "first", shown())
	write("second")
	assert.Equal(t, "second", shown())
	require.NoError(t, os.WriteFile(f.Cert, []byte("broken"), 0o600))
	assert.Equal(t, "second", shown())
	write("third")
	assert.Equal(t, "third", shown())
	none, err := natsaccess.Files{}.ServerTLS(slog.Default())
	require.NoError(t, err)
	assert.Nil(t, none)
}
