package xfer

import (
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/fair"
)

// What one operation carries at most. A frame of the tcp provider describes up to 256 ranges, and 1 MiB is where the
// cost of an operation is lost in that of its bytes.
const (
	opRanges = 256
	opBytes  = 1 << 20
	opBatch  = 16 // operations in one Post
)

// What an operation and a range of it cost besides their bytes, in bytes that could have moved meanwhile. Measured: pieces of
// 4 KiB over TCP take about 0.2 us longer each than the same bytes in one piece.
const (
	opCost    = 4 << 10
	rangeCost = 1 << 10
)

// What may be in flight on a link, as costs. A provider takes what it has in order, so this is what stands before a small
// transfer: bulkWindow is two milliseconds of 4 GB/s. Over TCP 2 MiB were as fast as 64; over shm 8 and 16 MiB were alike and within a
// run's noise of 64, 4 MiB slower by an eighth and 2 MiB by a quarter. A device of 50 GB/s moves 8 MiB in 160 us, ten of its round trips.
const (
	bulkWindow = 8 << 20
	fullWindow = 2 * bulkWindow
	smallLeft  = 512 << 10 // 64 blocks of 4 KiB in two planes, with what they cost besides their bytes
	quantum    = 256 << 10
	smallShare = 3
)

func queueLimits(c rdma.Caps) fair.Limits {
	return fair.Limits{Quantum: quantum, Small: smallLeft, Window: fullWindow, Bulk: max(1, min(bulkWindow, c.MaxInFlightLen/2)),
		Ops: c.MaxInFlight, BulkOps: c.MaxInFlight - c.MaxInFlight/8, Share: smallShare}
}

// source is who has operations to post on a link. A transfer is one (outtransfer.go); whoever else posts on links is another, and
// then takes turns with transfers and is found by its completions, without another line here. The queue calls all but
// ended and lost under its lock: they must not call it back, block or allocate for each operation.
type source interface {
	fair.Source
	// place is the source's own sender, and payer whose turn it takes.
	place() *sender
	payer() *client
	// take makes the next operation, but for its ID; dst has room for the ranges. The part comes back in the other calls.
	take(dst []rdma.Range) (rdma.Op, outPart)
	// giveBack makes the part the next one again: the provider did not take it.
	giveBack(outPart)
	// drop gives up what was not posted and returns it.
	drop() []outPart
	// waiting is how many operations are not posted.
	waiting() int
	// ended takes the completion of an operation. It comes once for each that was posted, without a lock.
	ended(outPart, *rdma.Event)
	// lost takes the end of a part that was not posted and was not dropped by its source. It comes without a lock.
	lost(outPart, fault.Code)
}

// outPart is (layer, first, count) of a transfer; to the queue only a name.
type outPart struct{ layer, first, count uint32 }

// sender is a source's place in a queue. It is known to the queue while it has something queued or in flight.
type sender struct {
	src    source
	flow   fair.Flow[*client]
	newest uint32 // slot, plus 1; 0: none
	flying int
}

// outQueue posts the operations of all sources on a link as far as the windows go, in the order that package fair decides.
type outQueue struct {
	e    *Engine
	link Link
	init rdma.Initiator
	caps rdma.Caps

	mu      sync.Mutex
	order   *fair.Queue[*client]
	senders map[*sender]struct{}
	slots   slots
	closed  bool
	ended   bool                  // the session said so before the link did
	ranges  [opBatch][]rdma.Range // scratch; Post copies
	ops     [opBatch]rdma.Op
}

func newOutQueue(e *Engine, link Link, init rdma.Initiator, caps rdma.Caps) *outQueue {
	return &outQueue{e: e, link: link, init: init, caps: caps, order: fair.New[*client](queueLimits(caps)), senders: map[*sender]struct{}{}}
}

// post takes notice that a source has more, and posts what fits. The caller holds q.mu.
func (q *outQueue) post(s *sender) (failed []failure) {
	q.update(s)
	return q.pump()
}

