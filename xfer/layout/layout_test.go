package layout_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

func randomLayout(rng *rand.Rand) layout.Layout {
	l := layout.Layout{
		Layers: 1 + rng.Uint32N(4), KVHeads: 1 + rng.Uint32N(3), HeadDim: 1 + rng.Uint32N(4), BlockTokens: 1 + rng.Uint32N(5),
		DType:  []string{"float32", "float16", "bfloat16", "int8"}[rng.IntN(4)],
		Order:  []layout.Order{layout.HND, layout.NHD, layout.MLA}[rng.IntN(3)],
		TPSize: 1,
	}
	if l.Order == layout.MLA {
		l.KVHeads = 1
	}
	return l
}

func permuted(rng *rand.Rand, total, n uint32) []uint32 {
	p := rng.Perm(int(total))[:n]
	out := make([]uint32, n)
	for i, v := range p {
		out[i] = uint32(v)
	}
	return out
}

// element is a byte's meaning, worked out the slow way: an id of (layer, plane, block, byte in block).
func element(g layout.Geometry, off uint64) (layer, plane, block, rest uint64) {
	size := g.Layout.PlaneBlockBytes()
	rest, off = off%size, off/size
	block, off = off%uint64(g.NumBlocks), off/uint64(g.NumBlocks)
	return off / g.Layout.Planes(), off % g.Layout.Planes(), block, rest
}

func TestRangesAgreeWithNaiveModel(t *testing.T) {
	rng := testseed.New(t)
	for range 300 {
		l := randomLayout(rng)
		src := layout.Geometry{Layout: l, NumBlocks: 1 + rng.Uint32N(9)}
		dst := layout.Geometry{Layout: l, NumBlocks: 1 + rng.Uint32N(9)}
		n := 1 + rng.Uint32N(min(src.NumBlocks, dst.NumBlocks))
		from, to := permuted(rng, src.NumBlocks, n), permuted(rng, dst.NumBlocks, n)
		first := rng.Uint32N(n)
		count := rng.Uint32N(n-first) + 1
		layer := rng.Uint32N(l.Layers)

		got := map[uint64]uint64{} // destination byte -> source byte
		bounds := layout.NewBounds(dst, to)
		for _, r := range layout.Ranges(nil, src, dst, from, to, layer, first, count) {
			require.True(t, bounds.Allows(r.Remote, r.Len), "%+v leaves what a lease on %v of %d blocks permits", r, to, dst.NumBlocks)
			for i := range r.Len {
				_, twice := got[r.Remote+i]
				require.False(t, twice, "byte %d written twice", r.Remote+i)
				got[r.Remote+i] = r.Local + i
			}
		}
		want := 0
		for off := range dst.Bytes() {
			dl, dp, db, rest := element(dst, off)
			at := -1
			for i := first; i < first+count; i++ {
				if uint64(to[i]) == db && dl == uint64(layer) {
					at = int(i)
				}
			}
			s, ok := got[off]
			require.Equal(t, at >= 0, ok, "byte %d", off)
			if ok {
				want++
				sl, sp, sb, srest := element(src, s)
				require.Equal(t, []uint64{dl, dp, uint64(from[at]), rest}, []uint64{sl, sp, sb, srest})
			}
		}
		require.Len(t, got, want)
	}
}

func TestRangesMerge(t *testing.T) {
	g := layout.Geometry{Layout: layout.Layout{Layers: 1, KVHeads: 1, HeadDim: 1024, DType: "float32", BlockTokens: 64, Order: layout.HND, TPSize: 1}, NumBlocks: 16}
	blocks := []uint32{0, 1, 2, 3, 4, 5, 7}
	r := layout.Ranges(nil, g, g, blocks, blocks, 0, 0, 7)
	require.Len(t, r, 6) // 4 x 256 KiB = 1 MiB, then two, then the one behind the gap; for K and V
	assert.Equal(t, uint64(layout.MaxMerge), r[0].Len)
	assert.Equal(t, uint64(2*256<<10), r[1].Len)
	assert.Equal(t, uint64(256<<10), r[2].Len)
}

func TestRangesAllocateNothing(t *testing.T) {
	g := layout.Geometry{Layout: layout.Layout{Layers: 2, KVHeads: 3, HeadDim: 64, DType: "float32", BlockTokens: 32, Order: layout.NHD, TPSize: 1}, NumBlocks: 64}
	blocks := permuted(testseed.New(t), 64, 64)
	buf := make([]rdma.Range, 0, 128)
	assert.Zero(t, testing.AllocsPerRun(100, func() { buf = layout.Ranges(buf[:0], g, g, blocks, blocks, 1, 0, 64) }))
}

func TestBoundsAgreeWithNaiveModel(t *testing.T) {
	rng := testseed.New(t)
	for range 40 {
		l := randomLayout(rng)
		g := layout.Geometry{Layout: l, NumBlocks: 1 + rng.Uint32N(6)}
		blocks := permuted(rng, g.NumBlocks, 1+rng.Uint32N(g.NumBlocks))
		b := layout.NewBounds(g, blocks)
		in := map[uint64]bool{}
		for _, x := range blocks {
			in[uint64(x)] = true
		}
		for range 500 {
			off := rng.Uint64N(g.Bytes() + 2)
			n := rng.Uint64N(3*l.PlaneBlockBytes()) + 1
			want := off+n <= g.Bytes()
			l0, p0, _, _ := element(g, off)
			for i := off; want && i < off+n; i++ {
				li, pi, bi, _ := element(g, i)
				want = in[bi] && li == l0 && pi == p0
			}
			require.Equal(t, want, b.Allows(off, n), "%v off %d len %d", g, off, n)
		}
		assert.True(t, b.Allows(g.Bytes()+5, 0))
		assert.False(t, b.Allows(^uint64(0), 1))
		assert.False(t, b.Allows(0, ^uint64(0)))
	}
}

