package verbs

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/internal/softnic"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// TestWays: a session tells which ports it joined, in the order of their names, and what it left out and why.
func TestWays(t *testing.T) {
	f := softnic.New(softnic.Options{Seed: 1})
	o := Options{Networks: func() map[string][]netip.Prefix { return nil }, Reach: func(pick.Rail, nic.GIDInfo, netip.Addr) bool { return true }}
	far := newSuiteNode(t, f.Host("b", softDevices(2)...), o)
	o.NoDevices = []string{"soft1"}
	near := newSuiteNode(t, f.Host("a", softDevices(1)...), o)
	for _, p := range []*suiteNode{near, far} {
		t.Cleanup(func() { require.NoError(t, p.Close()) })
	}
	_, params, err := far.Accept(1)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), suiteBound)
	defer cancel()
	session, err := near.Connect(ctx, 2, far.addr, params)
	require.NoError(t, err)
	ways, unused := session.(rdma.WaysTeller).Ways()
	require.NotEmpty(t, ways)
	assert.Equal(t, []string{"soft0:1", "soft0:1", "10.7.0.1", "10.7.0.2"}, []string{ways[0].Local, ways[0].Peer, ways[0].LocalAddr, ways[0].PeerAddr})
	assert.NotEmpty(t, ways[0].Why)
	for _, w := range ways {
		assert.Equal(t, "soft0:1", w.Local)
	}
	require.NotEmpty(t, unused)
	assert.Contains(t, unused[0], "soft1")
}
