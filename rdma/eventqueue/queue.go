package eventqueue

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Queue is a provider's one queue of events: a ring that doubles when it is full and never shrinks. Make it with New.
type Queue struct {
	mu     sync.Mutex
	ring   []rdma.Event // length is a power of two
	head   int          // next to poll
	n      int
	closed bool
	wake   chan struct{} // capacity 1: a token says that the queue may have become non-empty
	full   atomic.Bool   // n is at least MaxEvents
	room   sync.Cond     // it is no longer, or somebody in Hold is over
}

// MaxEvents is where those who serve a target's peer wait for whoever polls. What an initiator queues is bounded by its window,
// but a peer may write one piece again and again, and each time is an arrival.
const MaxEvents = 1 << 16

// New makes an empty queue.
func New() *Queue {
	q := &Queue{ring: make([]rdma.Event, 64), wake: make(chan struct{}, 1)}
	q.room.L = &q.mu
	return q
}

// Hold waits until the queue has room or over says so; the caller is in no gate.
func (q *Queue) Hold(over func() bool) {
	if !q.full.Load() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.n >= MaxEvents && !over() {
		q.room.Wait()
	}
}

// LetGo makes those in Hold ask again whether it is over.
func (q *Queue) LetGo() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.room.Broadcast()
}

// Push adds events, which nothing overtakes. It never blocks.
func (q *Queue) Push(evs ...rdma.Event) {
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
	q.full.Store(q.n >= MaxEvents)
	q.mu.Unlock()
	q.signal()
}

// Len is the number of events that are due.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}

func (q *Queue) grow() {
	big := make([]rdma.Event, 2*len(q.ring))
	k := copy(big, q.ring[q.head:])
	copy(big[k:], q.ring[:q.head])
	q.ring, q.head = big, 0
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Poll moves events into dst and returns their number: rdma.Provider.Poll.
func (q *Queue) Poll(dst []rdma.Event) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(dst), q.n)
	for i := range n {
		dst[i] = q.ring[q.head]
		q.head = (q.head + 1) & (len(q.ring) - 1)
	}
	q.n -= n
	if q.n < MaxEvents && q.full.Swap(false) {
		q.room.Broadcast()
	}
	return n
}

// Wait returns nil when there is something to poll, ctx's error, or Closed: rdma.Provider.Wait. After Close it does not wait for what cannot come any more.
func (q *Queue) Wait(ctx context.Context) error {
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

// Close makes Wait return Closed when nothing is due; what is due can be polled.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}
