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

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma/gate"
	"github.com/kvxfer/kvxfer/rdma/simfabric"
	"github.com/kvxfer/kvxfer/xfer/simtest"
)

// lateRounds is how often each way to take memory back is tried.
const lateRounds = 80

// ways to take memory back while bytes are on their way to it or are being read from it. A way's do returns when the owner
// may hear of the end, at the latest after the permission's time; run makes what it disturbs, looks at its end and is
// called round by round.
var ways = func() (all []way) {
	for _, w := range pushWays {
		all = append(all, way{w.name, func(t *testing.T, x *lateRun) { x.push(t, w.do) }})
	}
	for _, w := range pullWays {
		all = append(all, way{w.name, func(t *testing.T, x *lateRun) { x.pull(t, w.do) }})
	}
	for _, w := range rawWays {
		all = append(all, way{w.name, func(t *testing.T, x *lateRun) { x.scatter(t, w.mode, w.do) }})
	}
	return all
}()

type way struct {
	name string
	run  func(t *testing.T, x *lateRun)
}

var pushWays = []struct {
	name string
	do   func(t *testing.T, x *lateRun, l *simtest.Lease, p *simtest.Transfer)
}{
	{"commit", func(*testing.T, *lateRun, *simtest.Lease, *simtest.Transfer) {}}, // copies of what was placed come late
	{"deadline", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.w.Pass(lateTTL) }},
	{"renewed deadline", func(t *testing.T, x *lateRun, l *simtest.Lease, _ *simtest.Transfer) { x.renew(t, l.Renew) }},
	{"revoke", func(t *testing.T, _ *lateRun, l *simtest.Lease, _ *simtest.Transfer) { require.NoError(t, l.Revoke()) }},
	{"evict", func(t *testing.T, x *lateRun, l *simtest.Lease, _ *simtest.Transfer) {
		require.NoError(t, x.dst.Evict(l.Blocks[:1]...))
	}},
	{"cancel", func(_ *testing.T, _ *lateRun, _ *simtest.Lease, p *simtest.Transfer) { p.Cancel() }},
	{"drop", func(t *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) {
		require.NoError(t, x.dst.Drop())
	}},
	{"kill owner", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.dst.Kill() }},
	{"kill source", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.src.Kill() }},
	{"lose the link", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.w.CutLinks() }},
	{"stop the owner", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.stop(x.dst.Node) }},
	{"stop the source", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.stop(x.src.Node) }},
}

// pullWays are about two memories: the reader's own, which only the cancellation of its operations fences, and the
// source's, of which nothing may be read any more.
var pullWays = []struct {
	name string
	do   func(t *testing.T, x *lateRun, l *simtest.Lease, p *simtest.Transfer)
}{
	{"pull ends", func(*testing.T, *lateRun, *simtest.Lease, *simtest.Transfer) {}},
	{"pull cancelled", func(_ *testing.T, _ *lateRun, _ *simtest.Lease, p *simtest.Transfer) { p.Cancel() }},
	{"pull's cache dropped", func(t *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) {
		require.NoError(t, x.dst.Drop())
	}},
	{"pull's reader killed", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.dst.Kill() }},
	{"pull's reader stopped", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.stop(x.dst.Node) }},
	{"pull's link lost", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.w.CutLinks() }},
	{"pull's source revoked", func(t *testing.T, _ *lateRun, l *simtest.Lease, _ *simtest.Transfer) { require.NoError(t, l.Revoke()) }},
	{"pull's source evicted", func(t *testing.T, x *lateRun, l *simtest.Lease, _ *simtest.Transfer) {
		require.NoError(t, x.src.Evict(l.Blocks[:1]...))
	}},
	{"pull's source expired", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.w.Pass(lateTTL) }},
	{"pull's source killed", func(_ *testing.T, x *lateRun, _ *simtest.Lease, _ *simtest.Transfer) { x.src.Kill() }},
}

var rawWays = []struct {
	name, mode string
	do         func(t *testing.T, x *lateRun, a *simtest.Advert, s *simtest.Scatter)
}{
	{"raw write ends", "write", func(*testing.T, *lateRun, *simtest.Advert, *simtest.Scatter) {}},
	{"raw write cancelled", "write", func(_ *testing.T, _ *lateRun, _ *simtest.Advert, s *simtest.Scatter) { s.Cancel() }},
	{"advertisement revoked", "write", func(t *testing.T, _ *lateRun, a *simtest.Advert, _ *simtest.Scatter) { require.NoError(t, a.Revoke()) }},
	{"advertisement expired", "write", func(_ *testing.T, x *lateRun, _ *simtest.Advert, _ *simtest.Scatter) { x.w.Pass(lateTTL) }},
	{"advertisement renewed", "write", func(t *testing.T, x *lateRun, a *simtest.Advert, _ *simtest.Scatter) { x.renew(t, a.Renew) }},
	{"region deregistered", "write", func(t *testing.T, x *lateRun, _ *simtest.Advert, _ *simtest.Scatter) {
		require.NoError(t, x.rawDst.Deregister())
	}},
	{"region's owner stopped", "write", func(_ *testing.T, x *lateRun, _ *simtest.Advert, _ *simtest.Scatter) { x.stop(x.rawDst.Node) }},
	{"raw read ends", "read", func(*testing.T, *lateRun, *simtest.Advert, *simtest.Scatter) {}},
	{"raw read cancelled", "read", func(_ *testing.T, _ *lateRun, _ *simtest.Advert, s *simtest.Scatter) { s.Cancel() }},
	{"raw read's region deregistered", "read", func(t *testing.T, x *lateRun, _ *simtest.Advert, _ *simtest.Scatter) {
		require.NoError(t, x.rawSrc.Deregister())
	}},
	{"raw read's source revoked", "read", func(t *testing.T, _ *lateRun, a *simtest.Advert, _ *simtest.Scatter) { require.NoError(t, a.Revoke()) }},
}

