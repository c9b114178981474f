package fabrictest

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// storm is traffic of several goroutines that goes on until it is stopped or the session has ended.
type storm struct {
	s    *session
	stop chan struct{}
	wg   sync.WaitGroup
	mu   sync.Mutex
	ops  []rdma.Op
}

// startStorm posts batches of all sizes, in both directions where possible, through the keys that key names.
func (s *session) startStorm(goroutines int, key func(rdma.OpKind) (*region, rdma.Key)) *storm {
	const localLen = 1 << 20
	st := &storm{s: s, stop: make(chan struct{})}
	kinds := s.e.kinds()
	for g := range goroutines {
		local := s.e.region(s.from, localLen, 0, ClassSource)
		rng := rand.New(rand.NewPCG(s.e.seed, uint64(g)+100))
		st.wg.Go(func() {
			for {
				select {
				case <-st.stop:
					return
				default:
				}
				ops := make([]rdma.Op, 1+rng.IntN(12))
				for i := range ops {
					kind := kinds[rng.IntN(len(kinds))]
					remote, k := key(kind)
					ranges := make([]rdma.Range, 1+rng.IntN(4))
					for j := range ranges {
						l := rng.IntN(1 << rng.IntN(17))
						ranges[j] = rdma.Range{
							Local:  uint64(rng.IntN(localLen - l)),
							Remote: uint64(rng.IntN(len(remote.bytes()) - l)),
							Len:    uint64(l)}
					}
					ops[i] = s.op(kind, local, k, ranges...)
				}
				st.mu.Lock()
				st.ops = append(st.ops, ops...)
				st.mu.Unlock()
				if err := s.postq(st.stop, ops...); err != nil {
					if c := fault.CodeOf(err); c != fault.PeerLost && c != fault.Closed {
						s.e.errorf("Post to a session that has ended: want PeerLost or Closed, got %v", err)
					}
					return
				}
			}
		})
	}
	return st
}

// reach waits until n operations have completed since the test began.
func (st *storm) reach(n int) {
	st.s.e.t.Helper()
	st.s.from.wait("traffic to flow", func() bool { return st.s.from.endings[st.s.InitiatorID] >= n })
}

// end stops the traffic, waits for every completion and requires each status to be among those allowed.
func (st *storm) end(what string, allowed ...fault.Code) {
	e := st.s.e
	e.t.Helper()
	close(st.stop)
	// A poster that waits for room looks at stop when events come; those of its own operations do.
	e.within("a posting goroutine, "+what, st.wg.Wait)
	if !st.s.from.settle(what) {
		e.t.FailNow()
	}
	counts := map[fault.Code]int{}
	st.s.from.locked(func() {
		for _, o := range st.ops {
			if c := st.s.from.ended[opKey{st.s.InitiatorID, o.ID}]; c != nil {
				counts[c.Status]++
			}
		}
	})
	for c, n := range counts {
		if !slices.Contains(allowed, c) {
			e.errorf("%s: %d operations ended with %s; allowed: %v", what, n, statusName(c), names(allowed))
		}
	}
	e.t.Logf("%s: %v", what, counts)
}

