package xfer_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// An owner whose asker is played by the test, and an asker whose owner is.

// rankOf attaches rank 0 of `ranks` to a node whose peers the test plays.
func rankOf(t *testing.T, n *fakeNode, ranks uint32) *worker {
	l := small
	l.TPSize = ranks
	return newClient(t, n.node, "c").with(wire.RegisterCache{Name: "c", Model: "m", Revision: "1", Layout: l, NumBlocks: 8, Instance: "i", InstanceKey: engineKey})
}

func grantOf(w *worker, blocks ...uint32) (wire.Grant, []byte) {
	return wire.Grant{Cache: w.spec.Name, Instance: "i", InstanceKey: engineKey, LeaseID: "000000000000000000000000000000ee", Mode: "write", TTLMillis: 3_600_000},
		wire.AppendU32s(nil, blocks)
}

// grantPart has the asker's link get a part.
func grantPart(t *testing.T, asker *fakeLink, w *worker, blocks ...uint32) wire.Granted {
	g, array := grantOf(w, blocks...)
	asker.receive(wire.KindGrant, 1, g, array)
	var got wire.Granted
	f := asker.take(wire.KindOK)
	require.NoError(t, f.Decode(&got))
	require.NoError(t, got.Validate())
	return got
}

func bindPart(w *worker, g wire.Granted, transfer string, remaining int64) wire.Bind {
	return wire.Bind{Lease: g.Lease, Secret: g.Secret, Transfer: transfer, Attempt: 1, Model: w.spec.Model, Revision: w.spec.Revision,
		Layout: w.spec.Layout, Blocks: 1, RemainingMillis: remaining}
}

func (l *fakeLink) refusal(t *testing.T) fault.Wire {
	t.Helper()
	var e fault.Wire
	f := l.take(wire.KindError)
	require.NoError(t, f.Decode(&e))
	return e
}

func claimOn(t *testing.T, asker *fakeLink) wire.Claim {
	t.Helper()
	var c wire.Claim
	f := asker.take(wire.KindClaim)
	require.NoError(t, f.Decode(&c))
	return c
}

// TestBindWaitsForTheAskersWord: no window is opened before it, a refusal leaves the part to others, and the same
// transfer asks once.
func TestBindWaitsForTheAskersWord(t *testing.T) {
	n := newFakeNode(t, nil)
	w := rankOf(t, n, 1)
	asker, src := n.target(), n.target()
	part := grantPart(t, asker, w, 3)
	require.Len(t, w.granted, 1)

	src.receive(wire.KindBind, 1, bindPart(w, part, secondTransfer, 60_000), nil)
	no := claimOn(t, asker)
	assert.Equal(t, wire.Claim{Handle: part.Handle, Claim: no.Claim, Transfer: secondTransfer, Attempt: 1}, no)
	src.receive(wire.KindBind, 2, bindPart(w, part, firstTransfer, 60_000), nil)
	yes := claimOn(t, asker)
	src.receive(wire.KindBind, 3, bindPart(w, part, firstTransfer, 60_000), nil)
	assert.Equal(t, "TicketBound", src.refusal(t).Name, "the same transfer asks once")
	assert.True(t, src.none(wire.KindOK))
	assert.Zero(t, src.target.grants)

	asker.receive(wire.KindClaimed, 0, wire.Claimed{Claim: no.Claim, Error: fault.ToWire(fault.New(fault.TicketBound, "bind", "another's"))}, nil)
	e := src.refusal(t)
	assert.Equal(t, "TicketBound", e.Name)
	asker.receive(wire.KindClaimed, 0, wire.Claimed{Claim: yes.Claim}, nil)
	src.take(wire.KindOK)
	asker.receive(wire.KindClaimed, 0, wire.Claimed{Claim: yes.Claim}, nil) // said twice
	asker.receive(wire.KindClaimed, 0, wire.Claimed{Claim: 12345}, nil)
	assert.False(t, asker.down.Load())
	assert.Equal(t, 1, src.target.grants)
}

