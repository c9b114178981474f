package registrytest

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry"
)

// Wait bounds every wait for a condition.
const Wait = 60 * time.Second

// Harness is one registry that starts empty, for one test.
type Harness interface {
	// Open gives a new directory on the registry; the suite closes it.
	Open(t *testing.T) registry.Directory
	// PutRaw stores value under key as no directory would.
	PutRaw(t *testing.T, key string, value []byte)
	// Wipe makes the registry lose everything it holds, while it stays reachable or is restarted.
	Wipe(t *testing.T)
}

// Run runs the suite; start makes a harness that ends with t.
func Run(t *testing.T, start func(t *testing.T) Harness) {
	for name, f := range map[string]func(*testing.T, Harness){
		"AnnounceIsSeenByOthers":     announceIsSeen,
		"NameTaken":                  nameTaken,
		"TwoClaimantsOneWins":        twoClaimants,
		"TakeOver":                   takeOver,
		"TakeOverOfAnotherEpoch":     takeOverRefused,
		"TakeOverOfALiveNode":        takeOverReported,
		"NameIsFreeAfterClose":       nameFree,
		"DeadNodeVanishes":           deadNodeVanishes,
		"Draining":                   draining,
		"Caches":                     caches,
		"Tenants":                    tenants,
		"CachesOfAnOldEpoch":         cachesOfAnOldEpoch,
		"ManyCaches":                 manyCaches,
		"BadInput":                   badInput,
		"OrderOfCalls":               orderOfCalls,
		"GarbageIsIgnored":           garbageIsIgnored,
		"GarbageUnderOurName":        garbageUnderOurName,
		"NewerFormatHoldsItsName":    newerFormat,
		"EverythingLostIsSaidAgain":  lost,
		"ClosedDirectory":            closed,
		"AnnounceEndsWithItsContext": announceBounded,
	} {
		t.Run(name, func(t *testing.T) { f(t, start(t)) })
	}
}

// NewNode makes a valid node of a fresh epoch.
func NewNode(name string) registry.Node {
	return registry.Node{
		Name: name, Epoch: registry.NewEpoch(), PeerAddr: "127.0.0.1:7001", HTTPAddr: "[::1]:8001", Version: "test",
		Protocol: registry.Protocol{Min: 1, Max: 1}, Providers: []string{"tcp"}, MemoryKinds: []string{"memfd"},
		StartedUnixMs: 1,
	}
}

// NewCache makes a valid cache.
func NewCache(name string) registry.Cache {
	return registry.Cache{
		Tenant: registry.DefaultTenant, Name: name, ID: "id-" + name, Model: "org/model", Revision: "r1", Compat: "c1", Layout: json.RawMessage(`{"layers":30}`),
		MemoryKind: "memfd", NumBlocks: 8, BlockBytes: 4096, Bytes: 32768,
	}
}

// Until waits until cond holds for v.
func Until(t *testing.T, v *registry.View, what string, cond func() bool) {
	t.Helper()
	timeout := time.NewTimer(Wait)
	defer timeout.Stop()
	for {
		changed := v.Changed()
		if cond() {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			require.FailNow(t, "waited in vain", "%s; nodes %v, caches %v, connected %v", what, v.Nodes(), v.Caches(registry.DefaultTenant), v.Connected())
		}
	}
}

// Sees waits until v has node n under its epoch.
func Sees(t *testing.T, v *registry.View, n registry.Node) {
	t.Helper()
	Until(t, v, "node "+n.Name, func() bool {
		have, ok := v.Node(n.Name)
		return ok && have.Epoch == n.Epoch
	})
}

// Misses waits until v has no node of that name.
func Misses(t *testing.T, v *registry.View, name string) {
	t.Helper()
	Until(t, v, "no node "+name, func() bool { _, ok := v.Node(name); return !ok })
}

// Context ends after Wait or with the test.
func Context(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Wait)
	t.Cleanup(cancel)
	return ctx
}

// Kill ends a directory as a dying process would: nothing is withdrawn.
func Kill(d registry.Directory) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = d.Close(ctx) // says that nothing was withdrawn
}

func announce(t *testing.T, d registry.Directory, n registry.Node) registry.Node {
	t.Helper()
	require.NoError(t, d.Announce(Context(t), n, registry.TakeOver{}))
	n.Format = registry.Format
	return n
}

func announceIsSeen(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	n := announce(t, a, NewNode("pre.fill-0_A"))
	for _, d := range []registry.Directory{a, b} {
		Sees(t, d.View(), n)
		have, _ := d.View().Node(n.Name)
		n.Beats = have.Beats // each implementation's own
		assert.Equal(t, n, have)
		assert.Equal(t, []registry.Node{n}, d.View().Nodes())
		assert.True(t, d.View().Connected())
	}
	late := h.Open(t)
	Sees(t, late.View(), n)
}

