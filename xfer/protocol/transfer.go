package protocol

import (
	"fmt"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// TransferKind says how a transfer ends well.
type TransferKind uint8

const (
	// TransferWrite ends with FIN, which the target answers with DONE: everything arrived and is committed.
	TransferWrite TransferKind = iota
	// TransferRead ends with RELEASE, whose answer is the validation: the source held its memory throughout.
	TransferRead
)

// TransferPhase is where a transfer stands.
type TransferPhase uint8

const (
	TransferBinding   TransferPhase = iota // the target has not answered the bind
	TransferOpen                           // pieces are written
	TransferFinishing                      // FIN or RELEASE is sent
	TransferClosing                        // failed; operations are outstanding
	TransferEnded                          // nothing is outstanding and the outcome is known
)

// ReleaseGrace is how long a failed transfer waits for its cancelled operations before it reports "held".
const ReleaseGrace = rdma.Instant(50 * time.Millisecond)

// ReasonGrace is how long a transfer whose window vanished waits for the target's word on why.
const ReasonGrace = rdma.Instant(2 * time.Second)

// TransferEventKind tells transfer events apart.
type TransferEventKind uint8

const (
	TransferBound      TransferEventKind = iota + 1 // the target opened the window
	TransferRefused                                 // the target or the way to it refused: Code
	TransferLayer                                   // pieces are ready: Layer, First, Count
	TransferFinish                                  // the caller has handed over everything
	TransferCompletion                              // an operation of Count pieces ended: Code (0: placed), Wrote
	TransferDone                                    // the target committed, or answered that it held its memory throughout
	TransferPeerEnded                               // the target ended the lease: Code
	TransferPeerLost                                // the link is down
	TransferCancel                                  // the caller, or its end, cancels: Code
	TransferTick                                    // time has passed
)

// TransferEvent is an input of a transfer.
type TransferEvent struct {
	Kind         TransferEventKind
	Now          rdma.Instant
	Layer, First uint32
	Count        uint32
	Code         fault.Code
	Wrote        bool
}

// TransferEffectKind tells transfer effects apart.
type TransferEffectKind uint8

const (
	TransferPost       TransferEffectKind = iota + 1 // write or read pieces (Layer, First, Count)
	TransferCancelOps                                // cancel what is queued and posted; every piece still completes
	TransferSendFin                                  // send FIN (a write) or RELEASE (a read)
	TransferSendAbort                                // tell the target that nothing of this push is or will be in flight: Code
	TransferResult                                   // tell the caller: Code (0: committed), Wrote, Released
	TransferReleased                                 // tell the caller that its blocks, reported as held, are reusable
	TransferTickAt                                   // step with TransferTick at At
	TransferViolation                                // the peer broke the protocol: drop its link
	TransferReleaseOwn                               // nothing touches the caller's memory any more: Code (0: the transfer's outcome is good)
)

// TransferEffect is an output of a transfer.
type TransferEffect struct {
	Kind         TransferEffectKind
	Layer, First uint32
	Count        uint32
	Code         fault.Code
	Wrote        bool
	Released     bool
	Detail       string
	At           rdma.Instant
}

type part struct{ layer, first, count uint32 }

// Transfer is the initiator's machine: of a push, whose memory is read, and of a pull, whose memory is written.
type Transfer struct {
	kind           TransferKind
	layers, blocks uint32
	phase          TransferPhase
	deadline       rdma.Instant
	early          []part // handed over before the target answered
	asked          bitmap
	askedCount     uint64
	outstanding    uint64 // pieces posted and not completed
	placed         uint64
	finish         bool
	bound          bool // the target knows this push
	peerOver       bool // the target ended it, or is lost: no ABORT is due
	wrote          bool
	code           fault.Code
	detail         string // of an InvalidArgument: what is allowed
	reported       bool
	reportBy       rdma.Instant
	awaiting       bool // of the target's reason: its window vanished under an operation
}

// NewTransfer makes the machine of a transfer of `blocks` blocks in `layers` layers. Of raw memory a block is one
// operation of a single layer; there may be none.
func NewTransfer(kind TransferKind, layers, blocks uint32, deadline rdma.Instant) *Transfer {
	return &Transfer{kind: kind, layers: layers, blocks: blocks, deadline: deadline, asked: newBitmap(uint64(layers) * uint64(blocks))}
}

// Phase returns where the transfer stands.
func (p *Transfer) Phase() TransferPhase { return p.phase }

// Outstanding is the number of pieces posted and not completed.
func (p *Transfer) Outstanding() uint64 { return p.outstanding }

// Placed is the number of pieces that the target has acknowledged.
func (p *Transfer) Placed() uint64 { return p.placed }

// Step takes one event and appends the effects to out.
func (p *Transfer) Step(out []TransferEffect, e TransferEvent) []TransferEffect {
	if e.Kind == TransferCompletion {
		return p.completion(out, e)
	}
	live := p.phase < TransferClosing
	if live && e.Now >= p.deadline {
		out = p.fail(out, e.Now, fault.DeadlineExceeded)
		live = false
	}
	switch e.Kind {
	case TransferBound:
		return p.onBound(out, live)
	case TransferTick:
		if p.phase == TransferClosing && !p.reported && e.Now >= p.reportBy {
			if p.awaiting && e.Now >= p.deadline { // no reason came in the transfer's own time
				p.code = fault.DeadlineExceeded
			}
			p.awaiting = false
			if p.outstanding == 0 {
				return p.released(out)
			}
			p.reported = true
			out = append(out, TransferEffect{Kind: TransferResult, Code: p.code, Wrote: p.mayHaveWritten(), Detail: p.detail})
		}
		return out
	}
	if !live {
		if e.Kind == TransferPeerEnded || e.Kind == TransferPeerLost {
			p.peerOver = true
			return p.reason(out, e)
		}
		return out
	}
	switch e.Kind {
	case TransferRefused:
		// A RELEASE that finds its window gone is refused ahead of the ENDED that says why.
		p.peerOver = e.Code != fault.StaleKey || p.phase != TransferFinishing
		return p.fail(out, e.Now, e.Code)
	case TransferLayer:
		return p.layer(out, e)
	case TransferFinish:
		if all := uint64(p.layers) * uint64(p.blocks); p.finish || p.askedCount != all {
			p.detail = fmt.Sprintf("finish: %d of %d (layer, block) pieces were handed over", p.askedCount, all)
			return p.fail(out, e.Now, fault.InvalidArgument)
		}
		p.finish = true
		return p.complete(out)
	case TransferDone:
		if p.phase != TransferFinishing {
			return p.fail(append(out, TransferEffect{Kind: TransferViolation}), e.Now, fault.ProtocolViolation)
		}
		p.phase, p.reported = TransferEnded, true
		return append(out, TransferEffect{Kind: TransferReleaseOwn}, TransferEffect{Kind: TransferResult, Wrote: true, Released: true})
	case TransferPeerEnded:
		p.peerOver = true
		return p.fail(out, e.Now, e.Code)
	case TransferPeerLost:
		p.peerOver = true
		return p.fail(out, e.Now, fault.PeerLost)
	case TransferCancel:
		return p.fail(out, e.Now, e.Code)
	}
	return out
}

func (p *Transfer) onBound(out []TransferEffect, live bool) []TransferEffect {
	if !live {
		if !p.peerOver { // the answer crossed our end: the target must not wait for us
			if p.bound = true; p.phase == TransferEnded {
				out = append(out, TransferEffect{Kind: TransferSendAbort, Code: p.code})
			}
		}
		return out
	}
	if p.phase != TransferBinding {
		return out
	}
	p.phase, p.bound = TransferOpen, true
	for _, x := range p.early {
		out = p.post(out, x)
	}
	p.early = nil
	return p.complete(out)
}

func (p *Transfer) layer(out []TransferEffect, e TransferEvent) []TransferEffect {
	count := e.Count
	if count == 0 && e.First < p.blocks {
		count = p.blocks - e.First
	}
	if e.Layer >= p.layers || e.First >= p.blocks || count > p.blocks-e.First || p.finish {
		p.detail = fmt.Sprintf("layer %d, blocks [%d, +%d): allowed layers 0..%d, positions 0..%d, before finish",
			e.Layer, e.First, count, p.layers-1, p.blocks-1)
		return p.fail(out, e.Now, fault.InvalidArgument)
	}
	base := uint64(e.Layer) * uint64(p.blocks)
	if again := p.asked.count(base+uint64(e.First), uint64(count)); again > 0 {
		// Which bytes were meant is unknown.
		p.detail = fmt.Sprintf("layer %d, positions [%d, +%d): %d of them were handed over before", e.Layer, e.First, count, again)
		return p.fail(out, e.Now, fault.InvalidArgument)
	}
	p.asked.setRange(base+uint64(e.First), uint64(count))
	p.askedCount += uint64(count)
	x := part{e.Layer, e.First, count}
	if p.phase == TransferBinding {
		p.early = append(p.early, x)
		return out
	}
	return p.post(out, x)
}

func (p *Transfer) post(out []TransferEffect, x part) []TransferEffect {
	p.outstanding += uint64(x.count)
	return append(out, TransferEffect{Kind: TransferPost, Layer: x.layer, First: x.first, Count: x.count})
}

func (p *Transfer) completion(out []TransferEffect, e TransferEvent) []TransferEffect {
	p.outstanding -= min(p.outstanding, uint64(e.Count))
	if e.Code == 0 {
		p.placed += uint64(e.Count)
	}
	p.wrote = p.wrote || e.Wrote || e.Code == 0 || p.kind == TransferRead // a failed read may have placed some
	switch {
	case p.phase == TransferClosing:
		if p.outstanding == 0 && !p.awaiting {
			out = p.released(out)
		}
		return out
	case p.phase == TransferEnded:
		return out
	case e.Code != 0:
		return p.fail(out, e.Now, e.Code)
	}
	return p.complete(out)
}

func (p *Transfer) complete(out []TransferEffect) []TransferEffect {
	if p.phase != TransferOpen || !p.finish || p.placed != uint64(p.layers)*uint64(p.blocks) {
		return out
	}
	p.phase = TransferFinishing
	p.wrote = p.wrote || p.kind == TransferWrite // of a notification alone, too, the target's client may hear from here on
	return append(out, TransferEffect{Kind: TransferSendFin})
}

// reason takes the target's word on why its window vanished.
func (p *Transfer) reason(out []TransferEffect, e TransferEvent) []TransferEffect {
	if !p.awaiting {
		return out
	}
	p.awaiting = false
	p.code = e.Code
	if e.Kind == TransferPeerLost {
		p.code = fault.PeerLost
	}
	if p.phase == TransferClosing && p.outstanding == 0 {
		return p.released(out)
	}
	return out
}

func (p *Transfer) fail(out []TransferEffect, now rdma.Instant, code fault.Code) []TransferEffect {
	p.phase, p.code, p.early = TransferClosing, code, nil
	p.reportBy = now + ReleaseGrace
	if code == fault.StaleKey && !p.peerOver {
		p.awaiting, p.reportBy = true, min(now+ReasonGrace, max(p.deadline, now)) // a call ends by its deadline
	}
	if p.outstanding == 0 && !p.awaiting {
		return p.released(out)
	}
	if p.outstanding > 0 {
		out = append(out, TransferEffect{Kind: TransferCancelOps, Code: code})
	}
	return append(out, TransferEffect{Kind: TransferTickAt, At: p.reportBy})
}

// released ends a failed transfer: nothing of it is in flight, so ABORT may be said and the blocks are reusable.
func (p *Transfer) released(out []TransferEffect) []TransferEffect {
	p.phase = TransferEnded
	if p.bound && !p.peerOver {
		out = append(out, TransferEffect{Kind: TransferSendAbort, Code: p.code})
	}
	out = append(out, TransferEffect{Kind: TransferReleaseOwn, Code: p.code})
	if p.reported {
		return append(out, TransferEffect{Kind: TransferReleased})
	}
	p.reported = true
	return append(out, TransferEffect{Kind: TransferResult, Code: p.code, Wrote: p.mayHaveWritten(), Detail: p.detail, Released: true})
}

// mayHaveWritten is true as soon as an operation may have reached the memory that it changes: the target's, or of a
// read the caller's own.
func (p *Transfer) mayHaveWritten() bool { return p.wrote || p.outstanding > 0 }
