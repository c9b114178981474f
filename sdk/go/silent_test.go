package kvxfer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func asTransferError(t testing.TB, err error) *TransferError {
	t.Helper()
	var te *TransferError
	require.True(t, errors.As(err, &te), "%v", err)
	return te
}

// TestEveryCallEnds: a daemon that answers nothing costs each call no more than its context's deadline, or the default.
func TestEveryCallEnds(t *testing.T) {
	d := startFake(t)
	c, cache := d.attach(WithTimeout(50 * time.Millisecond))
	region, err := c.AllocateRegion(within(t), "raw", 100)
	require.NoError(t, err)
	held, err := cache.Lease(within(t), []int{7}, LeaseOptions{})
	require.NoError(t, err)
	d.set(func() {
		for k := range 256 {
			d.silent[wire.Kind(k)] = true
		}
	})
	key := []byte("0123456789abcdef")
	for name, call := range map[string]func(ctx context.Context) error{
		"ping":   func(ctx context.Context) error { _, err := c.Ping(ctx); return err },
		"status": func(ctx context.Context) error { _, err := c.Status(ctx); return err },
		"lookup": func(ctx context.Context) error {
			_, err := c.Lookup(ctx, LookupRequest{Keys: [][]byte{key}, Like: cache})
			return err
		},
		"allocate": func(ctx context.Context) error { _, err := c.AllocateRegion(ctx, "x", 1); return err },
		"allocateCache": func(ctx context.Context) error {
			_, err := c.AllocateCache(ctx, CacheSpec{Name: "y", Model: "m", Layout: testLayout, NumBlocks: 1})
			return err
		},
		"instance": func(ctx context.Context) error {
			_, err := c.LeaseInstance(ctx, "i", key, []int{1}, LeaseOptions{})
			return err
		},
		"lease":     func(ctx context.Context) error { _, err := cache.Lease(ctx, []int{1}, LeaseOptions{}); return err },
		"leaseRead": func(ctx context.Context) error { _, err := cache.LeaseRead(ctx, []int{1}, LeaseOptions{}); return err },
		"write":     func(ctx context.Context) error { _, err := cache.Write(ctx, []int{1}, "t"); return err },
		"read":      func(ctx context.Context) error { _, err := cache.Read(ctx, []int{1}, "t"); return err },
		"publish":   func(ctx context.Context) error { _, err := cache.Publish(ctx, []int{1}, [][]byte{key}); return err },
		"evict":     func(ctx context.Context) error { return cache.Evict(ctx, []int{1}) },
		"states":    func(ctx context.Context) error { _, err := cache.BlockStates(ctx); return err },
		"granted": func(ctx context.Context) error {
			_, err := cache.Granted(ctx, "00112233445566778899aabbccddeeff")
			return err
		},
		"advertise":    func(ctx context.Context) error { _, err := region.Advertise(ctx, AdvertiseOptions{}); return err },
		"writev":       func(ctx context.Context) error { _, err := region.Writev(ctx, nil, "t"); return err },
		"readv":        func(ctx context.Context) error { _, err := region.Readv(ctx, nil, "t"); return err },
		"revoke":       held.Revoke,
		"renew":        func(ctx context.Context) error { return held.Renew(ctx, time.Second) },
		"wait":         func(ctx context.Context) error { _, err := held.Wait(ctx); return err },
		"waitLayer":    func(ctx context.Context) error { return held.WaitLayer(ctx, 0) },
		"waitReleased": held.WaitReleased,
		"drop":         cache.Drop,
		"deregister":   region.Deregister,
	} {
		t.Run(name, func(t *testing.T) {
			err := call(soon(t))
			te := asTransferError(t, err)
			assert.Equal(t, "DeadlineExceeded", te.Code)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			assert.ErrorIs(t, call(ctx), context.Canceled)
		})
	}
	for name, call := range map[string]func(ctx context.Context) error{
		"ping":  func(ctx context.Context) error { _, err := c.Ping(ctx); return err },
		"write": func(ctx context.Context) error { _, err := cache.Write(ctx, []int{1}, "t"); return err },
	} {
		t.Run("default of "+name, func(t *testing.T) { assert.ErrorIs(t, call(t.Context()), ErrDeadlineExceeded) })
	}
	far := within(t)
	for name, call := range map[string]func() error{
		"write":  func() error { _, err := cache.Write(far, []int{1}, "t"); return err },
		"read":   func() error { _, err := cache.Read(far, []int{1}, "t"); return err },
		"writev": func() error { _, err := region.Writev(far, nil, "t"); return err },
	} {
		te := asTransferError(t, call())
		assert.Equal(t, "DeadlineExceeded", te.Code, name)
		assert.NoError(t, far.Err(), "the start of a transfer does not wait for the transfer's deadline")
	}
}

