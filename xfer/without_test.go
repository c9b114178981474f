package xfer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// pinning is a provider that takes no memory while err is set, as one that has no more to pin.
type pinning struct {
	*fakeProvider
	err error
}

func (p *pinning) Name() string { return "pinning" }

func (p *pinning) Register(m rdma.Memory) (rdma.Region, error) {
	if p.err != nil {
		return nil, p.err
	}
	return p.fakeProvider.Register(m)
}

var errMemlock = fault.New(fault.ResourceExhausted, "ibv_reg_mr", "4096 bytes are above RLIMIT_MEMLOCK")

// pinningNode prefers a provider that takes memory only where err is nil.
func pinningNode(t testing.TB, err error) (*fakeNode, *pinning) {
	p := &pinning{err: err}
	n := newFakeNode(t, func(o *xfer.Options) {
		fake := o.Providers[0].(*fakeProvider)
		p.fakeProvider = &fakeProvider{wake: make(chan struct{}, 1), caps: fake.caps}
		o.Providers = []rdma.Provider{p, fake}
	})
	return n, p
}

// over makes a link over a provider, on which this node is the source or else the target.
func (n *fakeNode) over(p *fakeProvider, name string, source bool) *fakeLink {
	l := &fakeLink{n: n, over: name, session: rdma.SessionID(n.sessions.Add(1))}
	if source {
		l.init = &fakeInitiator{p: p, session: l.session, room: 8}
	} else {
		l.target = &fakeTarget{}
	}
	n.engine.LinkUp(l)
	return l
}

// TestMemoryThatAProviderDoesNotTake: the region is registered, its transfers go over the others and say why, and the node counts
// it. Where no provider takes the memory, or the request is wrong, the registration fails with that provider's error.
func TestMemoryThatAProviderDoesNotTake(t *testing.T) {
	n, p := pinningNode(t, errMemlock)
	w := rawWorker(t, n.node, "kv", 4096)
	assert.Equal(t, []wire.Unregistered{{Provider: "pinning", Regions: 1, Why: errMemlock.Detail}}, n.engine.Unregistered())

	l := n.over(n.provider, "fake", true)
	dialed := make(chan xfer.PeerRef, 4)
	n.dialRef = func(ref xfer.PeerRef) (xfer.Link, error) { dialed <- ref; return l, nil }
	id := w.scatter("write", rawTicket(), "", wire.ScatterRange{Len: 64})
	assert.Equal(t, []string{"pinning"}, (<-dialed).Without)
	f := l.take(wire.KindBind)
	l.receive(wire.KindOK, f.Request, wire.Bound{Handle: 1, Key: 1, RegionBytes: 4096, RemainingMillis: 60_000}, nil)
	n.until(func() bool { posts, _ := l.init.count(); return posts == 1 })
	l.init.complete(0, true)
	l.take(wire.KindFin)
	l.receive(wire.KindDone, 0, wire.Done{Handle: 1, Bytes: 64}, nil)
	ev := w.transferEnd(id)
	assert.Nil(t, ev.Error)
	assert.Equal(t, "fake", ev.Provider)
	assert.Equal(t, `the only one; pinning is not usable: on node n "kv" is not registered with pinning: 4096 bytes are above RLIMIT_MEMLOCK`, ev.Reason)

	_, err := n.engine.Scatter(w.id, wire.ScatterRequest{Region: w.region, Mode: "write", Ticket: rawTicket(), TimeoutMillis: 60_000,
		TransferIdentity: wire.TransferIdentity{Provider: "pinning"}}, []wire.ScatterRange{{Len: 64}})
	require.ErrorIs(t, err, fault.ErrNotSupported)
	assert.ErrorContains(t, err, errMemlock.Detail)

	n.engine.ClientGone(w.id)
	n.until(func() bool { return len(n.engine.Unregistered()) == 0 })
	p.err = nil
	rawWorker(t, n.node, "kv", 4096)
	assert.Empty(t, n.engine.Unregistered())
}

func TestMemoryThatNoProviderTakes(t *testing.T) {
	invalid := fault.Invalid("register", "Len", "0")
	unsupported := fault.New(fault.NotSupported, "register", "only host memory")
	for name, c := range map[string]struct {
		first, second, want error
		field               string
	}{
		"each has its reason":          {unsupported, errMemlock, errMemlock, ""},
		"in any order":                 {errMemlock, unsupported, errMemlock, ""},
		"none knows the kind":          {unsupported, unsupported, unsupported, "kind"},
		"what is wrong is wrong":       {invalid, nil, invalid, "Len"},
		"also behind one that took it": {nil, invalid, invalid, "Len"},
	} {
		t.Run(name, func(t *testing.T) {
			var providers []*pinning
			n := newFakeNode(t, func(o *xfer.Options) {
				for _, err := range []error{c.first, c.second} {
					providers = append(providers, &pinning{&fakeProvider{wake: make(chan struct{}, 1)}, err})
				}
				o.Providers = []rdma.Provider{providers[0], renamed{providers[1]}}
			})
			id, err := n.engine.AddClient(xfer.ClientInfo{Tenant: "default"}, &worker{})
			require.NoError(t, err)
			m := newMemory(t, 4096)
			_, err = n.engine.RegisterRegion(t.Context(), id, wire.RegisterRegion{Name: "kv", ID: fmt.Sprintf("%032x", m.ino), Size: 4096}, m)
			fe := fault.From("", err)
			assert.Equal(t, []string{fault.CodeOf(c.want).String(), "kv", c.field}, []string{fe.Code.String(), fe.Region, fe.Field})
			for _, p := range providers {
				for _, r := range p.regions {
					assert.True(t, r.closed.Load(), "what one took is given back")
				}
			}
		})
	}
}

