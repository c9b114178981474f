package tcp

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
	"github.com/kvxfer/kvxfer/rdma/fabrictest/relay"
)

// TestConformance runs the contract's suite. Every session has a relay of its own, which cuts it or holds its bytes. Events that
// are polled for go the same way to the outbox; TestProcessConformance has them.
func TestConformance(t *testing.T) {
	fabrictest.Run(t, fabrictest.Harness{New: suitePair(nil), Ways: []fabrictest.Way{fabrictest.Delivered, fabrictest.Attached}})
}

// TestConformanceOverTLS runs it over lanes that carry TLS.
func TestConformanceOverTLS(t *testing.T) {
	fabrictest.Run(t, fabrictest.Harness{New: suitePair(newIdentity(t)), Ways: []fabrictest.Way{fabrictest.Delivered}})
}

func suitePair(id *peertls.Identity) func(t testing.TB, clock rdma.Clock) fabrictest.Pair {
	return func(t testing.TB, clock rdma.Clock) fabrictest.Pair {
		a, b := suiteNode(t, clock, id), suiteNode(t, clock, id)
		var ids atomic.Uint64
		var mu sync.Mutex
		relays := map[rdma.Initiator]*relay.Relay{}
		connect := func(t testing.TB, from, to *suiteProvider) fabrictest.Session {
			s := fabrictest.Session{InitiatorID: rdma.SessionID(ids.Add(1)), TargetID: rdma.SessionID(ids.Add(1))}
			var params []byte
			var err error
			s.Target, params, err = to.Accept(s.TargetID)
			require.NoError(t, err)
			r := relay.New(t, to.addr)
			s.Initiator, err = from.Connect(peertls.WithPeer(t.Context(), laneNode), s.InitiatorID, r.Addr(), params)
			require.NoError(t, err)
			mu.Lock()
			relays[s.Initiator] = r
			mu.Unlock()
			return s
		}
		of := func(s fabrictest.Session) *relay.Relay {
			mu.Lock()
			defer mu.Unlock()
			return relays[s.Initiator]
		}
		return fabrictest.Pair{
			A: a, B: b,
			Connect:     func(t testing.TB) fabrictest.Session { return connect(t, a, b) },
			ConnectBack: func(t testing.TB) fabrictest.Session { return connect(t, b, a) },
			Cut:         func(s fabrictest.Session) { of(s).Cut() },
			Stall:       func(s fabrictest.Session) func() { return of(s).Stall() },
		}
	}
}

// suiteProvider is a provider with its peer port; the suite closes the provider.
type suiteProvider struct {
	*Provider
	addr string
}

func suiteNode(t testing.TB, clock rdma.Clock, id *peertls.Identity) *suiteProvider {
	// Small windows, so that full ones and several turns are met.
	p, err := New(overTLS(id, Options{Clock: clock, Lanes: 2, MaxInFlight: 64, MaxInFlightLen: 8 << 20}))
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = serveLane(p, id, c, 0) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
	return &suiteProvider{p, ln.Addr().String()}
}
