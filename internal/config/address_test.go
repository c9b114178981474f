package config

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
)

func TestParseAddress(t *testing.T) {
	for s, want := range map[string]address{
		"10.0.0.1":             {"10.0.0.1", 9},
		"10.0.0.1:0":           {"10.0.0.1", 0},
		"0.0.0.0:65535":        {"0.0.0.0", 65535},
		"::1":                  {"::1", 9},
		"[::1]":                {"::1", 9},
		"[::1]:5":              {"::1", 5},
		"fe80::1%eth0":         {"fe80::1%eth0", 9},
		"[fe80::1%eth0]:7":     {"fe80::1%eth0", 7},
		"[2001:DB8:0:0::1]:07": {"2001:db8::1", 7},
		"eth0":                 {"eth0", 9},
		"eth0.100:80":          {"eth0.100", 80},
		"br-lan:1":             {"br-lan", 1},
		"node.example:5":       {"node.example", 5},
		":80":                  {"", 80},
	} {
		got, err := parseAddress(s, 9)
		require.NoError(t, err, s)
		assert.Equal(t, want, got, s)
	}
	for _, s := range []string{"", ":", "a:", "a:-1", "a:+1", "a:65536", "a:b:c", "[::1", "::1]", "[::1]x", "[::1]:", "[a]:1", "[1.2.3.4]:1",
		"1.2.3.4.5", "256.1.1.1:5", "a/b", "a b", "a\x00:1", "tcp://a:1", "fe80::1%eth0:5x]", "é:1"} {
		_, err := parseAddress(s, 9)
		assert.ErrorContains(t, err, "allowed", s)
	}
}

func TestInterfaceChoice(t *testing.T) {
	rng := testseed.New(t)
	for name, c := range map[string]struct {
		addrs    []string
		loopback bool
		want     string
	}{
		"global IPv4 first":         {[]string{"fe80::2", "2001:db8::2", "10.0.0.9", "10.0.0.10", "127.0.0.1"}, false, "10.0.0.9"},
		"then global IPv6":          {[]string{"fe80::2", "fd00::2", "169.254.1.1", "::1"}, false, "fd00::2"},
		"then link-local IPv4":      {[]string{"fe80::2", "169.254.1.1", "::1"}, false, "169.254.1.1"},
		"then IPv6 with its zone":   {[]string{"::1", "fe80::2"}, false, "fe80::2%if0"},
		"a zone that is there":      {[]string{"fe80::2%other"}, false, "fe80::2%other"},
		"loop-back at last":         {[]string{"::1", "127.0.0.1"}, false, "127.0.0.1"},
		"loop-back first, if it is": {[]string{"10.0.0.1", "::1", "127.0.0.1"}, true, "127.0.0.1"},
		"mapped":                    {[]string{"::ffff:10.0.0.1", "2001:db8::1"}, false, "10.0.0.1"},
		"nothing usable":            {[]string{"0.0.0.0", "::", "224.0.0.1", "ff02::1"}, false, ""},
		"nothing":                   {nil, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			addrs := ips(t, c.addrs...)
			for range 20 {
				rng.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
				got, ok := choose(addrs, c.loopback, "if0")
				require.Equal(t, c.want != "", ok)
				if ok {
					require.Equal(t, c.want, got.String())
				}
			}
		})
	}
}

func FuzzAddress(f *testing.F) {
	for _, s := range []string{"10.0.0.1:5", "[::1]:5", "eth0", ":0", "[fe80::1%eth0]:7", "a:b", "]", "[", "%", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAddress(s, 9)
		if err != nil {
			return
		}
		// What is accepted can be written down for net.Listen and is read back the same.
		text := hostPort(a.host, a.port)
		if host, _, err := net.SplitHostPort(text); err != nil || host != a.host {
			t.Fatalf("%q: %q %v", s, text, err)
		}
		b, err := parseAddress(text, 1)
		if err != nil || b != a {
			t.Fatalf("%q: %+v, then %q: %+v %v", s, a, text, b, err)
		}
	})
}
