package xfer_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/xfer"
)

// randomBlocks is how many blocks each cache of the random test has; randomPush how many one transfer moves at most.
const (
	randomBlocks = 32
	randomPush   = 4
)

// randomRun is the random test's account of its nodes.
type randomRun struct {
	t                  *testing.T
	rng                *rand.Rand
	net                *network
	workers            []*worker // one cache each, a node each; replaced when its client dies
	watched            []watched
	raws               []*worker             // one raw region each, a node each; replaced when it is given up
	watchedRaw         map[string]watchedRaw // by slot
	all                []*worker             // those of before, too
	commits, transfers int
	pulls, scatters    int // that ended well
}

// ending is a transfer of the random test with its permission.
type ending interface{ ended(r *randomRun) }

// watched is a block that a transfer may have written and that is the test's again: it holds a pattern from now on.
type watched struct {
	w       *worker
	block   uint32
	pattern byte
}

func (r *randomRun) attach(i int) {
	w := newWorker(r.t, r.workers[i].node, r.workers[i].spec.Name, small, randomBlocks)
	r.workers[i], r.all = w, append(r.all, w)
	w.fill(r.rng)
}

// pattern marks a block that came back without a commit; nobody may write it any more.
func (r *randomRun) pattern(w *worker, block uint32) {
	p := byte(r.rng.Uint32())
	w.mark(block, p)
	r.watched = append(r.watched, watched{w, block, p})
}

// unwatch forgets a block that is leased again.
func (r *randomRun) unwatch(w *worker, block uint32) {
	for i := range r.watched {
		if r.watched[i].w == w && r.watched[i].block == block {
			r.check(r.watched[i])
			r.watched = append(r.watched[:i], r.watched[i+1:]...)
			return
		}
	}
}

func (r *randomRun) check(x watched) {
	for layer := range small.Layers {
		for plane := range small.Planes() {
			b := x.w.block(layer, plane, x.block)
			require.Equal(r.t, bytes.Repeat([]byte{x.pattern}, len(b)), b, "late write to block %d", x.block)
		}
	}
}

// one is a push of the random test with what its source held.
type one struct {
	src, dst        *worker
	lease, transfer uint64
	from, to        []uint32
}

// TestRandomTransfers runs short pushes, pulls and transfers of raw memory between three nodes with random ends thrown in and looks at what must hold
// of each result, of the blocks and of the memory.
func TestRandomTransfers(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "a", "b", "c")
	r := &randomRun{t: t, rng: rng, net: net, watchedRaw: map[string]watchedRaw{}, raws: make([]*worker, 3)}
	for _, name := range []string{"a", "b", "c"} {
		w := newWorker(t, net.nodes[name], "cache-"+name, small, randomBlocks)
		w.fill(rng)
		r.workers, r.all = append(r.workers, w), append(r.all, w)
	}
	for i := range r.raws {
		r.attachRaw(i)
	}
	const rounds = 250
	for range rounds {
		r.round()
	}
	for _, x := range r.watched {
		r.check(x)
	}
	for _, x := range r.watchedRaw {
		r.checkRaw(x)
	}
	for _, w := range r.all {
		w.mu.Lock()
		for id, n := range w.ends {
			assert.Equal(t, 1, n, "events that end %d", id)
			assert.Equal(t, 1, w.free[id], "times that the memory of %d was given back", id)
		}
		w.mu.Unlock()
	}
	t.Logf("%d transfers, %d committed, %d pulled, %d of raw memory, %d blocks watched at the end", r.transfers, r.commits, r.pulls, r.scatters, len(r.watched))
	assert.Positive(t, r.commits)
	assert.Positive(t, r.pulls)
	assert.Positive(t, r.scatters)
	for _, w := range append(r.workers, r.raws...) {
		w.node.engine.ClientGone(w.id)
	}
	for _, nd := range net.nodes {
		require.Eventually(t, func() bool { s := nd.engine.Stats(); s.Links = 0; return s == xfer.Stats{} }, patience, time.Millisecond)
	}
	net.cut()
	for _, nd := range net.nodes {
		require.Eventually(t, func() bool { return nd.engine.Stats() == xfer.Stats{} }, patience, time.Millisecond)
	}
}

