package xfer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// kindOnly is a provider that reaches one kind of memory.
type kindOnly struct {
	*fakeProvider
	kind rdma.MemoryKind
}

func (p kindOnly) Name() string { return "only-" + p.kind.String() }

func (p kindOnly) Register(m rdma.Memory) (rdma.Region, error) {
	if m.Kind != p.kind {
		return nil, fault.New(fault.NotSupported, "register", "only %s", p.kind)
	}
	return p.fakeProvider.Register(m)
}

// ofKind is memory that says it is of a kind.
type ofKind struct {
	*memory
	kind rdma.MemoryKind
}

func (m ofKind) Memory() rdma.Memory {
	out := m.memory.Memory()
	out.Kind = m.kind
	return out
}

// TestRegionsGoToTheProvidersThatReachThem: a provider that does not know a kind of memory refuses no region that
// another reaches, and the answer says how far the promise goes.
func TestRegionsGoToTheProvidersThatReachThem(t *testing.T) {
	n := newFakeNode(t, func(o *xfer.Options) {
		o.Providers = []rdma.Provider{kindOnly{o.Providers[0].(*fakeProvider), rdma.MemoryHost},
			kindOnly{&fakeProvider{wake: make(chan struct{}, 1)}, rdma.MemoryProcess}}
	})
	id, err := n.node.engine.AddClient(xfer.ClientInfo{Tenant: "default"}, nil)
	require.NoError(t, err)
	register := func(name string, kind rdma.MemoryKind) (wire.RegionInfo, error) {
		m := newMemory(t, 4096)
		return n.node.engine.RegisterRegion(t.Context(), id, wire.RegisterRegion{Name: name, ID: fmt.Sprintf("%032x", m.ino), Size: 4096}, ofKind{m, kind})
	}
	host, err := register("host", rdma.MemoryHost)
	require.NoError(t, err)
	assert.Equal(t, wire.RegionInfo{Region: host.Region, MemoryKind: "host", Guarantee: wire.GuaranteeFull}, host)
	process, err := register("process", rdma.MemoryProcess)
	require.NoError(t, err)
	assert.Equal(t, wire.RegionInfo{Region: process.Region, MemoryKind: "process", Guarantee: wire.GuaranteeLiveClient}, process)
	_, err = register("cuda", rdma.MemoryCUDA)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	assert.Equal(t, "kind", fault.From("", err).Field)
}

// rawTicket is that of a region which the fake peer would have advertised.
func rawTicket() string {
	t := wire.Ticket{Grants: []wire.TicketGrant{{Node: "peer", Epoch: "000000000000000000000000000000aa", Addr: "a:1",
		Lease: "000000000000000000000000000000bb", Secret: make([]byte, 16), Mode: "write", Raw: true}}}
	return t.Encode()
}

// comeBack registers a worker's memory again, as the client of that tenant would on a new connection.
func comeBack(ctx context.Context, w *worker, tenant string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	id, err := w.node.engine.AddClient(xfer.ClientInfo{Tenant: tenant}, &worker{})
	require.NoError(w.t, err)
	r := wire.RegisterRegion{Name: "r", ID: fmt.Sprintf("%032x", w.mem.ino), Kind: "memfd", Size: 4096}
	_, err = w.node.engine.RegisterRegion(ctx, id, r, newMemory(w.t, 4096))
	return err
}

// TestComingBackWaitsForTheFence: the answer to a registration of the same memory says that what the former connection
// began cannot touch it any more. A former client that may still be there is no reason to wait, and neither is the same id
// in another tenant.
func TestComingBackWaitsForTheFence(t *testing.T) {
	n := newFakeNode(t, nil)
	w := rawWorker(t, n.node, "r", 4096)
	l := n.source(8)
	l.init.withhold = true
	w.scatter("write", rawTicket(), "", wire.ScatterRange{Len: 64})
	f := l.take(wire.KindBind)
	l.receive(wire.KindOK, f.Request, wire.Bound{Handle: 1, Key: 1, RegionBytes: 4096, RemainingMillis: 60_000}, nil)
	n.until(func() bool { posts, _ := l.init.count(); return posts == 1 })

	err := comeBack(t.Context(), w, "default")
	require.ErrorIs(t, err, fault.ErrAlreadyExists)
	assert.Equal(t, "id", fault.From("", err).Field)
	require.NoError(t, comeBack(t.Context(), w, "another"))

	n.engine.ClientGone(w.id)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, comeBack(over, w, "default"), fault.ErrCancelled)
	back := make(chan error, 1)
	n.wg.Go(func() {
		back <- comeBack(context.Background(), w, "default")
	})
	time.Sleep(time.Millisecond) // so that it mostly waits already
	require.Empty(t, back)
	require.False(t, w.mem.unmapped.Load())
	l.init.complete(fault.Closed, true)
	require.NoError(t, <-back)
	assert.True(t, w.mem.unmapped.Load(), "it came back before the end of what was there")
}

// TestQuarantinedMemoryIsNotRegisteredAgain: where a fence failed no answer says that there was one, and nobody waits for it.
func TestQuarantinedMemoryIsNotRegisteredAgain(t *testing.T) {
	n := newFakeNode(t, nil)
	w := rawWorker(t, n.node, "r", 4096)
	l := n.target()
	l.target.fenceErr = fault.New(fault.Internal, "fence", "broken")
	lease := w.advertise("write", 0, time.Hour)
	p, err := wire.ParseTicket(lease.Ticket)
	require.NoError(t, err)
	g := p.Grants[0]
	l.receive(wire.KindBind, 1, wire.Bind{Lease: g.Lease, Secret: g.Secret, Transfer: g.Lease, Attempt: 1, Mode: "write", Raw: true, RemainingMillis: 60_000}, nil)
	l.take(wire.KindOK)
	n.engine.ClientGone(w.id)
	err = comeBack(t.Context(), w, "default")
	require.ErrorIs(t, err, fault.ErrAlreadyExists)
	assert.Contains(t, err.Error(), "quarantine")
	assert.False(t, w.mem.unmapped.Load())
	n.until(func() bool { return n.engine.Stats().Clients == 1 })
	require.ErrorIs(t, comeBack(t.Context(), w, "default"), fault.ErrAlreadyExists, "its client is forgotten, the memory is not")
}
