package xfer

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// A post of a prepared transfer is a source of its own: it takes turns with transfers by its own size, and its operations
// are told from those of other posts of the same list.

// addPost queues a post and posts what fits. The caller holds the posts' lock.
func (q *outQueue) addPost(r *post) {
	q.mu.Lock()
	failed := q.post(&r.sender)
	q.mu.Unlock()
	q.fail(failed)
}

// cancelPost takes what is left of a post out of the queue and cancels its posted operations, whose completions follow. It
// returns the parts that were never posted.
func (q *outQueue) cancelPost(r *post) []outPart {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.abandon(&r.sender)
}

func (r *post) place() *sender { return &r.sender }
func (r *post) payer() *client { return r.s.p.client }

// next is the next operation's part; false: there is none.
func (r *post) next() (outPart, bool) {
	if n := len(r.back); n > 0 {
		return r.back[n-1], true
	}
	if r.token == len(r.s.tokens) {
		return outPart{}, false
	}
	t := r.s.tokens[r.token]
	return outPart{t.layer, t.first + r.skip, min(t.count-r.skip, r.s.p.plan.most())}, true
}

// step goes behind the next part.
func (r *post) step(x outPart) {
	if n := len(r.back); n > 0 {
		r.back = r.back[:n-1]
		return
	}
	if r.skip += x.count; r.skip == r.s.tokens[r.token].count {
		r.token, r.skip = r.token+1, 0
	}
}

func (r *post) cost(x outPart) uint64 { return r.s.p.plan.cost(x.layer, x.first, x.count) }

// Next implements fair.Source.
func (r *post) Next() uint64 {
	x, ok := r.next()
	if !ok {
		return 0
	}
	return r.cost(x)
}

// Left implements fair.Source.
func (r *post) Left() uint64 { return r.unposted }

func (r *post) take(dst []rdma.Range) (rdma.Op, outPart) {
	p := r.s.p
	x, _ := r.next()
	r.step(x)
	r.unposted -= min(r.unposted, r.cost(x))
	return rdma.Op{Kind: p.opKind(), Local: p.region.inner[p.ls.provider], Remote: p.key,
		Ranges: p.plan.append(dst, x.layer, x.first, x.count), Tag: p.plan.tag(x.layer, x.first, x.count)}, x
}

func (r *post) giveBack(x outPart) {
	r.unposted += r.cost(x)
	r.back = append(r.back, x)
}

func (r *post) drop() (parts []outPart) {
	for x, ok := r.next(); ok; x, ok = r.next() {
		r.step(x)
		parts = append(parts, x)
	}
	r.unposted = 0
	return parts
}

func (r *post) waiting() (ops int) {
	most := uint64(r.s.p.plan.most())
	for i := r.token; i < len(r.s.tokens); i++ {
		ops += int((uint64(r.s.tokens[i].count) + most - 1) / most)
	}
	return ops + len(r.back)
}

func (r *post) ended(x outPart, ev *rdma.Event) {
	r.s.p.ls.metrics.completed(r.s.p, ev)
	code := ev.Status
	if code == fault.Closed { // this node closes a session only when its link has ended
		code = fault.PeerLost
	}
	r.partEnded(x, code, ev.Wrote)
}

func (r *post) lost(x outPart, code fault.Code) { r.partEnded(x, code, false) }
