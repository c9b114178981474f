package protocol

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// OfferPhase is where an offer stands.
type OfferPhase uint8

const (
	OfferOpen        OfferPhase = iota // holders may come
	OfferEnding                        // the outcome is decided; windows are being fenced
	OfferEnded                         // ended: nobody can touch the memory under it
	OfferQuarantined                   // ended: a fence failed; the memory is never used again
)

// Ended says whether the phase is final.
func (p OfferPhase) Ended() bool { return p >= OfferEnded }

// MaxOfferOps bounds the operations of one holder's write, which are counted by their tags.
const MaxOfferOps = 1 << 20

// maxOpsAhead is how far an operation may be ahead of those that have arrived: more than any provider has in flight. It bounds
// what a holder makes the owner count with one operation.
const maxOpsAhead = 1 << 16

// OfferEventKind tells offer events apart. All but Renew, Revoke and Tick are about one holder.
type OfferEventKind uint8

const (
	OfferBind         OfferEventKind = iota + 1 // a peer asks for a part: Deadline is its transfer's, on this clock
	OfferWindowFailed                           // the driver could not open the holder's window: Code
	OfferArrival                                // a write is placed: Tag, Bytes
	OfferFin                                    // the writer has finished: Pieces operations
	OfferRelease                                // the reader has everything and asks whether the memory was held throughout: Bytes
	OfferAbort                                  // the holder gave up: Code
	OfferPeerLost                               // the holder's link is down
	OfferFenced                                 // the holder's window is fenced: OK, or the fence failed
	OfferRenew                                  // the owner moves the end: Deadline
	OfferRevoke                                 // the owner takes the memory back, or its client is gone: Code
	OfferTick                                   // time has passed
)

// OfferEvent is an input of an offer.
type OfferEvent struct {
	Kind     OfferEventKind
	Now      rdma.Instant
	Holder   uint64 // the driver's number of it, never used twice
	Deadline rdma.Instant
	Tag      uint64
	Bytes    uint64
	Pieces   uint64
	Code     fault.Code
	OK       bool
}

// OfferEffectKind tells offer effects apart.
type OfferEffectKind uint8

const (
	OfferRefuse      OfferEffectKind = iota + 1 // answer the holder's bind with Code
	OfferOpenWindow                             // grant the holder's window until Deadline, then answer its bind
	OfferExtend                                 // the holder's window ends at Deadline now
	OfferTickAt                                 // the offer ends at Deadline by itself: step with OfferTick then
	OfferFence                                  // fence the holder's window, then step with OfferFenced
	OfferHolderEnded                            // fenced: tell holder and owner: Code (0: all is placed, or was held throughout), Bytes, Wrote
	OfferEnd                                    // no window is open any more: tell the owner: Code, Bytes, Wrote
	OfferQuarantine                             // a fence failed: keep the memory for ever, tell the owner
)

// OfferEffect is an output of an offer.
type OfferEffect struct {
	Kind     OfferEffectKind
	Holder   uint64
	Code     fault.Code
	Deadline rdma.Instant
	Bytes    uint64
	Wrote    bool // a writer's window was open: bytes may have been changed
}

// holder is a peer's transfer under an offer.
type holder struct {
	deadline rdma.Instant // its transfer's own
	fencing  bool
	code     fault.Code // with fencing: how it ends
	placed   bitmap     // operations, by tag
	count    uint64
	fin      bool
	pieces   uint64
	bytes    uint64
}

// Offer is the owner's machine of permission that several transfers may share, each with a window of its own: a read
// lease on blocks, and an advertised raw region.
type Offer struct {
	access   rdma.Access
	uses     uint64 // binds allowed; 0: any number
	used     uint64
	phase    OfferPhase
	deadline rdma.Instant
	holders  map[uint64]*holder
	code     fault.Code // why it ended
	last     fault.Code // how the last holder ended
	good     uint64     // holders that ended well
	bytes    uint64
	wrote    bool
	stuck    bool // a fence failed
}

