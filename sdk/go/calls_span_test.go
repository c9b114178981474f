package kvxfer

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// TestSpansOfCalls: a lease and a push tell their course in spans of the trace that the context carries, and closing the
// client loses none.
func TestSpansOfCalls(t *testing.T) {
	d := startFake(t)
	c, cache := d.attach()
	ctx, err := ContextWithTraceparent(within(t), "00-000102030405060708090a0b0c0d0e0f-0001020304050607-01")
	require.NoError(t, err)
	lease, err := cache.Lease(ctx, []int{1, 2}, LeaseOptions{})
	require.NoError(t, err)
	assert.Contains(t, lease.Traceparent(), "000102030405060708090a0b0c0d0e0f")
	d.set(func() {
		d.special[wire.KindPush] = func(wire.Frame) (any, []byte, bool) {
			return &wire.PushInfo{Transfer: 70, TransferID: "ffeeddccbbaa99887766554433221100", TraceID: "000102030405060708090a0b0c0d0e0f", ParentID: "0001020304050607", Sampled: true}, nil, true
		}
	})
	push, err := cache.Write(ctx, []int{3, 4}, "t", Layerwise())
	require.NoError(t, err)
	require.NoError(t, push.Layer(2))
	d.event(wire.KindEventLease, &wire.LeaseEvent{Lease: lease.number, Bytes: 9, Peer: "p", Provider: "tcp", TransferID: push.TransferID()}, nil)
	d.event(wire.KindEventTransfer, &wire.TransferEvent{Transfer: 70, Released: true, Error: fault.ToWire(&fault.Error{Code: fault.PeerLost, Op: "push", MayHaveWritten: true})}, nil)
	_, err = lease.Wait(ctx)
	require.NoError(t, err)
	_, err = push.Wait(ctx)
	require.ErrorIs(t, err, ErrPeerLost)
	require.NoError(t, c.Close())

	var sent wire.Spans
	d.got(wire.KindSpans, 1, &sent)
	require.Len(t, sent.Spans, 2)
	for _, s := range sent.Spans {
		assert.Equal(t, "000102030405060708090a0b0c0d0e0f", s.TraceID)
		assert.Equal(t, "0001020304050607", s.ParentID)
	}
	assert.Equal(t, "kvxfer.lease", sent.Spans[0].Name)
	assert.Equal(t, map[string]any{"kvxfer.cache": "cache", "kvxfer.lease.id": lease.ID(), "kvxfer.transfer.id": push.TransferID(), "kvxfer.blocks": 2.0,
		"kvxfer.bytes": 9.0, "kvxfer.peer": "p", "kvxfer.provider": "tcp", "kvxfer.result": "DONE"}, sent.Spans[0].Attributes)
	assert.Equal(t, "kvxfer.write", sent.Spans[1].Name)
	assert.Equal(t, map[string]any{"kvxfer.cache": "cache", "kvxfer.transfer.id": push.TransferID(), "kvxfer.blocks": 2.0, "kvxfer.result": "PeerLost",
		"kvxfer.may_have_written": true}, sent.Spans[1].Attributes)
	assert.Contains(t, sent.Spans[1].Error, "PeerLost")
	require.Len(t, sent.Spans[1].Events, 1)
	assert.Equal(t, "layer 2", sent.Spans[1].Events[0].Name)
}
