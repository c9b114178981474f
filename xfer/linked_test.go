package xfer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// Linked implements xfer.LinkFinder: a link that Dial has made.
func (nd *node) Linked(ref xfer.PeerRef) (xfer.Link, bool) {
	if nd.net == nil || nd.net.walled(nd.name, ref.Node) || ref.Provider != "" && ref.Provider != "tcp" {
		return nil, false
	}
	nd.net.mu.Lock()
	defer nd.net.mu.Unlock()
	for _, l := range nd.net.links {
		if l.node == nd && l.other.node.name == ref.Node && l.other.node.epoch == ref.Epoch && l.init != nil && l.peer.Tenant == ref.Tenant && !l.closed() {
			return l, true
		}
	}
	return nil, false
}

// The peer is asked by the starting call where there is a link: when it has returned, nothing of the transfer waits for a
// goroutine of this node to begin.
func TestStartAsksThePeer(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "prefill", "decode")
	src, dst := newWorker(t, net.nodes["prefill"], "p", small, 8), newWorker(t, net.nodes["decode"], "d", small, 8)
	src.fill(rng)
	for i := range uint32(3) { // the first one dials
		lease := dst.lease(time.Minute, i)
		info, err := src.node.engine.Push(src.id, wire.PushRequest{Cache: src.cache, Ticket: lease.Ticket, TimeoutMillis: 60_000, Finish: true, Notification: []byte("whole")}, []uint32{i})
		require.NoError(t, err)
		assert.True(t, info.Finished)
		end := src.transferEnd(info.Transfer)
		require.Nil(t, end.Error)
		assert.Equal(t, small.BlockBytes(), end.Bytes)
		require.Nil(t, dst.leaseEnd(lease.Lease).Error)
	}
}

// What the caller is told is that its finish was not taken, or how the transfer ended: never both.
func TestFinishOfARequest(t *testing.T) {
	net := newNetwork(t, "prefill", "decode")
	src, dst := newWorker(t, net.nodes["prefill"], "p", small, 8), newWorker(t, net.nodes["decode"], "d", small, 8)
	lease := dst.lease(time.Minute, 1)
	info, err := src.node.engine.Push(src.id, wire.PushRequest{Cache: src.cache, Ticket: lease.Ticket, TimeoutMillis: 60_000}, []uint32{1})
	require.NoError(t, err)
	assert.False(t, info.Finished)
	src.node.engine.PushFinish(src.id, info.Transfer, nil)
	require.Nil(t, src.transferEnd(info.Transfer).Error)
	require.Nil(t, dst.leaseEnd(lease.Lease).Error)
	info, err = src.node.engine.Push(src.id, wire.PushRequest{Cache: src.cache, Ticket: "no ticket", TimeoutMillis: 60_000, Finish: true}, []uint32{1})
	require.ErrorIs(t, err, fault.ErrTicketInvalid)
	assert.False(t, info.Finished)
}

func TestTryEvictNeverWaits(t *testing.T) {
	net := newNetwork(t, "prefill", "decode")
	src, dst := newWorker(t, net.nodes["prefill"], "p", small, 8), newWorker(t, net.nodes["decode"], "d", small, 8)
	try := func(w *worker, blocks ...uint32) (bool, error) { return w.node.engine.TryEvict(w.id, w.cache, blocks) }

	lease := dst.lease(time.Minute, 1, 2)
	done, err := try(dst, 2, 3)
	require.NoError(t, err)
	assert.False(t, done, "a lease names block 2")
	done, err = try(dst, 3)
	require.NoError(t, err)
	assert.True(t, done)

	transfer := src.push(lease.Ticket, time.Minute, 5, 6)
	done, err = try(src, 6)
	require.ErrorIs(t, err, fault.ErrBlocksBusy)
	assert.True(t, done)
	for layer := range small.Layers {
		src.layer(transfer, layer)
	}
	src.node.engine.PushFinish(src.id, transfer, nil)
	require.Nil(t, src.transferEnd(transfer).Error)
	require.Nil(t, dst.leaseEnd(lease.Lease).Error)
	require.Eventually(t, func() bool { // the end is told before its lease is forgotten
		done, err := try(dst, 1, 2)
		require.NoError(t, err)
		return done
	}, patience, time.Millisecond)

	done, err = try(dst, 99)
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	assert.True(t, done)
	done, err = dst.node.engine.TryEvict(dst.id, 12345, nil)
	require.ErrorIs(t, err, fault.ErrNotFound)
	assert.True(t, done)
}
