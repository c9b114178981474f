package protocol

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// LeasePhase is where a lease stands.
type LeasePhase uint8

const (
	LeaseGranted     LeasePhase = iota // nobody has bound it
	LeaseBound                         // one transfer may write
	LeaseFencing                       // its window is being fenced; the outcome is decided
	LeaseCommitted                     // ended: the blocks hold the transfer's bytes
	LeaseFreed                         // ended: the blocks are the owner's, their content is undefined
	LeaseQuarantined                   // ended: the fence failed; the blocks are never used again
)

// Ended says whether the phase is final.
func (p LeasePhase) Ended() bool { return p >= LeaseCommitted }

// LeaseEventKind tells lease events apart.
type LeaseEventKind uint8

const (
	LeaseBind         LeaseEventKind = iota + 1 // a source claims the lease: Deadline is its transfer's, on this clock
	LeaseWindowFailed                           // the driver could not open the window: Code
	LeaseArrival                                // a write is placed: Tag, Bytes
	LeaseFin                                    // the source has finished: Pieces
	LeaseAbort                                  // the source gave up: Code
	LeaseRevoke                                 // the owner takes the blocks back, or its client is gone: Code
	LeasePeerLost                               // the source's link is down
	LeaseTick                                   // time has passed
	LeaseFenced                                 // the window is fenced: OK, or the fence failed
	LeaseRenew                                  // the owner moves the end: Deadline
)

// LeaseEvent is an input of a lease.
type LeaseEvent struct {
	Kind     LeaseEventKind
	Now      rdma.Instant
	Deadline rdma.Instant
	Tag      layout.Tag
	Bytes    uint64
	Took     rdma.Instant // LeaseArrival: how long the placement took; for traces alone
	Pieces   uint64
	Code     fault.Code
	OK       bool
}

// LeaseEffectKind tells lease effects apart.
type LeaseEffectKind uint8

const (
	LeaseRefuse     LeaseEffectKind = iota + 1 // answer the bind with Code
	LeaseOpenWindow                            // grant the window until Deadline, then answer the bind
	LeaseLayer                                 // tell the owner that Layer is visible
	LeaseLogRevoke                             // write REVOKING to the journal
	LeaseFence                                 // fence the window, then step with LeaseFenced
	LeaseCommit                                // write COMMITTED to the journal, tell owner and source
	LeaseFree                                  // write FREE to the journal, tell owner and source: Code, Wrote
	LeaseQuarantine                            // keep the memory for ever, tell owner and source: Code
	LeaseExtend                                // the lease ends at Deadline now; the open window too
)

// LeaseEffect is an output of a lease.
type LeaseEffect struct {
	Kind     LeaseEffectKind
	Code     fault.Code
	Layer    uint32
	Deadline rdma.Instant
	Wrote    bool // bytes of the blocks may have been changed
}

// Lease is the target's machine.
type Lease struct {
	layers, blocks uint32
	pieceBytes     uint64
	phase          LeasePhase
	deadline       rdma.Instant
	ownDeadline    rdma.Instant
	bindDeadline   rdma.Instant // the transfer's own, from its bind on
	pieces         bitmap
	left           []uint32 // pieces missing, by layer
	missing        uint64
	fin            bool
	opened         bool // a window was opened at some time
	outcome        fault.Code
	bytes          uint64
}

// NewLease makes the machine of a lease on `blocks` blocks of `layers` layers, a piece being pieceBytes long.
func NewLease(layers, blocks uint32, pieceBytes uint64, deadline rdma.Instant) *Lease {
	l := &Lease{layers: layers, blocks: blocks, pieceBytes: pieceBytes, deadline: deadline, ownDeadline: deadline,
		pieces: newBitmap(uint64(layers) * uint64(blocks)), left: make([]uint32, layers), missing: uint64(layers) * uint64(blocks)}
	for i := range l.left {
		l.left[i] = blocks
	}
	return l
}

// Phase returns where the lease stands.
func (l *Lease) Phase() LeasePhase { return l.phase }

// Deadline returns when the lease ends by itself, on the owner's clock.
func (l *Lease) Deadline() rdma.Instant { return l.deadline }

// GrantDeadline returns the deadline that the lease was granted with; a bind may have brought it forward.
func (l *Lease) GrantDeadline() rdma.Instant { return l.ownDeadline }

// Outcome is why the lease ended or is ending: 0 for committed.
func (l *Lease) Outcome() fault.Code { return l.outcome }

// Bytes is how many distinct bytes have arrived.
func (l *Lease) Bytes() uint64 { return l.bytes }

// LayerVisible says whether every piece of a layer is placed.
func (l *Lease) LayerVisible(layer uint32) bool { return layer < l.layers && l.left[layer] == 0 }

