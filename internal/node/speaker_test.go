package node

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// inUse is what the heap and the stacks of goroutines take now, in bytes.
func inUse() uint64 {
	runtime.GC()
	runtime.GC() // what the first one's finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// TestIdlePeersAreCheap: a peer that is linked and says nothing takes at most 640 KiB, both ends together, with four lanes each; and
// every one of them can push.
func TestIdlePeersAreCheap(t *testing.T) {
	n, err := start(t, testConfig(t, "n0", filepath.Join(t.TempDir(), "state"), "--providers", "tcp"))
	require.NoError(t, err)
	defer n.Close(t.Context())
	c, err := kvxfer.Dial(t.Context(), n.Info().Socket)
	require.NoError(t, err)
	defer c.Close()
	l := kvxfer.Layout{Layers: 2, KVHeads: 1, HeadDim: 64, DType: "uint8", BlockTokens: 16, Order: kvxfer.MLA}
	shape := layout.Layout{Layers: 2, KVHeads: 1, HeadDim: 64, DType: "uint8", BlockTokens: 16, Order: layout.MLA, TPSize: 1}
	cache, err := c.AllocateCache(t.Context(), kvxfer.CacheSpec{Name: "c", Model: "m", Layout: l, NumBlocks: 64})
	require.NoError(t, err)

	const peers = 32
	size := uint64(4 * 2 * 64 * 16)
	speaker := func(i int) *Speaker {
		s, err := OpenSpeaker(t.Context(), fmt.Sprintf("peer-%d", i), n.Info(), size)
		require.NoError(t, err)
		t.Cleanup(s.Close)
		return s
	}
	first := speaker(peers)
	before := inUse()
	var all []*Speaker
	for i := range peers {
		all = append(all, speaker(i))
	}
	require.Eventually(t, func() bool { return n.engine.Stats().Links == peers+1 }, 20*time.Second, time.Millisecond)
	each := (inUse() - before) / peers
	t.Logf("%d bytes of heap and stacks for each peer", each)
	if !raceDetector {
		assert.LessOrEqual(t, each, uint64(640<<10))
	}
	for i, s := range append(all, first) {
		lease, err := cache.Lease(t.Context(), []int{i}, kvxfer.LeaseOptions{TTL: time.Minute})
		require.NoError(t, err)
		mem := s.half.bytes()
		for k := range mem {
			mem[k] = byte(i + k)
		}
		require.NoError(t, s.Push(t.Context(), lease.Ticket(), "m", shape))
		_, err = lease.Wait(t.Context())
		require.NoError(t, err)
		at := layout.Geometry{Layout: shape, NumBlocks: 64}.Offset(1, 0, uint32(i))
		require.Equal(t, mem[1024:2048], cache.Memory()[at:at+1024], "layer 1 of peer %d", i)
	}
	lease, err := cache.Lease(t.Context(), []int{50}, kvxfer.LeaseOptions{TTL: time.Minute})
	require.NoError(t, err)
	assert.ErrorIs(t, first.Push(t.Context(), lease.Ticket(), "another", shape), fault.ErrLayoutMismatch)
	assert.ErrorIs(t, first.Push(t.Context(), lease.Ticket(), "m", layout.Layout{}), fault.ErrInvalidArgument)
}
