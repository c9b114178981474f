package explore

import (
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// send puts an operation's bytes, or a read's request, on its way. From here it may arrive at any time or never.
func (w *World) send(x, piece uint8) {
	t := &w.transfers[x]
	o := &t.ops[piece]
	p := packet{x: x, piece: piece, copy: o.sent, epoch: t.win.epoch, key: t.win.key}
	o.sent++
	spec := w.cfg.Transfers[x]
	switch {
	case w.cfg.Mode == Write:
		b := spec.Source[int(piece)%len(spec.Source)]
		p.token = sourceToken(b, w.versions[b])
	case w.cfg.Ungated:
		p.answer, p.token = true, *w.piece(spec.Lease, piece)
	}
	w.packets = append(w.packets, p)
}

// piece is where a piece of a lease lies in the owner's memory.
func (w *World) piece(lease, piece uint8) *token {
	blocks := w.cfg.Leases[lease].Blocks
	return &w.blocks[blocks[int(piece)%len(blocks)]].mem[int(piece)/len(blocks)]
}

// move lets a packet take its next step.
func (w *World) move(a Action) {
	i := slices.IndexFunc(w.packets, func(p packet) bool { return p.x == a.A && p.piece == a.B && p.copy == a.C })
	p := w.packets[i]
	t := &w.transfers[p.x]
	switch {
	case p.answer: // at the reader: its provider takes it while the operation is not over
		w.drop(i)
		if t.m != nil && !t.ops[p.piece].done {
			t.mem[p.piece], t.ops[p.piece].placed = p.token, true
		}
	case p.inside:
		w.drop(i)
		w.place(p)
	default:
		into, code := w.enter(p)
		switch {
		case code != 0:
			w.drop(i)
			if t.m != nil {
				t.ops[p.piece].refused = code
			}
		case w.cfg.Mode == Read:
			q := &w.packets[i]
			q.answer, q.token = true, *w.piece(w.cfg.Transfers[p.x].Lease, p.piece)
		case w.cfg.TwoSteps:
			w.packets[i].inside, w.packets[i].into = true, into
		default:
			p.into = into
			w.drop(i)
			w.place(p)
		}
	}
}

func (w *World) drop(i int) { w.packets = slices.Delete(w.packets, i, i+1) }

// enter is the gate: the window must be open, of this incarnation, and its time not over.
func (w *World) enter(p packet) (into uint8, code fault.Code) {
	into = p.x
	if p.epoch != w.epoch {
		if !w.broken(EpochUnchecked) {
			return 0, fault.StaleKey
		}
		at := slices.IndexFunc(w.transfers, func(t transfer) bool { return t.win.open && t.win.epoch == w.epoch && t.win.key == p.key })
		if at < 0 {
			return 0, fault.StaleKey
		}
		into = uint8(at)
	}
	win := &w.transfers[into].win
	if !win.open {
		return 0, fault.StaleKey
	}
	if int(p.piece) >= w.pieces(len(w.cfg.Leases[win.lease].Blocks)) {
		return 0, fault.OutOfBounds
	}
	if w.ownerNow() >= win.deadline && !w.broken(TimerOnly) {
		return 0, fault.LeaseExpired
	}
	if w.owner.now >= win.deadline || w.leases[win.lease].lapsed {
		w.fail("clock", "piece %d of transfer %d passes the gate of lease %d after its time", p.piece, p.x, win.lease)
	}
	return into, 0
}

// place stores a chunk: the bytes are visible, and both sides will hear of it.
func (w *World) place(p packet) {
	win := &w.transfers[p.into].win
	blocks := w.cfg.Leases[win.lease].Blocks
	if w.blocks[blocks[int(p.piece)%len(blocks)]].view == unmapped {
		w.fail("unmapped", "piece %d of transfer %d lands in memory that nobody has any more", p.piece, p.x)
	}
	*w.piece(win.lease, p.piece) = p.token
	w.arrivals = append(w.arrivals, arrival{p.into, p.piece})
	t := &w.transfers[p.x]
	t.hit = true
	if t.clean {
		w.fail("unsaid write", "transfer %d was reported as one that changed nothing, and then its piece %d lands", p.x, p.piece)
	}
	if t.m != nil && p.into == p.x {
		t.ops[p.piece].placed = true
	}
}

// complete ends an operation at its initiator, once. From here on its provider does not touch the initiator's memory.
func (w *World) complete(x, piece uint8, failed bool) {
	t := &w.transfers[x]
	o := &t.ops[piece]
	e := protocol.TransferEvent{Kind: protocol.TransferCompletion, Count: 1, Wrote: o.sent > 0}
	switch {
	case failed && t.link.cut:
		e.Code = fault.PeerLost
	case failed:
		e.Code = fault.Cancelled
	case !o.placed && !w.early(o):
		e.Code = o.refused
	}
	o.done = true
	w.stepTransfer(x, e)
}
