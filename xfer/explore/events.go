package explore

import (
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// Actions appends what can happen next, in an order that depends on the state alone.
func (w *World) Actions(out []Action) []Action {
	for x := range w.transfers {
		out = w.transferActions(out, uint8(x))
	}
	for _, p := range w.packets {
		switch {
		case p.inside:
			out = append(out, Action{Place, p.x, p.piece, p.copy})
		case p.answer || w.up:
			out = append(out, Action{Enter, p.x, p.piece, p.copy})
		}
	}
	for i, a := range w.arrivals {
		if !slices.Contains(w.arrivals[:i], a) {
			out = append(out, Action{Kind: Arrives, A: a.x, B: a.piece})
		}
	}
	for i := range w.leases {
		out = w.leaseActions(out, i)
	}
	for n := range w.blocks {
		if b := &w.blocks[n]; b.view == committed && b.vouch > 1 && w.up {
			out = w.may(out, Reuse, uint8(n))
		}
	}
	if w.nextOwner() > 0 {
		out = append(out, Action{Kind: OwnerClock})
	}
	if w.nextSource() > 0 {
		out = append(out, Action{Kind: SourceClock})
	}
	return w.nodeActions(out)
}

// may appends a counted action while its limits allow it.
func (w *World) may(out []Action, k Kind, a ...uint8) []Action {
	if w.used[k] >= w.cfg.Limit[k] || k.fault() && w.faults >= w.cfg.Faults || k.choice() && w.choices >= w.cfg.Choices {
		return out
	}
	act := Action{Kind: k}
	if len(a) > 0 {
		act.A = a[0]
	}
	if len(a) > 1 {
		act.B = a[1]
	}
	return append(out, act)
}

func (w *World) transferActions(out []Action, x uint8) []Action {
	t := &w.transfers[x]
	if !t.started {
		if w.leases[w.cfg.Transfers[x].Lease].granted && w.source.client {
			out = append(out, Action{Kind: Start, A: x})
		}
		return out
	}
	if l := &t.link; l.open {
		switch here := w.up && l.epoch == w.epoch; {
		case !l.cut:
			if here && len(l.toOwner) > 0 {
				out = append(out, Action{Kind: ToOwner, A: x})
				if l.toOwner[0].kind == bindFrame {
					out = w.may(out, GrantFails, x)
				}
			}
			if len(l.toSource) > 0 {
				out = append(out, Action{Kind: ToSource, A: x})
			}
			out = w.may(out, Cut, x)
		default:
			if here && !l.ownerKnows && t.handle {
				out = append(out, Action{Kind: OwnerHears, A: x})
			}
			if !l.sourceKnows && t.known && t.m != nil {
				out = append(out, Action{Kind: SourceHears, A: x})
			}
		}
	}
	if t.fence && !slices.ContainsFunc(w.packets, func(p packet) bool { return p.inside && p.into == x }) {
		out = append(out, Action{Kind: Fence, A: x})
		out = w.may(out, FenceFails, x)
	}
	if t.m == nil {
		return out
	}
	if t.dialling {
		out = append(out, Action{Kind: Connect, A: x})
	}
	if len(t.timers) > 0 && slices.Min(t.timers) <= w.source.now {
		out = append(out, Action{Kind: SourceTick, A: x})
	}
	if t.m.Phase() < protocol.TransferClosing && w.source.client {
		if t.handed <= w.cfg.Layers {
			out = append(out, Action{Kind: HandOver, A: x})
		}
		out = w.may(out, Cancel, x)
	}
	for k := range t.ops {
		o, piece := &t.ops[k], uint8(k)
		if !o.posted || o.done {
			continue
		}
		if o.sent == 0 {
			out = append(out, Action{Kind: Send, A: x, B: piece})
		} else {
			out = w.may(out, Resend, x, piece)
		}
		if o.placed || o.refused != 0 || w.early(o) {
			out = append(out, Action{Kind: Ack, A: x, B: piece})
		}
		if t.cancelled || t.link.cut {
			out = append(out, Action{Kind: Fails, A: x, B: piece})
		}
	}
	return out
}

func (w *World) early(o *op) bool { return w.cfg.EarlyAck && w.cfg.Mode == Write && o.sent > 0 }

func (w *World) leaseActions(out []Action, i int) []Action {
	l, a := &w.leases[i], uint8(i)
	if !l.granted {
		if w.grantable(i) {
			out = append(out, Action{Kind: GrantLease, A: a})
		}
		return out
	}
	if w.leaseDue(i) && !w.broken(TimerForgotten) {
		out = append(out, Action{Kind: OwnerTick, A: a})
	}
	if w.owner.client && w.alive(i) {
		out = w.may(out, Revoke, a)
		out = w.may(out, Renew, a)
	}
	return out
}

// alive says whether the lease's outcome is open.
func (w *World) alive(i int) bool {
	l := &w.leases[i]
	return l.m != nil && l.m.Phase() <= protocol.LeaseBound || l.o != nil && l.o.Phase() == protocol.OfferOpen
}

func (w *World) grantable(i int) bool {
	if !w.up || !w.owner.client {
		return false
	}
	for _, b := range w.cfg.Leases[i].Blocks {
		if v := w.blocks[b].view; v != committed && (v != own || w.cfg.Mode == Read) {
			return false
		}
	}
	return true
}

func (w *World) nodeActions(out []Action) []Action {
	if w.up {
		if !w.owner.client && !w.owner.mourns {
			out = append(out, Action{Kind: OwnerMourns})
		}
		for k := 0; k <= len(w.pending); k++ {
			out = w.may(out, CrashOwner, uint8(k))
		}
	} else {
		out = append(out, Action{Kind: Restart})
	}
	if !w.source.client && !w.source.mourns {
		out = append(out, Action{Kind: SourceMourns})
	}
	if slices.ContainsFunc(w.transfers, func(t transfer) bool { return t.m != nil && t.m.Phase() != protocol.TransferEnded }) {
		out = w.may(out, CrashSource)
		if w.source.client {
			out = w.may(out, KillSource)
		}
	}
	if w.owner.client {
		out = w.may(out, KillOwner)
	}
	out = w.may(out, StepWall, 0)
	return w.may(out, StepWall, 1)
}

// nextOwner is the owner's next deadline, 0: none.
func (w *World) nextOwner() rdma.Instant {
	var next rdma.Instant
	soonest := func(t rdma.Instant) {
		if t > w.owner.now && (next == 0 || t < next) {
			next = t
		}
	}
	for i := range w.leases {
		l := &w.leases[i]
		if l.m != nil && l.m.Phase() <= protocol.LeaseBound {
			soonest(l.m.Deadline())
		}
		if l.o != nil && l.o.Phase() == protocol.OfferOpen {
			soonest(l.o.Deadline())
		}
	}
	for x := range w.transfers {
		if t := &w.transfers[x]; t.handle && !t.fence && w.cfg.Mode == Read {
			soonest(t.win.deadline)
		}
	}
	return next
}

// nextSource is the next timer of a transfer, 0: none.
func (w *World) nextSource() rdma.Instant {
	var next rdma.Instant
	for x := range w.transfers {
		for _, t := range w.transfers[x].timers {
			if t > w.source.now && (next == 0 || t < next) {
				next = t
			}
		}
	}
	return next
}

func (w *World) apply(a Action) {
	x := a.A
	switch a.Kind {
	case Connect:
		w.connect(x)
	case ToOwner:
		w.takeFrame(x)
	case GrantFails:
		w.windowFails = true
		w.takeFrame(x)
		w.windowFails = false
	case ToSource:
		w.hear(x)
	case OwnerHears:
		t := &w.transfers[x]
		t.link.ownerKnows = true
		w.peerLost(t.win.lease, x)
	case SourceHears:
		w.transfers[x].link.sourceKnows, w.transfers[x].known = true, false
		w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferPeerLost})
	case OwnerClock:
		w.owner.now = w.nextOwner()
		for i := range w.leases {
			if l := &w.leases[i]; l.m != nil && l.m.Phase() <= protocol.LeaseBound && w.owner.now >= l.m.Deadline() {
				l.lapsed = true
			}
		}
	case SourceClock:
		w.source.now = w.nextSource()
	case OwnerTick:
		w.stepLease(a.A, protocol.LeaseEvent{Kind: protocol.LeaseTick})
		w.stepOffer(a.A, protocol.OfferEvent{Kind: protocol.OfferTick})
		w.marks |= SawExpired
	case SourceTick:
		t := &w.transfers[x]
		t.timers = slices.DeleteFunc(t.timers, func(at rdma.Instant) bool { return at <= w.source.now })
		w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferTick})
	case Fence:
		w.fence(x, true)
	case FenceFails:
		w.fence(x, false)
	case Send, Resend:
		w.send(x, a.B)
	case Enter, Place:
		w.move(a)
	case Fails, Ack:
		w.complete(x, a.B, a.Kind == Fails)
	case Arrives:
		i := slices.Index(w.arrivals, arrival{x, a.B})
		w.arrivals = slices.Delete(w.arrivals, i, i+1)
		w.arrived(arrival{x, a.B})
	case Start:
		w.start(x)
	case HandOver:
		w.handOver(x)
	case GrantLease:
		w.grant(a.A)
	case Revoke:
		w.revoke(a.A, fault.LeaseRevoked)
	case Renew:
		w.stepLease(a.A, protocol.LeaseEvent{Kind: protocol.LeaseRenew, Deadline: w.owner.now + 2*ttl})
		w.stepOffer(a.A, protocol.OfferEvent{Kind: protocol.OfferRenew, Deadline: w.owner.now + 2*ttl})
	case Cancel:
		w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.Cancelled})
	case Reuse:
		w.evict(a.A)
	default:
		w.applyNode(a)
	}
}

