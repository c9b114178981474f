package fabrictest

import (
	"bytes"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// testDeadlineStopsPlacement: once the clock has passed a window's deadline, it permits nothing, although no real time
// has gone by and nobody has fenced it. Other windows of the session go on.
func testDeadlineStopsPlacement(e *env) {
	s := e.connect()
	for _, kind := range e.kinds() {
		local, remote := s.sides(kind, 1<<20, 1<<20, 0)
		short := s.grant(remote, accessOf(kind), remote.all(), e.clock.In(time.Second))
		long := s.grant(remote, accessOf(kind), remote.all(), e.clock.In(time.Hour))
		r := rdma.Range{Local: 1, Remote: 2, Len: 300 << 10}
		s.do(0, s.op(kind, local, short, r))
		moved(kind, local, remote, []rdma.Range{r})
		e.clock.Advance(2 * time.Second)
		movedInto(kind, local, remote).recycle()
		s.refused(endAfterDeadline, kind, local, remote, long, "a window whose deadline has passed", s.op(kind, local, short, r))

		// Posted before the deadline, delivered after it.
		if e.pair.Stall != nil {
			late := s.grant(remote, accessOf(kind), remote.all(), e.clock.In(time.Second))
			release := e.stall(s)
			op := s.op(kind, local, late, r)
			s.post(op)
			e.clock.Advance(2 * time.Second)
			release()
			s.ends([]rdma.Op{op}, endAfterDeadline)
			local.check("%s delivered after the deadline", kindName(kind))
			remote.check("%s delivered after the deadline", kindName(kind))
		}
		// A window that is granted too late is no window.
		over := s.grant(remote, accessOf(kind), remote.all(), e.clock.Now()-1)
		s.refused(endAfterDeadline, kind, local, remote, long, "a deadline in the past", s.op(kind, local, over, r))
	}
}

// testDeadlineInMidOperation: the clock is compared for every chunk, so a deadline ends also what has begun.
func testDeadlineInMidOperation(e *env) {
	const size = 1 << 20
	s := e.connect()
	met := 0
	for round := 0; round < 6; round++ {
		local, remote := s.sides(rdma.OpWrite, size, 16*size, 0)
		key := s.grant(remote, rdma.AccessWrite, remote.all(), e.clock.In(time.Second))
		ops := s.manyWrites(local, remote, key, size)
		if round%2 == 1 {
			ops = s.oneWrite(local, remote, key, size)
		}
		ops = s.start(ops)
		e.until("the first bytes of a WRITE", func() bool { return CountClass(sample(remote.bytes()), ClassSource) > 0 })
		release := e.stall(s)
		remote.still()
		e.clock.Advance(2 * time.Second)
		remote.remember()
		release()
		s.ends(ops, 0, endAfterDeadline)
		for _, o := range ops {
			ev := s.result(o.ID)
			if ev.Status != 0 {
				met++
			}
		}
		remote.check("WRITE whose window's deadline passed in the middle")
		s.saysWrote(ops, remote)
		s.fence(key)
	}
	e.t.Logf("%d operations were ended by the deadline", met)
}

// sample is one byte in each 4 KiB, to see cheaply that something has begun.
func sample(b []byte) []byte {
	out := make([]byte, 0, len(b)/4096)
	for i := 0; i < len(b); i += 4096 {
		out = append(out, b[i])
	}
	return out
}

// still waits until a stalled session's target has placed what had reached it: ten equal looks in a row.
func (r *region) still() {
	r.e.t.Helper()
	same := 0
	r.e.until("a stalled session to come to rest", func() bool {
		same++
		if !bytes.Equal(r.want, r.bytes()) {
			r.remember()
			same = 0
		}
		time.Sleep(10 * time.Millisecond)
		return same == 10
	})
}

// manyWrites covers remote with one operation for each size bytes of it, all from local.
func (s *session) manyWrites(local, remote *region, key rdma.Key, size int) []rdma.Op {
	var ops []rdma.Op
	for off := 0; off < len(remote.bytes()); off += size {
		ops = append(ops, s.op(rdma.OpWrite, local, key, rdma.Range{Remote: uint64(off), Len: uint64(size)}))
	}
	return ops
}

// oneWrite covers remote with one operation, as far as Caps allows.
func (s *session) oneWrite(local, remote *region, key rdma.Key, size int) []rdma.Op {
	var ranges []rdma.Range
	for off := 0; off < len(remote.bytes()) && len(ranges) < s.e.caps.MaxRanges &&
		uint64(off+size) <= s.e.caps.MaxOpBytes; off += size {
		ranges = append(ranges, rdma.Range{Remote: uint64(off), Len: uint64(size)})
	}
	return []rdma.Op{s.op(rdma.OpWrite, local, key, ranges...)}
}

// start posts what the window has room for and forgets the rest of ops: it must not wait, because completions may be
// held back. It returns what was taken.
func (s *session) start(ops []rdma.Op) []rdma.Op {
	s.e.t.Helper()
	var n int
	s.e.within("Post", func() {
		var err error
		n, err = s.try(ops...)
		s.e.noErr(err, "Post")
	})
	if n == 0 {
		s.e.t.Fatalf("Post took none of %d operations although the session was idle", len(ops))
	}
	return ops[:n]
}

// testExtend: Extend moves a deadline both ways, and only that of its own window.
func testExtend(e *env) {
	s := e.connect()
	for _, kind := range e.kinds() {
		local, remote := s.sides(kind, 1<<16, 1<<16, 0)
		r := rdma.Range{Local: 3, Remote: 4, Len: 5000}
		good := s.open(remote, kind)
		longer := s.grant(remote, accessOf(kind), remote.all(), e.clock.In(time.Second))
		ended := s.grant(remote, accessOf(kind), remote.all(), 0)
		shorter := s.grant(remote, accessOf(kind), remote.all(), e.clock.In(time.Hour))
		e.must(s.Target.Extend(longer, e.clock.In(time.Minute)), "Extend")
		e.must(s.Target.Extend(shorter, e.clock.In(time.Second)), "Extend to an earlier deadline")
		e.must(s.Target.Extend(ended, e.clock.In(time.Second)), "Extend of a window without a deadline")
		e.clock.Advance(2 * time.Second)
		s.do(0, s.op(kind, local, longer, r))
		moved(kind, local, remote, []rdma.Range{r})
		s.refused(endAfterDeadline, kind, local, remote, good, "a window whose deadline came nearer", s.op(kind, local, shorter, r))
		s.refused(endAfterDeadline, kind, local, remote, good, "a window that got a deadline", s.op(kind, local, ended, r))
		e.must(s.Target.Extend(longer, 0), "Extend to no deadline")
		e.clock.Advance(time.Hour)
		s.do(0, s.op(kind, local, longer, r))
		if err := s.Target.Extend(good+1<<40, 0); fault.CodeOf(err) != fault.StaleKey {
			e.errorf("Extend of a key that was never granted: want StaleKey, got %v", err)
		}
	}
}
