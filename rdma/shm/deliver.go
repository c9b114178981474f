package shm

import (
	"sync"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/eventqueue"
)

// Deliver makes the provider bring its events: rdma.Deliverer. Whichever of its goroutines has found something brings it, so that no
// other is woken. What a call of the user's own has ended comes from a goroutine made for it.
func (p *Provider) Deliver(take func([]rdma.Event)) { p.take = take }

var _ rdma.Deliverer = (*Provider)(nil)

// outlet is what a session has to say to its user. Without Deliver it is the provider's queue.
type outlet struct {
	p *Provider

	mu       sync.Mutex
	room     sync.Cond // it was emptied, or somebody in hold is over
	bringing bool      // one goroutine at a time brings
	due      []rdma.Event
	spare    []rdma.Event
}

func (b *outlet) init(p *Provider) { b.p, b.room.L = p, &b.mu }

// add queues events, which nothing overtakes. Any lock may be held. bring or hand must follow without one.
func (b *outlet) add(evs ...rdma.Event) {
	if b.p.take == nil {
		b.p.events.Push(evs...)
		return
	}
	b.mu.Lock()
	b.due = append(b.due, evs...)
	b.mu.Unlock()
}

// begin makes the caller the one who brings; false: nothing is due, or somebody is at it.
func (b *outlet) begin() bool {
	if b.p.take == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bringing || len(b.due) == 0 {
		return false
	}
	b.bringing = true
	return true
}

// run brings until nothing is due.
func (b *outlet) run() {
	for {
		b.mu.Lock()
		evs := b.due
		if len(evs) == 0 {
			b.bringing = false
			b.mu.Unlock()
			return
		}
		b.due = b.spare[:0]
		b.spare = nil
		b.room.Broadcast()
		b.mu.Unlock()
		b.p.take(evs)
		b.mu.Lock()
		b.spare = evs
		b.mu.Unlock()
	}
}

// bring is for the provider's own goroutines that are no member of a crew.
func (b *outlet) bring() {
	if b.begin() {
		b.run()
	}
}

// hand is for those that are the user's.
func (b *outlet) hand() {
	if b.begin() {
		go b.run()
	}
}

// hold waits while too much is due, or until over says so: see eventqueue.
func (b *outlet) hold(over func() bool) {
	if b.p.take == nil {
		b.p.events.Hold(over)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.due) >= eventqueue.MaxEvents && !over() {
		b.room.Wait()
	}
}

// letGo makes those in hold ask again whether it is over.
func (b *outlet) letGo() {
	b.p.events.LetGo()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.room.Broadcast()
}

// crew counts who uses a session's pages and mappings, so that its Close can wait for them. Whoever brings events is none of them
// meanwhile: the user may call Close from there.
type crew struct {
	mu   sync.Mutex
	gone sync.Cond
	n    int
	over bool
}

func (c *crew) init() { c.gone.L = &c.mu }

// join counts n more; false: the session is over.
func (c *crew) join(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.n += n
	}
	return !c.over
}

func (c *crew) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 {
		c.gone.Broadcast()
	}
}

// end waits for everybody to leave; nobody joins any more.
func (c *crew) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.over = true; c.n > 0; {
		c.gone.Wait()
	}
}

// deliver brings what is due, for a member of the crew that holds no lock. false: the session is over meanwhile, and the caller is
// no member any more.
func (s *session) deliver() bool {
	if !s.events.begin() {
		return true
	}
	s.crew.leave()
	s.events.run()
	return s.crew.join(1)
}