// update looks at a source again. The caller holds q.mu.
func (q *outQueue) update(s *sender) {
	if !s.flow.Joined() {
		q.order.Join(&s.flow, s.src.payer(), s.src)
		q.senders[s] = struct{}{}
	}
	q.order.Update(&s.flow)
	if s.flying == 0 && s.src.Next() == 0 {
		q.order.Leave(&s.flow)
		delete(q.senders, s)
	}
}

// abandon takes what a source has not posted and cancels what it has, whose completions follow. The caller holds q.mu.
func (q *outQueue) abandon(s *sender) []outPart {
	if !s.flow.Joined() {
		return nil
	}
	parts := s.src.drop()
	q.update(s)
	if s.flying > 0 {
		q.init.Cancel(q.slots.ids(s)...)
	}
	return parts
}

// failure is a part that ends without a completion of the provider.
type failure struct {
	src  source
	part outPart
	code fault.Code
}

// fail tells sources about parts that could not be posted; the callers hold no queue lock but perhaps a transfer's own.
func (q *outQueue) fail(parts []failure) {
	if len(parts) == 0 {
		return
	}
	q.e.wg.Go(func() {
		for _, f := range parts {
			f.src.lost(f.part, f.code)
		}
	})
}

// pump posts until the window is full or nothing is left. The caller holds q.mu.
func (q *outQueue) pump() (failed []failure) {
	for !q.closed {
		n := q.build()
		if n == 0 {
			return failed
		}
		posted, err := q.init.Post(q.ops[:n])
		for i := n - 1; i >= posted; i-- { // not taken: back to the front of its source's parts
			s, part, flight := q.slots.release(uint32(q.ops[i].ID))
			q.order.Undo(&s.flow, flight)
			if i == posted && err != nil {
				code := fault.CodeOf(err)
				if code == fault.Closed {
					code = fault.PeerLost
				}
				if code == fault.PeerLost && !q.ended { // its EventDown may have come before LinkUp: no transfer is to find it again
					q.ended = true
					q.e.wg.Go(func() { q.link.Close(fault.New(fault.PeerLost, "session", "the payload session ended")) })
				}
				failed = append(failed, failure{s.src, part, code})
			} else {
				s.src.giveBack(part)
			}
			q.update(s)
		}
		if posted < n && err == nil {
			return failed
		}
	}
	return append(failed, q.drain()...)
}

// build makes up to opBatch operations and returns their number.
func (q *outQueue) build() (n int) {
	for n < opBatch {
		// What Post would refuse would be worked out for every completion again.
		if q.slots.flying > 0 && q.slots.bytes >= q.caps.MaxInFlightLen {
			break
		}
		flow, flight := q.order.Pick()
		if flow == nil {
			break
		}
		s := flow.Source().(source).place()
		op, part := s.src.take(q.ranges[n][:0])
		q.ranges[n] = op.Ranges
		op.ID = q.slots.acquire(s, part, op.Bytes(), flight)
		q.ops[n] = op
		q.order.Update(&s.flow)
		n++
	}
	return n
}

// completed takes a completion of the provider, tells its source and posts what fits now.
func (q *outQueue) completed(ev *rdma.Event) {
	q.mu.Lock()
	if !q.slots.posted(ev.Op) {
		q.mu.Unlock()
		q.e.o.Logger.Error("completion of an unknown operation", "session", uint64(ev.Session))
		return
	}
	s, part, flight := q.slots.release(uint32(ev.Op))
	q.order.Done(flight)
	q.update(s)
	failed := q.pump()
	over := q.closed && q.slots.flying == 0
	q.mu.Unlock()
	s.src.ended(part, ev)
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
	failed := q.drain()
	over := q.slots.flying == 0
	q.mu.Unlock()
	q.fail(failed)
	return over
}

// drain gives up everything that was not posted. The caller holds q.mu.
func (q *outQueue) drain() (failed []failure) {
	for s := range q.senders {
		for _, part := range s.src.drop() {
			failed = append(failed, failure{s.src, part, fault.PeerLost})
		}
		q.update(s)
	}
	return failed
}

// depth counts the operations that are posted, and those that what waits will be.
func (q *outQueue) depth() (posted, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for s := range q.senders {
		waiting += s.src.waiting()
	}
	return q.slots.flying, waiting
}
