package node

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/registry"
	"github.com/kvxfer/kvxfer/xfer"
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
