package shm

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// local is the initiator of a session whose target is of this same provider: two clients of one daemon. Both memories are mapped
// here, so an operation is a copy behind the two gates, and there is neither socket nor page.
//
// Lock order: the session's mu, then the target's, or a gate, or the pool's lock or the event queue. Nobody takes mu inside a gate,
// or under the lock of a queue of events: not to ask whether a wait for its room is over either.
type local struct {
	p      *Provider
	id     rdma.SessionID
	t      *target
	hold   func() // of tests: called before each chunk, outside of the gates
	events outlet

	over atomic.Bool // ended is not 0: for hold, under whose lock mu is not taken

	mu       sync.Mutex
	ended    fault.Code
	byID     map[uint64]*job // posted and not completed
	inFlight uint64          // their bytes
	live     *job            // posted ones and Moves: what the end of a region or the session must find
}

var (
	_ poster          = (*local)(nil)
	_ rdma.QuietMover = (*local)(nil)
	_ rdma.Insider    = (*Provider)(nil)
)

// within gives the target that parameters name when it is of this provider. Their secret proves it, as it proves a peer: it is
// random, and nobody else's session has it.
func (p *Provider) within(par *params) *target {
	p.mu.Lock()
	t := p.targets[par.session]
	p.mu.Unlock()
	if t == nil || !t.secret.equals(&par.secret) {
		return nil
	}
	return t
}

// join makes the session of a target of this provider.
func (p *Provider) join(id rdma.SessionID, t *target) (*local, error) {
	i := &local{p: p, id: id, t: t, byID: map[uint64]*job{}}
	i.events.init(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended != 0:
		return nil, &fault.Error{Code: fault.PeerUnreachable, Op: "connect", Detail: "the target of this process has ended"}
	case t.reserved:
		return nil, fault.New(fault.AlreadyExists, "connect", "the session has its initiator")
	}
	t.reserved, t.local = true, i
	return i, nil
}

// initiate makes the initiator for parameters: inside this process where the target is here, else over the target's socket.
func (p *Provider) initiate(ctx context.Context, id rdma.SessionID, par *params) (poster, error) {
	if t := p.within(par); t != nil {
		return p.join(id, t)
	}
	i := newInitiator(p, id)
	if err := i.dial(ctx, par); err != nil {
		return nil, err
	}
	return i, nil
}

func (i *local) errEnded() error {
	if i.ended == fault.Closed {
		return errClosed("post")
	}
	return fault.New(fault.PeerLost, "post", "the session has ended: %s", i.ended)
}

// Post takes operations as long as the window has room. The provider's workers copy.
func (i *local) Post(in []rdma.Op) (int, error) {
	defer i.hand()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended != 0 {
		return 0, i.errEnded()
	}
	for n := range in {
		if len(i.byID) >= i.p.opt.MaxInFlight {
			return n, nil
		}
		taken, err := i.post(&in[n])
		if err != nil || !taken {
			return n, err
		}
	}
	return len(in), nil
}

// post takes one operation; false: the window is full. mu is held.
func (i *local) post(in *rdma.Op) (bool, error) {
	j := newJob(i, false)
	status, err := j.admit(in, i.t.window(in.Remote))
	if err == nil && i.byID[in.ID] != nil {
		err = fault.Invalid("post", "ID", "%d is pending; want an ID that is not", in.ID)
	}
	// An operation larger than the window goes alone; else it could never go.
	if full := i.p.opt.MaxInFlightLen; err != nil || len(i.byID) > 0 && j.total > full-min(i.inFlight, full) {
		j.release()
		return false, err
	}
	i.byID[in.ID] = j
	i.inFlight += j.total
	i.link(j)
	if status != 0 || j.total == 0 {
		i.complete(j, status)
		return true, nil
	}
	j.stream = j.total >= i.p.opt.StreamFrom
	j.cut()
	i.p.pool.offer(j, len(j.chunks))
	return true, nil
}

