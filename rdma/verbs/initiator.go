package verbs

import (
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// cancelDrain is how long cancelled work that a device has may end by itself. Ending it by force takes down what else its lanes
// carry, which then has to be posted again.
const cancelDrain = 10 * time.Millisecond

// initiator is the posting side of a session.
//
// Lock order: mu, then the device's, then the event queue's. Posting and ending queue pairs happen under mu.
type initiator struct {
	p    *Provider
	id   rdma.SessionID
	side *side

	mu       sync.Mutex
	ended    fault.Code // why the session is over; 0: it is not
	lastSeq  uint64
	bySeq    map[uint64]*op // the pending operations
	byID     map[uint64]*op // the same
	inFlight uint64         // their bytes
	windows  map[rdma.Key]*farWindow
	rails    []*initRail
	lanes    []*initLane
	waiting  partQueue // parts that no lane can take now
	out      []rdma.Event
	lost     *time.Timer   // runs while no lane is up
	watchdog *time.Timer   // looks for lanes on which nothing moves
	watching bool          // it runs
	settled  chan struct{} // closed when every lane has been tried once
	trying   int           // lanes that have not
	refused  error         // why the first of them failed
	unpaired []string      // ports of both sides that are in no pair, in words; set before any lane
}

// farWindow is what the initiator knows of a window.
type farWindow struct {
	key       rdma.Key
	known     bool
	revoked   bool
	access    rdma.Access
	base      uint64
	off, span uint64
	rails     []uint32 // keys by the target's rails; 0: by lane
	lanes     []farKey // by lane
	ops       int      // pending operations
	onDevice  int      // parts that a device works on
}

type farKey struct {
	gen    uint32
	rkey   uint32
	writes uint64 // parts that completed on that generation
}

func newInitiator(p *Provider, id rdma.SessionID) *initiator {
	return &initiator{p: p, id: id, bySeq: map[uint64]*op{}, byID: map[uint64]*op{}, windows: map[rdma.Key]*farWindow{}, settled: make(chan struct{})}
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
	defer i.mu.Unlock()
	if i.ended != 0 {
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
			ops.Put(o)
			break
		}
		i.add(o)
	}
	i.pump()
	i.flush()
	return n, err
}

func (i *initiator) add(o *op) {
	i.lastSeq++
	o.seq = i.lastSeq
	i.bySeq[o.seq], i.byID[o.id] = o, o
	i.inFlight += o.total
	ways := 1
	if o.total >= stripeFrom { // only then it matters
		ways = i.ways()
	}
	o.split(ways)
	w, fresh := i.window(o.key)
	if fresh {
		// Its announcement may be on its way; or it was never granted, or is fenced. The target knows.
		i.side.send(&queryMsg{o.key})
	}
	w.ops++
	i.place(o, w)
}

// window is what is known of a window, which is nothing of a fresh one.
func (i *initiator) window(k rdma.Key) (w *farWindow, fresh bool) {
	if w = i.windows[k]; w != nil {
		return w, false
	}
	w = &farWindow{key: k}
	i.windows[k] = w
	return w, true
}

// place sends an op's parts on their ways, as far as its window is known.
func (i *initiator) place(o *op, w *farWindow) {
	if w.known || w.revoked {
		if c := w.refuses(o); c != 0 {
			i.doom(o, c)
			return
		}
	}
	// A READ of nothing moves nothing; that its window is there is all there is to it.
	if o.total == 0 && o.kind == rdma.OpRead && w.known {
		i.partOver(&o.parts[0])
		return
	}
	for k := range o.parts {
		if p := &o.parts[k]; p.state == waiting && p.lane == nil && !i.isWaiting(p) {
			i.dispatch(p)
		}
	}
}

func (i *initiator) isWaiting(p *part) bool { return p.prev != nil || i.waiting.head == p }

// refuses judges an operation by its window: what the target's device would refuse as well, at the price of the queue pair.
func (w *farWindow) refuses(o *op) fault.Code {
	if w.revoked {
		return fault.StaleKey
	}
	if (o.kind == rdma.OpWrite) != (w.access == rdma.AccessWrite) {
		return fault.PermissionDenied
	}
	for k := range o.ranges {
		r := &o.ranges[k]
		if r.Remote < w.off || r.Len > w.span || r.Remote-w.off > w.span-r.Len {
			return fault.OutOfBounds
		}
	}
	return 0
}

