package xfer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/xfer/layout"
)

// BenchmarkPush moves blocks of 4 KiB a piece (2 KiB each of K and V) from one engine to another over the loopback:
// lease, push, every layer, finish, until both sides' events have come. Both nodes are in this process, so allocations
// are those of the two together.
func BenchmarkPush(b *testing.B) {
	for _, c := range []struct{ blocks, layers uint32 }{{1, 1}, {64, 4}, {64, 32}, {1024, 4}, {1024, 32}} {
		b.Run(fmt.Sprintf("blocks=%d/layers=%d", c.blocks, c.layers), func(b *testing.B) {
			l := layout.Layout{Layers: c.layers, KVHeads: 2, HeadDim: 32, DType: "float16", BlockTokens: 16, Order: layout.HND, TPSize: 1}
			net := newNetwork(b, "prefill", "decode")
			src := newWorker(b, net.nodes["prefill"], "p", l, 2*c.blocks)
			dst := newWorker(b, net.nodes["decode"], "d", l, 2*c.blocks)
			from, to := make([]uint32, c.blocks), make([]uint32, c.blocks)
			for i := range from { // every second block, so that no neighbours merge
				from[i], to[i] = uint32(2*i), uint32(2*i+1)
			}
			b.ReportAllocs()
			b.SetBytes(int64(uint64(c.blocks) * l.BlockBytes()))
			b.ResetTimer()
			for range b.N {
				lease := dst.lease(time.Minute, to...)
				id := src.push(lease.Ticket, time.Minute, from...)
				for layer := range c.layers {
					src.layer(id, layer)
				}
				src.node.engine.PushFinish(src.id, id, nil)
				require.Nil(b, src.transferEnd(id).Error)
				require.Nil(b, dst.leaseEnd(lease.Lease).Error)
			}
			b.StopTimer()
			pieces := float64(b.N) * float64(c.blocks) * float64(c.layers)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/pieces, "ns/piece")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(c.blocks), "ns/block")
		})
	}
}
