package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
)

func TestSpansAgreeWithABitmap(t *testing.T) {
	rng := testseed.New(t)
	for range 200 {
		const size = 64
		var bits [size]bool
		var in []rdma.Span
		for range rng.IntN(8) {
			off := rng.Uint64N(size)
			n := rng.Uint64N(size - off + 1)
			in = append(in, rdma.Span{Off: off, Len: n})
			for i := off; i < off+n; i++ {
				bits[i] = true
			}
		}
		s, err := rdma.NewSpans(size, in...)
		require.NoError(t, err)
		for off := uint64(0); off < size; off++ {
			for n := uint64(0); n <= size-off; n++ {
				want := true
				for i := off; i < off+n; i++ {
					want = want && bits[i]
				}
				require.Equal(t, want, s.Allows(off, n), "%v off %d len %d", s, off, n)
			}
		}
	}
}

func TestSpansRefuseWhatLeavesTheRegion(t *testing.T) {
	_, err := rdma.NewSpans(10, rdma.Span{Off: 8, Len: 3})
	assert.ErrorIs(t, err, fault.ErrOutOfBounds)
	_, err = rdma.NewSpans(10, rdma.Span{Off: ^uint64(0), Len: 2})
	assert.ErrorIs(t, err, fault.ErrOutOfBounds)
}
