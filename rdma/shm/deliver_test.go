package shm

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// TestCloseFromTake: the only worker brings an arrival, and whoever takes it closes the session, of which more is queued.
func TestCloseFromTake(t *testing.T) {
	const size = 1 << 20
	a, b := newNode(t, Options{}), newNode(t, Options{Workers: 1})
	ended, closed := make(chan rdma.Event, 64), make(chan struct{})
	var tgt atomic.Pointer[target]
	var once sync.Once
	a.Deliver(func(evs []rdma.Event) {
		for _, e := range evs {
			ended <- e
		}
	})
	b.Deliver(func(evs []rdma.Event) {
		for _, e := range evs {
			if e.Kind == rdma.EventArrival {
				once.Do(func() {
					assert.NoError(t, tgt.Load().Close())
					close(closed)
				})
			}
		}
	})
	own, ini := connect(t, a, b, 1)
	tgt.Store(own)
	src, dst := fabrictest.Alloc(t, size, 0), fabrictest.Alloc(t, size, 0)
	p := &pair{a: a, b: b, tgt: own, ini: ini, srcR: register(t, a, src.Host("src")), dstR: register(t, b, dst.Host("dst"))}
	k := p.grant(t, rdma.AccessWrite, 0)
	const n = 20
	for id := uint64(1); id <= n; id++ {
		took, err := ini.Post([]rdma.Op{write(k, id, p.srcR, rdma.Range{Len: size})})
		if err != nil { // it was closed before all were posted
			break
		}
		require.Equal(t, 1, took)
	}
	within(t, "Close", func() { <-closed })
	within(t, "the loss of the peer", func() {
		for e := range ended {
			if e.Kind == rdma.EventDown {
				return
			}
		}
	})
	assert.Zero(t, a.Poll(make([]rdma.Event, 1))+b.Poll(make([]rdma.Event, 1)), "what is delivered is not there to poll")
}

// TestDeliverInside: who moves is not called back, and the target hears of each WRITE once, one call at a time.
func TestDeliverInside(t *testing.T) {
	n := newNode(t, Options{})
	var busy, heard, completed atomic.Int32
	moving := make(chan struct{}, 1)
	n.Deliver(func(evs []rdma.Event) {
		for _, e := range evs {
			if e.Kind == rdma.EventCompletion {
				completed.Add(1)
				continue
			}
			assert.Equal(t, int32(1), busy.Add(1))
			moving <- struct{}{} // held while the test is inside of Move
			<-moving
			heard.Add(1)
			busy.Add(-1)
		}
	})
	x := &inside{node: n, src: fabrictest.Alloc(t, 4096, 0), dst: fabrictest.Alloc(t, 4096, 0)}
	x.ini, x.tgt = joined(t, n, 1)
	x.srcR, x.dstR = register(t, n, x.src.Host("src")), register(t, n, x.dst.Host("dst"))
	k := x.grant(t, rdma.AccessWrite, 0)
	for range 200 {
		moving <- struct{}{}
		m, st := x.ini.Move([]rdma.Op{write(k, 1, x.srcR, rdma.Range{Len: 4096})})
		<-moving
		require.Equal(t, 1, m)
		require.Zero(t, st)
	}
	for id := uint64(1); id <= 200; id++ {
		took, err := x.ini.Post([]rdma.Op{write(k, id, x.srcR, rdma.Range{Len: 4096})})
		require.NoError(t, err)
		require.Equal(t, 1, took)
	}
	eventually(t, "arrivals and completions", func() bool { return heard.Load() == 400 && completed.Load() == 200 })
}
