package simfabric

import (
	"container/heap"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/rdma"
)

// Clock is time with timers. The engine's clock has the same methods, so that one SimClock can drive both.
type Clock interface {
	rdma.Clock
	// AfterFunc calls f at or after the instant; the returned function stops it.
	AfterFunc(at rdma.Instant, f func()) (stop func() bool)
}

// RealClock is the process's monotonic time; inside a testing/synctest bubble, the bubble's. It starts at 1, since the
// zero Instant means "none".
func RealClock() Clock { return realClock{time.Now()} }

type realClock struct{ base time.Time }

func (c realClock) Now() rdma.Instant { return rdma.Instant(time.Since(c.base)) + 1 }

func (c realClock) AfterFunc(at rdma.Instant, f func()) func() bool {
	return time.AfterFunc(time.Duration(at-c.Now()), f).Stop
}

// SimClock is time that only its owner moves. Timers run in the goroutine that moves it, one at a time, in the order of
// their instants and, at one instant, in the order in which they were set.
type SimClock struct {
	mu     sync.Mutex
	now    rdma.Instant
	number uint64
	timers timerHeap
}

// NewSimClock starts at an hour, well above the zero Instant, which means "none".
func NewSimClock() *SimClock { return &SimClock{now: rdma.Instant(time.Hour)} }

// Now reads the clock.
func (c *SimClock) Now() rdma.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc sets a timer; one whose instant has passed runs at the next Step or Advance.
func (c *SimClock) AfterFunc(at rdma.Instant, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	t := &timer{at: max(at, c.now), number: c.number, f: f}
	heap.Push(&c.timers, t)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.index < 0 {
			return false
		}
		heap.Remove(&c.timers, t.index)
		return true
	}
}

// Step moves time to the next timer and runs it; false: there is none.
func (c *SimClock) Step() bool { return c.step(rdma.Instant(1<<63 - 1)) }

// Advance moves time by d and runs every timer that falls due on the way, those set meanwhile included.
func (c *SimClock) Advance(d time.Duration) {
	end := c.Now() + rdma.Instant(d)
	for c.step(end) {
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = max(c.now, end)
}

func (c *SimClock) step(end rdma.Instant) bool {
	c.mu.Lock()
	if len(c.timers) == 0 || c.timers[0].at > end {
		c.mu.Unlock()
		return false
	}
	t := heap.Pop(&c.timers).(*timer)
	c.now = max(c.now, t.at)
	c.mu.Unlock()
	t.f()
	return true
}

type timer struct {
	at     rdma.Instant
	number uint64
	index  int // in the heap; -1: it has run or was stopped
	f      func()
}

type timerHeap []*timer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].number < h[j].number
}
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
