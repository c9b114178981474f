package tcp

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// TestConformance runs the contract's suite. Every session has a relay of its own, which cuts it or holds its bytes.
func TestConformance(t *testing.T) { conform(t, nil) }

// TestConformanceOverTLS runs it over lanes that carry TLS.
func TestConformanceOverTLS(t *testing.T) { conform(t, newIdentity(t)) }

func conform(t *testing.T, id *peertls.Identity) {
	fabrictest.Run(t, fabrictest.Harness{New: func(t testing.TB, clock rdma.Clock) fabrictest.Pair {
		a, b := suiteNode(t, clock, id), suiteNode(t, clock, id)
		var ids atomic.Uint64
		var mu sync.Mutex
		relays := map[rdma.Initiator]*relay{}
		connect := func(t testing.TB, from, to *suiteProvider) fabrictest.Session {
			s := fabrictest.Session{InitiatorID: rdma.SessionID(ids.Add(1)), TargetID: rdma.SessionID(ids.Add(1))}
			var params []byte
			var err error
			s.Target, params, err = to.Accept(s.TargetID)
			require.NoError(t, err)
			r := newRelay(t, to.addr)
			s.Initiator, err = from.Connect(peertls.WithPeer(t.Context(), laneNode), s.InitiatorID, r.ln.Addr().String(), params)
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
	}})
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

// relay passes a session's lanes on, both ways, and can hold everything back.
type relay struct {
	ln     net.Listener
	to     string
	wg     sync.WaitGroup
	mu     sync.Mutex
	change *sync.Cond
	held   int
	dead   bool
	conns  []net.Conn
}

func newRelay(t testing.TB, to string) *relay {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{ln: ln, to: to}
	r.change = sync.NewCond(&r.mu)
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		r.cut()
		r.wg.Wait()
	})
	return r
}

func (r *relay) accept() {
	for {
		in, err := r.ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in, out)
		dead := r.dead
		r.mu.Unlock()
		if dead {
			_, _ = in.Close(), out.Close()
			continue
		}
		r.wg.Go(func() { r.pass(out, in) })
		r.wg.Go(func() { r.pass(in, out) })
	}
}

// pass copies one direction; what it has read while the relay is held is delivered afterwards.
func (r *relay) pass(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		r.mu.Lock()
		for r.held > 0 && !r.dead {
			r.change.Wait()
		}
		dead := r.dead
		r.mu.Unlock()
		if dead {
			return
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			if err == io.EOF {
				if c, ok := to.(*net.TCPConn); ok {
					_ = c.CloseWrite()
				}
			}
			return
		}
	}
}

func (r *relay) stall() func() {
	r.mu.Lock()
	r.held++
	r.mu.Unlock()
	var once sync.Once
	return func() {
		once.Do(func() {
			r.mu.Lock()
			r.held--
			r.change.Broadcast()
			r.mu.Unlock()
		})
	}
}

// cut resets every connection, as the death of a peer's host does in the end.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead = true
	r.change.Broadcast()
	for _, c := range r.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
		_ = c.Close()
	}
}
