package xfer

import (
	"context"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// StopGranting begins a drain: nothing new is granted or begun, and what nobody has bound ends with Draining. What
// runs goes on. There is no way back: peers have been refused, and tickets are void.
func (e *Engine) StopGranting() {
	e.mu.Lock()
	e.draining = true
	e.mu.Unlock()
	for _, g := range e.allGrants() { // nobody can bind these any more, so there is nothing to wait for
		g.revokeUnbound(fault.Draining)
	}
	e.drainPrepared()
}

// Idle waits until no lease and no transfer is left, or until ctx ends, and says which.
func (e *Engine) Idle(ctx context.Context) bool {
	e.waitIdle(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.leases)+len(e.transfers) == 0
}
