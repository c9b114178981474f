package xfer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// Ends that meet beginnings, providers that break their contract, and what is reusable when.

// TestRefusedPartsAreNotLost: a part that the provider's window had no room for belongs to its push still: a cancel
// or the link's end finds it.
func TestRefusedPartsAreNotLost(t *testing.T) {
	for name, end := range map[string]func(n *fakeNode, l *fakeLink, w *worker, id uint64){
		"cancel": func(n *fakeNode, _ *fakeLink, w *worker, id uint64) { n.engine.CancelTransfer(w.id, id) },
		"cut":    func(_ *fakeNode, l *fakeLink, _ *worker, _ uint64) { l.Close(fault.ErrPeerLost) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newFakeNode(t, nil)
			w := newWorker(t, n.node, "c", small, 8)
			l := n.source(1)
			first := w.push(ticket(1), time.Hour, 1)
			l.bound(w, 1, 1)
			w.layer(first, 0)
			second := w.push(ticket(1), time.Hour, 2)
			l.bound(w, 2, 2)
			w.layer(second, 0)
			w.layer(second, 1)
			end(n, l, w, second)
			ev := w.transferEnd(second)
			assert.NotNil(t, ev.Error)
			assert.False(t, ev.Error.MayHaveWritten, "nothing of it was posted")
			n.until(func() bool { return ev.Released || w.has(second) })
			posts, _ := l.init.count()
			assert.Equal(t, 1, posts)
			n.engine.CancelTransfer(w.id, first)
			w.transferEnd(first)
			n.until(func() bool { return n.engine.Stats().Transfers == 0 })
		})
	}
}

func (w *worker) has(transfer uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.released[transfer]
}

// TestBackPressureKeepsOrderAndPosts: with room for one operation everything is posted once.
func TestBackPressureKeepsOrderAndPosts(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(1)
	id := w.push(ticket(2), time.Hour, 1, 2)
	l.bound(w, 1, 1, 2)
	for layer := range small.Layers {
		w.layer(id, layer)
	}
	n.engine.PushFinish(w.id, id, nil)
	for range small.Layers {
		n.until(func() bool { _, pending := l.init.count(); return pending == 1 })
		l.init.complete(0, false)
	}
	l.take(wire.KindFin)
	l.receive(wire.KindDone, 0, wire.Done{Handle: 1}, nil)
	assert.Nil(t, w.transferEnd(id).Error)
	posts, _ := l.init.count()
	assert.Equal(t, int(small.Layers), posts)
}

// TestEndedSessionEndsItsLink: a session whose end was told before its link was known is not used again.
func TestEndedSessionEndsItsLink(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(8)
	l.init.postErr = fault.New(fault.PeerLost, "post", "the session has ended")
	id := w.push(ticket(1), time.Hour, 1)
	l.bound(w, 1, 1)
	w.layer(id, 0)
	ev := w.transferEnd(id)
	assert.Equal(t, "PeerLost", ev.Error.Name)
	assert.False(t, ev.Error.MayHaveWritten)
	n.until(func() bool { return n.engine.Stats().Links == 0 })
}

// TestHeldUntilTheCompletion withholds completions: the end is told in time, the release is not, and the memory stays.
func TestHeldUntilTheCompletion(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(8)
	l.init.withhold = true
	id := w.push(ticket(1), time.Hour, 1)
	l.bound(w, 1, 1)
	w.layer(id, 0)
	n.engine.CancelTransfer(w.id, id)
	ev := w.transferEnd(id)
	assert.Equal(t, "Cancelled", ev.Error.Name)
	assert.False(t, ev.Released)
	assert.True(t, ev.Error.MayHaveWritten)
	_, err := n.engine.Lease(t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "write", TTLMillis: 1000}, []uint32{1})
	assert.ErrorIs(t, err, fault.ErrBlocksBusy)
	assert.True(t, l.none(wire.KindAbort), "something is in flight")
	l.Close(fault.ErrPeerLost)
	n.engine.ClientGone(w.id)
	n.until(func() bool { return n.engine.Stats().Links == 0 })
	assert.False(t, w.mem.unmapped.Load())
	l.init.complete(fault.Closed, true)
	n.until(w.mem.unmapped.Load)
	assert.True(t, w.has(id))
}

