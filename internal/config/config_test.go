package config

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
)

func ips(t testing.TB, s ...string) []netip.Addr {
	t.Helper()
	var out []netip.Addr
	for _, x := range s {
		ip, err := netip.ParseAddr(x)
		require.NoError(t, err)
		out = append(out, ip)
	}
	return out
}

// host is a machine with interfaces lo, eth0, wg0 (IPv6 only), ll0 (link-local only) and none0, a resolver that knows
// node-1.cluster, and a file kvxfer.json.
func host(t testing.TB, file string, env ...string) Host {
	vars := map[string]string{}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		vars[k] = v
	}
	interfaces := map[string][]netip.Addr{
		"lo":    ips(t, "::1", "127.0.0.1", "10.255.0.1"),
		"eth0":  ips(t, "fe80::2", "2001:db8::2", "10.0.0.2", "10.0.0.1"),
		"wg0":   ips(t, "fe80::3", "fd00::3"),
		"ll0":   ips(t, "169.254.7.7", "fe80::4"),
		"none0": nil,
	}
	return Host{
		UID: 1000,
		LookupEnv: func(k string) (string, bool) {
			v, ok := vars[k]
			return v, ok
		},
		ReadFile: func(path string) ([]byte, error) {
			if path != "kvxfer.json" {
				return nil, os.ErrNotExist
			}
			return []byte(file), nil
		},
		Hostname: func() (string, error) { return "host-7", nil },
		Network: Network{
			Interface: func(name string) ([]netip.Addr, bool, error) {
				a, ok := interfaces[name]
				if !ok {
					return nil, false, errNoInterface
				}
				return a, name == "lo", nil
			},
			Interfaces: func() []string { return []string{"lo", "eth0"} },
			Lookup: func(name string) ([]netip.Addr, error) {
				if name != "node-1.cluster" {
					return nil, errors.New("unknown")
				}
				return ips(t, "2001:db8::9", "10.0.0.9"), nil
			},
		},
	}
}

// samples are three different good values of every setting, as written, and what makes of each a text to compare.
var samples = map[string]struct {
	values [3]string
	get    func(*Config) any
	want   [3]any
}{
	"node":          {[3]string{"a", "b.c", "d-1"}, func(c *Config) any { return c.Node }, [3]any{"a", "b.c", "d-1"}},
	"state-dir":     {[3]string{"/a", "/b", "/c/"}, func(c *Config) any { return c.StateDir }, [3]any{"/a", "/b", "/c"}},
	"socket":        {[3]string{"/a/s", "/b/s", "/c/s"}, func(c *Config) any { return c.Socket }, [3]any{"/a/s", "/b/s", "/c/s"}},
	"listen":        {[3]string{"10.0.0.1:1", "eth0", "[2001:db8::2]:0"}, func(c *Config) any { return c.Listen }, [3]any{"10.0.0.1:1", "10.0.0.1:7420", "[2001:db8::2]:0"}},
	"advertise":     {[3]string{"10.0.0.5", "wg0:9", "node-1.cluster:8"}, func(c *Config) any { return c.Advertise }, [3]any{"10.0.0.5:0", "[fd00::3]:9", "node-1.cluster:8"}},
	"http":          {[3]string{"off", "lo", ":80"}, func(c *Config) any { return c.HTTP }, [3]any{"", "127.0.0.1:7421", ":80"}},
	"nats":          {[3]string{"nats://a:4222", "nats://a, tls://b:1", "tls://c"}, func(c *Config) any { return strings.Join(c.NATS, " ") }, [3]any{"nats://a:4222", "nats://a tls://b:1", "tls://c"}},
	"nats-listen":   {[3]string{"lo", "0.0.0.0:4000", "eth0:0"}, func(c *Config) any { return c.NATSListen }, [3]any{"127.0.0.1:4222", "0.0.0.0:4000", "10.0.0.1:0"}},
	"tenant":        {[3]string{"x", "y", "z"}, func(c *Config) any { return c.Tenant }, [3]any{"x", "y", "z"}},
	"allow-uid":     {[3]string{"1", "2,3", "4294967294"}, func(c *Config) any { return fmt.Sprint(c.AllowUIDs) }, [3]any{"[1]", "[2 3]", "[4294967294]"}},
	"lanes":         {[3]string{"1", "64", "7"}, func(c *Config) any { return c.Lanes }, [3]any{1, 64, 7}},
	"max-clients":   {[3]string{"1", "65536", "7"}, func(c *Config) any { return c.MaxClients }, [3]any{1, 65536, 7}},
	"drain-timeout": {[3]string{"0s", "10m", "1.5s"}, func(c *Config) any { return c.DrainTimeout.String() }, [3]any{"0s", "10m0s", "1.5s"}},
	"heartbeat":     {[3]string{"50ms", "10m", "1s"}, func(c *Config) any { return c.Heartbeat.String() }, [3]any{"50ms", "10m0s", "1s"}},
	"trace-file":    {[3]string{"/t/a", "/t/b", "/t/c"}, func(c *Config) any { return c.TraceFile }, [3]any{"/t/a", "/t/b", "/t/c"}},
	"log-level":     {[3]string{"debug", "warn", "error"}, func(c *Config) any { return c.LogLevel.String() }, [3]any{"DEBUG", "WARN", "ERROR"}},
	"log-format":    {[3]string{"json", "text", "json"}, func(c *Config) any { return c.LogFormat }, [3]any{"json", "text", "json"}},
	"provider":      {[3]string{"tcp", "tcp,", " tcp"}, func(c *Config) any { return fmt.Sprint(c.Providers) }, [3]any{"[tcp]", "[tcp]", "[tcp]"}},
}

