package xfer_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

var small = layout.Layout{Layers: 4, KVHeads: 2, HeadDim: 16, DType: "float32", BlockTokens: 8, Order: layout.HND, TPSize: 1}

func ids(p []int) []uint32 {
	out := make([]uint32, len(p))
	for i, v := range p {
		out[i] = uint32(v)
	}
	return out
}

func TestPushOverTCP(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "prefill", "decode")
	for round, order := range []layout.Order{layout.HND, layout.NHD, layout.MLA, layout.HND} {
		l := small
		l.Order, l.Layers = order, 1+rng.Uint32N(6)
		if order == layout.MLA {
			l.KVHeads = 1
		}
		if round == 3 { // blocks of several megabytes in all: several operations a layer
			l.HeadDim, l.BlockTokens = 128, 32
		}
		src := newWorker(t, net.nodes["prefill"], "p", l, 20+rng.Uint32N(50))
		dst := newWorker(t, net.nodes["decode"], "d", l, 20+rng.Uint32N(50))
		src.fill(rng)
		dst.fill(rng)
		before := bytes.Clone(dst.mem.bytes)
		n := 1 + rng.IntN(20)
		from, to := ids(rng.Perm(int(src.spec.NumBlocks))[:n]), ids(rng.Perm(int(dst.spec.NumBlocks))[:n])

		lease := dst.lease(time.Minute, to...)
		transfer := src.push(lease.Ticket, time.Minute, from...)
		for _, layer := range rng.Perm(int(l.Layers)) {
			if n > 1 && rng.IntN(2) == 0 { // in two parts
				cut := uint32(1 + rng.IntN(n-1))
				src.node.engine.PushLayer(src.id, wire.LayerPart{Transfer: transfer, Layer: uint32(layer), First: cut})
				src.node.engine.PushLayer(src.id, wire.LayerPart{Transfer: transfer, Layer: uint32(layer), Count: cut})
			} else {
				src.layer(transfer, uint32(layer))
			}
		}
		src.node.engine.PushFinish(src.id, transfer, []byte("first token"))

		end := src.transferEnd(transfer)
		require.Nil(t, end.Error)
		assert.True(t, end.Released)
		assert.Equal(t, "tcp", end.Provider)
		assert.Equal(t, uint64(n)*l.BlockBytes(), end.Bytes)
		assert.GreaterOrEqual(t, end.LastNanos, end.FirstNanos)
		got := dst.leaseEnd(lease.Lease)
		require.Nil(t, got.Error)
		assert.Equal(t, lease.Generation, got.Generation)
		assert.Equal(t, "first token", string(dst.notes[lease.Lease]))
		assert.Len(t, dst.layers[lease.Lease], int(l.Layers), "each layer is reported once")
		assert.Equal(t, end.TransferID, got.TransferID)

		moved := map[uint32]uint32{}
		for i := range to {
			moved[to[i]] = from[i]
		}
		was := &worker{mem: &memory{bytes: before}, spec: dst.spec}
		for layer := range l.Layers {
			for plane := range l.Planes() {
				for b := range dst.spec.NumBlocks {
					want := was.block(layer, plane, b)
					if s, ok := moved[b]; ok {
						want = src.block(layer, plane, s)
					}
					require.Equal(t, want, dst.block(layer, plane, b), "layer %d plane %d block %d", layer, plane, b)
				}
			}
		}
		info, _, err := dst.node.engine.Blocks(dst.id, dst.cache)
		require.NoError(t, err)
		assert.Equal(t, wire.BlocksInfo{Total: dst.spec.NumBlocks, Committed: uint32(n)}, info)
		src.node.engine.ClientGone(src.id)
		dst.node.engine.ClientGone(dst.id)
		require.Eventually(t, func() bool { return src.mem.unmapped.Load() && dst.mem.unmapped.Load() }, patience, time.Millisecond)
	}
}