// NewOffer makes the machine of an offer that `uses` transfers may bind (0: any number) until deadline.
func NewOffer(access rdma.Access, uses uint32, deadline rdma.Instant) *Offer {
	return &Offer{access: access, uses: uint64(uses), deadline: deadline, holders: map[uint64]*holder{}}
}

// Phase returns where the offer stands.
func (o *Offer) Phase() OfferPhase { return o.phase }

// Deadline returns when the offer ends by itself, on the owner's clock.
func (o *Offer) Deadline() rdma.Instant { return o.deadline }

// Outcome is why the offer ended or is ending; 0: its uses were taken and at least one ended well.
func (o *Offer) Outcome() fault.Code { return o.code }

// Bytes is how many bytes its holders have moved.
func (o *Offer) Bytes() uint64 { return o.bytes }

// Holders is the number of holders that are not over.
func (o *Offer) Holders() int { return len(o.holders) }

// Step takes one event and appends the effects to out.
func (o *Offer) Step(out []OfferEffect, e OfferEvent) []OfferEffect {
	if e.Kind == OfferFenced {
		return o.fenced(out, e)
	}
	h := o.holders[e.Holder]
	if e.Kind == OfferWindowFailed && h != nil {
		out = o.over(out, e.Holder, h, e.Code, false) // before its time is looked at: there is nothing to fence
		h = nil
	}
	// Time is looked at before anything else: a timer that has not fired yet is no permission.
	if o.phase == OfferOpen && e.Now >= o.deadline {
		out = o.end(out, fault.LeaseExpired)
	}
	if h != nil && !h.fencing && e.Now >= h.deadline {
		out = o.endHolder(out, e.Holder, h, fault.DeadlineExceeded)
	}
	switch e.Kind {
	case OfferBind:
		return o.bind(out, e)
	case OfferRenew:
		return o.renew(out, e.Deadline)
	case OfferRevoke:
		if o.phase == OfferOpen {
			out = o.end(out, e.Code)
		}
		return out
	case OfferTick:
		for id, x := range o.holders {
			if !x.fencing && e.Now >= x.deadline {
				out = o.endHolder(out, id, x, fault.DeadlineExceeded)
			}
		}
		return out
	}
	if h == nil || h.fencing {
		return out // late news of a holder whose outcome is decided
	}
	switch e.Kind {
	case OfferArrival:
		if o.access != rdma.AccessWrite || e.Tag >= MaxOfferOps || e.Tag >= h.count+maxOpsAhead {
			return o.endHolder(out, e.Holder, h, fault.ProtocolViolation)
		}
		h.placed = h.placed.grown(e.Tag + 1)
		if h.placed.set(e.Tag) {
			h.count++
			h.bytes += e.Bytes
		}
		return o.complete(out, e.Holder, h)
	case OfferFin:
		if o.access != rdma.AccessWrite || h.fin || e.Pieces > MaxOfferOps {
			return o.endHolder(out, e.Holder, h, fault.ProtocolViolation)
		}
		h.fin, h.pieces = true, e.Pieces
		return o.complete(out, e.Holder, h)
	case OfferRelease:
		if o.access != rdma.AccessRead {
			return o.endHolder(out, e.Holder, h, fault.ProtocolViolation)
		}
		h.bytes = e.Bytes
		return o.endHolder(out, e.Holder, h, 0)
	case OfferAbort:
		return o.endHolder(out, e.Holder, h, e.Code)
	case OfferPeerLost:
		return o.endHolder(out, e.Holder, h, fault.PeerLost)
	}
	return out
}

func (o *Offer) bind(out []OfferEffect, e OfferEvent) []OfferEffect {
	code := fault.Code(0)
	switch {
	case o.phase != OfferOpen && o.code != 0:
		code = o.code
	case o.phase != OfferOpen || o.uses > 0 && o.used == o.uses:
		code = fault.TicketBound
	}
	if code != 0 {
		return append(out, OfferEffect{Kind: OfferRefuse, Holder: e.Holder, Code: code})
	}
	o.used++
	o.holders[e.Holder] = &holder{deadline: e.Deadline}
	return append(out, OfferEffect{Kind: OfferOpenWindow, Holder: e.Holder, Deadline: min(o.deadline, e.Deadline)})
}

