package tcp

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

type handClock struct{ atomic.Int64 }

func (c *handClock) Now() rdma.Instant { return rdma.Instant(c.Load()) }

// landed counts the leading bytes of have that equal want.
func landed(have, want []byte) (n int) {
	for n < len(want) && have[n] == want[n] {
		n++
	}
	return n
}

// small socket buffers make a sender feel a shut valve at once.
const small = 64 << 10

// stalled posts one WRITE of size bytes of which the proxy lets only a part through, and waits until it has landed.
func stalled(t *testing.T, deadline rdma.Instant, ob Options) (*pair, *proxy, rdma.Key) {
	const size = 8 << 20
	ob.SocketBuffer = small
	p, x := newProxied(t, size, Options{Lanes: 1, SocketBuffer: small}, ob)
	k := p.grant(t, rdma.AccessWrite, deadline)
	pattern(p.src, 5)
	x.valve.set(1<<20 + 300_000)
	p.post(t, write(k, 1, p.srcR, rdma.Range{Len: size}))
	eventually(t, "the first bytes land", func() bool { return landed(p.dst, p.src) > 1<<20 })
	return p, x, k
}

func stopsPlacement(t *testing.T, p *pair, x *proxy, want fault.Code) {
	before := bytes.Clone(p.dst)
	x.valve.set(-1)
	e := p.a.next(t, rdma.EventCompletion)
	require.Equal(t, want, e.Status)
	require.True(t, e.Wrote)
	require.Equal(t, uint64(landed(before, p.src)), e.Bytes)
	require.True(t, bytes.Equal(before, p.dst))
	// The lane is still in step.
	k := p.grant(t, rdma.AccessWrite, 0)
	p.post(t, write(k, 2, p.srcR, rdma.Range{Len: uint64(len(p.src))}))
	require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
	require.True(t, bytes.Equal(p.src, p.dst))
	require.Equal(t, uint64(1002), p.b.next(t, rdma.EventArrival).Tag)
}

func settled(p *pair) bool {
	n := landed(p.dst, p.src)
	time.Sleep(20 * time.Millisecond) // only to let bytes under way land first; nothing is asserted on it
	return n == landed(p.dst, p.src)
}

func TestFenceInMidFrame(t *testing.T) {
	p, x, k := stalled(t, 0, Options{})
	require.NoError(t, p.tgt.Fence(k))
	requireCode(t, fault.StaleKey, p.tgt.Extend(k, 9))
	stopsPlacement(t, p, x, fault.StaleKey)
}

func TestDeadlineInMidFrame(t *testing.T) {
	clock := new(handClock)
	clock.Store(1)
	p, x, k := stalled(t, 10, Options{Clock: clock})
	require.NoError(t, p.tgt.Extend(k, 20))
	clock.Store(10)
	eventually(t, "settled", func() bool { return settled(p) })
	clock.Store(20)
	stopsPlacement(t, p, x, fault.LeaseExpired)
}

func TestDeadlineIsComparedForEmptyOpsAndReads(t *testing.T) {
	clock := new(handClock)
	p := newPair(t, 4096, Options{}, Options{Clock: clock})
	kw, kr := p.grant(t, rdma.AccessWrite, 10), p.grant(t, rdma.AccessRead, 10)
	clock.Store(10)
	for i, op := range []rdma.Op{write(kw, 1, p.srcR), write(kw, 1, p.srcR, rdma.Range{Len: 1}), read(kr, 1, p.srcR), read(kr, 1, p.srcR, rdma.Range{Len: 9})} {
		p.post(t, op)
		require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Status: fault.LeaseExpired, Session: 2, Op: 1}, p.a.next(t, rdma.EventCompletion), "op %d", i)
	}
	require.NoError(t, p.tgt.Extend(kw, 11))
	p.post(t, write(kw, 1, p.srcR, rdma.Range{Len: 1}))
	require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
}

func TestRegionCloseFences(t *testing.T) {
	p, x, k := stalled(t, 0, Options{})
	require.NoError(t, p.dstR.Close())
	requireCode(t, fault.StaleKey, p.tgt.Extend(k, 9))
	_, err := p.tgt.Grant(rdma.Window{Region: p.dstR, Access: rdma.AccessWrite, Bounds: rdma.Spans{}})
	requireCode(t, fault.InvalidArgument, err)
	p.dstR = register(t, p.b.Provider, p.dst, "again")
	stopsPlacement(t, p, x, fault.StaleKey)
}

func TestTargetCloseFencesAStalledLane(t *testing.T) {
	p, x, k := stalled(t, 0, Options{})
	require.NoError(t, p.tgt.Close())
	require.NoError(t, p.tgt.Fence(k))
	before := bytes.Clone(p.dst)
	x.valve.set(-1)
	e := p.a.next(t, rdma.EventCompletion)
	require.Equal(t, fault.PeerLost, e.Status)
	require.True(t, e.Wrote)
	require.Equal(t, fault.PeerLost, p.a.next(t, rdma.EventDown).Status)
	require.True(t, bytes.Equal(before, p.dst))
	require.Empty(t, p.b.drain(), "a target that was closed reports nothing")
}

