package xfer

import (
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// outTransfer is what a transfer has to post, under the lock of the link's out queue.
type outTransfer struct {
	sender
	p     *transfer
	parts []outPart // from head on
	head  int
	left  uint64 // the cost of all that was not posted, handed over or not
}

// add queues a part and posts what fits. The caller holds the transfer's lock.
func (q *outQueue) add(p *transfer, layer, first, count uint32) {
	q.mu.Lock()
	o := p.out
	if o == nil {
		o = &outTransfer{p: p, left: p.plan.size()}
		o.src, p.out = o, o
	}
	if o.head > 32 && o.head > len(o.parts)/2 {
		o.parts = slices.Delete(o.parts, 0, o.head)
		o.head = 0
	}
	o.parts = append(o.parts, outPart{layer, first, count})
	failed := q.post(&o.sender)
	q.mu.Unlock()
	q.fail(failed)
}

// cancel takes a transfer's parts out of the queue and cancels its posted operations, whose completions follow. It
// returns the parts that were never posted.
func (q *outQueue) cancel(p *transfer) []outPart {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p.out == nil {
		return nil
	}
	return q.abandon(&p.out.sender)
}

// load is what a transfer has with the provider: operations posted, parts queued; and the operations of all transfers on the
// link.
func (q *outQueue) load(p *transfer) (operations, queued, depth int) {
	if q == nil {
		return 0, 0, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if o := p.out; o != nil {
		operations, queued = o.flying, len(o.parts)-o.head
	}
	return operations, queued, q.slots.flying
}

func (o *outTransfer) place() *sender { return &o.sender }
func (o *outTransfer) payer() *client { return o.p.client }

// next is the next operation's part; there is one.
func (o *outTransfer) next() outPart {
	x := o.parts[o.head]
	x.count = min(x.count, o.p.plan.most())
	return x
}

func (o *outTransfer) cost(x outPart) uint64 { return o.p.plan.cost(x.layer, x.first, x.count) }

// Next implements fair.Source.
func (o *outTransfer) Next() uint64 {
	if o.head == len(o.parts) {
		return 0
	}
	return o.cost(o.next())
}

// Left implements fair.Source.
func (o *outTransfer) Left() uint64 { return o.left }

func (o *outTransfer) take(dst []rdma.Range) (rdma.Op, outPart) {
	p, x := o.p, o.next()
	part := &o.parts[o.head]
	part.first += x.count
	if part.count -= x.count; part.count == 0 {
		if o.head++; o.head == len(o.parts) {
			o.parts, o.head = o.parts[:0], 0
		}
	}
	o.left -= min(o.left, o.cost(x))
	return rdma.Op{Kind: p.opKind(), Local: p.region.inner[p.ls.provider], Remote: p.key,
		Ranges: p.plan.append(dst, x.layer, x.first, x.count), Tag: p.plan.tag(x.layer, x.first, x.count)}, x
}

func (o *outTransfer) giveBack(x outPart) {
	o.left += o.cost(x)
	if o.head > 0 {
		o.head--
		o.parts[o.head] = x
		return
	}
	o.parts = slices.Insert(o.parts, 0, x)
}

func (o *outTransfer) drop() []outPart {
	parts := o.parts[o.head:]
	o.parts, o.head = nil, 0
	return parts
}

func (o *outTransfer) waiting() (ops int) {
	most := uint64(o.p.plan.most())
	for _, x := range o.parts[o.head:] {
		ops += int((uint64(x.count) + most - 1) / most)
	}
	return ops
}

func (o *outTransfer) ended(x outPart, ev *rdma.Event) {
	o.p.ls.metrics.completed(o.p, ev)
	code := ev.Status
	if code == fault.Closed { // this node closes a session only when its link has ended
		code = fault.PeerLost
	}
	o.p.step(protocol.TransferEvent{Kind: protocol.TransferCompletion, Layer: x.layer, First: x.first, Count: x.count, Code: code, Wrote: ev.Wrote})
}

func (o *outTransfer) lost(x outPart, code fault.Code) {
	o.p.step(protocol.TransferEvent{Kind: protocol.TransferCompletion, Layer: x.layer, First: x.first, Count: x.count, Code: code})
}