func nameTaken(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	n := announce(t, a, NewNode("n"))
	err := b.Announce(Context(t), NewNode("n"), registry.TakeOver{})
	require.ErrorIs(t, err, fault.ErrNameTaken)
	assert.False(t, fault.From("", err).Retryable())
	Sees(t, b.View(), n)
	require.NoError(t, b.Announce(Context(t), NewNode("other"), registry.TakeOver{}), "a refused directory may try another name")
	select {
	case err := <-a.Err():
		require.NoError(t, err)
	default:
	}
}

func twoClaimants(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	errs := make(chan error, 2)
	ctx := Context(t)
	for _, d := range []registry.Directory{a, b} {
		go func() { errs <- d.Announce(ctx, NewNode("n"), registry.TakeOver{}) }()
	}
	taken := 0
	for range 2 {
		if err := <-errs; err != nil {
			require.ErrorIs(t, err, fault.ErrNameTaken)
			taken++
		}
	}
	assert.Equal(t, 1, taken)
}

func takeOver(t *testing.T, h Harness) {
	a, b, c := h.Open(t), h.Open(t), h.Open(t)
	old := announce(t, a, NewNode("n"))
	require.NoError(t, a.PutCache(Context(t), NewCache("kv")))
	Kill(a)
	n := NewNode("n")
	require.NoError(t, b.Announce(Context(t), n, registry.TakeOver{OldEpoch: old.Epoch}))
	Sees(t, c.View(), n)
	assert.Empty(t, c.View().Caches(registry.DefaultTenant), "the old epoch's caches went with it")
	require.NoError(t, b.PutCache(Context(t), NewCache("kv")))
	Until(t, c.View(), "the new epoch's cache", func() bool {
		kv, ok := c.View().Cache("n", registry.DefaultTenant, "kv")
		return ok && kv.Epoch == n.Epoch
	})
}

func takeOverRefused(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	announce(t, a, NewNode("n"))
	err := b.Announce(Context(t), NewNode("n"), registry.TakeOver{OldEpoch: registry.NewEpoch()})
	require.ErrorIs(t, err, fault.ErrNameTaken)
}

// The caller vouched wrongly: the old process lives, and must hear that its name is gone.
func takeOverReported(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	old := announce(t, a, NewNode("n"))
	n := NewNode("n")
	require.NoError(t, b.Announce(Context(t), n, registry.TakeOver{OldEpoch: old.Epoch}))
	select {
	case err := <-a.Err():
		require.ErrorIs(t, err, fault.ErrNameTaken)
	case <-Context(t).Done():
		require.FailNow(t, "the loss was not reported")
	}
	require.ErrorIs(t, a.SetDraining(Context(t), true), fault.ErrNameTaken)
	require.NoError(t, a.Close(Context(t)))
	Sees(t, b.View(), n)
}

func nameFree(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	n := announce(t, a, NewNode("n"))
	require.NoError(t, a.PutCache(Context(t), NewCache("kv")))
	Sees(t, b.View(), n)
	require.NoError(t, a.Close(Context(t)))
	assert.False(t, a.View().Connected())
	Misses(t, b.View(), "n")
	assert.Empty(t, b.View().Caches(registry.DefaultTenant))
	announce(t, b, NewNode("n"))
}

func deadNodeVanishes(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	n := announce(t, a, NewNode("n"))
	require.NoError(t, a.PutCache(Context(t), NewCache("kv")))
	Until(t, b.View(), "cache", func() bool { return len(b.View().Caches(registry.DefaultTenant)) == 1 })
	Sees(t, b.View(), n)
	Kill(a)
	Misses(t, b.View(), "n")
	assert.Empty(t, b.View().Caches(registry.DefaultTenant))
	assert.True(t, b.View().Connected())
	announce(t, b, NewNode("n"))
}

func draining(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	announce(t, a, NewNode("n"))
	for _, want := range []bool{true, false} {
		require.NoError(t, a.SetDraining(Context(t), want))
		Until(t, b.View(), "draining", func() bool {
			n, ok := b.View().Node("n")
			return ok && n.Draining == want
		})
	}
}