func TestEverySettingHasSamples(t *testing.T) {
	assert.Len(t, samples, len(settings))
	for _, name := range Names()[1:] {
		assert.Contains(t, samples, name)
	}
}

func TestDefaults(t *testing.T) {
	c, err := Load(nil, host(t, "", "HOME=/home/u"))
	require.NoError(t, err)
	assert.Equal(t, "host-7", c.Node)
	assert.Equal(t, "/home/u/.local/state/kvxfer", c.StateDir)
	assert.Equal(t, "/tmp/kvxfer-1000/kvxfer.sock", c.Socket)
	assert.Equal(t, "127.0.0.1:7420", c.Listen)
	assert.Equal(t, "127.0.0.1:7421", c.HTTP)
	assert.Empty(t, c.Advertise)
	assert.Empty(t, c.NATS)
	assert.Empty(t, c.NATSListen)
	assert.Equal(t, []string{"tcp"}, c.Providers)
	for name, s := range c.Sources {
		assert.Equal(t, "default", s, name)
	}

	c, err = Load(nil, host(t, "", "HOME=/home/u", "XDG_STATE_HOME=/x", "XDG_RUNTIME_DIR=/run/user/1000"))
	require.NoError(t, err)
	assert.Equal(t, "/x/kvxfer", c.StateDir)
	assert.Equal(t, "/run/user/1000/kvxfer/kvxfer.sock", c.Socket)

	root := host(t, "", "XDG_RUNTIME_DIR=/run/user/0")
	root.UID = 0
	c, err = Load(nil, root)
	require.NoError(t, err)
	assert.Equal(t, "/var/lib/kvxfer", c.StateDir)
	assert.Equal(t, "/run/kvxfer/kvxfer.sock", c.Socket)

	_, err = Load(nil, host(t, "", "XDG_STATE_HOME=relative"))
	require.ErrorIs(t, err, fault.ErrConfigInvalid)
	assert.ErrorContains(t, err, `field="state-dir"`)
}

