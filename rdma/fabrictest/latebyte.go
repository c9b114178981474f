package fabrictest

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// ending is a way to take memory back from operations in flight. kinds says which directions it fences: the target
// ends what lands in or is read from its own memory, the initiator what a READ places.
type ending struct {
	name     string
	kinds    []rdma.OpKind
	deadline bool // works through the window's deadline: only what arrives afterwards is refused
	survives bool // the session goes on
	do       func(e *env, s *session, key rdma.Key, local, remote *region, ops []rdma.Op)
}

var (
	bothKinds = []rdma.OpKind{rdma.OpWrite, rdma.OpRead}
	readKind  = []rdma.OpKind{rdma.OpRead}
)

var endings = []ending{
	{"Fence", bothKinds, false, true, func(e *env, s *session, key rdma.Key, _, _ *region, _ []rdma.Op) { s.fence(key) }},
	{"Deadline", bothKinds, true, true, func(e *env, _ *session, _ rdma.Key, _, _ *region, _ []rdma.Op) {
		e.clock.Advance(2 * time.Second)
	}},
	{"TargetClose", bothKinds, false, false, func(e *env, s *session, _ rdma.Key, _, _ *region, _ []rdma.Op) {
		e.within("Target.Close while the peer is stalled", func() { e.noErr(s.Target.Close(), "Target.Close") })
	}},
	{"RemoteRegionClose", bothKinds, false, true, func(e *env, _ *session, _ rdma.Key, _, remote *region, _ []rdma.Op) {
		e.within("Region.Close at the target while the peer is stalled", func() { e.noErr(remote.Close(), "Region.Close") })
	}},
	{"TargetProviderClose", bothKinds, false, false, func(e *env, _ *session, _ rdma.Key, _, _ *region, _ []rdma.Op) {
		e.within("Provider.Close at the target while the peer is stalled", func() { e.noErr(e.pair.B.Close(), "Provider.Close") })
	}},
	{"Cancel", readKind, false, true, func(e *env, s *session, _ rdma.Key, _, _ *region, ops []rdma.Op) {
		s.Initiator.Cancel(ids(ops)...)
		s.ends(ops, 0, fault.Cancelled)
	}},
	{"InitiatorClose", readKind, false, false, func(e *env, s *session, _ rdma.Key, _, _ *region, ops []rdma.Op) {
		e.within("Initiator.Close while the peer is stalled", func() { e.noErr(s.Initiator.Close(), "Initiator.Close") })
		s.ends(ops, 0, fault.Closed)
	}},
	{"LocalRegionClose", readKind, false, true, func(e *env, s *session, _ rdma.Key, local, _ *region, ops []rdma.Op) {
		e.within("Region.Close at the initiator while the peer is stalled", func() { e.noErr(local.Close(), "Region.Close") })
		s.ends(ops, 0, fault.Cancelled)
	}},
}

// testNoLateByte: bytes in flight are held back, the memory is taken back and given to somebody else, then what was
// held back arrives. Not one byte of the new owner's memory changes, and not one of its bytes is read.
func testNoLateByte(outer *env) {
	const rounds = 3
	for _, end := range endings {
		outer.t.Run(end.name, func(t *testing.T) {
			for round := range rounds {
				for _, kind := range end.kinds {
					t.Run(fmt.Sprintf("%s%d", kindName(kind), round), func(t *testing.T) {
						e := newEnv(t, outer.h)
						e.require(map[rdma.OpKind]need{rdma.OpWrite: needWrite, rdma.OpRead: needRead}[kind] | needStall)
						if end.deadline {
							e.require(needDeadline)
						}
						lateByte(e, end, kind, round)
					})
				}
			}
		})
	}
}

