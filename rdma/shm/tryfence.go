package shm

import (
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
)

var _ rdma.TryFencer = (*target)(nil)

// TryFence ends a window that nobody is inside of, neither here nor, where it is for reading, in the peer's process. A window
// that the peer still reads is concealed from whoever comes, and Fence waits for those who are there.
func (t *target) TryFence(k rdma.Key) bool {
	t.mu.Lock()
	w := t.windows[k]
	if w != nil {
		t.fences++
	}
	t.mu.Unlock()
	if w == nil {
		return true
	}
	fenced := w.TryShut()
	if fenced && gate.Fences {
		fenced = t.tryUnpublish(w)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fences--
	t.room.Broadcast()
	return fenced
}

// tryUnpublish is unpublish with one look at the peer's workers. The order is unpublish's: the word is changed before the look,
// so who comes later is not let in.
func (t *target) tryUnpublish(w *window) bool {
	if !t.conceal(w) {
		return true
	}
	if w.published && t.peer != nil && t.peer.in[w.slot].Load() != 0 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.windows[w.key] == w {
		delete(t.windows, w.key)
		if w.published {
			t.slots = append(t.slots, w.slot)
		}
	}
	return true
}