// TestEveryEndIsTyped opens a transfer, has some layers arrive, ends it in each way there is, and looks at both
// sides' results and at the memory afterwards.
func TestEveryEndIsTyped(t *testing.T) {
	for name, c := range map[string]struct {
		ttl, timeout time.Duration
		end          func(net *network, src, dst *worker, lease, transfer uint64)
		source       fault.Code
		target       fault.Code
		noTarget     bool // the target's client is gone and hears nothing
		noSource     bool
	}{
		"revoke": {end: func(_ *network, _, dst *worker, lease, _ uint64) { _ = dst.node.engine.Revoke(dst.id, lease) },
			source: fault.LeaseRevoked, target: fault.LeaseRevoked},
		"lease expires": {ttl: 100 * time.Millisecond, source: fault.LeaseExpired, target: fault.LeaseExpired},
		// The time is long enough for the target to hear of the transfer: of one that it never heard of it has nothing to end.
		"transfer deadline": {timeout: 3 * time.Second, end: func(*network, *worker, *worker, uint64, uint64) {}, source: fault.DeadlineExceeded, target: fault.DeadlineExceeded},
		"cancel": {end: func(_ *network, src, _ *worker, _, transfer uint64) { src.node.engine.CancelTransfer(src.id, transfer) },
			source: fault.Cancelled, target: fault.Cancelled},
		"target's client dies": {end: func(_ *network, _, dst *worker, _, _ uint64) { dst.node.engine.ClientGone(dst.id) },
			source: fault.ClientGone, noTarget: true},
		"source's client dies": {end: func(_ *network, src, _ *worker, _, _ uint64) { src.node.engine.ClientGone(src.id) },
			target: fault.ClientGone, noSource: true},
		"link is cut": {end: func(net *network, _, _ *worker, _, _ uint64) { net.cut() },
			source: fault.PeerLost, target: fault.PeerLost},
		"target drains": {end: func(_ *network, _, dst *worker, _, _ uint64) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			dst.node.engine.Drain(ctx)
		}, source: fault.Draining, target: fault.Draining},
		"source drains": {end: func(_ *network, src, _ *worker, _, _ uint64) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			src.node.engine.Drain(ctx)
		}, source: fault.Draining, target: fault.Draining},
		"a layer twice": {end: func(_ *network, src, _ *worker, _, transfer uint64) { src.layer(transfer, 0) },
			source: fault.InvalidArgument, target: fault.InvalidArgument},
		"finish too early": {end: func(_ *network, src, _ *worker, _, transfer uint64) {
			src.node.engine.PushFinish(src.id, transfer, nil)
		}, source: fault.InvalidArgument, target: fault.InvalidArgument},
		"source's cache is dropped": {end: func(_ *network, src, _ *worker, _, _ uint64) {
			_ = src.node.engine.DropCache(context.Background(), src.id, src.cache)
		}, source: fault.Cancelled, target: fault.Cancelled},
		"target's cache is dropped": {end: func(_ *network, _, dst *worker, _, _ uint64) {
			_ = dst.node.engine.DropCache(context.Background(), dst.id, dst.cache)
		}, source: fault.LeaseRevoked, target: fault.LeaseRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			net := newNetwork(t, "prefill", "decode")
			src := newWorker(t, net.nodes["prefill"], "p", small, 8)
			dst := newWorker(t, net.nodes["decode"], "d", small, 8)
			if c.ttl == 0 {
				c.ttl = time.Hour
			}
			if c.timeout == 0 {
				c.timeout = time.Hour
			}
			lease := dst.lease(c.ttl, 1, 2, 3)
			transfer := src.push(lease.Ticket, c.timeout, 4, 5, 6)
			src.layer(transfer, 0)
			if c.end != nil { // with a short time the layer may or may not make it: both are right
				dst.until("a layer", func() bool { return len(dst.layers[lease.Lease]) == 1 })
				c.end(net, src, dst, lease.Lease, transfer)
			}
			if !c.noSource {
				ev := src.transferEnd(transfer)
				require.NotNil(t, ev.Error)
				assert.Equal(t, c.source.String(), ev.Error.Name, ev.Error.Detail)
				assert.True(t, ev.Released, "nothing was in flight")
				assert.Equal(t, "decode", ev.Error.Peer)
				if c.end != nil {
					assert.True(t, ev.Error.MayHaveWritten)
				}
			}
			if !c.noTarget {
				ev := dst.leaseEnd(lease.Lease)
				require.NotNil(t, ev.Error)
				assert.Equal(t, c.target.String(), ev.Error.Name)
				assert.Empty(t, dst.notes[lease.Lease])
			}
			// The blocks are the owner's again: they can be leased, and the source's are no longer held.
			require.Eventually(t, func() bool {
				s, d := src.node.engine.Stats(), dst.node.engine.Stats()
				return s.Transfers+s.Leases+d.Transfers+d.Leases == 0
			}, patience, time.Millisecond)
			if c.noTarget {
				require.Eventually(t, dst.mem.unmapped.Load, patience, time.Millisecond)
			}
		})
	}
}

