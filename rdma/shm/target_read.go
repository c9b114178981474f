package shm

import (
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// request answers one frame of a READ. What it permits the initiator reads by itself; the slot takes that back.
func (t *target) request(f *opFrame) error {
	if err := t.follow(f); err != nil {
		return err
	}
	a := answer{seq: f.seq, index: f.index}
	w, st := t.admit(f.key, rdma.AccessRead, t.descs)
	t.mu.Lock()
	if t.ended != 0 {
		t.mu.Unlock()
		return errClosed("shm")
	}
	if st == 0 && f.count > 0 {
		if st = w.EnterLate(); st == 0 { // so that the end of its region finds it announced
			if n, err := t.announce(w.region); err != nil {
				st = fault.CodeOf(err)
			} else {
				a.region, a.slot, a.word = n, w.slot, w.word
			}
			w.Leave()
		}
	}
	a.status = st
	t.answers = append(t.answers, a)
	t.load++
	t.read(f)
	t.mu.Unlock()
	t.kick()
	return nil
}

// read remembers the READ whose frames are coming, for follow. The session's lock is held.
func (t *target) read(f *opFrame) {
	if f.index+1 == f.frames {
		t.in = nil
		return
	}
	if t.in == nil {
		t.in = &inbound{reader: true}
	}
	t.in.frame = *f
}

// publish gives a READ window its slot. The session's lock is held, and there is a slot: Grant counts them.
func (t *target) publish(w *window) {
	w.slot = t.slots[0]
	t.slots = t.slots[:copy(t.slots, t.slots[1:])]
	w.published = true
	w.word = t.page.slots[w.slot].open(t.until(w.deadline))
	t.arm(w)
}

// republish moves a READ window's deadline; one that a timer had ended is open again. The session's lock is held.
func (t *target) republish(w *window) {
	s := &t.page.slots[w.slot]
	s.deadline.Store(t.until(w.deadline))
	s.set(slotOpen)
	t.arm(w)
}

func (t *target) until(deadline rdma.Instant) int64 {
	if deadline == 0 {
		return 0
	}
	return t.p.opt.Monotonic(deadline)
}

// arm sets the timer that ends a READ window at its deadline, also for an initiator that cannot tell the host's clock. The
// lock is held.
func (t *target) arm(w *window) {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if w.deadline != 0 {
		left := time.Duration(w.deadline - t.p.opt.Clock.Now())
		w.timer = time.AfterFunc(max(left, time.Millisecond), func() { t.expire(w) })
	}
}

func (t *target) expire(w *window) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.page == nil || t.windows[w.key] != w || w.deadline == 0 || w.Shutting():
	case t.p.opt.Clock.Now() < w.deadline:
		t.arm(w)
	default:
		t.page.slots[w.slot].set(slotExpired)
	}
}

// unpublish takes a window that is shut out of the table and, of a READ window, the permission from its slot: it returns
// when nobody is inside any more or what those read is void. The lock is not held meanwhile: a peer that does not answer
// costs its own fence only.
func (t *target) unpublish(w *window) {
	if !t.conceal(w) {
		return
	}
	if w.published {
		t.readers(w.slot)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.windows[w.key] != w {
		return
	}
	delete(t.windows, w.key)
	if w.published {
		t.slots = append(t.slots, w.slot)
	}
}

// conceal lets nobody new into a READ window; false: somebody else has ended it meanwhile.
func (t *target) conceal(w *window) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.windows[w.key] != w {
		return false
	}
	w.ending = true
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if w.published {
		t.page.slots[w.slot].set(slotStale)
	}
	return true
}
