package softnic

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// slot gives the next free place of the send queue, cleared; the lock is held.
func (q *qp) slot(verb string) (*wqe, error) {
	if q.state == stateReset {
		return nil, fault.New(fault.Internal, verb, "the queue pair is in RESET: EINVAL")
	}
	if q.tail-q.sendFree.Load() >= uint64(len(q.sq)) {
		return nil, fault.New(fault.ResourceExhausted, verb, "the send queue of %d requests is full: ENOMEM", len(q.sq))
	}
	w := &q.sq[q.tail%uint64(len(q.sq))]
	*w = wqe{sges: w.sges[:0]}
	return w, nil
}

// enqueue makes the slot's request the last of the queue.
func (q *qp) enqueue(w *wqe) {
	w.psn = q.nextPSN
	q.nextPSN = psnAdd(q.nextPSN, w.packets)
	q.tail++
	if q.state == stateError {
		q.d.cq.push(cqe{Completion: nic.Completion{ID: w.id, QPN: q.num, Status: nic.Flushed}, q: q, place: q.tail})
		q.head, q.cursor = q.tail, q.tail
	}
}

func (q *qp) Post(wrs []nic.WR, sges []nic.SGE) (int, error) {
	const verb = "ibv_post_send"
	q.f.lock()
	defer q.f.unlock()
	if err := q.may("Post", verb); err != nil {
		return 0, err
	}
	defer q.roll()
	for n := range wrs {
		r := &wrs[n]
		w, err := q.slot(verb)
		if err != nil {
			return n, err
		}
		if int(r.Count) > q.conf.MaxSGE || uint64(r.First)+uint64(r.Count) > uint64(len(sges)) {
			return n, fault.Invalid(verb, "count", "%d entries from %d on, allowed %d of %d", r.Count, r.First, q.conf.MaxSGE, len(sges))
		}
		w.sges = append(w.sges, sges[r.First:r.First+r.Count]...)
		for _, g := range w.sges {
			w.length += uint64(g.Len)
		}
		if w.length > q.a.conf.MaxMsg {
			return n, fault.Invalid(verb, "length", "%d bytes, allowed up to %d", w.length, q.a.conf.MaxMsg)
		}
		switch r.Op {
		case nic.Write:
			w.op = opWrite
		case nic.Send:
			w.op = opSend
		case nic.Read:
			w.op = opRead
			if q.conn.ReadInit == 0 {
				return n, fault.Invalid(verb, "op", "the connection allows no READ")
			}
		default:
			return n, fault.Invalid(verb, "op", "%d, allowed Write, Read and Send", r.Op)
		}
		w.id, w.remote, w.rkey, w.signaled = r.ID, r.Remote, r.RKey, r.Signaled
		w.packets = 1
		if q.mtu > 0 && w.length > q.mtu {
			w.packets = uint32((w.length + q.mtu - 1) / q.mtu)
		}
		q.enqueue(w)
	}
	return len(wrs), nil
}

// roll gives the queue pair a turn after something was posted.
func (q *qp) roll() {
	if q.state == stateRTS {
		q.f.turn(q)
		q.f.rouse()
	}
}

func (q *qp) PostRecv(ids []uint64, sges []nic.SGE) (int, error) {
	const verb = "ibv_post_recv"
	q.f.lock()
	defer q.f.unlock()
	if err := q.may("PostRecv", verb); err != nil {
		return 0, err
	}
	if len(sges) < len(ids) {
		return 0, fault.Invalid(verb, "sges", "%d, must be as many as the %d ids", len(sges), len(ids))
	}
	for n, id := range ids {
		if q.state == stateReset {
			return n, fault.New(fault.Internal, verb, "the queue pair is in RESET: EINVAL")
		}
		if q.recvTail-q.recvFree.Load() >= uint64(len(q.rq)) {
			return n, fault.New(fault.ResourceExhausted, verb, "the receive queue of %d requests is full: ENOMEM", len(q.rq))
		}
		r := &q.rq[q.recvTail%uint64(len(q.rq))]
		r.id, r.sge[0] = id, sges[n]
		q.recvTail++
		if q.state == stateError {
			q.recvHead = q.recvTail
			q.complete(r, 0, nic.Flushed)
		}
	}
	return len(ids), nil
}

func (q *qp) Bind(id uint64, nw nic.Window, nm nic.MR, addr, length uint64, access nic.Access) (uint32, error) {
	const verb = "ibv_post_send(bind)"
	w, _ := nw.(*window)
	m, _ := nm.(*mr)
	if w == nil || m == nil {
		return 0, fault.Invalid(verb, "window", "window and registration must be of this kind of device")
	}
	q.f.lock()
	defer q.f.unlock()
	if err := q.may("Bind", verb); err != nil {
		return 0, err
	}
	e, err := q.slot(verb)
	if err != nil {
		return 0, err
	}
	w.key = w.key&^0xff | (w.key+1)&0xff
	e.id, e.op, e.signaled = id, opBind, true
	e.w, e.m, e.remote, e.length, e.access, e.rkey = w, m, addr, length, access, w.key
	q.enqueue(e)
	q.roll()
	return e.rkey, nil
}

func (q *qp) Invalidate(id uint64, rkey uint32) error {
	const verb = "ibv_post_send(local_inv)"
	q.f.lock()
	defer q.f.unlock()
	if err := q.may("Invalidate", verb); err != nil {
		return err
	}
	e, err := q.slot(verb)
	if err != nil {
		return err
	}
	e.id, e.op, e.signaled, e.rkey = id, opInvalidate, true, rkey
	q.enqueue(e)
	q.roll()
	return nil
}
