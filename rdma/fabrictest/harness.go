package fabrictest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvxfer/kvxfer/rdma"
)

// Harness tells the suite how to make a provider's nodes.
type Harness struct {
	// New makes two fresh nodes whose providers read clock. Whatever it starts besides the providers (a proxy, a
	// listener) it ends in t.Cleanup; the suite itself closes the providers.
	New func(t testing.TB, clock rdma.Clock) Pair

	// NoCut and NoStall are the reasons why a Pair has no Cut or no Stall. The tests that need them are skipped with
	// that reason; an ability that is absent without a reason fails the suite.
	NoCut, NoStall string

	// Memory, where it is set, describes the suite's mapped memory to a provider in another way that reaches the same
	// bytes: as rdma.MemoryProcess over this process's own /proc/self/mem, for example. It is called once a region.
	Memory func(m rdma.Memory) rdma.Memory

	// Slow says that the fabric moves megabytes a second and not gigabytes (one that is emulated): tests whose amounts are a matter
	// of time move less and repeat less. What is promised stays the same.
	Slow bool

	// Ways are how events come to the suite, which runs once for each; those that the provider does not have are left out.
	// nil: all of them.
	Ways []Way
	way  Way

	// Bound limits every wait for something that must happen. 0 means 20 s. It is no measure of speed: only a provider
	// that never does the thing reaches it.
	Bound time.Duration
}

// Pair is two nodes that can reach each other.
type Pair struct {
	A, B rdma.Provider

	// Connect makes one more session from A (initiator) to B (target), ConnectBack one from B to A. Each call makes
	// a session of its own, with new SessionIDs.
	Connect, ConnectBack func(t testing.TB) Session

	// Cut breaks a session as a peer's death does: without a clean close and without a word to either provider.
	// It works on a stalled session too.
	Cut func(s Session)

	// Stall holds back every byte between the session's two sides, in both directions, until release is called. What
	// was held is then delivered unchanged: it is late, not lost. Both sides go on living meanwhile. release may be
	// called after Cut or after the providers were closed; its second call does nothing.
	Stall func(s Session) (release func())
}

// Session is both ends of one session.
type Session struct {
	Initiator   rdma.Initiator
	InitiatorID rdma.SessionID // in the events of the initiator's provider
	Target      rdma.Target
	TargetID    rdma.SessionID // in the events of the target's provider
}

// Clock is a clock that only its owner moves, so that deadlines are tested without waiting for them.
type Clock struct{ now atomic.Int64 }

// NewClock makes a clock that stands well above zero, because 0 means "no deadline".
func NewClock() *Clock {
	c := new(Clock)
	c.now.Store(int64(1000 * time.Hour))
	return c
}

// Now reads the clock.
func (c *Clock) Now() rdma.Instant { return rdma.Instant(c.now.Load()) }

// Advance moves the clock forward.
func (c *Clock) Advance(d time.Duration) { c.now.Add(int64(d)) }

// In gives the instant d from now.
func (c *Clock) In(d time.Duration) rdma.Instant { return c.Now() + rdma.Instant(d) }

type need uint8

const (
	needCut need = 1 << iota
	needStall
	needWrite
	needRead
	needDeadline
	needBounds
)

type test struct {
	name  string
	needs need
	run   func(e *env)
}

// Run runs the whole suite, one subtest a promise; doc.go lists them.
// The tests with events that are polled for are the direct subtests of t, the others those of its subtests Delivered and Attached.
func Run(t *testing.T, h Harness) {
	ways := h.Ways
	if ways == nil {
		ways = []Way{Polled, Delivered, Attached}
	}
	for _, h.way = range ways {
		if h.way == Polled {
			h.run(t, tests)
			continue
		}
		t.Run(h.way.String(), func(t *testing.T) {
			if h.offers(t, h.way) {
				h.run(t, tests)
				h.run(t, []test{{"CallsFromTake", needWrite, testCallsFromTake}})
			}
		})
	}
}

func (h Harness) run(t *testing.T, tests []test) {
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, h)
			e.require(tt.needs)
			tt.run(e)
		})
	}
}

var tests = []test{
	{"Caps", 0, testCaps},
	{"Sizes", 0, testSizes},
	{"Scattered", 0, testScattered},
	{"ConcurrentPosters", 0, testConcurrentPosters},
	{"BothDirections", 0, testBothDirections},
	{"SeveralRegions", 0, testSeveralRegions},
	{"OutOfBounds", 0, testOutOfBounds},
	{"RegionEnd", 0, testRegionEnd},
	{"RefusedByPost", 0, testRefusedByPost},
	{"RefusedByGrant", 0, testRefusedByGrant},
	{"StaleKey", 0, testStaleKey},
	{"AccessIsOneWay", needWrite | needRead, testAccessIsOneWay},
	{"DeadlineStopsPlacement", needDeadline, testDeadlineStopsPlacement},
	{"DeadlineInMidOperation", needDeadline | needStall | needWrite, testDeadlineInMidOperation},
	{"ExtendMovesTheDeadline", needDeadline, testExtend},
	{"BackPressure", needStall | needWrite, testBackPressure},
	{"LargerThanTheWindow", needStall | needWrite, testLargerThanTheWindow},
	{"EveryOpCompletes", 0, testEveryOpCompletes},
	{"PeerDeath", needCut | needStall, testPeerDeath},
	{"AfterClose", 0, testAfterClose},
	{"FenceUnderLoad", needWrite, testFenceUnderLoad},
	{"FenceStopsReads", needRead, testFenceStopsReads},
	{"FenceIsPrecise", needStall | needWrite, testFenceIsPrecise},
	{"FenceNeverWaits", 0, testFenceNeverWaits},
	{"NoLateByte", needStall, testNoLateByte},
	{"RegionClose", needStall, testRegionClose},
	{"CompletionReleasesSource", needStall | needWrite, testCompletionReleasesSource},
	{"CancelStopsRead", needStall | needRead, testCancelStopsRead},
	{"ArrivalAfterBytes", needWrite, testArrivalAfterBytes},
	{"Leaks", 0, testLeaks},
}
