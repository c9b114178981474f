package localapi

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/ring"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// busyPoster ends posts at once and has the client post the next one, until something has asked for completions.
type busyPoster struct {
	t      testing.TB
	client *ring.Client
	daemon *ring.Daemon
	stop   *atomic.Bool
	posts  int
	looked bool
}

func (p *busyPoster) Post(x wire.Post) {
	p.daemon.Complete(wire.Posted{Cookie: x.Cookie})
	_, ok := p.client.Next()
	assert.True(p.t, ok)
	if p.posts++; p.looked || p.posts == 10_000 {
		p.stop.Store(true)
		return
	}
	assert.True(p.t, p.client.Submit(wire.Post{Cookie: x.Cookie + 1}))
}

func (p *busyPoster) Progress() int {
	p.looked = true
	return 0
}

func (*busyPoster) Rest() {}

// TestBusyClientHoldsNoCompletionsUp: completions of what is attached are looked for also while a client always has a next post.
func TestBusyClientHoldsNoCompletionsUp(t *testing.T) {
	c, err := ring.New(16)
	require.NoError(t, err)
	defer c.Close()
	fds := c.FDs()
	for i := range fds {
		fds[i], err = unix.Dup(fds[i])
		require.NoError(t, err)
	}
	d, err := ring.Open(fds[0], fds[1], fds[2], 16)
	require.NoError(t, err)
	defer d.Close()
	var stop atomic.Bool
	p := &busyPoster{t: t, client: c, daemon: d, stop: &stop}
	require.True(t, c.Submit(wire.Post{}))
	require.NoError(t, serveRing(d, p, &stop))
	assert.True(t, p.looked, "in %d posts nobody looked for completions", p.posts)
}
