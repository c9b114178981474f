package config

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// testHost is a host of user 1000 with fixed interfaces, names and files.
func testHost(files map[string]string) host {
	ips := func(list ...string) (out []netip.Addr) {
		for _, s := range list {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	interfaces := map[string][]netip.Addr{
		"lo":    ips("127.0.0.1", "::1"),
		"eth0":  ips("fe80::1", "2001:db8::5", "192.0.2.5", "192.0.2.6"),
		"six":   ips("fe80::2", "2001:db8::6"),
		"local": ips("169.254.3.3", "fe80::3"),
		"bare":  ips("169.254.3.4"),
		"none":  nil,
	}
	hosts := map[string][]netip.Addr{"localhost": ips("::1", "127.0.0.1"), "n0.example": ips("198.51.100.7"), "any.example": ips("0.0.0.0")}
	return host{
		uid:      1000,
		hostname: func() (string, error) { return "host-1", nil },
		getwd:    func() (string, error) { return "/home/u", nil },
		readFile: func(path string, _ int64) ([]byte, error) {
			if text, ok := files[path]; ok {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		},
		network: network{
			interfaceAddrs: func(name string) ([]netip.Addr, bool, error) {
				if name == "broken" {
					return nil, true, errors.New("netlink is tired")
				}
				addrs, ok := interfaces[name]
				return addrs, ok, nil
			},
			lookupHost: func(_ context.Context, name string) ([]netip.Addr, error) {
				if addrs, ok := hosts[name]; ok {
					return addrs, nil
				}
				return nil, errors.New("no such host")
			},
		},
	}
}

const home = "HOME=/home/u"

// faults are the joined errors of a Load.
func faults(t *testing.T, err error) []*fault.Error {
	t.Helper()
	require.Error(t, err)
	many, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "joined errors: %v", err)
	var out []*fault.Error
	for _, one := range many.Unwrap() {
		var f *fault.Error
		require.ErrorAs(t, one, &f)
		require.Equal(t, fault.ConfigInvalid, f.Code)
		require.Contains(t, f.Detail, "allowed")
		out = append(out, f)
	}
	require.ErrorIs(t, err, fault.ErrConfigInvalid)
	return out
}

func TestDefaults(t *testing.T) {
	c, err := load(nil, []string{home}, testHost(nil))
	require.NoError(t, err)
	want := Config{Node: "host-1", StateDir: "/home/u/.local/state/kvxfer", Socket: "/tmp/kvxfer-1000/kvxfer.sock",
		Listen: "127.0.0.1:7420", Advertise: "127.0.0.1:7420", HTTP: "127.0.0.1:7421", Tenant: "default", Lanes: 4, MaxClients: 256, MaxRegions: 64, MaxLeases: 8192, MaxTransfers: 8192,
		DrainTimeout: 10 * time.Second, Heartbeat: 2 * time.Second, TraceKeep: -1, LogLevel: "info", LogFormat: "text", Providers: []string{"shm", "verbs", "tcp"}, RegistryReplicas: 1,
		RDMA: RDMA{PKey: 0xffff, Timeout: 16, Retries: 6, Lanes: 4}}
	assert.Equal(t, want, *c)

	c, err = load(nil, []string{"XDG_STATE_HOME=/x/state", "XDG_RUNTIME_DIR=/x/run"}, testHost(nil))
	require.NoError(t, err)
	assert.Equal(t, "/x/state/kvxfer", c.StateDir)
	assert.Equal(t, "/x/run/kvxfer/kvxfer.sock", c.Socket)

	root := testHost(nil)
	root.uid = 0
	c, err = load(nil, []string{"XDG_STATE_HOME=/x", "XDG_RUNTIME_DIR=/x"}, root)
	require.NoError(t, err)
	assert.Equal(t, "/var/lib/kvxfer", c.StateDir)
	assert.Equal(t, "/run/kvxfer/kvxfer.sock", c.Socket)

	f := faults(t, second(load(nil, []string{"XDG_STATE_HOME=relative"}, testHost(nil))))
	require.Len(t, f, 1)
	assert.Equal(t, "state-dir", f[0].Field)
	assert.Contains(t, f[0].Detail, "no default: neither XDG_STATE_HOME nor HOME")
}

func TestNamedProviders(t *testing.T) {
	named := func(args, env []string, file string) bool {
		c, err := load(append([]string{"--config=/f"}, args...), append([]string{home}, env...), testHost(map[string]string{"/f": file}))
		require.NoError(t, err)
		return c.ProvidersNamed
	}
	assert.False(t, named([]string{"--rdma-devices=mlx5_0"}, []string{"KVXFER_PROVIDERS="}, "{}"))
	assert.True(t, named([]string{"--providers=shm,verbs,tcp"}, nil, "{}"), "also where it is the default")
	assert.True(t, named(nil, []string{"KVXFER_PROVIDERS=tcp"}, "{}"))
	assert.True(t, named(nil, nil, `{"providers": ["tcp"]}`))
}

func second(_ *Config, err error) error { return err }

func TestHostNameIsCut(t *testing.T) {
	for in, want := range map[string]string{
		"a.example.org": "a.example.org", "-_.x1": "x1", "kühl er": "khler", strings.Repeat("a", 80): strings.Repeat("a", 64),
	} {
		h := testHost(nil)
		h.hostname = func() (string, error) { return in, nil }
		c, err := load(nil, []string{home}, h)
		require.NoError(t, err, in)
		assert.Equal(t, want, c.Node)
	}
	for _, hostname := range []func() (string, error){
		func() (string, error) { return "-ü-", nil },
		func() (string, error) { return "", errors.New("no uts") },
	} {
		h := testHost(nil)
		h.hostname = hostname
		f := faults(t, second(load(nil, []string{home}, h)))
		assert.Equal(t, "node", f[0].Field)
	}
}

// samples are four allowed texts of each setting, what each makes of the Config, and where.
var samples = map[string]struct {
	get   func(*Config) any
	texts [4]string
	want  [4]any
}{
	"node":           {func(c *Config) any { return c.Node }, [4]string{"a", "B", "c.1", "9-_"}, [4]any{"a", "B", "c.1", "9-_"}},
	"state-dir":      {func(c *Config) any { return c.StateDir }, [4]string{"/a", "b", "/c/", "./d/../e"}, [4]any{"/a", "/home/u/b", "/c", "/home/u/e"}},
	"socket":         {func(c *Config) any { return c.Socket }, [4]string{"/a", "b", "/c/d", "/e"}, [4]any{"/a", "/home/u/b", "/c/d", "/e"}},
	"listen":         {func(c *Config) any { return c.Listen }, [4]string{"eth0:1", "[::1]:2", "10.0.0.1", "lo:0"}, [4]any{"192.0.2.5:1", "[::1]:2", "10.0.0.1:7420", "127.0.0.1:0"}},
	"advertise":      {func(c *Config) any { return c.Advertise }, [4]string{"eth0", "n0.example:9", "2001:db8::9", "10.0.0.1:8"}, [4]any{"192.0.2.5:7420", "n0.example:9", "[2001:db8::9]:7420", "10.0.0.1:8"}},
	"http":           {func(c *Config) any { return c.HTTP }, [4]string{"off", "lo", "[::1]:1", "10.0.0.1:3"}, [4]any{"", "127.0.0.1:7421", "[::1]:1", "10.0.0.1:3"}},
	"nats":           {func(c *Config) any { return c.NATS }, [4]string{"nats://a:1", "tls://b", "nats://c, nats://d", "nats://[::1]:4222"}, [4]any{"nats://a:1", "tls://b", "nats://c,nats://d", "nats://[::1]:4222"}},
	"nats-listen":    {func(c *Config) any { return c.NATSListen }, [4]string{"lo", "six:1", "0.0.0.0:4", "[::]:5"}, [4]any{"127.0.0.1:4222", "[2001:db8::6]:1", "0.0.0.0:4", "[::]:5"}},
	"tenant":         {func(c *Config) any { return c.Tenant }, [4]string{"a", "b", "_", "-"}, [4]any{"a", "b", "_", "-"}},
	"allow-uid":      {func(c *Config) any { return c.AllowUIDs }, [4]string{"1", "1, 2,1", "4294967294", "3"}, [4]any{[]int{1}, []int{1, 2}, []int{4294967294}, []int{3}}},
	"tls-cert":       {func(c *Config) any { return c.TLSCert }, [4]string{"/a", "b", "/c", "/d"}, [4]any{"/a", "/home/u/b", "/c", "/d"}},
	"tls-key":        {func(c *Config) any { return c.TLSKey }, [4]string{"/a", "b", "/c", "/d"}, [4]any{"/a", "/home/u/b", "/c", "/d"}},
	"tls-ca":         {func(c *Config) any { return c.TLSCA }, [4]string{"/a", "b", "/c", "/d"}, [4]any{"/a", "/home/u/b", "/c", "/d"}},
	"tls-lanes":      {func(c *Config) any { return c.TLSLanes }, [4]string{"true", "false", "true", "false"}, [4]any{true, false, true, false}},
	"pprof":          {func(c *Config) any { return c.Pprof }, [4]string{"true", "false", "true", "false"}, [4]any{true, false, true, false}},
	"insecure-peers": {func(c *Config) any { return c.InsecurePeers }, [4]string{"true", "false", "true", "false"}, [4]any{true, false, true, false}},
	"allow-tenants": {func(c *Config) any { return c.AllowTenants }, [4]string{"z", "z:1, b:2+0", "c", "d:4294967294"},
		[4]any{[]AllowedTenant{{Name: "z"}}, []AllowedTenant{{"z", []int{1}}, {"b", []int{2, 0}}}, []AllowedTenant{{Name: "c"}}, []AllowedTenant{{"d", []int{4294967294}}}}},
	"lanes":         {func(c *Config) any { return c.Lanes }, [4]string{"1", "64", "2", "3"}, [4]any{1, 64, 2, 3}},
	"max-clients":   {func(c *Config) any { return c.MaxClients }, [4]string{"1", "65536", "2", "3"}, [4]any{1, 65536, 2, 3}},
	"max-regions":   {func(c *Config) any { return c.MaxRegions }, [4]string{"1", "4096", "2", "3"}, [4]any{1, 4096, 2, 3}},
	"max-leases":    {func(c *Config) any { return c.MaxLeases }, [4]string{"1", "1048576", "2", "3"}, [4]any{1, 1048576, 2, 3}},
	"max-transfers": {func(c *Config) any { return c.MaxTransfers }, [4]string{"1", "1048576", "2", "3"}, [4]any{1, 1048576, 2, 3}},
	"drain-timeout": {func(c *Config) any { return c.DrainTimeout }, [4]string{"0", "1h", "3s", "1m30s"}, [4]any{time.Duration(0), time.Hour, 3 * time.Second, 90 * time.Second}},
	"heartbeat":     {func(c *Config) any { return c.Heartbeat }, [4]string{"50ms", "10m", "1s", "3s"}, [4]any{50 * time.Millisecond, 10 * time.Minute, time.Second, 3 * time.Second}},
	"trace-file":    {func(c *Config) any { return c.TraceFile }, [4]string{"/a", "b", "/c", "/d"}, [4]any{"/a", "/home/u/b", "/c", "/d"}},
	"trace-keep":    {func(c *Config) any { return c.TraceKeep }, [4]string{"0", "1048576", "1", "8192"}, [4]any{0, 1048576, 1, 8192}},
	"log-level":     {func(c *Config) any { return c.LogLevel }, [4]string{"debug", "warn", "error", "debug"}, [4]any{"debug", "warn", "error", "debug"}},
	"log-format":    {func(c *Config) any { return c.LogFormat }, [4]string{"json", "json", "json", "json"}, [4]any{"json", "json", "json", "json"}},
	"providers":     {func(c *Config) any { return c.Providers }, [4]string{"tcp", " shm", "tcp ,shm", "verbs,tcp"}, [4]any{[]string{"tcp"}, []string{"shm"}, []string{"tcp", "shm"}, []string{"verbs", "tcp"}}},

	"rdma-devices": {func(c *Config) any { return c.RDMA.Devices }, [4]string{"mlx5_0", "mlx5_*,rxe?:1", "a.b-c:255", "mlx5_[0-3]:1"},
		[4]any{[]string{"mlx5_0"}, []string{"mlx5_*", "rxe?:1"}, []string{"a.b-c:255"}, []string{"mlx5_[0-3]:1"}}},
	"rdma-exclude":          {func(c *Config) any { return c.RDMA.Exclude }, [4]string{"mlx5_0", "a, b:2", "c", "d"}, [4]any{[]string{"mlx5_0"}, []string{"a", "b:2"}, []string{"c"}, []string{"d"}}},
	"rdma-gid":              {func(c *Config) any { return c.RDMA.GID }, [4]string{"10.0.0.1", "fe80::1", "::ffff:10.0.0.2", "2001:db8::1"}, [4]any{"10.0.0.1", "fe80::1", "10.0.0.2", "2001:db8::1"}},
	"rdma-traffic-class":    {func(c *Config) any { return c.RDMA.TrafficClass }, [4]string{"0", "255", "106", "1"}, [4]any{0, 255, 106, 1}},
	"rdma-service-level":    {func(c *Config) any { return c.RDMA.ServiceLevel }, [4]string{"0", "15", "3", "1"}, [4]any{0, 15, 3, 1}},
	"rdma-pkey":             {func(c *Config) any { return c.RDMA.PKey }, [4]string{"0x8001", "7fff", "0XFFFF", "1"}, [4]any{uint16(0x8001), uint16(0x7fff), uint16(0xffff), uint16(1)}},
	"rdma-timeout":          {func(c *Config) any { return c.RDMA.Timeout }, [4]string{"1", "31", "14", "18"}, [4]any{1, 31, 14, 18}},
	"rdma-retries":          {func(c *Config) any { return c.RDMA.Retries }, [4]string{"0", "6", "1", "5"}, [4]any{0, 6, 1, 5}},
	"rdma-lanes":            {func(c *Config) any { return c.RDMA.Lanes }, [4]string{"1", "64", "2", "8"}, [4]any{1, 64, 2, 8}},
	"rdma-windows":          {func(c *Config) any { return c.RDMA.NoWindows }, [4]string{"off", "auto", "off", "auto"}, [4]any{true, false, true, false}},
	"rdma-relaxed-ordering": {func(c *Config) any { return c.RDMA.NoRelaxedOrdering }, [4]string{"off", "auto", "off", "auto"}, [4]any{true, false, true, false}},
}

// fileText writes one setting as the file has it.
func fileText(t *testing.T, s *setting, text string) string {
	t.Helper()
	if s.kind == numberKind {
		return fmt.Sprintf(`{%q: %s}`, s.name, text)
	}
	raw, err := json.Marshal(map[string]string{s.name: text})
	require.NoError(t, err)
	return string(raw)
}

// wrong has values of each setting that are refused.
var wrong = map[string][]string{
	"node":           {"", "-a", "a b", "ä", strings.Repeat("a", 65)},
	"state-dir":      {"", "a\x00b"},
	"socket":         {"", "/" + strings.Repeat("s", 107), "a\x00"},
	"listen":         {"", ":7420", "eth0:", "eth0:65536", "eth0:-1", "eth0:+1", "eth9", "1.2.3", "1.2.3.4.5:1", "::1:7420x", "[::1", "[::1]7420", "[eth0]:1", "bare", "none", "broken", "fe80::1", "[fe80::1%nope]:1", "[2001:db8::1%eth0]:1", "224.0.0.1:1", "a/b:1", "eth0 :1", "x.example:1"},
	"advertise":      {"0.0.0.0:1", "[::]:1", "any.example", "eth0:0", "eth9", "none", "224.0.0.1", "fe80::1", ":1"},
	"http":           {"", "on", "none:1", "1.2.3.4:99999"},
	"nats":           {"a:1", "http://a", "nats://", "nats://:4222", "nats://a,", "nats://a:b", ","},
	"nats-listen":    {"off", "eth0:x"},
	"tenant":         {"", "a b", strings.Repeat("a", 65)},
	"allow-uid":      {"-1", "4294967295", "root", "1,", "1;2"},
	"tls-cert":       {"a\x00"},
	"tls-key":        {"a\x00"},
	"tls-ca":         {"a\x00"},
	"tls-lanes":      {"", "yes", "TRUE"},
	"pprof":          {"", "on"},
	"insecure-peers": {"1", "on"},
	"allow-tenants":  {"a b", "a:", "a:root", "a,a:1", "a:1;b", "a:-1", ","},
	"lanes":          {"", "0", "65", "4.5", "four", "1e1", "99999999999999999999"},
	"max-clients":    {"", "0", "65537"},
	"max-regions":    {"", "0", "4097"},
	"max-leases":     {"", "0", "1048577"},
	"max-transfers":  {"", "0", "1048577"},
	"drain-timeout":  {"", "-1s", "1h1ms", "10"},
	"heartbeat":      {"", "49ms", "10m1s", "2"},
	"trace-file":     {"a\x00"},
	"trace-keep":     {"-1", "1048577", "all"},
	"log-level":      {"", "INFO", "trace"},
	"log-format":     {"", "xml"},
	"providers":      {"", "rdma", "tcp,tcp", "tcp,", "shm,cuda"},

	"rdma-devices":          {"a b", "a,", "a:0", "a:256", "a:01", "a:", ":1", "a/b", "[a", strings.Repeat("d", 65)},
	"rdma-exclude":          {"mlx5_0;mlx5_1", "a:1:2"},
	"rdma-gid":              {"fe80::1%eth0", "0.0.0.0", "::", "ff02::1", "eth0", "10.0.0.1:1", "host.example"},
	"rdma-traffic-class":    {"", "-1", "256"},
	"rdma-service-level":    {"", "-1", "16"},
	"rdma-pkey":             {"", "0", "0x0000", "0x10000", "g", "-1", "0x"},
	"rdma-timeout":          {"", "0", "32", "268ms"},
	"rdma-retries":          {"", "-1", "7"},
	"rdma-lanes":            {"", "0", "65"},
	"rdma-windows":          {"", "on", "true", "AUTO"},
	"rdma-relaxed-ordering": {"", "on", "1"},
}

// beside are variables without which the samples of a setting are not allowed.
var beside = map[string][]string{
	"listen":   {"KVXFER_INSECURE_PEERS=true"},
	"tls-cert": {"KVXFER_TLS_KEY=/k", "KVXFER_TLS_CA=/c"}, "tls-key": {"KVXFER_TLS_CERT=/k", "KVXFER_TLS_CA=/c"}, "tls-ca": {"KVXFER_TLS_KEY=/k", "KVXFER_TLS_CERT=/c"},
	"tls-lanes": {"KVXFER_TLS_CERT=/t", "KVXFER_TLS_KEY=/k", "KVXFER_TLS_CA=/c"},
}

func TestPrecedence(t *testing.T) {
	require.Len(t, samples, len(settings), "every setting has samples")
	for i := range settings {
		s := &settings[i]
		t.Run(s.name, func(t *testing.T) {
			x, ok := samples[s.name]
			require.True(t, ok)
			get := func(args, env []string, file int) any {
				files := map[string]string{"/f": "{}"}
				if file >= 0 {
					files["/f"] = fileText(t, s, x.texts[file])
				}
				c, err := load(append([]string{"--config=/f"}, args...), append(append([]string{home}, beside[s.name]...), env...), testHost(files))
				require.NoError(t, err)
				return x.get(c)
			}
			env := func(i int) []string { return []string{envName(s.name) + "=" + x.texts[i]} }
			for i := range 4 {
				j, k := (i+1)%4, (i+2)%4
				flags := []string{"--" + s.name, x.texts[i]}
				assert.Equal(t, x.want[i], get(flags, env(j), k), "flag")
				assert.Equal(t, x.want[i], get(flags, nil, k), "flag over file")
				assert.Equal(t, x.want[i], get([]string{"-" + s.name + "=" + x.texts[i]}, env(j), -1), "flag over environment")
				assert.Equal(t, x.want[i], get(nil, env(i), k), "environment over file")
				assert.Equal(t, x.want[i], get(nil, env(i), -1), "environment over default")
				assert.Equal(t, x.want[i], get(nil, nil, i), "file over default")
				assert.Equal(t, x.want[i], get(nil, []string{envName(s.name) + "="}, i), "an empty variable is not set")
				assert.Equal(t, x.want[i], get(append([]string{"--" + s.name, x.texts[j]}, flags...), nil, -1), "the last flag counts")
			}
		})
	}
}

func TestWrongValues(t *testing.T) {
	require.Len(t, wrong, len(settings), "every setting has wrong values")
	for i := range settings {
		s := &settings[i]
		for _, text := range wrong[s.name] {
			t.Run(s.name+"="+text, func(t *testing.T) {
				check := func(source string, args, env []string, file string) {
					t.Helper()
					err := second(load(args, append([]string{home}, env...), testHost(map[string]string{"/f": file})))
					f := faults(t, err)
					require.Len(t, f, 1, "%v", err)
					assert.Equal(t, s.name, f[0].Field)
					assert.Contains(t, f[0].Detail, source)
					assert.Contains(t, f[0].Detail, "allowed: "+s.allowed)
				}
				if s.kind == boolKind { // anything but true and false is another argument
					check("flag --"+s.name, []string{"--" + s.name + "=" + text}, nil, "")
				} else {
					check("flag --"+s.name, []string{"--" + s.name, text}, nil, "")
				}
				if text != "" && !strings.ContainsRune(text, 0) {
					check("KVXFER_", nil, []string{envName(s.name) + "=" + text}, "")
				}
				if raw, err := json.Marshal(text); err == nil && s.kind != numberKind {
					check("/f line 2", []string{"--config=/f"}, nil, fmt.Sprintf("{\n%q: %s}", s.name, raw))
				} else if n := json.Number(text); json.Valid([]byte(n)) {
					check("/f line 2", []string{"--config=/f"}, nil, fmt.Sprintf("{\n%q: %s}", s.name, n))
				}
			})
		}
	}
}

func TestAllErrorsAtOnce(t *testing.T) {
	files := map[string]string{"/f": "{\"tenant\": \"a b\",\n\"nodes\": 1, \"lanes\": \"4\", \"heartbeat\": null,\n\"log-level\": \"warn\", \"log-level\": \"info\"}"}
	args := []string{"--nope", "x", "stray", "--node", "a b", "--also-nope=1", "--lanes=0", "--config", "/f", "--", "--http"}
	err := second(load(args, []string{home, "KVXFER_LOG_FORMAT=xml", "KVXFER_SERVICE_HOST=10.0.0.1", "KVXFER_PORT=tcp://1.2.3.4"}, testHost(files)))
	var fields []string
	for _, f := range faults(t, err) {
		fields = append(fields, f.Field)
	}
	assert.Equal(t, []string{"nope", "arguments", "also-nope", "arguments", "http", "nodes", "lanes", "heartbeat", "log-level", "node", "tenant", "lanes", "log-format"}, fields)
	assert.ErrorContains(t, err, `"nodes" in /f line 2 is not a key; allowed: node, state-dir`)
	assert.ErrorContains(t, err, `flag --http lacks its value; allowed: off`)
}

func TestFileKeys(t *testing.T) {
	every := map[string]any{}
	for i := range settings {
		s := &settings[i]
		every[s.name] = samples[s.name].texts[0]
		if s.kind == numberKind {
			every[s.name] = json.Number(samples[s.name].texts[0])
		}
	}
	delete(every, "nats-listen")    // it excludes nats
	delete(every, "insecure-peers") // it excludes tls-cert
	dropOtherCredentials(every)
	every["tls-lanes"] = true
	delete(every, "pprof") // it excludes http off
	every["nats"] = []string{"nats://a:1", "tls://b"}
	every["allow-uid"] = []any{1, "2"}
	raw, err := json.Marshal(every)
	require.NoError(t, err)
	c, err := load(nil, []string{home, "KVXFER_CONFIG=/f"}, testHost(map[string]string{"/f": string(raw)}))
	require.NoError(t, err)
	assert.Equal(t, "nats://a:1,tls://b", c.NATS)
	assert.Equal(t, []int{1, 2}, c.AllowUIDs)
	assert.Equal(t, 1, c.Lanes)

	for text, want := range map[string]string{
		``:                        "/f line 1: it ends too early",
		`[]`:                      "not a JSON object",
		`{"lanes": 4`:             "it ends too early",
		`{"lanes": 4}{}`:          "more follows",
		"{\n\n\"lanes\" 4}":       "/f line 3",
		`{"lanes": "4"}`:          "it must be a number",
		`{"node": 4}`:             "it must be a string",
		`{"node": null}`:          "it must be a string",
		`{"allow-uid": [1,[2]]}`:  "elements must be",
		`{"allow-uid": ["1,2"]}`:  "without commas",
		`{"allow-uid": {"a": 1}}`: "an array or a string",
		`{"tls-lanes": 1}`:        "it must be true or false",
		`{"config": "/g"}`:        `"config" in /f line 1 is not a key`,
		`{"Lanes": 4}`:            `"Lanes" in /f line 1 is not a key`,
	} {
		f := faults(t, second(load([]string{"--config", "/f"}, []string{home}, testHost(map[string]string{"/f": text}))))
		require.Len(t, f, 1, text)
		assert.Contains(t, f[0].Detail, want, text)
	}

	// Where the file is not known nothing is said about what it might have completed.
	f := faults(t, second(load([]string{"--config", "/g", "--listen=0.0.0.0"}, []string{home}, testHost(nil))))
	require.Len(t, f, 1)
	assert.Equal(t, "config", f[0].Field)
	assert.Contains(t, f[0].Detail, `"/g" from flag --config cannot be read`)

	_, err = load([]string{"--config="}, []string{home, "KVXFER_CONFIG=/g"}, testHost(nil))
	assert.NoError(t, err, "an empty flag turns the variable's file off")
}

func TestSettingsTogether(t *testing.T) {
	env := []string{home, "KVXFER_INSECURE_PEERS=true"}
	fails := func(field, want string, args ...string) {
		t.Helper()
		f := faults(t, second(load(args, env, testHost(nil))))
		require.Len(t, f, 1)
		assert.Equal(t, field, f[0].Field)
		assert.Contains(t, f[0].Detail, want)
	}
	fails("advertise", `listen is "0.0.0.0:7420" from flag --listen, which no peer can dial; set it by --advertise, KVXFER_ADVERTISE`, "--listen=0.0.0.0:7420")
	fails("advertise", "not set", "--listen=[::]:0")
	fails("nats-listen", `"lo" from flag --nats-listen is not allowed together with nats from flag --nats`, "--nats=nats://a", "--nats-listen=lo")
	fails("http", "listen from flag --listen takes that port", "--listen=lo:7421")
	fails("nats-listen", "http from the default takes that port", "--nats-listen=0.0.0.0:7421")
	fails("allow-tenants", `"acme" from flag --allow-tenants is this node's own tenant`, "--tenant=acme", "--allow-tenants=b,acme:1")

	for _, x := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen=0.0.0.0:9", "--advertise=eth0"}, "192.0.2.5:9"},
		{[]string{"--listen=[::]", "--advertise=six:1"}, "[2001:db8::6]:1"},
		{[]string{"--listen=eth0:0"}, "192.0.2.5:0"},
		{[]string{"--listen=local"}, "[fe80::3%local]:7420"},
		{[]string{"--listen=localhost:5"}, "127.0.0.1:5"},
		{[]string{"--listen=[fe80::9%eth0]:5"}, "[fe80::9%eth0]:5"},
		{[]string{"--listen=[fe80::9%2]:5"}, "[fe80::9%2]:5"},
		{[]string{"--listen=::ffff:10.1.1.1"}, "10.1.1.1:7420"},
		{[]string{"--listen=lo:0", "--http=lo:0", "--nats-listen=lo:0"}, "127.0.0.1:0"},
	} {
		c, err := load(x.args, env, testHost(nil))
		require.NoError(t, err, x.args)
		assert.Equal(t, x.want, c.Advertise, x.args)
	}
}

func TestPeersBeyondTheHost(t *testing.T) {
	files := []string{"--tls-cert=/c", "--tls-key=/k", "--tls-ca=/a"}
	for _, x := range []struct {
		args  []string
		field string // "": allowed
		want  string
	}{
		{args: []string{"--listen=eth0"}, field: "listen", want: "tls-cert, tls-key and tls-ca, or any with insecure-peers"},
		{args: []string{"--listen=0.0.0.0", "--advertise=lo"}, field: "listen", want: "beyond this host"},
		{args: []string{"--listen=[::]", "--advertise=lo"}, field: "listen", want: "beyond this host"},
		{args: []string{"--listen=[fe80::9%eth0]", "--insecure-peers=false"}, field: "listen", want: "beyond this host"},
		{args: []string{"--listen=eth0", "--insecure-peers"}},
		{args: []string{"--pprof", "--http=off"}, field: "pprof", want: "http address on loop-back"},
		{args: []string{"--pprof", "--http=10.0.0.1:3"}, field: "pprof", want: "http address on loop-back"},
		{args: []string{"--pprof"}},
		{args: []string{"--insecure-peers", "--listen=eth0"}},
		{args: []string{"--insecure-peers", "true", "--listen=eth0"}},
		{args: append([]string{"--listen=eth0"}, files...)},
		{args: append([]string{"--listen=eth0", "--tls-lanes"}, files...)},
		{args: []string{"--listen=127.9.9.9"}},
		{args: []string{"--listen=[::1]"}},
		{args: []string{"--listen=lo", "--advertise=eth0"}}, // what is in front of it is what peers reach
		{args: files},
		{args: files[:2], field: "tls-ca", want: "not set, but tls-cert is from flag --tls-cert"},
		{args: files[1:], field: "tls-cert", want: "tls-cert, tls-key and tls-ca together"},
		{args: []string{"--tls-ca=/a"}, field: "tls-cert", want: "not set, but tls-ca"},
		{args: []string{"--tls-lanes"}, field: "tls-lanes", want: "without certificates"},
		{args: append([]string{"--insecure-peers"}, files...), field: "insecure-peers", want: "not allowed together with tls-cert"},
	} {
		c, err := load(x.args, []string{home}, testHost(nil))
		if x.field == "" {
			require.NoError(t, err, x.args)
			assert.Equal(t, slices.Contains(x.args, files[0]), c.TLS(), x.args)
			continue
		}
		f := faults(t, err)
		require.Len(t, f, 1, x.args)
		assert.Equal(t, x.field, f[0].Field, x.args)
		assert.Contains(t, f[0].Detail, x.want, x.args)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-h"}, {"--lanes=0", "-help"}} {
		_, err := load(args, nil, testHost(nil))
		assert.Equal(t, flag.ErrHelp, err)
	}
	_, err := load([]string{"--node", "--help"}, []string{home}, testHost(nil))
	assert.NotErrorIs(t, err, flag.ErrHelp, "it is the value of --node here")
}

func TestUsageNamesEverySetting(t *testing.T) {
	var b bytes.Buffer
	Usage(&b)
	for i := range settings {
		s := &settings[i]
		for _, want := range []string{"--" + s.name + " " + s.arg, envName(s.name) + "\n", s.meaning, "default: " + s.def + s.defText + "\n", "allowed: " + s.allowed + "\n"} {
			assert.Contains(t, b.String(), want)
		}
	}
	assert.Contains(t, b.String(), "KVXFER_CONFIG")
	assert.NotContains(t, b.String(), "%!")
}

func TestNoSecretIsRepeated(t *testing.T) {
	for _, bad := range []string{"nats://u:hunter2@", "http://u:hunter2@h", "nats://u:hunter2@h:x"} {
		err := second(load([]string{"--nats=" + bad}, []string{home}, testHost(nil)))
		assert.NotContains(t, err.Error(), "hunter2")
		err = second(load([]string{"--config=/f"}, []string{home}, testHost(map[string]string{"/f": `{"nats": {"a": "hunter2"}}`})))
		assert.NotContains(t, err.Error(), "hunter2")
	}
	err := second(load([]string{"--nats=nats://u:hunter2@h", "--nats-listen=lo"}, []string{home}, testHost(nil)))
	assert.NotContains(t, err.Error(), "hunter2")

	c, err := load([]string{"--nats=nats://u:hunter2@h"}, []string{home}, testHost(nil))
	require.NoError(t, err)
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("configuration", "config", c)
	assert.NotContains(t, b.String(), "hunter2")
	assert.Contains(t, b.String(), "config.nats=external")
	assert.Equal(t, reflect.TypeFor[Config]().NumField(), len(c.LogValue().Group()), "every field is logged")
}

func TestThisHost(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kvxfer.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"listen": "lo:0", "http": "localhost:0", "state-dir": "s", "node": "n"}`), 0o600))
	t.Chdir(dir)
	c, err := Load([]string{"--config", path, "--socket=/s"}, []string{home})
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:0", c.Listen)
	assert.Equal(t, filepath.Join(dir, "s"), c.StateDir)

	refused := func(path, want string) {
		t.Helper()
		f := faults(t, second(Load([]string{"--config", path}, []string{home})))
		assert.Contains(t, f[0].Detail, want)
	}
	refused(dir, "not a regular file")
	refused(filepath.Join(dir, "nope"), "no such file")
	large := filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(large, bytes.Repeat([]byte(" "), maxFile+1), 0o600))
	refused(large, "larger than "+strconv.Itoa(maxFile))
	f := faults(t, second(Load([]string{"--listen", "no-such-if-0"}, []string{home, "KVXFER_NODE=n"})))
	require.Len(t, f, 1)
	assert.Contains(t, f[0].Detail, `"no-such-if-0" is no interface`)
}
