package simtest_test

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma/simfabric"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/simtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var mild = simfabric.Faults{Delay: time.Millisecond, Jitter: 2 * time.Millisecond}

// pair is a world of two nodes with a client on each.
func pair(t *testing.T, o simtest.Options) (w *simtest.World, src, dst *simtest.Client) {
	o.Seed = testseed.Seed(t)
	w = simtest.NewWorld(t, o)
	return w, w.Nodes[0].Client("src", simtest.Small, 8, 1), w.Nodes[1].Client("dst", simtest.Small, 8, 2)
}

// begin leases and pushes blocks 1 and 2 to 5 and 6.
func begin(t *testing.T, src, dst *simtest.Client, ttl, timeout time.Duration) (*simtest.Lease, *simtest.Transfer) {
	l, err := dst.Lease(ttl, 5, 6)
	require.NoError(t, err)
	p, err := src.Push(l.Ticket, timeout, 1, 2)
	require.NoError(t, err)
	return l, p
}

func committed(t *testing.T, l *simtest.Lease, p *simtest.Transfer) {
	t.Helper()
	require.Equal(t, 1, l.Ends)
	require.Nil(t, l.End.Error, "%+v", l.End.Error)
	require.Equal(t, 1, p.Ends)
	require.Nil(t, p.End.Error, "%+v", p.End.Error)
	assert.True(t, slices.EqualFunc(p.Source, l.Brought, bytes.Equal), "a commit that did not bring the source's bytes")
}

func TestPushOverTheFabric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, src, dst := pair(t, simtest.Options{Faults: mild})
		l, p := begin(t, src, dst, time.Minute, time.Minute)
		p.All()
		w.Pass(time.Second)
		committed(t, l, p)
		assert.ElementsMatch(t, []uint32{0, 1, 2}, l.Layers)
		for _, n := range w.Nodes {
			assert.Zero(t, n.Engine.Stats().Leases+n.Engine.Stats().Transfers)
		}
	})
}

// TestClocksHoursApart ends leases and pushes on clocks that differ by days, each at its own instant.
func TestClocksHoursApart(t *testing.T) {
	for _, ahead := range []time.Duration{-50 * time.Hour, 50 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			w, src, dst := pair(t, simtest.Options{Faults: mild, Skew: func(i int) time.Duration { return 100*time.Hour + time.Duration(i)*ahead }})
			l, p := begin(t, src, dst, time.Minute, time.Minute)
			p.All()
			w.Pass(time.Second)
			committed(t, l, p)

			l, p = begin(t, src, dst, 10*time.Second, time.Minute) // the lease's time is the shorter one
			w.Pass(10 * time.Second)
			require.Equal(t, 1, l.Ends)
			assert.Equal(t, "LeaseExpired", l.End.Error.Name)
			assert.Equal(t, l.Deadline, l.EndedAt)
			w.Pass(time.Second)
			require.Equal(t, 1, p.Ends)
			assert.Equal(t, "LeaseExpired", p.End.Error.Name)

			l, p = begin(t, src, dst, time.Minute, 10*time.Second) // the transfer's is
			w.Pass(11 * time.Second)
			require.Equal(t, 1, p.Ends)
			assert.Equal(t, "DeadlineExceeded", p.End.Error.Name)
			assert.Equal(t, p.Deadline, p.EndedAt)
			require.Equal(t, 1, l.Ends)
			assert.Equal(t, "DeadlineExceeded", l.End.Error.Name)
			assert.WithinDuration(t, p.Deadline, l.EndedAt, 10*time.Millisecond) // BIND's way, which the remaining time does not know
		})
	}
}

// TestPausedOwner stops the owner's daemon with bytes on their way and lets it go on when the lease is over: they find the
// deadline passed, before any timer has fired.
func TestPausedOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, src, dst := pair(t, simtest.Options{Faults: mild})
		l, p := begin(t, src, dst, 10*time.Second, time.Minute)
		w.Pass(time.Second)
		dst.Node.Pause()
		p.All()
		w.Pass(time.Hour)
		require.Equal(t, 1, p.Ends)
		assert.Equal(t, "DeadlineExceeded", p.End.Error.Name)
		assert.Equal(t, p.Deadline, p.EndedAt)
		assert.Equal(t, 1, p.Released)
		assert.Zero(t, l.Ends)
		dst.Node.Resume()
		w.Pass(time.Second)
		require.Equal(t, 1, l.Ends)
		assert.Contains(t, []string{"LeaseExpired", "DeadlineExceeded"}, l.End.Error.Name)
		w.Check()
		l, p = begin(t, src, dst, time.Minute, time.Minute)
		p.All()
		w.Pass(time.Second)
		committed(t, l, p)
	})
}

// TestPausedSource stops the source's daemon in the middle; the owner takes its blocks back and uses them, and what the
// source still sends when it goes on finds no window.
func TestPausedSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, src, dst := pair(t, simtest.Options{Faults: mild})
		l, p := begin(t, src, dst, 10*time.Second, time.Minute)
		w.Pass(time.Second)
		p.All()
		src.Node.Pause()
		w.Pass(10 * time.Second)
		require.Equal(t, 1, l.Ends)
		assert.Equal(t, "LeaseExpired", l.End.Error.Name)
		assert.Zero(t, p.Ends)
		src.Node.Resume()
		w.Pass(10 * time.Second)
		require.Equal(t, 1, p.Ends)
		assert.Equal(t, "LeaseExpired", p.End.Error.Name)
		assert.True(t, p.End.Released)
		w.Check()
	})
}

// TestKilledClientsLeaveNothing kills both clients in mid-transfer; their memory is given up, and what is on its way
// finds nothing to land in.
func TestKilledClientsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, src, dst := pair(t, simtest.Options{Faults: simfabric.Faults{Delay: time.Millisecond, Hold: 0.5, Late: 0.5, LateBy: time.Minute}})
		l, p := begin(t, src, dst, time.Hour, time.Hour)
		p.All()
		w.Pass(5 * time.Millisecond)
		dst.Kill()
		src.Kill()
		w.Pass(time.Second)
		assert.True(t, src.Unmapped())
		assert.True(t, dst.Unmapped())
		assert.Equal(t, 1, l.Ends)
		assert.Equal(t, 1, p.Ends)
		w.Pass(time.Hour)
		w.Check()
		for _, n := range w.Nodes {
			s := n.Engine.Stats()
			s.Links = 0
			assert.Equal(t, xfer.Stats{}, s)
		}
	})
}
