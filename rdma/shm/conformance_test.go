package shm

import (
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// TestConformance runs the contract's suite between two providers. Every session has a relay of its own, which cuts it or
// holds its messages. The grace is longer than any test: nobody is stopped here, so taking memory back waits until the
// other side is outside, however slow the machine is. What holds when somebody is stopped is tested by itself.
func TestConformance(t *testing.T) {
	fabrictest.Run(t, fabrictest.Harness{Ways: []fabrictest.Way{fabrictest.Delivered}, New: func(t testing.TB, clock rdma.Clock) fabrictest.Pair { // polled for: TestConformanceInside
		return suitePair(t, suiteNode(t, clock), suiteNode(t, clock))
	}})
}

func suitePair(t testing.TB, a, b *Provider) fabrictest.Pair {
	var ids atomic.Uint64
	var mu sync.Mutex
	relays := map[rdma.Initiator]*relay{}
	connect := func(t testing.TB, from, to *Provider) fabrictest.Session {
		s := fabrictest.Session{InitiatorID: rdma.SessionID(ids.Add(1)), TargetID: rdma.SessionID(ids.Add(1))}
		var raw []byte
		var err error
		s.Target, raw, err = to.Accept(s.TargetID)
		require.NoError(t, err)
		r := newRelay(t, to.Path())
		par, err := parseParams(raw)
		require.NoError(t, err)
		par.path = r.path()
		s.Initiator, err = from.Connect(t.Context(), s.InitiatorID, "", par.bytes())
		require.NoError(t, err)
		mu.Lock()
		relays[s.Initiator] = r
		mu.Unlock()
		return s
	}
	of := func(s fabrictest.Session) *relay {
		mu.Lock()
		defer mu.Unlock()
		return relays[s.Initiator]
	}
	return fabrictest.Pair{
		A: a, B: b,
		Connect:     func(t testing.TB) fabrictest.Session { return connect(t, a, b) },
		ConnectBack: func(t testing.TB) fabrictest.Session { return connect(t, b, a) },
		Cut:         func(s fabrictest.Session) { of(s).cut() },
		Stall:       func(s fabrictest.Session) func() { return of(s).stall() },
	}
}

// suiteNode has small windows, so that full ones and several turns are met.
func suiteNode(t testing.TB, clock rdma.Clock) *Provider {
	p, err := New(Options{Path: filepath.Join(t.TempDir(), "s"), Clock: clock, MaxInFlight: 64, MaxInFlightLen: 8 << 20, Grace: time.Minute,
		Monotonic: func(rdma.Instant) int64 { return 0 }}) // the suite's clock is nobody else's
	require.NoError(t, err)
	return p
}
