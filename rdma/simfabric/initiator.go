package simfabric

import (
	"cmp"
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
)

// initiator posts. Its fields are under Fabric.mu.
type initiator struct {
	s       *session
	n       *Node
	id      rdma.SessionID
	pending map[uint64]*op
	posted  uint64 // operations so far
	bytes   uint64 // of what is pending
	ended   fault.Code
}

// op is a posted operation. Its gate stands before its local memory and is shut by its completion.
type op struct {
	gate.Gate
	i      *initiator
	kind   rdma.OpKind
	id     uint64
	number uint64
	local  *region
	key    rdma.Key
	ranges []rdma.Range // none of them empty
	tag    uint64
	bytes  uint64
	chunks []chunk
	sent   bool
	done   bool
	got    []bool // READ: chunks that are placed
	left   int
}

func (i *initiator) Post(ops []rdma.Op) (int, error) {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	for n := range ops {
		took, err := i.post(&ops[n])
		if err != nil || !took {
			return n, err
		}
	}
	return len(ops), nil
}

func (i *initiator) post(x *rdma.Op) (bool, error) {
	if i.ended != 0 {
		return false, fault.New(i.ended, "post", "the session has ended")
	}
	local, ranges, bytes, err := i.check(x)
	if err != nil {
		return false, err
	}
	caps := &i.n.f.caps
	if len(i.pending) >= caps.MaxInFlight || len(i.pending) > 0 && i.bytes+bytes > caps.MaxInFlightLen {
		return false, nil
	}
	i.posted++
	o := &op{i: i, kind: x.Kind, id: x.ID, number: i.posted, local: local, key: x.Remote, tag: x.Tag, bytes: bytes, ranges: ranges}
	o.Init(i.n.clock, 0)
	o.chunks = chunks(o.ranges, i.n.f.opt.Chunk)
	o.got, o.left = make([]bool, len(o.chunks)), len(o.chunks)
	i.pending[o.id] = o
	i.bytes += bytes
	f := i.n.f
	f.note("post", i.n, i.s, o.id, len(o.chunks))
	for k := range o.chunks {
		f.in(f.jitter(), i.n, nil, func() { o.send(k) })
	}
	return true, nil
}

func (i *initiator) check(x *rdma.Op) (r *region, ranges []rdma.Range, sum uint64, err error) {
	caps := &i.n.f.caps
	if err := x.CheckKind(); err != nil {
		return nil, nil, 0, err
	}
	if err := x.CheckCount(caps.MaxRanges); err != nil {
		return nil, nil, 0, err
	}
	if i.pending[x.ID] != nil {
		return nil, nil, 0, fault.Invalid("post", "ID", "%d is that of a pending operation", x.ID)
	}
	if r, err = i.n.ours("post", x.Local); err != nil {
		return nil, nil, 0, err
	}
	if ranges, sum, err = x.Compact(nil, &r.mem, caps.MaxOpBytes); err != nil {
		return nil, nil, 0, err
	}
	for _, p := range ranges {
		if p.Remote+p.Len < p.Remote {
			return nil, nil, 0, fault.New(fault.OutOfBounds, "post", "remote range [%d, +%d) wraps", p.Remote, p.Len)
		}
	}
	return r, ranges, sum, nil
}

// send lets one chunk leave: the bytes of a WRITE as they are now, or the request of a READ.
func (o *op) send(k int) {
	i := o.i
	f, t := i.n.f, i.s.tgt
	if o.done || i.s.over {
		return
	}
	p := packet{s: i.s, from: i.n, to: t.n, op: o, index: k, what: "ask", deliver: func() { t.read(o, k) }}
	if o.kind == rdma.OpWrite {
		if o.Enter() != 0 {
			return
		}
		c := o.chunks[k]
		buf := make([]byte, c.len)
		c.each(o.ranges, func(r rdma.Range, at uint64) { copy(buf[at:], o.local.bytes[r.Local:r.Local+r.Len]) })
		o.Leave()
		p.what, p.deliver = "data", func() { t.write(o, k, buf) }
	}
	o.sent = true
	f.note("send", i.n, i.s, o.id, k)
	f.transmit(p)
}

// answer places a chunk of a READ.
func (o *op) answer(k int, buf []byte) {
	i := o.i
	if o.Enter() != 0 {
		i.n.f.note("refuse", i.n, i.s, o.id, k)
		return
	}
	o.chunks[k].each(o.ranges, func(r rdma.Range, at uint64) { copy(o.local.bytes[r.Local:], buf[at:at+r.Len]) })
	o.Leave()
	if o.done || o.got[k] {
		return
	}
	o.got[k] = true
	if o.left--; o.left == 0 {
		o.end(0, false)
	}
}

// end completes the operation, once.
func (o *op) end(code fault.Code, wrote bool) {
	if o.done {
		return
	}
	o.done = true
	o.Shut()
	i := o.i
	delete(i.pending, o.id)
	i.bytes -= o.bytes
	ev := rdma.Event{Kind: rdma.EventCompletion, Session: i.id, Op: o.id, Status: code}
	if code == 0 {
		ev.Bytes = o.bytes
	} else {
		ev.Wrote = wrote && o.kind == rdma.OpWrite
	}
	i.n.f.note("complete", i.n, i.s, o.id, int(code))
	i.n.push(ev)
}

// endWhere completes pending operations early, in the order in which they were posted. What has left may still land.
func (i *initiator) endWhere(code fault.Code, where func(*op) bool) {
	var hit []*op
	for _, o := range i.pending {
		if where(o) {
			hit = append(hit, o)
		}
	}
	slices.SortFunc(hit, func(a, b *op) int { return cmp.Compare(a.number, b.number) })
	for _, o := range hit {
		o.end(code, o.sent)
	}
}

func all(*op) bool { return true }

func (i *initiator) Cancel(ids ...uint64) {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	for _, id := range ids {
		if o := i.pending[id]; o != nil {
			o.end(fault.Cancelled, o.sent)
		}
	}
}

func (i *initiator) Close() error {
	i.n.f.mu.Lock()
	defer i.n.f.mu.Unlock()
	i.close()
	return nil
}

func (i *initiator) close() {
	i.ended = fault.Closed
	i.endWhere(fault.Closed, all)
	i.s.closedBy(i)
}

// down is the end of the session by itself.
func (i *initiator) down() {
	if i.ended != 0 {
		return
	}
	i.ended = fault.PeerLost
	i.endWhere(fault.PeerLost, all)
	i.n.f.note("down", i.n, i.s, 0, 0)
	i.n.push(rdma.Event{Kind: rdma.EventDown, Session: i.id, Status: fault.PeerLost})
}
