package verbs

import (
	"slices"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// op is a posted operation. It is pooled; the session's lock guards it.
type op struct {
	kind   rdma.OpKind
	id     uint64
	seq    uint64 // names the op on the wire: a caller may use id again while the target still sees parts of this one
	key    rdma.Key
	tag    uint64
	region *region
	ranges []rdma.Range // none is empty
	total  uint64

	parts    []part
	left     int        // parts that are not over
	onDevice int        // of these, a device works on
	doomed   fault.Code // it ends with this when its last part is over; 0: with success
	unwanted bool       // Cancel named it: a device that still works on it is made to stop
	wrote    bool       // a device was given a part
}

// part is a piece of an operation that one lane carries.
type part struct {
	o       *op
	index   int
	start   cursor
	bytes   uint64
	state   partState
	lane    *initLane // queued, building, flying, limbo
	strikes int       // how often the target refused it although its window is there
	last    uint64    // its last request; flying

	next, prev *part // in the queue of a lane, or of those that wait
}

type partState uint8

const (
	waiting  partState = iota // for a lane, or for its window's key
	queued                    // on a lane, not begun
	building                  // some of its requests are posted
	flying                    // all of them are
	limbo                     // its lane has ended; the target has not said so of its side
	over
)

func (p *part) onDevice() bool { return p.state == building || p.state == flying }

var ops = sync.Pool{New: func() any { return new(op) }}

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
	*o = op{kind: in.Kind, id: in.ID, key: in.Remote, tag: in.Tag, region: r, parts: o.parts[:0], ranges: slices.Grow(o.ranges[:0], len(in.Ranges))}
	if o.ranges, o.total, err = in.Compact(o.ranges, &r.mem, i.p.opt.MaxOpBytes); err != nil {
		ops.Put(o)
		return nil, err
	}
	return o, nil
}

// split cuts the op into parts for so many ways.
func (o *op) split(ways int) {
	n := splitInto(o.total, ways)
	o.parts = slices.Grow(o.parts[:0], n)[:n]
	var at cursor
	left := o.total
	for k := range o.parts {
		size := left / uint64(n-k)
		o.parts[k] = part{o: o, index: k, start: at, bytes: size}
		at = skip(o.ranges, at, size)
		left -= size
	}
	o.left = n
}

// partQueue is a list of parts.
type partQueue struct{ head, tail *part }

func (q *partQueue) push(p *part) {
	p.prev, p.next = q.tail, nil
	if q.tail == nil {
		q.head = p
	} else {
		q.tail.next = p
	}
	q.tail = p
}

func (q *partQueue) remove(p *part) {
	if p.prev == nil {
		q.head = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		q.tail = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.prev, p.next = nil, nil
}