type renamed struct{ *pinning }

func (renamed) Name() string { return "other" }

// TestTargetWithoutTheProvider: a lease's memory that is not with the link's provider is neither reached nor claimed, and the source
// may bind over another link.
func TestTargetWithoutTheProvider(t *testing.T) {
	n, p := pinningNode(t, errMemlock)
	w := newWorker(t, n.node, "kv", small, 4)
	info := w.lease(time.Minute, 1)
	l := n.over(p.fakeProvider, "pinning", false)
	l.receive(wire.KindBind, 1, bind(t, w, info.Ticket), nil)
	f := l.take(wire.KindError)
	var refusal fault.Wire
	require.NoError(t, f.Decode(&refusal))
	fe := fault.From("", fault.FromWire(&refusal))
	assert.Equal(t, []string{"NotSupported", "provider", `"kv" is not registered with pinning: 4096 bytes are above RLIMIT_MEMLOCK`}, []string{fe.Code.String(), fe.Field, fe.Detail})
	assert.Zero(t, l.target.grants)

	l = n.over(n.provider, "fake", false)
	l.receive(wire.KindBind, 1, bind(t, w, info.Ticket), nil)
	l.take(wire.KindOK)
	assert.Equal(t, 1, l.target.grants)
}

// TestSourceGoesWithoutTheProvider: a source that hears that the target's memory is not with the link's provider binds over another,
// and the result says why; one that may use no other ends with what it heard, and a target that says it for ever ends it too.
func TestSourceGoesWithoutTheProvider(t *testing.T) {
	n, p := pinningNode(t, nil)
	w := rawWorker(t, n.node, "kv", 4096)
	fast, slow := n.over(p.fakeProvider, "pinning", true), n.over(n.provider, "fake", true)
	n.dialRef = func(ref xfer.PeerRef) (xfer.Link, error) {
		switch strings.Join(ref.Without, ",") {
		case "":
			return fast, nil
		case "pinning":
			return slow, nil
		}
		return nil, &fault.Error{Code: fault.NotSupported, Op: "dial", Field: "provider", Detail: "none is left"}
	}
	refuse := func(l *fakeLink) {
		f := l.take(wire.KindBind)
		l.receive(wire.KindError, f.Request, fault.ToWire(&fault.Error{Code: fault.NotSupported, Op: "bind", Field: "provider", Detail: `"far" is not registered: memlock`}), nil)
	}
	id := w.scatter("write", rawTicket(), "", wire.ScatterRange{Len: 64})
	refuse(fast)
	f := slow.take(wire.KindBind)
	slow.receive(wire.KindOK, f.Request, wire.Bound{Handle: 1, Key: 1, RegionBytes: 4096, RemainingMillis: 60_000}, nil)
	n.until(func() bool { posts, _ := slow.init.count(); return posts == 1 })
	posts, _ := fast.init.count()
	assert.Zero(t, posts)
	slow.init.complete(0, true)
	slow.take(wire.KindFin)
	slow.receive(wire.KindDone, 0, wire.Done{Handle: 1, Bytes: 64}, nil)
	ev := w.transferEnd(id)
	assert.Nil(t, ev.Error)
	assert.Equal(t, []string{"fake", `the only one; pinning is not usable: on node peer "far" is not registered: memlock`}, []string{ev.Provider, ev.Reason})

	id = w.scatter("write", rawTicket(), "", wire.ScatterRange{Len: 64})
	refuse(fast)
	refuse(slow)
	ev = w.transferEnd(id)
	require.NotNil(t, ev.Error)
	fe := fault.From("", fault.FromWire(ev.Error))
	assert.Equal(t, []string{"NotSupported", "provider"}, []string{fe.Code.String(), fe.Field})
	assert.Contains(t, fe.Detail, "pinning is not usable: on node peer")
	assert.Contains(t, fe.Detail, "fake is not usable: on node peer")

	info, err := n.engine.Scatter(w.id, wire.ScatterRequest{Region: w.region, Mode: "write", Ticket: rawTicket(), TimeoutMillis: 60_000,
		TransferIdentity: wire.TransferIdentity{Provider: "pinning"}}, []wire.ScatterRange{{Len: 64}})
	require.NoError(t, err)
	refuse(fast)
	ev = w.transferEnd(info.Transfer)
	require.NotNil(t, ev.Error)
	assert.Equal(t, "NotSupported", fault.CodeOf(fault.FromWire(ev.Error)).String())
	assert.Contains(t, fault.FromWire(ev.Error).Error(), "memlock")

	// A transfer that ends while it waits for the second link leaves nothing behind.
	waits := make(chan struct{})
	n.dialRef = func(ref xfer.PeerRef) (xfer.Link, error) {
		if len(ref.Without) == 0 {
			return fast, nil
		}
		<-waits
		return slow, nil
	}
	id = w.scatter("write", rawTicket(), "", wire.ScatterRange{Len: 64})
	refuse(fast)
	n.engine.CancelTransfer(w.id, id)
	ev = w.transferEnd(id)
	require.NotNil(t, ev.Error)
	assert.Equal(t, "Cancelled", fault.CodeOf(fault.FromWire(ev.Error)).String())
	close(waits)
	n.until(func() bool { return n.engine.Stats().Transfers == 0 })
	assert.True(t, slow.none(wire.KindBind))
}
