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
	all                []*worker // those of before, too
	commits, transfers int
}

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
	for layer := range small.Layers {
		for plane := range small.Planes() {
			b := w.block(layer, plane, block)
			for i := range b {
				b[i] = p
			}
		}
	}
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

// one is a transfer of the random test with what its source held.
type one struct {
	src, dst        *worker
	lease, transfer uint64
	from, to        []uint32
}

// TestRandomTransfers runs short transfers between three nodes with random ends thrown in and looks at what must hold
// of each result, of the blocks and of the memory.
func TestRandomTransfers(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "a", "b", "c")
	r := &randomRun{t: t, rng: rng, net: net}
	for _, name := range []string{"a", "b", "c"} {
		w := newWorker(t, net.nodes[name], "cache-"+name, small, randomBlocks)
		w.fill(rng)
		r.workers, r.all = append(r.workers, w), append(r.all, w)
	}
	const rounds = 250
	for range rounds {
		r.round()
	}
	for _, x := range r.watched {
		r.check(x)
	}
	for _, w := range r.all {
		w.mu.Lock()
		for id, n := range w.ends {
			assert.Equal(t, 1, n, "events that end %d", id)
		}
		w.mu.Unlock()
	}
	t.Logf("%d transfers, %d committed, %d blocks watched at the end", r.transfers, r.commits, len(r.watched))
	assert.Positive(t, r.commits)
	for _, w := range r.workers {
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
	var all []*one
	for range 5 {
		x := &one{src: r.workers[r.rng.IntN(3)], dst: r.workers[r.rng.IntN(3)]}
		n := 1 + r.rng.IntN(randomPush)
		if min(len(free[x.src]), len(free[x.dst])) < 2*n {
			continue
		}
		x.from, x.to = take(x.src, n), take(x.dst, n)
		for _, b := range x.to {
			r.unwatch(x.dst, b)
		}
		ttl, timeout := time.Hour, time.Hour
		if r.rng.IntN(10) == 0 {
			ttl = time.Duration(1+r.rng.IntN(5)) * time.Millisecond
		}
		if r.rng.IntN(10) == 0 {
			timeout = time.Duration(1+r.rng.IntN(5)) * time.Millisecond
		}
		info := x.dst.lease(ttl, x.to...)
		x.lease, x.transfer = info.Lease, x.src.push(info.Ticket, timeout, x.from...)
		all = append(all, x)
		r.transfers++
	}
	done := make(chan struct{})
	var chaos []func()
	for _, x := range all {
		x, order, finish := x, r.rng.Perm(int(small.Layers)), r.rng.IntN(8) != 0
		chaos = append(chaos, func() {
			for _, layer := range order {
				x.src.layer(x.transfer, uint32(layer))
			}
			if finish {
				x.src.node.engine.PushFinish(x.src.id, x.transfer, nil)
			} else {
				x.src.node.engine.CancelTransfer(x.src.id, x.transfer)
			}
		})
		if r.rng.IntN(6) == 0 {
			chaos = append(chaos, func() { _ = x.dst.node.engine.Revoke(x.dst.id, x.lease) })
		}
	}
	victim := r.rng.IntN(3)
	w := r.workers[victim]
	what := r.rng.IntN(12)
	switch what {
	case 0:
		chaos = append(chaos, r.net.cut)
	case 1:
		chaos = append(chaos, func() { w.node.engine.ClientGone(w.id) })
	case 2:
		chaos = append(chaos, func() { assert.NoError(r.t, w.node.engine.DropCache(context.Background(), w.id, w.cache)) })
	}
	for _, f := range chaos {
		go func() { f(); done <- struct{}{} }()
	}
	for range chaos {
		<-done
	}
	for _, x := range all {
		r.ended(x)
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
	}
	for _, w := range r.workers {
		info, _, err := w.node.engine.Blocks(w.id, w.cache)
		require.NoError(r.t, err)
		require.Zero(r.t, info.Leased+info.Revoking+info.Held, "%+v", info)
	}
}

// ended waits for both ends of a transfer and looks at what they say.
func (r *randomRun) ended(x *one) {
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
