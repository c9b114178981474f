package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/eventqueue"
)

// TestMoveWaitsForRoomWithoutALock: a Move that waits because too many events are due asks whether its session is over while whoever
// ends a posted operation has the session's lock, and then wants the events' lock for its arrival. Neither waits for the other.
func TestMoveWaitsForRoomWithoutALock(t *testing.T) {
	for _, delivered := range []bool{false, true} {
		x := newInside(t, 4096, Options{})
		if delivered {
			x.tgt.events.p.take = func([]rdma.Event) {}
		}
		k := x.grant(t, rdma.AccessWrite, 0)
		x.tgt.events.add(make([]rdma.Event, eventqueue.MaxEvents)...)
		moved := make(chan struct{})
		x.ini.mu.Lock() // as complete has it
		go func() {
			defer close(moved)
			x.ini.Move([]rdma.Op{write(k, 1, x.srcR, rdma.Range{Len: 1})})
		}()
		added := make(chan struct{})
		go func() {
			defer close(added)
			for range 100 {
				x.tgt.events.add(rdma.Event{Kind: rdma.EventArrival, Session: x.tgt.id})
				time.Sleep(time.Millisecond)
			}
		}()
		select {
		case <-added:
		case <-time.After(patience / 4):
			assert.Fail(t, "the events' lock is held by who waits for the session's")
		}
		x.ini.mu.Unlock()
		<-added
		within(t, "Move", func() {
			assert.NoError(t, x.tgt.Close())
			<-moved
		})
	}
}
