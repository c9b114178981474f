package simfabric_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
	"github.com/kvxfer/kvxfer/rdma/simfabric"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mixes are what the conformance suite meets. Nothing in them ends a session by itself: the suite does that.
var mixes = map[string]simfabric.Options{
	"calm":    {Chunk: 64 << 10},
	"shuffle": {Chunk: 8 << 10, Faults: simfabric.Faults{Delay: 20 * time.Microsecond, Jitter: 300 * time.Microsecond}},
	"rough": {Chunk: 32 << 10, Faults: simfabric.Faults{Delay: 10 * time.Microsecond, Jitter: 100 * time.Microsecond, Loss: 0.1,
		Duplicate: 0.2, Late: 0.1, Hold: 0.005, LateBy: 4 * time.Millisecond}},
}

// TestConformance runs the contract's suite in real time, which the fabric's packets take; deadlines are the suite's own.
// Each pair of nodes has a seed of its own.
func TestConformance(t *testing.T) {
	seed := testseed.Seed(t)
	for _, name := range []string{"calm", "shuffle", "rough"} {
		t.Run(name, func(t *testing.T) { fabrictest.Run(t, harness(mixes[name], &seed)) })
	}
}

func harness(opt simfabric.Options, seed *uint64) fabrictest.Harness {
	return fabrictest.Harness{New: func(t testing.TB, clock rdma.Clock) fabrictest.Pair {
		*seed++
		f, err := simfabric.New(*seed, opt)
		require.NoError(t, err)
		t.Cleanup(f.Close)
		a, b := f.NodeWithClock("a", clock), f.NodeWithClock("b", clock)
		var ids atomic.Uint64
		connect := func(from, to *simfabric.Node) func(t testing.TB) fabrictest.Session {
			return func(t testing.TB) fabrictest.Session {
				s := fabrictest.Session{InitiatorID: rdma.SessionID(ids.Add(1)), TargetID: rdma.SessionID(ids.Add(1))}
				s.Initiator, s.Target = join(t, from, to, s.InitiatorID, s.TargetID)
				return s
			}
		}
		return fabrictest.Pair{A: a, B: b, Connect: connect(a, b), ConnectBack: connect(b, a),
			Cut:   func(s fabrictest.Session) { f.Cut(s.Initiator) },
			Stall: func(s fabrictest.Session) func() { return f.Stall(s.Target) },
		}
	}}
}

// join makes a session.
func join(t testing.TB, from, to *simfabric.Node, here, there rdma.SessionID) (rdma.Initiator, rdma.Target) {
	target, params, err := to.Accept(there)
	require.NoError(t, err)
	initiator, err := from.Connect(t.Context(), here, "", params)
	require.NoError(t, err)
	return initiator, target
}
