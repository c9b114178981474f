package xfer_test

import (
	"bytes"
	"fmt"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// The raw regions of the random test are slots, which a round hands out.
const (
	randomSlots = 24
	randomSlot  = 8 << 10
)

// times is usually long, sometimes so short that it ends in the middle.
func (r *randomRun) times() time.Duration {
	if r.rng.IntN(10) == 0 {
		return time.Duration(1+r.rng.IntN(5)) * time.Millisecond
	}
	return time.Hour
}

// randomPull is a read lease and the pull under it.
type randomPull struct {
	src, dst         *worker
	lease, transfer  uint64
	from, to         []uint32
	held             [][]byte // the source's, piece by piece
	srcMark, dstMark byte
}

// blocksOf copies blocks, plane by plane of every layer.
func (w *worker) blocksOf(blocks []uint32) (out [][]byte) {
	for _, b := range blocks {
		for layer := range small.Layers {
			for plane := range small.Planes() {
				out = append(out, bytes.Clone(w.block(layer, plane, b)))
			}
		}
	}
	return out
}

// beginPull leases and pulls. The source's owner writes into its blocks at the moment that its lease is over, the reader's
// into its own when the pull has failed.
func (r *randomRun) beginPull(src, dst *worker, from, to []uint32) (*randomPull, []func()) {
	for _, b := range from {
		r.unwatch(src, b)
	}
	for _, b := range to {
		r.unwatch(dst, b)
	}
	x := &randomPull{src: src, dst: dst, from: from, to: to, held: src.blocksOf(from), srcMark: byte(r.rng.Uint32()), dstMark: byte(r.rng.Uint32())}
	info := src.offer(1, r.times(), from...)
	x.lease = info.Lease
	src.atGiven(x.lease, func() {
		for _, b := range from {
			src.mark(b, x.srcMark)
		}
	})
	x.transfer = dst.pull(info.Ticket, r.times(), "note", to...)
	dst.atGiven(x.transfer, func() {
		if dst.transfers[x.transfer].Error != nil {
			for _, b := range to {
				dst.mark(b, x.dstMark)
			}
		}
	})
	var chaos []func()
	switch r.rng.IntN(8) {
	case 0:
		chaos = append(chaos, func() { _ = src.node.engine.Revoke(src.id, x.lease) })
	case 1:
		chaos = append(chaos, func() { dst.node.engine.CancelTransfer(dst.id, x.transfer) })
	case 2:
		chaos = append(chaos, func() { _ = src.node.engine.Evict(r.t.Context(), src.id, src.cache, from[:1]) }) // Closed or NotFound where it met another end
	case 3:
		ttl := r.times()
		chaos = append(chaos, func() { _ = src.node.engine.Renew(src.id, wire.Renew{Lease: x.lease, TTLMillis: ttl.Milliseconds()}) })
	}
	return x, chaos
}

func (x *randomPull) ended(r *randomRun) {
	d := x.dst.transferEnd(x.transfer)
	if d.Error != nil { // it may never have been bound: then only its owner or its time ends the lease
		_ = x.src.node.engine.Revoke(x.src.id, x.lease)
	}
	s := x.src.leaseEnd(x.lease)
	x.dst.until("the release", func() bool { return x.dst.free[x.transfer] == 1 })
	if d.Error == nil {
		r.pulls++
		require.Equal(r.t, x.held, x.dst.blocksOf(x.to), "a pull that ended well did not bring what its source held")
		x.src.holderOf(d.TransferID, "note")
	} else {
		require.Contains(r.t, readerCodes, d.Error.Code, "%+v", d.Error)
		for _, b := range x.to {
			r.watched = append(r.watched, watched{x.dst, b, x.dstMark})
		}
	}
	require.True(r.t, s.Error == nil || s.Error.Code != fault.Internal, "%+v", s.Error)
	for _, b := range x.from {
		r.watched = append(r.watched, watched{x.src, b, x.srcMark})
	}
}

var readerCodes = []fault.Code{fault.Cancelled, fault.LeaseRevoked, fault.LeaseExpired, fault.DeadlineExceeded, fault.PeerLost, fault.ClientGone,
	fault.PeerUnreachable, fault.StaleKey, fault.TicketInvalid}

// mark writes a pattern into a block.
func (w *worker) mark(block uint32, pattern byte) {
	for layer := range small.Layers {
		for plane := range small.Planes() {
			b := w.block(layer, plane, block)
			for i := range b {
				b[i] = pattern
			}
		}
	}
}

// holderOf looks for the one good end of a transfer as a holder, with its notification.
func (w *worker) holderOf(transfer, note string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for i, h := range w.holders {
		if h.TransferID == transfer {
			n++
			require.Nil(w.t, h.Error)
			require.Equal(w.t, note, string(w.holderSay[i]))
		}
	}
	require.Equal(w.t, 1, n, "ends of a holder")
}

// randomScatter is an advertisement and the transfer under it.
type randomScatter struct {
	owner, peer         *worker
	mode                string
	lease, transfer     uint64
	ranges              []wire.ScatterRange
	held                []byte // the source's bytes of the ranges, one after the other
	ownerMark, peerMark byte
	outside             bool // a range leaves what is advertised
}

func slotOf(w *worker, off, n uint64) []byte { return w.mem.bytes[off : off+n] }

// beginScatter advertises and moves. Whoever's memory was written or read writes into it at the moment that it is its own again.
func (r *randomRun) beginScatter(owner, peer *worker, theirs, own []uint32) (*randomScatter, []func()) {
	x := &randomScatter{owner: owner, peer: peer, mode: []string{wire.ModeWrite, wire.ModeRead}[r.rng.IntN(2)],
		ownerMark: byte(r.rng.Uint32()), peerMark: byte(r.rng.Uint32())}
	var spans []wire.RegionSpan
	for i := range own {
		off := uint64(r.rng.IntN(randomSlot))
		n := 1 + r.rng.Uint64N(randomSlot-off)
		spans = append(spans, wire.RegionSpan{Off: uint64(theirs[i])*randomSlot + off, Len: n})
		x.ranges = append(x.ranges, wire.ScatterRange{Local: uint64(own[i])*randomSlot + off, Remote: spans[i].Off, Len: n})
		if x.mode == wire.ModeWrite {
			x.held = append(x.held, slotOf(peer, x.ranges[i].Local, n)...)
		} else {
			x.held = append(x.held, slotOf(owner, x.ranges[i].Remote, n)...)
		}
	}
	uses := uint32(1 - r.rng.IntN(4)/3)
	info := owner.advertise(x.mode, uses, r.times(), spans...)
	x.lease = info.Lease
	owner.atGiven(x.lease, func() {
		for _, s := range x.ranges {
			fillWith(slotOf(owner, s.Remote, s.Len), x.ownerMark)
		}
	})
	owner.atHolder(x.lease, func(ev wire.HolderEvent) {
		rest := x.held
		for _, s := range x.ranges {
			if ev.Error == nil && x.mode == wire.ModeWrite {
				assert.True(r.t, bytes.Equal(rest[:s.Len], slotOf(owner, s.Remote, s.Len)), "a writer's end was told before its bytes were there")
			}
			rest = rest[s.Len:]
		}
	})
	list := x.ranges
	if r.rng.IntN(10) == 0 {
		x.outside = true
		list = append(list[:len(list):len(list)], wire.ScatterRange{Remote: randomSlots*randomSlot - 1, Len: 2})
	}
	x.transfer = peer.scatter(x.mode, info.Ticket, "note", list...)
	peer.atGiven(x.transfer, func() {
		if x.mode == wire.ModeWrite || peer.transfers[x.transfer].Error != nil {
			for _, s := range x.ranges {
				fillWith(slotOf(peer, s.Local, s.Len), x.peerMark)
			}
		}
	})
	var chaos []func()
	switch r.rng.IntN(8) {
	case 0:
		chaos = append(chaos, func() { _ = owner.node.engine.Revoke(owner.id, x.lease) })
	case 1:
		chaos = append(chaos, func() { peer.node.engine.CancelTransfer(peer.id, x.transfer) })
	case 2:
		ttl := r.times()
		chaos = append(chaos, func() {
			_ = owner.node.engine.Renew(owner.id, wire.Renew{Lease: x.lease, TTLMillis: ttl.Milliseconds()})
		})
	}
	return x, chaos
}

func fillWith(b []byte, pattern byte) { copy(b, bytes.Repeat([]byte{pattern}, len(b))) }

func (x *randomScatter) ended(r *randomRun) {
	d := x.peer.transferEnd(x.transfer)
	_ = x.owner.node.engine.Revoke(x.owner.id, x.lease) // never bound, or open for more
	x.owner.leaseEnd(x.lease)
	x.peer.until("the release", func() bool { return x.peer.free[x.transfer] == 1 })
	if d.Error == nil {
		r.scatters++
		require.False(r.t, x.outside, "a range outside the advertisement ended well")
		x.owner.holderOf(d.TransferID, "note")
		rest := x.held
		for _, s := range x.ranges {
			if x.mode == wire.ModeRead {
				require.True(r.t, bytes.Equal(rest[:s.Len], slotOf(x.peer, s.Local, s.Len)), "a read that ended well did not bring what its source held")
			}
			rest = rest[s.Len:]
		}
	} else if d.Error.Code != fault.OutOfBounds || !x.outside {
		require.Contains(r.t, readerCodes, d.Error.Code, "%+v", d.Error)
	}
	for _, s := range x.ranges {
		r.watchRaw(x.owner, s.Remote, s.Len, x.ownerMark)
		if x.mode == wire.ModeWrite || d.Error != nil {
			r.watchRaw(x.peer, s.Local, s.Len, x.peerMark)
		}
	}
}

// watchedRaw are bytes that are the test's again: they hold a pattern until their slot is handed out.
type watchedRaw struct {
	w       *worker
	off, n  uint64
	pattern byte
}

func (r *randomRun) watchRaw(w *worker, off, n uint64, pattern byte) {
	r.watchedRaw[fmt.Sprintf("%d/%p", off/randomSlot, w)] = watchedRaw{w, off, n, pattern}
}

// unwatchRaw forgets slots that are handed out.
func (r *randomRun) unwatchRaw(w *worker, slots []uint32) {
	for _, s := range slots {
		key := fmt.Sprintf("%d/%p", s, w)
		if x, ok := r.watchedRaw[key]; ok {
			r.checkRaw(x)
			delete(r.watchedRaw, key)
		}
	}
}

func (r *randomRun) checkRaw(x watchedRaw) {
	require.Equal(r.t, int(x.n), bytes.Count(slotOf(x.w, x.off, x.n), []byte{x.pattern}), "late write to raw memory at %d", x.off)
}

func (r *randomRun) attachRaw(i int) {
	w := rawWorker(r.t, r.workers[i].node, fmt.Sprintf("raw-%d", i), randomSlots*randomSlot)
	w.fill(r.rng)
	r.raws[i], r.all = w, append(r.all, w)
}
