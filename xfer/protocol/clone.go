package protocol

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/kvxfer/kvxfer/rdma"
)

// Clone and AppendKey are for whoever explores the machines (xfer/explore). A key is a machine's state as bytes, with
// its times relative to now: two machines that were made for the same layers, blocks, uses and kind and have the same
// key answer every further sequence of events, at equal distances from their now, with the same effects (of an Offer,
// but for their order), whatever led to them. What can no longer matter is left out, so that histories meet: the pieces
// of a lease whose outcome is decided, the progress of a transfer that is over. Only the totals Bytes and Placed, and
// the text of Detail, are no part of this promise: they report and decide nothing.

// Clone returns a machine of its own in the same state.
func (l *Lease) Clone() *Lease {
	c := *l
	c.pieces, c.left = slices.Clone(l.pieces), slices.Clone(l.left)
	return &c
}

// AppendKey appends the machine's state.
func (l *Lease) AppendKey(b []byte, now rdma.Instant) []byte {
	b = append(b, byte(l.phase), bits(l.fin, l.opened))
	b = binary.AppendUvarint(b, uint64(l.outcome))
	if l.phase != LeaseGranted && l.phase != LeaseBound {
		return b
	}
	b = binary.AppendVarint(b, int64(l.deadline-now))
	b = binary.AppendVarint(b, int64(l.ownDeadline-now))
	if l.phase == LeaseBound {
		b = binary.AppendVarint(b, int64(l.bindDeadline-now))
	}
	return l.pieces.appendKey(b)
}

// Clone returns a machine of its own in the same state.
func (o *Offer) Clone() *Offer {
	c := *o
	c.holders = make(map[uint64]*holder, len(o.holders))
	for id, h := range o.holders {
		x := *h
		x.placed = slices.Clone(h.placed)
		c.holders[id] = &x
	}
	return &c
}

// AppendKey appends the machine's state.
func (o *Offer) AppendKey(b []byte, now rdma.Instant) []byte {
	b = append(b, byte(o.phase), bits(o.wrote, o.stuck, o.good > 0))
	b = binary.AppendUvarint(b, uint64(o.code))
	if o.phase.Ended() {
		return b
	}
	b = binary.AppendUvarint(b, uint64(o.last))
	b = binary.AppendUvarint(b, o.used)
	b = binary.AppendVarint(b, int64(o.deadline-now))
	for _, id := range slices.Sorted(maps.Keys(o.holders)) {
		h := o.holders[id]
		b = binary.AppendUvarint(b, id)
		b = append(b, bits(h.fencing, h.fin))
		b = binary.AppendUvarint(b, uint64(h.code))
		if h.fencing {
			continue
		}
		b = binary.AppendVarint(b, int64(h.deadline-now))
		b = binary.AppendUvarint(b, h.pieces)
		b = binary.AppendUvarint(b, uint64(len(h.placed)))
		b = h.placed.appendKey(b)
	}
	return b
}

// Clone returns a machine of its own in the same state.
func (p *Transfer) Clone() *Transfer {
	c := *p
	c.early, c.asked = slices.Clone(p.early), slices.Clone(p.asked)
	return &c
}

// AppendKey appends the machine's state.
func (p *Transfer) AppendKey(b []byte, now rdma.Instant) []byte {
	b = append(b, byte(p.phase), bits(p.finish, p.bound, p.peerOver, p.wrote, p.reported, p.awaiting))
	b = binary.AppendUvarint(b, uint64(p.code))
	switch p.phase {
	case TransferEnded:
		return b
	case TransferClosing:
		if !p.reported {
			b = binary.AppendVarint(b, int64(p.reportBy-now))
		}
		return binary.AppendUvarint(b, p.outstanding)
	}
	b = binary.AppendVarint(b, int64(p.deadline-now))
	b = binary.AppendUvarint(b, p.outstanding)
	b = binary.AppendUvarint(b, p.placed)
	b = binary.AppendUvarint(b, uint64(len(p.early)))
	for _, x := range p.early {
		b = binary.AppendUvarint(b, uint64(x.layer))
		b = binary.AppendUvarint(b, uint64(x.first))
		b = binary.AppendUvarint(b, uint64(x.count))
	}
	return p.asked.appendKey(b)
}

func (b bitmap) appendKey(out []byte) []byte {
	for _, w := range b {
		out = binary.LittleEndian.AppendUint64(out, w)
	}
	return out
}

func bits(flags ...bool) (b byte) {
	for i, f := range flags {
		if f {
			b |= 1 << i
		}
	}
	return b
}