func (w *World) applyNode(a Action) {
	switch a.Kind {
	case Cut:
		w.cut(int8(a.A))
	case CrashOwner:
		w.crashOwner(a.A)
	case Restart:
		w.restart()
	case CrashSource:
		w.crashSource()
	case KillOwner:
		w.owner.client = false
		for i := range w.blocks {
			if b := &w.blocks[i]; b.view == own || b.view == committed && w.cfg.Mode == Write {
				b.view = unmapped
			}
		}
	case OwnerMourns:
		w.owner.mourns = true
		for i := range w.leases {
			w.revoke(uint8(i), fault.ClientGone)
		}
	case KillSource:
		w.source.client = false
	case SourceMourns:
		w.source.mourns = true
		for x := range w.transfers {
			w.stepTransfer(uint8(x), protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.ClientGone})
		}
	case StepWall:
		w.owner.wall += [...]int8{-1, 1}[a.A]
	}
}

func (w *World) revoke(i uint8, code fault.Code) {
	w.stepLease(i, protocol.LeaseEvent{Kind: protocol.LeaseRevoke, Code: code})
	w.stepOffer(i, protocol.OfferEvent{Kind: protocol.OfferRevoke, Code: code})
}

// peerLost tells the owner's machine that the link of transfer x is down.
func (w *World) peerLost(i, x uint8) {
	w.stepLease(i, protocol.LeaseEvent{Kind: protocol.LeasePeerLost})
	w.stepOffer(i, protocol.OfferEvent{Kind: protocol.OfferPeerLost, Holder: uint64(x)})
}