// TestClaimEnds: a BIND that waits ends at its own time, with the part, and with the asker.
func TestClaimEnds(t *testing.T) {
	n := newFakeNode(t, nil)
	w := rankOf(t, n, 1)
	asker, src := n.target(), n.target()
	part := grantPart(t, asker, w, 3)
	src.receive(wire.KindBind, 1, bindPart(w, part, firstTransfer, 1), nil)
	late := claimOn(t, asker)
	assert.Equal(t, "DeadlineExceeded", src.refusal(t).Name)
	asker.receive(wire.KindClaimed, 0, wire.Claimed{Claim: late.Claim}, nil)
	assert.Zero(t, src.target.grants)

	for i := range 64 {
		src.receive(wire.KindBind, 2, bindPart(w, part, "000000000000000000000000000001"+strconv.Itoa(10+i), 60_000), nil)
		claimOn(t, asker)
	}
	src.receive(wire.KindBind, 3, bindPart(w, part, firstTransfer, 60_000), nil)
	assert.Equal(t, "ResourceExhausted", src.refusal(t).Name)
	require.NoError(t, n.engine.Revoke(w.id, w.granted[0].Lease))
	for range 64 {
		assert.Equal(t, "LeaseRevoked", src.refusal(t).Name)
	}
	var end wire.GrantEnded
	f := asker.take(wire.KindGrantEnded)
	require.NoError(t, f.Decode(&end))
	assert.Equal(t, part.Handle, end.Handle)
	assert.Equal(t, "LeaseRevoked", end.Error.Name)

	part = grantPart(t, asker, w, 4)
	src.receive(wire.KindBind, 4, bindPart(w, part, secondTransfer, 60_000), nil)
	claimOn(t, asker)
	asker.Close(fault.ErrPeerLost)
	assert.Equal(t, "PeerLost", src.refusal(t).Name)
	assert.Equal(t, "PeerLost", w.leaseEnd(w.granted[1].Lease).Error.Name)
	w.untilFree()
}

// TestGrantIsChecked refuses what is not the rank's, and leaves nothing.
func TestGrantIsChecked(t *testing.T) {
	n := newFakeNode(t, nil)
	w := rankOf(t, n, 1)
	asker := n.target()
	for name, c := range map[string]struct {
		change func(*wire.Grant)
		blocks []uint32
		want   string
	}{
		"key":      {func(g *wire.Grant) { g.InstanceKey = make([]byte, 16) }, []uint32{1}, "PermissionDenied"},
		"no key":   {func(g *wire.Grant) { g.InstanceKey = nil }, []uint32{1}, "InvalidArgument"},
		"instance": {func(g *wire.Grant) { g.Instance = "j" }, []uint32{1}, "NotFound"},
		"cache":    {func(g *wire.Grant) { g.Cache = "d" }, []uint32{1}, "NotFound"},
		"mode":     {func(g *wire.Grant) { g.Mode = "own" }, []uint32{1}, "InvalidArgument"},
		"no block": {func(*wire.Grant) {}, nil, "InvalidArgument"},
		"a block":  {func(*wire.Grant) {}, []uint32{8}, "InvalidArgument"},
	} {
		g, _ := grantOf(w)
		c.change(&g)
		asker.receive(wire.KindGrant, 7, g, wire.AppendU32s(nil, c.blocks))
		assert.Equal(t, c.want, asker.refusal(t).Name, name)
	}
	assert.Zero(t, n.engine.Stats().Leases)
	assert.Empty(t, w.granted)
	for _, kind := range []wire.Kind{wire.KindGrantRevoke, wire.KindClaimed} {
		asker.receive(kind, 0, wire.GrantRevoke{Handle: 99}, nil)
	}
	asker.receive(wire.KindGrantRenew, 8, wire.GrantRenew{Handle: 99, TTLMillis: 5}, nil)
	assert.Equal(t, "NotFound", asker.refusal(t).Name)
	assert.False(t, asker.down.Load())
	asker.receive(wire.KindGrant, 7, wire.Grant{}, []byte{1})
	assert.True(t, asker.down.Load(), "no array of block ids")
}

