package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/registry/natsaccess"
)

// The registry's part of the tables in config_test.go.
func init() {
	const away = "KVXFER_NATS=nats://a:1"
	paths := map[string]func(*natsaccess.Files) string{
		"nats-creds":         func(f *natsaccess.Files) string { return f.Creds },
		"nats-password-file": func(f *natsaccess.Files) string { return f.Password },
		"nats-token-file":    func(f *natsaccess.Files) string { return f.Token },
		"nats-tls-cert":      func(f *natsaccess.Files) string { return f.Cert },
		"nats-tls-key":       func(f *natsaccess.Files) string { return f.Key },
		"nats-tls-ca":        func(f *natsaccess.Files) string { return f.CA },
	}
	add := func(name string, get func(*Config) any, texts [4]string, want [4]any, bad ...string) {
		samples[name] = struct {
			get   func(*Config) any
			texts [4]string
			want  [4]any
		}{get, texts, want}
		wrong[name] = bad
	}
	for name, get := range paths {
		add(name, func(c *Config) any { return get(&c.Registry) }, [4]string{"/a", "b", "/c", "/d"}, [4]any{"/a", "/home/u/b", "/c", "/d"}, "a\x00")
		beside[name] = []string{away}
	}
	add("nats-user", func(c *Config) any { return c.Registry.User }, [4]string{"a", "b", "c", "d"}, [4]any{"a", "b", "c", "d"}, "a b", "-")
	add("registry-replicas", func(c *Config) any { return c.RegistryReplicas }, [4]string{"1", "3", "5", "3"}, [4]any{1, 3, 5, 3}, "", "0", "2", "x")
	add("insecure-nats", func(c *Config) any { return c.InsecureNATS }, [4]string{"true", "false", "true", "false"}, [4]any{true, false, true, false}, "", "1")
	beside["registry-replicas"] = []string{away}
	beside["nats-user"] = []string{"KVXFER_NATS_PASSWORD_FILE=/p"}
	beside["nats-password-file"] = []string{"KVXFER_NATS_USER=u"}
	beside["nats-tls-cert"] = []string{away, "KVXFER_NATS_TLS_KEY=/k"}
	beside["nats-tls-key"] = []string{away, "KVXFER_NATS_TLS_CERT=/c"}
	beside["nats-listen"] = []string{"KVXFER_INSECURE_NATS=true"}
}

// dropOtherCredentials leaves one kind where every setting has a value.
func dropOtherCredentials(every map[string]any) {
	delete(every, "nats-user")
	delete(every, "nats-password-file")
	delete(every, "nats-token-file")
}

func TestRegistryBeyondTheHost(t *testing.T) {
	tls := []string{"--nats-tls-cert=/c", "--nats-tls-key=/k"}
	for _, x := range []struct {
		args  []string
		field string // "": allowed
		want  string
	}{
		{args: []string{"--nats-listen=eth0"}, field: "nats-listen", want: "whoever reaches it could change the registry"},
		{args: []string{"--nats-listen=0.0.0.0"}, field: "nats-listen", want: "any address with nats-token-file"},
		{args: append([]string{"--nats-listen=eth0"}, tls...), field: "nats-listen", want: "nats-tls-ca"}, // TLS without authorities asks nobody who he is
		{args: append([]string{"--nats-listen=eth0", "--nats-tls-ca=/a"}, tls...)},
		{args: []string{"--nats-listen=eth0", "--nats-token-file=/t"}},
		{args: []string{"--nats-listen=eth0", "--nats-user=u", "--nats-password-file=/p"}},
		{args: []string{"--nats-listen=eth0", "--insecure-nats"}},
		{args: []string{"--nats-listen=eth0", "--insecure-peers"}},
		{args: []string{"--nats-listen=lo"}},
		{args: []string{"--nats-token-file=/t"}},
		{args: []string{"--nats-creds=/c"}, field: "nats-creds", want: "the embedded server has no accounts"},
		{args: []string{"--nats=nats://h", "--nats-creds=/c", "--registry-replicas=3"}},
		{args: []string{"--nats=nats://h", "--nats-creds=/c", "--nats-token-file=/t"}, field: "nats-token-file", want: "nats-creds is from flag --nats-creds"},
		{args: []string{"--nats=nats://h", "--nats-user=u"}, field: "nats-password-file", want: "together, or none"},
		{args: []string{"--nats=nats://h", "--nats-password-file=/p"}, field: "nats-user", want: "together, or none"},
		{args: []string{"--nats=tls://h", "--nats-tls-cert=/p"}, field: "nats-tls-key", want: "together, or none"},
		{args: []string{"--nats=tls://h", "--nats-tls-ca=/p"}},
		{args: []string{"--nats-tls-ca=/p"}, field: "nats-tls-cert", want: "no TLS to ask clients"},
		{args: []string{"--registry-replicas=3"}, field: "registry-replicas", want: "the embedded server is alone"},
	} {
		_, err := load(x.args, []string{home}, testHost(nil))
		if x.field == "" {
			require.NoError(t, err, x.args)
			continue
		}
		f := faults(t, err)
		require.Len(t, f, 1, x.args)
		assert.Equal(t, x.field, f[0].Field, x.args)
		assert.Contains(t, f[0].Detail, x.want, x.args)
	}
}