// TestNothingWasSent: a call that never reached the daemon leaves nothing behind, and says so; what asks for a fence has none.
func TestNothingWasSent(t *testing.T) {
	d := startFake(t)
	c, cache := d.attach()
	region, err := c.AllocateRegion(within(t), "raw", 100)
	require.NoError(t, err)
	holder := Holder{Node: "other", Epoch: c.Epoch(), Addr: "127.0.0.1:1", Cache: "x", Blocks: 1}
	d.hangUp()
	<-c.now().conn.ended
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{within(t), ended} {
		for name, call := range map[string]func() error{
			"lease":     func() error { _, err := cache.Lease(ctx, []int{1}, LeaseOptions{}); return err },
			"write":     func() error { _, err := cache.Write(ctx, []int{1}, "t"); return err },
			"read":      func() error { _, err := cache.Read(ctx, []int{1}, "t"); return err },
			"read from": func() error { _, err := cache.ReadFrom(ctx, []int{1}, holder, [][]byte{{1}}); return err },
			"publish":   func() error { _, err := cache.Publish(ctx, []int{1}, [][]byte{{1}}); return err },
			"advertise": func() error { _, err := region.Advertise(ctx, AdvertiseOptions{}); return err },
			"writev":    func() error { _, err := region.Writev(ctx, nil, "t"); return err },
		} {
			te := asTransferError(t, call())
			assert.True(t, te.Released, name)
			assert.False(t, te.MayHaveWritten, name)
		}
		for name, call := range map[string]func() error{
			"evict":      func() error { return cache.Evict(ctx, []int{1}) },
			"drop":       func() error { return cache.Drop(ctx) },
			"deregister": func() error { return region.Deregister(ctx) },
		} {
			assert.False(t, asTransferError(t, call()).Released, name)
		}
	}
	assert.Empty(t, c.Completed(), "nobody was given anything")
}

// TestFailedEvictionIsHeld: only a refusal says that nothing was changed.
func TestFailedEvictionIsHeld(t *testing.T) {
	d := startFake(t)
	_, cache := d.attach()
	for code, released := range map[fault.Code]bool{fault.BlocksBusy: true, fault.Internal: false, fault.Draining: false} {
		d.set(func() { d.refuse[wire.KindEvict] = fault.New(code, "evict", "x") })
		assert.Equal(t, released, asTransferError(t, cache.Evict(within(t), []int{1})).Released, code)
	}
}

// TestPendingMayHaveWritten: who stops waiting for what goes on cannot take the target's bytes for unchanged.
func TestPendingMayHaveWritten(t *testing.T) {
	d := startFake(t)
	c, cache := d.attach()
	region, err := c.AllocateRegion(within(t), "raw", 100)
	require.NoError(t, err)
	push, err := cache.Write(within(t), []int{1}, "t", Layerwise())
	require.NoError(t, err)
	lease, err := cache.Lease(within(t), []int{2}, LeaseOptions{})
	require.NoError(t, err)
	offer, err := cache.LeaseRead(within(t), []int{3}, LeaseOptions{})
	require.NoError(t, err)
	written, err := region.Advertise(within(t), AdvertiseOptions{})
	require.NoError(t, err)
	read, err := region.Advertise(within(t), AdvertiseOptions{Mode: ModeRead})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		wait func(context.Context) error
		want bool
	}{
		"push":    {func(ctx context.Context) error { _, err := push.Wait(ctx); return err }, true},
		"lease":   {func(ctx context.Context) error { _, err := lease.Wait(ctx); return err }, true},
		"layer":   {func(ctx context.Context) error { return lease.WaitLayer(ctx, 0) }, true},
		"offer":   {func(ctx context.Context) error { _, err := offer.Wait(ctx); return err }, false},
		"written": {func(ctx context.Context) error { _, err := written.Wait(ctx); return err }, true},
		"read":    {func(ctx context.Context) error { _, err := read.NextHolder(ctx); return err }, false},
	} {
		te := asTransferError(t, c.wait(soon(t)))
		assert.Equal(t, c.want, te.MayHaveWritten, name)
		assert.False(t, te.Released, name)
	}
	assert.NoError(t, push.Err())
}

