package registry_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry"
)

const epochA, epochB = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"

func node(name, epoch string) registry.Node {
	return registry.Node{
		Format: registry.Format, Name: name, Epoch: epoch, PeerAddr: "10.0.0.1:7001", HTTPAddr: "[::1]:8001", Version: "0.1.0",
		Protocol: registry.Protocol{Min: 1, Max: 2}, Providers: []string{"tcp"}, MemoryKinds: []string{"memfd"}, StartedUnixMs: 17,
	}
}

func cache(node, epoch, name string) registry.Cache {
	return registry.Cache{
		Format: registry.Format, Node: node, Epoch: epoch, Tenant: registry.DefaultTenant, Name: name, ID: "17", Model: "org/model", Revision: "main", Compat: "c",
		Layout: json.RawMessage(`{"layers":30}`), MemoryKind: "memfd", NumBlocks: 4, BlockBytes: 16, Bytes: 64,
		Instance: "decode", Rank: 1, Ranks: 2,
	}
}

func TestEntriesRoundTrip(t *testing.T) {
	n := node("n", epochA)
	n.NUMANodes, n.Beats = 2, true
	raw, err := n.Encode()
	require.NoError(t, err)
	n2, err := registry.DecodeNode(raw)
	require.NoError(t, err)
	assert.Equal(t, n, n2)

	c := cache("n", epochA, "kv")
	numa := 0
	c.NUMANode = &numa
	raw, err = c.Encode()
	require.NoError(t, err)
	c2, err := registry.DecodeCache(raw)
	require.NoError(t, err)
	assert.Equal(t, c, c2)
}

// The stored form is a contract between versions of the daemon: it is written down here.
func TestGoldenEntries(t *testing.T) {
	n := node("n", epochA)
	n.Draining = true
	raw, err := n.Encode()
	require.NoError(t, err)
	assert.Equal(t, `{"format":1,"name":"n","epoch":"0123456789abcdef0123456789abcdef","peer_addr":"10.0.0.1:7001","http_addr":"[::1]:8001","version":"0.1.0","protocol":{"min":1,"max":2},"providers":["tcp"],"memory_kinds":["memfd"],"started_unix_ms":17,"draining":true}`, string(raw))
	c := cache("n", epochA, "kv")
	raw, err = c.Encode()
	require.NoError(t, err)
	assert.Equal(t, `{"format":1,"node":"n","epoch":"0123456789abcdef0123456789abcdef","name":"kv","id":"17","model":"org/model","revision":"main","compat":"c","layout":{"layers":30},"memory_kind":"memfd","instance":"decode","rank":1,"ranks":2,"num_blocks":4,"block_bytes":16,"bytes":64}`, string(raw))
}

