package tcp

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
)

// gate stands before memory. Whoever hands the memory to a system call enters first and leaves after that one call,
// which never blocks; whoever takes the memory back shuts the gate, which waits for those inside and lets nobody in
// any more. It is the whole of the fence: see doc.go.
type entrance interface {
	enter() fault.Code // 0: inside, leave must follow. Else why not
	leave()
}

// window is the gate of a target's memory. Lanes enter side by side.
type window struct {
	gate.Gate
	key    rdma.Key
	region *region
	access rdma.Access
	bounds rdma.Bounds
}

func (w *window) enter() fault.Code { return w.Enter() }
func (w *window) leave()            { w.Leave() }

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
