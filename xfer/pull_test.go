package xfer_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

func (w *worker) offer(readers uint32, ttl time.Duration, blocks ...uint32) wire.LeaseInfo {
	w.t.Helper()
	info, err := w.node.engine.Lease(w.t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "read", Readers: readers, TTLMillis: ttl.Milliseconds()}, blocks)
	require.NoError(w.t, err)
	return info
}

func (w *worker) pull(ticket string, timeout time.Duration, note string, blocks ...uint32) uint64 {
	w.t.Helper()
	info, err := w.node.engine.Pull(w.id, wire.PullRequest{Cache: w.cache, Ticket: ticket, TimeoutMillis: timeout.Milliseconds(), Notification: []byte(note)}, blocks)
	require.NoError(w.t, err)
	return info.Transfer
}

func code(t testing.TB, w *fault.Wire) fault.Code {
	t.Helper()
	if w == nil {
		return 0
	}
	return fault.CodeOf(fault.FromWire(w))
}

func TestPullOverTCP(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "prefill", "decode")
	for _, order := range []layout.Order{layout.HND, layout.NHD, layout.MLA} {
		l := small
		l.Order = order
		if order == layout.MLA {
			l.KVHeads = 1
		}
		src := newWorker(t, net.nodes["prefill"], "p", l, 20+rng.Uint32N(50))
		dst := newWorker(t, net.nodes["decode"], "d", l, 20+rng.Uint32N(50))
		src.fill(rng)
		dst.fill(rng)
		n := 1 + rng.IntN(20)
		from, to := ids(rng.Perm(int(src.spec.NumBlocks))[:n]), ids(rng.Perm(int(dst.spec.NumBlocks))[:n])

		lease := src.offer(1, time.Minute, from...)
		held, _, err := src.node.engine.Blocks(src.id, src.cache)
		require.NoError(t, err)
		assert.EqualValues(t, n, held.Held, "the source holds its blocks until RELEASE")
		_, err = src.node.engine.Lease(t.Context(), src.id, wire.LeaseRequest{Cache: src.cache, Mode: "write", TTLMillis: 1000}, from[:1])
		require.ErrorIs(t, err, fault.ErrBlocksBusy)

		transfer := dst.pull(lease.Ticket, time.Minute, "thanks", to...)
		end := dst.transferEnd(transfer)
		require.Nil(t, end.Error)
		assert.True(t, end.Released)
		assert.NotZero(t, end.Generation)
		assert.Equal(t, uint64(n)*l.BlockBytes(), end.Bytes)
		got := src.leaseEnd(lease.Lease)
		require.Nil(t, got.Error)
		require.Len(t, src.holders, 1)
		assert.Equal(t, end.TransferID, src.holders[0].TransferID)
		assert.Equal(t, "thanks", string(src.holderSay[0]))
		assert.Equal(t, end.Bytes, src.holders[0].Bytes)
		for layer := range l.Layers {
			for plane := range l.Planes() {
				for i := range to {
					require.Equal(t, src.block(layer, plane, from[i]), dst.block(layer, plane, to[i]))
				}
			}
		}
		info, _, err := dst.node.engine.Blocks(dst.id, dst.cache)
		require.NoError(t, err)
		assert.EqualValues(t, n, info.Committed)
		info, _, err = src.node.engine.Blocks(src.id, src.cache)
		require.NoError(t, err)
		assert.Zero(t, info.Held)
		src.node.engine.ClientGone(src.id)
		dst.node.engine.ClientGone(dst.id)
		require.Eventually(t, func() bool { return src.mem.unmapped.Load() && dst.mem.unmapped.Load() }, patience, time.Millisecond)
	}
}

