package shm

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// TestMoveKeepsTheRules: the operations in front of one that is refused are moved and arrive, that one touches nothing.
func TestMoveKeepsTheRules(t *testing.T) {
	const size = 1 << 20
	x := newInside(t, size, Options{MaxOpBytes: size, MaxRanges: 4})
	kw := x.grant(t, rdma.AccessWrite, 0, rdma.Span{Off: 4096, Len: 8192})
	kr := x.grant(t, rdma.AccessRead, 0, rdma.Span{Off: 4096, Len: 8192})
	gone, late := x.grant(t, rdma.AccessWrite, 0), x.grant(t, rdma.AccessWrite, 1)
	require.NoError(t, x.tgt.Fence(gone))
	shut := register(t, x.node, x.src.Host("shut"))
	require.NoError(t, shut.Close())
	good := rdma.Range{Local: 100, Remote: 4196, Len: 1000}
	five := []rdma.Range{good, good, good, good, good}
	for name, c := range map[string]struct {
		op   rdma.Op
		want fault.Code
	}{
		"before the window":          {write(kw, 9, x.srcR, good, rdma.Range{Remote: 4095, Len: 2}), fault.OutOfBounds},
		"behind the window":          {write(kw, 9, x.srcR, good, rdma.Range{Remote: 12287, Len: 2}), fault.OutOfBounds},
		"behind the region":          {write(kw, 9, x.srcR, rdma.Range{Remote: size, Len: 1}), fault.OutOfBounds},
		"wrapping":                   {write(kw, 9, x.srcR, rdma.Range{Remote: ^uint64(0), Len: 2}), fault.OutOfBounds},
		"READ before the window":     {read(kr, 9, x.srcR, good, rdma.Range{Remote: 4095, Len: 2}), fault.OutOfBounds},
		"behind the local region":    {write(kw, 9, x.srcR, rdma.Range{Local: size, Remote: 4096, Len: 1}), fault.OutOfBounds},
		"more bytes than an op has":  {write(kw, 9, x.srcR, rdma.Range{Len: size}, rdma.Range{Len: 1}), fault.InvalidArgument},
		"more ranges than an op has": {write(kw, 9, x.srcR, five...), fault.InvalidArgument},
		"fenced":                     {write(gone, 9, x.srcR, good), fault.StaleKey},
		"empty and fenced":           {write(gone, 9, x.srcR), fault.StaleKey},
		"unknown":                    {write(99, 9, x.srcR, good), fault.StaleKey},
		"late":                       {write(late, 9, x.srcR, good), fault.LeaseExpired},
		"empty and late":             {write(late, 9, x.srcR), fault.LeaseExpired},
		"writing by a key to read":   {write(kr, 9, x.srcR, good), fault.PermissionDenied},
		"reading by a key to write":  {read(kw, 9, x.srcR, good), fault.PermissionDenied},
		"no kind":                    {rdma.Op{Local: x.srcR, Remote: kw}, fault.InvalidArgument},
		"no region":                  {write(kw, 9, nil, good), fault.InvalidArgument},
		"a region that is closed":    {write(kw, 9, shut, good), fault.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			x.queue = x.drain()[:0]
			fabrictest.Fill(x.src.Bytes(), fabrictest.ClassSource, 1)
			fabrictest.Fill(x.dst.Bytes(), fabrictest.ClassTarget, 2)
			src, dst := bytes.Clone(x.src.Bytes()), bytes.Clone(x.dst.Bytes())
			first, empty := write(kw, 1, x.srcR, rdma.Range{Local: 7, Remote: 5000, Len: 300}), write(kw, 2, x.srcR, rdma.Range{})
			copy(dst[5000:5300], src[7:])
			n, st := x.ini.Move([]rdma.Op{first, empty, c.op, first})
			assert.Equal(t, 2, n)
			assert.Equal(t, c.want.String(), st.String())
			assert.Empty(t, fabrictest.Diff(src, x.src.Bytes()))
			assert.Empty(t, fabrictest.Diff(dst, x.dst.Bytes()))
			got := x.drain()
			require.Len(t, got, 2, "%v", got)
			for k, e := range got {
				assert.Equal(t, rdma.EventArrival, e.Kind)
				assert.Equal(t, []uint64{1001, 1002}[k], e.Tag)
				assert.Equal(t, []uint64{300, 0}[k], e.Bytes)
				assert.Equal(t, kw, e.Key)
				assert.Equal(t, x.tgt.id, e.Session)
			}
		})
	}
	n, st := x.ini.Move(nil)
	assert.Zero(t, n)
	assert.Zero(t, st)
	fabrictest.Fill(x.src.Bytes(), fabrictest.ClassSource, 8)
	n, st = x.ini.MoveQuiet([]rdma.Op{write(kw, 1, x.srcR, good), write(gone, 2, x.srcR, good)})
	assert.Equal(t, 1, n)
	assert.Equal(t, fault.StaleKey, st)
	assert.Equal(t, x.src.Bytes()[100:1100], x.dst.Bytes()[4196:5196])
	assert.Empty(t, x.drain(), "nobody is told")
}