func lateByte(e *env, end ending, kind rdma.OpKind, round int) {
	size := e.less(2 << 20)
	s, bystander := e.connect(), e.connect()
	local, remote := s.sides(kind, size, size, 0)
	key := s.grant(remote, accessOf(kind), remote.all(), e.clock.In(time.Second))
	var ops []rdma.Op
	for n := 1 + e.rng.IntN(12); len(ops) < n; {
		slot := 1 + e.rng.IntN(32<<10)
		ops = append(ops, s.op(kind, local, key, scatter(e.rng, min(size/slot, 1+e.rng.IntN(40), e.caps.MaxRanges), slot)...))
	}
	ops = append(ops, s.op(kind, local, key, rdma.Range{Len: min(uint64(size), e.caps.MaxOpBytes)}))

	// Held back from the first byte on, or only after the first have landed. A deadline refuses what arrives after
	// it, and what arrived before may be landing at this moment: there only the first way says anything.
	var release func()
	if into := movedInto(kind, local, remote); round == 0 || end.deadline {
		release = e.stall(s)
		ops = s.start(ops)
	} else {
		ops = s.start(ops)
		e.until("the first bytes to land", func() bool { return CountClass(sample(into.bytes()), ClassSource) > 0 })
		release = e.stall(s)
	}
	end.do(e, s, key, local, remote, ops)

	// The promise is made; the memory has a new owner.
	watched := []*region{remote}
	if kind == rdma.OpRead {
		if end.kinds[0] == rdma.OpRead {
			watched = []*region{local} // the initiator took its own memory back
		}
	}
	for _, r := range watched {
		r.recycle()
	}
	watch := func() {
		e.t.Helper()
		for _, r := range watched {
			r.check("%s after %s", kindName(kind), end.name)
		}
		if n := CountClass(sample(local.bytes()), ClassLater); watched[0] == remote && kind == rdma.OpRead && n > 0 {
			e.t.Fatalf("READ after %s: bytes stored after it were read by the peer", end.name)
		}
	}
	watch()
	release()
	switch {
	case end.survives:
		s.flush(watch)
	case end.name == "TargetProviderClose":
		e.linger(watch)
	default:
		bystander.flush(watch)
	}
	if !s.from.settle("after " + end.name) {
		e.t.FailNow()
	}
	watch()
	if kind == rdma.OpRead && watched[0] == remote {
		if n := CountClass(local.bytes(), ClassLater); n > 0 {
			e.t.Fatalf("READ after %s: %d bytes stored after it were read by the peer", end.name, n)
		}
	}
}

// testRegionClose: Close of a region ends what names it, on either side, without the peer's help. What comes later is
// refused, and the memory can be unmapped.
func testRegionClose(e *env) {
	for _, kind := range e.kinds() {
		s := e.connect()
		local, remote := s.sides(kind, 1<<20, 1<<20, 0)
		key := s.open(remote, kind)
		release := e.stall(s)
		var ops []rdma.Op
		for range 10 {
			ops = append(ops, s.op(kind, local, key, rdma.Range{Len: 200 << 10}))
		}
		ops = s.start(ops)
		e.within("Region.Close at the initiator", func() { e.noErr(local.Close(), "Region.Close") })
		s.ends(ops, fault.Cancelled)
		e.must(local.mem.protect(true), "mprotect")
		n, err := s.try(s.op(kind, local, key, rdma.Range{Len: 1}))
		if c := fault.CodeOf(err); n != 0 || c != fault.Closed && c != fault.InvalidArgument {
			e.errorf("Post from a closed region took %d with error %v, want InvalidArgument or Closed", n, err)
		}
		fresh := e.region(s.from, 1<<20, 0, ClassTarget)
		later := s.start([]rdma.Op{s.op(kind, fresh, key, rdma.Range{Len: 200 << 10})})
		e.within("Region.Close at the target", func() { e.noErr(remote.Close(), "Region.Close") })
		e.must(remote.mem.protect(true), "mprotect")
		release()
		s.ends(later, fault.StaleKey)
		s.flush(func() {})
		e.must(local.mem.protect(false), "mprotect")
		e.must(remote.mem.protect(false), "mprotect")
		local.check("%s after Region.Close", kindName(kind))
		remote.check("%s after Region.Close", kindName(kind))
		if err := s.Target.Fence(key); err != nil {
			e.errorf("Fence of a window whose region is closed: %v", err)
		}
		e.within("Region.Close for the second time", func() { e.noErr(remote.Close(), "Region.Close for the second time") })
	}
}
