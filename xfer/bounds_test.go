package xfer_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// What a client or a peer cannot make a node do or keep, and requests of one client that meet.

// TestLongTextsOfPeersStayShort: what a peer says in an error is told to a client in one frame. Were it as long as the peer likes,
// and longer once it is escaped, that frame would cost the client its connection and so all its leases.
func TestLongTextsOfPeersStayShort(t *testing.T) {
	n := newFakeNode(t, func(o *xfer.Options) { o.Finder = fakeFinder{} })
	w := rankOf(t, n, 2)
	l := n.source(8)
	long := strings.Repeat("\u00e4<", 15_000)
	id := w.push(ticket(1), time.Hour, 1)
	l.bound(w, 5, 1)
	fe := fault.New(fault.MemoryFault, long, "%s", long)
	fe.Peer, fe.Region, fe.Field, fe.Guarantee = long, long, long, long
	l.receive(wire.KindEnded, 0, wire.Ended{Handle: 5, Error: fault.ToWire(fe)}, nil)
	e := w.transferEnd(id).Error
	require.NotNil(t, e)
	assert.Equal(t, "MemoryFault", e.Name)
	for _, s := range []string{e.Op, e.Peer, e.Region, e.Field, e.Detail, e.Guarantee} {
		assert.LessOrEqual(t, len(s), fault.MaxText+3)
	}

	done := make(chan error, 1)
	n.wg.Go(func() { _, err := w.leaseInstance(wire.LeaseRequest{Instance: "i"}, 2); done <- err })
	f := l.take(wire.KindGrant)
	l.receive(wire.KindOK, f.Request, wire.Granted{Handle: 5, Lease: "000000000000000000000000000000bb", Secret: make([]byte, 16), Generation: 9, Layers: small.Layers, Rank: 1}, nil)
	require.NoError(t, <-done)
	l.receive(wire.KindGrantEnded, 0, wire.GrantEnded{Handle: 5, TransferID: long, Peer: long, Provider: long}, nil)
	assert.True(t, l.down.Load(), "it is no transfer's id")
	w.until("the whole's end", func() bool { return len(w.leases) > 0 })
}

// TestAbortSaysNothingOfTheFence: Internal tells an owner that its blocks are out of use for good, so it is not the source's to say.
func TestAbortSaysNothingOfTheFence(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	lease := w.lease(time.Hour, 1)
	l.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	var b wire.Bound
	f := l.take(wire.KindOK)
	require.NoError(t, f.Decode(&b))
	l.receive(wire.KindAbort, 0, wire.Abort{Handle: b.Handle, Error: fault.ToWire(fault.New(fault.Internal, "push", "a defect"))}, nil)
	assert.Equal(t, "Cancelled", w.leaseEnd(lease.Lease).Error.Name)
	l.take(wire.KindEnded)
	assert.False(t, l.down.Load())
	w.untilFree()
}

// TestScatterListsAreBoundedBeforeTheyArePlanned: ranges may overlap, so a list of a few bytes can name any number of operations.
func TestScatterListsAreBoundedBeforeTheyArePlanned(t *testing.T) {
	n := newFakeNode(t, nil)
	n.source(8)
	w := newClient(t, n.node, "raw")
	const size = 1 << 30 // never touched
	m := newMemory(t, size)
	info, err := n.engine.RegisterRegion(t.Context(), w.id, wire.RegisterRegion{Name: "r", ID: "000000000000000000000000000000dd", Kind: "memfd", Size: size}, m)
	require.NoError(t, err)
	advert := wire.Ticket{Grants: []wire.TicketGrant{{Node: "peer", Epoch: "000000000000000000000000000000aa", Addr: "a:1",
		Lease: "000000000000000000000000000000bb", Secret: make([]byte, 16), Raw: true}}}
	ranges := make([]wire.ScatterRange, 1<<14)
	for i := range ranges {
		ranges[i].Len = size
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = n.engine.Scatter(w.id, wire.ScatterRequest{Region: info.Region, Mode: wire.ModeWrite, Ticket: advert.Encode(), TimeoutMillis: 1000}, ranges)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	assert.Equal(t, "ranges", fault.From("", err).Field)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(512<<20), "bytes allocated for %d ranges", len(ranges))
	assert.Zero(t, n.engine.Stats().Transfers)
}

