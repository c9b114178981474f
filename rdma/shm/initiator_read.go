package shm

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// handle takes one frame of the target. Its reader never sends and waits for nobody but a full queue of tasks.
func (i *initiator) handle(b []byte, fds *[]int, c *copier) (rest []byte, err error) {
	switch k := frameKind(b[0]); k {
	case kindRegion, kindDrop:
		return i.notice(b, fds)
	case kindResult:
		items, rest, err := parseList(b, resultLen)
		if err == nil {
			err = i.results(items)
		}
		return rest, err
	case kindAnswer:
		items, rest, err := parseList(b, answerLen)
		for ; len(items) > 0 && err == nil; items = items[answerLen:] {
			err = i.answer(items, c)
		}
		return rest, err
	default:
		return nil, violation("frame kind %d from a target", k)
	}
}

// results completes the WRITEs that a frame names. Unknown ones have completed before.
func (i *initiator) results(items []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer i.flush()
	for ; len(items) > 0; items = items[resultLen:] {
		r, err := parseResult(items)
		if err != nil {
			return err
		}
		o, err := i.find(r.seq, rdma.OpWrite)
		if err != nil {
			return err
		}
		if o == nil {
			continue
		}
		if r.status == 0 && (o.sent != o.frames || r.bytes != o.total) {
			return violation("success for an operation that is not all sent")
		}
		i.finish(o, statusOf(r.status), min(r.bytes, o.total), r.wrote)
	}
	return nil
}

// find returns the pending operation behind a number from the wire. The session's lock is held.
func (i *initiator) find(seq uint64, kind rdma.OpKind) (*op, error) {
	o := i.bySeq[seq]
	if seq == 0 || seq > i.lastSeq || o != nil && o.kind != kind {
		return nil, violation("operation %d is not one of this session", seq)
	}
	return o, nil
}

// answer begins the copy of a READ's frame, or ends the READ.
func (i *initiator) answer(b []byte, c *copier) error {
	a, err := parseAnswer(b)
	if err != nil {
		return err
	}
	i.mu.Lock()
	t, err := i.permitted(&a)
	i.flush()
	i.mu.Unlock()
	if t != nil {
		i.p.pool.add(t, c)
	}
	return err
}

// permitted makes the task of an answer; nil: there is nothing to copy. The session's lock is held.
func (i *initiator) permitted(a *answer) (*task, error) {
	o, err := i.find(a.seq, rdma.OpRead)
	switch {
	case err != nil:
		return nil, err
	case o == nil: // completed before
		return nil, nil
	case a.index != o.answered || a.index >= o.sent:
		return nil, violation("answer %d to a READ that waits for %d of %d", a.index, o.answered, o.sent)
	}
	o.answered++
	if a.status != 0 {
		i.endRead(o, statusOf(a.status))
		return nil, nil
	}
	if o.total == 0 {
		i.endRead(o, 0)
		return nil, nil
	}
	p, ok := i.permit(a.slot, a.word)
	if !ok {
		return nil, violation("a permission in slot %d of %d", a.slot, len(i.peer.slots))
	}
	x := i.use(a.region)
	if x == nil { // withdrawn since
		i.endRead(o, fault.StaleKey)
		return nil, nil
	}
	t := newTask()
	t.dst, t.src, t.gate, t.permit, t.over, t.done = o.region.access, x.access, o, p, i.isOver, i.copied
	t.peer, t.owner, t.events, t.stream = x, o, &i.events, o.total >= i.p.opt.StreamFrom
	for _, r := range o.frame(a.index) {
		if !x.access.holds(r.Remote, r.Len) {
			t.release()
			i.unuseLocked(x)
			return nil, violation("a permission for what lies outside its region")
		}
		t.pieces = append(t.pieces, piece{dst: r.Local, src: r.Remote, len: r.Len})
		t.bytes += r.Len
	}
	o.holders++
	i.crew.join(1)
	return t, nil
}

// endRead completes a READ. The session's lock is held.
func (i *initiator) endRead(o *op, status fault.Code) {
	o.shut()
	i.finish(o, status, o.received, false)
}

// copied ends a frame of a READ: every worker has left the memory of both sides.
func (i *initiator) copied(t *task) {
	defer i.crew.leave()
	o := t.owner.(*op)
	noted(i.p, i.role, i.id, t)
	i.mu.Lock()
	i.unuseLocked(t.peer)
	o.holders--
	if o.pending {
		o.received += t.placed
		o.done++
		switch {
		case t.status != 0:
			i.endRead(o, t.status)
		case o.done == o.frames:
			i.endRead(o, 0)
		}
		i.flush()
	} else {
		o.release()
	}
	i.mu.Unlock()
	t.release()
}

// noted says in the log whose memory failed; a completion has only the code.
func noted(p *Provider, role string, id rdma.SessionID, t *task) {
	if t.fault != nil {
		p.opt.Logger.Info("memory fault", "role", role, "session", uint64(id), "error", t.fault)
	}
}
