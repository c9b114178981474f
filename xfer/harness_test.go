package xfer_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/tcp"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/layout"
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
func (l *link) Initiator() rdma.Initiator       { return l.init }
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

// memory is an anonymous mapping; after Close it counts as unmapped but stays readable, so that a test can look for
// late bytes.
type memory struct {
	bytes    []byte
	unmapped atomic.Bool
	ino      uint64
}

var inodes atomic.Uint64

func newMemory(t testing.TB, n uint64) *memory {
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return &memory{bytes: b, ino: inodes.Add(1)}
}

func (m *memory) Memory() rdma.Memory {
	return rdma.Memory{Kind: rdma.MemoryHost, Base: unsafe.Pointer(&m.bytes[0]), Len: uint64(len(m.bytes)), Name: "test"}
}
func (m *memory) Object() (uint64, uint64) { return 1, m.ino }
func (m *memory) Close() error             { m.unmapped.Store(true); return nil }

// worker is an attached client with one cache.
type worker struct {
	t      testing.TB
	node   *node
	id     xfer.ClientID
	mem    *memory
	spec   wire.RegisterCache
	cache  uint64
	region uint64

	mu         sync.Mutex
	changed    chan struct{}
	layers     map[uint64][]uint32
	leases     map[uint64]wire.LeaseEvent
	notes      map[uint64][]byte
	transfers  map[uint64]wire.TransferEvent
	released   map[uint64]bool
	granted    []grantedEvent
	holders    []wire.HolderEvent
	holderSay  [][]byte                          // their notifications
	ends       map[uint64]int                    // events that ended a lease or transfer; they share one row of numbers
	free       map[uint64]int                    // times that a lease's or transfer's memory was given back
	whenFree   map[uint64]func()                 // called once, by the engine's goroutine, at that moment
	whenHolder map[uint64]func(wire.HolderEvent) // by lease: called with each holder's end
	onEvent    func()                            // called by the engine's goroutine with each end
}

func newWorker(t testing.TB, nd *node, name string, l layout.Layout, blocks uint32) *worker {
	return newWorkerOf(t, nd, "default", name, l, blocks)
}

func newWorkerOf(t testing.TB, nd *node, tenant, name string, l layout.Layout, blocks uint32) *worker {
	return newClientOf(t, nd, tenant, name).with(wire.RegisterCache{Name: name, Model: "m", Revision: "1", Layout: l, NumBlocks: blocks})
}

// newClient attaches a client without memory.
func newClient(t testing.TB, nd *node, name string) *worker {
	return newClientOf(t, nd, "default", name)
}

func newClientOf(t testing.TB, nd *node, tenant, name string) *worker {
	w := &worker{t: t, node: nd, changed: make(chan struct{}), layers: map[uint64][]uint32{}, leases: map[uint64]wire.LeaseEvent{},
		notes: map[uint64][]byte{}, transfers: map[uint64]wire.TransferEvent{}, released: map[uint64]bool{}, ends: map[uint64]int{},
		free: map[uint64]int{}, whenFree: map[uint64]func(){}, whenHolder: map[uint64]func(wire.HolderEvent){}}
	var err error
	w.id, err = nd.engine.AddClient(xfer.ClientInfo{Tenant: tenant, Process: name}, w)
	require.NoError(t, err)
	return w
}

// with gives a client memory and its cache.
func (w *worker) with(spec wire.RegisterCache) *worker {
	w.mem = newMemory(w.t, layout.Geometry{Layout: spec.Layout, NumBlocks: spec.NumBlocks}.Bytes())
	info, err := w.node.engine.RegisterRegion(w.t.Context(), w.id, wire.RegisterRegion{Name: spec.Name, ID: fmt.Sprintf("%032x", w.mem.ino), Kind: "memfd", Size: uint64(len(w.mem.bytes))}, w.mem)
	require.NoError(w.t, err)
	w.region, spec.Region = info.Region, info.Region
	w.spec = spec
	w.register()
	return w
}

func (w *worker) register() {
	ci, _, err := w.node.engine.RegisterCache(w.t.Context(), w.id, w.spec, nil)
	require.NoError(w.t, err)
	w.cache = ci.Cache
}

