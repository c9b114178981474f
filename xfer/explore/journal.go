package explore

import "github.com/kvxfer/kvxfer/xfer/protocol"

// entry is a step in the journal.
type entry struct {
	kind  entryKind
	lease uint8
}

type entryKind uint8

const (
	logGrant entryKind = iota + 1
	logRevoke
	logCommit
	logFree
)

// log writes a step into the journal. A step that is not synced waits behind the last one that was: a crash loses it
// and all that follow it, a later synced step takes it along.
func (w *World) log(e entry, sync bool) {
	if !sync {
		w.pending = append(w.pending, e)
		return
	}
	for _, p := range w.pending {
		w.logged(p)
	}
	w.pending = nil
	w.logged(e)
}

func (w *World) logged(e entry) {
	l := &w.leases[e.lease]
	blocks := w.cfg.Leases[e.lease].Blocks
	switch e.kind {
	case logGrant:
		l.open = true
		for _, b := range blocks {
			w.blocks[b].gen = 0
		}
	case logCommit:
		l.open = false
		for _, b := range blocks {
			w.blocks[b].gen = generation(e.lease)
		}
	case logFree:
		l.open = false
	}
}

// evict takes a committed block back: in the log first.
func (w *World) evict(n uint8) {
	for _, p := range w.pending {
		w.logged(p)
	}
	w.pending = nil
	w.blocks[n].gen = 0
	w.take(n)
	w.marks |= SawReused
}

// crashOwner ends the owner's daemon. Its memory is the client's; windows, leases and links are gone with the process,
// and with the process every chunk that was inside a gate has landed or never will.
func (w *World) crashOwner(survive uint8) {
	for _, p := range w.pending[:survive] {
		w.logged(p)
	}
	w.up, w.pending, w.arrivals = false, nil, nil
	w.grants, w.keys = 0, 0
	for i := range w.leases {
		l := &w.leases[i]
		if l.o != nil && !l.released {
			l.released = true
			for _, b := range w.cfg.Leases[i].Blocks { // its client saw the process exit: nobody reads by its leave any more
				w.take(b)
			}
		}
		l.m, l.o, l.seen, l.lapsed = nil, nil, 0, false
	}
	for x := range w.transfers {
		t := &w.transfers[x]
		t.win.open, t.handle, t.fence = false, false, false
		if t.link.open {
			w.cut(int8(x))
		}
	}
	kept := w.packets[:0]
	for _, p := range w.packets {
		if !p.inside {
			kept = append(kept, p)
		}
	}
	w.packets = kept
}

// restart begins the next incarnation. Served is what the client vouches for and the journal has as committed under
// the same generation; every other block is the client's own.
func (w *World) restart() {
	w.up = true
	w.epoch++
	for i := range w.leases {
		w.leases[i].open = false
	}
	for n := range w.blocks {
		b := &w.blocks[n]
		switch {
		case !w.owner.client:
			b.view = unmapped
		case w.cfg.Mode == Read: // what the crash left committed stays so, the rest was taken at the exit
		case b.vouch != 0 && (b.vouch == b.gen || w.broken(VouchAlone)):
			b.view, b.want, b.lease = committed, b.vouchWant, -1
			w.marks |= SawServed
		default:
			b.gen = 0
			w.take(uint8(n))
		}
	}
}

// leaseDue says whether a lease, or a holder's time under it, is over and nobody has noticed.
func (w *World) leaseDue(i int) bool {
	l := &w.leases[i]
	now := w.ownerNow()
	if l.m != nil {
		return l.m.Phase() <= protocol.LeaseBound && now >= l.m.Deadline()
	}
	if l.o == nil || l.o.Phase().Ended() {
		return false
	}
	if l.o.Phase() == protocol.OfferOpen && now >= l.o.Deadline() {
		return true
	}
	for x := range w.transfers {
		if t := &w.transfers[x]; t.handle && int(t.win.lease) == i && !t.fence && now >= t.win.deadline {
			return true
		}
	}
	return false
}
