package tcp

import (
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
)

var _ rdma.TryFencer = (*target)(nil)

// TryFence ends a window that no lane is inside of. As with Fence, it leaves the table only when it is shut.
func (t *target) TryFence(k rdma.Key) bool {
	w := t.window(k)
	if w == nil {
		return true
	}
	if !w.TryShut() {
		return false
	}
	if gate.Fences {
		t.mu.Lock()
		delete(t.windows, k)
		t.mu.Unlock()
	}
	return true
}
