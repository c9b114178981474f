package kvxfer

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// layerPush is a layer-wise push at a daemon that takes everything and answers nothing, so that the client's own cost is
// all that is measured.
func layerPush(t testing.TB) *Push {
	d := startFake(t)
	d.set(func() {
		d.special[wire.KindPush] = func(wire.Frame) (any, []byte, bool) {
			d.set(func() { d.drain = true })
			return &wire.PushInfo{Transfer: 5, TraceID: "000102030405060708090a0b0c0d0e0f", Sampled: true}, nil, true
		}
	})
	_, cache := d.attach()
	push, err := cache.Write(t.Context(), []int{0, 1, 2, 3, 4, 5, 6, 7}, "t", Layerwise())
	require.NoError(t, err)
	return push
}

// TestLayerAllocatesNothing: handing a layer over is one frame of 56 bytes and no allocation, also in a trace that is
// sampled.
func TestLayerAllocatesNothing(t *testing.T) {
	push := layerPush(t)
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		if push.Layer(1) != nil || push.LayerPart(2, 3, 4) != nil {
			t.Error("it was refused")
		}
	}))
}

func BenchmarkLayer(b *testing.B) {
	push := layerPush(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := push.Layer(1); err != nil {
			b.Fatal(err)
		}
	}
}
