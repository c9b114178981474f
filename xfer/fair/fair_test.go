package fair_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/xfer/fair"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

var limits = fair.Limits{Quantum: 256 * kib, Small: 512 * kib, Window: 16 * mib, Bulk: 8 * mib, Ops: 1024, BulkOps: 896, Share: 3}

// sender is a source of operations of given costs.
type sender struct {
	flow   fair.Flow[string]
	client string
	ops    []uint64
	more   uint64 // not ready yet
	posted uint64
}

func (s *sender) Next() uint64 {
	if len(s.ops) == 0 {
		return 0
	}
	return s.ops[0]
}

func (s *sender) Left() uint64 {
	left := s.more
	for _, n := range s.ops {
		left += n
	}
	return left
}

// world is a queue with what it was told, counted naively.
type world struct {
	t       *testing.T
	lim     fair.Limits
	q       *fair.Queue[string]
	senders []*sender
	flying  []flight
	most    uint64 // of an operation's cost
}

type flight struct {
	fair.Flight
	s *sender
}

func newWorld(t *testing.T, lim fair.Limits) *world {
	return &world{t: t, lim: lim, q: fair.New[string](lim), most: 1}
}

func (w *world) add(client string, ops ...uint64) *sender {
	s := &sender{client: client, ops: ops}
	w.q.Join(&s.flow, client, s)
	w.q.Update(&s.flow)
	w.senders = append(w.senders, s)
	for _, n := range ops {
		w.most = max(w.most, n)
	}
	return s
}

// many is n operations of a cost.
func many(n int, cost uint64) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = cost
	}
	return out
}

// pick posts one operation; nil: none.
func (w *world) pick() *sender {
	f, fl := w.q.Pick()
	if f == nil {
		w.mayWait()
		return nil
	}
	for _, s := range w.senders {
		if f == &s.flow {
			require.Equal(w.t, s.ops[0], fl.Cost)
			require.Equal(w.t, s.Left() <= w.lim.Small, fl.Class == fair.Small)
			s.ops = s.ops[1:]
			s.posted += fl.Cost
			w.q.Update(&s.flow)
			w.flying = append(w.flying, flight{fl, s})
			w.within()
			return s
		}
	}
	require.Fail(w.t, "a source that is not here")
	return nil
}

// in is what is in flight, counted naively.
func (w *world) in(large bool) (cost uint64, ops int) {
	for _, f := range w.flying {
		if !large || f.Class == fair.Large {
			cost += f.Cost
			ops++
		}
	}
	return cost, ops
}

// within: the limits hold.
func (w *world) within() {
	cost, ops := w.in(false)
	bulk, bulkOps := w.in(true)
	require.LessOrEqual(w.t, ops, w.lim.Ops)
	require.LessOrEqual(w.t, bulkOps, w.lim.BulkOps)
	require.True(w.t, ops == 1 || cost <= w.lim.Window, "%d in flight", cost)
	require.Less(w.t, bulk, w.lim.Bulk+w.most, "of large ones")
	n, sum := w.q.Flying()
	require.Equal(w.t, ops, n)
	require.Equal(w.t, cost, sum)
}

// mayWait: nothing was picked, for a reason.
func (w *world) mayWait() {
	cost, ops := w.in(false)
	bulk, bulkOps := w.in(true)
	if ops >= w.lim.Ops || ops > 0 && cost+w.most > w.lim.Window {
		return
	}
	for _, s := range w.senders {
		if len(s.ops) == 0 || !s.flow.Joined() {
			continue
		}
		require.Greater(w.t, s.Left(), w.lim.Small, "a small source is ready and the window has room")
		require.True(w.t, bulk >= w.lim.Bulk || bulkOps >= w.lim.BulkOps, "a large source is ready and large ones' window has room")
	}
}

// done ends the i-th operation in flight.
func (w *world) done(i int) {
	w.q.Done(w.flying[i].Flight)
	w.flying = append(w.flying[:i], w.flying[i+1:]...)
}

// serve ends the oldest operation and posts what fits, n times; each is told what was posted.
func (w *world) serve(n int, each func(*sender)) {
	for range n {
		for s := w.pick(); s != nil; s = w.pick() {
			each(s)
		}
		if len(w.flying) > 0 {
			w.done(0)
		}
	}
}

