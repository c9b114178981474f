package fabrictest

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// testCompletionReleasesSource: a completion that comes early (Cancel, Close, Region.Close) comes while the peer is
// stalled, and from then on nobody reads the source: what is stored there afterwards never arrives, and no access to
// it is needed any more.
func testCompletionReleasesSource(e *env) {
	const size = 512 << 10
	n := e.less(12)
	for round := range 6 {
		s := e.connect()
		local, remote := s.sides(rdma.OpWrite, size, size, 0)
		key := s.open(remote, rdma.OpWrite)
		var ops []rdma.Op
		for range n {
			ops = append(ops, s.op(rdma.OpWrite, local, key, rdma.Range{Len: size / 2}, rdma.Range{Local: size / 2, Remote: size / 2, Len: size / 2}))
		}
		var release func()
		statuses := []fault.Code{fault.Cancelled}
		if round%2 == 0 {
			release = e.stall(s)
			ops = s.start(ops)
		} else {
			ops = s.start(ops)
			e.until("the first bytes of a WRITE", func() bool { return CountClass(sample(remote.bytes()), ClassSource) > 0 })
			release = e.stall(s)
			statuses = append(statuses, 0)
		}
		survives := true
		switch round / 2 {
		case 0:
			s.Initiator.Cancel(ids(ops)...)
		case 1:
			e.within("Region.Close while the peer is stalled", func() { e.noErr(local.Close(), "Region.Close") })
		case 2:
			survives = false
			statuses[0] = fault.Closed
			e.within("Initiator.Close while the peer is stalled", func() { e.noErr(s.Initiator.Close(), "Initiator.Close") })
		}
		s.ends(ops, statuses...)
		local.recycle()
		watch := func() {
			if k := CountClass(remote.bytes(), ClassLater); k > 0 {
				e.t.Fatalf("round %d: %d bytes that were stored in the source after the completion arrived", round, k)
			}
		}
		if round%2 == 1 {
			e.must(local.mem.protect(true), "mprotect")
		}
		release()
		if survives {
			s.flush(watch)
		} else {
			e.linger(watch)
		}
		e.must(local.mem.protect(false), "mprotect")
		local.check("round %d: the source", round)
		s.saysWrote(ops, remote)
		s.fence(key)
	}
}

// testCancelStopsRead: after a cancelled READ has completed, its local memory belongs to its owner again, whatever of
// the READ is still under way.
func testCancelStopsRead(e *env) {
	const size = 512 << 10
	n := e.less(12)
	s := e.connect()
	for round := range 8 {
		local, remote := s.sides(rdma.OpRead, size, size, 0)
		key := s.open(remote, rdma.OpRead)
		var ops []rdma.Op
		for range n {
			ops = append(ops, s.op(rdma.OpRead, local, key, rdma.Range{Len: size / 2}, rdma.Range{Local: size / 2, Remote: size / 2, Len: size / 2}))
		}
		release := func() {}
		statuses := []fault.Code{fault.Cancelled}
		if round%2 == 0 {
			release = e.stall(s)
			ops = s.start(ops)
		} else {
			ops = s.start(ops)
			e.until("the first bytes of a READ", func() bool { return CountClass(sample(local.bytes()), ClassSource) > 0 })
			statuses = append(statuses, 0)
		}
		s.Initiator.Cancel(ids(ops)...)
		s.ends(ops, statuses...)
		local.recycle()
		release()
		s.flush(func() { local.check("round %d: after the completion of a cancelled READ", round) })
		remote.check("round %d: the source of a READ", round)
		s.fence(key)
	}
}