func TestBadFieldsAreNamed(t *testing.T) {
	long := strings.Repeat("x", 513)
	for field, change := range map[string]func(*registry.Node){
		"format":       func(n *registry.Node) { n.Format = 0 },
		"name":         func(n *registry.Node) { n.Name = "-n" },
		"epoch":        func(n *registry.Node) { n.Epoch = strings.ToUpper(epochA) },
		"peer_addr":    func(n *registry.Node) { n.PeerAddr = ":7001" },
		"http_addr":    func(n *registry.Node) { n.HTTPAddr = "host:65536" },
		"version":      func(n *registry.Node) { n.Version = long },
		"protocol":     func(n *registry.Node) { n.Protocol = registry.Protocol{Min: 2, Max: 1} },
		"numa_nodes":   func(n *registry.Node) { n.NUMANodes = -1 },
		"providers":    func(n *registry.Node) { n.Providers = []string{"tcp", ""} },
		"memory_kinds": func(n *registry.Node) { n.MemoryKinds = make([]string, 65) },
	} {
		n := node("n", epochA)
		change(&n)
		_, err := n.Encode()
		require.ErrorIs(t, err, fault.ErrInvalidArgument, field)
		assert.Equal(t, field, fault.From("", err).Field)
		assert.Contains(t, err.Error(), "allowed")
	}
	for field, change := range map[string]func(*registry.Cache){
		"format":      func(c *registry.Cache) { c.Format = -1 },
		"node":        func(c *registry.Cache) { c.Node = "" },
		"epoch":       func(c *registry.Cache) { c.Epoch = epochA[1:] },
		"name":        func(c *registry.Cache) { c.Name = strings.Repeat("n", 65) },
		"id":          func(c *registry.Cache) { c.ID = long },
		"model":       func(c *registry.Cache) { c.Model = long },
		"revision":    func(c *registry.Cache) { c.Revision = long },
		"compat":      func(c *registry.Cache) { c.Compat = long },
		"memory_kind": func(c *registry.Cache) { c.MemoryKind = long },
		"tenant":      func(c *registry.Cache) { c.Tenant = long },
		"instance":    func(c *registry.Cache) { c.Instance = long },
		"rank":        func(c *registry.Cache) { c.Rank = -1 },
		"ranks":       func(c *registry.Cache) { c.Ranks = -1 },
		"num_blocks":  func(c *registry.Cache) { c.NumBlocks = -1 },
		"block_bytes": func(c *registry.Cache) { c.BlockBytes = -1 },
		"numa_node":   func(c *registry.Cache) { n := -1; c.NUMANode = &n },
		"bytes":       func(c *registry.Cache) { c.Bytes = -1 },
		"layout":      func(c *registry.Cache) { c.Layout = json.RawMessage("{") },
	} {
		c := cache("n", epochA, "kv")
		change(&c)
		_, err := c.Encode()
		require.ErrorIs(t, err, fault.ErrInvalidArgument, field)
		assert.Equal(t, field, fault.From("", err).Field)
		assert.Contains(t, err.Error(), "allowed")
	}
	c := cache("n", epochA, "kv")
	c.Layout = json.RawMessage(`"` + strings.Repeat("x", registry.MaxEntryBytes) + `"`)
	_, err := c.Encode()
	require.ErrorIs(t, err, fault.ErrInvalidArgument, "too large to store")
}

func TestValidateName(t *testing.T) {
	for _, good := range []string{"a", "9", "decode-0", "A.b_c-d", strings.Repeat("x", 64)} {
		require.NoError(t, registry.ValidateName("name", good), good)
	}
	for _, bad := range []string{"", ".", "-a", "_a", "a b", "a/b", "a=b", "a*", "ä", "a\x00", strings.Repeat("x", 65)} {
		err := registry.ValidateName("who", bad)
		require.ErrorIs(t, err, fault.ErrInvalidArgument, bad)
		assert.Equal(t, "who", fault.From("", err).Field)
		assert.Contains(t, err.Error(), "[A-Za-z0-9_.-]")
	}
}

func TestNewEpochIsValidAndFresh(t *testing.T) {
	a, b := registry.NewEpoch(), registry.NewEpoch()
	require.NoError(t, registry.ValidateEpoch("epoch", a))
	assert.NotEqual(t, a, b)
}

func TestNewerFormatIsKept(t *testing.T) {
	raw := `{"format":2,"name":"n","epoch":"` + epochA + `","peer_addr":"@new-kind-of-address","wings":{"left":1}}`
	n, err := registry.DecodeNode([]byte(raw))
	require.NoError(t, err)
	assert.Equal(t, "@new-kind-of-address", n.PeerAddr)
	_, err = registry.DecodeNode([]byte(strings.Replace(raw, `"format":2`, `"format":1`, 1)))
	require.Error(t, err, "this format's rules are known")

	old := node("n", epochA)
	b, err := old.Encode()
	require.NoError(t, err)
	n, err = registry.DecodeNode([]byte(strings.Replace(string(b), "{", `{"unknown":[1],`, 1)))
	require.NoError(t, err, "unknown fields are ignored")
	assert.Equal(t, old, n)

	name, epoch, err := registry.DecodeClaim([]byte(`{"format":3,"name":"n","epoch":"` + epochA + `","peer_addr":7}`))
	require.NoError(t, err)
	assert.Equal(t, "n", name)
	assert.Equal(t, epochA, epoch)
}

