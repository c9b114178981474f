package explore

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// key is a state's canonical form, hashed to 128 bits: two states with the same key have the same future. Left out is
// what cannot matter: the copy numbers of packets, the order in which packets and arrivals were made, operations of
// transfers that are over, and the clocks: only distances between now and what is to come are compared.
type key [16]byte

func (w *World) key(b []byte) (key, []byte) {
	b = append(b[:0], flags(w.up, w.owner.client, w.owner.mourns, w.source.client, w.source.mourns), w.epoch, w.grants, w.keys, w.faults, w.choices, byte(w.owner.wall))
	for k := Revoke; k < kinds; k++ {
		if w.cfg.Limit[k] > 0 {
			b = append(b, w.used[k])
		}
	}
	for i := range w.blocks {
		x := &w.blocks[i]
		b = append(b, byte(x.view), byte(x.lease), x.pattern, x.vouch, x.gen)
		b = tokens(tokens(tokens(b, x.mem), x.want), x.vouchWant)
	}
	for i := range w.leases {
		b = w.leaseKey(b, &w.leases[i])
	}
	for i := range w.transfers {
		b = w.transferKey(b, &w.transfers[i])
	}
	b = append(append(b, w.versions...), w.holds...)
	slices.SortFunc(w.packets, func(p, q packet) int { return bytes.Compare(p.bytes(), q.bytes()) })
	b = append(b, byte(len(w.packets)))
	for _, p := range w.packets {
		b = append(b, p.bytes()...)
	}
	slices.SortFunc(w.arrivals, func(p, q arrival) int { return int(p.x)<<8 + int(p.piece) - int(q.x)<<8 - int(q.piece) })
	b = append(b, byte(len(w.arrivals)))
	for _, a := range w.arrivals {
		b = append(b, a.x, a.piece)
	}
	for _, e := range w.pending {
		b = append(b, byte(e.kind), e.lease)
	}
	sum := sha256.Sum256(b)
	return key(sum[:16]), b
}

func (p *packet) bytes() []byte {
	return []byte{p.x, p.piece, byte(p.token >> 8), byte(p.token), p.epoch, p.key, flags(p.answer, p.inside), p.into}
}

func (w *World) leaseKey(b []byte, l *lease) []byte {
	b = append(b, flags(l.granted, l.lapsed, l.open, l.released, l.m != nil, l.o != nil), l.epoch, l.number, byte(l.bind), l.bound, byte(l.committed))
	b = binary.AppendUvarint(b, l.seen)
	b = tokens(b, l.want)
	if l.m != nil {
		b = l.m.AppendKey(b, w.owner.now)
	}
	if l.o != nil {
		b = l.o.AppendKey(b, w.owner.now)
	}
	return b
}

func (w *World) transferKey(b []byte, t *transfer) []byte {
	if !t.started {
		return append(b, 0)
	}
	l := &t.link
	b = append(b, 1, flags(t.m != nil, t.dialling, t.known, t.cancelled, t.reported, t.released, t.watch != nil, t.clean), t.handed,
		flags(l.open, l.cut, l.ownerKnows, l.sourceKnows, t.handle, t.fence, t.win.open), l.epoch)
	b = frames(frames(b, l.toOwner), l.toSource)
	over := t.m == nil || t.m.Phase() == protocol.TransferEnded
	if t.m != nil {
		b = t.m.AppendKey(b, w.source.now)
	}
	if t.watch != nil {
		b = tokens(b, t.mem)
	}
	if over && !t.handle && !t.fence && !t.win.open && len(l.toOwner) == 0 {
		return b // nothing asks for its window, its bytes or its FIN any more
	}
	b = append(b, t.win.lease, t.win.epoch, t.win.key, flags(t.fin, t.hit))
	if t.win.open {
		b = instant(b, t.win.deadline-w.owner.now)
	}
	b = tokens(tokens(b, t.want), t.mem)
	b = append(b, byte(len(t.timers)))
	for _, at := range t.timers {
		b = instant(b, at-w.source.now)
	}
	if over {
		return b
	}
	for i := range t.ops {
		o := &t.ops[i]
		b = append(b, flags(o.posted, o.done, o.placed, o.sent > 0), byte(o.refused))
	}
	return b
}

func frames(b []byte, fs []frame) []byte {
	b = append(b, byte(len(fs)))
	for _, f := range fs {
		b = instant(append(b, byte(f.kind), byte(f.code)), f.remaining)
	}
	return b
}

func tokens(b []byte, ts []token) []byte {
	b = append(b, byte(len(ts)))
	for _, t := range ts {
		b = append(b, byte(t>>8), byte(t))
	}
	return b
}

func instant(b []byte, t rdma.Instant) []byte { return binary.AppendVarint(b, int64(t)) }

func flags(fs ...bool) (b byte) {
	for i, f := range fs {
		if f {
			b |= 1 << i
		}
	}
	return b
}
