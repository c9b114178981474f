package kvxfer

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
)

// fakeCache is what Layer needs of a cache.
type fakeCache struct {
	memory []byte
	layout Layout
	blocks int
}

func (c fakeCache) Memory() []byte { return c.memory }
func (c fakeCache) Layout() Layout { return c.layout }
func (c fakeCache) NumBlocks() int { return c.blocks }

// alignedBytes are n bytes that any element may begin at.
func alignedBytes(n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1)))), n)
}

// index is where an element lies in a layer, worked out from the order's words alone.
func index(l Layout, numBlocks, plane, block, head, token, dim int) int {
	switch l.Order {
	case NHD:
		return (((plane*numBlocks+block)*l.BlockTokens+token)*l.KVHeads+head)*l.HeadDim + dim
	case MLA:
		return (block*l.BlockTokens+token)*l.HeadDim + dim
	}
	return (((plane*numBlocks+block)*l.KVHeads+head)*l.BlockTokens+token)*l.HeadDim + dim
}

func checkView[T Element](t *testing.T, rng *rand.Rand, dtype string) {
	l := Layout{Layers: 1 + rng.IntN(3), KVHeads: 1 + rng.IntN(3), HeadDim: 1 + rng.IntN(4), DType: dtype, BlockTokens: 1 + rng.IntN(4),
		Order: []Order{HND, NHD, MLA, ""}[rng.IntN(4)]}
	if l.Order == MLA {
		l.KVHeads = 1
	}
	numBlocks := 1 + rng.IntN(5)
	c := fakeCache{alignedBytes(numBlocks * l.BlockBytes()), l, numBlocks}
	elements := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(c.memory))), len(c.memory)/l.ElementBytes())
	layer := rng.IntN(l.Layers)
	v, err := Layer[T](c, layer)
	require.NoError(t, err)
	perLayer := len(elements) / l.Layers
	own := elements[layer*perLayer : (layer+1)*perLayer]
	require.Len(t, v.Data(), perLayer)
	assert.Same(t, &own[0], &v.Data()[0])

	shape, strides, n := v.Shape(), v.Strides(), 1
	assert.Equal(t, l.LayerShape(numBlocks), shape)
	for i := len(shape) - 1; i >= 0; i-- {
		assert.Equal(t, n, strides[i])
		n *= shape[i]
	}
	assert.Equal(t, perLayer, n)

	for plane := range l.Planes() {
		assert.Same(t, &own[index(l, numBlocks, plane, 0, 0, 0, 0)], &v.Plane(plane)[0])
		require.Len(t, v.Plane(plane), perLayer/l.Planes())
		for block := range numBlocks {
			in := v.Block(plane, block)
			require.Len(t, in, l.PlaneBlockBytes()/l.ElementBytes())
			require.Equal(t, len(in), cap(in), "append must not reach the next block")
			assert.Same(t, &own[index(l, numBlocks, plane, block, 0, 0, 0)], &in[0])
			for head := range l.KVHeads {
				for token := range l.BlockTokens {
					row := v.At(plane, block, head, token)
					require.Len(t, row, l.HeadDim)
					require.Equal(t, len(row), cap(row))
					for dim := range row {
						require.Same(t, &own[index(l, numBlocks, plane, block, head, token, dim)], &row[dim])
					}
				}
			}
		}
	}
	for _, f := range []func(){
		func() { v.Plane(l.Planes()) }, func() { v.Plane(-1) }, func() { v.Block(0, numBlocks) }, func() { v.Block(0, -1) },
		func() { v.At(0, 0, l.KVHeads, 0) }, func() { v.At(0, 0, -1, 0) }, func() { v.At(0, 0, 0, l.BlockTokens) }, func() { v.At(0, 0, 0, -1) },
	} {
		assert.Panics(t, f)
	}
}

type bits uint16

func TestViewAgreesWithNaiveModel(t *testing.T) {
	rng := testseed.New(t)
	for range 30 {
		checkView[float32](t, rng, "float32")
		checkView[uint32](t, rng, "float32")
		checkView[uint16](t, rng, "float16")
		checkView[bits](t, rng, "bfloat16")
		checkView[uint8](t, rng, "float8_e5m2")
		checkView[int8](t, rng, "int8")
		checkView[uint8](t, rng, "uint8")
	}
}

func TestViewNamesTheField(t *testing.T) {
	l := Layout{Layers: 2, KVHeads: 1, HeadDim: 4, DType: "float32", BlockTokens: 2}
	memory := alignedBytes(3*l.BlockBytes() + 1)
	field := func(err error) string {
		t.Helper()
		require.ErrorIs(t, err, ErrInvalidArgument)
		return err.(*Error).Field
	}
	_, err := LayerOf[float32](memory, l, 3, 2)
	assert.Equal(t, "layer", field(err))
	_, err = LayerOf[float32](memory, l, 3, -1)
	assert.Equal(t, "layer", field(err))
	_, err = LayerOf[uint16](memory, l, 3, 0)
	assert.Equal(t, "T", field(err))
	_, err = LayerOf[float32](memory, l, 4, 0)
	assert.Equal(t, "memory", field(err))
	_, err = LayerOf[float32](nil, l, 3, 0)
	assert.Equal(t, "memory", field(err))
	_, err = LayerOf[float32](memory[1:], l, 3, 0)
	assert.Equal(t, "memory", field(err))
	_, err = LayerOf[float32](memory, l, 0, 0)
	assert.Equal(t, "num_blocks", field(err))
	l.DType = "x"
	_, err = LayerOf[float32](memory, l, 3, 0)
	assert.Equal(t, "layout.dtype", field(err))
}
