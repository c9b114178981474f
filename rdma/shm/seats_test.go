package shm

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/eventqueue"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// TestConformanceInside runs the contract's suite on sessions within one provider. To stall one is to hold its copies back before
// the next chunk, outside of the gates, where a worker stands that the system does not run.
func TestConformanceInside(t *testing.T) {
	fabrictest.Run(t, fabrictest.Harness{New: newSeats, NoCut: "both sides are one process: nothing dies alone"})
}

// seat is one side of a pair that lives in one provider. It has the events of its own sessions, as all users of one provider tell
// them apart by the session, and closing it closes those sessions. The provider is closed with the second.
type seat struct {
	*Provider
	h      *hub
	events *eventqueue.Queue
	take   func([]rdma.Event)

	mu     sync.Mutex
	closed bool
	ends   []func() error
	owns   map[rdma.Region]bool
}

// seatTarget refuses the other seat's regions, which in one provider are as good as its own.
type seatTarget struct {
	rdma.Target
	s *seat
}

func (t seatTarget) Grant(w rdma.Window) (rdma.Key, error) {
	if !t.s.has(w.Region) {
		return 0, fault.Invalid("grant", "Region", "another seat's")
	}
	return t.Target.Grant(w)
}

// hub hands a provider's events to its two seats.
type hub struct {
	p        *Provider
	wg       sync.WaitGroup
	open     atomic.Int32
	delivers atomic.Bool
	mu       sync.Mutex
	seats    map[rdma.SessionID]*seat
}

func (h *hub) pump() {
	buf := make([]rdma.Event, 32)
	for {
		n := h.p.Poll(buf)
		for _, ev := range buf[:n] {
			h.mu.Lock()
			s := h.seats[ev.Session]
			h.mu.Unlock()
			s.events.Push(ev)
		}
		if n == 0 && h.p.Wait(context.Background()) != nil {
			return
		}
	}
}

func (s *seat) Poll(dst []rdma.Event) int      { return s.events.Poll(dst) }
func (s *seat) Wait(ctx context.Context) error { return s.events.Wait(ctx) }
func (s *seat) isClosed() bool                 { s.mu.Lock(); defer s.mu.Unlock(); return s.closed }
func (s *seat) has(r rdma.Region) bool         { s.mu.Lock(); defer s.mu.Unlock(); return s.owns[r] }
func (s *seat) later(f func() error)           { s.mu.Lock(); defer s.mu.Unlock(); s.ends = append(s.ends, f) }
func (s *seat) of(id rdma.SessionID)           { s.h.mu.Lock(); defer s.h.mu.Unlock(); s.h.seats[id] = s }

// Deliver has the events of this seat's sessions brought, by one delivery of the provider for both seats.
func (s *seat) Deliver(take func([]rdma.Event)) {
	s.take = take
	if s.h.delivers.Swap(true) {
		return
	}
	s.h.p.Deliver(func(evs []rdma.Event) {
		s.h.mu.Lock()
		of := s.h.seats[evs[0].Session] // one delivery is of one session
		s.h.mu.Unlock()
		of.take(evs)
	})
}

func (s *seat) Register(m rdma.Memory) (rdma.Region, error) {
	if s.isClosed() {
		return nil, errClosed("register")
	}
	r, err := s.Provider.Register(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owns[r] = true
	return r, err
}

func (s *seat) Accept(id rdma.SessionID) (rdma.Target, []byte, error) {
	if s.isClosed() {
		return nil, nil, errClosed("accept")
	}
	s.of(id)
	t, par, err := s.Provider.Accept(id)
	if err == nil {
		s.later(t.Close)
	}
	return seatTarget{t, s}, par, err
}

func (s *seat) Connect(ctx context.Context, id rdma.SessionID, addr string, par []byte) (rdma.Initiator, error) {
	s.of(id)
	i, err := s.Provider.Connect(ctx, id, addr, par)
	if err == nil {
		s.later(i.Close)
	}
	return i, err
}

func (s *seat) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return nil
	}
	for _, f := range s.ends {
		if err := f(); err != nil {
			return err
		}
	}
	if s.h.open.Add(-1) > 0 {
		s.events.Close()
		return nil
	}
	err := s.h.p.Close()
	s.h.wg.Wait()
	s.events.Close()
	return err
}

func newSeats(t testing.TB, clock rdma.Clock) fabrictest.Pair {
	h := &hub{p: suiteNode(t, clock), seats: map[rdma.SessionID]*seat{}}
	h.open.Store(2)
	h.wg.Go(h.pump)
	a, b := &seat{Provider: h.p, h: h, events: eventqueue.New(), owns: map[rdma.Region]bool{}}, &seat{Provider: h.p, h: h, events: eventqueue.New(), owns: map[rdma.Region]bool{}}
	var ids atomic.Uint64
	var mu sync.Mutex
	stalls := map[rdma.Initiator]*stall{}
	connect := func(t testing.TB, from, to *seat) fabrictest.Session {
		s := fabrictest.Session{InitiatorID: rdma.SessionID(ids.Add(1)), TargetID: rdma.SessionID(ids.Add(1))}
		var par []byte
		var err error
		s.Target, par, err = to.Accept(s.TargetID)
		require.NoError(t, err)
		s.Initiator, err = from.Connect(t.Context(), s.InitiatorID, "", par)
		require.NoError(t, err)
		i := s.Initiator.(*local)
		x := &stall{over: i.isOver}
		i.hold = x.hold
		mu.Lock()
		stalls[s.Initiator] = x
		mu.Unlock()
		return s
	}
	return fabrictest.Pair{
		A: a, B: b,
		Connect:     func(t testing.TB) fabrictest.Session { return connect(t, a, b) },
		ConnectBack: func(t testing.TB) fabrictest.Session { return connect(t, b, a) },
		Stall: func(s fabrictest.Session) func() {
			mu.Lock()
			defer mu.Unlock()
			return stalls[s.Initiator].begin()
		},
	}
}

// stall holds a session's copies back.
type stall struct {
	held atomic.Int32
	over func() bool
}

func (s *stall) hold() {
	for s.held.Load() > 0 && !s.over() {
		time.Sleep(50 * time.Microsecond)
	}
}

func (s *stall) begin() func() {
	s.held.Add(1)
	return sync.OnceFunc(func() { s.held.Add(-1) })
}
