package simfabric_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
	"github.com/kvxfer/kvxfer/rdma/gate"
	"github.com/kvxfer/kvxfer/rdma/simfabric"
)

// everything is a mix in which all faults happen, but no session dies of them.
var everything = simfabric.Faults{Delay: time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.1, Duplicate: 0.1, Late: 0.1, Hold: 0.05, LateBy: time.Second}

// bench is two nodes, a session and a region of each on a clock that the test moves.
type bench struct {
	t      testing.TB
	clock  *simfabric.SimClock
	f      *simfabric.Fabric
	a, b   *simfabric.Node
	init   rdma.Initiator
	target rdma.Target
	local  rdma.Region
	remote rdma.Region
	here   []byte
	there  []byte
	steps  []simfabric.Step
	events []rdma.Event // that take moved out
}

const benchLen = 64 << 10

func newBench(t testing.TB, seed uint64, faults simfabric.Faults) *bench {
	x := &bench{t: t, clock: simfabric.NewSimClock()}
	var err error
	x.f, err = simfabric.New(seed, simfabric.Options{Clock: x.clock, Chunk: 1 << 10, Faults: faults, Trace: func(s simfabric.Step) { x.steps = append(x.steps, s) }})
	require.NoError(t, err)
	x.a, x.b = x.f.Node("a"), x.f.Node("b")
	x.init, x.target = join(t, x.a, x.b, 1, 2)
	for _, side := range []struct {
		n *simfabric.Node
		r *rdma.Region
		b *[]byte
		c fabrictest.Class
	}{{x.a, &x.local, &x.here, fabrictest.ClassSource}, {x.b, &x.remote, &x.there, fabrictest.ClassTarget}} {
		m := fabrictest.Alloc(t, benchLen, 0)
		fabrictest.Fill(m.Bytes(), side.c, seed)
		*side.b = m.Bytes()
		*side.r, err = side.n.Register(m.Host("region"))
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		require.NoError(t, x.a.Close())
		require.NoError(t, x.b.Close())
		x.f.Close()
	})
	return x
}

func (x *bench) grant(access rdma.Access) rdma.Key {
	s, err := rdma.NewSpans(benchLen, rdma.Span{Len: benchLen})
	require.NoError(x.t, err)
	k, err := x.target.Grant(rdma.Window{Region: x.remote, Access: access, Bounds: s})
	require.NoError(x.t, err)
	return k
}

func (x *bench) post(kind rdma.OpKind, id uint64, k rdma.Key, ranges ...rdma.Range) {
	n, err := x.init.Post([]rdma.Op{{Kind: kind, ID: id, Local: x.local, Remote: k, Ranges: ranges, Tag: id}})
	require.NoError(x.t, err)
	require.Equal(x.t, 1, n)
}

// take moves what both nodes have to say into events.
func (x *bench) take() {
	buf := make([]rdma.Event, 16)
	for _, n := range []*simfabric.Node{x.a, x.b} {
		for k := n.Poll(buf); k > 0; k = n.Poll(buf) {
			x.events = append(x.events, buf[:k]...)
		}
	}
}

// rest runs the fabric until nothing is on its way.
func (x *bench) rest() {
	for x.clock.Step() {
	}
	require.Zero(x.t, x.f.InFabric())
	x.take()
}

// until runs the fabric step by step until cond holds.
func (x *bench) until(cond func() bool) {
	x.t.Helper()
	for !cond() {
		require.True(x.t, x.clock.Step(), "the fabric is at rest and it has not happened")
		x.take()
	}
}

func (x *bench) completion(id uint64) *rdma.Event {
	i := slices.IndexFunc(x.events, func(e rdma.Event) bool { return e.Kind == rdma.EventCompletion && e.Op == id })
	if i < 0 {
		return nil
	}
	return &x.events[i]
}

func (x *bench) did(what string) int {
	n := 0
	for _, s := range x.steps {
		if s.What == what {
			n++
		}
	}
	return n
}

