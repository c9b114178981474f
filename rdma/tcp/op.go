package tcp

import (
	"slices"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// op is a posted operation and the gate of its local memory. It is pooled: the session keeps it while it is pending,
// and holders (the lane's writer, the lane's reader) keep it while they use it, also beyond its completion.
type op struct {
	// Set by Post, then constant.
	kind   rdma.OpKind
	id     uint64
	seq    uint64 // names the op on the wire: a caller may use id again while the lane still winds this one up
	key    uint64
	tag    uint64
	region *region
	ranges []rdma.Range // none is empty
	total  uint64
	lane   *initLane

	// Under the session's lock.
	pending    bool
	holders    int
	queued     bool
	next, prev *op // in the lane's queue

	// The lane's writer alone.
	out     cursor
	sent    uint64 // bytes in the frames built so far
	started bool   // the first frame is built

	// The lane's reader alone.
	in       cursor
	received uint64

	// The gate.
	mu       sync.Mutex
	done     bool // completed: the local memory is the caller's again
	touched  bool // bytes may have moved
	lastSent bool // the last frame may be on the wire, so that success may come
}

// cursor is a place in a range list: range i, byte off of it.
type cursor struct {
	i   int
	off uint64
}

var ops = sync.Pool{New: func() any { return new(op) }}

func (o *op) enter() fault.Code {
	o.mu.Lock()
	if o.done {
		o.mu.Unlock()
		return fault.Cancelled
	}
	o.touched = true
	return 0
}

func (o *op) leave() { o.mu.Unlock() }

// shut takes the local memory back and says whether bytes may have moved until then. Both in one turn of the lock:
// a lane may enter until the very end.
func (o *op) shut() (touched bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = true
	return o.touched
}

// step cuts the next piece, of at most limit bytes, off the range list. It returns the range it comes from, with
// Local, Remote and Len of the piece. The list must have bytes left.
func (o *op) step(c *cursor, limit uint64) rdma.Range {
	r := o.ranges[c.i]
	r.Local += c.off
	r.Remote += c.off
	r.Len -= c.off
	if r.Len > limit {
		r.Len = limit
		c.off += limit
		return r
	}
	*c = cursor{i: c.i + 1}
	return r
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
	*o = op{kind: in.Kind, id: in.ID, key: uint64(in.Remote), tag: in.Tag, region: r, ranges: slices.Grow(o.ranges[:0], len(in.Ranges))}
	if o.ranges, o.total, err = in.Compact(o.ranges, &r.mem, i.p.opt.MaxOpBytes); err != nil {
		ops.Put(o)
		return nil, err
	}
	if o.kind == rdma.OpRead {
		o.tag = 0
	}
	return o, nil
}

// release returns the op to the pool when nobody has it any more. The session's lock is held.
func (o *op) release() {
	if !o.pending && o.holders == 0 {
		o.region, o.lane, o.next, o.prev = nil, nil, nil, nil
		ops.Put(o)
	}
}

// opQueue is a lane's queue of operations that have not begun. The session's lock guards it.
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
