package fabrictest

import (
	"slices"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// everywhere is a Bounds that allows all: the region's own end must hold nevertheless.
type everywhere struct{ wrapped atomic.Bool }

func (b *everywhere) Allows(off, length uint64) bool {
	if off+length < off {
		b.wrapped.Store(true)
	}
	return true
}

// refused posts ops that must all end with status, changes nothing on either side, and shows that the session lives.
func (s *session) refused(status fault.Code, kind rdma.OpKind, local, remote *region, good rdma.Key, what string, ops ...rdma.Op) {
	s.e.t.Helper()
	s.post(ops...)
	for _, o := range ops {
		if ev := s.result(o.ID); ev.Status != status {
			s.e.t.Fatalf("%s, %s: ended with %s, want %s", kindName(kind), what, statusName(ev.Status), statusName(status))
		}
	}
	local.check("%s, %s", kindName(kind), what)
	remote.check("%s, %s", kindName(kind), what)
	if good != 0 {
		r := rdma.Range{Local: 0, Remote: 8192, Len: 1}
		s.do(0, s.op(kind, local, good, r))
		moved(kind, local, remote, []rdma.Range{r})
	}
}

// testOutOfBounds: an operation with any byte outside its window ends with OutOfBounds and touches nothing at all.
func testOutOfBounds(e *env) {
	e.require(needBounds)
	s := e.connect()
	for _, kind := range e.kinds() {
		local, remote := s.sides(kind, 1<<20, 1<<20, 0)
		spans, err := rdma.NewSpans(1<<20, rdma.Span{Off: 8192, Len: 4096}, rdma.Span{Off: 16384, Len: 100}, rdma.Span{Off: 65536, Len: 1 << 19})
		e.must(err, "NewSpans")
		key := s.grant(remote, accessOf(kind), spans, 0)
		bad := map[string]rdma.Range{
			"one byte before a span":      {Remote: 8191, Len: 1},
			"from before a span into it":  {Remote: 8191, Len: 2},
			"from a span past its end":    {Remote: 12287, Len: 2},
			"one byte behind a span":      {Remote: 12288, Len: 1},
			"across the gap of two spans": {Remote: 8192, Len: 16484 - 8192},
			"around a span":               {Remote: 16383, Len: 102},
			"the region's last byte":      {Remote: 1<<20 - 1, Len: 1},
		}
		for what, r := range bad {
			s.refused(fault.OutOfBounds, kind, local, remote, key, what, s.op(kind, local, key, r))
			if e.caps.MaxRanges < 32 {
				continue
			}
			// The same range among good ones, first, in the middle and last.
			for _, at := range []int{0, 17, 31} {
				ranges := make([]rdma.Range, 32)
				for i := range ranges {
					ranges[i] = rdma.Range{Local: uint64(i * 8192), Remote: 65536 + uint64(i*8192), Len: 8192}
				}
				ranges[at] = r
				s.refused(fault.OutOfBounds, kind, local, remote, key, what+" among good ranges", s.op(kind, local, key, ranges...))
			}
		}
		// A window that covers nothing still lets empty ranges pass.
		none := s.grant(remote, accessOf(kind), rdma.Spans(nil), 0)
		s.refused(fault.OutOfBounds, kind, local, remote, key, "an empty window", s.op(kind, local, none, rdma.Range{Len: 1}))
		s.do(0, s.op(kind, local, none, rdma.Range{}))
	}
}

// testRegionEnd: the region ends where it ends, whatever the window's Bounds say, and sums that wrap are not small.
func testRegionEnd(e *env) {
	const size = 1 << 16
	s := e.connect()
	for _, kind := range e.kinds() {
		local, remote := s.sides(kind, size, size, 0)
		var b everywhere
		key := s.grant(remote, accessOf(kind), &b, 0)
		for what, r := range map[string]rdma.Range{
			"one byte past the region's end": {Remote: size, Len: 1},
			"across the region's end":        {Remote: size - 1, Len: 2},
			"far behind the region":          {Remote: 1 << 40, Len: 1},
			"an offset that wraps":           {Remote: ^uint64(0), Len: 2},
			"an offset that wraps to 1":      {Remote: ^uint64(0) - 4094, Len: 4096},
		} {
			op := s.op(kind, local, key, r)
			n, err := s.try(op)
			if n == 0 {
				// A sum that wraps may be refused before it travels.
				if c := fault.CodeOf(err); r.Remote+r.Len > r.Remote || c != fault.OutOfBounds && c != fault.InvalidArgument {
					e.t.Fatalf("%s, %s: Post refused it with %v", kindName(kind), what, err)
				}
			} else {
				s.ends([]rdma.Op{op}, fault.OutOfBounds)
			}
			local.check("%s, %s", kindName(kind), what)
			remote.check("%s, %s", kindName(kind), what)
		}
		if b.wrapped.Load() {
			e.errorf("Bounds.Allows was called with an offset and a length that wrap")
		}
		r := rdma.Range{Local: size - 10, Remote: size - 10, Len: 10}
		s.do(0, s.op(kind, local, key, r))
		moved(kind, local, remote, []rdma.Range{r})
		local.check("%s of the last bytes", kindName(kind))
		remote.check("%s of the last bytes", kindName(kind))
	}
}

// testRefusedByPost: what is wrong on this side never leaves it; what came before it in the batch is taken.
func testRefusedByPost(e *env) {
	const size = 8192
	s := e.connect()
	for _, kind := range e.kinds() {
		local, remote := s.sides(kind, size, 1<<20, 0)
		key := s.open(remote, kind)
		refuse := func(what string, bad rdma.Op, want ...fault.Code) {
			e.t.Helper()
			first := rdma.Range{Local: 1, Remote: 2, Len: 3}
			ops := []rdma.Op{s.op(kind, local, key, first), bad, s.op(kind, local, key, rdma.Range{Local: 100, Remote: 100, Len: 50})}
			n, err := s.try(ops...)
			if n != 1 || !slices.Contains(want, fault.CodeOf(err)) {
				e.t.Fatalf("%s, %s: Post took %d of 3 with error %v, want 1 and one of %v", kindName(kind), what, n, err, names(want))
			}
			s.ends(ops[:1], 0)
			moved(kind, local, remote, []rdma.Range{first})
			local.check("%s, %s", kindName(kind), what)
			remote.check("%s, %s", kindName(kind), what)
		}
		for what, r := range map[string]rdma.Range{
			"past the local end":        {Local: size, Len: 1},
			"across the local end":      {Local: size - 1, Len: 2},
			"longer than the region":    {Local: 0, Len: size + 1},
			"a local offset that wraps": {Local: ^uint64(0), Len: 2},
		} {
			refuse(what, s.op(kind, local, key, r), fault.OutOfBounds)
			if e.caps.MaxRanges > 1 {
				refuse(what, s.op(kind, local, key, rdma.Range{Len: 1}, r), fault.OutOfBounds)
			}
		}
		// Wrong in two ways; either may be noticed first.
		refuse("a length that wraps", s.op(kind, local, key, rdma.Range{Local: 1, Len: ^uint64(0)}), fault.OutOfBounds, fault.InvalidArgument)
		bad := s.op(kind, local, key, rdma.Range{Len: 1})
		bad.Kind = 77
		refuse("an unknown kind", bad, fault.InvalidArgument)
		bad = s.op(kind, local, key, rdma.Range{Len: 1})
		bad.Local = nil
		refuse("no local region", bad, fault.InvalidArgument)
		if e.caps.MaxRanges < 1<<20 {
			refuse("more ranges than Caps.MaxRanges",
				s.op(kind, local, key, make([]rdma.Range, e.caps.MaxRanges+1)...), fault.InvalidArgument)
		}
		if n := e.caps.MaxOpBytes/size + 1; n <= uint64(e.caps.MaxRanges) {
			ranges := make([]rdma.Range, n)
			for i := range ranges {
				ranges[i].Len = size
			}
			refuse("more bytes than Caps.MaxOpBytes", s.op(kind, local, key, ranges...), fault.InvalidArgument)
		}
	}
	if !e.caps.Read || !e.caps.Write {
		kind := rdma.OpRead
		if e.caps.Read {
			kind = rdma.OpWrite
		}
		local, _ := s.sides(kind, size, size, 0)
		if n, err := s.try(s.op(kind, local, 1, rdma.Range{Len: 1})); n != 0 || fault.CodeOf(err) != fault.NotSupported {
			e.errorf("%s, which Caps denies: Post took %d with error %v, want NotSupported", kindName(kind), n, err)
		}
	}
}

// testRefusedByGrant: a window needs a region of this node that is still registered, and one access.
func testRefusedByGrant(e *env) {
	s := e.connect()
	mine, other := e.region(e.b, 4096, 0, ClassTarget), e.region(e.a, 4096, 0, ClassTarget)
	closed := e.region(e.b, 4096, 0, ClassTarget)
	e.must(closed.Close(), "Region.Close")
	for what, w := range map[string]rdma.Window{
		"no region":                 {Access: rdma.AccessWrite, Bounds: mine.all()},
		"a region of another node":  {Region: other.Region, Access: rdma.AccessWrite, Bounds: mine.all()},
		"a closed region":           {Region: closed.Region, Access: rdma.AccessWrite, Bounds: mine.all()},
		"no access":                 {Region: mine.Region, Bounds: mine.all()},
		"both accesses in one":      {Region: mine.Region, Access: rdma.AccessWrite | rdma.AccessRead, Bounds: mine.all()},
		"no bounds":                 {Region: mine.Region, Access: rdma.AccessWrite},
		"an access nobody knows of": {Region: mine.Region, Access: 128, Bounds: mine.all()},
	} {
		if k, err := s.Target.Grant(w); err == nil {
			e.errorf("Grant with %s gave key %d", what, k)
		} else if c := fault.CodeOf(err); c == fault.Internal {
			e.errorf("Grant with %s gave the untyped error %v", what, err)
		}
	}
}

// testStaleKey: a key that was never granted, is fenced, or belongs to another session opens nothing.
func testStaleKey(e *env) {
	s, other := e.connect(), e.connect()
	for _, kind := range e.kinds() {
		local, remote := s.sides(kind, 1<<16, 1<<16, 0)
		good := s.open(remote, kind)
		r := rdma.Range{Local: 100, Remote: 200, Len: 5000}
		for _, k := range []rdma.Key{0, good + 1<<40, ^rdma.Key(0)} {
			s.refused(fault.StaleKey, kind, local, remote, good, "a key that was never granted", s.op(kind, local, k, r))
		}
		foreign := s.open(remote, kind)
		for i := 0; i < 3; i++ {
			// other has granted no window, so whatever number s chose is unknown there.
			other.refused(fault.StaleKey, kind, local, remote, 0, "a key of another session", other.op(kind, local, foreign, r))
		}
		fenced := s.open(remote, kind)
		s.do(0, s.op(kind, local, fenced, r))
		moved(kind, local, remote, []rdma.Range{r})
		local.check("%s through a fresh key", kindName(kind))
		remote.check("%s through a fresh key", kindName(kind))
		s.fence(fenced)
		movedInto(kind, local, remote).recycle()
		s.refused(fault.StaleKey, kind, local, remote, good, "a fenced key", s.op(kind, local, fenced, r))
		if err := s.Target.Extend(fenced, e.clock.In(1e9)); fault.CodeOf(err) != fault.StaleKey {
			e.errorf("Extend of a fenced key: want StaleKey, got %v", err)
		}
		s.refused(fault.StaleKey, kind, local, remote, good, "a fenced key after Extend", s.op(kind, local, fenced, r))
		seen := map[rdma.Key]bool{good: true, foreign: true, fenced: true}
		for range 100 {
			k := s.open(remote, kind)
			if seen[k] {
				e.t.Fatalf("the key %d was given twice in one session", k)
			}
			seen[k] = true
			s.fence(k)
		}
	}
}

// testAccessIsOneWay: a window for reading refuses WRITE and the other way round.
func testAccessIsOneWay(e *env) {
	s := e.connect()
	for _, kind := range e.kinds() {
		local, remote := s.sides(kind, 1<<16, 1<<16, 0)
		good := s.open(remote, kind)
		wrong := s.grant(remote, rdma.AccessRead+rdma.AccessWrite-accessOf(kind), remote.all(), 0)
		s.refused(endWrongAccess, kind, local, remote, good, "a window of the other access",
			s.op(kind, local, wrong, rdma.Range{Local: 5, Remote: 6, Len: 30000}))
	}
}