// TestRenewalsDoNotPileUp: one GRANT_RENEW at a time waits at a peer, and the newest wish is told when it answers.
func TestRenewalsDoNotPileUp(t *testing.T) {
	n := newFakeNode(t, func(o *xfer.Options) { o.Finder = fakeFinder{} })
	w := rankOf(t, n, 2)
	owner := n.source(8)
	got := make(chan wire.LeaseInfo, 1)
	n.wg.Go(func() { info, _ := w.leaseInstance(wire.LeaseRequest{Instance: "i"}, 2); got <- info })
	f := owner.take(wire.KindGrant)
	owner.receive(wire.KindOK, f.Request, wire.Granted{Handle: 5, Lease: "000000000000000000000000000000bb", Secret: make([]byte, 16), Generation: 9, Layers: small.Layers, Rank: 1}, nil)
	info := <-got
	require.NotZero(t, info.Lease)
	for i := range 100 {
		require.NoError(t, n.engine.Renew(w.id, wire.Renew{Lease: info.Lease, TTLMillis: int64(60_000 + 1000*i)}))
	}
	first := owner.take(wire.KindGrantRenew)
	assert.True(t, owner.none(wire.KindGrantRenew))
	owner.receive(wire.KindOK, first.Request, nil, nil)
	var last wire.GrantRenew
	second := owner.take(wire.KindGrantRenew)
	require.NoError(t, second.Decode(&last))
	assert.Greater(t, last.TTLMillis, int64(120_000), "the last of them")
	assert.True(t, owner.none(wire.KindGrantRenew))
	owner.receive(wire.KindGrantEnded, 0, wire.GrantEnded{Handle: 5, Error: fault.ToWire(fault.ErrLeaseRevoked)}, nil)
	require.NotNil(t, w.leaseEnd(info.Lease).Error)
	owner.receive(wire.KindOK, second.Request, nil, nil) // it comes too late, and is nobody's
	assert.True(t, owner.none(wire.KindGrantRenew))
	assert.False(t, owner.down.Load())
}

// TestPartThatCommitsWhileItIsTakenBack: its end was decided, its fence still runs, when the asker takes the part back or is lost.
// Nobody says any more that the whole is committed, so its blocks become FREE.
func TestPartThatCommitsWhileItIsTakenBack(t *testing.T) {
	for name, end := range map[string]func(asker *fakeLink, part wire.Granted){
		"revoked": func(asker *fakeLink, part wire.Granted) {
			asker.receive(wire.KindGrantRevoke, 0, wire.GrantRevoke{Handle: part.Handle, Error: fault.ToWire(fault.ErrLeaseRevoked)}, nil)
		},
		"asker lost": func(asker *fakeLink, _ wire.Granted) { asker.n.engine.LinkDown(asker, fault.ErrPeerLost) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newFakeNode(t, nil)
			w := rankOf(t, n, 1)
			asker, src := n.target(), n.target()
			src.target.gate = make(chan struct{})
			part := grantPart(t, asker, w, 3)
			src.receive(wire.KindBind, 1, bindPart(w, part, firstTransfer, 60_000), nil)
			asker.receive(wire.KindClaimed, 0, wire.Claimed{Claim: claimOn(t, asker).Claim}, nil)
			var b wire.Bound
			f := src.take(wire.KindOK)
			require.NoError(t, f.Decode(&b))
			lease := w.granted[0].Lease
			for layer := range small.Layers {
				src.arrival(b.Key, layer, 0, 1)
			}
			w.until("every layer", func() bool { return len(w.layers[lease]) == int(small.Layers) })
			src.receive(wire.KindFin, 0, wire.Fin{Handle: b.Handle, Pieces: uint64(small.Layers)}, nil)
			end(asker, part)
			assert.Equal(t, uint32(1), w.blockStates().Leased)
			close(src.target.gate)
			assert.Nil(t, w.leaseEnd(lease).Error, "it was decided")
			w.untilFree()
			n.until(func() bool { return n.engine.Stats().Leases == 0 })
		})
	}
}

// TestCacheMeetsTheRegionsEnd registers a cache while its region is deregistered or advertised: one of the two is refused, and the
// name is never left with a cache whose memory is gone.
func TestCacheMeetsTheRegionsEnd(t *testing.T) {
	n := newFakeNode(t, nil)
	spec := wire.RegisterCache{Name: "c", Model: "m", Layout: small, NumBlocks: 8}
	m := newMemory(t, 1<<20)
	for i := range 200 {
		w := newClient(t, n.node, "w")
		m.unmapped.Store(false)
		info, err := n.engine.RegisterRegion(t.Context(), w.id, wire.RegisterRegion{Name: "r", ID: "000000000000000000000000000000dd", Kind: "memfd", Size: 1 << 20}, m)
		require.NoError(t, err)
		s := spec
		s.Region = info.Region
		var cache, other error
		var wg sync.WaitGroup
		wg.Go(func() { _, _, cache = n.engine.RegisterCache(t.Context(), w.id, s, nil) })
		if i%2 == 0 {
			wg.Go(func() { other = n.engine.DeregisterRegion(t.Context(), w.id, info.Region) })
		} else {
			wg.Go(func() {
				_, other = n.engine.Advertise(t.Context(), w.id, wire.Advertise{Region: info.Region, Mode: wire.ModeWrite, TTLMillis: 60_000}, nil)
			})
		}
		wg.Wait()
		require.False(t, cache == nil && other == nil, "round %d: both went well", i)
		require.Equal(t, i%2 == 0 && other == nil, m.unmapped.Load())
		n.engine.ClientGone(w.id)
		n.until(func() bool { st := n.engine.Stats(); return st.Clients+st.Caches+st.Leases == 0 })
	}
	w := newClient(t, n.node, "last")
	info, err := n.engine.RegisterRegion(t.Context(), w.id, wire.RegisterRegion{Name: "r", ID: "000000000000000000000000000000dd", Kind: "memfd", Size: 1 << 20}, m)
	require.NoError(t, err)
	spec.Region = info.Region
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, _, err = n.engine.RegisterCache(ctx, w.id, spec, nil)
	require.NoError(t, err, "the name is free")
}