// doom ends an operation with status as soon as no device works on it: at once for most.
func (i *initiator) doom(o *op, status fault.Code) {
	if o.doomed == 0 {
		o.doomed = status
	}
	for k := range o.parts {
		p := &o.parts[k]
		if p.state == over || p.onDevice() {
			continue
		}
		if i.partOver(p) {
			return // the op is gone
		}
	}
}

// partOver ends a part, and with the last one its operation; then it says so.
func (i *initiator) partOver(p *part) (last bool) {
	o := p.o
	i.unlink(p)
	p.state = over
	if o.left--; o.left > 0 {
		return false
	}
	i.finish(o)
	return true
}

// unlink takes a part out of the list or the account that it is in.
func (i *initiator) unlink(p *part) {
	switch p.state {
	case waiting:
		if i.isWaiting(p) {
			i.waiting.remove(p)
		}
	case queued:
		p.lane.dequeue(p)
		p.lane.unload(p)
	case limbo:
		p.lane.limbo.remove(p)
	}
	p.lane = nil
}

// finish completes an operation, once; no device has it, so the local memory is released.
func (i *initiator) finish(o *op) {
	delete(i.bySeq, o.seq)
	delete(i.byID, o.id)
	i.inFlight -= o.total
	e := rdma.Event{Kind: rdma.EventCompletion, Status: o.doomed, Session: i.id, Op: o.id}
	if o.doomed == 0 {
		e.Bytes = o.total
	} else {
		e.Wrote = o.wrote && o.kind == rdma.OpWrite
	}
	i.out = append(i.out, e)
	if w := i.windows[o.key]; w != nil {
		w.ops--
		i.forget(w)
	}
	o.region = nil
	ops.Put(o)
}

// forget drops a window that was revoked and answers for it, once, as soon as none of its operations is left: nothing of it is with
// a device then.
func (i *initiator) forget(w *farWindow) {
	if !w.revoked || w.ops > 0 || w.onDevice > 0 {
		return
	}
	m := &cleanMsg{key: w.key}
	for _, l := range i.lanes {
		if l.state == laneUp {
			c := laneCount{laneRef: l.ref()}
			if int(l.index) < len(w.lanes) && w.lanes[l.index].gen == l.gen {
				c.writes = w.lanes[l.index].writes
			}
			m.lanes = append(m.lanes, c)
		}
	}
	i.side.send(m)
	delete(i.windows, w.key)
}

// flush hands the completions of this turn to the queue in one go. mu is held, so that nothing overtakes them.
func (i *initiator) flush() {
	i.p.events.Push(i.out...)
	i.out = i.out[:0]
}

// Cancel completes the named operations that are pending with Cancelled. What a device works on gets a moment to end by itself.
func (i *initiator) Cancel(ids ...uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	left := false
	for _, id := range ids {
		if o := i.byID[id]; o != nil {
			seq := o.seq
			o.unwanted = true // also where it is doomed already: its window's end does not stop a device that cannot send
			i.doom(o, fault.Cancelled)
			left = left || i.bySeq[seq] != nil
		}
	}
	if left {
		time.AfterFunc(cancelDrain, i.force)
	}
	i.pump()
	i.flush()
}

// force ends the lanes that still carry cancelled operations.
func (i *initiator) force() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended != 0 {
		return
	}
	i.forceIf(func(o *op) bool { return o.unwanted })
	i.pump()
	i.flush()
}

func (i *initiator) forceIf(which func(o *op) bool) {
	for _, l := range i.lanes {
		if l.carries(which) {
			i.endLane(l, false)
		}
	}
}

