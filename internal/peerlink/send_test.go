package peerlink

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// Whoever sends a frame writes it when nobody else does. Each sender's frames keep their order and stay whole, with large ones
// between them, which are the writer's, in both directions at once.
func TestFramesOfManySenders(t *testing.T) {
	rng := testseed.New(t)
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	l := dial(t, a, b.ref())
	m := accepted(t, b, 0)
	const senders, each = 6, 400
	payload := make([]byte, 2*writeChunk)
	sizes := make([]int, each)
	for i := range sizes {
		if sizes[i] = rng.IntN(64); rng.IntN(40) == 0 {
			sizes[i] = rng.IntN(wire.MaxNotification + 1)
		}
	}
	var wg sync.WaitGroup
	for _, x := range []struct {
		l, other xfer.Link
		h        *recorder
		kind     wire.Kind
	}{{l, m, b.h, wire.KindFin}, {m, l, a.h, wire.KindEnded}} {
		for s := range senders {
			wg.Go(func() {
				for i, k := range sizes {
					assert.NoError(t, x.l.Send(wire.Frame{Kind: x.kind, Request: uint64(s<<32 | i), Array: payload[:k]}))
				}
			})
		}
		wg.Go(func() {
			eventually(t, "frames", func() bool { return len(x.h.received(x.other)) == senders*each })
			var next [senders]int
			for _, f := range x.h.received(x.other) {
				s, i := int(f.Request>>32), int(uint32(f.Request))
				if i != next[s] || len(f.Array) != sizes[i] {
					t.Errorf("frame %d of sender %d, %d bytes; want frame %d", i, s, len(f.Array), next[s])
					return
				}
				next[s]++
			}
		})
	}
	wg.Wait()
}
