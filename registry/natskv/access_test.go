package natskv_test

import (
	"os"
	"path/filepath"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls/certtest"
	"github.com/kvxfer/kvxfer/registry/natsaccess"
	"github.com/kvxfer/kvxfer/registry/natsaccess/accesstest"
	"github.com/kvxfer/kvxfer/registry/natskv"
	rt "github.com/kvxfer/kvxfer/registry/registrytest"
)

// serve runs a NATS server from a configuration's text and returns its address on this host by name.
func serve(t *testing.T, config string) *natsserver.Server {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "server.conf")
	text := "listen: \"127.0.0.1:-1\"\njetstream: {store_dir: \"" + filepath.Join(dir, "js") + "\", max_mem: 16777216, max_file: 16777216}\n" + config
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	o, err := natsserver.ProcessConfigFile(path)
	require.NoError(t, err)
	o.NoSigs, o.NoLog = true, true
	s, err := natsserver.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(rt.Wait))
	return s
}

// A server that refuses is told apart from one that is away: what waiting does not mend is not waited for.
func TestWrongAccessIsSaidAtOnce(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	op, stranger := accesstest.New(), accesstest.New()
	good, err := op.Creds(dir, "good")
	require.NoError(t, err)
	weak, err := op.Creds(dir, "weak", "$JS.API.>")
	require.NoError(t, err)
	bad, err := stranger.Creds(dir, "bad")
	require.NoError(t, err)
	cert, key, ca, err := certtest.New("ca").Write(t.TempDir(), certtest.Leaf{DNS: []string{"localhost"}})
	require.NoError(t, err)
	_, _, otherCA, err := certtest.New("other").Write(t.TempDir(), certtest.Leaf{DNS: []string{"localhost"}})
	require.NoError(t, err)
	s := serve(t, op.ServerConfig()+"tls: {cert_file: \""+cert+"\", key_file: \""+key+"\"}\n")
	port := s.ClientURL()[len(s.ClientURL())-5:]
	for len(port) > 0 && (port[0] < '0' || port[0] > '9') {
		port = port[1:]
	}
	url := "tls://localhost:" + port
	for name, x := range map[string]struct {
		url   string
		f     natsaccess.Files
		field string // "": allowed
		code  fault.Code
	}{
		"right":                  {url, natsaccess.Files{Creds: good, CA: ca}, "", 0},
		"unknown user":           {url, natsaccess.Files{Creds: bad, CA: ca}, "nats-creds", fault.PermissionDenied},
		"no user":                {url, natsaccess.Files{CA: ca}, "nats", fault.PermissionDenied},
		"user without JetStream": {url, natsaccess.Files{Creds: weak, CA: ca}, "nats-creds", fault.PermissionDenied},
		"untrusted certificate":  {url, natsaccess.Files{Creds: good, CA: otherCA}, "nats-tls-ca", fault.ConfigInvalid},
		"host's authorities":     {url, natsaccess.Files{Creds: good}, "nats-tls-ca", fault.ConfigInvalid},
		"another host":           {"tls://127.0.0.1:" + port, natsaccess.Files{Creds: good, CA: ca}, "nats", fault.ConfigInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			// No clock is looked at: what is said at once is told apart by its code from a time that ran out.
			d, err := natskv.Connect(rt.Context(t), natskv.Options{URL: x.url, Access: x.f, Heartbeat: beat, Logger: quiet()})
			if x.field == "" {
				require.NoError(t, err)
				rt.Sees(t, d.View(), announce(t, d, "n"))
				require.NoError(t, d.Close(rt.Context(t)))
				return
			}
			require.Error(t, err)
			fe := fault.From("", err)
			assert.Equal(t, x.code, fe.Code, "%v", err)
			assert.Equal(t, x.field, fe.Field, "%v", err)
			assert.False(t, fe.Retryable())
		})
	}
}

// Credentials are replaced in their file, under the running process; a refusal ends nothing for good.
func TestCredentialsAreReadAgain(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(secret, []byte("first"), 0o600))
	s := newSite(t)
	s.stop(t)
	s.access = natsaccess.Files{Token: secret}
	s.start(t)
	d := s.Open(t)
	n := announce(t, d, "n")
	s.stop(t)
	require.NoError(t, os.WriteFile(secret, []byte("second"), 0o600))
	s.start(t)
	rt.Sees(t, s.Open(t).View(), n)
}

func TestReplicasNeedACluster(t *testing.T) {
	s := newSite(t)
	o := s.options()
	o.Replicas = 3
	_, err := natskv.Connect(rt.Context(t), o)
	require.ErrorIs(t, err, fault.ErrConfigInvalid)
	assert.Equal(t, "registry-replicas", fault.From("", err).Field)
}