// A stopped peer, its sockets full: Cancel and Close do not wait for it, and the source is released.
func TestCancelReleasesTheSourceInMidFrame(t *testing.T) {
	p, x, k := stalled(t, 0, Options{})
	p.post(t, write(k, 2, p.srcR, rdma.Range{Len: 100}), read(k, 3, p.srcR, rdma.Range{Len: 100}))
	p.ini.Cancel(1, 3, 4711)
	e := p.a.next(t, rdma.EventCompletion)
	require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Status: fault.Cancelled, Wrote: true, Session: 2, Op: 1}, e)
	e = p.a.next(t, rdma.EventCompletion)
	require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Status: fault.Cancelled, Session: 2, Op: 3}, e)
	old := bytes.Clone(p.src)
	pattern(p.src, 99) // the owner uses it again: none of this may be sent
	x.valve.set(-1)
	e = p.a.next(t, rdma.EventCompletion)
	require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Session: 2, Op: 2, Bytes: 100}, e)
	require.Equal(t, uint64(1002), p.b.next(t, rdma.EventArrival).Tag)
	require.True(t, bytes.Equal(p.src[:100], p.dst[:100]))
	n := 100 + landed(p.dst[100:], old[100:])
	require.Equal(t, make([]byte, 4096), p.dst[n:n+4096], "filler or nothing follows the old bytes")
	require.Empty(t, p.b.drain())
}

func TestCloseWithAStoppedPeer(t *testing.T) {
	p, _, _ := stalled(t, 0, Options{})
	require.NoError(t, p.ini.Close())
	e := p.a.next(t, rdma.EventCompletion)
	require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Status: fault.Closed, Wrote: true, Session: 2, Op: 1}, e)
	_, err := p.ini.Post(nil)
	requireCode(t, fault.Closed, err)
	p.ini.Cancel(1)
	require.NoError(t, p.ini.Close())
	require.Empty(t, p.a.drain())
}

func TestRegionCloseCancels(t *testing.T) {
	p, _, k := stalled(t, 0, Options{})
	require.NoError(t, p.srcR.Close())
	require.Equal(t, fault.Cancelled, p.a.next(t, rdma.EventCompletion).Status)
	_, err := p.ini.Post([]rdma.Op{write(k, 1, p.srcR)})
	requireCode(t, fault.InvalidArgument, err)
}

func TestCancelStopsARead(t *testing.T) {
	const size = 8 << 20
	// The roles of the proxy turn round: node b initiates, so its WRITE way is the way of the data here.
	p := &pair{src: mapped(t, size), dst: mapped(t, size)}
	o := Options{Lanes: 1, SocketBuffer: small}
	p.a, p.b = newNode(t, o, "127.0.0.1:0"), newNode(t, o, "127.0.0.1:0")
	x := newBackProxy(t, p.b.addr)
	p.connect(t, x.addr)
	p.srcR, p.dstR = register(t, p.a.Provider, p.src, "local"), register(t, p.b.Provider, p.dst, "remote")
	k := p.grant(t, rdma.AccessRead, 0)
	pattern(p.dst, 3)
	x.valve.set(1<<20 + 300_000)
	p.post(t, read(k, 1, p.srcR, rdma.Range{Len: size}))
	eventually(t, "the first bytes land", func() bool { return landed(p.src, p.dst) > 1<<20 })
	p.ini.Cancel(1)
	require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Status: fault.Cancelled, Session: 2, Op: 1}, p.a.next(t, rdma.EventCompletion))
	before := bytes.Clone(p.src)
	p.post(t, read(k, 1, p.srcR, rdma.Range{Local: 7, Remote: 7, Len: 1})) // the same id, at once
	x.valve.set(-1)
	require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Session: 2, Op: 1, Bytes: 1}, p.a.next(t, rdma.EventCompletion))
	require.True(t, bytes.Equal(before, p.src))

	// A fence of the read window in mid-frame ends the read.
	x.valve.set(1<<20 + 300_000)
	p.post(t, read(k, 2, p.srcR, rdma.Range{Len: size}))
	eventually(t, "the sender is stuck", func() bool { return x.valve.empty() })
	require.NoError(t, p.tgt.Fence(k))
	pattern(p.dst, 4)
	x.valve.set(-1)
	e := p.a.next(t, rdma.EventCompletion)
	require.Equal(t, fault.StaleKey, e.Status)
}

func TestBackPressure(t *testing.T) {
	p, x := newProxied(t, 1<<20, Options{Lanes: 2, MaxInFlight: 4, MaxInFlightLen: 10000}, Options{})
	k := p.grant(t, rdma.AccessWrite, 0)
	x.valve.set(0)
	op := func(id, n uint64) rdma.Op { return write(k, id, p.srcR, rdma.Range{Len: n}) }
	p.post(t, op(1, 20000)) // larger than the window, alone
	n, err := p.ini.Post([]rdma.Op{op(2, 1)})
	require.NoError(t, err)
	require.Zero(t, n)
	p.ini.Cancel(1)
	n, err = p.ini.Post([]rdma.Op{op(2, 5000), op(3, 5000), op(4, 1)})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	p.ini.Cancel(2, 3)
	n, err = p.ini.Post([]rdma.Op{op(2, 1), op(3, 0), op(4, 1), op(5, 1), op(6, 0)})
	require.NoError(t, err)
	require.Equal(t, 4, n)
	x.valve.set(-1)
	for range 3 {
		require.Equal(t, fault.Cancelled, p.a.next(t, rdma.EventCompletion).Status)
	}
	for range 4 {
		require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
	}
	p.post(t, op(6, 0))
	require.Zero(t, p.a.next(t, rdma.EventCompletion).Status)
}