// testArrivalAfterBytes: whoever polls an arrival, or the success of a WRITE, finds the bytes in place at that moment.
// Every successful WRITE arrives, with its tag, key and length; nothing else does.
func testArrivalAfterBytes(e *env) {
	const n, slot, batch = 240, 96 << 10, 48
	s := e.connect()
	type write struct {
		op     rdma.Op
		key    rdma.Key
		off, l uint64
	}
	local, remote := s.sides(rdma.OpWrite, n*slot, n*slot, 0)
	keys := []rdma.Key{s.open(remote, rdma.OpWrite), s.open(remote, rdma.OpWrite)}
	dead := s.open(remote, rdma.OpWrite)
	s.fence(dead)
	byTag, byOp := map[uint64]write{}, map[uint64]write{}
	var ops, failing []rdma.Op
	for i := range n {
		w := write{key: keys[i%2], off: uint64(i * slot), l: uint64(e.rng.IntN(1 << (i % 17)))}
		if i%5 == 0 {
			w.l = uint64(slot - i)
		}
		if i == 3 {
			w.l = 0
		}
		w.op = s.op(rdma.OpWrite, local, w.key, rdma.Range{Local: w.off, Remote: w.off, Len: w.l / 2},
			rdma.Range{Local: w.off + w.l/2, Remote: w.off + w.l/2, Len: w.l - w.l/2})
		w.op.Tag = e.rng.Uint64()
		if i < 2 {
			w.op.Tag = -uint64(i) // 0 and the largest
		}
		byTag[w.op.Tag], byOp[w.op.ID] = w, w
		ops = append(ops, w.op)
		if i%20 == 0 {
			failing = append(failing, s.op(rdma.OpWrite, local, dead, rdma.Range{Len: 10}))
		}
	}
	// The pumps call these between Poll and everything else.
	placed := func(w write) string {
		return Diff(local.bytes()[w.off:w.off+w.l], remote.bytes()[w.off:w.off+w.l])
	}
	s.to.locked(func() {
		s.to.onEvent = func(ev rdma.Event) {
			if ev.Kind != rdma.EventArrival {
				return
			}
			w, ok := byTag[ev.Tag]
			switch {
			case !ok:
				s.to.breach("an arrival with tag %#x, which no successful WRITE has", ev.Tag)
			case ev.Session != s.TargetID || ev.Key != w.key || ev.Bytes != w.l:
				s.to.breach("the arrival of a WRITE of %d bytes through key %d of session %d says %+v", w.l, w.key, s.TargetID, ev)
			default:
				if d := placed(w); d != "" {
					s.to.breach("an arrival was polled before its bytes were there: %s", d)
				}
			}
		}
	})
	s.from.locked(func() {
		s.from.onEvent = func(ev rdma.Event) {
			if w, ok := byOp[ev.Op]; ok && ev.Kind == rdma.EventCompletion && ev.Status == 0 {
				if d := placed(w); d != "" {
					s.from.breach("a WRITE completed with success before its bytes were there: %s", d)
				}
			}
		}
	})
	for i := 0; i < n; i += batch {
		s.post(ops[i : i+batch]...)
	}
	s.post(failing...)
	s.ends(ops, 0)
	s.ends(failing, fault.StaleKey)
	if e.caps.Read {
		rk := s.grant(remote, rdma.AccessRead, remote.all(), 0)
		into := e.region(s.from, 4096, 0, ClassTarget)
		s.do(0, s.op(rdma.OpRead, into, rk, rdma.Range{Len: 4096}))
	}
	s.to.wait("the arrival of every successful WRITE", func() bool { return len(s.to.arrived) >= n })
	e.linger(func() {})
	for _, o := range ops {
		moved(o.Kind, local, remote, o.Ranges)
	}
	remote.check("after all arrivals")
	s.to.locked(func() {
		if len(s.to.arrived) != n {
			e.errorf("%d distinct tags arrived, want %d", len(s.to.arrived), n)
		}
	})
}

// testLeaks: pairs that were used and closed leave no goroutine and no file descriptor behind, cleanly closed or not.
func testLeaks(outer *env) {
	// The first round warms up what the runtime keeps (its poller), so the count is taken behind it.
	var before int
	for round := range 4 {
		outer.t.Run([...]string{"WarmUp", "Closed", "SessionsLeftOpen", "Cut"}[round], func(t *testing.T) {
			ignore := goleak.IgnoreCurrent()
			var e *env
			t.Run("Traffic", func(t *testing.T) {
				e = newEnv(t, outer.h)
				kind := e.kinds()[0]
				for range 3 {
					s := e.connect()
					local, remote := s.sides(kind, 1<<20, 1<<20, 0)
					s.do(0, s.op(kind, local, s.open(remote, kind), rdma.Range{Len: 1 << 20}))
					switch {
					case round == 3 && e.pair.Cut != nil:
						e.pair.Cut(s.Session)
						s.from.wait("EventDown", func() bool { return s.from.down[s.InitiatorID].count > 0 })
					case round < 2:
						e.must(s.Initiator.Close(), "Initiator.Close")
						e.must(s.Target.Close(), "Target.Close")
						e.must(local.Close(), "Region.Close")
						e.must(remote.Close(), "Region.Close")
					}
				}
			})
			if t.Failed() {
				return
			}
			e.t, e.over = t, false
			e.noGoroutines(ignore)
			if round == 0 {
				before = openFDs(e)
				return
			}
			e.until("the file descriptors of closed providers to be closed", func() bool { return openFDs(e) <= before })
		})
	}
}

func openFDs(e *env) int {
	d, err := os.ReadDir("/proc/self/fd")
	e.must(err, "listing /proc/self/fd")
	return len(d)
}