func TestClientDeathKeepsMemoryUntilFenced(t *testing.T) {
	net := newNetwork(t, "prefill", "decode")
	src := newWorker(t, net.nodes["prefill"], "p", small, 8)
	dst := newWorker(t, net.nodes["decode"], "d", small, 8)
	lease := dst.lease(time.Hour, 0, 1)
	transfer := src.push(lease.Ticket, time.Hour, 0, 1)
	src.layer(transfer, 0)
	dst.until("a layer", func() bool { return len(dst.layers[lease.Lease]) == 1 })
	assert.False(t, dst.mem.unmapped.Load())
	dst.node.engine.ClientGone(dst.id)
	require.Eventually(t, dst.mem.unmapped.Load, patience, time.Millisecond)
	require.Eventually(t, func() bool { return dst.node.engine.Stats().Leases == 0 }, patience, time.Millisecond)
	for i := range dst.mem.bytes {
		dst.mem.bytes[i] = 0xAA
	}
	src.layer(transfer, 1)
	src.layer(transfer, 2)
	src.transferEnd(transfer)
	assert.Equal(t, bytes.Repeat([]byte{0xAA}, len(dst.mem.bytes)), dst.mem.bytes, "no late byte")
	_, err := dst.node.engine.Lease(t.Context(), dst.id, wire.LeaseRequest{Cache: dst.cache, Mode: "write", TTLMillis: 1}, []uint32{0})
	assert.ErrorIs(t, err, fault.ErrClosed)
}

func TestBusyBlocksAreRefused(t *testing.T) {
	net := newNetwork(t, "prefill", "decode")
	src := newWorker(t, net.nodes["prefill"], "p", small, 8)
	dst := newWorker(t, net.nodes["decode"], "d", small, 8)
	ask := func(w *worker, blocks ...uint32) error {
		_, err := w.node.engine.Lease(t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "write", TTLMillis: 60_000}, blocks)
		return err
	}
	lease := dst.lease(time.Hour, 1, 2)
	assert.ErrorIs(t, ask(dst, 2, 3), fault.ErrBlocksBusy)
	transfer := src.push(lease.Ticket, time.Hour, 5, 6)
	assert.ErrorIs(t, ask(src, 6), fault.ErrBlocksBusy, "held by a push")
	assert.ErrorIs(t, src.node.engine.Evict(t.Context(), src.id, src.cache, []uint32{5}), fault.ErrBlocksBusy)
	_, err := dst.node.engine.Push(dst.id, wire.PushRequest{Cache: dst.cache, Ticket: lease.Ticket, TimeoutMillis: 1000}, []uint32{1, 2})
	assert.ErrorIs(t, err, fault.ErrBlocksBusy, "a peer may be writing them")
	info, _, err := src.node.engine.Blocks(src.id, src.cache)
	require.NoError(t, err)
	assert.Equal(t, uint32(2), info.Held)

	src.layer(transfer, 0)
	dst.until("a layer", func() bool { return len(dst.layers[lease.Lease]) == 1 })
	src.node.engine.CancelTransfer(src.id, transfer)
	src.transferEnd(transfer)
	assert.NoError(t, ask(src, 6))
	dst.leaseEnd(lease.Lease)
	assert.NoError(t, ask(dst, 2, 3))
}