// TestCloseEndsWithoutCompletions: a provider that owes completions for ever costs the memory, not the shutdown.
func TestCloseEndsWithoutCompletions(t *testing.T) {
	n := newFakeNode(t, func(o *xfer.Options) { o.ProviderWait = 50 * time.Millisecond })
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(8)
	l.init.withhold = true
	id := w.push(ticket(1), time.Hour, 1)
	l.bound(w, 1, 1)
	w.layer(id, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.engine.Drain(ctx)
	n.engine.Close()
	assert.False(t, w.mem.unmapped.Load(), "an operation may still read it")
}

// TestFailedFenceQuarantinesTheMemory: the owner is not told that its blocks are free, and everything else goes on.
func TestFailedFenceQuarantinesTheMemory(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	l.target.fenceErr = fault.New(fault.Internal, "fence", "broken")
	lease := w.lease(time.Hour, 1)
	l.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	l.take(wire.KindOK)
	require.NoError(t, n.engine.Revoke(w.id, lease.Lease))
	ev := w.leaseEnd(lease.Lease)
	assert.Equal(t, "Internal", ev.Error.Name, "LeaseRevoked would say that the blocks are fenced")
	assert.Contains(t, ev.Error.Detail, "quarantine")
	assert.True(t, l.none(wire.KindEnded), "ENDED says that nothing can land any more")
	n.until(l.down.Load)
	_, err := n.engine.Lease(t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "write", TTLMillis: 1000}, []uint32{1})
	assert.ErrorIs(t, err, fault.ErrBlocksBusy)
	assert.NotNil(t, w.lease(time.Hour, 2), "other blocks go on")

	n.engine.ClientGone(w.id)
	n.until(func() bool { return n.engine.Stats().Clients == 0 })
	assert.False(t, w.mem.unmapped.Load())
	back := attach(t, n.node, "c2", 8)
	back.spec.Name = "c"
	_, _, err = n.engine.RegisterCache(t.Context(), back.id, back.spec, nil)
	assert.ErrorIs(t, err, fault.ErrAlreadyExists, "and not a wait for what cannot come")
}

// TestFailingStoreKeepsNoMemory: what cannot be written down is still fenced, told and unmapped.
func TestFailingStoreKeepsNoMemory(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	lease := w.lease(time.Hour, 1)
	l.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	l.take(wire.KindOK)
	require.NoError(t, n.store.Close())
	_, err := n.engine.Lease(t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "write", TTLMillis: 1000}, []uint32{2})
	assert.ErrorIs(t, err, fault.ErrClosed)
	require.NoError(t, n.engine.Revoke(w.id, lease.Lease))
	assert.Equal(t, "LeaseRevoked", w.leaseEnd(lease.Lease).Error.Name)
	assert.Len(t, l.target.fences(), 1)
	n.engine.ClientGone(w.id)
	n.until(func() bool { return n.engine.Stats().Clients == 0 })
	assert.True(t, w.mem.unmapped.Load())
	n.until(func() bool { return n.engine.Stats().Caches+n.engine.Stats().Leases == 0 })
}

// attach makes a worker with a region and no cache.
func attach(t *testing.T, nd *node, name string, blocks uint32) *worker {
	w := newWorker(t, nd, name, small, blocks)
	require.NoError(t, nd.engine.DropCache(t.Context(), w.id, w.cache))
	return w
}

// TestCommitWithAFailedFence takes the blocks out of use, too.
func TestCommitWithAFailedFence(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	l.target.fenceErr = fault.New(fault.Internal, "fence", "broken")
	lease := w.lease(time.Hour, 1)
	l.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	var b wire.Bound
	f := l.take(wire.KindOK)
	require.NoError(t, f.Decode(&b))
	for layer := range small.Layers {
		l.arrival(b.Key, layer, 0, 1)
	}
	l.receive(wire.KindFin, 0, wire.Fin{Handle: b.Handle, Pieces: uint64(small.Layers)}, []byte("note"))
	ev := w.leaseEnd(lease.Lease)
	require.NotNil(t, ev.Error)
	assert.Equal(t, "Internal", ev.Error.Name)
	info, entries, err := n.engine.Blocks(w.id, w.cache)
	require.NoError(t, err)
	assert.Equal(t, wire.BlocksInfo{Total: 8, Revoking: 1}, info)
	assert.Equal(t, wire.AppendBlockEntries(nil, []wire.BlockEntry{{Block: 1, State: 3}}), entries, "REVOKING has no generation")
}