func (w *worker) note(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *worker) LayersVisible(v wire.LayersVisible) {
	w.note(func() { w.layers[v.Lease] = append(w.layers[v.Lease], v.Layers...) })
}

func (w *worker) LeaseEnded(ev wire.LeaseEvent, note []byte) {
	if w.onEvent != nil {
		w.onEvent()
	}
	w.note(func() { w.leases[ev.Lease], w.notes[ev.Lease] = ev, note; w.ends[ev.Lease]++; w.given(ev.Lease) })
}

// grantedEvent is an EVENT_GRANTED.
type grantedEvent struct {
	wire.GrantedEvent
	blocks []uint32
}

func (w *worker) Granted(ev wire.GrantedEvent, blocks []uint32) {
	w.note(func() { w.granted = append(w.granted, grantedEvent{ev, blocks}) })
}

func (w *worker) TransferEnded(ev wire.TransferEvent) {
	if w.onEvent != nil {
		w.onEvent()
	}
	w.note(func() {
		w.transfers[ev.Transfer] = ev
		if w.ends[ev.Transfer]++; ev.Released {
			w.given(ev.Transfer)
		}
	})
}

func (w *worker) HolderEnded(ev wire.HolderEvent, note []byte) {
	w.note(func() {
		w.holders, w.holderSay = append(w.holders, ev), append(w.holderSay, note)
		if f := w.whenHolder[ev.Lease]; f != nil {
			f(ev)
		}
	})
}

func (w *worker) Released(r wire.Released) {
	w.note(func() { w.released[r.Transfer] = true; w.given(r.Transfer) })
}

// given notes that memory is the client's again, which uses it at once.
func (w *worker) given(id uint64) {
	w.free[id]++
	if f := w.whenFree[id]; f != nil {
		f()
	}
}

// atHolder calls f with each end of a holder of a lease.
func (w *worker) atHolder(lease uint64, f func(wire.HolderEvent)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whenHolder[lease] = f
}

// atGiven calls f when the memory of a lease or transfer is given back, or now where it was.
func (w *worker) atGiven(id uint64, f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.whenFree[id] = f; w.free[id] > 0 {
		f()
	}
}

// until waits for a condition on the worker's events.
func (w *worker) until(what string, cond func() bool) {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		w.mu.Lock()
		ok, ch := cond(), w.changed
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-ch:
		case <-deadline:
			w.t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

func (w *worker) leaseEnd(id uint64) wire.LeaseEvent {
	w.t.Helper()
	var ev wire.LeaseEvent
	w.until("the lease's end", func() (ok bool) { ev, ok = w.leases[id]; return ok })
	return ev
}

func (w *worker) transferEnd(id uint64) wire.TransferEvent {
	w.t.Helper()
	var ev wire.TransferEvent
	w.until("the transfer's end", func() (ok bool) { ev, ok = w.transfers[id]; return ok })
	return ev
}

func (w *worker) lease(ttl time.Duration, blocks ...uint32) wire.LeaseInfo {
	w.t.Helper()
	info, err := w.node.engine.Lease(w.t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "write", TTLMillis: ttl.Milliseconds()}, blocks)
	require.NoError(w.t, err)
	return info
}

func (w *worker) push(ticket string, timeout time.Duration, blocks ...uint32) uint64 {
	w.t.Helper()
	info, err := w.node.engine.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: ticket, TimeoutMillis: timeout.Milliseconds(), Layerwise: true}, blocks)
	require.NoError(w.t, err)
	return info.Transfer
}

func (w *worker) layer(transfer uint64, layer uint32) {
	w.node.engine.PushLayer(w.id, wire.LayerPart{Transfer: transfer, Layer: layer})
}

func (w *worker) fill(rng *rand.Rand) {
	for i := range w.mem.bytes {
		w.mem.bytes[i] = byte(rng.Uint32())
	}
}

// block returns a block's bytes in one plane of one layer.
func (w *worker) block(layer uint32, plane uint64, block uint32) []byte {
	g := layout.Geometry{Layout: w.spec.Layout, NumBlocks: w.spec.NumBlocks}
	off := g.Offset(layer, plane, block)
	return w.mem.bytes[off : off+w.spec.Layout.PlaneBlockBytes()]
}
