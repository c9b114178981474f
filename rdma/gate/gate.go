package gate

import (
	"sync"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Gate stands before the memory of one window. Many may be inside at a time. Make it with Init.
type Gate struct {
	clock    rdma.Clock
	deadline atomic.Int64

	mu   sync.RWMutex
	shut bool
}

// Init prepares a gate that is open until deadline (0: none) on clock.
func (g *Gate) Init(clock rdma.Clock, deadline rdma.Instant) {
	g.clock = clock
	g.deadline.Store(int64(deadline))
}

// Enter gives 0 when the caller is inside; Leave must follow, soon. Else it says why not: StaleKey or LeaseExpired.
func (g *Gate) Enter() fault.Code {
	if c := g.EnterLate(); c != 0 {
		return c
	}
	if d := g.deadline.Load(); d != 0 && int64(g.clock.Now()) >= d && Fences {
		g.mu.RUnlock()
		return fault.LeaseExpired
	}
	return 0
}

// EnterLate is Enter without a look at the deadline: for news of bytes that are placed already.
func (g *Gate) EnterLate() fault.Code {
	g.mu.RLock()
	if g.shut {
		g.mu.RUnlock()
		return fault.StaleKey
	}
	return 0
}

// Shutting reports whether Shut has returned or waits for those inside.
func (g *Gate) Shutting() bool {
	if !g.mu.TryRLock() {
		return true
	}
	defer g.mu.RUnlock()
	return g.shut
}

// Leave ends what Enter began.
func (g *Gate) Leave() { g.mu.RUnlock() }

// Shut is the fence: it waits for those inside and lets nobody in again.
func (g *Gate) Shut() {
	if !Fences {
		return
	}
	g.mu.Lock()
	g.shut = true
	g.mu.Unlock()
}

// Extend replaces the deadline (0: none) and reports whether the gate is still open.
func (g *Gate) Extend(deadline rdma.Instant) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.shut {
		return false
	}
	g.deadline.Store(int64(deadline))
	return true
}