// testEveryOpCompletes: whatever ends the traffic, each operation that was taken completes exactly once. The count
// itself is checked by env.tearDown, after the last event.
func testEveryOpCompletes(outer *env) {
	windows := func(s *session) func(rdma.OpKind) (*region, rdma.Key) {
		w, r := s.e.region(s.to, 1<<20, 0, ClassTarget), s.e.region(s.to, 1<<20, 0, ClassTarget)
		wk, rk := s.grant(w, rdma.AccessWrite, w.all(), 0), s.grant(r, rdma.AccessRead, r.all(), 0)
		return func(k rdma.OpKind) (*region, rdma.Key) {
			if k == rdma.OpRead {
				return r, rk
			}
			return w, wk
		}
	}
	ended := []fault.Code{0, fault.PeerLost, fault.Closed, fault.StaleKey}
	for _, tt := range []struct {
		name    string
		needs   need
		allowed []fault.Code
		disturb func(e *env, s *session, st *storm)
	}{
		{"Undisturbed", 0, []fault.Code{0}, func(e *env, s *session, st *storm) { st.reach(600) }},
		{"Cut", needCut, []fault.Code{0, fault.PeerLost}, func(e *env, s *session, st *storm) { e.pair.Cut(s.Session) }},
		{"InitiatorClose", 0, []fault.Code{0, fault.Closed}, func(e *env, s *session, st *storm) {
			e.within("Initiator.Close", func() { e.noErr(s.Initiator.Close(), "Initiator.Close") })
		}},
		{"TargetClose", 0, ended, func(e *env, s *session, st *storm) {
			e.within("Target.Close", func() { e.noErr(s.Target.Close(), "Target.Close") })
		}},
		{"ProviderCloseHere", 0, []fault.Code{0, fault.Closed}, func(e *env, s *session, st *storm) {
			e.within("Provider.Close", func() { e.noErr(e.pair.A.Close(), "Provider.Close") })
		}},
		{"ProviderCloseThere", 0, ended, func(e *env, s *session, st *storm) {
			e.within("Provider.Close", func() { e.noErr(e.pair.B.Close(), "Provider.Close") })
		}},
		{"CancelStorm", 0, []fault.Code{0, fault.Cancelled}, func(e *env, s *session, st *storm) {
			cancelAtRandom(e, s, st, 300)
		}},
		{"CancelThenCut", needCut, []fault.Code{0, fault.Cancelled, fault.PeerLost}, func(e *env, s *session, st *storm) {
			cancelAtRandom(e, s, st, 50)
			e.pair.Cut(s.Session)
		}},
		{"CancelThenClose", 0, []fault.Code{0, fault.Cancelled, fault.Closed}, func(e *env, s *session, st *storm) {
			cancelAtRandom(e, s, st, 50)
			e.within("Initiator.Close", func() { e.noErr(s.Initiator.Close(), "Initiator.Close") })
		}},
	} {
		outer.t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, outer.h)
			e.require(tt.needs)
			s := e.connect()
			st := s.startStorm(3, windows(s))
			st.reach(200)
			tt.disturb(e, s, st)
			st.end(tt.name, tt.allowed...)
		})
	}
	outer.t.Run("FenceStorm", func(t *testing.T) { fenceStorm(newEnv(t, outer.h)) })
	outer.t.Run("IDsAreReusable", func(t *testing.T) { reuseIDs(newEnv(t, outer.h)) })
}

// cancelAtRandom cancels, from two goroutines, operations that are pending, done, cancelled already or unknown.
func cancelAtRandom(e *env, s *session, st *storm, times int) {
	var wg sync.WaitGroup
	for g := range 2 {
		rng := rand.New(rand.NewPCG(e.seed, uint64(g)+200))
		wg.Go(func() {
			for range times {
				st.mu.Lock()
				recent := st.ops[max(0, len(st.ops)-64):]
				victims := []uint64{^uint64(0), 0}
				for range 1 + rng.IntN(8) {
					if len(recent) > 0 {
						victims = append(victims, recent[rng.IntN(len(recent))].ID)
					}
				}
				st.mu.Unlock()
				s.Initiator.Cancel(victims...)
			}
		})
	}
	e.within("Cancel", wg.Wait)
	s.Initiator.Cancel()
}

// fenceStorm: windows come and go under traffic; operations end with success or StaleKey and each just once.
func fenceStorm(e *env) {
	s := e.connect()
	var mu sync.Mutex
	type win struct {
		r *region
		k rdma.Key
	}
	cur := map[rdma.OpKind]win{}
	for _, k := range e.kinds() {
		r := e.region(s.to, 1<<20, 0, ClassTarget)
		cur[k] = win{r, s.open(r, k)}
	}
	st := s.startStorm(3, func(k rdma.OpKind) (*region, rdma.Key) {
		mu.Lock()
		defer mu.Unlock()
		return cur[k].r, cur[k].k
	})
	for i := range e.less(30) {
		st.reach(20 * (i + 1))
		for _, k := range e.kinds() {
			old := cur[k]
			fresh := s.open(old.r, k)
			mu.Lock()
			cur[k] = win{old.r, fresh}
			mu.Unlock()
			s.fence(old.k)
		}
	}
	st.end("FenceStorm", 0, fault.StaleKey)
}

// reuseIDs: an id is free again as soon as its completion was polled, and is another session's own matter.
func reuseIDs(e *env) {
	a, b := e.connect(), e.connect()
	for _, kind := range e.kinds() {
		local, remote := a.sides(kind, 4096, 4096, 0)
		ka, kb := a.open(remote, kind), b.open(remote, kind)
		op := a.op(kind, local, ka, rdma.Range{Len: 100})
		for range 20 {
			for _, s := range []*session{a, b} {
				s.from.locked(func() { delete(s.from.ended, opKey{s.InitiatorID, op.ID}) })
				op.Remote = map[*session]rdma.Key{a: ka, b: kb}[s]
				s.post(op)
			}
			a.ends([]rdma.Op{op}, 0)
			b.ends([]rdma.Op{op}, 0)
		}
	}
}

