package kvxfer

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
)

// TestManyGoroutines shares two clients among many goroutines, each with blocks of its own and a random course of action:
// every end is one that the course allows, what is committed has the source's bytes, and nothing stays leased or held.
func TestManyGoroutines(t *testing.T) {
	seed := testseed.Seed(t)
	a, b := startPair(t)
	ca, cb := dial(t, a.Info().Socket), dial(t, b.Info().Socket)
	const workers, rounds, own = 12, 12, 4
	src, dst := allocate(t, ca, "src", workers*own), allocate(t, cb, "dst", workers*own)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for round := range rounds {
				blocks := r.Perm(own)[:1+r.IntN(own)]
				for i := range blocks {
					blocks[i] += w * own
				}
				fill(src, byte(round*w), blocks...)
				courses := []func(testing.TB, *rand.Rand, *Cache, *Cache, []int){pushOnce, pushAndRevoke, pushAndCancel, pullOnce}
				courses[r.IntN(len(courses))](t, r, src, dst, blocks)
				if t.Failed() {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, c := range []*Cache{src, dst} {
		states, err := c.BlockStates(within(t))
		require.NoError(t, err)
		assert.Zero(t, states.Leased+states.Revoking+states.Held)
	}
}

func pushOnce(t testing.TB, r *rand.Rand, src, dst *Cache, blocks []int) {
	lease, err := dst.Lease(within(t), blocks, LeaseOptions{})
	if !assert.NoError(t, err) {
		return
	}
	var o []TransferOption
	layerwise := r.IntN(2) == 0
	if layerwise {
		o = append(o, Layerwise())
	}
	push, err := src.Write(within(t), blocks, lease.Ticket(), o...)
	if !assert.NoError(t, err) {
		return
	}
	if layerwise {
		for _, l := range r.Perm(testLayout.Layers) {
			assert.NoError(t, push.Layer(l))
		}
		assert.NoError(t, push.Finish(nil))
	}
	_, err = push.Wait(within(t))
	assert.NoError(t, err)
	_, err = lease.Wait(within(t))
	assert.NoError(t, err)
	same(t, src, dst, blocks)
}

func pushAndRevoke(t testing.TB, _ *rand.Rand, src, dst *Cache, blocks []int) {
	lease, err := dst.Lease(within(t), blocks, LeaseOptions{})
	if !assert.NoError(t, err) {
		return
	}
	push, err := src.Write(within(t), blocks, lease.Ticket())
	if !assert.NoError(t, err) {
		return
	}
	assert.NoError(t, lease.Revoke(within(t)))
	<-lease.Done()
	_, err = push.Wait(within(t))
	if lease.Err() == nil {
		assert.NoError(t, err)
		same(t, src, dst, blocks)
	} else {
		assert.ErrorIs(t, lease.Err(), ErrLeaseRevoked)
		assert.Error(t, err)
	}
	assert.NoError(t, push.WaitReleased(within(t)))
}

func pushAndCancel(t testing.TB, _ *rand.Rand, src, dst *Cache, blocks []int) {
	lease, err := dst.Lease(within(t), blocks, LeaseOptions{})
	if !assert.NoError(t, err) {
		return
	}
	push, err := src.Write(within(t), blocks, lease.Ticket())
	if !assert.NoError(t, err) {
		return
	}
	push.Cancel()
	_, err = push.Wait(within(t))
	if err != nil {
		assert.ErrorIs(t, err, ErrCancelled)
	}
	assert.NoError(t, push.WaitReleased(within(t)))
	assert.NoError(t, lease.Close())
}

func pullOnce(t testing.TB, _ *rand.Rand, src, dst *Cache, blocks []int) {
	offer, err := src.LeaseRead(within(t), blocks, LeaseOptions{})
	if !assert.NoError(t, err) {
		return
	}
	pull, err := dst.Read(within(t), blocks, offer.Ticket())
	if !assert.NoError(t, err) {
		return
	}
	_, err = pull.Wait(within(t))
	assert.NoError(t, err)
	_, err = offer.Wait(within(t))
	assert.NoError(t, err)
	same(t, src, dst, blocks)
}

func same(t testing.TB, src, dst *Cache, blocks []int) {
	for layer := range src.Layout().Layers {
		for _, b := range blocks {
			assert.True(t, slices.EqualFunc(pieces(src, layer, b), pieces(dst, layer, b), slices.Equal[[]byte]), "layer %d, block %d", layer, b)
		}
	}
}