// TestDialEndsWithThePush: a push that is over leaves no dial behind.
func TestDialEndsWithThePush(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	var ended atomic.Int32
	n.dial = func(ctx context.Context) (xfer.Link, error) {
		<-ctx.Done()
		ended.Add(1)
		return nil, ctx.Err()
	}
	w.layer(w.push(ticket(1), time.Hour, 1), 99)
	n.until(func() bool { return ended.Load() == 1 })

	// The dial's own end never hides why the push ended.
	for range 300 {
		id := w.push(ticket(1), time.Hour, 1)
		ca := attach(t, n.node, "other", 1) // gives the dial a moment to begin
		n.engine.ClientGone(ca.id)
		n.until(func() bool { return n.engine.Stats().Clients == 1 })
		require.NoError(t, n.engine.DropCache(t.Context(), w.id, w.cache))
		require.Equal(t, "Cancelled", w.transferEnd(id).Error.Name)
		w.register()
	}
}

// TestBeginningsMeetTheCachesEnd drops a cache while leases and pushes begin: none outlives it, none is forgotten.
func TestBeginningsMeetTheCachesEnd(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	n.dial = func(ctx context.Context) (xfer.Link, error) { <-ctx.Done(); return nil, ctx.Err() }
	for range 300 {
		started := make(chan struct{}, 2)
		results := make(chan error, 2)
		go func() {
			started <- struct{}{}
			_, err := n.engine.Lease(context.Background(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "write", TTLMillis: wire.MaxMillis}, []uint32{1})
			results <- err
		}()
		go func() {
			started <- struct{}{}
			_, err := n.engine.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: ticket(1), TimeoutMillis: wire.MaxMillis}, []uint32{2})
			results <- err
		}()
		<-started
		<-started
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		require.NoError(t, n.engine.DropCache(ctx, w.id, w.cache))
		cancel()
		for range 2 {
			if err := <-results; err != nil {
				require.ErrorIs(t, err, fault.ErrNotFound)
			}
		}
		s := n.engine.Stats()
		require.Zero(t, s.Caches+s.Leases+s.Transfers)
		w.register()
	}
}

// TestDrainMeetsBeginnings: what was let in before Drain is ended by it.
func TestDrainMeetsBeginnings(t *testing.T) {
	for range 30 {
		n := newFakeNode(t, nil)
		w := newWorker(t, n.node, "c", small, 8)
		n.dial = func(ctx context.Context) (xfer.Link, error) { <-ctx.Done(); return nil, ctx.Err() }
		n.wg.Go(func() {
			_, _ = n.engine.Lease(context.Background(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "write", TTLMillis: wire.MaxMillis}, []uint32{1})
		})
		n.wg.Go(func() {
			_, _ = n.engine.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: ticket(1), TimeoutMillis: wire.MaxMillis}, []uint32{2})
		})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		n.engine.Drain(ctx)
		s := n.engine.Stats()
		require.Zero(t, s.Leases+s.Transfers)
		n.engine.Close()
		n.wg.Wait()
	}
}

// TestClientGoneWhileItsRegionIsRegistered: the memory is either the engine's or the caller's, never both.
func TestClientGoneWhileItsRegionIsRegistered(t *testing.T) {
	n := newFakeNode(t, nil)
	id, err := n.engine.AddClient(xfer.ClientInfo{Tenant: "default"}, &worker{})
	require.NoError(t, err)
	n.provider.onRegister = func() {
		n.engine.ClientGone(id)
		n.until(func() bool { return n.engine.Stats().Clients == 0 })
	}
	m := newMemory(t, 4096)
	_, err = n.engine.RegisterRegion(t.Context(), id, wire.RegisterRegion{Name: "r", ID: "000000000000000000000000000000dd", Kind: "memfd", Size: 4096}, m)
	assert.ErrorIs(t, err, fault.ErrClosed)
	assert.False(t, m.unmapped.Load(), "on an error the caller unmaps")
	require.Len(t, n.provider.regions, 1)
	assert.True(t, n.provider.regions[0].closed.Load())
}