func TestKeysAreABijection(t *testing.T) {
	seen := map[string]registry.Key{}
	for _, k := range []registry.Key{
		{Node: "a"}, {Node: "a.b"}, {Node: "a-b"}, {Node: "a_b"}, {Node: "node"}, {Node: "node.a"}, {Node: "a."}, {Node: "a.."},
		{Node: "a", Epoch: epochA, Tenant: registry.DefaultTenant, Cache: "c"}, {Node: "a", Epoch: epochB, Tenant: registry.DefaultTenant, Cache: "c"},
		{Node: "a", Epoch: epochA, Tenant: "c", Cache: "c"}, {Node: "a", Epoch: epochA, Tenant: "-", Cache: "c"}, {Node: "a", Epoch: epochA, Tenant: ".", Cache: "c"},
		{Node: "a.b", Epoch: epochA, Tenant: registry.DefaultTenant, Cache: "c"}, {Node: "a", Epoch: epochA, Tenant: registry.DefaultTenant, Cache: "b.c"},
	} {
		s := k.String()
		assert.NotContains(t, seen, s)
		seen[s] = k
		back, err := registry.ParseKey(s)
		require.NoError(t, err, s)
		assert.Equal(t, k, back)
		assert.NotContains(t, s, "..")
		assert.False(t, strings.HasSuffix(s, "."))
	}
	for _, bad := range []string{"", "node", "node.", "node.a.b", "cache.a.b", "cache.a." + epochA + ".", "cache.a.epoch.c", "cache.a." + epochA + ".default.c", "cache.a." + epochA + "..c", "cache.a." + epochA + ".b.c.d", "x.a", "node.-"} {
		_, err := registry.ParseKey(bad)
		require.ErrorIs(t, err, fault.ErrInvalidArgument, bad)
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add("node.a=b")
	f.Add("cache.a." + epochA + ".kv")
	f.Add("cache.a." + epochA + ".blue.kv")
	f.Fuzz(func(t *testing.T, s string) {
		k, err := registry.ParseKey(s)
		if err == nil && k.String() != s {
			t.Fatalf("%q parses to %+v, which is written %q", s, k, k.String())
		}
	})
}

func FuzzDecode(f *testing.F) {
	n, c := node("n", epochA), cache("n", epochA, "kv")
	rawN, err := n.Encode()
	require.NoError(f, err)
	rawC, err := c.Encode()
	require.NoError(f, err)
	f.Add(rawN)
	f.Add(rawC)
	f.Add([]byte(`{"format":2,"name":"n","epoch":"` + epochA + `"}`))
	f.Add([]byte(`{"format":1e99}`))
	f.Add([]byte("\xff\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if n, err := registry.DecodeNode(raw); err == nil {
			if _, epoch, err := registry.DecodeClaim(raw); err != nil || epoch != n.Epoch {
				t.Fatalf("a node without a claim: %v", err)
			}
			if n.Format <= registry.Format {
				again, err := n.Encode()
				require.NoError(t, err)
				back, err := registry.DecodeNode(again)
				require.NoError(t, err)
				require.Equal(t, n.Name, back.Name)
			}
		}
		if c, err := registry.DecodeCache(raw); err == nil && c.Format <= registry.Format {
			if again, err := c.Encode(); err == nil { // it may have become larger than allowed
				_, err = registry.DecodeCache(again)
				require.NoError(t, err)
			}
		}
		v, feed := registry.NewView()
		if err := feed.Put("node.n", raw); err != nil {
			require.Empty(t, v.Nodes())
		} else {
			require.Equal(t, "n", v.Nodes()[0].Name)
		}
	})
}