// TestPrecedence sets every setting in a random subset of the sources, all together, and looks at what wins.
func TestPrecedence(t *testing.T) {
	rng := testseed.New(t)
	for range 300 {
		var args, env, file []string
		var names []string
		want := map[string]any{}
		source := map[string]string{}
		line := 2
		for _, s := range settings {
			sample := samples[s.name]
			conflicts := s.name == "nats-listen" && source["nats"] != ""
			in := rng.IntN(8)
			if conflicts {
				in = 0
			}
			order := rng.Perm(3)
			if in&4 != 0 {
				file = append(file, fmt.Sprintf("%q: %q", s.name, sample.values[order[0]]))
				want[s.name], source[s.name] = sample.want[order[0]], fmt.Sprintf("kvxfer.json:%d", line)
				line++
			}
			if in&2 != 0 {
				env = append(env, EnvName(s.name)+"="+sample.values[order[1]])
				want[s.name], source[s.name] = sample.want[order[1]], EnvName(s.name)
			}
			if in&1 != 0 {
				if rng.IntN(2) == 0 {
					args = append(args, "--"+s.name, sample.values[order[2]])
				} else {
					args = append(args, "-"+s.name+"="+sample.values[order[2]])
				}
				want[s.name], source[s.name] = sample.want[order[2]], "--"+s.name
			}
			names = append(names, s.name)
		}
		if rng.IntN(2) == 0 {
			env = append(env, "KVXFER_CONFIG=absent.json")
			args = append(args, "--config", "kvxfer.json")
		} else {
			env = append(env, "KVXFER_CONFIG=kvxfer.json")
		}
		text := "{\n" + strings.Join(file, ",\n") + "\n}"
		c, err := Load(args, host(t, text, append(env, "HOME=/h")...))
		require.NoError(t, err, "%q %q %s", args, env, text)
		for _, name := range names {
			if source[name] == "" {
				assert.Equal(t, "default", c.Sources[name])
				continue
			}
			require.Equal(t, want[name], samples[name].get(c), "%s: %q %q %s", name, args, env, text)
			require.Equal(t, source[name], c.Sources[name], name)
		}
	}
}

func TestListsAndRepeats(t *testing.T) {
	c, err := Load([]string{"--allow-uid", "1,2", "--allow-uid=3", "--lanes", "3", "--lanes", "5"}, host(t, "", "HOME=/h"))
	require.NoError(t, err)
	assert.Equal(t, []int{1, 2, 3}, c.AllowUIDs)
	assert.Equal(t, 5, c.Lanes)

	c, err = Load(nil, host(t, `{"allow-uid": [4, "5"], "lanes": 6, "nats": []}`, "HOME=/h", "KVXFER_CONFIG=kvxfer.json", "KVXFER_LANES="))
	require.NoError(t, err)
	assert.Equal(t, []int{4, 5}, c.AllowUIDs)
	assert.Equal(t, 6, c.Lanes, "an empty variable is unset")

	c, err = Load([]string{"--nats="}, host(t, "", "HOME=/h", "KVXFER_NATS=nats://a"))
	require.NoError(t, err)
	assert.Empty(t, c.NATS, "an empty flag is a value")
}

// bad are wrong values and a part of the message each must give.
var bad = map[string][]struct{ value, says string }{
	"node":          {{"", "1..64"}, {"a b", "1..64"}, {strings.Repeat("x", 65), "1..64"}, {"-a", "letter or digit"}},
	"state-dir":     {{"", "a path"}, {"a\x00b", "a path"}},
	"socket":        {{"", "a path"}, {"/" + strings.Repeat("s", 107), "1..107"}},
	"listen":        {{"", "empty"}, {"eth9", "lo, eth0"}, {"10.0.0.1:65536", "0..65535"}, {"10.0.0.1:x", "0..65535"}, {"fe80::1%eth0:80", "brackets"}, {"2001:db8::1]:5", "no name"}, {"1.2.3", "IPv4"}, {"none0", "no address"}, {"[10.0.0.1]:5", "brackets"}, {"[::1]5", "brackets"}, {"a b:1", "no name"}},
	"advertise":     {{"0.0.0.0", "peers can dial"}, {"[::]:5", "peers can dial"}, {":5", "peers can dial"}, {"nowhere:5", "resolver"}},
	"http":          {{"", "off"}, {"on", "off"}, {"lo:99999", "off"}},
	"nats":          {{"http://a", "nats://"}, {"nats://", "nats://"}, {"a:4222", "nats://"}, {"nats://a,b", "server 2"}},
	"nats-listen":   {{"eth9:1", "lo, eth0"}},
	"tenant":        {{"", "1..64"}, {"a/b", "1..64"}},
	"allow-uid":     {{"root", "4294967294"}, {"-1", "4294967294"}, {"4294967295", "4294967294"}},
	"lanes":         {{"0", "1..64"}, {"65", "1..64"}, {"four", "1..64"}, {"", "1..64"}},
	"max-clients":   {{"0", "1..65536"}, {"65537", "1..65536"}},
	"drain-timeout": {{"10", "10m"}, {"-1s", "10m"}, {"11m", "10m"}},
	"heartbeat":     {{"0s", "50ms"}, {"49ms", "50ms"}, {"1h", "10m"}},
	"trace-file":    {{"a\x00b", "a path"}},
	"log-level":     {{"INFO", "debug, info"}, {"", "debug, info"}},
	"log-format":    {{"xml", "text, json"}},
	"provider":      {{"verbs", "tcp"}, {"tcp,tcp", "once"}, {"", "at least one"}},
}