// TestDialEnds: so does the call that attaches.
func TestDialEnds(t *testing.T) {
	d := startFake(t)
	d.set(func() { d.silent[wire.KindHello] = true })
	_, err := Dial(soon(t), d.socket)
	assert.ErrorIs(t, err, ErrDaemonUnavailable)
	assert.ErrorContains(t, err, "is it stopped?")
	_, err = Dial(t.Context(), d.socket, WithTimeout(30*time.Millisecond))
	assert.ErrorIs(t, err, ErrDaemonUnavailable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Dial(ctx, d.socket)
	assert.ErrorIs(t, err, context.Canceled)
}

// TestLateAnswersAreUndone: what the daemon granted after its caller had gone, nobody has, so it is taken back.
func TestLateAnswersAreUndone(t *testing.T) {
	d := startFake(t)
	c, cache := d.attach()
	late := func(kind wire.Kind, call func(ctx context.Context) error) *TransferError {
		t.Helper()
		nth := d.count(kind) + 1
		d.set(func() { d.silent[kind] = true })
		err := call(soon(t))
		d.set(func() { d.silent[kind] = false })
		d.answer(d.got(kind, nth, nil), 77)
		return asTransferError(t, err)
	}
	te := late(wire.KindLease, func(ctx context.Context) error { _, err := cache.Lease(ctx, []int{1}, LeaseOptions{}); return err })
	assert.False(t, te.Released)
	assert.Equal(t, []uint32{1}, te.Blocks)
	var revoke wire.Revoke
	d.got(wire.KindRevoke, 1, &revoke)
	assert.EqualValues(t, 77, revoke.Lease)
	d.event(wire.KindEventLease, &wire.LeaseEvent{Lease: 77, Error: fault.ToWire(fault.New(fault.LeaseRevoked, "lease", "x"))}, nil)

	te = late(wire.KindPush, func(ctx context.Context) error { _, err := cache.Write(ctx, []int{1}, "t", Layerwise()); return err })
	assert.True(t, te.MayHaveWritten)
	assert.False(t, te.Released)
	var cancel wire.PushCancel
	d.got(wire.KindPushCancel, 1, &cancel)
	assert.EqualValues(t, 77, cancel.Transfer)
	d.event(wire.KindEventTransfer, &wire.TransferEvent{Transfer: 77, Released: true, Error: fault.ToWire(fault.New(fault.Cancelled, "push", "x"))}, nil)

	late(wire.KindRegisterRegion, func(ctx context.Context) error { _, err := c.AllocateRegion(ctx, "r", 1); return err })
	var region wire.DeregisterRegion
	d.got(wire.KindDeregisterRegion, 1, &region)
	assert.EqualValues(t, 77, region.Region)
	late(wire.KindRegisterCache, func(ctx context.Context) error {
		_, err := c.AllocateCache(ctx, CacheSpec{Name: "z", Model: "m", Layout: testLayout, NumBlocks: 1})
		return err
	})
	var drop wire.DropCache
	d.got(wire.KindDropCache, 1, &drop)
	assert.EqualValues(t, 77, drop.Cache)
	d.got(wire.KindDeregisterRegion, 2, nil)
	_, err := c.Ping(within(t))
	require.NoError(t, err)
	assert.Empty(t, c.Completed(), "nobody was given them")
}

// TestDeadlinesOfTheirOwn: a lease and a transfer end by themselves half a second after their time, HELD, where the daemon
// says nothing; its word may come later.
func TestDeadlinesOfTheirOwn(t *testing.T) {
	d := startFake(t)
	_, cache := d.attach()
	lease, err := cache.Lease(within(t), []int{1, 2}, LeaseOptions{TTL: 20 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	push, err := cache.Write(ctx, []int{3}, "t", Layerwise())
	require.NoError(t, err)

	_, err = lease.Wait(t.Context())
	te := asTransferError(t, err)
	assert.Equal(t, "DeadlineExceeded", te.Code)
	assert.True(t, te.MayHaveWritten)
	assert.False(t, te.Released)
	assert.Equal(t, []uint32{1, 2}, te.Blocks)
	_, err = push.Wait(t.Context())
	te = asTransferError(t, err)
	assert.Equal(t, "DeadlineExceeded", te.Code)
	assert.False(t, te.Released)
	var revoke wire.Revoke
	d.got(wire.KindRevoke, 1, &revoke)
	var cancelled wire.PushCancel
	d.got(wire.KindPushCancel, 1, &cancelled)
	d.event(wire.KindEventLease, &wire.LeaseEvent{Lease: revoke.Lease, Error: fault.ToWire(fault.New(fault.LeaseExpired, "lease", "x"))}, nil)
	d.event(wire.KindEventTransfer, &wire.TransferEvent{Transfer: cancelled.Transfer, Error: fault.ToWire(fault.New(fault.Cancelled, "push", "x"))}, nil)
	require.NoError(t, lease.WaitReleased(within(t)))
	assert.False(t, push.Released())
	d.event(wire.KindEventReleased, &wire.Released{Transfer: cancelled.Transfer}, nil)
	require.NoError(t, push.WaitReleased(within(t)))
	assert.True(t, asTransferError(t, push.Err()).Released, "an error says what is known now")
	assert.True(t, asTransferError(t, lease.Err()).Released)
}

// TestFailedFenceIsHeld: Internal says that the fence failed, and only the daemon's exit is one.
func TestFailedFenceIsHeld(t *testing.T) {
	d := startFake(t)
	_, cache := d.attach()
	lease, err := cache.Lease(within(t), []int{1}, LeaseOptions{})
	require.NoError(t, err)
	revoked := make(chan error, 1)
	go func() { revoked <- lease.Revoke(context.Background()) }()
	var revoke wire.Revoke
	d.got(wire.KindRevoke, 1, &revoke)
	d.event(wire.KindEventLease, &wire.LeaseEvent{Lease: revoke.Lease, Error: fault.ToWire(fault.New(fault.Internal, "lease", "no fence"))}, nil)
	te := asTransferError(t, <-revoked)
	assert.Equal(t, "Internal", te.Code)
	assert.False(t, te.Released)
	_, err = lease.Wait(t.Context())
	assert.ErrorIs(t, err, ErrInternal)
	assert.ErrorIs(t, lease.WaitReleased(soon(t)), ErrDeadlineExceeded)
	require.NoError(t, cache.Drop(within(t)))
	assert.True(t, lease.Released(), "the daemon gave the cache back")
}

// TestRenewal: the deadline moves with the daemon's word, and a renewal that is not answered counts for nothing.
func TestRenewal(t *testing.T) {
	d := startFake(t)
	_, cache := d.attach()
	lease, err := cache.Lease(within(t), []int{1}, LeaseOptions{TTL: time.Hour})
	require.NoError(t, err)
	assert.ErrorIs(t, lease.Renew(t.Context(), 0), ErrInvalidArgument)
	assert.ErrorIs(t, lease.Renew(t.Context(), 25*time.Hour), ErrInvalidArgument)
	d.set(func() { d.silent[wire.KindRenew] = true })
	assert.ErrorIs(t, lease.Renew(soon(t), time.Millisecond), ErrDeadlineExceeded)
	assert.NoError(t, lease.Err())
	d.set(func() {
		d.silent[wire.KindRenew] = false
		d.refuse[wire.KindRenew] = fault.New(fault.LeaseRevoked, "renew", "x")
	})
	assert.ErrorIs(t, lease.Renew(within(t), time.Second), ErrLeaseRevoked)
	d.set(func() { delete(d.refuse, wire.KindRenew) })
	require.NoError(t, lease.Renew(within(t), time.Millisecond))
	_, err = lease.Wait(t.Context())
	assert.ErrorIs(t, err, ErrDeadlineExceeded)
	assert.ErrorIs(t, lease.Renew(within(t), time.Second), ErrDeadlineExceeded)

	// A renewal whose context ends late does not keep the lease: its time is over, and nobody has said otherwise.
	lease, err = cache.Lease(within(t), []int{2}, LeaseOptions{TTL: 20 * time.Millisecond})
	require.NoError(t, err)
	d.set(func() { d.silent[wire.KindRenew] = true })
	far, giveUp := context.WithCancel(within(t))
	renewed := make(chan error, 1)
	go func() { renewed <- lease.Renew(far, 50*time.Millisecond) }()
	_, err = lease.Wait(t.Context())
	assert.ErrorIs(t, err, ErrDeadlineExceeded)
	assert.NoError(t, far.Err())
	giveUp()
	assert.ErrorIs(t, <-renewed, context.Canceled)
}