// testPeerDeath: when the peer dies, everything pending ends with PeerLost, then EventDown comes, once, on both sides.
// The target's windows stay until they are fenced, which works without the peer.
func testPeerDeath(e *env) {
	for _, kind := range e.kinds() {
		s, other := e.connect(), e.connect()
		local, remote := s.sides(kind, 1<<20, 1<<20, 0)
		key := s.open(remote, kind)
		s.do(0, s.op(kind, local, key, rdma.Range{Len: 1000}))
		release := e.stall(s)
		var ops []rdma.Op
		for range 20 {
			ops = append(ops, s.op(kind, local, key, rdma.Range{Local: 1, Remote: 1, Len: 300 << 10}))
		}
		ops = s.start(ops)
		e.pair.Cut(s.Session)
		s.ends(ops, fault.PeerLost)
		for _, side := range []struct {
			n  *node
			id rdma.SessionID
		}{{s.from, s.InitiatorID}, {s.to, s.TargetID}} {
			side.n.wait("EventDown of a session that was cut", func() bool { return side.n.down[side.id].count > 0 })
			side.n.locked(func() {
				if c := side.n.down[side.id].Status; c != fault.PeerLost {
					e.errorf("EventDown at node %s: want status PeerLost, got %s", side.n.name, statusName(c))
				}
			})
		}
		if n, err := s.try(s.op(kind, local, key, rdma.Range{Len: 1})); n != 0 || fault.CodeOf(err) != fault.PeerLost {
			e.errorf("Post after EventDown took %d with error %v, want PeerLost", n, err)
		}
		e.must(s.Target.Extend(key, e.clock.In(1e9)), "Extend of a window whose session is down: windows stay until Fence or Close")
		s.fence(key)
		movedInto(kind, local, remote).recycle()
		release()
		e.linger(func() { movedInto(kind, local, remote).check("what a dead peer left behind") })
		e.within("Close of a session that is down", func() {
			e.noErr(s.Initiator.Close(), "Initiator.Close")
			e.noErr(s.Target.Close(), "Target.Close")
		})
		// The peer's other session is its own.
		k := other.open(remote, kind)
		other.do(0, other.op(kind, local, k, rdma.Range{Local: 9, Remote: 9, Len: 100}))
	}
}

// testAfterClose: closed things say so, closing twice is harmless, and no EventDown follows a Close of one's own.
func testAfterClose(e *env) {
	kind := e.kinds()[0]
	s, t2, live := e.connect(), e.connect(), e.connect()
	local, remote := s.sides(kind, 4096, 4096, 0)
	key := s.open(remote, kind)
	for range 2 {
		e.within("Initiator.Close", func() { e.noErr(s.Initiator.Close(), "Initiator.Close") })
		e.within("Target.Close", func() { e.noErr(t2.Target.Close(), "Target.Close") })
	}
	if n, err := s.try(s.op(kind, local, key, rdma.Range{Len: 1})); n != 0 || fault.CodeOf(err) != fault.Closed {
		e.errorf("Post after Initiator.Close took %d with error %v, want Closed", n, err)
	}
	s.Initiator.Cancel(1, 2, 3)
	w := rdma.Window{Region: remote.Region, Access: accessOf(kind), Bounds: remote.all()}
	if _, err := t2.Target.Grant(w); fault.CodeOf(err) != fault.Closed {
		e.errorf("Grant after Target.Close: want Closed, got %v", err)
	}
	t2.fence(1)
	live.do(0, live.op(kind, local, live.open(remote, kind), rdma.Range{Len: 4096}))
	e.linger(func() {})
	s.from.locked(func() {
		if s.from.down[s.InitiatorID].count > 0 {
			e.errorf("EventDown came at the initiator after its own Close")
		}
	})
	s.to.locked(func() {
		if s.to.down[t2.TargetID].count > 0 {
			e.errorf("EventDown came at the target after its own Close")
		}
	})
	for range 2 {
		e.within("Provider.Close", func() { e.noErr(e.pair.A.Close(), "Provider.Close") })
	}
	e.a.wait("Provider.Wait to return Closed after Provider.Close", func() bool { return e.a.closed })
	if _, err := e.pair.A.Register(local.mem.Host("late")); fault.CodeOf(err) != fault.Closed {
		e.errorf("Register after Provider.Close: want Closed, got %v", err)
	}
	if _, _, err := e.pair.A.Accept(1 << 40); fault.CodeOf(err) != fault.Closed {
		e.errorf("Accept after Provider.Close: want Closed, got %v", err)
	}
	if n, err := live.try(live.op(kind, local, key, rdma.Range{Len: 1})); n != 0 || fault.CodeOf(err) != fault.Closed {
		e.errorf("Post after Provider.Close took %d with error %v, want Closed", n, err)
	}
}
