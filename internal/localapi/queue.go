package localapi

import (
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// request is a frame that asks for an answer, with the descriptors that came with it.
type request struct {
	wire.Frame
	fds []int
}

func (r *request) size() int { return wire.HeaderSize + len(r.JSON) + len(r.Array) }

// requestQueue holds a client's requests beside the one that runs.
type requestQueue struct {
	lim Limits

	mu     sync.Mutex
	more   sync.Cond
	items  []request
	bytes  int
	runs   bool // one that was popped
	closed bool
}

func newRequestQueue(lim Limits) *requestQueue {
	q := &requestQueue{lim: lim}
	q.more.L = &q.mu
	return q
}

// push queues r, whose descriptors stay the caller's on an error. One request is taken whatever its size.
func (q *requestQueue) push(r request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.items) >= q.lim.Requests:
		return fault.New(fault.ResourceExhausted, "request", "%d requests of this client wait, allowed %d", len(q.items), q.lim.Requests)
	case len(q.items) > 0 && q.bytes+r.size() > q.lim.RequestBytes:
		return fault.New(fault.ResourceExhausted, "request", "requests of %d bytes of this client wait, allowed %d together",
			q.bytes+r.size(), q.lim.RequestBytes)
	}
	q.items = append(q.items, r)
	q.bytes += r.size()
	q.more.Signal()
	return nil
}

// idle says whether nothing waits or runs. Only who pushes may rely on it.
func (q *requestQueue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) == 0 && !q.runs && !q.closed
}

// pop says that the former request has ended, and waits for one; false says that the queue is closed.
func (q *requestQueue) pop() (request, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.runs = false
	for len(q.items) == 0 && !q.closed {
		q.more.Wait()
	}
	if q.closed {
		return request{}, false
	}
	r := q.items[0]
	q.items[0] = request{}
	q.items = q.items[1:]
	q.bytes -= r.size()
	q.runs = true
	return r, true
}

// close drops what waits and closes its descriptors.
func (q *requestQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.items {
		closeAll(q.items[i].fds)
	}
	q.items, q.closed = nil, true
	q.more.Broadcast()
}
