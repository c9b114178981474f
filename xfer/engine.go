package xfer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
)

// Limits bound what one client may hold at a time.
type Limits struct {
	Clients   int
	Regions   int // per client
	Leases    int // per client
	Transfers int // per client
}

// DefaultLimits are generous for an inference worker and small for an attacker.
var DefaultLimits = Limits{Clients: 256, Regions: 64, Leases: 8192, Transfers: 8192}

// Options compose an engine.
type Options struct {
	Node      string
	Epoch     string // 32 hex digits
	BootID    string
	Addr      string // what peers dial; it goes into tickets
	Clock     Clock
	Providers []rdma.Provider
	Store     *blockdb.DB
	Dialer    Dialer
	Directory Directory
	Finder    Finder // nil: nothing is known of other nodes
	Tracer    trace.Tracer
	Meter     metric.Meter // nil: nothing is measured
	// Scratch makes memory for probes, zeroed, of a size in bytes; nil: there are none.
	Scratch func(size uint64) (Mapping, error)
	// Locate gives what the directory knows of a node, from memory, and the providers that it announced; nil: nothing.
	Locate func(node string) (ref PeerRef, providers []string, ok bool)
	// TenantTracer is the tracer of a tenant's spans; nil: Tracer is everybody's.
	TenantTracer func(tenant string) trace.Tracer
	// Later runs what only a trace needs, at a time when no transfer waits for it; nil: at once.
	Later  func(func())
	Traces Traces // nil: no spans are kept
	Logger *slog.Logger
	Limits Limits // zero: DefaultLimits
	// NUMANode says where memory lies, for the directory; it may answer nil. Nil: nothing is said of any memory.
	NUMANode func(rdma.Memory) *int
	// ProviderWait bounds how long Drain and Close wait for a provider that owes a fence or a completion. Zero: 10 s.
	ProviderWait time.Duration
}

// Engine is a node's transfers. All methods are safe for concurrent use.
type Engine struct {
	o    Options
	stop context.CancelFunc
	ctx  context.Context
	wg   sync.WaitGroup

	mu        sync.Mutex
	idle      *sync.Cond // signalled when a lease, transfer, cache, region or client is gone
	draining  bool
	clients   map[ClientID]*client
	caches    map[uint64]*cache
	names     map[string]*cache // by name
	memories  map[memoryKey]*region
	leases    map[uint64]grant
	grants    map[blockdb.LeaseID]grant
	transfers map[uint64]*transfer
	links     map[Link]*linkState
	sessions  map[rdma.SessionID]*linkState
	past      pastLeases
	attempts  attempts
	nextID    uint64
	metrics   *metrics
	probes    []*scratch    // of peers
	scratches int           // those and what of them waits for its fence
	probing   chan struct{} // held by the probe that runs

	ended   pastTransfers // with a lock of its own
	tracing atomic.Int64  // answers to TRACE_OF that are being made
	asking  atomic.Int64  // answers to TRACE
}

// New starts an engine: one goroutine a provider that does not bring its events itself.
func New(o Options) *Engine {
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits
	}
	if o.ProviderWait == 0 {
		o.ProviderWait = 10 * time.Second
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Engine{o: o, ctx: ctx, stop: stop,
		clients: map[ClientID]*client{}, caches: map[uint64]*cache{}, names: map[string]*cache{}, memories: map[memoryKey]*region{},
		leases: map[uint64]grant{}, grants: map[blockdb.LeaseID]grant{}, transfers: map[uint64]*transfer{},
		links: map[Link]*linkState{}, sessions: map[rdma.SessionID]*linkState{}, probing: make(chan struct{}, 1)}
	e.idle = sync.NewCond(&e.mu)
	e.metrics = newMetrics(e, o.Meter)
	for _, p := range o.Providers {
		if d, ok := p.(rdma.Deliverer); ok { // spares the hand-over to another goroutine
			d.Deliver(e.events)
			continue
		}
		e.wg.Go(func() { e.poll(p) })
	}
	return e
}

// id returns a handle that this engine never gave out before. The caller holds e.mu.
func (e *Engine) id() uint64 {
	e.nextID++
	return e.nextID
}

// SetDialer completes the composition where the dialer needs the engine first.
func (e *Engine) SetDialer(d Dialer) { e.o.Dialer = d }

// Drain stops granting and starting, waits for what runs until ctx ends, then ends the rest with Draining and waits
// for its fences. After it returns nothing of a client's memory can be touched by a peer.
func (e *Engine) Drain(ctx context.Context) {
	e.StopGranting()
	e.waitIdle(ctx)
	for _, l := range e.allGrants() {
		l.revoke(fault.Draining)
	}
	for _, p := range e.allTransfers() {
		p.cancel(fault.Draining)
	}
	// A fence never waits for a peer, so this is bounded; the limit only guards against a provider's defect.
	bound, cancel := context.WithTimeout(context.Background(), e.o.ProviderWait)
	defer cancel()
	e.waitIdle(bound)
}

// waitIdle returns when no lease or push is left, or when ctx ends.
func (e *Engine) waitIdle(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.awaitLocked(ctx, func() bool { return len(e.leases)+len(e.transfers) == 0 })
}

// awaitLocked waits until done says so or ctx ends. The caller holds e.mu, which is given up while waiting.
func (e *Engine) awaitLocked(ctx context.Context, done func() bool) {
	if done() {
		return
	}
	defer context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.idle.Broadcast()
	})()
	for !done() && ctx.Err() == nil {
		e.idle.Wait()
	}
}

// Close ends every client and stops the engine's goroutines. Providers and the store are the caller's to close. Where
// a provider owes a completion, Close gives up after ProviderWait: that memory stays mapped.
func (e *Engine) Close() {
	e.mu.Lock()
	e.draining = true
	ids := make([]ClientID, 0, len(e.clients))
	for id := range e.clients {
		ids = append(ids, id)
	}
	e.mu.Unlock()
	e.endProbes(func(*scratch) bool { return true })
	for _, id := range ids {
		e.ClientGone(id)
	}
	bound, cancel := context.WithTimeout(context.Background(), e.o.ProviderWait)
	defer cancel()
	e.mu.Lock()
	e.awaitLocked(bound, func() bool { return len(e.clients) == 0 })
	e.mu.Unlock()
	e.metrics.stop()
	e.stop()
	e.wg.Wait()
}

// Stats counts what the engine holds.
type Stats struct{ Clients, Caches, Leases, Transfers, Links int }

// Stats returns the counts.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Stats{Clients: len(e.clients), Caches: len(e.caches), Leases: len(e.leases), Transfers: len(e.transfers), Links: len(e.links)}
}

// Draining says whether Drain has begun.
func (e *Engine) Draining() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.draining
}

func (e *Engine) allTransfers() []*transfer {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]*transfer, 0, len(e.transfers))
	for _, p := range e.transfers {
		out = append(out, p)
	}
	return out
}

// millis turns a wire duration into an instant from now.
func (e *Engine) millis(ms int64) rdma.Instant {
	return e.o.Clock.Now() + rdma.Instant(time.Duration(ms)*time.Millisecond)
}

func random16() (b [16]byte) {
	_, _ = rand.Read(b[:]) // it never fails: crypto/rand ends the process instead
	return b
}

func hex16(b [16]byte) string { return hex.EncodeToString(b[:]) }

func parseHex16(s string) (b [16]byte, ok bool) {
	raw, err := hex.DecodeString(s)
	return [16]byte(append(raw, make([]byte, 16)...)), err == nil && len(raw) == 16
}
