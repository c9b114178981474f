package explore

import (
	"math/bits"
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// pieceBytes is how long a piece is for the machines, which count bytes for their reports.
const pieceBytes = 1

// ownerNow is what the owner compares deadlines with.
func (w *World) ownerNow() rdma.Instant {
	if w.broken(WallClock) {
		return w.owner.now + rdma.Instant(w.owner.wall)*2*ttl
	}
	return w.owner.now
}

// grant is Engine.Lease: the journal first, then the ticket exists.
func (w *World) grant(i uint8) {
	l, spec := &w.leases[i], w.cfg.Leases[i]
	deadline := w.owner.now + ttl
	l.granted, l.epoch, l.number = true, w.epoch, w.grants
	w.grants++
	if w.cfg.Mode == Read {
		l.o = protocol.NewOffer(rdma.AccessRead, uint32(spec.Uses), deadline)
		for layer := range w.cfg.Layers {
			for _, b := range spec.Blocks {
				l.want = append(l.want, w.blocks[b].mem[layer])
			}
		}
		return
	}
	l.m = protocol.NewLease(uint32(w.cfg.Layers), uint32(len(spec.Blocks)), pieceBytes, deadline)
	w.log(entry{logGrant, i}, !w.broken(GrantBeforeJournal))
	for _, b := range spec.Blocks {
		w.blocks[b].view, w.blocks[b].lease, w.blocks[b].want = leased, int8(i), nil
	}
}

func (w *World) stepLease(i uint8, e protocol.LeaseEvent) {
	l := &w.leases[i]
	if l.m == nil {
		return
	}
	e.Now = w.ownerNow()
	if e.Kind == protocol.LeaseRenew && w.broken(RenewRevives) {
		e.Now = 0
	}
	alive, due := l.m.Phase() <= protocol.LeaseBound, w.owner.now >= l.m.Deadline()
	out := l.m.Step(nil, e)
	if c := l.m.Outcome(); alive && l.m.Phase() > protocol.LeaseBound && e.Kind != protocol.LeaseAbort && !due &&
		(c == fault.LeaseExpired || c == fault.DeadlineExceeded) {
		w.fail("clock", "lease %d expired before its time on the owner's monotonic clock", i)
	}
	for _, f := range out {
		w.leaseEffect(i, f)
	}
}

func (w *World) leaseEffect(i uint8, f protocol.LeaseEffect) {
	l := &w.leases[i]
	switch f.Kind {
	case protocol.LeaseRefuse:
		w.toSource(w.asking, frame{kind: refusedFrame, code: f.Code})
	case protocol.LeaseOpenWindow:
		if w.windowFails { // only an open window makes a transfer the owner
			w.toSource(w.asking, frame{kind: refusedFrame, code: fault.Internal})
			w.stepLease(i, protocol.LeaseEvent{Kind: protocol.LeaseWindowFailed, Code: fault.Internal})
			return
		}
		l.bind = w.asking
		w.openWindow(i, f.Deadline)
	case protocol.LeaseLayer:
		w.layerVisible(i, int(f.Layer))
	case protocol.LeaseLogRevoke:
		w.log(entry{logRevoke, i}, true)
	case protocol.LeaseFence:
		w.transfers[l.bind].fence = true
		if f.Code != 0 && w.broken(FreedBeforeFence) {
			w.giveBack(i)
		}
	case protocol.LeaseCommit:
		w.commit(i)
	case protocol.LeaseFree:
		if l.bound > 0 && !f.Wrote {
			w.fail("unsaid write", "lease %d had a window and says that nothing was written", i)
		}
		w.log(entry{logFree, i}, true)
		w.giveBack(i)
		if l.bind >= 0 {
			w.over(l.bind, frame{kind: endedFrame, code: f.Code})
		}
		w.marks |= SawFreed
	case protocol.LeaseQuarantine:
		for _, b := range w.cfg.Leases[i].Blocks {
			if w.blocks[b].lease == int8(i) {
				w.blocks[b].view = quarantined
			}
		}
		w.transfers[l.bind].handle = false
		w.cut(l.bind)
		w.marks |= SawQuarantined
	case protocol.LeaseExtend:
		if l.bind >= 0 {
			w.transfers[l.bind].win.deadline = f.Deadline
		}
	}
}

// openWindow grants a window to the transfer that asks and answers its BIND.
func (w *World) openWindow(i uint8, deadline rdma.Instant) {
	l, t := &w.leases[i], &w.transfers[w.asking]
	w.keys++
	t.win = window{open: true, lease: i, epoch: w.epoch, key: w.keys, deadline: deadline}
	t.handle = true
	l.bound++
	if most := max(1, w.cfg.Leases[i].Uses); l.bound > most {
		w.fail("bound twice", "lease %d was given to %d transfers, allowed %d", i, l.bound, most)
	}
	w.toSource(w.asking, frame{kind: boundFrame})
}

// layerVisible checks what the owner's client may read when it is told of a layer.
func (w *World) layerVisible(i uint8, layer int) {
	l := &w.leases[i]
	n := len(w.cfg.Leases[i].Blocks)
	for pos, b := range w.cfg.Leases[i].Blocks {
		if got, want := w.blocks[b].mem[layer], w.transfers[l.bind].want[layer*n+pos]; got != want {
			w.fail("torn layer", "layer %d of lease %d is said to be visible and holds %s in block %d, not %s", layer, i, got, b, want)
		}
	}
	w.marks |= SawLayer
}

// commit is the end of a good lease: its client may use the blocks, and vouches for them.
func (w *World) commit(i uint8) {
	l := &w.leases[i]
	w.log(entry{logCommit, i}, !w.cfg.LostSuffix)
	t := &w.transfers[l.bind]
	l.committed = l.bind
	if !t.fin {
		w.fail("no FIN", "lease %d is committed and its source never said FIN", i)
	}
	if l.lapsed {
		w.fail("clock", "lease %d is committed, after its time had passed unseen", i)
	}
	blocks := w.cfg.Leases[i].Blocks
	for pos, n := range blocks {
		b := &w.blocks[n]
		if w.owner.client {
			want := make([]token, w.cfg.Layers)
			for layer := range want {
				want[layer] = t.want[layer*len(blocks)+pos]
			}
			b.view, b.want, b.vouch, b.vouchWant = committed, want, generation(i), want
		} else {
			b.view = unmapped
		}
	}
	w.over(l.bind, frame{kind: doneFrame})
	w.marks |= SawCommitted
}

func generation(lease uint8) uint8 { return lease + 2 } // 1 is what was published at the start

// giveBack tells the owner's client that the blocks of a lease are its own. It writes into them at once: that is the
// worst moment. Of a dead client the memory is unmapped.
func (w *World) giveBack(i uint8) {
	if w.cfg.Mode == Read {
		w.leases[i].released = true
		for x := range w.transfers {
			if t := &w.transfers[x]; t.win.open && t.win.lease == i && t.win.epoch == w.epoch {
				w.fail("late read", "the blocks of lease %d are free and transfer %d may still read them", i, x)
			}
		}
	}
	for _, b := range w.cfg.Leases[i].Blocks {
		if w.cfg.Mode == Read && !w.offered(b) || w.blocks[b].view == leased && w.blocks[b].lease == int8(i) {
			w.take(b)
		}
	}
}

// offered says whether an offer that has not ended covers the block.
func (w *World) offered(b uint8) bool {
	for i := range w.leases {
		if l := &w.leases[i]; l.o != nil && !l.released && slices.Contains(w.cfg.Leases[i].Blocks, b) {
			return true
		}
	}
	return false
}

// take lets the owner's client write a new pattern into its block.
func (w *World) take(n uint8) {
	b := &w.blocks[n]
	if !w.owner.client {
		b.view = unmapped
		return
	}
	b.view, b.lease, b.want, b.vouch, b.vouchWant = own, -1, nil, 0, nil
	b.pattern++
	w.fill(b.mem, ownerToken(n, b.pattern))
}

// over tells the source how its lease ended; the handle means nothing from here on.
func (w *World) over(x int8, f frame) {
	t := &w.transfers[x]
	if t.handle {
		w.toSource(x, f)
	}
	t.handle = false
}

// fence is the end of a fence: the gate shuts, which waits for those inside.
func (w *World) fence(x uint8, ok bool) {
	t := &w.transfers[x]
	t.fence = false
	i := t.win.lease
	shut := ok && !w.broken(NoFence)
	if w.cfg.Mode == Write {
		c := w.leases[i].m.Outcome()
		shut = shut && !(c == 0 && w.broken(CommitUnfenced)) && !(c == fault.PeerLost && w.broken(LostLinkFrees))
	}
	if shut {
		t.win.open = false
	}
	ok = ok || w.broken(StuckFenceFrees)
	if w.cfg.Mode == Read {
		w.stepOffer(i, protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: uint64(x), OK: ok})
		return
	}
	w.stepLease(i, protocol.LeaseEvent{Kind: protocol.LeaseFenced, OK: ok})
}