// TestCommittedBlockThatIsSentCountsOnce looks at a block that was received and is now a source.
func TestCommittedBlockThatIsSentCountsOnce(t *testing.T) {
	net := newNetwork(t, "prefill", "decode")
	src := newWorker(t, net.nodes["prefill"], "p", small, 8)
	dst := newWorker(t, net.nodes["decode"], "d", small, 8)
	first := dst.lease(time.Hour, 1, 2)
	transfer := src.push(first.Ticket, time.Hour, 5, 6)
	for layer := range small.Layers {
		src.layer(transfer, layer)
	}
	src.node.engine.PushFinish(src.id, transfer, nil)
	require.Nil(t, dst.leaseEnd(first.Lease).Error)

	dst.push(src.lease(time.Hour, 0).Ticket, time.Hour, 2)
	info, entries, err := dst.node.engine.Blocks(dst.id, dst.cache)
	require.NoError(t, err)
	assert.Equal(t, wire.BlocksInfo{Total: 8, Committed: 1, Held: 1}, info)
	assert.Equal(t, wire.AppendBlockEntries(nil, []wire.BlockEntry{
		{Block: 1, State: wire.StateCommitted, Generation: first.Generation}, {Block: 2, State: wire.StateHeld}}), entries)
}

func TestTicketIsBoundOnce(t *testing.T) {
	net := newNetwork(t, "prefill", "decode")
	src := newWorker(t, net.nodes["prefill"], "p", small, 8)
	dst := newWorker(t, net.nodes["decode"], "d", small, 8)
	lease := dst.lease(time.Hour, 1)
	first := src.push(lease.Ticket, time.Hour, 1)
	src.layer(first, 0)
	dst.until("a layer", func() bool { return len(dst.layers[lease.Lease]) == 1 })

	second := src.transferEnd(src.push(lease.Ticket, time.Hour, 2))
	assert.Equal(t, "TicketBound", second.Error.Name)
	assert.False(t, second.Error.MayHaveWritten)

	parsed, err := wire.ParseTicket(lease.Ticket)
	require.NoError(t, err)
	parsed.Grants[0].Secret[3] ^= 1
	forged := src.transferEnd(src.push(parsed.Encode(), time.Hour, 2))
	assert.Equal(t, "TicketInvalid", forged.Error.Name)

	for layer := range small.Layers - 1 {
		src.layer(first, layer+1)
	}
	src.node.engine.PushFinish(src.id, first, nil)
	require.Nil(t, src.transferEnd(first).Error, "the first one was not disturbed")
	require.Nil(t, dst.leaseEnd(lease.Lease).Error)
	late := src.transferEnd(src.push(lease.Ticket, time.Hour, 2))
	assert.Equal(t, "TicketBound", late.Error.Name, "also after the lease has ended")

	parsed.Grants[0].Epoch = "ffffffffffffffffffffffffffffffff"
	assert.Equal(t, "StaleEpoch", src.transferEnd(src.push(parsed.Encode(), time.Hour, 2)).Error.Name)
	parsed.Grants[0].Node = "nobody"
	assert.Equal(t, "PeerUnreachable", src.transferEnd(src.push(parsed.Encode(), time.Hour, 2)).Error.Name)
}

