package verbs

import (
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// window is a window of the contract at the target. On a lane of a device with memory windows it has a key of its own there; on
// others it has the memory's key, which the initiator is told and forgets. The target's lock guards it.
type window struct {
	t         *target
	key       rdma.Key
	reg       *region
	access    rdma.Access
	off, span uint64 // what it covers at most
	deadline  rdma.Instant
	lanes     []laneBinding        // by lane
	parts     map[uint64]*assembly // WRITEs of several parts that are not whole, by number: of those that were cancelled until the fence
	pending   int                  // bindings that its announcement waits for
	announced bool
	fence     *fencing // it is being fenced
}

type binding uint8

const (
	unbound binding = iota
	binds           // the device works on it
	bound
	unbinds
)

type laneBinding struct {
	state  binding
	awaits bool // counted in pending
	window nic.Window
	rkey   uint32
	writes uint64 // parts received on the lane's generation
}

// fencing is a fence under way.
type fencing struct {
	wake  chan struct{} // capacity 1: look again
	done  chan struct{} // it is over
	clean *cleanMsg     // what the initiator said
	err   error
}

func (f *fencing) stir() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// invalidateWithin bounds the wait for the device's own work: it needs no peer.
const invalidateWithin = time.Second

// Grant opens a window.
func (t *target) Grant(in rdma.Window) (rdma.Key, error) {
	if err := in.Check(); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	reg, err := t.p.ours("grant", in.Region)
	if err != nil {
		return 0, err
	}
	if t.ended != 0 {
		if t.ended == fault.Closed {
			return 0, errClosed("grant")
		}
		return 0, fault.New(fault.PeerLost, "grant", "the session has ended: %s", t.ended)
	}
	t.lastKey++
	w := &window{t: t, key: t.lastKey, reg: reg, access: in.Access, deadline: in.Deadline, span: reg.mem.Len}
	if s, ok := in.Bounds.(rdma.Spans); ok && len(s) > 0 {
		end := s[len(s)-1]
		w.off = s[0].Off
		w.span = end.Off + end.Len - w.off
	}
	t.windows[w.key] = w
	for _, l := range t.lanes {
		if l != nil && l.up && l.rail.dev.windows {
			w.bindOn(l)
		}
	}
	if w.pending == 0 {
		t.announce(w)
	}
	return w.key, nil
}

// Extend replaces the deadline.
func (t *target) Extend(k rdma.Key, deadline rdma.Instant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.windows[k]
	if w == nil || w.fence != nil {
		return fault.New(fault.StaleKey, "extend", "window %d is fenced", k)
	}
	w.deadline = deadline
	return nil
}

// on is the window's state on a lane.
func (w *window) on(l *targetLane) *laneBinding {
	for int(l.index) >= len(w.lanes) {
		w.lanes = append(w.lanes, laneBinding{})
	}
	return &w.lanes[l.index]
}

// bindOn begins the binding on a lane.
func (w *window) bindOn(l *targetLane) {
	b := w.on(l)
	if w.reg.pinned.mrs[l.rail.dev.index] == nil || w.span == 0 {
		return // the device came to nothing before the memory was registered, or there is nothing to reach
	}
	b.state = binds
	if !w.announced {
		b.awaits = true
		w.pending++
	}
	l.queue(request{w: w})
}

// execute hands a binding or an invalidation to the device.
func (w *window) execute(l *targetLane, id uint64, end bool) (err error) {
	b := w.on(l)
	if end {
		return l.qp.Invalidate(id, b.rkey)
	}
	if b.window, err = l.rail.dev.takeWindow(); err != nil {
		return err
	}
	access := nic.RemoteWrite
	if w.access == rdma.AccessRead {
		access = nic.RemoteRead
	}
	b.rkey, err = l.qp.Bind(id, b.window, w.reg.pinned.mrs[l.rail.dev.index], uint64(uintptr(w.reg.mem.Base))+w.off, w.span, access)
	return err
}

// executed: the device has done what it was given.
func (w *window) executed(l *targetLane, end bool) {
	b := w.on(l)
	if end {
		l.rail.dev.giveWindow(b.window)
		*b = laneBinding{}
		w.fence.stir()
		return
	}
	if b.state == binds {
		b.state = bound
	}
	if w.announced {
		l.fresh = append(l.fresh, windowKey{w.key, b.rkey})
	}
	w.settled(b)
}

// settled: one binding less to wait for.
func (w *window) settled(b *laneBinding) {
	if !b.awaits {
		return
	}
	b.awaits = false
	if w.pending--; w.pending == 0 && !w.announced && w.fence == nil {
		w.t.announce(w)
	}
}

// laneEnded: the window's key on the lane is worth nothing any more.
func (w *window) laneEnded(l *targetLane) {
	if int(l.index) >= len(w.lanes) {
		return
	}
	b := &w.lanes[l.index]
	w.settled(b)
	if b.window != nil {
		if err := b.window.Close(); err != nil {
			w.t.p.opt.Logger.Warn("memory window not freed", "device", l.rail.dev.info.Name, "error", err)
		}
	}
	*b = laneBinding{}
	if w.fence != nil {
		w.fence.stir()
	}
}

// received counts a part on a lane.
func (w *window) received(l *targetLane) {
	w.on(l).writes++
	if w.fence != nil {
		w.fence.stir()
	}
}

// announce tells the initiator all about a window.
func (t *target) announce(w *window) {
	w.announced = true
	if t.side == nil || t.ended != 0 {
		return
	}
	m := &windowMsg{key: w.key, access: w.access, base: uint64(uintptr(w.reg.mem.Base)), size: w.reg.mem.Len, off: w.off, span: w.span}
	for _, r := range t.p.rails {
		var k uint32
		if mr := w.reg.pinned.mrs[r.dev.index]; mr != nil && !r.dev.windows {
			k = mr.RKey()
		}
		m.rails = append(m.rails, k)
	}
	for _, l := range t.lanes {
		if l == nil || !l.up || int(l.index) >= len(w.lanes) {
			continue
		}
		if b := &w.lanes[l.index]; b.state == bound {
			m.keys = append(m.keys, laneKey{l.ref(), b.rkey})
		}
	}
	t.side.send(m)
}

// Fence ends a window: what is under way may end by itself for a moment, then the ladder is climbed. The moment spares the other
// windows, since an invalidated key and a reset both take the queue pair's other requests down with them.
func (t *target) Fence(k rdma.Key) error {
	t.mu.Lock()
	w := t.windows[k]
	if w == nil {
		defer t.mu.Unlock()
		return t.broken // what could not be fenced once stays so
	}
	if f := w.fence; f != nil {
		t.mu.Unlock()
		<-f.done
		return f.err
	}
	f := &fencing{wake: make(chan struct{}, 1), done: make(chan struct{})}
	w.fence = f
	if !gate.Fences {
		delete(t.windows, k)
		close(f.done)
		t.mu.Unlock()
		return nil
	}
	if t.side != nil && t.ended == 0 {
		t.side.send(&revokeMsg{k})
	}
	drain := time.NewTimer(t.p.opt.Drain)
	defer drain.Stop()
	t.awaiting(f, drain.C, func() bool { return !w.quiet() })
	for _, l := range t.lanes {
		if l != nil && l.up {
			w.endOn(l)
		}
	}
	device := time.NewTimer(invalidateWithin)
	defer device.Stop()
	t.awaiting(f, device.C, w.unbinding)
	for _, l := range t.lanes {
		if l != nil && l.up && int(l.index) < len(w.lanes) && w.lanes[l.index].state != unbound {
			t.endLane(l, nil) // the device does not answer: the next rung
		}
	}
	f.err = t.broken
	delete(t.windows, k)
	close(f.done)
	t.flush()
	t.mu.Unlock()
	return f.err
}

// awaiting waits, with mu let go meanwhile, until cond is false or the time is over.
func (t *target) awaiting(f *fencing, over <-chan time.Time, cond func() bool) {
	for t.ended == 0 && cond() {
		t.mu.Unlock()
		select {
		case <-f.wake:
		case <-over:
			t.mu.Lock()
			return
		}
		t.mu.Lock()
	}
}

// quiet: every lane on which the peer may use the window has been said to be clean, and the target counts the same.
func (w *window) quiet() bool {
	for _, l := range w.t.lanes {
		if l != nil && l.up && !w.quietOn(l) {
			return false
		}
	}
	return true
}

func (w *window) quietOn(l *targetLane) bool {
	if l.rail.dev.windows && (int(l.index) >= len(w.lanes) || w.lanes[l.index].state == unbound) {
		return true // it has no key there
	}
	if w.fence.clean == nil {
		return false
	}
	for _, c := range w.fence.clean.lanes {
		if c.laneRef == l.ref() {
			return w.access == rdma.AccessRead || c.writes == w.on(l).writes
		}
	}
	return false
}

// endOn fences the window on one lane: by its key where it has one, else by the queue pair, unless both sides know that nothing of
// the window is under way there and the initiator has forgotten the key.
func (w *window) endOn(l *targetLane) {
	switch {
	case !l.rail.dev.windows:
		if !w.quietOn(l) {
			w.t.endLane(l, nil)
		}
	case int(l.index) < len(w.lanes) && w.lanes[l.index].state != unbound:
		w.lanes[l.index].state = unbinds
		l.queue(request{w: w, end: true})
	}
}

func (w *window) unbinding() bool {
	for k := range w.lanes {
		if w.lanes[k].state == unbinds {
			return true
		}
	}
	return false
}

// drop forgets a window whose lanes have ended.
func (t *target) drop(w *window) {
	if w.fence != nil {
		w.fence.stir()
	}
}

// fenceRegion fences every window on a region.
func (t *target) fenceRegion(r *region) error {
	t.mu.Lock()
	var keys []rdma.Key
	for k, w := range t.windows {
		if w.reg == r {
			keys = append(keys, k)
		}
	}
	t.mu.Unlock()
	// At once: they wait for the peer together, not one behind the other.
	errs := make([]error, len(keys))
	var wg sync.WaitGroup
	for n, k := range keys {
		wg.Go(func() { errs[n] = t.Fence(k) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
