package xfer_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/tcp"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; no test takes anywhere near it when it passes.
const patience = 30 * time.Second

// node is an engine with a real tcp provider and store; links to other nodes are pairs of channels.
type node struct {
	t        testing.TB
	name     string
	epoch    string
	engine   *xfer.Engine
	provider *tcp.Provider
	store    *blockdb.DB
	listener net.Listener
	net      *network
	reader   *sdkmetric.ManualReader // of the engine's metrics
}

// network makes links between its nodes.
type network struct {
	mu      sync.Mutex
	nodes   map[string]*node
	clock   func(name string) xfer.Clock
	traces  func(name string) xfer.Traces // nil: nodes keep no spans
	links   []*link
	caches  map[string]netCache // by node, tenant and name
	walls   map[string]bool     // "from to": no connection gets through
	session atomic.Uint64
	chooses atomic.Bool                         // initiators tell of ways
	wraps   func(rdma.Initiator) rdma.Initiator // nil: initiators are the provider's own
	wg      sync.WaitGroup
}

func newNetwork(t testing.TB, names ...string) *network {
	return newNetworkOfClocks(t, func(string) xfer.Clock { return xfer.NewClock() }, names...)
}

// newNetworkOfClocks gives each node a clock of its own.
func newNetworkOfClocks(t testing.TB, clock func(name string) xfer.Clock, names ...string) *network {
	n := &network{nodes: map[string]*node{}, clock: clock, caches: map[string]netCache{}}
	for i, name := range names {
		n.nodes[name] = newNode(t, n, name, fmt.Sprintf("%032x", i+1))
	}
	t.Cleanup(n.close)
	return n
}

func newNode(t testing.TB, net0 *network, name, epoch string) *node {
	clock := net0.clock(name)
	p, err := tcp.New(tcp.Options{Clock: clock, Lanes: 2})
	require.NoError(t, err)
	db, _, err := blockdb.Open(blockdb.Options{Dir: "db", FS: vfs.NewMem(), BootID: "boot", BallastBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nd := &node{t: t, name: name, epoch: epoch, provider: p, store: db, listener: l, net: net0, reader: sdkmetric.NewManualReader()}
	net0.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = p.ServeLane(c, nil)
		}
	})
	var traces xfer.Traces
	if net0.traces != nil {
		traces = net0.traces(name)
	}
	nd.engine = xfer.New(xfer.Options{Traces: traces, Node: name, Epoch: epoch, BootID: "boot", Addr: l.Addr().String(), Clock: clock,
		Providers: []rdma.Provider{p}, Store: db, Dialer: nd, Directory: netDirectory{nd}, Finder: netDirectory{nd},
		Scratch: func(n uint64) (xfer.Mapping, error) { return newMemory(t, n), nil }, Locate: nd.locate,
		Tracer: noop.NewTracerProvider().Tracer(""), Logger: slog.New(slog.DiscardHandler),
		Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(nd.reader)).Meter("")})
	return nd
}

func (n *network) close() {
	for _, nd := range n.nodes {
		nd.engine.Close()
		assert.Empty(nd.t, xfer.Unsettled(nd.engine), "metrics of node %s", nd.name)
	}
	n.mu.Lock()
	links := n.links
	n.mu.Unlock()
	for _, l := range links {
		l.Close(nil)
	}
	for _, nd := range n.nodes {
		_ = nd.listener.Close()
		_ = nd.provider.Close()
		_ = nd.store.Close()
	}
	n.wg.Wait()
}

// cutBetween ends the links of two nodes, in both directions.
func (n *network) cutBetween(a, b string) {
	n.mu.Lock()
	var hit []*link
	for _, l := range n.links {
		if l.node.name == a && l.other.node.name == b || l.node.name == b && l.other.node.name == a {
			hit = append(hit, l)
		}
	}
	n.mu.Unlock()
	for _, l := range hit {
		l.Close(fault.New(fault.PeerLost, "link", "cut by the test"))
	}
}

// cut ends every link, as a lost connection does.
func (n *network) cut() {
	n.mu.Lock()
	links := n.links
	n.mu.Unlock()
	for _, l := range links {
		l.Close(fault.New(fault.PeerLost, "link", "cut by the test"))
	}
}

// netDirectory is what a network's nodes know of one another's caches.
type netDirectory struct{ nd *node }

func (d netDirectory) PutCache(c xfer.CacheEntry) {
	d.nd.net.mu.Lock()
	defer d.nd.net.mu.Unlock()
	d.nd.net.caches[d.nd.name+"/"+c.Tenant+"/"+c.Name] = netCache{d.nd, c}
}

func (d netDirectory) DropCache(tenant, name string) {
	d.nd.net.mu.Lock()
	defer d.nd.net.mu.Unlock()
	delete(d.nd.net.caches, d.nd.name+"/"+tenant+"/"+name)
}

type netCache struct {
	nd *node
	xfer.CacheEntry
}

func (c netCache) ref() xfer.PeerRef {
	return xfer.PeerRef{Node: c.nd.name, Epoch: c.nd.epoch, Addr: c.nd.listener.Addr().String(), Tenant: c.Tenant}
}