func TestReadLeaseHasAsManyReadersAsItSays(t *testing.T) {
	net := newNetwork(t, "a", "b")
	src := newWorker(t, net.nodes["a"], "s", small, 8)
	first, second, third := newWorker(t, net.nodes["b"], "x", small, 8), newWorker(t, net.nodes["a"], "y", small, 8), newWorker(t, net.nodes["b"], "z", small, 8)
	lease := src.offer(2, time.Minute, 1, 2)
	require.Nil(t, first.transferEnd(first.pull(lease.Ticket, time.Minute, "", 3, 4)).Error)
	require.Empty(t, src.leases, "one reader more may come")
	require.Nil(t, second.transferEnd(second.pull(lease.Ticket, time.Minute, "", 3, 4)).Error)
	require.Nil(t, src.leaseEnd(lease.Lease).Error)
	end := third.transferEnd(third.pull(lease.Ticket, time.Minute, "", 3, 4))
	assert.Equal(t, fault.TicketBound, code(t, end.Error))
	info, _, err := third.node.engine.Blocks(third.id, third.cache)
	require.NoError(t, err)
	assert.Zero(t, info.Leased+info.Committed+info.Revoking, "blocks of a pull that failed are FREE")
}

// TestReadLeaseEnds: whatever ends a read lease before RELEASE makes the pull fail, and its blocks are not committed.
func TestReadLeaseEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(src, dst *worker, lease uint64)
		want fault.Code
	}{
		"revoked": {func(src, _ *worker, lease uint64) { _ = src.node.engine.Revoke(src.id, lease) }, fault.LeaseRevoked},
		"evicted": {func(src, _ *worker, _ uint64) {
			require.NoError(src.t, src.node.engine.Evict(src.t.Context(), src.id, src.cache, []uint32{1}))
		}, fault.LeaseRevoked},
		"dropped": {func(src, _ *worker, _ uint64) {
			require.NoError(src.t, src.node.engine.DropCache(src.t.Context(), src.id, src.cache))
		}, fault.LeaseRevoked},
		"client gone": {func(src, _ *worker, _ uint64) { src.node.engine.ClientGone(src.id) }, fault.ClientGone},
	} {
		t.Run(name, func(t *testing.T) {
			net := newNetwork(t, "a", "b")
			src, dst := newWorker(t, net.nodes["a"], "s", small, 8), newWorker(t, net.nodes["b"], "d", small, 8)
			lease := src.offer(1, time.Minute, 0, 1, 2)
			c.end(src, dst, lease.Lease)
			if name != "client gone" {
				assert.Equal(t, c.want, code(t, src.leaseEnd(lease.Lease).Error))
			}
			end := dst.transferEnd(dst.pull(lease.Ticket, time.Minute, "", 5, 6, 7))
			assert.Equal(t, c.want, code(t, end.Error))
			assert.True(t, end.Released)
			info, _, err := dst.node.engine.Blocks(dst.id, dst.cache)
			require.NoError(t, err)
			assert.Zero(t, info.Leased+info.Committed+info.Revoking)
		})
	}
}

func TestTicketsSayWhatTheyPermit(t *testing.T) {
	net := newNetwork(t, "a", "b")
	a, b := newWorker(t, net.nodes["a"], "s", small, 8), newWorker(t, net.nodes["b"], "d", small, 8)
	read, write := a.offer(1, time.Minute, 1), a.lease(time.Minute, 2)
	_, err := b.node.engine.Push(b.id, wire.PushRequest{Cache: b.cache, Ticket: read.Ticket, TimeoutMillis: 1000}, []uint32{1})
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	_, err = b.node.engine.Pull(b.id, wire.PullRequest{Cache: b.cache, Ticket: write.Ticket, TimeoutMillis: 1000}, []uint32{1})
	require.ErrorIs(t, err, fault.ErrInvalidArgument)

	// A ticket whose text was changed does not make the owner permit more.
	forged, err := wire.ParseTicket(write.Ticket)
	require.NoError(t, err)
	forged.Grants[0].Mode = wire.ModeRead
	end := b.transferEnd(b.pull(forged.Encode(), time.Minute, "", 1))
	assert.Equal(t, fault.InvalidArgument, code(t, end.Error))
	assert.Equal(t, "mode", end.Error.Field)
	require.Nil(t, a.leases[write.Lease].Error)
}