// script is a history with every kind of call, drawn from its own seed.
func script(x *bench, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	keys := []rdma.Key{x.grant(rdma.AccessWrite), x.grant(rdma.AccessWrite)}
	reads := x.grant(rdma.AccessRead)
	for id := uint64(1); id <= 60; id++ {
		kind, key := rdma.OpWrite, keys[rng.IntN(2)]
		if rng.IntN(4) == 0 {
			kind, key = rdma.OpRead, reads
		}
		x.post(kind, id, key, rdma.Range{Local: rng.Uint64N(1000), Remote: rng.Uint64N(1000), Len: rng.Uint64N(9000)})
		switch rng.IntN(8) {
		case 0:
			x.init.Cancel(id, id/2)
		case 1:
			k := rng.IntN(2)
			require.NoError(x.t, x.target.Fence(keys[k]))
			keys[k] = x.grant(rdma.AccessWrite)
		case 2:
			x.f.Pause(x.b)
		case 3:
			x.f.Resume(x.b)
		}
		x.clock.Advance(time.Duration(rng.IntN(20)) * time.Millisecond)
		x.take()
	}
	x.f.Resume(x.b)
	x.rest()
}

// TestSameSeedSameHistory also compares the events and the bytes, which must follow from the history.
func TestSameSeedSameHistory(t *testing.T) {
	seed := testseed.Seed(t)
	run := func(fabric uint64) *bench {
		x := newBench(t, fabric, everything)
		fabrictest.Fill(x.here, fabrictest.ClassSource, 1)
		fabrictest.Fill(x.there, fabrictest.ClassTarget, 1)
		script(x, seed)
		return x
	}
	one, same, other := run(seed), run(seed), run(seed+1)
	assert.Equal(t, one.steps, same.steps)
	assert.Equal(t, one.events, same.events)
	assert.True(t, bytes.Equal(one.there, same.there) && bytes.Equal(one.here, same.here), "the same history placed other bytes")
	assert.NotEqual(t, one.steps, other.steps)
}

// TestEveryFaultHappens moves each word of a region by an operation of its own and finds all of them in place, and only
// them, although everything goes wrong on the way.
func TestEveryFaultHappens(t *testing.T) {
	seed := testseed.Seed(t)
	x := newBench(t, seed, everything)
	k := x.grant(rdma.AccessWrite)
	want := bytes.Clone(x.there)
	for id := range uint64(200) {
		r := rdma.Range{Local: id * 256, Remote: (199-id)*256 + 100, Len: 150}
		x.post(rdma.OpWrite, id, k, r)
		copy(want[r.Remote:], x.here[r.Local:r.Local+r.Len])
	}
	x.rest()
	arrived := map[uint64]bool{}
	for _, e := range x.events {
		if e.Kind == rdma.EventArrival {
			arrived[e.Tag] = true
		}
	}
	assert.Len(t, arrived, 200)
	for id := range uint64(200) {
		require.NotNil(t, x.completion(id))
		assert.Zero(t, x.completion(id).Status)
	}
	assert.Empty(t, fabrictest.Diff(want, x.there))
	for _, what := range []string{"post", "send", "lose", "copy", "late", "hold", "data", "place", "result", "complete"} {
		assert.Positive(t, x.did(what), what)
	}
}

