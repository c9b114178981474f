package xfer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// large has blocks of 1 MiB in one piece.
var large = layout.Layout{Layers: 1, KVHeads: 1, HeadDim: 4096, DType: "uint8", BlockTokens: 256, Order: layout.MLA, TPSize: 1}

// started pushes all blocks to a peer that has bound them under a handle.
func started(l *fakeLink, w *worker, handle uint64, blocks ...uint32) uint64 {
	id := w.push(ticket(uint32(len(blocks))), time.Minute, blocks...)
	l.bound(w, handle, blocks...)
	w.layer(id, 0)
	return id
}

// TestSmallTransferPassesALargeOne: what a large transfer has in flight is bounded, and a small one, whosever it is, waits for no
// more than that.
func TestSmallTransferPassesALargeOne(t *testing.T) {
	n := newFakeNode(t, nil)
	link := n.source(1 << 20)
	big := newWorker(t, n.node, "big", large, 64)
	other := newWorker(t, n.node, "other", tiny, 64)
	all := make([]uint32, 64)
	for i := range all {
		all[i] = uint32(i)
	}
	bulk := started(link, big, 1, all...)
	n.until(func() bool { _, pending := link.init.count(); return pending == 8 })
	small := started(link, other, 2, 3, 5)
	n.until(func() bool { _, pending := link.init.count(); return pending == 9 })
	link.init.mu.Lock()
	last := link.init.pending[8]
	link.init.mu.Unlock()
	assert.EqualValues(t, 2, last.Remote, "the small one's, behind eight of the large one's")

	other.node.engine.PushFinish(other.id, small, nil)
	big.node.engine.PushFinish(big.id, bulk, nil)
	for done := 0; done < 65; { // in the end all are posted and completed
		link.init.complete(0, true)
		n.until(func() bool {
			posts, pending := link.init.count()
			done = posts - pending
			return pending > 0 || posts == 65
		})
	}
	link.take(wire.KindFin)
	link.take(wire.KindFin)
	for handle, w := range map[uint64]*worker{1: big, 2: other} {
		link.receive(wire.KindDone, 0, wire.Done{Handle: handle}, nil)
		require.Nil(t, w.transferEnd(map[uint64]uint64{1: bulk, 2: small}[handle]).Error)
	}
}

// TestCancelledTransferGivesItsRoomToOthers: of one in flight and queued.
func TestCancelledTransferGivesItsRoomToOthers(t *testing.T) {
	n := newFakeNode(t, nil)
	link := n.source(1 << 20)
	a, b := newWorker(t, n.node, "a", large, 64), newWorker(t, n.node, "b", large, 64)
	list := []uint32{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}
	first := started(link, a, 1, list...)
	started(link, b, 2, list...)
	n.until(func() bool { _, pending := link.init.count(); return pending == 8 })
	n.engine.CancelTransfer(a.id, first)
	ev := a.transferEnd(first)
	assert.Equal(t, fault.Cancelled.String(), ev.Error.Code.String())
	n.until(func() bool {
		link.init.mu.Lock()
		defer link.init.mu.Unlock()
		for _, op := range link.init.pending {
			if op.Remote != 2 {
				return false
			}
		}
		return len(link.init.pending) == 8
	})
}