// renew moves the end; every window is moved with it, each no further than its own transfer's time.
func (o *Offer) renew(out []OfferEffect, deadline rdma.Instant) []OfferEffect {
	if o.phase != OfferOpen {
		return out
	}
	o.deadline = deadline
	for id, h := range o.holders {
		if !h.fencing {
			out = append(out, OfferEffect{Kind: OfferExtend, Holder: id, Deadline: min(deadline, h.deadline)})
		}
	}
	return append(out, OfferEffect{Kind: OfferTickAt, Deadline: deadline})
}

func (o *Offer) complete(out []OfferEffect, id uint64, h *holder) []OfferEffect {
	switch {
	case !h.fin || h.count < h.pieces:
		return out
	case h.count > h.pieces: // more operations than it says it made
		return o.endHolder(out, id, h, fault.ProtocolViolation)
	}
	return o.endHolder(out, id, h, 0)
}

// endHolder decides a holder's outcome. It is told only behind the fence of its window.
func (o *Offer) endHolder(out []OfferEffect, id uint64, h *holder, code fault.Code) []OfferEffect {
	h.fencing, h.code = true, code
	return append(out, OfferEffect{Kind: OfferFence, Holder: id, Code: code})
}

// end decides the offer's outcome.
func (o *Offer) end(out []OfferEffect, code fault.Code) []OfferEffect {
	o.phase, o.code = OfferEnding, code
	for id, h := range o.holders {
		if !h.fencing {
			out = o.endHolder(out, id, h, code)
		}
	}
	return o.finish(out)
}

func (o *Offer) fenced(out []OfferEffect, e OfferEvent) []OfferEffect {
	h := o.holders[e.Holder]
	if h == nil || !h.fencing {
		return out
	}
	if !e.OK {
		o.stuck = true
		if o.phase == OfferOpen { // nobody else gets a window on memory that cannot be taken back
			o.phase, o.code = OfferEnding, fault.Internal
			for id, x := range o.holders {
				if !x.fencing {
					out = o.endHolder(out, id, x, fault.Internal)
				}
			}
		}
		return o.over(out, e.Holder, h, fault.Internal, true)
	}
	return o.over(out, e.Holder, h, h.code, true)
}

// over takes a holder out; opened says whether it had a window.
func (o *Offer) over(out []OfferEffect, id uint64, h *holder, code fault.Code, opened bool) []OfferEffect {
	delete(o.holders, id)
	wrote := opened && o.access == rdma.AccessWrite
	o.wrote = o.wrote || wrote
	o.bytes += h.bytes
	o.last = code
	if code == 0 {
		o.good++
	}
	if opened {
		out = append(out, OfferEffect{Kind: OfferHolderEnded, Holder: id, Code: code, Bytes: h.bytes, Wrote: wrote})
	}
	return o.finish(out)
}

// finish ends the offer when nobody holds anything and nobody may come.
func (o *Offer) finish(out []OfferEffect) []OfferEffect {
	if len(o.holders) > 0 || o.phase.Ended() {
		return out
	}
	if o.phase == OfferOpen {
		if o.uses == 0 || o.used < o.uses {
			return out
		}
		if o.good == 0 {
			o.code = o.last
		}
	}
	if o.stuck {
		o.phase, o.code = OfferQuarantined, fault.Internal
		return append(out, OfferEffect{Kind: OfferQuarantine, Code: o.code, Bytes: o.bytes, Wrote: o.wrote})
	}
	o.phase = OfferEnded
	return append(out, OfferEffect{Kind: OfferEnd, Code: o.code, Bytes: o.bytes, Wrote: o.wrote})
}
