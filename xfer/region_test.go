package xfer_test

import (
	"fmt"
	"testing"

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
		return n.node.engine.RegisterRegion(id, wire.RegisterRegion{Name: name, ID: fmt.Sprintf("%032x", m.ino), Size: 4096}, ofKind{m, kind})
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
