package fabrictest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// testCaps: the capabilities are usable numbers, and memory of every kind that they do not list is refused.
func testCaps(e *env) {
	for _, n := range []*node{e.a, e.b} {
		c := n.p.Caps()
		if n.p.Name() == "" {
			e.errorf("node %s: Provider.Name is empty", n.name)
		}
		if c.MaxRanges < 1 || c.MaxOpBytes < 1 || c.MaxInFlight < 1 || c.MaxInFlightLen < 1 {
			e.errorf("node %s: a limit in Caps is below 1: %+v", n.name, c)
		}
		if !c.Write && !c.Read {
			e.errorf("node %s: Caps has neither Write nor Read", n.name)
		}
		listed := map[rdma.MemoryKind]bool{}
		for _, k := range c.Kinds {
			listed[k] = true
		}
		if !listed[rdma.MemoryHost] {
			e.t.Fatalf("node %s: Caps.Kinds lacks host memory, which is what this suite moves", n.name)
		}
		mem := Alloc(e.t, 4096, 0).Host("refused")
		for _, k := range []rdma.MemoryKind{rdma.MemoryCUDA, 0, 255} {
			if mem.Kind = k; listed[k] {
				continue
			}
			if _, err := n.p.Register(mem); fault.CodeOf(err) != fault.NotSupported {
				e.errorf("node %s: Register of memory kind %d, which Caps does not list: want NotSupported, got %v", n.name, k, err)
			}
		}
	}
	// Nothing has happened yet, so Wait lasts as long as its context and Poll gives nothing.
	e.a.stop()
	<-e.a.gone
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	e.within("Provider.Wait with a context that ends", func() {
		if err := e.a.p.Wait(ctx); err == nil {
			e.errorf("Provider.Wait returned nil although nothing is due")
		}
	})
	if n := e.a.p.Poll(make([]rdma.Event, 4)); n != 0 {
		e.errorf("Poll gave %d events although nothing has happened", n)
	}
	if n := e.a.p.Poll(nil); n != 0 {
		e.errorf("Poll into an empty slice returned %d", n)
	}
}

// sides gives the local and the remote region such that the bytes of kind flow from ClassSource to ClassTarget.
func (s *session) sides(kind rdma.OpKind, localLen, remoteLen, misalign int) (local, remote *region) {
	lc, rc := ClassSource, ClassTarget
	if kind == rdma.OpRead {
		lc, rc = ClassTarget, ClassSource
	}
	return s.e.region(s.from, localLen, misalign, lc), s.e.region(s.to, remoteLen, 0, rc)
}

// testSizes: operations of all sizes around the usual limits, aligned and not, move exactly their bytes.
func testSizes(e *env) {
	const slack = 8192
	sizes := []int{0, 1, 2, 7, 8, 63, 511, 4095, 4096, 4097, 64<<10 - 1, 64 << 10, 64<<10 + 1,
		256<<10 - 1, 256<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1}
	places := [][2]uint64{{0, 0}, {1, 0}, {0, 1}, {3, 4093}, {4095, 7}}
	places = places[:min(len(places), e.less(8))]
	s := e.connect()
	for _, kind := range e.kinds() {
		local, remote := s.sides(kind, 1<<20+slack, 1<<20+slack, 5)
		key := s.open(remote, kind)
		for _, size := range sizes {
			for _, p := range places {
				if uint64(size) > e.caps.MaxOpBytes {
					continue
				}
				r := rdma.Range{Local: p[0], Remote: p[1], Len: uint64(size)}
				s.do(0, s.op(kind, local, key, r))
				moved(kind, local, remote, []rdma.Range{r})
				local.check("%s of %d bytes, local %d, remote %d", kindName(kind), size, p[0], p[1])
				remote.check("%s of %d bytes, local %d, remote %d", kindName(kind), size, p[0], p[1])
				Fill(movedInto(kind, local, remote).bytes(), ClassTarget, e.rng.Uint64())
				movedInto(kind, local, remote).remember()
			}
		}
		big := min(64<<20, e.caps.MaxOpBytes)
		local, remote = s.sides(kind, int(big)+slack, int(big)+slack, 0)
		r := rdma.Range{Local: 4095, Remote: 1, Len: big}
		s.do(0, s.op(kind, local, s.open(remote, kind), r))
		moved(kind, local, remote, []rdma.Range{r})
		local.check("%s of %d bytes", kindName(kind), big)
		remote.check("%s of %d bytes", kindName(kind), big)
	}
}

// movedInto is the region that operations of a kind change.
func movedInto(kind rdma.OpKind, local, remote *region) *region {
	if kind == rdma.OpRead {
		return local
	}
	return remote
}

// scatter makes n ranges that permute n slots of a region of n*slot bytes on both sides: of random lengths, at random
// places inside their slots, one in eight empty.
func scatter(rng *rand.Rand, n, slot int) []rdma.Range {
	out := make([]rdma.Range, n)
	from, to := rng.Perm(n), rng.Perm(n)
	for i := range out {
		l := 1 + rng.IntN(slot)
		if rng.IntN(8) == 0 {
			l = 0
		}
		out[i] = rdma.Range{
			Local:  uint64(from[i]*slot + rng.IntN(slot-l+1)),
			Remote: uint64(to[i]*slot + rng.IntN(slot-l+1)),
			Len:    uint64(l),
		}
	}
	return out
}