// placed ends a posted operation of which every chunk is behind.
func (i *local) placed(j *job) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if j.live { // else it has completed before
		i.complete(j, fault.Code(j.parts[0].status.Load()))
	}
}

// complete ends a posted operation, once; its local memory is released. mu is held.
func (i *local) complete(j *job, status fault.Code) {
	x := &j.parts[0]
	delete(i.byID, x.id)
	i.inFlight -= x.total
	i.unlink(j)
	ev := rdma.Event{Kind: rdma.EventCompletion, Session: i.id, Op: x.id}
	if status == 0 && x.kind == rdma.OpWrite {
		status = i.arrive(j, x, false)
	}
	ev.Status, ev.Bytes, ev.Wrote = status, x.placed.Load(), status != 0 && x.kind == rdma.OpWrite && x.wrote.Load()
	i.events.add(ev)
	j.release()
}

// arrive tells the target of a WRITE that is placed, from inside the gate, so that no arrival comes after the window's fence.
func (i *local) arrive(j *job, x *part, quiet bool) fault.Code {
	if st := x.w.EnterLate(); st != 0 {
		return st
	}
	if quiet {
		x.w.Leave()
		return 0
	}
	i.t.events.add(rdma.Event{Kind: rdma.EventArrival, Session: i.t.id, Bytes: x.total, Key: x.key, Tag: x.tag, Took: i.p.opt.Clock.Now() - j.began})
	x.w.Leave()
	return 0
}

func (i *local) link(j *job) {
	j.live, j.prev, j.after = true, nil, i.live
	if i.live != nil {
		i.live.prev = j
	}
	i.live = j
}

func (i *local) unlink(j *job) {
	if j.prev == nil {
		i.live = j.after
	} else {
		j.prev.after = j.after
	}
	if j.after != nil {
		j.after.prev = j.prev
	}
	j.live, j.prev, j.after = false, nil, nil
}

// takeBack ends a live job from this side: a posted one completes, the caller of a Move finds out. mu is held.
func (i *local) takeBack(j *job, why fault.Code) {
	j.shut(why)
	if !j.move {
		i.complete(j, why)
	}
}

// Cancel completes the named operations that are pending with Cancelled.
func (i *local) Cancel(ids ...uint64) {
	defer i.hand()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, id := range ids {
		if j := i.byID[id]; j != nil {
			i.takeBack(j, fault.Cancelled)
		}
	}
}

func (i *local) cancelRegion(r *region) {
	defer i.hand()
	i.mu.Lock()
	defer i.mu.Unlock()
	for j := i.live; j != nil; {
		next := j.after
		if j.uses(r) {
			i.takeBack(j, fault.Cancelled)
		}
		j = next
	}
}

// hand has what a call of the user's has ended brought to both sides.
func (i *local) hand() {
	i.t.events.hand()
	i.events.hand()
}

func (i *local) withdraw(*region) {} // nobody else has it mapped

// end ends the session on this side; why is Closed when this side wants it.
func (i *local) end(why fault.Code) {
	i.mu.Lock()
	if i.ended != 0 {
		i.mu.Unlock()
		return
	}
	i.ended = why
	i.over.Store(true)
	for j := i.live; j != nil; {
		next := j.after
		i.takeBack(j, why)
		j = next
	}
	if why != fault.Closed {
		i.events.add(rdma.Event{Kind: rdma.EventDown, Status: why, Session: i.id})
	}
	i.mu.Unlock()
	if why == fault.Closed {
		i.t.end(fault.PeerLost, errClosed("initiator"))
	}
}

// Close completes what is pending with Closed.
func (i *local) Close() error {
	i.end(fault.Closed)
	i.hand()
	i.p.mu.Lock()
	defer i.p.mu.Unlock()
	if i.p.initiators[i.id] == poster(i) {
		delete(i.p.initiators, i.id)
	}
	return nil
}

// Inside says that a session whose both sides are this provider's stays in the process: rdma.Insider.
func (p *Provider) Inside() bool { return true }
