package shm

import (
	"slices"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// op is a posted operation. It is pooled: the session keeps it while it is pending, and tasks of a READ keep it while they
// use it, also beyond its completion.
type op struct {
	// Set by Post, then constant.
	kind   rdma.OpKind
	id     uint64
	seq    uint64 // names the op on the wire: a caller may use id again while the target still winds this one up
	key    uint64
	tag    uint64
	region *region
	number uint32       // WRITE: the region's, as the peer knows it
	ranges []rdma.Range // none is empty
	total  uint64
	frames uint32
	slot   uint32 // WRITE: the permission to read the source
	word   uint64

	// Under the session's lock.
	pending    bool
	queued     bool
	holders    int    // tasks
	sent       uint32 // frames
	answered   uint32 // READ: frames
	done       uint32 // READ: frames whose bytes are here
	received   uint64
	next, prev *op // in the queue of what is to be sent

	// The gate of the local memory of a READ. Of a WRITE it is the slot.
	mu   sync.RWMutex
	over bool
}

var ops = sync.Pool{New: func() any { return new(op) }}

func (o *op) enter() fault.Code {
	o.mu.RLock()
	if o.over {
		o.mu.RUnlock()
		return fault.Cancelled
	}
	return 0
}

func (o *op) leave() { o.mu.RUnlock() }

// shut takes the local memory of a READ back.
func (o *op) shut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
}

// frame gives the ranges of a frame.
func (o *op) frame(index uint32) []rdma.Range {
	from := int(index) * maxCount
	return o.ranges[from:min(from+maxCount, len(o.ranges))]
}

// take makes an op of what the caller posts. The range list is copied without its empty ranges.
func (i *initiator) take(in *rdma.Op) (*op, error) {
	if err := in.CheckKind(); err != nil {
		return nil, err
	}
	r, err := i.p.ours("post", in.Local)
	if err != nil {
		return nil, err
	}
	if err := in.CheckCount(i.p.opt.MaxRanges); err != nil {
		return nil, err
	}
	if i.byID[in.ID] != nil {
		return nil, fault.Invalid("post", "ID", "%d is pending; want an ID that is not", in.ID)
	}
	o := ops.Get().(*op)
	*o = op{kind: in.Kind, id: in.ID, key: uint64(in.Remote), region: r, ranges: slices.Grow(o.ranges[:0], len(in.Ranges))}
	if o.kind == rdma.OpWrite {
		o.tag = in.Tag
	}
	if o.ranges, o.total, err = in.Compact(o.ranges, &r.mem, i.p.opt.MaxOpBytes); err != nil {
		ops.Put(o)
		return nil, err
	}
	o.frames = uint32(max(1, (len(o.ranges)+maxCount-1)/maxCount))
	return o, nil
}

// release returns the op to the pool when nobody has it any more. The session's lock is held.
func (o *op) release() {
	if !o.pending && o.holders == 0 {
		o.region, o.next, o.prev = nil, nil, nil
		ops.Put(o)
	}
}

// opQueue is what has frames to be sent. The session's lock guards it.
type opQueue struct{ head, tail *op }

func (q *opQueue) push(o *op) {
	o.queued, o.prev, o.next = true, q.tail, nil
	if q.tail == nil {
		q.head = o
	} else {
		q.tail.next = o
	}
	q.tail = o
}

func (q *opQueue) remove(o *op) {
	if o.prev == nil {
		q.head = o.next
	} else {
		o.prev.next = o.next
	}
	if o.next == nil {
		q.tail = o.prev
	} else {
		o.next.prev = o.prev
	}
	o.queued, o.prev, o.next = false, nil, nil
}
