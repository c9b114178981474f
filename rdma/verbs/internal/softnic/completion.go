package softnic

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// cqe is a completion with what polling it does: as on real devices, a request's place in its queue is free again only when its
// completion, or that of a later request, was polled.
type cqe struct {
	nic.Completion
	q     *qp
	place uint64 // of the send queue: the first place still in use after this
}

// cq is the completion queue of an opened device. Its lock is a leaf: who looks for completions never waits for packets.
type cq struct {
	mu     sync.Mutex
	list   []cqe
	at     int
	woken  bool
	err    error
	some   atomic.Bool // whether there is something to see under mu
	notify chan struct{}
}

func (c *cq) push(e cqe) {
	c.mu.Lock()
	if len(c.list) == cap(c.list) && c.at >= len(c.list)/2 {
		n := copy(c.list, c.list[c.at:])
		clear(c.list[n:])
		c.list, c.at = c.list[:n], 0
	}
	c.list = append(c.list, e)
	c.signal()
	c.mu.Unlock()
}

func (c *cq) signal() {
	c.some.Store(true)
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

func (c *cq) wake() {
	c.mu.Lock()
	c.woken = true
	c.signal()
	c.mu.Unlock()
}

// end makes every call of next fail from now on.
func (c *cq) end(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.signal()
	c.mu.Unlock()
}

// purge removes what a queue pair left.
func (c *cq) purge(q *qp) {
	c.mu.Lock()
	kept := c.list[:0]
	for _, e := range c.list[c.at:] {
		if e.q != q {
			kept = append(kept, e)
		}
	}
	clear(c.list[len(kept):])
	c.list, c.at = kept, 0
	q.sendFree.Store(0)
	q.recvFree.Store(0)
	c.mu.Unlock()
}

func (c *cq) take(dst []nic.Completion) (n int, woken bool, err error) {
	if !c.some.Load() {
		return 0, false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, false, c.err
	}
	for n < len(dst) && c.at < len(c.list) {
		e := &c.list[c.at]
		dst[n] = e.Completion
		if e.Recv {
			e.q.recvFree.Add(1)
		} else {
			e.q.sendFree.Store(e.place)
		}
		c.at++
		n++
	}
	if c.at == len(c.list) {
		clear(c.list)
		c.list, c.at = c.list[:0], 0
	}
	woken, c.woken = c.woken, false
	c.some.Store(c.at < len(c.list))
	return n, woken, nil
}

func (c *cq) next(dst []nic.Completion, spin, sleep time.Duration) (int, error) {
	var start time.Time
	for {
		n, woken, err := c.take(dst)
		if n > 0 || woken || err != nil {
			return n, err
		}
		if start.IsZero() {
			start = time.Now()
		}
		if time.Since(start) >= spin {
			break
		}
		runtime.Gosched()
	}
	if sleep <= 0 {
		return 0, nil
	}
	timer := time.NewTimer(sleep)
	defer timer.Stop()
	for {
		n, woken, err := c.take(dst)
		if n > 0 || woken || err != nil {
			return n, err
		}
		select {
		case <-c.notify: // may be of what was taken before
		case <-timer.C:
			return 0, nil
		}
	}
}

// eventQueue is the list of asynchronous events of an opened device.
type eventQueue struct {
	mu   sync.Mutex
	cond sync.Cond
	list []nic.Event
	err  error
}

func (x *eventQueue) push(e nic.Event) {
	x.mu.Lock()
	x.list = append(x.list, e)
	x.mu.Unlock()
	x.cond.Signal()
}

func (x *eventQueue) end(err error) {
	x.mu.Lock()
	x.err = err
	x.mu.Unlock()
	x.cond.Broadcast()
}

func (x *eventQueue) next() (nic.Event, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		if x.err != nil {
			return nic.Event{}, x.err
		}
		if len(x.list) > 0 {
			e := x.list[0]
			x.list = x.list[1:]
			return e, nil
		}
		x.cond.Wait()
	}
}
