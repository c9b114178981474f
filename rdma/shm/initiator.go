package shm

import (
	"net"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// initiator is the posting side of a session.
type initiator struct {
	session

	// Under the session's lock.
	lastSeq  uint64
	bySeq    map[uint64]*op // the pending operations
	byID     map[uint64]*op // the same
	inFlight uint64         // their bytes
	queue    opQueue
	slots    []uint32     // those that are free, the one that has been free for longest first
	due      []rdma.Event // completions of this turn of the lock: see flush
	back     []*op        // of takeBack
	backAt   []uint32
}

func newInitiator(p *Provider, id rdma.SessionID) *initiator {
	i := &initiator{bySeq: map[uint64]*op{}, byID: map[uint64]*op{}}
	i.init(p, id, "initiator")
	return i
}

// begin sets the session to work.
func (i *initiator) begin(conn *net.UnixConn, own, peer *page) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.attach(conn, own, peer, i.message); err != nil {
		return err
	}
	for k := range own.slots {
		i.slots = append(i.slots, uint32(k))
	}
	i.crew.join(2)
	i.serve(func() error { return i.receive(i.handle) }, i.fail)
	return nil
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
		if o.kind == rdma.OpWrite {
			if o.number, err = i.announce(o.region); err != nil {
				o.release()
				break
			}
		}
		i.add(o)
	}
	i.mu.Unlock()
	if n > 0 {
		i.kick()
	}
	return n, err
}

func (i *initiator) add(o *op) {
	i.lastSeq++
	o.seq, o.pending = i.lastSeq, true
	i.bySeq[o.seq], i.byID[o.id] = o, o
	i.inFlight += o.total
	if o.kind == rdma.OpWrite {
		o.slot = i.slots[0] // there are as many as operations in flight
		i.slots = i.slots[:copy(i.slots, i.slots[1:])]
		o.word = i.page.slots[o.slot].open(0)
	}
	i.queue.push(o)
}

// message builds what is to be sent next. The session's lock is held.
func (i *initiator) message(b []byte) ([]byte, int) {
	if len(i.said) > 0 {
		return i.notices(b)
	}
	for o := i.queue.head; o != nil && len(b)+opLen+maxCount*descLen <= maxMessage; o = i.queue.head {
		ranges := o.frame(o.sent)
		f := opFrame{kind: kindRead, count: uint16(len(ranges)), index: o.sent, frames: o.frames, seq: o.seq, key: o.key, total: o.total}
		if o.kind == rdma.OpWrite {
			f.kind, f.tag, f.region, f.slot, f.word = kindWrite, o.tag, o.number, o.slot, o.word
		}
		b = f.append(b)
		for _, r := range ranges {
			d := desc{r.Local, r.Remote, r.Len}
			if o.kind == rdma.OpRead {
				d.local = 0 // the target need not know
			}
			b = d.append(b)
		}
		if o.sent++; o.sent == o.frames {
			i.queue.remove(o)
		}
	}
	return b, -1
}

// finish completes a pending operation, once; its local memory is released. The session's lock is held.
func (i *initiator) finish(o *op, status fault.Code, bytes uint64, wrote bool) {
	delete(i.bySeq, o.seq)
	delete(i.byID, o.id)
	i.inFlight -= o.total
	if o.queued {
		i.queue.remove(o)
	}
	if o.kind == rdma.OpWrite {
		i.page.slots[o.slot].set(slotStale)
		i.slots = append(i.slots, o.slot)
	}
	o.pending = false
	i.due = append(i.due, rdma.Event{Kind: rdma.EventCompletion, Status: status, Wrote: wrote && o.kind == rdma.OpWrite && status != 0,
		Session: i.id, Op: o.id, Bytes: bytes})
	o.release()
}

// takeBack completes the pending operations in i.back from this side. The permissions of all are void before the first is
// waited for, so that a peer that does not answer costs one grace and not one for each. The session's lock is held.
func (i *initiator) takeBack(status fault.Code) {
	i.backAt = i.backAt[:0]
	for _, o := range i.back {
		if o.kind == rdma.OpRead {
			o.shut()
			continue
		}
		i.page.slots[o.slot].set(slotStale)
		i.backAt = append(i.backAt, o.slot)
	}
	i.readers(i.backAt...)
	for _, o := range i.back {
		i.finish(o, status, 0, o.sent > 0)
	}
	clear(i.back)
	i.back = i.back[:0]
}

// flush hands the completions of this turn to the queue in one go. The session's lock is held, so that nothing overtakes
// them.
func (i *initiator) flush() {
	i.events.add(i.due...)
	i.due = i.due[:0]
}

// Cancel completes the named operations that are pending with Cancelled.
func (i *initiator) Cancel(ids ...uint64) {
	defer i.events.hand()
	i.mu.Lock()
	defer i.mu.Unlock()
	for k, id := range ids {
		if o := i.byID[id]; o != nil && !named(ids[:k], id) {
			i.back = append(i.back, o)
		}
	}
	i.takeBack(fault.Cancelled)
	i.flush()
}

func named(ids []uint64, id uint64) bool {
	for _, x := range ids {
		if x == id {
			return true
		}
	}
	return false
}

func (i *initiator) cancelRegion(r *region) {
	defer i.events.hand()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, o := range i.bySeq {
		if o.region == r {
			i.back = append(i.back, o)
		}
	}
	i.takeBack(fault.Cancelled)
	i.flush()
}

// end ends the session: why is Closed when this side wants it, else what went wrong.
func (i *initiator) end(why fault.Code, cause error) {
	i.mu.Lock()
	if !i.shut(why) {
		i.mu.Unlock()
		return
	}
	status := why
	if why != fault.Closed {
		status = fault.PeerLost
	}
	for _, o := range i.bySeq {
		i.back = append(i.back, o)
	}
	i.takeBack(status)
	if why != fault.Closed {
		i.due = append(i.due, rdma.Event{Kind: rdma.EventDown, Status: why, Session: i.id})
	}
	i.flush()
	i.mu.Unlock()
	_ = i.conn.Close()
	if why != fault.Closed {
		i.p.opt.Logger.Info("session down", "role", i.role, "session", uint64(i.id), "code", why.String(), "error", cause)
	}
}

func (i *initiator) fail(err error) { i.end(rdma.DownStatus(err), err) }

// Close completes what is pending with Closed and returns when no goroutine or mapping of the session is left.
func (i *initiator) Close() error {
	i.end(fault.Closed, nil)
	i.p.pool.drop(&i.events)
	i.crew.end()
	i.events.hand()
	i.p.mu.Lock()
	if i.p.initiators[i.id] == poster(i) {
		delete(i.p.initiators, i.id)
	}
	i.p.mu.Unlock()
	i.dispose()
	return nil
}