func TestErrorsNameFieldAndSource(t *testing.T) {
	for name := range samples {
		require.NotEmpty(t, bad[name], name)
	}
	for name, all := range bad {
		for _, b := range all {
			t.Run(name+" "+b.value, func(t *testing.T) {
				check := func(source string, err error) {
					t.Helper()
					require.ErrorIs(t, err, fault.ErrConfigInvalid)
					fe := fault.From("", err)
					assert.Equal(t, name, fe.Field)
					assert.Contains(t, fe.Detail, "set by "+source+":")
					assert.Contains(t, fe.Detail, b.says)
					assert.Contains(t, fe.Detail, "allowed", "%s", fe.Detail)
				}
				_, err := Load([]string{"--" + name, b.value}, host(t, "", "HOME=/h"))
				check("--"+name, err)
				if b.value != "" {
					_, err = Load(nil, host(t, "", "HOME=/h", EnvName(name)+"="+b.value))
					check(EnvName(name), err)
				}
				raw := fmt.Sprintf("{\n\n%q:\n%q}", name, strings.ReplaceAll(b.value, "\x00", "NUL"))
				if !strings.Contains(b.value, "\x00") {
					_, err = Load([]string{"--config", "kvxfer.json"}, host(t, raw, "HOME=/h"))
					check("kvxfer.json:3", err)
				}
			})
		}
	}
}

func TestAllErrorsAtOnce(t *testing.T) {
	_, err := Load([]string{"--lanes", "0", "--nope", "1", "loose", "--log-level", "x", "--tenant"},
		host(t, `{"tenant": 1, "unknown": 2, "max-clients": {}}`, "HOME=/h", "KVXFER_CONFIG=kvxfer.json", "KVXFER_HEARTBEAT=x"))
	require.Error(t, err)
	for _, want := range []string{`field="lanes"`, `set by --nope`, `"loose"`, `field="log-level"`, `--tenant: the value is missing`,
		`field="unknown"`, `field="max-clients"`, `set by KVXFER_HEARTBEAT`} {
		assert.ErrorContains(t, err, want)
	}
}

func TestFileErrors(t *testing.T) {
	for text, says := range map[string]string{
		"":                               "not a JSON object",
		"[]":                             "not a JSON object",
		"{":                              "unexpected EOF",
		`{"lanes": 4`:                    "unexpected EOF",
		"{\n\"lanes\" 4}":                "kvxfer.json:2: not a JSON object",
		`{"lanes": 4} x`:                 "follows the JSON object",
		"{\"lanes\": 4,\n\"lanes\": 5}":  "kvxfer.json:2: it is set by kvxfer.json:1 already",
		"{\n\n\"Lanes\": 4}":             "set by kvxfer.json:3: there is no such setting",
		`{"config": "x"}`:                `field="config"`,
		`{"lanes": null}`:                "allowed are strings",
		`{"lanes": {"a": 1}}`:            "allowed are strings",
		`{"nats": [["nats://a"]]}`:       "a list in a list",
		`{"lanes": [1, 2]}`:              "2 values, allowed 1",
		`{"lanes": []}`:                  "0 values, allowed 1",
		strings.Repeat(" ", maxFile+1):   "allowed 0..1048576 bytes",
		`{"` + strings.Repeat("k", 1000): "unexpected EOF",
	} {
		_, err := Load([]string{"--config", "kvxfer.json"}, host(t, text, "HOME=/h"))
		require.ErrorIs(t, err, fault.ErrConfigInvalid, "%.80s", text)
		assert.ErrorContains(t, err, says)
	}
	_, err := Load([]string{"--config", "absent.json"}, host(t, "", "HOME=/h"))
	assert.ErrorContains(t, err, `field="config"`)
	assert.ErrorContains(t, err, "set by --config")
}

