package protocol

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// TestMissingAgainstNaiveModel compares what a transfer and a lease say is missing with a table of booleans.
func TestMissingAgainstNaiveModel(t *testing.T) {
	rng := testseed.New(t)
	for range 300 {
		layers, blocks := 1+rng.Uint32N(6), 1+rng.Uint32N(200)
		p := NewTransfer(TransferWrite, layers, blocks, 1000)
		l := NewLease(layers, blocks, 8, 1000)
		l.Step(nil, LeaseEvent{Kind: LeaseBind, Now: 1, Deadline: 1000})
		have := make([][]bool, layers)
		for i := range have {
			have[i] = make([]bool, blocks)
		}
		asked := uint64(0)
		for range rng.IntN(20) {
			layer, first := rng.Uint32N(layers), rng.Uint32N(blocks)
			n := 1 + rng.Uint32N(blocks-first)
			fresh := true
			for i := first; i < first+n; i++ {
				fresh = fresh && !have[layer][i]
			}
			if !fresh {
				continue
			}
			for i := first; i < first+n; i++ {
				have[layer][i] = true
			}
			asked += uint64(n)
			p.Step(nil, TransferEvent{Kind: TransferLayer, Now: 1, Layer: layer, First: first, Count: n})
			l.Step(nil, LeaseEvent{Kind: LeaseArrival, Now: 1, Tag: layout.NewTag(layer, first, n), Bytes: uint64(n) * 8})
		}
		var want []Gap
		for layer, row := range have {
			n := uint32(0)
			for _, in := range row {
				if !in {
					n++
				}
			}
			if n > 0 {
				want = append(want, Gap{uint32(layer), n})
			}
		}
		assert.Equal(t, want, p.Missing())
		assert.Equal(t, want, l.Missing())
		assert.Equal(t, asked, p.Asked())
		assert.Equal(t, asked, l.Arrived())
		assert.Equal(t, uint64(layers)*uint64(blocks), p.Pieces())
	}
}
