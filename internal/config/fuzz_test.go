package config

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func FuzzAddress(f *testing.F) {
	for _, s := range append(wrong["listen"], "eth0:1", "lo", "[::1]:2", "::", "[fe80::1%eth0]:7420", "10.0.0.1", "localhost:0", "[::ffff:1.2.3.4]", "::ffff:1.2.3.4%lo") {
		f.Add(s)
	}
	h := testHost(nil)
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := parseAddress(s); err == nil && a.port != noPort {
			again, err := parseAddress(a.String())
			require.NoError(t, err)
			assert.Equal(t, a, again)
		}
		for _, parse := range []func(string) (address, error){
			func(s string) (address, error) { return h.network.listenAddress(s, 1) },
			h.network.dialAddress,
		} {
			a, err := parse(s)
			if err != nil {
				assert.NotEmpty(t, err.Error())
				continue
			}
			require.True(t, a.set())
			if a.port == noPort {
				a.port = 1
			}
			host, port, err := net.SplitHostPort(a.String())
			require.NoError(t, err)
			assert.NotEmpty(t, host)
			assert.NotEmpty(t, port)
			again, err := parse(a.String())
			require.NoError(t, err)
			assert.Equal(t, a, again)
		}
	})
}

func FuzzFile(f *testing.F) {
	for _, s := range []string{``, `{}`, `{"lanes": 4}`, `{"node": "a", "nats": ["nats://a", "tls://b"]}`, `{"allow-uid": [1, "2"]}`, `{"x": {"y": []}}`,
		`{"lanes": 1e3, "lanes": -0}`, "{\n\"a\": null,", `{"node": "\ud800"}`, `[{}]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		out, errs := parseFile("/f", raw)
		for name := range out {
			assert.NotNil(t, byName(name))
			assert.True(t, strings.HasPrefix(out[name].source, "/f line "))
		}
		for _, e := range errs {
			assert.Contains(t, e.detail, "/f line ")
			assert.Contains(t, e.detail, "allowed")
		}
		c, err := load([]string{"--config=/f"}, []string{home}, testHost(map[string]string{"/f": string(raw)}))
		if err != nil {
			faults(t, err)
			return
		}
		_, err = netip.ParseAddrPort(c.Listen)
		assert.NoError(t, err)
		assert.Empty(t, errs)
	})
}
