package xfer_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// heapInUse is what the heap holds now, in bytes.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // what the first one's finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestQueuedBlocksAreCheap: a block that waits for its turn takes its two ids and a bit in the source's memory, and in the target's
// an id, its place in the window's bounds and in the journal's mirror; so with one that was handed over, but for the operations in flight.
func TestQueuedBlocksAreCheap(t *testing.T) {
	const blocks, transfers = 100_000, 4
	list := spread(blocks)
	bytes := wire.AppendU32s(nil, list)
	t.Run("source", func(t *testing.T) {
		n := newFakeNode(t, nil)
		link := n.source(0) // it takes nothing
		w := newWorker(t, n.node, "w", tiny, 2*blocks)
		before := heapInUse()
		for i := range uint64(transfers) {
			own := append([]uint32(nil), list...) // as a request's frame brings them
			id := w.push(ticket(blocks), time.Minute, own...)
			f := link.take(wire.KindBind)
			link.receive(wire.KindOK, f.Request, wire.Bound{Handle: i + 1, Key: i + 1, Layout: tiny, NumBlocks: 2 * blocks, RemainingMillis: 1000}, bytes)
			if i%2 == 0 {
				w.layer(id, 0)
			}
		}
		each := float64(heapInUse()-before) / (blocks * transfers)
		t.Logf("%.1f bytes a block", each)
		assert.LessOrEqual(t, each, 10.0)
		link.Close(nil)
	})
	t.Run("target", func(t *testing.T) {
		n := newFakeNode(t, nil)
		link := n.target()
		w := newWorker(t, n.node, "w", tiny, transfers*2*blocks)
		before := heapInUse()
		for i := range transfers {
			own := append([]uint32(nil), list...)
			for k := range own {
				own[k] += uint32(i * 2 * blocks)
			}
			lease := w.lease(time.Minute, own...)
			link.receive(wire.KindBind, uint64(i+1), bind(t, w, lease.Ticket), nil)
			f := link.take(wire.KindOK)
			require.Len(t, f.Array, 4*blocks)
		}
		each := float64(heapInUse()-before) / (blocks * transfers)
		t.Logf("%.1f bytes a block, the journal's cache included", each)
		assert.LessOrEqual(t, each, 64.0)
		link.Close(nil)
	})
	runtime.KeepAlive(bytes)
}
