package xfer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/instrument"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// measured adds up a metric's series that have the labels, given as key, value, and so on; of a histogram what it has counted.
func measured(t testing.TB, reader sdkmetric.Reader, name string, labels ...string) (sum float64) {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	has := func(s attribute.Set) bool {
		for i := 0; i < len(labels); i += 2 {
			if v, _ := s.Value(attribute.Key(labels[i])); v.AsString() != labels[i+1] {
				return false
			}
		}
		return true
	}
	add := func(s attribute.Set, v float64) {
		if has(s) {
			sum += v
		}
	}
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					add(p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					add(p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					add(p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					add(p.Attributes, float64(p.Count))
				}
			default:
				t.Fatalf("%s is a %T", name, d)
			}
		}
	}
	return sum
}

func (nd *node) measured(name string, labels ...string) float64 {
	nd.t.Helper()
	return measured(nd.t, nd.reader, name, labels...)
}

// Transfers and leases of every kind are counted where they are, by how they end, and leave no gauge behind.
func TestMetricsOfTransfers(t *testing.T) {
	net := newNetwork(t, "prefill", "decode")
	near, far := net.nodes["prefill"], net.nodes["decode"]
	src, dst := newWorker(t, near, "p", small, 16), newWorker(t, far, "d", small, 16)
	block := float64(small.BlockBytes())

	lease := dst.lease(time.Minute, 1, 2, 3)
	assert.EqualValues(t, 1, far.measured(instrument.Leases, "kind", "write", "state", "granted"))
	id := src.push(lease.Ticket, time.Minute, 4, 5, 6)
	assert.EqualValues(t, 3, near.measured(instrument.HeldBlocks))
	assert.Equal(t, 3*block, near.measured(instrument.HeldMemory))
	assert.EqualValues(t, 1, near.measured(instrument.Running))
	src.layer(id, 0)
	require.Eventually(t, func() bool { return far.measured(instrument.Leases, "state", "bound") == 1 }, patience, time.Millisecond)
	assert.EqualValues(t, 1, near.measured(instrument.Links, "direction", "out", "provider", "tcp"))
	assert.EqualValues(t, 1, far.measured(instrument.Links, "direction", "in", "provider", "tcp"))
	for layer := uint32(1); layer < small.Layers; layer++ {
		src.layer(id, layer)
	}
	near.engine.PushFinish(src.id, id, nil)
	require.Nil(t, src.transferEnd(id).Error)
	require.Nil(t, dst.leaseEnd(lease.Lease).Error)

	offer := src.offer(1, time.Minute, 7, 8)
	pull := dst.pull(offer.Ticket, time.Minute, "", 9, 10)
	require.Nil(t, dst.transferEnd(pull).Error)
	require.Nil(t, src.leaseEnd(offer.Lease).Error)

	refused := dst.lease(time.Minute, 11)
	require.NoError(t, far.engine.Revoke(dst.id, refused.Lease))
	require.NotNil(t, dst.leaseEnd(refused.Lease).Error)
	require.NotNil(t, src.transferEnd(src.push(refused.Ticket, time.Minute, 1)).Error)
	far.engine.RequestFailed(fault.BlocksBusy)

	for _, c := range []struct {
		nd     *node
		name   string
		labels []string
		want   float64
	}{
		{near, instrument.Payload, []string{"direction", "sent", "provider", "tcp"}, 5 * block},
		{far, instrument.Payload, []string{"direction", "received", "provider", "tcp"}, 5 * block},
		{near, instrument.Payload, []string{"direction", "received"}, 0},
		{near, instrument.Transfers, []string{"kind", "push", "provider", "tcp", "result", "DONE"}, 1},
		{near, instrument.Transfers, []string{"kind", "push", "provider", "tcp", "result", "LeaseRevoked"}, 1},
		{far, instrument.Transfers, []string{"kind", "pull", "result", "DONE"}, 1},
		{near, instrument.TransferTime, []string{"kind", "push", "outcome", "failed"}, 1},
		{near, instrument.FirstByte, []string{"kind", "push"}, 1},
		{far, instrument.LeasesEnded, []string{"kind", "write", "result", "DONE"}, 1},
		{far, instrument.LeasesEnded, []string{"kind", "write", "result", "LeaseRevoked"}, 1},
		{near, instrument.LeasesEnded, []string{"kind", "read", "result", "DONE"}, 1},
		{far, instrument.LeaseTime, []string{"kind", "write"}, 2},
		{far, instrument.FenceTime, []string{"provider", "tcp", "outcome", "done"}, 1},
		{near, instrument.FenceTime, []string{"provider", "tcp", "outcome", "done"}, 1},
		{far, instrument.Errors, []string{"where", "peer", "code", "LeaseRevoked"}, 1},
		{far, instrument.Errors, []string{"where", "request", "code", "BlocksBusy"}, 1},
		{far, instrument.Leases, nil, 0},
		{near, instrument.Leases, nil, 0},
		{near, instrument.HeldMemory, nil, 0},
		{far, instrument.HeldBlocks, nil, 0},
		{near, instrument.Operations, nil, 0},
		{far, instrument.Clients, nil, 1},
		{far, instrument.Caches, nil, 1},
		{far, instrument.Quarantined, nil, 0},
	} {
		assert.Equal(t, c.want, c.nd.measured(c.name, c.labels...), "%s of %s %v", c.name, c.nd.name, c.labels)
	}
}

