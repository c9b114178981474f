package xfer_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

func (nd *node) locate(name string) (xfer.PeerRef, []string, bool) {
	nd.net.mu.Lock()
	defer nd.net.mu.Unlock()
	x := nd.net.nodes[name]
	if x == nil {
		return xfer.PeerRef{}, nil, false
	}
	return xfer.PeerRef{Node: x.name, Epoch: x.epoch, Addr: x.listener.Addr().String()}, []string{"tcp"}, true
}

// wall lets no new connection through from one node to another, as a firewall does.
func (n *network) wall(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.walls == nil {
		n.walls = map[string]bool{}
	}
	n.walls[from+" "+to] = true
}

func (n *network) walled(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.walls[from+" "+to]
}

func probe(t *testing.T, n *network, q wire.Probe) wire.ProbeInfo {
	t.Helper()
	q.Node, q.TimeoutMillis = "b", wire.MaxStepMillis
	info, err := n.nodes["a"].engine.Probe(t.Context(), "", q)
	require.NoError(t, err)
	require.Len(t, info.Steps, 4)
	for i, s := range info.Steps {
		assert.Equal(t, []string{"a", "a", "b", "b"}[i], s.From)
		assert.Equal(t, []string{"write", "read", "write", "read"}[i], s.Op)
		assert.Equal(t, i >= 2, s.ByPeer)
	}
	return info
}

// none waits until nothing of a probe is left on a node.
func (nd *node) none() {
	require.Eventually(nd.t, func() bool { s := nd.engine.Stats(); return s.Clients+s.Leases+s.Transfers == 0 }, patience, pollEvery)
}

const pollEvery = 1e6

func TestProbeGoesBothWays(t *testing.T) {
	n := newNetwork(t, "a", "b")
	for _, size := range []uint64{1, 4095, wire.MaxProbeBytes} {
		info := probe(t, n, wire.Probe{Provider: "tcp", Bytes: size})
		assert.Equal(t, []string{"tcp"}, info.Providers)
		assert.Equal(t, n.nodes["b"].epoch, info.Epoch)
		for _, s := range info.Steps {
			assert.Nil(t, s.Error, "%+v", s)
			assert.Equal(t, size, s.Bytes)
			assert.Equal(t, "tcp", s.Provider)
			assert.Positive(t, s.Nanos)
		}
	}
	n.nodes["a"].none()
	n.nodes["b"].none()
}

func TestProbeShowsWhatIsInTheWay(t *testing.T) {
	n := newNetwork(t, "a", "b")
	n.wall("b", "a")
	for i, s := range probe(t, n, wire.Probe{Provider: "tcp", Bytes: 100}).Steps {
		if i < 2 {
			assert.Nil(t, s.Error)
		} else {
			require.NotNil(t, s.Error)
			assert.Equal(t, fault.PeerUnreachable, s.Error.Code)
			assert.Equal(t, "a wall", s.Error.Detail)
		}
	}
	n = newNetwork(t, "a", "b")
	n.wall("a", "b")
	for i, s := range probe(t, n, wire.Probe{Provider: "tcp", Bytes: 100}).Steps {
		require.NotNil(t, s.Error)
		assert.Equal(t, fault.PeerUnreachable, s.Error.Code)
		assert.Contains(t, s.Error.Detail, []string{"a wall", "not tried"}[i/2])
	}
	n = newNetwork(t, "a", "b")
	for _, s := range probe(t, n, wire.Probe{Provider: "shm", Bytes: 100}).Steps {
		require.NotNil(t, s.Error, "a provider that a node lacks is not replaced")
		assert.Equal(t, fault.NotSupported, s.Error.Code)
		assert.Equal(t, "provider", s.Error.Field)
	}
	n.nodes["b"].none()
}

// choosing is an initiator that has chosen ways.
type choosing struct {
	rdma.Initiator
	peer string
}

func (c choosing) Ways() ([]rdma.Way, []string) {
	return []rdma.Way{{Local: "x:1", Peer: c.peer + ":1", LocalAddr: "10.0.0.1", PeerAddr: "10.0.0.2", MTU: 1024, Shared: true, Why: "because"}}, []string{"x:2: DOWN"}
}