// fakeFinder knows of rank 1 of 2 at the peer.
type fakeFinder struct{}

func (fakeFinder) Ranks(tenant, _ string) []xfer.Rank {
	return []xfer.Rank{{Peer: xfer.PeerRef{Node: "peer", Epoch: "e", Addr: "a:1", Tenant: tenant}, Cache: "far", Rank: 1, Ranks: 2}}
}
func (fakeFinder) Holders(string, string) []xfer.PeerRef { return nil }

// TestOwnersThatAnswerWrongly: what a peer says of parts that it does not have is ignored, and a grant that cannot be used
// or comes too late is met with GRANT_REVOKE.
func TestOwnersThatAnswerWrongly(t *testing.T) {
	n := newFakeNode(t, func(o *xfer.Options) { o.Finder = fakeFinder{} })
	w := rankOf(t, n, 2)
	owner := n.source(8)
	lease := func() chan error {
		done := make(chan error, 1)
		n.wg.Go(func() { _, err := w.leaseInstance(wire.LeaseRequest{Instance: "i"}, 2); done <- err })
		return done
	}
	good := wire.Granted{Handle: 5, Lease: "000000000000000000000000000000bb", Secret: make([]byte, 16), Generation: 9, Layers: small.Layers, Rank: 1}
	for name, change := range map[string]func(*wire.Granted){
		"no secret":     func(g *wire.Granted) { g.Secret = nil },
		"no lease":      func(g *wire.Granted) { g.Lease = "x" },
		"another rank":  func(g *wire.Granted) { g.Rank = 0 },
		"no handle":     func(g *wire.Granted) { g.Handle = 0 },
		"other layers":  func(g *wire.Granted) { g.Layers++ },
		"ends at once":  func(*wire.Granted) {},
		"is lost after": func(*wire.Granted) {},
	} {
		done := lease()
		f := owner.take(wire.KindGrant)
		g := good
		change(&g)
		owner.receive(wire.KindOK, f.Request, g, nil)
		switch name {
		case "ends at once":
			owner.receive(wire.KindGrantEnded, 0, wire.GrantEnded{Handle: 5, Error: fault.ToWire(fault.ErrLeaseRevoked)}, nil)
		case "is lost after":
			n.until(func() bool { return len(done) == 1 })
			owner.receive(wire.KindGrantEnded, 0, wire.GrantEnded{Handle: 5, Error: fault.ToWire(fault.ErrClientGone)}, nil)
			require.NoError(t, <-done)
			w.until("the whole's end", func() bool { return len(w.leases) > 0 })
			w.untilFree()
			continue
		case "other layers":
			owner.take(wire.KindGrantRevoke)
			owner.receive(wire.KindGrantEnded, 0, wire.GrantEnded{Handle: 5, Error: fault.ToWire(fault.ErrLeaseRevoked)}, nil)
		default:
			owner.take(wire.KindGrantRevoke)
		}
		select {
		case err := <-done:
			if name != "ends at once" { // which may be just after the answer
				require.Error(t, err, name)
			}
		case <-time.After(patience):
			t.Fatal(name)
		}
		w.untilFree()
	}
	for _, kind := range []wire.Kind{wire.KindGrantLayers, wire.KindGrantEnded} {
		owner.receive(kind, 0, wire.GrantHandle{Handle: 99}, nil)
	}
	owner.receive(wire.KindClaim, 0, wire.Claim{Handle: 99, Claim: 4, Transfer: firstTransfer}, nil)
	var c wire.Claimed
	f := owner.take(wire.KindClaimed)
	require.NoError(t, f.Decode(&c))
	assert.EqualValues(t, 4, c.Claim)
	assert.Equal(t, "LeaseRevoked", c.Error.Name)
	assert.False(t, owner.down.Load())
}
