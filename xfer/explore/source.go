package explore

import (
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// start is Engine.Push or a pull: the blocks are held, and unless the transfer is layer-wise all is handed over.
func (w *World) start(x uint8) {
	t, spec := &w.transfers[x], w.cfg.Transfers[x]
	n := len(w.cfg.Leases[spec.Lease].Blocks)
	kind, timeout := protocol.TransferWrite, longTimeout
	if w.cfg.Mode == Read {
		kind = protocol.TransferRead
		t.mem = make([]token, w.pieces(n))
	}
	if w.cfg.ShortTransfers {
		timeout = shortTimeout
	}
	deadline := w.source.now + timeout
	t.started, t.dialling, t.known = true, true, false
	t.m = protocol.NewTransfer(kind, uint32(w.cfg.Layers), uint32(n), deadline)
	t.timers = []rdma.Instant{deadline}
	t.ops = make([]op, w.pieces(n))
	for layer := range int(w.cfg.Layers) {
		for _, b := range spec.Source {
			if layer == 0 {
				w.holds[b]++
			}
			t.want = append(t.want, sourceToken(b, w.versions[b]))
		}
	}
	if !w.cfg.Layerwise {
		for range w.cfg.Layers + 1 {
			w.handOver(x)
		}
	}
}

func (w *World) handOver(x uint8) {
	t := &w.transfers[x]
	t.handed++
	if t.handed <= w.cfg.Layers {
		w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferLayer, Layer: uint32(t.handed - 1)})
		return
	}
	w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferFinish})
}

// connect dials and sends BIND. HELLO names the incarnation that is meant; another one refuses.
func (w *World) connect(x uint8) {
	t := &w.transfers[x]
	t.dialling = false
	code := fault.Code(0)
	switch {
	case !w.up:
		code = fault.PeerUnreachable
	case w.leases[w.cfg.Transfers[x].Lease].epoch != w.epoch && !w.broken(EpochUnchecked):
		code = fault.StaleEpoch
	}
	if code != 0 {
		w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferRefused, Code: code})
		return
	}
	t.link, t.known = link{open: true, epoch: w.epoch}, true
	if left := w.transferDeadline(x) - w.source.now; left > 0 {
		t.link.toOwner = append(t.link.toOwner, frame{kind: bindFrame, remaining: left})
	} // else too late to ask; the deadline ends it
}

// transferDeadline is the first timer, which stays until the transfer has ended or it has fired.
func (w *World) transferDeadline(x uint8) rdma.Instant {
	if t := &w.transfers[x]; len(t.timers) > 0 {
		return t.timers[0]
	}
	return 0
}

func (w *World) stepTransfer(x uint8, e protocol.TransferEvent) {
	t := &w.transfers[x]
	if t.m == nil {
		return
	}
	e.Now = w.source.now
	for _, f := range t.m.Step(nil, e) {
		w.transferEffect(x, f)
	}
}

func (w *World) transferEffect(x uint8, f protocol.TransferEffect) {
	t, spec := &w.transfers[x], w.cfg.Transfers[x]
	n := uint32(len(w.cfg.Leases[spec.Lease].Blocks))
	switch f.Kind {
	case protocol.TransferPost:
		for pos := f.First; pos < f.First+f.Count; pos++ {
			t.ops[f.Layer*n+pos].posted = true
		}
	case protocol.TransferCancelOps:
		t.cancelled = true
	case protocol.TransferSendFin:
		t.fin = true
		switch {
		case w.broken(DoneWithoutAnswer), w.broken(ReleaseUnchecked):
			w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferDone})
		default:
			w.toOwner(x, frame{kind: finFrame})
		}
	case protocol.TransferSendAbort:
		w.toOwner(x, frame{kind: abortFrame, code: f.Code})
		t.known = false
		w.marks |= SawAbort
	case protocol.TransferTickAt:
		t.timers = append(t.timers, f.At)
	case protocol.TransferViolation:
		w.cut(int8(x))
	case protocol.TransferReleaseOwn:
		for _, b := range spec.Source {
			w.holds[b]--
		}
	case protocol.TransferResult:
		w.result(x, f)
	case protocol.TransferReleased:
		w.release(x)
		t.timers = nil
	}
}