func TestWorkConserving(t *testing.T) {
	rng := testseed.New(t)
	for range 50 {
		lim := fair.Limits{Quantum: 1 + rng.Uint64N(100), Small: 1 + rng.Uint64N(300), Window: 1 + rng.Uint64N(2000), Bulk: 1 + rng.Uint64N(1000),
			Ops: 1 + rng.IntN(40), Share: 1 + rng.Uint64N(4)}
		lim.BulkOps = 1 + rng.IntN(lim.Ops)
		w := newWorld(t, lim)
		total := 0
		for range 1 + rng.IntN(20) {
			ops := make([]uint64, rng.IntN(30))
			for i := range ops {
				ops[i] = 1 + rng.Uint64N(400)
			}
			total += len(ops)
			w.add(fmt.Sprint(rng.IntN(4)), ops...)
		}
		posted := 0
		w.serve(total, func(*sender) { posted++ }) // mayWait and within look at every step
		require.Equal(t, total, posted, "one operation ends a step, so all are posted by then: %+v", lim)
	}
}

// TestEqualShares: at any time while all have something to post.
func TestEqualShares(t *testing.T) {
	rng := testseed.New(t)
	t.Run("clients", func(t *testing.T) {
		w := newWorld(t, limits)
		got := map[string]uint64{}
		clients := 2 + rng.IntN(6)
		for i := range clients { // the first has a hundred sources, each with operations of another size
			n := 1
			if i == 0 {
				n = 100
			}
			for range n {
				w.add(fmt.Sprint(i), many(64*mib/(64*kib), 64*kib<<rng.IntN(5))...)
			}
			got[fmt.Sprint(i)] = 0
		}
		w.serve(clients*40, func(s *sender) {
			got[s.client] += w.flying[len(w.flying)-1].Cost
			low, high := span(got)
			require.LessOrEqual(t, high-low, limits.Quantum+2*w.most)
		})
	})
	t.Run("sources", func(t *testing.T) {
		w := newWorld(t, limits)
		got := map[*sender]uint64{}
		for range 2 + rng.IntN(6) {
			got[w.add("a", many(1000, 16*kib<<rng.IntN(7))...)] = 0
		}
		w.serve(len(got)*40, func(s *sender) {
			got[s] += w.flying[len(w.flying)-1].Cost
			low, high := span(got)
			require.LessOrEqual(t, high-low, limits.Quantum+2*w.most)
		})
	})
}

func span[K comparable](m map[K]uint64) (low, high uint64) {
	low = ^uint64(0)
	for _, n := range m {
		low, high = min(low, n), max(high, n)
	}
	return low, high
}

// TestSmallPassesAFullBulkWindow: 1 GiB of one client, or of many, is under way, and a small transfer comes.
func TestSmallPassesAFullBulkWindow(t *testing.T) {
	for _, clients := range []int{1, 64} {
		w := newWorld(t, limits)
		for i := range clients {
			w.add(fmt.Sprint(i), many(1024, mib)...)
		}
		for w.pick() != nil {
		}
		for _, of := range []string{"0", "another"} {
			small := w.add(of, many(4, 64*kib)...)
			for range 4 {
				require.Same(t, small, w.pick(), "behind what is in flight, and nothing else")
			}
			require.Nil(t, w.pick())
			_, ops := w.in(true)
			assert.Equal(t, int(limits.Bulk/mib), ops)
		}
	}
}

// TestSmallSourceWaitsForATurnOfEachClient: also where the whole window is full.
func TestSmallSourceWaitsForATurnOfEachClient(t *testing.T) {
	rng := testseed.New(t)
	w := newWorld(t, limits)
	clients := 1 + rng.IntN(20)
	for i := range clients {
		for range 40 { // small ones without end
			w.add(fmt.Sprint(i), many(8, 64*kib)...)
		}
		w.add(fmt.Sprint(i), many(1024, mib)...)
	}
	w.serve(rng.IntN(50), func(*sender) {})
	small := w.add("another", many(4, 64*kib)...)
	var before uint64
	for len(small.ops) > 0 {
		if s := w.pick(); s != nil && s != small {
			before += w.flying[len(w.flying)-1].Cost
		} else if s == nil {
			w.done(0)
		}
	}
	assert.LessOrEqual(t, before, uint64(clients)*(limits.Quantum+w.most))
}