// TestLatePacketsMeetTheGate takes memory back in every way while packets are on their way, gives it a pattern and lets
// them come: they reach the gate, and without gates they land.
func TestLatePacketsMeetTheGate(t *testing.T) {
	late := simfabric.Faults{Delay: time.Millisecond, Late: 1, LateBy: time.Hour}
	held := simfabric.Faults{Delay: time.Millisecond, Hold: 1, LateBy: time.Hour}
	const words = 8
	for name, c := range map[string]struct {
		faults simfabric.Faults
		kind   rdma.OpKind
		end    func(x *bench, k rdma.Key)
	}{
		"WRITE, completed and fenced": {late, rdma.OpWrite, func(x *bench, k rdma.Key) {
			x.until(func() bool { return x.completion(1) != nil })
			require.NoError(x.t, x.target.Fence(k))
		}},
		"WRITE, cancelled and fenced": {held, rdma.OpWrite, func(x *bench, k rdma.Key) {
			x.init.Cancel(1)
			require.NoError(x.t, x.target.Fence(k))
		}},
		"WRITE, cut and fenced": {held, rdma.OpWrite, func(x *bench, k rdma.Key) {
			x.f.Cut(x.init)
			x.until(func() bool { return x.completion(1) != nil })
			require.NoError(x.t, x.target.Fence(k))
		}},
		"WRITE, session closed": {held, rdma.OpWrite, func(x *bench, _ rdma.Key) { require.NoError(x.t, x.target.Close()) }},
		"WRITE, region closed":  {held, rdma.OpWrite, func(x *bench, _ rdma.Key) { require.NoError(x.t, x.remote.Close()) }},
		"WRITE, sender dead": {held, rdma.OpWrite, func(x *bench, k rdma.Key) {
			x.f.Kill(x.a)
			require.NoError(x.t, x.target.Fence(k))
		}},
		"READ, cancelled": {simfabric.Faults{Delay: time.Second}, rdma.OpRead, func(x *bench, _ rdma.Key) {
			x.until(func() bool { return x.did("ask") == words })
			x.init.Cancel(1)
		}},
		"READ, completed": {late, rdma.OpRead, func(x *bench, _ rdma.Key) {
			x.until(func() bool { return x.completion(1) != nil })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			x := newBench(t, testseed.Seed(t), c.faults)
			k := x.grant(rdma.Access(c.kind))
			x.post(c.kind, 1, k, rdma.Range{Len: words << 10})
			x.until(func() bool { return x.did("send") == words })
			c.end(x, k)
			into := x.there
			if c.kind == rdma.OpRead {
				into = x.here
			}
			fabrictest.Fill(into, fabrictest.ClassLater, 7)
			want := bytes.Clone(into)
			refused := x.did("refuse")
			x.rest()
			if gate.Fences {
				assert.Empty(t, fabrictest.Diff(want, into))
				assert.Greater(t, x.did("refuse"), refused, "no packet came late")
			} else {
				assert.NotEmpty(t, fabrictest.Diff(want, into), "no packet landed late")
			}
		})
	}
}

func TestPauseKeepsEverything(t *testing.T) {
	x := newBench(t, testseed.Seed(t), simfabric.Faults{Delay: time.Millisecond, Jitter: time.Millisecond})
	k := x.grant(rdma.AccessWrite)
	before := bytes.Clone(x.there)
	x.f.Pause(x.b)
	x.post(rdma.OpWrite, 1, k, rdma.Range{Len: benchLen})
	x.clock.Advance(time.Hour)
	x.take()
	assert.Empty(t, fabrictest.Diff(before, x.there), "a paused node placed")
	assert.Empty(t, x.events)
	assert.Equal(t, benchLen>>10, x.f.InFabric())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, params, err := x.b.Accept(8)
	require.NoError(t, err)
	_, err = x.a.Connect(ctx, 9, "", params)
	assert.ErrorIs(t, err, fault.ErrPeerUnreachable)

	x.f.Pause(x.a)
	x.f.Resume(x.b)
	x.clock.Advance(time.Hour)
	x.take()
	assert.Nil(t, x.completion(1), "a paused node reported an event")
	assert.Empty(t, fabrictest.Diff(x.here, x.there))
	x.f.Resume(x.a)
	x.rest()
	require.NotNil(t, x.completion(1))
	assert.Zero(t, x.completion(1).Status)
}

func TestDeathIsHeardOf(t *testing.T) {
	x := newBench(t, testseed.Seed(t), simfabric.Faults{Delay: time.Millisecond})
	x.post(rdma.OpWrite, 1, x.grant(rdma.AccessWrite), rdma.Range{Len: 4096})
	x.f.Kill(x.b)
	x.rest()
	require.NotNil(t, x.completion(1))
	assert.Equal(t, fault.PeerLost, x.completion(1).Status)
	last := x.events[len(x.events)-1]
	assert.Equal(t, rdma.EventDown, last.Kind)
	assert.Equal(t, rdma.SessionID(1), last.Session)
	assert.Zero(t, fabrictest.CountClass(x.there, fabrictest.ClassSource), "a dead node placed")
}

