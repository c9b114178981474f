package wire

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
)

func TestArraysRoundTrip(t *testing.T) {
	rng := testseed.New(t)
	for range 100 {
		n := rng.IntN(50)
		u := make([]uint32, n)
		vouches, entries := make([]Vouch, n), make([]BlockEntry, n)
		for i := range n {
			u[i] = rng.Uint32()
			vouches[i] = Vouch{Block: rng.Uint32(), Generation: rng.Uint64()}
			entries[i] = BlockEntry{Block: rng.Uint32(), State: rng.Uint32(), Generation: rng.Uint64()}
		}
		gotU, err := U32s("blocks", AppendU32s(nil, u))
		require.NoError(t, err)
		assert.Equal(t, u, gotU)
		gotV, err := Vouches(AppendVouches(nil, vouches))
		require.NoError(t, err)
		assert.Equal(t, vouches, gotV)
		gotE, err := BlockEntries(AppendBlockEntries(nil, entries))
		require.NoError(t, err)
		assert.Equal(t, entries, gotE)
		part := LayerPart{Transfer: rng.Uint64(), Layer: rng.Uint32(), First: rng.Uint32(), Count: rng.Uint32()}
		gotP, err := ParseLayerPart(AppendLayerPart(nil, part))
		require.NoError(t, err)
		assert.Equal(t, part, gotP)
		vis := LayersVisible{Lease: rng.Uint64(), Layers: u}
		gotL, err := ParseLayersVisible(AppendLayersVisible(nil, vis))
		require.NoError(t, err)
		assert.Equal(t, vis, gotL)
	}
}

func TestArraysRefuseOddSizes(t *testing.T) {
	for n := range 40 {
		b := make([]byte, n)
		_, err := U32s("blocks", b)
		assert.Equal(t, n%4 == 0, err == nil, n)
		_, err = Vouches(b)
		assert.Equal(t, n%16 == 0, err == nil, n)
		_, err = BlockEntries(b)
		assert.Equal(t, n%16 == 0, err == nil, n)
		_, err = ParseLayerPart(b)
		assert.Equal(t, n == LayerPartSize, err == nil, n)
		_, err = ParseLayersVisible(b)
		assert.Equal(t, n >= 8 && n%4 == 0, err == nil, n)
	}
	_, err := U32s("blocks", make([]byte, 5))
	assert.ErrorIs(t, err, fault.ErrProtocolViolation)
	assert.Equal(t, "blocks", fault.From("", err).Field)
}

func TestLayerPartResolves(t *testing.T) {
	const big = ^uint32(0)
	for _, c := range []struct {
		part         LayerPart
		first, count uint32
		field        string
	}{
		{part: LayerPart{Layer: 3, First: 2, Count: 0}, first: 2, count: 8},
		{part: LayerPart{Layer: 0, First: 0, Count: 10}, first: 0, count: 10},
		{part: LayerPart{Layer: 0, First: 9, Count: 1}, first: 9, count: 1},
		{part: LayerPart{Layer: 4}, field: "layer"},
		{part: LayerPart{First: 10}, field: "first"},
		{part: LayerPart{First: 9, Count: 2}, field: "count"},
		{part: LayerPart{First: 5, Count: big - 2}, field: "count"}, // First + Count overflows to 2
	} {
		first, count, err := c.part.Blocks(4, 10)
		if c.field != "" {
			require.ErrorIs(t, err, fault.ErrInvalidArgument)
			assert.Equal(t, c.field, fault.From("", err).Field)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, []uint32{c.first, c.count}, []uint32{first, count})
	}
	_, _, err := LayerPart{}.Blocks(0, 0)
	assert.ErrorIs(t, err, fault.ErrInvalidArgument)
}

func parseArrays(t *testing.T, b []byte) {
	if v, err := U32s("blocks", b); err == nil {
		require.Equal(t, b, AppendU32s(b[:0:0], v))
	}
	if v, err := BlockEntries(b); err == nil {
		require.Equal(t, b, AppendBlockEntries(b[:0:0], v))
	}
	if v, err := Vouches(b); err == nil {
		again, err := Vouches(AppendVouches(nil, v))
		require.NoError(t, err)
		require.Equal(t, v, again)
	}
	if v, err := ParseLayerPart(b); err == nil {
		again, err := ParseLayerPart(AppendLayerPart(nil, v))
		require.NoError(t, err)
		require.Equal(t, v, again)
		if first, count, err := v.Blocks(1<<10, 1<<24); err == nil {
			require.LessOrEqual(t, uint64(first)+uint64(count), uint64(1<<24))
			require.Positive(t, count)
		}
	}
	if v, err := Posts(b); err == nil {
		var again []byte
		for _, x := range v {
			again = AppendPost(again, x)
		}
		require.Equal(t, b, again)
	}
	if v, err := PostedList(b); err == nil {
		var again []byte
		for _, x := range v {
			again = AppendPosted(again, x)
		}
		require.Equal(t, b, again)
	}
	if v, err := RegionSpans(b); err == nil {
		require.Equal(t, b, AppendRegionSpans(b[:0:0], v))
	}
	if v, err := ScatterRanges(b); err == nil {
		require.Equal(t, b, AppendScatterRanges(b[:0:0], v))
	}
	for _, size := range []uint32{0, 1, 16, MaxKey, MaxKey + 1} {
		if v, err := Keys(b, size); err == nil {
			require.Len(t, v, len(b)/int(size))
		}
	}
	if v, err := ParseLayersVisible(b); err == nil {
		require.Equal(t, b, AppendLayersVisible(b[:0:0], v))
	}
}

func FuzzArrays(f *testing.F) {
	f.Add([]byte{})
	f.Add(AppendU32s(nil, []uint32{1, 2, 3}))
	f.Add(AppendVouches(nil, []Vouch{{Block: 1, Generation: 2}}))
	f.Add(AppendLayerPart(nil, LayerPart{Transfer: 1, Layer: 2, First: 3, Count: 4}))
	f.Add(AppendLayersVisible(nil, LayersVisible{Lease: 1, Layers: []uint32{0, 1}}))
	f.Add(AppendRegionSpans(nil, []RegionSpan{{Off: 1, Len: 2}}))
	f.Add(AppendScatterRanges(nil, []ScatterRange{{Local: 1, Remote: 2, Len: 3}}))
	f.Fuzz(func(t *testing.T, b []byte) { parseArrays(t, b) })
}
