package tcp

import (
	"sync"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/eventqueue"
)

// outbox is what a session has to say to its user. With Deliver whoever of the provider's threads finds something in it
// brings it, one at a time; without, it is the provider's queue.
type outbox struct {
	p *Provider

	mu       sync.Mutex
	room     sync.Cond // it was emptied, or somebody in hold is over
	bringing bool
	due      []rdma.Event
	spare    []rdma.Event
}

func (b *outbox) init(p *Provider) { b.p, b.room.L = p, &b.mu }

// add queues events, which nothing overtakes. Any lock may be held: it is the last one.
func (b *outbox) add(evs ...rdma.Event) {
	if b.p.take == nil {
		b.p.events.Push(evs...)
		return
	}
	b.mu.Lock()
	b.due = append(b.due, evs...)
	b.mu.Unlock()
}

// begin gives the caller what is due, who brings it and calls begin again; nil: nothing is, or somebody else is at it.
func (b *outbox) begin(again bool) []rdma.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bringing && !again {
		return nil
	}
	if b.bringing = len(b.due) > 0; !b.bringing {
		return nil
	}
	evs := b.due
	b.due, b.spare = b.spare[:0], evs
	b.room.Broadcast()
	return evs
}

// hold waits while too much is due, or until over says so: see eventqueue.
func (b *outbox) hold(over func() bool) {
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
func (b *outbox) letGo() {
	b.p.events.LetGo()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.room.Broadcast()
}

// crew counts who is at work for a session, so that its Close can wait for them. Whoever brings events is not at work
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

// deliver brings what is due, for a member of the crew, who holds no lock. false: the session is over meanwhile, and the caller is
// no member any more. count, where it is not nil, is told the completions.
func (c *crew) deliver(b *outbox, count *int) bool {
	if b.p.take == nil {
		return true
	}
	evs := b.begin(false)
	if evs == nil {
		return true
	}
	c.leave()
	b.bring(evs, count)
	return c.join(1)
}

// bring hands events to the user until none are due.
func (b *outbox) bring(evs []rdma.Event, count *int) {
	for ; evs != nil; evs = b.begin(true) {
		if count != nil {
			for k := range evs {
				if evs[k].Kind == rdma.EventCompletion {
					*count++
				}
			}
		}
		b.p.take(evs)
	}
}

// hand has what is due brought by another goroutine: the caller is the user's.
func (b *outbox) hand() {
	if b.p.take == nil {
		return
	}
	if evs := b.begin(false); evs != nil {
		go b.bring(evs, nil)
	}
}

// Deliver makes the provider bring its events. What a call of the user's own ends (Cancel, Close) comes from a goroutine of
// its own.
func (p *Provider) Deliver(take func([]rdma.Event)) { p.take = take }

var _ rdma.Deliverer = (*Provider)(nil)
