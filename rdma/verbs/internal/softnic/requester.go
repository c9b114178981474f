package softnic

import (
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// requester is the side of a queue pair that sends requests. Of the send queue, requests from head on are not complete, cursor is
// sent next, tail is free; these count from the connection on and are places modulo the queue's length. Of the packet sequence
// numbers, una is the oldest that was not acknowledged, which is of the request at head unless that has none; sentEnd is behind
// the highest that was sent.
type requester struct {
	sq                 []wqe
	head, cursor, tail uint64
	off                uint32 // packets of the request at cursor that were sent
	nextPSN            uint32
	una, sentEnd       uint32
	reads              int   // READs that are out
	retries, rnr       int   // left
	deadline           int64 // of the retry timer, 0: not running
	stalled            int64 // until when nothing is sent because the peer was not ready; 0: not
	tickAt             int64 // the entry of the schedule that counts, 0: none
	retrying           bool  // una was sent again for a reason that will be heard more often
}

func (q *qp) startRequester() {
	psn := q.conn.PSN
	q.requester = requester{sq: q.sq, nextPSN: psn, una: psn, sentEnd: psn, retries: q.conn.Retries, rnr: q.conn.RNRRetries}
}

// request sends at most one packet, or does one thing that is local; it reports whether there may be more.
func (q *qp) request(now int64) bool {
	if q.state != stateRTS || q.stalled != 0 || q.cursor == q.tail {
		return false
	}
	w := &q.sq[q.cursor%uint64(len(q.sq))]
	if w.op == opBind || w.op == opInvalidate {
		if !w.done && w.status == nic.Success {
			q.local(w)
		}
		return q.pass(w)
	}
	if w.status != nic.Success {
		return q.pass(w)
	}
	psn := psnAdd(w.psn, q.off)
	if psnDiff(psn, q.una) >= int32(q.f.opt.Unacked) {
		return false
	}
	first := q.off == 0
	var p *packet
	if w.op == opRead {
		if q.reads >= q.conn.ReadInit {
			return false
		}
		at := uint64(w.got) * q.mtu
		p = q.f.packet(false)
		p.kind, p.psn, p.first, p.last, p.askAck = pktRead, psnAdd(w.psn, w.got), true, true, true
		p.remote, p.length, p.rkey = w.remote+at, uint32(w.length-at), w.rkey
		w.sent = true
		q.reads++
		q.off = w.packets
	} else {
		at := uint64(q.off) * q.mtu
		n := min(q.mtu, w.length-at)
		p = q.f.packet(true)
		if !q.walk(w.sges, at, n, p.data, false) {
			q.f.recycle(p)
			w.status = nic.LocalProtection
			return q.pass(w)
		}
		q.off++
		p.kind, p.psn, p.n, p.first, p.last = pktWrite, psn, int(n), first, q.off == w.packets
		if w.op == opSend {
			p.kind = pktSend
		}
		p.remote, p.length, p.rkey = w.remote, uint32(w.length), w.rkey
		p.askAck = p.last || psn%16 == 0
	}
	if end := psnAdd(w.psn, q.off); psnDiff(end, q.sentEnd) > 0 {
		q.sentEnd = end
	}
	if q.off == w.packets {
		q.cursor++
		q.off = 0
	}
	q.emit(p, now)
	if q.deadline == 0 {
		q.arm(now)
	}
	return true
}

// pass goes on behind a request that was done here, or ends the queue with it once it is the oldest.
func (q *qp) pass(w *wqe) bool {
	if w.status != nic.Success {
		if q.head == q.cursor {
			q.toError(w.status)
		}
		return false
	}
	q.cursor++
	q.off = 0
	q.retire(q.una)
	return true
}

// local binds or invalidates.
func (q *qp) local(e *wqe) {
	e.done = true
	if e.op == opInvalidate {
		w := q.a.windows[e.rkey]
		if w == nil || w.q != q {
			e.status, e.raw = nic.Other, rawLocalOperation
			return
		}
		w.unbind()
		return
	}
	w, m := e.w, e.m
	switch {
	case w.closed, m.closed, w.d != q.d, m.d != q.d, w.m != nil, m.access&nic.WindowBind == 0, !m.has(e.remote, e.length),
		e.access&nic.RemoteWrite != 0 && m.access&nic.LocalWrite == 0:
		e.status = nic.BindFailed
		return
	}
	w.live, w.m, w.q, w.addr, w.length, w.access = e.rkey, m, q, e.remote, e.length, e.access
	m.bound++
	q.a.windows[w.live] = w
}

// rawLocalOperation is IBV_WC_LOC_QP_OP_ERR, rawLocalLength IBV_WC_LOC_LEN_ERR.
const (
	rawLocalLength    = 1
	rawLocalOperation = 2
)

// retire completes what is done at the head of the queue, when the peer has everything before upto. It reports whether answers of
// a READ before upto are missing.
func (q *qp) retire(upto uint32) (missing bool) {
	for q.head < q.tail {
		w := &q.sq[q.head%uint64(len(q.sq))]
		switch w.op {
		case opBind, opInvalidate:
			if !w.done || w.status != nic.Success {
				return false
			}
		case opRead:
			if w.got < w.packets {
				return psnDiff(upto, psnAdd(w.psn, w.got)) > 0
			}
		default:
			if end := psnAdd(w.psn, w.packets); psnDiff(upto, end) < 0 {
				if psnDiff(upto, q.una) > 0 {
					q.una = upto
				}
				if q.cursor == q.head && psnDiff(q.una, psnAdd(w.psn, q.off)) > 0 {
					q.off = uint32(psnDiff(q.una, w.psn))
				}
				return false
			}
		}
		if w.packets > 0 {
			q.una = psnAdd(w.psn, w.packets)
		}
		if w.sent {
			q.reads--
		}
		if w.signaled {
			q.d.cq.push(cqe{Completion: nic.Completion{ID: w.id, QPN: q.num, Status: nic.Success}, q: q, place: q.head + 1})
		}
		q.head++
		if q.cursor < q.head {
			q.cursor, q.off = q.head, 0
		}
	}
	return false
}

// goBack sends again from una on.
func (q *qp) goBack() {
	for s := q.head; s <= q.cursor && s < q.tail; s++ {
		if w := &q.sq[s%uint64(len(q.sq))]; w.sent {
			w.sent = false
			q.reads--
		}
	}
	q.cursor, q.off = q.head, 0
	if w := &q.sq[q.head%uint64(len(q.sq))]; w.op == opWrite || w.op == opSend {
		q.off = uint32(psnDiff(q.una, w.psn))
	}
	q.f.turn(q)
}

// retry goes back, or gives up.
func (q *qp) retry(now int64) {
	if q.retries == 0 {
		q.toError(nic.RetriesExceeded)
		return
	}
	if q.conn.Retries < 7 {
		q.retries--
	}
	q.goBack()
	q.arm(now)
}

// arm starts the retry timer anew.
func (q *qp) arm(now int64) {
	q.deadline = 0
	if t := q.timeout(); t > 0 {
		q.deadline = now + t
		q.call(q.deadline)
	}
}

// call has tick called at an instant or before. An entry that is there already and earlier makes its own successor.
func (q *qp) call(at int64) {
	if q.tickAt == 0 || at < q.tickAt {
		q.tickAt = at
		q.f.sched.push(entry{at: at, q: q})
	}
}

// tick looks at both timers; at is the instant it was called for.
func (q *qp) tick(at, now int64) {
	if at != q.tickAt {
		return
	}
	q.tickAt = 0
	if q.state != stateRTS {
		return
	}
	if q.stalled != 0 {
		if now < q.stalled {
			q.call(q.stalled)
			return
		}
		q.stalled = 0
		q.f.turn(q)
	}
	if q.deadline == 0 {
		return
	}
	if now < q.deadline {
		q.call(q.deadline)
		return
	}
	q.retrying = false
	q.retry(now)
}

// onResponse takes an answer, an acknowledgement or its opposite.
func (q *qp) onResponse(p *packet, now int64) {
	end := p.psn // everything before was received
	if p.kind == pktAck {
		end = psnAdd(p.psn, 1)
	}
	if psnDiff(end, q.una) < 0 || psnDiff(end, q.sentEnd) > 0 {
		return // of an earlier round, or of an earlier connection
	}
	una := q.una
	missing := q.retire(end)
	if p.kind == pktAnswer && !missing && !q.place(p) {
		return
	}
	if q.una != una {
		q.retries, q.rnr, q.retrying, q.deadline = q.conn.Retries, q.conn.RNRRetries, false, 0
		if q.una != q.sentEnd {
			q.arm(now)
		}
		q.f.turn(q)
	}
	switch {
	case p.kind == pktNak && !missing && p.nak != nakSequence && q.una == p.psn && q.una != q.sentEnd:
		q.onNak(p, now)
	case missing || p.kind == pktNak && p.nak == nakSequence && q.una != q.sentEnd:
		if !q.retrying {
			q.retrying = true
			q.retry(now)
		}
	}
}

// onNak takes a refusal of the request at head.
func (q *qp) onNak(p *packet, now int64) {
	switch p.nak {
	case nakNotReady:
		if q.stalled != 0 {
			return
		}
		if q.rnr == 0 {
			q.toError(nic.RNRExceeded)
			return
		}
		if q.conn.RNRRetries < 7 {
			q.rnr--
		}
		q.goBack()
		q.stalled, q.deadline = now+int64(rnrDelay(p.rnr)), 0
		q.call(q.stalled)
	case nakAccess:
		q.toError(nic.RemoteAccess)
	case nakInvalid:
		q.toError(nic.RemoteInvalid)
	default:
		q.toError(nic.RemoteOperation)
	}
}

// place moves an answer's bytes to where its READ wants them. It reports whether the queue pair goes on.
func (q *qp) place(p *packet) bool {
	if q.head == q.tail {
		return true
	}
	w := &q.sq[q.head%uint64(len(q.sq))]
	if w.op != opRead || psnAdd(w.psn, w.got) != p.psn {
		return true
	}
	at := uint64(w.got) * q.mtu
	n := min(q.mtu, w.length-at)
	switch {
	case uint64(p.n) != n:
		w.raw = rawLocalLength
		q.toError(nic.Other)
		return false
	case !q.walk(w.sges, at, n, p.data, true):
		q.toError(nic.LocalProtection)
		return false
	}
	w.got++
	q.una = psnAdd(q.una, 1)
	if w.got == w.packets {
		q.retire(q.una)
	}
	return true
}
