package simtest

import (
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/rdma"
)

// clock is a node's monotonic time: the bubble's, moved by an offset. While the node is paused its timers wait.
type clock struct {
	base   time.Time
	offset rdma.Instant

	mu     sync.Mutex
	paused bool
	held   []*timer // fell due while it was paused
}

// timer is a call that was asked for. Its state is under clock.mu.
type timer struct {
	f             func()
	held, stopped bool
}

func newClock(offset time.Duration) *clock {
	return &clock{base: time.Now(), offset: rdma.Instant(offset) + 1}
}

// Now reads the clock; it goes on while the node is paused.
func (c *clock) Now() rdma.Instant { return rdma.Instant(time.Since(c.base)) + c.offset }

// AfterFunc implements xfer.Clock.
func (c *clock) AfterFunc(at rdma.Instant, f func()) func() bool {
	t := &timer{f: f}
	stop := time.AfterFunc(time.Duration(at-c.Now()), func() {
		c.mu.Lock()
		if t.held = c.paused; t.held {
			c.held = append(c.held, t)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		f()
	}).Stop
	return func() bool {
		if stop() {
			return true
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		first := t.held && !t.stopped
		t.stopped = true
		return first
	}
}

func (c *clock) pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = true
}

// resume runs what fell due meanwhile, each timer in its own goroutine.
func (c *clock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = false
	for _, t := range c.held {
		t.held = false
		if !t.stopped {
			go t.f()
		}
	}
	c.held = nil
}
