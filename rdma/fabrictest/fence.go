package fabrictest

import (
	"sync"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// testFenceUnderLoad: Fence is called while WRITEs pour into the window. From its return on the region never changes,
// although the traffic goes on, and the session's other window is served as before.
func testFenceUnderLoad(e *env) {
	// Small, so that the picture of it is taken before a byte that is only microseconds late has landed.
	const size = 96 << 10
	s := e.connect()
	calm := e.region(s.to, size, 0, ClassTarget)
	calmKey := s.open(calm, rdma.OpWrite)
	sources := []*region{e.region(s.from, size, 0, ClassSource), e.region(s.from, size, 3, ClassSource)}
	for round := range e.less(24) {
		hot := e.region(s.to, size, 0, ClassTarget)
		hotKey := s.open(hot, rdma.OpWrite)
		stop := make(chan struct{})
		var fenced, after atomic.Int64
		var wg sync.WaitGroup
		for g := range 3 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					late := fenced.Load() == 1
					src := sources[(g+i)%2]
					hit := s.op(rdma.OpWrite, src, hotKey, rdma.Range{Len: size / 2}, rdma.Range{Local: size / 2, Remote: size / 2, Len: size / 2})
					other := s.op(rdma.OpWrite, src, calmKey, rdma.Range{Local: uint64(i % 1000), Remote: uint64(g * 4096), Len: 4096})
					if !e.noErr(s.postq(nil, hit, other), "Post") {
						return
					}
					ev, ok := s.resultq(hit.ID)
					if !ok {
						return
					}
					if ev.Status != fault.StaleKey && (late || ev.Status != 0) {
						e.errorf("a WRITE posted into a window (fenced: %v) ended with %s", late, statusName(ev.Status))
					}
					if ev, ok = s.resultq(other.ID); !ok {
						return
					}
					if ev.Status != 0 {
						e.errorf("a WRITE into the window beside the fenced one ended with %s", statusName(ev.Status))
						return
					}
					if late {
						after.Add(1)
					}
				}
			})
		}
		e.until("traffic to flow", func() bool { return CountClass(sample(hot.bytes()), ClassSource) > 0 })
		for range e.rng.IntN(500) {
			_ = CountClass(sample(hot.bytes()), ClassSource)
		}
		s.fence(hotKey)
		hot.remember()
		fenced.Store(1)
		// Watched until every operation that was under way has ended and some were posted after the fence.
		e.until("traffic after the fence", func() bool {
			if d := Diff(hot.want, hot.bytes()); d != "" {
				e.t.Fatalf("round %d: bytes landed after Fence had returned nil: %s", round, d)
			}
			return after.Load() >= 6 || e.t.Failed()
		})
		close(stop)
		e.within("a posting goroutine", wg.Wait)
		hot.check("round %d: after Fence had returned nil", round)
		e.must(hot.Close(), "Region.Close")
	}
}

// testFenceStopsReads: after Fence of a window for reading, the bytes of the next owner never reach the peer.
func testFenceStopsReads(e *env) {
	size := e.less(4 << 20)
	each := uint64(size / 4)
	s := e.connect()
	next := make([]byte, size)
	Fill(next, ClassLater, e.rng.Uint64())
	for round := range e.less(12) {
		remote, local := e.region(s.to, size, 0, ClassSource), e.region(s.from, size, 0, ClassTarget)
		key := s.open(remote, rdma.OpRead)
		var ops []rdma.Op
		for off := uint64(0); off < uint64(size); off += each {
			ops = append(ops, s.op(rdma.OpRead, local, key, rdma.Range{Local: off, Remote: off, Len: each}))
		}
		// Held back from the start, held back in the middle, or flowing.
		release := func() {}
		if e.pair.Stall != nil && round%3 == 0 {
			release = e.stall(s)
		}
		ops = s.start(ops)
		if e.pair.Stall == nil || round%3 != 0 {
			e.until("the first bytes of a READ", func() bool { return CountClass(sample(local.bytes()), ClassSource) > 0 })
		}
		if e.pair.Stall != nil && round%3 == 1 {
			release = e.stall(s)
		}
		s.fence(key)
		copy(remote.bytes(), next) // at once: what is read late must meet it
		remote.remember()
		release()
		s.ends(ops, 0, fault.StaleKey)
		if n := CountClass(local.bytes(), ClassLater); n > 0 {
			e.t.Fatalf("round %d: %d bytes that were stored after Fence had returned nil were read by the peer", round, n)
		}
		remote.check("round %d: the source of a READ", round)
	}
}