// TestLargeNeverStarves: small sources of the same client come without end.
func TestLargeNeverStarves(t *testing.T) {
	w := newWorld(t, limits)
	large := w.add("a", many(1000, mib)...)
	var small, since uint64
	refill := func() {
		for range 64 {
			w.add("a", 64*kib, 64*kib)
		}
	}
	refill()
	// The window is full of small ones.
	for range 3000 {
		s := w.pick()
		switch {
		case s == nil:
			w.done(0)
		case s == large:
			since = 0
		default:
			small += 64 * kib
			since += 64 * kib
			if len(w.senders)%64 == 1 && small%(4*mib) == 0 {
				refill()
			}
		}
		// While large ones' own window is full they wait for it, not for small ones.
		if bulk, _ := w.in(true); bulk >= limits.Bulk {
			since = 0
		}
		require.LessOrEqual(t, since, limits.Share*mib+limits.Quantum+64*kib)
	}
	assert.GreaterOrEqual(t, large.posted*(limits.Share+1), small, "its share of all")
}

func TestAloneAboveTheWindow(t *testing.T) {
	lim := limits
	lim.Window, lim.Bulk = 100, 50
	w := newWorld(t, lim)
	w.add("a", 1000, 1000)
	require.NotNil(t, w.pick(), "nothing is in flight")
	require.Nil(t, w.pick())
	w.done(0)
	require.NotNil(t, w.pick())
}

func TestRandomHistories(t *testing.T) {
	rng := testseed.New(t)
	lim := limits
	lim.Window, lim.Bulk, lim.Ops, lim.BulkOps = 4*mib, 2*mib, 50, 40
	w := newWorld(t, lim)
	w.most = 2 * mib
	for range 20000 {
		switch k := rng.IntN(10); {
		case k < 2:
			var ops []uint64
			for range rng.IntN(6) {
				ops = append(ops, 1+rng.Uint64N(mib))
			}
			s := w.add(fmt.Sprint(rng.IntN(5)), ops...)
			s.more = rng.Uint64N(2) * rng.Uint64N(mib)
			w.q.Update(&s.flow)
		case k < 6:
			w.pick()
		case k == 6 && len(w.flying) > 0:
			w.done(rng.IntN(len(w.flying)))
		case k == 7 && len(w.flying) > 0: // the last one was not posted after all
			n := len(w.flying) - 1
			if f := w.flying[n]; f.s.flow.Joined() {
				w.flying = w.flying[:n]
				w.q.Undo(&f.s.flow, f.Flight)
				f.s.ops = slices.Insert(f.s.ops, 0, f.Cost)
				w.q.Update(&f.s.flow)
			}
		case k == 8 && len(w.senders) > 0: // it leaves, with or without something to post
			i := rng.IntN(len(w.senders))
			s := w.senders[i]
			w.q.Leave(&s.flow)
			require.False(t, s.flow.Joined())
			w.senders = append(w.senders[:i], w.senders[i+1:]...)
		case len(w.senders) > 0: // an operation comes back, or more is ready
			s := w.senders[rng.IntN(len(w.senders))]
			s.ops = append(s.ops, 1+rng.Uint64N(mib))
			w.q.Update(&s.flow)
		}
	}
	for len(w.flying) > 0 {
		w.done(0)
	}
	for _, s := range w.senders {
		w.q.Leave(&s.flow)
	}
	ops, cost := w.q.Flying()
	assert.Zero(t, ops)
	assert.Zero(t, cost)
	assert.Zero(t, fair.Clients(w.q))
	f, _ := w.q.Pick()
	assert.Nil(t, f)
}

// endless never runs dry.
type endless struct{ cost, left uint64 }

func (e *endless) Next() uint64 { return e.cost }
func (e *endless) Left() uint64 { return e.left }

// crowd makes a queue of endless sources; the step picks one operation and ends it.
func crowd(clients, each int) func() {
	q := fair.New[int](limits)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range clients {
		for range each {
			f := &fair.Flow[int]{}
			q.Join(f, i, &endless{1 + rng.Uint64N(mib), rng.Uint64N(2 * mib)})
			q.Update(f)
		}
	}
	return func() {
		f, fl := q.Pick()
		q.Update(f)
		q.Done(fl)
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	assert.Zero(t, testing.AllocsPerRun(10000, crowd(16, 16)))
}

// BenchmarkPick is an operation's way through the queue.
func BenchmarkPick(b *testing.B) {
	for _, c := range []struct{ clients, each int }{{1, 1}, {1, 1000}, {64, 16}, {256, 4}} {
		b.Run(fmt.Sprintf("clients=%d/sources=%d", c.clients, c.clients*c.each), func(b *testing.B) {
			step := crowd(c.clients, c.each)
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}