func (i *initiator) cancelRegion(r *region) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, o := range i.bySeq {
		if o.region == r {
			i.doom(o, fault.Cancelled)
		}
	}
	i.forceIf(func(o *op) bool { return o.region == r })
	i.pump()
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
	if cause != nil {
		i.refuse(cause) // Connect may be waiting for a reason
	}
	status := why
	if why != fault.Closed {
		status = fault.PeerLost
	}
	for _, l := range i.lanes {
		i.endLane(l, true)
		l.stop()
		if l.qp == nil {
			l.rail.near.dev.giveSlab(l.slab)
			l.slab = nil
		}
	}
	for _, o := range i.bySeq {
		i.doom(o, status)
	}
	for _, t := range []*time.Timer{i.lost, i.watchdog} {
		if t != nil {
			t.Stop()
		}
	}
	if why != fault.Closed {
		i.out = append(i.out, rdma.Event{Kind: rdma.EventDown, Status: why, Session: i.id})
	}
	i.flush()
	i.mu.Unlock()
	i.side.close()
	if why != fault.Closed {
		i.p.opt.Logger.Info("session down", "role", "initiator", "session", uint64(i.id), "code", why.String(), "error", cause)
	}
}

// Close completes what is pending with Closed and returns when no goroutine of the session is left.
func (i *initiator) Close() error {
	i.end(fault.Closed, nil)
	i.side.wait()
	i.p.mu.Lock()
	if i.p.initiators[i.id] == i {
		delete(i.p.initiators, i.id)
	}
	i.p.mu.Unlock()
	return nil
}

// handle is one message of the target's.
func (i *initiator) handle(m message) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended != 0 {
		return errClosed("side channel")
	}
	switch m := m.(type) {
	case *laneReady:
		if l := i.lane(m.laneRef); l != nil {
			l.ready(m)
		}
	case *laneDead:
		if l := i.lane(m.laneRef); l != nil {
			if err := l.dead(m); err != nil {
				return err
			}
		}
	case *windowMsg:
		i.learn(m)
	case *keysMsg:
		for _, k := range m.keys {
			if w := i.windows[k.key]; w != nil && w.known {
				w.keyOn(laneKey{m.laneRef, k.rkey})
			}
		}
		i.retry()
	case *revokeMsg:
		i.revoke(m.key)
	case *creditMsg:
		if l := i.lane(m.laneRef); l != nil {
			if m.taken < l.taken || m.taken > l.sent {
				return violation("%d records of lane %d taken, of %d that were sent", m.taken, m.lane, l.sent)
			}
			l.taken = m.taken
		}
	default:
		return violation("an initiator's message from a target")
	}
	i.pump()
	i.flush()
	return nil
}

// learn takes a window's announcement.
func (i *initiator) learn(m *windowMsg) {
	w, _ := i.window(m.key)
	w.known, w.access, w.base, w.off, w.span, w.rails = true, m.access, m.base, m.off, m.span, m.rails
	for _, k := range m.keys {
		w.keyOn(k)
	}
	if w.ops > 0 {
		for _, o := range i.bySeq {
			if o.key == w.key {
				i.place(o, w)
			}
		}
		i.retry()
	}
}

func (w *farWindow) keyOn(k laneKey) {
	if k.lane < maxLanes {
		w.on(k.laneRef).rkey = k.rkey
	}
}

// count notes a WRITE's part that has completed on a lane.
func (w *farWindow) count(r laneRef) { w.on(r).writes++ }

// on is the window's account on a lane's generation; what an earlier one had is gone.
func (w *farWindow) on(r laneRef) *farKey {
	for int(r.lane) >= len(w.lanes) {
		w.lanes = append(w.lanes, farKey{})
	}
	f := &w.lanes[r.lane]
	if f.gen != r.gen {
		*f = farKey{gen: r.gen}
	}
	return f
}

// revoke: the window is being fenced, or there is none of that key.
func (i *initiator) revoke(k rdma.Key) {
	w, _ := i.window(k)
	w.revoked = true
	w.ops++ // it stays until all are doomed
	if w.ops > 1 {
		for _, o := range i.bySeq {
			if o.key == k {
				i.doom(o, fault.StaleKey)
			}
		}
	}
	w.ops--
	i.forget(w)
}

// sideLost is the end of the side channel.
func (i *initiator) sideLost(err error) { i.end(rdma.DownStatus(err), err) }
