package node

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/registry"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// slowRegistry answers a call when the test reads what was said.
type slowRegistry struct {
	registry.Directory
	said chan string
}

func (r *slowRegistry) PutCache(_ context.Context, c registry.Cache) error {
	r.said <- "put " + c.Name
	return nil
}

func (r *slowRegistry) DropCache(_ context.Context, _, name string) error {
	r.said <- "drop " + name
	return nil
}

func (d *directory) queued() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting)
}

// Caches that come and go while the registry does not answer do not pile up, and the last word on each name is said.
func TestDirectoryKeepsTheLastWord(t *testing.T) {
	reg := &slowRegistry{said: make(chan string)}
	d := newDirectory(reg, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.run(ctx)
	}()
	put := func(name string) { d.PutCache(xfer.CacheEntry{Tenant: "default", Name: name}) }

	put("a")
	require.Eventually(t, func() bool { return d.queued() == 0 }, 20*time.Second, time.Millisecond) // it is being said
	for i := range 1000 {
		put("a")
		d.DropCache("default", "a")
		put(fmt.Sprint("gone", i))
		d.DropCache("default", fmt.Sprint("gone", i))
		put("b")
	}
	d.DropCache("default", "a")
	assert.Equal(t, 2, d.queued())
	for _, want := range []string{"put a", "put b", "drop a"} {
		assert.Equal(t, want, <-reg.said)
	}
	put("a")
	d.DropCache("default", "b")
	for _, want := range []string{"put a", "drop b"} {
		assert.Equal(t, want, <-reg.said)
	}
	cancel()
	<-ended
	assert.Zero(t, d.queued())
	assert.Equal(t, map[cacheName]struct{}{{"default", "a"}: {}}, d.said)
}

// viewRegistry keeps what it is told in a view, as entries of one node.
type viewRegistry struct {
	registry.Directory
	view *registry.View
	feed *registry.Feed
	node registry.Node
}

func newViewRegistry(t *testing.T, name string) *viewRegistry {
	r := &viewRegistry{node: registry.Node{Format: 1, Name: name, Epoch: "0123456789abcdef0123456789abcdef", PeerAddr: name + ":7000", Protocol: registry.Protocol{Min: 1, Max: 1}}}
	r.view, r.feed = registry.NewView()
	raw, err := r.node.Encode()
	require.NoError(t, err)
	key := r.node.Key()
	require.NoError(t, r.feed.Put(key.String(), raw))
	return r
}

func (r *viewRegistry) View() *registry.View { return r.view }

func (r *viewRegistry) PutCache(_ context.Context, c registry.Cache) error {
	c.Format, c.Node, c.Epoch = 1, r.node.Name, r.node.Epoch
	raw, err := c.Encode()
	if err != nil {
		return err
	}
	key := c.Key()
	return r.feed.Put(key.String(), raw)
}

// What one node announces, another finds: ranks by instance and holders by model, of their tenant alone.
func TestDirectoryFindsRanksAndHolders(t *testing.T) {
	reg := newViewRegistry(t, "n0")
	d := newDirectory(reg, slog.New(slog.DiscardHandler))
	for i, tenant := range []string{"t", "t", "else"} {
		spec := wire.RegisterCache{Name: fmt.Sprint("c", i), Model: "m", NumBlocks: 4, Layout: layout.Layout{Layers: 1, KVHeads: 1, HeadDim: 8,
			DType: "int8", BlockTokens: 1, Order: layout.HND, TPRank: uint32(i), TPSize: 4}}
		if i != 1 {
			spec.Instance = "engine"
		}
		require.NoError(t, d.say(t.Context(), change{cacheName{tenant, spec.Name}, &xfer.CacheEntry{Name: spec.Name, Tenant: tenant, Spec: spec}}))
	}
	peer := xfer.PeerRef{Node: "n0", Epoch: reg.node.Epoch, Addr: "n0:7000", Tenant: "t"}
	assert.Equal(t, []xfer.Rank{{Peer: peer, Cache: "c0", Rank: 0, Ranks: 4}}, d.Ranks("t", "engine"))
	assert.Empty(t, d.Ranks("t", "other"))
	assert.Equal(t, []xfer.PeerRef{peer}, d.Holders("t", "m"), "a node once")
	assert.Empty(t, d.Holders("t", "n"))
	assert.Empty(t, d.Holders("nobody", "m"))
}

// patientRegistry tells how long its callers would wait.
type patientRegistry struct {
	registry.Directory
	left chan time.Duration
}

func (r *patientRegistry) PutCache(ctx context.Context, _ registry.Cache) error { return r.tell(ctx) }
func (r *patientRegistry) DropCache(ctx context.Context, _, _ string) error     { return r.tell(ctx) }
func (r *patientRegistry) tell(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	r.left <- time.Until(deadline)
	return nil
}

// A heartbeat holds calls up while the server is away, for several requests' time-outs of 3 s. What is given up then the
// registry never hears of, and a cache that was dropped stays announced.
func TestDirectoryOutwaitsTheHeartbeat(t *testing.T) {
	reg := &patientRegistry{left: make(chan time.Duration, 1)}
	d := newDirectory(reg, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); d.run(ctx) }()
	defer func() { cancel(); <-done }()
	d.PutCache(xfer.CacheEntry{Tenant: "default", Name: "a"})
	assert.Greater(t, <-reg.left, 30*time.Second)
	d.DropCache("default", "a")
	assert.Greater(t, <-reg.left, 30*time.Second)
}