// TestMoveAtRandom: large and small lists, WRITE and READ, with help and without, move exactly their bytes.
func TestMoveAtRandom(t *testing.T) {
	const size = 3 << 20
	rng := newRand(t)
	x := newInside(t, size, Options{})
	kw, kr := x.grant(t, rdma.AccessWrite, 0), x.grant(t, rdma.AccessRead, 0)
	for round := range 40 {
		kind := []rdma.OpKind{rdma.OpWrite, rdma.OpRead}[round%2]
		from, to := x.src, x.dst
		if kind == rdma.OpRead {
			from, to = x.dst, x.src
		}
		fabrictest.Fill(from.Bytes(), fabrictest.ClassSource, rng.Uint64())
		want := bytes.Clone(to.Bytes())
		// Cells of one length in another order: no byte is the destination of two ranges.
		cell := 1000 + rng.IntN(1<<(3+rng.IntN(17)))
		n := min(size/cell, 1+rng.IntN(2000))
		froms, tos := rng.Perm(size / cell)[:n], rng.Perm(size / cell)[:n]
		ops, total := []rdma.Op{}, uint64(0)
		for k := range n {
			if k == 0 || rng.IntN(100) == 0 {
				ops = append(ops, rdma.Op{Kind: kind, ID: uint64(k), Local: x.srcR, Remote: map[rdma.OpKind]rdma.Key{rdma.OpWrite: kw, rdma.OpRead: kr}[kind], Tag: uint64(k)})
			}
			r := rdma.Range{Local: uint64(froms[k] * cell), Remote: uint64(tos[k] * cell), Len: uint64(rng.IntN(cell + 1))}
			copy(want[r.Remote:r.Remote+r.Len], from.Bytes()[r.Local:])
			if kind == rdma.OpRead {
				r.Local, r.Remote = r.Remote, r.Local
			}
			total += r.Len
			o := &ops[len(ops)-1]
			o.Ranges = append(o.Ranges, r)
		}
		m, st := x.ini.Move(ops)
		require.Equal(t, len(ops), m)
		require.Zero(t, st)
		require.Empty(t, fabrictest.Diff(want, to.Bytes()), "round %d", round)
		got := x.drain()
		if kind == rdma.OpRead {
			require.Empty(t, got)
			continue
		}
		require.Len(t, got, len(ops))
		for k := range got {
			require.Equal(t, ops[k].Tag, got[k].Tag)
			require.Equal(t, ops[k].Bytes(), got[k].Bytes)
		}
	}
	require.NoError(t, x.src.GuardsIntact())
	require.NoError(t, x.dst.GuardsIntact())
}

// pausing lets chunks through until there have been some, and then holds every one.
type pausing struct {
	after  int32
	seen   atomic.Int32
	held   chan struct{} // closed when the first is held
	once   sync.Once
	resume chan struct{}
}

func pause(x *inside, after int32) *pausing {
	p := &pausing{after: after, held: make(chan struct{}), resume: make(chan struct{})}
	x.ini.hold = func() {
		if p.seen.Add(1) > p.after {
			p.once.Do(func() { close(p.held) })
			<-p.resume
		}
	}
	return p
}

