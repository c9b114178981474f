package kvxfer

import (
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Push is a transfer of own blocks to a lease, from [Cache.Write].
//
// Wait ends with the transfer: PeerLost, PeerUnreachable, TicketInvalid, TicketBound, LeaseExpired, LeaseRevoked,
// LayoutMismatch, StaleEpoch, DeadlineExceeded, Cancelled, ... Errors say by MayHaveWritten whether the target's bytes may
// have been changed and by Released whether the own blocks are reusable. When the daemon says nothing until half a second
// after the deadline, or is lost, Released is false.
//
// Its methods may be called from any goroutine.
type Push struct {
	transfer
	layers    int
	layerwise bool
	note      []byte

	fmu      sync.Mutex // nothing may follow FIN
	finished bool
}

// Layer hands one layer over, 0..Layers-1: the bytes of all its blocks are final and may be read from now on. It never
// blocks. Layers may come in any order. After the transfer's end it does nothing, so that a prefill may go on: Wait says how
// it ended. InvalidArgument: a layer out of range, a push that is not layer-wise, or a call after Finish.
func (p *Push) Layer(layer int) error { return p.LayerPart(layer, 0, 0) }

// LayerPart is Layer of a part of the block list given to Write: count blocks from index first on; count 0: to the end.
func (p *Push) LayerPart(layer, first, count int) error {
	const op = "push.layer"
	switch n := len(p.ids); {
	case layer < 0 || layer >= p.layers:
		return invalid(op, "layer", "%d, allowed 0..%d", layer, p.layers-1)
	case first < 0 || first >= n:
		return invalid(op, "first", "%d, allowed 0..%d", first, n-1)
	case count < 0 || count > n-first:
		return invalid(op, "count", "%d, allowed 0..%d (0: to the end)", count, n-first)
	case !p.layerwise:
		return invalid(op, "layerwise", "false, allowed after Write with Layerwise()")
	}
	p.fmu.Lock()
	defer p.fmu.Unlock()
	if p.finished {
		return invalid(op, "layer", "%d after Finish, allowed before", layer)
	}
	if p.isOver() {
		return nil
	}
	fe := p.sess.conn.notifyLayer(wire.LayerPart{Transfer: p.number, Layer: uint32(layer), First: uint32(first), Count: uint32(count)})
	if fe != nil && p.sess.conn.alive() {
		return p.leaving(again(fe, op))
	}
	p.layerSpan(layer)
	return nil
}

// Finish says that everything was handed over, with up to 64 KiB for the lease's owner, who gets them behind the data. It
// never blocks. For a push that is not layer-wise Write did it, and a call without a notification does nothing.
// InvalidArgument: a notification that is too large, a second call, or a notification for a push that is not layer-wise.
func (p *Push) Finish(notification []byte) error {
	const op = "push.finish"
	if err := checkNotification(op, notification); err != nil {
		return err
	}
	p.fmu.Lock()
	defer p.fmu.Unlock()
	if p.finished {
		if !p.layerwise && len(notification) == 0 {
			return nil
		}
		return invalid(op, "notification", "of a second call; allowed is one, or with Write's Notify where it is not layer-wise")
	}
	if fe := p.finishLocked(notification); fe != nil {
		return p.leaving(again(fe, op))
	}
	return nil
}

// Cancel ends the transfer early, with Cancelled, or well if it was done already. It returns at once; the memory may stay
// HELD until WhenReleased.
func (p *Push) Cancel() { p.cancel() }

func (p *Push) finishLocked(note []byte) *fault.Error {
	p.finished = true
	if p.isOver() {
		return nil
	}
	fe := p.sess.conn.notify(wire.KindPushFinish, &wire.PushFinish{Transfer: p.number}, note)
	if fe != nil && !p.sess.conn.alive() { // the transfer has ended with that, and Wait says so
		return nil
	}
	return fe
}

// accept: where everything is final the end went with the request; a daemon that does not know that gets it behind its answer.
func (p *Push) accept() {
	if p.layerwise {
		return
	}
	p.fmu.Lock()
	defer p.fmu.Unlock()
	if p.finishing { // set by this goroutine
		p.finished = true
		return
	}
	_ = p.finishLocked(p.note) // what hinders it ends the connection or, at the deadline, the transfer
}
