package protocol

import (
	"fmt"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// PushPhase is where a push stands.
type PushPhase uint8

const (
	PushBinding   PushPhase = iota // the target has not answered the bind
	PushOpen                       // pieces are written
	PushFinishing                  // FIN is sent
	PushClosing                    // failed; operations are outstanding
	PushEnded                      // nothing is outstanding and the outcome is known
)

// ReleaseGrace is how long a failed push waits for its cancelled operations before it reports "held".
const ReleaseGrace = rdma.Instant(50 * time.Millisecond)

// ReasonGrace is how long a push whose window vanished waits for the target's word on why.
const ReasonGrace = rdma.Instant(2 * time.Second)

// PushEventKind tells push events apart.
type PushEventKind uint8

const (
	PushBound      PushEventKind = iota + 1 // the target opened the window
	PushRefused                             // the target or the way to it refused: Code
	PushLayer                               // pieces are ready: Layer, First, Count
	PushFinish                              // the caller has handed over everything
	PushCompletion                          // an operation of Count pieces ended: Code (0: placed), Wrote
	PushDone                                // the target committed
	PushPeerEnded                           // the target ended the lease: Code
	PushPeerLost                            // the link is down
	PushCancel                              // the caller, or its end, cancels: Code
	PushTick                                // time has passed
)

// PushEvent is an input of a push.
type PushEvent struct {
	Kind         PushEventKind
	Now          rdma.Instant
	Layer, First uint32
	Count        uint32
	Code         fault.Code
	Wrote        bool
}

// PushEffectKind tells push effects apart.
type PushEffectKind uint8

const (
	PushPost       PushEffectKind = iota + 1 // write pieces (Layer, First, Count)
	PushCancelOps                            // cancel what is queued and posted; every piece still completes
	PushSendFin                              // send FIN
	PushSendAbort                            // tell the target that nothing of this push is or will be in flight: Code
	PushResult                               // tell the caller: Code (0: committed), Wrote, Released
	PushReleased                             // tell the caller that its blocks, reported as held, are reusable
	PushTickAt                               // step with PushTick at At
	PushViolation                            // the peer broke the protocol: drop its link
	PushReleaseOwn                           // the source's blocks are no longer held
)

// PushEffect is an output of a push.
type PushEffect struct {
	Kind         PushEffectKind
	Layer, First uint32
	Count        uint32
	Code         fault.Code
	Wrote        bool
	Released     bool
	Detail       string
	At           rdma.Instant
}

type part struct{ layer, first, count uint32 }

// Push is the source's machine.
type Push struct {
	layers, blocks uint32
	phase          PushPhase
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

// NewPush makes the machine of a transfer of `blocks` blocks in `layers` layers.
func NewPush(layers, blocks uint32, deadline rdma.Instant) *Push {
	return &Push{layers: layers, blocks: blocks, deadline: deadline, asked: newBitmap(uint64(layers) * uint64(blocks))}
}

// Phase returns where the push stands.
func (p *Push) Phase() PushPhase { return p.phase }

// Outstanding is the number of pieces posted and not completed.
func (p *Push) Outstanding() uint64 { return p.outstanding }

// Placed is the number of pieces that the target has acknowledged.
func (p *Push) Placed() uint64 { return p.placed }

// Step takes one event and appends the effects to out.
func (p *Push) Step(out []PushEffect, e PushEvent) []PushEffect {
	if e.Kind == PushCompletion {
		return p.completion(out, e)
	}
	live := p.phase < PushClosing
	if live && e.Now >= p.deadline {
		out = p.fail(out, e.Now, fault.DeadlineExceeded)
		live = false
	}
	switch e.Kind {
	case PushBound:
		return p.onBound(out, live)
	case PushTick:
		if p.phase == PushClosing && !p.reported && e.Now >= p.reportBy {
			p.awaiting = false
			if p.outstanding == 0 {
				return p.released(out)
			}
			p.reported = true
			out = append(out, PushEffect{Kind: PushResult, Code: p.code, Wrote: p.mayHaveWritten(), Detail: p.detail})
		}
		return out
	}
	if !live {
		if e.Kind == PushPeerEnded || e.Kind == PushPeerLost {
			p.peerOver = true
			return p.reason(out, e)
		}
		return out
	}
	switch e.Kind {
	case PushRefused:
		p.peerOver = true
		return p.fail(out, e.Now, e.Code)
	case PushLayer:
		return p.layer(out, e)
	case PushFinish:
		if all := uint64(p.layers) * uint64(p.blocks); p.finish || p.askedCount != all {
			p.detail = fmt.Sprintf("finish: %d of %d (layer, block) pieces were handed over", p.askedCount, all)
			return p.fail(out, e.Now, fault.InvalidArgument)
		}
		p.finish = true
		return p.complete(out)
	case PushDone:
		if p.phase != PushFinishing {
			return p.fail(append(out, PushEffect{Kind: PushViolation}), e.Now, fault.ProtocolViolation)
		}
		p.phase, p.reported = PushEnded, true
		return append(out, PushEffect{Kind: PushReleaseOwn}, PushEffect{Kind: PushResult, Wrote: true, Released: true})
	case PushPeerEnded:
		p.peerOver = true
		return p.fail(out, e.Now, e.Code)
	case PushPeerLost:
		p.peerOver = true
		return p.fail(out, e.Now, fault.PeerLost)
	case PushCancel:
		return p.fail(out, e.Now, e.Code)
	}
	return out
}

func (p *Push) onBound(out []PushEffect, live bool) []PushEffect {
	if !live {
		if !p.peerOver { // the answer crossed our end: the target must not wait for us
			if p.bound = true; p.phase == PushEnded {
				out = append(out, PushEffect{Kind: PushSendAbort, Code: p.code})
			}
		}
		return out
	}
	if p.phase != PushBinding {
		return out
	}
	p.phase, p.bound = PushOpen, true
	for _, x := range p.early {
		out = p.post(out, x)
	}
	p.early = nil
	return p.complete(out)
}

func (p *Push) layer(out []PushEffect, e PushEvent) []PushEffect {
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
	for i := e.First; i < e.First+count; i++ {
		if !p.asked.set(base + uint64(i)) {
			// Which bytes were meant is unknown.
			p.detail = fmt.Sprintf("layer %d, position %d was handed over twice", e.Layer, i)
			return p.fail(out, e.Now, fault.InvalidArgument)
		}
	}
	p.askedCount += uint64(count)
	x := part{e.Layer, e.First, count}
	if p.phase == PushBinding {
		p.early = append(p.early, x)
		return out
	}
	return p.post(out, x)
}

func (p *Push) post(out []PushEffect, x part) []PushEffect {
	p.outstanding += uint64(x.count)
	return append(out, PushEffect{Kind: PushPost, Layer: x.layer, First: x.first, Count: x.count})
}

func (p *Push) completion(out []PushEffect, e PushEvent) []PushEffect {
	p.outstanding -= min(p.outstanding, uint64(e.Count))
	if e.Code == 0 {
		p.placed += uint64(e.Count)
	}
	p.wrote = p.wrote || e.Wrote || e.Code == 0
	switch {
	case p.phase == PushClosing:
		if p.outstanding == 0 && !p.awaiting {
			out = p.released(out)
		}
		return out
	case p.phase == PushEnded:
		return out
	case e.Code != 0:
		return p.fail(out, e.Now, e.Code)
	}
	return p.complete(out)
}

func (p *Push) complete(out []PushEffect) []PushEffect {
	if p.phase != PushOpen || !p.finish || p.placed != uint64(p.layers)*uint64(p.blocks) {
		return out
	}
	p.phase = PushFinishing
	return append(out, PushEffect{Kind: PushSendFin})
}

// reason takes the target's word on why its window vanished.
func (p *Push) reason(out []PushEffect, e PushEvent) []PushEffect {
	if !p.awaiting {
		return out
	}
	p.awaiting = false
	if e.Kind == PushPeerEnded {
		p.code = e.Code
	}
	if p.phase == PushClosing && p.outstanding == 0 {
		return p.released(out)
	}
	return out
}

func (p *Push) fail(out []PushEffect, now rdma.Instant, code fault.Code) []PushEffect {
	p.phase, p.code, p.early = PushClosing, code, nil
	p.reportBy = now + ReleaseGrace
	if code == fault.StaleKey && !p.peerOver {
		p.awaiting, p.reportBy = true, min(now+ReasonGrace, max(p.deadline, now)) // a call ends by its deadline
	}
	if p.outstanding == 0 && !p.awaiting {
		return p.released(out)
	}
	if p.outstanding > 0 {
		out = append(out, PushEffect{Kind: PushCancelOps, Code: code})
	}
	return append(out, PushEffect{Kind: PushTickAt, At: p.reportBy})
}

// released ends a failed push: nothing of it is in flight, so ABORT may be said and the blocks are reusable.
func (p *Push) released(out []PushEffect) []PushEffect {
	p.phase = PushEnded
	if p.bound && !p.peerOver {
		out = append(out, PushEffect{Kind: PushSendAbort, Code: p.code})
	}
	out = append(out, PushEffect{Kind: PushReleaseOwn})
	if p.reported {
		return append(out, PushEffect{Kind: PushReleased})
	}
	p.reported = true
	return append(out, PushEffect{Kind: PushResult, Code: p.code, Wrote: p.mayHaveWritten(), Detail: p.detail, Released: true})
}

// mayHaveWritten is true as soon as an operation may have reached the target.
func (p *Push) mayHaveWritten() bool { return p.wrote || p.outstanding > 0 }