func (w *World) stepOffer(i uint8, e protocol.OfferEvent) {
	l := &w.leases[i]
	if l.o == nil {
		return
	}
	e.Now = w.ownerNow()
	alive, due := l.o.Phase() == protocol.OfferOpen, w.owner.now >= l.o.Deadline()
	out := l.o.Step(nil, e)
	if alive && !due && l.o.Phase() != protocol.OfferOpen && l.o.Outcome() == fault.LeaseExpired {
		w.fail("clock", "offer %d expired before its time on the owner's monotonic clock", i)
	}
	for _, f := range out {
		x := int8(f.Holder)
		switch f.Kind {
		case protocol.OfferRefuse:
			w.toSource(x, frame{kind: refusedFrame, code: f.Code})
		case protocol.OfferOpenWindow:
			if w.windowFails {
				w.toSource(x, frame{kind: refusedFrame, code: fault.Internal})
				w.stepOffer(i, protocol.OfferEvent{Kind: protocol.OfferWindowFailed, Holder: f.Holder, Code: fault.Internal})
				continue
			}
			w.openWindow(i, f.Deadline)
		case protocol.OfferExtend:
			w.transfers[x].win.deadline = f.Deadline
		case protocol.OfferFence:
			w.transfers[x].fence = true
			if w.broken(FreedBeforeFence) {
				w.giveBack(i)
			}
		case protocol.OfferHolderEnded:
			answer := frame{kind: endedFrame, code: f.Code}
			if f.Code == 0 {
				answer.kind = doneFrame
				w.marks |= SawValidated
			}
			w.over(x, answer)
		case protocol.OfferEnd:
			w.giveBack(i)
			w.marks |= SawFreed
		case protocol.OfferQuarantine:
			w.marks |= SawQuarantined
		}
	}
}

