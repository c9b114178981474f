package localapi

import (
	"bufio"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Requests that are run where they are read and those of the queue take turns, in whichever mixture they come, and none overlaps
// another: the fake engine looks.
func TestPromptRequestsKeepTheirTurn(t *testing.T) {
	rng := testseed.New(t)
	e := newEngine(t)
	e.blocks = make([]byte, 16)
	s := serve(t, options(t, e))
	c := attach(t, s)
	for round := range 20 {
		var batch []byte
		var want []string
		var ids []uint64
		e.mu.Lock()
		e.calls = nil
		e.evict = nil
		if round%2 == 1 { // EVICT has to wait, so it is the queue's
			e.evict = func(context.Context) error { return nil }
		}
		e.mu.Unlock()
		for range 1 + rng.IntN(30) {
			c.id++
			n := c.id
			one := wire.AppendU32s(nil, []uint32{uint32(n)})
			var f wire.Frame
			var err error
			switch rng.IntN(5) {
			case 0:
				f, err = wire.NewFrame(wire.KindBlocks, n, &wire.BlocksQuery{Cache: n}, nil)
				want = append(want, fmt.Sprintf("blocks %d", n))
			case 1:
				f, err = wire.NewFrame(wire.KindEvict, n, &wire.Evict{Cache: n}, one)
				want = append(want, fmt.Sprintf("evict %d [%d]", n, n))
			case 2:
				f, err = wire.NewFrame(wire.KindPush, n, &wire.PushRequest{Cache: n, Ticket: "t", TimeoutMillis: 1}, one)
				want = append(want, fmt.Sprintf("push %d [%d]", n, n))
			case 3:
				f, err = wire.NewFrame(wire.KindDeregisterRegion, n, &wire.DeregisterRegion{Region: n}, nil)
				want = append(want, fmt.Sprintf("deregister %d", n))
			default:
				f, err = wire.NewFrame(wire.KindLease, n, &wire.LeaseRequest{Cache: n, Mode: "write", TTLMillis: 1}, one)
				want = append(want, fmt.Sprintf("lease %d [%d]", n, n))
			}
			require.NoError(t, err)
			batch, ids = wire.Append(batch, f), append(ids, n)
			if rng.IntN(3) == 0 {
				c.raw(batch)
				batch = nil
			}
		}
		if len(batch) > 0 {
			c.raw(batch)
		}
		for _, id := range ids {
			f := c.recv()
			require.Equal(t, id, f.Request, "%s %s", f.Kind, f.JSON)
			require.Equal(t, wire.KindOK, f.Kind, "%s", f.JSON)
		}
		require.Equal(t, want, e.log())
	}
}

// A large list is the queue's: what would take long is not run where PING is read.
func TestLargeRequestsAreQueued(t *testing.T) {
	r := request{Frame: wire.Frame{Kind: wire.KindPush, Array: make([]byte, promptBytes)}}
	assert.True(t, prompt(&r))
	r.Array = append(r.Array, 0)
	assert.False(t, prompt(&r))
}

// Whoever queues a frame writes it when nobody else does; frames stay whole and each caller's own keep their order, also where
// the client does not read for a while and the writer has to go on.
func TestManyWriters(t *testing.T) {
	rng := testseed.New(t)
	e := newEngine(t)
	c := attach(t, serve(t, options(t, e)))
	const writers, each = 6, 2000
	var wg sync.WaitGroup
	defer wg.Wait()
	sink := e.sink(1)
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				sink.LayersVisible(wire.LayersVisible{Lease: uint64(w), Layers: make([]uint32, i%50+1)})
			}
		})
	}
	in := bufio.NewReaderSize(c.conn, 256)
	var seen [writers]int
	pings := map[uint64]bool{}
	for n := 0; n < writers*each || len(pings) > 0; {
		if len(pings) < 5 && n < writers*each && rng.IntN(50) == 0 {
			pings[c.send(wire.KindPing, nil, nil)] = true
		}
		f, err := wire.ReadFrame(in, wire.LocalLimits)
		require.NoError(t, err)
		if f.Kind == wire.KindOK {
			require.True(t, pings[f.Request])
			delete(pings, f.Request)
			continue
		}
		v, err := wire.ParseLayersVisible(f.Array)
		require.NoError(t, err)
		require.Len(t, v.Layers, seen[v.Lease]%50+1, "frame %d of writer %d", seen[v.Lease], v.Lease)
		seen[v.Lease]++
		n++
	}
}