// TestMoveIsEnded: whatever ends a region, a window or the session ends a Move that is in its middle, on the caller's thread and on
// others', without waiting for threads that are held up outside of the gates. Not a byte lands afterwards, and none is read.
func TestMoveIsEnded(t *testing.T) {
	const size = 3 << 20
	clock := fabrictest.NewClock()
	for _, kind := range []rdma.OpKind{rdma.OpWrite, rdma.OpRead} {
		for name, c := range map[string]struct {
			end    func(x *inside, k rdma.Key)
			status fault.Code
			near   bool // the local memory is taken back too
			far    bool // and the target's
		}{
			"fence":         {func(x *inside, k rdma.Key) { require.NoError(t, x.tgt.Fence(k)) }, fault.StaleKey, false, true},
			"deadline":      {func(x *inside, _ rdma.Key) { clock.Advance(time.Hour) }, fault.LeaseExpired, false, true},
			"local region":  {func(x *inside, _ rdma.Key) { require.NoError(t, x.srcR.Close()) }, fault.Cancelled, true, false},
			"remote region": {func(x *inside, _ rdma.Key) { require.NoError(t, x.dstR.Close()) }, fault.StaleKey, false, true},
			"initiator":     {func(x *inside, _ rdma.Key) { require.NoError(t, x.ini.Close()) }, fault.Closed, true, true},
			"target":        {func(x *inside, _ rdma.Key) { require.NoError(t, x.tgt.Close()) }, fault.PeerLost, true, true},
		} {
			for _, after := range []int32{0, 3, 9} {
				x := newInside(t, size, Options{Clock: clock})
				k := x.grant(t, rdma.Access(kind), clock.In(time.Minute))
				fabrictest.Fill(x.src.Bytes(), fabrictest.ClassSource, 1)
				p := pause(x, after)
				op := rdma.Op{Kind: kind, Local: x.srcR, Remote: k, Ranges: []rdma.Range{{Len: size}}}
				type result struct {
					n  int
					st fault.Code
				}
				done := make(chan result, 1)
				go func() {
					n, st := x.ini.Move([]rdma.Op{op})
					done <- result{n, st}
				}()
				<-p.held
				// Those before the first that is held may be copying still; who ends the Move waits for them.
				within(t, name, func() { c.end(x, k) })
				if name == "deadline" { // which waits for nobody
					eventually(t, "the chunks that had begun", func() bool { return x.ini.atRest() })
				}
				if c.near {
					fabrictest.Fill(x.src.Bytes(), fabrictest.ClassLater, 2)
				}
				if c.far {
					fabrictest.Fill(x.dst.Bytes(), fabrictest.ClassLater, 3)
				}
				src, dst := bytes.Clone(x.src.Bytes()), bytes.Clone(x.dst.Bytes())
				close(p.resume)
				r := <-done
				assert.Zero(t, r.n, name)
				assert.Equal(t, c.status.String(), r.st.String(), name)
				assert.Empty(t, fabrictest.Diff(src, x.src.Bytes()), name)
				assert.Empty(t, fabrictest.Diff(dst, x.dst.Bytes()), name)
				for _, e := range x.drain() {
					assert.NotEqual(t, rdma.EventArrival, e.Kind)
				}
			}
		}
	}
}

// atRest says that whoever works on a live job is held up.
func (i *local) atRest() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for j := i.live; j != nil; j = j.after {
		if !j.mu.TryLock() {
			return false
		}
		j.mu.Unlock()
	}
	return true
}