// takeFrame is the owner's side of a link.
func (w *World) takeFrame(x uint8) {
	t := &w.transfers[x]
	f := t.link.toOwner[0]
	t.link.toOwner = t.link.toOwner[1:]
	i := t.win.lease
	switch {
	case f.kind == bindFrame:
		w.answerBind(x, f.remaining)
	case !t.handle: // the lease has ended: the handle means nothing
	case w.cfg.Mode == Read && f.kind == finFrame:
		w.stepOffer(i, protocol.OfferEvent{Kind: protocol.OfferRelease, Holder: uint64(x), Bytes: pieceBytes})
	case w.cfg.Mode == Read:
		w.stepOffer(i, protocol.OfferEvent{Kind: protocol.OfferAbort, Holder: uint64(x), Code: f.code})
	case f.kind == finFrame:
		if w.broken(FinIsEnough) {
			for piece := range w.pieces(len(w.cfg.Leases[i].Blocks)) {
				w.count(i, piece)
			}
		}
		w.stepLease(i, protocol.LeaseEvent{Kind: protocol.LeaseFin, Pieces: uint64(w.pieces(len(w.cfg.Leases[i].Blocks)))})
	default:
		w.stepLease(i, protocol.LeaseEvent{Kind: protocol.LeaseAbort, Code: f.code})
	}
}

// answerBind finds the lease by what the ticket says: of this incarnation and by its number.
func (w *World) answerBind(x uint8, remaining rdma.Instant) {
	ticket := &w.leases[w.cfg.Transfers[x].Lease]
	at := slices.IndexFunc(w.leases, func(l lease) bool {
		return (l.m != nil || l.o != nil) && l.number == ticket.number && (l.epoch == ticket.epoch || w.broken(EpochUnchecked))
	})
	w.asking = int8(x)
	defer func() { w.asking = -1 }()
	if at < 0 {
		w.toSource(w.asking, frame{kind: refusedFrame, code: fault.TicketInvalid})
		return
	}
	if len(w.cfg.Leases[at].Blocks) != len(w.cfg.Leases[w.cfg.Transfers[x].Lease].Blocks) {
		w.toSource(w.asking, frame{kind: refusedFrame, code: fault.InvalidArgument})
		return
	}
	i, deadline := uint8(at), w.owner.now+remaining
	if w.cfg.Mode == Read {
		w.stepOffer(i, protocol.OfferEvent{Kind: protocol.OfferBind, Holder: uint64(x), Deadline: deadline})
		return
	}
	if w.broken(BoundTwice) && w.leases[i].m.Phase() == protocol.LeaseBound {
		w.openWindow(i, w.leases[i].m.Deadline())
		return
	}
	w.stepLease(i, protocol.LeaseEvent{Kind: protocol.LeaseBind, Deadline: deadline})
}

// arrived is news that a piece is placed. A repeat is the machine's business; the defect makes another piece of it.
func (w *World) arrived(a arrival) {
	i := w.transfers[a.x].win.lease
	l := &w.leases[i]
	piece := int(a.piece)
	if w.broken(RepeatCounts) {
		if all := w.pieces(len(w.cfg.Leases[i].Blocks)); l.seen>>piece&1 != 0 && l.seen != 1<<all-1 {
			piece = bits.TrailingZeros64(^l.seen)
		}
		l.seen |= 1 << piece
	}
	w.count(i, piece)
	if w.broken(CommitWithoutFin) && l.m.Phase() == protocol.LeaseBound && l.m.Bytes() == uint64(w.pieces(len(w.cfg.Leases[i].Blocks))) {
		w.stepLease(i, protocol.LeaseEvent{Kind: protocol.LeaseFin, Pieces: l.m.Bytes()})
	}
}

func (w *World) count(i uint8, piece int) {
	n := uint32(len(w.cfg.Leases[i].Blocks))
	w.stepLease(i, protocol.LeaseEvent{Kind: protocol.LeaseArrival, Tag: layout.NewTag(uint32(piece)/n, uint32(piece)%n, 1), Bytes: pieceBytes})
}
