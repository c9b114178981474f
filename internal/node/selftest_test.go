package node

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Every provider that can be configured is checked by its own code, and nothing is left of the check.
func TestProvidersAreChecked(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, size := range []uint64{1, 4097, 1 << 20} {
		checks := CheckProviders(ctx, &config.Config{Providers: append([]string{"pigeon"}, config.Providers...)}, size)
		require.ErrorIs(t, checks[0].Err, fault.ErrNotSupported)
		for i, c := range checks[1:] {
			assert.Equal(t, config.Providers[i], c.Provider)
			if c.Optional && c.Err != nil { // what a host cannot use it says; where it can, the check is made
				continue
			}
			require.NoError(t, c.Err, c.Provider)
			assert.Positive(t, c.Write)
			assert.Positive(t, c.Read)
		}
	}
}

// TestStreams: operations go round in the memory with so many in flight, each is timed alone where one is, and what arrived is what
// was sent.
func TestStreams(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	p, err := OpenPair(ctx, "tcp", &config.RDMA{}, &config.RDMA{}, 1<<20)
	require.NoError(t, err)
	defer p.Close()
	_, _, ok := p.Ports()
	assert.False(t, ok, "it is not of verbs")
	for _, kind := range []rdma.OpKind{rdma.OpWrite, rdma.OpRead} {
		for _, c := range []struct{ size, count, depth int }{{1, 3, 1}, {4096, 1000, 64}, {100_000, 25, 7}, {1 << 20, 3, 2}} {
			took, err := p.Stream(ctx, kind, uint64(c.size), c.count, c.depth)
			require.NoError(t, err, c)
			assert.Positive(t, took)
		}
		each, err := p.Latency(ctx, kind, 4096, 20)
		require.NoError(t, err)
		assert.Len(t, each, 20)
		for _, d := range each {
			assert.Positive(t, d)
		}
	}
	p.far.bytes()[5] ^= 1
	p.near.bytes()[5] ^= 2
	_, err = p.Stream(ctx, rdma.OpWrite, 4096, 1, 1)
	require.NoError(t, err, "what differed before does not matter")
	over, end := context.WithCancel(ctx)
	end()
	_, err = p.Stream(over, rdma.OpWrite, 1<<20, 1000, 4)
	require.ErrorIs(t, err, fault.ErrCancelled)
	_, err = OpenPair(ctx, "verbs", &config.RDMA{Exclude: []string{"*"}}, &config.RDMA{}, 1<<20)
	require.ErrorIs(t, err, fault.ErrNotSupported)
}
