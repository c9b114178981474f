package simfabric

import (
	"cmp"
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
)

// target grants. Its fields are under Fabric.mu.
type target struct {
	s       *session
	n       *Node
	id      rdma.SessionID
	windows map[rdma.Key]*window // fenced ones stay: only their gate refuses
	keys    rdma.Key
	ended   fault.Code
}

// window is permission, with the gate that takes it back.
type window struct {
	gate.Gate
	key    rdma.Key
	region *region
	access rdma.Access
	bounds rdma.Bounds
	taken  bool // the owner took the memory back; from here on the gate alone decides
	seen   map[*op]*receipt
}

// receipt is what a target knows of an operation.
type receipt struct {
	refused fault.Code
	placed  []bool
	left    int
	first   rdma.Instant
}

func (t *target) Grant(g rdma.Window) (rdma.Key, error) {
	t.n.f.mu.Lock()
	defer t.n.f.mu.Unlock()
	r, err := t.n.ours("grant", g.Region)
	if err == nil {
		err = g.Check()
	}
	if err == nil && t.ended != 0 {
		err = fault.New(t.ended, "grant", "the session has ended")
	}
	if err != nil {
		return 0, err
	}
	t.keys++
	w := &window{key: t.keys, region: r, access: g.Access, bounds: g.Bounds, seen: map[*op]*receipt{}}
	w.Init(t.n.clock, g.Deadline)
	t.windows[w.key] = w
	t.n.f.note("grant", t.n, t.s, uint64(w.key), 0)
	return w.key, nil
}

func (t *target) Extend(k rdma.Key, deadline rdma.Instant) error {
	t.n.f.mu.Lock()
	defer t.n.f.mu.Unlock()
	w := t.windows[k]
	if w == nil || w.taken || !w.Gate.Extend(deadline) {
		return fault.New(fault.StaleKey, "extend", "key %d is fenced or unknown", k)
	}
	return nil
}

func (t *target) Fence(k rdma.Key) error {
	t.n.f.mu.Lock()
	defer t.n.f.mu.Unlock()
	if w := t.windows[k]; w != nil {
		t.fence(w)
	}
	return nil
}

func (t *target) fence(w *window) {
	if !w.taken {
		t.n.f.note("fence", t.n, t.s, uint64(w.key), 0)
	}
	w.taken = true
	clear(w.seen) // nothing is recognised any more; what still comes meets the gate
	w.Shut()
}

func (t *target) fenceWhere(where func(*window) bool) {
	var hit []*window
	for _, w := range t.windows {
		if !w.taken && where(w) {
			hit = append(hit, w)
		}
	}
	slices.SortFunc(hit, func(a, b *window) int { return cmp.Compare(a.key, b.key) })
	for _, w := range hit {
		t.fence(w)
	}
}

func (t *target) Close() error {
	t.n.f.mu.Lock()
	defer t.n.f.mu.Unlock()
	t.close()
	return nil
}

func (t *target) close() {
	t.ended = fault.Closed
	t.fenceWhere(func(*window) bool { return true })
	t.s.closedBy(t)
}

// down is the end of the session by itself. It fences nothing.
func (t *target) down() {
	if t.ended != 0 {
		return
	}
	t.ended = fault.PeerLost
	t.n.f.note("down", t.n, t.s, 0, 0)
	t.n.push(rdma.Event{Kind: rdma.EventDown, Session: t.id, Status: fault.PeerLost})
}

// admit finds the window of a chunk and enters its gate; Leave must follow. nil: the chunk is refused, which its
// initiator is told, or known already.
func (t *target) admit(o *op, k int) (*window, *receipt) {
	w := t.windows[o.key]
	if w == nil {
		t.refuse(o, k, fault.StaleKey, false)
		return nil, nil
	}
	rc := w.seen[o]
	if rc == nil {
		rc = &receipt{placed: make([]bool, len(o.chunks)), left: len(o.chunks), refused: w.check(o)}
		w.seen[o] = rc
	}
	if rc.refused != 0 {
		t.refuse(o, k, rc.refused, rc.left < len(o.chunks))
		return nil, nil
	}
	if rc.left == 0 && !w.taken && !t.s.over { // all of it was placed, and window and session still stand: a copy
		return nil, nil
	}
	if rc.refused = w.Enter(); rc.refused != 0 {
		t.refuse(o, k, rc.refused, rc.left < len(o.chunks))
		return nil, nil
	}
	return w, rc
}

// check looks at all ranges of an operation before its first byte.
func (w *window) check(o *op) fault.Code {
	if w.access != rdma.Access(o.kind) {
		return fault.PermissionDenied
	}
	size := w.region.mem.Len
	for _, r := range o.ranges {
		if r.Remote > size || r.Len > size-r.Remote || !w.bounds.Allows(r.Remote, r.Len) {
			return fault.OutOfBounds
		}
	}
	return 0
}

// write places a chunk.
func (t *target) write(o *op, k int, buf []byte) {
	w, rc := t.admit(o, k)
	if w == nil {
		return
	}
	o.chunks[k].each(o.ranges, func(r rdma.Range, at uint64) { copy(w.region.bytes[r.Remote:], buf[at:at+r.Len]) })
	w.Leave()
	t.n.f.note("place", t.n, t.s, o.id, k)
	if rc.first == 0 {
		rc.first = t.n.clock.Now()
	}
	if rc.placed[k] {
		return
	}
	rc.placed[k] = true
	if rc.left--; rc.left > 0 {
		return
	}
	if t.ended == 0 {
		ev := rdma.Event{Kind: rdma.EventArrival, Session: t.id, Bytes: o.bytes, Key: o.key, Tag: o.tag, Took: since(t.n.clock, rc.first)}
		t.n.push(ev)
		if t.n.f.hit(t.n.f.opt.Faults.Duplicate) {
			t.n.push(ev)
		}
	}
	t.result(o, k, 0, true)
}

// read answers the request of a chunk with the bytes as they are now.
func (t *target) read(o *op, k int) {
	w, _ := t.admit(o, k)
	if w == nil {
		return
	}
	c := o.chunks[k]
	buf := make([]byte, c.len)
	c.each(o.ranges, func(r rdma.Range, at uint64) { copy(buf[at:], w.region.bytes[r.Remote:r.Remote+r.Len]) })
	w.Leave()
	i := o.i
	t.n.f.transmit(packet{s: t.s, from: t.n, to: i.n, op: o, index: k, what: "answer", deliver: func() { o.answer(k, buf) }})
}

func (t *target) refuse(o *op, k int, code fault.Code, wrote bool) {
	t.n.f.note("refuse", t.n, t.s, o.id, k)
	t.result(o, k, code, wrote)
}

func (t *target) result(o *op, k int, code fault.Code, wrote bool) {
	t.n.f.transmit(packet{s: t.s, from: t.n, to: o.i.n, op: o, index: k, what: "result", deliver: func() { o.end(code, wrote) }})
}