func TestMismatchMovesNothing(t *testing.T) {
	net := newNetwork(t, "prefill", "decode")
	dst := newWorker(t, net.nodes["decode"], "d", small, 8)
	for field, change := range map[string]func(*wire.RegisterCache){
		"model":               func(s *wire.RegisterCache) { s.Model = "other" },
		"revision":            func(s *wire.RegisterCache) { s.Revision = "2" },
		"compat":              func(s *wire.RegisterCache) { s.Compat = "awq" },
		"layout.order":        func(s *wire.RegisterCache) { s.Layout.Order = layout.NHD },
		"layout.block_tokens": func(s *wire.RegisterCache) { s.Layout.BlockTokens = 4 },
	} {
		src := newWorker(t, net.nodes["prefill"], "p-"+field, small, 8)
		require.NoError(t, src.node.engine.DropCache(t.Context(), src.id, src.cache))
		change(&src.spec)
		src.register()
		lease := dst.lease(time.Hour, 1)
		end := src.transferEnd(src.push(lease.Ticket, time.Hour, 1))
		require.NotNil(t, end.Error, field)
		assert.Equal(t, "LayoutMismatch", end.Error.Name)
		assert.Equal(t, field, end.Error.Field)
		assert.Zero(t, end.Bytes)
		assert.False(t, end.Error.MayHaveWritten)
		// The mistaken source has not used the ticket up.
		require.NoError(t, dst.node.engine.Revoke(dst.id, lease.Lease))
		assert.False(t, dst.leaseEnd(lease.Lease).Error.MayHaveWritten)
	}
}

func TestManyTransfersAtOnce(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "prefill", "decode")
	const n = 24
	src := newWorker(t, net.nodes["prefill"], "p", small, 4*n)
	dst := newWorker(t, net.nodes["decode"], "d", small, 4*n)
	src.fill(rng)
	from, to := ids(rng.Perm(4*n)), ids(rng.Perm(4*n))
	var leases, transfers [n]uint64
	for i := range n {
		l := dst.lease(time.Minute, to[4*i:4*i+4]...)
		leases[i], transfers[i] = l.Lease, src.push(l.Ticket, time.Minute, from[4*i:4*i+4]...)
	}
	done := make(chan struct{})
	for i := range n {
		go func() {
			defer func() { done <- struct{}{} }()
			for layer := range small.Layers {
				src.layer(transfers[i], layer)
			}
			if i%6 == 5 {
				src.node.engine.CancelTransfer(src.id, transfers[i])
				return
			}
			src.node.engine.PushFinish(src.id, transfers[i], nil)
		}()
	}
	for range n {
		<-done
	}
	for i := range n {
		s := src.transferEnd(transfers[i])
		if i%6 == 5 {
			// Cancelled before it was bound, the transfer leaves the lease as it was; its owner ends it.
			require.NoError(t, dst.node.engine.Revoke(dst.id, leases[i]))
			assert.Equal(t, "Cancelled", s.Error.Name)
			assert.Contains(t, []string{"Cancelled", "LeaseRevoked"}, dst.leaseEnd(leases[i]).Error.Name)
			continue
		}
		d := dst.leaseEnd(leases[i])
		require.Nil(t, s.Error)
		require.Nil(t, d.Error)
		for k := 4 * i; k < 4*i+4; k++ {
			for layer := range small.Layers {
				for plane := range small.Planes() {
					require.Equal(t, src.block(layer, plane, from[k]), dst.block(layer, plane, to[k]))
				}
			}
		}
	}
}

