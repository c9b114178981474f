package kvxfer

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
)

type blockID int16
type wideID uint64

func TestBlocksOfAnyInteger(t *testing.T) {
	for _, blocks := range []Blocks{
		[]int{3, 1}, []int8{3, 1}, []int16{3, 1}, []int32{3, 1}, []int64{3, 1},
		[]uint{3, 1}, []uint8{3, 1}, []uint16{3, 1}, []uint32{3, 1}, []uint64{3, 1}, []uintptr{3, 1},
		BlockIDs([]blockID{3, 1}), BlockIDs([]wideID{3, 1}), BlockIDs([]int{3, 1}),
	} {
		got, err := packBlocks("lease", blocks, 4)
		require.NoError(t, err, "%T", blocks)
		assert.Equal(t, []uint32{3, 1}, got)
	}
	mine := []uint32{0}
	got, err := packBlocks("lease", mine, 1)
	require.NoError(t, err)
	assert.NotSame(t, &mine[0], &got[0], "the caller may change its list while the call runs")
}

func TestBlocksAreChecked(t *testing.T) {
	long := make([]int, 9)
	for _, c := range []struct {
		blocks Blocks
		detail string
	}{
		{[]int{}, "0 block ids, allowed 1..4"},
		{[]uint32(nil), "0 block ids, allowed 1..4"},
		{[]int{0, 4}, "blocks[1] is 4, allowed 0..3"},
		{[]int64{-1}, "blocks[0] is -1, allowed 0..3"},
		{[]int64{1 << 32}, "blocks[0] is 4294967296, allowed 0..3"},
		{[]uint64{1<<64 - 1}, "blocks[0] is 18446744073709551615, allowed 0..3"},
		{BlockIDs([]wideID{0, 1<<64 - 1}), "blocks[1] is 18446744073709551615, allowed 0..3"},
		{BlockIDs([]blockID{-2}), "blocks[0] is -2, allowed 0..3"},
		{[]int{0, 1, 2, 3, 4}, "blocks[4] is 4, allowed 0..3"},
		{[]int{2, 1, 2}, "blocks[2] names block 2 a second time"},
		{long, "9 block ids, allowed 1..4"},
		{"0123", "string, allowed a slice of integers, or BlockIDs of a slice of a type of your own"},
		{nil, "<nil>, allowed a slice of integers, or BlockIDs of a slice of a type of your own"},
		{[]blockID{1}, "[]kvxfer.blockID, allowed a slice of integers, or BlockIDs of a slice of a type of your own"},
	} {
		_, err := packBlocks("lease", c.blocks, 4)
		require.ErrorIs(t, err, ErrInvalidArgument)
		assert.Equal(t, &Error{Code: "InvalidArgument", Op: "lease", Field: "blocks", Detail: c.detail, Released: true}, err)
	}
}

func TestPackingAllocatesNothingPerBlock(t *testing.T) {
	ids := make([]int64, 1<<14)
	for i := range ids {
		ids[i] = int64(i)
	}
	few := testing.AllocsPerRun(5, func() { _, _ = packBlocks("lease", ids[:8], 1<<14) })
	many := testing.AllocsPerRun(5, func() { _, _ = packBlocks("lease", ids, 1<<14) })
	assert.Equal(t, few, many)
}

func TestVouchedAgreesWithAMap(t *testing.T) {
	rng := testseed.New(t)
	const n = 12
	v, model := newVouched(n), map[uint32]uint64{}
	some := func() (out []uint32) {
		for _, b := range rng.Perm(n)[:rng.IntN(n)] {
			out = append(out, uint32(b))
		}
		return out
	}
	for range 500 {
		blocks := some()
		switch rng.IntN(4) {
		case 0:
			g := rng.Uint64()
			v.put(blocks, g)
			for _, b := range blocks {
				model[b] = g
			}
		case 1:
			for _, x := range v.take(blocks) {
				require.Equal(t, model[x.Block], x.Generation)
				delete(model, x.Block)
			}
			for _, b := range blocks {
				require.NotContains(t, model, b)
			}
		case 2:
			v.restore(v.take(blocks))
		case 3:
			v.keepOnly(append(blocks, n+7)) // a daemon that says too much spoils nothing
			kept := map[uint32]uint64{}
			for _, b := range blocks {
				if g, ok := model[b]; ok {
					kept[b] = g
				}
			}
			model = kept
		}
		vouches, err := wire.Vouches(v.packed())
		require.NoError(t, err)
		require.Len(t, vouches, len(model))
		for i, x := range vouches {
			require.Equal(t, model[x.Block], x.Generation)
			require.True(t, i == 0 || vouches[i-1].Block < x.Block)
		}
	}
}
