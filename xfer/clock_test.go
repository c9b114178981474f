package xfer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// shifted is a clock that has been running for longer, or shorter, than this process.
type shifted struct {
	xfer.Clock
	by rdma.Instant
}

func (c shifted) Now() rdma.Instant { return c.Clock.Now() + c.by }

func (c shifted) AfterFunc(at rdma.Instant, f func()) func() bool {
	return c.Clock.AfterFunc(at-c.by, f)
}

// Nodes tell each other durations, never points in time: clocks that are hours apart change nothing.
func TestClocksHoursApart(t *testing.T) {
	rng := testseed.New(t)
	shifts := map[string]rdma.Instant{"prefill": 0, "decode": rdma.Instant(9 * time.Hour)}
	for range 2 {
		net := newNetworkOfClocks(t, func(name string) xfer.Clock { return shifted{xfer.NewClock(), shifts[name]} }, "prefill", "decode")
		src := newWorker(t, net.nodes["prefill"], "p", small, 8)
		dst := newWorker(t, net.nodes["decode"], "d", small, 8)
		src.fill(rng)

		lease := dst.lease(time.Minute, 1, 2)
		transfer := src.push(lease.Ticket, time.Minute, 3, 4)
		for layer := range small.Layers {
			src.layer(transfer, layer)
		}
		src.node.engine.PushFinish(src.id, transfer, nil)
		require.Nil(t, src.transferEnd(transfer).Error)
		require.Nil(t, dst.leaseEnd(lease.Lease).Error)
		for layer := range small.Layers {
			for plane := range uint64(2) {
				assert.Equal(t, src.block(layer, plane, 3), dst.block(layer, plane, 1))
				assert.Equal(t, src.block(layer, plane, 4), dst.block(layer, plane, 2))
			}
		}

		// Either side's time ends on its own clock, neither at once nor hours later.
		began := time.Now()
		lease = dst.lease(300*time.Millisecond, 5)
		transfer = src.push(lease.Ticket, time.Minute, 6)
		end := dst.leaseEnd(lease.Lease)
		require.NotNil(t, end.Error)
		assert.ErrorIs(t, fault.FromWire(end.Error), fault.ErrLeaseExpired)
		assert.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
		require.NotNil(t, src.transferEnd(transfer).Error)

		began = time.Now()
		lease = dst.lease(time.Minute, 6)
		transfer = src.push(lease.Ticket, 300*time.Millisecond, 7)
		failed := src.transferEnd(transfer)
		require.NotNil(t, failed.Error)
		assert.ErrorIs(t, fault.FromWire(failed.Error), fault.ErrDeadlineExceeded)
		assert.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)

		shifts["prefill"], shifts["decode"] = shifts["decode"], shifts["prefill"]
	}
}
