package node

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// Two clients of one daemon, by the daemon's own parts: the link inside the process and the session that goes with it.

const insidePatience = 60 * time.Second

// megabyteBlocks has blocks of 1 MiB in two layers, K and V.
var megabyteBlocks = kvxfer.Layout{Layers: 2, KVHeads: 8, HeadDim: 128, DType: "uint8", BlockTokens: 256}

func attached(t *testing.T, n *Node, name string, blocks int) *kvxfer.Cache {
	t.Helper()
	c, err := kvxfer.Dial(t.Context(), n.Info().Socket)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	cache, err := c.AllocateCache(t.Context(), kvxfer.CacheSpec{Name: name, Model: "m", Layout: megabyteBlocks, NumBlocks: blocks})
	require.NoError(t, err)
	return cache
}

func all(n int) (ids []int) {
	for i := range n {
		ids = append(ids, i)
	}
	return ids
}

func fillRandom(rng *rand.Rand, b []byte) {
	for i := 0; i+8 <= len(b); i += 8 {
		x := rng.Uint64()
		for k := range 8 {
			b[i+k] = byte(x >> (8 * k))
		}
	}
}

func started(t *testing.T, args ...string) *Node {
	n, err := start(t, testConfig(t, "n0", filepath.Join(t.TempDir(), "state"), args...))
	require.NoError(t, err)
	t.Cleanup(func() { n.Close(context.Background()) })
	return n
}

// TestTwoClientsOfOneDaemon: writes and reads go inside the process and say so; who names another way gets it.
func TestTwoClientsOfOneDaemon(t *testing.T) {
	rng := testseed.New(t)
	n := started(t)
	const blocks = 6
	a, b := attached(t, n, "a", blocks), attached(t, n, "b", blocks)
	ctx, cancel := context.WithTimeout(t.Context(), insidePatience)
	defer cancel()
	for _, way := range []string{"", "shm", "tcp"} {
		var o []kvxfer.TransferOption
		want := "shm"
		if way != "" {
			o, want = append(o, kvxfer.OnlyProvider(way)), way
		}
		fillRandom(rng, a.Memory())
		lease, err := b.Lease(ctx, all(blocks), kvxfer.LeaseOptions{})
		require.NoError(t, err)
		push, err := a.Write(ctx, all(blocks), lease.Ticket(), o...)
		require.NoError(t, err)
		got, err := push.Wait(ctx)
		require.NoError(t, err)
		_, err = lease.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, a.Memory(), b.Memory())
		assert.Equal(t, want, got.Provider)
		if want == "shm" {
			assert.Contains(t, got.ProviderReason, "nothing leaves the process")
		} else {
			assert.NotContains(t, got.ProviderReason, "process")
		}

		fillRandom(rng, b.Memory())
		offer, err := b.LeaseRead(ctx, all(blocks), kvxfer.LeaseOptions{})
		require.NoError(t, err)
		pull, err := a.Read(ctx, all(blocks), offer.Ticket(), o...)
		require.NoError(t, err)
		got, err = pull.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, b.Memory(), a.Memory())
		assert.Equal(t, want, got.Provider)
		require.NoError(t, offer.Revoke(ctx))
		require.NoError(t, b.Evict(ctx, all(blocks)))
		require.NoError(t, a.Evict(ctx, all(blocks)))
	}
}

// TestRevokeInsideIsAFence: blocks are taken back by their owner while a write pours into them. From the moment that Revoke returns
// nothing lands.
func TestRevokeInsideIsAFence(t *testing.T) {
	rng := testseed.New(t)
	n := started(t)
	const blocks, rounds = 48, 6
	a, b := attached(t, n, "a", blocks), attached(t, n, "b", blocks)
	size := len(b.Memory())
	copy(a.Memory(), bytes.Repeat([]byte{1}, size))
	taken, blank := bytes.Repeat([]byte{7}, size), make([]byte, size)
	ctx, cancel := context.WithTimeout(t.Context(), insidePatience)
	defer cancel()
	cut := 0
	for round := range rounds {
		copy(b.Memory(), blank)
		lease, err := b.Lease(ctx, all(blocks), kvxfer.LeaseOptions{})
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() {
			push, err := a.Write(ctx, all(blocks), lease.Ticket())
			if err == nil {
				_, err = push.Wait(ctx)
			}
			if err != nil && !errors.Is(err, kvxfer.ErrLeaseRevoked) && !errors.Is(err, kvxfer.ErrStaleKey) && !errors.Is(err, kvxfer.ErrTicketInvalid) {
				t.Errorf("the write ended with %v", err)
			}
		})
		// Some bytes have landed, or all; in every fourth round perhaps none.
		for at := rng.IntN(size / 4); round%4 != 0 && b.Memory()[at] == 0; {
			runtime.Gosched()
		}
		require.NoError(t, lease.Revoke(ctx))
		copy(b.Memory(), taken)
		for range 3 {
			require.True(t, bytes.Equal(taken, b.Memory()), "round %d: bytes changed after Revoke had returned", round)
		}
		wg.Wait()
		require.True(t, bytes.Equal(taken, b.Memory()), "round %d: bytes changed after Revoke had returned", round)
		if _, err := lease.Wait(ctx); err != nil {
			cut++
		} else {
			require.NoError(t, b.Evict(ctx, all(blocks)))
		}
	}
	t.Logf("%d of %d writes were cut", cut, rounds)
}