func TestCompareNamesTheField(t *testing.T) {
	base := layout.Layout{Layers: 30, KVHeads: 3, HeadDim: 64, DType: "float32", BlockTokens: 32, Order: layout.HND, TPSize: 1}
	id := layout.Identity{Model: "m", Revision: "r", Compat: "c"}
	require.NoError(t, layout.Compare(base, base, id, id))
	for field, change := range map[string]func(*layout.Layout, *layout.Identity){
		"model":               func(_ *layout.Layout, i *layout.Identity) { i.Model = "x" },
		"revision":            func(_ *layout.Layout, i *layout.Identity) { i.Revision = "x" },
		"compat":              func(_ *layout.Layout, i *layout.Identity) { i.Compat = "x" },
		"layout.layers":       func(l *layout.Layout, _ *layout.Identity) { l.Layers = 1 },
		"layout.kv_heads":     func(l *layout.Layout, _ *layout.Identity) { l.KVHeads = 1 },
		"layout.head_dim":     func(l *layout.Layout, _ *layout.Identity) { l.HeadDim = 1 },
		"layout.dtype":        func(l *layout.Layout, _ *layout.Identity) { l.DType = "int8" },
		"layout.block_tokens": func(l *layout.Layout, _ *layout.Identity) { l.BlockTokens = 1 },
		"layout.order":        func(l *layout.Layout, _ *layout.Identity) { l.Order = layout.NHD },
		"layout.tp_size":      func(l *layout.Layout, _ *layout.Identity) { l.TPSize = 2 },
		"layout.tp_rank":      func(l *layout.Layout, _ *layout.Identity) { l.TPRank = 1 },
	} {
		l, i := base, id
		change(&l, &i)
		err := layout.Compare(base, l, id, i)
		require.ErrorIs(t, err, fault.ErrLayoutMismatch)
		assert.Equal(t, field, fault.From("", err).Field)
		assert.NotEqual(t, base.Digest(4), base.Digest(5))
	}
}

func TestValidateBoundsTheArithmetic(t *testing.T) {
	big := layout.Layout{Layers: layout.MaxLayers, KVHeads: layout.MaxKVHeads, HeadDim: layout.MaxHeadDim,
		BlockTokens: layout.MaxBlockTokens, DType: "float32", Order: layout.HND, TPSize: 1}
	require.NoError(t, big.Validate())
	err := layout.Geometry{Layout: big, NumBlocks: layout.MaxBlocks}.Validate(^uint64(0))
	assert.ErrorIs(t, err, fault.ErrInvalidArgument)
	ok := layout.Geometry{Layout: big, NumBlocks: uint32(uint64(1) << 62 / big.BlockBytes())}
	require.NoError(t, ok.Validate(^uint64(0)))
	assert.Less(t, ok.Bytes(), uint64(1)<<63)

	for field, change := range map[string]func(*layout.Layout){
		"layout.layers":       func(l *layout.Layout) { l.Layers = 0 },
		"layout.kv_heads":     func(l *layout.Layout) { l.KVHeads = layout.MaxKVHeads + 1 },
		"layout.head_dim":     func(l *layout.Layout) { l.HeadDim = 0 },
		"layout.block_tokens": func(l *layout.Layout) { l.BlockTokens = 0 },
		"layout.tp_size":      func(l *layout.Layout) { l.TPSize = 0 },
		"layout.tp_rank":      func(l *layout.Layout) { l.TPRank = 1 },
		"layout.dtype":        func(l *layout.Layout) { l.DType = "complex64" },
		"layout.order":        func(l *layout.Layout) { l.Order = "DNH" },
	} {
		l := big
		change(&l)
		err := l.Validate()
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		assert.Equal(t, field, fault.From("", err).Field)
	}
}

func TestCheckBlocks(t *testing.T) {
	g := layout.Geometry{Layout: layout.Layout{}, NumBlocks: 4}
	assert.NoError(t, g.CheckBlocks("lease", []uint32{3, 0, 1}))
	assert.ErrorContains(t, g.CheckBlocks("lease", nil), "allowed 1..4")
	assert.ErrorContains(t, g.CheckBlocks("lease", []uint32{4}), "blocks[0] is 4, allowed 0..3")
	assert.ErrorContains(t, g.CheckBlocks("lease", []uint32{1, 1}), "second time")
}

func TestTagHoldsTheLimits(t *testing.T) {
	l, f, c := layout.NewTag(layout.MaxLayers, layout.MaxBlocks, layout.MaxBlocks).Parts()
	assert.Equal(t, []uint32{layout.MaxLayers, layout.MaxBlocks, layout.MaxBlocks}, []uint32{l, f, c})
}

func BenchmarkRanges(b *testing.B) {
	g := layout.Geometry{Layout: layout.Layout{Layers: 32, KVHeads: 8, HeadDim: 128, DType: "bfloat16", BlockTokens: 16, Order: layout.HND, TPSize: 1}, NumBlocks: 8192}
	blocks := permuted(rand.New(rand.NewPCG(1, 1)), 8192, 1024)
	buf := make([]rdma.Range, 0, 2048)
	b.ReportAllocs()
	for b.Loop() {
		buf = layout.Ranges(buf[:0], g, g, blocks, blocks, 3, 0, 1024)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*1024), "ns/block")
}
