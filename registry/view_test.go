package registry_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func put(t *testing.T, f *registry.Feed, e interface {
	Key() registry.Key
	Encode() ([]byte, error)
}) {
	t.Helper()
	raw, err := e.Encode()
	require.NoError(t, err)
	require.NoError(t, f.Put(e.Key().String(), raw))
}

func changed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestCachesFollowTheirNodesEpoch(t *testing.T) {
	v, f := registry.NewView()
	c := cache("n", epochA, "kv")
	put(t, f, &c)
	assert.Empty(t, v.Caches(registry.DefaultTenant), "a cache before its node")
	n := node("n", epochA)
	put(t, f, &n)
	assert.Equal(t, []registry.Cache{c}, v.Caches(registry.DefaultTenant))
	n.Epoch = epochB
	put(t, f, &n)
	assert.Empty(t, v.Caches(registry.DefaultTenant), "the node has another epoch")
	_, ok := v.Cache("n", registry.DefaultTenant, "kv")
	assert.False(t, ok)
	c.Epoch = epochB
	put(t, f, &c)
	have, ok := v.Cache("n", registry.DefaultTenant, "kv")
	assert.True(t, ok)
	assert.Equal(t, c, have)
	f.Drop(n.Key().String())
	assert.Empty(t, v.Caches(registry.DefaultTenant))
	assert.Empty(t, v.Nodes())
}

func TestTenantsAreApart(t *testing.T) {
	v, f := registry.NewView()
	n := node("n", epochA)
	put(t, f, &n)
	mine, theirs := cache("n", epochA, "kv"), cache("n", epochA, "kv")
	theirs.Tenant, theirs.NumBlocks = "blue", 99
	put(t, f, &mine)
	put(t, f, &theirs)
	assert.Equal(t, []registry.Cache{mine}, v.Caches(registry.DefaultTenant))
	assert.Equal(t, []registry.Cache{mine}, v.Caches(""), "none is the default")
	assert.Equal(t, []registry.Cache{theirs}, v.Caches("blue"))
	assert.Empty(t, v.Caches("green"))
	have, ok := v.Cache("n", "blue", "kv")
	assert.True(t, ok)
	assert.Equal(t, theirs, have)
	_, ok = v.Cache("n", "green", "kv")
	assert.False(t, ok)
	f.Drop(theirs.Key().String())
	assert.Empty(t, v.Caches("blue"))
	assert.Len(t, v.Caches(registry.DefaultTenant), 1)

	// An entry under another tenant's key, and one without a tenant, as daemons wrote it before there were any.
	raw, err := theirs.Encode()
	require.NoError(t, err)
	require.Error(t, f.Put(mine.Key().String(), raw))
	require.NoError(t, f.Put("cache.n."+epochA+".old", []byte(`{"format":1,"node":"n","epoch":"`+epochA+`","name":"old","num_blocks":1,"block_bytes":1,"bytes":1}`)))
	assert.Len(t, v.Caches(registry.DefaultTenant), 2)
	_, err = registry.DecodeCache([]byte(`{"format":1,"node":"n","epoch":"` + epochA + `","tenant":"a b","name":"x"}`))
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
}

func TestGarbageChangesNothing(t *testing.T) {
	v, f := registry.NewView()
	n := node("n", epochA)
	put(t, f, &n)
	c := v.Changed()
	require.Error(t, f.Put("node.n", []byte("{")))
	require.Error(t, f.Put("node.m", mustEncode(t, &n)), "under another's key")
	require.Error(t, f.Put("cache.n."+epochA+".kv", mustEncode(t, &n)))
	require.Error(t, f.Put("unknown", nil))
	f.Drop("unknown")
	f.Drop("node.never-there")
	assert.False(t, changed(c))
	assert.Equal(t, []registry.Node{n}, v.Nodes())
}

func mustEncode(t *testing.T, n *registry.Node) []byte {
	raw, err := n.Encode()
	require.NoError(t, err)
	return raw
}

func TestHeartbeatsAreNoChange(t *testing.T) {
	v, f := registry.NewView()
	n := node("n", epochA)
	c := v.Changed()
	put(t, f, &n)
	require.True(t, changed(c))
	c = v.Changed()
	put(t, f, &n)
	assert.False(t, changed(c))
	n.Draining = true
	put(t, f, &n)
	assert.True(t, changed(c))
}