// Step takes one event and appends the effects to out.
func (l *Lease) Step(out []LeaseEffect, e LeaseEvent) []LeaseEffect {
	if e.Kind == LeaseFenced {
		return l.fenced(out, e.OK)
	}
	if e.Kind == LeaseWindowFailed && l.phase == LeaseBound {
		l.opened = false // whatever the lease ends with, also its time: there is nothing to fence
	}
	if l.phase == LeaseGranted || l.phase == LeaseBound {
		// Time is looked at before anything else: a timer that has not fired yet is no permission.
		if e.Now >= l.deadline {
			code := fault.LeaseExpired
			if l.deadline < l.ownDeadline {
				code = fault.DeadlineExceeded // the transfer's own time was shorter than the lease's
			}
			out = l.end(out, code)
		}
	}
	switch e.Kind {
	case LeaseBind:
		return l.bind(out, e)
	case LeaseTick:
		return out
	case LeaseRevoke:
		if l.phase == LeaseGranted || l.phase == LeaseBound {
			out = l.end(out, e.Code)
		}
		return out
	case LeaseRenew:
		return l.renew(out, e.Deadline)
	}
	if l.phase != LeaseBound {
		return out // late news of a lease whose outcome is decided
	}
	switch e.Kind {
	case LeaseWindowFailed:
		return l.end(out, e.Code)
	case LeaseArrival:
		return l.arrival(out, e)
	case LeaseFin:
		if e.Pieces != uint64(l.layers)*uint64(l.blocks) || l.fin {
			return l.end(out, fault.ProtocolViolation)
		}
		l.fin = true
		return l.complete(out)
	case LeaseAbort:
		return l.end(out, e.Code)
	case LeasePeerLost:
		return l.end(out, fault.PeerLost)
	}
	return out
}

func (l *Lease) bind(out []LeaseEffect, e LeaseEvent) []LeaseEffect {
	if l.phase != LeaseGranted {
		code := fault.TicketBound
		if l.outcome != 0 && !l.opened { // it ended before anybody bound it: say how
			code = l.outcome
		}
		return append(out, LeaseEffect{Kind: LeaseRefuse, Code: code})
	}
	l.phase, l.opened = LeaseBound, true
	l.bindDeadline = e.Deadline
	l.deadline = min(l.deadline, e.Deadline)
	return append(out, LeaseEffect{Kind: LeaseOpenWindow, Deadline: l.deadline})
}

// renew moves the end of a lease that has not ended. It may also bring it forward; the transfer's own time holds besides.
func (l *Lease) renew(out []LeaseEffect, deadline rdma.Instant) []LeaseEffect {
	if l.phase != LeaseGranted && l.phase != LeaseBound {
		return out
	}
	l.ownDeadline, l.deadline = deadline, deadline
	if l.phase == LeaseBound {
		l.deadline = min(deadline, l.bindDeadline)
	}
	return append(out, LeaseEffect{Kind: LeaseExtend, Deadline: l.deadline})
}

func (l *Lease) arrival(out []LeaseEffect, e LeaseEvent) []LeaseEffect {
	layer, first, count := e.Tag.Parts()
	if layer >= l.layers || count == 0 || first >= l.blocks || count > l.blocks-first || e.Bytes != uint64(count)*l.pieceBytes {
		return l.end(out, fault.ProtocolViolation)
	}
	base := uint64(layer) * uint64(l.blocks)
	fresh := l.pieces.setRange(base+uint64(first), uint64(count))
	if fresh == 0 {
		return out
	}
	l.bytes += uint64(fresh) * l.pieceBytes
	l.missing -= uint64(fresh)
	if l.left[layer] -= fresh; l.left[layer] == 0 {
		out = append(out, LeaseEffect{Kind: LeaseLayer, Layer: layer})
	}
	return l.complete(out)
}

// complete ends the lease well when all pieces and FIN are there. The window is fenced first: a committed block must
// not be written by a piece that was posted twice.
func (l *Lease) complete(out []LeaseEffect) []LeaseEffect {
	if l.missing > 0 || !l.fin {
		return out
	}
	l.phase, l.outcome = LeaseFencing, 0
	return append(out, LeaseEffect{Kind: LeaseFence})
}

// end decides a failure. Without an open window nothing can land, so the blocks are free at once.
func (l *Lease) end(out []LeaseEffect, code fault.Code) []LeaseEffect {
	l.outcome = code
	out = append(out, LeaseEffect{Kind: LeaseLogRevoke})
	if !l.opened {
		l.phase = LeaseFreed
		return append(out, LeaseEffect{Kind: LeaseFree, Code: code})
	}
	l.phase = LeaseFencing
	return append(out, LeaseEffect{Kind: LeaseFence, Code: code})
}

func (l *Lease) fenced(out []LeaseEffect, ok bool) []LeaseEffect {
	switch {
	case l.phase != LeaseFencing:
		return out
	case !ok:
		l.phase = LeaseQuarantined
		if l.outcome == 0 { // it was to be committed
			out = append(out, LeaseEffect{Kind: LeaseLogRevoke})
		}
		// Any other code would tell the owner that its blocks are fenced.
		l.outcome = fault.Internal
		return append(out, LeaseEffect{Kind: LeaseQuarantine, Code: l.outcome, Wrote: true})
	case l.outcome == 0:
		l.phase = LeaseCommitted
		return append(out, LeaseEffect{Kind: LeaseCommit})
	}
	l.phase = LeaseFreed
	return append(out, LeaseEffect{Kind: LeaseFree, Code: l.outcome, Wrote: true})
}
