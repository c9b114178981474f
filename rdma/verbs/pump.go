package verbs

import (
	"time"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// partCost is what a part adds to its lane's load beside its bytes, so that small ones spread too.
const partCost = 4096

// ways is how many rails have a lane that is up.
func (i *initiator) ways() int {
	n := 0
	for _, r := range i.rails {
		for _, l := range i.lanes {
			if l.rail == r && l.state == laneUp {
				n++
				break
			}
		}
	}
	return n
}

// rkey is the window's key on a lane; false: it has none (yet).
func (w *farWindow) rkeyOn(l *initLane) (uint32, bool) {
	if l.rail.far < len(w.rails) && w.rails[l.rail.far] != 0 {
		return w.rails[l.rail.far], true
	}
	if int(l.index) < len(w.lanes) {
		if k := &w.lanes[l.index]; k.gen == l.gen && k.rkey != 0 {
			return k.rkey, true
		}
	}
	return 0, false
}

// dispatch gives a part that is in no list to the lane that will be done with it first, or to those that wait.
func (i *initiator) dispatch(p *part) {
	if l := i.choose(p); l != nil {
		l.carry(p)
		return
	}
	p.state = waiting
	i.waiting.push(p)
}

// carry queues a part that is in no list.
func (l *initLane) carry(p *part) {
	p.state, p.lane = queued, l
	l.enqueue(p)
	l.burden(p)
}

// choose gives the lane for a part; nil: none can take it now.
func (i *initiator) choose(p *part) *initLane {
	w := i.windows[p.o.key]
	if w == nil || !w.known {
		return nil
	}
	if len(i.rails) == 1 {
		return i.emptiest(i.rails[0], p, w)
	}
	// The rail first, by the predicted end of its work; among its lanes the emptiest.
	now := time.Now()
	var loads [maxRails]pick.Load
	var lanes [maxRails]*initLane
	for k, r := range i.rails {
		loads[k] = pick.Load{Queued: r.load, Rate: &r.rate, Penalty: pick.Penalty(r.pair.Local.NUMA, p.o.region.pinned.node), Down: true}
		if lanes[k] = i.emptiest(r, p, w); lanes[k] != nil {
			loads[k].Down = false
			if r.suspect {
				loads[k].Penalty *= 1 << 20
			}
		}
	}
	if k := pick.Cheapest(now, loads[:len(i.rails)], p.bytes); k >= 0 {
		return lanes[k]
	}
	return nil
}

// emptiest is the lane of a rail with the least to do, of those that can carry the part.
func (i *initiator) emptiest(r *initRail, p *part, w *farWindow) (best *initLane) {
	for _, l := range i.lanes {
		if l.rail != r || l.state != laneUp || best != nil && best.load <= l.load {
			continue
		}
		if p.bytes > 0 {
			if _, ok := w.rkeyOn(l); !ok || p.o.region.pinned.mrs[r.near.dev.index] == nil {
				continue
			}
		}
		best = l
	}
	return best
}

// retry looks again for lanes for those that wait.
func (i *initiator) retry() {
	for p := i.waiting.head; p != nil; {
		next := p.next
		if p.o.doomed != 0 {
			i.partOver(p)
		} else if l := i.choose(p); l != nil {
			i.waiting.remove(p)
			l.carry(p)
		}
		p = next
	}
}

// pump posts what the lanes have room for.
func (i *initiator) pump() {
	for _, l := range i.lanes {
		for l.state == laneUp && l.mayPost() && l.postBatch() {
		}
	}
}

// busyFrom is how many batches a lane has on its way before it collects more for the next one.
const busyFrom = 2

// mayPost lets work collect while the device has enough to do: one record, one completion and one crossing then serve several
// operations. An idle lane posts at once, and every completion asks again.
func (l *initLane) mayPost() bool {
	return l.batches < busyFrom || l.current != nil || l.queuedParts >= recordEntries || l.queuedBytes >= maxRequest
}

// record is the entry of the next record's slot.
func (l *initLane) record(entries int) nic.SGE {
	k := int(l.sent % recvDepth)
	n := putRecord(l.slab.slot(k), l.gen, entries)
	return nic.SGE{Addr: l.slab.addr(k), Len: uint32(n), LKey: l.slab.mr.LKey()}
}

// mayRecord: the target has a receive for one more record, and a slot is free.
func (l *initLane) mayRecord() bool {
	return l.sent-l.taken < l.receives && l.sent-l.sendsDone < recvDepth
}

// postBatch posts one crossing's worth of requests; false: there was nothing to post, or no room.
func (l *initLane) postBatch() bool {
	i := l.i
	room := int(uint64(l.rail.near.dev.depth.MaxSend) - (l.posted - l.done))
	most := min(room, batch) - 1 // one is kept for the record
	if most < 1 {
		return false
	}
	// A part that goes on from the batch before ends with a record too, whose credit that batch's own record may have taken.
	if l.current != nil && l.current.o.kind == rdma.OpWrite && !l.mayRecord() {
		return false
	}
	l.wrs, l.sges, l.ends = l.wrs[:0], l.sges[:0], l.ends[:0]
	for len(l.wrs) < most && len(l.ends) < recordEntries {
		if l.current == nil && !l.next() {
			break
		}
		p := l.current
		g := geometry{local: uint64(uintptr(p.o.region.mem.Base)), maxSGE: l.rail.near.dev.depth.MaxSGE,
			maxBytes: min(maxRequest, max(1, l.rail.near.dev.attr.MaxMsg))}
		if l.left > 0 {
			w := i.windows[p.o.key]
			g.remote = w.base
			g.rkey, _ = w.rkeyOn(l)
			g.lkey = p.o.region.pinned.mrs[l.rail.near.dev.index].LKey()
		}
		opcode := nic.Write
		if p.o.kind == rdma.OpRead {
			opcode = nic.Read
		}
		for l.left > 0 && len(l.wrs) < most {
			var wr nic.WR
			wr, l.sges = nextRequest(p.o.ranges, &l.at, &l.left, &g, l.sges)
			wr.Op, wr.ID = opcode, l.posted+uint64(len(l.wrs))
			l.wrs = append(l.wrs, wr)
		}
		if l.left > 0 {
			break
		}
		p.state, p.last = flying, l.posted+uint64(len(l.wrs))-1
		l.current = nil
		if p.o.kind == rdma.OpRead {
			l.flight = append(l.flight, landing{p.last, p})
			continue
		}
		e := entry{key: p.o.key, tag: p.o.tag, op: p.o.seq, bytes: p.bytes, part: uint16(p.index), parts: uint16(len(p.o.parts))}
		putEntry(l.slab.slot(int(l.sent%recvDepth)), len(l.ends), &e)
		l.ends = append(l.ends, p)
	}
	if n := len(l.ends); n > 0 {
		id := l.posted + uint64(len(l.wrs))
		l.sges = append(l.sges, l.record(n))
		l.wrs = append(l.wrs, nic.WR{ID: id, Op: nic.Send, First: uint32(len(l.sges) - 1), Count: 1})
		for _, p := range l.ends {
			l.flight = append(l.flight, landing{id, p})
		}
		l.flight = append(l.flight, landing{id, nil})
		l.sent++
	}
	if len(l.wrs) == 0 {
		return false
	}
	l.wrs[len(l.wrs)-1].Signaled = true
	l.post(l.wrs)
	return l.state == laneUp
}

// next begins the next part of the queue; false: there is none, or it has to wait for a credit.
func (l *initLane) next() bool {
	p := l.queue.head
	if p == nil || p.o.kind == rdma.OpWrite && !l.mayRecord() {
		return false
	}
	w := l.i.windows[p.o.key]
	l.dequeue(p)
	p.state = building
	p.o.onDevice++
	p.o.wrote = true
	w.onDevice++
	l.current, l.at, l.left = p, p.start, p.bytes
	return true
}

// post hands requests to the device in one crossing. What it refuses ends the lane.
func (l *initLane) post(wrs []nic.WR) {
	l.posting()
	n, err := l.qp.Post(wrs, l.sges)
	l.posted += uint64(n)
	l.batches++
	if err != nil || n < len(wrs) {
		l.i.p.opt.Logger.Warn("requests refused", "session", uint64(l.i.id), "lane", int(l.index), "device", l.rail.near.dev.info.Name, "error", err)
		l.i.refuse(err)
		l.rail.suspect = true
		l.i.endLane(l, false)
	}
}
