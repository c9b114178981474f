package shm

import (
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/shm/internal/copykernel"
)

const (
	// turn is how much of a task a worker takes at a time. What is left goes to the end of the queue, so that a large
	// operation does not hold up others, and a second worker can share it.
	turn = 1 << 20
	// inlineLen is the largest task that whoever receives it copies at once: waking a worker costs more.
	inlineLen = 64 << 10
)

// entrance is the gate of this side's memory.
type entrance interface {
	enter() fault.Code // 0: inside, leave must follow. Else why not
	leave()
}

// task is one frame's copy: ranges between this node's memory and the peer's.
type task struct {
	dst, src memory
	pieces   []piece
	bytes    uint64
	stream   bool
	gate     entrance   // of this side's memory
	permit   permit     // for the peer's
	void     fault.Code // what a permission that is gone means; 0: what it says itself
	over     func() bool
	done     func(*task) // once, when no worker has it any more

	// Under the pool's lock.
	at      cursor
	left    uint64 // bytes that no worker has taken
	workers int
	status  fault.Code
	fault   error // of a MemoryFault
	placed  uint64
	wrote   bool
	next    *task

	peer   *foreign
	owner  any // *inbound or *op
	events *outlet
}

// cursor is a place in a list of pieces: piece i, byte off of it.
type cursor struct {
	i   int
	off uint64
}

var tasks = sync.Pool{New: func() any { return new(task) }}

func newTask() *task {
	t := tasks.Get().(*task)
	*t = task{pieces: t.pieces[:0]}
	return t
}

func (t *task) release() {
	*t = task{pieces: t.pieces[:0]}
	tasks.Put(t)
}

// pool is the provider's workers and their queue.
type pool struct {
	mu         sync.Mutex
	wake       sync.Cond
	head, tail *task
	offered    jobQueue
	jobsTurn   bool      // a job goes before a task
	copiers    []*copier // of those who call Move
	workers    int
	stopped    bool
	wg         sync.WaitGroup
}

func newPool(workers int) *pool {
	p := &pool{workers: workers}
	p.wake.L = &p.mu
	for range workers {
		p.wg.Go(p.work)
	}
	return p
}

// stop ends the workers. No task may be queued any more.
func (p *pool) stop() {
	p.mu.Lock()
	p.stopped = true
	p.wake.Broadcast()
	p.mu.Unlock()
	p.wg.Wait()
	for _, c := range p.copiers {
		c.close()
	}
}

func (p *pool) push(t *task) {
	t.next = nil
	if p.tail == nil {
		p.head = t
	} else {
		p.tail.next = t
	}
	p.tail = t
	p.wake.Signal()
}

// add gives a task to the workers, or does it with c when it is small.
func (p *pool) add(t *task, c *copier) {
	t.left = t.bytes
	if t.bytes <= inlineLen {
		r := share{n: t.bytes}
		t.left, t.workers = 0, 1
		c.run(t, &r)
		p.finish(t, &r)
		return
	}
	p.mu.Lock()
	over := t.over()
	if !over {
		p.push(t)
	}
	p.mu.Unlock()
	if over { // drop does not find it any more
		t.left, t.status = 0, fault.PeerLost
		t.done(t)
	}
}

// drop ends what is queued of a session that is over: no worker may be free for it, since they may be bringing events to the user,
// who closes the session from there.
func (p *pool) drop(events *outlet) {
	var ended *task
	p.mu.Lock()
	for x := p.head; x != nil; {
		next := x.next
		if x.events == events {
			p.remove(x)
			if x.left = 0; x.status == 0 {
				x.status = fault.PeerLost
			}
			if x.workers == 0 { // else the last of them ends it
				x.next, ended = ended, x
			}
		}
		x = next
	}
	p.mu.Unlock()
	for ended != nil {
		x := ended
		ended = x.next
		x.done(x)
	}
}

// share is what one worker does of a task in one turn, and what came of it.
type share struct {
	at     cursor
	n      uint64
	status fault.Code
	fault  error
	placed uint64
	wrote  bool
}

func (p *pool) work() {
	copykernel.Guard(true)
	c := newCopier()
	defer c.close()
	for {
		p.mu.Lock()
		for p.head == nil && p.offered.head == nil && !p.stopped {
			p.wake.Wait()
		}
		if j := p.nextJob(); j != nil {
			p.mu.Unlock()
			j.work(c, turn)
			i := j.i
			j.release()
			i.t.events.bring()
			i.events.bring()
			continue
		}
		t := p.head
		if t == nil {
			over := p.stopped
			p.mu.Unlock()
			if over {
				return
			}
			continue
		}
		if p.head = t.next; p.head == nil {
			p.tail = nil
		}
		r := share{at: t.at, n: min(t.left, turn)}
		t.at.forward(t.pieces, r.n)
		t.left -= r.n
		t.workers++
		if t.left > 0 {
			p.push(t)
		}
		p.mu.Unlock()
		events := t.events // the task may be another's when it has ended
		c.run(t, &r)
		p.finish(t, &r)
		if events != nil {
			events.bring()
		}
	}
}

// finish adds a share to its task and ends the task with the last.
func (p *pool) finish(t *task, r *share) {
	p.mu.Lock()
	t.workers--
	t.placed += r.placed
	t.wrote = t.wrote || r.wrote
	if r.status != 0 && t.status == 0 {
		t.status, t.fault = r.status, r.fault
		if t.left > 0 { // it is queued: the rest is not done
			p.remove(t)
			t.left = 0
		}
	}
	last := t.left == 0 && t.workers == 0
	p.mu.Unlock()
	if last {
		t.done(t)
	}
}

func (p *pool) remove(t *task) {
	var before *task
	for x := p.head; x != t; x = x.next {
		before = x
	}
	if before == nil {
		p.head = t.next
	} else {
		before.next = t.next
	}
	if p.tail == t {
		p.tail = before
	}
}

// forward moves the cursor n bytes on.
func (c *cursor) forward(pieces []piece, n uint64) {
	for n > 0 {
		k := pieces[c.i].len - c.off
		if k > n {
			c.off += n
			return
		}
		n -= k
		*c = cursor{i: c.i + 1}
	}
}

// run copies a share, chunk by chunk: this side's gate, then the peer's permission, the copy, the permission again.
func (c *copier) run(t *task, r *share) {
	cut := &c.cut
	for r.n > 0 && r.status == 0 {
		n, sum := 0, uint64(0)
		for at := r.at; n < len(cut) && sum < min(r.n, chunk); n++ {
			x := t.pieces[at.i]
			x = piece{x.dst + at.off, x.src + at.off, min(x.len-at.off, min(r.n, chunk)-sum)}
			cut[n] = x
			sum += x.len
			at.forward(t.pieces, x.len)
			r.at = at
		}
		r.chunk(t, c, cut[:n])
		if r.status == 0 {
			r.placed += sum
		}
		r.n -= sum
	}
}

func (r *share) chunk(t *task, c *copier, pieces []piece) {
	if t.over() {
		r.status = fault.PeerLost
		return
	}
	if r.status = t.gate.enter(); r.status != 0 {
		return
	}
	defer t.gate.leave()
	st := t.permit.enter()
	if st == 0 {
		r.wrote = true
		err := c.copy(&t.dst, &t.src, pieces, t.stream)
		if st = t.permit.leave(); st == 0 && err != nil {
			r.status, r.fault = fault.CodeOf(err), err
		}
	}
	if st != 0 && t.void != 0 {
		st = t.void
	}
	if st != 0 {
		r.status = st
	}
}