// testScattered: scatter lists from one range to as many as Caps allows land where they must and nowhere else.
func testScattered(e *env) {
	const slot, most = 96, 1 << 16
	s := e.connect()
	for _, kind := range e.kinds() {
		for _, n := range []int{1, 2, 255, 256, 257, 5000, min(e.caps.MaxRanges, most)} {
			local, remote := s.sides(kind, n*slot, n*slot, 0)
			key := s.open(remote, kind)
			ranges := scatter(e.rng, n, slot)
			var ops []rdma.Op
			for rest := ranges; len(rest) > 0; {
				k := min(len(rest), e.caps.MaxRanges)
				ops = append(ops, s.op(kind, local, key, rest[:k]...))
				rest = rest[k:]
			}
			s.do(0, ops...)
			moved(kind, local, remote, ranges)
			local.check("%s of %d scattered ranges", kindName(kind), n)
			remote.check("%s of %d scattered ranges", kindName(kind), n)
			s.fence(key)
		}
		// Empty ranges move nothing, also at the very end of both regions.
		local, remote := s.sides(kind, 4096, 4096, 0)
		key := s.open(remote, kind)
		s.do(0, s.op(kind, local, key, rdma.Range{Local: 4096, Remote: 4096}, rdma.Range{}, rdma.Range{Local: 7, Remote: 9}))
		local.check("an operation of empty ranges")
		remote.check("an operation of empty ranges")
	}
}

// testConcurrentPosters: several goroutines post batches into two sessions at once, each into places of its own.
func testConcurrentPosters(e *env) {
	const posters, rounds, batch, slot = 4, 12, 16, 8 << 10
	sessions := []*session{e.connect(), e.connect()}
	for _, kind := range e.kinds() {
		local, remote := sessions[0].sides(kind, posters*batch*slot, posters*batch*slot, 0)
		keys := []rdma.Key{sessions[0].open(remote, kind), sessions[1].open(remote, kind)}
		var wg sync.WaitGroup
		for g := range posters {
			rng := rand.New(rand.NewPCG(e.seed, uint64(g)+1))
			wg.Go(func() {
				s, key := sessions[g%2], keys[g%2]
				for range rounds {
					perm := rng.Perm(batch)
					ops := make([]rdma.Op, batch)
					for i := range ops {
						l := rng.IntN(slot + 1)
						ops[i] = s.op(kind, local, key, rdma.Range{
							Local:  uint64((g*batch+i)*slot + rng.IntN(slot-l+1)),
							Remote: uint64((g*batch+perm[i])*slot + rng.IntN(slot-l+1)),
							Len:    uint64(l)})
						// A range of a READ lands in the slot i, of a WRITE in perm[i]: no two of a batch meet.
					}
					if !e.noErr(s.postq(nil, ops...), "Post") {
						return
					}
					for _, o := range ops {
						ev, ok := s.resultq(o.ID)
						if !ok {
							return
						}
						if ev.Status != 0 {
							e.errorf("%s ended with %v", kindName(kind), ev.Status)
							return
						}
						moved(kind, local, remote, o.Ranges)
					}
				}
			})
		}
		wg.Wait()
		local.check("%s from %d goroutines", kindName(kind), posters)
		remote.check("%s from %d goroutines", kindName(kind), posters)
	}
}

// testBothDirections: two sessions carry both directions at the same time, between the same regions' neighbours.
func testBothDirections(e *env) {
	const n, slot = 64, 32 << 10
	there, back := e.connect(), e.connectBack()
	for _, kind := range e.kinds() {
		var ops [2][]rdma.Op
		var local, remote [2]*region
		for i, s := range []*session{there, back} {
			local[i], remote[i] = s.sides(kind, n*slot, n*slot, 0)
			key := s.open(remote[i], kind)
			for j, p := range e.rng.Perm(n) {
				ops[i] = append(ops[i], s.op(kind, local[i], key,
					rdma.Range{Local: uint64(j * slot), Remote: uint64(p * slot), Len: slot}))
			}
		}
		var wg sync.WaitGroup
		for i, s := range []*session{there, back} {
			wg.Go(func() { e.noErr(s.postq(nil, ops[i]...), "Post") })
		}
		wg.Wait()
		for i, s := range []*session{there, back} {
			s.ends(ops[i], 0)
			for _, o := range ops[i] {
				moved(kind, local[i], remote[i], o.Ranges)
			}
			local[i].check("%s in both directions", kindName(kind))
			remote[i].check("%s in both directions", kindName(kind))
		}
	}
}

// testSeveralRegions: one batch names several regions on both sides and no byte goes to the wrong one.
func testSeveralRegions(e *env) {
	const regions, slots, slot = 4, 16, 1031
	s := e.connect()
	for _, kind := range e.kinds() {
		var local, remote [regions]*region
		var keys [regions]rdma.Key
		for i := range regions {
			local[i], remote[i] = s.sides(kind, regions*slots*slot, regions*slots*slot, i)
			keys[i] = s.open(remote[i], kind)
		}
		var ops []rdma.Op
		for i := range regions {
			for j := range regions {
				for k := range slots {
					r := rdma.Range{Local: uint64((j*slots + k) * slot), Remote: uint64((i*slots + k) * slot), Len: slot}
					ops = append(ops, s.op(kind, local[i], keys[j], r))
					moved(kind, local[i], remote[j], []rdma.Range{r})
				}
			}
		}
		e.rng.Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
		s.do(0, ops...)
		for i := range regions {
			local[i].check("%s between several regions", kindName(kind))
			remote[i].check("%s between several regions", kindName(kind))
		}
	}
}
