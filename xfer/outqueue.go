package xfer

import (
	"slices"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// What one operation carries at most. A frame of the tcp provider describes up to 256 ranges, and 1 MiB is where the
// cost of an operation is lost in that of its bytes.
const (
	opRanges = 256
	opBytes  = 1 << 20
	opBatch  = 16 // operations in one Post
)

// outQueue turns the parts of all transfers on a link into operations, a transfer in turn, and posts them as far as the
// provider's window goes.
type outQueue struct {
	e    *Engine
	link Link
	init rdma.Initiator
	caps rdma.Caps

	mu     sync.Mutex
	turn   []*outParts // transfers with parts to post, in turn
	of     map[*transfer]*outParts
	slots  []slot
	free   []uint32
	flying int
	bytes  uint64 // of what is flying
	closed bool
	ended  bool                  // the session said so before the link did
	ranges [opBatch][]rdma.Range // scratch; Post copies
	ops    [opBatch]rdma.Op
}

// outPart is (layer, first, count) of a transfer.
type outPart struct {
	layer, first, count uint32
	run                 *post // of a prepared transfer: the post that it belongs to
}

// outParts is what a transfer has in the queue.
type outParts struct {
	p       *transfer
	parts   []outPart
	flying  map[uint32]struct{} // its slots
	waiting bool                // it stands in turn
}

// slot is a posted operation; its index and age make the operation's id.
type slot struct {
	owner *outParts
	part  outPart
	bytes uint64
	age   uint32
}

func newOutQueue(e *Engine, link Link, init rdma.Initiator, caps rdma.Caps) *outQueue {
	return &outQueue{e: e, link: link, init: init, caps: caps, of: map[*transfer]*outParts{}}
}

// add queues a part and posts what fits. The caller holds the transfer's lock.
func (q *outQueue) add(p *transfer, layer, first, count uint32) {
	q.mu.Lock()
	o := q.of[p]
	if o == nil {
		o = &outParts{p: p, flying: map[uint32]struct{}{}}
		q.of[p] = o
	}
	o.parts = append(o.parts, outPart{layer: layer, first: first, count: count})
	if !o.waiting {
		o.waiting = true
		q.turn = append(q.turn, o)
	}
	failed := q.pump()
	q.mu.Unlock()
	q.fail(failed)
}

// addPost queues a post of a prepared transfer and posts what fits. The caller holds the posts' lock.
func (q *outQueue) addPost(p *transfer, parts []outPart, run *post) {
	q.mu.Lock()
	o := q.of[p]
	if o == nil {
		o = &outParts{p: p, flying: map[uint32]struct{}{}}
		q.of[p] = o
	}
	for _, x := range parts {
		x.run = run
		o.parts = append(o.parts, x)
	}
	if !o.waiting {
		o.waiting = true
		q.turn = append(q.turn, o)
	}
	failed := q.pump()
	q.mu.Unlock()
	q.fail(failed)
}

// cancel takes a transfer's parts out of the queue and cancels its posted operations, whose completions follow. It
// returns the parts that were never posted.
func (q *outQueue) cancel(p *transfer) []outPart {
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.of[p]
	if o == nil {
		return nil
	}
	parts := o.parts
	o.parts = nil
	if len(o.flying) == 0 {
		delete(q.of, p)
		return parts
	}
	ids := make([]uint64, 0, len(o.flying))
	for i := range o.flying {
		ids = append(ids, opID(i, q.slots[i].age))
	}
	q.init.Cancel(ids...)
	return parts
}

func opID(slot, age uint32) uint64 { return uint64(age)<<32 | uint64(slot) }

// failure is a part that ends without a completion of the provider.
type failure struct {
	p    *transfer
	part outPart
	code fault.Code
}

// fail tells transfers about parts that could not be posted; the callers hold no queue lock but perhaps a transfer's own.
func (q *outQueue) fail(parts []failure) {
	if len(parts) == 0 {
		return
	}
	q.e.wg.Go(func() {
		for _, f := range parts {
			if f.part.run != nil {
				f.part.run.partEnded(f.part, f.code, false)
				continue
			}
			f.p.step(protocol.TransferEvent{Kind: protocol.TransferCompletion, Layer: f.part.layer, First: f.part.first, Count: f.part.count, Code: f.code})
		}
	})
}

// pump posts until the window is full or nothing is left. The caller holds q.mu.
func (q *outQueue) pump() (failed []failure) {
	for !q.closed && len(q.turn) > 0 {
		n, full := q.build()
		if n == 0 && full {
			return failed
		}
		if n == 0 {
			continue
		}
		posted, err := q.init.Post(q.ops[:n])
		for i := n - 1; i >= posted; i-- { // not taken: back to the front of its transfer's parts
			s := uint32(q.ops[i].ID)
			o, part := q.slots[s].owner, q.slots[s].part
			q.release(s)
			if i == posted && err != nil {
				code := fault.CodeOf(err)
				if code == fault.Closed {
					code = fault.PeerLost
				}
				if code == fault.PeerLost && !q.ended { // its EventDown may have come before LinkUp: no transfer is to find it again
					q.ended = true
					q.e.wg.Go(func() { q.link.Close(fault.New(fault.PeerLost, "session", "the payload session ended")) })
				}
				failed = append(failed, failure{o.p, part, code})
				continue
			}
			o.parts = slices.Insert(o.parts, 0, part)
			q.of[o.p] = o // release may have dropped it
			if !o.waiting {
				o.waiting = true
				q.turn = append(q.turn, o)
			}
		}
		if posted < n && err == nil {
			return failed
		}
	}
	if q.closed {
		failed = append(failed, q.drainParts()...)
	}
	return failed
}

// build makes up to opBatch operations, taking transfers in turn, and returns their number. It stops where the provider's
// window is full: what Post would refuse would be worked out for every completion again.
func (q *outQueue) build() (n int, full bool) {
	for n < opBatch && len(q.turn) > 0 {
		o := q.turn[0]
		if len(o.parts) == 0 {
			o.waiting = false
			q.turn = q.turn[1:]
			continue
		}
		p := o.p
		part := &o.parts[0]
		count := min(part.count, p.plan.most())
		bytes := p.plan.bytes(part.layer, part.first, count)
		if q.flying > 0 && (q.flying >= q.caps.MaxInFlight || q.bytes+bytes > q.caps.MaxInFlightLen) {
			return n, true
		}
		q.turn = q.turn[1:]
		take := outPart{part.layer, part.first, count, part.run}
		part.first += count
		if part.count -= count; part.count == 0 {
			o.parts = o.parts[1:]
		}
		if o.waiting = len(o.parts) > 0; o.waiting {
			q.turn = append(q.turn, o)
		}
		q.ranges[n] = p.plan.append(q.ranges[n][:0], take.layer, take.first, count)
		q.ops[n] = rdma.Op{Kind: p.opKind(), ID: q.acquire(o, take, bytes), Local: p.region.inner[p.ls.provider], Remote: p.key,
			Ranges: q.ranges[n], Tag: p.plan.tag(take.layer, take.first, count)}
		n++
	}
	return n, false
}

func (q *outQueue) acquire(o *outParts, part outPart, bytes uint64) uint64 {
	var i uint32
	if n := len(q.free); n > 0 {
		i, q.free = q.free[n-1], q.free[:n-1]
	} else {
		i = uint32(len(q.slots))
		q.slots = append(q.slots, slot{})
	}
	q.slots[i].owner, q.slots[i].part, q.slots[i].bytes = o, part, bytes
	o.flying[i] = struct{}{}
	q.flying++
	q.bytes += bytes
	return opID(i, q.slots[i].age)
}

func (q *outQueue) release(i uint32) {
	s := &q.slots[i]
	delete(s.owner.flying, i)
	if len(s.owner.flying) == 0 && len(s.owner.parts) == 0 {
		delete(q.of, s.owner.p)
	}
	s.owner = nil
	s.age++
	q.free = append(q.free, i)
	q.flying--
	q.bytes -= s.bytes
}

// completed takes a completion of the provider, tells its transfer and posts what fits now.
func (q *outQueue) completed(ev *rdma.Event) {
	q.mu.Lock()
	i, age := uint32(ev.Op), uint32(ev.Op>>32)
	if int(i) >= len(q.slots) || q.slots[i].owner == nil || q.slots[i].age != age {
		q.mu.Unlock()
		q.e.o.Logger.Error("completion of an unknown operation", "session", uint64(ev.Session))
		return
	}
	p, part := q.slots[i].owner.p, q.slots[i].part
	q.release(i)
	failed := q.pump()
	over := q.closed && q.flying == 0
	q.mu.Unlock()
	p.ls.metrics.completed(p, ev)
	code := ev.Status
	if code == fault.Closed { // this node closes a session only when its link has ended
		code = fault.PeerLost
	}
	if part.run != nil {
		part.run.partEnded(part, code, ev.Wrote)
	} else {
		p.step(protocol.TransferEvent{Kind: protocol.TransferCompletion, Layer: part.layer, First: part.first, Count: part.count, Code: code, Wrote: ev.Wrote})
	}
	q.fail(failed)
	if over {
		q.e.dropSession(ev.Session)
	}
}

// shut ends the queue with its link: nothing is posted any more, what was never posted fails. It reports whether no
// operation is in flight.
func (q *outQueue) shut() bool {
	q.mu.Lock()
	q.closed = true
	failed := q.drainParts()
	over := q.flying == 0
	q.mu.Unlock()
	q.fail(failed)
	return over
}

func (q *outQueue) drainParts() (failed []failure) {
	for _, o := range q.of {
		for _, part := range o.parts {
			failed = append(failed, failure{o.p, part, fault.PeerLost})
		}
		o.parts = nil
		if len(o.flying) == 0 {
			delete(q.of, o.p)
		}
	}
	q.turn = nil
	return failed
}
