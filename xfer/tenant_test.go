package xfer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Two tenants on one node use one cache name without meeting, and a ticket of one is of no use to the other, from the same
// node and from another.
func TestNothingCrossesTenants(t *testing.T) {
	net := newNetwork(t, "near", "far")
	near, far := net.nodes["near"], net.nodes["far"]
	red, blue := newWorkerOf(t, near, "red", "kv", small, 8), newWorkerOf(t, near, "blue", "kv", small, 8)
	plain := newWorker(t, near, "kv", small, 8)

	again := red.spec
	again.Region = blue.region
	_, _, err := near.engine.RegisterCache(t.Context(), blue.id, again, nil)
	require.ErrorIs(t, err, fault.ErrAlreadyExists, "once in a tenant")

	lease := red.lease(time.Hour, 1)
	for name, thief := range map[string]*worker{"same node": blue, "default tenant": plain, "another node": newWorkerOf(t, far, "blue", "kv", small, 8)} {
		end := thief.transferEnd(thief.push(lease.Ticket, time.Hour, 0))
		assert.Equal(t, "PermissionDenied", end.Error.Name, name)
		assert.False(t, end.Error.MayHaveWritten, name)
	}
	friend := newWorkerOf(t, far, "red", "kv", small, 8)
	p := friend.push(lease.Ticket, time.Hour, 2)
	for layer := range small.Layers {
		friend.layer(p, layer)
	}
	far.engine.PushFinish(friend.id, p, nil)
	require.Nil(t, friend.transferEnd(p).Error, "the thieves' attempts have bound nothing")
	require.Nil(t, red.leaseEnd(lease.Lease).Error)

	require.NoError(t, near.engine.DropCache(t.Context(), blue.id, blue.cache))
	_, _, err = near.engine.Blocks(red.id, red.cache)
	require.NoError(t, err, "the name's other caches are there")
	blue.register()
}
