package tcp

import (
	"sync"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// gate stands before memory. Whoever hands the memory to a system call enters first and leaves after that one call,
// which never blocks; whoever takes the memory back shuts the gate, which waits for those inside and lets nobody in
// any more. It is the whole of the fence: see doc.go.
type gate interface {
	enter() fault.Code // 0: inside, leave must follow. Else why not
	leave()
}

// window is the gate of a target's memory. Lanes enter side by side.
type window struct {
	key    rdma.Key
	region *region
	access rdma.Access
	bounds rdma.Bounds
	clock  rdma.Clock

	mu       sync.RWMutex
	fenced   bool
	deadline atomic.Int64
}

func (w *window) enter() fault.Code {
	w.mu.RLock()
	if w.fenced {
		w.mu.RUnlock()
		return fault.StaleKey
	}
	if d := w.deadline.Load(); d != 0 && int64(w.clock.Now()) >= d {
		w.mu.RUnlock()
		return fault.LeaseExpired
	}
	return 0
}

func (w *window) leave() { w.mu.RUnlock() }

func (w *window) shut() {
	w.mu.Lock()
	w.fenced = true
	w.mu.Unlock()
}

func (w *window) extend(deadline rdma.Instant) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	w.deadline.Store(int64(deadline))
	return !w.fenced
}

// allows reports whether every range lies in the region and in the bounds.
func (w *window) allows(descs []desc) bool {
	size := w.region.mem.Len
	for _, d := range descs {
		if d.off > size || d.len > size-d.off || !w.bounds.Allows(d.off, d.len) {
			return false
		}
	}
	return true
}
