package eventqueue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/eventqueue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOrderThroughGrowth(t *testing.T) {
	q := eventqueue.New()
	buf := make([]rdma.Event, 7)
	next, polled := uint64(0), uint64(0)
	for round := range 100 {
		for range round {
			q.Push(rdma.Event{Op: next}, rdma.Event{Op: next + 1})
			next += 2
		}
		for range round / 5 {
			for _, e := range buf[:q.Poll(buf)] {
				require.Equal(t, polled, e.Op)
				polled++
			}
		}
	}
	for n := q.Poll(buf); n > 0; n = q.Poll(buf) {
		for _, e := range buf[:n] {
			require.Equal(t, polled, e.Op)
			polled++
		}
	}
	assert.Equal(t, next, polled)
}

func TestWaitMissesNothing(t *testing.T) {
	q := eventqueue.New()
	const n = 20000
	go func() {
		for i := range n {
			q.Push(rdma.Event{Op: uint64(i)})
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	buf := make([]rdma.Event, 3)
	for got := 0; got < n; {
		require.NoError(t, q.Wait(ctx))
		got += q.Poll(buf)
	}
}

func TestHold(t *testing.T) {
	q := eventqueue.New()
	over := new(atomic.Bool)
	q.Hold(over.Load) // there is room
	for range eventqueue.MaxEvents {
		q.Push(rdma.Event{})
	}
	for _, end := range []func(){
		func() { q.Poll(make([]rdma.Event, 1)) },
		func() { q.Push(rdma.Event{}); over.Store(true); q.LetGo() },
	} {
		done := make(chan struct{})
		started := make(chan struct{})
		go func() {
			close(started)
			q.Hold(over.Load)
			close(done)
		}()
		<-started
		end()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("Hold has not returned")
		}
	}
}

func TestClose(t *testing.T) {
	q := eventqueue.New()
	q.Push(rdma.Event{Op: 1})
	q.Close()
	require.NoError(t, q.Wait(context.Background()))
	require.Equal(t, 1, q.Poll(make([]rdma.Event, 4)))
	err := q.Wait(context.Background())
	assert.Equal(t, fault.Closed, fault.CodeOf(err))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.Error(t, eventqueue.New().Wait(ctx))
}
