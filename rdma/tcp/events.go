package tcp

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// eventQueue is the provider's one queue of events: a ring that doubles when it is full and never shrinks.
type eventQueue struct {
	mu     sync.Mutex
	ring   []rdma.Event // length is a power of two
	head   int          // next to poll
	n      int
	closed bool
	wake   chan struct{} // capacity 1: a token says that the queue may have become non-empty
	full   atomic.Bool   // n is at least maxEvents
	room   sync.Cond     // it is no longer, or a lane is over
}

// maxEvents is where the lanes of targets wait for whoever polls. What an initiator queues is bounded by its window,
// but a peer may write one piece again and again, and each time is an arrival.
const maxEvents = 1 << 16

func newEventQueue() *eventQueue {
	q := &eventQueue{ring: make([]rdma.Event, 64), wake: make(chan struct{}, 1)}
	q.room.L = &q.mu
	return q
}

// hold waits until the queue has room or over says so; the caller is in no gate.
func (q *eventQueue) hold(over func() bool) {
	if !q.full.Load() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.n >= maxEvents && !over() {
		q.room.Wait()
	}
}

// letGo makes those in hold ask again whether it is over.
func (q *eventQueue) letGo() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.room.Broadcast()
}

func (q *eventQueue) push(evs ...rdma.Event) {
	if len(evs) == 0 {
		return
	}
	q.mu.Lock()
	for q.n+len(evs) > len(q.ring) {
		q.grow()
	}
	for i := range evs {
		q.ring[(q.head+q.n)&(len(q.ring)-1)] = evs[i]
		q.n++
	}
	q.full.Store(q.n >= maxEvents)
	q.mu.Unlock()
	q.signal()
}

func (q *eventQueue) grow() {
	big := make([]rdma.Event, 2*len(q.ring))
	k := copy(big, q.ring[q.head:])
	copy(big[k:], q.ring[:q.head])
	q.ring, q.head = big, 0
}

func (q *eventQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *eventQueue) poll(dst []rdma.Event) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(dst), q.n)
	for i := range n {
		dst[i] = q.ring[q.head]
		q.head = (q.head + 1) & (len(q.ring) - 1)
	}
	q.n -= n
	if q.n < maxEvents && q.full.Swap(false) {
		q.room.Broadcast()
	}
	return n
}

// wait returns nil when there is something to poll. After close it does not wait for what cannot come any more.
func (q *eventQueue) wait(ctx context.Context) error {
	for {
		q.mu.Lock()
		n, closed := q.n, q.closed
		q.mu.Unlock()
		if n > 0 {
			return nil
		}
		if closed {
			return fault.New(fault.Closed, "wait", "the provider is closed")
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (q *eventQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}
