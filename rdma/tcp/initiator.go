package tcp

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// initiator is the posting side of a session.
//
// Lock order: a lane's rxMu, then mu, then an op's gate, then the outbox. The gate is held during one system call at most, so
// waiting for it under mu is bounded; nobody takes mu inside a gate.
type initiator struct {
	p    *Provider
	id   rdma.SessionID
	crew crew // lane goroutines, senders inside Post, readers inside Progress
	box  outbox

	attachMu sync.Mutex // the first lock
	attached int

	isAttached atomic.Bool
	looks      atomic.Uint32 // calls of Progress

	mu       sync.Mutex
	ended    fault.Code // why the session is over; 0: it is not
	lastSeq  uint64
	bySeq    map[uint64]*op // the pending operations
	byID     map[uint64]*op // the same
	inFlight uint64         // their bytes
	reading  uint64         // those of READs
	lanes    []*initLane
	out      []rdma.Event // completions of this turn of the lock: see flush
}

// initLane is an initiator's lane.
type initLane struct {
	lane
	i *initiator

	rxMu    sync.Mutex // who reads
	in      incoming
	waiting atomic.Int64 // operations that are pending

	// Under the session's lock.
	queue  opQueue
	load   uint64 // bytes of the lane's pending operations
	busy   bool   // somebody is using tx
	resume *op    // Post began this op's only frame and the socket was full: the writer goes on
	wake   sync.Cond
}

// opCost is what an operation adds to its lane's load beside its bytes, so that small ones spread too.
const opCost = 4096

func newInitiator(p *Provider, id rdma.SessionID) *initiator {
	i := &initiator{p: p, id: id, bySeq: map[uint64]*op{}, byID: map[uint64]*op{}}
	i.crew.init()
	i.box.init(p)
	return i
}

// start sets the lanes to work.
func (i *initiator) start(lanes []*initLane) {
	i.lanes = lanes
	for _, l := range lanes {
		l.i = i
		l.wake.L = &i.mu
		i.crew.join(2)
		go l.write()
		go l.read()
	}
}

func (i *initiator) errEnded() error {
	if i.ended == fault.Closed {
		return errClosed("post")
	}
	return fault.New(fault.PeerLost, "post", "the session has ended: %s", i.ended)
}

// Post takes operations as long as the window has room.
func (i *initiator) Post(in []rdma.Op) (int, error) {
	i.mu.Lock()
	if i.ended != 0 {
		defer i.mu.Unlock()
		return 0, i.errEnded()
	}
	var err error
	n := 0
	for ; n < len(in); n++ {
		if len(i.bySeq) >= i.p.opt.MaxInFlight {
			break
		}
		var o *op
		if o, err = i.take(&in[n]); err != nil {
			break
		}
		// An operation larger than the window goes alone; else it could never go.
		if len(i.bySeq) > 0 && o.total > i.p.opt.MaxInFlightLen-min(i.inFlight, i.p.opt.MaxInFlightLen) {
			o.release()
			break
		}
		i.add(o)
	}
	direct := i.direct()
	for _, l := range i.lanes {
		if !l.busy && l.queue.head != nil {
			l.wake.Signal()
		}
	}
	i.mu.Unlock()
	if direct != nil {
		direct.lane.sendNow(direct)
	}
	return n, err
}

func (i *initiator) add(o *op) {
	i.lastSeq++
	o.seq, o.pending = i.lastSeq, true
	i.bySeq[o.seq], i.byID[o.id] = o, o
	i.inFlight += o.total
	if o.kind == rdma.OpRead {
		i.readMore(o.total)
	}
	l := i.choose(o)
	o.lane = l
	l.load += o.total + opCost
	l.waiting.Add(1)
	l.queue.push(o)
}

// large is the size in bytes from which an operation keeps to the first lanes.
const large = 128 << 10