// result is what the initiator's client is told.
func (w *World) result(x uint8, f protocol.TransferEffect) {
	t, spec := &w.transfers[x], w.cfg.Transfers[x]
	if t.reported {
		w.fail("two results", "transfer %d", x)
	}
	t.reported, t.outcome = true, f.Code
	if f.Released && t.m.Outstanding() > 0 {
		w.fail("early release", "transfer %d says released with %d operations outstanding", x, t.m.Outstanding())
	}
	if t.clean = w.cfg.Mode == Write && !f.Wrote; t.clean && t.hit {
		w.fail("unsaid write", "transfer %d says that it changed nothing, and it did", x)
	}
	switch {
	case f.Code == 0 && w.cfg.Mode == Write:
		w.marks |= SawDone
		if w.leases[spec.Lease].committed != int8(x) {
			w.fail("false DONE", "transfer %d is reported as done and its lease is not committed", x)
		}
	case f.Code == 0:
		w.marks |= SawDone
		t.watch = w.leases[spec.Lease].want
	}
	if f.Released {
		t.timers = nil
	} else {
		w.marks |= SawHeld
	}
	if f.Released || w.broken(ReleasedTooEarly) {
		w.release(x)
	}
}

// release lets the initiator's client do with its memory what it likes, which it does at once.
func (w *World) release(x uint8) {
	t, spec := &w.transfers[x], w.cfg.Transfers[x]
	t.released = true
	if !w.source.client {
		return
	}
	for _, b := range spec.Source {
		if w.holds[b] == 0 || w.broken(ReleasedTooEarly) {
			w.versions[b]++
		}
	}
	if w.cfg.Mode == Read && t.watch == nil {
		w.fill(t.mem, fromSource)
		t.watch = slices.Clone(t.mem)
	}
}

// hear is the source's side of a link.
func (w *World) hear(x uint8) {
	t := &w.transfers[x]
	f := t.link.toSource[0]
	t.link.toSource = t.link.toSource[1:]
	if !t.known {
		return
	}
	switch f.kind {
	case boundFrame:
		w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferBound})
	case refusedFrame:
		t.known = false
		w.marks |= SawRefused
		w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferRefused, Code: f.code})
	case doneFrame:
		t.known = false
		w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferDone})
	case endedFrame:
		t.known = false
		w.stepTransfer(x, protocol.TransferEvent{Kind: protocol.TransferPeerEnded, Code: f.code})
	}
}

// crashSource ends the source's daemon, which runs again at once and knows nothing. Its client sees the process exit:
// nothing reads or writes its memory any more. What is in the network stays there.
func (w *World) crashSource() {
	for x := range w.transfers {
		t := &w.transfers[x]
		if t.link.open && !t.link.cut {
			w.cut(int8(x))
		}
		t.link.sourceKnows = true
		if t.m == nil {
			continue
		}
		ended := t.m.Phase() == protocol.TransferEnded
		t.m, t.dialling, t.known, t.timers, t.cancelled = nil, false, false, nil, false
		if ended {
			continue
		}
		for _, b := range w.cfg.Transfers[x].Source {
			w.holds[b]--
		}
		if !t.released {
			w.release(uint8(x))
		}
	}
}

// cut breaks a transfer's link: what is under way on it is lost, and both sides learn of it when they do.
func (w *World) cut(x int8) {
	l := &w.transfers[x].link
	l.cut, l.toOwner, l.toSource = true, nil, nil
}

func (w *World) toSource(x int8, f frame) {
	if l := &w.transfers[x].link; l.open && !l.cut {
		l.toSource = append(l.toSource, f)
	}
}

func (w *World) toOwner(x uint8, f frame) {
	if l := &w.transfers[x].link; l.open && !l.cut {
		l.toOwner = append(l.toOwner, f)
	}
}
