package protocol

import (
	mathbits "math/bits"

	"github.com/kvxfer/kvxfer/rdma"
)

// Gap is how many pieces of a layer are missing.
type Gap struct{ Layer, Pieces uint32 }

// Pieces is how many there are in all.
func (p *Transfer) Pieces() uint64 { return uint64(p.layers) * uint64(p.blocks) }

// Asked is how many of them the caller has handed over.
func (p *Transfer) Asked() uint64 { return p.askedCount }

// Finished says whether the caller has handed over everything.
func (p *Transfer) Finished() bool { return p.finish }

// AwaitsReason says whether a transfer that has failed waits for the peer's word on why.
func (p *Transfer) AwaitsReason() bool { return p.awaiting }

// Deadline returns when the transfer ends by itself.
func (p *Transfer) Deadline() rdma.Instant { return p.deadline }

// Missing lists the layers that the caller has not handed over whole.
func (p *Transfer) Missing() []Gap {
	var out []Gap
	for layer := range p.layers {
		if n := p.blocks - p.asked.count(uint64(layer)*uint64(p.blocks), uint64(p.blocks)); n > 0 {
			out = append(out, Gap{layer, n})
		}
	}
	return out
}

// Pieces is how many there are in all.
func (l *Lease) Pieces() uint64 { return uint64(l.layers) * uint64(l.blocks) }

// Arrived is how many of them are placed.
func (l *Lease) Arrived() uint64 { return l.Pieces() - l.missing }

// Missing lists the layers of which pieces have not arrived.
func (l *Lease) Missing() []Gap {
	var out []Gap
	for layer, n := range l.left {
		if n > 0 {
			out = append(out, Gap{uint32(layer), n})
		}
	}
	return out
}

// Uses is how many binds the offer permits (0: any number), and how many there were.
func (o *Offer) Uses() (allowed, taken uint64) { return o.uses, o.used }

// Fencing says whether a holder's outcome is decided and its window is being fenced.
func (o *Offer) Fencing(holder uint64) bool {
	h := o.holders[holder]
	return h != nil && h.fencing
}

// PartOver says whether a part is over.
func (w *Whole) PartOver(part int) bool { return w.parts[part].over }

// count is how many of n pieces from first on are in the set.
func (b bitmap) count(first, n uint64) (have uint32) {
	for i := first; i < first+n; {
		w := b[i/64] >> (i % 64)
		left := 64 - i%64
		if rest := first + n - i; rest < left {
			w &= 1<<rest - 1
			left = rest
		}
		have += uint32(mathbits.OnesCount64(w))
		i += left
	}
	return have
}
