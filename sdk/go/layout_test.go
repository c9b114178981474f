package kvxfer

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/xfer/layout"
)

func readVectors(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile("../testdata/" + name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, into))
}

func fromWire(l layout.Layout) Layout {
	return Layout{Layers: int(l.Layers), KVHeads: int(l.KVHeads), HeadDim: int(l.HeadDim), DType: l.DType, BlockTokens: int(l.BlockTokens),
		Order: Order(l.Order), TPRank: int(l.TPRank), TPSize: int(l.TPSize)}
}

// TestLayoutAgreesWithPython: both SDKs' tests read the same vectors.
func TestLayoutAgreesWithPython(t *testing.T) {
	var vectors []struct {
		Layout     layout.Layout `json:"layout"`
		NumBlocks  int           `json:"num_blocks"`
		Planes     int           `json:"planes"`
		PieceBytes int           `json:"piece_bytes"`
		BlockBytes int           `json:"block_bytes"`
		LayerShape []int         `json:"layer_shape"`
	}
	readVectors(t, "layer_shapes.json", &vectors)
	require.NotEmpty(t, vectors)
	for _, v := range vectors {
		l := fromWire(v.Layout)
		w, err := l.wire()
		require.NoError(t, err)
		assert.Equal(t, v.Layout, w)
		assert.Equal(t, v.LayerShape, l.LayerShape(v.NumBlocks))
		assert.Equal(t, []int{v.Planes, v.PieceBytes, v.BlockBytes}, []int{l.Planes(), l.PieceBytes(), l.BlockBytes()})
	}
}

func TestLayoutDefaults(t *testing.T) {
	l := Layout{Layers: 2, KVHeads: 3, HeadDim: 4, DType: "float16", BlockTokens: 5}
	w, err := l.wire()
	require.NoError(t, err)
	assert.Equal(t, layout.Layout{Layers: 2, KVHeads: 3, HeadDim: 4, DType: "float16", BlockTokens: 5, Order: layout.HND, TPSize: 1}, w)
	assert.Equal(t, []int{2, 7, 3, 5, 4}, l.LayerShape(7))
	assert.Equal(t, w.String(), l.String())
}

func TestLayoutNamesTheField(t *testing.T) {
	good := Layout{Layers: 2, KVHeads: 3, HeadDim: 4, DType: "float16", BlockTokens: 5}
	require.NoError(t, good.Validate())
	for _, c := range []struct {
		field, detail string
		change        func(*Layout)
	}{
		{"layout.layers", "0, allowed 1..1024", func(l *Layout) { l.Layers = 0 }},
		{"layout.layers", "4294967297, allowed 1..1024", func(l *Layout) { l.Layers = 1<<32 + 1 }},
		{"layout.kv_heads", "-1, allowed 1..1024", func(l *Layout) { l.KVHeads = -1 }},
		{"layout.head_dim", "16385, allowed 1..16384", func(l *Layout) { l.HeadDim = 16385 }},
		{"layout.block_tokens", "4097, allowed 1..4096", func(l *Layout) { l.BlockTokens = 4097 }},
		{"layout.tp_size", "1025, allowed 1..1024", func(l *Layout) { l.TPSize = 1025 }},
		{"layout.tp_rank", "2, allowed 0..1", func(l *Layout) { l.TPRank, l.TPSize = 2, 2 }},
		{"layout.tp_rank", "-1, allowed 0..0", func(l *Layout) { l.TPRank = -1 }},
		{"layout.dtype", `"half", allowed float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, uint8`, func(l *Layout) { l.DType = "half" }},
		{"layout.order", `"DHN", allowed HND, NHD, MLA`, func(l *Layout) { l.Order = "DHN" }},
		{"layout.kv_heads", "3, allowed 1 with order MLA", func(l *Layout) { l.Order = MLA }},
	} {
		l := good
		c.change(&l)
		err := l.Validate()
		require.ErrorIs(t, err, ErrInvalidArgument)
		assert.Equal(t, c.field, err.(*Error).Field)
		assert.Equal(t, c.detail, err.(*Error).Detail)
	}
	for n, most := range map[int]string{0: "1..16777216", MaxBlocks + 1: "1..16777216", -1: "1..16777216"} {
		_, err := good.geometry(n)
		require.ErrorIs(t, err, ErrInvalidArgument)
		assert.Equal(t, "num_blocks", err.(*Error).Field)
		assert.Contains(t, err.Error(), most)
	}
	huge := Layout{Layers: 1024, KVHeads: 1024, HeadDim: 16384, DType: "float32", BlockTokens: 4096}
	_, err := huge.geometry(8193)
	assert.ErrorContains(t, err, "allowed 1..8192")
}