// testFenceIsPrecise: Fence ends one window: not the session's others, not one on the same bytes, not another session's.
func testFenceIsPrecise(e *env) {
	const size = 256 << 10
	s, other := e.connect(), e.connect()
	local, remote := s.sides(rdma.OpWrite, size, 4*size, 0)
	spans, err := rdma.NewSpans(4*size, rdma.Span{Off: 0, Len: size})
	e.must(err, "NewSpans")
	doomed := s.grant(remote, rdma.AccessWrite, spans, 0)
	beside, same := s.open(remote, rdma.OpWrite), s.grant(remote, rdma.AccessWrite, spans, 0)
	theirs := other.open(remote, rdma.OpWrite)
	at := func(s *session, k rdma.Key, off uint64) rdma.Op {
		return s.op(rdma.OpWrite, local, k, rdma.Range{Local: 0, Remote: off, Len: size / 2})
	}
	release, releaseOther := e.stall(s), e.stall(other)
	ops := []rdma.Op{at(s, doomed, 0), at(s, beside, size), at(s, same, size/2), at(s, doomed, 0), at(s, beside, 2*size)}
	s.post(ops...)
	otherOp := at(other, theirs, 3*size)
	other.post(otherOp)
	s.fence(doomed)
	release()
	releaseOther()
	s.ends([]rdma.Op{ops[0], ops[3]}, fault.StaleKey)
	s.ends([]rdma.Op{ops[1], ops[2], ops[4]}, 0)
	other.ends([]rdma.Op{otherOp}, 0)
	for _, o := range []rdma.Op{ops[1], ops[2], ops[4], otherOp} {
		moved(o.Kind, local, remote, o.Ranges)
	}
	remote.check("after the fence of one window among several")
	for _, k := range []rdma.Key{beside, same} {
		s.do(0, at(s, k, 0))
	}
	other.do(0, at(other, theirs, 0))
}

// testFenceNeverWaits: Fence returns nil for what is fenced already, and in bounded time whatever the peer does.
func testFenceNeverWaits(e *env) {
	for _, kind := range e.kinds() {
		s := e.connect()
		local, remote := s.sides(kind, 1<<20, 1<<20, 0)
		key := s.open(remote, kind)
		s.fence(key + 1<<40)
		s.fence(0)
		s.do(0, s.op(kind, local, key, rdma.Range{Len: 100}))
		s.fence(key)
		s.fence(key)
		traffic := func(k rdma.Key) []rdma.Op {
			var ops []rdma.Op
			for range e.less(16) {
				ops = append(ops, s.op(kind, local, k, rdma.Range{Len: 1 << 20}))
			}
			return s.start(ops)
		}
		if e.pair.Stall != nil {
			key = s.open(remote, kind)
			ops := traffic(key)
			release := e.stall(s)
			e.within("Fence while the peer is stalled", func() { e.noErr(s.Target.Fence(key), "Fence") })
			release()
			s.ends(ops, 0, fault.StaleKey)
		}
		if e.pair.Cut != nil {
			key = s.open(remote, kind)
			ops := traffic(key)
			e.pair.Cut(s.Session)
			e.within("Fence when the peer is dead", func() { e.noErr(s.Target.Fence(key), "Fence") })
			s.ends(ops, 0, fault.StaleKey, fault.PeerLost)
		}
		e.within("Target.Close", func() { e.noErr(s.Target.Close(), "Target.Close") })
		e.within("Fence after Target.Close", func() { e.noErr(s.Target.Fence(key), "Fence after Close, which has fenced all") })
	}
}
