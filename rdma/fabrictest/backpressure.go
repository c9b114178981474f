package fabrictest

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// testBackPressure: a stalled session takes exactly what its window holds, by count and by bytes, then takes nothing
// and says so without blocking. Nothing is lost: after the stall, everything completes and the rest is taken.
func testBackPressure(e *env) {
	s := e.connect()
	s.fillByCount()
	s.fillByBytes()
}

// fillWindow posts ops in batches of 100 until the window is full, and returns what was taken and what was not.
func (s *session) fillWindow(ops []rdma.Op) (taken, rest []rdma.Op) {
	s.e.t.Helper()
	s.e.within("Post into a full window", func() {
		for rest = ops; len(rest) > 0; {
			batch := min(100, len(rest))
			n, err := s.try(rest[:batch]...)
			taken, rest = append(taken, rest[:n]...), rest[n:]
			if !s.e.noErr(err, "Post") || n < batch {
				break
			}
		}
		// A full window stays full, and asking again loses nothing.
		if len(rest) > 0 {
			for range 3 {
				n, err := s.try(rest...)
				if n != 0 || err != nil {
					s.e.errorf("Post into a full window took %d more, error %v", n, err)
				}
			}
		}
	})
	if s.e.t.Failed() {
		s.e.t.FailNow()
	}
	return taken, rest
}

func (s *session) fillByCount() {
	e := s.e
	count := e.caps.MaxInFlight
	if count > 1<<17 || uint64(count) > e.caps.MaxInFlightLen {
		e.t.Logf("MaxInFlight of %d is not reached by one-byte operations here", count)
		return
	}
	extra := 50
	local, remote := s.sides(rdma.OpWrite, count+extra, count+extra, 0)
	key := s.open(remote, rdma.OpWrite)
	var ops []rdma.Op
	for i, p := range e.rng.Perm(count + extra) {
		ops = append(ops, s.op(rdma.OpWrite, local, key, rdma.Range{Local: uint64(i), Remote: uint64(p), Len: 1}))
	}
	release := e.stall(s)
	taken, rest := s.fillWindow(ops)
	if len(taken) != count {
		e.errorf("a session whose peer is stalled took %d operations; Caps.MaxInFlight is %d", len(taken), count)
	}
	remote.check("while the session is stalled")
	release()
	s.ends(taken, 0)
	s.do(0, rest...)
	for _, o := range ops {
		moved(o.Kind, local, remote, o.Ranges)
	}
	remote.check("after back-pressure by count")
	local.check("after back-pressure by count")
}

func (s *session) fillByBytes() {
	e := s.e
	const size = 1<<20 - 3
	window := e.caps.MaxInFlightLen
	if window > 1<<30 || window/size+2 > uint64(e.caps.MaxInFlight) || e.caps.MaxOpBytes < size {
		e.t.Logf("MaxInFlightLen of %d is not reached by operations of %d bytes here", window, size)
		return
	}
	local, remote := s.sides(rdma.OpWrite, 1<<20, 1<<20, 0)
	key := s.open(remote, rdma.OpWrite)
	fits := int(window / size)
	var ops []rdma.Op
	for range fits + 5 {
		ops = append(ops, s.op(rdma.OpWrite, local, key, rdma.Range{Local: 1, Remote: 2, Len: size}))
	}
	release := e.stall(s)
	taken, rest := s.fillWindow(ops)
	if want := max(fits, 1); len(taken) != want {
		e.errorf("a session whose peer is stalled took %d operations of %d bytes; its window of %d bytes holds %d",
			len(taken), size, window, want)
	}
	release()
	s.ends(taken, 0)
	s.do(0, rest...)
	moved(rdma.OpWrite, local, remote, ops[0].Ranges)
	remote.check("after back-pressure by bytes")
}

// testLargerThanTheWindow: an operation of more bytes than the window holds is not stuck for ever: it is taken when
// nothing is in flight, and keeps everything else out until it has completed.
func testLargerThanTheWindow(e *env) {
	const size = 1 << 20
	window := e.caps.MaxInFlightLen
	n := window/size + 1
	if window > 1<<30 || n*size > e.caps.MaxOpBytes || n > uint64(e.caps.MaxRanges) {
		e.t.Logf("no operation that Caps allows and that a test can move exceeds MaxInFlightLen of %d", window)
		return
	}
	s := e.connect()
	local, remote := s.sides(rdma.OpWrite, size, size, 0)
	key := s.open(remote, rdma.OpWrite)
	ranges := make([]rdma.Range, n)
	for i := range ranges {
		ranges[i].Len = size
	}
	one := rdma.Range{Local: 3, Remote: 3, Len: 1}
	release := e.stall(s)
	first := s.op(rdma.OpWrite, local, key, one)
	s.post(first)
	big := s.op(rdma.OpWrite, local, key, ranges...)
	post := func(what string, want int, o rdma.Op) {
		e.t.Helper()
		e.within("Post", func() {
			if n, err := s.try(o); n != want || err != nil {
				e.errorf("Post of %s took %d with error %v, want %d and nil", what, n, fault.CodeOf(err), want)
			}
		})
	}
	post("an operation larger than the window behind another", 0, big)
	release()
	s.ends([]rdma.Op{first}, 0)
	release = e.stall(s)
	post("an operation larger than the window into an idle session", 1, big)
	small := s.op(rdma.OpWrite, local, key, one)
	post("an operation beside one that is larger than the window", 0, small)
	if e.t.Failed() {
		e.t.FailNow()
	}
	release()
	s.ends([]rdma.Op{big}, 0)
	s.do(0, small)
	moved(rdma.OpWrite, local, remote, ranges)
	remote.check("after an operation larger than the window")
}