func caches(t *testing.T, h Harness) {
	a, b, c := h.Open(t), h.Open(t), h.Open(t)
	na, nb := announce(t, a, NewNode("a")), announce(t, b, NewNode("b"))
	require.NoError(t, b.PutCache(Context(t), NewCache("x")))
	require.NoError(t, a.PutCache(Context(t), NewCache("y.z")))
	require.NoError(t, a.PutCache(Context(t), NewCache("y-z")))
	v := c.View()
	Until(t, v, "three caches", func() bool { return len(v.Caches(registry.DefaultTenant)) == 3 })
	var keys []registry.Key
	for _, kv := range v.Caches(registry.DefaultTenant) {
		keys = append(keys, kv.Key())
	}
	assert.Equal(t, []registry.Key{{Node: "a", Epoch: na.Epoch, Tenant: registry.DefaultTenant, Cache: "y-z"}, {Node: "a", Epoch: na.Epoch, Tenant: registry.DefaultTenant, Cache: "y.z"}, {Node: "b", Epoch: nb.Epoch, Tenant: registry.DefaultTenant, Cache: "x"}}, keys)

	want := NewCache("x")
	want.NumBlocks, want.Node, want.Epoch = 99, "b", nb.Epoch
	require.NoError(t, b.PutCache(Context(t), want), "replaced, with its owner's names given")
	want.Format = registry.Format
	Until(t, v, "99 blocks", func() bool { kv, ok := v.Cache("b", registry.DefaultTenant, "x"); return ok && kv.NumBlocks == 99 })
	have, _ := v.Cache("b", registry.DefaultTenant, "x")
	assert.Equal(t, want, have)

	require.NoError(t, a.DropCache(Context(t), registry.DefaultTenant, "y.z"))
	Until(t, v, "dropped", func() bool { _, ok := v.Cache("a", registry.DefaultTenant, "y.z"); return !ok })
	require.ErrorIs(t, a.DropCache(Context(t), registry.DefaultTenant, "y.z"), fault.ErrNotFound)
	assert.Len(t, v.Caches(registry.DefaultTenant), 2)
}

func tenants(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	announce(t, a, NewNode("n"))
	for i, tenant := range []string{"", "blue", "_.-"} {
		c := NewCache("kv")
		c.Tenant, c.NumBlocks = tenant, i+1
		require.NoError(t, a.PutCache(Context(t), c))
	}
	v := b.View()
	for i, tenant := range []string{registry.DefaultTenant, "blue", "_.-"} {
		Until(t, v, "the tenant's cache", func() bool { c, ok := v.Cache("n", tenant, "kv"); return ok && c.NumBlocks == i+1 })
		require.Len(t, v.Caches(tenant), 1)
		assert.Equal(t, tenant, v.Caches(tenant)[0].Tenant)
	}
	assert.Empty(t, v.Caches("green"))
	require.ErrorIs(t, a.DropCache(Context(t), "green", "kv"), fault.ErrNotFound)
	require.NoError(t, a.DropCache(Context(t), "blue", "kv"))
	Until(t, v, "dropped", func() bool { return len(v.Caches("blue")) == 0 })
	assert.Len(t, v.Caches(registry.DefaultTenant), 1)
	assert.Len(t, v.Caches("_.-"), 1)
}

func cachesOfAnOldEpoch(t *testing.T, h Harness) {
	a := h.Open(t)
	announce(t, a, NewNode("n"))
	stray := NewCache("stray")
	stray.Format, stray.Node, stray.Epoch = registry.Format, "n", registry.NewEpoch()
	raw, err := stray.Encode()
	require.NoError(t, err)
	h.PutRaw(t, stray.Key().String(), raw)
	require.NoError(t, a.PutCache(Context(t), NewCache("kv")))
	b := h.Open(t)
	Until(t, b.View(), "own cache", func() bool { _, ok := b.View().Cache("n", registry.DefaultTenant, "kv"); return ok })
	assert.Len(t, b.View().Caches(registry.DefaultTenant), 1)
	_, ok := b.View().Cache("n", registry.DefaultTenant, "stray")
	assert.False(t, ok)
}

func manyCaches(t *testing.T, h Harness) {
	const count = 200
	a, b := h.Open(t), h.Open(t)
	announce(t, a, NewNode("n"))
	for i := range count {
		require.NoError(t, a.PutCache(Context(t), NewCache("kv-"+string(rune('a'+i%26))+string(rune('a'+i/26)))))
	}
	Until(t, b.View(), "all caches", func() bool { return len(b.View().Caches(registry.DefaultTenant)) == count })
}

func badInput(t *testing.T, h Harness) {
	d := h.Open(t)
	n := NewNode("n")
	n.PeerAddr = "nowhere"
	err := d.Announce(Context(t), n, registry.TakeOver{})
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	assert.Equal(t, "peer_addr", fault.From("", err).Field)
	assert.NotEmpty(t, fault.From("", err).Op)
	err = d.Announce(Context(t), NewNode("n"), registry.TakeOver{OldEpoch: "yesterday"})
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	assert.Equal(t, "old_epoch", fault.From("", err).Field)

	announce(t, d, NewNode("n"))
	c := NewCache("kv")
	c.Node = "somebody-else"
	err = d.PutCache(Context(t), c)
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	assert.Equal(t, "node", fault.From("", err).Field)
	err = d.PutCache(Context(t), NewCache("white space"))
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	assert.Equal(t, "name", fault.From("", err).Field)
}