// choose takes the lane with the least to do: of all for a small operation, of the first few for a large one. A lane needs a
// processor on either side to be copied to and from, and more of them than processors only push each other's bytes out of
// the caches. What that gains over four lanes on two processors hangs on where the kernel puts the threads: writes were
// between 0.8 and 1.3 times as fast. Reads want a second lane, since their source waits for the asker's next word. Small
// operations so find a lane that no large one fills.
func (i *initiator) choose(o *op) *initLane {
	n := len(i.lanes)
	if o.total >= large {
		n = min(n, max(1, processors/2))
		if o.kind == rdma.OpRead {
			n = min(len(i.lanes), max(2, n))
		}
	}
	l := i.lanes[n-1]
	for k := n - 2; k >= 0; k-- {
		if i.lanes[k].load < l.load {
			l = i.lanes[k]
		}
	}
	return l
}

var processors = runtime.NumCPU()

// finish completes a pending operation, once; its gate is shut, so the local memory is released. mu is held.
func (i *initiator) finish(o *op, status fault.Code, bytes uint64, wrote bool) {
	delete(i.bySeq, o.seq)
	delete(i.byID, o.id)
	i.inFlight -= o.total
	if o.kind == rdma.OpRead {
		i.readMore(-o.total)
	}
	o.lane.load -= o.total + opCost
	o.lane.waiting.Add(-1)
	if o.queued {
		o.lane.queue.remove(o)
	}
	o.pending = false
	i.out = append(i.out, rdma.Event{Kind: rdma.EventCompletion, Status: status, Wrote: wrote && o.kind == rdma.OpWrite && status != 0,
		Session: i.id, Op: o.id, Bytes: bytes})
	o.release()
}

// giveUp completes a pending operation from this side. Nothing is known of its bytes but whether any may have moved.
func (i *initiator) giveUp(o *op, status fault.Code) { i.finish(o, status, 0, o.shut()) }

// flush puts the completions of this turn into the outbox in one go. mu is held, so that nothing overtakes them.
func (i *initiator) flush() {
	i.box.add(i.out...)
	i.out = i.out[:0]
}

// Cancel completes the named operations that are pending with Cancelled.
func (i *initiator) Cancel(ids ...uint64) {
	defer i.box.hand()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, id := range ids {
		if o := i.byID[id]; o != nil {
			i.giveUp(o, fault.Cancelled)
		}
	}
	i.flush()
}

func (i *initiator) cancelRegion(r *region) {
	defer i.box.hand()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, o := range i.bySeq {
		if o.region == r {
			i.giveUp(o, fault.Cancelled)
		}
	}
	i.flush()
}

// end ends the session: why is Closed when this side wants it, else what went wrong.
func (i *initiator) end(why fault.Code, cause error) {
	i.mu.Lock()
	if i.ended != 0 {
		i.mu.Unlock()
		return
	}
	i.ended = why
	status := why
	if why != fault.Closed {
		status = fault.PeerLost
	}
	for _, o := range i.bySeq {
		i.giveUp(o, status)
	}
	if why != fault.Closed {
		i.out = append(i.out, rdma.Event{Kind: rdma.EventDown, Status: why, Session: i.id})
	}
	i.flush()
	for _, l := range i.lanes {
		l.wake.Broadcast()
	}
	i.mu.Unlock()
	for _, l := range i.lanes {
		l.shut()
	}
	i.box.hand()
	if why != fault.Closed {
		i.p.opt.Logger.Info("session down", "role", "initiator", "session", uint64(i.id), "code", why.String(), "error", cause)
	}
}

// fail ends the session because a lane did.
func (i *initiator) fail(err error) {
	i.end(rdma.DownStatus(err), err)
}

// Close completes what is pending with Closed and returns when no goroutine of the session is left.
func (i *initiator) Close() error {
	i.end(fault.Closed, nil)
	i.crew.end()
	i.p.mu.Lock()
	if i.p.initiators[i.id] == i {
		delete(i.p.initiators, i.id)
	}
	i.p.mu.Unlock()
	return nil
}