func TestAdvertise(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:7420", "[::]", ":0"} {
		_, err := Load([]string{"--listen", listen}, host(t, "", "HOME=/h"))
		require.ErrorIs(t, err, fault.ErrConfigInvalid, listen)
		assert.ErrorContains(t, err, `field="advertise"`)
		assert.ErrorContains(t, err, "no peer can dial")
		_, err = Load([]string{"--listen", listen, "--advertise", "eth0"}, host(t, "", "HOME=/h"))
		require.NoError(t, err)
	}
	_, err := Load([]string{"--nats", "nats://a", "--nats-listen", "lo"}, host(t, "", "HOME=/h"))
	require.ErrorIs(t, err, fault.ErrConfigInvalid)
	assert.ErrorContains(t, err, `field="nats-listen"`)

	bound := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5555}
	for advertise, want := range map[string]string{"": "10.0.0.1:5555", "eth0": "10.0.0.1:5555", "wg0:9": "[fd00::3]:9",
		"node-1.cluster": "node-1.cluster:5555", "ll0:1": "169.254.7.7:1"} {
		c, err := Load([]string{"--listen", "10.0.0.1:0", "--advertise", advertise}, host(t, "", "HOME=/h"))
		require.NoError(t, err)
		assert.Equal(t, want, c.PeerAddr(bound))
	}
}

func TestPasswords(t *testing.T) {
	const secret = "hunter2"
	good := "nats://u:" + secret + "@a:4222"
	_, err := Load([]string{"--nats", good}, host(t, "", "HOME=/h"))
	require.ErrorIs(t, err, fault.ErrConfigInvalid)
	assert.NotContains(t, err.Error(), secret)
	assert.ErrorContains(t, err, "KVXFER_NATS")
	c, err := Load(nil, host(t, "", "HOME=/h", "KVXFER_NATS="+good))
	require.NoError(t, err)
	assert.Equal(t, []string{good}, c.NATS)
	for _, wrong := range []string{"http://u:" + secret + "@a", "nats://u:" + secret + "@a:%zz", good + ",nats://u:" + secret + "@"} {
		_, err = Load(nil, host(t, "", "HOME=/h", "KVXFER_NATS="+wrong))
		require.ErrorIs(t, err, fault.ErrConfigInvalid)
		assert.NotContains(t, err.Error(), secret)
	}
}

func TestUsage(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Usage(&b))
	for _, name := range Names() {
		assert.Contains(t, b.String(), "--"+name+" ")
		assert.Contains(t, b.String(), EnvName(name))
	}
	for i := range settings {
		assert.NotEmpty(t, settings[i].shown, settings[i].name)
		assert.Contains(t, b.String(), settings[i].help)
	}
	for _, h := range []string{"-h", "--help"} {
		_, err := Load([]string{"--lanes", "1", h}, host(t, ""))
		assert.ErrorIs(t, err, ErrHelp)
	}
}

func TestThisHost(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"node": "n", "listen": "lo:0"}`), 0o600))
	c, err := Load([]string{"--config", path, "--state-dir", dir, "--http", "localhost:0"}, ThisHost())
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:0", c.Listen)
	assert.Contains(t, []string{"127.0.0.1:0", "[::1]:0"}, c.HTTP)
	_, err = Load([]string{"--state-dir", dir, "--node", "n", "--listen", "nonesuch0.invalid"}, ThisHost())
	assert.ErrorContains(t, err, "lo")
}

func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"lanes": 4, "nats": ["nats://a", "tls://b"], "node": "n"}`))
	f.Add([]byte(`{"lanes": null}`))
	f.Add([]byte(`{"a":{"b":[1,2,{"c":"d"}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		values, err := parseFile("f", raw)
		for name := range values {
			if find(name) == nil {
				t.Fatalf("unknown key %q", name)
			}
		}
		if err != nil && !errors.Is(err, fault.ErrConfigInvalid) {
			t.Fatal(err)
		}
		_, err = Load([]string{"--config", "kvxfer.json"}, host(t, string(raw), "HOME=/h"))
		if err != nil && !errors.Is(err, fault.ErrConfigInvalid) {
			t.Fatal(err)
		}
	})
}