// chooser is the link's initiator, which has chosen ways where the test says so.
func chooser(l *link) rdma.Initiator {
	if l.init != nil && l.node.net.chooses.Load() {
		return choosing{l.init, l.peer.Node}
	}
	if l.init != nil && l.node.net.wraps != nil {
		return l.node.net.wraps(l.init)
	}
	return l.init
}

func TestProbeTellsOfWays(t *testing.T) {
	n := newNetwork(t, "a", "b", "c")
	q := wire.Probe{Provider: "tcp", Bytes: 100}
	info := probe(t, n, q)
	assert.Empty(t, info.Ways, "this provider chooses nothing")
	assert.Empty(t, info.Unused)
	n.chooses.Store(true)
	info = probe(t, n, q)
	assert.Equal(t, []wire.ProbeWay{{Local: "x:1", Peer: "b:1", LocalAddr: "10.0.0.1", PeerAddr: "10.0.0.2", MTU: 1024, Shared: true, Why: "because"}}, info.Ways)
	assert.Equal(t, []string{"x:2: DOWN"}, info.Unused)
	info = probe(t, n, wire.Probe{Provider: "shm", Bytes: 100})
	assert.Empty(t, info.Ways, "of another provider")
}

func TestProbeRefusals(t *testing.T) {
	n := newNetwork(t, "a", "b")
	a := n.nodes["a"]
	for field, q := range map[string]wire.Probe{
		"node": {Node: "a"}, "provider": {Node: "b", Provider: "a b"}, "bytes": {Node: "b", Bytes: wire.MaxProbeBytes + 1},
		"timeout_ms": {Node: "b", TimeoutMillis: wire.MaxStepMillis + 1},
	} {
		if q.Provider == "" {
			q.Provider = "tcp"
		}
		if q.Bytes == 0 {
			q.Bytes = 1
		}
		if q.TimeoutMillis == 0 {
			q.TimeoutMillis = 1000
		}
		_, err := a.engine.Probe(t.Context(), "", q)
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		assert.Equal(t, field, fault.From("", err).Field)
	}
	_, err := a.engine.Probe(t.Context(), "", wire.Probe{Node: "c", Provider: "tcp", Bytes: 1, TimeoutMillis: 1})
	require.ErrorIs(t, err, fault.ErrNotFound)
	assert.Equal(t, "c", fault.From("", err).Peer)
}

const peerEpoch = "000000000000000000000000000000aa"

// probed is a fake node that answers probes of peers which it knows at address a:1.
func probed(t *testing.T) *fakeNode {
	return newFakeNode(t, func(o *xfer.Options) {
		o.Providers[0].(*fakeProvider).caps.Read = true
		o.Scratch = func(n uint64) (xfer.Mapping, error) { return newMemory(t, n), nil }
		o.Locate = func(name string) (xfer.PeerRef, []string, bool) {
			return xfer.PeerRef{Node: name, Epoch: peerEpoch, Addr: "a:1"}, []string{"fake"}, name != "stranger"
		}
	})
}

func (n *fakeNode) targetOf(peer string) *fakeLink {
	l := &fakeLink{n: n, session: rdma.SessionID(n.sessions.Add(1)), target: &fakeTarget{}, peer: xfer.PeerRef{Node: peer, Epoch: peerEpoch, Tenant: "default"}}
	n.engine.LinkUp(l)
	return l
}

func (l *fakeLink) openProbe(request uint64, ttl int64) wire.Frame {
	l.receive(wire.KindProbeOpen, request, wire.ProbeOpen{Bytes: 64, Seed: make([]byte, wire.ProbeSeedBytes), TTLMillis: ttl}, nil)
	return l.answerTo(request)
}

// answerTo waits for the answer to a request and removes it.
func (l *fakeLink) answerTo(request uint64) (f wire.Frame) {
	l.n.until(func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i, x := range l.sent {
			if x.Request == request {
				f = x
				l.sent = append(l.sent[:i:i], l.sent[i+1:]...)
				return true
			}
		}
		return false
	})
	return f
}

func peersTicket(node, epoch, mode string) string {
	t := wire.Ticket{Grants: []wire.TicketGrant{{Node: node, Epoch: epoch, Addr: "evil:1", Lease: "000000000000000000000000000000bb", Secret: make([]byte, 16), Mode: mode, Raw: true}}}
	return t.Encode()
}