// round runs five transfers side by side.
func (r *randomRun) round() {
	free := map[*worker][]uint32{}
	for _, w := range r.workers {
		free[w] = ids(r.rng.Perm(randomBlocks))
	}
	take := func(w *worker, n int) []uint32 {
		out := free[w][:n:n]
		free[w] = free[w][n:]
		return out
	}
	slots := map[*worker][]uint32{}
	for _, w := range r.raws {
		slots[w] = ids(r.rng.Perm(randomSlots))
	}
	takeSlots := func(w *worker, n int) []uint32 {
		out := slots[w][:n:n]
		slots[w] = slots[w][n:]
		r.unwatchRaw(w, out)
		return out
	}
	var all []ending
	done := make(chan struct{})
	var chaos []func()
	for range 5 {
		i, k, n := r.rng.IntN(3), r.rng.IntN(3), 1+r.rng.IntN(randomPush)
		src, dst := r.workers[i], r.workers[k]
		if min(len(free[src]), len(free[dst])) < 2*n || min(len(slots[r.raws[i]]), len(slots[r.raws[k]])) < 2*n {
			continue
		}
		var x ending
		var more []func()
		switch r.rng.IntN(4) {
		case 0, 1:
			x, more = r.beginPush(src, dst, take(src, n), take(dst, n))
		case 2:
			x, more = r.beginPull(src, dst, take(src, n), take(dst, n))
		case 3:
			x, more = r.beginScatter(r.raws[i], r.raws[k], takeSlots(r.raws[i], n), takeSlots(r.raws[k], n))
		}
		all, chaos = append(all, x), append(chaos, more...)
		r.transfers++
	}
	victim := r.rng.IntN(3)
	w := r.workers[victim]
	raw := r.raws[victim]
	what := r.rng.IntN(14)
	switch what {
	case 0:
		chaos = append(chaos, r.net.cut)
	case 1:
		chaos = append(chaos, func() { w.node.engine.ClientGone(w.id) })
	case 2:
		chaos = append(chaos, func() { assert.NoError(r.t, w.node.engine.DropCache(context.Background(), w.id, w.cache)) })
	case 3:
		chaos = append(chaos, func() { raw.node.engine.ClientGone(raw.id) })
	case 4:
		chaos = append(chaos, func() {
			assert.NoError(r.t, raw.node.engine.DeregisterRegion(context.Background(), raw.id, raw.region))
		})
	}
	for _, f := range chaos {
		go func() { f(); done <- struct{}{} }()
	}
	for range chaos {
		<-done
	}
	for _, x := range all {
		x.ended(r)
	}
	for _, w := range r.workers {
		require.Eventually(r.t, func() bool { s := w.node.engine.Stats(); return s.Leases+s.Transfers == 0 }, patience, time.Millisecond)
	}
	switch what {
	case 1:
		require.Eventually(r.t, w.mem.unmapped.Load, patience, time.Millisecond)
		r.attach(victim)
	case 2:
		w.register()
	case 3, 4:
		raw.node.engine.ClientGone(raw.id) // of a region that was deregistered the process is left
		require.Eventually(r.t, raw.mem.unmapped.Load, patience, time.Millisecond)
		r.attachRaw(victim)
	}
	for _, w := range r.workers {
		info, _, err := w.node.engine.Blocks(w.id, w.cache)
		require.NoError(r.t, err)
		require.Zero(r.t, info.Leased+info.Revoking+info.Held, "%+v", info)
	}
}

// beginPush leases and pushes; layers and ends come with the chaos.
func (r *randomRun) beginPush(src, dst *worker, from, to []uint32) (*one, []func()) {
	x := &one{src: src, dst: dst, from: from, to: to}
	for _, b := range x.to {
		r.unwatch(x.dst, b)
	}
	info := x.dst.lease(r.times(), x.to...)
	x.lease, x.transfer = info.Lease, x.src.push(info.Ticket, r.times(), x.from...)
	order, finish := r.rng.Perm(int(small.Layers)), r.rng.IntN(8) != 0
	chaos := []func(){func() {
		for _, layer := range order {
			x.src.layer(x.transfer, uint32(layer))
		}
		if finish {
			x.src.node.engine.PushFinish(x.src.id, x.transfer, nil)
		} else {
			x.src.node.engine.CancelTransfer(x.src.id, x.transfer)
		}
	}}
	if r.rng.IntN(6) == 0 {
		chaos = append(chaos, func() { _ = x.dst.node.engine.Revoke(x.dst.id, x.lease) })
	}
	return x, chaos
}

// ended waits for both ends of a transfer and looks at what they say.
func (x *one) ended(r *randomRun) {
	s := x.src.transferEnd(x.transfer)
	if s.Error != nil { // it may never have been bound: then only its owner or its time ends the lease
		_ = x.dst.node.engine.Revoke(x.dst.id, x.lease) // Closed where the client is gone, which ends it too
	}
	d := x.dst.leaseEnd(x.lease)
	if !s.Released {
		x.src.until("the release", func() bool { return x.src.released[x.transfer] })
	}
	if d.Error == nil {
		r.commits++
		for i := range x.to {
			for layer := range small.Layers {
				for plane := range small.Planes() {
					require.Equal(r.t, x.src.block(layer, plane, x.from[i]), x.dst.block(layer, plane, x.to[i]))
				}
			}
		}
		// The source may have lost sight of the commit, but never says that nothing was written.
		require.True(r.t, s.Error == nil || s.Error.MayHaveWritten, "%+v", s.Error)
		return
	}
	require.NotNil(r.t, s.Error, "committed at the source only")
	require.Contains(r.t, []fault.Code{fault.Cancelled, fault.LeaseRevoked, fault.LeaseExpired, fault.DeadlineExceeded, fault.PeerLost, fault.ClientGone,
		fault.PeerUnreachable, fault.StaleKey, fault.TicketInvalid}, s.Error.Code, "%+v", s.Error)
	require.NotContains(r.t, []fault.Code{fault.Internal, fault.ProtocolViolation, fault.Closed}, d.Error.Code, "%+v", d.Error)
	for _, b := range x.to {
		r.pattern(x.dst, b)
	}
}
