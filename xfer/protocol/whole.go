package protocol

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// WholeEventKind tells a whole's events apart. All but Revoke are about one part.
type WholeEventKind uint8

const (
	WholeClaim     WholeEventKind = iota + 1 // a transfer has presented a part's secret: Transfer, Attempt
	WholeLayer                               // Layer is visible in the part
	WholePartEnded                           // the part is over and fenced, or beyond reach: Code (0: its blocks are committed), Bytes
	WholeRevoke                              // the lease is taken back: Code
)

// WholeEvent is an input of a whole.
type WholeEvent struct {
	Kind     WholeEventKind
	Part     int
	Transfer string
	Attempt  uint32
	Layer    uint32
	Bytes    uint64
	Code     fault.Code
}

// WholeEffectKind tells a whole's effects apart.
type WholeEffectKind uint8

const (
	WholeAnswer     WholeEffectKind = iota + 1 // answer the claim with Code; 0: the transfer owns the lease
	WholeVisible                               // Layer is visible in every part
	WholeRevokePart                            // end the part with Code, then step with WholePartEnded
	WholeEvictPart                             // the part is committed and the whole is not: evict its blocks
	WholeKeepPart                              // the whole is committed: nothing will be asked of the part any more
	WholeEnd                                   // every part is over: Code (0: committed on all), Bytes
)

// WholeEffect is an output of a whole.
type WholeEffect struct {
	Kind  WholeEffectKind
	Part  int // WholeEnd with a Code: the first part that failed, -1: it was taken back
	Layer uint32
	Bytes uint64
	Code  fault.Code
}

// Whole is an instance's lease, at the node that made it of the ranks' parts: who owns it, and how it ends when each part
// ends by itself. It is committed on every part or on none.
type Whole struct {
	uses    int
	owners  []owner
	parts   []wholePart
	visible map[uint32]int // in how many parts a layer is
	over    int
	failed  bool
	code    fault.Code
	cause   int
	bytes   uint64
}

type owner struct {
	transfer string
	attempt  uint32
}

type wholePart struct {
	over   bool
	good   bool // with over: its blocks are committed
	asked  bool // its end was asked for
	layers bitmap
}

// NewWhole makes the machine of a lease of `parts` parts that `uses` transfers may own: one that writes, or some that read.
func NewWhole(parts, uses int) *Whole {
	return &Whole{uses: uses, parts: make([]wholePart, parts), visible: map[uint32]int{}, cause: -1}
}

// Claimed says whether a transfer owns the lease.
func (w *Whole) Claimed() bool { return len(w.owners) > 0 }

// Failed says whether the lease is ending, or has ended, without a commit.
func (w *Whole) Failed() bool { return w.failed }

// Outcome is why it failed.
func (w *Whole) Outcome() fault.Code { return w.code }

// Over says whether every part is over.
func (w *Whole) Over() bool { return w.over == len(w.parts) }

// Step takes one event and appends the effects to out.
func (w *Whole) Step(out []WholeEffect, e WholeEvent) []WholeEffect {
	if e.Kind == WholeRevoke {
		return w.fail(out, e.Code, -1)
	}
	p := &w.parts[e.Part]
	switch e.Kind {
	case WholeClaim:
		return append(out, WholeEffect{Kind: WholeAnswer, Part: e.Part, Code: w.claim(owner{e.Transfer, e.Attempt})})
	case WholeLayer:
		if e.Layer >= layout.MaxLayers || p.over {
			return out
		}
		p.layers = p.layers.grown(uint64(e.Layer) + 1)
		if !p.layers.set(uint64(e.Layer)) {
			return out
		}
		if w.visible[e.Layer]++; w.visible[e.Layer] == len(w.parts) && !w.failed {
			out = append(out, WholeEffect{Kind: WholeVisible, Layer: e.Layer})
		}
	case WholePartEnded:
		return w.partEnded(out, e, p)
	}
	return out
}

// claim lets the first transfers, with their attempts, own every part.
func (w *Whole) claim(o owner) fault.Code {
	if w.failed {
		return w.code
	}
	for _, x := range w.owners {
		if x == o {
			return 0
		}
	}
	if len(w.owners) == w.uses {
		return fault.TicketBound
	}
	w.owners = append(w.owners, o)
	return 0
}

func (w *Whole) partEnded(out []WholeEffect, e WholeEvent, p *wholePart) []WholeEffect {
	if w.Over() {
		return out
	}
	if p.over && (!p.good || e.Code == 0) {
		return out // told twice
	}
	if !p.over {
		w.over++
	}
	p.over, p.good = true, e.Code == 0
	w.bytes += e.Bytes
	switch {
	case !p.good: // also of a part that was committed: its node is out of reach and takes its own part back
		out = w.fail(out, e.Code, e.Part)
	case w.failed: // the commit crossed the end
		out = append(out, WholeEffect{Kind: WholeEvictPart, Part: e.Part})
	}
	if w.Over() {
		if !w.failed {
			for i := range w.parts {
				out = append(out, WholeEffect{Kind: WholeKeepPart, Part: i})
			}
		}
		out = append(out, WholeEffect{Kind: WholeEnd, Code: w.code, Part: w.cause, Bytes: w.bytes})
	}
	return out
}

// fail decides, once, that the lease is committed on no part. What is committed already is evicted.
func (w *Whole) fail(out []WholeEffect, code fault.Code, cause int) []WholeEffect {
	if w.failed || cause < 0 && w.Over() {
		return out
	}
	w.failed, w.code, w.cause = true, code, cause
	theirs := code
	if cause >= 0 { // the failed part's reason is not that of the others
		theirs = fault.LeaseRevoked
	}
	for i := range w.parts {
		switch p := &w.parts[i]; {
		case p.good:
			out = append(out, WholeEffect{Kind: WholeEvictPart, Part: i})
		case !p.over && !p.asked:
			p.asked = true
			out = append(out, WholeEffect{Kind: WholeRevokePart, Part: i, Code: theirs})
		}
	}
	return out
}
