package xfer_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// instantly moves nothing and says that it did: what is left of a post is the engine's own part.
type instantly struct{ rdma.Initiator }

func (instantly) Move(ops []rdma.Op) (int, fault.Code)      { return len(ops), 0 }
func (instantly) MoveQuiet(ops []rdma.Op) (int, fault.Code) { return len(ops), 0 }

// plain hides what else the provider's initiator can, so that completions come by themselves.
type plain struct{ rdma.Initiator }

// way is how a post can leave the engine.
type way struct {
	name  string
	wraps func(rdma.Initiator) rdma.Initiator
	looks int // for completions before the poster sleeps
}

var ways = []way{
	{"mover", func(i rdma.Initiator) rdma.Initiator { return instantly{i} }, 0},
	{"queue", func(i rdma.Initiator) rdma.Initiator { return plain{i} }, 0},
	{"progress", nil, 10_000}, // the thread that posts fetches the completions
}

// loop is a prepared list of blocks of 64 bytes that is posted again and again, by one thread and one at a time.
type loop struct {
	way
	t        testing.TB
	prepared uint64
	g        xfer.Poster
	ended    chan wire.Posted
	cookie   uint64
}

func newLoop(t testing.TB, w way, blocks uint32) *loop {
	net := newNetwork(t, "a", "b")
	net.wraps = w.wraps
	src, dst := newWorker(t, net.nodes["a"], "a", tiny, 2*blocks), newWorker(t, net.nodes["b"], "b", tiny, 2*blocks)
	list := spread(blocks)
	x := &loop{way: w, t: t, prepared: src.prepareBlocks("write", dst.lease(time.Hour, list...).Ticket, list...), ended: make(chan wire.Posted, 1)}
	x.g = net.nodes["a"].engine.NewPosting(src.id, func(p wire.Posted) { x.ended <- p })
	t.Cleanup(x.g.Rest) // before the network's end
	return x
}

func (x *loop) post() {
	x.cookie++
	x.g.Post(wire.Post{Prepared: x.prepared, Cookie: x.cookie, TimeoutNanos: uint64(time.Minute)})
	for i := 0; i < x.looks && len(x.ended) == 0; i++ {
		if x.g.Progress() == 0 {
			runtime.Gosched()
		}
	}
	if len(x.ended) == 0 {
		x.g.Rest()
	}
	if p := <-x.ended; p.Cookie != x.cookie || p.Code != 0 {
		x.t.Fatalf("%+v", p)
	}
}

// fewest is the least of some averages: what else runs in the process, as timers and collections that empty pools, adds to some.
func fewest(runs int, f func()) float64 {
	least := testing.AllocsPerRun(runs, f)
	for range 4 {
		least = min(least, testing.AllocsPerRun(runs, f))
	}
	return least
}

// TestPostsAllocateNothing for a block, whichever way they go; of a mover's nothing at all. What is left for the queue's is a timer,
// and what the provider keeps of an operation where the race detector empties its pools.
func TestPostsAllocateNothing(t *testing.T) {
	for _, w := range ways {
		var per []float64
		for _, blocks := range []uint32{1, 1000} {
			x := newLoop(t, w, blocks)
			x.post()
			per = append(per, fewest(30, x.post))
		}
		t.Logf("%s: %v", w.name, per)
		if w.name == "mover" {
			assert.Equal(t, []float64{0, 0}, per)
			continue
		}
		assert.LessOrEqual(t, per[0], 16.0, w.name)
		assert.LessOrEqual(t, per[1], 16.0+4*16, w.name) // 4 operations
	}
}

// TestPushAllocatesNothingForABlock: with lease, journal, commit and end, on both nodes together. What grows with a list are single
// arrays, and what is kept of each operation of 256 blocks.
func TestPushAllocatesNothingForABlock(t *testing.T) {
	const less, more = 1000, 4000
	per := map[uint32]float64{}
	for _, blocks := range []uint32{less, more} {
		net := newNetwork(t, "prefill", "decode")
		src, dst := newBusy(t, net.nodes["prefill"], "p", tiny, 2*blocks), newBusy(t, net.nodes["decode"], "d", tiny, 2*blocks)
		list := spread(blocks)
		move(src, dst, list)
		per[blocks] = fewest(3, func() { move(src, dst, list) })
	}
	t.Logf("%v", per)
	assert.Less(t, (per[more]-per[less])/(more-less), 0.1)
}

// BenchmarkPost is a post of a prepared list of blocks of 64 bytes until its end: over a mover that moves nothing, the engine's part
// alone; through the link's queue over TCP, with the target in the same process.
func BenchmarkPost(b *testing.B) {
	for _, w := range ways {
		for _, blocks := range []uint32{1, 1000} {
			b.Run(fmt.Sprintf("%s/blocks=%d", w.name, blocks), func(b *testing.B) {
				x := newLoop(b, w, blocks)
				x.post()
				b.ReportAllocs()
				for b.Loop() {
					x.post()
				}
			})
		}
	}
}