// What a peer can make this node hold and do by probes is bounded.
func TestProbesOfPeersAreBounded(t *testing.T) {
	n := probed(t)
	refusal := func(f wire.Frame) fault.Code {
		var w fault.Wire
		require.Equal(t, wire.KindError, f.Kind)
		require.NoError(t, f.Decode(&w))
		return w.Code
	}
	l := n.targetOf("p0")
	require.Equal(t, wire.KindOK, l.openProbe(1, 60_000).Kind)
	require.Equal(t, wire.KindOK, l.openProbe(2, 60_000).Kind)
	n.until(func() bool { s := n.engine.Stats(); return s.Clients == 1 && s.Leases == 2 }) // the first has gone

	links := []*fakeLink{l}
	for i := range 7 {
		x := n.targetOf(fmt.Sprint("q", i))
		require.Equal(t, wire.KindOK, x.openProbe(1, 60_000).Kind)
		links = append(links, x)
	}
	last := n.targetOf("last")
	assert.Equal(t, fault.ResourceExhausted, refusal(last.openProbe(1, 60_000)))
	for _, x := range links[1:] { // a link's end ends its probe
		x.Close(nil)
	}
	n.until(func() bool { return n.engine.Stats().Clients == 1 })
	require.Equal(t, wire.KindOK, last.openProbe(2, 1).Kind)
	n.until(func() bool { return n.engine.Stats().Clients == 1 }) // and so does its time

	run := func(l *fakeLink, request uint64, write, read string) fault.Code {
		l.receive(wire.KindProbeRun, request, wire.ProbeRun{Provider: "fake", WriteTicket: write, ReadTicket: read, TimeoutMillis: 5000}, nil)
		return refusal(l.answerTo(request))
	}
	own, ownRead := peersTicket("p0", peerEpoch, ""), peersTicket("p0", peerEpoch, "read")
	assert.Equal(t, fault.PermissionDenied, run(l, 5, peersTicket("victim", peerEpoch, ""), ownRead))
	assert.Equal(t, fault.PermissionDenied, run(l, 6, own, peersTicket("p0", "000000000000000000000000000000ab", "read")))
	assert.Equal(t, fault.PermissionDenied, run(l, 7, own, ticket(1)), "of blocks")
	assert.Equal(t, fault.NotFound, run(last, 8, peersTicket("last", peerEpoch, ""), peersTicket("last", peerEpoch, "read")), "its time is over")
	assert.Equal(t, fault.NotFound, run(n.targetOf("stranger"), 9, peersTicket("stranger", peerEpoch, ""), peersTicket("stranger", peerEpoch, "read")))

	dialed := make(chan xfer.PeerRef, 4)
	n.dialRef = func(ref xfer.PeerRef) (xfer.Link, error) {
		dialed <- ref
		return nil, &fault.Error{Code: fault.PeerUnreachable, Op: "dial", Peer: ref.Node}
	}
	l.receive(wire.KindProbeRun, 10, wire.ProbeRun{Provider: "fake", WriteTicket: own, ReadTicket: ownRead, TimeoutMillis: 5000}, nil)
	var ran wire.ProbeRan
	f := l.answerTo(10)
	require.NoError(t, f.Decode(&ran))
	require.NoError(t, ran.Validate())
	assert.False(t, ran.Received, "nobody wrote")
	assert.Equal(t, fault.PeerUnreachable, ran.Steps[0].Error.Code)
	for range 2 {
		assert.Equal(t, xfer.PeerRef{Node: "p0", Epoch: peerEpoch, Addr: "a:1", Tenant: "default", Provider: "fake"}, <-dialed, "at the address that it announced")
	}
	n.until(func() bool { return n.engine.Stats().Clients == 0 })
}

