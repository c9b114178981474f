package embedded_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls/certtest"
	"github.com/kvxfer/kvxfer/registry/embedded"
	"github.com/kvxfer/kvxfer/registry/natsaccess"
)

func TestAccess(t *testing.T) {
	dir := t.TempDir()
	secret, wrong := filepath.Join(dir, "secret"), filepath.Join(dir, "wrong")
	require.NoError(t, os.WriteFile(secret, []byte("open sesame\n"), 0o600))
	require.NoError(t, os.WriteFile(wrong, []byte("open barley"), 0o600))
	cert, key, ca, err := certtest.New("ca").Write(dir, certtest.Leaf{DNS: []string{"localhost"}})
	require.NoError(t, err)
	other := t.TempDir()
	strange, strangeKey, _, err := certtest.New("other").Write(other, certtest.Leaf{DNS: []string{"localhost"}})
	require.NoError(t, err)
	for name, x := range map[string]struct {
		server, good natsaccess.Files
		bad          []natsaccess.Files
	}{
		"token":    {natsaccess.Files{Token: secret}, natsaccess.Files{Token: secret}, []natsaccess.Files{{}, {Token: wrong}, {User: "u", Password: secret}}},
		"password": {natsaccess.Files{User: "u", Password: secret}, natsaccess.Files{User: "u", Password: secret}, []natsaccess.Files{{}, {User: "u", Password: wrong}, {User: "v", Password: secret}}},
		"mutual TLS": {natsaccess.Files{Cert: cert, Key: key, CA: ca}, natsaccess.Files{Cert: cert, Key: key, CA: ca},
			[]natsaccess.Files{{}, {CA: ca}, {CA: ca, Cert: strange, Key: strangeKey}}},
		"token over TLS": {natsaccess.Files{Token: secret, Cert: cert, Key: key}, natsaccess.Files{Token: secret, CA: ca},
			[]natsaccess.Files{{}, {Token: secret}, {CA: ca}, {CA: ca, Token: wrong}}},
	} {
		t.Run(name, func(t *testing.T) {
			var log logText
			s := start(t, embedded.Options{Listen: "0.0.0.0:0", Access: x.server, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			assert.NotContains(t, log.String(), "without credentials")
			// The server advertises the address it listens on, a certificate names a host.
			url := "nats://localhost" + s.ClientURL()[strings.LastIndexByte(s.ClientURL(), ':'):]
			nc, err := nats.Connect(url, x.good.ClientOptions(false)...)
			require.NoError(t, err)
			nc.Close()
			for _, f := range x.bad {
				_, err := nats.Connect(url, f.ClientOptions(false)...)
				require.Error(t, err, "%+v", f)
				if !errors.Is(err, nats.ErrTLS) { // closed before the reason arrived
					assert.Error(t, f.Explain("op", err), "%+v: %v", f, err)
				}
			}
			in, err := s.Connect(x.server.ClientOptions(true)...)
			require.NoError(t, err, "in the process")
			in.Close()
		})
	}
	_, err = embedded.Start(embedded.Options{StoreDir: dir, Access: natsaccess.Files{Creds: secret}})
	require.ErrorIs(t, err, fault.ErrConfigInvalid)
}
