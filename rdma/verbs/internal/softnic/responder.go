package softnic

import (
	"unsafe"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// reply is what a responder has yet to send, in order: an acknowledgement, a refusal, or the rest of a READ.
type reply struct {
	kind   kind
	nak    nak
	psn    uint32
	remote uint64
	rkey   uint32
	left   uint64
	last   uint32 // of a READ: its last answer's number
	again  bool   // a READ that was asked for before
}

// responder is the side of a queue pair that executes requests, in the order of their numbers.
type responder struct {
	rq                 []rqe
	recvHead, recvTail uint64
	expected           uint32
	naked              bool // the gap before expected was reported
	refused            bool // a refusal is on its way; nothing is executed any more
	out                []reply
	answering          int // READs in out
	repeating          int // and those that were asked for again

	inMessage bool // between the first and the last packet of a WRITE or SEND
	message   kind
	remote    uint64
	rkey      uint32
	left      uint64
	filled    uint64
}

func (q *qp) startResponder() {
	q.responder = responder{rq: q.rq, out: q.out[:0], expected: q.conn.PeerPSN}
}

func (q *qp) reply(r reply) {
	q.out = append(q.out, r)
	q.f.turn(q)
}

// ack acknowledges everything before expected.
func (q *qp) ack() {
	psn := psnAdd(q.expected, psnMask)
	if n := len(q.out); n > 0 && q.out[n-1].kind == pktAck {
		q.out[n-1].psn = psn
		return
	}
	q.reply(reply{kind: pktAck, psn: psn})
}

// refuse ends the connection from this side, once what is before it was sent.
func (q *qp) refuse(why nak) {
	q.refused = true
	q.reply(reply{kind: pktNak, nak: why, psn: q.expected})
}

// onRequest takes a packet of a WRITE, SEND or READ.
func (q *qp) onRequest(p *packet, now int64) {
	if q.refused {
		return
	}
	switch d := psnDiff(p.psn, q.expected); {
	case d > 0:
		if !q.naked {
			q.naked = true
			q.reply(reply{kind: pktNak, nak: nakSequence, psn: q.expected})
		}
		return
	case d < 0:
		q.again(p)
		return
	}
	switch p.kind {
	case pktRead:
		q.onRead(p)
	case pktWrite:
		q.onWrite(p, now)
	case pktSend:
		q.onSend(p)
	}
}

// again takes a packet that was executed before: a READ is answered once more, anything else acknowledged.
func (q *qp) again(p *packet) {
	if p.kind != pktRead {
		q.ack()
		return
	}
	last := psnAdd(p.psn, q.packets(uint64(p.length))-1)
	if psnDiff(last, q.expected) >= 0 {
		return // it is not the READ that had this number
	}
	for i := range q.out {
		if q.out[i].kind == pktRead && q.out[i].psn == p.psn && q.out[i].last == last {
			return // not yet answered the first time
		}
	}
	if q.repeating < q.conn.ReadResp {
		q.repeating++
		q.reply(reply{kind: pktRead, psn: p.psn, remote: p.remote, rkey: p.rkey, left: uint64(p.length), last: last, again: true})
	}
}

func (q *qp) packets(length uint64) uint32 {
	return max(1, uint32((length+q.mtu-1)/q.mtu))
}

func (q *qp) onRead(p *packet) {
	n := uint64(p.length)
	switch {
	case q.inMessage, q.answering >= q.conn.ReadResp:
		q.refuse(nakInvalid)
		return
	case q.conn.Access&nic.RemoteRead == 0, n > 0 && q.a.reach(q, p.rkey, p.remote, n, nic.RemoteRead) == nil:
		q.refuse(nakAccess)
		return
	}
	count := q.packets(n)
	q.naked = false
	q.expected = psnAdd(q.expected, count)
	q.answering++
	q.reply(reply{kind: pktRead, psn: p.psn, remote: p.remote, rkey: p.rkey, left: n, last: psnAdd(p.psn, count-1)})
}

// next looks whether a packet continues the message as it must.
func (q *qp) next(p *packet) bool {
	n := uint64(p.n)
	if p.first == q.inMessage || !p.first && q.message != p.kind {
		return false
	}
	if p.first {
		q.message, q.remote, q.rkey, q.left, q.filled = p.kind, p.remote, p.rkey, uint64(p.length), 0
	}
	if p.last {
		return n == q.left && n <= q.mtu
	}
	return n == q.mtu && n < q.left
}

// placed counts a packet that was executed.
func (q *qp) placed(p *packet) {
	n := uint64(p.n)
	q.naked = false
	q.expected = psnAdd(q.expected, 1)
	q.remote += n
	q.left -= n
	q.filled += n
	q.inMessage = !p.last
	if p.askAck {
		q.ack()
	}
}

func (q *qp) onWrite(p *packet, now int64) {
	if !q.next(p) {
		q.refuse(nakInvalid)
		return
	}
	if q.conn.Access&nic.RemoteWrite == 0 {
		q.refuse(nakAccess)
		return
	}
	if q.left > 0 {
		// What is left of the message must be covered, by a key that is valid now: each packet is a late packet to somebody.
		m := q.a.reach(q, q.rkey, q.remote, q.left, nic.RemoteWrite)
		if m == nil {
			q.refuse(nakAccess)
			return
		}
		q.a.put(p, m, q.remote, now)
	}
	q.placed(p)
}

func (q *qp) onSend(p *packet) {
	if q.recvHead == q.recvTail {
		q.naked = true // what follows is dropped without a word
		q.reply(reply{kind: pktNak, nak: nakNotReady, psn: q.expected})
		return
	}
	if !q.next(p) {
		q.refuse(nakInvalid)
		return
	}
	r := &q.rq[q.recvHead%uint64(len(q.rq))]
	if q.filled+q.left > uint64(r.sge[0].Len) {
		q.recvHead++
		q.complete(r, 0, nic.Other)
		q.refuse(nakInvalid)
		return
	}
	if !q.walk(r.sge[:], q.filled, uint64(p.n), p.data, true) {
		q.recvHead++
		q.complete(r, 0, nic.LocalProtection)
		q.refuse(nakOperation)
		return
	}
	q.placed(p)
	if p.last {
		q.recvHead++
		q.complete(r, uint32(q.filled), nic.Success)
	}
}

// complete gives a receive back.
func (q *qp) complete(r *rqe, n uint32, status nic.Status) {
	q.a.flush()
	raw := uint8(0)
	if status == nic.Other {
		raw = rawLocalLength
	}
	q.d.cq.push(cqe{Completion: nic.Completion{ID: r.id, QPN: q.num, Bytes: n, Status: status, Recv: true, Raw: raw}, q: q})
}

// answer sends at most one packet of what is to be said to the peer; it reports whether there may be more.
func (q *qp) answer(now int64) bool {
	if q.state != stateRTS || len(q.out) == 0 {
		return false
	}
	r := &q.out[0]
	if r.kind != pktRead {
		p := q.f.packet(false)
		p.kind, p.nak, p.psn, p.rnr = r.kind, r.nak, r.psn, uint8(q.conn.RNRTimer)
		fatal := r.kind == pktNak && r.nak >= nakAccess
		q.said()
		q.emit(p, now)
		if fatal {
			q.toError(nic.Flushed)
			q.fatal("a request of the peer was refused")
		}
		return true
	}
	n := min(q.mtu, r.left)
	p := q.f.packet(true)
	p.kind, p.psn, p.n = pktAnswer, r.psn, int(n)
	if n > 0 {
		// The key may have ended since the request was taken, or since the last answer.
		m := q.a.reach(q, r.rkey, r.remote, n, nic.RemoteRead)
		if m == nil {
			q.f.recycle(p)
			*r = reply{kind: pktNak, nak: nakAccess, psn: r.psn}
			q.refused = true
			return true
		}
		q.a.flush()
		move(unsafe.Pointer(p.data), m.at(r.remote), int(n))
	}
	r.psn, r.remote, r.left = psnAdd(r.psn, 1), r.remote+n, r.left-n
	if r.left == 0 {
		if r.again {
			q.repeating--
		} else {
			q.answering--
		}
		q.said()
	}
	q.emit(p, now)
	return true
}

// said drops the first reply. The list is short: READs are limited, and acknowledgements join.
func (q *qp) said() {
	q.out = append(q.out[:0], q.out[1:]...)
}