func TestLossesEndASession(t *testing.T) {
	x := newBench(t, testseed.Seed(t), simfabric.Faults{Delay: time.Millisecond, Loss: 1, MaxLosses: 5})
	x.post(rdma.OpWrite, 1, x.grant(rdma.AccessWrite), rdma.Range{Len: 100})
	x.rest()
	assert.Equal(t, 5, x.did("lose"))
	require.NotNil(t, x.completion(1))
	assert.Equal(t, fault.PeerLost, x.completion(1).Status)
	assert.Equal(t, 2, x.did("down"))
}

func TestPipeKeepsOrder(t *testing.T) {
	x := newBench(t, testseed.Seed(t), everything)
	var got []uint32
	p := x.f.NewPipe(x.a, x.b, func(b []byte) { got = append(got, binary.LittleEndian.Uint32(b)) })
	var want []uint32
	for i := range uint32(500) {
		want = append(want, i)
		require.True(t, p.Send(binary.LittleEndian.AppendUint32(nil, i)))
		switch i {
		case 100:
			x.f.Pause(x.a)
		case 200:
			x.f.Pause(x.b)
		case 300:
			x.f.Resume(x.a)
		case 400:
			x.f.Resume(x.b)
		}
		x.clock.Advance(time.Millisecond)
		if i > 250 && i < 400 {
			require.Less(t, len(got), 101)
		}
	}
	x.rest()
	assert.Equal(t, want, got)
	require.True(t, p.Send([]byte{0, 0, 0, 0}))
	p.Cut()
	assert.False(t, p.Send([]byte{0, 0, 0, 0}))
	x.rest()
	assert.Len(t, got, 500)
}

func TestOptionsAreChecked(t *testing.T) {
	for field, o := range map[string]simfabric.Options{
		"Chunk":            {Chunk: 2 << 20},
		"MaxRanges":        {MaxRanges: -1},
		"MaxInFlight":      {MaxInFlight: 1 << 21},
		"Faults.Loss":      {Faults: simfabric.Faults{Loss: 1.1}},
		"Faults.Hold":      {Faults: simfabric.Faults{Hold: -0.1}},
		"Faults.MaxLosses": {Faults: simfabric.Faults{Loss: 1}},
		"Faults.Delay":     {Faults: simfabric.Faults{Delay: -1}},
		"Faults.LateBy":    {Faults: simfabric.Faults{Late: 0.5}},
	} {
		_, err := simfabric.New(1, o)
		var fe *fault.Error
		require.ErrorAs(t, err, &fe, field)
		assert.Equal(t, fault.InvalidArgument, fe.Code)
		assert.Equal(t, field, fe.Field)
	}
}

func TestSimClock(t *testing.T) {
	c := simfabric.NewSimClock()
	start := c.Now()
	var ran []int
	at := func(d time.Duration, id int) func() bool {
		return c.AfterFunc(start+rdma.Instant(d), func() { ran = append(ran, id) })
	}
	at(3*time.Second, 3)
	at(time.Second, 1)
	at(time.Second, 2)
	stop := at(2*time.Second, 99)
	c.AfterFunc(start+rdma.Instant(4*time.Second), func() { at(0, 4) }) // due at once
	assert.True(t, stop())
	assert.False(t, stop())
	c.Advance(time.Second)
	assert.Equal(t, []int{1, 2}, ran)
	assert.Equal(t, start+rdma.Instant(time.Second), c.Now())
	assert.True(t, c.Step())
	assert.Equal(t, start+rdma.Instant(3*time.Second), c.Now())
	c.Advance(time.Hour)
	assert.Equal(t, []int{1, 2, 3, 4}, ran)
	assert.False(t, c.Step())
	assert.Equal(t, start+rdma.Instant(3*time.Second+time.Hour), c.Now())
}