// hooked is a mapping that tells when it is asked what it is.
type hooked struct {
	*memory
	onObject func()
}

func (h *hooked) Object() (uint64, uint64) {
	if h.onObject != nil {
		h.onObject()
	}
	return h.memory.Object()
}

// TestClientGoneWhileItsCacheIsRegistered leaves neither name nor announcement behind.
func TestClientGoneWhileItsCacheIsRegistered(t *testing.T) {
	n := newFakeNode(t, nil)
	m := &hooked{memory: newMemory(t, 1<<20)}
	spec := wire.RegisterCache{Name: "c", Model: "m", Layout: small, NumBlocks: 8}
	try := func(id xfer.ClientID) error {
		info, err := n.engine.RegisterRegion(t.Context(), id, wire.RegisterRegion{Name: "r", ID: "000000000000000000000000000000dd", Kind: "memfd", Size: 1 << 20}, m)
		require.NoError(t, err)
		s := spec
		s.Region = info.Region
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, _, err = n.engine.RegisterCache(ctx, id, s, nil)
		return err
	}
	add := func() xfer.ClientID {
		id, err := n.engine.AddClient(xfer.ClientInfo{Tenant: "default"}, &worker{})
		require.NoError(t, err)
		return id
	}
	id := add()
	m.onObject = func() {
		n.engine.ClientGone(id)
		n.until(func() bool { return n.engine.Stats().Clients == 0 })
	}
	assert.ErrorIs(t, try(id), fault.ErrClosed)
	assert.False(t, n.dir.has("c"))
	assert.Zero(t, n.engine.Stats().Caches)
	m.onObject = nil
	for range 100 { // and with any other timing
		id := add()
		n.wg.Go(func() { n.engine.ClientGone(id) })
		if func() bool {
			_, err := n.engine.RegisterRegion(t.Context(), id, wire.RegisterRegion{Name: "r", ID: "000000000000000000000000000000dd", Kind: "memfd", Size: 1 << 20}, m)
			return err == nil
		}() {
			s := spec
			s.Region = uint64(id) + 1
			_, _, _ = n.engine.RegisterCache(t.Context(), id, s, nil)
		}
		n.until(func() bool { s := n.engine.Stats(); return s.Clients+s.Caches == 0 })
		require.False(t, n.dir.has("c"))
	}
	require.NoError(t, try(add()), "the name and the memory can be registered again")
	assert.True(t, n.dir.has("c"))
}

// TestRegionGoesWhileTheCacheWaits deregisters a region whose cache waits for a former connection's fence.
func TestRegionGoesWhileTheCacheWaits(t *testing.T) {
	n := newFakeNode(t, nil)
	old := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	l.target.gate = make(chan struct{})
	lease := old.lease(time.Hour, 1)
	l.receive(wire.KindBind, 1, bind(t, old, lease.Ticket), nil)
	l.take(wire.KindOK)
	next := attach(t, n.node, "next", 8)
	next.spec.Name = "c"
	n.engine.ClientGone(old.id)
	result := make(chan error)
	go func() {
		_, _, err := n.engine.RegisterCache(context.Background(), next.id, next.spec, nil)
		result <- err
	}()
	time.Sleep(10 * time.Millisecond) // so that it waits; the other order has the same result
	require.NoError(t, n.engine.DeregisterRegion(t.Context(), next.id, next.region))
	close(l.target.gate)
	assert.ErrorIs(t, <-result, fault.ErrNotFound)
	assert.Zero(t, n.engine.Stats().Caches)
}

// TestEventsComeBeforeTheEnd: a transfer counts as running until its client was told.
func TestEventsComeBeforeTheEnd(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	n.dial = func(ctx context.Context) (xfer.Link, error) { <-ctx.Done(); return nil, ctx.Err() }
	var counts []int
	w.onEvent = func() {
		s := n.engine.Stats()
		counts = append(counts, s.Leases+s.Transfers)
	}
	id := w.push(ticket(1), time.Hour, 1)
	n.engine.CancelTransfer(w.id, id)
	lease := w.lease(time.Hour, 1)
	require.NoError(t, n.engine.Revoke(w.id, lease.Lease))
	assert.Equal(t, []int{1, 1}, counts)
}