func TestRawLeasesAreKindsOfTheirOwn(t *testing.T) {
	net := newNetwork(t, "a", "b")
	owner := attach(t, net.nodes["b"], "o", 8)
	info := owner.advertise(wire.ModeWrite, 0, time.Minute)
	owner.advertise(wire.ModeRead, 0, time.Minute)
	nd := net.nodes["b"]
	assert.EqualValues(t, 1, nd.measured(instrument.Leases, "kind", "raw_write", "state", "granted"))
	assert.EqualValues(t, 1, nd.measured(instrument.Leases, "kind", "raw_read", "state", "granted"))
	require.NoError(t, nd.engine.Revoke(owner.id, info.Lease))
	owner.leaseEnd(info.Lease)
	assert.EqualValues(t, 0, nd.measured(instrument.Leases, "kind", "raw_write"))
	assert.EqualValues(t, 1, nd.measured(instrument.LeasesEnded, "kind", "raw_write", "result", "LeaseRevoked"))
}

// A fence that hangs is seen by its age, and one that fails by the memory that it costs.
func TestMetricsOfFences(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	n := newFakeNode(t, func(o *xfer.Options) {
		o.Meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("")
	})
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	l.target.fenceErr = fault.New(fault.Internal, "fence", "broken")
	hold := make(chan struct{})
	l.target.gate = hold
	lease := w.lease(time.Hour, 1, 2)
	l.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	l.take(wire.KindOK)
	require.NoError(t, n.engine.Revoke(w.id, lease.Lease))
	n.until(func() bool { return measured(t, reader, instrument.FencesPending) == 1 })
	assert.EqualValues(t, 1, measured(t, reader, instrument.Leases, "state", "fencing"))
	first := measured(t, reader, instrument.FenceAge)
	n.until(func() bool { return measured(t, reader, instrument.FenceAge) > first })
	assert.Zero(t, measured(t, reader, instrument.Quarantined))
	close(hold)
	w.leaseEnd(lease.Lease)
	assert.Zero(t, measured(t, reader, instrument.Leases))
	assert.Zero(t, measured(t, reader, instrument.FencesPending)+measured(t, reader, instrument.FenceAge))
	assert.EqualValues(t, 1, measured(t, reader, instrument.FenceTime, "outcome", "failed"))
	assert.EqualValues(t, 2*small.BlockBytes(), measured(t, reader, instrument.Quarantined))

	n.engine.ClientGone(w.id) // now nobody can have the rest of the region back either
	n.until(func() bool { return n.engine.Stats().Clients == 0 })
	assert.EqualValues(t, w.mem.Memory().Len, measured(t, reader, instrument.Quarantined), "each byte once")
}

// What waits for room in a provider's window is seen apart from what is posted.
func TestMetricsOfAFullWindow(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	n := newFakeNode(t, func(o *xfer.Options) {
		o.Meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("")
	})
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(1)
	id := w.push(ticket(3), time.Hour, 0, 2, 4)
	l.bound(w, id, 1, 3, 5)
	for layer := range small.Layers {
		w.layer(id, layer)
	}
	n.until(func() bool { return measured(t, reader, instrument.Operations, "state", "outstanding") == 1 })
	assert.EqualValues(t, small.Layers-1, measured(t, reader, instrument.Operations, "state", "queued"))
}