func TestBadRequestsNameTheField(t *testing.T) {
	net := newNetwork(t, "n")
	w := newWorker(t, net.nodes["n"], "c", small, 8)
	e := w.node.engine
	lease := w.lease(time.Hour, 1)
	field := func(err error) string {
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		return fault.From("", err).Field
	}
	ask := func(mode string, ttl int64, blocks ...uint32) error {
		_, err := e.Lease(t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: mode, TTLMillis: ttl}, blocks)
		return err
	}
	assert.Equal(t, "mode", field(ask("x", 1, 2)))
	assert.Equal(t, "readers", field(func() error {
		_, err := e.Lease(t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "read", Readers: wire.MaxReaders + 1, TTLMillis: 1}, []uint32{2})
		return err
	}()))
	assert.Equal(t, "ttl_ms", field(ask("write", 0, 2)))
	assert.Equal(t, "ttl_ms", field(ask("write", wire.MaxMillis+1, 2)))
	assert.Equal(t, "blocks", field(ask("write", 1, 8)))
	assert.Equal(t, "blocks", field(ask("write", 1, 2, 2)))
	assert.Equal(t, "blocks", field(ask("write", 1)))

	_, err := e.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: lease.Ticket, TimeoutMillis: 1000}, []uint32{2, 3})
	assert.Equal(t, "blocks", field(err))
	_, err = e.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: "kvx1.x", TimeoutMillis: 1000}, []uint32{2})
	assert.ErrorIs(t, err, fault.ErrTicketInvalid)
	_, err = e.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: lease.Ticket}, []uint32{2})
	assert.Equal(t, "timeout_ms", field(err))
	_, err = e.Push(w.id, wire.PushRequest{Cache: 999, Ticket: lease.Ticket, TimeoutMillis: 1}, []uint32{2})
	assert.ErrorIs(t, err, fault.ErrNotFound)
	assert.ErrorIs(t, e.DeregisterRegion(t.Context(), w.id, w.region), fault.ErrInvalidArgument)

	_, _, err = e.RegisterCache(t.Context(), w.id, w.spec, nil)
	assert.ErrorIs(t, err, fault.ErrAlreadyExists)
	require.NoError(t, e.DropCache(t.Context(), w.id, w.cache))
	big := w.spec
	big.NumBlocks = 9
	_, _, err = e.RegisterCache(t.Context(), w.id, big, nil)
	assert.Equal(t, "num_blocks", field(err))
	require.NoError(t, e.DeregisterRegion(t.Context(), w.id, w.region))
	assert.True(t, w.mem.unmapped.Load())
}

// TestDrainWaitsForTransfersOnly: a lease that nobody has bound cannot be bound any more, so it ends at once, while a
// bound one keeps its time.
func TestDrainWaitsForTransfersOnly(t *testing.T) {
	net := newNetwork(t, "prefill", "decode")
	src := newWorker(t, net.nodes["prefill"], "p", small, 8)
	dst := newWorker(t, net.nodes["decode"], "d", small, 8)
	bound, unbound := dst.lease(time.Hour, 1), dst.lease(time.Hour, 2)
	transfer := src.push(bound.Ticket, time.Hour, 1)
	src.layer(transfer, 0)
	dst.until("a layer", func() bool { return len(dst.layers[bound.Lease]) == 1 })
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		dst.node.engine.Drain(context.Background())
	}()
	ended := dst.leaseEnd(unbound.Lease)
	assert.Equal(t, "Draining", ended.Error.Name)
	assert.False(t, ended.Error.MayHaveWritten)
	for layer := range small.Layers - 1 {
		src.layer(transfer, layer+1)
	}
	src.node.engine.PushFinish(src.id, transfer, nil)
	require.Nil(t, src.transferEnd(transfer).Error)
	require.Nil(t, dst.leaseEnd(bound.Lease).Error)
	<-drained
}

// TestSelfPush moves blocks between two clients of one node, over the same code path as between two nodes.
func TestSelfPush(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "n")
	src := newWorker(t, net.nodes["n"], "p", small, 8)
	dst := newWorker(t, net.nodes["n"], "d", small, 8)
	src.fill(rng)
	lease := dst.lease(time.Minute, 3)
	transfer := src.push(lease.Ticket, time.Minute, 5)
	for layer := range small.Layers {
		src.layer(transfer, layer)
	}
	src.node.engine.PushFinish(src.id, transfer, nil)
	require.Nil(t, src.transferEnd(transfer).Error)
	require.Nil(t, dst.leaseEnd(lease.Lease).Error)
	assert.Equal(t, src.block(2, 1, 5), dst.block(2, 1, 3))
}
