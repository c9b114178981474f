package simfabric

import (
	"container/heap"

	"github.com/kvxfer/kvxfer/rdma"
)

// event is something that happens at an instant, at a node and perhaps in a session, which can hold it back.
type event struct {
	at     rdma.Instant
	number uint64
	node   *Node
	s      *session // nil: a stalled session does not hold it back
	do     func()   // under Fabric.mu
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].number < h[j].number
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}

// in lets something happen after a delay. The caller holds f.mu.
func (f *Fabric) in(delay rdma.Instant, n *Node, s *session, do func()) {
	if f.closed {
		return
	}
	f.number++
	heap.Push(&f.queue, event{at: f.opt.Clock.Now() + delay, number: f.number, node: n, s: s, do: do})
	f.arm()
}

// again puts what was held back into the queue, due now, in its old order.
func (f *Fabric) again(held *[]event) {
	for _, e := range *held {
		f.in(0, e.node, e.s, e.do)
	}
	*held = nil
}

// arm sets the timer for the first event.
func (f *Fabric) arm() {
	if f.running || f.closed || len(f.queue) == 0 {
		return
	}
	at := f.queue[0].at
	if f.stop != nil {
		if f.armed <= at {
			return
		}
		f.stop()
	}
	f.armed, f.stop = at, f.opt.Clock.AfterFunc(at, f.fire)
}

// fire runs what is due. The lock is given up between events, so that calls come in between.
func (f *Fabric) fire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running {
		return
	}
	f.running, f.stop = true, nil
	for !f.closed && len(f.queue) > 0 && f.queue[0].at <= f.opt.Clock.Now() {
		f.run(heap.Pop(&f.queue).(event))
		f.mu.Unlock()
		f.mu.Lock()
	}
	f.running = false
	f.arm()
}

func (f *Fabric) run(e event) {
	switch {
	case e.node.dead:
	case e.node.paused:
		e.node.held = append(e.node.held, e)
	case e.s != nil && e.s.stalled > 0:
		e.s.held = append(e.s.held, e)
	default:
		e.do()
	}
}

// packet is what travels in a session.
type packet struct {
	s        *session
	from, to *Node
	what     string // for the history
	op       *op
	index    int
	deliver  func() // at to
	losses   int
}

// transmit puts a packet into the fabric, where its fate is drawn. Nothing leaves a node that is dead, or a session
// that is over.
func (f *Fabric) transmit(p packet) {
	if p.from.dead || p.s.over {
		return
	}
	x := &f.opt.Faults
	if f.hit(x.Loss) {
		f.note("lose", p.from, p.s, p.op.id, p.index)
		if p.losses++; p.losses == x.MaxLosses {
			p.s.lose()
			return
		}
		f.in(rdma.Instant(x.Retry), p.from, nil, func() {
			if !p.op.done { // nobody waits for it any more
				f.transmit(p)
			}
		})
		return
	}
	deliver := func() {
		f.note(p.what, p.to, p.s, p.op.id, p.index)
		p.deliver()
	}
	if f.hit(x.Hold) {
		f.note("hold", p.from, p.s, p.op.id, p.index)
		f.in(f.lateness(), p.to, p.s, deliver)
	} else {
		f.in(f.transit(), p.to, p.s, deliver)
	}
	if f.hit(x.Duplicate) {
		f.note("copy", p.from, p.s, p.op.id, p.index)
		f.in(f.transit(), p.to, p.s, deliver)
	}
	if f.hit(x.Late) {
		f.note("late", p.from, p.s, p.op.id, p.index)
		f.in(f.lateness(), p.to, p.s, deliver)
	}
}