func (d netDirectory) Ranks(tenant, instance string) (out []xfer.Rank) {
	d.nd.net.mu.Lock()
	defer d.nd.net.mu.Unlock()
	for _, c := range d.nd.net.caches {
		if c.Tenant == tenant && c.Spec.Instance == instance {
			out = append(out, xfer.Rank{Peer: c.ref(), Cache: c.Name, Rank: c.Spec.Layout.TPRank, Ranks: c.Spec.Layout.TPSize})
		}
	}
	return out
}

func (d netDirectory) Holders(tenant, model string) (out []xfer.PeerRef) {
	d.nd.net.mu.Lock()
	defer d.nd.net.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range d.nd.net.caches {
		if c.Tenant == tenant && c.Spec.Model == model && !seen[c.nd.name] {
			seen[c.nd.name] = true
			out = append(out, c.ref())
		}
	}
	return out
}

// Dial implements xfer.Dialer: one link a pair of nodes and tenant while it lives.
func (nd *node) Dial(ctx context.Context, ref xfer.PeerRef) (xfer.Link, error) {
	nd.net.mu.Lock()
	peer := nd.net.nodes[ref.Node]
	nd.net.mu.Unlock()
	if peer == nil {
		return nil, &fault.Error{Code: fault.PeerUnreachable, Op: "dial", Peer: ref.Node}
	}
	if nd.net.walled(nd.name, ref.Node) {
		return nil, &fault.Error{Code: fault.PeerUnreachable, Op: "dial", Peer: ref.Node, Detail: "a wall"}
	}
	if ref.Provider != "" && ref.Provider != "tcp" {
		return nil, &fault.Error{Code: fault.NotSupported, Op: "dial", Peer: ref.Node, Field: "provider"}
	}
	if peer.epoch != ref.Epoch {
		return nil, &fault.Error{Code: fault.StaleEpoch, Op: "dial", Peer: ref.Node}
	}
	nd.net.mu.Lock()
	for _, l := range nd.net.links {
		if l.node == nd && l.other.node == peer && l.init != nil && l.peer.Tenant == ref.Tenant && !l.closed() {
			nd.net.mu.Unlock()
			return l, nil
		}
	}
	nd.net.mu.Unlock()
	src, dst := rdma.SessionID(nd.net.session.Add(1)), rdma.SessionID(nd.net.session.Add(1))
	target, params, err := peer.provider.Accept(dst)
	if err != nil {
		return nil, err
	}
	init, err := nd.provider.Connect(ctx, src, peer.listener.Addr().String(), params)
	if err != nil {
		return nil, err
	}
	out := newLink(nd, xfer.PeerRef{Node: peer.name, Epoch: peer.epoch, Tenant: ref.Tenant}, src)
	in := newLink(peer, xfer.PeerRef{Node: nd.name, Epoch: nd.epoch, Tenant: ref.Tenant}, dst)
	out.other, in.other, out.init, in.target = in, out, init, target
	for _, l := range []*link{in, out} {
		l.node.engine.LinkUp(l)
		nd.net.wg.Go(l.deliver)
	}
	nd.net.mu.Lock()
	nd.net.links = append(nd.net.links, out, in)
	nd.net.mu.Unlock()
	return out, nil
}

// link is one end of a pair.
type link struct {
	node    *node
	other   *link
	peer    xfer.PeerRef
	session rdma.SessionID
	init    rdma.Initiator
	target  rdma.Target

	mu    sync.Mutex
	queue []wire.Frame
	wake  chan struct{}
	done  chan struct{}
	once  sync.Once
}

func newLink(nd *node, peer xfer.PeerRef, id rdma.SessionID) *link {
	return &link{node: nd, peer: peer, session: id, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

func (l *link) Peer() xfer.PeerRef              { return l.peer }
func (l *link) Provider() (name, reason string) { return "tcp", "the only one" }
func (l *link) Session() rdma.SessionID         { return l.session }
func (l *link) Initiator() rdma.Initiator       { return chooser(l) }
func (l *link) Target() rdma.Target             { return l.target }

func (l *link) closed() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (l *link) Send(f wire.Frame) error {
	if l.closed() {
		return fault.New(fault.PeerLost, "send", "the link is down")
	}
	o := l.other
	o.mu.Lock()
	o.queue = append(o.queue, f)
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return nil
}

func (l *link) deliver() {
	for {
		select {
		case <-l.done:
			return
		case <-l.wake:
		}
		l.mu.Lock()
		frames := l.queue
		l.queue = nil
		l.mu.Unlock()
		for _, f := range frames {
			if l.closed() {
				return
			}
			l.node.engine.LinkFrame(l, f)
		}
	}
}

func (l *link) Close(reason error) {
	l.once.Do(func() {
		close(l.done)
		if l.init != nil {
			_ = l.init.Close()
		} else {
			_ = l.target.Close()
		}
		l.node.net.wg.Go(func() {
			l.node.engine.LinkDown(l, reason)
			l.other.Close(reason)
		})
	})
}
