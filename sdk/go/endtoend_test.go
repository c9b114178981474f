package kvxfer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// TestTransfers moves blocks and raw bytes between two nodes in every way.
func TestTransfers(t *testing.T) {
	a, b := startPair(t)
	ca, cb := dial(t, a.Info().Socket), dial(t, b.Info().Socket)
	src, dst := allocate(t, ca, "src", 16), allocate(t, cb, "dst", 16)

	t.Run("push", func(t *testing.T) {
		ctx := within(t)
		fill(src, 1, 0, 1, 2)
		lease, err := dst.Lease(ctx, []uint32{7, 3, 12}, LeaseOptions{Mode: ModeWrite, TTL: 20 * time.Second})
		require.NoError(t, err)
		push, err := src.Write(ctx, []int{0, 1, 2}, lease.Ticket(), Notify([]byte("first token")))
		require.NoError(t, err)
		sent, err := push.Wait(ctx)
		require.NoError(t, err)
		got, err := lease.Wait(ctx)
		require.NoError(t, err)
		assert.Equal(t, []byte("first token"), got.Notification)
		assert.Equal(t, 3, sent.Blocks)
		assert.EqualValues(t, 3*testLayout.BlockBytes(), sent.Bytes)
		assert.Equal(t, sent.Bytes, got.Bytes)
		assert.Equal(t, "n1", sent.Peer)
		assert.Equal(t, "n0", got.Peer)
		assert.Equal(t, sent.TransferID, got.TransferID)
		assert.NotEmpty(t, sent.Provider)
		assert.True(t, push.Released() && lease.Released())
		assert.Equal(t, []int{0, 1, 2}, lease.VisibleLayers())
		requireSame(t, src, []int{0, 1, 2}, dst, []int{7, 3, 12})
		require.NoError(t, lease.Revoke(ctx), "it ended well before")
		require.NoError(t, lease.Close())
		states, err := dst.BlockStates(ctx)
		require.NoError(t, err)
		assert.Equal(t, 3, states.Committed)
		assert.Equal(t, 13, states.Free)
		for _, e := range states.Blocks {
			assert.Equal(t, StateCommitted, e.State)
			assert.Equal(t, got.Generation, e.Generation)
		}
	})

	t.Run("over one provider", func(t *testing.T) {
		ctx := within(t)
		for _, name := range []string{"tcp", "verbs"} {
			lease, err := dst.Lease(ctx, []int{9}, LeaseOptions{})
			require.NoError(t, err)
			push, err := src.Write(ctx, []int{0}, lease.Ticket(), OnlyProvider(name))
			var sent TransferResult
			if err == nil {
				sent, err = push.Wait(ctx)
			}
			if name == "tcp" {
				require.NoError(t, err)
				assert.Equal(t, "tcp", sent.Provider)
			} else {
				require.ErrorIs(t, err, ErrNotSupported)
			}
			require.NoError(t, lease.Revoke(ctx))
		}
	})

	t.Run("layer by layer", func(t *testing.T) {
		ctx := within(t)
		lease, err := dst.Lease(ctx, []int64{5, 6}, LeaseOptions{})
		require.NoError(t, err)
		push, err := src.Write(ctx, []uint16{4, 5}, lease.Ticket(), Layerwise())
		require.NoError(t, err)
		for l := range testLayout.Layers {
			fill(src, byte(l), 4, 5)
			if l == 1 {
				require.NoError(t, push.LayerPart(l, 1, 1))
				require.NoError(t, push.LayerPart(l, 0, 1))
			} else {
				require.NoError(t, push.Layer(l))
			}
			require.NoError(t, lease.WaitLayer(ctx, l))
			assert.Equal(t, pieces(src, l, 4), pieces(dst, l, 5))
			assert.Equal(t, pieces(src, l, 5), pieces(dst, l, 6))
		}
		require.NoError(t, push.Finish([]byte("done")))
		_, err = push.Wait(ctx)
		require.NoError(t, err)
		res, err := lease.Wait(ctx)
		require.NoError(t, err)
		assert.Equal(t, []byte("done"), res.Notification)
		assert.ErrorIs(t, push.Layer(0), ErrInvalidArgument, "after Finish")
		assert.ErrorIs(t, push.Finish(nil), ErrInvalidArgument, "a second call")
		assert.ErrorIs(t, lease.WaitLayer(ctx, 3), ErrInvalidArgument)
	})

	t.Run("pull", func(t *testing.T) {
		ctx := within(t)
		fill(src, 9, 8, 9)
		offer, err := src.LeaseRead(ctx, []int{8, 9}, LeaseOptions{Readers: 1})
		require.NoError(t, err)
		pull, err := dst.Read(ctx, []int{1, 0}, offer.Ticket(), Notify([]byte("read")))
		require.NoError(t, err)
		res, err := pull.Wait(ctx)
		require.NoError(t, err)
		assert.NotZero(t, res.Generation)
		requireSame(t, src, []int{8, 9}, dst, []int{1, 0})
		holder, err := offer.NextHolder(ctx)
		require.NoError(t, err)
		require.NoError(t, holder.Err)
		assert.Equal(t, []byte("read"), holder.Notification)
		assert.Equal(t, "n1", holder.Peer)
		sum, err := offer.Wait(ctx)
		require.NoError(t, err)
		assert.Equal(t, OfferResult{Holders: 1, Bytes: res.Bytes, Guarantee: "full"}, sum)
		_, err = offer.NextHolder(ctx)
		assert.ErrorIs(t, err, ErrNotFound)
	})

	t.Run("raw", func(t *testing.T) {
		ctx := within(t)
		ra, err := ca.AllocateRegion(ctx, "raw-a", 1000)
		require.NoError(t, err)
		rb, err := cb.AllocateRegion(ctx, "raw-b", 5000)
		require.NoError(t, err)
		copy(ra.Memory()[100:], "hello, region")
		adv, err := rb.Advertise(ctx, AdvertiseOptions{Mode: ModeWrite, Parts: []Part{{1000, 1000}}})
		require.NoError(t, err)
		s, err := ra.Writev(ctx, []Range{{100, 1010, 5}, {105, 1500, 8}}, adv.Ticket(), Notify([]byte("raw")))
		require.NoError(t, err)
		_, err = s.Wait(ctx)
		require.NoError(t, err)
		assert.Equal(t, "hello", string(rb.Memory()[1010:1015]))
		assert.Equal(t, ", region", string(rb.Memory()[1500:1508]))
		h, err := adv.NextHolder(ctx)
		require.NoError(t, err)
		assert.Equal(t, []byte("raw"), h.Notification)
		out, err := ra.Writev(ctx, []Range{{0, 999, 2}}, adv.Ticket())
		require.NoError(t, err)
		_, err = out.Wait(ctx)
		assert.ErrorIs(t, err, ErrOutOfBounds)
		require.NoError(t, adv.Revoke(ctx))
		_, err = adv.Wait(ctx)
		assert.ErrorIs(t, err, ErrLeaseRevoked)

		back, err := rb.Advertise(ctx, AdvertiseOptions{Mode: ModeRead, Uses: 1})
		require.NoError(t, err)
		s, err = ra.Readv(ctx, []Range{{500, 1500, 8}}, back.Ticket())
		require.NoError(t, err)
		_, err = s.Wait(ctx)
		require.NoError(t, err)
		assert.Equal(t, ", region", string(ra.Memory()[500:508]))
		_, err = back.Wait(ctx)
		require.NoError(t, err)
		require.NoError(t, ra.Deregister(ctx))
		require.NoError(t, ra.Deregister(ctx), "a second call does nothing")
		_, err = ra.Writev(ctx, nil, "x")
		assert.ErrorIs(t, err, ErrClosed)
		assert.Nil(t, ra.Memory())
	})

	t.Run("keys", func(t *testing.T) {
		ctx := within(t)
		fill(src, 77, 10, 11)
		tokens := make([]int, 2*testLayout.BlockTokens)
		keys, err := ChainKeys(tokens, testLayout.BlockTokens, nil)
		require.NoError(t, err)
		generation, err := src.Publish(ctx, []int{10, 11}, keys)
		require.NoError(t, err)
		assert.NotZero(t, generation)
		var found LookupResult
		require.Eventually(t, func() bool { // the directory hears of the cache a moment after it was made
			found, err = cb.Lookup(ctx, LookupRequest{Keys: keys, Like: dst})
			return err == nil && found.Prefix == 2
		}, patience, 20*time.Millisecond)
		require.Len(t, found.Holders, 1)
		assert.Equal(t, "n0", found.Holders[0].Node)
		pull, err := dst.ReadFrom(ctx, []int{14, 15}, found.Holders[0], keys)
		require.NoError(t, err)
		_, err = pull.Wait(ctx)
		require.NoError(t, err)
		assert.NotEmpty(t, pull.TransferID())
		requireSame(t, src, []int{10, 11}, dst, []int{14, 15})

		require.NoError(t, src.Evict(ctx, []int{10, 11}))
		again, err := dst.ReadFrom(ctx, []int{14, 15}, found.Holders[0], keys)
		require.NoError(t, err)
		_, err = again.Wait(ctx)
		assert.ErrorIs(t, err, ErrNotFound)
		assert.True(t, again.Released())
		local, err := ca.Lookup(ctx, LookupRequest{Keys: keys, Model: "m", Layout: testLayout, LocalOnly: true})
		require.NoError(t, err)
		assert.Zero(t, local.Prefix)
	})

	t.Run("revoke", func(t *testing.T) {
		ctx := within(t)
		lease, err := dst.Lease(ctx, []int{2, 4}, LeaseOptions{})
		require.NoError(t, err)
		push, err := src.Write(ctx, []int{0, 1}, lease.Ticket(), Layerwise())
		require.NoError(t, err)
		require.NoError(t, push.Layer(0))
		require.NoError(t, lease.WaitLayer(ctx, 0))
		require.NoError(t, lease.Revoke(ctx))
		assert.True(t, lease.Released())
		_, err = lease.Wait(ctx)
		require.ErrorIs(t, err, ErrLeaseRevoked)
		require.ErrorIs(t, lease.WaitLayer(ctx, 0), ErrLeaseRevoked)
		_, err = push.Wait(ctx)
		var te *TransferError
		require.True(t, errors.As(err, &te))
		assert.Equal(t, "LeaseRevoked", te.Code)
		assert.Equal(t, []uint32{0, 1}, te.Blocks)
		assert.True(t, te.MayHaveWritten && te.Retryable)
		require.NoError(t, push.Layer(1), "a prefill may go on")
		require.NoError(t, push.WaitReleased(ctx))
	})

	t.Run("expiry and renewal", func(t *testing.T) {
		ctx := within(t)
		lease, err := dst.Lease(ctx, []int{2}, LeaseOptions{TTL: 20 * time.Second})
		require.NoError(t, err)
		require.NoError(t, lease.Renew(ctx, 50*time.Millisecond), "it may bring the end forward")
		_, err = lease.Wait(ctx)
		require.ErrorIs(t, err, ErrLeaseExpired)
		assert.True(t, lease.Released())
		assert.ErrorIs(t, lease.Renew(ctx, time.Second), ErrLeaseExpired)
		late, err := src.Write(ctx, []int{0}, lease.Ticket())
		require.NoError(t, err)
		_, err = late.Wait(ctx)
		assert.ErrorIs(t, err, ErrLeaseExpired)
	})

	t.Run("cancel", func(t *testing.T) {
		ctx := within(t)
		lease, err := dst.Lease(ctx, []int{2}, LeaseOptions{})
		require.NoError(t, err)
		push, err := src.Write(ctx, []int{0}, lease.Ticket(), Layerwise())
		require.NoError(t, err)
		require.NoError(t, push.Layer(0))
		require.NoError(t, lease.WaitLayer(ctx, 0), "it is bound now")
		push.Cancel()
		_, err = push.Wait(ctx)
		require.ErrorIs(t, err, ErrCancelled)
		require.NoError(t, push.WaitReleased(ctx))
		_, err = lease.Wait(ctx)
		require.Error(t, err)
		require.NoError(t, lease.Close())
	})

	t.Run("mismatch", func(t *testing.T) {
		ctx := within(t)
		other, err := cb.AllocateCache(ctx, CacheSpec{Name: "other", Model: "m", Compat: "fp8", Layout: testLayout, NumBlocks: 4})
		require.NoError(t, err)
		lease, err := other.Lease(ctx, []int{0}, LeaseOptions{})
		require.NoError(t, err)
		push, err := src.Write(ctx, []int{0}, lease.Ticket())
		require.NoError(t, err)
		_, err = push.Wait(ctx)
		var te *TransferError
		require.True(t, errors.As(err, &te))
		assert.Equal(t, []any{"LayoutMismatch", "compat", false}, []any{te.Code, te.Field, te.MayHaveWritten})
		require.NoError(t, other.Drop(ctx))
		_, err = lease.Wait(ctx)
		assert.ErrorIs(t, err, ErrLeaseRevoked)
	})

	t.Run("busy and evicted", func(t *testing.T) {
		ctx := within(t)
		lease, err := dst.Lease(ctx, []int{2}, LeaseOptions{})
		require.NoError(t, err)
		_, err = dst.Lease(ctx, []int{2}, LeaseOptions{})
		assert.ErrorIs(t, err, ErrBlocksBusy)
		require.NoError(t, dst.Evict(ctx, []int{2}))
		_, err = lease.Wait(ctx)
		assert.ErrorIs(t, err, ErrLeaseRevoked)
	})

	t.Run("waiting ends alone", func(t *testing.T) {
		lease, err := dst.Lease(within(t), []int{2}, LeaseOptions{})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = lease.Wait(ctx)
		assert.ErrorIs(t, err, ErrCancelled)
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, lease.WaitLayer(ctx, 1), context.Canceled)
		assert.NoError(t, lease.Err(), "the lease goes on")
		require.NoError(t, lease.Close())
		assert.ErrorIs(t, lease.Err(), ErrLeaseRevoked)
	})

	t.Run("adopted", func(t *testing.T) {
		ctx := within(t)
		spec := CacheSpec{Name: "heap", Model: "m", Layout: testLayout, NumBlocks: 4}
		heap := make([]byte, 4*testLayout.BlockBytes())
		_, err := cb.RegisterCache(ctx, spec, heap[1:], AdoptProcess)
		assert.ErrorIs(t, err, ErrInvalidArgument, "another size")
		weak, err := cb.RegisterCache(ctx, spec, heap, AdoptProcess)
		require.NoError(t, err)
		assert.Equal(t, GuaranteeLiveClientOnly, weak.Guarantee())
		fill(src, 5, 0, 1)
		lease, err := weak.Lease(ctx, []int{3, 2}, LeaseOptions{})
		require.NoError(t, err)
		push, err := src.Write(ctx, []int{0, 1}, lease.Ticket())
		require.NoError(t, err)
		_, err = push.Wait(ctx)
		require.NoError(t, err)
		res, err := lease.Wait(ctx)
		require.NoError(t, err)
		assert.Equal(t, GuaranteeLiveClientOnly, res.Guarantee)
		requireSame(t, src, []int{0, 1}, weak, []int{3, 2})
		require.NoError(t, weak.Drop(ctx))

		pages, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		require.NoError(t, err)
		defer func() { _ = unix.Munmap(pages) }()
		copy(pages[100:], "it was there")
		region, err := cb.RegisterRegion(ctx, "pages", pages)
		require.NoError(t, err)
		assert.Equal(t, "full", region.Guarantee())
		assert.Equal(t, "it was there", string(region.Memory()[100:112]))
		adv, err := region.Advertise(ctx, AdvertiseOptions{Uses: 1})
		require.NoError(t, err)
		raw, err := ca.AllocateRegion(ctx, "other", 10)
		require.NoError(t, err)
		copy(raw.Memory(), "here")
		s, err := raw.Writev(ctx, []Range{{0, 107, 4}}, adv.Ticket())
		require.NoError(t, err)
		_, err = s.Wait(ctx)
		require.NoError(t, err)
		assert.Equal(t, "it was here", string(pages[100:111]))
		require.NoError(t, raw.Deregister(ctx))
		require.NoError(t, region.Deregister(ctx))
		assert.Equal(t, "it was here", string(pages[100:111]), "they are the caller's")
	})

	t.Run("daemon", func(t *testing.T) {
		ctx := within(t)
		_, err := ca.Ping(ctx)
		require.NoError(t, err)
		st, err := ca.Status(ctx)
		require.NoError(t, err)
		assert.Equal(t, "n0", st.Node)
		assert.ElementsMatch(t, []string{"n0", "n1"}, st.Nodes)
		assert.Equal(t, ca.Epoch(), st.Epoch)
		assert.Equal(t, 1, ca.Version())
		assert.NotEmpty(t, ca.BootID())
		_, err = ca.DaemonExited(ctx)
		assert.ErrorIs(t, err, ErrNotSupported, "it is this process")
	})

	t.Run("completed", func(t *testing.T) {
		select {
		case <-ca.CompletedReady():
		default:
			t.Fatal("something has ended")
		}
		for _, e := range ca.Completed() {
			<-e.Done()
			assert.True(t, e.Released(), "%T", e)
		}
		assert.Empty(t, ca.Completed())
	})
}