const lateTTL = time.Second

type lateRun struct {
	w              *simtest.World
	rng            *rand.Rand
	src, dst       *simtest.Client
	rawSrc, rawDst *simtest.Raw
}

// stop pauses a node beyond the permission's time.
func (x *lateRun) stop(n *simtest.Node) {
	n.Pause()
	x.w.Pass(2 * lateTTL)
	n.Resume()
}

// renew brings the end forward to an instant at which bytes are on their way. What has ended meanwhile refuses it.
func (x *lateRun) renew(t *testing.T, renew func(time.Duration) error) {
	if err := renew(time.Duration(1+x.rng.IntN(5)) * time.Millisecond); err != nil {
		require.ErrorIs(t, err, fault.ErrNotFound)
	}
}

func (x *lateRun) attach() {
	x.src = x.w.Nodes[0].Client("src", simtest.Small, 8, x.rng.Uint64())
	x.dst = x.w.Nodes[1].Client("dst", simtest.Small, 8, x.rng.Uint64())
}

func (x *lateRun) attachRaw() {
	x.rawSrc = x.w.Nodes[0].Raw("raw-src", 8*slotSize, x.rng.Uint64())
	x.rawDst = x.w.Nodes[1].Raw("raw-dst", 8*slotSize, x.rng.Uint64())
}

// TestLateWrites takes memory back in every way, in the middle of a transfer over a fabric that delivers many bytes long
// after their time. The owner writes its own bytes as soon as it may; not one of them changes, and of a source that was
// given back no byte is read. That packets really came late is counted. Built with the tag kvxfer_nofence it must fail:
// TestLateWritesAreFound.
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
				x.attachRaw()
				for range lateRounds {
					way.run(t, x)
					x.mend(t)
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

// pair draws a few blocks, or slots, of either side.
func (x *lateRun) pair() (from, to []uint32) {
	perm := x.rng.Perm(8)
	n := 1 + x.rng.IntN(3)
	for i := range n {
		from, to = append(from, uint32(perm[i])), append(to, uint32(perm[n+i]))
	}
	return from, to
}

// middle waits until some of a transfer has happened.
func (x *lateRun) middle() { x.w.Pass(time.Duration(x.rng.Int64N(int64(20 * time.Millisecond)))) }

// after waits until the permission's time is over.
func (x *lateRun) after() { x.w.Pass(lateTTL + 100*time.Millisecond) }

func (x *lateRun) push(t *testing.T, do func(*testing.T, *lateRun, *simtest.Lease, *simtest.Transfer)) {
	from, to := x.pair()
	l, err := x.dst.Lease(lateTTL, to...)
	require.NoError(t, err)
	p, err := x.src.Push(l.Ticket, time.Minute, from...)
	require.NoError(t, err)
	p.All()
	x.middle()
	do(t, x, l, p)
	x.after()
	require.Equal(t, []int{1, 1, 1}, []int{l.Ends, p.Ends, p.Released})
}

func (x *lateRun) pull(t *testing.T, do func(*testing.T, *lateRun, *simtest.Lease, *simtest.Transfer)) {
	from, to := x.pair()
	l, err := x.src.Offer(lateTTL, 1, from...)
	require.NoError(t, err)
	p, err := x.dst.Pull(l.Ticket, time.Minute, nil, to...)
	require.NoError(t, err)
	x.middle()
	do(t, x, l, p)
	x.after()
	require.Equal(t, []int{1, 1, 1}, []int{l.Ends, p.Ends, p.Released})
}

// scatter moves slots from rawSrc to rawDst; who writes begins the transfer, and so does who reads.
func (x *lateRun) scatter(t *testing.T, mode string, do func(*testing.T, *lateRun, *simtest.Advert, *simtest.Scatter)) {
	owner, peer := x.rawDst, x.rawSrc
	if mode == wire.ModeRead {
		owner, peer = peer, owner
	}
	mine, theirs := x.pair()
	var spans []wire.RegionSpan
	var ranges []wire.ScatterRange
	for i := range mine {
		spans = append(spans, wire.RegionSpan{Off: uint64(mine[i]) * slotSize, Len: slotSize})
		ranges = append(ranges, wire.ScatterRange{Local: uint64(theirs[i]) * slotSize, Remote: uint64(mine[i]) * slotSize, Len: slotSize})
	}
	a, err := owner.Advertise(mode, 1, lateTTL, spans...)
	require.NoError(t, err)
	s, err := peer.Scatter(mode, a.Ticket, time.Minute, nil, ranges...)
	require.NoError(t, err)
	x.middle()
	do(t, x, a, s)
	x.after()
	require.Equal(t, []int{1, 1, 1}, []int{a.Ends, s.Ends, s.Released})
}

// mend looks at everything and replaces who is gone.
func (x *lateRun) mend(t *testing.T) {
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
	if x.rawDst.Unmapped() || x.rawSrc.Unmapped() {
		x.rawSrc.Kill()
		x.rawDst.Kill()
		x.w.Pass(time.Millisecond)
		require.True(t, x.rawDst.Unmapped() && x.rawSrc.Unmapped())
		x.attachRaw()
	}
}

// subtest is the name that go test gives a subtest.
func subtest(name string) string { return strings.ReplaceAll(name, " ", "_") }
