package layout_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

func TestSetAgreesWithMap(t *testing.T) {
	rng := testseed.New(t)
	for range 200 {
		total := uint32(1) << rng.IntN(25)
		n := 1 + rng.IntN(300)
		s, in := layout.NewSet(total, n), map[uint32]bool{}
		stride := 1 << rng.IntN(20) // ids with a pattern, as they may be chosen to collide
		var list []uint32
		for range n {
			b := uint32(rng.IntN(n)*stride) % total
			require.Equal(t, !in[b], s.Add(b))
			in[b] = true
			list = append(list, b)
		}
		for range 500 {
			b := rng.Uint32N(total)
			require.Equal(t, in[b], s.Has(b), "%d of %d", b, total)
		}
		for b := range in {
			require.True(t, s.Has(b))
		}
		b, ok := s.First(list)
		require.True(t, ok)
		require.Equal(t, list[0], b)
	}
	_, ok := layout.SetOf(1<<24, nil).First([]uint32{0, 5})
	assert.False(t, ok)
}

// heap is what makes takes, in bytes.
func heap(makes func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	makes()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestSetIsBounded: a list of blocks of the largest cache takes what its blocks do.
func TestSetIsBounded(t *testing.T) {
	for _, n := range []uint32{1, 100, 1000, 100_000, 1 << 20} {
		blocks := make([]uint32, n)
		for i := range blocks {
			blocks[i] = uint32(i) * (layout.MaxBlocks / n)
		}
		g := layout.Geometry{NumBlocks: layout.MaxBlocks}
		var err error
		got := heap(func() { err = g.CheckBlocks("", blocks) })
		require.NoError(t, err)
		assert.LessOrEqual(t, got, 16*uint64(n)+4096, "%d blocks", n)
	}
}

func BenchmarkCheckBlocks(b *testing.B) {
	for _, c := range []struct{ of, n uint32 }{{1 << 20, 1}, {1 << 20, 1000}, {1 << 24, 1000}, {1 << 20, 100_000}} {
		b.Run(fmt.Sprintf("cache=%d/blocks=%d", c.of, c.n), func(b *testing.B) {
			g, blocks := layout.Geometry{NumBlocks: c.of}, permuted(rand.New(rand.NewPCG(1, 1)), c.of, c.n)
			b.ReportAllocs()
			for b.Loop() {
				_ = g.CheckBlocks("", blocks)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(c.n), "ns/block")
		})
	}
}

// BenchmarkAllows is what bounds cost a range, with a list that has a bitmap and one that has a table.
func BenchmarkAllows(b *testing.B) {
	for _, of := range []uint32{8192, 1 << 20} {
		b.Run(fmt.Sprintf("cache=%d", of), func(b *testing.B) {
			l := layout.Layout{Layers: 1, KVHeads: 1, HeadDim: 4096, DType: "int8", BlockTokens: 1, Order: layout.MLA, TPSize: 1}
			g, blocks := layout.Geometry{Layout: l, NumBlocks: of}, permuted(rand.New(rand.NewPCG(1, 1)), of, 1024)
			var bounds rdma.Bounds = layout.NewBounds(g, blocks)
			i := 0
			for b.Loop() {
				if !bounds.Allows(uint64(blocks[i%1024])*4096, 4096) {
					b.Fatal("refused")
				}
				i++
			}
		})
	}
}
