package xfer_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// tiny has one piece of 64 bytes a block, so that what a block costs besides its bytes shows.
var tiny = layout.Layout{Layers: 1, KVHeads: 1, HeadDim: 64, DType: "uint8", BlockTokens: 1, Order: layout.MLA, TPSize: 1}

// spread is n blocks of 2n, no two of them neighbours.
func spread(n uint32) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(2 * i)
	}
	return out
}

// BenchmarkBlocks is what a block of a transfer costs two engines together, with their journals in memory: ns and bytes a block
// are the same for a thousand blocks as for a hundred thousand.
func BenchmarkBlocks(b *testing.B) {
	for _, blocks := range []uint32{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			net := newNetwork(b, "prefill", "decode")
			src := newBusy(b, net.nodes["prefill"], "p", tiny, 2*blocks)
			dst := newBusy(b, net.nodes["decode"], "d", tiny, 2*blocks)
			list := spread(blocks)
			move(src, dst, list)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			b.ResetTimer()
			for b.Loop() {
				move(src, dst, list)
			}
			b.StopTimer()
			runtime.ReadMemStats(&after)
			of := float64(b.N) * float64(blocks)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/of, "ns/block")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/of, "B/block")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/of, "allocs/block")
		})
	}
}

// busy is a client with thousands of transfers: nobody is woken for the end of another's.
type busy struct {
	*worker
	mu   sync.Mutex
	ends map[uint64]chan *fault.Wire
}

func newBusy(t testing.TB, nd *node, name string, l layout.Layout, blocks uint32) *busy {
	b := &busy{worker: &worker{t: t, node: nd}, ends: map[uint64]chan *fault.Wire{}}
	var err error
	b.id, err = nd.engine.AddClient(xfer.ClientInfo{Tenant: "default", Process: name}, b)
	require.NoError(t, err)
	b.with(wire.RegisterCache{Name: name, Model: "m", Revision: "1", Layout: l, NumBlocks: blocks})
	return b
}

func (b *busy) LayersVisible(wire.LayersVisible)        {}
func (b *busy) Granted(wire.GrantedEvent, []uint32)     {}
func (b *busy) Released(wire.Released)                  {}
func (b *busy) HolderEnded(wire.HolderEvent, []byte)    {}
func (b *busy) LeaseEnded(ev wire.LeaseEvent, _ []byte) { b.end(ev.Lease) <- ev.Error }
func (b *busy) TransferEnded(ev wire.TransferEvent)     { b.end(ev.Transfer) <- ev.Error }

// end is where the end of a lease or transfer comes.
func (b *busy) end(id uint64) chan *fault.Wire {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.ends[id]
	if c == nil {
		c = make(chan *fault.Wire, 1)
		b.ends[id] = c
	}
	return c
}

func (b *busy) ended(id uint64) {
	require.Nil(b.t, <-b.end(id))
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ends, id)
}

// move makes a transfer with a lease of its own.
func move(src, dst *busy, list []uint32) {
	lease := dst.lease(time.Minute, list...)
	id := src.push(lease.Ticket, time.Minute, list...)
	src.layer(id, 0)
	src.node.engine.PushFinish(src.id, id, nil)
	src.ended(id)
	dst.ended(lease.Lease)
}

// BenchmarkInFlight keeps so many transfers of 16 blocks of 4 KiB under way on one link.
func BenchmarkInFlight(b *testing.B) {
	const each = 16
	for _, flying := range []int{1, 8, 64, 1000} {
		b.Run(fmt.Sprintf("transfers=%d", flying), func(b *testing.B) {
			l := tiny
			l.HeadDim = 4096
			net := newNetwork(b, "prefill", "decode")
			total := uint32(flying * each * 2)
			src := newBusy(b, net.nodes["prefill"], "p", l, total)
			dst := newBusy(b, net.nodes["decode"], "d", l, total)
			all := spread(total / 2)
			move(src, dst, all[:each])
			b.SetBytes(each * 4096)
			b.ResetTimer()
			var wg sync.WaitGroup
			turns := make(chan int, b.N)
			for i := range b.N {
				turns <- i
			}
			close(turns)
			for k := range flying {
				wg.Go(func() {
					for range turns {
						move(src, dst, all[k*each:][:each])
					}
				})
			}
			wg.Wait()
		})
	}
}
