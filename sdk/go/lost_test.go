package kvxfer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// commit pushes blocks of src to the same blocks of dst.
func commit(t testing.TB, src, dst *Cache, blocks ...int) {
	ctx := within(t)
	lease, err := dst.Lease(ctx, blocks, LeaseOptions{})
	require.NoError(t, err)
	push, err := src.Write(ctx, blocks, lease.Ticket())
	require.NoError(t, err)
	_, err = push.Wait(ctx)
	require.NoError(t, err)
	_, err = lease.Wait(ctx)
	require.NoError(t, err)
}

// TestDaemonKilled: everything pending ends at once, the memory is released when the process has really exited, and after
// Reconnect the committed blocks are served by the next daemon.
func TestDaemonKilled(t *testing.T) {
	args := nodeArguments(t, "n0")
	p := startProcess(t, args)
	c := dial(t, p.socket)
	src, dst := allocate(t, c, "src", 8), allocate(t, c, "dst", 8)
	region, err := c.AllocateRegion(within(t), "raw", 4096)
	require.NoError(t, err)
	fill(src, 3, 0, 1, 2)
	commit(t, src, dst, 0, 1, 2)
	require.NoError(t, dst.Evict(within(t), []int{2}))
	require.NoError(t, allocate(t, c, "settle", 1).Drop(within(t))) // a commit is late: this waits for its record
	epoch := c.Epoch()

	lease, err := dst.Lease(within(t), []int{1, 5}, LeaseOptions{}) // block 1 is given up with it
	require.NoError(t, err)
	push, err := src.Write(within(t), []int{3, 4}, lease.Ticket(), Layerwise())
	require.NoError(t, err)
	adv, err := region.Advertise(within(t), AdvertiseOptions{})
	require.NoError(t, err)
	gone, err := c.DaemonExited(t.Context())
	require.NoError(t, err)
	assert.False(t, gone)
	p.kill()
	for _, e := range []Ended{lease, push, adv} {
		<-e.Done()
		var te *TransferError
		require.True(t, errors.As(e.Err(), &te))
		assert.Equal(t, "DaemonUnavailable", te.Code)
		assert.True(t, te.Retryable)
	}
	require.NoError(t, push.Layer(0), "a prefill may go on")
	ctx := within(t)
	require.NoError(t, lease.WaitReleased(ctx), "its process has exited")
	require.NoError(t, push.WaitReleased(ctx))
	require.NoError(t, adv.WaitReleased(ctx))
	gone, err = c.DaemonExited(ctx)
	require.NoError(t, err)
	assert.True(t, gone)
	_, err = dst.Lease(ctx, []int{1}, LeaseOptions{})
	assert.ErrorIs(t, err, ErrDaemonUnavailable)
	assert.ErrorIs(t, dst.Drop(ctx), ErrDaemonUnavailable, "the cache stays, for Reconnect")
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = c.Reconnect(short)
	require.ErrorIs(t, err, ErrDaemonUnavailable)

	startProcess(t, args)
	served, err := c.Reconnect(ctx)
	require.NoError(t, err)
	assert.Equal(t, map[string][]uint32{"src": {}, "dst": {0}}, served)
	assert.NotEqual(t, epoch, c.Epoch())
	states, err := dst.BlockStates(ctx)
	require.NoError(t, err)
	assert.Equal(t, 1, states.Committed)
	requireSame(t, src, []int{0}, dst, []int{0})
	commit(t, src, dst, 1, 2, 5)
	_, err = region.Advertise(ctx, AdvertiseOptions{})
	require.NoError(t, err)
	served, err = c.Reconnect(ctx)
	require.NoError(t, err, "alive, it changes nothing")
	assert.Equal(t, []uint32{0, 1, 2, 5}, served["dst"])
	require.NoError(t, dst.Drop(ctx))
	require.NoError(t, region.Deregister(ctx))
}

// TestDaemonShutsDown: a daemon that ends in order says so, and what it fenced is released.
func TestDaemonShutsDown(t *testing.T) {
	n := startNode(t, "n0")
	c := dial(t, n.Info().Socket)
	src, dst := allocate(t, c, "src", 8), allocate(t, c, "dst", 8)
	commit(t, src, dst, 0, 1)
	lease, err := dst.Lease(within(t), []int{4}, LeaseOptions{})
	require.NoError(t, err)
	n.Close(t.Context())
	_, err = lease.Wait(within(t))
	require.Error(t, err)
	again := startArguments(t, n.args)
	served, err := c.Reconnect(within(t))
	require.NoError(t, err)
	assert.Equal(t, []uint32{0, 1}, served["dst"])
	assert.Equal(t, again.Info().Epoch, c.Epoch())
	require.NoError(t, lease.WaitReleased(within(t)), "the daemon that had it is gone")
	require.NoError(t, dst.Drop(within(t)))
}

