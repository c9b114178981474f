package simtest_test

import (
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma/gate"
	"github.com/kvxfer/kvxfer/rdma/simfabric"
	"github.com/kvxfer/kvxfer/xfer/simtest"
)

// lateRounds is how often each way to take blocks back is tried.
const lateRounds = 130

// ways to take blocks back while bytes are on their way to them. A way returns when the owner may hear of the end, at the
// latest after the lease's time.
var ways = []struct {
	name string
	do   func(t *testing.T, x *lateRun, l *simtest.Lease, p *simtest.Transfer)
}{
	{"commit", func(*testing.T, *lateRun, *simtest.Lease, *simtest.Transfer) {}}, // copies of what was placed come late
	{"deadline", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.w.Pass(lateTTL) }},
	{"revoke", func(t *testing.T, _ *lateRun, l *simtest.Lease, _ *simtest.Transfer) { require.NoError(t, l.Revoke()) }},
	{"cancel", func(_ *testing.T, _ *lateRun, _ *simtest.Lease, p *simtest.Transfer) { p.Cancel() }},
	{"drop", func(t *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) {
		require.NoError(t, x.dst.Drop())
	}},
	{"kill owner", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.dst.Kill() }},
	{"kill source", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.src.Kill() }},
	{"lose the link", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.w.CutLinks() }},
	{"stop the owner", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.stop(x.dst) }},
	{"stop the source", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.stop(x.src) }},
}

const lateTTL = time.Second

type lateRun struct {
	w        *simtest.World
	rng      *rand.Rand
	src, dst *simtest.Client
}

// stop pauses a client's node beyond the lease's time.
func (x *lateRun) stop(c *simtest.Client) {
	c.Node.Pause()
	x.w.Pass(2 * lateTTL)
	c.Node.Resume()
}

func (x *lateRun) attach() {
	x.src = x.w.Nodes[0].Client("src", simtest.Small, 8, x.rng.Uint64())
	x.dst = x.w.Nodes[1].Client("dst", simtest.Small, 8, x.rng.Uint64())
}

// TestLateWrites takes blocks back in every way, in the middle of a transfer over a fabric that delivers many bytes long
// after their time. The owner writes its own bytes as soon as it may; not one of them changes. That bytes really came late
// is counted. Built with the tag kvxfer_nofence it must fail: TestLateWritesAreFound.
func TestLateWrites(t *testing.T) {
	seed := testseed.Seed(t)
	for i, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var refused atomic.Int64
				x := &lateRun{rng: rand.New(rand.NewPCG(seed, uint64(i)))}
				x.w = simtest.NewWorld(t, simtest.Options{Seed: seed + uint64(i),
					Faults: simfabric.Faults{Delay: time.Millisecond, Jitter: 4 * time.Millisecond, Late: 0.4, Hold: 0.05, LateBy: 5 * time.Second},
					Trace: func(s simfabric.Step) {
						if s.What == "refuse" {
							refused.Add(1)
						}
					}})
				x.attach()
				for range lateRounds {
					x.round(t, way.do)
				}
				x.w.Pass(time.Minute)
				x.w.Check()
				t.Logf("%d packets were refused at a gate", refused.Load())
				if gate.Fences {
					assert.Greater(t, refused.Load(), int64(lateRounds))
				}
			})
		})
	}
}

func (x *lateRun) round(t *testing.T, do func(*testing.T, *lateRun, *simtest.Lease, *simtest.Transfer)) {
	perm := x.rng.Perm(8)
	n := 1 + x.rng.IntN(3)
	var from, to []uint32
	for i := range n {
		from, to = append(from, uint32(perm[i])), append(to, uint32(perm[n+i]))
	}
	l, err := x.dst.Lease(lateTTL, to...)
	require.NoError(t, err)
	p, err := x.src.Push(l.Ticket, time.Minute, from...)
	require.NoError(t, err)
	p.All()
	x.w.Pass(time.Duration(x.rng.Int64N(int64(20 * time.Millisecond))))
	do(t, x, l, p)
	x.w.Pass(lateTTL + 100*time.Millisecond)
	require.Equal(t, 1, l.Ends)
	require.Equal(t, 1, p.Ends)
	require.Equal(t, 1, p.Released)
	x.w.Check()
	if x.dst.Dropped() {
		x.dst.RegisterCache()
	}
	if x.dst.Unmapped() || x.src.Unmapped() {
		x.src.Kill()
		x.dst.Kill()
		x.w.Pass(time.Millisecond)
		require.True(t, x.dst.Unmapped() && x.src.Unmapped())
		x.attach()
	}
}

// subtest is the name that go test gives a subtest.
func subtest(name string) string { return strings.ReplaceAll(name, " ", "_") }
