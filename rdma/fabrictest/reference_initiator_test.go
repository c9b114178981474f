package fabrictest_test

import (
	"slices"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

type refInitiator struct {
	p    *refProvider
	id   rdma.SessionID
	link *link

	mu      sync.Mutex
	pending map[uint64]*refOp
	bytes   uint64
	ended   fault.Code
	count   int
}

type refOp struct {
	i      *refInitiator
	kind   rdma.OpKind
	id     uint64
	local  *refRegion
	key    rdma.Key
	ranges []rdma.Range
	tag    uint64
	bytes  uint64

	mu        sync.Mutex // held while local memory is touched
	ended     bool
	cancelled bool
}

// touch runs a copy from or to local memory unless the operation has ended. The defects named let it happen anyway.
func (o *refOp) touch(f func(), defects ...string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cancelled {
		o.endLocked(fault.Cancelled, true)
	}
	if o.ended && !slices.Contains(defects, o.i.p.defect) {
		return false
	}
	f()
	return true
}

func (o *refOp) end(status fault.Code, wrote bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endLocked(status, wrote)
}

func (o *refOp) endLocked(status fault.Code, wrote bool) {
	if o.ended {
		return
	}
	o.ended = true
	i := o.i
	ev := rdma.Event{Kind: rdma.EventCompletion, Session: i.id, Op: o.id, Status: status}
	if status == 0 {
		ev.Bytes = o.bytes
	} else {
		ev.Wrote = wrote && o.kind == rdma.OpWrite && i.p.defect != "wrote-denied"
	}
	i.mu.Lock()
	defer i.mu.Unlock() // down must not find the operation gone and its completion not said
	delete(i.pending, o.id)
	i.bytes -= o.bytes
	i.count++
	if i.p.defect == "lost-completion" && i.count%150 == 0 {
		return
	}
	i.p.push(ev)
	if i.p.defect == "double-completion" && i.count%150 == 0 {
		i.p.push(ev)
	}
}

func (i *refInitiator) check(o *rdma.Op) error {
	r, ok := o.Local.(*refRegion)
	switch {
	case o.Kind != rdma.OpWrite && o.Kind != rdma.OpRead:
		return fault.Invalid("post", "kind", "must be WRITE or READ")
	case !ok || r.p != i.p:
		return fault.Invalid("post", "local", "must be registered with this provider")
	case len(o.Ranges) > refCaps.MaxRanges:
		return fault.Invalid("post", "ranges", "at most %d", refCaps.MaxRanges)
	}
	n, sum := uint64(len(r.bytes)), uint64(0)
	for _, x := range o.Ranges {
		if x.Local > n || x.Len > n-x.Local {
			return fault.New(fault.OutOfBounds, "post", "local range [%d, +%d) of %d bytes", x.Local, x.Len, n)
		}
		if sum += x.Len; sum > refCaps.MaxOpBytes {
			return fault.Invalid("post", "ranges", "at most %d bytes", refCaps.MaxOpBytes)
		}
	}
	return nil
}

func (i *refInitiator) Post(ops []rdma.Op) (int, error) {
	for n := range ops {
		if err := i.check(&ops[n]); err != nil {
			return n, err
		}
		for {
			took, err := i.take(&ops[n])
			if err != nil {
				return n, err
			}
			if took {
				break
			}
			if i.p.defect != "post-blocks" {
				return n, nil
			}
			time.Sleep(time.Millisecond)
		}
	}
	return len(ops), nil
}

func (i *refInitiator) take(op *rdma.Op) (bool, error) {
	r := op.Local.(*refRegion)
	i.p.mu.Lock()
	defer i.p.mu.Unlock()
	if r.closed && i.ended == 0 {
		return false, fault.New(fault.Closed, "post", "the local region is closed")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended != 0 {
		return false, fault.New(i.ended, "post", "the session has ended")
	}
	b := op.Bytes()
	over := i.bytes+b > refCaps.MaxInFlightLen && i.p.defect != "no-byte-window"
	if len(i.pending) >= refCaps.MaxInFlight || len(i.pending) > 0 && over {
		return false, nil
	}
	o := &refOp{i: i, kind: op.Kind, id: op.ID, local: r, key: op.Remote, ranges: slices.Clone(op.Ranges), tag: op.Tag, bytes: b}
	i.pending[o.id] = o
	i.bytes += b
	i.link.mu.Lock()
	i.link.queue = append(i.link.queue, o)
	i.link.cond.Broadcast()
	i.link.mu.Unlock()
	return true, nil
}

func (i *refInitiator) endWhere(status fault.Code, f func(*refOp) bool) {
	i.mu.Lock()
	var hit []*refOp
	for _, o := range i.pending {
		if f(o) {
			hit = append(hit, o)
		}
	}
	i.mu.Unlock()
	for _, o := range hit {
		o.end(status, true)
	}
}

func (i *refInitiator) Cancel(ids ...uint64) {
	for _, id := range ids {
		i.mu.Lock()
		o := i.pending[id]
		i.mu.Unlock()
		switch {
		case o == nil:
		case i.p.defect == "cancel-waits":
			o.mu.Lock()
			o.cancelled = true // the worker notices when the wire lets it
			o.mu.Unlock()
		default:
			o.end(fault.Cancelled, true)
		}
	}
}

func (i *refInitiator) stop(why fault.Code) (first bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended == 0 {
		i.ended = why
		return true
	}
	if why == fault.Closed {
		i.ended = why
	}
	return false
}

func (i *refInitiator) Close() error {
	first := i.stop(fault.Closed)
	i.endWhere(fault.Closed, func(*refOp) bool { return true })
	i.link.kill()
	if first {
		i.link.t.down()
	}
	return nil
}

func (i *refInitiator) down() {
	if !i.stop(fault.PeerLost) {
		return
	}
	ev := rdma.Event{Kind: rdma.EventDown, Session: i.id, Status: fault.PeerLost}
	if i.p.defect == "down-first" {
		i.p.push(ev)
	}
	i.endWhere(fault.PeerLost, func(*refOp) bool { return true })
	if i.p.defect != "down-first" && i.p.defect != "no-down" {
		i.p.push(ev)
	}
}