// A connection that is neither made nor refused is unreachable, whichever clock says so first.
func TestProbeThatGetsNoAnswer(t *testing.T) {
	n := probed(t)
	n.dial = func(ctx context.Context) (xfer.Link, error) {
		<-ctx.Done()
		return nil, fault.From("dial", ctx.Err())
	}
	l := n.targetOf("p0")
	require.Equal(t, wire.KindOK, l.openProbe(1, 60_000).Kind)
	l.receive(wire.KindProbeRun, 2, wire.ProbeRun{Provider: "fake", TimeoutMillis: 20, WriteTicket: peersTicket("p0", peerEpoch, ""),
		ReadTicket: peersTicket("p0", peerEpoch, "read")}, nil)
	var ran wire.ProbeRan
	f := l.answerTo(2)
	require.NoError(t, f.Decode(&ran))
	for _, s := range ran.Steps {
		require.NotNil(t, s.Error)
		assert.Equal(t, fault.PeerUnreachable, s.Error.Code)
		assert.Equal(t, "no link within 20 ms", s.Error.Detail)
	}
}

// A peer and a provider that report everything as done and move nothing are found out.
func TestProbeComparesBytes(t *testing.T) {
	n := probed(t)
	l := n.source(64)
	type outcome struct {
		info wire.ProbeInfo
		err  error
	}
	end := make(chan outcome, 1)
	go func() {
		info, err := n.engine.Probe(t.Context(), "", wire.Probe{Node: "peer", Provider: "fake", Bytes: 64, TimeoutMillis: wire.MaxStepMillis})
		end <- outcome{info, err}
	}()
	var open wire.ProbeOpen
	f := l.take(wire.KindProbeOpen)
	require.NoError(t, f.Decode(&open))
	assert.NotEqual(t, bytes.Repeat([]byte{0}, wire.ProbeSeedBytes), open.Seed)
	l.receive(wire.KindOK, f.Request, wire.ProbeOpened{WriteTicket: peersTicket("peer", peerEpoch, ""), ReadTicket: peersTicket("peer", peerEpoch, "read")}, nil)
	moved := func(handle uint64) {
		l.receive(wire.KindOK, l.take(wire.KindBind).Request, wire.Bound{Handle: handle, Key: 1, RegionBytes: 192, RemainingMillis: 1000}, nil)
		n.until(func() bool { _, pending := l.init.count(); return pending == 1 })
		l.init.complete(0, true)
	}
	moved(7)
	l.take(wire.KindFin)
	l.receive(wire.KindDone, 0, wire.Done{Handle: 7, Bytes: 64}, nil)
	moved(8)
	l.receive(wire.KindOK, l.take(wire.KindRelease).Request, nil, nil)
	f = l.take(wire.KindProbeRun)
	l.receive(wire.KindOK, f.Request, wire.ProbeRan{Steps: []wire.ProbeStep{{Op: "write", Bytes: 64}, {Op: "read", Bytes: 64}}}, nil)
	got := <-end
	require.NoError(t, got.err)
	for i, s := range got.info.Steps[:3] {
		require.NotNil(t, s.Error, "step %d", i)
		assert.Equal(t, fault.Internal, s.Error.Code)
		assert.Contains(t, s.Error.Detail, "not those that were sent")
	}
	assert.Nil(t, got.info.Steps[3].Error, "of what the peer read it alone can tell")
}

// A transfer that names a provider uses it or ends with a word about it.
func TestTransferOverANamedProvider(t *testing.T) {
	n := newNetwork(t, "a", "b")
	src, dst := rawWorker(t, n.nodes["a"], "src", 4096), rawWorker(t, n.nodes["b"], "dst", 4096)
	adv, err := n.nodes["b"].engine.Advertise(t.Context(), dst.id, wire.Advertise{Region: dst.region, Mode: "write", TTLMillis: 60_000}, nil)
	require.NoError(t, err)
	scatter := func(provider string) (wire.PushInfo, error) {
		return n.nodes["a"].engine.Scatter(src.id, wire.ScatterRequest{Region: src.region, Mode: "write", Ticket: adv.Ticket, TimeoutMillis: 60_000,
			TransferIdentity: wire.TransferIdentity{Provider: provider}}, []wire.ScatterRange{{Len: 4096}})
	}
	info, err := scatter("tcp")
	require.NoError(t, err)
	ev := src.transferEnd(info.Transfer)
	assert.Nil(t, ev.Error)
	assert.Equal(t, "tcp", ev.Provider)
	_, err = scatter("shm")
	require.ErrorIs(t, err, fault.ErrNotSupported)
	assert.Equal(t, "provider", fault.From("", err).Field)
	assert.ErrorContains(t, err, `"tcp"`)
	assert.Zero(t, n.nodes["a"].engine.Stats().Transfers)
}