// TestClosedClient: everything ends with Closed, and a second Close does nothing.
func TestClosedClient(t *testing.T) {
	n := startNode(t, "n0")
	c := dial(t, n.Info().Socket)
	cache := allocate(t, c, "x", 4)
	lease, err := cache.Lease(within(t), []int{0}, LeaseOptions{})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err = lease.Wait(t.Context())
	assert.ErrorIs(t, err, ErrClosed)
	assert.ErrorIs(t, lease.Revoke(t.Context()), ErrClosed)
	_, err = c.Ping(t.Context())
	assert.ErrorIs(t, err, ErrClosed)
	_, err = c.Reconnect(t.Context())
	assert.ErrorIs(t, err, ErrClosed)
	_, err = cache.Lease(t.Context(), []int{0}, LeaseOptions{})
	assert.ErrorIs(t, err, ErrClosed)
	assert.Nil(t, cache.Memory())
	_, err = c.DaemonExited(t.Context())
	assert.ErrorIs(t, err, ErrNotSupported)
	// The node fences what the client left: the name is free again.
	other := dial(t, n.Info().Socket)
	require.Eventually(t, func() bool {
		x, err := other.AllocateCache(t.Context(), CacheSpec{Name: "x", Model: "m", Layout: testLayout, NumBlocks: 4})
		return err == nil && x.Drop(t.Context()) == nil
	}, patience, 10*time.Millisecond)
}

// TestInstance leases an engine's ranks on two nodes, from a third client, and each rank pushes for itself.
func TestInstance(t *testing.T) {
	a, b := startPair(t)
	key := []byte("0123456789abcdef")
	id := "00112233445566778899aabbccddeeff"
	var ranks, sources [2]*Cache
	for r, n := range []*daemon{a, b} {
		c := dial(t, n.Info().Socket)
		l := testLayout
		l.TPRank, l.TPSize = r, 2
		var err error
		ranks[r], err = c.AllocateCache(within(t), CacheSpec{Name: "rank", Model: "m", Layout: l, NumBlocks: 8, Instance: "decode", InstanceKey: key})
		require.NoError(t, err)
		sources[r], err = c.AllocateCache(within(t), CacheSpec{Name: "source", Model: "m", Layout: l, NumBlocks: 8})
		require.NoError(t, err)
		assert.Nil(t, ranks[r].Spec().InstanceKey)
	}
	asker := dial(t, a.Info().Socket)
	var lease *Lease
	require.Eventually(t, func() (ok bool) { // until the directory knows of both
		l, err := asker.LeaseInstance(t.Context(), "decode", key, []int{1, 2}, LeaseOptions{})
		lease = l
		return err == nil
	}, patience, 20*time.Millisecond)
	assert.Equal(t, 2, lease.Ranks())
	_, err := asker.LeaseInstance(within(t), "decode", []byte("another key, wrong"), []int{1}, LeaseOptions{})
	require.Error(t, err)

	var parts [2]*Lease
	for r := range ranks {
		parts[r], err = ranks[r].Granted(within(t), lease.ID())
		require.NoError(t, err)
		assert.Equal(t, []uint32{1, 2}, parts[r].Blocks())
		assert.Empty(t, parts[r].Ticket())
		fill(sources[r], byte(r), 3, 4)
		push, err := sources[r].Write(within(t), []int{3, 4}, lease.Ticket(), TransferID(id), OfInstance("prefill"))
		require.NoError(t, err)
		_, err = push.Wait(within(t))
		require.NoError(t, err)
	}
	res, err := lease.Wait(within(t))
	require.NoError(t, err)
	assert.Equal(t, id, res.TransferID)
	assert.Zero(t, res.Generation)
	for r := range ranks {
		part, err := parts[r].Wait(within(t))
		require.NoError(t, err)
		assert.NotZero(t, part.Generation)
		requireSame(t, sources[r], []int{3, 4}, ranks[r], []int{1, 2})
	}
	offer, err := asker.LeaseInstanceRead(within(t), "decode", key, []int{1}, LeaseOptions{})
	require.NoError(t, err)
	_, err = ranks[0].Granted(within(t), offer.ID())
	assert.ErrorIs(t, err, ErrInvalidArgument, "its mode is read")
	read, err := ranks[0].GrantedRead(within(t), offer.ID())
	require.NoError(t, err)
	require.NoError(t, offer.Revoke(within(t)))
	_, err = read.Wait(within(t))
	assert.ErrorIs(t, err, ErrLeaseRevoked)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = ranks[0].Granted(short, id)
	assert.ErrorIs(t, err, ErrDeadlineExceeded)
}

// TestConnectionCut: the daemon lives on. Nothing is released until it has taken the memory again, which fences what the lost
// connection had begun.
func TestConnectionCut(t *testing.T) {
	n := startNode(t, "n0")
	c := dial(t, n.Info().Socket)
	src, dst := allocate(t, c, "src", 8), allocate(t, c, "dst", 8)
	commit(t, src, dst, 0, 1)
	lease, err := dst.Lease(within(t), []int{4}, LeaseOptions{})
	require.NoError(t, err)
	push, err := src.Write(within(t), []int{5}, lease.Ticket(), Layerwise())
	require.NoError(t, err)
	epoch := c.Epoch()
	c.now().conn.shutdown()
	for _, e := range []Ended{lease, push} {
		<-e.Done()
		assert.ErrorIs(t, e.Err(), ErrDaemonUnavailable)
		assert.False(t, e.Released())
	}
	assert.ErrorIs(t, lease.Revoke(within(t)), ErrDaemonUnavailable)
	served, err := c.Reconnect(within(t))
	require.NoError(t, err)
	assert.Equal(t, epoch, c.Epoch())
	assert.Equal(t, []uint32{0, 1}, served["dst"])
	assert.True(t, lease.Released() && push.Released())
	commit(t, src, dst, 4, 5)
	require.NoError(t, dst.Drop(within(t)))
}