func TestRenewalKeepsALeaseAlive(t *testing.T) {
	net := newNetwork(t, "a", "b")
	w, src := newWorker(t, net.nodes["a"], "d", small, 8), newWorker(t, net.nodes["b"], "s", small, 8)
	e := w.node.engine
	short := w.lease(time.Hour, 1)
	require.NoError(t, e.Renew(w.id, wire.Renew{Lease: short.Lease, TTLMillis: 1}))
	assert.Equal(t, fault.LeaseExpired, code(t, w.leaseEnd(short.Lease).Error), "a renewal may bring the end forward")
	require.ErrorIs(t, e.Renew(w.id, wire.Renew{Lease: short.Lease, TTLMillis: 1000}), fault.ErrNotFound)
	require.ErrorIs(t, e.Renew(newWorker(t, net.nodes["a"], "other", small, 8).id, wire.Renew{Lease: w.lease(time.Hour, 2).Lease, TTLMillis: 1000}), fault.ErrNotFound, "of another client")

	long := w.lease(50*time.Millisecond, 3)
	require.NoError(t, e.Renew(w.id, wire.Renew{Lease: long.Lease, TTLMillis: time.Hour.Milliseconds()}))
	transfer := src.push(long.Ticket, time.Minute, 1)
	src.layer(transfer, 0)
	w.until("the first layer", func() bool { return len(w.layers[long.Lease]) == 1 })
	time.Sleep(60 * time.Millisecond) // past the first end; a slow machine only makes it later
	for l := uint32(1); l < small.Layers; l++ {
		src.layer(transfer, l)
	}
	src.node.engine.PushFinish(src.id, transfer, nil)
	require.Nil(t, w.leaseEnd(long.Lease).Error)
	require.Nil(t, src.transferEnd(transfer).Error)
}

func TestEvictTakesBlocksBackFromEveryPeer(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "a", "b")
	w, peer := newWorker(t, net.nodes["a"], "d", small, 8), newWorker(t, net.nodes["b"], "s", small, 8)
	e := w.node.engine
	peer.fill(rng)
	write, read, other := w.lease(time.Minute, 1, 2), w.offer(4, time.Minute, 3, 4), w.lease(time.Minute, 5)
	transfer := peer.push(write.Ticket, time.Minute, 1, 2)
	peer.layer(transfer, 0)
	w.until("the first layer", func() bool { return len(w.layers[write.Lease]) == 1 })
	require.NoError(t, e.Evict(t.Context(), w.id, w.cache, []uint32{2, 3}))
	was := bytes.Clone(w.mem.bytes)
	assert.Equal(t, fault.LeaseRevoked, code(t, w.leaseEnd(write.Lease).Error))
	assert.Equal(t, fault.LeaseRevoked, code(t, w.leaseEnd(read.Lease).Error))
	peer.layer(transfer, 1)
	assert.Equal(t, fault.LeaseRevoked, code(t, peer.transferEnd(transfer).Error))
	assert.True(t, bytes.Equal(was, w.mem.bytes), "a byte landed after evict had returned")
	info, _, err := e.Blocks(w.id, w.cache)
	require.NoError(t, err)
	assert.Equal(t, wire.BlocksInfo{Total: 8, Leased: 1}, info)

	own := w.push(other.Ticket, time.Minute, 6)
	require.ErrorIs(t, e.Evict(t.Context(), w.id, w.cache, []uint32{6}), fault.ErrBlocksBusy, "an own transfer is the client's to cancel")
	e.CancelTransfer(w.id, own)
	w.transferEnd(own)
}

// TestEvictAfterATransfersEnd evicts blocks at the moment that their transfer's end is being told: they are the client's,
// and the answer comes behind that event.
func TestEvictAfterATransfersEnd(t *testing.T) {
	net := newNetwork(t, "a", "b")
	src, dst := newWorker(t, net.nodes["a"], "s", small, 8), newWorker(t, net.nodes["b"], "d", small, 8)
	evicted := make(chan error, 1)
	dst.onEvent = func() {
		go func() { evicted <- dst.node.engine.Evict(t.Context(), dst.id, dst.cache, []uint32{5}) }()
		select { // with this event not told yet it must not return; the time is for one that does
		case err := <-evicted:
			t.Errorf("evicted before the end was told: %v", err)
			evicted <- err
		case <-time.After(20 * time.Millisecond):
		}
	}
	transfer := dst.pull(src.offer(1, time.Minute, 1).Ticket, time.Minute, "", 5)
	require.Nil(t, dst.transferEnd(transfer).Error)
	require.NoError(t, <-evicted)
	info, _, err := dst.node.engine.Blocks(dst.id, dst.cache)
	require.NoError(t, err)
	assert.Zero(t, info.Committed)
}