func TestSweepAfterSync(t *testing.T) {
	v, f := registry.NewView()
	t0 := time.Unix(1000, 0)
	a, b := node("a", epochA), node("b", epochA)
	f.BeginSync()
	put(t, f, &a)
	put(t, f, &b)
	f.EndSync(t0)
	f.Expire(t0.Add(time.Hour))
	require.Len(t, v.Nodes(), 2, "what a synchronisation showed does not expire")
	assert.True(t, v.Connected())

	c := v.Changed()
	f.Disconnect()
	assert.True(t, changed(c))
	assert.False(t, v.Connected())
	assert.Len(t, v.Nodes(), 2, "stale, and still answered")

	f.BeginSync()
	put(t, f, &a)
	f.EndSync(t0.Add(6 * time.Second))
	f.Expire(t0.Add(5 * time.Second))
	assert.Len(t, v.Nodes(), 2, "the grace in which b may say itself again")
	f.BeginSync()
	put(t, f, &a)
	f.EndSync(t0.Add(60 * time.Second))
	f.Expire(t0.Add(6 * time.Second))
	assert.Equal(t, []registry.Node{a}, v.Nodes(), "another synchronisation does not prolong it")

	put(t, f, &b)
	f.Disconnect()
	f.BeginSync()
	f.EndSync(t0.Add(10 * time.Second))
	put(t, f, &b)
	f.Expire(t0.Add(10 * time.Second))
	assert.Equal(t, []registry.Node{b}, v.Nodes(), "b came back in time")

	f.Disconnect()
	f.BeginSync()
	f.EndSync(t0.Add(20 * time.Second))
	f.Disconnect()
	f.Expire(t0.Add(time.Hour))
	assert.Len(t, v.Nodes(), 1, "nobody is judged while the directory is away")
}

func TestListsAreSortedAndTheCallers(t *testing.T) {
	v, f := registry.NewView()
	for _, name := range []string{"c", "a", "b"} {
		n := node(name, epochA)
		put(t, f, &n)
		for _, kv := range []string{"2", "1"} {
			c := cache(name, epochA, kv)
			put(t, f, &c)
		}
	}
	var names []string
	for _, n := range v.Nodes() {
		names = append(names, n.Name)
	}
	for _, c := range v.Caches(registry.DefaultTenant) {
		names = append(names, c.Node+c.Name)
	}
	assert.Equal(t, []string{"a", "b", "c", "a1", "a2", "b1", "b2", "c1", "c2"}, names)
	v.Nodes()[0].Name = "mine"
	assert.Equal(t, "a", v.Nodes()[0].Name)
}

// Readers run beside a feed that keeps this true: node n-i and its cache carry the same epoch, or the cache is not
// listed; lists are sorted.
func TestConcurrentReaders(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("KVXFER_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	v, f := registry.NewView()
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				last := ""
				for _, n := range v.Nodes() {
					assert.Less(t, last, n.Name)
					last = n.Name
				}
				for _, c := range v.Caches(registry.DefaultTenant) {
					assert.Equal(t, c.Epoch, c.ID, "a cache's fields belong together")
				}
				if n, ok := v.Node("n-1"); ok {
					assert.Equal(t, n.Epoch, n.Version)
				}
				v.Changed()
			}
		})
	}
	for range 3000 {
		name := fmt.Sprintf("n-%d", rnd.IntN(5))
		epoch := []string{epochA, epochB}[rnd.IntN(2)]
		n, c := node(name, epoch), cache(name, epoch, "kv")
		n.Version, c.ID = epoch, epoch
		switch rnd.IntN(6) {
		case 0:
			f.Drop(n.Key().String())
		case 1:
			f.Drop(c.Key().String())
		case 2:
			put(t, f, &c)
		case 3:
			f.BeginSync()
			f.EndSync(time.Unix(0, 1))
			f.Expire(time.Unix(0, rnd.Int64N(3)))
		default:
			put(t, f, &n)
		}
	}
	close(done)
	wg.Wait()
}
