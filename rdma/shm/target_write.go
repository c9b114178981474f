package shm

import (
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// inbound is a WRITE whose frames are coming or whose bytes are being copied.
type inbound struct {
	frame opFrame // the next frame has these fields and the next index
	began rdma.Instant
	w     *window // of the first frame

	// Under the session's lock.
	tasks  int
	whole  bool // every frame has come
	placed uint64
	status fault.Code
	wrote  bool
	told   bool // the result is said
	reader bool // the reader has it
}

var inbounds = sync.Pool{New: func() any { return new(inbound) }}

// handle takes one frame of the initiator.
func (t *target) handle(b []byte, fds *[]int, c *copier) ([]byte, error) {
	switch k := frameKind(b[0]); k {
	case kindRegion, kindDrop:
		return t.notice(b, fds)
	case kindWrite, kindRead:
		f, descs, rest, err := parseOp(b, t.descs)
		if err != nil {
			return nil, err
		}
		t.descs = descs
		t.hold()
		if f.kind == kindRead {
			return rest, t.request(&f)
		}
		return rest, t.write(&f, c)
	default:
		return nil, violation("frame kind %d from an initiator", k)
	}
}

// hold waits while the peer has this node keep too much.
func (t *target) hold() {
	t.events.hold(t.isOver)
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.load >= maxLoad && t.ended == 0 {
		t.room.Wait()
	}
}

// lighten is the end of n things that count. The session's lock is held.
func (t *target) lighten(n int) {
	t.load -= n
	if t.load < maxLoad {
		t.room.Broadcast()
	}
}

// follow checks that a frame begins a new operation or continues the one that is open. An initiator that gives one up
// simply begins the next.
func (t *target) follow(f *opFrame) error {
	if f.index == 0 {
		if f.seq <= t.seq {
			return violation("operation %d after %d", f.seq, t.seq)
		}
		t.seq = f.seq
		t.forget()
		return nil
	}
	in := t.in
	if in == nil {
		return violation("frame %d of operation %d continues nothing", f.index, f.seq)
	}
	want := in.frame
	want.count, want.index = f.count, want.index+1
	if want != *f {
		return violation("frame %d of operation %d does not continue what came before", f.index, f.seq)
	}
	return nil
}

// forget gives up the operation whose frames were coming.
func (t *target) forget() {
	if in := t.in; in != nil {
		t.in = nil
		t.mu.Lock()
		in.reader = false
		free := in.tasks == 0
		t.mu.Unlock()
		if free {
			inbounds.Put(in)
		}
	}
}

// admit finds the window and checks a frame's ranges against it, all before the first byte of the frame.
func (t *target) admit(key uint64, access rdma.Access, descs []desc) (*window, fault.Code) {
	w := t.window(rdma.Key(key))
	switch {
	case w == nil:
		return nil, fault.StaleKey
	case w.access != access:
		return nil, fault.PermissionDenied
	case !w.allows(descs):
		return nil, fault.OutOfBounds
	}
	// An empty operation meets the fence and the deadline here and nowhere else.
	st := w.enter()
	if st == 0 {
		w.leave()
	}
	return w, st
}

// write begins the copy of one frame of a WRITE.
func (t *target) write(f *opFrame, c *copier) error {
	if err := t.follow(f); err != nil {
		return err
	}
	in := t.in
	if f.index == 0 {
		in = inbounds.Get().(*inbound)
		*in = inbound{began: t.p.opt.Clock.Now(), reader: true}
		t.in = in
	}
	in.frame = *f
	w, st := t.admit(f.key, rdma.AccessWrite, t.descs)
	if f.index == 0 {
		in.w = w
	}
	whole := f.index+1 == f.frames
	t.mu.Lock()
	if t.ended != 0 {
		t.mu.Unlock()
		return errClosed("shm")
	}
	in.whole = whole
	if in.status == 0 {
		in.status = st
	}
	var task *task
	var err error
	if in.status == 0 && f.count > 0 {
		if task, err = t.placing(in, w, f); err == nil {
			in.tasks++
			t.load++
			t.crew.join(1)
		}
	}
	done := task == nil && t.settle(in)
	t.mu.Unlock()
	if whole {
		t.forget()
	}
	if task != nil {
		t.p.pool.add(task, c)
	}
	if done {
		t.kick()
	}
	return err
}

// placing makes the task of a frame. The session's lock is held.
func (t *target) placing(in *inbound, w *window, f *opFrame) (*task, error) {
	p, ok := t.permit(f.slot, f.word)
	if !ok {
		return nil, violation("a permission in slot %d of %d", f.slot, len(t.peer.slots))
	}
	x := t.use(f.region)
	if x == nil {
		return nil, violation("region %d is not there", f.region)
	}
	n := newTask()
	n.dst, n.src, n.gate, n.permit, n.void, n.over, n.done = w.region.access, x.access, w, p, fault.Cancelled, t.isOver, t.placed
	n.peer, n.owner, n.events, n.stream = x, in, &t.events, f.total >= t.p.opt.StreamFrom
	for _, d := range t.descs {
		if !x.access.holds(d.local, d.len) {
			n.release()
			t.unuseLocked(x)
			return nil, violation("a range outside the initiator's region")
		}
		n.pieces = append(n.pieces, piece{dst: d.remote, src: d.local, len: d.len})
		n.bytes += d.len
	}
	return n, nil
}

// placed ends a frame of a WRITE: every worker has left the memory of both sides.
func (t *target) placed(n *task) {
	defer t.crew.leave()
	in := n.owner.(*inbound)
	noted(t.p, t.role, t.id, n)
	t.mu.Lock()
	t.unuseLocked(n.peer)
	in.tasks--
	t.lighten(1)
	in.placed += n.placed
	in.wrote = in.wrote || n.wrote
	if in.status == 0 {
		in.status = n.status
	}
	done := t.settle(in)
	free := in.tasks == 0 && !in.reader
	t.mu.Unlock()
	n.release()
	if free {
		inbounds.Put(in)
	}
	if done {
		t.kick()
	}
}

// settle says the result of a WRITE that has ended: all of it is placed, or it failed and nobody reads its source any more.
// The arrival comes first, from inside the gate, so that none comes after the window's fence. The session's lock is held;
// false: nothing was said.
func (t *target) settle(in *inbound) bool {
	if in.told || in.tasks > 0 || in.status == 0 && !in.whole || t.ended != 0 {
		return false
	}
	in.told = true
	f := &in.frame
	if in.status == 0 && in.placed != f.total {
		in.status = fault.ProtocolViolation // the frames were fewer bytes than they said
	}
	if in.status == 0 {
		in.status = in.w.EnterLate()
	}
	r := result{seq: f.seq, bytes: in.placed, status: in.status, wrote: in.wrote && in.status != 0}
	if in.status == 0 {
		t.events.add(rdma.Event{Kind: rdma.EventArrival, Session: t.id, Bytes: f.total, Key: in.w.key, Tag: f.tag,
			Took: t.p.opt.Clock.Now() - in.began})
		in.w.Leave()
	}
	t.results = append(t.results, r)
	t.load++
	return true
}

// message builds what is to be sent next. The session's lock is held.
func (t *target) message(b []byte) ([]byte, int) {
	switch {
	case len(t.said) > 0:
		return t.notices(b)
	case len(t.results) > 0:
		n := min(len(t.results), maxCount)
		b = appendList(b, kindResult, n)
		for k := range n {
			b = t.results[k].append(b)
		}
		t.results = t.results[:copy(t.results, t.results[n:])]
		t.lighten(n)
	case len(t.answers) > 0:
		n := min(len(t.answers), maxCount)
		b = appendList(b, kindAnswer, n)
		for k := range n {
			b = t.answers[k].append(b)
		}
		t.answers = t.answers[:copy(t.answers, t.answers[n:])]
		t.lighten(n)
	}
	return b, -1
}