// TestMoveUnderFences: windows are granted and fenced while several goroutines move into them. From each fence on nothing changes.
func TestMoveUnderFences(t *testing.T) {
	const size = 3 << 20
	x := newInside(t, size, Options{})
	fabrictest.Fill(x.src.Bytes(), fabrictest.ClassSource, 1)
	var key atomic.Uint64
	var stop atomic.Bool
	var moved, refused atomic.Int64
	key.Store(uint64(x.grant(t, rdma.AccessWrite, 0)))
	var wg sync.WaitGroup
	for g := range 3 {
		wg.Go(func() {
			for !stop.Load() {
				k := rdma.Key(key.Load())
				n, st := x.ini.Move([]rdma.Op{write(k, uint64(g), x.srcR, rdma.Range{Len: 1 << 20}), write(k, uint64(g), x.srcR, rdma.Range{Local: 1 << 20, Remote: 1 << 20, Len: 2 << 20})})
				switch {
				case n == 2 && st == 0:
					moved.Add(1)
				case st == fault.StaleKey:
					refused.Add(1)
				default:
					t.Errorf("%d moved, then %v", n, st)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for !stop.Load() {
			x.drain()
			runtime.Gosched()
		}
	})
	for round := range 20 {
		eventually(t, "Moves", func() bool { return moved.Load() > int64(2*round) || t.Failed() })
		require.NoError(t, x.tgt.Fence(rdma.Key(key.Load())))
		fabrictest.Fill(x.dst.Bytes(), fabrictest.ClassLater, uint64(round))
		want := bytes.Clone(x.dst.Bytes())
		before := refused.Load()
		eventually(t, "Moves that are refused", func() bool { return refused.Load() > before+3 || t.Failed() })
		require.Empty(t, fabrictest.Diff(want, x.dst.Bytes()), "after the fence of round %d", round)
		key.Store(uint64(x.grant(t, rdma.AccessWrite, 0)))
	}
	stop.Store(true)
	wg.Wait()
}

// TestMoveWaitsForNoWorker: workers that do not come are not waited for, and what they have begun is.
func TestMoveWaitsForNoWorker(t *testing.T) {
	const size = 4 << 20
	x := newInside(t, size, Options{Workers: 2})
	k := x.grant(t, rdma.AccessWrite, 0)
	other, tgt := joined(t, x.node, 7)
	ko, err := tgt.Grant(rdma.Window{Region: x.dstR, Access: rdma.AccessWrite, Bounds: rdma.Spans{{Len: size}}})
	require.NoError(t, err)
	var held atomic.Int32
	resume := make(chan struct{})
	other.hold = func() { held.Add(1); <-resume }
	n, err := other.Post([]rdma.Op{write(ko, 1, x.srcR, rdma.Range{Len: size})})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	eventually(t, "both workers to be held up", func() bool { return held.Load() == 2 })
	within(t, "Move", func() {
		n, st := x.ini.Move([]rdma.Op{write(k, 2, x.srcR, rdma.Range{Len: size})})
		assert.Equal(t, 1, n)
		assert.Zero(t, st)
	})
	close(resume)
	require.Zero(t, x.next(t, rdma.EventCompletion).Status)

	// A worker takes a chunk and is held up in front of it: Move ends when it has been copied.
	fabrictest.Fill(x.src.Bytes(), fabrictest.ClassSource, 3)
	var inside atomic.Int32
	first := make(chan struct{})
	x.ini.hold = func() {
		switch inside.Add(1) {
		case 1:
			<-first
		case 2:
			close(first)
			time.Sleep(time.Millisecond)
		}
	}
	within(t, "Move", func() {
		n, st := x.ini.Move([]rdma.Op{write(k, 3, x.srcR, rdma.Range{Len: size})})
		assert.Equal(t, 1, n)
		assert.Zero(t, st)
		assert.Empty(t, fabrictest.Diff(x.src.Bytes(), x.dst.Bytes()))
	})
}

// TestMoveMeetsAFault: a page that cannot be written ends its operation, on whichever thread, and the process goes on.
func TestMoveMeetsAFault(t *testing.T) {
	const size = 8 << 20
	x := newInside(t, size, Options{})
	k := x.grant(t, rdma.AccessWrite, 0)
	require.NoError(t, unix.Mprotect(x.dst.Bytes()[5<<20:6<<20], unix.PROT_READ))
	ops := []rdma.Op{write(k, 1, x.srcR, rdma.Range{Len: 4 << 20}), write(k, 2, x.srcR, rdma.Range{Local: 4 << 20, Remote: 4 << 20, Len: 4 << 20})}
	n, st := x.ini.Move(ops)
	assert.Equal(t, 1, n)
	assert.Equal(t, fault.MemoryFault, st)
	require.NoError(t, unix.Mprotect(x.dst.Bytes()[5<<20:6<<20], unix.PROT_READ|unix.PROT_WRITE))
	n, st = x.ini.Move(ops)
	assert.Equal(t, 2, n)
	assert.Zero(t, st)
}

// TestMoveAllocatesNothing, however many blocks.
func TestMoveAllocatesNothing(t *testing.T) {
	const block, n = 4096, 1024
	x := newInside(t, n*block, Options{})
	k := x.grant(t, rdma.AccessWrite, 0)
	var ops []rdma.Op
	for i := range uint64(n) {
		if i%256 == 0 {
			ops = append(ops, write(k, i, x.srcR))
		}
		o := &ops[len(ops)-1]
		o.Ranges = append(o.Ranges, rdma.Range{Local: i * block, Remote: (n - 1 - i) * block, Len: block})
	}
	var buf [64]rdma.Event
	most := 0.5 // a garbage collection may empty a pool
	if raceDetector {
		most = 64 // which has pools lose things on purpose
	}
	assert.LessOrEqual(t, testing.AllocsPerRun(200, func() {
		if n, st := x.ini.Move(ops); n != len(ops) || st != 0 {
			t.Error(n, st)
		}
		for x.Poll(buf[:]) > 0 {
		}
	}), most)
}
