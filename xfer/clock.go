package xfer

import (
	"time"

	"github.com/kvxfer/kvxfer/rdma"
)

// Clock is the node's monotonic time with timers. Simulations bring their own.
type Clock interface {
	rdma.Clock
	// AfterFunc calls f in its own goroutine at or after the instant; the returned function stops it.
	AfterFunc(at rdma.Instant, f func()) (stop func() bool)
}

// NewClock returns the process's monotonic clock. It starts at 1 so that the zero Instant means "none".
func NewClock() Clock { return systemClock{base: time.Now()} }

type systemClock struct{ base time.Time }

func (c systemClock) Now() rdma.Instant { return rdma.Instant(time.Since(c.base)) + 1 }

func (c systemClock) AfterFunc(at rdma.Instant, f func()) func() bool {
	return time.AfterFunc(time.Duration(at-c.Now()), f).Stop
}