func orderOfCalls(t *testing.T, h Harness) {
	d := h.Open(t)
	require.ErrorIs(t, d.PutCache(Context(t), NewCache("kv")), fault.ErrInvalidArgument)
	require.ErrorIs(t, d.SetDraining(Context(t), true), fault.ErrInvalidArgument)
	announce(t, d, NewNode("n"))
	require.ErrorIs(t, d.Announce(Context(t), NewNode("n2"), registry.TakeOver{}), fault.ErrAlreadyExists)
}

func garbageIsIgnored(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	n := announce(t, a, NewNode("n"))
	Sees(t, b.View(), n)
	e := registry.NewEpoch()
	for key, value := range map[string]string{
		"node.garbage":               "\xff\x00 not json",
		"node.empty":                 "",
		"node.list":                  "[]",
		"node.wrong-name":            `{"format":1,"name":"somebody","epoch":"` + e + `","peer_addr":"h:1","protocol":{"min":1,"max":1}}`,
		"node.no-epoch":              `{"format":1,"name":"no-epoch"}`,
		"other.kind":                 "{}",
		"node.too.deep":              "{}",
		"cache.n." + n.Epoch + ".kv": `{"format":1}`,
		"cache.n.epoch.kv":           "{}",
	} {
		h.PutRaw(t, key, []byte(value))
	}
	last := announce(t, h.Open(t), NewNode("after"))
	Sees(t, b.View(), last)
	late := h.Open(t)
	Sees(t, late.View(), last)
	for _, v := range []*registry.View{b.View(), late.View()} {
		assert.Len(t, v.Nodes(), 2)
		assert.Empty(t, v.Caches(registry.DefaultTenant))
	}
}

func garbageUnderOurName(t *testing.T, h Harness) {
	h.PutRaw(t, "node.n", []byte("no claim at all"))
	a := h.Open(t)
	n := announce(t, a, NewNode("n"))
	Sees(t, a.View(), n)
	h.PutRaw(t, "node.n", []byte("{"))
	require.NoError(t, a.SetDraining(Context(t), true))
	b := h.Open(t)
	Sees(t, b.View(), n)
}

func newerFormat(t *testing.T, h Harness) {
	d, e := h.Open(t), registry.NewEpoch()
	h.PutRaw(t, "node.new", []byte(`{"format":7,"name":"new","epoch":"`+e+`","wings":2}`))
	Sees(t, d.View(), registry.Node{Name: "new", Epoch: e})
	h.PutRaw(t, "node.newer", []byte(`{"format":8,"name":"newer","epoch":"`+e+`","peer_addr":["a","b"]}`))
	require.ErrorIs(t, d.Announce(Context(t), NewNode("newer"), registry.TakeOver{}), fault.ErrNameTaken,
		"unreadable here, and still a live claim")
}

func lost(t *testing.T, h Harness) {
	a, b := h.Open(t), h.Open(t)
	na, nb := announce(t, a, NewNode("a")), announce(t, b, NewNode("b"))
	require.NoError(t, a.PutCache(Context(t), NewCache("kv")))
	h.Wipe(t)
	late := h.Open(t)
	for _, v := range []*registry.View{a.View(), b.View(), late.View()} {
		Sees(t, v, na)
		Sees(t, v, nb)
		Until(t, v, "cache again", func() bool { _, ok := v.Cache("a", registry.DefaultTenant, "kv"); return ok && v.Connected() })
	}
	for _, d := range []registry.Directory{a, b} {
		select {
		case err := <-d.Err():
			require.NoError(t, err)
		default:
		}
	}
}

func closed(t *testing.T, h Harness) {
	d := h.Open(t)
	announce(t, d, NewNode("n"))
	require.NoError(t, d.Close(Context(t)))
	require.NoError(t, d.Close(Context(t)), "twice")
	require.ErrorIs(t, d.PutCache(Context(t), NewCache("kv")), fault.ErrClosed)
	require.ErrorIs(t, d.Announce(Context(t), NewNode("n"), registry.TakeOver{}), fault.ErrClosed)
	assert.NotNil(t, d.View().Nodes())
}

func announceBounded(t *testing.T, h Harness) {
	d := h.Open(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := d.Announce(ctx, NewNode("n"), registry.TakeOver{})
	if err != nil { // it may have been quick enough
		require.ErrorIs(t, err, fault.ErrCancelled)
	}
}
